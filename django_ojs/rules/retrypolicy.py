"""Retry policies: what a client may say, how layers combine, the backoff and the decision at FAIL (jobs 1)."""

from __future__ import annotations

import random as random_module
from collections.abc import Callable, Collection, Iterable, Mapping
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

#: The words of `backoff_strategy`: by what each multiplies the first interval after the attempt of a number, from 1 on,
#: with the coefficient of the policy. An OverflowError is beyond every cap.
STRATEGIES: Mapping[str, Callable[[int, float], float]] = {
    "exponential": lambda number, coefficient: coefficient ** (number - 1),
    "linear": lambda number, coefficient: float(number),
    "polynomial": lambda number, coefficient: float(number) ** coefficient,
    "constant": lambda number, coefficient: 1.0,
}
#: The words of `on_exhaustion`.
EXHAUSTION = ("discard", "dead_letter")


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
    retryable: tuple[str, ...] = ()


class FailureOutcome(StrEnum):
    """What becomes of a job that failed."""

    RETRY = "retry"  #: `retryable`, with backoff
    DISCARD = "discard"  #: `discarded` and kept out of the dead letter queue
    DEAD_LETTER = "dead_letter"  #: `discarded`, in the dead letter queue


#: The codes by which a handler ends its job for good.
_VERDICTS = {
    "DISCARD": FailureOutcome.DISCARD,
    "FAIL": FailureOutcome.DISCARD,
    "DEAD_LETTER": FailureOutcome.DEAD_LETTER,
}

DEFAULT = RetryPolicy()
_NAMES = frozenset(field.name for field in fields(RetryPolicy))


def parse(given: object, path: str = "retry") -> dict[str, Any]:
    """The fields that a client's policy gives, by their names in `RetryPolicy`; null and unknown keys are ignored.

    Raises InvalidPayload (400) where `given` is not an object, InvalidRetryPolicy (422) for a bad value.
    """
    if not isinstance(given, dict):
        raise job_fault(path, phrase('must be an object such as {"max_attempts": 5}'), given)
    parsed: dict[str, Any] = {}
    for member, (name, read) in _MEMBERS.items():
        value = given.get(member)
        if value is not None:
            parsed[name] = checked(read, value, f"{path}.{member}", retry_fault)
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
    for name in ("retryable", "non_retryable"):
        if name in values:
            values[name] = tuple(values[name])
    return RetryPolicy(**values)


#: The share of a wait by which `jitter` makes it shorter or longer at most.
JITTER = 0.25


def backoff_ms(policy: RetryPolicy, attempt: int, random: Callable[[], float] = random_module.random) -> int:
    """Milliseconds to wait after `attempt` (from 1) failed: capped, spread by `JITTER`, capped again (jobs 1.3).

    A client that measures a wait allows 50 % (conformance 5.6), and the other half is for its own latency.
    """
    wait = min(_raw_ms(policy, max(attempt, 1)), float(policy.max_ms))
    if policy.jitter:
        wait = min(wait * (1 - JITTER + 2 * JITTER * random()), float(policy.max_ms))
    return round(wait)


def may_be_retried(policy: RetryPolicy, error: Mapping[str, Any]) -> bool:
    """Whether the two lists of the policy let an attempt that ended with `error` be repeated (jobs 1.5).

    An error that `non_retryable_errors` names is not repeated. Where `retryable_errors` names any, one that it does not
    name is not either. Of a group of exceptions one that may be repeated is enough, unless the group itself is named.
    """
    if not policy.non_retryable and not policy.retryable:
        return True
    details = error.get("details")
    facts = details if isinstance(details, Mapping) else {}
    names = [error.get("type"), error.get("code"), facts.get("error_class")]
    if isinstance(names[-1], str):
        names += _of_classes(facts.get("error_bases"))
    if _is_listed(policy.non_retryable, names):
        return False
    allowed = not policy.retryable or error.get("code") == "RETRY" or _is_listed(policy.retryable, names)
    classes, bases = facts.get("error_classes"), facts.get("error_classes_bases")
    if not isinstance(classes, list) or not classes:
        return allowed
    made_from = bases if isinstance(bases, Mapping) else {}
    leaves = [_of_classes([name]) + _of_classes(made_from.get(str(name))) for name in classes]
    return any(
        (allowed or _is_listed(policy.retryable, leaf)) and not _is_listed(policy.non_retryable, leaf)
        for leaf in leaves
    )


def _of_classes(classes: object) -> list[str]:
    """By which names a list may have an exception of these classes: theirs, with the module and without, and the one
    that stands for all."""
    whole = [name for name in classes if isinstance(name, str)] if isinstance(classes, list) else []
    return [*whole, *(name.rpartition(".")[2] for name in whole), "Exception"]


def _is_listed(entries: Iterable[str], names: Iterable[object]) -> bool:
    return any(_matches(entry, name) for entry in entries for name in names if isinstance(name, str))


def is_retryable(policy: RetryPolicy, error: Mapping[str, Any]) -> bool:
    """Whether an attempt that ended with `error` is worth another one, however many are left (jobs 1.4)."""
    code = error.get("code")
    if code in _VERDICTS:
        return False
    hopeless = not may_be_retried(policy, error) or (error.get("retryable") is False and code != "RETRY")
    return not hopeless or _is_shutdown(error)


def decide(policy: RetryPolicy, error: Mapping[str, Any], attempt: int) -> FailureOutcome:
    """What becomes of a job whose `attempt` failed with `error`: the first matching row of jobs 1.4.

    Not asked where a worker gives its own delay, or hands the job back without an error (`jobs.finish`).
    """
    if verdict := _VERDICTS.get(str(error.get("code"))):
        return verdict
    if attempt < max(1, policy.max_attempts) and is_retryable(policy, error):
        return FailureOutcome.RETRY
    return FailureOutcome.DISCARD if policy.on_exhaustion == "discard" else FailureOutcome.DEAD_LETTER


def _is_shutdown(error: Mapping[str, Any]) -> bool:
    if error.get("type") in SHUTDOWN or error.get("code") in SHUTDOWN:
        return True
    return error.get("code") == "cancelled" and error.get("retryable") is True


def _matches(entry: str, text: str) -> bool:
    return text.startswith(entry[:-1]) if entry.endswith(".*") else text == entry


def _raw_ms(policy: RetryPolicy, number: int) -> float:
    try:
        factor = STRATEGIES.get(policy.strategy, STRATEGIES[DEFAULT.strategy])(number, policy.coefficient)
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


def _one_of(words: Collection[str]) -> Callable[[object], str]:
    def read(value: object) -> str:
        if isinstance(value, str) and value in words:
            return value
        raise ValueError(phrase("must be one of %(words)s", words=", ".join(words)))

    return read


#: The members of a policy on the wire: the field of `RetryPolicy`, and the reader of its value (jobs 1.1).
_MEMBERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "max_attempts": ("max_attempts", _attempts),
    "initial_interval": ("initial_ms", durations.parse_length_ms),
    "backoff_coefficient": ("coefficient", _coefficient),
    "max_interval": ("max_ms", durations.parse_length_ms),
    "jitter": ("jitter", _boolean),
    "retryable_errors": ("retryable", _strings),
    "non_retryable_errors": ("non_retryable", _strings),
    "on_exhaustion": ("on_exhaustion", _one_of(EXHAUSTION)),
    "backoff_strategy": ("strategy", _one_of(STRATEGIES)),
}

#: What a policy may have on the wire.
MEMBERS = frozenset(_MEMBERS)
