"""Conditions on names and patterns: `mail.send` fits itself only, `mail.*` all that begins with `mail.`.

What a pattern means is decided in `rules.names`; every filter, limit and claim makes its condition here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

from django.db.models import Q

from django_ojs.rules.names import prefix


def split(entries: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names among these entries, and the prefixes that the patterns mean: `mail.*` is `mail.`."""
    begins = [prefix(entry) for entry in entries]
    exact = [entry for entry, begin in zip(entries, begins, strict=True) if begin is None]
    return exact, [begin for begin in begins if begin is not None]


def any_of(field: str, entries: Sequence[str]) -> Q:
    """Rows in which `field` is one of these names or falls under one of these patterns; of none: no row."""
    exact, prefixes = split(entries)
    return reduce(or_, (Q(**{f"{field}__startswith": begin}) for begin in prefixes), Q(**{f"{field}__in": exact}))


def named(field: str, entry: str) -> Q:
    """The same for one of them that a caller asks for; '' means all rows."""
    begin = prefix(entry)
    if begin is not None:
        return Q(**{f"{field}__startswith": begin})
    return Q(**{field: entry}) if entry else Q()
