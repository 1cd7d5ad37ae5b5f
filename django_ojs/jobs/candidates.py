"""A job on its way through PUSH, and what becomes of it."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from django_ojs import middleware
from django_ojs.errors import BatchAborted, Duplicate, OJSError
from django_ojs.messages import phrase
from django_ojs.models.job import JobRow
from django_ojs.rules import envelope
from django_ojs.rules.envelope import JobSpec


class Pressure(NamedTuple):
    """How full a bounded queue is after the push, where it is worth a warning (jobs 6)."""

    queue: str
    depth: int
    bound: int
    share: float


class Pushed(NamedTuple):
    """What became of one document.

    `status` is `created`, `duplicate` (a unique policy found `row` there already) or `dropped` (by a
    middleware; no row). `warnings` name members that mean nothing, and what a registered schema has against the
    arguments.
    """

    row: JobRow | None
    status: str
    warnings: tuple[dict[str, Any], ...] = ()
    pressure: Pressure | None = None


@dataclasses.dataclass(slots=True)
class Candidate:
    """One document: `index` is its place in a batch, `outcome` what was decided, None while it is open."""

    index: int | None
    spec: JobSpec | None = None
    named: bool = False  #: the client chose the id, which may be taken
    document: Any = None  #: the envelope as the middleware left it
    outcome: Pushed | OJSError | None = None
    warnings: tuple[dict[str, Any], ...] = ()

    @property
    def job(self) -> JobSpec:
        assert self.spec is not None
        return self.spec

    def refuse(self, error: OJSError) -> None:
        if self.index is not None:
            error.details.setdefault("index", self.index)
        self.outcome = error


Outcome: TypeAlias = Pushed | OJSError

_DROPPED = Pushed(None, "dropped")


def read(document: Any, now: dt.datetime, index: int | None) -> Candidate:
    """Validate, run the middleware chain, and validate again if there was one."""
    candidate = Candidate(index)
    try:
        candidate.spec = envelope.parse(document, now=now, index=index)
        candidate.named = document.get("id") is not None
        candidate.document = document
        if middleware.enqueue_chain:
            job_id = str(candidate.spec.id)
            changed = middleware.run_enqueue_chain({**document, "id": job_id})
            if changed is None:
                candidate.outcome = _DROPPED
            else:
                candidate.document = {**changed, "id": job_id}
                candidate.spec = envelope.parse(candidate.document, now=now, index=index)
        candidate.warnings = candidate.spec.warnings
    except OJSError as error:
        candidate.refuse(error)
    return candidate


def refuse_repeated_ids(candidates: Sequence[Candidate]) -> None:
    seen: set[uuid.UUID] = set()
    for candidate in candidates:
        if candidate.outcome is None:
            job_id = candidate.job.id
            if job_id in seen:
                candidate.refuse(duplicate(job_id, None))
            seen.add(job_id)


def aborted(candidate: Candidate) -> OJSError:
    details = {} if candidate.index is None else {"index": candidate.index}
    return BatchAborted("Not stored, because another job of this atomic request was refused.", details=details)


def duplicate(job_id: uuid.UUID, state: str | None) -> Duplicate:
    details = {"job_id": str(job_id), "existing_job_id": str(job_id)}
    if state:
        details |= {"existing_job_state": state, "existing_state": state}
    return Duplicate(phrase("A job with the id '%(job_id)s' exists already.", job_id=job_id), details=details)
