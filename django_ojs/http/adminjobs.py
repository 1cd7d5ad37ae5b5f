"""Jobs as an operator sees them: `/admin/jobs` (admin 1.3). Flat, where the other door wraps them in `job`."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django.db import router
from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs.conf import ojs_settings
from django_ojs.http import access, fields, filters, priority, query, shown
from django_ojs.http.auditing import audited
from django_ojs.http.base import OJSView
from django_ojs.http.bulkbody import said
from django_ojs.http.pagination import Key, Page, capped, paginate, parse_time, parse_uuid
from django_ojs.http.permissions import principal, type_limit
from django_ojs.http.searching import searched
from django_ojs.models import Job
from django_ojs.models.job import JobRow
from django_ojs.operations import counts
from django_ojs.operations.activate import activate
from django_ojs.operations.bulk import retry_failed
from django_ojs.operations.cancel import cancel_one
from django_ojs.operations.common import only
from django_ojs.operations.duplicate import duplicate
from django_ojs.operations.hurry import hurry
from django_ojs.operations.info import info
from django_ojs.operations.walking import FEW
from django_ojs.policies import retry as retry_policy
from django_ojs.policies.durations import format_instant, format_iso
from django_ojs.states import State

MAX_PAGE, PAGE = 100, 20
#: What a line of the list holds; the columns that hold data of the site are left where they are.
COLUMNS = ("id", "type", "queue", "state", "priority", "attempt", "max_attempts", "created_at", "enqueued_at", "due_at",
           "started_at", "finished_at", "worker_id", "workflow_id", "dead_letter")  # fmt: skip
#: Ids are UUIDv7 and begin with the time at which they were made: the order of `created_at`, with an index.
_SORTS = {"created_at": "id", "scheduled_at": "due_at", "priority": "priority", "finished_at": "finished_at"}
_PARSERS: dict[str, Any] = {"id": parse_uuid, "due_at": parse_time, "priority": int, "finished_at": parse_time}
#: The filters that no index finds, as the site's setting calls them.
_OWN_INDEX = {"type": "type", "error_type": "error"}
#: By the column along which jobs can be gone through: all of them, and those that are asked for.
Base = dict[str, tuple[QuerySet[Job], QuerySet[Job]]]
_ENDS = {State.COMPLETED: "completed_at", State.DISCARDED: "discarded_at", State.CANCELLED: "cancelled_at"}


class AdminView(OJSView):
    """What the operator's views share: a conflict of states is called so (decision 6 of the protocol)."""

    conflict_code = "invalid_state_transition"


class AdminJobs(AdminView):
    """`GET /admin/jobs?queue=&state=&type=&since=&until=&worker_id=&error_type=&sort=&order=`"""

    scopes = {"GET": "admin.read"}
    rights = {"GET": "view_job"}

    def get(self, request: Request) -> Response:
        page = listing(request, filters.of_query(request, by_id=True), _known_total(request), _base(request))
        return Response({"items": [item(row) for row in page.rows], "pagination": page.pagination})


class AdminJobDetail(AdminView):
    """`GET /admin/jobs/{id}`; `PATCH` changes the priority."""

    scopes = {"GET": "admin.read", "PATCH": "admin.write"}
    rights = {"GET": "view_job", "PATCH": "change_job"}

    def get(self, request: Request, job_id: str) -> Response:
        return Response(detail(find(request, job_id)))

    @audited("job.prioritise")
    def patch(self, request: Request, job_id: str) -> Response:
        changed = priority.change(request, job_id, self.payload()).data
        return Response({**detail(info(fields.path_id(job_id))), **changed})


class AdminJobCancel(AdminView):
    """`POST /admin/jobs/{id}/cancel`: CANCEL."""

    scopes = {"POST": "admin.write"}
    rights = {"POST": "change_job"}

    @audited("job.cancel")
    def post(self, request: Request, job_id: str) -> Response:
        reason = fields.text(self.payload(required=False), "reason", maximum=1000)
        row = find(request, job_id)
        done = cancel_one(row["id"], cancelled_by=principal(request), reason=reason or "")
        return Response(detail(done.row) | {"previous_state": done.previous_state})


