"""The WebSocket binding (events 3): a Channels consumer, and the connection behind it.

`EventsConsumer` has what happens before the upgrade, and the frames of the transport. `Connection` has the
subscriptions and the two directions of the traffic, and knows no transport but `write` and `close`.

All subscriptions share one stream of the hub, so that a client gets the events of a job in one order whichever of its
subscriptions they match. What a subscription asks for from before it began is replayed by the same task that sends
what is new: first what waits for the others, then the replay up to where the subscription began, then what is new.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer

from django_ojs import errors
from django_ojs.conf import ojs_settings
from django_ojs.errors import NotFound, OJSError
from django_ojs.events import ids, log, order
from django_ojs.events.order import CHANGE, LogPosition
from django_ojs.faults import passes
from django_ojs.guard import get_logger
from django_ojs.http import exceptions
from django_ojs.realtime import messages, shutdown
from django_ojs.realtime.access import Caller, answer_handshake, lost_rights
from django_ojs.realtime.hub import Hub, SharedEvent, Stream, StreamItem
from django_ojs.realtime.messages import MessageDialect, Ping, Resume, Subscribe, Unsubscribe
from django_ojs.realtime.slots import Slot

logger = get_logger(__name__)

SUBPROTOCOL = "ojs.v1"
MAX_MESSAGE = 65_536
PATIENCE = 10.0  #: seconds that a subscription waits for the database
#: Why a WebSocket is closed (events 3.5).
GOING_AWAY, UNSUPPORTED, POLICY, TOO_BIG, INTERNAL, TOO_SLOW = 1001, 1003, 1008, 1009, 1011, 1013
UNAUTHENTICATED, FORBIDDEN = 4401, 4403
#: Close codes where the server cannot answer the handshake with a status.
_CLOSES = {401: UNAUTHENTICATED, 403: FORBIDDEN, 422: POLICY}


class EventsConsumer(AsyncWebsocketConsumer):
    """`/ojs/v1/ws` and `/ojs/v1/events/ws` (events 3). The channel layer is not used: the log is the only source."""

    channel_layer_alias = ""  # none is called so

    _slot: Slot | None = None
    _connection: Connection | None = None
    _running: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._stop()

    async def dispatch(self, message: Any) -> None:
        """Handle a message, without Channels' look at database connections for each: between two nothing holds one."""
        match message["type"]:
            case "websocket.connect":
                await self.connect()
            case "websocket.receive":
                await self.receive(message.get("text"), message.get("bytes"))
            case "websocket.disconnect":
                raise StopConsumer

    async def connect(self) -> None:
        try:
            caller = await Caller.of(dict(self.scope))
            if Hub.current().closing:
                raise errors.BackendUnavailable("The server is shutting down.", hint="Connect again.")
            self._slot = Slot("connections", caller.name)
        except Exception as error:  # noqa: BLE001 - whatever it was becomes an answer of the HTTP binding
            await self._refuse(error)
            return
        offered = self.scope.get("subprotocols") or ()
        await self.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        self._connection = Connection(caller, self._write, self.close)
        self._running = asyncio.create_task(self._connection.run())
        shutdown.attend()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self._connection is None:
            return
        if text_data is None:
            await self._connection.close(UNSUPPORTED)
        else:
            await self._connection.receive(text_data)

    async def _write(self, text: str) -> None:
        """One frame, by the shortest way: this is what a busy server does most."""
        message: Any = {"type": "websocket.send", "text": text}
        await self.base_send(message)

    async def _stop(self) -> None:
        if self._slot is not None:
            self._slot.free()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _refuse(self, cause: Exception) -> None:
        """Answer the handshake with the error of the HTTP binding, or close where the server knows no such answer."""
        error = exceptions.to_error(cause)
        if error.status >= 500 and not isinstance(cause, OJSError):
            logger.error("A WebSocket could not be opened.", exc_info=cause)
        if "websocket.http.response" not in (self.scope.get("extensions") or {}):
            await self.close(_CLOSES.get(error.status, TOO_SLOW))
            return
        await answer_handshake(self.scope, self.base_send, error)
        raise StopConsumer


class Closed(Exception):
    """The connection is over; nothing can be sent any more."""


