"""Reads single values of configurations: each function returns the value, or raises `InvalidRequest` with its path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django_ojs import jsontext
from django_ojs.messages import phrase, reason
from django_ojs.rules import names
from django_ojs.rules.faults import member_fault as fault


def queue_name(value: Any, path: str) -> str:
    """A name that a queue may have (core 5.1)."""
    try:
        return names.check_queue(value)
    except ValueError as error:
        raise fault(path, reason(error), value) from error


def flag(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise fault(path, phrase("must be true or false"), value)
    return value


def integer(minimum: int, maximum: int) -> Callable[[Any, str], int]:
    """A reader of integers from `minimum` to `maximum`."""

    def read(value: Any, path: str) -> int:
        if not jsontext.is_integer(value) or not minimum <= value <= maximum:
            problem = phrase("must be an integer from %(minimum)s to %(maximum)s", minimum=minimum, maximum=maximum)
            raise fault(path, problem, value)
        return int(value)

    return read
