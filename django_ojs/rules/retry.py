"""Retry policies: what a client may say, how layers combine, the backoff and the decision at FAIL (jobs 1)."""

from __future__ import annotations

import random as random_module
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import lru_cache
from typing import Any

from django_ojs import jsontext
from django_ojs.messages import phrase
from django_ojs.rules import durations
from django_ojs.rules.faults import checked, job_fault, retry_fault

MAX_ATTEMPTS = 2_147_483_647  #: the largest `max_attempts`: what every database's integer column holds

#: What a worker reports when it is stopped: not the job's fault, so always worth a retry (orchestration 4).
SHUTDOWN = frozenset({"shutdown", "ShutdownError", "ShutdownTimeout"})

_STRATEGIES = {name: name for name in ("exponential", "linear", "polynomial", "constant")} | {"none": "constant"}


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """A complete policy with the defaults of jobs 1.1; intervals in milliseconds."""

    max_attempts: int = 3
    initial_ms: int = 1_000
    coefficient: float = 2.0
    max_ms: int = 300_000
    jitter: bool = True
    non_retryable: tuple[str, ...] = ()
    on_exhaustion: str | None = None
    strategy: str = "exponential"


class Outcome(StrEnum):
    """What becomes of a job that failed."""

    RETRY = "retry"  #: `retryable`, with backoff
    DISCARD = "discard"  #: `discarded` and kept out of the dead letter queue
    DEAD_LETTER = "dead_letter"  #: `discarded`, in the dead letter queue


#: The codes by which a handler ends its job for good.
_VERDICTS = {"DISCARD": Outcome.DISCARD, "FAIL": Outcome.DISCARD, "DEAD_LETTER": Outcome.DEAD_LETTER}

DEFAULT = RetryPolicy()
_NAMES = frozenset(field.name for field in fields(RetryPolicy))


def parse(given: object, path: str = "retry") -> dict[str, Any]:
    """The fields that a client's policy gives, by their names in `RetryPolicy`; null and unknown keys are ignored.

    Raises InvalidPayload (400) where `given` is not an object, InvalidRetryPolicy (422) for a bad value.
    """
    if not isinstance(given, dict):
        raise job_fault(path, phrase('must be an object such as {"max_attempts": 5}'), given)
    parsed: dict[str, Any] = {}
    for name, spellings in _SPELLINGS.items():
        for key, read in spellings:
            value = given.get(key)
            if value is not None:
                parsed[name] = checked(read, value, f"{path}.{key}", retry_fault)
                break
    _check_order(parsed, path)
    return parsed


def merge(*layers: Mapping[str, Any]) -> RetryPolicy:
    """The policy of several `parse` results over the defaults; later layers win field by field.

    A layer that gives only the initial interval raises a smaller cap that it inherits. A layer whose own cap
    is below its own initial interval raises InvalidRetryPolicy (422).
    """
    values: dict[str, Any] = {}
    for layer in layers:
        if not layer:
            continue
        _check_order(layer, "retry")
        values.update(layer)
        if "initial_ms" in layer and "max_ms" not in layer:
            values["max_ms"] = max(values.get("max_ms", DEFAULT.max_ms), layer["initial_ms"])
    return RetryPolicy(**values) if values else DEFAULT


def to_json(policy: RetryPolicy) -> str:
    """The fields of `policy` that differ from the defaults as JSON text; '' where none does."""
    if policy is DEFAULT or policy == DEFAULT:
        return ""
    values = {name: getattr(policy, name) for name in RetryPolicy.__slots__}
    return jsontext.dumps({name: value for name, value in values.items() if value != getattr(DEFAULT, name)})


@lru_cache(maxsize=1024)
def from_json(text: str) -> RetryPolicy:
    """The inverse of `to_json`. Fields of a later version are ignored; ValueError for text that is not JSON."""
    if not text:
        return DEFAULT
    values = {name: value for name, value in jsontext.loads(text).items() if name in _NAMES}
    if "non_retryable" in values:
        values["non_retryable"] = tuple(values["non_retryable"])
    return RetryPolicy(**values)


def backoff_ms(policy: RetryPolicy, attempt: int, random: Callable[[], float] = random_module.random) -> int:
    """Milliseconds to wait after `attempt` (from 1) failed: capped, spread by 0.5 to 1.5, capped again (jobs 1.3)."""
    wait = min(_raw_ms(policy, max(attempt, 1)), float(policy.max_ms))
    if policy.jitter:
        wait = min(wait * (0.5 + random()), float(policy.max_ms))
    return round(wait)


def is_non_retryable(policy: RetryPolicy, error: Mapping[str, Any]) -> bool:
    """Whether type, error class or code is listed, whole or by a `prefix.*` (jobs 1.5)."""
    if not policy.non_retryable:
        return False
    details = error.get("details")
    error_class = details.get("error_class") if isinstance(details, Mapping) else None
    candidates = [text for text in (error.get("type"), error_class, error.get("code")) if isinstance(text, str)]
    return any(_matches(entry, text) for entry in policy.non_retryable for text in candidates)


