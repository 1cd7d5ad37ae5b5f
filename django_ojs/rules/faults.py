"""Refuse a value that a client sent: the error says which member it is, what it must be, and quotes a safe bit of it.

`fault` is the error for a member of any body; `job_fault`, `retry_fault`, `workflow_fault` and `query_fault` are those
for which the specification has a code, a status or a form of its own. A `message` begins after the name of the member
and ends without a full stop: `must be true or false`.

The readers below check one value each: they return it, or raise `InvalidRequest` with its path.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

from django_ojs import jsontext
from django_ojs.errors import InvalidPayload, InvalidRequest, InvalidRetryPolicy, InvalidWorkflow, OJSError
from django_ojs.messages import phrase, reason
from django_ojs.rules import names

T = TypeVar("T")
E = TypeVar("E", bound=OJSError)

_MAX_RECEIVED = 100


def fault(
    path: str, message: str, received: Any = None, *, canonical: str = "", hint: str = "", **facts: Any
) -> InvalidRequest:
    """InvalidRequest (400) for the member at `path` of a body that is no job. `facts` go into the details."""
    return _refusal(InvalidRequest, path, message, received, facts, canonical, hint)


def job_fault(
    path: str, message: str, received: Any = None, *, canonical: str = "", validation: str = "invalid"
) -> InvalidPayload:
    """InvalidPayload (400) for the attribute of a job at `path`, such as `retry.max_attempts`."""
    return _refusal(InvalidPayload, path, message, received, {"validation": validation}, canonical)


def retry_fault(path: str, message: str, received: Any) -> InvalidRetryPolicy:
    """The 422 of a retry value; `details` also in the words of jobs 1.9 (`value`, `constraint`, `error_type`)."""
    error = _refusal(InvalidRetryPolicy, path, message, received, {"validation": "retry_policy"})
    facts = {"value": shorten(received), "constraint": str(message), "error_type": "validation.retry_policy_invalid"}
    error.details.update(facts)
    return error


def workflow_fault(path: str, message: str, **facts: Any) -> InvalidWorkflow:
    """InvalidWorkflow (400) for the member at `path` (`$.steps[2].depends_on[0]`)."""
    errors = [{"path": path, "message": f"{message}."}]
    found = re.search(r"\[(\d+)\]", path)
    details = {"field": path, "validation_errors": errors} | ({"index": int(found[1])} if found else {}) | facts
    if "received" in facts:
        details["received"] = shorten(facts["received"])
    return InvalidWorkflow(phrase("%(field)s: %(problem)s.", field=path, problem=message), details=details)


def query_fault(name: str, message: str, received: str) -> InvalidRequest:
    """InvalidRequest (400) for a parameter of the query string."""
    details = {"field": name, "expected": message.removeprefix("must be "), "received": shorten(received)}
    return InvalidRequest(f"The query parameter {name} {message}.", details=details)


def _refusal(
    kind: type[E], path: str, message: str, received: Any, facts: dict[str, Any], canonical: str = "", hint: str = ""
) -> E:
    problem = phrase("%(field)s: %(problem)s.", field=path, problem=message)
    details = {
        "field": path, "expected": message.removeprefix("must be "), "received": shorten(received), **facts,
        "validation_errors": [{"path": path, "message": str(problem)}],
    }  # fmt: skip
    return kind(problem, details=details, canonical=canonical, hint=hint)


def shorten(value: Any) -> Any:
    """`value` as something short that every JSON encoder can write; containers give only their kind."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 64 else "a very large integer"
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, list | tuple):
        return "array"
    if isinstance(value, dict):
        return "object"
    text = value if isinstance(value, str) else str(getattr(value, "literal", None) or repr(value))
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _MAX_RECEIVED else f"{text[:_MAX_RECEIVED]}…"


def known_only(given: Iterable[str], known: Collection[str], path: str = "") -> None:
    """Refuse members, of the object at `path`, that are not known: passed over, one might have meant more, or less."""
    if unknown := sorted(name for name in map(str, given) if name not in known):
        place = f"{path}.{unknown[0]}" if path else unknown[0]
        raise fault(shorten(place), phrase("is unknown here: there are %(names)s", names=", ".join(known)))


def checked(
    read: Callable[[Any], T], value: Any, path: str, refuse: Callable[..., OJSError] = fault, **facts: Any
) -> T:
    """`read(value)`. What it raises as ValueError is raised as `refuse(path, message, value, **facts)`."""
    try:
        return read(value)
    except ValueError as error:
        raise refuse(path, reason(error), value, **facts) from error


def queue_name(value: Any, path: str) -> str:
    """A name that a queue may have (core 5.1)."""
    return checked(names.check_queue, value, path)


def flag(value: Any, path: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise fault(path, phrase("must be true or false"), value)
    return value


def share(value: Any, path: str) -> float:
    """A number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise fault(path, phrase("must be a number from 0 to 1"), value)
    return float(value)


def integer(minimum: int, maximum: int) -> Callable[[Any, str], int]:
    """A reader of integers from `minimum` to `maximum`."""

    def read(value: Any, path: str) -> int:
        if not jsontext.is_integer(value) or not minimum <= value <= maximum:
            problem = phrase("must be an integer from %(minimum)s to %(maximum)s", minimum=minimum, maximum=maximum)
            raise fault(path, problem, value)
        return int(value)

    return read
