"""Stores a large push while it is being read.

On a database that takes rows as they come, jobs about which there is nothing to decide are on their way before the last
document of their push is read. Should one of those need a decision, all are undone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from django.db import IntegrityError

from django_ojs import middleware
from django_ojs.database import atomic
from django_ojs.events import log
from django_ojs.jobs import schemas
from django_ojs.jobs.candidates import Candidate, PushContext, Pushed, PushOutcome
from django_ojs.jobs.decisions import Closing
from django_ojs.jobs.newrows import NewRows, RowMaker, insert, wake
from django_ojs.queues import configuration as queues
from django_ojs.rules.envelope import JobSpec
from django_ojs.store import store_of

#: How many jobs of a large push say of which forms the others are.
_SAMPLE = 100


class _Undecided(Exception):
    """A push that is being stored has come to a job that its sample did not announce."""


def store_while_reading(
    candidates: list[Candidate], coming: Iterator[Candidate], total: int, context: PushContext, closing: Closing | None
) -> list[PushOutcome] | None:
    """Store all of a large push about which there is nothing to decide, and return what became of each job; None:
    nothing is stored, and it takes a closer look. Those of `coming` that it has read are among the `candidates` then.

    The jobs behind the sample must be of its forms, so what is true of the sample is true of them.
    """
    using = context.using
    if not store_of(using).takes_rows_as_they_come(total) or middleware.enqueue_chain.entries:
        return None
    candidates += islice(coming, _SAMPLE)
    if any(candidate.outcome for candidate in candidates):
        return None
    sample = [candidate.valid_spec for candidate in candidates]
    # `unique`, because the `meta` of a job may say that its policy means nothing, and those of the next may not.
    if any(spec.unique is not None or schemas.are_asked(spec, using) for spec in sample):
        return None
    defaults = queues.ensure((spec.queue for spec in sample), context.now, using)
    if any(known.bound or known.is_choosy for known in defaults.values()):
        return None
    forms = {id(spec.form) for spec in sample if spec.form is not None}

    def specs() -> Iterator[JobSpec]:
        yield from sample
        for candidate in coming:
            candidates.append(candidate)
            if candidate.spec is None or id(candidate.spec.form) not in forms:
                raise _Undecided
            yield candidate.spec

    rows = NewRows(RowMaker(defaults, context.now), specs(), context.stamps(), total)
    try:
        with atomic(using=using):
            worker_sleeps = insert(rows, context.component, using)
            stored: list[PushOutcome] = [
                Pushed(row, "created", candidate.warnings) for candidate, row in zip(candidates, rows, strict=True)
            ]
            if closing:
                log.append(closing(stored), using)
    except (_Undecided, IntegrityError):  # or an id is taken
        return None
    wake(worker_sleeps, using)
    return stored