def is_retryable(policy: RetryPolicy, error: Mapping[str, Any]) -> bool:
    """Whether an attempt that ended with `error` is worth another one, however many are left (jobs 1.4)."""
    code = error.get("code")
    if code in _VERDICTS:
        return False
    hopeless = is_non_retryable(policy, error) or (error.get("retryable") is False and code != "RETRY")
    return not hopeless or _is_shutdown(error)


def decide(policy: RetryPolicy, error: Mapping[str, Any], attempt: int) -> Outcome:
    """What becomes of a job whose `attempt` failed with `error`: the first matching row of jobs 1.4.

    Not asked where a worker gives its own delay, or hands the job back without an error (`jobs.finish`).
    """
    if verdict := _VERDICTS.get(str(error.get("code"))):
        return verdict
    if attempt < max(1, policy.max_attempts) and is_retryable(policy, error):
        return Outcome.RETRY
    return Outcome.DISCARD if policy.on_exhaustion == "discard" else Outcome.DEAD_LETTER


def _is_shutdown(error: Mapping[str, Any]) -> bool:
    if error.get("type") in SHUTDOWN or error.get("code") in SHUTDOWN:
        return True
    return error.get("code") == "cancelled" and error.get("retryable") is True


def _matches(entry: str, text: str) -> bool:
    return text.startswith(entry[:-1]) if entry.endswith(".*") else text == entry


def _raw_ms(policy: RetryPolicy, number: int) -> float:
    try:
        match policy.strategy:
            case "constant":
                factor = 1.0
            case "linear":
                factor = float(number)
            case "polynomial":
                factor = float(number) ** policy.coefficient
            case _:
                factor = policy.coefficient ** (number - 1)
    except OverflowError:  # beyond every cap
        return float(policy.max_ms)
    return policy.initial_ms * factor


def _check_order(layer: Mapping[str, Any], path: str) -> None:
    initial, largest = layer.get("initial_ms"), layer.get("max_ms")
    if initial is not None and largest is not None and largest < initial:
        message = phrase("must be at least the initial interval (%(least)s)", least=durations.format_iso(initial))
        raise retry_fault(f"{path}.max_interval", message, durations.format_iso(largest))


def _attempts(value: object) -> int:
    if jsontext.is_integer(value) and 0 <= value <= MAX_ATTEMPTS:
        return int(value)
    raise ValueError(phrase("must be an integer from %(minimum)s to %(maximum)s", minimum=0, maximum=MAX_ATTEMPTS))


def _interval_ms(value: object) -> int:
    if jsontext.is_integer(value) and value > 0:
        return min(int(value), durations.MAX_MS)
    raise ValueError(phrase("must be a positive integer of milliseconds"))


def _coefficient(value: object) -> float:
    if isinstance(value, int | float | jsontext.ExactNumber) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = float("inf")
        if 1.0 <= number < float("inf"):
            return number
    raise ValueError(phrase("must be a number of at least 1.0"))


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(phrase("must be true or false"))


def _strings(value: object) -> tuple[str, ...]:
    if isinstance(value, list | tuple) and all(isinstance(item, str) and item for item in value):
        return tuple(value)
    raise ValueError(phrase("must be an array of non-empty strings"))


def _one_of(words: Mapping[str, str]) -> Callable[[object], str]:
    def read(value: object) -> str:
        if isinstance(value, str) and value in words:
            return words[value]
        raise ValueError(phrase("must be one of %(words)s", words=", ".join(words)))

    return read


_strategy = _one_of(_STRATEGIES)

#: Each field with its spellings on the wire, the first one present wins, and their readers (binding 3.3).
_SPELLINGS: dict[str, tuple[tuple[str, Callable[[Any], Any]], ...]] = {
    "max_attempts": (("max_attempts", _attempts),),
    "initial_ms": (
        ("initial_interval", durations.parse_length_ms),
        ("initial_interval_ms", _interval_ms),
        ("initial_delay_ms", _interval_ms),
    ),
    "coefficient": (("backoff_coefficient", _coefficient), ("backoff_multiplier", _coefficient)),
    "max_ms": (("max_interval", durations.parse_length_ms), ("max_interval_ms", _interval_ms)),
    "jitter": (("jitter", _boolean),),
    "non_retryable": (("non_retryable_errors", _strings),),
    "on_exhaustion": (("on_exhaustion", _one_of({"discard": "discard", "dead_letter": "dead_letter"})),),
    "strategy": (("backoff_strategy", _strategy), ("backoff_type", _strategy), ("strategy", _strategy)),
}

#: What a policy may have on the wire.
MEMBERS = frozenset(key for spellings in _SPELLINGS.values() for key, _ in spellings)
