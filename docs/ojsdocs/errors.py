"""The errors of the binding, from their classes."""

from __future__ import annotations

from collections.abc import Iterator

from django_ojs import errors
from django_ojs.errors import OJSError
from ojsdocs.markdown import code, prose, table


def classes(base: type[OJSError] = OJSError) -> Iterator[type[OJSError]]:
    for one in base.__subclasses__():
        if one.__module__ == errors.__name__:
            yield one
            yield from classes(one)


def render() -> str:
    found = sorted(set(classes()), key=lambda one: (one.status, one.code, one.__name__))
    return table(("status", "`code`, `canonical_code`", "in Python", "what to do"), map(_row, found))


def _row(one: type[OJSError]) -> tuple[str, str, str, str]:
    status = f"{one.status}{', retryable' if one.retryable else ''}"
    return status, f"{code(one.code)}, {code(one.canonical)}", code(one.__name__), prose(one.hint)
