"""What happened to one job, from its events."""

from __future__ import annotations

import datetime as dt
import uuid
from itertools import pairwise
from typing import Any

from django.utils.translation import gettext_lazy as _

from django_ojs import clock
from django_ojs.admin import display
from django_ojs.admin.attempts import attempts, rows
from django_ojs.admin.base import unless_large
from django_ojs.models import Event
from django_ojs.rules import redaction

#: Events that a page shows: the latest.
LENGTH = 200


def timeline(job_id: uuid.UUID) -> dict[str, Any]:
    """The job's latest events, oldest first, and whether there were more."""
    latest = Event.objects.filter(job_id=job_id).order_by("-id").defer("data")
    found = list(latest.annotate(short_data=unless_large("data"))[: LENGTH + 1])
    events = found[:LENGTH][::-1]
    for event in events:
        if isinstance(event.short_data, dict):
            event.short_data = redaction.event(event.job_type, event.short_data)
    passed = [None, *(after.time - before.time for before, after in pairwise(events))]
    lines = [_line(event, since) for event, since in zip(events, passed, strict=False)]
    tried = rows(attempts(events), clock.now())
    return {"events": lines, "attempts": tried, "cut": len(found) > LENGTH, "length": LENGTH}


def _line(event: Any, passed: dt.timedelta | None) -> dict[str, Any]:
    return {
        "id": event.pk,
        "type": event.type,
        "time": display.when(event.time),
        "passed": "" if passed is None else f"+{display.duration(max(0, round(passed.total_seconds() * 1000)))}",
        "state": display.label(event.state) if event.state else "",
        "attempt": event.attempt or "",
        "who": display.shorten(event.worker_id or event.component, 60),
        "note": note(event.short_data, event.job_type),
    }


def note(data: Any, job_type: str) -> str:
    """The part of an event's data worth a glance: the error, else the reason or who did it."""
    if not isinstance(data, dict):
        return ""
    data = redaction.event(job_type, data)
    if line := display.error_line(data.get("error")):
        return line
    told = (f"{word}: {data[name]}" for name, word in WORTH.items() if data.get(name) is not None)
    return display.shorten(", ".join(told), 160)


#: Members of an event's data that are worth a glance, and what they are called. `events.js` gets them from the page.
WORTH: dict[str, Any] = {
    "reason": _("reason"), "cancelled_by": _("cancelled by"), "paused_by": _("paused by"),
    "resumed_by": _("resumed by"), "duration_ms": _("duration, ms"), "scheduled_at": _("scheduled for"),
    "delay_ms": _("delay, ms"), "progress_percent": _("progress, percent"), "progress_message": _("progress message"),
    "hostname": _("host name"),
}  # fmt: skip
