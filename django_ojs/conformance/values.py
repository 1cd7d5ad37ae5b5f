"""JSON values as the runner sees them: absence, strict equality, type names and how to show them in a reason."""

from __future__ import annotations

import enum
import json
from typing import Final


class Missing(enum.Enum):
    """The one value that stands for "there is nothing here", which JSON's null does not."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING

TYPE_NAMES: Final = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})


def is_number(value: object) -> bool:
    """True for JSON numbers; Python's booleans are no numbers here."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def has_type(value: object, name: str) -> bool:
    """Whether a value has the JSON type of that name. 3.0 is an integer, as in JSON Schema."""
    match name:
        case "string":
            return isinstance(value, str)
        case "number":
            return is_number(value)
        case "integer":
            return is_number(value) and float(value) == int(value)  # type: ignore[call-overload, arg-type]
        case "boolean":
            return isinstance(value, bool)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case "null":
            return value is None
        case _:
            raise ValueError(f"unknown JSON type {name!r}")


def equal(left: object, right: object) -> bool:
    """JSON equality: 1 equals 1.0, but true does not equal 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(equal(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    return left == right


def show(value: object, limit: int = 160) -> str:
    """A value as short JSON text for a reason."""
    text = "nothing" if value is MISSING else json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= limit else text[: limit - 1] + "…"
