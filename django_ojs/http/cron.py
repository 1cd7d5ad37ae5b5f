"""Schedules (binding 2.7, orchestration 2): register, list, change, switch, trigger, and what they did.

`/crons` is the same as `/cron` for the admin dashboard, and a schedule's id is its name.
"""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.models import QuerySet
from django_filters import FilterSet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock, spellings
from django_ojs.cron import runs
from django_ojs.cron import schedules as cron
from django_ojs.errors import InvalidRequest, NotFound
from django_ojs.http import links, permissions, query
from django_ojs.http.base import OJSViewSet
from django_ojs.http.jobserializers import JobSerializer
from django_ojs.http.operation import operation
from django_ojs.http.pagination import SamePagination, SortKey, parse_name
from django_ojs.http.query import FlagFilter, OJSFilterBackend
from django_ojs.http.serializers import (
    AnswerSerializer,
    BodySerializer,
    DocumentField,
    InstantField,
    JSONValueField,
    NothingSerializer,
    WarnedSerializer,
    warned,
)
from django_ojs.models import CronRun, CronSchedule, Job
from django_ojs.rules import cron as rules
from django_ojs.rules import problems, redaction
from django_ojs.rules.cron import CronSpec
from django_ojs.rules.faults import fault, shorten


class ScheduleFilter(FilterSet):  # type: ignore[misc]
    enabled = FlagFilter()


_TEXT = {"type": "string"}
_TEMPLATE = {"type": _TEXT, "args": {"type": "array"}, "meta": {"type": "object"}, "options": {"type": "object"}}


class ScheduleSerializer(AnswerSerializer):
    """A schedule, without what the site hides."""

    id = serializers.CharField()
    name = serializers.CharField()
    cron = serializers.CharField()
    expression = serializers.CharField()
    schedule = serializers.CharField()
    timezone = serializers.CharField()
    type = serializers.CharField()
    args = JSONValueField({"type": "array"})
    meta = DocumentField({})
    options = DocumentField({})
    queue = serializers.CharField()
    job_template = DocumentField(_TEMPLATE)
    overlap_policy = serializers.CharField()
    enabled = serializers.BooleanField()
    status = serializers.CharField()
    description = serializers.CharField()
    last_run_at = InstantField(allow_null=True)
    next_run_at = InstantField(allow_null=True)
    run_count = serializers.IntegerField()
    created_at = InstantField()
    updated_at = InstantField()

    def gather(self, instance: CronSchedule) -> dict[str, Any]:
        return rules.render(instance)

    def to_representation(self, instance: CronSchedule) -> dict[str, Any]:
        shown = super().to_representation(instance)
        return shown | redaction.job(self.own(shown))


class ScheduleListSerializer(AnswerSerializer):
    """What the list of schedules has beside them."""

    count = serializers.IntegerField()


class ScheduleDeletedSerializer(AnswerSerializer):
    """What the answer to its deletion has beside a schedule."""

    deleted = serializers.BooleanField()


class ScheduleTriggeredSerializer(AnswerSerializer):
    """What stands beside a schedule of which a job was made."""

    job_id = serializers.CharField(source="id")
    job = JobSerializer(source="*")


class ExecutionSerializer(AnswerSerializer):
    """One run; of a job that was deleted since only its id and its nominal time are known."""

    job_id = serializers.CharField()
    state = serializers.CharField()
    scheduled_at = InstantField()
    triggered_at = InstantField(required=False)
    started_at = InstantField(required=False)
    completed_at = InstantField(required=False)


class ScheduleHistorySerializer(AnswerSerializer):
    cron_name = serializers.CharField()
    executions = ExecutionSerializer(many=True)


class ScheduleChangeSerializer(BodySerializer):
    """Members of a schedule: `validated_data` is the `CronSpec` that they make, laid over the `instance`, if any."""

    def to_internal_value(self, data: Any) -> Any:
        return spellings.read_schedule(data, now=clock.now(router.db_for_write(Job)), base=self.instance)


