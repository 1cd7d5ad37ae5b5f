"""Server-Sent Events (events 4): one HTTP answer that does not end, for browsers and clients that only listen.

`pump` is the answer that goes on, with its heartbeats and what ends it; a `Feed` says what one kind of stream sends of
the events that it gets. The views are in `realtime.views`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import connections
from django.http import StreamingHttpResponse

from django_ojs import clock, jsontext, states
from django_ojs.conf import ojs_settings
from django_ojs.database import database
from django_ojs.errors import OJSError
from django_ojs.events import filters, log, order
from django_ojs.events.catalogue import STATE_CHANGED
from django_ojs.events.filters import Filter
from django_ojs.events.order import LogPosition
from django_ojs.faults import passes
from django_ojs.guard import get_logger
from django_ojs.http import compat, exceptions, redacted
from django_ojs.jobs import joblog, progress
from django_ojs.jobs.read import info
from django_ojs.models.job import JobRow
from django_ojs.realtime import shutdown
from django_ojs.realtime.hub import Hub, SharedEvent, Stream, StreamItem
from django_ojs.realtime.slots import Slot
from django_ojs.rules.durations import format_instant
from django_ojs.statistics import summary

logger = get_logger(__name__)
T = TypeVar("T")
#: Says why a listener may not listen any more; None while it may.
Guard = Callable[[], OJSError | None]

#: How long a client has to go elsewhere when the server stops, as `server.shutdown` says.
GRACE_MS = 5000
#: How long a client waits before it connects again, in milliseconds.
RETRY = 3000
HEARTBEAT = ":heartbeat\n\n"
LOOK = 1.0  #: seconds between two looks for new lines of a job's logs
_EARLY = 0.01  #: by how much a timer may go off too early


@dataclasses.dataclass(slots=True)
class Beginning:
    """Where a stream begins: behind `place`, whose event is `cursor`; what the client missed before it, if it did.

    `asked`: whether the client named the place, and gets what has happened since.
    """

    place: LogPosition
    cursor: str | None = None
    gap: dict[str, Any] | None = None
    asked: bool = False


class EventStream(StreamingHttpResponse):
    """The HTTP answer that carries the events. Closing it gives back its slot."""

    def __init__(self, pieces: AsyncIterator[str], slot: Slot) -> None:
        super().__init__(pieces, content_type="text/event-stream")
        self["X-Accel-Buffering"] = "no"
        self["Content-Encoding"] = "identity"  # GZipMiddleware packs each piece; browsers read only the first
        self._resource_closers: list[Callable[[], None]]
        self._resource_closers.append(slot.free)


async def pump(feed: Feed, begin: Beginning, opening: str, may_go_on: Guard, slot: Slot) -> AsyncGenerator[str, None]:
    """The pieces of the answer, from subscribing to the end."""
    try:
        yield first_frames(begin.cursor)
        if begin.gap is not None:
            yield _gap(feed, begin.gap)
        if opening:
            yield opening
        if feed.ended:
            return
        shutdown.attend()
        async with (
            Hub.current().subscribe(feed.wanted, after=begin.place) as stream,
            aclosing(_beating(stream, feed, may_go_on)) as pieces,
        ):
            async for piece in pieces:
                yield piece
    except Exception as cause:  # noqa: BLE001 - it is logged there, and this stream alone ends
        error = exceptions.to_error(cause)  # such as of a hub that takes no more subscribers: the server shuts down
        exceptions.log_call("An event stream", cause, error, "-", logger)
        yield _refusal(error)
    finally:
        slot.free()


async def _beating(stream: Stream, feed: Feed, may_go_on: Guard) -> AsyncGenerator[str, None]:
    """What the stream brings, and between it, whenever it is quiet for so long, a heartbeat."""
    beat, checked = ojs_settings.REALTIME_HEARTBEAT, time.monotonic()
    quiet_since = pulsed = time.monotonic()
    pending = asyncio.ensure_future(anext(stream))
    try:
        while True:
            due = min(quiet_since + beat, pulsed + (feed.pulse or beat))
            done, _ = await asyncio.wait({pending}, timeout=max(0.0, due - time.monotonic()))
            now = time.monotonic()
            if now - checked > ojs_settings.REALTIME_RECHECK_INTERVAL:
                checked = now
                if (error := await _unless_away(in_thread(may_go_on))) is not None:
                    yield _refusal(error)
                    return
            piece = ""
            if now >= pulsed + (feed.pulse or beat) - _EARLY:
                pulsed = now
                piece = await _unless_away(feed.idle()) or ""
            if done:
                try:
                    item = pending.result()
                except StopAsyncIteration:
                    return
                piece += await _frames_of(item, feed)
                if item.kind == "shutdown":
                    yield piece
                    return
                pending = asyncio.ensure_future(anext(stream))
            if not piece and now >= quiet_since + beat - _EARLY:
                piece = HEARTBEAT
            if piece:
                quiet_since = now
                yield piece
            if feed.ended:
                return
    finally:
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)


async def _frames_of(item: StreamItem, feed: Feed) -> str:
    match item.kind:
        case "event":
            assert item.entry is not None
            return await feed.frames(item.entry)
        case "gap":
            if item.place is not None:
                feed.go_back(item.place)
            return _gap(feed, item.details)
        case "dropped":
            dropped = item.details.get("estimated_missed_count", "unknown")
            data = {
                "channel": feed.channel,
                "dropped_count": dropped,
                **item.details,
                "timestamp": format_instant(clock.now()),
            }
            return comment(f"events-dropped {dropped}") + frame(data, event="system.events_dropped")
    data = {"reason": "shutdown", "grace_period_ms": GRACE_MS, **item.details}
    return frame(data, event="server.shutdown")


def _gap(feed: Feed, details: dict[str, Any]) -> str:
    data = {"channel": feed.channel, "gap_start": None, "gap_end": None, **details}
    return frame(data, event="system.gap")


def _refusal(error: OJSError) -> str:
    return frame({"error": error.as_dict()}, event="error")


async def _unless_away(looking: Awaitable[T]) -> T | None:
    """What was looked up, or None while the database is away: a stream that stands outlives that."""
    try:
        return await looking
    except Exception as error:
        if not passes(error):
            raise
        return None


async def in_thread(look: Callable[[], T]) -> T:
    """Ask the database from the event loop, and keep no connection for the next time: streams are many and slow."""

    def run() -> T:
        try:
            return look()
        finally:
            close_own_connections()

    asked: Callable[[], Awaitable[T]] = sync_to_async(run, thread_sensitive=False)
    return await asked()


def close_own_connections() -> None:
    """Close this thread's connections, but for one inside a transaction of the caller's."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


