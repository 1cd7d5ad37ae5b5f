"""What client and server say on a WebSocket: messages become commands, answers become the text of frames (events 3).

There are three dialects: that of the events specification (channel `events`, a filter, bare envelopes), of the realtime
document (channels `job:…`, `queue:…`, `all`, wrapped events) and of an older proposal (ids that the client chooses).
Each message says by its form which one it is written in, and events come back in the same.
"""

from __future__ import annotations

import dataclasses
import enum
import uuid
from typing import Any

from django_ojs import jsontext
from django_ojs.errors import InvalidRequest, OJSError
from django_ojs.events import log
from django_ojs.events.filters import NARROWING, Filter
from django_ojs.events.order import LogPosition
from django_ojs.realtime.hub import SharedEvent
from django_ojs.rules import names
from django_ojs.rules.faults import known_only, shorten
from django_ojs.rules.ids import new_id, parse_id
from django_ojs.spellings import FILTER, MESSAGE

MAX_TEXT = 255
MAX_VALUES = 100  #: values of one dimension of a filter
MAX_CHANNELS = 100  #: subscriptions of one `resume`
MAX_INTERVAL = 60_000  #: milliseconds
EVENTS, ALL = "events", "all"
_CHANNELS = 'Send a channel ("events", "all", "queue:NAME" or "job:ID"), or a filter.'
#: The error codes of events 3.3.
_WORDS = frozenset(
    {"invalid_request", "not_found", "unknown_event_id", "permission_denied", "too_many_subscriptions"}
)  # fmt: skip
_DIMENSIONS = ("queues", "job_types", "sources", "job_ids")
#: What the filter of a subscription has.
_FILTER = (*FILTER.names("event_types"), *_DIMENSIONS, "workflow_ids")


class MessageDialect(enum.Enum):
    EVENTS = "events"
    REALTIME = "realtime"
    PROPOSAL = "proposal"


@dataclasses.dataclass(slots=True)
class Subscribe:
    """`key` tells subscriptions of one connection apart: one with the same key is replaced."""

    dialect: MessageDialect
    key: str
    id: str
    channel: str
    wanted: Filter
    after: str | None
    shown: dict[str, Any]  #: what the acknowledgement repeats
    workflows: tuple[str, ...] = ()  #: as the filter names them; `permit` puts them into `wanted`
    interval: float = 0.0  #: seconds after an event for which it wants no other

    @property
    def job(self) -> uuid.UUID | None:
        """The job of a `job:` channel."""
        return self.wanted.job_ids[0] if self.channel.startswith("job:") else None

    @property
    def queue(self) -> str | None:
        """The queue of a `queue:` channel."""
        return self.wanted.queues[0] if self.channel.startswith("queue:") else None


@dataclasses.dataclass(slots=True)
class Unsubscribe:
    channel: str  #: "" where the id alone names it
    id: str


@dataclasses.dataclass(slots=True)
class Resume:
    after: str
    subscriptions: list[Subscribe]


@dataclasses.dataclass(slots=True)
class Ping:
    pass


Command = Subscribe | Unsubscribe | Resume | Ping


def load(text: str) -> dict[str, Any]:
    """The message in a frame. Raises `InvalidRequest` for anything but a JSON object."""
    try:
        message = jsontext.loads(text)
    except jsontext.JSONTextError as error:
        raise InvalidRequest(f"The message is not valid JSON. {error}") from error
    if not isinstance(message, dict):
        raise InvalidRequest("The message must be a JSON object.")
    return message


def parse(message: dict[str, Any]) -> Command:
    """The command of a message. Raises `InvalidRequest` with what is wrong."""
    action = message.get(MESSAGE.name_in(message, "action"))
    match action:
        case "ping":
            return Ping()
        case "subscribe":
            return _subscription(message)
        case "unsubscribe":
            return Unsubscribe(_text(message, "channel") or "", _text(message, "subscription_id") or "")
        case "resume":
            return _resume(message)
    raise InvalidRequest(
        f"The action {shorten(action)!r} is unknown.", hint="Send subscribe, unsubscribe, resume or ping."
    )


