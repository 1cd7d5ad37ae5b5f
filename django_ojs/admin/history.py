"""The history of one job: its attempts, and its latest events from the event log."""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
import uuid
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_ojs import clock, jsontext
from django_ojs.admin import display
from django_ojs.admin.base import unless_large
from django_ojs.conf import ojs_settings
from django_ojs.jobs import attempts as kept
from django_ojs.jobs import joblog
from django_ojs.models import Event, Job
from django_ojs.rules import joblogs, redaction
from django_ojs.rules.rows import END_OF_TIME
from django_ojs.rules.steps import Step
from django_ojs.states import State

#: Events that a page shows: the latest.
LENGTH = 200
#: Attempts that a page shows: the latest.
ATTEMPTS = 50


def timeline(
    job_id: uuid.UUID, steps: Sequence[Step] = (), finished: dt.datetime | None = None
) -> dict[str, Any]:  # fmt: skip
    """The job's attempts and its latest events, oldest first, without what the site hides; `cut`: there are more.

    `axis` is the time that the attempts and these steps of a job, which has `finished` then, took together.
    """
    latest = Event.objects.filter(job_id=job_id).order_by("-id").defer("data")
    found = list(latest.annotate(short_data=unless_large("data"))[: LENGTH + 1])
    events = found[:LENGTH][::-1]
    for event in events:
        if isinstance(event.short_data, dict):
            event.short_data = redaction.event(event.job_type, event.short_data)
    passed = [None, *(after.time - before.time for before, after in pairwise(events))]
    lines = [_line(event, since) for event, since in zip(events, passed, strict=False)]
    known, more = _attempts(job_id, attempts(events))
    now = clock.now()
    axis = Axis.of(known, steps, finished or now)
    tried = rows(known, axis, now)
    return {
        "events": lines, "attempts": tried, "cut": len(found) > LENGTH, "length": LENGTH, "more_attempts": more,
        "axis": axis, "rounds": any(one.round for one in known), "releases": any(one.release for one in known),
    }  # fmt: skip


def _line(event: Any, passed: dt.timedelta | None) -> dict[str, Any]:
    return {
        "id": event.pk,
        "type": event.type,
        "time": display.when(event.time),
        "passed": "" if passed is None else f"+{display.duration(max(0, round(passed.total_seconds() * 1000)))}",
        "state": display.colour_label(event.state) if event.state else "",
        "attempt": event.attempt or "",
        "who": display.ellipsized(event.worker_id or event.component, 60),
        "note": event_summary(event.short_data, event.job_type),
    }


def event_summary(data: Any, job_type: str) -> str:
    """The most important part of an event's data as a short text: the error, else the members in `WORTH`."""
    if not isinstance(data, dict):
        return ""
    data = redaction.event(job_type, data)
    if line := display.error_line(data.get("error")):
        return line
    facts = (f"{word}: {data[name]}" for name, word in WORTH.items() if data.get(name) is not None)
    return display.ellipsized(", ".join(facts), 160)


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
class AttemptLine:
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
    round: int = 0
    release: str = ""
    errors: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def wait_ms(self) -> int | None:
        return None if self.waited_since is None else _ms(self.started - self.waited_since)

    def run_ms(self, now: dt.datetime) -> int:
        return _ms((self.ended or now) - self.started)

    def backoff_ms(self) -> int | None:
        """From its end until the next attempt was due; None for an attempt that is not followed by another."""
        return _ms(self.next_due - self.ended) if self.next_due and self.ended else None


def attempts(events: Iterable[Any]) -> list[AttemptLine]:
    """The attempts in these events, which come oldest first and are redacted."""
    found: list[AttemptLine] = []
    waits: dt.datetime | None = None
    for event in events:
        current = found[-1] if found and found[-1].ended is None else None
        data = event.short_data if isinstance(event.short_data, dict) else {}
        if event.type == "job.started":
            found.append(AttemptLine(event.attempt, event.time, event.worker_id, waits))
        elif current and event.state and event.state != State.ACTIVE:
            current.ended, current.outcome = event.time, event.type.partition(".")[2]
            current.error = display.error_line(data.get("error"))
        if event.type in ("job.enqueued", "job.retrying", "job.scheduled"):
            waits = display.instant(data.get("next_attempt_at") or data.get("scheduled_at")) or event.time
            if waits >= END_OF_TIME:  # the job waits for an event, which has no time
                waits = None
            if found and event.type == "job.retrying":
                found[-1].next_due = waits
        elif event.type != "job.started" and event.state == State.AVAILABLE:
            waits = event.time
    return found


