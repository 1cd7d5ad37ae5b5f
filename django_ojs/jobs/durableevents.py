"""Emits the events that durable handlers wait for, lets a step wait for one, and gives it to the jobs that wait.

An event is a fact with a name and a key, such as `order.paid` of order 7. The first that is emitted counts, and it is
kept for a while (`OJS["DURABLE_EVENT_RETENTION"]`), so that a job which asks for it later finds it.

**No event is lost between the look and the sleep.** Three transactions meet here:

- *emit*, maybe in a transaction of the caller's that stays open: it stores the event, reads the steps that wait for it,
  locks their jobs, ends the steps, and makes those of the jobs available that are `retryable`;
- *wait*, of the run: it looks for the event, and where there is none stores a step that waits;
- the *report* of the run, FAIL with a pause: it locks the job and makes it `retryable`.

*Emit* and *wait* of the same event take turns by a lock (`_take_turns`), which each holds until its commit. So *wait*
either finds the event, or its step is stored before *emit* reads the steps. Two looks without a lock would not do: an
event that is not committed yet is not seen, and neither is the step by the one who emits. *Wait* stays for a moment
only where another transaction has the lock, and the job looks again a second later; no worker is kept by a transaction
that a site leaves open.

*Emit* and *report* of the same job take turns by the lock of its row. If *emit* comes first, the job is active: it ends
the step and leaves the job alone. The report then finds the ended step (`came_meanwhile`), and hands the job back
instead of letting it sleep. If the report comes first, *emit* finds the job `retryable` and makes it available. A job
whose worker died in between is neither: it gets its reservation's end, runs again and finds the step ended.

A timeout is recorded by the run that finds it, and *emit* ends only steps that have not ended. Of the two the first
counts, and the other changes nothing.

On PostgreSQL and MariaDB this needs READ COMMITTED, which `manage.py check` asks for: a statement sees what was
committed before it began. SQLite has one writer at a time.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from django.db import Error, connections
from django.db.models import ExpressionWrapper, F, TextField

from django_ojs import clock, jsontext, lockwaits, states
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database, retried
from django_ojs.errors import Conflict, NotFound, PayloadTooLarge
from django_ojs.faults import is_contention
from django_ojs.hooks import replaceable
from django_ojs.jobs import promote, steps
from django_ojs.messages import phrase
from django_ojs.models import DurableEvent, Job, JobStep, UniqueLock
from django_ojs.models.fields import RawJSON
from django_ojs.rules.approvals import EVENT as APPROVAL
from django_ojs.rules.durableevents import Emitted, check
from django_ojs.rules.steps import Step, StepKind
from django_ojs.states import State
from django_ojs.store import store_of
from django_ojs.store.steps import Holder

#: Jobs that are locked and changed by one statement.
_BATCH = 500


@replaceable("emit")
def emit(name: str, key: str, payload: str, *, component: str = "api", using: str | None = None) -> Emitted:
    """Emit an event, with its payload as JSON text, and give it to the jobs that wait for it.

    In the caller's transaction, where one is open: a job goes on after its commit. Raises InvalidRequest and
    PayloadTooLarge.
    """
    check_event(name, key, payload)
    return _emit(name, key, payload, component, using=database(using))


@retried
def _emit(name: str, key: str, payload: str, component: str, *, using: str) -> Emitted:
    with atomic(using=using):
        _take_turns(name, key, using)
        events = DurableEvent.objects.using(using)
        first = events.filter(name=name, key=key).first()
        if first is not None:
            return Emitted(name, key, is_new=False, payload=first.payload, created_at=first.created_at)
        now = clock.now(using)
        text: Any = RawJSON(payload)
        events.bulk_create([DurableEvent(name=name, key=key, payload=text, created_at=now)])
        given = _give(name, key, payload, now, component, using)
        return Emitted(name, key, is_new=True, payload=jsontext.loads(payload), created_at=now, job_ids=tuple(given))


@retried
def emit_for(job_id: uuid.UUID, step: str, payload: str, *, using: str | None = None) -> Emitted:
    """Emit the event that this step of a job waits for, as `emit` does: the first of its name and key counts.

    Raises NotFound where the job has no such wait, and Conflict where it has ended by a timeout, or with its job.
    """
    using = database(using)
    with atomic(using=using):
        found = steps.named(job_id, step, using=using).filter(kind=StepKind.EVENT)
        row = found.exclude(event_name=APPROVAL).values("event_name", "event_key").first()
        if row is None:
            raise NotFound(
                phrase("Job '%(job)s' waits for no event in a step '%(step)s'.", job=job_id, step=step),
                details={"resource_type": "step", "resource_id": step},
            )
        name, key = str(row["event_name"]), str(row["event_key"])
        _take_turns(name, key, using)
        if not DurableEvent.objects.using(using).filter(name=name, key=key).exists():
            _check_waits(job_id, step, using)
        return emit(name, key, payload, using=using)


def _check_waits(job_id: uuid.UUID, step: str, using: str) -> None:
    """Nobody can end the wait meanwhile by its event or its timeout: they take turns."""
    waits = JobStep.objects.using(using).filter(job_id=job_id, name=step, ended_at__isnull=True).exists()
    jobs = Job.objects.using(using).filter(pk=job_id).exclude(state__in=states.TERMINAL)
    if not (waits and jobs.exists()):
        raise Conflict(
            phrase("Job '%(job)s' does not wait in its step '%(step)s' any more.", job=job_id, step=step),
            details={"resource_type": "step", "resource_id": step},
        )


def give(name: str, key: str, payload: str, *, using: str) -> bool:
    """Give an event of the server's own to the jobs that wait for it, in the caller's transaction; it is not kept.

    It waits for no job that another transaction has locked: the caller may hold what that one waits for. Returns
    whether it left no such job out.
    """
    waits = JobStep.objects.using(using).filter(event_name=name, event_key=key, ended_at__isnull=True)
    wanted = set(waits.values_list("job_id", flat=True))
    if not wanted:
        return True
    given = set(_give(name, key, payload, clock.now(using), "server", using, skip_locked=True))
    return not Job.objects.using(using).filter(pk__in=wanted - given).exclude(state__in=states.TERMINAL).exists()


def find(name: str, key: str, *, using: str) -> str | None:
    """The payload of this event, as JSON text; None where it has not come."""
    text: Any = ExpressionWrapper(F("payload"), output_field=TextField())
    found = DurableEvent.objects.using(using).filter(name=name, key=key)
    payload: str | None = found.annotate(text=text).values_list("text", flat=True).first()
    return payload


def wait(holder: Holder, step: Step, *, using: str) -> bool | None:
    """Record this step, which waits for its event; with the event as its result, if it has come.

    Returns whether the job is still this run's; None where another transaction is in the way for now, and nothing is
    recorded. Raises `StepExists`.
    """

    def record() -> bool:
        step.result = find(*step.event, using=using)
        step.ended_at = None if step.result is None else clock.now(using)
        return steps.record(holder, step, using=using)

    return _in_turn(step, record, using)


def time_out(holder: Holder, step: Step, *, using: str) -> bool | None:
    """Record that this step has waited in vain. Returns whether that is so: not where the event has come, or the job is
    no longer this run's; None where another transaction is in the way for now."""
    return _in_turn(step, lambda: steps.replace(holder, step, using=using), using)


