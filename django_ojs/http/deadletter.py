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
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import states
from django_ojs.conf import ojs_settings
from django_ojs.errors import NotFound, PermissionDenied
from django_ojs.http import compat, fields, filters, jobserializers, permissions, query, shown
from django_ojs.http.auditing import MAX_REASON, audited
from django_ojs.http.base import OJSViewSet
from django_ojs.http.bulk import (
    AdminBulkAnswerSerializer,
    AdminBulkSerializer,
    BulkActionSerializer,
    DestructiveSerializer,
    JobFilterSerializer,
    OperatorAct,
    PurgedSerializer,
    read_override,
    selection,
)
from django_ojs.http.filters import JobFilter
from django_ojs.http.joblists import JobFilterBackend, JobPagination, is_whole, listing, sorting
from django_ojs.http.jobserializers import JobAnswerSerializer, JobDetailSerializer, JobSerializer
from django_ojs.http.openapi import documented
from django_ojs.http.pagination import Key, Page, parse_time, standing
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
)
from django_ojs.jobs import replay
from django_ojs.jobs.bulk import DEAD_LETTERS
from django_ojs.jobs.search import FEW
from django_ojs.jobs.verbs import delete_one, info, is_dead_letter, not_revived, retry_one
from django_ojs.models import Job
from django_ojs.models.job import JobQuerySet, JobRow
from django_ojs.rules import replayrules
from django_ojs.rules.durations import format_instant
from django_ojs.rules.faults import fault
from django_ojs.rules.replayrules import Rule
from django_ojs.states import State
from django_ojs.statistics import counters, failures

RESOURCE = "dead_letter_job"


@rendered_by_show
class DeadLetterSerializer(JobSerializer):
    """A dead letter in a list, and as the public door shows it."""

    errors = serializers.ListField(child=serializers.DictField())  # type: ignore[assignment]
    error = serializers.DictField(required=False)
    total_attempts = serializers.IntegerField()
    metadata = serializers.DictField()
    discarded_at = InstantField(required=False)

    def show(self, instance: JobRow) -> dict[str, Any]:
        return compat.dead_letter(shown.job(instance))


class DeadLetterAnswerSerializer(DeadLetterSerializer):
    """One dead letter, flat and once more under `job`."""

    job = DeadLetterSerializer()


class RevivedSerializer(JobSerializer):
    """A dead letter that was retried."""

    def show(self, instance: JobRow) -> dict[str, Any]:
        job = super().show(instance)
        return job | {"re_enqueued_at": job["enqueued_at"]}


class LetterDeletedSerializer(serializers.Serializer[Any]):
    deleted = serializers.BooleanField()
    job_id = serializers.CharField()


class LetterRetriedSerializer(AdminBulkAnswerSerializer):
    retried = serializers.IntegerField(required=False)


class LetterStatsSerializer(serializers.Serializer[Any]):
    """Dead letters by queue, type and error."""

    total = serializers.IntegerField()
    by_queue = serializers.DictField()
    by_error_type = serializers.DictField()
    by_type = serializers.DictField()
    looked_at = serializers.IntegerField(required=False)
    oldest_at = InstantField(allow_null=True)
    newest_at = InstantField(allow_null=True)


class LetterOverrideSerializer(BodySerializer):
    """What a retry changes in one dead letter."""

    needed = False

    override = ObjectField()

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        return {"override": read_override(self.context["request"], data)}


class AdminLetterOverrideSerializer(LetterOverrideSerializer):
    """The same with a reason; other members are refused."""

    closed = True

    reason = TextField(max_length=MAX_REASON)
    confirm = FlagField()

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        found = super().to_internal_value(fields.only(data, *self.fields))
        return found | {"reason": fields.text(data, "reason", maximum=MAX_REASON)}


class LetterRetrySerializer(AdminBulkSerializer):
    """Which dead letters to retry, and what changes in them: a dry run does not look at that."""

    override = ObjectField()

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        return super().to_internal_value(data) | {"override": data.get("override")}


class LetterPurgeSerializer(DestructiveSerializer):
    """Which dead letters to delete: those that are named, or all that fit."""

    filter = JobFilterSerializer(required=False)
    job_ids = serializers.ListField(child=serializers.UUIDField(), required=False)
    older_than = serializers.CharField(required=False)

    def read(self, data: dict[str, Any]) -> dict[str, Any]:
        if data.get("job_ids") is not None and data.get("older_than") is not None:
            raise fault("older_than", "goes with a filter, not with job_ids", data["older_than"])
        return {**selection(data, all_if_absent=True), "older_than": filters.older_than(data.get("older_than"))}


class DeadLetterFilterBackend(JobFilterBackend):
    """By the times of the jobs alone: a letter is old, and its id may be older."""

    by_id = False

    def filter_queryset(self, request: Request, queryset: Any, view: Any) -> Any:
        query.text(request, "queue")  # it is read as a text before it is read as a name
        return super().filter_queryset(request, queryset, view)


