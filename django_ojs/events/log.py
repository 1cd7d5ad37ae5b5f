"""Append to the log, and read it by cursor (events specification 5, binding `GET /ojs/v1/events`)."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from django.db import router

from django_ojs import clock, hooks
from django_ojs.events import filters, ids, order
from django_ojs.events.catalogue import NAMES_WORKER, WORKERS, Record, origin
from django_ojs.events.filters import Filter
from django_ojs.events.order import LogPosition, Resumption
from django_ojs.models import Event
from django_ojs.models.workflow import own_ids
from django_ojs.rules import redaction
from django_ojs.rules.durations import format_instant
from django_ojs.rules.ids import new_id
from django_ojs.store import store_of

#: How many events one look goes through for a filter that no index finds, so that a look costs the same however long
#: the log is.
STRETCH = 20_000


@dataclasses.dataclass(slots=True)
class EventPage:
    """One page of the log, oldest first. `cursor` is the id to go on from; `gap` says what the reader cannot get.

    With `has_more` there may be more behind the cursor, also where no event was found: a filter is looked for in
    `STRETCH` events at a time.
    """

    events: list[dict[str, Any]]
    cursor: str | None
    has_more: bool
    gap: dict[str, Any] | None = None


def append(records: Sequence[Record], using: str) -> None:
    """Write events in the caller's transaction, in one statement however many."""
    if records:
        store_of(using).insert_events(records)
        notify(records, using)


def notify(records: Sequence[Record], using: str) -> None:
    """Tell subscribers of events that a statement of `store` has written."""
    if records and hooks.event_listeners:
        hooks.notify(hooks.event_listeners, records, using)


def read(
    *,
    after: str | None = None,
    types: Iterable[str] = (),
    queues: Iterable[str] = (),
    job_types: Iterable[str] = (),
    sources: Iterable[str] = (),
    job_id: uuid.UUID | None = None,
    workflow_id: uuid.UUID | None = None,
    wanted: Filter | None = None,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
    limit: int = 100,
    using: str | None = None,
) -> EventPage:
    """The events after the cursor that match every given filter (`wanted` stands for all of them), at most `limit`.

    Where fewer fit within the next `STRETCH` events and the log goes on, the page ends there, its cursor behind them.
    An empty page at the end of the log has the cursor that was given. So has one of a log that does not reach as far as
    the cursor yet. A filter by jobs is looked for in the whole log.

    Raises `InvalidRequest` for a cursor that this server never issued.
    """
    wanted = wanted or Filter(
        tuple(types), tuple(queues), tuple(job_types), tuple(sources),
        job_ids=(job_id,) if job_id else (), workflow_ids=(workflow_id,) if workflow_id else (),
    )  # fmt: skip
    using = using or database()
    order.catch_up(using, strict=False)
    salt = ids.salt_of(using)
    found_again, gap = resume(after, using)
    place = found_again.place
    if found_again.state == "ahead":
        return EventPage([], after, False)
    edge: Event | None = None
    query = order.behind(using, place)
    if since or until or (wanted.restricts and not wanted.job_ids):
        edge = order.ahead(using, place, STRETCH)
        query = order.between(using, place, order.place_of(edge) if edge else None)
    query = query.filter(wanted.condition())
    if since:
        query = query.filter(time__gte=since)
    if until:
        query = query.filter(time__lt=until)
    found = list(query[: limit + 1])
    looked_at = named(found[:limit], using)
    events = views(looked_at, wanted, salt, place)
    if len(events) > limit:  # a stored event may be seen twice
        events = events[:limit]
        return EventPage(events, events[-1]["id"], True, gap)
    last = looked_at[-1] if looked_at else None
    if edge is not None and len(found) <= limit:
        last = edge  # nothing else fits in this stretch
    if last is not None:
        after = ids.encode(last.pk, last.time, salt)
    elif found_again.state == "lost":
        after = cursor(place, using)
    return EventPage(events, after, len(found) > limit or last is edge is not None, gap)


def views(found: Iterable[Event], wanted: Filter, salt: str, behind: LogPosition = order.START) -> list[dict[str, Any]]:
    """The envelopes that a reader at `behind` gets of these events: theirs, and those of the changes they made."""
    if not wanted.kinds.changes:
        return [render(event, salt) for event in found if wanted.matches(event)]
    return [
        view
        for event in found
        if wanted.matches(event)
        for view in filters.views(wanted.kinds, render(event, salt), salt, order.place_of(event), behind)
    ]


