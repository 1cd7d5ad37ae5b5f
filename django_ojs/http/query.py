"""Single values out of the query string, or `invalid_request` with the parameter's name (binding 1.7)."""

from __future__ import annotations

import datetime as dt
import re
import uuid

from rest_framework.request import Request

from django_ojs import clock
from django_ojs.rules import durations, names
from django_ojs.rules.faults import query_fault

_INTEGER = re.compile(r"[+-]?[0-9]+")
_MAX_TEXT = 255
_MAX_LIST = 1000
_HUGE = 2**53


def integer(request: Request, name: str, *, minimum: int) -> int | None:
    """A whole number of at least `minimum`; None where absent. However large, it stays below 2^53."""
    given = request.query_params.get(name)
    if given is None:
        return None
    if not _INTEGER.fullmatch(given):
        raise query_fault(name, "must be an integer", given)
    value = _HUGE if len(given) > 16 and not given.startswith("-") else int(given[:20])
    if value < minimum:
        raise query_fault(name, f"must be at least {minimum}", given)
    return min(value, _HUGE)


def text(request: Request, name: str) -> str:
    """A printable text, '' where absent."""
    given = request.query_params.get(name, "")
    if message := text_fault(given):
        raise query_fault(name, message, given)
    return given


def flag(request: Request, name: str) -> bool:
    """True or false, also as 1 and 0; false where absent."""
    given = text(request, name).lower()
    if given not in ("", "true", "false", "1", "0"):
        raise query_fault(name, "must be true or false", given)
    return given in ("true", "1")


def texts(request: Request, *aliases: str) -> list[str]:
    """The values of a comma-separated list under the first of its names that is there."""
    for name in aliases:
        given = request.query_params.get(name)
        if given is None:
            continue
        items = split(given)
        if message := texts_fault(given, items):
            raise query_fault(name, message, given)
        return items
    return []


def split(given: str) -> list[str]:
    """The items of a comma-separated list; empty ones do not count."""
    return [item for item in map(str.strip, given.split(",")) if item]


def text_fault(given: str) -> str:
    """What is wrong with a text; '' if nothing."""
    good = len(given) <= _MAX_TEXT and given.isprintable()
    return "" if good else f"must be a printable text of at most {_MAX_TEXT} characters"


def texts_fault(given: str, items: list[str]) -> str:
    """What is wrong with a comma-separated list of `items`; '' if nothing."""
    good = len(items) <= _MAX_LIST and given.isprintable() and all(len(item) <= _MAX_TEXT for item in items)
    return "" if good else f"must be at most {_MAX_LIST} printable texts joined by commas"


def instant(request: Request, name: str) -> dt.datetime | None:
    """A time, or an age such as `24h`, which is so long ago; None where absent."""
    given = request.query_params.get(name)
    if not given:
        return None
    try:
        return parse_instant(given)
    except ValueError as error:
        raise query_fault(name, str(error), given) from error


def parse_instant(given: str) -> dt.datetime:
    """The time that a parameter names. Raises ValueError."""
    return durations.parse_moment(given.replace(" ", "+"), clock.now())  # an unescaped + of a zone offset


def uuid7(request: Request, name: str) -> uuid.UUID | None:
    given = request.query_params.get(name, "").lower()
    if not given:
        return None
    if not names.is_job_id(given):
        raise query_fault(name, "must be a UUIDv7", given)
    return uuid.UUID(given)
