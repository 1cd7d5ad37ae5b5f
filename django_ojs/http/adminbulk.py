"""Operators' acts on many jobs: by ids, or on everything that a filter means (admin 1.2, 1.4, 1.7).

`{"filter": {...}, "dry_run": true}` counts; without it, and with `"confirm": true`, it is done, in batches.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock, states
from django_ojs.conf import ojs_settings
from django_ojs.http import access, adminbackground, fields, filters
from django_ojs.http.adminjobs import AdminView, path_ids, using
from django_ojs.http.auditing import audited
from django_ojs.http.bulkbody import confirm, known, meant, said
from django_ojs.http.jobs import check_size
from django_ojs.http.permissions import check_queue, principal
from django_ojs.models import Job
from django_ojs.operations import bulk, bulkactions
from django_ojs.operations.foretelling import foretold
from django_ojs.operations.retry import check_override
from django_ojs.operations.sweep import MAX_ERRORS, Report, Verb, batches, split, sweep
from django_ojs.policies import durations
from django_ojs.states import State

TERMINAL = states.ordered(states.TERMINAL)
WAITING = (State.SCHEDULED, State.AVAILABLE, State.PENDING, State.RETRYABLE)


class BulkAct(AdminView):
    """What these calls share: which jobs are meant, the confirmation, the report."""

    scopes = {"POST": "admin.write"}
    rights = {"POST": "change_job"}
    name = ""
    #: States that a filter means if it names none; without any it has to.
    default_states: Sequence[State] = ()
    #: States that it may name.
    eligible: Sequence[State] = tuple(State)
    #: Whether a body without `filter` and `job_ids` means all.
    all_if_silent = False
    #: Members of the body.
    members: Sequence[str] = ("filter", "job_ids", "reason", "background")
    #: Whether only dead letters are meant.
    dead_letters = False

    def verb(self, spare_active: bool) -> Verb:
        raise NotImplementedError

    def chosen(self, body: dict[str, Any]) -> QuerySet[Job]:
        """The jobs that the body's filter means."""
        given = dict(fields.member(body, "filter") or {})
        found = filters.of_body(self.request, given, self.base())
        return filters.in_states(found, self.states(given))

    def states(self, given: dict[str, Any]) -> list[State]:
        """Those that a valid filter names, or the act's own."""
        if not given.get("state"):
            if not self.default_states:
                raise fields.fault("filter.state", f"must be some of {', '.join(self.eligible)}")
            return list(self.default_states)
        wanted: list[State] = filters.StatesField().clean(given["state"])
        if wrong := [state.value for state in wanted if state not in self.eligible]:
            raise fields.fault("filter.state", f"must be some of {', '.join(self.eligible)}", ", ".join(wrong))
        return wanted

    def base(self) -> Any:
        return Job.objects.using(using())

    @audited("job.bulk", together=False)
    def post(self, request: Request) -> Response:
        body = known(self.payload(limit=ojs_settings.MAX_BATCH_BYTES), *self.members)
        given = meant(body).filter
        if adminbackground.is_wanted(request, body, given is not None) and not fields.flag(body, "dry_run"):
            return self.later(request, body, given or {})
        return self.run(request, body)

    def later(self, request: Request, body: dict[str, Any], given: dict[str, Any]) -> Response:
        """Leave it to the scheduler."""
        filters.of_body(request, given)  # what is wrong with it comes first, as when it is done at once
        wanted = filters.selected(request, given, self.states(given), dead_letters=self.dead_letters)
        confirm(body)
        override = self.override(body)
        self.act.action = f"job.bulk_{self.name}"
        self.act.detail = said(body)
        action = bulkactions.start(self.name, wanted, self.act, override=override, using=using())
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
            return Response(self.foretell(ids) if dry else self.sweep(body, split(ids), False))
        jobs = self.chosen(body)
        if dry:
            return Response(self.report(Report(jobs.count()), dry=True))
        return Response(self.sweep(body, batches(jobs, using()), True))

    def named(self, request: Request, body: dict[str, Any]) -> list[uuid.UUID]:
        texts = fields.texts(body, "job_ids", maximum=ojs_settings.MAX_BATCH_SIZE) or []
        check_size(len(texts), "job_ids")
        ids = list(dict.fromkeys(path_ids(texts)))
        access.check_jobs(request, ids)
        return ids

    def foretell(self, ids: list[uuid.UUID]) -> dict[str, Any]:
        """A dry run of jobs that are named: how many would be done, and what the others would be refused."""
        refused = foretold(self.name, ids, dead_letters=self.dead_letters, using=using())
        found = self.report(Report(len(ids) - len(refused), 0, refused[:MAX_ERRORS]), dry=True)
        return found | {"failed": len(refused)}

    def sweep(self, body: dict[str, Any], ids: Iterator[list[uuid.UUID]], by_filter: bool) -> dict[str, Any]:
        confirm(body)
        noted = said(body) | ({"filter": fields.member(body, "filter") or {}} if by_filter else {})
        self.act.action, self.act.detail = f"job.bulk_{self.name}", noted
        return self.report(sweep(ids, self.verb(by_filter), self.act, using()))

    def report(self, done: Report, *, dry: bool = False) -> dict[str, Any]:
        errors = [{"job_id": str(job_id), "error": error.as_dict(self.request_id)} for job_id, error in done.errors]
        counted = {"matched": done.matched, "succeeded": done.succeeded, "failed": 0 if dry else done.failed}
        return {"action": self.name, "dry_run": dry, **counted, "errors": errors}


