"""Unique policies: read them, make the key of a job by canonical JSON, and say which jobs conflict (jobs 2)."""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any

from django_ojs import states
from django_ojs.jsontext import is_integer
from django_ojs.messages import phrase
from django_ojs.rules import durations
from django_ojs.rules.faults import checked, fault, shorten
from django_ojs.states import State

#: What `keys` may hold. `version` is no dimension of `key`: arguments are often called so.
DIMENSIONS = ("type", "queue", "args", "meta", "version")
#: What a policy may have on the wire.
MEMBERS = frozenset({"keys", "key", "args_keys", "meta_keys", "period", "states", "on_conflict"})
_IN_KEY = frozenset({"type", "queue", "args", "meta"})
DEFAULT_STATES = states.LIVE

#: The 400 of a malformed policy.
_fault = functools.partial(fault, validation="unique_policy")


class Strategy(StrEnum):
    """What happens where a job with the same key is there already (jobs 2.5)."""

    REJECT = "reject"
    IGNORE = "ignore"
    REPLACE = "replace"
    REPLACE_EXCEPT_SCHEDULE = "replace_except_schedule"


@dataclass(frozen=True, slots=True)
class UniquePolicy:
    """A policy as resolved by jobs 2.2. `args_names` None: all arguments; `strict`: every one must be there."""

    dimensions: frozenset[str] = frozenset({"type", "args"})
    args_names: tuple[str, ...] | None = None
    strict: bool = False
    meta_names: tuple[str, ...] = ()
    period_ms: int | None = None
    states: frozenset[State] = DEFAULT_STATES
    on_conflict: Strategy = Strategy.REJECT

    def conflicts(self, state: str, created_at: dt.datetime, now: dt.datetime) -> bool:
        """Whether a job with the same key, in this state and of this age, conflicts with a new one (jobs 2.4)."""
        if state not in self.states:
            return False
        until = self.until(created_at)
        return until is None or now < until

    def until(self, created_at: dt.datetime) -> dt.datetime | None:
        """Until when a job made then conflicts, whatever its state; None where only its state decides."""
        return None if self.period_ms is None else created_at + dt.timedelta(milliseconds=self.period_ms)

    def since(self, now: dt.datetime) -> dt.datetime | None:
        """Jobs that were created then or before it no longer conflict; None where only their state decides."""
        return None if self.period_ms is None else now - dt.timedelta(milliseconds=self.period_ms)


def parse(given: object, path: str = "unique") -> UniquePolicy:
    """The policy that a client's `unique` means. Null counts as absent, unknown members are ignored.

    Raises InvalidRequest (400, jobs 2.1) with the path of the member at fault.
    """
    if not isinstance(given, dict):
        raise _fault(path, phrase('must be an object such as {"keys": ["type", "args"]}'), given)
    signature = _signature(given)
    if signature is None or (policy := _parsed.get(signature)) is None:
        policy = _parse(given, path)
        if signature is not None:
            if len(_parsed) >= _MOST_PARSED:
                _parsed.clear()
            _parsed[signature] = policy
    return policy


#: The policies that this process has read lately: a site has few, and many jobs under each.
_parsed: dict[tuple[Any, ...], UniquePolicy] = {}
_MOST_PARSED = 256
#: The longest text, and the most members and names, of a policy that is remembered.
_LONGEST_TEXT, _MOST_NAMES = 64, 8


