"""Calls about many jobs: those of producers (binding 6) and those of operators (admin 1.2, 1.4, 1.7).

The jobs are named by `job_ids`, or they fit a `filter`, never both. A producer's call is one transaction, and its
answer has an outcome for each job. An operator's call counts the jobs (`dry_run`), or it is confirmed, acts in batches
and answers with a report. Beyond the specification, an operator may leave what fits a filter to the scheduler and watch
it at `/admin/bulk-actions`: proxies end a call that answers only when a million jobs are done.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from django.db.models import QuerySet
from django_filters import FilterSet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import audit, jsontext, states
from django_ojs.conf import ojs_settings
from django_ojs.errors import InvalidRequest, NotFound, OJSError
from django_ojs.http import fields, filters, links, media, permissions, query, redacted
from django_ojs.http.auditing import MAX_AUDIT_REASON
from django_ojs.http.base import OJSViewSet, using
from django_ojs.http.body import check_size
from django_ojs.http.idempotency import Idempotent
from django_ojs.http.jobs import pressure
from django_ojs.http.jobserializers import JobSerializer
from django_ojs.http.operation import operation
from django_ojs.http.pagination import CappedPagination, SortKey
from django_ojs.http.parameters import PRESSURE
from django_ojs.http.permissions import check_queue, check_whole_queue, principal
from django_ojs.http.query import OJSFilterBackend, WordFilter
from django_ojs.http.serializers import (
    AnswerSerializer,
    BodySerializer,
    DocumentField,
    EnvelopeSerializer,
    ErrorDetailSerializer,
    ErrorSerializer,
    FlagField,
    InstantField,
    NothingSerializer,
    StateField,
    TextField,
    WarningSerializer,
    rendered_by_show,
    shared,
)
from django_ojs.jobs import bulk
from django_ojs.jobs.bulk import JOBS, BulkReport, BulkVerb, How
from django_ojs.jobs.cancel import Cancelled
from django_ojs.jobs.candidates import Pushed
from django_ojs.jobs.filterfields import DeclaredFilter, Notation, read_states
from django_ojs.jobs.history import ERASURE_MEMBERS
from django_ojs.jobs.idempotency import MAX_KEY_LENGTH, Answer
from django_ojs.jobs.retry import OVERRIDABLE, check_override
from django_ojs.jobs.selection import JobFilter, names_in
from django_ojs.models import BulkAction
from django_ojs.rules import envelope, replayrules, suggest
from django_ojs.rules.faults import fault
from django_ojs.rules.ids import parse_id
from django_ojs.states import State

_ENDED = states.ordered(states.TERMINAL)
#: From which likeness on a member is taken for a misspelt `override`.
_OVERRIDE, _ALIKE = frozenset({"override"}), 0.7


# Which jobs


def selection(body: dict[str, Any], *, all_if_absent: bool = False) -> dict[str, Any]:
    """`job_ids` as it was sent, and `filter` as an object; one of them is None. null in the body is as good as absent.

    Every call about many jobs asks here first, so nothing else in a request decides between the two.

    Args:
        all_if_absent: a body with neither has an empty filter, which all jobs fit.

    Raises `InvalidRequest` where both are there, or neither, or the filter is no object.
    """
    ids, wanted = body.get("job_ids"), body.get("filter")
    if (ids is None) == (wanted is None) and not (all_if_absent and ids is None):
        raise InvalidRequest("Name the jobs either by job_ids or by filter.", details={"field": "job_ids"})
    return {"job_ids": ids, "filter": None if ids is not None else fields.member(body, "filter") or {}}


def read_override(request: Request, body: dict[str, Any]) -> dict[str, Any] | None:
    """What a retry is to change in dead letters (binding 2.6, jobs 7.3); None where nothing.

    Raises `InvalidRequest` for members that may not be changed, and for members that belong into `override` or look
    like it: ignored, they would let the job run unchanged. `PermissionDenied` for a queue beyond the caller's limits.
    """
    if beside := sorted(OVERRIDABLE & body.keys()):
        raise fault(beside[0], "belongs into override")
    for name in body.keys() - {"override"}:
        if suggest.nearest(name, _OVERRIDE, _ALIKE):
            raise fault(name, "is unknown here; perhaps override is meant")
    override = fields.member(body, "override")
    check_override(override)
    if override and isinstance(override.get("queue"), str):
        check_queue(request, override["queue"])
    return override


# Calls of producers


class AtomicSerializer(BodySerializer):
    """What the bodies of producers have in common."""

    atomicity = serializers.ChoiceField(choices=("partial", "atomic"), required=False)
    idempotency_key = TextField(max_length=MAX_KEY_LENGTH)

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        atomicity = data.get("atomicity", "partial")
        if atomicity not in ("partial", "atomic"):
            raise fault("atomicity", "must be partial or atomic", atomicity)
        key = fields.text(data, "idempotency_key", maximum=MAX_KEY_LENGTH)
        if key is not None and not key.strip():
            raise fault("idempotency_key", "must not be blank", key)
        return {"partial": atomicity == "partial", "key": key}


class BulkRequestSerializer(AtomicSerializer):
    """Jobs to enqueue, any JSON: PUSH says what is wrong with each of them."""

    jobs: Any = serializers.ListSerializer(child=EnvelopeSerializer(), min_length=1)

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        found = super().to_internal_value(data)
        jobs = data.get("jobs")
        if not isinstance(jobs, list) or not jobs:
            raise fault("jobs", "must be an array of at least one job", jobs)
        check_size(len(jobs))
        return {**found, "jobs": jobs}


class DeclaredFilterSerializer(serializers.Serializer[Any]):
    """The `filter` of a body, for the OpenAPI document: its members are those that `jobs.selection` declares.
    `http.filters` reads it."""

    notation: ClassVar[Notation]

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        names = names_in(self.notation)
        return {name: DeclaredField(JobFilter.base_filters[own]) for name, own in names.items()}


class DeclaredField(serializers.JSONField):
    """A member of such a filter, with the schema of its declaration."""

    def __init__(self, declared: DeclaredFilter) -> None:
        super().__init__(required=False, help_text=declared.sentence)
        self.schema = declared.schema


class OperatorFilterSerializer(DeclaredFilterSerializer):
    """Which jobs an operator acts on (admin 1.4)."""

    notation = Notation.OPERATOR


class ProducerFilterSerializer(DeclaredFilterSerializer):
    """Which jobs a producer's call changes (binding 6)."""

    notation = Notation.PRODUCER


