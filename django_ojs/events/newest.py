"""The log from its end, by page: for somebody who looks at it, where `log.read` is for who must miss nothing."""

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
    """One page, newest first. `total` counts the matches within the window."""

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
    order.catch_up(using)
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
    events = [log.render(event, salt) for event in found if wanted.matches(event)]
    return Newest(events, total, offset + len(found) < total)
