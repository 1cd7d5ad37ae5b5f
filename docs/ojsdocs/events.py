"""Every event type with the members of its data, from the catalogue."""

from __future__ import annotations

from collections.abc import Iterable

from django_ojs.events.catalogue import (
    CATALOGUE,
    DESCRIBED,
    EXTENSIONS,
    ON_REQUEST,
    SHARED,
    STATE_CHANGED,
    MemberTypes,
    shared,
)
from django_ojs.spellings import EVENT_TYPE
from ojsdocs.markdown import code, prose, table

GROUPS: tuple[tuple[str, str, Iterable[str]], ...] = (
    ("The catalogue of the specification", "Shown to every reader.", CATALOGUE),
    ("Made when it is read", "Not stored, and shown to who names it.", (STATE_CHANGED,)),
    ("Extensions", "Stored, and shown to who names the type exactly.", EXTENSIONS),
    ("Extensions on request", 'Written only with `OJS["EXTENSION_EVENTS"] = True`.', ON_REQUEST),
)


def render() -> str:
    parts = [
        "## Members of all events\n",
        f"Every event's `data` may have: {_members(SHARED[''])}.",
        f"Events about a job also have: {_members(SHARED['job'])}.",
        f"Those about a queue, and of schedules, have {_members(SHARED['queue'])}.",
        "A member that ends in `?` may be missing. An *instant* is RFC 3339 in UTC,",
        "an *error* the error object of the specification.\n",
    ]
    for title, text, types in GROUPS:
        parts += [f"## {title}\n", text + "\n", table(("type", "tells", "members of its own"), map(_row, types))]
    names = ", ".join(f"{code(alias)} ({code(name)})" for alias, name in sorted(EVENT_TYPE.words.items()))
    return "\n".join([*parts, "## Other names\n", f"Filters also know {names}.\n"])


def _row(type: str) -> tuple[str, str, str]:
    text, data = DESCRIBED[type]
    own = {name: kind for name, kind in data.items() if name not in shared(type)}
    return code(type), prose(text) + _about(type), _members(own)


def _about(type: str) -> str:
    about = shared(type)
    return "" if not about else " About a job." if "job_id" in about and not type.startswith("job.") else ""


def _members(members: MemberTypes) -> str:
    return ", ".join(f"{code(name)} {kind}" for name, kind in members.items())