class Connection:
    """One client's WebSocket. Its owner passes on what the client sends (`receive`), and awaits `run` until that
    returns."""

    def __init__(
        self, caller: Caller, write: Callable[[str], Awaitable[None]], close: Callable[[int], Awaitable[None]]
    ) -> None:
        self._caller, self._send, self._close = caller, write, close
        self._hub = Hub.current()
        self._stream: Stream  #: set when it is ready
        self._ready = asyncio.Event()
        self._turn = asyncio.Lock()  #: held while the order of frames matters
        self._subscriptions = Subscriptions()
        self._replays: list[EventReplay] = []
        self._resume: str | None = None
        self._pace = Pace(ojs_settings.REALTIME_RATE_LIMIT)
        self._place = order.START  #: of the last event that was sent
        self._closed = False

    async def run(self) -> None:
        """Send what is new, until the connection ends."""
        watch = asyncio.create_task(self._watch())
        try:
            async with self._hub.subscribe((), buffer=ojs_settings.REALTIME_BUFFER_SIZE) as stream:
                self._stream, self._place = stream, self._hub.place
                self._ready.set()
                async for item in stream:
                    await self._handle(item)
        except Closed:
            pass
        except errors.BackendUnavailable:
            await self.close(GOING_AWAY)
        except Exception:
            logger.exception("A WebSocket was closed because of a fault.")
            await self.close(INTERNAL)
        finally:
            self._closed = True
            self._ready.set()
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def receive(self, text: str) -> None:
        """Do what the client says; an error is answered and changes nothing."""
        if len(text) > MAX_MESSAGE or len(text.encode(errors="replace")) > MAX_MESSAGE:
            await self.close(TOO_BIG)
            return
        message: dict[str, Any] = {}
        with contextlib.suppress(Closed):
            try:
                message = messages.load(text)
                await self._obey(messages.parse(message))
            except OJSError as error:
                await self._refuse(error, message)
            except Exception as error:
                if not passes(error):
                    raise
                await self._refuse(errors.BackendUnavailable("The job store is not available."), message)

    async def close(self, code: int) -> None:
        """Close once; a client that is gone, or takes nothing any more, is not waited for."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(Exception):
                async with asyncio.timeout(ojs_settings.REALTIME_WRITE_TIMEOUT):
                    await self._close(code)

    # From the client

    async def _obey(self, command: messages.Command) -> None:
        if isinstance(command, Ping):
            await self._write(messages.PONG)
            return
        await self._ready.wait()
        if self._closed:
            raise Closed
        match command:
            case Subscribe():
                await self._subscribe([command], command.after or self._resume)
            case Unsubscribe():
                await self._unsubscribe(command)
            case Resume():
                await self._restart(command)

    async def _refuse(self, error: OJSError, message: dict[str, Any]) -> None:
        facts = {key: message[key] for key in ("channel", "subscription_id") if isinstance(message.get(key), str)}
        await self._write(messages.error(messages.word(error), error.message, message.get("request_id"), **facts))

    async def _subscribe(
        self, asked: list[Subscribe], after: str | None, again: Sequence[Subscription] = (), *, resumes: bool = False
    ) -> None:
        """Begin these subscriptions, and those made before `again`, after that event or with what is new. `resumes`:
        later ones begin there too, unless this is refused."""
        keys = self._subscriptions.keys() | {each.key for each in asked}
        if len(keys) > ojs_settings.REALTIME_MAX_SUBSCRIPTIONS:
            limit = ojs_settings.REALTIME_MAX_SUBSCRIPTIONS
            raise errors.RateLimited(f"A connection has at most {limit} subscriptions.", code="too_many_subscriptions")
        for each in asked:
            await self._caller.permit(each)
        try:
            async with asyncio.timeout(PATIENCE):
                place, gap = await self._start(after)
                await self._hub.synced()
        except TimeoutError:
            raise errors.BackendUnavailable("The event log cannot be read at the moment: try again.") from None
        async with self._turn:
            now = self._hub.place
            for each in asked:  # the limits may have changed since it was permitted
                self._caller.narrow(each)
            # New ones for those that begin again, too: replays for them that have not come to their end are over.
            wanted = [*asked, *(each.asked for each in self._subscriptions.left(again))]
            new = [Subscription(each, now if place is None else place, now) for each in wanted]
            self._subscriptions |= {made.asked.key: made for made in new}
            self._reroute()
            if place is not None:
                self._place = min(self._place, place)  # a notice that comes before the replay must not stand behind it
                self._replays.append(EventReplay(new, place, now))
                self._stream.put(StreamItem("nudge"))  # the replay comes when everything has been sent that waits now
            if resumes and after is not None:
                await self._resumed(after)
            for each in asked:
                await self._write(messages.subscribed(each))
            if gap is not None and after is not None:
                behind = place or order.START
                if gap["reason"] == "pruned":  # to resume there is a gap again
                    behind = LogPosition(0, ids.decode(after, ids.salt_of(log.database())).position)
                await self._send_notice("system.gap", new, behind, **gap)

    async def _start(self, after: str | None) -> tuple[LogPosition | None, dict[str, Any] | None]:
        if after is None:
            return None, None
        try:
            return await self._hub.start(after)
        except errors.InvalidRequest as error:
            message = "The event id was not issued by this server: read the present state, and begin anew."
            raise errors.InvalidRequest(message, code="unknown_event_id") from error

    async def _restart(self, command: Resume) -> None:
        """`resume`: from behind that event everything that is subscribed, now and later on this connection."""
        replaced = {each.key for each in command.subscriptions}
        again = [each for key, each in self._subscriptions.items() if key not in replaced]
        if command.subscriptions or again:
            await self._subscribe(command.subscriptions, command.after, again, resumes=True)
        else:
            await self._start(command.after)
            await self._resumed(command.after)

    async def _resumed(self, after: str) -> None:
        self._resume = after
        await self._write(messages.resumed(after))

    async def _unsubscribe(self, command: Unsubscribe) -> None:
        """End a subscription, or all of a channel. One that is unknown is ended, too, and acknowledged."""
        async with self._turn:
            gone = self._subscriptions.find(command.channel, command.id)
            for each in gone:
                del self._subscriptions[each.asked.key]
            self._reroute()
            for each in gone:
                await self._write(messages.unsubscribed(each.asked.channel, each.asked.id))
            if not gone:
                await self._write(messages.unsubscribed(command.channel or messages.EVENTS, command.id))

    def _reroute(self) -> None:
        self._stream.change([each.asked.wanted for each in self._subscriptions.values()])

    # To the client

    async def _handle(self, item: StreamItem) -> None:
        match item.kind:
            case "event":
                assert item.entry is not None
                async with self._turn:
                    await self._deliver(item.entry, list(self._subscriptions.values()))
            case "nudge":
                await self._replay(self._replays.pop(0))
            case "gap" if item.place is not None:
                async with self._turn:
                    self._go_back(item.place)
                    everything = list(self._subscriptions.values())
                    await self._send_notice("system.gap", everything, item.place, **item.details)
            case "gap" | "dropped":
                async with self._turn:
                    await self._lost(list(self._subscriptions.values()), item.details)
            case "shutdown":
                async with self._turn:
                    await self._send_notice(
                        "server.shutdown", list(self._subscriptions.values()), self._place, **item.details
                    )
                await self.close(GOING_AWAY)
                raise Closed

    def _go_back(self, place: LogPosition) -> None:
        """Go back to `place`: the events behind it are others than were sent, and come next."""
        self._place = place
        for each in self._subscriptions.values():
            each.begin, each.live_from = min(each.begin, place), min(each.live_from, place)
        for replay in self._replays:
            replay.place, replay.until = min(replay.place, place), min(replay.until, place)

    async def _replay(self, replay: EventReplay) -> None:
        place = replay.place
        while to := self._subscriptions.left(replay.to):
            page = await self._hub.replay(place, [each.asked.wanted for each in to])
            if page.back:  # a gap comes next, and behind it all that these subscriptions have not got
                await self._stream.report_other_history(page)
                return
            if page.gap:
                await self._lost(to, page.gap)
            for entry in page.entries:
                if entry.place > replay.until or self._hub.closing:
                    return
                async with self._turn:
                    await self._deliver(entry, self._subscriptions.left(replay.to), replayed=True)
            place = page.place
            if not page.full or place >= replay.until:
                return

    async def _deliver(self, entry: SharedEvent, to: Sequence[Subscription], *, replayed: bool = False) -> None:
        for text in self._subscriptions.frames(entry, to, replayed=replayed):
            if self._pace.limited:
                await self._pace.wait()
            await self._write(text)
        self._place = entry.place

    async def _lost(self, to: Sequence[Subscription], details: dict[str, Any]) -> None:
        details = dict(details)
        count = details.pop("estimated_missed_count", None)
        for each in to:
            await self._write(messages.warning(each.asked, count=count, **details))
        await self._send_notice("system.events_dropped", to, self._place, dropped_count=count, **details)

    async def _send_notice(self, type: str, to: Sequence[Subscription], place: LogPosition, **data: Any) -> None:
        """A notice, in each dialect that is spoken: bare once, wrapped once for each channel."""
        bare = [each for each in to if each.asked.dialect is MessageDialect.EVENTS]
        for each in to:
            if each.asked.dialect is not MessageDialect.EVENTS:
                await self._write(messages.notice(type, place, each.asked, **data))
        if bare or not to:
            await self._write(messages.notice(type, place, None, **data))

    async def _write(self, text: str) -> None:
        if self._closed:
            raise Closed
        try:
            async with asyncio.timeout(ojs_settings.REALTIME_WRITE_TIMEOUT):
                await self._send(text)
        except TimeoutError:
            await self.close(TOO_SLOW)
            raise Closed from None
        except (OSError, RuntimeError) as error:  # the client is gone; servers say so in various ways
            self._closed = True
            raise Closed from error

    # Rights

    async def _watch(self) -> None:
        """Look now and then whether the caller may still be here, and see what it asked for."""
        changed = False
        with contextlib.suppress(Closed):
            while True:
                await asyncio.sleep(ojs_settings.REALTIME_RECHECK_INTERVAL)
                try:
                    changed = await self._caller.renew() or changed
                    if changed:
                        await self._narrow()
                        changed = False
                except Closed:
                    raise
                except Exception as cause:  # noqa: BLE001 - it is logged there
                    error = lost_rights(cause)
                    if error is None:
                        continue
                    await self._write(messages.error("permission_denied", error.message))
                    await self.close(UNAUTHENTICATED if error.status == 401 else FORBIDDEN)
                    return

    async def _narrow(self) -> None:
        """The limits of the key have changed: end what it may not see any more, and narrow the rest."""
        async with self._turn:
            for key, each in list(self._subscriptions.items()):
                try:
                    await self._caller.permit(each.asked)
                except NotFound:  # pruned meanwhile
                    self._caller.narrow(each.asked)
                except errors.PermissionDenied as error:
                    del self._subscriptions[key]
                    shown = {"channel": each.asked.channel, "subscription_id": each.asked.id}
                    await self._write(messages.error("permission_denied", error.message, **shown))
            self._reroute()


@dataclasses.dataclass(slots=True, eq=False)
class Subscription:
    """One subscription: its filter, the place behind which it begins, and the place from which on the stream has its
    events."""

    asked: Subscribe
    begin: LogPosition
    live_from: LogPosition
    sent_at: float = -math.inf  #: when it last got an event

    @property
    def is_bare(self) -> bool:
        """Whether its events come without anything around them that would tell subscriptions apart."""
        return self.asked.dialect is MessageDialect.EVENTS

    def sees(self, entry: SharedEvent) -> tuple[bool, bool]:
        """Whether it gets the event, and the change of state made from it."""
        wanted = self.asked.wanted
        if not wanted.matches(entry.event):
            return False, False
        shown, changes = wanted.kinds
        is_new = changes and entry.place.having(CHANGE) > self.begin
        return entry.event.type in shown, is_new and entry.changed is not None

    @property
    def rests(self) -> bool:
        """Whether an event now comes too soon after the last; it does without it, as it has asked for."""
        return bool(self.asked.interval) and time.monotonic() - self.sent_at < self.asked.interval


@dataclasses.dataclass(slots=True)
class EventReplay:
    """Events between two places for some subscriptions."""

    to: list[Subscription]
    place: LogPosition
    until: LogPosition


class Subscriptions(dict[str, Subscription]):
    """The subscriptions of a connection by their keys, in the order in which they were made."""

    def find(self, channel: str, identity: str) -> list[Subscription]:
        """The one with this id, or without an id those of the channel."""
        return [
            each
            for each in self.values()
            if identity == each.asked.id or (not identity and channel == each.asked.channel)
        ]

    def left(self, of: Sequence[Subscription]) -> list[Subscription]:
        """Those that have not ended meanwhile, nor been replaced."""
        return [each for each in of if self.get(each.asked.key) is each]

    def frames(self, entry: SharedEvent, to: Sequence[Subscription], *, replayed: bool) -> Iterator[str]:
        """One event as some of them get it: bare once for the connection, wrapped once for each of the others."""
        bare: dict[bool, Subscribe] = {}
        for each in to:
            if not replayed and entry.place <= each.live_from:
                continue  # a replay brings it
            if each.rests:
                continue  # asked first: to see whether there was a change takes more
            plain, changed = each.sees(entry)
            if each.asked.interval and (plain or changed):
                each.sent_at = time.monotonic()
            for wanted, is_change in ((changed, True), (plain, False)):
                if not wanted:
                    continue
                if not each.is_bare:
                    yield messages.event(entry, each.asked, changed=is_change)
                elif not (replayed and self._brings(entry, to, is_change)):
                    bare[is_change] = each.asked
        for is_change, asked in sorted(bare.items(), reverse=True):
            yield messages.event(entry, asked, changed=is_change)

    def _brings(self, entry: SharedEvent, replayed: Sequence[Subscription], is_change: bool) -> bool:
        """Whether the connection gets the bare event for another subscription than those of the replay."""
        others = [each for each in self.values() if each.is_bare and not each.asked.interval and each not in replayed]
        return any(entry.place > each.begin and each.sees(entry)[is_change] for each in others)


class Pace:
    """A limit of events per second for one connection: a second's worth may pass at once. None: no limit.

    What is above the limit waits, first in memory and then in the log.
    """

    def __init__(self, per_second: float | None) -> None:
        self.limited = per_second is not None
        self._rate = per_second
        self._left = per_second or 0.0
        self._seen = time.monotonic()

    async def wait(self) -> None:
        """Return when one more may pass."""
        if self._rate is None:
            return
        now = time.monotonic()
        self._left = min(self._rate, self._left + (now - self._seen) * self._rate)
        self._seen = now
        self._left -= 1
        if self._left < 0:
            await asyncio.sleep(-self._left / self._rate)
