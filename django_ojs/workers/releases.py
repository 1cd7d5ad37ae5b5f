"""The releases of the site's own code (`OJS["RELEASE"]`) that workers say they run, and since when there was one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection

from django_ojs.database import database
from django_ojs.models import Release

#: Releases that are kept. A worker of any language may name one.
KEPT = 1000


def note(names: Collection[str], now: dt.datetime, using: str) -> None:
    """Note that workers of these releases are there. One that is known keeps its time."""
    rows = [Release(name=name, first_seen_at=now) for name in sorted(names)]
    if rows:
        Release.objects.using(using).bulk_create(rows, ignore_conflicts=True)


def prune(using: str) -> int:
    """Forget releases beyond the newest `KEPT`; return how many."""
    old = list(Release.objects.using(using).order_by("-first_seen_at", "-name").values_list("pk", flat=True)[KEPT:])
    return int(Release.objects.using(using).filter(pk__in=old[:KEPT])._raw_delete(using)) if old else 0


def newest(number: int, *, using: str | None = None) -> list[Release]:
    """The newest releases, so many at most, the oldest of them first."""
    return list(Release.objects.using(database(using)).order_by("-first_seen_at", "-name")[:number])[::-1]


def between(begin: dt.datetime, end: dt.datetime, *, using: str | None = None) -> list[Release]:
    """The releases that were first seen then, the oldest first."""
    found = Release.objects.using(database(using)).filter(first_seen_at__gte=begin, first_seen_at__lte=end)
    return list(found.order_by("first_seen_at", "name"))
