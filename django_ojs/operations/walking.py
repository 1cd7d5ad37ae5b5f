"""Looking for what no index finds, along an order that one has: in slices, and only so far.

Each slice is twice as long as the one before, up to a bound, until there is enough, or so many rows were looked at, or
the time is over. So a look costs the same however large the table is, and says how far it got.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Literal

from django.db.models import QuerySet

#: Rows of the first slice and of the largest; jobs that are few enough to be read all.
FIRST, LARGEST, FEW = 1000, 8000, 20_000
#: A request looks at so many times `OJS["SEARCH_DEPTH"]`: nobody sits before it, and each costs more than a slice.
DEEPER = 5


@dataclasses.dataclass(slots=True)
class Walk:
    """What was found, how many rows were looked at, the last of these, and by what it ended."""

    found: list[Any]
    looked: int = 0
    edge: Any = None
    ended: Literal["found", "all", "depth", "time"] = "all"


def walk(
    base: QuerySet[Any], along: str, fitting: Callable[[QuerySet[Any]], Iterable[Any]], enough: int,
    *, depth: int, seconds: float, first: int = FIRST, descending: bool = True,
) -> Walk:  # fmt: skip
    """Collect what `fitting` makes of one slice of `base` after another, in the order of the column `along`.

    An index has to have that order. A slice holds all rows of equal values, so that going on behind `edge` misses
    none. No further slice is begun once there is `enough`, `depth` rows were looked at or `seconds` have passed.
    """
    done, size, last = Walk([]), first, None
    behind, upto, sign = ("lt", "gte", "-") if descending else ("gt", "lte", "")
    until = time.monotonic() + seconds
    while True:
        size = min(size, depth - done.looked)
        part = base if last is None else base.filter(**{f"{along}__{behind}": last})
        ordered = part.order_by(f"{sign}{along}").values_list(along, flat=True)
        edge = next(iter(ordered[size - 1 : size]), None)
        if edge is not None:
            part = part.filter(**{f"{along}__{upto}": edge})
        done.found += fitting(part)
        if edge is None:
            done.ended = "all"
            return done
        done.looked, done.edge, last, size = done.looked + size, edge, edge, min(size * 2, LARGEST)
        if len(done.found) >= enough:
            done.ended = "found"
        elif done.looked >= depth:
            done.ended = "depth"
        elif time.monotonic() >= until:
            done.ended = "time"
        else:
            continue
        return done


def id_at(instant: dt.datetime) -> uuid.UUID:
    """The lowest id of this millisecond: ids are UUIDv7."""
    milliseconds = (instant - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
    return uuid.UUID(int=min(max(milliseconds, 0), 2**48 - 1) << 80)


def time_of(job_id: uuid.UUID) -> dt.datetime:
    """When an id was made, to the millisecond."""
    try:
        return dt.datetime.fromtimestamp((job_id.int >> 80) / 1000, dt.UTC)
    except (OverflowError, ValueError):  # not a UUIDv7
        return dt.datetime.max.replace(tzinfo=dt.UTC) - dt.timedelta(days=1)
