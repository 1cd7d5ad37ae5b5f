"""Schedules (binding 2.7, orchestration 2): register, list, change, switch, trigger, and what they did.

`/crons` is the same as `/cron` for the admin dashboard, and a schedule's id is its name.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db import router
from django.db.models import QuerySet
from django.utils.encoding import iri_to_uri
from django_filters import FilterSet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock
from django_ojs.cron import runs
from django_ojs.cron import schedules as cron
from django_ojs.errors import InvalidRequest, NotFound
from django_ojs.http import permissions, query, shown
from django_ojs.http.auditing import audited
from django_ojs.http.base import OJSViewSet
from django_ojs.http.jobserializers import JobSerializer
from django_ojs.http.openapi import documented
from django_ojs.http.pagination import Key, SamePagination, parse_name
from django_ojs.http.query import FlagFilter, OJSFilterBackend
from django_ojs.http.serializers import (
    AnswerSerializer,
    BodySerializer,
    InstantField,
    NothingSerializer,
    WarningSerializer,
    rendered_by_show,
)
from django_ojs.models import CronRun, CronSchedule, Job
from django_ojs.rules import cron as rules
from django_ojs.rules import problems
from django_ojs.rules.cron import CronSpec
from django_ojs.rules.durations import format_instant
from django_ojs.rules.faults import fault, shorten


class ScheduleFilter(FilterSet):  # type: ignore[misc]
    enabled = FlagFilter()


@rendered_by_show
class ScheduleSerializer(AnswerSerializer):
    """A schedule, without what the site hides. `cron` is the expression, or the schedule once more."""

    id = serializers.CharField()
    name = serializers.CharField()
    cron = serializers.JSONField()
    expression = serializers.CharField()
    schedule = serializers.CharField()
    timezone = serializers.CharField()
    type = serializers.CharField()
    args = serializers.JSONField()
    meta = serializers.JSONField()
    options = serializers.DictField()
    queue = serializers.CharField()
    job_template = serializers.DictField()
    overlap_policy = serializers.CharField()
    enabled = serializers.BooleanField()
    status = serializers.CharField()
    description = serializers.CharField()
    last_run_at = InstantField(allow_null=True)
    next_run_at = InstantField(allow_null=True)
    run_count = serializers.IntegerField()
    created_at = InstantField()
    updated_at = InstantField()
    warnings = WarningSerializer(many=True, required=False)

    def show(self, instance: CronSchedule) -> dict[str, Any]:
        return shown.schedule(instance)


class ScheduleListSerializer(serializers.Serializer[Any]):
    """What the list of schedules has beside them."""

    count = serializers.IntegerField()


class ScheduleTriggeredSerializer(ScheduleSerializer):
    """A schedule with the job that was made of it."""

    job_id = serializers.CharField()
    job = JobSerializer()


class ScheduleHistorySerializer(serializers.Serializer[Any]):
    cron_name = serializers.CharField()
    executions = serializers.ListField(child=serializers.DictField())


class ScheduleChangeSerializer(BodySerializer):
    """Members of a schedule: `validated_data` is the `CronSpec` that they make, laid over the `instance`, if any."""

    def to_internal_value(self, data: Any) -> Any:
        return rules.parse(data, now=clock.now(router.db_for_write(Job)), base=self.instance)


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
    action_scopes = {"list": "read", "retrieve": "read", "history": "read"}
    action_rights = {
        "create": "add_cronschedule", "destroy": "delete_cronschedule",
        **dict.fromkeys(("update", "partial_update", "pause", "disable", "resume", "enable", "trigger"),
                        "change_cronschedule"),
    }  # fmt: skip
    public_only = ("disable", "enable")
    serializer_class = operator_serializer_class = ScheduleSerializer
    action_serializers = {"history": ScheduleHistorySerializer}
    body_serializers = {
        "create": ScheduleRequestSerializer, "update": ScheduleChangeSerializer,
        "partial_update": ScheduleChangeSerializer,
        **dict.fromkeys(("pause", "disable", "resume", "enable", "trigger"), NothingSerializer),
    }  # fmt: skip
    filter_backends = (OJSFilterBackend,)
    filterset_class = ScheduleFilter
    pagination_class = SamePagination
    ordering = [Key("name", descending=False, parse=parse_name)]
    list_names = ("crons", "cron_jobs", "items")

    def get_queryset(self) -> QuerySet[CronSchedule]:
        return CronSchedule.objects.using(router.db_for_write(Job)).filter(permissions.visible(self.request))

    @documented(beside=ScheduleListSerializer)
    def list(self, request: Request) -> Response:
        """The schedules."""
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        entries = self.get_serializer(many=True).to_representation(page)
        return self.page_answer(entries, count=len(entries))

    @documented(200, 201)
    @audited("cron.register")
    def create(self, request: Request) -> Response:
        """Make or change a schedule."""
        return self._register(self.payload())

    def retrieve(self, request: Request, name: str) -> Response:
        """A schedule."""
        return Response(self._entry(self._find(name)))

    @documented(200, 201)
    @audited("cron.register")
    def update(self, request: Request, name: str) -> Response:
        """Make or change a schedule."""
        body = self.payload()
        if body.get("name", name) != name:
            raise fault("name", "must be the name in the path, or absent", body["name"])
        return self._register({**body, "name": name}, iri_to_uri(request.path))

    @audited("cron.update")
    def partial_update(self, request: Request, name: str) -> Response:
        """Change parts of a schedule."""
        self._find(name)
        changes = self.payload()
        changed = cron.update(name, lambda known: self._spec(changes, base=known))
        return Response(self._entry(changed, changes))

    @documented(200)
    @audited("cron.delete")
    def destroy(self, request: Request, name: str) -> Response:
        """Delete a schedule."""
        self._find(name)
        return Response({"deleted": True, "name": name, **self._entry(cron.delete(name))})

    @action(detail=True, methods=["post"])
    @audited("cron.switch")
    def pause(self, request: Request, name: str) -> Response:
        """Pause a schedule."""
        return self._switch(name, enabled=False)

    @action(detail=True, methods=["post"])
    @audited("cron.switch")
    def disable(self, request: Request, name: str) -> Response:
        """Disable a schedule."""
        return self._switch(name, enabled=False)

    @action(detail=True, methods=["post"])
    @audited("cron.switch")
    def resume(self, request: Request, name: str) -> Response:
        """Resume a schedule."""
        return self._switch(name, enabled=True)

    @action(detail=True, methods=["post"])
    @audited("cron.switch")
    def enable(self, request: Request, name: str) -> Response:
        """Enable a schedule."""
        return self._switch(name, enabled=True)

    @documented(answers={200: ScheduleTriggeredSerializer})
    @action(detail=True, methods=["post"])
    @audited("cron.trigger")
    def trigger(self, request: Request, name: str) -> Response:
        """Make a job of a schedule now."""
        self.payload(required=False)
        self._find(name)
        schedule, row = runs.trigger(name)
        return Response({**self._entry(schedule), "job_id": str(row["id"]), "job": shown.job(row)})

    @documented(query="limit")
    @action(detail=True, methods=["get"])
    def history(self, request: Request, name: str) -> Response:
        """The last runs of a schedule."""
        self._find(name)
        limit = query.integer(request, "limit", minimum=1) or 50
        runs = cron.history(name, limit=limit)
        jobs = Job.objects.using(router.db_for_write(Job)).in_bulk([run.job_id for run in runs])
        return Response({"cron_name": name, "executions": [_execution(run, jobs.get(run.job_id)) for run in runs]})

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
        reader = self.body_serializers[self.action](base, data=body, context=self.get_serializer_context())
        reader.is_valid(raise_exception=True)
        spec: CronSpec = reader.validated_data
        permissions.check_row(self.request, {"queue": spec.queue, "type": spec.type})
        return spec

    def _register(self, body: dict[str, Any], location: str = "") -> Response:
        """Create or replace: 201 for a new one, 200 for one that was there."""
        spec = self._spec(body)
        self.act.target = spec.name
        known = CronSchedule.objects.using(router.db_for_write(Job)).filter(pk=spec.name).first()
        if known is not None:  # a caller must not replace a schedule that it may not touch
            permissions.check_row(self.request, {"queue": known.queue, "type": known.type})
        schedule, new = cron.register(spec)
        headers = {"Location": location or f"{iri_to_uri(self.request.path).rstrip('/')}/{schedule.name}"}
        return Response(self._entry(schedule, body), status=201 if new else 200, headers=headers if new else None)

    def _switch(self, name: str, *, enabled: bool) -> Response:
        self.payload(required=False)
        self._find(name)
        self.act.action = "cron.enable" if enabled else "cron.disable"
        return Response(self._entry(cron.set_enabled(name, enabled)))

    def _entry(self, schedule: CronSchedule, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Under both names and flat; `cron` is the entry here, and the expression inside it. With the `warnings` about
        what the caller's `body` has."""
        entry: dict[str, Any] = self.represent(schedule)
        warnings = problems.warnings(problems.unknown_in_schedule(body or {}))
        return {**entry, "cron": entry, "cron_job": entry} | ({"warnings": [*warnings]} if warnings else {})


def _execution(run: CronRun, job: Job | None) -> dict[str, Any]:
    """One run; of a job that was deleted since only its id and its nominal time are known."""
    times: dict[str, dt.datetime | None] = {"scheduled_at": run.scheduled_at, "triggered_at": run.triggered_at}
    if job is not None:
        times |= {"started_at": job.started_at, "completed_at": job.finished_at}
    told = {name: format_instant(time) for name, time in times.items() if time is not None}
    return {"job_id": str(run.job_id), "state": job.state if job else "deleted", **told}
