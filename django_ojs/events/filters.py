"""Which events a reader wants and may see: one filter, as a condition of SQL and as a test in memory.

`condition()` may let more through than `matches()` does, because databases compare text in their own ways (SQLite's
LIKE and MariaDB's `=` do not mind case). So `log` asks `matches()` about every row that SQL found, and what is read
from the log and what is fanned out in memory agree because the same function decides.

A change of a job's state (`job.state_changed`, events 1.4) is made in memory from the stored event that tells of it.
It is no type of the events specification, so only a reader who names it gets it: as a whole envelope, right before the
event it is made of, and with an id of its own that is a cursor like any other.

Two changes have no stored event and so none here: the end of a backoff (`retryable` to `available`, seen with the
next start) and the release of a job by its worker (`active` to `available`). A job pushed as `pending` appears when
it is activated.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import unquote

from django.db.models import Q

from django_ojs.events import ids
from django_ojs.events.catalogue import CATALOGUE, STATE_CHANGED, TRANSITIONS, WORKERS, origin
from django_ojs.events.order import CHANGE, START, LogPosition
from django_ojs.models import Event
from django_ojs.models.fields import any_of, named
from django_ojs.rules import names
from django_ojs.spellings import event_types

Envelope = dict[str, Any]

#: Sources of one filter, and filters of one condition. Each is a condition of its own, and SQLite takes less than a
#: thousand in a row.
MAX_SOURCES = 100
#: Values in the condition of several filters. SQLite may take no more than 32,766 in a statement.
MAX_TOGETHER = 10_000

#: What narrows a filter of events, in the words of all doors. A word that does not count is refused: it would let out
#: more if it were passed over.
NARROWING = frozenset({
    "types", "event_types", "queue", "queues", "job_type", "job_types", "sources", "job_id", "job_ids", "workflow_id",
    "workflow_ids", "filter", "filters",
})  # fmt: skip
#: The same where nothing else has such a name, with what says from when to when events are meant.
MEANT = NARROWING | frozenset({
    "type", "source", "channel", "since", "until", "start", "end", "after", "cursor", "last_event_id",
})  # fmt: skip

#: What the data of the change has in common with that of its event.
_SHARED = ("job_id", "job_type", "type", "queue", "state", "attempt", "timestamp", "trace_id", "workflow_id")
_NOTHING = Q(pk__in=[])


class Kinds(NamedTuple):
    """The kinds of events that a reader gets: stored events of these types, and `job.state_changed` if `changes`."""

    shown: frozenset[str]
    changes: bool

    @property
    def stored(self) -> frozenset[str]:
        """The types of stored events that have to be read: a change of state is made of them."""
        return self.shown | TRANSITIONS.keys() if self.changes else self.shown


@dataclasses.dataclass(frozen=True)
class Filter:
    """Which events a reader gets: an event must match each member that is not empty, by one of its values (events
    6.1).

    `types` and `sources` may end in `*`. `only_queues` and `only_types` are the limits of the caller's key, and apply
    whatever the reader asks for; None for a caller without limits. `only_jobs` leaves what is about no job to users who
    may view all events.
    """

    types: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    job_types: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    job_ids: tuple[uuid.UUID, ...] = ()
    workflow_ids: tuple[uuid.UUID, ...] = ()
    only_queues: tuple[str, ...] | None = None
    only_types: tuple[str, ...] | None = None
    only_jobs: bool = False

    @cached_property
    def kinds(self) -> Kinds:
        """The kinds of events that `types` selects."""
        return kinds(self.types)

    @cached_property
    def stored(self) -> frozenset[str]:
        """The types of stored events to read."""
        return self.kinds.stored

    @property
    def restricts(self) -> bool:
        """Whether the filter excludes any event of the catalogue."""
        return self != Filter()

    @cached_property
    def _queues(self) -> frozenset[str] | None:
        """The queues that are left of what is asked for and what is allowed; None: all."""
        if self.only_queues is None:
            return frozenset(self.queues) if self.queues else None
        return frozenset(self.only_queues).intersection(self.queues or self.only_queues)

    def matches(self, event: Event) -> bool:
        """Whether the reader gets the event."""
        return (
            event.type in self.stored
            and (self._queues is None or event.queue in self._queues)
            and (not self.job_types or event.job_type in self.job_types)
            and (not self.job_ids or event.job_id in self.job_ids)
            and (not self.workflow_ids or event.workflow_id in self.workflow_ids)
            and (not self.only_jobs or bool(event.job_type))
            and (self.only_types is None or any(names.covers(entry, event.job_type) for entry in self.only_types))
            and (not self.sources or any(_comes_from(source, event) for source in self.sources))
        )

    def condition(self) -> Q:
        """The condition for the database. It finds all events that `matches()` accepts, and maybe others."""
        condition = Q(type__in=sorted(self.stored))
        if self._queues is not None:
            condition &= Q(queue__in=sorted(self._queues))
        for column, wanted in (
            ("job_type", self.job_types), ("job_id", self.job_ids), ("workflow_id", self.workflow_ids)
        ):  # fmt: skip
            if wanted:
                condition &= Q(**{f"{column}__in": list(wanted)})
        if self.only_jobs:
            condition &= ~Q(job_type="")
        if self.only_types is not None:
            condition &= any_of("job_type", self.only_types)
        if self.sources:
            condition &= _any_of(map(_from_source, self.sources))
        return condition

    @property
    def size(self) -> int:
        """How many values its condition has, or more."""
        asked = (self.job_types, self.job_ids, self.workflow_ids, self.sources, self.sources)
        return sum(map(len, (self.stored, self._queues or (), self.only_types or (), *asked)))

    def routes(self) -> Sequence[tuple[str, object]] | None:
        """The only places in which an event can match: ("job", id) or ("queue", name). None: any place.

        With it the hub asks only few filters about an event.
        """
        if self.job_ids:
            return [("job", job_id) for job_id in self.job_ids]
        return None if self._queues is None else [("queue", queue) for queue in self._queues]


def kinds(types: Iterable[str]) -> Kinds:
    """The kinds that a list of types selects: `job.*` those of the catalogue, an exact name also others."""
    shown: set[str] = set()
    for name in event_types(types) or ["*"]:
        if name.endswith("*"):
            shown.update(known for known in CATALOGUE if known.startswith(name[:-1]))
        else:
            shown.add(name)
    return Kinds(frozenset(shown - {STATE_CHANGED}), STATE_CHANGED in shown)


def condition_of(filters: Sequence[Filter]) -> Q:
    """The condition for the database of all events that one of these accepts, and maybe others."""
    if len(filters) > MAX_SOURCES or sum(each.size for each in filters) > MAX_TOGETHER:
        return Q(type__in=sorted(frozenset().union(*(each.stored for each in filters))))
    return _any_of(each.condition() for each in filters)


def _any_of(conditions: Iterable[Q]) -> Q:
    found = _NOTHING
    for condition in conditions:
        found |= condition
    return found


def _parts(source: str) -> tuple[str, str, str] | None:
    """Component, slash and worker of a source of ours; None for another service's.

    No worker is called with a NUL, and PostgreSQL refuses the very question.
    """
    if not source.startswith(origin()) or "\0" in unquote(source):
        return None
    component, slash, worker = source.removeprefix(origin()).partition("/")
    return component, slash, unquote(worker)


def _from_source(source: str) -> Q:
    """Full sources, or prefixes ending in `*`, against (component, worker)."""
    prefix = source.removesuffix("*")
    if prefix != source and origin().startswith(prefix):
        return ~_NOTHING
    parts = _parts(prefix)
    if parts is None:
        return _NOTHING
    component, slash, worker = parts
    if prefix != source and not slash:
        return Q(component__startswith=component)
    if component != WORKERS:  # whatever worker the event names: its source does not
        return _NOTHING if worker else Q(component=component)
    return Q(component=component) & (Q(worker_id=worker) if prefix == source else named("worker_id", f"{worker}*"))


def _comes_from(source: str, event: Event) -> bool:
    prefix = source.removesuffix("*")
    if prefix != source and origin().startswith(prefix):
        return True
    parts = _parts(prefix)
    if parts is None:
        return False
    component, slash, worker = parts
    if prefix != source and not slash:
        return event.component.startswith(component)
    shown = event.worker_id if event.component == WORKERS else ""
    return event.component == component and (shown == worker if prefix == source else shown.startswith(worker))


# Changes of state


def change(envelope: Envelope) -> tuple[str, str] | None:
    """The states before and after, "" before a new job; None if the event tells of no change of its own."""
    if envelope["type"] not in TRANSITIONS:
        return None
    data = envelope["data"]
    before: str | None = data.get("previous_state", TRANSITIONS[envelope["type"]])
    if envelope["type"] == "job.stalled" and data["state"] != "available":
        return None  # a silence that counted as a failure: `job.failed` tells of it
    if before == "" and envelope["type"] == "job.enqueued" and "scheduled_at" in data:
        before = "scheduled"  # it was promoted
    return None if before is None else (before, data["state"])


def state_changed(envelope: Envelope, salt: str) -> Envelope | None:
    """The change as an event of its own, with `from` and `to` in its data; None if `envelope` tells of no change."""
    states = change(envelope)
    if states is None:
        return None
    shared = {name: envelope["data"][name] for name in _SHARED if name in envelope["data"]}
    data = {**shared, "from": states[0], "to": states[1]}
    return {**envelope, "id": ids.of_change(envelope["id"], salt), "type": STATE_CHANGED, "data": data}


def views(
    wanted: Kinds, envelope: Envelope, salt: str, place: LogPosition, behind: LogPosition = START
) -> list[Envelope]:
    """What a reader at `behind` sees of the stored event at `place`: the change made of it, the event, or both."""
    seen = [envelope] if envelope["type"] in wanted.shown else []
    if not wanted.changes or place.having(CHANGE) <= behind:
        return seen
    changed = state_changed(envelope, salt)
    return seen if changed is None else [changed, *seen]
