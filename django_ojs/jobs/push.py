"""PUSH (core 7.1): enqueue jobs with their events, in the caller's transaction.

A push takes five steps, in this order:

1. Read each document: validate it, run the enqueue middleware, validate what that made of it (`candidates.read`).
2. Check the arguments against the schemas that the site has registered (`schemas.check`).
3. Ask the queues, which may refuse a job (`candidates.admit`).
4. Decide under locks, if there are unique jobs or bounded queues (`decisions.store_decided`). Most pushes have none.
5. Insert the rows of the jobs with their events (`newrows.store_plain`, or the end of step 4).

Each document is a `Candidate` on its way; what becomes of it is `Pushed`, or the error that refused it. All is decided
before anything is written, but for large pushes (`largepushes`).

Python code calls `push`, and acts on many jobs call `push_each`. A request with one job calls `push_group.push_one`,
which takes the same steps, the last two together with other requests.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django_ojs import clock, garbage, hooks
from django_ojs.access import UNLIMITED, Limits
from django_ojs.database import database, retried
from django_ojs.errors import QueueFull
from django_ojs.jobs import schemas
from django_ojs.jobs.candidates import (
    Candidate,
    PushContext,
    Pushed,
    PushOutcome,
    aborted,
    admit,
    any_refused,
    or_raise,
    read,
    refuse_dropped,
    refuse_repeated_ids,
)
from django_ojs.jobs.decisions import Closing, store_decided
from django_ojs.jobs.largepushes import store_while_reading
from django_ojs.jobs.newrows import store_plain
from django_ojs.models.job import JobRow
from django_ojs.queues import bounds
from django_ojs.store.values import FlowChange


class Owner(NamedTuple):
    """The workflow that a job belongs to, and what whoever created it reaches."""

    workflow_id: uuid.UUID
    limits: Limits = UNLIMITED


def push(
    documents: Sequence[Any],
    *,
    component: str = "api",
    patience: float = 0.0,
    limits: Limits = UNLIMITED,
    workflows: Mapping[uuid.UUID, Owner] | None = None,
    ended: list[JobRow] | None = None,
    accepted: bool = False,
    using: str | None = None,
) -> list[Pushed]:
    """Enqueue the jobs that these envelopes describe, all or none; return what became of each, in order.

    Raises an `OJSError` (`InvalidPayload`, `Duplicate`, `QueueFull`, ...) for the first faulty document,
    with its `index` in the details when there are several; nothing is stored then. `patience` is how many
    seconds to wait for room in a queue whose strategy is `block`; `limits` are those of the caller, beyond
    which the push ends no job and tells of none; `workflows` says which workflow a job belongs to, by job
    id. Where `ended` is given, the jobs that this push replaces or drops are added to it,
    and the caller starts the next steps of their workflows. `PushContext` describes `accepted`.
    """
    using = database(using)
    left = bounds.Patience(patience, using)
    while True:
        try:
            outcomes = push_each(
                documents, partial=False, component=component, limits=limits, workflows=workflows, ended=ended,
                accepted=accepted, using=using,
            )  # fmt: skip
            return or_raise(outcomes)
        except QueueFull as error:
            if not left.waits_for_room(error):
                raise


def push_each(
    documents: Sequence[Any],
    *,
    partial: bool = True,
    component: str = "api",
    closing: Closing | None = None,
    limits: Limits = UNLIMITED,
    workflows: Mapping[uuid.UUID, Owner] | None = None,
    ended: list[JobRow] | None = None,
    accepted: bool = False,
    workflow_change: FlowChange | None = None,
    using: str | None = None,
) -> list[PushOutcome]:
    """Enqueue what can be; return for each document what became of it, or the error that refused it.

    With `partial` the others are stored though one is refused; without, nothing is, and the culprits come
    with their errors, the others with `BatchAborted`. `PushContext` describes `accepted` and `workflow_change`.
    """
    with hooks.pushing(documents, *hooks.around_push) as pushing:
        outcomes = _push(
            pushing.documents, partial=partial, component=component, closing=closing, limits=limits,
            workflows=workflows, ended=ended, accepted=accepted, workflow_change=workflow_change, using=database(using),
        )  # fmt: skip
        pushing.conclude(outcomes)
    return outcomes


@hooks.replaceable("push")
def _push(documents: Sequence[Any], **options: Any) -> list[PushOutcome]:
    with hooks.pushing(documents, *hooks.around_work_of_push) as pushing:
        outcomes = _read_and_store(pushing.documents, **options)
        pushing.conclude(outcomes)
    return outcomes


@retried
def _read_and_store(
    documents: Sequence[Any],
    *,
    partial: bool,
    component: str,
    closing: Closing | None,
    limits: Limits,
    workflows: Mapping[uuid.UUID, Owner] | None,
    ended: list[JobRow] | None,
    accepted: bool,
    workflow_change: FlowChange | None,
    using: str,
) -> list[PushOutcome]:
    now = clock.now(using)
    stamp = clock.stamps(len(documents), now)
    context = PushContext(
        now, stamp, using, partial, component, ended, accepted=accepted, workflow_change=workflow_change
    )
    several = len(documents) > 1
    coming = (read(document, now, i if several else None, limits) for i, document in enumerate(documents))
    candidates: list[Candidate] = []
    with garbage.collection_paused(len(documents)):
        if not (workflows or workflow_change):
            stored = store_while_reading(candidates, coming, len(documents), context, closing)
            if stored is not None:
                return stored
        candidates += coming
        for candidate in candidates if workflows else ():
            if candidate.spec and (owner := (workflows or {}).get(candidate.spec.id)):
                candidate.spec.workflow_id, candidate.limits = owner
                candidate.named = False  # a workflow's job has an id of ours
        if not partial and workflows is None and several:
            refuse_dropped(candidates)
        return push_read(candidates, context, closing)


def push_read(
    candidates: Sequence[Candidate], context: PushContext, closing: Closing | None = None
) -> list[PushOutcome]:
    """`push_each` for documents that have been read, and changed by the middleware, before: the steps behind that."""
    if len(candidates) > 1:
        refuse_repeated_ids(candidates)
    if not context.accepted:
        schemas.check(candidates, context.using)
    if context.partial or not any_refused(candidates):
        admit(candidates, context.now, context.using)
        if context.partial or not any_refused(candidates):
            _store(candidates, context, closing)
    return [candidate.outcome or aborted(candidate) for candidate in candidates]


def _store(candidates: Sequence[Candidate], context: PushContext, closing: Closing | None) -> None:
    """Store those that are still open, on the shortest way."""
    waiting = [candidate for candidate in candidates if candidate.outcome is None]
    if closing or any(candidate.needs_decision for candidate in waiting):
        store_decided(candidates, context, closing)
    else:
        store_plain(waiting, context)