def start(after: str | None, using: str) -> tuple[LogPosition, dict[str, Any] | None]:
    """The place behind which a stream with this cursor goes on, and the gap if it cannot get all that lies between.

    Where the log does not reach as far as the cursor yet, it is the place of the last event before it.

    Raises `InvalidRequest` for a cursor that this server never issued.
    """
    found, gap = resume(after, using)
    return found.place, gap


def resume(after: str | None, using: str) -> tuple[Resumption, dict[str, Any] | None]:
    """What has become of the event that a reader with this cursor has seen last, and what it cannot get any more.

    Raises `InvalidRequest` for a cursor that this server never issued.
    """
    if not after:
        return Resumption("here", order.START), None
    named, time = ids.decode(after, ids.salt_of(using)), ids.time_of(after)
    seen = order.CHANGE if named.is_change else order.EVENT
    found = order.find(using, named.position, time, seen=seen, told=named.is_notice)
    return found, gap_of(found, named.position, time, using)


def cursor(place: LogPosition, using: str) -> str | None:
    """The id to go on from behind `place`; None at the start, or where the event has been pruned."""
    time = Event.objects.using(using).filter(pk=place.id).values_list("time", flat=True).first()
    return None if time is None else ids.encode(place.id, time, ids.salt_of(using), change=place.seen == order.CHANGE)


def gap_of(found: Resumption, position: int, time: dt.datetime, using: str) -> dict[str, Any] | None:
    """What a reader cannot get who has seen the event with this row id and time; None where that is nothing.

    `estimated_missed_count` is of the whole log, whatever the reader's filter, and the most that it can be.
    """
    if found.state == "pruned":
        return gap_behind(position, time, using)
    if found.state != "lost":
        return None
    if found.place.time is None:  # nothing is left that is older
        return gap_behind(position, time, using) | {"reason": "history_changed"}
    return {
        "reason": "history_changed",
        "gap_start": format_instant(min(found.place.time, time)),
        "gap_end": format_instant(time),
        "estimated_missed_count": max(0, position - found.place.id),
    }


def gap_behind(position: int, begin: dt.datetime | None, using: str) -> dict[str, Any]:
    """What has been pruned behind the row with this id, which is of `begin`. `gap_end` None: nothing is left."""
    oldest = Event.objects.using(using).order_by("id").values_list("time", flat=True).first()
    return {
        "reason": "pruned",
        "gap_start": format_instant(begin) if begin else None,
        "gap_end": format_instant(oldest) if oldest else None,
        "estimated_missed_count": max(0, ids.log_row(using).pruned_to - position),
    }


def database() -> str:
    """The alias of the database that holds the log."""
    return router.db_for_write(Event)


def named(found: list[Event], using: str) -> list[Event]:
    """These events, with the ids by which clients know their workflows: `render` shows them."""
    keys = {event.workflow_id for event in found if event.workflow_id is not None}
    own = own_ids(keys, using) if keys else {}
    for event in found if own else ():
        event.own_id = own.get(event.workflow_id, "")
    return found


def render(event: Event, salt: str) -> dict[str, Any]:
    """The event's envelope (events 2.1), with the data that all events of its kind share (events 1.1)."""
    time = format_instant(event.time)
    data: dict[str, Any] = {}
    if event.job_id:
        job_id = str(event.job_id)
        data = {"job_id": job_id, "job_type": event.job_type, "type": event.job_type, "queue": event.queue}
        data |= {"state": event.state, "attempt": event.attempt}
    elif event.queue:
        data["queue"] = event.queue
    if event.worker_id or event.type in NAMES_WORKER:
        data["worker_id"] = event.worker_id
    data["timestamp"] = time
    if event.trace_id:
        data["trace_id"] = event.trace_id
    if event.workflow_id:
        data["workflow_id"] = event.own_id or str(event.workflow_id)
    data |= event.data or {}
    return {
        "specversion": "1.0",
        "id": ids.encode(event.id, event.time, salt),
        "type": event.type,
        "source": source_of(event.component, event.worker_id),
        "time": time,
        "subject": event.subject or str(event.job_id or ""),
        "datacontenttype": "application/json",
        "data": redaction.event(event.job_type, data),
    }