class ScheduleRequestSerializer(ScheduleChangeSerializer):
    name = serializers.CharField()
    cron = serializers.CharField(required=False)
    timezone = serializers.CharField(required=False)
    type = serializers.CharField()
    args = serializers.ListField(child=serializers.JSONField(), required=False)
    queue = serializers.CharField(required=False)
    enabled = serializers.BooleanField(required=False)


class CronViewSet(OJSViewSet):
    """A key that is limited to queues or job types sees and changes the schedules of such jobs only."""

    lookup_url_kwarg = "name"
    model_name = "cronschedule"
    serializer_class = operator_serializer_class = ScheduleSerializer
    filter_backends = (OJSFilterBackend,)
    filterset_class = ScheduleFilter
    pagination_class = SamePagination
    ordering = [SortKey("name", descending=False, parse=parse_name)]
    list_names = ("crons", "cron_jobs", "entries", "items")
    #: `cron` is the schedule here, and the expression inside it.
    entry_names = ("cron", "cron_job")

    def get_queryset(self) -> QuerySet[CronSchedule]:
        return CronSchedule.objects.using(router.db_for_write(Job)).filter(permissions.visible(self.request))

    @operation(scope="read", beside=ScheduleListSerializer)
    def list(self, request: Request) -> Response:
        """The schedules."""
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        entries = self.get_serializer(many=True).to_representation(page)
        return self.page_answer(entries, {"count": len(entries)})

    @operation(
        right="add_cronschedule",
        body=ScheduleRequestSerializer,
        outside=WarnedSerializer,
        statuses=(200, 201),
        audit="cron.register",
        headers="Location",
    )
    def create(self, request: Request) -> Response:
        """Make or change a schedule."""
        return self._register(self.payload())

    @operation(scope="read")
    def retrieve(self, request: Request, name: str) -> Response:
        """A schedule."""
        return Response(self.entry(self._find(name)))

    @operation(
        right="change_cronschedule",
        body=ScheduleChangeSerializer,
        outside=WarnedSerializer,
        statuses=(200, 201),
        audit="cron.register",
        missing_ok=True,
        headers="Location",
    )
    def update(self, request: Request, name: str) -> Response:
        """Make or change a schedule."""
        body = self.payload()
        if body.get("name", name) != name:
            raise fault("name", "must be the name in the path, or absent", body["name"])
        return self._register({**body, "name": name})

    @operation(
        right="change_cronschedule", body=ScheduleChangeSerializer, outside=WarnedSerializer, audit="cron.update"
    )
    def partial_update(self, request: Request, name: str) -> Response:
        """Change parts of a schedule."""
        self._find(name)
        changes = self.payload()
        changed = cron.update(name, lambda known: self._spec(changes, base=known), limits=permissions.limits(request))
        if changes.keys() - {"reason"} == {"enabled"} and changes["enabled"] is not None:
            self.act.action = cron.act_of_switch(changed.enabled)
        return Response(self.entry(changed, outside=_warned(changes)))

    @operation(right="delete_cronschedule", outside=ScheduleDeletedSerializer, statuses=(200,), audit="cron.delete")
    def destroy(self, request: Request, name: str) -> Response:
        """Delete a schedule."""
        self._find(name)
        return Response(self.entry(cron.delete(name), outside={"deleted": True}))

    @operation(detail=True, methods=["post"], right="change_cronschedule", body=NothingSerializer, audit="cron.switch")
    def pause(self, request: Request, name: str) -> Response:
        """Pause a schedule."""
        return self._switch(name, enabled=False)

    @operation(
        detail=True,
        methods=["post"],
        right="change_cronschedule",
        doors="public",
        body=NothingSerializer,
        audit="cron.switch",
    )
    def disable(self, request: Request, name: str) -> Response:
        """Disable a schedule."""
        return self._switch(name, enabled=False)

    @operation(detail=True, methods=["post"], right="change_cronschedule", body=NothingSerializer, audit="cron.switch")
    def resume(self, request: Request, name: str) -> Response:
        """Resume a schedule."""
        return self._switch(name, enabled=True)

    @operation(
        detail=True,
        methods=["post"],
        right="change_cronschedule",
        doors="public",
        body=NothingSerializer,
        audit="cron.switch",
    )
    def enable(self, request: Request, name: str) -> Response:
        """Enable a schedule."""
        return self._switch(name, enabled=True)

    @operation(
        detail=True,
        methods=["post"],
        right="change_cronschedule",
        body=NothingSerializer,
        outside=ScheduleTriggeredSerializer,
        audit="cron.trigger",
        errors=(409, 429),
    )
    def trigger(self, request: Request, name: str) -> Response:
        """Make a job of a schedule now."""
        self.payload(required=False)
        self._find(name)
        schedule, row = runs.trigger(name, limits=permissions.limits(request))
        return Response(self.entry(schedule, outside=row))

    @operation(detail=True, methods=["get"], scope="read", answer=ScheduleHistorySerializer, query="limit")
    def history(self, request: Request, name: str) -> Response:
        """The last runs of a schedule."""
        self._find(name)
        limit = query.integer(request, "limit", minimum=1) or 50
        runs, limits = cron.history(name, limit=limit), permissions.limits(request)
        jobs = Job.objects.using(router.db_for_write(Job)).in_bulk([run.job_id for run in runs])
        # A schedule may have made jobs of another queue or type before.
        found = [(run, jobs.get(run.job_id)) for run in runs if limits.covers_jobs_of(run.queue)]
        found = [(run, job) for run, job in found if job is None or limits.covers(job.queue, job.type)]
        answer = {"cron_name": name, "executions": [_execution(run, job) for run, job in found]}
        return Response(self.represent(answer))

    def _find(self, name: str) -> CronSchedule:
        """The schedule in the path, which the caller may touch. Raises NotFound or PermissionDenied."""
        try:
            found = cron.get(rules.check_name(name))
        except InvalidRequest:
            raise NotFound.resource("cron", shorten(name)) from None
        permissions.check_row(self.request, {"queue": found.queue, "type": found.type})
        return found

    def _spec(self, body: dict[str, Any], base: CronSchedule | None = None) -> CronSpec:
        """What the body asks for; its jobs must lie within the caller's limits, too."""
        reader = self.get_body_serializer_class()(base, data=body, context=self.get_serializer_context())
        reader.is_valid(raise_exception=True)
        spec: CronSpec = reader.validated_data
        permissions.check_row(self.request, {"queue": spec.queue, "type": spec.type})
        return spec

    def _register(self, body: dict[str, Any]) -> Response:
        """Create or replace: 201 for a new one, 200 for one that was there."""
        spec = self._spec(body)
        self.act.target = spec.name
        known = CronSchedule.objects.using(router.db_for_write(Job)).filter(pk=spec.name).first()
        if known is not None:  # a caller must not replace a schedule that it may not touch
            permissions.check_row(self.request, {"queue": known.queue, "type": known.type})
        schedule, new = cron.register(spec, limits=permissions.limits(self.request))
        headers = {"Location": links.to_new(self.request, self, schedule.name)}
        answer = self.entry(schedule, outside=_warned(body))
        return Response(answer, status=201 if new else 200, headers=headers if new else None)

    def _switch(self, name: str, *, enabled: bool) -> Response:
        self.payload(required=False)
        self._find(name)
        self.act.action = cron.act_of_switch(enabled)
        return Response(self.entry(cron.set_enabled(name, enabled, limits=permissions.limits(self.request))))


def _warned(body: dict[str, Any]) -> dict[str, Any]:
    return warned(problems.warnings(spellings.unknown_in_schedule(body)))


def _execution(run: CronRun, job: Job | None) -> dict[str, Any]:
    state, times = (
        (job.state, {"started_at": job.started_at, "completed_at": job.finished_at}) if job else ("deleted", {})
    )
    nominal = {"scheduled_at": run.scheduled_at, "triggered_at": run.triggered_at}
    return {"job_id": run.job_id, "state": state, **nominal, **times}