#: The events after which a job changes no more. `job.failed` may show a terminal state, but is not the last one.
ENDS = ("job.completed", "job.discarded", "job.cancelled", "job.expired")


class Feed:
    """What one kind of stream sends; this one: every event that matches the filter."""

    pulse: float | None = None  #: seconds between two calls of `idle`, None for as rarely as heartbeats
    ended = False  #: asked after each call: the stream ends with it

    def __init__(self, channel: str, wanted: Filter) -> None:
        self.channel, self.wanted = channel, wanted
        self._behind = order.START

    def opening(self, begin: Beginning) -> str:
        """Frames before the first event; may move `begin`. Called in the view's thread, which may use the database."""
        self._behind = begin.place
        return ""

    def go_back(self, place: LogPosition) -> None:
        """The events behind `place` are others than were sent."""
        self._behind = min(self._behind, place)

    async def frames(self, entry: SharedEvent) -> str:
        """The frames of one event, '' for none."""
        return self._events(entry, self.wanted)

    def _events(self, entry: SharedEvent, wanted: Filter) -> str:
        """The event and the change made of it, as far as `wanted` names them and the client has not seen them."""
        return "".join(event_frame(view) for view in entry.views(wanted.kinds, self._behind))

    async def idle(self) -> str:
        """The frames that are due because of the time."""
        return ""


