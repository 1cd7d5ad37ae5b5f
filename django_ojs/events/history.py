"""The events of jobs in the words of the execution history (extensions 7): a projection of the log, and no second log.

Each stored event has one entry there: the event, with its name and its actor in the words of the extension beside its
own, and the members that the extension asks for in its data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from django_ojs.events import catalogue, filters
from django_ojs.events.filters import Filter
from django_ojs.models import Event
from django_ojs.states import State

#: The names that the extension execution-history has for the types of our events. A type that is not here keeps its
#: name. An event of `CREATION_TYPES` is called `job.created` where its job had no state before.
NAMES: Mapping[str, str] = {
    "job.enqueued": "job.state_changed",
    "job.scheduled": "job.state_changed",
    "job.retrying": "job.state_changed",
    "job.started": "job.attempt_started",
    "job.completed": "job.attempt_completed",
    "job.failed": "job.attempt_failed",
    "job.checkpointed": "job.checkpoint_saved",
}
#: Members of our data that the extension calls otherwise, by the kind of events that have them.
_WORDS: Mapping[str, Mapping[str, str]] = {
    "workflow": {"total_steps": "total_jobs", "step": "step_index"},
    "job": {"progress_percent": "percent"},
}
CREATION_TYPES = frozenset({"job.enqueued", "job.scheduled"})
CREATED, CHANGED = "job.created", "job.state_changed"
#: Every type that a stored event may have. A history has them all, also those of extensions.
EVERY_TYPE = (*catalogue.CATALOGUE, *catalogue.EXTENSIONS, *catalogue.ON_REQUEST)
#: The kinds of actors, by the part of the server that wrote the event.
ACTORS = {"workers": "worker", "scheduler": "system", "cron": "system"}
#: Who is named in `..._by`, by the prefix that says what it is.
_CALLERS = {"key": "client", "user": "user", "command": "user"}


def entry(event: Mapping[str, Any], args_size_bytes: int | None = None) -> dict[str, Any]:
    """The event as a history has it; `args_size_bytes` is that of its job, None where it is not known or not shown."""
    told, name = dict(event["data"]), name_of(event)
    words = _WORDS.get(name.partition(".")[0], {})
    told |= {theirs: told[ours] for ours, theirs in words.items() if ours in told}
    if name == "workflow.completed":
        told["status"] = State.COMPLETED.value
    if name == CREATED:
        told |= {} if args_size_bytes is None else {"args_size_bytes": args_size_bytes}
    elif name == CHANGED:
        retried = (State.ACTIVE.value, told["state"])  # after the failure of an attempt
        before, after = filters.change(dict(event)) or retried
        told |= {"from": before, "to": after}
    elif name == "job.attempt_failed":
        told["will_retry"] = told["state"] == State.RETRYABLE
    return {**event, "event_type": name, "actor": actor(event), "data": told}


def name_of(event: Mapping[str, Any]) -> str:
    """What a history calls the event, by its `type` and its `data`."""
    kind: str = event["type"]
    if kind in CREATION_TYPES:
        change = filters.change(dict(event))
        if change is not None and change[0] == "":
            return CREATED
    return NAMES.get(kind, kind)


def actor(event: Mapping[str, Any]) -> dict[str, str]:
    """Who did it: a worker, a client, a user or the system, by name.

    Where a call was made whose caller the event does not name, the id is the part of the server that carried it out.
    """
    data, component = event["data"], event["source"].removeprefix("ojs://").split("/")[1]
    by = next((data[name] for name in data if name.endswith("_by") and isinstance(data[name], str)), "")
    prefix, colon, name = by.partition(":")
    if colon and prefix in _CALLERS:
        return {"type": _CALLERS[prefix], "id": name}
    if by == "system":
        return {"type": "system", "id": component}
    kind = ACTORS.get(component, "client")
    return {"type": kind, "id": data.get("worker_id") or component if kind == "worker" else component}


def facts(event: Event) -> dict[str, Any]:
    """What the name of a stored event goes by, without what an envelope has beside it."""
    return {"type": event.type, "data": {**(event.data or {}), "state": event.state}}


def stored_types(names: Collection[str]) -> tuple[str, ...]:
    """The types of the stored events that a history may call by one of these names, which may end in `*`."""
    if not names:
        return EVERY_TYPE
    found = [kind for kind in EVERY_TYPE if any(_is_one_of(name, names) for name in _possible_names(kind))]
    return tuple(found or names)  # where no name is known, nothing is found


def _possible_names(kind: str) -> tuple[str, ...]:
    return (kind, NAMES.get(kind, kind), *((CREATED,) if kind in CREATION_TYPES else ()))


def _is_one_of(name: str, names: Collection[str]) -> bool:
    return any(name == one or (one.endswith("*") and name.startswith(one[:-1])) for one in names)


@dataclasses.dataclass(frozen=True)
class HistoryQuery:
    """Which events of the whole log are asked for in the words of the history.

    `names` are those of the history or of the event log, and may end in `*`; `actor_type` is a kind of actors, '' for
    all of them. `events` is the rest, with `stored_types(names)`.
    """

    events: Filter
    names: tuple[str, ...] = ()
    actor_type: str = ""

    def accepts(self, event: Mapping[str, Any]) -> bool:
        """Whether an event that fits `events` is asked for."""
        if self.names and not (_is_one_of(event["type"], self.names) or _is_one_of(name_of(event), self.names)):
            return False
        return not self.actor_type or actor(event)["type"] == self.actor_type
