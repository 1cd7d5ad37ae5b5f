"""A queue's configuration: what it may say, and how a partial one is laid over another (jobs 4.2)."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from django_ojs import jsontext
from django_ojs.errors import InvalidRequest, OJSError
from django_ojs.jsontext import is_integer
from django_ojs.messages import phrase, reason
from django_ojs.rules import durations, ratelimit, retrypolicy
from django_ojs.rules.faults import checked, fault, flag, integer, queue_name, share, shorten

MemberReader = Callable[[Any, str], Any]

MAX_DEPTH = 32  #: of nested arrays and objects; events wrap a configuration in more of them
MAX_NUMBER = 2**53
MAX_SECONDS = 10 * 365 * 86_400
RETENTION = ("completed", "cancelled", "discarded")


def check(given: object, path: str = "config") -> dict[str, Any]:
    """`given` if it is a valid configuration. Null counts as absent, and unknown fields are kept as they are.

    Raises `InvalidRequest` that names the field.
    """
    config = check_change(given, path)
    for name, value in config.items():
        if value is not None and name in _READERS:
            _READERS[name](value, name)
    return config


def check_change(given: object, path: str = "config") -> dict[str, Any]:
    """`given` if it can be laid over a configuration. What it says can be judged in the whole only: it may hold a part
    of a policy. Raises `InvalidRequest` that names the field."""
    if not isinstance(given, dict):
        raise fault(path, phrase('must be an object such as {"concurrency": 5}'), given)
    for name, value in given.items():
        if jsontext.is_deeper(value, MAX_DEPTH - 1):
            raise fault(shorten(name), phrase("must not nest deeper than %(most)s levels", most=MAX_DEPTH))
    return given


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the members of `over`; objects are merged member by member, and null removes a member."""
    merged = dict(base)
    for name, value in over.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict):
            below = merged.get(name)
            merged[name] = merge(below if isinstance(below, dict) else {}, value)
        else:
            merged[name] = value
    return merged


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The partial configuration that makes `after` of `before`: `merge(before, difference(before, after)) == after`.

    As long as `after` has no empty objects and no nulls, which mean nothing in a configuration.
    """
    change: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        known = before.get(name)
        if isinstance(value, dict) and isinstance(known, dict):
            if below := difference(known, value):
                change[name] = below
        elif name not in before or value != known or type(value) is not type(known):
            change[name] = value
    return change


def rate_policy(config: Mapping[str, Any]) -> ratelimit.RatePolicy:
    """The limits of the queue itself: its `rate_limit`, and its `concurrency` over the one in there."""
    given = config.get("rate_limit")
    policy = ratelimit.parse(given, "rate_limit", fault=fault) if given else ratelimit.NONE
    concurrency = config.get("concurrency", policy.concurrency)
    return ratelimit.RatePolicy("", concurrency, policy.rate, policy.throttle, policy.on_limit)


def retention_seconds(config: Mapping[str, Any], kind: str) -> float | None:
    """How long finished jobs of a kind (`completed`, `cancelled`, `discarded`, `dead_letter`) are kept, if it says."""
    if kind == "dead_letter":
        value = _dead_letters(config, "max_age", "dead_letter_ttl")
    else:
        value = deep(config, "retention", kind)
    return None if value is None else _seconds(value, kind)


def dead_letter_max_count(config: Mapping[str, Any]) -> int | None:
    value = _dead_letters(config, "max_count", "dead_letter_max_size")
    return None if value is None else int(value)


def allows(patterns: tuple[str, ...] | None, job_type: str) -> bool:
    """Whether a type falls under one of the patterns, in which `*` stands for anything; None allows all."""
    return patterns is None or any(fnmatch.fnmatchcase(job_type, pattern) for pattern in patterns)


def deep(config: Mapping[str, Any], *path: str) -> Any:
    """The member at this path; None where there is none."""
    value: Any = config
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _dead_letters(config: Mapping[str, Any], member: str, other_name: str) -> Any:
    value = deep(config, "dead_letter", "retention", member)
    return config.get(other_name) if value is None else value


def _one_of(*words: str) -> MemberReader:
    def read(value: Any, path: str) -> str:
        if value not in words:
            raise fault(path, phrase("must be one of %(words)s", words=", ".join(words)), value)
        return str(value)

    return read


def _seconds(value: Any, path: str) -> float:
    """A duration, or a whole number of seconds."""
    if jsontext.is_integer(value) and 0 <= value <= 100 * 365 * 86_400:
        return float(value)
    return checked(durations.parse_duration_ms, value, path) / 1000


def _patterns(value: Any, path: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise fault(
            path, phrase('must be an array of names in which * stands for anything, such as ["email.*"]'), value
        )
    return value


def _retry(value: Any, path: str) -> Any:
    try:
        return retrypolicy.parse(value, path)
    except OJSError as error:
        raise InvalidRequest(reason(error), details=error.details) from error


def _rate_limit(value: Any, path: str) -> Any:
    return ratelimit.parse(value, path, fault=fault)


def _object(**members: MemberReader) -> MemberReader:
    def read(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise fault(path, phrase("must be an object"), value)
        for name, reader in members.items():
            if value.get(name) is not None:
                reader(value[name], f"{path}.{name}")
        return value

    return read


_overflow = _one_of("reject", "drop_oldest", "block")
_READERS: dict[str, MemberReader] = {
    "max_size": integer(0, MAX_NUMBER),
    "max_size_bytes": integer(0, MAX_NUMBER),
    "overflow_policy": _overflow,
    "backpressure": _object(
        max_depth=integer(0, MAX_NUMBER),
        max_size_bytes=integer(0, MAX_NUMBER),
        strategy=_overflow,
        warning_threshold=share,
    ),
    "concurrency": integer(0, ratelimit.MAX_NUMBER),
    "rate_limit": _rate_limit,
    "visibility_timeout": integer(1, MAX_SECONDS),
    "default_timeout": integer(1, MAX_SECONDS),
    "default_retry": _retry,
    "retention": _object(**dict.fromkeys(RETENTION, _seconds)),
    "dead_letter": _object(retention=_object(max_age=_seconds, max_count=integer(0, MAX_NUMBER))),
    "dead_letter_queue": queue_name,
    "dead_letter_max_size": integer(0, MAX_NUMBER),
    "dead_letter_ttl": _seconds,
    "allowed_job_types": _patterns,
    "producers": _patterns,
    "draining": flag,
}

#: What a configuration may say; others are kept and mean nothing to this server.
KEYS = tuple(_READERS)


# The bounds of a queue (jobs 6).


STRATEGIES = ("reject", "block", "drop_oldest")
WARNING_THRESHOLD = 0.8


class Bound(NamedTuple):
    """The bounds of a queue. Jobs count until they end; None: no bound of this kind."""

    max_depth: int | None = None
    max_bytes: int | None = None
    strategy: str = "reject"
    warning: float = WARNING_THRESHOLD

    def pressure(self, depth: int, size: int) -> float:
        """How full the queue is, from 0 to 1, by the bound that it is nearer to."""
        shares = [depth / self.max_depth] if self.max_depth else []
        shares += [size / self.max_bytes] if self.max_bytes else []
        return min(max(shares, default=0.0), 1.0)


def bound_of(config: object) -> Bound | None:
    """The bound in a queue's configuration, None where there is none; `backpressure` beats `max_size`.

    An invalid value counts as no bound, since `config` was checked when it was set.
    """
    if not isinstance(config, Mapping):
        return None
    own = config.get("backpressure")
    own = own if isinstance(own, Mapping) else {}
    depth = _bound(own.get("max_depth")) or _bound(config.get("max_size"))
    size = _bound(own.get("max_size_bytes")) or _bound(config.get("max_size_bytes"))
    if depth is None and size is None:
        return None
    strategy = own.get("strategy") or config.get("overflow_policy")
    warning = own.get("warning_threshold")
    return Bound(
        depth,
        size,
        strategy if strategy in STRATEGIES else "reject",
        _warning(warning),
    )


def _bound(value: Any) -> int | None:
    return int(value) if is_integer(value) and value > 0 else None


def _warning(value: Any) -> float:
    sensible = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
    return float(value) if sensible else WARNING_THRESHOLD