class AdminJobRetry(AdminView):
    """`POST /admin/jobs/{id}/retry`: a discarded job begins anew, a retryable one is not made to wait any longer. Only
    a dead letter can be changed thereby, under `/admin/dead-letter`."""

    scopes = {"POST": "admin.write"}
    rights = {"POST": "change_job"}

    @audited("job.retry")
    def post(self, request: Request, job_id: str) -> Response:
        self.act.detail |= said(fields.only(self.payload(required=False), "reason", "confirm"))
        row = find(request, job_id)
        done = only(retry_failed([row["id"]], using()))
        return Response(detail(done) | {"previous_state": row["state"]})


class AdminJobRun(AdminView):
    """`POST /admin/jobs/{id}/run`: a scheduled or retryable job waits no longer."""

    scopes = {"POST": "admin.write"}
    rights = {"POST": "change_job"}

    @audited("job.run")
    def post(self, request: Request, job_id: str) -> Response:
        self.payload(required=False)
        row = find(request, job_id)
        return Response(detail(only(hurry([row["id"]]))) | {"previous_state": row["state"]})


class AdminJobActivate(AdminView):
    """`POST /admin/jobs/{id}/activate`: a pending job becomes available."""

    scopes = {"POST": "admin.write"}
    rights = {"POST": "change_job"}

    @audited("job.activate")
    def post(self, request: Request, job_id: str) -> Response:
        self.payload(required=False)
        row = find(request, job_id)
        return Response(detail(only(activate([row["id"]]))) | {"previous_state": row["state"]})


class AdminJobDuplicate(AdminView):
    """`POST /admin/jobs/{id}/duplicate`: a new job from what the client of this one sent; 201 with the new one."""

    scopes = {"POST": "admin.write"}
    rights = {"POST": "add_job"}

    @audited("job.copy")
    def post(self, request: Request, job_id: str) -> Response:
        self.payload(required=False)
        made = duplicate(find(request, job_id)["id"])
        self.act.detail["copy"] = str(made["id"])
        return Response(detail(made) | {"copy_of": job_id}, status=201)


def listing(
    request: Request, jobs: QuerySet[Job], total: int | None = None, base: Base | None = None,
    default: str = "created_at", columns: Sequence[str] | None = COLUMNS,
) -> Page:  # fmt: skip
    """A page of jobs in the order that the query asks for.

    Args:
        total: how many there are, where it is known without counting.
        base: by the column of an order that an index has, the jobs to look through for what no index finds, and the
            filter that they have to pass.
        columns: those that the rows are to have; None for all.
    """
    key = _sort(request, default)
    if key.column in ("due_at", "finished_at"):
        jobs = jobs.filter(**{f"{key.column}__isnull": False})
    order = [key] if key.column == "id" else [key, key._replace(column="id", parse=parse_uuid)]

    def rows(found: QuerySet[Any]) -> list[JobRow]:
        return found.rows(*([columns] if columns else []))  # type: ignore[attr-defined, no-any-return]

    if base is not None and key.column in base and unindexed(request):
        return searched(request, *base[key.column], order, rows, maximum=MAX_PAGE, default=PAGE)
    count = capped if total is None else lambda _: (total, False)
    return paginate(jobs, request, order, rows=rows, maximum=MAX_PAGE, default=PAGE, count=count)


def unindexed(request: Request) -> bool:
    """Whether the query asks for something that no index finds, and the site has made none of its own for it."""
    given = {own for name, own in _OWN_INDEX.items() if request.query_params.get(name)}
    if type_limit(request) is not None:
        given.add("type")
    return bool(given) and given.isdisjoint(ojs_settings.INDEXED_FILTERS)


def _base(request: Request) -> Base | None:
    """What a search of the list goes through; None where the states and the queue leave few enough to read them all."""
    given = request.query_params
    wanted = filters.StatesField(required=False).clean(given.get("state"))
    queues = access.queues_to_read(request, [given["queue"]] if given.get("queue") else [])
    if given.get("worker_id") or (wanted and _counted(queues, wanted) <= FEW):
        return None
    every = Job.objects.using(using())
    made = filters.made_between(every, query.instant(request, "since"), query.instant(request, "until"))
    base: Base = {"id": (made, filters.of_query(request, walked=True))}
    if len(wanted) == 1 and wanted[0] in _ENDS:
        base["finished_at"] = (filters.in_states(every, wanted), filters.of_query(request))
    return base


