"""Lists of jobs: filtered, sorted and paged as the query string asks, without reading a large table through.

What no index finds, such as a job type, is searched for along the list's order, and only so far. A page that could not
be filled in time says `has_more`, how far the search got (`searched`), and gives a `next_cursor` with which the next
request goes on from there. A caller that follows it until there is no more has seen all.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from django.db.models import QuerySet
from django_filters.rest_framework import DjangoFilterBackend
from rest_framework.request import Request

from django_ojs.conf import ojs_settings
from django_ojs.database import database
from django_ojs.http import filters, pagination, parameters, permissions, query
from django_ojs.http.pagination import CappedPagination, ListPage, SortKey, capped, paginate, parse_time, parse_uuid
from django_ojs.jobs.filterfields import read_states
from django_ojs.jobs.search import DEEPER, FEW, instant_of, scan
from django_ojs.models import Job
from django_ojs.models.job import JobRow
from django_ojs.models.workflow import name_workflows
from django_ojs.rules.durations import format_instant
from django_ojs.rules.faults import checked, query_fault
from django_ojs.states import LIVE, TERMINAL, State
from django_ojs.statistics import counters

#: What a line of a list holds; the columns that hold data of the site are left where they are.
COLUMNS = ("id", "type", "queue", "state", "priority", "attempt", "max_attempts", "created_at", "enqueued_at", "due_at",
           "started_at", "finished_at", "worker_id", "workflow_id", "dead_letter")  # fmt: skip
#: What the end of a job is called, by its last state.
ENDS = {State.COMPLETED: "completed_at", State.DISCARDED: "discarded_at", State.CANCELLED: "cancelled_at"}
#: Ids are UUIDv7 and begin with the time at which they were made: the order of `created_at`, with an index.
_SORTS = {"created_at": "id", "scheduled_at": "due_at", "priority": "priority", "finished_at": "finished_at"}
_PARSERS: dict[str, Any] = {"id": parse_uuid, "due_at": parse_time, "priority": int, "finished_at": parse_time}
#: Ids beyond all others: where a cursor stands behind every row of one instant.
_LOWEST, _HIGHEST = uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)
#: By the column along which jobs can be gone through: all of them, and those that are asked for.
Base = dict[str, tuple[QuerySet[Job], QuerySet[Job]]]


class JobFilterBackend(DjangoFilterBackend):  # type: ignore[misc]
    """The jobs that the caller may see and the query string asks for, by the view's `filterset_class`."""

    #: Whether `since` and `until` are looked up by the ids too, which have an index.
    by_id = True

    def filter_queryset(self, request: Request, queryset: Any, view: Any) -> Any:
        return filters.of_query(request, queryset, by_id=self.by_id, kind=view.filterset_class)

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        """The parameters, for the OpenAPI document."""
        return parameters.of_filter(view.filterset_class)


class JobPagination(CappedPagination):
    """The pages of a list of jobs, in the order of the query's `sort` and `order`.

    The number of all jobs, or of those in a state or a queue, is known without counting. What no index finds is
    searched for, and only so far. Both hold for our own filters: a ViewSet of a site that narrows the list itself has
    its jobs counted up to a bound.
    """

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        return parameters.described(*self.sorting(view)) + super().get_schema_operation_parameters(view)

    def sorting(self, view: Any) -> Sequence[str]:
        """The parameters that sort the list."""
        return ("sort", "order")

    def get_page(self, queryset: QuerySet[Any], request: Request, view: Any) -> ListPage:
        key, sizes = sorting(request, "created_at"), self.sizes(view)
        if not is_whole(view):
            return listing(request, queryset, key, sizes=sizes)
        return listing(request, queryset, key, _known_total(request), _base(request, key), sizes=sizes)


def is_whole(view: Any) -> bool:
    """Whether the list of a view is narrowed by nothing but our own filters: a site's subclass may narrow it too."""
    ours: Any = next(kind for kind in type(view).__mro__ if kind.__module__.startswith("django_ojs."))
    return (
        type(view).get_queryset is ours.get_queryset
        and view.filterset_class is ours.filterset_class
        and tuple(view.filter_backends) == ours.filter_backends
    )


