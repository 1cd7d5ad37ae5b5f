"""Tells the attempts of a job: who ran it when, and what came of it.

Those that did not complete the job are rows (`models.JobAttempt`), which `lifecycle.transitions.end_attempt` makes. The
one that runs, or that completed the job, is in the job's own row: a job that succeeds at once costs nothing more.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from django.db.models import Q

from django_ojs.conf import ojs_settings
from django_ojs.database import database
from django_ojs.events.catalogue import milliseconds_between
from django_ojs.models import JobAttempt
from django_ojs.rules import redaction
from django_ojs.states import State
from django_ojs.workerregistry import releases

#: Of an attempt that has not ended, and of one that completed its job.
RUNNING, COMPLETED = "running", "completed"
#: What may have come of an attempt.
OUTCOMES: tuple[str, ...] = (RUNNING, COMPLETED, *JobAttempt.Outcome.values)
#: Columns of a job's row that say which attempt it is in.
COLUMNS = ("id", "state", "attempt", "round", "worker_id", "started_at", "finished_at")


class Number(NamedTuple):
    """Which attempt of a job: attempts count from 1 in each round, rounds from 0."""

    round: int
    attempt: int


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a job.

    Attributes:
        round: how often the job had been retried from the beginning, by hand or by a rule.
        attempt: the number of the attempt in its round.
        worker_id, release: who ran it, and the site's release (`OJS["RELEASE"]`) there; '' where nothing is known.
        ended_at: None while it runs.
        outcome: one of `OUTCOMES`.
        error: what ended it, with its backtrace; None where nothing failed.
    """

    job_id: uuid.UUID
    round: int
    attempt: int
    worker_id: str
    release: str
    started_at: dt.datetime
    ended_at: dt.datetime | None
    outcome: str
    error: dict[str, Any] | None = None

    @property
    def number(self) -> Number:
        return Number(self.round, self.attempt)

    @property
    def duration_ms(self) -> int | None:
        """How long it took; None while it runs."""
        return None if self.ended_at is None else milliseconds_between(self.started_at, self.ended_at)

    def redacted(self, job_type: str, meta: Any = None) -> Attempt:
        """The same without what readers may not see of the job's errors."""
        if self.error is None:
            return self
        return dataclasses.replace(self, error=redaction.part("errors", self.error, job_type, meta))


class AttemptPage(NamedTuple):
    """Attempts of a job, newest first; `total` counts all that are known."""

    attempts: list[Attempt]
    total: int
    has_more: bool


def of_job(
    row: Mapping[str, Any], *, before: Number | None = None, offset: int = 0, limit: int | None = None,
    using: str | None = None,
) -> AttemptPage:  # fmt: skip
    """The attempts of the job in `row`, which has `COLUMNS`: those before the one with this number, without the first
    `offset` of them, `limit` at most (None: all that are kept).

    What ended before the site kept attempts is not known, nor what is beyond `OJS["ATTEMPT_MAX_COUNT"]`.
    """
    using = database(using)
    own = _own(row, using)
    stored = JobAttempt.objects.using(using).filter(job_id=row["id"])
    kept = ojs_settings.attempts_kept
    total = min(stored.count(), kept)
    wanted = stored.order_by("-round", "-attempt")
    if before is not None:
        wanted = wanted.filter(Q(round__lt=before.round) | Q(round=before.round, attempt__lt=before.attempt))
    first = [own] if own is not None and (before is None or own.number < before) else []
    end = None if limit is None else offset + limit + 1
    found = [*first, *map(_stored, wanted[: min(kept, end - len(first)) if end is not None else kept])][offset:end]
    shown = found if limit is None else found[:limit]
    return AttemptPage(shown, total + (own is not None), len(found) > len(shown))


def ended_of(job_ids: Iterable[uuid.UUID], *, limit: int, using: str | None = None) -> dict[uuid.UUID, list[Attempt]]:
    """By job, the attempts that ended without completing it, oldest first and without their errors: the latest `limit`
    of them all."""
    rows = JobAttempt.objects.using(database(using)).filter(job_id__in=job_ids).defer("error")
    found = defaultdict(list)
    for row in reversed(rows.order_by("-started_at", "-id")[:limit]):
        found[row.job_id].append(_stored(row, with_error=False))
    return found


def _own(row: Mapping[str, Any], using: str) -> Attempt | None:
    """The attempt that the job's own row tells of; None where the last one has a row, or there is none."""
    outcome = {State.ACTIVE: RUNNING, State.COMPLETED: COMPLETED}.get(row["state"])
    if outcome is None or row["started_at"] is None:
        return None
    (release,) = releases.of_workers([(row["worker_id"], row["started_at"])], using=using)
    return Attempt(
        row["id"], row["round"] or 0, row["attempt"], row["worker_id"], release, row["started_at"], row["finished_at"],
        outcome,
    )  # fmt: skip


def _stored(row: JobAttempt, *, with_error: bool = True) -> Attempt:
    return Attempt(
        row.job_id, row.round, row.attempt, row.worker_id, row.release, row.started_at, row.ended_at, row.outcome,
        row.error if with_error else None,
    )  # fmt: skip
