"""Progress (orchestration 5.1): store how far a handler is, and write the `job.progress` events.

Every report is stored, and told by an event; of a job that reports often, one a second. A report that came too soon
for an event is postponed (`held`): the scheduler writes its event a second later, or the worker marks it as the `last`
of the run, whose event is written at once. `told_at` alone says what a job may still have told (`_told_by`).
A report renews the reservation like BEAT; the event says until when, in place of a `job.heartbeat`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django.db.models import Q

from django_ojs import clock
from django_ojs.database import atomic, database, retried
from django_ojs.errors import NotFound
from django_ojs.events import catalogue, log
from django_ojs.events.catalogue import Record
from django_ojs.groupcommit import LEFT_OUT
from django_ojs.jobs import checkpoints
from django_ojs.jobs.checkpoints import NewCheckpoint
from django_ojs.lifecycle.reservations import renew
from django_ojs.models import Job, JobProgress
from django_ojs.models.job import JobRow
from django_ojs.rules import errorobjects
from django_ojs.rules.durations import format_instant
from django_ojs.rules.rows import holds, moment
from django_ojs.states import State
from django_ojs.store import store_of

#: How often a job may have an event in the long run; it may have `BURST` of them at once.
INTERVAL = dt.timedelta(seconds=1)
BURST = 20
MAX_MESSAGE = errorobjects.MAX_PROGRESS_MESSAGE
_BATCH = 500
_COLUMNS = ("attempt", "percent", "message", "data", "updated_at", "told_at", "held")


@dataclasses.dataclass(slots=True)
class ProgressReport:
    """What a worker says of one job. None leaves what was said before in this attempt.

    Attributes:
        percent: 0 to 100, cut to that range; a smaller one than before is ignored.
        data: a JSON object of the handler's own.
        worker_id, attempt: whose run it is, where known; a report about another run is ignored.
        last: the run has ended, so that an event tells this now or never.
        checkpoint: the state to save, if the report counts; any JSON value, or `checkpoints.NOTHING`.
    """

    job_id: uuid.UUID
    percent: float | None = None
    message: str | None = None
    data: dict[str, Any] | None = None
    worker_id: str = ""
    attempt: int | None = None
    last: bool = False
    checkpoint: Any = checkpoints.NOTHING


class ReportedJob(NamedTuple):
    """A job's row and what it reported last, and whether the report just made was the holder's."""

    row: JobRow
    progress: JobProgress | None
    accepted: bool


def report(reports: Sequence[ProgressReport], *, using: str | None = None) -> list[ReportedJob | NotFound]:
    """Take these reports; return for each what is known of its job now.

    A report about a job that is not active, or by a worker that does not hold it, changes nothing.
    """
    rows, news, accepted = _reported(reports, using=database(using))
    return [_known(item, rows, news, accepted) for item in reports]


def report_free(reports: Sequence[ProgressReport], *, using: str | None = None) -> list[ReportedJob | Exception]:
    """`report`, but `LEFT_OUT` is the outcome of a job that another transaction has locked: to be reported again."""
    using = database(using)
    rows, news, accepted = _reported(reports, skip_locked=True, using=using)
    missing = {item.job_id for item in reports} - rows.keys()
    locked = set(Job.objects.using(using).filter(pk__in=missing).values_list("pk", flat=True)) if missing else set()
    return [LEFT_OUT if item.job_id in locked else _known(item, rows, news, accepted) for item in reports]


@retried
def _reported(
    reports: Sequence[ProgressReport], *, skip_locked: bool = False, using: str
) -> tuple[dict[uuid.UUID, JobRow], dict[uuid.UUID, JobProgress], list[ProgressReport]]:
    """Take these reports; the rows of their jobs, what those have reported now, and the reports that were their
    holders'."""
    with atomic(using=using):
        now = clock.now(using)
        wanted = {report.job_id for report in reports}
        rows = {row["id"]: row for row in store_of(using).lock(wanted, skip_locked=skip_locked)}
        known = JobProgress.objects.using(using).in_bulk(list(rows))
        ours = [r for r in reports if r.job_id in rows and holds(rows[r.job_id], r.worker_id, r.attempt)]
        renew(list({r.job_id: rows[r.job_id] for r in ours}.values()), None, now, using)
        news, records = dict(known), list[Record]()
        for item in ours:
            row = rows[item.job_id]
            records += _take(item, row, news, moment(row, now))
        _save({item.job_id: news[item.job_id] for item in ours}, known, using)
        log.append(records, using)
        for item in ours:
            if item.checkpoint is not checkpoints.NOTHING:
                saved = NewCheckpoint(item.job_id, item.checkpoint, worker_id=item.worker_id, attempt=item.attempt)
                checkpoints.save_locked(rows[item.job_id], saved, now, using)
    return rows, news, ours


def _known(
    item: ProgressReport,
    rows: Mapping[uuid.UUID, JobRow],
    news: Mapping[uuid.UUID, JobProgress],
    accepted: Sequence[ProgressReport],
) -> ReportedJob | NotFound:
    row = rows.get(item.job_id)
    if row is None:
        return NotFound.resource("job", str(item.job_id))
    return ReportedJob(row, news.get(item.job_id), item in accepted)