class AdminBulkRetry(BulkAct):
    """`POST /admin/jobs/bulk/retry`"""

    name = "retry"
    default_states: Sequence[State] = (State.DISCARDED,)
    eligible: Sequence[State] = (State.DISCARDED, State.RETRYABLE)

    def verb(self, spare_active: bool) -> Verb:
        return lambda ids, alias: bulk.retry_many(ids, partial=True, using=alias)


class AdminBulkCancel(BulkAct):
    """`POST /admin/jobs/bulk/cancel`: a filter leaves running jobs alone unless it names their state."""

    name = "cancel"
    default_states, eligible = WAITING, (*WAITING, State.ACTIVE)

    def verb(self, spare_active: bool) -> Verb:
        named = (self.body.get("filter") or {}).get("state")
        spare = spare_active and not (named and State.ACTIVE in filters.StatesField().clean(named))
        by = principal(self.request)
        return lambda ids, alias: bulk.cancel_many(ids, partial=True, spare_active=spare, by=by, using=alias)


class AdminBulkDelete(BulkAct):
    """`POST /admin/jobs/bulk/delete`: ended jobs only, and a filter has to say of which states."""

    name = "delete"
    scopes = {"POST": "admin.purge"}
    rights = {"POST": "delete_job"}
    eligible = tuple(TERMINAL)

    def verb(self, spare_active: bool) -> Verb:
        return lambda ids, alias: bulk.delete_many(ids, partial=True, using=alias)


class DeadLetterBulkRetry(AdminBulkRetry):
    """`POST /admin/dead-letter/retry`: those that are named, or all that fit; an empty filter means all. `override`
    changes them, and what it makes of one is refused where a push of that would be."""

    eligible = (State.DISCARDED,)
    members = ("filter", "job_ids", "reason", "background", "override")
    dead_letters = True

    def verb(self, spare_active: bool) -> Verb:
        override = self.override(dict(self.body))
        if override:
            self.act.detail["override"] = sorted(override)
        return lambda ids, alias: bulk.retry_many(ids, partial=True, dead_letters=True, override=override, using=alias)

    def override(self, body: dict[str, Any]) -> dict[str, Any] | None:
        override = fields.member(body, "override")
        check_override(override)
        if override and isinstance(override.get("queue"), str):
            check_queue(self.request, override["queue"])
        return override

    def base(self) -> Any:
        return super().base().dead_letters()

    def report(self, done: Report, *, dry: bool = False) -> dict[str, Any]:
        return super().report(done, dry=dry) | {"retried": done.succeeded}