def notice(type: str, place: LogPosition, using: str, **data: Any) -> dict[str, Any]:
    """The envelope of a notice, which is no event of the log (events 1.4); `data` without the members that are None.

    Its id is new and yet a cursor: it stands for `place`, so that a client may resume from whatever it saw last.
    """
    now = clock.now()
    identity = f"{ids.PREFIX}{new_id()}"
    if place.id:
        identity = ids.encode(place.id, now, ids.salt_of(using), change=place.seen == order.CHANGE, notice=True)
    time = format_instant(now)
    shown = {key: value for key, value in data.items() if value is not None}
    return {
        "specversion": "1.0", "id": identity, "type": type, "source": source_of("api"), "time": time,
        "subject": "", "datacontenttype": "application/json", "data": {**shown, "timestamp": time},
    }  # fmt: skip


def source_of(component: str, worker_id: str = "") -> str:
    """`ojs://service/component[/instance]`, the service and worker ids percent-encoded (events 2.4)."""
    base = f"{origin()}{component}"
    return f"{base}/{quote(worker_id, safe='')}" if component == WORKERS and worker_id else base


# From the end, page by page, for people: code that must miss nothing uses `read`

#: How many of the newest events are looked through, and so the most that a total can be. Looking further back would
#: cost every reload of a page more, the longer the log is; a job's own events are found by an index, all of them.
WINDOW = 50_000


def count(
    wanted: Filter, *, since: dt.datetime | None = None, until: dt.datetime | None = None, using: str | None = None
) -> int:
    """How many stored events match, but for what `matches` alone decides: of jobs that are named in the whole log, else
    in its window."""
    using = using or database()
    query = Event.objects.using(using) if wanted.job_ids else order.latest(using, WINDOW).order_by()
    query = query.filter(wanted.condition())
    if since:
        query = query.filter(time__gte=since)
    if until:
        query = query.filter(time__lt=until)
    return query[:WINDOW].count()


def earlier(
    wanted: Filter,
    *,
    before: str | None = None,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
    accepts: Callable[[dict[str, Any]], bool] = bool,
    limit: int = 100,
    using: str | None = None,
) -> EventPage:
    """The events before the cursor, or before the end of the log, that match, newest first and at most `limit`.

    `accepts` says of an envelope whether the reader gets it. One call looks through the `STRETCH` events before the
    cursor: where the log has more before these, the page has a cursor to go on from, also if it is empty.

    Raises `InvalidRequest` for a cursor that this server never issued.
    """
    using = using or database()
    order.catch_up(using, strict=False)
    salt = ids.salt_of(using)
    place, known = None, 0
    if before:
        found_again, _ = resume(before, using)
        if found_again.state == "pruned":  # and all that was before it
            return EventPage([], None, False)
        place = found_again.place
        known = place.id if found_again.state == "here" else 0
    edge = order.back(using, place, STRETCH)
    first = order.START if edge is None else order.place_of(edge).having(order.NOTHING)
    events: list[dict[str, Any]] = []
    while True:
        query = order.between(using, first, place).filter(wanted.condition())
        if known:
            query = query.exclude(pk=known)
        if since:
            query = query.filter(time__gte=since)
        if until:
            query = query.filter(time__lt=until)
        rows = named(list(query.reverse()[: limit + 1]), using)
        for event in rows:
            found = [view for view in views([event], wanted, salt) if accepts(view)]
            if found and len(events) == limit:
                return EventPage(events, events[-1]["id"], True)
            events += found
        if len(rows) <= limit:
            break
        place, known = order.place_of(rows[-1]), rows[-1].pk
    return EventPage(events, None if edge is None else ids.encode(edge.pk, edge.time, salt), edge is not None)


class Newest(NamedTuple):
    """One page, newest first. `total` counts the matches within the window.

    A page of `job.state_changed` is one of the stored events that may tell of a change: some tell of none, and where
    their own types are asked for as well, they come beside it.
    """

    events: list[dict[str, Any]]
    total: int
    has_more: bool


def newest(
    wanted: Filter,
    *,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
    offset: int = 0,
    limit: int = 50,
    using: str | None = None,
) -> Newest:
    """The events from place `offset`, counted from the end, that match."""
    using = using or database()
    order.catch_up(using, strict=False)
    query = order.behind(using, order.START) if wanted.job_ids else order.latest(using, WINDOW)
    query = query.filter(wanted.condition())
    if since:
        query = query.filter(time__gte=since)
    if until:
        query = query.filter(time__lt=until)
    total = query.order_by()[:WINDOW].count()
    found = named(list(query.reverse()[offset : offset + limit]), using) if offset < total else []
    salt = ids.salt_of(using)
    events = views(reversed(found), wanted, salt)[::-1]
    return Newest(events, total, offset + len(found) < total)
