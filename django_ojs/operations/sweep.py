"""One act on every job that fits, however many: in batches, each with its entry in the audit log (admin 1.4).

A batch is a transaction of its own. Whoever breaks off in between leaves whole batches behind, never half of one.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from django.db.models import QuerySet

from django_ojs import clock
from django_ojs.errors import OJSError
from django_ojs.models import Job
from django_ojs.operations import audit
from django_ojs.operations.audit import Act

#: Jobs of one transaction, and ids that are looked up at once.
BATCH, LOOKUP = 500, 10_000
#: Refusals that a report spells out.
MAX_ERRORS = 100

#: A verb on many jobs: an outcome for each, an `OJSError` where refused.
Verb = Callable[[Sequence[uuid.UUID], str], list[Any]]


@dataclasses.dataclass(slots=True)
class Report:
    """What became of it."""

    matched: int = 0
    succeeded: int = 0
    errors: list[tuple[uuid.UUID, OJSError]] = dataclasses.field(default_factory=list)

    @property
    def failed(self) -> int:
        return self.matched - self.succeeded


def sweep(ids: Iterator[list[uuid.UUID]], verb: Verb, entry: Act, using: str) -> Report:
    """Run `verb` on all of `ids`, batch by batch. What one job is refused stops no other."""
    report = Report()
    for batch in ids:
        outcomes = _batch(batch, verb, dataclasses.replace(entry, detail=dict(entry.detail)), using)
        refused = [(job_id, out) for job_id, out in zip(batch, outcomes, strict=True) if isinstance(out, OJSError)]
        report.matched += len(batch)
        report.succeeded += len(batch) - len(refused)
        report.errors += refused[: MAX_ERRORS - len(report.errors)]
    return report


def batches(jobs: QuerySet[Job], using: str) -> Iterator[list[uuid.UUID]]:
    """The ids of all jobs that fit now, in their order. Jobs that come while it runs are left out."""
    jobs = jobs.filter(created_at__lt=clock.stamps(1, using)).order_by("pk")
    last: uuid.UUID | None = None
    while True:
        page = jobs if last is None else jobs.filter(pk__gt=last)
        found = list(page.values_list("pk", flat=True)[:LOOKUP])
        yield from split(found)
        if len(found) < LOOKUP:
            return
        last = found[-1]


def split(ids: Sequence[uuid.UUID]) -> Iterator[list[uuid.UUID]]:
    for start in range(0, len(ids), BATCH):
        yield list(ids[start : start + BATCH])


def _batch(batch: list[uuid.UUID], verb: Verb, entry: Act, using: str) -> list[Any]:
    def act() -> list[Any]:
        outcomes = verb(batch, using)
        done = [str(job_id) for job_id, out in zip(batch, outcomes, strict=True) if not isinstance(out, OJSError)]
        entry.detail |= {"matched": len(batch), "succeeded": len(done), "job_ids": done}
        return outcomes

    return audit.perform(act, entry, using=using)
