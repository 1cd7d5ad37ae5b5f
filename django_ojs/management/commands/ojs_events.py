"""`manage.py ojs_events`: the event log in a terminal, as it was and as it goes on."""

from __future__ import annotations

import argparse
import datetime as dt
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from django.core.management.base import CommandError, CommandParser
from django.db import connections

from django_ojs import clock
from django_ojs.backoff import Backoff
from django_ojs.database import leave_old_server, note_read_only
from django_ojs.errors import InvalidRequest
from django_ojs.events import log, order
from django_ojs.events.filters import Filter
from django_ojs.faults import passes
from django_ojs.management.shell import ShellCommand, name_argument, positive, refuse_unmigrated
from django_ojs.output import one_line
from django_ojs.rules import durations
from django_ojs.rules.ids import parse_id
from django_ojs.workflows.workflow import identify

T = TypeVar("T")

PAUSE = 0.25  #: seconds between two looks at the log while following it
AFTER_FAULT, LONGEST_AFTER_FAULT = 0.5, 5.0  #: seconds until a log that could not be read is tried again
PAGE = 500
#: What a reader is told who cannot get all that lies between, by the reason of the gap.
_MISSED = {
    "pruned": "Some events behind this place have been pruned.",
    "history_changed": "The log's history has changed: some events may be lost, and others come again.",
}
LAST = 20  #: events that are shown where nothing says from where on

_STYLES = {"job.completed": "SUCCESS", "workflow.completed": "SUCCESS", "job.failed": "ERROR", "job.discarded": "ERROR",
           "workflow.failed": "ERROR", "job.retrying": "WARNING", "job.expired": "WARNING", "job.cancelled": "WARNING",
           "cron.skipped": "WARNING", "queue.paused": "WARNING"}  # fmt: skip
_WORTH = ("progress_percent", "progress_message", "duration_ms", "delay_ms", "scheduled_at", "reason", "cancelled_by",
          "paused_by", "resumed_by", "step_id", "steps_remaining", "active_jobs", "existing_job_id")  # fmt: skip