def _signature(given: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """What policies that say the same have in common; None for one that is too unusual to be remembered."""
    found: list[Any] = []
    for name, value in given.items():
        texts = value if type(value) is list else [value]
        if len(texts) > _MOST_NAMES or not all(type(text) is str and len(text) <= _LONGEST_TEXT for text in texts):
            return None
        found += name, len(texts) if texts is value else None, *texts
    return tuple(found) if len(given) <= _MOST_NAMES else None


def _parse(given: Mapping[str, Any], path: str) -> UniquePolicy:
    dimensions, args_names = _dimensions(given, path)
    wanted = _names(given, "args_keys", path)
    if wanted and "args" not in dimensions:
        raise _fault(f"{path}.args_keys", phrase("needs args among the keys"), given["args_keys"])
    meta_names = _names(given, "meta_keys", path) or ()
    if ("meta" in dimensions) != bool(meta_names):
        given_keys = given.get("meta_keys")
        if "meta" in dimensions:
            raise _fault(f"{path}.meta_keys", phrase("must name at least one key of meta"), given_keys)
        raise _fault(f"{path}.meta_keys", phrase("needs meta among the keys"), given_keys)
    return UniquePolicy(
        dimensions=dimensions | {"type"},
        args_names=wanted or args_names,
        strict=bool(wanted),
        meta_names=meta_names,
        period_ms=_period(given, path),
        states=_states(given, path),
        on_conflict=_strategy(given, path),
    )


def key(
    policy: UniquePolicy, type: str, queue: str, args: Sequence[Any], meta: Mapping[str, Any], version: Any = None,
    path: str = "unique",
) -> str:  # fmt: skip
    """The unique key: lowercase hex SHA-256 of the canonical JSON of the dimensions (jobs 2.3).

    Raises InvalidRequest where `args_keys` names what no argument has.
    """
    seen: dict[str, Any] = {"type": type}
    if "queue" in policy.dimensions:
        seen["queue"] = queue
    if "args" in policy.dimensions:
        seen["args"] = _selected(policy, args, path)
    if "meta" in policy.dimensions:
        seen["meta"] = {name: meta.get(name) for name in policy.meta_names}
    if version is not None:  # versions of a job type are distinct jobs
        seen["version"] = _version(version)
    return hashlib.sha256(canonical(seen).encode()).hexdigest()


def _dimensions(given: Mapping[str, Any], path: str) -> tuple[frozenset[str], tuple[str, ...] | None]:
    """`keys` are dimensions. `key` are dimensions if all of them are, else fields of the arguments: the specification
    has both members, and this order (2.2)."""
    if keys := _names(given, "keys", path):
        for name in keys:
            if name not in DIMENSIONS:
                raise _fault(f"{path}.keys", phrase("must be some of %(words)s", words=", ".join(DIMENSIONS)), name)
        return frozenset(keys), None
    if given.get("keys") is None and (names := _names(given, "key", path)):
        if _IN_KEY.issuperset(names):
            return frozenset(names), None
        return frozenset({"args"}), names
    return frozenset({"args"}), None


def _names(given: Mapping[str, Any], member: str, path: str) -> tuple[str, ...] | None:
    value = given.get(member)
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) and name for name in value):
        raise _fault(f"{path}.{member}", phrase("must be an array of non-empty strings"), value)
    return tuple(dict.fromkeys(value))


def _selected(policy: UniquePolicy, args: Sequence[Any], path: str) -> Any:
    """All arguments, or the named ones; `key` skips what it does not find, `args_keys` must find all."""
    if policy.args_names is None:
        return list(args)
    found = {name: values[0] for name in policy.args_names if (values := _look_up(name, args))}
    if policy.strict and len(found) < len(policy.args_names):
        missing = next(name for name in policy.args_names if name not in found)
        raise _fault(
            f"{path}.args_keys",
            phrase("must name what the arguments have; none has %(missing)s", missing=repr(shorten(missing))),
            missing,
        )
    return found or list(args)


def _look_up(name: str, args: Sequence[Any]) -> list[Any]:
    """The value under `name` in the first object that has it, else the argument at that position; `[]`: none."""
    for value in args:
        if isinstance(value, dict) and name in value:
            return [value[name]]
    if name.isascii() and name.isdecimal() and len(name) < 6 and int(name) < len(args):
        return [args[int(name)]]
    return []


def _period(given: Mapping[str, Any], path: str) -> int | None:
    value = given.get("period")
    return None if value is None else checked(durations.parse_length_ms, value, f"{path}.period", _fault)


def _states(given: Mapping[str, Any], path: str) -> frozenset[State]:
    names = _names(given, "states", path)
    if not names:
        return DEFAULT_STATES
    for name in names:
        if name not in set(State):
            raise _fault(f"{path}.states", phrase("must be some of %(words)s", words=", ".join(State)), name)
    return frozenset(map(State, names))


def _strategy(given: Mapping[str, Any], path: str) -> Strategy:
    value = given.get("on_conflict")
    if value is None:
        return Strategy.REJECT
    if not isinstance(value, str) or value not in set(Strategy):
        raise _fault(f"{path}.on_conflict", phrase("must be one of %(words)s", words=", ".join(Strategy)), value)
    return Strategy(value)