_AT_ONCE = "works below /ojs/v1/admin/jobs/bulk only, and here it would be done at once"
#: What operators may ask for and producers may not: passed over, it would change what is done.
_OF_OPERATORS = {
    **dict.fromkeys(("dry_run", "background", "per_minute"), _AT_ONCE),
    "override": "works at /ojs/v1/admin/dead-letter/retry only, and here the jobs would run unchanged",
}


class BulkChangeSerializer(AtomicSerializer):
    """Which jobs to change. An id that no job can have stays a text in `job_ids`, and is not found."""

    job_ids = serializers.ListField(child=serializers.UUIDField(), required=False)
    filter = ProducerFilterSerializer(required=False)

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        found = super().to_internal_value(data)
        for name, problem in _OF_OPERATORS.items():
            if data.get(name) not in (None, False):
                raise fault(name, problem)
        found |= selection(data)
        if (ids := found["job_ids"]) is not None:
            if not isinstance(ids, list) or not ids or not all(isinstance(item, str) and item for item in ids):
                raise fault("job_ids", "must be an array of at least one job id", ids)
            check_size(len(ids), "job_ids")
            lower = [item.lower() for item in ids]
            found["job_ids"] = [parse_id(item) or item[:64] for item in lower]
        return found


class BulkItemSerializer(AnswerSerializer):
    """What became of one job: `error` says why nothing was done, `reason` in one word. An enqueued one is shown; of a
    duplicate the `job` is the one that was there."""

    index = serializers.IntegerField()
    job_id = serializers.CharField(required=False)
    status = serializers.CharField()
    reason = serializers.CharField(required=False)
    job = JobSerializer(required=False)
    error = ErrorDetailSerializer(required=False)
    warnings = WarningSerializer(many=True, required=False)


