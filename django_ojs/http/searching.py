"""Lists filtered by what no index finds, such as a job type: looked for along the list's order, and only so far.

A page that could not be filled in time says `has_more`, how far the search got (`searched`), and gives a
`next_cursor` with which the next request goes on from there. Whoever follows it until there is no more has seen all.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from django.db.models import QuerySet
from rest_framework.request import Request

from django_ojs.conf import ojs_settings
from django_ojs.http import pagination
from django_ojs.http.pagination import Key, Page
from django_ojs.jobs.search import DEEPER, scan, time_of
from django_ojs.models import Job
from django_ojs.rules.durations import format_instant

#: Ids beyond all others: where a cursor stands behind every row of one instant.
_LOWEST, _HIGHEST = uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)


def searched(
    request: Request, base: QuerySet[Job], jobs: QuerySet[Job], order: Sequence[Key],
    rows: Callable[[QuerySet[Any]], list[Any]], *, maximum: int, default: int,
) -> Page:  # fmt: skip
    """The page of `jobs`, all of which are in `base`, whose order along the first key an index has.

    A page further on may look at as many jobs more as those before it might have.
    """
    window = pagination.read(request, order, maximum, default)
    pagination.check_offset(window)
    if window.after is not None:
        base = base.filter(pagination.beyond(order, window.after))
    skipped = 0 if window.after is not None else window.offset
    key, cap = order[0], pagination.CAP
    names = [column.column for column in order]
    done = scan(
        base, key.column, lambda part: (part & jobs).order_by().values_list(*names),
        skipped + window.limit + 1 if window.after is not None else max(skipped + window.limit, cap) + 1,
        depth=DEEPER * ojs_settings.SEARCH_DEPTH * (1 + skipped // window.limit),
        descending=key.descending,
    )  # fmt: skip
    found = sorted(done.found, reverse=key.descending)
    chosen = found[skipped : skipped + window.limit]
    ids = [values[-1] for values in chosen]
    shown = {row["id"]: row for row in rows(Job.objects.using(base.db).filter(pk__in=ids))} if ids else {}
    left, whole = len(found) > skipped + window.limit, done.ended == "all"
    before = window.offset if window.after is not None else 0
    told: dict[str, Any] = {
        "total": before + len(found) if whole or len(found) <= cap else before + cap,
        "limit": window.limit,
        "offset": window.offset,
        "page": window.offset // window.limit + 1,
        "per_page": window.limit,
        "has_more": left or not whole,
    }
    if not whole or len(found) > cap:
        told["total_is_minimum"] = True
    if left:
        told["next_cursor"] = pagination.encode(window.offset + len(chosen), chosen[-1])
    elif not whole:
        edge = [done.edge] if len(order) == 1 else [done.edge, _LOWEST if key.descending else _HIGHEST]
        told["next_cursor"] = pagination.encode(before + len(found), edge)
        back_to = done.edge if isinstance(done.edge, dt.datetime) else time_of(done.edge)
        told["searched"] = {"jobs": done.looked, "up_to": format_instant(back_to)}
    return Page([shown[job_id] for job_id in ids if job_id in shown], told)
