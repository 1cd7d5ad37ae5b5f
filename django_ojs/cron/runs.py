"""Fires the schedules that are due, each once however many schedulers look, and keeps account of the jobs that
schedules made: which still live, and which have to wait for the run before them (orchestration 2.4).

Firing is one transaction that begins with a conditional UPDATE of the schedule's `wake_at`: the
scheduler that changes it fires, the others find another value. The job, its events and the schedule's next time are
committed together, so a crash leaves either the whole tick or none of it, and then the next look finds it.

A job that must wait for the previous run (overlap policy `enqueue`) is `available` with a `due_at` that no
claim reaches. FETCH lets the next one go, as it promotes due jobs, so that it is there as soon as the run
before it has ended, however that came about; the scheduler does the same for sites that do not fetch.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import Exists, F, Min, OuterRef, Q, QuerySet

from django_ojs import clock, output, spellings, states
from django_ojs.access import UNLIMITED, Limits
from django_ojs.cron import schedules
from django_ojs.database import atomic, database
from django_ojs.errors import Conflict, OJSError, sentence_of
from django_ojs.events import catalogue, log
from django_ojs.events.catalogue import Record
from django_ojs.faults import is_general
from django_ojs.guard import get_logger
from django_ojs.hooks import replaceable
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.candidates import Pushed
from django_ojs.jobs.push import push
from django_ojs.lifecycle.ended import queues_claimed
from django_ojs.messages import phrase
from django_ojs.models import CronRun, CronSchedule, Job
from django_ojs.models.job import JobRow
from django_ojs.queues import maintenance
from django_ojs.rules import cron, redaction
from django_ojs.rules.cron import OverlapPolicy
from django_ojs.rules.durations import format_instant
from django_ojs.rules.rows import END_OF_TIME
from django_ojs.states import State
from django_ojs.store import store_of

logger = get_logger(__name__)

COMPONENT = "cron"
BATCH = 100
_INSTANT = dt.timedelta(microseconds=1)


class Skipped(NamedTuple):
    """Why an occurrence made no job. `code` is the reason in the words of the cron companion."""

    reason: str
    code: str
    job_id: uuid.UUID | None = None
    facts: Mapping[str, Any] = {}


OVERLAP = "overlap_prevention"


def tick(*, using: str | None = None) -> int:
    """Fire what is due, at most `BATCH` schedules; return how many this call had. Those of others are left alone.

    None fires in maintenance mode (orchestration 2.4); when that ends each fires once for all that it missed.
    """
    using = database(using)
    due = CronSchedule.objects.using(using).filter(wake_at__lte=clock.now(using)).order_by("wake_at", "name")
    found = list(due[:BATCH])
    return sum(_tick(schedule, using) for schedule in found) if found and not maintenance.is_on(using=using) else 0


@replaceable("trigger")
def trigger(
    name: str, *, limits: Limits = UNLIMITED, using: str | None = None
) -> tuple[CronSchedule, JobRow]:  # fmt: skip
    """Make a job of this schedule now, enabled or not; when it fires next stays as it is.

    The job is pushed within the `limits` of the caller and those of the schedule. Raises `NotFound`, `Conflict` where
    the policy `skip` forbids a second run, and whatever PUSH raises.
    """
    using = database(using)
    with atomic(using=using):
        schedule = schedules.lock(name, using)
        now = clock.now(using)
        made = _launch(schedule, now, now, using, limits)
        if isinstance(made, Skipped):
            raise _refusal(schedule, made)
        log.append([_triggered(schedule, made, now, now, schedule.next_run_at)], using)
    return schedule, made


def _tick(schedule: CronSchedule, using: str) -> bool:
    now = clock.now(using)
    try:
        plan = cron.parse_expression(schedule.expression, schedule.timezone)
    except ValueError as error:
        return _give_up(schedule, error, now, using)
    nominal = schedule.next_run_at
    assert nominal is not None and schedule.wake_at is not None  # noqa: PT018 - the table demands both
    fires = nominal <= now
    upcoming = plan.next_after(now, nominal) if fires else cron.Occurrence(nominal)
    lost = plan.next_after(schedule.wake_at - _INSTANT, schedule.anchor_at).lost
    aim = {"wake_at": upcoming.wake_at, "next_run_at": upcoming.at} | ({"anchor_at": nominal} if fires else {})
    with atomic(using=using):
        if not _claim(schedule, aim, using):
            return False
        records = []
        if lost is not None and lost.at == schedule.wake_at:
            facts = {"local_time": lost.local.isoformat()}
            records.append(_skipped(schedule, Skipped("dst_skip", "dst_skip", None, facts), now, lost.at, upcoming.at))
        if fires:
            records.append(_fire(schedule, nominal, now, upcoming.at, using))
        log.append(records, using)
    return True


def _claim(schedule: CronSchedule, aim: Mapping[str, Any], using: str) -> bool:
    """Move a due schedule on, if it is still as it was read: neither fired nor changed by another process."""
    mine = CronSchedule.objects.using(using).filter(
        pk=schedule.pk, wake_at=schedule.wake_at, updated_at=schedule.updated_at, enabled=True
    )
    return bool(mine.update(**aim))


def _fire(schedule: CronSchedule, nominal: dt.datetime, now: dt.datetime, upcoming: dt.datetime, using: str) -> Record:
    """Make the job of a due occurrence; the event that says so, or why there is none."""
    try:
        with atomic(using=using):
            made = _launch(schedule, nominal, now, using)
    except OJSError as error:
        if is_general(error):
            raise
        refusal = output.one_line(redaction.refusal(sentence_of(error), schedule.type))
        logger.warning("The schedule %s made no job: %s", schedule.name, refusal)
        facts = {"error": _told(error.error_code, redaction.refusal_message(str(error), schedule.type))}
        made = Skipped("enqueue_rejected", error.error_code, None, facts)
    except Exception as error:  # one schedule's middleware must not stop the others
        if is_general(error):
            raise
        kind, shown = type(error).__name__, not redaction.hides_refusal(schedule.type)
        logger.error(
            "The schedule %s could not make its job; this occurrence is lost: %s", schedule.name, kind, exc_info=shown
        )
        facts = {"error": _told("internal_error", kind)}
        made = Skipped("enqueue_failed", "internal_error", None, facts)
    if isinstance(made, Skipped):
        return _skipped(schedule, made, now, nominal, upcoming)
    return _triggered(schedule, made, nominal, now, upcoming)


def _launch(
    schedule: CronSchedule, nominal: dt.datetime, now: dt.datetime, using: str, caller: Limits = UNLIMITED
) -> JobRow | Skipped:  # fmt: skip
    """Overlap policy first, then PUSH with all that belongs to it (orchestration 2.4). The schedule is locked.

    Runs of an earlier schedule of this name may lie beyond the limits of this one: such a run is neither cancelled nor
    told of.
    """
    limits = Limits.of_json(schedule.limits) & caller
    previous = live(schedule.name, using)
    if schedule.overlap_policy in _EXCLUSIVE and _reach_beyond(previous, limits, using):
        return Skipped(OVERLAP, "overlap_skip")
    if previous and schedule.overlap_policy == OverlapPolicy.SKIP:
        return Skipped(OVERLAP, "overlap_skip", previous[0])
    if previous and schedule.overlap_policy == OverlapPolicy.CANCEL_PREVIOUS:
        cancel(previous, cancelled_by=f"cron:{schedule.name}", reason="The next run began.", using=using)
    (pushed,) = push([job_document(schedule, nominal)], component=COMPONENT, limits=limits, using=using)
    if pushed.row is None or pushed.status == "duplicate":
        if previous and schedule.overlap_policy == OverlapPolicy.CANCEL_PREVIOUS:
            transaction.set_rollback(True, using=using)  # no run begins, so the one before it goes on
        return _refused(pushed)
    postpone = bool(previous) and schedule.overlap_policy == OverlapPolicy.ENQUEUE
    record_run(schedule.name, pushed.row, nominal, now, using, postpone=postpone)
    if postpone and len(previous) > 2:
        logger.warning("%d runs of the schedule %s wait for the one before them.", len(previous), schedule.name)
    runs = CronSchedule.objects.using(using).filter(pk=schedule.pk)
    runs.update(last_run_at=now, run_count=F("run_count") + 1)
    schedule.last_run_at, schedule.run_count = now, schedule.run_count + 1
    return pushed.row


def _refused(pushed: Pushed) -> Skipped:
    if pushed.row is None:
        return Skipped("enqueue_dropped", "dropped")
    return Skipped("enqueue_rejected", "duplicate", pushed.row["id"])


def job_document(schedule: CronSchedule, nominal: dt.datetime) -> dict[str, Any]:
    """The envelope of one run: the template, and in `meta` which schedule it is of and for when."""
    marks = {"cron_name": schedule.name, "cron_triggered_at": format_instant(nominal)}
    return spellings.with_meta(schedule.document, marks)


def _give_up(schedule: CronSchedule, error: ValueError, now: dt.datetime, using: str) -> bool:
    """Its zone has left this machine, or croniter changed its mind: disable it rather than try every second."""
    logger.error("The schedule %s is disabled: its expression or zone %s.", schedule.name, error)
    with atomic(using=using):
        if not _claim(schedule, {"enabled": False, "wake_at": None, "next_run_at": None}, using):
            return False
        facts = {"error": _told("invalid_request", str(error))}
        record = _skipped(schedule, Skipped("disabled", "disabled", None, facts), now, schedule.next_run_at, None)
        log.append([record], using)
    return True


def _triggered(
    schedule: CronSchedule, job: JobRow, nominal: dt.datetime, now: dt.datetime, upcoming: dt.datetime | None
) -> Record:
    facts = {"job_id": str(job["id"]), "run_count": schedule.run_count, "actual_time": format_instant(now)}
    return _event("cron.triggered", schedule, now, nominal, upcoming, facts)


def _skipped(
    schedule: CronSchedule, why: Skipped, now: dt.datetime, nominal: dt.datetime | None, upcoming: dt.datetime | None
) -> Record:
    facts: dict[str, Any] = {"reason": why.reason, "reason_code": why.code, **why.facts}
    if why.job_id is not None:
        facts |= {"existing_job_id": str(why.job_id), "active_job_id": str(why.job_id)}
    return _event("cron.skipped", schedule, now, nominal, upcoming, facts)


def _event(
    type: str,
    schedule: CronSchedule,
    now: dt.datetime,
    nominal: dt.datetime | None,
    upcoming: dt.datetime | None,
    facts: Mapping[str, Any],
) -> Record:
    """Both spellings of the two event documents (orchestration 2.7)."""
    scheduled = format_instant(nominal) if nominal else None
    data = {
        "cron_name": schedule.name, "cron_expr": schedule.expression, "cron_expression": schedule.expression,
        "timezone": schedule.timezone, "job_type": schedule.type, "scheduled_at": scheduled,
        "scheduled_time": scheduled, "next_at": format_instant(upcoming) if upcoming else None,
    }  # fmt: skip
    return catalogue.of_cron(type, schedule.name, schedule.queue, now, **data, **facts)


def _refusal(schedule: CronSchedule, why: Skipped) -> OJSError:
    details: dict[str, Any] = {"cron_name": schedule.name, "reason": why.reason}
    if why.job_id is not None:
        details["existing_job_id"] = str(why.job_id)
    if why.reason == OVERLAP and why.job_id is None:
        message = phrase(
            "The schedule '%(name)s' has a run that has not ended, beyond the limits of this API key.",
            name=schedule.name,
        )  # fmt: skip
        return Conflict(message, details=details, hint="Wait until it has ended, or give the schedule another name.")
    if why.reason == OVERLAP:
        message = phrase(
            "The schedule '%(name)s' has a run that has not ended, and its overlap policy is skip.", name=schedule.name
        )
        return Conflict(message, details=details, hint="Wait for that job or cancel it, or change the overlap policy.")
    message = phrase("The schedule '%(name)s' made no job: %(code)s.", name=schedule.name, code=why.code)
    return Conflict(message, details=details, hint="The site's enqueue middleware or the job's unique policy did this.")


def _told(code: str, message: str) -> dict[str, str]:
    return {"code": code, "message": message}


# Runs that live, and runs that wait for the one before


def live(name: str, using: str) -> list[uuid.UUID]:
    """The jobs of this schedule that have not ended, oldest first."""
    runs = CronRun.objects.using(using).filter(_is_live(), name=name)
    return list(runs.order_by("id").values_list("job_id", flat=True))


#: The policies under which one run lives at a time.
_EXCLUSIVE = (OverlapPolicy.SKIP, OverlapPolicy.CANCEL_PREVIOUS)


def _reach_beyond(jobs: Sequence[uuid.UUID], limits: Limits, using: str) -> bool:
    """Whether one of these jobs lies beyond the limits."""
    if limits.unlimited or not jobs:
        return False
    return Job.objects.using(using).filter(pk__in=jobs).exclude(limits.condition()).exists()


def record_run(name: str, row: JobRow, nominal: dt.datetime, now: dt.datetime, using: str, *, postpone: bool) -> None:
    """Record a job that a schedule just made, and postpone it if it has to wait; then forget the oldest runs."""
    runs = CronRun.objects.using(using)
    if postpone:
        Job.objects.using(using).filter(pk=row["id"], state=State.AVAILABLE).update(due_at=END_OF_TIME)
    runs.create(
        name=name, job_id=row["id"], queue=row["queue"], scheduled_at=nominal, triggered_at=now, held=postpone
    )  # fmt: skip
    kept = schedules.KEPT_RUNS
    edge = runs.filter(name=name).order_by("-id").values_list("id", flat=True)[kept : kept + 1].first()
    if edge is not None:
        runs.filter(~_is_live(), name=name, id__lte=edge).delete()


@queues_claimed.subscribe
def let_next_go(queues: Sequence[str] | None = None, using: str | None = None) -> int:
    """Let the oldest postponed job of each schedule go whose other runs have ended; return how many went."""
    using = database(using)
    runs = CronRun.objects.using(using)
    postponed = runs.filter(held=True)
    if not postponed.exists():
        return 0
    if maintenance.is_on(using=using):
        return 0
    postponed = postponed if queues is None else postponed.filter(queue__in=list(queues))
    with atomic(using=using):
        postponed.filter(~_is_live()).update(held=False)  # cancelled or expired while it waited
        # The first of all: a schedule that was given another queue may have runs that wait in both.
        first = dict(runs.filter(held=True, name__in=postponed.values("name")).values_list("name").annotate(Min("id")))
        busy = set(runs.filter(_is_live(), name__in=first, held=False).values_list("name", flat=True))
        heads = [pk for name, pk in first.items() if name not in busy]
        return _let_go(runs.filter(pk__in=heads), using) if heads else 0


def prune(batch: int, using: str) -> int:
    """Forget runs whose job is gone."""
    gone = CronRun.objects.using(using).filter(~Exists(Job.objects.using(using).filter(pk=OuterRef("job_id"))))
    ids = list(gone.order_by("id").values_list("id", flat=True)[:batch])
    return CronRun.objects.using(using).filter(pk__in=ids).delete()[0] if ids else 0


def _let_go(runs: QuerySet[CronRun], using: str) -> int:
    """Several may have chosen the same jobs: who finds one still postponed, behind its lock, frees it."""
    store = store_of(using)
    wanted = Q(pk__in=list(runs.values_list("job_id", flat=True)), state=State.AVAILABLE, due_at=END_OF_TIME)
    rows = store.lock_where(wanted, skip_locked=True)
    for row in rows:
        row["due_at"] = None
    store.update_jobs(State.AVAILABLE, rows, ("due_at",))
    CronRun.objects.using(using).filter(job_id__in=[row["id"] for row in rows]).update(held=False)
    return len(rows)


def _is_live() -> Exists:
    return Exists(Job.objects.filter(pk=OuterRef("job_id"), state__in=states.ordered(states.LIVE)))
