"""StreamEvents: events as they happen, or since one that the client has seen (grpc 10).

The events come from the hub (`realtime.hub`), which reads the log once for all channels of this process. A stream whose
client is slow reads on from the log at its pace. Here a request becomes a filter of the hub, and what the hub hands out
becomes messages, with a keepalive between them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import Message

from django_ojs import clock
from django_ojs.conf import ojs_settings
from django_ojs.events import log
from django_ojs.events.catalogue import CATALOGUE, STATE_CHANGED
from django_ojs.events.filters import MAX_SOURCES, MEANT, Filter
from django_ojs.events.order import START, LogPosition
from django_ojs.grpc import messages
from django_ojs.grpc.streams import StreamCall
from django_ojs.http import fields, permissions
from django_ojs.realtime.hub import Hub, SharedEvent, Stream, StreamItem
from django_ojs.realtime.sse import in_thread
from django_ojs.rules.durations import format_instant
from django_ojs.rules.faults import known_only
from django_ojs.spellings import EVENT_TYPE
from django_ojs.workflows.workflow import keys_of

#: Metadata in which clients without `attributes` name the last event that they have seen.
LAST_EVENT = "x-ojs-last-event-id"
#: Seconds after the last message, at most, until a keepalive (SE-7).
QUIET = 30.0
KEEPALIVE, GAP = "stream.keepalive", "system.gap"
#: The alias that a stream shows: who asks for it by name gets the events under it (SE-10).
DEAD = "job.dead"
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
#: What a request has that says which events are meant: its fields, then attributes.
_READ = ("queues", "event_types", "job_id", "workflow_id", "job_types", "sources", "after")
#: How names of event types begin.
_FAMILIES = ("job.", "worker.", "queue.", "workflow.", "cron.", "system.", "stream.")


class Asked(NamedTuple):
    """What a request asks for: `workflow` as the client calls it, '' for any; `dead` says whether `job.discarded` is to
    be called `job.dead`."""

    wanted: Filter
    workflow: str
    after: str | None
    dead: bool

    def found(self) -> Asked:
        """The same with the workflow in its filter. Asks the database."""
        if not self.workflow:
            return self
        return self._replace(wanted=dataclasses.replace(self.wanted, workflow_ids=keys_of((self.workflow,))))


async def stream_events(call: StreamCall) -> None:
    """Serve one stream until its client has gone or the server stops.

    Raises InvalidRequest for a filter or a cursor that cannot be, PermissionDenied for queues and types outside of the
    key's, and BackendUnavailable while the server stops.
    """
    asked = await in_thread(read(call.request, call.metadata.get(LAST_EVENT)).found)
    permissions.check_queue(call.caller.request, asked.wanted.queues)
    for job_type in asked.wanted.job_types:
        permissions.check_type(call.caller.request, job_type)
    hub = Hub.current()
    async with hub.subscribe(_limited(asked.wanted, call), after=asked.after) as stream:
        await call.begin()
        stopping = asyncio.ensure_future(call.stopping.wait())
        pending = asyncio.ensure_future(anext(stream))
        try:
            await _Feed(call, asked, hub, stream).run(pending, stopping)
        finally:
            stopping.cancel()


class _Feed:
    """What one stream sends."""

    def __init__(self, call: StreamCall, asked: Asked, hub: Hub, stream: Stream) -> None:
        self._call, self._asked, self._hub, self._stream = call, asked, hub, stream
        self._last = asked.after  #: the last event that the client has, if it is known
        self._behind = START
        call.caller.on_change = self._renew
        self._renew()

    async def run(self, pending: asyncio.Future[StreamItem], stopping: asyncio.Future[Any]) -> None:
        quiet_since = time.monotonic()
        beat = min(ojs_settings.REALTIME_HEARTBEAT, QUIET)
        try:
            while not stopping.done():
                left = quiet_since + beat - time.monotonic()
                await asyncio.wait({pending, stopping}, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
                if pending.done():
                    item = pending.result()
                    if item.kind == "shutdown":
                        return
                    for message in self._messages(item):
                        await self._call.send(message)
                        quiet_since = time.monotonic()
                    pending = asyncio.ensure_future(anext(self._stream))
                elif time.monotonic() >= quiet_since + beat:
                    await self._call.send(await self._keepalive())
                    quiet_since = time.monotonic()
        finally:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)

    def _renew(self) -> None:
        """Take up the limits of the caller's key, where they have changed."""
        if (wanted := _limited(self._asked.wanted, self._call)) != self._stream.filters[0]:
            self._stream.change([wanted])

    def _messages(self, item: StreamItem) -> Iterator[Message]:
        if item.kind in ("gap", "dropped"):
            yield _made(GAP, {"gap_start": None, "gap_end": None, **item.details})
        elif item.entry is not None:
            yield from self._views(item.entry)

    def _views(self, entry: SharedEvent) -> Iterator[Message]:
        """The event as the client asked for it, and the change made of it; nothing if the key may not see it now."""
        (wanted,) = self._stream.filters
        if not wanted.matches(entry.event):
            return
        for view in entry.views(wanted.kinds, self._behind):
            self._last = view["id"]
            dead = self._asked.dead and view["type"] == EVENT_TYPE.words[DEAD]
            yield messages.to_message("Event", view | {"type": DEAD} if dead else view)

    async def _keepalive(self) -> Message:
        place = self._hub.place if not self._stream.lags else None
        cursor = await _cursors.of(place) if place is not None else None
        last = cursor or self._last
        return _made(KEEPALIVE, {"last_event_id": last} if last else {})


