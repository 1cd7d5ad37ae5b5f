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
    rows = [
        (
            code(one.code), str(one.status), code(one.canonical), "yes" if one.retryable else "no", code(one.__name__),
            prose(one.hint),
        )
        for one in sorted(set(classes()), key=lambda one: (one.status, one.code, one.__name__))
    ]  # fmt: skip
    return table(("`code`", "status", "`canonical_code`", "`retryable`", "in Python", "what to do"), rows)
