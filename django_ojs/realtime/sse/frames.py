"""The text of an event stream, as the HTML standard has it: lines of `field: value`, a blank one ends a frame."""

from __future__ import annotations

from typing import Any

from django_ojs import jsontext
from django_ojs.events.catalogue import STATE_CHANGED
from django_ojs.events.filters import Filter
from django_ojs.http import compat
from django_ojs.realtime import transitions

#: How long a client waits before it connects again, in milliseconds.
RETRY = 3000
HEARTBEAT = ":heartbeat\n\n"


def opening(cursor: str | None) -> str:
    """What comes first. The id is a frame of its own: a client that is cut off before any event resumes from here."""
    return f"retry: {RETRY}\n\n" + (f"id: {cursor}\n\n" if cursor else "")


def frame(data: Any, *, event: str = "", id: str = "") -> str:
    """One event. JSON as we write it has no line breaks."""
    head = (f"id: {id}\n" if id else "") + (f"event: {event}\n" if event else "")
    return f"{head}data: {jsontext.dumps(data)}\n\n"


def comment(text: str) -> str:
    return f":{text}\n\n"


def told(wanted: Filter, envelope: dict[str, Any]) -> str:
    """What a reader with this filter is told of a stored event: the event, the change that it made, or both."""
    return "".join(_one(view) for view in transitions.views(wanted, envelope))


def _one(view: dict[str, Any]) -> str:
    if view["type"] == STATE_CHANGED:
        data = {"event": STATE_CHANGED, "id": view["id"], **view["data"]}
    else:
        states = transitions.change(view)
        data = compat.event(view) | ({} if states is None else {"from": states[0], "to": states[1]})
    return frame(data, event=view["type"], id=view["id"])
