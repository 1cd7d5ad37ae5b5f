"""Bulk operations: `/jobs/bulk` and `/jobs/bulk/cancel|retry|delete` (binding 6)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import audit
from django_ojs.conf import ojs_settings
from django_ojs.errors import NotFound, OJSError
from django_ojs.http import fields, filters, media, permissions, shown
from django_ojs.http.auditing import audited
from django_ojs.http.bulkbody import meant
from django_ojs.http.idempotency import PushView
from django_ojs.http.jobs import check_size, pressure
from django_ojs.http.permissions import principal
from django_ojs.jobs import bulk
from django_ojs.jobs.bulk import JOBS, BulkVerb, How
from django_ojs.jobs.idempotency import Answer
from django_ojs.jobs.push import Pushed
from django_ojs.jobs.selection import JobFilter
from django_ojs.jobs.verbs import Cancelled
from django_ojs.rules import envelope, names


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
        permissions.check_documents(request, documents)
        return self.answer(lambda using: self._enqueue(documents, using), self.key)

    def _enqueue(self, documents: list[Any], using: str) -> Answer:
        outcomes = bulk.enqueue(documents, partial=self.partial, using=using)
        items = [self._item(index, outcome) for index, outcome in enumerate(outcomes)]
        failed = sum(item["status"] == "failed" for item in items)
        total = len(items)
        body = {"total": total, "succeeded": total - failed, "failed": failed, "items": items}
        return Answer(self.status(total - failed, total, 201), media.to_text(body), pressure(outcomes))

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
    verb: BulkVerb
    left = "failed"

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
            wanted = filters.of_client(request, jobs.filter or {}, self.verb.default)
            return self.answer(self._audited(lambda using: self._filtered(wanted, using)), self.key)
        ids = _job_ids(jobs.ids)
        self.count = len(ids)
        check_size(self.count, "job_ids")
        permissions.check_jobs(request, [job_id for job_id in ids if isinstance(job_id, uuid.UUID)])
        return self.answer(self._audited(lambda using: self._answer(ids, False, using)), self.key)

    def _audited(self, run: Callable[[str], Answer]) -> Callable[[str], Answer]:
        """The same with an entry in the audit log: within the transaction of an Idempotency-Key, not around it."""
        return lambda using: audit.perform(lambda: run(using), self.act, using=using)

    def _filtered(self, wanted: JobFilter, using: str) -> Answer:
        limit = ojs_settings.MAX_BATCH_SIZE
        found = bulk.matching(wanted, limit + 1, using=using)
        self.count = min(len(found), limit)
        return self._answer(found[:limit], len(found) > limit, using)

    def _answer(self, ids: Sequence[uuid.UUID | str], more: bool, using: str) -> Answer:
        known = [job_id for job_id in ids if isinstance(job_id, uuid.UUID)]
        unknown = len(known) < len(ids)
        outcomes: dict[Any, Any] = {}
        if self.partial or not unknown:
            distinct = list(dict.fromkeys(known))
            how = How(principal(self.request), spare_active=self.by_filter)
            outcomes = dict(
                zip(distinct, bulk.run(self.verb, distinct, how, partial=self.partial, using=using), strict=True)
            )
        aborted = bulk.undone() if unknown and not self.partial else None
        items = [self._item(index, job_id, outcomes.get(job_id), aborted) for index, job_id in enumerate(ids)]
        word = self.verb.done
        done = sum(item["status"] == word for item in items)
        fine = sum("error" not in item for item in items)
        body = {"total_matched": len(items), word: done, "skipped": len(items) - done}
        changed = [str(job_id) for job_id, outcome in outcomes.items() if not isinstance(outcome, OJSError)]
        self.act.detail = {"matched": len(items), "succeeded": done, "job_ids": changed}
        body |= {"failed": len(items) - fine} | ({"has_more": True} if more else {})
        headers = {"X-OJS-Batch-Size": str(len(items))}
        return Answer(self.status(fine, len(items), 200), media.to_text(body | {"items": items}), headers)

    def _item(self, index: int, job_id: uuid.UUID | str, outcome: Any, aborted: OJSError | None) -> dict[str, Any]:
        item: dict[str, Any] = {"index": index, "job_id": str(job_id), "status": self.verb.done}
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

    operation, verb, left = "bulk_cancel", JOBS["cancel"], "skipped"


class BulkRetry(BulkChange):
    """`POST /jobs/bulk/retry`: discarded and retryable jobs."""

    operation, verb = "bulk_retry", JOBS["retry"]


class BulkDelete(BulkChange):
    """`POST /jobs/bulk/delete`: ended jobs."""

    operation, verb = "bulk_delete", JOBS["delete"]
    rights = {"POST": "delete_job"}


def _job_ids(value: Any) -> list[uuid.UUID | str]:
    """The ids in order; a text that no job can have as its id stays a text, and is not found."""
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        raise fields.fault("job_ids", "must be an array of at least one job id", value)
    lower = [item.lower() for item in value]
    return [uuid.UUID(item) if names.is_job_id(item) else item[:64] for item in lower]