def _resume(message: dict[str, Any]) -> Resume:
    after = _after(message)
    if not after:
        raise InvalidRequest("A resume needs last_event_id, the id of the last event that was received.")
    given = message.get("subscriptions") or []
    if not isinstance(given, list) or len(given) > MAX_CHANNELS:
        raise InvalidRequest(f"subscriptions must be a list of at most {MAX_CHANNELS} channels or subscriptions.")
    entries = [{"channel": entry} if isinstance(entry, str) else entry for entry in given]
    if not all(isinstance(entry, dict) for entry in entries):
        raise InvalidRequest("Each of subscriptions must be the name of a channel or a subscription.")
    return Resume(after, [_subscription(entry) for entry in entries])


def _subscription(message: dict[str, Any]) -> Subscribe:
    asked = _subscribe(message)
    interval = message.get("min_interval_ms")
    if interval is not None:
        if type(interval) is not int or not 0 <= interval <= MAX_INTERVAL:
            raise InvalidRequest(f"min_interval_ms must be a number of milliseconds from 0 to {MAX_INTERVAL}.")
        asked.interval = interval / 1000
        asked.shown = {**asked.shown, "min_interval_ms": interval}
    return asked


def _subscribe(message: dict[str, Any]) -> Subscribe:
    channel = _text(message, "channel") or ""
    if channel and channel != EVENTS:
        return _to_channel(message, channel)
    if not channel and (message.get("filters") is not None or message.get("subscription_id") is not None):
        return _proposal(message)
    if not channel and message.get("filter") is None:
        raise InvalidRequest("A subscription needs a channel or a filter.", hint=_CHANNELS)
    _only_in(message, "filter")
    given = _object(message, "filter")
    identity = f"sub_{new_id()}"
    return Subscribe(
        MessageDialect.EVENTS, identity, identity, EVENTS, _filter(given, "filter"), _after(message), {"filter": given},
        _texts(given, "workflow_ids"),
    )  # fmt: skip


def _to_channel(message: dict[str, Any], channel: str) -> Subscribe:
    kind, _, name = channel.partition(":")
    scope: dict[str, Any] = {}
    if kind == "job" and (job_id := parse_id(name.lower())) is not None:
        scope = {"job_ids": (job_id,)}
    elif kind == "queue":
        try:
            scope = {"queues": (names.check_queue(name),)}
        except ValueError as error:
            raise InvalidRequest(f"The queue of the channel {shorten(channel)!r} {error}.") from error
    elif channel != ALL:
        raise InvalidRequest(f"There is no channel {shorten(channel)!r}.", hint=_CHANNELS)
    _only_in(message, "filter", "event_types")
    narrower = _object(message, "filter")
    _only(narrower, ("event_types",), "filter")
    given = message if message.get("event_types") is not None else narrower
    types = _texts(given, "event_types")
    shown: dict[str, Any] = {"filter": narrower}
    if given.get("event_types") is not None:
        shown["event_types"] = list(types)
    wanted = Filter(types=types, **scope)
    return Subscribe(MessageDialect.REALTIME, channel, f"sub_{new_id()}", channel, wanted, _after(message), shown)


def _proposal(message: dict[str, Any]) -> Subscribe:
    name = "filter" if message.get("filters") is None else "filters"
    given = _object(message, name)
    _only_in(message, *(other for other in ("filters", "filter") if other == name or message.get(other) == given))
    identity = _text(message, "subscription_id") or f"sub_{new_id()}"
    shown = {"filter": given, "filters": given}
    key = f"client {identity}"
    return Subscribe(
        MessageDialect.PROPOSAL, key, identity, EVENTS, _filter(given, name), _after(message), shown,
        _texts(given, "workflow_ids"),
    )  # fmt: skip


def _only_in(message: dict[str, Any], *read: str) -> None:
    """Refuse what narrows a subscription in another member of its message than these: it would be passed over."""
    _only({name: message.get(name) for name in NARROWING}, read)


def _only(given: dict[str, Any], known: tuple[str, ...], path: str = "") -> None:
    """Refuse members that are not known. An empty one narrows nothing."""
    known_only((name for name, value in given.items() if value), known, path)


def _filter(given: dict[str, Any], path: str) -> Filter:
    _only(given, _FILTER, path)
    types = _texts(given, FILTER.name_in(given, "event_types"))
    dimensions: dict[str, Any] = {name: _texts(given, name) for name in _DIMENSIONS}
    dimensions["job_ids"] = tuple(_uuid("job_ids", value) for value in dimensions["job_ids"])
    return Filter(types=types, **dimensions)