class BulkChangedSerializer(AnswerSerializer):
    """What became of each job, and how many were changed. `has_more`: the filter fits more jobs than one call
    changes."""

    total_matched = serializers.IntegerField()
    cancelled = serializers.IntegerField(required=False)
    retried = serializers.IntegerField(required=False)
    deleted = serializers.IntegerField(required=False)
    skipped = serializers.IntegerField()
    failed = serializers.IntegerField()
    has_more = serializers.BooleanField(required=False)
    items = BulkItemSerializer(many=True)


@rendered_by_show
class BulkEnqueuedSerializer(AnswerSerializer):
    """What became of each job."""

    total = serializers.IntegerField()
    succeeded = serializers.IntegerField()
    failed = serializers.IntegerField()
    items = BulkItemSerializer(many=True)

    def show(self, instance: Sequence[Pushed | OJSError]) -> dict[str, Any]:
        items = [self._item(index, outcome) for index, outcome in enumerate(instance)]
        failed = sum(item["status"] == "failed" for item in items)
        return {"total": len(items), "succeeded": len(items) - failed, "failed": failed, "items": items}

    def _item(self, index: int, outcome: Pushed | OJSError) -> dict[str, Any]:
        if isinstance(outcome, OJSError):
            return {"index": index, "status": "failed", "error": shown_error(self.context["view"], outcome)}
        item: dict[str, Any] = {"index": index, "status": outcome.status}
        if outcome.row is not None:
            render = redacted.job if outcome.status == "duplicate" else envelope.render
            item |= {"job_id": str(outcome.row["id"]), "job": render(outcome.row)}
        return item | ({"warnings": list(outcome.warnings)} if outcome.warnings else {})


def _outcomes(answer: type[serializers.Serializer[Any]]) -> dict[int, Any]:
    """What 207 and 422 have: the same answer, or for 422 an error where nothing was looked at."""
    return {207: answer, 422: (answer, ErrorSerializer)}


#: What the operations have in common that change jobs which are there.
_CHANGE: dict[str, Any] = {
    "detail": False, "methods": ["post"], "body": BulkChangeSerializer, "answer": BulkChangedSerializer,
    "statuses": (200,), "answers": _outcomes(BulkChangedSerializer), "audit": "job.bulk", "audits_itself": True,
    "errors": (409,), "headers": "Idempotency-Replayed X-OJS-Batch-Size",
}  # fmt: skip


