"""One WebSocket: its subscriptions, and the two directions of its traffic. Knows no transport but `write` and `close`.

All subscriptions share one stream of the hub, so that a client gets the events of a job in one order whichever of its
subscriptions they match. What a subscription asks for from before it began is replayed by the same task that sends
what is new: first what waits for the others, then the replay up to where the subscription began, then what is new.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from django.db import InterfaceError, OperationalError

from django_ojs import errors
from django_ojs.conf import ojs_settings
from django_ojs.errors import NotFound, OJSError
from django_ojs.events import ids, log, places
from django_ojs.events.places import Place
from django_ojs.http import exceptions
from django_ojs.realtime import frames, messages, rights
from django_ojs.realtime.access import Caller
from django_ojs.realtime.codes import FORBIDDEN, GOING_AWAY, INTERNAL, TOO_BIG, TOO_SLOW, UNAUTHENTICATED, word
from django_ojs.realtime.hub import Hub
from django_ojs.realtime.messages import Dialect, Ping, Resume, Subscribe, Unsubscribe
from django_ojs.realtime.pace import Pace
from django_ojs.realtime.reading import Entry
from django_ojs.realtime.streams import Item, Stream
from django_ojs.realtime.subscriptions import Replay, Subscription, Subscriptions

logger = logging.getLogger(__name__)

MAX_MESSAGE = 65_536
PATIENCE = 10.0  #: seconds that a subscription waits for the database


class Closed(Exception):
    """The connection is over; nothing can be sent any more."""


class Connection:
    """Give it what the client sends (`receive`) and let it `run` until it has closed or is cancelled."""

    def __init__(
        self, caller: Caller, write: Callable[[str], Awaitable[None]], close: Callable[[int], Awaitable[None]]
    ) -> None:
        self._caller, self._send, self._close = caller, write, close
        self._hub = Hub.current()
        self._stream: Stream  #: set when it is ready
        self._ready = asyncio.Event()
        self._turn = asyncio.Lock()  #: held while the order of frames matters
        self._subscriptions = Subscriptions()
        self._replays: list[Replay] = []
        self._resume: str | None = None
        self._pace = Pace(ojs_settings.REALTIME_RATE_LIMIT)
        self._place = places.START  #: of the last event that was sent
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
        """What the client says; an error is told to him and changes nothing."""
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
            except (OperationalError, InterfaceError):
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
            await self._write(frames.PONG)
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
        await self._write(frames.error(word(error), error.message, message.get("request_id"), **facts))

    async def _subscribe(self, asked: list[Subscribe], after: str | None, again: Sequence[Subscription] = ()) -> None:
        """Begin these subscriptions, and those made before `again`, after that event or with what is new."""
        keys = self._subscriptions.keys() | {each.key for each in asked}
        if len(keys) > ojs_settings.REALTIME_MAX_SUBSCRIPTIONS:
            limit = ojs_settings.REALTIME_MAX_SUBSCRIPTIONS
            raise errors.RateLimited(f"A connection has at most {limit} subscriptions.", code="too_many_subscriptions")
        for each in asked:
            await rights.permit(self._caller, each)
        try:
            async with asyncio.timeout(PATIENCE):
                place, gap = await self._start(after)
                await self._hub.synced()
        except TimeoutError:
            raise errors.BackendUnavailable("The event log cannot be read at the moment: try again.") from None
        async with self._turn:
            now = self._hub.place
            new = [Subscription(each, now if place is None else place, now) for each in asked]
            self._subscriptions |= {made.asked.key: made for made in new}
            for old in again:
                old.begin, old.live_from = place or now, now
            self._reroute()
            if place is not None:
                self._place = min(self._place, place)  # a notice that comes before the replay must not stand behind it
                self._replays.append(Replay([*new, *again], place, now))
                self._stream.tell(Item("nudge"))  # the replay comes when everything has been sent that waits now
            for made in new:
                await self._write(frames.subscribed(made.asked))
            if gap is not None and after is not None:
                pruned = Place(0, ids.decode(after, ids.salt_of(log.database()))[0])  # to resume there is a gap again
                await self._tell("system.gap", [*new, *again], pruned, **gap)

    async def _start(self, after: str | None) -> tuple[Place | None, dict[str, Any] | None]:
        if after is None:
            return None, None
        try:
            return await self._hub.start(after)
        except errors.InvalidRequest as error:
            message = "The event id was not issued by this server: read the present state, and begin anew."
            raise errors.InvalidRequest(message, code="unknown_event_id") from error

    async def _restart(self, command: Resume) -> None:
        """`resume`: from behind that event everything that is subscribed, now and later on this connection."""
        await self._start(command.after)
        self._resume = command.after
        replaced = {each.key for each in command.subscriptions}
        again = [each for key, each in self._subscriptions.items() if key not in replaced]
        await self._write(frames.resumed(command.after))
        if command.subscriptions or again:
            await self._subscribe(command.subscriptions, command.after, again)

    async def _unsubscribe(self, command: Unsubscribe) -> None:
        """End a subscription, or all of a channel. One that is unknown is ended, too, and acknowledged."""
        async with self._turn:
            gone = self._subscriptions.find(command.channel, command.id)
            for each in gone:
                del self._subscriptions[each.asked.key]
            self._reroute()
            for each in gone:
                await self._write(frames.unsubscribed(each.asked.channel, each.asked.id))
            if not gone:
                await self._write(frames.unsubscribed(command.channel or messages.EVENTS, command.id))

    def _reroute(self) -> None:
        self._stream.change([each.asked.wanted for each in self._subscriptions.values()])

    # To the client

    async def _handle(self, item: Item) -> None:
        match item.kind:
            case "event":
                assert item.entry is not None
                async with self._turn:
                    await self._deliver(item.entry, list(self._subscriptions.values()))
            case "nudge":
                await self._replay(self._replays.pop(0))
            case "gap" | "dropped":
                async with self._turn:
                    await self._lost(list(self._subscriptions.values()), item.details)
            case "shutdown":
                async with self._turn:
                    await self._tell("server.shutdown", list(self._subscriptions.values()), self._place, **item.details)
                await self.close(GOING_AWAY)
                raise Closed

    async def _replay(self, replay: Replay) -> None:
        place = replay.place
        while True:
            to = [each for each in replay.to if self._subscriptions.get(each.asked.key) is each]
            page = await self._hub.replay(place, [each.asked.wanted for each in to])
            if page.gap:
                await self._lost(to, page.gap)
            for entry in page.entries:
                if entry.place > replay.until or self._hub.closing:
                    return
                async with self._turn:
                    await self._deliver(entry, to, replayed=True)
            place = page.place
            if not page.full or place >= replay.until:
                return

    async def _deliver(self, entry: Entry, to: Sequence[Subscription], *, replayed: bool = False) -> None:
        for text in self._subscriptions.frames(entry, to, replayed=replayed):
            if self._pace.limited:
                await self._pace.wait()
            await self._write(text)
        self._place = entry.place

    async def _lost(self, to: Sequence[Subscription], details: dict[str, Any]) -> None:
        details = dict(details)
        count = details.pop("estimated_missed_count", None)
        for each in to:
            await self._write(frames.warning(each.asked, count=count, **details))
        await self._tell("system.events_dropped", to, self._place, dropped_count=count, **details)

    async def _tell(self, type: str, to: Sequence[Subscription], place: Place, **data: Any) -> None:
        """A notice, in each dialect that is spoken: bare once, wrapped once for each channel."""
        bare = [each for each in to if each.asked.dialect is Dialect.EVENTS]
        for each in to:
            if each.asked.dialect is not Dialect.EVENTS:
                await self._write(frames.notice(type, place, each.asked, **data))
        if bare or not to:
            await self._write(frames.notice(type, place, None, **data))

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
        """Look now and then whether the caller may still be here, and see what he sees."""
        with contextlib.suppress(Closed):
            while True:
                await asyncio.sleep(ojs_settings.REALTIME_RECHECK_INTERVAL)
                try:
                    if await self._caller.renew():
                        await self._narrow()
                except Closed:
                    raise
                except Exception as cause:  # noqa: BLE001 - whatever a site's own authentication raises
                    error = exceptions.to_error(cause)
                    if error.status not in (401, 403):
                        logger.warning("The rights of a connected client could not be looked at: %s", cause)
                        continue  # who cannot be asked about stays
                    await self._write(frames.error("permission_denied", error.message))
                    await self.close(UNAUTHENTICATED if error.status == 401 else FORBIDDEN)
                    return

    async def _narrow(self) -> None:
        """The limits of the key have changed: end what it may not see any more, and narrow the rest."""
        async with self._turn:
            for key, each in list(self._subscriptions.items()):
                try:
                    await rights.permit(self._caller, each.asked)
                except NotFound:  # pruned meanwhile
                    rights.narrow(self._caller, each.asked)
                except errors.PermissionDenied as error:
                    del self._subscriptions[key]
                    shown = {"channel": each.asked.channel, "subscription_id": each.asked.id}
                    await self._write(frames.error("permission_denied", error.message, **shown))
            self._reroute()