def _uuid(name: str, value: str) -> uuid.UUID:
    found = parse_id(value.lower())
    if found is None:
        raise InvalidRequest(f"{name} must be UUIDv7s, not {shorten(value)!r}.", details={"field": name})
    return found


def _after(message: dict[str, Any]) -> str | None:
    return _text(message, MESSAGE.name_in(message, "after"))


def _object(message: dict[str, Any], name: str) -> dict[str, Any]:
    value = message.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name} must be an object.", details={"field": name})
    return value


def _text(message: dict[str, Any], name: str) -> str | None:
    value = message.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > MAX_TEXT or not value.isprintable():
        raise InvalidRequest(f"{name} must be a printable text of at most {MAX_TEXT} characters.")
    return value


def _texts(given: dict[str, Any], name: str) -> tuple[str, ...]:
    values = given.get(name)
    if values is None:
        return ()
    if not isinstance(values, list) or len(values) > MAX_VALUES:
        raise InvalidRequest(f"{name} must be a list of at most {MAX_VALUES} texts.", details={"field": name})
    for value in values:
        if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT or not value.isprintable():
            message = f"Each of {name} must be a printable text of 1 to {MAX_TEXT} characters."
            raise InvalidRequest(message, details={"field": name})
    return tuple(dict.fromkeys(values))


PONG = jsontext.dumps({"action": "pong", "type": "pong"})


def event(entry: SharedEvent, to: Subscribe, *, changed: bool) -> str:
    """An event as `to` gets it, or the change of state made from it: made once for all that get the same."""
    address = (
        "" if to.dialect is MessageDialect.EVENTS else to.id if to.dialect is MessageDialect.PROPOSAL else to.channel
    )
    kept = (to.dialect, address, changed)
    text = entry.texts.get(kept)
    if text is None:
        envelope = entry.changed if changed else entry.envelope
        assert envelope is not None
        text = entry.texts[kept] = jsontext.dumps(_dressed(envelope, to))
    return text


def _dressed(envelope: dict[str, Any], to: Subscribe) -> dict[str, Any]:
    match to.dialect:
        case MessageDialect.EVENTS:
            return envelope
        case MessageDialect.PROPOSAL:
            return {"subscription_id": to.id, "event": envelope}
        case MessageDialect.REALTIME:
            head = {"type": "event", "channel": to.channel, "event": envelope["type"], "data": envelope["data"]}
            return {**head, "id": envelope["id"], "timestamp": envelope["time"]}


def notice(type: str, place: LogPosition, to: Subscribe | None, **data: Any) -> str:
    """A notice about the connection (`log.notice`), as the subscription's dialect has it."""
    if to is not None and to.dialect is MessageDialect.REALTIME:
        data = {"channel": to.channel, **data}
    envelope = log.notice(type, place, log.database(), **data)
    return jsontext.dumps(envelope if to is None else _dressed(envelope, to))


def warning(to: Subscribe, **data: Any) -> str:
    """That events were lost, for clients that look for a warning rather than for an event."""
    return jsontext.dumps({"type": "warning", "code": "events_dropped", "channel": to.channel, **data})


def subscribed(to: Subscribe) -> str:
    head = {"action": "subscribed", "type": "subscribed", "channel": to.channel, "subscription_id": to.id}
    return jsontext.dumps({**head, **to.shown})


def unsubscribed(channel: str, identity: str) -> str:
    head = {"action": "unsubscribed", "type": "unsubscribed"}
    return jsontext.dumps({**head, "channel": channel, "subscription_id": identity})


def resumed(after: str) -> str:
    return jsontext.dumps({"action": "resumed", "type": "resumed", "last_event_id": after})


def error(code: str, message: str, request_id: Any = None, **facts: Any) -> str:
    shown = {"action": "error", "type": "error", "code": code, "message": message, **facts}
    if isinstance(request_id, str):
        shown["request_id"] = request_id[:128]
    return jsontext.dumps(shown)


def word(error: OJSError) -> str:
    """The code of an error in a frame; what has none of its own there is `internal_error`."""
    return error.error_code if error.error_code in _WORDS else "internal_error"