class JobFeed(Feed):
    """The events of one job until it ends; of one that has ended, its last one (events 4)."""

    def __init__(self, row: JobRow, wanted: Filter) -> None:
        super().__init__(f"job:{row['id']}", wanted)
        self._row = row
        # The end must be seen, whichever events the client wants.
        self._asked_for = wanted
        self.wanted = dataclasses.replace(wanted, types=(*wanted.types, *ENDS) if wanted.types else ())

    def opening(self, begin: Beginning) -> str:
        if self._row["state"] in states.TERMINAL:
            end = order.last(log.database(), job_id=self._row["id"], type__in=ENDS)
            if end is None:  # pruned: only the job itself can still say how it ended
                self.ended = True
                begin.gap = begin.gap or {"reason": "pruned"}
            elif begin.asked:
                self.ended = end <= begin.place
            else:
                begin.place, begin.cursor = end.having(order.NOTHING), None
        return super().opening(begin)

    async def frames(self, entry: SharedEvent) -> str:
        self.ended = entry.event.type in ENDS
        return self._events(entry, self._asked_for)


class ProgressFeed(Feed):
    """The progress of one job, each report twice: named, and unnamed for a dashboard that hears only that."""

    def __init__(self, row: JobRow) -> None:
        types = ("job.progress", *ENDS)
        super().__init__(f"job:{row['id']}", Filter(types=types, job_ids=(row["id"],)))
        self._row, self._shown = row, progress.describe(row, None)

    def opening(self, begin: Beginning) -> str:
        found = progress.of([self._row], database(None)).get(self._row["id"])
        self._shown = redacted.progress(self._row, found)
        said = self._say("progress", "") if found is not None else ""
        return said + self._final_frames("") if self._row["state"] in states.TERMINAL else said

    async def frames(self, entry: SharedEvent) -> str:
        envelope = entry.envelope
        data = envelope["data"]
        self._shown |= {"state": data["state"], "updated_at": envelope["time"]}
        if envelope["type"] == "job.progress":
            self._shown |= {
                "progress": progress.fraction(data["progress_percent"]), "message": data.get("progress_message"),
                "data": data.get("progress_data"),
            }  # fmt: skip
            return self._say("progress", envelope["id"])
        if envelope["type"] == "job.completed" and self._shown["progress"] is not None:
            self._shown["progress"] = 1.0
        return self._final_frames(envelope["id"])

    def _say(self, event: str, cursor: str) -> str:
        return frame(self._shown, event=event, id=cursor) + frame(self._shown, id=cursor)

    def _final_frames(self, cursor: str) -> str:
        self.ended = True
        word = "failed" if self._shown["state"] == "discarded" else self._shown["state"]
        return self._say(word, cursor)


class ResultFeed(ProgressFeed):
    """The progress of one job, and then its result, or its error (jobs 8)."""

    def opening(self, begin: Beginning) -> str:
        found = super().opening(begin)
        if not self.ended:
            return found
        return found.removesuffix(self._final_frames("")) + self._outcome("")

    async def frames(self, entry: SharedEvent) -> str:
        said = await super().frames(entry)
        if not self.ended:
            return said
        return await in_thread(lambda: self._outcome(entry.envelope["id"]))

    def _outcome(self, cursor: str) -> str:
        try:
            row = info(self._row["id"])
            found = redacted.outcome(row)
        except OJSError as error:  # pruned in the meantime, or kept for no time at all
            return frame(error.as_dict(), event="error", id=cursor)
        if "error" in found:
            return frame(found["error"] or {"code": found["state"]}, event="error", id=cursor)
        return frame({"value": found["result"]}, event="result", id=cursor)


class LogFeed(Feed):
    """What the handler of one job logs, until the job ends: `log` for each line, `dropped` where lines are missing, and
    last `end` with the state. Lines are no events, so the table is asked now and then."""

    def __init__(self, row: JobRow, after: str | None, attempt: int | None, level: int) -> None:
        super().__init__(f"job:{row['id']}", Filter(types=ENDS, job_ids=(row["id"],)))
        self.pulse = LOOK
        self._row, self._mask = row, redacted.mask_of_logs(row)
        self._follower = joblog.Follower(row["id"], after, attempt=attempt, level=level, using=database(None))

    def opening(self, begin: Beginning) -> str:
        super().opening(begin)
        said = self._new()
        return said + self._end(self._row["state"]) if self._row["state"] in states.TERMINAL else said

    async def idle(self) -> str:
        return await in_thread(self._new)

    async def frames(self, entry: SharedEvent) -> str:
        said = await in_thread(self._new)  # the worker stores them before it reports the end
        return said + self._end(entry.envelope["data"]["state"])

    def _new(self) -> str:
        frames = []
        while found := self._follower.new():
            for line in found:
                shown = redacted.log_line(line, self._mask)
                frames.append(frame(shown, event="dropped" if "dropped" in shown else "log", id=shown["id"]))
        return "".join(frames)

    def _end(self, state: str) -> str:
        self.ended = True
        return frame({"job_id": str(self._row["id"]), "state": state}, event="end")


