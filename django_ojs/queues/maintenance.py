"""Maintenance mode (admin 1.8): nothing is delivered or promoted and no schedule fires; everything else goes on.

PUSH is accepted, and what runs may finish, fail, beat and be cancelled. Lost reservations and timeouts are seen to as
ever (`jobs.timers`), so that nothing hangs: such jobs wait like all others for the end. A FETCH that begins after
the switch is committed gets nothing; one that is under way may still hand out what it was about to.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db.models import QuerySet

from django_ojs import audit, clock
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database, retried
from django_ojs.errors import InvalidRequest
from django_ojs.lifecycle.waking import wake_workers
from django_ojs.models import Maintenance
from django_ojs.rules.durations import format_instant
from django_ojs.store import store_of

#: Longest reason that an operator may give, and longest time ahead that may be estimated.
MAX_REASON = 500
LONGEST = dt.timedelta(days=366)
#: What the audit log calls the two acts.
STARTED, STOPPED = "maintenance.start", "maintenance.stop"


def current(*, using: str | None = None) -> Maintenance | None:
    """The mode while it is on, None while it is off."""
    return Maintenance.objects.using(database(using)).first()


def is_on(*, using: str | None = None) -> bool:
    return Maintenance.objects.using(database(using)).exists()


@retried
def start(
    *,
    reason: str | None = None,
    lasting: dt.timedelta | None = None,
    auto_end: bool | None = None,
    by: str = "",
    using: str | None = None,
) -> Maintenance:
    """Switch it on. Where it is on already, only what is given here changes, not since when nor by whom.

    Args:
        reason: for those who find nothing running; None: as it was.
        lasting: how long from now on it will take, about; None: as it was, or unknown.
        auto_end: whether it ends by itself then; None: as it was, or else as `MAINTENANCE_AUTO_END` says.

    Raises `InvalidRequest` for a time that is not ahead or too far, and for `auto_end` without an end.
    """
    if lasting is not None and not dt.timedelta() < lasting <= LONGEST:
        raise _refusal("estimated_duration", f"must be longer than nothing and at most {LONGEST.days} days")
    using = database(using)
    with atomic(using=using):
        now = clock.now(using)
        modes = Maintenance.objects.using(using).select_for_update()
        mode, _ = modes.get_or_create(pk=Maintenance.ONLY, defaults={"enabled_at": now, "enabled_by": by})
        was_open = mode.estimated_end is None
        if reason is not None:
            mode.reason = reason
        if lasting is not None:
            mode.estimated_end = now + lasting
        if auto_end is not None:
            mode.auto_end = auto_end
        elif was_open:
            mode.auto_end = ojs_settings.MAINTENANCE_AUTO_END and mode.estimated_end is not None
        if mode.auto_end and mode.estimated_end is None:
            raise _refusal("auto_end", "needs estimated_duration")
        mode.save(using=using)
    return mode


@retried
def stop(*, using: str | None = None) -> Maintenance | None:
    """Switch it off and wake sleeping workers; return what it was, None where it was off already.

    What came due meanwhile is promoted at once, and each schedule fires at most once for all that it missed.
    """
    using = database(using)
    with atomic(using=using):
        mode = Maintenance.objects.using(using).select_for_update().first()
        if mode is not None:
            _switch_off(mode, using)
    return mode


@retried
def end_if_over(*, using: str | None = None) -> bool:
    """Switch it off if its estimated end has come and it was to end by itself; that is the scheduler's act."""
    using = database(using)
    now = clock.now(using)
    over = Maintenance.objects.using(using).filter(auto_end=True, estimated_end__lte=now)
    ahead = Maintenance.objects.using(using).filter(enabled_at__gt=now + clock.AHEAD)
    if not (over | ahead).exists():
        return False
    _set_right(ahead, now, using)
    with atomic(using=using):
        mode = over.select_for_update(skip_locked=store_of(using).skip_locked).first()
        if mode is None:  # ended or put off meanwhile, or by a transaction that is still open
            return False
        _switch_off(mode, using)
        audit.append([audit.Act("scheduler", STOPPED, detail=audit_detail(mode), door="scheduler")], using)
    return True


def _set_right(ahead: QuerySet[Maintenance], now: dt.datetime, using: str) -> None:
    """Let a mode that was switched on while the clock was ahead begin now, and end as long after that."""
    with atomic(using=using):
        for mode in ahead.select_for_update(skip_locked=store_of(using).skip_locked):
            if mode.estimated_end is not None and mode.estimated_end > mode.enabled_at:
                mode.estimated_end = now + (mode.estimated_end - mode.enabled_at)
            mode.enabled_at = now
            mode.save(using=using, update_fields=["enabled_at", "estimated_end"])


def audit_detail(mode: Maintenance) -> dict[str, Any]:
    """What the audit log says of it."""
    end = format_instant(mode.estimated_end) if mode.estimated_end else None
    facts = {"reason": mode.reason, "estimated_end": end, "auto_end": mode.auto_end}
    return {name: value for name, value in facts.items() if value}


def _switch_off(mode: Maintenance, using: str) -> None:
    Maintenance.objects.using(using).filter(pk=mode.pk).delete()
    wake_workers(using)


def _refusal(field: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {problem}.", details={"field": field})