# Canonical JSON (RFC 8785): the same value has the same text, in whatever order and form it was written.
#
# Beyond the RFC every string is NFC-normalised, as jobs 2.3 asks, and integers that a double
# cannot hold keep all of their digits: two large ids must never become one.


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
#: Integers up to here are written with all of their digits.
_PLAIN_BELOW = 10**21
# A lone surrogate has no UTF-8: it is escaped, as JavaScript's JSON.stringify does.
_SPECIAL = re.compile(r'["\\\x00-\x1f\ud800-\udfff]')


def _version(version: Any) -> Any:
    """A version as all its forms: 2, "2" and "2.0" are one. A text may have more digits than Python reads."""
    text = str(int(version)) if is_integer(version) else str(version)
    return f"{text.lstrip('0') or '0'}.0" if text.isascii() and text.isdecimal() else version


def canonical(value: Any) -> str:
    """The canonical text of a JSON value. TypeError for what JSON does not know, ValueError for NaN and Infinity."""
    write = _WRITERS.get(type(value))
    if write is not None:
        return write(value)
    match value:  # a subclass of one of these
        case str():
            return _string(value)
        case int() | float() | Decimal():
            return _number(value)
        case list() | tuple():
            return _array(value)
        case dict():
            return _object(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value.")


def _array(values: Sequence[Any]) -> str:
    return f"[{','.join([canonical(value) for value in values])}]"


def _object(members: Mapping[Any, Any]) -> str:
    if all(type(name) is str and name.isascii() for name in members):  # their characters are code units
        return f"{{{','.join([f'{_string(name)}:{canonical(members[name])}' for name in sorted(members)])}}}"
    return "{" + ",".join(text for _, text in sorted(map(_member, members.items()))) + "}"


def _member(item: tuple[Any, Any]) -> tuple[bytes, str]:
    """Sort key (UTF-16 code units) and text; names that become equal when normalised are ordered by their text."""
    name, value = item
    if not isinstance(name, str):
        raise TypeError(f"A name in a JSON object is a string, not {type(name).__name__}.")
    normal = name if name.isascii() else unicodedata.normalize("NFC", name)
    return normal.encode("utf-16-be", "surrogatepass"), f"{_string(name)}:{canonical(value)}"


def _integer(value: int) -> str:
    return str(value) if -_PLAIN_BELOW < value < _PLAIN_BELOW else _number(value)


def _string(text: str) -> str:
    if text.isascii() and not _SPECIAL.search(text):
        return f'"{text}"'
    return f'"{_SPECIAL.sub(_escape, unicodedata.normalize("NFC", text))}"'


def _escape(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[0]) or f"\\u{ord(found[0]):04x}"


def _number(value: int | float | Decimal) -> str:
    """ECMAScript's Number::toString: the shortest digits of a double; all digits of an integer, and of what no
    double comes near."""
    if isinstance(value, Decimal) and value != value.to_integral_value():
        double = float(value)
        value = double if double and abs(double) != float("inf") else value
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError("NaN and Infinity are not JSON numbers.")
    if not value:
        return "0"
    exact = value if isinstance(value, Decimal) else Decimal(value if isinstance(value, int) else repr(value))
    sign, digits, exponent = exact.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    significant = text.strip("0")
    point = len(text.lstrip("0")) + exponent
    return ("-" if sign else "") + _layout(significant, point)


def _layout(digits: str, point: int) -> str:
    """Digits with the decimal point `point` places after the first: plain from 1e-6 up to below 1e21."""
    if len(digits) <= point <= 21:
        return digits.ljust(point, "0")
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    exponent = point - 1
    mantissa = digits if len(digits) == 1 else f"{digits[0]}.{digits[1:]}"
    return f"{mantissa}e{'+' if exponent > 0 else '-'}{abs(exponent)}"


#: What most values are.
_WRITERS: Mapping[type, Callable[[Any], str]] = {
    str: _string, int: _integer, list: _array, dict: _object, bool: {True: "true", False: "false"}.__getitem__,
    type(None): {None: "null"}.__getitem__,
}  # fmt: skip