def _in_turn(step: Step, act: Callable[[], bool], using: str) -> bool | None:
    """`act` in a transaction in which no other caller emits the event of this step; None where that takes too long."""
    inside = connections[using].in_atomic_block  # in a test; a limit would last as long as its transaction
    try:
        with contextlib.nullcontext() if inside else lockwaits.LockTimeout(lockwaits.SHARED, using):  # noqa: SIM117
            with atomic(using=using):
                _take_turns(*step.event, using)
                return act()
    except Error as error:
        if inside or not is_contention(error):
            raise
        return None


def came_meanwhile(waits: Mapping[uuid.UUID, Iterable[str]], using: str) -> set[uuid.UUID]:
    """Those of these locked jobs that wait for events in the steps of these names, and have one of them by now, or no
    such step any more: nothing would wake them."""
    wanted = {(job_id, name) for job_id, names in waits.items() for name in names}
    open_steps = JobStep.objects.using(using).filter(
        job_id__in=list(waits), name__in={name for _, name in wanted}, ended_at__isnull=True
    )
    return {job_id for job_id, _ in wanted.difference(open_steps.values_list("job_id", "name"))}


def waiting(job_ids: Sequence[uuid.UUID], *, using: str | None = None) -> set[uuid.UUID]:
    """Those of these jobs that wait for an event, or for jobs that they run."""
    found = JobStep.objects.using(database(using)).filter(
        job_id__in=list(job_ids), kind__in=(StepKind.EVENT, StepKind.CHILDREN), ended_at__isnull=True
    )
    return set(found.values_list("job_id", flat=True))


def prune(now: dt.datetime, batch: int, using: str) -> int:
    """Delete at most `batch` of the events that were emitted too long ago; return how many."""
    edge = now - dt.timedelta(seconds=ojs_settings.DURABLE_EVENT_RETENTION)
    events = DurableEvent.objects.using(using)
    old = events.filter(created_at__lt=edge).order_by("created_at").values_list("pk", flat=True)
    ids = list(old[:batch])
    gone: int = events.filter(pk__in=ids)._raw_delete(using) if ids else 0
    return gone


def check_event(name: str, key: str, payload: str) -> None:
    """Raise InvalidRequest or PayloadTooLarge unless a caller may emit this event."""
    check("name", name)
    check("key", key)
    size, most = jsontext.byte_length(payload), ojs_settings.MAX_DURABLE_EVENT_BYTES
    if size > most:
        raise PayloadTooLarge(
            f"The payload of the event has {size} bytes, more than the {most} allowed.",
            details={"actual_bytes": size, "max_bytes": most, "field": "payload"},
            hint="Store large data elsewhere and emit a reference to it.",
        )


def _take_turns(name: str, key: str, using: str) -> None:
    """Wait for all who emit this event or begin to wait for it, and make later ones wait until the commit."""
    store = store_of(using)
    store.begin_writing()
    digest = hashlib.sha256(f"event\0{name}\0{key}".encode()).hexdigest()
    store.lock_stripes([UniqueLock.of(digest)])


def _give(
    name: str, key: str, payload: str, now: dt.datetime, component: str, using: str, *, skip_locked: bool = False
) -> list[uuid.UUID]:
    """End the steps that wait for this event, and let their jobs go on; return the ids of these."""
    waits = JobStep.objects.using(using).filter(event_name=name, event_key=key, ended_at__isnull=True)
    of_job: dict[uuid.UUID, list[int]] = {}
    for job_id, pk in waits.values_list("job_id", "pk"):
        of_job.setdefault(job_id, []).append(pk)
    given: list[uuid.UUID] = []
    ids = sorted(of_job)
    for begin in range(0, len(ids), _BATCH):
        rows = store_of(using).lock(ids[begin : begin + _BATCH], skip_locked=skip_locked)
        locked = [pk for row in rows for pk in of_job[row["id"]]]
        JobStep.objects.using(using).filter(pk__in=locked, ended_at__isnull=True).update(
            result=RawJSON(payload), ended_at=now
        )
        promote.end_waits([row for row in rows if row["state"] == State.RETRYABLE], now, component, using)
        given += [row["id"] for row in rows if row["state"] not in states.TERMINAL]
    return given
