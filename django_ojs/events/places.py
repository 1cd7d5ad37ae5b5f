"""Where a reader is in the log's total order (see `order`), as a value that outlives the row it was taken from."""

from __future__ import annotations

import datetime as dt
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import F, Q, QuerySet

from django_ojs.models import Event, EventCommit, EventLog

#: What a reader has seen at a place: nothing, the `job.state_changed` made of the event, or the event too.
NOTHING, CHANGE, EVENT = 0, 1, 2


class Place(NamedTuple):
    """A place in the log; places compare in its order.

    `order` is the number of the transaction on PostgreSQL, the stamp on MariaDB and the id on SQLite; `id` is the
    event's. A `job.state_changed` comes right before the event it is made of: `seen` tells the two apart.
    """

    order: int
    id: int
    seen: int = EVENT


START = Place(0, 0)
_EVENT, _COMMIT = Event._meta.db_table, EventCommit._meta.db_table
_SINCE = f"SELECT txid FROM {_COMMIT} WHERE seq >= %s"  # noqa: S608 - names of our own models
_SINCE_UNTIL = f"{_SINCE} AND seq <= %s"
_ORDER = {"sqlite": "id", "postgresql": "commit__seq"}


def behind(using: str, place: Place) -> QuerySet[Event]:
    """The events behind `place` that have been put in order, in it; `place_of` tells where each is."""
    column = _ORDER.get(connections[using].vendor, "seq")
    events = Event.objects.using(using).filter(**{f"{column}__isnull": False})
    if place != START:
        rest = Q(pk__gt=place.id) if place.seen == EVENT else Q(pk__gte=place.id)
        later = Q(**{f"{column}__gt": place.order}) | rest
        events = events.filter(later, **{f"{column}__gte": place.order})
    return events.annotate(place_order=F(column)).order_by(*dict.fromkeys((column, "id")))


def between(using: str, place: Place, last: Place | None) -> QuerySet[Event]:
    """`behind(using, place)`, up to and with `last`; None: to the end. For a filter that no index finds.

    On PostgreSQL the transactions are looked up first: for a rare value the planner would rather read the whole log.
    """
    events = behind(using, place)
    if last is not None:
        column = _ORDER.get(connections[using].vendor, "seq")
        events = events.filter(
            Q(**{f"{column}__lt": last.order}) | Q(pk__lte=last.id), **{f"{column}__lte": last.order}
        )
    if connections[using].vendor == "postgresql":
        orders = [place.order] if last is None else [place.order, last.order]
        chosen = _SINCE if last is None else _SINCE_UNTIL
        events = events.extra(where=[f"{_EVENT}.txid = ANY(ARRAY({chosen}))"], params=orders)  # noqa: S610
    return events


def ahead(using: str, place: Place, events: int) -> Event | None:
    """An event about so many `events` behind `place`; None where the log ends before. Costs one look at an index.

    By the ids, which follow the order closely, since nothing knows the number of rows between two places.
    """
    begin = place.id
    if place == START:
        begin = Event.objects.using(using).order_by("id").values_list("id", flat=True).first() or 0
    return behind(using, place).filter(pk__gte=begin + events).order_by("pk").first()


def place_of(event: Event) -> Place:
    """The place of an event that `behind` found."""
    return Place(event.place_order, event.pk)  # type: ignore[attr-defined]


def find(using: str, position: int, seen: int = EVENT) -> Place | None:
    """The place of the event with this row id; None if it has been pruned."""
    event = behind(using, START).filter(pk=position).first()
    return None if event is None else place_of(event)._replace(seen=seen)


def end(using: str) -> Place:
    """The place of the last event that has been put in order."""
    return last(using) or START


def last(using: str, **conditions: Any) -> Place | None:
    """The place of the last event with these fields; None where there is none, or not any more."""
    event = behind(using, START).filter(**conditions).reverse().first()
    return None if event is None else place_of(event)


def before(using: str, instant: dt.datetime) -> Place:
    """The place of the last event that happened before `instant`; reads back from the end as far as that is."""
    event = Event.objects.using(using).filter(time__lt=instant).order_by("-id").values_list("id", flat=True).first()
    return START if event is None else find(using, event) or START


def is_pruned(using: str, place: Place) -> bool:
    """Whether events behind `place` may be gone already, so that reading on from there would miss them."""
    log = EventLog.objects.using(using).filter(pk=1).first()
    return log is not None and log.pruned_to > place.id