def listing(
    request: Request, jobs: QuerySet[Job], key: SortKey, total: int | None = None, base: Base | None = None, *,
    sizes: tuple[int, int], columns: Sequence[str] | None = COLUMNS, bounded: bool = True,
) -> ListPage:  # fmt: skip
    """A page of jobs in the order of `key`.

    Args:
        total: how many there are, where it is known without counting.
        base: by the column of an order that an index has, the jobs to look through for what no index finds, and the
            filter that they have to pass. Any other order is made of stretches along the first of these columns.
        columns: those that the rows are to have; None for all.
        sizes: the most rows of a page, and those of one that says nothing.
        bounded: whether a page must not begin too far behind the first row (see `paginate`).
    """
    if key.column in ("due_at", "finished_at"):
        jobs = jobs.filter(**{f"{key.column}__isnull": False})
    order = [key] if key.column == "id" else [key, key._replace(column="id", parse=parse_uuid)]

    def rows(found: QuerySet[Any]) -> list[JobRow]:
        rows: list[JobRow] = found.rows(*([columns] if columns else []))  # type: ignore[attr-defined]
        name_workflows(rows, found.db)
        return rows

    if base is not None and key.column not in base:
        return stretched(request, next(iter(base)), base, order, rows, total, maximum=sizes[0], default=sizes[1])
    if base is not None and unindexed(request):
        return searched(request, *base[key.column], order, rows, total=total, maximum=sizes[0], default=sizes[1])
    count = capped if total is None else lambda _: (total, False)
    return paginate(jobs, request, order, rows=rows, maximum=sizes[0], default=sizes[1], count=count, bounded=bounded)


def unindexed(request: Request) -> bool:
    """Whether the query asks for something that no index finds, and the site has made none of its own for it."""
    wanted = filters.wanted_by(request)
    rest = wanted.unindexed()
    return bool(rest) and not wanted.is_served(rest)


def _base(request: Request, key: SortKey) -> Base | None:
    """What a search of the list goes through; None where the states and the queue leave few enough to read them all."""
    wanted = _states(request)
    queues = _queues(request)
    indexed = key.column == "id" or (key.column == "finished_at" and len(wanted) == 1 and wanted[0] in ENDS)
    # Only of jobs that have not ended an index knows the queue.
    readable = queues if wanted and LIVE.issuperset(wanted) else []
    if filters.wanted_by(request).is_narrow or (
        (wanted or not indexed) and _counted(readable, wanted or list(State)) <= FEW
    ):
        return None
    every = Job.objects.using(database(None))
    made = filters.made_between(every, query.instant(request, "since"), query.instant(request, "until"))
    base: Base = {"id": (made, filters.of_query(request, walked=True))}
    if len(wanted) == 1 and wanted[0] in ENDS:
        base["finished_at"] = (filters.in_states(every, wanted), filters.of_query(request))
    return base


def _states(request: Request) -> Sequence[State]:
    return checked(read_states, query.joined(request, "state"), "state", query_fault)


def _queues(request: Request) -> Sequence[str]:
    """The queues that the query asks for within the caller's limits; none means all."""
    queue = query.given(request, "queue")
    return permissions.queues_to_read(request, [queue] if queue else [])


def _counted(queues: Sequence[str], wanted: Sequence[State]) -> int:
    found = counters.count_all(list(queues) or None, using=database(None)).values()
    return sum(counted.states[state] for counted in found for state in wanted)


def _known_total(request: Request) -> int | None:
    """The number of jobs where nothing is asked for but queues and states, which are counted anyway."""
    if not filters.asks_for_only(filters.wanted_by(request), "queue", "states"):
        return None
    wanted = _states(request) or list(State)
    ended = TERMINAL.issuperset(wanted)
    sort = query.given(request, "sort")
    if sort == "scheduled_at" or (sort == "finished_at" and not ended):
        return None  # leaves out those without one
    return _counted(_queues(request), wanted)


def sorting(request: Request, default: str) -> SortKey:
    """The order that the query asks for: its `sort`, or `default`, and the newest first unless its `order` is asc."""
    name, order = query.text(request, "sort") or default, query.text(request, "order") or "desc"
    if name not in _SORTS:
        raise query_fault("sort", f"must be one of {', '.join(_SORTS)}", name)
    if order not in ("asc", "desc"):
        raise query_fault("order", "must be asc or desc", order)
    column = _SORTS[name]
    return SortKey(column, descending=order == "desc", parse=_PARSERS[column])


