"""Rate limits: the forms in which a job or a queue states them, and the one form we work with (jobs 5.1)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from django_ojs import jsontext
from django_ojs.errors import OJSError
from django_ojs.messages import phrase
from django_ojs.rules import durations
from django_ojs.rules.faults import checked
from django_ojs.rules.faults import job_fault as envelope_fault

MAX_KEY_LENGTH = 255
MAX_NUMBER = 1_000_000_000
#: What a window, such as `rate`, may have on the wire, and what a policy may have.
WINDOW_MEMBERS = frozenset({"limit", "period"})
MEMBERS = WINDOW_MEMBERS | {"key", "scope", "concurrency", "rate", "throttle", "max_per_second", "on_limit"}
ON_LIMIT = ("wait", "reschedule", "drop")

#: What the keys of the server's own begin with: those of whole queues and of job types, which operators limit.
RESERVED = ("queue:", "type:")

_KEY = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:\-]*")

MakeError = Callable[[str, str, Any], OJSError]


@dataclass(frozen=True, slots=True)
class Window:
    """At most `limit` starts in `period_ms` milliseconds."""

    limit: int
    period_ms: int

    def as_wire(self) -> dict[str, Any]:
        return {"limit": self.limit, "period": durations.format_iso(self.period_ms)}


@dataclass(frozen=True, slots=True)
class RatePolicy:
    """What may run or start under a key. None: no limit of that kind; `key` '' belongs to the whole queue."""

    key: str = ""
    concurrency: int | None = None
    rate: Window | None = None
    throttle: Window | None = None
    on_limit: str = "wait"

    @property
    def limits(self) -> bool:
        return not (self.concurrency is None and self.rate is None and self.throttle is None)

    def as_wire(self) -> dict[str, Any]:
        """The canonical form, without the key."""
        wire: dict[str, Any] = {} if self.concurrency is None else {"concurrency": self.concurrency}
        wire |= {name: window.as_wire() for name in ("rate", "throttle") if (window := getattr(self, name))}
        return wire if self.on_limit == "wait" else wire | {"on_limit": self.on_limit}


NONE = RatePolicy()


def queue_key(queue: str) -> str:
    return f"queue:{queue}"


def key_in(key: str, queue: str) -> str:
    """The key of a job that has come to this queue: one that its job did not name is that of the queue."""
    return queue_key(queue) if key.startswith(queue_key("")) else key


def type_key(job_type: str) -> str:
    return f"type:{job_type}"


def is_key(text: object) -> bool:
    return isinstance(text, str) and len(text) <= MAX_KEY_LENGTH and _KEY.fullmatch(text) is not None


def parse(given: object, path: str = "rate_limit", *, fault: MakeError = envelope_fault) -> RatePolicy:
    """The policy in any of its forms; `fault` makes the error for a bad one (400)."""
    if not isinstance(given, dict):
        raise fault(path, phrase('must be an object such as {"key": "mail", "concurrency": 5}'), given)
    given = {name: value for name, value in given.items() if value is not None}
    key = _key(given, path, fault)
    rate = _rate(given, path, fault)
    throttle = _window(given["throttle"], f"{path}.throttle", fault) if "throttle" in given else None
    if throttle is None and "max_per_second" in given:
        throttle = _per_second(given["max_per_second"], f"{path}.max_per_second", fault)
    policy = RatePolicy(key, _concurrency(given, path, fault), rate, throttle, _on_limit(given, path, fault))
    if not (policy.limits or key):
        raise fault(
            path,
            phrase("must name a key, or one of concurrency, rate, throttle, limit and max_per_second"),
            given,
        )
    return policy


def parse_of_job(given: object, path: str = "rate_limit") -> RatePolicy:
    """The policy that a job states for itself. It names no key of the server's own, which others depend on, and
    stops no key: that is for operators, by an override. Raises InvalidPayload (400)."""
    policy = parse(given, path)
    if policy.key.startswith(RESERVED):
        problem = phrase(
            "must not begin with %(prefixes)s, as the keys of whole queues and job types do: an operator limits those",
            prefixes=" or ".join(RESERVED),
        )  # fmt: skip
        raise envelope_fault(f"{path}.key", problem, policy.key)
    if policy.concurrency == 0:
        problem = phrase("must be an integer from %(minimum)s to %(maximum)s", minimum=1, maximum=MAX_NUMBER)
        raise envelope_fault(f"{path}.concurrency", problem, 0)
    return policy


@lru_cache(maxsize=1024)
def to_json(policy: RatePolicy) -> str:
    """The policy as text for its column."""
    return jsontext.dumps({name: value for name, value in asdict(policy).items() if value not in (None, "", "wait")})


@lru_cache(maxsize=1024)
def from_json(text: str) -> RatePolicy:
    """The inverse of `to_json`; '' is a policy that limits nothing."""
    if not text:
        return NONE
    values = jsontext.loads(text)
    windows = {name: Window(**values[name]) for name in ("rate", "throttle") if name in values}
    return RatePolicy(**{**values, **windows})


def _key(given: dict[str, Any], path: str, fault: MakeError) -> str:
    key = given.get("key", "")
    if key != "" and not is_key(key):
        message = phrase(
            "must be 1 to %(most)s letters, digits and . _ : -, beginning with a letter or digit", most=MAX_KEY_LENGTH
        )
        raise fault(f"{path}.key", message, key)
    scope = given.get("scope")
    if scope not in (None, "tenant", "global"):
        raise fault(f"{path}.scope", phrase("must be tenant or global"), scope)
    if not key and not given.keys() & {"max_per_second", "limit", "concurrency", "rate", "throttle"}:
        raise fault(f"{path}.key", phrase("must name the limit that jobs share, such as mail"), given.get("key"))
    return str(key)


def _rate(given: dict[str, Any], path: str, fault: MakeError) -> Window | None:
    rate = given.get("rate")
    if isinstance(rate, dict):
        return _window(rate, f"{path}.rate", fault)
    if rate is not None:
        return Window(_number(rate, f"{path}.rate", fault), _period(given, path, fault))
    return _window(given, path, fault) if "limit" in given else None


def _window(given: object, path: str, fault: MakeError) -> Window:
    if not isinstance(given, dict):
        raise fault(path, phrase('must be an object such as {"limit": 10, "period": "PT1M"}'), given)
    return Window(_number(given.get("limit"), f"{path}.limit", fault), _period(given, path, fault))


def _period(given: dict[str, Any], path: str, fault: MakeError) -> int:
    return checked(durations.parse_length_ms, given.get("period"), f"{path}.period", fault)


def _per_second(value: object, path: str, fault: MakeError) -> Window:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.000_001 <= value <= 1_000_000:
        raise fault(path, phrase("must be a positive number of starts in a second"), value)
    return Window(int(value), 1_000) if float(value).is_integer() else Window(1, max(1, round(1_000 / value)))


def _concurrency(given: dict[str, Any], path: str, fault: MakeError) -> int | None:
    value = given.get("concurrency")
    if value is None:
        return None
    return _number(value, f"{path}.concurrency", fault, minimum=0)


def _on_limit(given: dict[str, Any], path: str, fault: MakeError) -> str:
    value = given.get("on_limit", "wait")
    if value not in ON_LIMIT:
        raise fault(f"{path}.on_limit", phrase("must be one of %(words)s", words=", ".join(ON_LIMIT)), value)
    return str(value)


def _number(value: object, path: str, fault: MakeError, minimum: int = 1) -> int:
    if not jsontext.is_integer(value) or not minimum <= value <= MAX_NUMBER:
        raise fault(
            path,
            phrase("must be an integer from %(minimum)s to %(maximum)s", minimum=minimum, maximum=MAX_NUMBER),
            value,
        )
    return int(value)
