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
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_ojs import clock
from django_ojs.admin import display
from django_ojs.admin.base import unless_large
from django_ojs.models import Event
from django_ojs.rules import redaction
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


#: The time axis of the attempts in units of its own, and the shortest run that can be seen.
_WIDE, _THICK, _THIN = 1000, 10, 8


@dataclasses.dataclass(slots=True)
class Attempt:
    """One claim: since when the job waited for it, when it began and ended (None: it runs), how, and when the next
    attempt was due."""

    number: int
    started: dt.datetime
    worker: str
    waited_since: dt.datetime | None = None
    ended: dt.datetime | None = None
    outcome: str = ""
    error: str = ""
    next_due: dt.datetime | None = None

    def wait_ms(self) -> int | None:
        return None if self.waited_since is None else _ms(self.started - self.waited_since)

    def run_ms(self, now: dt.datetime) -> int:
        return _ms((self.ended or now) - self.started)

    def backoff_ms(self) -> int | None:
        """From its end until the next attempt was due; None for an attempt that is not followed by another."""
        return _ms(self.next_due - self.ended) if self.next_due and self.ended else None


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
            waits = display.instant(data.get("next_attempt_at") or data.get("scheduled_at")) or event.time
            if found and event.type == "job.retrying":
                found[-1].next_due = waits
        elif event.type != "job.started" and event.state == State.AVAILABLE:
            waits = event.time
    return found


def rows(found: list[Attempt], now: dt.datetime) -> list[dict[str, Any]]:
    """The attempts as a table shows them."""
    first = min((one.waited_since or one.started for one in found), default=now)
    last = max((one.next_due or one.ended or now for one in found), default=now)
    return [
        {
            "number": one.number,
            "started": display.when(one.started),
            "waited": display.duration(one.wait_ms()),
            "ran": display.duration(one.run_ms(now)),
            "backoff": display.duration(one.backoff_ms()),
            "outcome": display.label(one.outcome or State.ACTIVE, _COLOURS.get(one.outcome, "")),
            "worker": display.shorten(one.worker, 60),
            "error": one.error,
            "bar": bar(one, first, last, now),
        }
        for one in found
    ]


_COLOURS = {"failed": "discarded", "retrying": "retryable"}


def bar(one: Attempt, first: dt.datetime, last: dt.datetime, now: dt.datetime) -> SafeString:
    """When an attempt waited, ran, and waited for the next one, on the time axis that all attempts of the job share."""
    whole = _ms(last - first)

    def place(instant: dt.datetime) -> float:
        return round(_WIDE * _ms(instant - first) / whole, 1) if whole else 0.0

    colour = {"completed": "good", "failed": "bad", "discarded": "bad", "retrying": "bad"}.get(one.outcome, "run")
    began, ended = place(one.started), place(one.ended or now)
    waited = place(one.waited_since or one.started)
    due = max(place(one.next_due), ended) if one.next_due else ended
    facts = {
        "wait": display.duration(one.wait_ms()), "run": display.duration(one.run_ms(now)),
        "backoff": display.duration(one.backoff_ms()),
    }  # fmt: skip
    tip = gettext("waited %(wait)s, ran %(run)s, backoff %(backoff)s") % facts
    return format_html(
        '<svg class="ojs-bar" viewBox="0 0 {0} {1}" preserveAspectRatio="none" role="img" aria-label="{2}">'
        '<title>{2}</title><rect class="ojs-axis" x="0" y="4" width="{0}" height="2"/>'
        '<rect class="ojs-fill-wait" x="{3}" y="2" width="{4}" height="6"/>'
        '<rect class="ojs-fill-backoff" x="{5}" y="3" width="{6}" height="4"/>'
        '<rect class="ojs-fill-{7}" x="{8}" y="0" width="{9}" height="{1}"/></svg>',
        _WIDE, _THICK, tip, waited, round(max(began - waited, 0), 1), ended, round(due - ended, 1),
        colour, min(began, _WIDE - _THIN), max(round(ended - began, 1), _THIN),
    )  # fmt: skip


def _ms(period: dt.timedelta) -> int:
    return max(0, round(period / dt.timedelta(milliseconds=1)))