class DeadLetterPagination(JobPagination):
    """Newest first, and for operators as the query asks. The number in each queue is known without counting."""

    max_limit = 1000

    def sorting(self, view: Any) -> Sequence[str]:
        return super().sorting(view) if view.operator else ()

    def get_page(self, queryset: QuerySet[Any], request: Request, view: Any) -> Page:
        key = sorting(request, "finished_at") if view.operator else Key("finished_at", True, parse_time)
        total, base = None, None
        if is_whole(view):
            letters = sum(dead_by_queue(request, query.text(request, "queue")).values())
            asked = (request.query_params.get(name) for name in filters.NAMES if name != "queue")
            total = None if type_limit(request) is not None or any(asked) else letters
            base = {"finished_at": (view.get_queryset(), queryset)} if letters > FEW else None
        return listing(request, queryset, key, total, base, columns=None, sizes=self.sizes(view), bounded=view.operator)


class DeadLetterViewSet(OJSViewSet):
    """`/dead-letter`, and `/admin/dead-letter` for operators, who see a letter flat and may sort the list."""

    lookup_url_kwarg = "job_id"
    model_name = "job"
    serializer_class = DeadLetterSerializer
    operator_serializer_class = JobDetailSerializer
    action_serializers = {
        "list": DeadLetterSerializer, "destroy": LetterDeletedSerializer, "retry": RevivedSerializer,
        "stats": LetterStatsSerializer, "retry_many": LetterRetriedSerializer,
        "clear": PurgedSerializer, "purge": PurgedSerializer,
    }  # fmt: skip
    operator_action_serializers = {"destroy": None, "retry": JobDetailSerializer}
    body_serializers = {
        "retry": LetterOverrideSerializer, "retry_many": LetterRetrySerializer,
        "clear": LetterPurgeSerializer, "purge": LetterPurgeSerializer,
    }  # fmt: skip
    operator_body_serializers = {"retry": AdminLetterOverrideSerializer}
    filter_backends = (DeadLetterFilterBackend,)
    filterset_class: Any = JobFilter
    pagination_class = DeadLetterPagination
    list_names = ("jobs", "items")
    action_scopes = {
        "list": "read", "retrieve": "read", "stats": "admin.read", "retry_many": "admin.write",
        "clear": "admin.purge", "purge": "admin.purge",
    }  # fmt: skip
    operator_scopes = {"purge": "admin.purge"}
    action_rights = {
        "stats": "view_job", **dict.fromkeys(("retry", "retry_many"), "change_job"),
        **dict.fromkeys(("destroy", "clear", "purge"), "delete_job"),
    }  # fmt: skip

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

    def list(self, request: Request) -> Response:
        """The dead letters that fit a filter."""
        return self.listed(self.get_queryset())

    @documented(public=DeadLetterAnswerSerializer)
    def retrieve(self, request: Request, job_id: str) -> Response:
        """A dead letter."""
        return self._shown(self.represent(self.get_object()))

    @audited("job.delete")
    def destroy(self, request: Request, job_id: str) -> Response:
        """Delete a dead letter."""
        row = self.get_object()
        delete_one(row["id"])
        if self.operator:
            return Response(status=204)
        return Response({"deleted": True, "job_id": str(row["id"])})

    @documented(public=JobAnswerSerializer)
    @action(detail=True, methods=["post"])
    @audited("job.retry")
    def retry(self, request: Request, job_id: str) -> Response:
        """Run a dead letter again, changed if wanted.

        It is available as if it had never run.
        """
        body = self.validated(self.payload(required=False))
        row, override = self.get_object(), body["override"]
        if self.operator:
            reason = {"reason": body["reason"]} if body["reason"] else {}
            self.act.detail |= reason | {"override": sorted(override or {})}
        return self._shown(self.represent(retry_one(row["id"], override=override)))

    @action(detail=False, methods=["get"])
    def stats(self, request: Request) -> Response:
        """Dead letters by queue, type and error.

        The queues are counted exactly, and for types and errors the newest 10,000 are looked at.
        """
        found = failures.dead_letters(self.get_queryset().filter(permissions.visible(request)))
        by_queue = dead_by_queue(request, "")
        if type_limit(request) is not None:  # the counts know no types
            by_queue = {}
            found["total"] = found["looked_at"]
        total = found.pop("total", sum(by_queue.values()))
        times = {name: format_instant(found[name]) if found[name] else None for name in ("oldest_at", "newest_at")}
        return Response({"total": total, "by_queue": by_queue, **found, **times})

    @documented(200, answers={202: BulkActionSerializer})
    @action(detail=False, methods=["post"], url_path="retry", url_name="retry-many")
    @audited("job.bulk", together=False)
    def retry_many(self, request: Request) -> Response:
        """Run the dead letters again that are named or fit a filter, changed if wanted.

        All of them fit an empty filter. What `override` makes of one is refused where a push of that would be.
        """
        body = self.validated(self.payload(limit=ojs_settings.MAX_BATCH_BYTES))
        response = OperatorAct(self, DEAD_LETTERS["retry"], (State.DISCARDED,)).answer(body)
        if response.status_code == 200:
            response.data["retried"] = response.data["succeeded"]
        return response

    @documented(query="queue type since until error_type older_than confirm dry_run")
    @audited("job.purge", together=False)
    def clear(self, request: Request) -> Response:
        """Delete dead letters."""
        return self._purge()

    @action(detail=False, methods=["post"])
    @audited("job.purge", together=False)
    def purge(self, request: Request) -> Response:
        """Delete dead letters."""
        return self._purge()

    def _shown(self, letter: dict[str, Any]) -> Response:
        return Response(letter if self.operator else jobserializers.answer(letter))

    def _purge(self) -> Response:
        """Delete the dead letters that the body or the query names, or all that fit its filter."""
        act = OperatorAct(self, DEAD_LETTERS["delete"], (State.DISCARDED,))
        body = self.validated(self.payload(required=False, limit=ojs_settings.MAX_BATCH_BYTES))
        if body["filter"] is None:
            done = act.now(body)
            return Response({**done, "purged_count": done["succeeded"]})
        wanted = act.wanted(body["filter"])
        ages = [age for age in (wanted.values.get("older_than"), body["older_than"]) if age]
        return Response(act.purge(body, wanted.replace(older_than=min(ages, default=None)), "dead letters"))


