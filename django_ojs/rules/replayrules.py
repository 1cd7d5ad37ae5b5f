"""Rules for the automatic retry of dead letters: what one may say, and which jobs it is for (core 11.9).

    {"name": "payments", "filter": {"queue": "payments", "error_type": "GatewayTimeout"},
     "delay": "PT1H", "max_replays": 3, "per_minute": 60, "enabled": true}

The same form in `OJS["REPLAY_RULES"]`, over HTTP and in the commands.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django_ojs.errors import InvalidRequest
from django_ojs.messages import phrase
from django_ojs.rules import durations, names
from django_ojs.rules.faults import checked, fault, flag, integer, known_only, queue_name

MAX_DELAY_MS = 365 * 86_400_000
MAX_REPLAYS = 1000
MAX_PER_MINUTE = 100_000
#: How many rules there may be: each is a search of its own.
MAX_RULES = 100
#: Ends that would come again, or that an operator has to see: no rule retries such a job unless its filter names the
#: type of the error. It is the job's last error that counts.
NEVER = frozenset({
    "visibility_timeout", "worker_death", "expired", "enqueue_ttl_expired", "total_timeout", "ReplayMismatch",
    "DecryptionError",
})  # fmt: skip
#: What a rule's retry writes into `meta`.
META = ("ojs.replay_count", "ojs.last_replayed_at", "ojs.replay_rule")
#: What a filter may name.
FILTERS = ("queue", "type", "error_type", "since", "until")
#: Members of a rule in answers, which a request may repeat without effect.
_ECHOED = ("source", "created_at", "updated_at")
_MEMBERS = ("name", "filter", "delay", "max_replays", "per_minute", "enabled")


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """A valid rule.

    Attributes:
        filter: at least one of `FILTERS`, texts as they were sent; all of them must fit.
        delay_ms: milliseconds from the end of a job to its retry.
        max_replays: how often the rule retries one job.
        per_minute: how many jobs it retries in a minute at most.
        source: `settings`, or `api` for a rule that an operator made.
        limits: what who made it reaches, as `access.Limits` stores it; None: everything.
    """

    name: str
    filter: Mapping[str, str]
    delay_ms: int = 3_600_000
    max_replays: int = 3
    per_minute: int = 60
    enabled: bool = True
    source: str = "api"
    limits: Mapping[str, Any] | None = None

    @property
    def since(self) -> dt.datetime | None:
        return durations.parse_instant(self.filter["since"]) if "since" in self.filter else None

    @property
    def until(self) -> dt.datetime | None:
        return durations.parse_instant(self.filter["until"]) if "until" in self.filter else None

    def edge(self, now: dt.datetime) -> dt.datetime:
        """Jobs that ended then or before are due."""
        return now - dt.timedelta(milliseconds=self.delay_ms)

    def takes(self, job: Mapping[str, Any], error_types: Sequence[str]) -> bool:
        """Whether a dead letter with these errors, the last one at the end, is one of this rule's."""
        wanted = self.filter
        named = wanted.get("error_type", "")
        if error_types and error_types[-1] in NEVER and error_types[-1] != named:
            return False
        return (
            (not named or named in error_types)
            and wanted.get("queue", job["queue"]) == job["queue"]
            and names.covers(wanted.get("type", "*"), job["type"])
            and (self.since is None or job["created_at"] >= self.since)
            and (self.until is None or job["created_at"] < self.until)
        )

    def facts(self) -> dict[str, Any]:
        """The rule as `parse` reads it."""
        return {
            "name": self.name, "filter": dict(self.filter), "delay": durations.format_iso(self.delay_ms),
            "max_replays": self.max_replays, "per_minute": self.per_minute, "enabled": self.enabled,
        }  # fmt: skip


def parse(given: object, *, source: str = "api") -> Rule:
    """The rule that a document describes. Raises `InvalidRequest` that names the member."""
    if not isinstance(given, Mapping):
        raise fault("rule", phrase("must be an object"), given)
    known_only((name for name in given if name not in _ECHOED), _MEMBERS)
    values: dict[str, Any] = {"name": queue_name(given.get("name"), "name"), "filter": _filter(given.get("filter"))}
    for member, (attribute, read) in _READERS.items():
        if given.get(member) is not None:
            values[attribute] = read(given[member], member)
    return Rule(**values, source=source)


def parse_all(given: Sequence[object]) -> list[Rule]:
    """The rules of the setting. Raises `InvalidRequest` for the first that is wrong, or has the name of another."""
    rules: list[Rule] = []
    for number, document in enumerate(given):
        try:
            rule = parse(document, source="settings")
        except InvalidRequest as error:
            raise InvalidRequest(f"[{number}] {error.message}", details=error.details) from error
        if rule.name in [other.name for other in rules]:
            raise fault(f"[{number}] name", phrase("must not be that of another rule"), rule.name)
        rules.append(rule)
    if len(rules) > MAX_RULES:
        raise InvalidRequest(phrase("There are more than %(most)s rules.", most=MAX_RULES))
    return rules


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= 255 or not value.isprintable():
        raise fault(path, phrase("must be a printable text of 1 to 255 characters"), value)
    return value


def _pattern(value: Any, path: str) -> str:
    text = _text(value, path)
    if "*" in text[:-1] or text == "*":
        raise fault(
            path, phrase("must be a job type, or the beginning of some with * at its end, such as mail.*"), value
        )
    return text


def _instant(value: Any, path: str) -> str:
    checked(durations.parse_instant, value, path)
    return str(value)


_FILTER_READERS: dict[str, Callable[[Any, str], str]] = {
    "queue": queue_name, "type": _pattern, "error_type": _text, "since": _instant, "until": _instant,
}  # fmt: skip


def _filter(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise fault("filter", phrase("must be an object"), value)
    known_only(value, FILTERS, "filter")
    found = {name: _FILTER_READERS[name](one, f"filter.{name}") for name, one in value.items() if one is not None}
    if not found:
        raise fault("filter", phrase("must name one of %(names)s at least", names=", ".join(FILTERS)))
    return found


def _delay(value: Any, path: str) -> int:
    found = checked(durations.parse_duration_ms, value, path)
    if found > MAX_DELAY_MS:
        raise fault(path, phrase("must be at most %(days)s days", days=MAX_DELAY_MS // 86_400_000), value)
    return found


_READERS: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    "delay": ("delay_ms", _delay),
    "max_replays": ("max_replays", integer(1, MAX_REPLAYS)),
    "per_minute": ("per_minute", integer(1, MAX_PER_MINUTE)),
    "enabled": ("enabled", flag),
}