class BulkViewSet(Idempotent, OJSViewSet):
    """`/jobs/bulk`: enqueue, cancel, retry and delete many jobs, with an outcome for each."""

    #: The jobs of the request, for the headers of every answer.
    count = 0

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        response = super().finalize_response(request, response, *args, **kwargs)
        if not response.has_header("X-OJS-Batch-Size"):
            response["X-OJS-Batch-Size"] = str(self.count)
        return response

    @operation(
        scope="push",
        body=BulkRequestSerializer,
        answer=BulkEnqueuedSerializer,
        statuses=(201,),
        answers=_outcomes(BulkEnqueuedSerializer),
        name="bulk_enqueue",
        errors=(409, 422),
        headers=f"Idempotency-Replayed X-OJS-Batch-Size {PRESSURE}",
    )
    def create(self, request: Request) -> Response:
        """Enqueue jobs, with an outcome for each."""
        body = self.validated(self.batch_payload("jobs"))
        self.count = len(body["jobs"])
        permissions.check_documents(request, body["jobs"])

        def enqueue(using: str) -> Answer:
            limits = permissions.limits(request)
            outcomes = bulk.enqueue(body["jobs"], partial=body["partial"], limits=limits, using=using)
            answer = self.represent(outcomes)
            status = _status(answer["succeeded"], answer["total"], 201, partial=body["partial"])
            return Answer(status, media.to_text(answer), pressure(outcomes))

        return self.answer(enqueue, body["key"])

    @operation(right="change_job", name="bulk_cancel", **_CHANGE)
    def cancel(self, request: Request) -> Response:
        """Cancel the jobs that are named or fit a filter.

        A filter leaves running jobs alone, an id does not.
        """
        return self._change(JOBS["cancel"], left="skipped")

    @operation(right="change_job", name="bulk_retry", **_CHANGE)
    def retry(self, request: Request) -> Response:
        """Retry the jobs that are named or fit a filter.

        Discarded and retryable ones.
        """
        return self._change(JOBS["retry"])

    @operation(url_path="delete", url_name="delete", right="delete_job", name="bulk_delete", **_CHANGE)
    def remove(self, request: Request) -> Response:
        """Delete the jobs that are named or fit a filter.

        Ended ones.
        """
        return self._change(JOBS["delete"])

    def _change(self, verb: BulkVerb, left: str = "failed") -> Response:
        """Change the jobs of the request; `left` is the status of those that stay as they are."""
        body = self.validated(self.batch_payload("job_ids"))
        self.act.action = f"job.{self.operation_name}"
        if body["filter"] is not None:
            wanted = filters.of_client(self.request, body["filter"], verb.default)
        else:
            self.count = len(body["job_ids"])
            permissions.check_jobs(self.request, _known(body["job_ids"]))

        def change(using: str) -> Answer:
            if body["filter"] is None:
                return self._changed(verb, left, body["job_ids"], using, partial=body["partial"])
            limit = ojs_settings.MAX_BATCH_SIZE
            found = bulk.matching(wanted, limit + 1, using=using)
            self.count = min(len(found), limit)
            more = {"has_more": True} if len(found) > limit else {}
            return self._changed(
                verb, left, found[:limit], using, partial=body["partial"], spare_active=True, more=more,
                asked=body["filter"],
            )  # fmt: skip

        # The entry in the audit log belongs into the transaction of an Idempotency-Key, not around it.
        return self.answer(lambda using: audit.perform(lambda: change(using), self.act, using=using), body["key"])

    def _changed(
        self, verb: BulkVerb, left: str, ids: Sequence[uuid.UUID | str], using: str, *, partial: bool,
        spare_active: bool = False, more: Mapping[str, Any] | None = None, asked: Mapping[str, Any] | None = None,
    ) -> Answer:  # fmt: skip
        """Change these jobs and say what became of each; nothing where one is unknown and not `partial`."""
        known = _known(ids)
        unknown = len(known) < len(ids)
        outcomes: dict[Any, Any] = {}
        if partial or not unknown:
            distinct = list(dict.fromkeys(known))
            how = How(principal(self.request), spare_active=spare_active, limits=permissions.limits(self.request))
            done = bulk.run(verb, distinct, how, partial=partial, using=using)
            outcomes = dict(zip(distinct, done, strict=True))
        aborted = bulk.undone() if unknown and not partial else None

        def item(index: int, job_id: uuid.UUID | str) -> dict[str, Any]:
            outcome = outcomes.get(job_id, aborted)
            if not isinstance(job_id, uuid.UUID):
                outcome = NotFound.resource("job", job_id)
            said: dict[str, Any] = {"index": index, "job_id": str(job_id), "status": verb.done}
            if isinstance(outcome, OJSError):
                reason = str(outcome.details.get("current_state") or outcome.error_code)
                return said | {"status": left, "reason": reason, "error": shown_error(self, outcome)}
            if isinstance(outcome, Cancelled) and not outcome.changed:
                return said | {"status": left, "reason": "already_cancelled"}
            return said

        items = [item(index, job_id) for index, job_id in enumerate(ids)]
        jobs = {item["job_id"]: item for item in items}.values()  # an id that is named twice is one job
        total = len(jobs)
        succeeded = sum(item["status"] == verb.done for item in jobs)
        fine = sum("error" not in item for item in jobs)
        changed = [str(job_id) for job_id, outcome in outcomes.items() if not isinstance(outcome, OJSError)]
        self.act.detail = {"matched": total, "succeeded": succeeded, "job_ids": changed} | bulk.noted(asked)
        answer = {"total_matched": total, verb.done: succeeded, "skipped": total - succeeded, "failed": total - fine}
        status = _status(fine, total, 200, partial=partial)
        text = media.to_text(self.represent({**answer, **(more or {}), "items": items}))
        return Answer(status, text, {"X-OJS-Batch-Size": str(len(ids))})


def shown_error(view: OJSViewSet, error: OJSError) -> dict[str, Any]:
    """Why nothing was done with one job, in the words of this view."""
    if error.error_code == "invalid_state_transition":
        error.error_code = view.conflict_code
    return error.as_dict(view.request_id)


