"""`job.state_changed`: a change of a job's state, made in memory from the stored event that tells of it (events 1.4).

Two changes have no stored event and so none here: the end of a backoff (`retryable` to `available`, seen with the
next start) and the release of a job by its worker (`active` to `available`). A job pushed as `pending` appears when
it is activated.
"""

from __future__ import annotations

from typing import Any

from django_ojs.events.catalogue import STATE_CHANGED, TRANSITIONS
from django_ojs.events.filters import Filter

Envelope = dict[str, Any]


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


def payload(envelope: Envelope) -> dict[str, str] | None:
    """The flat object of realtime channels: `job_id`, `queue`, `type` (of the job), `from`, `to`, `timestamp`."""
    states = change(envelope)
    if states is None:
        return None
    data = envelope["data"]
    shared = {name: data[name] for name in ("job_id", "queue", "type")}
    return {**shared, "from": states[0], "to": states[1], "timestamp": envelope["time"]}


def state_changed(envelope: Envelope) -> Envelope | None:
    """The change as an event of its own, with the id of the one it is made from; None if that tells of no change."""
    data = payload(envelope)
    return None if data is None else {**envelope, "type": STATE_CHANGED, "data": data}


def views(wanted: Filter, envelope: Envelope) -> list[Envelope]:
    """What a reader with this filter sees of a stored event that matches it: the event, its change, or both."""
    seen = [envelope] if envelope["type"] in wanted.shown else []
    changed = state_changed(envelope) if wanted.changes else None
    return seen if changed is None else [*seen, changed]
