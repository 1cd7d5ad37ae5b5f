"""Pause and resume a queue: delivery stops, enqueueing goes on (L4-PAUSE-001)."""

from __future__ import annotations

from typing import NamedTuple

from django_ojs import clock
from django_ojs.contention import retried
from django_ojs.events import catalogue, log
from django_ojs.models import AuditEntry, Queue
from django_ojs.operations.common import atomic, database
from django_ojs.waking import wake_workers

#: Longest reason that an operator may give.
MAX_REASON = 500
#: Acts among which the one that paused a queue is looked for.
_LOOKED_AT = 100


class Pause(NamedTuple):
    """Who paused a queue, and why, as far as it was said."""

    by: str = ""
    reason: str = ""


@retried
def pause(name: str, *, by: str = "", reason: str = "", using: str | None = None) -> Queue:
    """Stop delivery from a queue, which is created if need be. Pausing twice is no error, and changes nothing."""
    return _switch(name, True, by, reason, database(using))


@retried
def resume(name: str, *, by: str = "", reason: str = "", using: str | None = None) -> Queue:
    """Deliver again. Resuming a queue that is not paused is no error."""
    return _switch(name, False, by, reason, database(using))


def why_paused(queue: Queue, *, using: str | None = None) -> Pause:
    """From the audit log: its first entry about this queue from the moment on when it was paused."""
    if not queue.paused or queue.paused_at is None:
        return Pause()
    entries = AuditEntry.objects.using(database(using)).filter(time__gte=queue.paused_at, action="queue.pause")
    for entry in entries.filter(target__in=("", queue.name)).order_by("time", "id")[:_LOOKED_AT]:
        detail = entry.detail if isinstance(entry.detail, dict) else {}
        if queue.name in (entry.target, *detail.get("targets", ())):
            return Pause(entry.actor, str(detail.get("reason") or ""))
    return Pause()


def _switch(name: str, paused: bool, by: str, reason: str, using: str) -> Queue:
    with atomic(using=using):
        now = clock.now(using)
        defaults = {"created_at": now, "updated_at": now}
        queue, _ = Queue.objects.using(using).select_for_update().get_or_create(name=name, defaults=defaults)
        if queue.paused == paused:
            return queue
        queue.paused, queue.updated_at = paused, now
        setattr(queue, "paused_at" if paused else "resumed_at", now)
        queue.save(using=using, update_fields=["paused", "paused_at", "resumed_at", "updated_at"])
        word = "paused" if paused else "resumed"
        told = {f"{word}_by": by, "reason": reason}
        data = {member: text for member, text in told.items() if text}
        log.append([catalogue.of_queue(f"queue.{word}", name, now, **data)], using)
        if not paused:
            wake_workers(using)
    return queue
