"""A call's arguments as the `args` of a job, which is an array, and back (docs/tasks.md, "Arguments").

Positional arguments are the elements. Keyword arguments follow them in one object `{"$kwargs": {...}}`, which is
there only where it is needed, so most tasks look like jobs that anybody could have written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from django_ojs.tasks.home import normalize_json

MARKER = "$kwargs"


def encode(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The `args` of the job for a call. Raises TypeError or ValueError for what has no JSON."""
    encoded = [*args]
    if kwargs or (encoded and _is_marker(encoded[-1])):  # a last argument that looks like ours is told apart
        encoded.append({MARKER: dict(kwargs)})
    return encoded


def decode(args: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The inverse of `encode`; what another client pushed without an object at the end is all positional."""
    if args and _is_marker(args[-1]):
        return list(args[:-1]), dict(args[-1][MARKER])
    return list(args), {}


def plain(value: Any) -> Any:
    """`value` as JSON would bring it back: tuples are lists, bytes are text, keys are strings.

    Raises TypeError or ValueError for what Django's own backends refuse.
    """
    return json.loads(json.dumps(normalize_json(value)))


def _is_marker(value: object) -> bool:
    return isinstance(value, Mapping) and value.keys() == {MARKER} and isinstance(value[MARKER], Mapping)
