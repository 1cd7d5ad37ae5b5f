"""How much waiting and failing a site allows before an operator has to look: `OJS["ALERTS"]`, read and checked.

    {"queues": {"*": {"oldest_wait": "15m"}, "mail": {"oldest_wait": "1m", "backlog": 5000}},
     "types": {"billing.*": {"dead_letters": 1, "error_rate": 0.01}},
     "mail_to": ["ops@example.com"], "every": "30s"}

The overview of the admin, `ojs_status --check` and the alerts use the same limits.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

from django_ojs.errors import InvalidRequest
from django_ojs.messages import phrase
from django_ojs.rules import names
from django_ojs.rules.durations import parse_length_ms
from django_ojs.rules.faults import checked, fault, flag, integer, known_only, share

MAX_JOBS = 1_000_000_000
MAX_PATTERNS, MAX_RECIPIENTS = 1000, 50
EVERY = dt.timedelta(seconds=30)
SHORTEST_PAUSE = dt.timedelta(seconds=5)


@dataclasses.dataclass(frozen=True, slots=True)
class AlertLimits:
    """What a queue or a job type may have without needing attention; None for no limit.

    Attributes:
        oldest_wait: how long a job may wait in the queue.
        backlog: how many available jobs the queue may have.
        drain_time: how long its available jobs may take, as fast as jobs have ended in the last minutes.
        error_rate: which part may fail, from 0 to 1: of the jobs of a queue that ended, of the attempts of a type.
        dead_letters: how many jobs failures may end within an hour.
        workers: whether jobs that no worker takes need attention.
    """

    oldest_wait: dt.timedelta | None = None
    backlog: int | None = None
    drain_time: dt.timedelta | None = None
    error_rate: float | None = None
    dead_letters: int | None = None
    workers: bool = True


#: What holds for all, where the site says nothing else.
QUEUE_DEFAULTS = {"oldest_wait": dt.timedelta(minutes=15), "drain_time": dt.timedelta(hours=1)}
TYPE_DEFAULTS = {"error_rate": 0.2}

#: By name or pattern, what is set for it.
_Patterns = Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class AlertRules:
    """The limits of a site, who gets mail, and how often the scheduler looks. `forced` holds for every queue,
    whatever the site says."""

    queues: _Patterns = dataclasses.field(default_factory=dict)
    types: _Patterns = dataclasses.field(default_factory=dict)
    mail_to: tuple[str, ...] = ()
    every: dt.timedelta = EVERY
    forced: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def of_queue(self, name: str) -> AlertLimits:
        return AlertLimits(**{**QUEUE_DEFAULTS, **_merged(self.queues, name), **self.forced})

    def of_type(self, name: str) -> AlertLimits:
        return AlertLimits(**{**TYPE_DEFAULTS, **_merged(self.types, name)})


def _merged(patterns: _Patterns, name: str) -> dict[str, Any]:
    """What is set for this name: the longer a pattern, the more it counts, and the name itself counts most."""
    fitting = sorted((one for one in patterns if names.covers(one, name)), key=lambda one: (one == name, len(one)))
    return {member: value for one in fitting for member, value in patterns[one].items()}


def parse(given: object) -> AlertRules:
    """The rules of the setting; those of a site that sets none for None. Raises `InvalidRequest` with the path."""
    if given is None:
        return AlertRules()
    values = dict(_object(given, "ALERTS", ("queues", "types", "mail_to", "every")))
    found: dict[str, Any] = {}
    for member, known in (("queues", _OF_QUEUES), ("types", _OF_TYPES)):
        if member in values:
            found[member] = _patterns(values[member], member, known)
    if "mail_to" in values:
        found["mail_to"] = _recipients(values["mail_to"])
    if "every" in values:
        found["every"] = _length(values["every"], "every")
        if found["every"] < SHORTEST_PAUSE:
            seconds = round(SHORTEST_PAUSE.total_seconds())
            raise fault("every", f"must be at least {seconds} s", values["every"])
    return AlertRules(**found)


def _object(value: object, path: str, known: Mapping[str, Any] | tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise fault(path, phrase("must be an object"), value)
    known_only(value, known, path)
    return value


def _patterns(value: object, path: str, known: Mapping[str, Callable[[Any, str], Any]]) -> _Patterns:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise fault(path, phrase("must be an object"), value)
    if len(value) > MAX_PATTERNS:
        raise InvalidRequest(phrase("There are more than %(most)s rules.", most=MAX_PATTERNS))
    found = {}
    for name, limits in value.items():
        if not name or "*" in name[:-1]:
            raise fault(path, "must name queues or job types, or the beginning of some with * at its end", name)
        here = f"{path}.{name}"
        found[name] = {
            member: None if one is None else known[member](one, f"{here}.{member}")
            for member, one in _object(limits, here, known).items()
        }
    return found


def _recipients(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) and "@" in one for one in value):
        raise fault("mail_to", "must be a list of mail addresses", value)
    if len(value) > MAX_RECIPIENTS:
        raise fault("mail_to", f"must have at most {MAX_RECIPIENTS} entries")
    return tuple(value)


def _length(value: Any, path: str) -> dt.timedelta:
    return dt.timedelta(milliseconds=checked(parse_length_ms, value, path))


_OF_TYPES: dict[str, Callable[[Any, str], Any]] = {
    "error_rate": share, "dead_letters": integer(1, MAX_JOBS), "workers": flag,
}  # fmt: skip
_OF_QUEUES: dict[str, Callable[[Any, str], Any]] = {
    "oldest_wait": _length, "backlog": integer(1, MAX_JOBS), "drain_time": _length, **_OF_TYPES,
}  # fmt: skip
