"""The history of one job: its attempts and its latest events, read from the event log."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_ojs import clock
from django_ojs.admin import display
from django_ojs.admin.base import unless_large
from django_ojs.models import Event
from django_ojs.rules import redaction
from django_ojs.rules.durations import parse_instant
from django_ojs.states import State

#: Events that a page shows: the latest.
LENGTH = 200


def timeline(job_id: uuid.UUID) -> dict[str, Any]:
    """The job's attempts and its latest events, oldest first, without what the site hides; `cut`: there are more."""
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
    """The most important part of an event's data as a short text: the error, else the members in `WORTH`."""
    if not isinstance(data, dict):
        return ""
    data = redaction.event(job_type, data)
    if line := display.error_line(data.get("error")):
        return line
    facts = (f"{word}: {data[name]}" for name, word in WORTH.items() if data.get(name) is not None)
    return display.shorten(", ".join(facts), 160)


#: Members of an event's data that are worth a glance, with their labels. `events.js` gets them from the page.
WORTH: dict[str, Any] = {
    "reason": _("reason"), "cancelled_by": _("cancelled by"), "paused_by": _("paused by"),
    "resumed_by": _("resumed by"), "duration_ms": _("duration, ms"), "scheduled_at": _("scheduled for"),
    "delay_ms": _("delay, ms"), "progress_percent": _("progress, percent"), "progress_message": _("progress message"),
    "hostname": _("host name"),
}  # fmt: skip


_BAR, _THICK = 160, 10


@dataclasses.dataclass(slots=True)
class Attempt:
    """One claim: since when the job waited for it, when it began and ended (None: it runs), and how."""

    number: int
    started: dt.datetime
    worker: str
    waited_since: dt.datetime | None = None
    ended: dt.datetime | None = None
    outcome: str = ""
    error: str = ""

    def wait_ms(self) -> int | None:
        return None if self.waited_since is None else _ms(self.started - self.waited_since)

    def run_ms(self, now: dt.datetime) -> int:
        return _ms((self.ended or now) - self.started)


def attempts(events: Iterable[Any]) -> list[Attempt]:
    """The attempts in these events, which come oldest first and are redacted."""
    found: list[Attempt] = []
    waits: dt.datetime | None = None
    for event in events:
        current = found[-1] if found and found[-1].ended is None else None
        data = event.short_data if isinstance(event.short_data, dict) else {}
        if event.type == "job.started":
            found.append(Attempt(event.attempt, event.time, event.worker_id, waits))
        elif current and event.state and event.state != State.ACTIVE:
            current.ended, current.outcome = event.time, event.type.partition(".")[2]
            current.error = display.error_line(data.get("error"))
        if event.type in ("job.enqueued", "job.retrying", "job.scheduled"):
            waits = _instant(data.get("next_attempt_at") or data.get("scheduled_at")) or event.time
        elif event.type != "job.started" and event.state == State.AVAILABLE:
            waits = event.time
    return found


def rows(found: list[Attempt], now: dt.datetime) -> list[dict[str, Any]]:
    """The attempts as a table shows them."""
    longest = max(((one.wait_ms() or 0) + one.run_ms(now) for one in found), default=0)
    return [
        {
            "number": one.number,
            "started": display.when(one.started),
            "waited": display.duration(one.wait_ms()),
            "ran": display.duration(one.run_ms(now)),
            "outcome": display.label(one.outcome or State.ACTIVE, _COLOURS.get(one.outcome, "")),
            "worker": display.shorten(one.worker, 60),
            "error": one.error,
            "bar": bar(one.wait_ms() or 0, one.run_ms(now), longest, one.outcome),
        }
        for one in found
    ]


_COLOURS = {"failed": "discarded", "retrying": "retryable"}


def bar(wait: int, run: int, longest: int, outcome: str) -> SafeString:
    """How long an attempt waited and ran, beside the longest of them."""
    unit = _BAR / longest if longest else 0.0
    colour = "bad" if outcome in ("failed", "discarded", "retrying") else "good" if outcome == "completed" else "run"
    tip = f"{display.duration(wait)} + {display.duration(run)}"
    return format_html(
        '<svg class="ojs-bar" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" aria-label="{2}">'
        '<title>{2}</title><rect class="ojs-fill-wait" x="0" y="3" width="{3}" height="4"/>'
        '<rect class="ojs-fill-{4}" x="{3}" y="0" width="{5}" height="{1}"/></svg>',
        _BAR, _THICK, tip, round(wait * unit, 1), colour, max(round(run * unit, 1), 1.5 if longest else 0),
    )  # fmt: skip


def _instant(text: object) -> dt.datetime | None:
    try:
        return parse_instant(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _ms(period: dt.timedelta) -> int:
    return max(0, round(period / dt.timedelta(milliseconds=1)))
