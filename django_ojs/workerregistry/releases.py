"""Records the releases of the site's own code (`OJS["RELEASE"]`) that workers say they run, and since when."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping

from django_ojs.database import database
from django_ojs.models import Release, WorkerRelease

#: Releases that are kept. A worker of any language may name one.
KEPT = 1000
#: Of so many workers, the newest, it is kept which release they ran.
WORKERS_KEPT = 100_000


def record_releases(names: Mapping[str, str], now: dt.datetime, using: str) -> None:
    """Note that these workers run these releases from now on. A release that is known keeps its time."""
    if names:
        rows = [Release(name=name, first_seen_at=now) for name in sorted(set(names.values()))]
        Release.objects.using(using).bulk_create(rows, ignore_conflicts=True)
        runs = [WorkerRelease(worker_id=worker, release=name, since=now) for worker, name in sorted(names.items())]
        WorkerRelease.objects.using(using).bulk_create(runs)


def prune(using: str) -> int:
    """Forget releases beyond the newest `KEPT`, and which workers ran them long ago; return how many releases."""
    oldest = WorkerRelease.objects.using(using).order_by("-pk").values_list("pk", flat=True)
    edge = oldest[WORKERS_KEPT : WORKERS_KEPT + 1].first()
    if edge is not None:
        WorkerRelease.objects.using(using).filter(pk__lte=edge)._raw_delete(using)
    old = list(Release.objects.using(using).order_by("-first_seen_at", "-name").values_list("pk", flat=True)[KEPT:])
    return int(Release.objects.using(using).filter(pk__in=old[:KEPT])._raw_delete(using)) if old else 0


def of_workers(runs: Collection[tuple[str, dt.datetime]], *, using: str | None = None) -> list[str]:
    """The release that each of these workers ran at this time; "" where none is known."""
    wanted = {worker for worker, _ in runs if worker}
    known: dict[str, list[tuple[dt.datetime, str]]] = {}
    if wanted:
        rows = WorkerRelease.objects.using(database(using)).filter(worker_id__in=wanted).order_by("since", "pk")
        for worker, since, name in rows.values_list("worker_id", "since", "release"):
            known.setdefault(worker, []).append((since, name))
    return [next((name for since, name in reversed(known.get(w, ())) if since <= at), "") for w, at in runs]


def newest(number: int, *, using: str | None = None) -> list[Release]:
    """The newest releases, so many at most, the oldest of them first."""
    return list(Release.objects.using(database(using)).order_by("-first_seen_at", "-name")[:number])[::-1]


def between(begin: dt.datetime, end: dt.datetime, *, using: str | None = None) -> list[Release]:
    """The releases that were first seen then, the oldest first."""
    found = Release.objects.using(database(using)).filter(first_seen_at__gte=begin, first_seen_at__lte=end)
    return list(found.order_by("first_seen_at", "name"))
