"""Pause and resume a queue: delivery stops, enqueueing goes on (L4-PAUSE-001)."""

from __future__ import annotations

from django_ojs import clock
from django_ojs.contention import retried
from django_ojs.events import catalogue, log
from django_ojs.models import Queue
from django_ojs.operations.common import atomic, database
from django_ojs.waking import wake_workers


@retried
def pause(name: str, *, by: str = "", using: str | None = None) -> Queue:
    """Stop delivery from a queue, which is created if need be. Pausing twice is no error."""
    return _switch(name, True, by, database(using))


@retried
def resume(name: str, *, by: str = "", using: str | None = None) -> Queue:
    """Deliver again. Resuming a queue that is not paused is no error."""
    return _switch(name, False, by, database(using))


def _switch(name: str, paused: bool, by: str, using: str) -> Queue:
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
        data = {f"{word}_by": by} if by else {}
        log.append([catalogue.of_queue(f"queue.{word}", name, now, **data)], using)
        if not paused:
            wake_workers(using)
    return queue
