"""What the server says on a WebSocket, as the JSON text of its frames (events 3.3)."""

from __future__ import annotations

from typing import Any

from django_ojs import clock, jsontext
from django_ojs.events import ids, log, places
from django_ojs.events.places import Place
from django_ojs.realtime.messages import Dialect, Subscribe
from django_ojs.realtime.reading import Entry
from django_ojs.rules.durations import format_instant
from django_ojs.rules.ids import new_id

PONG = jsontext.dumps({"action": "pong", "type": "pong"})

Envelope = dict[str, Any]


def event(entry: Entry, to: Subscribe, *, changed: bool) -> str:
    """An event as `to` gets it, or the change of state made from it: made once for all that get the same."""
    address = "" if to.dialect is Dialect.EVENTS else to.id if to.dialect is Dialect.PROPOSAL else to.channel
    kept = (to.dialect, address, changed)
    text = entry.texts.get(kept)
    if text is None:
        envelope = entry.changed if changed else entry.envelope
        assert envelope is not None
        text = entry.texts[kept] = jsontext.dumps(_dressed(envelope, to))
    return text


def _dressed(envelope: Envelope, to: Subscribe) -> dict[str, Any]:
    match to.dialect:
        case Dialect.EVENTS:
            return envelope
        case Dialect.PROPOSAL:
            return {"subscription_id": to.id, "event": envelope}
        case Dialect.REALTIME:
            head = {"type": "event", "channel": to.channel, "event": envelope["type"], "data": envelope["data"]}
            return {**head, "id": envelope["id"], "timestamp": envelope["time"]}


def notice(type: str, place: Place, to: Subscribe | None, **data: Any) -> str:
    """A notice about the connection, which is no event of the log (events 1.4).

    Its id is new and yet a cursor: it stands for `place`, so that a client may resume from whatever it saw last.
    """
    now = clock.now()
    using = log.database()
    is_change = place.seen == places.CHANGE
    identity = f"{ids.PREFIX}{new_id()}"
    if place.id:
        identity = ids.encode(place.id, now, ids.salt_of(using), change=is_change)
    told = {key: value for key, value in data.items() if value is not None}
    if to is not None and to.dialect is Dialect.REALTIME:
        told = {"channel": to.channel, **told}
    time = format_instant(now)
    envelope = {
        "specversion": "1.0", "id": identity, "type": type, "source": log.source_of("api"), "time": time,
        "subject": "", "datacontenttype": "application/json", "data": {**told, "timestamp": time},
    }  # fmt: skip
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
    told = {"action": "error", "type": "error", "code": code, "message": message, **facts}
    if isinstance(request_id, str):
        told["request_id"] = request_id[:128]
    return jsontext.dumps(told)
