"""Where a reader is in the log's total order (see `order`), as a value that outlives the row it was taken from."""

from __future__ import annotations

import datetime as dt
from typing import NamedTuple

from django.db import connections
from django.db.models import F, Q, QuerySet

from django_ojs.models import Event, EventLog


class Place(NamedTuple):
    """A place in the log; places compare in its order. `order` is the number of the transaction on PostgreSQL, the
    stamp on MariaDB and the id on SQLite; `id` is the event's."""

    order: int
    id: int


START = Place(0, 0)
_ORDER = {"sqlite": "id", "postgresql": "commit__seq"}


def behind(using: str, place: Place) -> QuerySet[Event]:
    """The events behind `place` that have been put in order, in it; `place_of` tells where each is."""
    column = _ORDER.get(connections[using].vendor, "seq")
    events = Event.objects.using(using).filter(**{f"{column}__isnull": False})
    if place != START:
        later = Q(**{f"{column}__gt": place.order}) | Q(pk__gt=place.id)
        events = events.filter(later, **{f"{column}__gte": place.order})
    return events.annotate(place_order=F(column)).order_by(*dict.fromkeys((column, "id")))


def place_of(event: Event) -> Place:
    """The place of an event that `behind` found."""
    return Place(event.place_order, event.pk)  # type: ignore[attr-defined]


def find(using: str, position: int) -> Place | None:
    """The place of the event with this row id; None if it has been pruned."""
    event = behind(using, START).filter(pk=position).first()
    return None if event is None else place_of(event)


def end(using: str) -> Place:
    """The place of the last event that has been put in order."""
    event = behind(using, START).reverse().first()
    return START if event is None else place_of(event)


def before(using: str, instant: dt.datetime) -> Place:
    """The place of the last event that happened before `instant`; reads back from the end as far as that is."""
    event = Event.objects.using(using).filter(time__lt=instant).order_by("-id").values_list("id", flat=True).first()
    return START if event is None else find(using, event) or START


def is_pruned(using: str, place: Place) -> bool:
    """Whether events behind `place` may be gone already, so that reading on from there would miss them."""
    log = EventLog.objects.using(using).filter(pk=1).first()
    return log is not None and log.pruned_to > place.id