def searched(
    request: Request, base: QuerySet[Job], jobs: QuerySet[Job], order: Sequence[SortKey],
    rows: Callable[[QuerySet[Any]], list[Any]], *, maximum: int, default: int, total: int | None = None,
) -> ListPage:  # fmt: skip
    """The page of `jobs`, all of which are in `base`, whose order along the first key an index has.

    A page further on may look at as many jobs more as those before it might have. `total` is how many jobs there are,
    where it is known: then none is looked for to count them, and none where all have been found.
    """
    window = pagination.read(request, order, maximum, default)
    pagination.check_offset(window)
    if window.after is not None:
        base = base.filter(pagination.beyond(order, window.after))
    skipped = 0 if window.after is not None else window.offset
    key, cap = order[0], pagination.CAP
    names = [column.column for column in order]
    before = window.offset if window.after is not None else 0
    enough, there = skipped + window.limit + 1, None
    if window.after is None:  # behind a cursor the number says nothing: jobs before it may be gone
        there = total
        enough = max(enough, cap + 1) if there is None else min(enough, there)
    done = scan(
        base, key.column, lambda part: (part & jobs).order_by().values_list(*names), enough,
        depth=DEEPER * ojs_settings.SEARCH_DEPTH * (1 + skipped // window.limit),
        descending=key.descending,
    )  # fmt: skip
    found = sorted(done.found, reverse=key.descending)
    chosen = found[skipped : skipped + window.limit]
    job_ids = [values[-1] for values in chosen]
    shown = {row["id"]: row for row in rows(Job.objects.using(base.db).filter(pk__in=job_ids))} if job_ids else {}
    left = len(found) > skipped + window.limit
    whole = done.ended == "all" or (there is not None and len(found) >= there)
    minimum = total is None and (not whole or len(found) > cap)
    if total is None:
        total = before + len(found) if whole or len(found) <= cap else before + cap
    standing = pagination.standing(total, window.limit, window.offset, has_more=left or not whole)
    if minimum:
        standing["total_is_minimum"] = True
    if left:
        standing["next_cursor"] = window.cursor(window.offset + len(chosen), chosen[-1])
    elif not whole:
        edge = [done.edge] if len(order) == 1 else [done.edge, _LOWEST if key.descending else _HIGHEST]
        standing["next_cursor"] = window.cursor(before + len(found), edge)
        standing["searched"] = {"jobs": done.looked, "up_to": format_instant(instant_of(done.edge))}
    return ListPage([shown[job_id] for job_id in job_ids if job_id in shown], standing)


def stretched(
    request: Request, along: str, base: Base, order: Sequence[SortKey], rows: Callable[[QuerySet[Any]], list[Any]],
    total: int | None, *, maximum: int, default: int,
) -> ListPage:  # fmt: skip
    """The page in an order that no index has: that of the newest `OJS["SEARCH_DEPTH"]` jobs `along` a column that has
    one, then of those before them, and so on. `order` holds within such a stretch.
    """
    edge = SortKey(along, True, _PARSERS[along])
    keys = [key._replace(parse=_or_none(key.parse)) for key in (*order, edge, edge)]
    window = pagination.read(request, keys, maximum, default)
    pagination.check_offset(window)
    *after, begin, end = window.after or [None] * len(keys)
    every, jobs = base[along]
    part, depth = every, ojs_settings.SEARCH_DEPTH
    if begin is not None:
        part = part.filter(**{f"{along}__lt": begin})
    if after[0] is None:  # the first page of a stretch decides where it ends
        end = part.order_by(f"-{along}").values_list(along, flat=True)[depth - 1 : depth].first()
    if end is not None:
        part = part.filter(**{f"{along}__gte": end})
    fitting = (part & jobs).filter(**{f"{order[0].column}__isnull": False})
    ordered = fitting.order_by(*(f"-{key.column}" if key.descending else key.column for key in order))
    if after[0] is not None:
        ordered = ordered.filter(pagination.beyond(order, after))
    skipped = 0 if window.after is not None else window.offset
    found = rows(ordered[skipped : skipped + window.limit + 1])
    if skipped and not found and end is not None:
        message = f"must not begin behind what fits of the newest {depth} jobs in this order: follow next_cursor"
        raise query_fault(window.named, message, str(skipped))
    left, shown = len(found) > window.limit, found[: window.limit]
    if total is None:
        total, more = capped(fitting)
        more = more or end is not None
    else:
        more = False
    standing = pagination.standing(total, window.limit, window.offset, has_more=left or end is not None)
    if more:
        standing["total_is_minimum"] = True
    if left:
        values = [shown[-1][key.column] for key in order]
        standing["next_cursor"] = window.cursor(window.offset + len(shown), [*values, begin or "", end or ""])
    elif end is not None:
        standing["next_cursor"] = window.cursor(window.offset + len(shown), [*("" for _ in order), end, ""])
        standing["searched"] = {"jobs": depth, "up_to": format_instant(instant_of(end))}
    return ListPage(shown, standing)


def _or_none(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: parse(text) if text else None