class QueuePurge(AdminBulkDelete):
    """`DELETE /admin/queues/{name}/jobs`: ended jobs of a queue, in the body or the query `states`, `older_than`."""

    http_method_names = ["delete", "options"]
    scopes = {"DELETE": "admin.purge"}
    rights = {"DELETE": "delete_job"}
    all_if_silent = True

    @audited("job.purge", together=False)
    def delete(self, request: Request, name: str) -> Response:
        check_queue(request, fields.queue_name(name))
        body = known(destructive(request, self.payload(required=False)), "states", "older_than")
        wanted = body.get("states")
        found = filters.StatesField(required=False).clean(wanted) if isinstance(wanted, str | list) else []
        if not found or not set(found) <= set(TERMINAL):
            raise fields.fault("states", f"must be some of {', '.join(TERMINAL)}", wanted)
        jobs = filters.in_states(self.base().filter(access.visible(request), queue=name), found)
        done = self.purge(body, older(jobs, body), f"queue {name}")
        return Response({**done, "queue": name, "states": [state.value for state in found]})

    def purge(self, body: dict[str, Any], jobs: QuerySet[Job], what: str) -> dict[str, Any]:
        if fields.flag(body, "dry_run"):
            return {"purged_count": 0, "matched": jobs.count(), "dry_run": True}
        confirm(body)
        noted = {name: body[name] for name in ("states", "older_than", "filter") if body.get(name)}
        self.act.target, self.act.detail = what, noted
        done = sweep(batches(jobs, using()), self.verb(True), self.act, using())
        return {"purged_count": done.succeeded, "matched": done.matched, "dry_run": False}


class DeadLetterPurge(QueuePurge):
    """`DELETE /admin/dead-letter`, and `POST /admin/dead-letter/purge` for the command line: dead letters alone, all
    that a filter means or those that are named."""

    http_method_names = ["delete", "post", "options"]
    scopes = {"DELETE": "admin.purge", "POST": "admin.purge"}
    rights = {"DELETE": "delete_job", "POST": "delete_job"}
    default_states, eligible = (State.DISCARDED,), (State.DISCARDED,)
    dead_letters = True

    def base(self) -> Any:
        return super().base().dead_letters()

    def verb(self, spare_active: bool) -> Verb:
        return lambda ids, alias: bulk.delete_many(ids, partial=True, dead_letters=True, using=alias)

    @audited("job.purge", together=False)
    def delete(self, request: Request) -> Response:  # type: ignore[override]
        payload = self.payload(required=False, limit=ojs_settings.MAX_BATCH_BYTES)
        body = known(destructive(request, payload), "filter", "job_ids", "older_than")
        if body.get("job_ids") is not None:
            if body.get("older_than") is not None:
                raise fields.fault("older_than", "goes with a filter, not with job_ids", body["older_than"])
            done = self.run(request, body).data
            return Response({**done, "purged_count": done["succeeded"]})
        return Response(self.purge(body, older(self.chosen(body), body), "dead letters"))

    post = delete


def destructive(request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """The body of a DELETE, or what stands in the query, since proxies may drop that body."""
    given: dict[str, Any] = {str(name): value for name, value in request.query_params.items()}
    given |= {name: given[name] == "true" for name in ("confirm", "dry_run") if given.get(name) in ("true", "false")}
    if narrowed := {name: given.pop(name) for name in filters.NAMES if name in given}:
        given["filter"] = narrowed
    return {**given, **body}


def older(jobs: QuerySet[Job], body: dict[str, Any]) -> QuerySet[Job]:
    """Those that ended before `older_than`: an age such as PT24H, or an instant."""
    given = body.get("older_than")
    if given is None:
        return jobs
    readers: tuple[Callable[[Any], dt.datetime], ...] = (durations.parse_instant, partial(_ago, clock.now(using())))
    for read in readers:
        try:
            return jobs.filter(finished_at__lt=read(given))
        except (ValueError, OverflowError):
            continue
    raise fields.fault("older_than", "must be a duration such as P7D, or a time", given)


def _ago(now: dt.datetime, value: Any) -> dt.datetime:
    return now - dt.timedelta(milliseconds=durations.parse_duration_ms(value))
