"""Reads the log from its end, page by page, for people. Code that must miss nothing uses `log.read`."""

from __future__ import annotations

import datetime as dt
from typing import Any, NamedTuple

from django_ojs.events import ids, log, order, places
from django_ojs.events.filters import Filter
from django_ojs.models import Event

#: How many of the newest events are looked through, and so the most that a total can be. Looking further back would
#: cost every reload of a page more, the longer the log is; a job's own events are found by an index, all of them.
WINDOW = 50_000


class Newest(NamedTuple):
    """One page, newest first. `total` counts the matches within the window.

    A page of `job.state_changed` is one of the stored events that may tell of a change: some tell of none, and where
    their own types are asked for as well, they come beside it.
    """

    events: list[dict[str, Any]]
    total: int
    has_more: bool


def page(
    wanted: Filter,
    *,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
    offset: int = 0,
    limit: int = 50,
    using: str | None = None,
) -> Newest:
    """The events from place `offset`, counted from the end, that match."""
    using = using or log.database()
    order.catch_up(using, strict=False)
    query = places.behind(using, places.START).filter(wanted.condition())
    if not wanted.job_ids:
        newest = Event.objects.using(using).order_by("-id").values_list("id", flat=True).first() or 0
        query = query.filter(id__gt=newest - WINDOW)
    if since:
        query = query.filter(time__gte=since)
    if until:
        query = query.filter(time__lt=until)
    total = query.order_by()[:WINDOW].count()
    found = list(query.reverse()[offset : offset + limit]) if offset < total else []
    salt = ids.salt_of(using)
    events = log.views(reversed(found), wanted, salt)[::-1]
    return Newest(events, total, offset + len(found) < total)