def _attempts(job_id: uuid.UUID, logged: list[AttemptLine]) -> tuple[list[AttemptLine], int]:
    """The attempts of a job, oldest first, and how many more there are.

    What the log has of them beside is how long each waited. What was not kept, as before an upgrade, is in the log
    alone.
    """
    row = next(iter(Job.objects.filter(pk=job_id).rows((*kept.COLUMNS, "type", "meta"))), None)
    if row is None or not ojs_settings.EXECUTION_HISTORY:
        return logged, 0
    page = kept.of_job(row, limit=ATTEMPTS)
    by_start = {one.started: one for one in logged}
    meta = jsontext.loads(row["meta"]) if row["meta"] else {}
    found = [line_of(one.redacted(row["type"], meta), by_start.pop(one.started_at, None)) for one in page.attempts]
    lost = [one for one in by_start.values() if not page.has_more]
    return sorted([*found, *lost], key=lambda one: one.started), page.total - len(page.attempts)


def line_of(one: kept.Attempt, logged: AttemptLine | None = None) -> AttemptLine:
    """An attempt as it is drawn; `logged` is what the event log has of it."""
    return AttemptLine(
        one.attempt, one.started_at, one.worker_id, logged.waited_since if logged else None, one.ended_at,
        "" if one.outcome == kept.RUNNING else one.outcome, display.error_line(one.error),
        logged.next_due if logged else None, one.round, one.release, display.errors([one.error] if one.error else None),
    )  # fmt: skip


class Axis(NamedTuple):
    """The time that bars of a page share, where it is drawn, and how wide the shortest run is there."""

    first: dt.datetime
    last: dt.datetime
    left: float = 0
    wide: float = _WIDE
    thin: float = _THIN

    @classmethod
    def of(cls, found: Sequence[AttemptLine], steps: Sequence[Step], now: dt.datetime) -> Axis:
        began = [*(one.waited_since or one.started for one in found), *(one.began_at for one in steps)]
        ended = [*(one.next_due or one.ended or now for one in found), *(one.until(now) for one in steps)]
        return cls(min(began, default=now), max(ended, default=now))

    def place(self, instant: dt.datetime) -> float:
        """Where an instant stands."""
        whole = _ms(self.last - self.first)
        return round(self.left + (min(self.wide * _ms(instant - self.first) / whole, self.wide) if whole else 0.0), 1)

    def stretch(self, began: dt.datetime, ended: dt.datetime) -> tuple[float, float]:
        """Where a run begins, and its width: it is seen however short it was."""
        left = self.place(began)
        at = min(left, self.left + self.wide - self.thin)
        return round(at, 1), max(round(self.place(ended) - left, 1), self.thin)


def rows(found: list[AttemptLine], axis: Axis, now: dt.datetime) -> list[dict[str, Any]]:
    """The attempts as a table shows them."""
    return [
        {
            "number": one.number,
            "started": display.when(one.started),
            "waited": display.duration(one.wait_ms()),
            "ran": display.duration(one.run_ms(now)),
            "backoff": display.duration(one.backoff_ms()),
            "outcome": display.colour_label(one.outcome or State.ACTIVE, _COLOURS.get(one.outcome, "")),
            "worker": display.ellipsized(one.worker, 60),
            "error": one.error,
            "errors": one.errors,
            "round": one.round,
            "release": display.ellipsized(one.release, 64),
            "bar": bar(one, axis, now),
        }
        for one in found
    ]


_COLOURS = {
    "failed": "discarded", "timed_out": "discarded", "lost": "discarded",
    "retrying": "retryable", "released": "retryable", "snoozed": "retryable",
}  # fmt: skip


#: Outcomes in which something went wrong.
_BAD = frozenset({"failed", "timed_out", "lost", "discarded", "retrying"})


