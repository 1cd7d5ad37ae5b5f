"""Finds rows that no index finds: reads a bounded number of rows in the order of an index, and says how far it looked.

The rows are read in batches, each twice as long as the one before, until there are enough, or a number of rows was
looked at, or a time has passed. So a search costs the same however large the table is. The admin's list, the lists over
HTTP, the commands and bulk actions all search through here.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Literal

from django.db.models import QuerySet
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from django_ojs import clock
from django_ojs.conf import ojs_settings
from django_ojs.models import Job
from django_ojs.rules import ids
from django_ojs.rules.durations import EARLIEST, LATEST, format_instant, parse_duration_ms, parse_instant

#: Rows of the first batch and of the largest; jobs that are few enough to be read all.
FIRST, LARGEST, FEW = 1000, 8000, 20_000
#: A request looks at so many times `OJS["SEARCH_DEPTH"]`: no page waits for it, and a request costs more than a batch.
DEEPER = 5


@dataclasses.dataclass(slots=True)
class Scan:
    """What was found, how many rows were looked at, the last of these, and by what it ended."""

    found: list[Any]
    looked: int = 0
    edge: Any = None
    ended: Literal["found", "all", "depth", "time"] = "all"


@dataclasses.dataclass(slots=True)
class Look:
    """How far a search for jobs looked.

    Attributes:
        looked: jobs, the newest; None: all that there are.
        back_to: the time of the last of them.
        ended: by what it ended: `found`, `all`, `depth` or `time`.
        further: the time `until` of a search that goes on from there.
        edge: the last of them: its id, or its end where the search goes along the ends.
    """

    looked: int | None = None
    back_to: dt.datetime | None = None
    ended: str = "all"
    further: str = ""
    edge: Any = None


def scan(
    base: QuerySet[Any], along: str, fitting: Callable[[QuerySet[Any]], Iterable[Any]], enough: int,
    *, depth: int, descending: bool = True,
) -> Scan:  # fmt: skip
    """Collect what `fitting` makes of one batch of `base` after another, in the order of the column `along`.

    An index has to have that order. A batch holds all rows of equal values, so that going on behind `edge` misses
    none. No further batch is begun once there is `enough`, `depth` rows were looked at or `OJS["SEARCH_SECONDS"]` have
    passed.
    """
    done, size, last = Scan([]), FIRST, None
    behind, upto, sign = ("lt", "gte", "-") if descending else ("gt", "lte", "")
    until = time.monotonic() + ojs_settings.SEARCH_SECONDS
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


def newest(
    base: QuerySet[Job], along: str, fitting: Callable[[QuerySet[Job]], Iterable[uuid.UUID]], enough: int
) -> tuple[list[uuid.UUID], Look]:
    """The ids that `fitting` finds among the newest `OJS["SEARCH_DEPTH"]` jobs of `base`, `along` their `id` or
    `finished_at`, and how far that was. There may be more than `enough`."""
    done = scan(base, along, fitting, enough, depth=ojs_settings.SEARCH_DEPTH)
    if done.ended == "all":
        return done.found, Look()
    back_to = instant_of(done.edge)
    # The next search may see a job of the same instant again, and misses none.
    further = format_instant(back_to + dt.timedelta(milliseconds=1))
    return done.found, Look(done.looked, back_to, done.ended, further, done.edge)


def instant_of(edge: dt.datetime | uuid.UUID) -> dt.datetime:
    """When a job ended or was made, by its place along a search: its end itself, or its id."""
    return edge if isinstance(edge, dt.datetime) else ids.time_of(edge)


def typed_instant(text: str) -> dt.datetime | None:
    """What an operator types as a time: `2h` ago, an instant with its zone, or a time in the site's own; None for ''.

    Raises ValueError for anything else.
    """
    text = text.strip()
    if not text:
        return None
    try:
        return clock.now() - dt.timedelta(milliseconds=parse_duration_ms(text))
    except (ValueError, OverflowError):
        pass
    try:
        return parse_instant(text.replace(" ", "+") if text.count(":") > 2 else text)
    except ValueError:
        naive = parse_datetime(text if ":" in text else f"{text} 00:00")
    if naive is None or not EARLIEST.year < naive.year < LATEST.year:
        raise ValueError(text)
    return naive if timezone.is_aware(naive) else timezone.make_aware(naive)
