"""The dead letter queue (binding 2.6, jobs 7.3, admin 1.7), and the rules that retry what is in it.

`/dead-letter` is for producers and workers, `/admin/dead-letter` for operators. What is done to many dead letters at
once is the same behind both doors (`bulk`).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

from django.db import router
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import retention, states
from django_ojs.errors import NotFound, PermissionDenied
from django_ojs.http import compat, fields, filters, jobserializers, permissions, query, redacted
from django_ojs.http.auditing import MAX_AUDIT_REASON
from django_ojs.http.base import OJSViewSet
from django_ojs.http.bulk import (
    AdminBulkAnswerSerializer,
    AdminBulkSerializer,
    BulkActionSerializer,
    DestructiveSerializer,
    OperatorAct,
    OperatorFilterSerializer,
    PurgedSerializer,
    read_override,
    selection,
)
from django_ojs.http.joblists import JobFilterBackend, JobPagination, is_whole, listing, sorting
from django_ojs.http.jobserializers import (
    FailureField,
    JobAnswerSerializer,
    JobDetailSerializer,
    JobSerializer,
    JobTimesSerializer,
    StoredJobSerializer,
)
from django_ojs.http.operation import operation
from django_ojs.http.pagination import ListPage, SortKey, parse_time, standing
from django_ojs.http.permissions import type_limit
from django_ojs.http.serializers import (
    AnswerSerializer,
    BodySerializer,
    FlagField,
    InstantField,
    NothingSerializer,
    ObjectField,
    TextField,
    rendered_by_show,
    shared,
)
from django_ojs.jobs import replay
from django_ojs.jobs.bulk import DEAD_LETTERS
from django_ojs.jobs.delete import delete_one, is_dead_letter
from django_ojs.jobs.filterfields import OPERATOR
from django_ojs.jobs.read import info
from django_ojs.jobs.retry import not_revived, retry_one
from django_ojs.jobs.search import FEW
from django_ojs.jobs.selection import JobFilter, names_in
from django_ojs.models import Job
from django_ojs.models.job import JobQuerySet, JobRow
from django_ojs.rules import replayrules
from django_ojs.rules.durations import format_iso
from django_ojs.rules.faults import fault
from django_ojs.rules.replayrules import Rule
from django_ojs.states import State
from django_ojs.statistics import counters, failures

RESOURCE = "dead_letter_job"


@rendered_by_show
class DeadLetterSerializer(StoredJobSerializer):
    """A dead letter in a list, and as the public door shows it."""

    errors = serializers.ListField(child=FailureField())  # type: ignore[assignment]
    error = FailureField(required=False)
    total_attempts = serializers.IntegerField()
    metadata = JobTimesSerializer()
    discarded_at = InstantField(required=False)

    def show(self, instance: JobRow) -> dict[str, Any]:
        return compat.dead_letter(redacted.job(instance))


class DeadLetterAnswerSerializer(DeadLetterSerializer):
    """One dead letter, flat and once more under `job`."""

    job = DeadLetterSerializer()


class RevivedSerializer(JobSerializer):
    """A dead letter that was retried."""

    def show(self, instance: JobRow) -> dict[str, Any]:
        job = super().show(instance)
        return job | {"re_enqueued_at": job["enqueued_at"]}


class LetterDeletedSerializer(AnswerSerializer):
    deleted = serializers.BooleanField()
    job_id = serializers.CharField()


class LetterRetriedSerializer(AdminBulkAnswerSerializer):
    retried = serializers.IntegerField(source="succeeded")


class NamedLettersPurgedSerializer(AdminBulkAnswerSerializer):
    """The report of the deletion of dead letters that are named."""

    purged_count = serializers.IntegerField(source="succeeded")


class LetterRetentionSerializer(AnswerSerializer):
    """How long dead letters are kept in queues that say nothing else, how many of all queues, and when the first of
    those counted here will be too old."""

    max_age = serializers.CharField(allow_null=True)
    max_count = serializers.IntegerField()
    next_prune_at = InstantField(allow_null=True)

    def gather(self, instance: retention.LetterRetention) -> dict[str, Any]:
        max_age = None if instance.max_age is None else format_iso(int(instance.max_age * 1000))
        return {"max_age": max_age, "max_count": instance.max_count, "next_prune_at": instance.next_at}


class LetterStatsSerializer(AnswerSerializer):
    """Dead letters by queue, type and error."""

    total = serializers.IntegerField()
    by_queue = serializers.DictField(child=serializers.IntegerField())
    by_type = serializers.DictField(child=serializers.IntegerField())
    by_error_type = serializers.DictField(child=serializers.IntegerField())
    looked_at = serializers.IntegerField()
    newest_at = InstantField(allow_null=True)
    oldest_at = InstantField(allow_null=True)
    retention = LetterRetentionSerializer()


class LetterOverrideSerializer(BodySerializer):
    """What a retry changes in one dead letter."""

    needed = False

    override = ObjectField()
    clear_checkpoint = FlagField()

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        override = read_override(self.context["request"], data)
        return {"override": override, "clear_checkpoint": fields.flag(data, "clear_checkpoint")}


class AdminLetterOverrideSerializer(LetterOverrideSerializer):
    """The same with a reason; other members are refused."""

    closed = True

    reason = TextField(max_length=MAX_AUDIT_REASON)
    confirm = FlagField()

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        found = super().to_internal_value(fields.only(data, *self.fields))
        return found | {"reason": fields.text(data, "reason", maximum=MAX_AUDIT_REASON)}


class LetterRetrySerializer(AdminBulkSerializer):
    """Which dead letters to retry, and what changes in them: a dry run does not look at that."""

    override = ObjectField()

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        return super().to_internal_value(data) | {"override": data.get("override")}


class LetterPurgeSerializer(DestructiveSerializer):
    """Which dead letters to delete: those that are named, or all that fit."""

    filter = OperatorFilterSerializer(required=False)
    job_ids = serializers.ListField(child=serializers.UUIDField(), required=False)
    older_than = serializers.CharField(required=False)

    def read(self, data: dict[str, Any]) -> dict[str, Any]:
        if data.get("job_ids") is not None and data.get("older_than") is not None:
            raise fault("older_than", "goes with a filter, not with job_ids", data["older_than"])
        return {**selection(data, all_if_absent=True), "older_than": filters.older_than(data.get("older_than"))}


class DeadLetterFilterBackend(JobFilterBackend):
    """Compares times with those of the jobs and never with their ids: an id may be much older than its dead letter."""

    by_id = False

    def filter_queryset(self, request: Request, queryset: Any, view: Any) -> Any:
        query.text(request, "queue")  # it is read as a text before it is read as a name
        return super().filter_queryset(request, queryset, view)


class DeadLetterPagination(JobPagination):
    """Pages of dead letters: newest first, and for operators as the query asks. The number in each queue is known
    without counting."""

    max_limit = 1000

    def sorting(self, view: Any) -> Sequence[str]:
        return super().sorting(view) if view.operator else ()

    def get_page(self, queryset: QuerySet[Any], request: Request, view: Any) -> ListPage:
        key = sorting(request, "finished_at") if view.operator else SortKey("finished_at", True, parse_time)
        total, base = None, None
        if is_whole(view):
            letters = sum(dead_by_queue(request, query.text(request, "queue")).values())
            total = letters if filters.asks_for_only(filters.wanted_by(request), "queue") else None
            base = {"finished_at": (view.get_queryset(), queryset)} if letters > FEW else None
        return listing(request, queryset, key, total, base, columns=None, sizes=self.sizes(view), bounded=view.operator)


class DeadLetterViewSet(OJSViewSet):
    """`/dead-letter`, and `/admin/dead-letter` for operators, who see a letter flat and may sort the list."""

    lookup_url_kwarg = "job_id"
    model_name = "job"
    serializer_class = DeadLetterSerializer
    operator_serializer_class = JobDetailSerializer
    filter_backends = (DeadLetterFilterBackend,)
    filterset_class: Any = JobFilter
    pagination_class = DeadLetterPagination
    list_names = ("jobs", "items")

    def get_queryset(self) -> JobQuerySet:
        return Job.objects.using(router.db_for_write(Job)).dead_letters()

    def get_object(self) -> JobRow:
        """The dead letter in the path, if the caller may touch it.

        A job that is none is not found; an operator who wants to retry one that lives gets its state instead.
        """
        text = self.kwargs["job_id"]
        job_id = fields.path_id(text, RESOURCE)
        if self.operator:
            row = info(job_id)
        else:
            rows = self.get_queryset().filter(pk=job_id).rows()
            if not rows:
                raise NotFound.resource(RESOURCE, str(job_id))
            row = rows[0]
        permissions.check_row(self.request, row)
        if not is_dead_letter(row):
            if self.action == "retry" and row["state"] in states.LIVE and (error := not_revived(row)):
                raise error
            raise NotFound.resource(RESOURCE, text)
        self.check_object_permissions(self.request, row)
        return row

    @operation(scope="read", answer=DeadLetterSerializer)
    def list(self, request: Request) -> Response:
        """The dead letters that fit a filter."""
        return self.listed(self.get_queryset())

    @operation(scope="read", public_answer=DeadLetterAnswerSerializer)
    def retrieve(self, request: Request, job_id: str) -> Response:
        """A dead letter."""
        return self._respond(self.represent(self.get_object()))

    @operation(right="delete_job", answer=LetterDeletedSerializer, operator_answer=None, audit="job.delete")
    def destroy(self, request: Request, job_id: str) -> Response:
        """Delete a dead letter."""
        row = self.get_object()
        delete_one(row["id"])
        if self.operator:
            return Response(status=204)
        return Response(self.represent({"deleted": True, "job_id": row["id"]}))

    @operation(
        detail=True,
        methods=["post"],
        right="change_job",
        body=LetterOverrideSerializer,
        operator_body=AdminLetterOverrideSerializer,
        answer=RevivedSerializer,
        operator_answer=JobDetailSerializer,
        public_answer=JobAnswerSerializer,
        audit="job.retry",
        errors=(409,),
    )
    def retry(self, request: Request, job_id: str) -> Response:
        """Run a dead letter again, changed if wanted.

        It is available as if it had never run.
        """
        body = self.validated(self.payload(required=False))
        row, override = self.get_object(), body["override"]
        if self.operator:
            reason = {"reason": body["reason"]} if body["reason"] else {}
            self.act.detail |= reason | {"override": sorted(override or {})}
        if body["clear_checkpoint"]:
            self.act.detail["clear_checkpoint"] = True
        revived = retry_one(
            row["id"], override=override, clear_checkpoint=body["clear_checkpoint"], limits=permissions.limits(request)
        )
        return self._respond(self.represent(revived))

    @operation(detail=False, methods=["get"], scope="admin.read", right="view_job", answer=LetterStatsSerializer)
    def stats(self, request: Request) -> Response:
        """Dead letters by queue, type and error.

        The queues are counted exactly, and for types and errors the newest 10,000 are looked at.
        """
        letters = self.get_queryset().filter(permissions.visible(request))
        found = failures.dead_letters(letters)
        found["retention"] = retention.of_dead_letters(letters, using=letters.db)
        by_queue = dead_by_queue(request, "")
        if type_limit(request) is not None:  # the counts know no types
            by_queue = {}
            found["total"] = found["looked_at"]
        total = found.pop("total", sum(by_queue.values()))
        return Response(self.represent({"total": total, "by_queue": by_queue, **found}))

    @operation(
        detail=False,
        methods=["post"],
        url_path="retry",
        url_name="retry-many",
        scope="admin.write",
        right="change_job",
        body=LetterRetrySerializer,
        answer=LetterRetriedSerializer,
        statuses=(200,),
        answers={202: BulkActionSerializer},
        audit="job.bulk",
        audits_itself=True,
        headers="Location",
    )
    def retry_many(self, request: Request) -> Response:
        """Run the dead letters again that are named or fit a filter, changed if wanted.

        All of them fit an empty filter. What `override` makes of one is refused where a push of that would be.
        """
        body = self.validated(self.batch_payload("job_ids"))
        return OperatorAct(self, DEAD_LETTERS["retry"], (State.DISCARDED,)).answer(body)

    @operation(
        scope="admin.purge",
        right="delete_job",
        body=LetterPurgeSerializer,
        answer=PurgedSerializer,
        answers={200: (PurgedSerializer, NamedLettersPurgedSerializer)},
        query=f"{' '.join(names_in(OPERATOR))} confirm dry_run",
        audit="job.purge",
        audits_itself=True,
    )
    def clear(self, request: Request) -> Response:
        """Delete dead letters."""
        return self._purge()

    @operation(
        detail=False,
        methods=["post"],
        scope="admin.purge",
        operator_scope="admin.purge",
        right="delete_job",
        body=LetterPurgeSerializer,
        answer=PurgedSerializer,
        answers={200: (PurgedSerializer, NamedLettersPurgedSerializer)},
        audit="job.purge",
        audits_itself=True,
    )
    def purge(self, request: Request) -> Response:
        """Delete dead letters."""
        return self._purge()

    def _respond(self, letter: dict[str, Any]) -> Response:
        return Response(letter if self.operator else jobserializers.answer(letter))

    def _purge(self) -> Response:
        """Delete the dead letters that the body or the query names, or all that fit its filter."""
        act = OperatorAct(self, DEAD_LETTERS["delete"], (State.DISCARDED,))
        body = self.validated(self.batch_payload("job_ids", required=False))
        if body["filter"] is None:
            return Response(shared(NamedLettersPurgedSerializer).to_representation(act.now(body)))
        wanted = act.wanted(body["filter"])
        ages = [age for age in (wanted.values.get("older_than"), body["older_than"]) if age]
        done = act.purge(body, wanted.replace(older_than=min(ages, default=None)), "dead letters")
        return Response(self.represent(done))


def dead_by_queue(request: Request, queue: str) -> dict[str, int]:
    """The number of dead letters in each queue that has any: in this one, or in those that the caller may see."""
    limit = permissions.queues_to_read(request, [queue] if queue else [])
    found = counters.count_all(list(limit) or None, using=router.db_for_write(Job))
    return {name: counted.dead for name, counted in sorted(found.items()) if counted.dead}


# Replay rules


class ReplayFilterSerializer(AnswerSerializer):
    """The `filter` of a rule; `rules.replayrules` reads it."""

    queue = serializers.CharField(required=False)
    type = serializers.CharField(required=False)
    error_type = serializers.CharField(required=False)
    since = InstantField(required=False)
    until = InstantField(required=False)

    def to_representation(self, instance: dict[str, Any]) -> dict[str, Any]:
        """In the order in which it was given."""
        shown = super().to_representation(instance)
        return {name: shown[name] for name in instance}


class ReplayRuleSerializer(AnswerSerializer):
    """A rule that retries dead letters, and whether it comes from the settings or was made by this API."""

    name = serializers.CharField()
    filter = ReplayFilterSerializer()
    delay = serializers.CharField()
    max_replays = serializers.IntegerField()
    per_minute = serializers.IntegerField()
    enabled = serializers.BooleanField()
    source: Any = serializers.ChoiceField(choices=["settings", "api"])

    def gather(self, instance: Rule) -> dict[str, Any]:
        return instance.facts() | {"source": instance.source}


class ReplayRuleRequestSerializer(BodySerializer):
    """`validated_data` is the `Rule`; its name is that in the path."""

    name = serializers.CharField(required=False)
    filter = ReplayFilterSerializer()
    delay = serializers.CharField(required=False)
    max_replays = serializers.IntegerField(required=False)
    per_minute = serializers.IntegerField(required=False)
    enabled = serializers.BooleanField(required=False)

    def to_internal_value(self, data: Any) -> Any:
        name = self.context["view"].kwargs["name"]
        if data.get("name", name) != name:
            raise fault("name", "must be the name in the path, or absent", data["name"])
        return replayrules.parse({**data, "name": name})


class ReplayPreviewSerializer(AnswerSerializer):
    """How many dead letters a rule is for, how many of them it has retried often enough, and how many are due."""

    name = serializers.CharField()
    matched = serializers.IntegerField()
    exhausted = serializers.IntegerField()
    due = serializers.IntegerField()
    looked_at = serializers.IntegerField()


class ReplayRuleViewSet(OJSViewSet):
    """`/admin/dead-letter/replay-rules`, in the order in which they are asked.

    A caller whose key is limited sees and touches the rules within its limits only.
    """

    lookup_url_kwarg = "name"
    model_name = "replayrule"
    operator_serializer_class = ReplayRuleSerializer
    pagination_class = None

    def get_object(self) -> Rule:
        """The rule in the path. Raises NotFound or PermissionDenied."""
        rule = replay.find(self.kwargs["name"])
        _check_limits(self.request, rule)
        self.check_object_permissions(self.request, rule)
        return rule

    @operation(lists=("items", "replay_rules"))
    def list(self, request: Request) -> Response:
        """The rules that retry dead letters."""
        rules = [rule for rule in replay.rules() if _is_within_limits(request, rule)]
        found = self.get_serializer(many=True).to_representation(rules)
        return self.whole_list(found, standing(len(rules), replayrules.MAX_RULES))

    @operation()
    def retrieve(self, request: Request, name: str) -> Response:
        """A rule that retries dead letters."""
        return Response(self.represent(self.get_object()))

    @operation(
        right="change_replayrule",
        body=ReplayRuleRequestSerializer,
        statuses=(200, 201),
        audit="replayrule.set",
        errors=(409,),
        missing_ok=True,
    )
    def update(self, request: Request, name: str) -> Response:
        """Make or replace a rule that retries dead letters.

        A new one comes last; one that is replaced keeps its place.
        """
        rule: Any = self.validated(self.payload())
        _check_limits(request, rule)
        with contextlib.suppress(NotFound):
            self.get_object()  # a caller may not replace what it may not touch
        new = replay.put(dataclasses.replace(rule, limits=permissions.limits(request).to_json()))
        self.act.detail["rule"] = rule.facts()
        return Response(self.represent(rule), status=201 if new else 200)

    @operation(
        operator_scope="admin.write", right="delete_replayrule", answer=None, audit="replayrule.delete", errors=(409,)
    )
    def destroy(self, request: Request, name: str) -> Response:
        """Delete a rule that retries dead letters."""
        self.get_object()
        replay.delete(name)
        return Response(status=204)

    @operation(
        detail=True, methods=["post"], right="change_replayrule", body=NothingSerializer, answer=ReplayPreviewSerializer
    )
    def preview(self, request: Request, name: str) -> Response:
        """How many dead letters a rule would retry.

        Nothing is changed.
        """
        self.payload(required=False)
        rule = self.get_object()
        return Response(self.represent({"name": rule.name, **dataclasses.asdict(replay.preview(rule))}))


def _check_limits(request: Request, rule: Rule) -> None:
    permissions.check_row(request, {name: rule.filter.get(name, "") for name in ("queue", "type")})


def _is_within_limits(request: Request, rule: Rule) -> bool:
    try:
        _check_limits(request, rule)
    except PermissionDenied:
        return False
    return True
