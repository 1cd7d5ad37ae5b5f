"""Operators' acts on many jobs: by ids, or on everything that a filter means (admin 1.2, 1.4, 1.7).

`{"filter": {...}, "dry_run": true}` counts; without it, and with `"confirm": true`, it is done, in batches.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import states
from django_ojs.conf import ojs_settings
from django_ojs.http import adminbackground, fields, filters, overriding, permissions
from django_ojs.http.auditing import audited
from django_ojs.http.base import AdminView, using
from django_ojs.http.bulkbody import confirm, known, meant, said
from django_ojs.http.jobs import check_size
from django_ojs.http.permissions import check_queue, principal
from django_ojs.jobs import bulk, bulkactions
from django_ojs.jobs.bulk import DEAD_LETTERS, JOBS, BulkVerb, How, Report
from django_ojs.jobs.selection import JobFilter
from django_ojs.states import State

TERMINAL = states.ordered(states.TERMINAL)


class BulkAct(AdminView):
    """What these calls share: which jobs are meant, the confirmation, the report."""

    scopes = {"POST": "admin.write"}
    rights = {"POST": "change_job"}
    verb: BulkVerb
    #: States that a filter means if it names none; without any it has to.
    default_states: Sequence[State] = ()
    #: Whether a body without `filter` and `job_ids` means all.
    all_if_silent = False
    #: Members of the body.
    members: Sequence[str] = ("filter", "job_ids", "reason", "background")

    def wanted(self, given: dict[str, Any]) -> JobFilter:
        """The jobs that the body's filter means."""
        read = filters.of_body(self.request, given)
        return read.replace(states=self.states(read), dead_letters=self.verb.dead_letters)

    def states(self, read: JobFilter) -> list[State]:
        """Those that a filter names, or the act's own."""
        wanted = list(read.wanted_states or self.default_states)
        takes = self.verb.takes
        if not wanted:
            raise fields.fault("filter.state", f"must be some of {', '.join(takes)}")
        if wrong := [state.value for state in wanted if state not in takes]:
            raise fields.fault("filter.state", f"must be some of {', '.join(takes)}", ", ".join(wrong))
        return wanted

    @audited("job.bulk", together=False)
    def post(self, request: Request) -> Response:
        body = known(self.payload(limit=ojs_settings.MAX_BATCH_BYTES), *self.members)
        given = meant(body).filter
        if adminbackground.is_wanted(request, body, given is not None) and not fields.flag(body, "dry_run"):
            return self.later(request, body, given or {})
        return self.run(request, body)

    def later(self, request: Request, body: dict[str, Any], given: dict[str, Any]) -> Response:
        """Leave it to the scheduler."""
        wanted = self.wanted(given)
        confirm(body)
        override = self.override(body)
        self.act.action = f"job.bulk_{self.verb.name}"
        self.act.detail = said(body)
        action = bulkactions.start(self.verb.name, wanted, self.act, override=override, using=using())
        return adminbackground.accepted(request, action)

    def override(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """What the act changes in the jobs."""
        return None

    def run(self, request: Request, body: dict[str, Any]) -> Response:
        by_ids = meant(body, all_if_silent=self.all_if_silent).filter is None
        dry = fields.flag(body, "dry_run")
        said(body)
        if by_ids:
            ids = self.named(request, body)
            return Response(self.dry_run(ids) if dry else self.act_on(body, bulk.split(ids)))
        wanted = self.wanted(fields.member(body, "filter") or {})
        if dry:
            return Response(self.report(Report(wanted.jobs(using()).count()), dry=True))
        return Response(self.act_on(body, bulk.batches(wanted.jobs(using()), using()), wanted))

    def named(self, request: Request, body: dict[str, Any]) -> list[uuid.UUID]:
        texts = fields.texts(body, "job_ids", maximum=ojs_settings.MAX_BATCH_SIZE) or []
        check_size(len(texts), "job_ids")
        ids = list(dict.fromkeys(map(fields.path_id, texts)))
        permissions.check_jobs(request, ids)
        return ids

    def dry_run(self, ids: list[uuid.UUID]) -> dict[str, Any]:
        """A dry run of jobs that are named: how many would be done, and what the others would be refused."""
        refused = bulk.refusals(self.verb, ids, using=using())
        found = self.report(Report(len(ids) - len(refused), 0, refused[: bulk.MAX_ERRORS]), dry=True)
        return found | {"failed": len(refused)}

    def act_on(
        self, body: dict[str, Any], ids: Iterator[list[uuid.UUID]], wanted: JobFilter | None = None
    ) -> dict[str, Any]:
        confirm(body)
        noted = said(body) | ({"filter": fields.member(body, "filter") or {}} if wanted else {})
        self.act.action, self.act.detail = f"job.bulk_{self.verb.name}", noted
        return self.report(self.in_batches(ids, wanted, self.override(body)))

    def in_batches(
        self, ids: Iterator[list[uuid.UUID]], wanted: JobFilter | None, override: dict[str, Any] | None = None
    ) -> Report:
        """A filter leaves running jobs alone unless it names their state."""
        if override:
            self.act.detail["override"] = sorted(override)
        spare = wanted is not None and State.ACTIVE not in wanted.wanted_states
        how = How(principal(self.request), spare, override)
        jobs = wanted.jobs(using()) if wanted else None
        return bulk.run_in_batches(self.verb, ids, how, self.act, using(), meant=jobs)

    def report(self, done: Report, *, dry: bool = False) -> dict[str, Any]:
        errors = [{"job_id": str(job_id), "error": error.as_dict(self.request_id)} for job_id, error in done.errors]
        counted = {"matched": done.matched, "succeeded": done.succeeded, "failed": 0 if dry else done.failed}
        return {"action": self.verb.name, "dry_run": dry, **counted, "errors": errors}


class AdminBulkRetry(BulkAct):
    """`POST /admin/jobs/bulk/retry`"""

    verb = JOBS["retry"]
    default_states = (State.DISCARDED,)


class AdminBulkCancel(BulkAct):
    """`POST /admin/jobs/bulk/cancel`: a filter leaves running jobs alone unless it names their state."""

    verb = JOBS["cancel"]
    default_states = states.ordered(states.WAITING)


class AdminBulkDelete(BulkAct):
    """`POST /admin/jobs/bulk/delete`: ended jobs only, and a filter has to say of which states."""

    verb = JOBS["delete"]
    scopes = {"POST": "admin.purge"}
    rights = {"POST": "delete_job"}


class DeadLetterBulkRetry(AdminBulkRetry):
    """`POST /admin/dead-letter/retry`: those that are named, or all that fit; an empty filter means all. `override`
    changes them, and what it makes of one is refused where a push of that would be."""

    members = ("filter", "job_ids", "reason", "background", "override")
    verb = DEAD_LETTERS["retry"]

    def override(self, body: dict[str, Any]) -> dict[str, Any] | None:
        return overriding.read(self.request, body)

    def report(self, done: Report, *, dry: bool = False) -> dict[str, Any]:
        return super().report(done, dry=dry) | {"retried": done.succeeded}


class QueuePurge(AdminBulkDelete):
    """`DELETE /admin/queues/{name}/jobs`: ended jobs of a queue, in the body or the query `states`, `older_than`.

    `POST /queues/{name}/purge` for the command line.
    """

    http_method_names = ["delete", "options"]
    scopes = {"DELETE": "admin.purge", "POST": "admin.purge"}
    rights = {"DELETE": "delete_job", "POST": "delete_job"}
    all_if_silent = True

    @audited("job.purge", together=False)
    def delete(self, request: Request, name: str) -> Response:
        check_queue(request, fields.queue_name(name))
        body = known(destructive(request, self.payload(required=False)), "states", "older_than")
        wanted = body.get("states")
        found = filters.StatesField(required=False).clean(wanted) if isinstance(wanted, str | list) else []
        if not found or not set(found) <= set(TERMINAL):
            raise fields.fault("states", f"must be some of {', '.join(TERMINAL)}", wanted)
        wanted = filters.of_body(request, {"queue": name}).replace(states=found, older_than=older(body))
        done = self.purge(body, wanted, f"queue {name}")
        return Response({**done, "queue": name, "states": [state.value for state in found]})

    post: Any = delete

    def purge(self, body: dict[str, Any], wanted: JobFilter, what: str) -> dict[str, Any]:
        jobs = wanted.jobs(using())
        if fields.flag(body, "dry_run"):
            return {"purged_count": 0, "matched": jobs.count(), "dry_run": True}
        confirm(body)
        noted = {name: body[name] for name in ("states", "older_than", "filter") if body.get(name)}
        self.act.target, self.act.detail = what, noted
        done = self.in_batches(bulk.batches(jobs, using()), wanted)
        return {"purged_count": done.succeeded, "matched": done.matched, "dry_run": False}


class DeadLetterPurge(QueuePurge):
    """`DELETE /admin/dead-letter`, and `POST /dead-letter/purge` for the command line: dead letters alone, all that a
    filter means or those that are named."""

    http_method_names = ["delete", "post", "options"]
    default_states: Sequence[State] = (State.DISCARDED,)
    verb = DEAD_LETTERS["delete"]

    @audited("job.purge", together=False)
    def delete(self, request: Request) -> Response:  # type: ignore[override]
        payload = self.payload(required=False, limit=ojs_settings.MAX_BATCH_BYTES)
        body = known(destructive(request, payload), "filter", "job_ids", "older_than")
        if body.get("job_ids") is not None:
            if body.get("older_than") is not None:
                raise fields.fault("older_than", "goes with a filter, not with job_ids", body["older_than"])
            done = self.run(request, body).data
            return Response({**done, "purged_count": done["succeeded"]})
        wanted = self.wanted(fields.member(body, "filter") or {})
        ages = [age for age in (wanted.values.get("older_than"), older(body)) if age]
        return Response(self.purge(body, wanted.replace(older_than=min(ages, default=None)), "dead letters"))

    post = delete


def destructive(request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """The body of a DELETE, or what stands in the query, since proxies may drop that body."""
    given: dict[str, Any] = {str(name): value for name, value in request.query_params.items()}
    given |= {name: given[name] == "true" for name in ("confirm", "dry_run") if given.get(name) in ("true", "false")}
    if narrowed := {name: given.pop(name) for name in filters.NAMES if name in given}:
        given["filter"] = narrowed
    return {**given, **body}


def older(body: dict[str, Any]) -> dt.datetime | None:
    """Only jobs that ended before `older_than` are meant: an age such as PT24H, or an instant."""
    return filters.older_than(body.get("older_than"))
