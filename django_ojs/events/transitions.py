"""`job.state_changed`: a change of a job's state, made in memory from the stored event that tells of it (events 1.4).

It is no type of the events specification, so only a reader who names it gets it: as a whole envelope, right before the
event it is made of, and with an id of its own that is a cursor like any other.

Two changes have no stored event and so none here: the end of a backoff (`retryable` to `available`, seen with the
next start) and the release of a job by its worker (`active` to `available`). A job pushed as `pending` appears when
it is activated.
"""

from __future__ import annotations

from typing import Any

from django_ojs.events import ids
from django_ojs.events.catalogue import STATE_CHANGED, TRANSITIONS
from django_ojs.events.filters import Kinds
from django_ojs.events.places import CHANGE, START, Place

Envelope = dict[str, Any]

#: What the data of the change has in common with that of its event.
_SHARED = ("job_id", "job_type", "type", "queue", "state", "attempt", "timestamp", "trace_id", "workflow_id")


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


def views(wanted: Kinds, envelope: Envelope, salt: str, place: Place, behind: Place = START) -> list[Envelope]:
    """What a reader at `behind` sees of the stored event at `place`: the change made of it, the event, or both."""
    seen = [envelope] if envelope["type"] in wanted.shown else []
    if not wanted.changes or place._replace(seen=CHANGE) <= behind:
        return seen
    changed = state_changed(envelope, salt)
    return seen if changed is None else [changed, *seen]
