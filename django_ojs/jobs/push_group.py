"""PUSH for a server that many callers ask at once: jobs that wait to be stored at the same moment are stored together.

Each caller takes the first three steps of `push` in its own thread: read, check the schema, ask the queue. What gathers
are jobs that a queue takes (`groupcommit`), and each caller gets what became of its own, or its own error. Jobs about
which a push decides under locks (unique ones, and those of bounded queues) gather apart, so that plain jobs never wait
for locks; so do requests with an Idempotency-Key, whose jobs, keys and answers are one transaction.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.db import IntegrityError

from django_ojs import clock, hooks, middleware
from django_ojs.access import UNLIMITED, Limits
from django_ojs.database import atomic, check_health, database
from django_ojs.errors import Conflict, OJSError, QueueFull
from django_ojs.groupcommit import LEFT_OUT, CommitGroup
from django_ojs.jobs import idempotency, schemas
from django_ojs.jobs.candidates import (
    Candidate,
    PushContext,
    Pushed,
    PushOutcome,
    aborted,
    admit,
    duplicate_of_id,
    or_raise,
    read,
)
from django_ojs.jobs.decisions import store_decided
from django_ojs.jobs.idempotency import Answer, KeyedRequest
from django_ojs.jobs.newrows import store_plain
from django_ojs.jobs.push import push
from django_ojs.queues import bounds

#: Stores jobs that have been read: `store_plain` or `store_decided`.
StoreJobs = Callable[[Sequence[Candidate], PushContext], None]


def push_one(
    document: object, *, patience: float = 0.0, limits: Limits = UNLIMITED, using: str | None = None
) -> Pushed:  # fmt: skip
    """`push.push` of one document, whose job may be stored together with those of other callers."""
    using = database(using)
    if hooks.doubles.current is not None:  # a test's, which gets a push as a whole
        return push([document], patience=patience, limits=limits, using=using)[0]
    left = bounds.Patience(patience, using)
    while True:
        try:
            with hooks.pushing([document], *hooks.around_work_of_push, *hooks.around_push) as pushing:
                candidate = _read(pushing.documents, limits, using)
                if candidate.outcome is None:
                    group = _deciding if candidate.needs_decision else _plain
                    group.call(candidate, using)
                outcomes = [candidate.outcome or aborted(candidate)]
                pushing.conclude(outcomes)
            return or_raise(outcomes)[0]
        except QueueFull as error:
            if not left.waits_for_room(error):
                raise


def _read(documents: Sequence[Any], limits: Limits, using: str) -> Candidate:
    """The only document after the steps that its caller takes by itself; its `outcome` says whether it is refused."""
    (document,) = documents
    now = clock.now(using)
    candidate = read(document, now, None, limits)
    schemas.check([candidate], using)
    admit([candidate], now, using)
    return candidate


def _store(store_jobs: StoreJobs, candidates: Sequence[Candidate], *, using: str) -> list[Candidate | Exception]:
    """Store what can be stored of these, and say of each in its `outcome` what became of it."""
    for candidate in candidates:
        candidate.outcome = None  # that of a try which failed
    store_jobs(*_distinct(candidates, using))
    return [LEFT_OUT if candidate.outcome is None else candidate for candidate in candidates]


def _distinct(
    candidates: Sequence[Candidate], using: str, *, own: bool = False
) -> tuple[list[Candidate], PushContext]:  # fmt: skip
    """The first of those that share an id, and what holds for their push. Several are stored as far as they can be."""
    first: dict[uuid.UUID, Candidate] = {}
    for candidate in candidates:
        first.setdefault(candidate.valid_spec.id, candidate)
    now = clock.now(using)
    context = PushContext(now, clock.stamps(len(first), now), using, partial=len(candidates) > 1, own=own)
    return list(first.values()), context


def _size(candidate: Candidate) -> int:
    """About how many characters a job brings to the database."""
    spec = candidate.spec
    return 0 if spec is None else len(spec.args_text) + len(spec.meta_text) + len(spec.extra_text)


_plain: CommitGroup[Candidate, Candidate] = CommitGroup(partial(_store, store_plain), size=_size)
_deciding: CommitGroup[Candidate, Candidate] = CommitGroup(partial(_store, store_decided), size=_size)


# With an Idempotency-Key

#: What became of a document whose request was answered before.
_REPLAYED = Pushed(None, "replayed")


@dataclasses.dataclass(slots=True, eq=False)
class Keyed:
    """A job that was pushed with an Idempotency-Key. `read` is what was decided when it was read, `render` makes the
    answer that is stored with the key, and `answer` is the one to give."""

    candidate: Candidate
    operation: KeyedRequest
    render: Callable[[Pushed], Answer]
    read: PushOutcome | None = None
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
    document: object,
    operation: KeyedRequest,
    render: Callable[[Pushed], Answer],
    *,
    limits: Limits = UNLIMITED,
    using: str | None = None,
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
        return idempotency.once(operation, lambda: render(push_one(document, limits=limits, using=using)), using)
    with idempotency.under_way(operation, using):
        if middleware.enqueue_chain:  # which is not to meet a job that was pushed before
            check_health(using)
            known = idempotency.read_answer(operation, using)
            if isinstance(known, Conflict):
                raise known
            if known is not None:
                return known, True
        try:
            with hooks.pushing([document], *hooks.around_work_of_push, *hooks.around_push) as pushing:
                candidate = _read(pushing.documents, limits, using)
                keyed = Keyed(candidate, operation, render, candidate.outcome)
                decided = candidate.outcome is None and candidate.needs_decision
                (_deciding_keyed if decided else _plain_keyed).call(keyed, using)
                outcomes = [candidate.outcome or aborted(candidate)]
                pushing.conclude(outcomes)
            or_raise(outcomes)
        except OJSError:
            if (missed := idempotency.missed_answer(operation, using)) is not None:
                return missed, True
            raise
    assert keyed.answer is not None
    return keyed.answer, keyed.replayed


def _store_keyed(store_jobs: StoreJobs, items: Sequence[Keyed], *, using: str) -> list[Keyed | Exception]:
    alone = len(items) == 1
    try:
        with atomic(using=using):
            return _hold_and_store(store_jobs, items, using, own=alone)
    except IntegrityError as error:
        if not alone or items[0].candidate.spec is None:
            raise
        raise duplicate_of_id(error, [items[0].candidate], using) from error


def _hold_and_store(
    store_jobs: StoreJobs, items: Sequence[Keyed], using: str, *, own: bool
) -> list[Keyed | Exception]:  # fmt: skip
    """Hold the keys, push what was not pushed before, keep the answers. Of those that share a key the first alone is
    looked at."""
    first: dict[str, Keyed] = {}
    for item in items:
        first.setdefault(item.operation.digest, item)
    known = idempotency.hold([item.operation for item in first.values()], using)
    new = [item for item, found in zip(first.values(), known, strict=True) if item.begin(found)]
    if waiting := [item.candidate for item in new if item.candidate.outcome is None]:
        store_jobs(*_distinct(waiting, using, own=own))
    answers, free = [], []
    for item in new:
        if isinstance(item.candidate.outcome, Pushed):
            item.answer = item.render(item.candidate.outcome)
            answers.append((item.operation, item.answer))
        else:
            free.append(item.operation)
    idempotency.keep(answers, using, free=free)
    return [_given(item) if first[item.operation.digest] is item else LEFT_OUT for item in items]


def _given(item: Keyed) -> Keyed | Exception:
    """What the commit group tells the caller of this item: the item itself, or why it was refused or left out."""
    outcome = item.candidate.outcome
    if outcome is None:
        return LEFT_OUT
    return outcome if isinstance(outcome, OJSError) else item


def _size_of_keyed(item: Keyed) -> int:
    """The same with the answer that is kept, in which the job is once more, and under `job`."""
    return 3 * _size(item.candidate)


_plain_keyed: CommitGroup[Keyed, Keyed] = CommitGroup(partial(_store_keyed, store_plain), size=_size_of_keyed)
_deciding_keyed: CommitGroup[Keyed, Keyed] = CommitGroup(partial(_store_keyed, store_decided), size=_size_of_keyed)