def colour_of(one: AttemptLine) -> str:
    """What came of an attempt, as the name of a colour."""
    return "good" if one.outcome == "completed" else "bad" if one.outcome in _BAD else "run"


def bar(one: AttemptLine, axis: Axis, now: dt.datetime) -> SafeString:
    """When an attempt waited, ran, and waited for the next one, on the time axis that all bars of the page share."""
    place = axis.place
    began, ended = place(one.started), place(one.ended or now)
    waited = place(one.waited_since or one.started)
    due = max(place(one.next_due), ended) if one.next_due else ended
    facts = {
        "wait": display.duration(one.wait_ms()), "run": display.duration(one.run_ms(now)),
        "backoff": display.duration(one.backoff_ms()),
    }  # fmt: skip
    tip = gettext("waited %(wait)s, ran %(run)s, backoff %(backoff)s") % facts
    left, width = axis.stretch(one.started, one.ended or now)
    return format_html(
        '<svg class="ojs-bar" viewBox="0 0 {0} {1}" preserveAspectRatio="none" role="img" aria-label="{2}">'
        '<title>{2}</title><rect class="ojs-axis" x="0" y="4" width="{0}" height="2"/>'
        '<rect class="ojs-fill-wait" x="{3}" y="2" width="{4}" height="6"/>'
        '<rect class="ojs-fill-backoff" x="{5}" y="3" width="{6}" height="4"/>'
        '<rect class="ojs-fill-{7}" x="{8}" y="0" width="{9}" height="{1}"/></svg>',
        _WIDE, _THICK, tip, waited, round(max(began - waited, 0), 1), ended, round(due - ended, 1),
        colour_of(one), left, width,
    )  # fmt: skip


def span(began: dt.datetime, ended: dt.datetime, axis: Axis, colour: str, tip: str) -> SafeString:
    """A bar that is one stretch of time."""
    return format_html(
        '<svg class="ojs-bar" viewBox="0 0 {0} {1}" preserveAspectRatio="none" role="img" aria-label="{2}">'
        '<title>{2}</title><rect class="ojs-axis" x="0" y="4" width="{0}" height="2"/>'
        '<rect class="ojs-fill-{3}" x="{4}" y="0" width="{5}" height="{1}"/></svg>',
        _WIDE, _THICK, tip, colour, *axis.stretch(began, ended),
    )  # fmt: skip


#: Stretches of the axis in which lines of the log are one tick; and how high and of which colour that is, by level.
TICKS = 125
_LEVELS = ((logging.ERROR, "bad", 10), (logging.WARNING, "wait", 8), (logging.INFO, "run", 6), (0, "backoff", 4))


def log_ticks(job_id: uuid.UUID, axis: Axis, using: str) -> dict[str, Any] | None:
    """What the handler logged, on the axis that the bars share: a tick for each stretch with lines, as high and of the
    colour of the highest level in it, and the same in words. None where there are no lines in that time."""
    found = joblog.buckets(job_id, axis.first, axis.last, TICKS, using=using)
    if not found:
        return None
    lines = sum(one.lines for one in found)
    said = [ngettext("%(number)s line", "%(number)s lines", lines) % {"number": f"{lines:,}"}]
    top = max(one.level for one in found)
    if top >= logging.WARNING:
        said.append(gettext("up to the level %(level)s") % {"level": joblogs.level_word(top)})
    text, wide = ", ".join(said), _WIDE / TICKS
    drawn = (
        (f"{one.place * wide:g}", _THICK - height, f"{wide:g}", height, colour)
        for one in found
        for colour, height in [next((fill, high) for level, fill, high in _LEVELS if one.level >= level)]
    )
    ticks = format_html_join("", '<rect class="ojs-fill-{4}" x="{0}" y="{1}" width="{2}" height="{3}"/>', drawn)
    bar = format_html(
        '<svg class="ojs-bar" viewBox="0 0 {0} {1}" preserveAspectRatio="none" role="img" aria-label="{2}">'
        "<title>{2}</title>{3}</svg>", _WIDE, _THICK, text, ticks,
    )  # fmt: skip
    return {"bar": bar, "text": text}


def _ms(period: dt.timedelta) -> int:
    return max(0, round(period / dt.timedelta(milliseconds=1)))
