"""Schedules (binding 2.7, orchestration 2): register, list, change, switch, trigger, and what they did.

`/crons` is the same as `/cron` for the admin dashboard, and a schedule's id is its name.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db import router
from django.utils.encoding import iri_to_uri
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock, cronspec
from django_ojs.cronspec import CronSpec
from django_ojs.errors import InvalidRequest, NotFound
from django_ojs.http import access, query, shown
from django_ojs.http.auditing import audited
from django_ojs.http.base import OJSView
from django_ojs.http.pagination import Key, paginate, parse_name
from django_ojs.models import CronRun, CronSchedule, Job
from django_ojs.operations import cron, crontick
from django_ojs.policies.durations import format_instant
from django_ojs.policies.faults import shorten

_ORDER = [Key("name", descending=False, parse=parse_name)]
_WORDS = {"true": True, "1": True, "false": False, "0": False}


class CronView(OJSView):
    """What the views of one schedule share: the name in the path, and the limits of the caller's key."""

    def schedule(self, name: str) -> CronSchedule:
        """The schedule in the path, which the caller may touch. Raises NotFound or PermissionDenied."""
        found = cron.get(_path_name(name))
        access.check_row(self.request, {"queue": found.queue, "type": found.type})
        return found

    def spec(self, body: dict[str, Any], base: CronSchedule | None = None) -> CronSpec:
        """What the body asks for; its jobs must lie within the caller's limits, too."""
        spec = cronspec.parse(body, now=clock.now(router.db_for_write(Job)), base=base)
        access.check_row(self.request, {"queue": spec.queue, "type": spec.type})
        return spec

    def register(self, body: dict[str, Any], location: str = "") -> Response:
        """Create or replace: 201 for a new one, 200 for one that was there (decision 11)."""
        spec = self.spec(body)
        self.act.target = spec.name
        known = CronSchedule.objects.using(router.db_for_write(Job)).filter(pk=spec.name).first()
        if known is not None:  # nobody may replace what they may not touch
            access.check_row(self.request, {"queue": known.queue, "type": known.type})
        schedule, new = cron.register(spec)
        headers = {"Location": location or f"{iri_to_uri(self.request.path).rstrip('/')}/{schedule.name}"}
        return Response(_entry(schedule), status=201 if new else 200, headers=headers if new else None)


class Crons(CronView):
    """`GET /cron` and `POST /cron`."""

    scopes = {"GET": "read", "POST": "admin"}
    rights = {"POST": "add_cronschedule"}

    def get(self, request: Request) -> Response:
        found = CronSchedule.objects.using(router.db_for_write(Job)).filter(access.visible(request))
        if (enabled := _enabled(request)) is not None:
            found = found.filter(enabled=enabled)
        page = paginate(found, request, _ORDER)
        entries = [shown.schedule(schedule) for schedule in page.rows]
        body = {"crons": entries, "cron_jobs": entries, "items": entries, "count": len(entries)}
        return Response({**body, "pagination": page.pagination})

    @audited("cron.register")
    def post(self, request: Request) -> Response:
        return self.register(self.payload())


class CronDetail(CronView):
    """`GET`, `PUT`, `PATCH` and `DELETE /cron/{name}`."""

    scopes = {"GET": "read", "PUT": "admin", "PATCH": "admin", "DELETE": "admin"}
    rights = {"PUT": "change_cronschedule", "PATCH": "change_cronschedule", "DELETE": "delete_cronschedule"}

    def get(self, request: Request, name: str) -> Response:
        return Response(_entry(self.schedule(name)))

    @audited("cron.register")
    def put(self, request: Request, name: str) -> Response:
        """The whole schedule, under the name in the path."""
        body = self.payload()
        if body.get("name", name) != name:
            raise cronspec.fault("name", "must be the name in the path, or absent", body["name"])
        return self.register({**body, "name": name}, iri_to_uri(request.path))

    @audited("cron.update")
    def patch(self, request: Request, name: str) -> Response:
        known = self.schedule(name)
        changes = self.payload()
        self.spec(changes, base=known)
        return Response(_entry(cron.update(name, changes)))

    @audited("cron.delete")
    def delete(self, request: Request, name: str) -> Response:
        self.schedule(name)
        return Response({"deleted": True, "name": name, **_entry(cron.delete(name))})


class CronSwitch(CronView):
    """`POST /cron/{name}/pause` and `/resume`, or `/disable` and `/enable`."""

    scopes = {"POST": "admin"}
    rights = {"POST": "change_cronschedule"}
    enabled = True

    @audited("cron.switch")
    def post(self, request: Request, name: str) -> Response:
        self.payload(required=False)
        self.schedule(name)
        self.act.action = "cron.enable" if self.enabled else "cron.disable"
        return Response(_entry(cron.set_enabled(name, self.enabled)))


class CronTrigger(CronView):
    """`POST /cron/{name}/trigger`: a job now."""

    scopes = {"POST": "admin"}
    rights = {"POST": "change_cronschedule"}

    @audited("cron.trigger")
    def post(self, request: Request, name: str) -> Response:
        self.payload(required=False)
        self.schedule(name)
        schedule, row = crontick.trigger(name)
        return Response({**_entry(schedule), "job_id": str(row["id"]), "job": shown.job(row)})


class CronHistory(CronView):
    """`GET /cron/{name}/history`: the last runs, newest first."""

    scopes = {"GET": "read"}

    def get(self, request: Request, name: str) -> Response:
        self.schedule(name)
        limit = query.integer(request, "limit", minimum=1) or 50
        runs = cron.history(name, limit=limit)
        jobs = Job.objects.using(router.db_for_write(Job)).in_bulk([run.job_id for run in runs])
        return Response({"cron_name": name, "executions": [_execution(run, jobs.get(run.job_id)) for run in runs]})


def _entry(schedule: CronSchedule) -> dict[str, Any]:
    """Under both names and flat; `cron` is the entry here, and the expression inside it."""
    entry = shown.schedule(schedule)
    return {**entry, "cron": entry, "cron_job": entry}


def _execution(run: CronRun, job: Job | None) -> dict[str, Any]:
    """One run; of a job that was deleted since only its id and its nominal time are known."""
    times: dict[str, dt.datetime | None] = {"scheduled_at": run.scheduled_at, "triggered_at": run.triggered_at}
    if job is not None:
        times |= {"started_at": job.started_at, "completed_at": job.finished_at}
    told = {name: format_instant(time) for name, time in times.items() if time is not None}
    return {"job_id": str(run.job_id), "state": job.state if job else "deleted", **told}


def _enabled(request: Request) -> bool | None:
    given = request.query_params.get("enabled")
    if given is None:
        return None
    if given.lower() not in _WORDS:
        raise query.fault("enabled", "must be true or false", given)
    return _WORDS[given.lower()]


def _path_name(name: str) -> str:
    try:
        return cronspec.check_name(name)
    except InvalidRequest:
        raise NotFound.resource("cron", shorten(name)) from None