def _known(ids: Sequence[uuid.UUID | str]) -> list[uuid.UUID]:
    return [job_id for job_id in ids if isinstance(job_id, uuid.UUID)]


def _status(succeeded: int, total: int, good: int, *, partial: bool) -> int:
    if succeeded == total:
        return good
    return 207 if succeeded and partial else 422


# Calls of operators


class ConfirmedSerializer(BodySerializer):
    """The body of an act that cannot be undone. Other members are refused: a misplaced one would widen the act."""

    confirm = FlagField()
    dry_run = FlagField()
    #: What `confirm` is where the body does not have it.
    assumed: ClassVar[bool | None] = None

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        own = [name for name in self.fields.keys() if name not in ("confirm", "dry_run")]  # noqa: SIM118
        fields.only(data, *own, "confirm", "dry_run")
        return {"dry_run": fields.flag(data, "dry_run"), "confirm": data.get("confirm", self.assumed)}


class AdminBulkSerializer(ConfirmedSerializer):
    """Which jobs an operator acts on, whether in the `background`, and why."""

    closed = True

    filter = OperatorFilterSerializer(required=False)
    job_ids = serializers.ListField(child=serializers.UUIDField(), required=False)
    reason = TextField(max_length=MAX_AUDIT_REASON)
    background = FlagField()
    per_minute = serializers.IntegerField(required=False, min_value=1, max_value=replayrules.MAX_PER_MINUTE)

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        given = data.get("per_minute")
        found = super().to_internal_value({name: one for name, one in data.items() if name != "per_minute"})
        found |= selection(data)
        found["per_minute"] = None if given is None else bulk.rate(given, "per_minute")
        later = fields.flag(data, "background")
        if given is not None and found["filter"] is None:
            raise fault("per_minute", "goes with a filter: jobs that are named are done at once", given)
        if given is not None and not later and "background" in data:
            raise fault("per_minute", "goes with background: jobs at a rate are left to the scheduler", given)
        later = later or given is not None
        if later and found["filter"] is None:
            raise fault("background", "goes with a filter: jobs that are named are done at once", True)
        if found["filter"] is not None and "background" not in data and not later:
            later = _prefers_async(self.context["request"])
        found["background"] = later and not found["dry_run"]
        return found | {"reason": fields.text(data, "reason", maximum=MAX_AUDIT_REASON)}


class DestructiveSerializer(ConfirmedSerializer):
    """The body of a DELETE, or what stands in the query in its stead, since proxies may drop that body.

    Who says something in both has to say the same: neither widens what the other one asks for.
    """

    needed = False

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        given: dict[str, Any] = query.every(self.context["request"])
        given |= {
            name: given[name] == "true" for name in ("confirm", "dry_run") if given.get(name) in ("true", "false")
        }
        narrowing = names_in(Notation.OPERATOR).keys() - self.fields.keys()
        if narrowed := {name: given.pop(name) for name in sorted(narrowing & given.keys())}:
            given["filter"] = narrowed
        said = {name: value for name, value in data.items() if value is not None or name not in given}
        for name in sorted(given.keys() & said.keys()):
            if _written(given[name]) != _written(said[name]):
                there = f" ({', '.join(narrowed)})" if name == "filter" and narrowed else ""
                raise fault(name, f"is another one in the query{there}: write it in one place", said[name])
        given = {**given, **said}
        noted = {name: given[name] for name in ("states", "older_than", "filter") if given.get(name)}
        return {**super().to_internal_value(given), "noted": noted, **self.read(given)}

    def read(self, data: dict[str, Any]) -> dict[str, Any]:
        """What a subclass reads of the members that are its own."""
        raise NotImplementedError


def _written(value: Any) -> Any:
    """A value as a query has it, where several are joined by commas."""
    return ",".join(map(str, value)) if isinstance(value, list) else value


class PurgeSerializer(DestructiveSerializer):
    """Which ended jobs of a queue to delete; `older_than` is an age such as PT24H, or an instant."""

    states = serializers.ListField(child=serializers.ChoiceField(choices=[state.value for state in _ENDED]))
    older_than = serializers.CharField(required=False)

    def read(self, data: dict[str, Any]) -> dict[str, Any]:
        wanted = data.get("states")
        try:
            found = read_states(wanted)
        except ValueError:
            found = []
        if not found or not set(found) <= set(_ENDED):
            raise fault("states", f"must be some of {', '.join(_ENDED)}", wanted)
        return {"states": found, "older_than": filters.older_than(data.get("older_than"))}


