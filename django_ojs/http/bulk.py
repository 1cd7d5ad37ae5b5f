"""Bulk operations: `/jobs/bulk` and `/jobs/bulk/cancel|retry|delete` (binding 6)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import envelope
from django_ojs.conf import ojs_settings
from django_ojs.errors import NotFound, OJSError
from django_ojs.http import access, admission, fields, media, shown
from django_ojs.http.auditing import audited
from django_ojs.http.bulkbody import meant
from django_ojs.http.idempotency import Answer
from django_ojs.http.jobs import PushView, check_size
from django_ojs.http.permissions import principal
from django_ojs.operations import audit, bulk
from django_ojs.operations.bulk import Filter
from django_ojs.operations.cancel import Cancelled
from django_ojs.operations.push import Pushed
from django_ojs.policies import durations, names
from django_ojs.policies import priority as priorities
from django_ojs.states import State


class BulkView(PushView):
    """What the four share: atomicity, the key in the body, the size headers, the status of many."""

    count = 0

    def read(self) -> dict[str, Any]:
        body = self.payload(limit=ojs_settings.MAX_BATCH_BYTES)
        if body.get("atomicity", "partial") not in ("partial", "atomic"):
            raise fields.fault("atomicity", "must be partial or atomic", body["atomicity"])
        self.partial = body.get("atomicity", "partial") == "partial"
        self.key = fields.text(body, "idempotency_key", maximum=256)
        return body

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        response = super().finalize_response(request, response, *args, **kwargs)
        if not response.has_header("X-OJS-Batch-Size"):
            response["X-OJS-Batch-Size"] = str(self.count)
        return response

    def error(self, error: OJSError) -> dict[str, Any]:
        if error.error_code == "invalid_state_transition":
            error.error_code = self.conflict_code
        return error.as_dict(self.request_id)

    def status(self, succeeded: int, total: int, good: int) -> int:
        if succeeded == total:
            return good
        return 207 if succeeded and self.partial else 422


class BulkEnqueue(BulkView):
    """`POST /jobs/bulk`"""

    operation = "bulk_enqueue"

    def post(self, request: Request) -> Response:
        documents = self.read().get("jobs")
        if not isinstance(documents, list) or not documents:
            raise fields.fault("jobs", "must be an array of at least one job", documents)
        self.count = len(documents)
        check_size(self.count)
        access.check_documents(request, documents)
        return self.answer(lambda using: self._enqueue(documents, using), self.key)

    def _enqueue(self, documents: list[Any], using: str) -> Answer:
        outcomes = bulk.enqueue(documents, partial=self.partial, using=using)
        items = [self._item(index, outcome) for index, outcome in enumerate(outcomes)]
        failed = sum(item["status"] == "failed" for item in items)
        total = len(items)
        body = {"total": total, "succeeded": total - failed, "failed": failed, "items": items}
        return Answer(self.status(total - failed, total, 201), media.to_text(body), admission.headers(outcomes))

    def _item(self, index: int, outcome: Pushed | OJSError) -> dict[str, Any]:
        if isinstance(outcome, OJSError):
            return {"index": index, "status": "failed", "error": self.error(outcome)}
        item: dict[str, Any] = {"index": index, "status": outcome.status}
        if outcome.row is not None:
            render = shown.job if outcome.status == "duplicate" else envelope.render
            item |= {"job_id": str(outcome.row["id"]), "job": render(outcome.row)}
        return item | ({"warnings": list(outcome.warnings)} if outcome.warnings else {})


class BulkChange(BulkView):
    """What cancel, retry and delete share: the jobs are named by `job_ids` or by `filter`."""

    scopes = {"POST": "admin"}
    rights = {"POST": "change_job"}
    done = ""
    left = "failed"
    default_states: Sequence[State] = ()

    @audited("job.bulk", together=False)
    def post(self, request: Request) -> Response:
        body = self.read()
        self.act.action = f"job.{self.operation}"
        for name in ("dry_run", "background"):
            if body.get(name) not in (None, False):
                raise fields.fault(name, "works below /ojs/v1/admin/jobs/bulk only, and here it would be done at once")
        jobs = meant(body)
        self.by_filter = jobs.filter is not None
        if self.by_filter:
            wanted = read_filter(jobs.filter, self.default_states)
            return self.answer(self._audited(lambda using: self._filtered(wanted, using)), self.key)
        ids = _job_ids(jobs.ids)
        self.count = len(ids)
        check_size(self.count, "job_ids")
        access.check_jobs(request, [job_id for job_id in ids if isinstance(job_id, uuid.UUID)])
        return self.answer(self._audited(lambda using: self._answer(ids, False, using)), self.key)

    def _audited(self, run: Callable[[str], Answer]) -> Callable[[str], Answer]:
        """The same with an entry in the audit log: within the transaction of an Idempotency-Key, not around it."""
        return lambda using: audit.perform(lambda: run(using), self.act, using=using)

    def run(self, ids: Sequence[uuid.UUID], partial: bool, using: str) -> list[Any]:
        raise NotImplementedError

    def _filtered(self, wanted: Filter, using: str) -> Answer:
        limit = ojs_settings.MAX_BATCH_SIZE
        found = bulk.matching(wanted, access.visible(self.request), limit + 1, using=using)
        self.count = min(len(found), limit)
        return self._answer(found[:limit], len(found) > limit, using)

    def _answer(self, ids: Sequence[uuid.UUID | str], more: bool, using: str) -> Answer:
        known = [job_id for job_id in ids if isinstance(job_id, uuid.UUID)]
        unknown = len(known) < len(ids)
        outcomes: dict[Any, Any] = {}
        if self.partial or not unknown:
            distinct = list(dict.fromkeys(known))
            outcomes = dict(zip(distinct, self.run(distinct, self.partial, using), strict=True))
        aborted = bulk.undone() if unknown and not self.partial else None
        items = [self._item(index, job_id, outcomes.get(job_id), aborted) for index, job_id in enumerate(ids)]
        done = sum(item["status"] == self.done for item in items)
        fine = sum("error" not in item for item in items)
        body = {"total_matched": len(items), self.done: done, "skipped": len(items) - done}
        changed = [str(job_id) for job_id, outcome in outcomes.items() if not isinstance(outcome, OJSError)]
        self.act.detail = {"matched": len(items), "succeeded": done, "job_ids": changed}
        body |= {"failed": len(items) - fine} | ({"has_more": True} if more else {})
        headers = {"X-OJS-Batch-Size": str(len(items))}
        return Answer(self.status(fine, len(items), 200), media.to_text(body | {"items": items}), headers)

    def _item(self, index: int, job_id: uuid.UUID | str, outcome: Any, aborted: OJSError | None) -> dict[str, Any]:
        item: dict[str, Any] = {"index": index, "job_id": str(job_id), "status": self.done}
        if not isinstance(job_id, uuid.UUID):
            outcome = NotFound.resource("job", job_id)
        elif outcome is None:
            outcome = aborted
        if isinstance(outcome, OJSError):
            reason = outcome.details.get("current_state") or outcome.error_code
            return item | {"status": self.left, "reason": str(reason), "error": self.error(outcome)}
        if isinstance(outcome, Cancelled) and not outcome.changed:
            return item | {"status": self.left, "reason": "already_cancelled"}
        return item


class BulkCancel(BulkChange):
    """`POST /jobs/bulk/cancel`: a filter leaves running jobs alone, an id does not."""

    operation = "bulk_cancel"
    done, left, default_states = "cancelled", "skipped", bulk.CANCEL_STATES

    def run(self, ids: Sequence[uuid.UUID], partial: bool, using: str) -> list[Any]:
        by = principal(self.request)
        return bulk.cancel_many(ids, partial=partial, spare_active=self.by_filter, by=by, using=using)


class BulkRetry(BulkChange):
    """`POST /jobs/bulk/retry`: discarded and retryable jobs."""

    operation = "bulk_retry"
    done, default_states = "retried", bulk.RETRY_STATES

    def run(self, ids: Sequence[uuid.UUID], partial: bool, using: str) -> list[Any]:
        return bulk.retry_many(ids, partial=partial, using=using)


class BulkDelete(BulkChange):
    """`POST /jobs/bulk/delete`: ended jobs."""

    operation = "bulk_delete"
    rights = {"POST": "delete_job"}
    done, default_states = "deleted", bulk.DELETE_STATES

    def run(self, ids: Sequence[uuid.UUID], partial: bool, using: str) -> list[Any]:
        return bulk.delete_many(ids, partial=partial, using=using)


def _job_ids(value: Any) -> list[uuid.UUID | str]:
    """The ids in order; a text that no job can have as its id stays a text, and is not found."""
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        raise fields.fault("job_ids", "must be an array of at least one job id", value)
    lower = [item.lower() for item in value]
    return [uuid.UUID(item) if names.is_job_id(item) else item[:64] for item in lower]


_FILTER = frozenset({"type", "queue", "state", "states", "enqueued_before", "enqueued_after", "priority", "meta"})


def read_filter(value: Any, default_states: Sequence[State]) -> Filter:
    """The filter of a request. Unknown members are refused: ignored, they would widen what is changed."""
    if not isinstance(value, dict):
        raise fields.fault("filter", "must be an object", value)
    if unknown := sorted(value.keys() - _FILTER):
        raise fields.fault(f"filter.{unknown[0]}", f"must be one of {', '.join(sorted(_FILTER))}")
    given = {name: item for name, item in value.items() if item is not None}
    priority = given.get("priority")
    try:
        return Filter(
            states=_filter_states(given.get("state", given.get("states")), default_states),
            type=fields.text(given, "type") or "",
            queue=fields.queue_name(given["queue"], "filter.queue") if "queue" in given else "",
            enqueued_before=_instant(given, "enqueued_before"),
            enqueued_after=_instant(given, "enqueued_after"),
            priority=None if priority is None else priorities.parse(priority, ojs_settings.PRIORITY_LEVELS),
            meta=fields.member(given, "meta") or {},
        )
    except ValueError as error:
        raise fields.fault("filter.priority", str(error), priority) from error


def _filter_states(value: Any, default: Sequence[State]) -> list[State]:
    if value is None:
        return list(default)
    wanted = [value] if isinstance(value, str) else value
    if not isinstance(wanted, list) or not wanted or not all(item in set(State) for item in map(str, wanted)):
        raise fields.fault("filter.state", f"must be some of {', '.join(State)}", value)
    return [State(item) for item in dict.fromkeys(wanted)]


def _instant(given: dict[str, Any], name: str) -> Any:
    if name not in given:
        return None
    try:
        return durations.parse_instant(given[name])
    except ValueError as error:
        raise fields.fault(f"filter.{name}", str(error), given[name]) from error
