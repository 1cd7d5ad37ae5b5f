"""Reads the documents of a push, and refuses those that are faulty, repeated, unwanted, or whose ids are taken.

Each document is a `Candidate` on its way; what becomes of it is `Pushed`, or the error that refused it. `PushContext`
is what holds for all of a push.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, repeat
from typing import Any, NamedTuple, TypeAlias

from django.db import IntegrityError, connections

from django_ojs import middleware, spellings
from django_ojs.access import UNLIMITED, Limits
from django_ojs.database import unseen
from django_ojs.errors import BatchAborted, Duplicate, MiddlewareRejected, OJSError
from django_ojs.messages import Phrase, phrase
from django_ojs.models import Job
from django_ojs.models.job import JobRow
from django_ojs.queues import configuration as queues
from django_ojs.queues.bounds import Pressure
from django_ojs.rules.envelope import JobSpec
from django_ojs.store.values import FlowChange

_MICROSECOND: Any = dt.timedelta(microseconds=1)


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
    """One document: `index` is its place in a batch, `outcome` what was decided, None while it is open, `limits` what
    its caller reaches, `queue` what its queue gives, once that is known (`admit`)."""

    index: int | None
    spec: JobSpec | None = None
    named: bool = False  #: the client chose the id, which may be taken
    document: Any = None  #: the envelope as the middleware left it
    outcome: Pushed | OJSError | None = None
    warnings: tuple[dict[str, Any], ...] = ()
    limits: Limits = UNLIMITED
    queue: queues.QueueDefaults = queues.PLAIN

    @property
    def valid_spec(self) -> JobSpec:
        """The spec of a candidate whose document was read without a fault."""
        assert self.spec is not None
        return self.spec

    @property
    def needs_decision(self) -> bool:
        """Whether a push decides about this job under locks: a unique one, or one of a bounded queue."""
        return bool(self.valid_spec.unique_policy or self.queue.bound)

    def refuse(self, error: OJSError) -> None:
        if self.index is not None:
            error.details.setdefault("index", self.index)
        self.outcome = error


class PushContext(NamedTuple):
    """What holds for all jobs of one push.

    Attributes:
        stamp: the first of as many instants that `clock.stamps` gave.
        partial: the others are stored though one is refused.
        ended: gets the jobs that the push replaces or drops. The caller then starts the next steps of their workflows.
        own: an open transaction is undone as a whole where this push fails, so that nothing in it has to be spared.
        accepted: the arguments were those of a stored job, which no schema that came later refuses.
        workflow_change: a change of workflows that is stored in the statement of the insert, or before there is
            something to decide. Where nothing is inserted it may not be stored.
    """

    now: dt.datetime
    stamp: dt.datetime
    using: str
    partial: bool = True
    component: str = "api"
    ended: list[JobRow] | None = None
    own: bool = False
    accepted: bool = False
    workflow_change: FlowChange | None = None

    def stamps(self) -> Iterator[dt.datetime]:
        """The instants, in order: first in, first out."""
        return accumulate(repeat(_MICROSECOND), initial=self.stamp)


PushOutcome: TypeAlias = Pushed | OJSError
DROPPED = Pushed(None, "dropped")


def refuse_dropped(candidates: Sequence[Candidate]) -> None:
    """An atomic batch is stored whole or not at all (core 7.1), so a job that a middleware drops refuses it."""
    for candidate in candidates:
        if isinstance(candidate.outcome, Pushed) and candidate.outcome.row is None:
            candidate.refuse(
                MiddlewareRejected(
                    "An enqueue middleware dropped this job, and the jobs of this request are stored all or none.",
                    hint="Send the other jobs without it, or all of them with `atomicity: partial` to /jobs/bulk.",
                )
            )


def or_raise(outcomes: Sequence[PushOutcome]) -> list[Pushed]:
    """The outcomes of an atomic push. Raises the error of the first culprit."""
    for outcome in outcomes:
        if isinstance(outcome, OJSError) and not isinstance(outcome, BatchAborted):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, Pushed)]


def any_refused(candidates: Sequence[Candidate]) -> bool:
    return any(isinstance(candidate.outcome, OJSError) for candidate in candidates)


class Taken(NamedTuple):
    """What is known of a stored job whose id a push wants."""

    state: str
    queue: str
    type: str


def duplicate_of_id(error: IntegrityError, candidates: Sequence[Candidate], using: str) -> Duplicate:
    """Which of these ids is taken, for the error of an insert that was rolled back, with the state of that job.

    Raises `error` where none is: something else was in the way, or the caller's transaction is broken and cannot be
    asked; LostRace where that transaction is older than the job.
    """
    taken = {} if connections[using].needs_rollback else taken_ids(candidates, using)
    culprits = [candidate for candidate in candidates if candidate.valid_spec.id in taken]
    if not culprits:
        raise unseen(error, using)
    return duplicate_of(min(culprits, key=lambda one: one.valid_spec.id), taken)


def taken_ids(candidates: Sequence[Candidate], using: str) -> dict[uuid.UUID, Taken]:
    """The ids that stored jobs have already, with what is known of those."""
    found = Job.objects.using(using).filter(pk__in=[candidate.valid_spec.id for candidate in candidates])
    return {pk: Taken(*known) for pk, *known in found.values_list("pk", *Taken._fields)}


def duplicate_of(candidate: Candidate, taken: Mapping[uuid.UUID, Taken]) -> Duplicate:
    """The refusal of a job whose id is taken: of a job beyond the caller's limits it tells no more than that."""
    job_id, known, limits = candidate.valid_spec.id, taken.get(candidate.valid_spec.id), candidate.limits
    if limits.unlimited or (known is not None and limits.covers(known.queue, known.type)):
        return duplicate_id(job_id, known.state if known else None)
    return Duplicate(_id_taken(job_id), details={"job_id": str(job_id)})


