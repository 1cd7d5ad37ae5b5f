"""Enqueue jobs from the transaction of a site's data when the jobs are in another database (docs/second-database.md).

`put` writes the envelope, checked and with the id that the job will have, into a table of the caller's database, in
the caller's transaction. `relay` takes what is committed there to the jobs' database, in the order of insertion, and
deletes it. A crash in between leaves entries whose jobs exist already: they are known by their ids and only deleted.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import itertools
import logging
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from django.db import IntegrityError, connections
from django.db.models import Q

from django_ojs import clock, jsontext, output, spellings
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database, unseen
from django_ojs.errors import Conflict, Duplicate, OJSError, sentence_of
from django_ojs.faults import passes
from django_ojs.guard import get_logger
from django_ojs.hooks import replaceable
from django_ojs.jobs.candidates import (
    Candidate,
    PushContext,
    Pushed,
    PushOutcome,
    duplicate_id,
    read,
    refuse_dropped,
    refuse_repeated_ids,
)
from django_ojs.jobs.newrows import new_row
from django_ojs.jobs.push import push_read
from django_ojs.messages import phrase
from django_ojs.models import IdempotencyKey, Job, OutboxEntry, Workflow, WorkflowStep
from django_ojs.models.fields import RawJSON
from django_ojs.models.job import JobRow
from django_ojs.queues import configuration
from django_ojs.rules import redaction
from django_ojs.rules.workflows import Plan
from django_ojs.workflows import workflow

#: Not below `django_ojs.jobs`, the logger of handlers, which sites set to a level of their own.
logger = get_logger("django_ojs.outbox")

BATCH = 100
LONGEST_PAUSE = 300.0  #: seconds between two tries of what the other side does not take now


@replaceable("put")
def put(documents: Sequence[dict[str, Any]]) -> list[Pushed]:
    """Write jobs into the outbox, all or none, in the transaction that is open there, if there is one.

    Raises as `push` does for a faulty envelope, for what a middleware rejects, and `Duplicate` for an id that waits
    in the outbox. What only the jobs' database knows is found by the relay, which sets such entries aside.
    """
    using = home()
    now = clock.now(using)
    candidates = [read(document, now, i if len(documents) > 1 else None) for i, document in enumerate(documents)]
    if len(candidates) > 1:
        refuse_dropped(candidates)
    refuse_repeated_ids(candidates)
    for candidate in candidates:
        if isinstance(candidate.outcome, OJSError):
            raise candidate.outcome
    waiting = [candidate for candidate in candidates if candidate.outcome is None]
    entries = [
        _entry(candidate.valid_spec.id, OutboxEntry.Kind.JOB, candidate.valid_spec.type, candidate.document, now)
        for candidate in waiting
    ]
    _insert(entries, using)
    for candidate in waiting:
        candidate.outcome = Pushed(new_row(candidate.valid_spec, configuration.PLAIN, now, now), "outbox")
    return [candidate.outcome for candidate in candidates if isinstance(candidate.outcome, Pushed)]


@replaceable("put_workflow")
def put_workflow(document: dict[str, Any]) -> workflow.WorkflowView:
    """`put` for a workflow. Its enqueue middleware runs when its jobs are made, which the relay begins."""
    using = home()
    now = clock.now(using)
    plan = spellings.read_workflow(document, now=now)
    flow, steps = workflow.draft(plan, now)
    stored = {**document, "id": flow.row.public_id}
    _insert([_entry(flow.row.pk, OutboxEntry.Kind.WORKFLOW, flow.row.type, stored, now)], using)
    return workflow.WorkflowView(flow.row, steps, {})


def place() -> str | None:
    """The database whose outbox takes what is enqueued now; None: it is stored among the jobs at once.

    That is so without an outbox, and in a transaction that is open in the database of the jobs and not in that of the
    outbox, as around a handler that is `transactional="jobs"`: what is enqueued there is part of it.
    """
    if (source := ojs_settings.OUTBOX) is None:
        return None
    target = database(None)
    alone = target != source and connections[target].in_atomic_block and not connections[source].in_atomic_block
    return None if alone else source


def home() -> str:
    """The alias of the database that holds the outbox. Call it only where there is one."""
    assert ojs_settings.OUTBOX is not None
    return ojs_settings.OUTBOX


def find(target_id: uuid.UUID) -> OutboxEntry | None:
    """The entry of a job or workflow that has not left the outbox yet."""
    if ojs_settings.OUTBOX is None:
        return None
    return OutboxEntry.objects.using(home()).filter(target_id=target_id).first()


def existing_job(target_id: uuid.UUID) -> uuid.UUID | None:
    """The job that was there already, where a unique policy let it stand for the one of this id."""
    if ojs_settings.OUTBOX is None:
        return None
    found = IdempotencyKey.objects.using(database(None)).filter(pk=_digest(target_id)).first()
    return uuid.UUID(found.body) if found else None


def _digest(target_id: uuid.UUID) -> str:
    return hashlib.sha256(f"outbox {target_id}".encode()).hexdigest()


def job_row(entry: OutboxEntry) -> JobRow:
    """The row that the job will begin with."""
    spec = spellings.read_job(entry.document, now=entry.created_at)
    return new_row(spec, configuration.PLAIN, entry.created_at, entry.created_at)


def try_again(key: int) -> None:
    """Let the relay have an entry again that was set aside. Raises Conflict for one that was not."""
    aside = OutboxEntry.objects.using(home()).filter(pk=key, aside=True)
    if not aside.update(aside=False, retry_at=None):
        raise _not_aside(key)


def discard(key: int) -> None:
    """Give up an entry that was set aside; its job will never be. Raises Conflict for one that was not."""
    if not OutboxEntry.objects.using(home()).filter(pk=key, aside=True).delete()[0]:
        raise _not_aside(key)


def _not_aside(key: int) -> Conflict:
    return Conflict(
        phrase("The outbox entry %(key)s is not set aside: the relay has it.", key=key), details={"entry": key}
    )


def relay(*, limit: int = BATCH, using: str | None = None) -> int:
    """Take up to `limit` entries to the database of the jobs; return how many were dealt with.

    Any number of relays may run. Where the database has row locks they take turns; elsewhere two may push the same
    job, and the second finds its id taken.
    """
    if ojs_settings.OUTBOX is None:
        return 0
    target = database(using)
    with _asked() as source:
        if connections[source].features.has_select_for_update:
            with atomic(using=source):
                return _relay(source, target, limit)
        return _relay(source, target, limit)


@contextlib.contextmanager
def _asked() -> Iterator[str]:
    """`home`, for what may find that it is away: its connection is closed then. The caller closes that of the jobs."""
    source = home()
    try:
        yield source
    except Exception as error:
        if passes(error) and not connections[source].in_atomic_block:
            connections[source].close()
        raise


def count_aside() -> int:
    """The entries that were set aside: no relay tries them again, so a person has to act. 0 without an outbox."""
    if ojs_settings.OUTBOX is None:
        return 0
    with _asked() as source:
        return OutboxEntry.objects.using(source).filter(aside=True).count()


def _relay(source: str, target: str, limit: int) -> int:
    now = clock.now(source)
    waiting = OutboxEntry.objects.using(source).select_for_update()
    beyond = now + dt.timedelta(seconds=LONGEST_PAUSE) + clock.AHEAD  # noted while the clock was ahead
    due = Q(retry_at=None) | Q(retry_at__lte=now) | Q(retry_at__gt=beyond)
    waiting = waiting.filter(due, aside=False).order_by("id")
    entries = list(waiting[:limit])
    done: list[int] = []
    for kind, group in itertools.groupby(entries, lambda entry: entry.kind):
        batch = list(group)
        for entry, error in zip(batch, _take(kind, batch, target), strict=True):
            if error is None:
                done.append(entry.pk)
            else:
                _refused(entry, error, now, source)
    _delete(done, source)
    return len(entries)


def _take(kind: str, entries: list[OutboxEntry], target: str) -> list[Exception | None]:
    """Store these; for each the error that refused it. One that breaks the statement is found by taking each alone."""
    try:
        if kind == OutboxEntry.Kind.WORKFLOW:
            return [_create(entry, target) for entry in entries]
        return _push(entries, target)
    except Exception as error:
        if passes(error):
            raise  # away, busy, or not migrated: no fault of these entries
        if len(entries) == 1:
            logger.error(
                "The outbox entry of %s %s cannot be stored: %s", entries[0].type, entries[0].target_id,
                type(error).__name__, exc_info=not redaction.hides_refusal(_type_of_jobs(entries[0])),
            )  # fmt: skip
            return [error]
    return [error for entry in entries for error in _take(kind, [entry], target)]


def _push(entries: list[OutboxEntry], target: str) -> list[Exception | None]:
    candidates = [_candidate(index, entry) for index, entry in enumerate(entries)]
    now = clock.now(target)
    outcomes = push_read(candidates, PushContext(now, clock.stamps(len(candidates), now), target))
    found = {
        candidate.valid_spec.id: outcome.row["id"]
        for candidate, outcome in zip(candidates, outcomes, strict=True)
        if isinstance(outcome, Pushed) and outcome.status == "duplicate" and outcome.row
    }
    IdempotencyKey.objects.using(target).bulk_create(
        [IdempotencyKey(digest=_digest(mine), body=str(other), created_at=now) for mine, other in found.items()],
        ignore_conflicts=True,
    )
    return [_judge(candidate, outcome, target) for candidate, outcome in zip(candidates, outcomes, strict=True)]


def _candidate(index: int, entry: OutboxEntry) -> Candidate:
    candidate = Candidate(index, named=True)
    try:
        candidate.spec = spellings.read_job(entry.document, now=entry.created_at)
    except OJSError as error:
        candidate.refuse(error)
    return candidate


def _judge(candidate: Candidate, outcome: PushOutcome, target: str) -> Exception | None:
    """None: the job is stored, by this relay or by one that died before it could say so."""
    if not isinstance(outcome, OJSError):
        return None
    if isinstance(outcome, Duplicate) and outcome.details.get("existing_job_id") == str(candidate.valid_spec.id):
        there = Job.objects.using(target).filter(pk=candidate.valid_spec.id).rows(("type", "args"))
        if there and there[0] == {"type": candidate.valid_spec.type, "args": candidate.valid_spec.args_text}:
            return None
    return outcome


def _create(entry: OutboxEntry, target: str) -> OJSError | None:
    try:
        plan = spellings.read_workflow(entry.document, now=entry.created_at)
        workflow.create(plan, key=entry.target_id, using=target)
    except Duplicate as error:
        return None if _is_stored(plan, entry.target_id, target) else error
    except OJSError as error:
        return error
    return None


def _is_stored(plan: Plan, key: uuid.UUID, target: str) -> bool:
    """Whether a relay has stored this workflow that died before it could say so. The id may be another workflow's; the
    trace context in the `meta` of steps is that of the relay."""
    if not Workflow.objects.using(target).filter(pk=key, name=plan.name, graph=plan.graph.encode()).exists():
        return False
    steps = WorkflowStep.objects.using(target).filter(workflow_id=key).order_by("position")
    stored = [jsontext.loads(text) if text else {} for text in steps.values_list("document", flat=True)]
    return [*map(_without_meta, stored)] == [_without_meta(step.document or {}) for step in plan.steps]


def _without_meta(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "meta"}


def _refused(entry: OutboxEntry, error: Exception, now: dt.datetime, source: str) -> None:
    """Later, if that can help; else aside, for a person to look at."""
    entry.attempts += 1
    entry.error = sentence_of(error)
    entry.aside = not (isinstance(error, OJSError) and error.retryable)
    pause = min(2.0 ** min(entry.attempts, 16), LONGEST_PAUSE)
    entry.retry_at = None if entry.aside else now + dt.timedelta(seconds=pause)
    entry.save(using=source, update_fields=["attempts", "error", "aside", "retry_at"])
    fate = "is set aside" if entry.aside else f"is tried again in {pause:g} s"
    level = logging.ERROR if entry.aside else logging.WARNING
    refusal = output.one_line(shown_error(entry))
    logger.log(level, "The outbox entry of %s %s %s: %s", entry.type, entry.target_id, fate, refusal)


def shown_error(entry: OutboxEntry) -> str:
    """Why an entry was refused, as the log and the admin say it."""
    return redaction.refusal(entry.error, _type_of_jobs(entry))


def _type_of_jobs(entry: OutboxEntry) -> str:
    """The type that the rules of `REDACT` are for; '' for a workflow, whose jobs may be of several."""
    return entry.type if entry.kind == OutboxEntry.Kind.JOB else ""


def _delete(keys: Sequence[int], source: str) -> None:
    if keys:
        OutboxEntry.objects.using(source).filter(pk__in=keys).delete()


def _entry(target_id: uuid.UUID, kind: str, type: str, document: dict[str, Any], now: dt.datetime) -> OutboxEntry:
    entry = OutboxEntry(target_id=target_id, kind=kind, type=type, created_at=now)
    entry.document = RawJSON(jsontext.dumps({**document, "id": document.get("id") or str(target_id)}))
    return entry


def _insert(entries: Sequence[OutboxEntry], using: str) -> None:
    """The savepoint keeps the caller's transaction whole when an id is taken."""
    try:
        with atomic(using=using):
            OutboxEntry.objects.using(using).bulk_create(entries)
    except IntegrityError as error:
        ids = [entry.target_id for entry in entries]
        taken = OutboxEntry.objects.using(using).filter(target_id__in=ids).values_list("target_id", flat=True).first()
        if taken is None:
            raise unseen(error, using) from error.__cause__
        raise duplicate_id(taken, None) from error
