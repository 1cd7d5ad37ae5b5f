"""Schedules by name: register, change, switch on and off, delete (orchestration 2.1, 2.2)."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError

from django_ojs import clock, spellings
from django_ojs.access import UNLIMITED, Limits
from django_ojs.database import atomic, database, unseen
from django_ojs.errors import Conflict, NotFound, PermissionDenied
from django_ojs.faults import only_if_taken
from django_ojs.messages import phrase
from django_ojs.models import CronRun, CronSchedule
from django_ojs.rules import cron
from django_ojs.rules.cron import CronSpec
from django_ojs.rules.names import is_storable

if TYPE_CHECKING:
    from django.db.models import QuerySet

#: How many ended runs of a schedule its history shows.
KEPT_RUNS = 100
_DEFINITION = ("expression", "timezone", "type", "queue", "template", "overlap_policy", "enabled", "description")


def register(
    body: Mapping[str, Any] | CronSpec,
    *,
    source: str = CronSchedule.Source.API,
    declared: Mapping[str, Any] | None = None,
    limits: Limits = UNLIMITED,
    using: str | None = None,
) -> tuple[CronSchedule, bool]:
    """Create the schedule that `body` describes, or make the one of this name so; whether it is new.

    What happened so far (`created_at`, `last_run_at`, `run_count`) is kept, and without `declared` what the code said
    of it. `limits` are those of the caller, by which the jobs of the schedule are pushed. Raises InvalidRequest, and
    PermissionDenied for a schedule beyond the limits.
    """
    using = database(using)
    now = clock.now(using)
    spec = body if isinstance(body, CronSpec) else spellings.read_schedule(body, now=now)
    if (found := _change(spec, source, declared, limits, now, using)) is not None:
        return found, False
    values = {name: getattr(spec, name) for name in (*_DEFINITION, "name")}
    values |= {"source": source, "declared": declared, "limits": limits.to_json()}
    schedule = CronSchedule(**values, anchor_at=now, created_at=now, updated_at=now)
    _aim(schedule, now)
    try:
        with atomic(using=using):
            schedule.save(using=using, force_insert=True)
    except IntegrityError as error:  # another caller registered the same name just now
        only_if_taken(error)
        found = _change(spec, source, declared, limits, now, using)
        if found is None:
            raise unseen(error, using) from error.__cause__
        return found, False
    return schedule, True


def get(name: str, *, using: str | None = None) -> CronSchedule:
    """The schedule of this name. Raises `NotFound`."""
    return _only(CronSchedule.objects.using(database(using)), name)


def update(
    name: str,
    changes: Mapping[str, Any] | Callable[[CronSchedule], CronSpec],
    *,
    limits: Limits = UNLIMITED,
    using: str | None = None,
) -> CronSchedule:
    """Change the members that are given, in any of their spellings, or make the schedule what `changes` makes of it.

    Its jobs are pushed within the limits that it has had and the `limits` of the caller. Raises `NotFound`,
    InvalidRequest, and PermissionDenied for a schedule beyond the limits.
    """
    using = database(using)
    with atomic(using=using):
        schedule = lock(name, using)
        _check(schedule, limits)
        schedule.limits = (Limits.of_json(schedule.limits) & limits).to_json()
        now = clock.now(using)
        spec = changes(schedule) if callable(changes) else spellings.read_schedule(changes, now=now, base=schedule)
        _apply(schedule, spec, now, using)
    return schedule


def create(spec: CronSpec, *, using: str | None = None) -> CronSchedule:
    """Make a new schedule. Raises `Conflict` where there is one of this name already."""
    using = database(using)
    with atomic(using=using):  # so that a race that is lost changes nothing of the other's
        if not CronSchedule.objects.using(using).filter(pk=spec.name).exists():
            schedule, new = register(spec, using=using)
            if new:
                return schedule
        details = {"resource_type": "cron", "resource_id": spec.name}
        raise Conflict(
            phrase("The schedule '%(name)s' exists already.", name=spec.name),
            details=details,
            hint="Change that one.",
        )


def redefine(spec: CronSpec, *, using: str | None = None) -> CronSchedule:
    """Give a schedule another definition, without limits; whether it is enabled and whose it is stays. Raises
    `NotFound`."""
    using = database(using)
    with atomic(using=using):
        schedule = lock(spec.name, using)
        schedule.limits = None
        _apply(schedule, dataclasses.replace(spec, enabled=schedule.enabled), clock.now(using), using)
    return schedule


def set_enabled(
    name: str, enabled: bool, *, limits: Limits = UNLIMITED, using: str | None = None
) -> CronSchedule:  # fmt: skip
    """Switch a schedule on or off; twice is no error. What it missed while it was off is not made up for.

    Who switches it on sets it off: its jobs are pushed within the `limits` of the caller, too.
    """
    return update(name, {"enabled": enabled}, limits=limits if enabled else UNLIMITED, using=using)


def act_of_switch(enabled: bool) -> str:
    """What the audit log calls it to switch a schedule on or off."""
    return "cron.enable" if enabled else "cron.disable"


def delete(name: str, *, using: str | None = None) -> CronSchedule:
    """Forget a schedule; its jobs stay. Raises `NotFound`."""
    using = database(using)
    with atomic(using=using):
        schedule = lock(name, using)
        CronSchedule.objects.using(using).filter(pk=name).delete()
    return schedule


def history(name: str, *, limit: int = 50, using: str | None = None) -> list[CronRun]:
    """The last runs of a schedule, newest first, at most `KEPT_RUNS`. Raises `NotFound`."""
    using = database(using)
    get(name, using=using)
    runs = CronRun.objects.using(using).filter(name=name).order_by("-id")
    return list(runs[: min(limit, KEPT_RUNS)])


def next_due(*, using: str | None = None) -> dt.datetime | None:
    """The earliest instant at which the scheduler has to look at a schedule; None when there is none."""
    due = CronSchedule.objects.using(database(using)).filter(wake_at__isnull=False)
    return due.order_by("wake_at").values_list("wake_at", flat=True).first()


def aim_again(*, using: str | None = None) -> int:
    """Aim those schedules anew that fired at a time that is still to come; return how many there were.

    They fired while the database's clock was ahead. Since it was set right they would be silent until it is there
    again.
    """
    using = database(using)
    edge = clock.now(using) + clock.AHEAD
    ahead = CronSchedule.objects.using(using).filter(wake_at__isnull=False, anchor_at__gt=edge)
    names = list(ahead.order_by("name").values_list("name", flat=True))
    if not names:
        return 0
    with atomic(using=using):
        now = clock.now(using)
        found = list(ahead.filter(pk__in=names).order_by("name").select_for_update())
        for schedule in found:
            schedule.anchor_at = now
            try:
                _aim(schedule, now)
            except ValueError:  # its zone has left this machine: the next tick disables it
                schedule.wake_at = now
            schedule.save(using=using, update_fields=["anchor_at", "wake_at", "next_run_at"])
    return len(found)


def lock(name: str, using: str) -> CronSchedule:
    """The schedule, locked until the end of the transaction. Raises `NotFound`."""
    return _only(CronSchedule.objects.using(using).select_for_update(), name)


def _only(schedules: QuerySet[CronSchedule], name: str) -> CronSchedule:
    found = schedules.filter(pk=name).first() if is_storable(name) else None
    if found is None:
        raise NotFound.resource("cron", name)
    return found


def _change(
    spec: CronSpec, source: str, declared: Mapping[str, Any] | None, limits: Limits, now: dt.datetime, using: str
) -> CronSchedule | None:
    """Give an existing schedule a new definition; None where there is none."""
    with atomic(using=using):
        schedule = CronSchedule.objects.using(using).select_for_update().filter(pk=spec.name).first()
        if schedule is not None:
            _check(schedule, limits)
            schedule.source, schedule.limits = source, limits.to_json()
            schedule.declared = schedule.declared if declared is None else declared
            _apply(schedule, spec, now, using)
        return schedule


def _check(schedule: CronSchedule, limits: Limits) -> None:
    """Raise PermissionDenied for a schedule that the caller does not reach: it may have changed since a door looked."""
    if not limits.covers(schedule.queue, schedule.type):
        raise PermissionDenied(
            "This schedule makes jobs beyond the queues and job types of this API key.",
            details={"resource_type": "cron", "resource_id": schedule.name},
        )


def _apply(schedule: CronSchedule, spec: CronSpec, now: dt.datetime, using: str) -> None:
    timing = (schedule.expression, schedule.timezone, schedule.enabled)
    for name in _DEFINITION:
        setattr(schedule, name, getattr(spec, name))
    if timing != (spec.expression, spec.timezone, spec.enabled):
        schedule.anchor_at = now
        _aim(schedule, now)
    elif schedule.wake_at is not None and schedule.wake_at > now:
        _aim(schedule, now)
    # What is due already stays due: registering again at every start must not cost the catch-up.
    schedule.updated_at = max(now, schedule.updated_at + dt.timedelta(microseconds=1))
    schedule.save(using=using, force_update=True)


def _aim(schedule: CronSchedule, now: dt.datetime) -> None:
    """Set when the schedule fires next, seen from `now`."""
    if not schedule.enabled:
        schedule.wake_at = schedule.next_run_at = None
        return
    upcoming = cron.parse_expression(schedule.expression, schedule.timezone).next_after(now, schedule.anchor_at)
    schedule.wake_at, schedule.next_run_at = upcoming.wake_at, upcoming.at


def differs(schedule: CronSchedule, spec: CronSpec) -> bool:
    """Whether registering `spec` would change the definition."""
    values = dataclasses.asdict(spec)
    return any(getattr(schedule, name) != values[name] for name in _DEFINITION)