class Command(ShellCommand):
    help = (
        f"Shows the events of the log, oldest first: the last {LAST}, or those behind --since or --after. "
        "With --follow it goes on as events happen, until Ctrl-C, and waits for a database that is away."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--types", type=_given, help="event types, comma-separated; job.* for all of jobs")
        parser.add_argument("--queues", type=_given, help="queues, comma-separated")
        parser.add_argument("--job-types", type=_given, help="job types, comma-separated")
        parser.add_argument("--job", type=_given, metavar="ID", help="one job")
        parser.add_argument("--workflow", type=_given, metavar="ID", help="one workflow")
        parser.add_argument("--since", type=_given, help="how long ago (10m, 2h, PT10M) or when (2026-01-15T12:00:00Z)")
        parser.add_argument("--after", type=_given, metavar="ID", help="the events behind this one")
        parser.add_argument("--follow", "-f", action="store_true", help="go on as events happen")
        parser.add_argument("--limit", "-n", type=positive, help="at most N; without --since or --after the last ones")
        parser.add_argument("--json", action="store_true", help="one JSON object, the event's envelope, per line")

    def handle(self, *args: Any, **options: Any) -> None:
        refuse_unmigrated()
        write = self._json if options["json"] else self._line
        try:
            for event in self._events(options):
                write(event)
                if isinstance(self.unread(), BrokenPipeError):  # the reader has seen enough
                    sys.exit(0)
                self.flush()
        except KeyboardInterrupt:
            return

    def _events(self, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """What was asked for, in the order of the log."""
        follow, limit = options["follow"], options["limit"]
        wanted, using = _filter(options), log.database()
        tries = Backoff("Reading the event log", AFTER_FAULT, LONGEST_AFTER_FAULT, tell=self._warn) if follow else None
        begin = _instant(options["since"]) if options["since"] else None

        def patiently(look: Callable[[], T]) -> T:
            return self._patiently(look, using, tries)

        if options["after"] or begin is not None:
            cursor = patiently(lambda: _start(options["after"], begin, using))
        else:  # like tail: the limit is that of what is there already
            shown, cursor = patiently(lambda: _last(wanted, limit or LAST, using))
            yield from shown
            if not follow:
                return
            limit = None
        left = limit
        while left is None or left > 0:
            size = PAGE if left is None else min(left, PAGE)
            at = cursor
            page = patiently(lambda: log.read(wanted=wanted, after=at, limit=size, using=using))  # noqa: B023 - run here
            if page.gap:
                self._warn(_MISSED[page.gap["reason"]])
            yield from page.events
            cursor = page.cursor
            left = None if left is None else left - len(page.events)
            if not page.has_more:
                if not follow:
                    return
                time.sleep(PAUSE)

    def _patiently(self, look: Callable[[], T], using: str, tries: Backoff | None) -> T:
        """`look()`. With `tries`, for --follow, a database that is away is waited for."""
        while True:
            try:
                leave_old_server(using)
                found = look()
            except InvalidRequest as error:
                raise CommandError(f"{error.message} {error.hint}") from error
            except Exception as error:
                if not passes(error):
                    raise
                if tries is None:
                    raise CommandError(f"The database cannot be used: {str(error).strip()}") from error
                note_read_only(error)
                connections[using].close()
                time.sleep(tries.failed())
            else:
                if tries is not None:
                    tries.worked()
                return found

    def _warn(self, line: str) -> None:
        self.stderr.write(self.style.WARNING(line))

    def _json(self, event: dict[str, Any]) -> None:
        self.write_json(event)

    def _line(self, event: dict[str, Any]) -> None:
        data, kind = event["data"], event["type"]
        moment = dt.datetime.fromisoformat(event["time"]).astimezone().strftime("%H:%M:%S.%f")[:-3]
        subject = _tidy(data.get("job_type") or event["subject"], 28)
        who = event["subject"] if data.get("job_id") == event["subject"] else ""
        cells = [moment, f"{kind:<23}", f"{_tidy(data.get('queue', ''), 16):<16}", f"{subject:<28}"]
        if who:
            cells += [who, f"#{data.get('attempt', 0)}"]
        text = "  ".join([*cells, _event_summary(data)]).rstrip()
        style = getattr(self.style, _STYLES.get(kind, ""), None)
        self.stdout.write(text, style)


def _filter(options: dict[str, Any]) -> Filter:
    def several(name: str) -> tuple[str, ...]:
        return tuple(item for item in map(str.strip, (options[name] or "").split(",")) if item)

    return Filter(
        types=several("types"),
        queues=several("queues"),
        job_types=several("job_types"),
        job_ids=_job(options["job"]),
        workflow_ids=(identify(options["workflow"]),) if options["workflow"] else (),
    )


def _given(text: str) -> str:
    """What is not blank: an empty variable of a shell would let everything be shown."""
    if not text.replace(",", "").strip():
        raise argparse.ArgumentTypeError("it is empty: leave it out for all")
    return name_argument(text)


def _job(text: str) -> tuple[uuid.UUID, ...]:
    if not text:
        return ()
    found = parse_id(text.lower())
    if found is None:
        raise CommandError(f"--job takes an id such as 01976f5e-0000-7000-8000-000000000000, not {text!r}.")
    return (found,)


def _instant(text: str) -> dt.datetime:
    """An instant, or how long ago."""
    try:
        return durations.parse_instant(text)
    except ValueError:
        pass
    try:
        return clock.now() - dt.timedelta(milliseconds=durations.parse_duration_ms(text))
    except (ValueError, OverflowError) as error:
        raise CommandError(
            f"--since takes 10m, PT10M or an instant such as 2026-01-15T12:00:00Z, not {text!r}."
        ) from error


def _start(after: str, since: dt.datetime | None, using: str) -> str | None:
    """The cursor to begin behind."""
    if after:
        log.start(after, using)  # refuses what is none
        return after
    assert since is not None
    order.catch_up(using, strict=False)
    return log.cursor(order.before(using, since), using)


def _last(wanted: Filter, count: int, using: str) -> tuple[list[dict[str, Any]], str | None]:
    """The last events that match, and the cursor behind all that is there."""
    order.catch_up(using, strict=False)
    end = log.cursor(order.end_position(using), using)
    found = log.newest(wanted, limit=count, using=using).events[::-1]
    return found, found[-1]["id"] if found else end


def _event_summary(data: dict[str, Any]) -> str:
    """What else is worth a glance: the error, or the few facts that differ."""
    if isinstance(error := data.get("error"), dict):
        return _tidy(f"{error.get('type', 'error')}: {error.get('message', '')}", 120)
    return _tidy(", ".join(f"{name}={data[name]}" for name in _WORTH if data.get(name) is not None), 120)


def _tidy(text: object, length: int) -> str:
    """One line of at most so many printable characters."""
    plain = one_line(text)
    return plain if len(plain) <= length else plain[: length - 1] + "…"
