"""Which job types a claim takes: names, and patterns such as `mail.*` for all that begin with `mail.`.

Both are conditions on rows that the claim reads in its own order anyway, so a pattern needs no look at which types
there are, and costs what a name costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any

from django.db.models import Q


def split(entries: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names among these entries, and the prefixes that the patterns mean: `mail.*` is `mail.`."""
    return [name for name in entries if not name.endswith(".*")], [name[:-1] for name in entries if name.endswith(".*")]


def condition(entries: Sequence[str]) -> Q:
    names, prefixes = split(entries)
    return reduce(or_, (Q(type__startswith=prefix) for prefix in prefixes), Q(type__in=names))


def in_sql(entries: Sequence[str]) -> tuple[str, list[Any]]:
    """The same in SQL that every database knows, and its parameters."""
    names, prefixes = split(entries)
    marks = ", ".join(["%s"] * len(names)) or "NULL"
    params = [*names, *(value for prefix in prefixes for value in (len(prefix), prefix))]
    return f"(type IN ({marks}){' OR substr(type, 1, %s) = %s' * len(prefixes)})", params