class AliasPurgeSerializer(PurgeSerializer):
    """The same at the path that the protocol's command line calls, which cannot send `confirm`: it says what it deletes
    by `states`, and a caller with `admin.purge` only gets here."""

    assumed = True


class JobErrorSerializer(AnswerSerializer):
    """Why one job of many could not be acted on."""

    job_id = serializers.CharField()
    error = ErrorDetailSerializer()


class AdminBulkAnswerSerializer(AnswerSerializer):
    """The report of an act."""

    action = serializers.CharField()
    dry_run = serializers.BooleanField()
    matched = serializers.IntegerField()
    succeeded = serializers.IntegerField()
    failed = serializers.IntegerField()
    errors: Any = JobErrorSerializer(many=True)


class PurgedSerializer(AnswerSerializer):
    """How many jobs were deleted."""

    purged_count = serializers.IntegerField()
    matched = serializers.IntegerField()
    dry_run = serializers.BooleanField()


class QueuePurgedSerializer(PurgedSerializer):
    """How many jobs of a queue were deleted, of those in these states."""

    queue = serializers.CharField()
    states = serializers.ListField(child=StateField())


class BulkActionErrorSerializer(AnswerSerializer):
    job_id = serializers.CharField()
    error = serializers.CharField()


class BulkActionSerializer(AnswerSerializer):
    """How far a bulk action is, and what it was refused."""

    id = serializers.IntegerField()
    action = serializers.ChoiceField(choices=[*JOBS, bulk.PURGE_HISTORY])
    state = serializers.ChoiceField(choices=BulkAction.State.values)
    expected = serializers.IntegerField()
    matched = serializers.IntegerField()
    succeeded = serializers.IntegerField()
    failed = serializers.IntegerField()
    filter = DocumentField({name: {} for name in (*names_in(Notation.OPERATOR), "before", *ERASURE_MEMBERS)})
    override = DocumentField({name: {} for name in sorted(OVERRIDABLE)}, allow_null=True)
    per_minute = serializers.IntegerField(allow_null=True)
    errors: Any = BulkActionErrorSerializer(many=True)
    problem = serializers.CharField(allow_null=True)
    actor = serializers.CharField()
    door = serializers.CharField()
    created_at = InstantField()
    finished_at = InstantField(allow_null=True)

    def gather(self, instance: BulkAction) -> dict[str, Any]:
        return bulk.describe_action(instance)