def dead_by_queue(request: Request, queue: str) -> dict[str, int]:
    """The number of dead letters in each queue that has any: in this one, or in those that the caller may see."""
    limit = permissions.queues_to_read(request, [queue] if queue else [])
    found = counters.count_all(list(limit) or None, using=router.db_for_write(Job))
    return {name: counted.dead for name, counted in sorted(found.items()) if counted.dead}


# Replay rules


class ReplayFilterSerializer(serializers.Serializer[Any]):
    """The `filter` of a rule; `rules.replayrules` reads it."""

    queue = serializers.CharField(required=False)
    type = serializers.CharField(required=False)
    error_type = serializers.CharField(required=False)
    since = serializers.DateTimeField(required=False)
    until = serializers.DateTimeField(required=False)


@rendered_by_show
class ReplayRuleSerializer(AnswerSerializer):
    """A rule that retries dead letters, and whether it comes from the settings or was made by this API."""

    name = serializers.CharField()
    filter = ReplayFilterSerializer()
    delay = serializers.CharField()
    max_replays = serializers.IntegerField()
    per_minute = serializers.IntegerField()
    enabled = serializers.BooleanField()
    source: Any = serializers.ChoiceField(choices=["settings", "api"])

    def show(self, instance: Rule) -> dict[str, Any]:
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
    action_serializers = {"preview": ReplayPreviewSerializer}
    body_serializers = {"update": ReplayRuleRequestSerializer, "preview": NothingSerializer}
    pagination_class = None
    operator_scopes = {"destroy": "admin.write"}
    action_rights = {
        "update": "change_replayrule", "destroy": "delete_replayrule", "preview": "change_replayrule",
    }  # fmt: skip

    def get_object(self) -> Rule:
        """The rule in the path. Raises NotFound or PermissionDenied."""
        rule = replay.find(self.kwargs["name"])
        _check_limits(self.request, rule)
        self.check_object_permissions(self.request, rule)
        return rule

    @documented(lists=("items", "replay_rules"))
    def list(self, request: Request) -> Response:
        """The rules that retry dead letters."""
        found = [self.represent(rule) for rule in replay.rules() if _is_within_limits(request, rule)]
        return Response(
            {"items": found, "replay_rules": found, "pagination": standing(len(found), replayrules.MAX_RULES)}
        )

    def retrieve(self, request: Request, name: str) -> Response:
        """A rule that retries dead letters."""
        return Response(self.represent(self.get_object()))

    @documented(200, 201)
    @audited("replayrule.set")
    def update(self, request: Request, name: str) -> Response:
        """Make or replace a rule that retries dead letters.

        A new one comes last; one that is replaced keeps its place.
        """
        rule: Any = self.validated(self.payload())
        _check_limits(request, rule)
        with contextlib.suppress(NotFound):
            self.get_object()  # a caller may not replace what it may not touch
        new = replay.put(rule)
        self.act.detail["rule"] = rule.facts()
        return Response(self.represent(rule), status=201 if new else 200)

    @audited("replayrule.delete")
    def destroy(self, request: Request, name: str) -> Response:
        """Delete a rule that retries dead letters."""
        self.get_object()
        replay.delete(name)
        return Response(status=204)

    @action(detail=True, methods=["post"])
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