def _counted(queues: Sequence[str], wanted: Sequence[State]) -> int:
    found = counts.count_all(list(queues) or None, using=using()).values()
    return sum(counted.states[state] for counted in found for state in wanted)


def item(row: JobRow) -> dict[str, Any]:
    """A line of a list."""
    names = ("type", "queue", "state", "priority", "attempt", "max_attempts", "dead_letter")
    line = {"id": str(row["id"]), **{name: row[name] for name in names}}
    line |= _times(row) | ({"scheduled_at": format_instant(row["due_at"])} if row["due_at"] else {})
    if row["worker_id"]:
        line["worker_id"] = row["worker_id"]
    return line | ({"workflow_id": str(row["workflow_id"])} if row["workflow_id"] else {})


def detail(row: JobRow) -> dict[str, Any]:
    """The whole job, flat; `meta` and `errors` are always there, and backtraces are lists."""
    job = shown.job(row)
    history = [_with_lines(error) for error in job.get("errors", [])]
    times = _times(row) | ({"scheduled_at": format_instant(row["due_at"])} if row["due_at"] else {})
    job |= {
        "errors": history,
        "retry_policy": _policy(row["retry"]),
        "metadata": times,
        "dead_letter": row["dead_letter"],
    }
    return job | ({"error": history[-1]} if "error" in job and history else {})


def find(request: Request, job_id: str) -> JobRow:
    """The job in a path, if the caller may touch it."""
    row = info(fields.path_id(job_id))
    access.check_row(request, row)
    return row


def using() -> str:
    return router.db_for_write(Job)


def path_ids(values: list[str]) -> list[uuid.UUID]:
    return [fields.path_id(value) for value in values]


def _policy(text: str) -> dict[str, Any]:
    """The retry policy in force, in the wire's words."""
    policy = retry_policy.from_json(text)
    shown = {
        "max_attempts": policy.max_attempts,
        "initial_interval": format_iso(policy.initial_ms),
        "backoff_coefficient": policy.coefficient,
        "max_interval": format_iso(policy.max_ms),
        "jitter": policy.jitter,
        "non_retryable_errors": list(policy.non_retryable),
        "backoff_strategy": policy.strategy,
    }
    return shown | ({"on_exhaustion": policy.on_exhaustion} if policy.on_exhaustion else {})


def _with_lines(error: Any) -> Any:
    trace = error.get("backtrace") if isinstance(error, dict) else None
    return {**error, "backtrace": trace.splitlines()} if isinstance(trace, str) else error


def _times(row: JobRow) -> dict[str, str]:
    columns = ("created_at", "enqueued_at", "started_at")
    times = {name: format_instant(row[name]) for name in columns if row[name] is not None}
    if row["finished_at"] is not None:
        times[_ENDS[State(row["state"])]] = times["completed_at"] = format_instant(row["finished_at"])
    return times


def _sort(request: Request, default: str) -> Key:
    name, order = query.text(request, "sort") or default, query.text(request, "order") or "desc"
    if name not in _SORTS:
        raise query.fault("sort", f"must be one of {', '.join(_SORTS)}", name)
    if order not in ("asc", "desc"):
        raise query.fault("order", "must be asc or desc", order)
    column = _SORTS[name]
    return Key(column, descending=order == "desc", parse=_PARSERS[column])


def _known_total(request: Request) -> int | None:
    """The number of jobs where nothing is asked for but queues and states, which are counted anyway."""
    given = request.query_params
    if type_limit(request) is not None or any(given.get(name) for name in set(filters.NAMES) - {"queue", "state"}):
        return None
    if given.get("sort") in ("scheduled_at", "finished_at"):  # leaves out those without one
        return None
    wanted = filters.StatesField(required=False).clean(given.get("state")) or list(State)
    limit = access.queues_to_read(request, [given["queue"]] if given.get("queue") else [])
    return _counted(limit, wanted)