class StatisticsFeed(Feed):
    """Numbers every two seconds, and the jobs that come and end, flat, as the published dashboard reads them."""

    WINDOW = 10.0  #: seconds over which rates are averaged
    TYPES = {"job.enqueued": "enqueued", "job.completed": "processed", "job.failed": "failed", "job.cancelled": ""}

    def __init__(self, queues: tuple[str, ...] | None) -> None:
        super().__init__("stats", Filter(types=tuple(self.TYPES)))
        self.pulse = 2.0
        self._queues = queues
        self._began = time.monotonic()
        self._seen: deque[tuple[float, str]] = deque()

    def opening(self, begin: Beginning) -> str:
        return self._metrics()

    async def idle(self) -> str:
        return await in_thread(self._metrics)

    async def frames(self, entry: SharedEvent) -> str:
        envelope = entry.envelope
        kind, data = envelope["type"], envelope["data"]
        self._seen.append((time.monotonic(), self.TYPES[kind]))
        flat = {"job_id": data["job_id"], "type": data["job_type"], "queue": data["queue"],
                "timestamp": envelope["time"], "attempt": data["attempt"], "event": kind}  # fmt: skip
        if "duration_ms" in data:
            flat["duration"] = data["duration_ms"]
        if "error" in data:
            flat["error"] = data["error"]["message"]
        return frame(flat, event=kind, id=envelope["id"])

    def _metrics(self) -> str:
        numbers = summary.snapshot(self._queues) | {
            "throughput": self._rates(),
            "timestamp": format_instant(clock.now()),
        }
        ended = sum(numbers["throughput"][name] for name in ("processed_per_second", "failed_per_second"))
        failed = numbers["throughput"]["failed_per_second"]
        numbers["error_rate"] = round(failed / ended, 4) if ended else 0.0
        return frame(numbers, event="metrics")

    def _rates(self) -> dict[str, float]:
        now = time.monotonic()
        while self._seen and now - self._seen[0][0] > self.WINDOW:
            self._seen.popleft()
        seconds = max(min(now - self._began, self.WINDOW), 1.0)
        words = [word for _, word in self._seen]
        return {
            f"{name}_per_second": round(words.count(name) / seconds, 3) for name in ("processed", "failed", "enqueued")
        }


# The text of an event stream, as the HTML standard has it: lines of `field: value`, a blank one ends a frame.


def first_frames(cursor: str | None) -> str:
    """What comes first. The id is a frame of its own: a client that is cut off before any event resumes from here."""
    return f"retry: {RETRY}\n\n" + (f"id: {cursor}\n\n" if cursor else "")


def frame(data: Any, *, event: str = "", id: str = "") -> str:
    """One event. JSON as we write it has no line breaks."""
    head = (f"id: {id}\n" if id else "") + (f"event: {event}\n" if event else "")
    return f"{head}data: {jsontext.dumps(data)}\n\n"


def comment(text: str) -> str:
    return f":{text}\n\n"


def event_frame(envelope: dict[str, Any]) -> str:
    """An event, with `from` and `to` at its top level where it tells of a change of state."""
    if envelope["type"] == STATE_CHANGED:
        states: tuple[str, str] | None = (envelope["data"]["from"], envelope["data"]["to"])
    else:
        states = filters.change(envelope)
    shown = compat.event(envelope) | ({} if states is None else {"from": states[0], "to": states[1]})
    return frame(shown, event=envelope["type"], id=envelope["id"])