@dataclasses.dataclass(slots=True)
class OperatorAct:
    """What an operator does to many jobs, at once or in the background.

    Attributes:
        view: the call, whose `act` is the entry in the audit log.
        verb: what is done.
        default: the states of the jobs that fit a filter which names none; without any it has to name some.
    """

    view: Any
    verb: BulkVerb
    default: Sequence[State] = ()

    def answer(self, body: dict[str, Any]) -> Response:
        """Do what a body asks for that an `AdminBulkSerializer` has read."""
        return self.later(body) if body["background"] else Response(self.view.represent(self.now(body)))

    def now(self, body: dict[str, Any]) -> dict[str, Any]:
        """Do it to the jobs that are named or fit, or count them; return the report."""
        if body["filter"] is None:
            ids = self._named(body)
            if body["dry_run"]:
                return self._rehearsed(ids)
            batches, wanted = bulk.split(ids), None
        else:
            wanted = self.wanted(body["filter"])
            if body["dry_run"]:
                return self._report(BulkReport(wanted.jobs(using()).count()), dry=True)
            batches = bulk.batches(wanted.jobs(using()), using())
        override = self._confirmed(body)
        self.view.act.detail |= bulk.noted(body["filter"], override)
        return self._report(self._in_batches(batches, wanted, override))

    def later(self, body: dict[str, Any]) -> Response:
        """Leave it to the scheduler: 202, and where to look for how far it is."""
        wanted = self.wanted(body["filter"])
        override = self._confirmed(body)
        action = bulk.start_action(
            self.verb.name, wanted, self.view.act, override=override, per_minute=body["per_minute"], using=using()
        )
        headers = {"Location": links.to(self.view.request, "admin-bulk-action", action.pk)}
        return Response(shared(BulkActionSerializer).to_representation(action), status=202, headers=headers)

    def purge(self, body: dict[str, Any], wanted: JobFilter, target: str) -> dict[str, Any]:
        """Delete all jobs that fit, or count them. `target` is what the audit log calls them."""
        jobs = wanted.jobs(using())
        if body["dry_run"]:
            return {"purged_count": 0, "matched": jobs.count(), "dry_run": True}
        _check_confirmed(body)
        self.view.act.target, self.view.act.detail = target, body["noted"]
        done = self._in_batches(bulk.batches(jobs, using()), wanted)
        return {"purged_count": done.succeeded, "matched": done.matched, "dry_run": False}

    def wanted(self, given: Mapping[str, Any]) -> JobFilter:
        """The jobs that fit the `filter` of a body, in states that the verb takes."""
        read = filters.of_body(self.view.request, given)
        wanted, takes = read.wanted_states or self.default, self.verb.takes
        wrong = [state.value for state in wanted if state not in takes]
        if wrong or not wanted:
            raise fault("filter.state", f"must be some of {', '.join(takes)}", ", ".join(wrong) if wrong else None)
        return read.replace(states=list(wanted), dead_letters=self.verb.dead_letters)

    def _named(self, body: dict[str, Any]) -> list[uuid.UUID]:
        texts = fields.texts(body, "job_ids", maximum=ojs_settings.MAX_BATCH_SIZE) or []
        check_size(len(texts), "job_ids")
        ids = list(dict.fromkeys(map(fields.path_id, texts)))
        permissions.check_jobs(self.view.request, ids)
        return ids

    def _rehearsed(self, ids: list[uuid.UUID]) -> dict[str, Any]:
        """A dry run of jobs that are named: to how many it would be done, and why not to the others."""
        refused = bulk.refusals(self.verb, ids, using=using())
        found = self._report(BulkReport(len(ids) - len(refused), 0, refused[: bulk.MAX_ERRORS]), dry=True)
        return found | {"failed": len(refused)}

    def _confirmed(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """The `override` of an act that is confirmed. Its entry in the audit log says why it is done."""
        _check_confirmed(body)
        self.view.act.action = f"job.bulk_{self.verb.name}"
        self.view.act.detail = bulk.noted(None, reason=body.get("reason") or "")
        return read_override(self.view.request, {"override": body.get("override")})

    def _in_batches(
        self, ids: Iterator[list[uuid.UUID]], wanted: JobFilter | None, override: dict[str, Any] | None = None
    ) -> BulkReport:
        """A filter leaves running jobs alone unless it names their state."""
        spare = wanted is not None and State.ACTIVE not in wanted.wanted_states
        how = How(principal(self.view.request), spare, override, permissions.limits(self.view.request))
        jobs = wanted.jobs(using()) if wanted else None
        return bulk.run_in_batches(self.verb, ids, how, self.view.act, using(), selected=jobs)

    def _report(self, done: BulkReport, *, dry: bool = False) -> dict[str, Any]:
        errors = [
            {"job_id": str(job_id), "error": error.as_dict(self.view.request_id)} for job_id, error in done.errors
        ]
        counted = {"matched": done.matched, "succeeded": done.succeeded, "failed": 0 if dry else done.failed}
        return {"action": self.verb.name, "dry_run": dry, **counted, "errors": errors}


def purge_queue(view: Any, name: str) -> Response:
    """Delete ended jobs of a queue that the caller may use: the body, or the query, names their states."""
    check_whole_queue(view.request, fields.queue_name(name))
    body = view.validated(view.payload(required=False))
    wanted = filters.of_body(view.request, {"queue": name})
    wanted = wanted.replace(states=body["states"], older_than=body["older_than"])
    done = OperatorAct(view, JOBS["delete"]).purge(body, wanted, f"queue {name}")
    return Response(view.represent({**done, "queue": name, "states": body["states"]}))


def _check_confirmed(body: Mapping[str, Any]) -> None:
    """Raise InvalidRequest unless the body says `"confirm": true` (admin 1.1)."""
    if body.get("confirm") is not True:
        raise InvalidRequest(
            "This cannot be undone: it needs confirm.",
            details={"field": "confirm", "expected": "true"},
            hint='Send "confirm": true, or "dry_run": true to count what it would concern.',
        )


def _prefers_async(request: Request) -> bool:
    """Whether the caller wishes to be answered at once (`Prefer: respond-async`, RFC 7240)."""
    wishes = request.headers.get("Prefer", "").split(",")
    return "respond-async" in {wish.partition(";")[0].strip().lower() for wish in wishes}


#: What the operations of `AdminBulkViewSet` have in common.
_ACT: dict[str, Any] = {
    "detail": False, "methods": ["post"], "body": AdminBulkSerializer, "answer": AdminBulkAnswerSerializer,
    "statuses": (200,), "answers": {202: BulkActionSerializer}, "audit": "job.bulk", "audits_itself": True,
    "headers": "Location",
}  # fmt: skip


class AdminBulkViewSet(OJSViewSet):
    """`/admin/jobs/bulk`: retry, cancel and delete many jobs."""

    @operation(right="change_job", **_ACT)
    def retry(self, request: Request) -> Response:
        """Retry everything that is named or fits a filter."""
        return self._act("retry", (State.DISCARDED,))

    @operation(right="change_job", **_ACT)
    def cancel(self, request: Request) -> Response:
        """Cancel everything that is named or fits a filter.

        A filter leaves running jobs alone unless it names their state.
        """
        return self._act("cancel", states.ordered(states.WAITING))

    @operation(
        url_path="delete", url_name="delete", operator_scope="admin.purge", right="delete_job", **_ACT
    )  # fmt: skip
    def remove(self, request: Request) -> Response:
        """Delete everything that is named or fits a filter.

        Ended jobs only, and a filter has to say of which states.
        """
        return self._act("delete")

    def _act(self, verb: str, default: Sequence[State] = ()) -> Response:
        body = self.validated(self.batch_payload("job_ids"))
        return OperatorAct(self, JOBS[verb], default).answer(body)


# In the background


class BulkActionFilter(FilterSet):  # type: ignore[misc]
    state = WordFilter(BulkAction.State.values)


class BulkActionViewSet(OJSViewSet):
    """`/admin/bulk-actions`, the newest first."""

    lookup_url_kwarg = "action_id"
    model_name = "job"
    operator_serializer_class = BulkActionSerializer
    filter_backends = (OJSFilterBackend,)
    filterset_class = BulkActionFilter
    pagination_class = CappedPagination
    ordering = (SortKey("id", descending=True, parse=int),)

    def get_queryset(self) -> QuerySet[BulkAction]:
        """A key that is limited to queues or types sees what it began itself: others tell of what it may not see."""
        found = BulkAction.objects.using(using())
        key = permissions.api_key(self.request)
        if key is None or not permissions.is_limited(self.request):
            return found.all()
        # Another key of this name may have begun others, before this one was made.
        return found.filter(actor=principal(self.request), created_at__gte=key.created_at)

    def get_object(self) -> BulkAction:
        text = self.kwargs["action_id"]
        found: BulkAction | None = self.get_queryset().filter(pk=jsontext.digits(text) or 0).first()
        if found is None:
            raise NotFound.resource("bulk_action", text[:64])
        self.check_object_permissions(self.request, found)
        return found

    @operation()
    def list(self, request: Request) -> Response:
        """The acts on many jobs in the background."""
        return self.listed(self.get_queryset())

    @operation()
    def retrieve(self, request: Request, action_id: str) -> Response:
        """An act on many jobs in the background: how far it is."""
        return Response(self.represent(self.get_object()))

    @operation(
        detail=True,
        methods=["post"],
        right="change_job",
        body=NothingSerializer,
        audit="bulkaction.cancel",
        errors=(409,),
    )
    def cancel(self, request: Request, action_id: str) -> Response:
        """Stop an act on many jobs in the background.

        What it has done stays done.
        """
        self.payload(required=False)
        return Response(self.represent(bulk.cancel_action(self.get_object().pk)))