@retried
def log_postponed(*, using: str | None = None) -> int:
    """Write the events that were postponed, a second after the one before; return how many."""
    using = database(using)
    now = clock.now(using)
    # As `_told_by` says; or a clock that was ahead has written it.
    is_due = Q(told_at__lte=now - INTERVAL) | Q(told_at__gt=now + clock.AHEAD)
    due = JobProgress.objects.using(using).filter(is_due, held=True).order_by("told_at")
    ids = list(due.values_list("pk", flat=True)[:_BATCH])
    if not ids:
        return 0
    with atomic(using=using):
        rows = {row["id"]: row for row in store_of(using).lock(ids, skip_locked=True)}
        found = JobProgress.objects.using(using).filter(pk__in=list(rows), held=True).in_bulk()
        records: list[Record] = []
        for progress in found.values():
            progress.held = False
            if is_current(progress, row := rows[progress.pk]) and row["state"] == State.ACTIVE:
                records += _progress_events(progress, row, now)
        JobProgress.objects.using(using).bulk_update(found.values(), ["held", "told_at"])
        log.append(records, using)
    return len(records)


def of(rows: Iterable[JobRow], using: str) -> dict[uuid.UUID, JobProgress]:
    """What these jobs have reported in the attempt that they show, in one statement; none for jobs never started."""
    tried = {row["id"]: row for row in rows if row["attempt"]}
    found = JobProgress.objects.using(using).in_bulk(list(tried)) if tried else {}
    return {pk: progress for pk, progress in found.items() if is_current(progress, tried[pk])}


def attach(rows: Collection[JobRow], using: str) -> None:
    """Add `progress`, which `envelope.render` shows, to those of the rows that have reported some."""
    found = of(rows, using)
    for row in rows:
        if progress := found.get(row["id"]):
            shown = describe(row, progress)
            row["progress"] = {name: shown[name] for name in ("progress",) if shown[name] is not None} | {
                f"progress_{name}": shown[name] for name in ("message", "data", "updated_at") if shown[name]
            }


def describe(row: Mapping[str, Any], progress: JobProgress | None) -> dict[str, Any]:
    """The object that REST calls answer with; `progress` from 0 to 1, None where nothing was reported."""
    body: dict[str, Any] = {"job_id": str(row["id"]), "state": row["state"], "progress": None, "data": None,
                            "message": None, "updated_at": None}  # fmt: skip
    if progress is None or not is_current(progress, row):
        return body
    return body | {
        "progress": fraction(100.0 if row["state"] == State.COMPLETED else progress.percent),
        "data": progress.data,
        "message": progress.message or None,
        "updated_at": format_instant(progress.updated_at),
    }


def fraction(percent: float | None) -> float | None:
    """0 to 1 as the wire shows it, without what dividing adds."""
    return None if percent is None else round(percent / 100, 12)


def is_current(progress: JobProgress, row: Mapping[str, Any]) -> bool:
    """Whether a report belongs to the attempt that the job's row shows. A retried dead letter counts anew."""
    started = row["started_at"]
    return bool(progress.attempt == row["attempt"] and (started is None or progress.updated_at >= started))


def _take(item: ProgressReport, row: JobRow, news: dict[uuid.UUID, JobProgress], now: dt.datetime) -> list[Record]:
    """Merge one report into what is known of its job; the event that it is worth now."""
    progress = news.get(item.job_id)
    if progress is None:
        progress = JobProgress(job_id=item.job_id)
        progress.updated_at, progress.attempt = now, 0
    if not is_current(progress, row):
        progress.attempt, progress.percent, progress.message, progress.data = row["attempt"], None, "", None
    news[item.job_id] = progress
    progress.updated_at, progress.held = now, True
    if item.percent is not None:
        percent = round(min(max(item.percent, 0.0), 100.0), 10)
        progress.percent = percent if progress.percent is None else max(percent, progress.percent)
    if item.message is not None:
        progress.message = errorobjects.progress_message(item.message)
    if item.data is not None:
        progress.data = item.data
    if progress.told_at is not None:
        progress.told_at = min(progress.told_at, now)  # a clock that was ahead has written it
    if not item.last and _told_by(progress, now) > now:
        return []
    return _progress_events(progress, row, now)


def _told_by(progress: JobProgress, now: dt.datetime) -> dt.datetime:
    """The `told_at` that one more event leaves. It is too soon for the event while that is ahead.

    Each event uses up one `INTERVAL` of the job's time, whichever attempt it is of; of the time that was not used,
    `BURST` intervals are kept at most (GCRA).
    """
    start = now - BURST * INTERVAL
    return max(progress.told_at or start, start) + INTERVAL


def _progress_events(progress: JobProgress, row: JobRow, now: dt.datetime) -> list[Record]:
    """The event of the latest report. One without a number is none: the event must have it."""
    progress.held = False
    if progress.percent is None:
        return []
    progress.told_at = min(_told_by(progress, now), now)
    return [catalogue.progress(row, now, progress.percent, progress.message, progress.data)]


def _save(news: Mapping[uuid.UUID, JobProgress], known: Mapping[uuid.UUID, JobProgress], using: str) -> None:
    """The job's lock is held, so no other transaction writes these rows."""
    objects = JobProgress.objects.using(using)
    objects.bulk_create(progress for pk, progress in news.items() if pk not in known)
    if old := [progress for pk, progress in news.items() if pk in known]:
        objects.bulk_update(old, _COLUMNS)
