"""Encode the arguments of a call as the `args` of a job, which is an array, and decode them; refuse what is not JSON.

Positional arguments are the elements. Keyword arguments follow them in one object `{"$kwargs": {...}}`, which is there
only where a caller uses keywords, so most jobs look as a client in any language would write them (docs/handlers.md,
"Arguments").
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import math
import pathlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from django.db.models import Model, QuerySet
from django.utils.functional import Promise

from django_ojs.jsontext import MAX_DEPTH, ExactNumber

#: The only key of the object that holds keyword arguments.
MARKER = "$kwargs"

#: What is often passed by mistake, and what to pass instead; the first match counts.
FIXES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (Model, "pass obj.pk and load the object in the handler"),
    (QuerySet, "pass list(queryset.values_list('pk', flat=True)) and query again in the handler"),
    ((dt.datetime, dt.date, dt.time), "pass .isoformat()"),
    (dt.timedelta, "pass .total_seconds()"),
    ((decimal.Decimal, uuid.UUID, pathlib.PurePath, Promise), "pass str(...)"),
    ((set, frozenset), "pass sorted(...) or list(...)"),
    ((bytes, bytearray, memoryview), "pass base64.b64encode(...).decode(), or store the data and pass a reference"),
    (enum.Enum, "pass .value"),
)


def encode(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The `args` of the job for the call `handler(*args, **kwargs)`."""
    encoded = [*args]
    if kwargs or (encoded and _holds_keywords(encoded[-1])):  # marks a last argument that only looks so
        encoded.append({MARKER: dict(kwargs)})
    return encoded


def decode(args: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The positional and the keyword arguments for a handler: the inverse of `encode`."""
    if args and _holds_keywords(args[-1]):
        return list(args[:-1]), dict(args[-1][MARKER])
    return list(args), {}


def _holds_keywords(value: object) -> bool:
    return isinstance(value, Mapping) and value.keys() == {MARKER} and isinstance(value[MARKER], Mapping)


def check(value: Any, path: str) -> None:
    """Raise TypeError, naming the place below `path`, unless `value` is made of JSON values.

    A tuple counts as an array and arrives as a list; subclasses of str, int and float (a `TextChoices`
    member, a `SafeString`) arrive as plain values.
    """
    _check(value, path, 1)


def _check(value: Any, path: str, depth: int) -> None:
    if value is None or isinstance(value, str | int | ExactNumber):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            _refuse(f"{path} is {value}, which JSON has no word for: pass None, or a string")
    elif isinstance(value, list | tuple | dict):
        if depth > MAX_DEPTH:
            _refuse(f"{path} nests deeper than {MAX_DEPTH} levels, or contains itself")
        _check_members(value, path, depth + 1)
    else:
        _refuse(f"{path} is a {_name(value)}, which is not JSON: {_fix(value)}")


def _check_members(value: list[Any] | tuple[Any, ...] | dict[Any, Any], path: str, depth: int) -> None:
    if not isinstance(value, dict):
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]", depth)
        return
    for key, item in value.items():
        if not isinstance(key, str):
            _refuse(f"{path} has the key {key!r:.40}, and JSON has only strings as keys: pass str(...)")
        _check(item, f'{path}["{key}"]', depth)


def _name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _fix(value: Any) -> str:
    for kind, fix in FIXES:
        if isinstance(value, kind):
            return fix
    if dataclasses.is_dataclass(value):
        return "pass dataclasses.asdict(...)"
    return "pass strings, numbers, booleans, None, lists and dicts"


def _refuse(message: str) -> NoReturn:
    raise TypeError(f"{message}.")