class _Cursors:
    """The cursor of the place that the hub has reached: one look for all streams that say so."""

    def __init__(self) -> None:
        self._known: tuple[LogPosition, str | None] = (START, None)

    async def of(self, place: LogPosition) -> str | None:
        if self._known[0] != place:
            self._known = place, await in_thread(lambda: log.cursor(place, log.database()))
        return self._known[1]


_cursors = _Cursors()


def _made(kind: str, data: Mapping[str, Any]) -> Message:
    """A message that is no event of the log: it has no id, since it is no cursor."""
    now = format_instant(clock.now())
    envelope = {
        "specversion": "1.0", "id": "", "type": kind, "source": log.source_of("events"), "time": now,
        "datacontenttype": "application/json", "data": {**data, "timestamp": now},
    }  # fmt: skip
    made: Message = messages.to_message("Event", envelope)
    return made


def _limited(wanted: Filter, call: StreamCall) -> Filter:
    """The filter within the limits of the caller."""
    limits = call.caller.limits
    only_jobs = call.caller.only_jobs
    return dataclasses.replace(wanted, only_queues=limits.queues, only_types=limits.types, only_jobs=only_jobs)


# The request


def read(request: Message, last_event_id: str = "") -> Asked:
    """What a request asks for, in either order of its fields (SE-3). Raises InvalidRequest."""
    asked = messages.read_request(request)
    known_only((name for name, value in asked.items() if name in MEANT and value), _READ)
    first, second = (fields.texts(asked, name) or [] for name in ("queues", "event_types"))
    third = fields.texts(asked, "job_id") or []
    queues, types = (second, first) if is_seeds_order(first, second) else (first, second)
    ids = [value for value in third if _UUID.fullmatch(value)]
    job_types = [*(value for value in third if value not in ids), *(fields.texts(asked, "job_types") or [])]
    after = fields.text(asked, "after") or fields.text({"after": last_event_id}, "after") or None
    wanted = Filter(
        types=tuple(types), queues=tuple(queues), job_types=tuple(job_types),
        sources=tuple(fields.texts(asked, "sources", maximum=MAX_SOURCES) or ()), job_ids=tuple(map(uuid.UUID, ids)),
    )  # fmt: skip
    return Asked(wanted, fields.text(asked, "workflow_id") or "", after, DEAD in types)


def is_seeds_order(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether the request has event types in field 1 and queues in field 2, as the seed numbers them, and not as the
    published files do."""
    if first:
        return all(map(is_type_like, first)) and not any(map(is_type_like, second))
    return bool(second) and not any(is_type_like(value) or value.startswith(_FAMILIES) for value in second)


def is_type_like(value: str) -> bool:
    """Whether a value is an event type that we know, or an alias of one, or ends in `*`."""
    known = value in CATALOGUE or value in EVENT_TYPE.words
    return value.endswith("*") or known or value in (STATE_CHANGED, KEEPALIVE, GAP)
