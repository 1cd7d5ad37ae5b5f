"""`manage.py ojs_maintenance`: stops delivery everywhere, says whether it is stopped, and lets it go on."""

from __future__ import annotations

import argparse
import datetime as dt
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_ojs import audit
from django_ojs.errors import InvalidRequest
from django_ojs.http.server import rendered
from django_ojs.management.shell import ShellCommand, entry
from django_ojs.messages import jobs
from django_ojs.models import Maintenance
from django_ojs.output import one_line
from django_ojs.queues import maintenance
from django_ojs.rules import durations
from django_ojs.rules.durations import format_instant
from django_ojs.states import State
from django_ojs.statistics.counters import count_all


class Command(ShellCommand):
    help = (
        "Maintenance mode. While it is on no worker gets a job, nothing that is scheduled comes due and no schedule "
        "fires; jobs are still accepted, and those that run may end. Repeated, `on` changes only what it is given."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", metavar="on|off|status", required=True)
        on = actions.add_parser("on", help="stop delivery, promotion and schedules")
        on.add_argument("--reason", type=_reason, help="for those who find nothing running")
        on.add_argument("--for", type=_duration, dest="lasting", metavar="DURATION",
                        help="how long it will take from now, about: 30m, 2h, PT1H30M")  # fmt: skip
        ends = on.add_mutually_exclusive_group()
        ends.add_argument("--auto-end", action="store_true", default=None, help="end it by itself then")
        ends.add_argument("--no-auto-end", action="store_false", dest="auto_end", help="leave the end to an operator")
        off = actions.add_parser("off", help="let everything go on")
        status = actions.add_parser("status", help="say whether it is on, since when and until when about")
        for parser_ in (on, off):
            parser_.add_argument("--yes", action="store_true", help="do not ask")
        for parser_ in (on, off, status):
            parser_.add_argument("--json", action="store_true", help="as JSON, one object")

    def do_on(self, options: dict[str, Any]) -> None:
        if maintenance.current() is None:
            self.confirm("Stop delivery from all queues?", yes=options["yes"])
        act = entry(maintenance.STARTED)

        def start() -> Maintenance:
            mode = maintenance.start(
                reason=options["reason"], lasting=options["lasting"], auto_end=options["auto_end"], by=act.actor
            )
            act.detail = maintenance.audit_detail(mode)
            return mode

        try:
            mode = audit.perform(start, act)
        except InvalidRequest as error:
            raise CommandError(_with_option_names(error)) from error
        self._write(mode, options)

    def do_off(self, options: dict[str, Any]) -> None:
        if maintenance.current() is not None:
            self.confirm("End maintenance mode and deliver again?", yes=options["yes"])
        act = entry(maintenance.STOPPED)

        def stop() -> None:
            ended = maintenance.stop()
            act.detail = maintenance.audit_detail(ended) if ended else {}

        audit.perform(stop, act)
        self._write(None, options)

    def do_status(self, options: dict[str, Any]) -> None:
        self._write(maintenance.current(), options)

    def _write(self, mode: Maintenance | None, options: dict[str, Any]) -> None:
        if options["json"]:
            self.write_json(rendered(mode))
        else:
            self.stdout.write(_sentence(mode))


def _sentence(mode: Maintenance | None) -> str:
    if mode is None:
        return "Maintenance mode is off."
    by = f" by {mode.enabled_by}" if mode.enabled_by else ""
    reason = f": {mode.reason}" if mode.reason else "."
    lines = [one_line(f"Maintenance mode is on since {format_instant(mode.enabled_at)}{by}{reason}")]
    if mode.estimated_end:
        how = "It ends by itself at" if mode.auto_end else "It will take until about"
        lines.append(f"{how} {format_instant(mode.estimated_end)}.")
    running = sum(counts.states[State.ACTIVE] for counts in count_all().values())
    lines.append(f"{jobs(running)} still {'runs' if running == 1 else 'run'}." if running else "No job runs.")
    return "\n".join(lines)


def _with_option_names(error: InvalidRequest) -> str:
    """The refusal with the names of the options in place of those of the request."""
    return str(error).replace("estimated_duration", "--for").replace("auto_end", "--auto-end")


def _duration(text: str) -> dt.timedelta:
    try:
        return dt.timedelta(milliseconds=durations.parse_duration_ms(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None


def _reason(text: str) -> str:
    if len(text) > maintenance.MAX_REASON or not text.isprintable():
        raise argparse.ArgumentTypeError(f"a reason is one line of at most {maintenance.MAX_REASON} characters")
    return text