def read(document: Any, now: dt.datetime, index: int | None, limits: Limits = UNLIMITED) -> Candidate:
    """Validate, run the middleware chain, and validate again if there was one."""
    candidate = Candidate(index, limits=limits)
    try:
        candidate.spec = spellings.read_job(document, now=now, index=index)
        candidate.named = document.get("id") is not None
        candidate.document = document
        if middleware.enqueue_chain:
            job_id = str(candidate.spec.id)
            changed = middleware.run_enqueue_chain({**document, "id": job_id})
            if changed is None:
                candidate.outcome = DROPPED
            else:
                candidate.document = {**changed, "id": job_id}
                candidate.spec = spellings.read_job(candidate.document, now=now, index=index)
        candidate.warnings = candidate.spec.warnings
    except OJSError as error:
        candidate.refuse(error)
    return candidate


def admit(candidates: Sequence[Candidate], now: dt.datetime, using: str) -> None:
    """Tell each candidate that is still open what its queue gives, and refuse those that their queues do not take.

    Queues that are not there yet are created.
    """
    waiting = [candidate for candidate in candidates if candidate.outcome is None]
    if not waiting:
        return
    known = queues.ensure((candidate.valid_spec.queue for candidate in waiting), now, using)
    choosy = {name for name, defaults in known.items() if defaults.is_choosy}
    for candidate in waiting:
        spec = candidate.valid_spec
        candidate.queue = known[spec.queue]
        if spec.queue in choosy:
            try:
                queues.admit(candidate.queue, spec.queue, spec.type, candidate.index)
            except OJSError as error:
                candidate.refuse(error)


def refuse_repeated_ids(candidates: Sequence[Candidate]) -> None:
    numbers = {candidate.spec.id.int for candidate in candidates if candidate.spec}  # a UUID's hash is Python code
    if len(numbers) == len(candidates):
        return
    seen: set[uuid.UUID] = set()
    for candidate in candidates:
        if candidate.outcome is None:
            job_id = candidate.valid_spec.id
            if job_id in seen:
                candidate.refuse(duplicate_id(job_id, None))
            seen.add(job_id)


def aborted(candidate: Candidate) -> OJSError:
    details = {} if candidate.index is None else {"index": candidate.index}
    return BatchAborted("Not stored, because another job of this atomic request was refused.", details=details)


def duplicate_id(job_id: uuid.UUID, state: str | None) -> Duplicate:
    details = {"job_id": str(job_id), "existing_job_id": str(job_id)}
    if state:
        details |= {"existing_job_state": state, "existing_state": state}
    return Duplicate(_id_taken(job_id), details=details)


def _id_taken(job_id: uuid.UUID) -> Phrase:
    return phrase("A job with the id '%(job_id)s' exists already.", job_id=job_id)
