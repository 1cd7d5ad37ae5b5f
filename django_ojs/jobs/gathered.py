"""PUSH for a server that many callers ask at once: jobs that wait to be stored at the same moment are stored together.

Each caller reads its document in its own thread: validation, middleware, schema, trace context. What gathers are jobs
that have been read (`groupcommit`), and each caller gets what became of its own, or its own error. Jobs about which a
push decides under locks (unique ones, and those of bounded queues) gather apart, so that plain jobs never wait for
locks; so do requests with an Idempotency-Key, whose jobs, keys and answers are one transaction.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Sequence

from django.db import IntegrityError

from django_ojs import clock, hooks, middleware
from django_ojs.database import atomic, database, look_at_health
from django_ojs.errors import Conflict, OJSError
from django_ojs.groupcommit import ALONE, Group
from django_ojs.jobs import idempotency
from django_ojs.jobs.idempotency import Answer, Operation
from django_ojs.jobs.push import (
    Candidate,
    Frame,
    Outcome,
    Pushed,
    duplicate_of_id,
    is_decided,
    or_raise,
    push_each,
    store,
)
from django_ojs.queues import bounds
from django_ojs.queues import configuration as queues


def push_one(document: object, *, patience: float = 0.0, using: str | None = None) -> Pushed:
    """`push.push` of one document, whose job may be stored together with those of other callers."""
    using = database(using)

    def through(candidate: Candidate, using: str) -> Outcome | None:
        if candidate.outcome is None:
            (_deciding if _is_decided(candidate, using) else _plain).call(candidate, using)
        return candidate.outcome

    return bounds.patiently(lambda: _push(document, through, using), patience, using)


def _push(document: object, through: Callable[[Candidate, str], Outcome | None], using: str) -> Pushed:
    return or_raise(push_each([document], partial=False, through=through, using=using))[0]


def _is_decided(candidate: Candidate, using: str) -> bool:
    spec = candidate.job
    return is_decided(spec, queues.ensure([spec.queue], clock.now(using), using)[spec.queue])


def _store(candidates: Sequence[Candidate], *, using: str) -> list[Candidate | Exception]:
    """Store what can be stored of these, and say of each in its `outcome` what became of it."""
    for candidate in candidates:
        candidate.outcome = None  # that of a try which failed
    _store_distinct(candidates, using)
    return [ALONE if candidate.outcome is None else candidate for candidate in candidates]


def _store_distinct(candidates: Sequence[Candidate], using: str, *, own: bool = False) -> None:
    """Store what can be stored of these. Of those that share an id the first alone is looked at."""
    first: dict[uuid.UUID, Candidate] = {}
    for candidate in candidates:
        first.setdefault(candidate.job.id, candidate)
    several = len(candidates) > 1
    if first:
        stamp = clock.stamps(len(first), using)
        frame = Frame(clock.now(using), stamp, using, partial=several, hurried=several, own=own)
        store(list(first.values()), frame)


_plain: Group[Candidate, Candidate] = Group(_store)
_deciding: Group[Candidate, Candidate] = Group(_store)


# With an Idempotency-Key

#: What became of a document whose request was answered before.
_REPLAYED = Pushed(None, "replayed")


@dataclasses.dataclass(slots=True, eq=False)
class Keyed:
    """A job that was pushed with an Idempotency-Key. `read` is what was decided when it was read, `render` makes the
    answer that is stored with the key, and `answer` is the one to give."""

    candidate: Candidate
    operation: Operation
    render: Callable[[Pushed], Answer]
    read: Outcome | None = None
    answer: Answer | None = None
    replayed: bool = False

    def begin(self, known: Answer | Conflict | None) -> bool:
        """Take what is known of the key; whether the job is now to be pushed."""
        self.candidate.outcome, self.answer, self.replayed = self.read, None, False
        if isinstance(known, Conflict):
            self.candidate.outcome = known
        elif known is not None:
            self.candidate.outcome, self.answer, self.replayed = _REPLAYED, known, True
        return known is None


def push_once(
    document: object, operation: Operation, render: Callable[[Pushed], Answer], *, using: str | None = None
) -> tuple[Answer, bool]:
    """`push_one` under an Idempotency-Key: the answer that `render` makes of what became of the document, and whether
    it is that of an earlier request.

    Job, key and answer are committed together; an error frees the key. Raises Conflict when the key was used for
    another body, or when its first request is still running. It does not wait for room in a full queue, and leaves it
    to the caller to note the refusal (`bounds.record`), as `idempotency.once` does. `render` runs inside the
    transaction, in the thread of any caller.
    """
    using = database(using)
    idempotency.check(operation)
    if hooks.doubles.current is not None:  # a test's, which may answer without the database
        return idempotency.once(operation, lambda: render(push_one(document, using=using)), using)
    found: list[Keyed] = []

    def through(candidate: Candidate, using: str) -> Outcome | None:
        keyed = Keyed(candidate, operation, render, candidate.outcome)
        decided = candidate.outcome is None and _is_decided(candidate, using)
        found[:] = [(_deciding_keyed if decided else _plain_keyed).call(keyed, using)]
        return candidate.outcome

    with idempotency.under_way(operation, using):
        if middleware.enqueue_chain:  # which is not to meet a job that was pushed before
            look_at_health(using)
            known = idempotency.look(operation, using)
            if isinstance(known, Conflict):
                raise known
            if known is not None:
                return known, True
        try:
            _push(document, through, using)
        except OJSError:
            if (missed := idempotency.missed_answer(operation, using)) is not None:
                return missed, True
            raise
    (keyed,) = found
    assert keyed.answer is not None
    return keyed.answer, keyed.replayed


def _store_keyed(items: Sequence[Keyed], *, using: str) -> list[Keyed | Exception]:
    alone = len(items) == 1
    try:
        with atomic(using=using):
            return _hold_and_store(items, using, own=alone)
    except IntegrityError as error:
        if not alone or items[0].candidate.spec is None:
            raise
        raise duplicate_of_id([items[0].candidate.job], using) from error


def _hold_and_store(items: Sequence[Keyed], using: str, *, own: bool) -> list[Keyed | Exception]:
    """Hold the keys, push what was not pushed before, keep the answers. Of those that share a key the first alone is
    looked at."""
    first: dict[str, Keyed] = {}
    for item in items:
        first.setdefault(item.operation.digest, item)
    known = idempotency.hold([item.operation for item in first.values()], using)
    new = [item for item, found in zip(first.values(), known, strict=True) if item.begin(found)]
    _store_distinct([item.candidate for item in new if item.candidate.outcome is None], using, own=own)
    answers, free = [], []
    for item in new:
        if isinstance(item.candidate.outcome, Pushed):
            item.answer = item.render(item.candidate.outcome)
            answers.append((item.operation, item.answer))
        else:
            free.append(item.operation)
    idempotency.keep(answers, using, free=free)
    return [_given(item) if first[item.operation.digest] is item else ALONE for item in items]


def _given(item: Keyed) -> Keyed | Exception:
    outcome = item.candidate.outcome
    if outcome is None:
        return ALONE
    return outcome if isinstance(outcome, OJSError) else item


_plain_keyed: Group[Keyed, Keyed] = Group(_store_keyed)
_deciding_keyed: Group[Keyed, Keyed] = Group(_store_keyed)
