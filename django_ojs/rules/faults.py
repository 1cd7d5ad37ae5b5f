"""Builds the errors for faulty values of clients: the field, what it must be, and a safe bit of what came.

There is one function for each kind of error: jobs (`fault`), retry policies, workflows, all other bodies
(`member_fault`).
"""

from __future__ import annotations

import math
import re
from typing import Any

from django_ojs.errors import InvalidPayload, InvalidRequest, InvalidRetryPolicy, InvalidWorkflow
from django_ojs.messages import phrase

_MAX_RECEIVED = 100


def fault(
    path: str, message: str, received: Any = None, *, canonical: str = "", validation: str = "invalid"
) -> InvalidPayload:
    """InvalidPayload for the field at `path`; `message` begins after the field's name, without a full stop."""
    return InvalidPayload.field(
        path,
        phrase("%(field)s: %(problem)s.", field=path, problem=message),
        expected=message.removeprefix("must be "),
        received=shorten(received),
        validation=validation,
        canonical=canonical,
    )


def member_fault(
    path: str, message: str, received: Any = None, *, canonical: str = "", hint: str = "", **more: Any
) -> InvalidRequest:
    """InvalidRequest for the member at `path` of a body that is no job; `message` begins after the member's name.

    It ends without a full stop. `more` goes into the details.
    """
    problem = phrase("%(field)s: %(problem)s.", field=path, problem=message)
    details = {
        "field": path, "expected": message.removeprefix("must be "), "received": shorten(received), **more,
        "validation_errors": [{"path": path, "message": str(problem)}],
    }  # fmt: skip
    return InvalidRequest(problem, details=details, canonical=canonical, hint=hint)


def retry_fault(path: str, message: str, received: Any) -> InvalidPayload:
    """The 422 of a retry value; `details` also in the words of jobs 1.9 (`value`, `constraint`, `error_type`)."""
    error = InvalidRetryPolicy.field(
        path,
        phrase("%(field)s: %(problem)s.", field=path, problem=message),
        expected=message.removeprefix("must be "),
        received=shorten(received),
        validation="retry_policy",
    )
    facts = {"value": shorten(received), "constraint": str(message), "error_type": "validation.retry_policy_invalid"}
    error.details.update(facts)
    return error


def workflow_fault(path: str, message: str, **details: Any) -> InvalidWorkflow:
    """InvalidWorkflow for the member at `path` (`$.steps[2].depends_on[0]`); `message` begins after it."""
    errors = [{"path": path, "message": f"{message}."}]
    found = re.search(r"\[(\d+)\]", path)
    facts = {"field": path, "validation_errors": errors} | ({"index": int(found[1])} if found else {})
    problem = phrase("%(field)s: %(problem)s.", field=path, problem=message)
    return InvalidWorkflow(problem, details=facts | details)


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
