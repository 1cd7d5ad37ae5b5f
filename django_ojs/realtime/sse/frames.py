"""The text of an event stream, as the HTML standard has it: lines of `field: value`, a blank one ends a frame."""

from __future__ import annotations

from typing import Any

from django_ojs import jsontext
from django_ojs.events import transitions
from django_ojs.events.catalogue import STATE_CHANGED
from django_ojs.http import compat

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


def event(envelope: dict[str, Any]) -> str:
    """An event, with `from` and `to` at its top level where it tells of a change of state."""
    if envelope["type"] == STATE_CHANGED:
        states: tuple[str, str] | None = (envelope["data"]["from"], envelope["data"]["to"])
    else:
        states = transitions.change(envelope)
    shown = compat.event(envelope) | ({} if states is None else {"from": states[0], "to": states[1]})
    return frame(shown, event=envelope["type"], id=envelope["id"])
