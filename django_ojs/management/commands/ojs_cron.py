"""`manage.py ojs_cron`: schedules, from the code into the database and by hand."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from django_ojs import audit
from django_ojs.client.sync import NotSynchronised, SyncResult, sync
from django_ojs.cron import runs, schedules
from django_ojs.database import database
from django_ojs.errors import OJSError
from django_ojs.management.shell import ShellCommand, table
from django_ojs.models import CronSchedule


class Command(ShellCommand):
    help = "List and operate schedules, and bring those of the code (@job(cron=...)) into the database."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="sync|list|trigger|enable|disable")
        syncing = actions.add_parser(
            "sync",
            help="Create, update and remove the schedules of the code; run it at deploy, after migrate. Those "
            "registered over HTTP stay as they are.",
        )
        syncing.add_argument("--dry-run", action="store_true", help="Only say what would change.")
        syncing.add_argument("--yes", action="store_true", help="Do not ask before schedules are removed.")
        actions.add_parser("list", help="Show all schedules.")
        for action, text in (
            ("trigger", "Make a job now; when the schedule runs next stays as it is."),
            ("enable", "Let it run again; what it missed is not made up for."),
            ("disable", "Let it not run until it is enabled again; a sync keeps it so."),
        ):
            actions.add_parser(action, help=text).add_argument("name")

    def handle(self, *args: Any, **options: Any) -> None:
        actions: dict[str, Callable[..., None]] = {
            "sync": self._sync, "list": self._list, "trigger": self._trigger, "enable": self._switch,
            "disable": self._switch,
        }  # fmt: skip
        try:
            actions[options["action"]](**options)
        except OJSError as error:
            raise CommandError(error.message) from error

    def _sync(self, *, dry_run: bool, yes: bool, **options: Any) -> None:
        try:
            if not dry_run and (gone := sync(dry_run=True).removed):
                self.confirm(f"Remove {', '.join(gone)}, no longer in the code?", yes=yes)
            result = sync(dry_run=True) if dry_run else _audited_sync()
        except NotSynchronised as error:
            raise CommandError(str(error)) from error
        would = "would be " if dry_run else ""
        for word in ("created", "updated", "removed"):
            for name in getattr(result, word):
                self.stdout.write(f"{name} {would}{word}")
        if not (result.created or result.updated or result.removed):
            self.stdout.write(f"Nothing to do: {len(result.unchanged)} schedules are as the code says.")

    def _list(self, **options: Any) -> None:
        found = list(CronSchedule.objects.using(database(None)))
        if not found:
            self.stdout.write("There are no schedules. Write @job(..., cron=...) and run manage.py ojs_cron sync.")
            return
        rows = [list(_COLUMNS), *([cell(schedule) for cell in _COLUMNS.values()] for schedule in found)]
        for number, line in enumerate(table(rows)):
            self.stdout.write(self.style.MIGRATE_HEADING(line) if number == 0 else line)

    def _trigger(self, *, name: str, **options: Any) -> None:
        _, row = audit.perform(lambda: runs.trigger(name), _entry("trigger", name))
        self.stdout.write(f"{name} made the job {row['id']}.")

    def _switch(self, *, name: str, action: str, **options: Any) -> None:
        schedule = audit.perform(lambda: schedules.set_enabled(name, action == "enable"), _entry(action, name))
        state = f"runs next at {_time(schedule.next_run_at)}" if schedule.enabled else "does not run until enabled"
        self.stdout.write(f"{name} {state}.")


def _audited_sync() -> SyncResult:
    entry = _entry("sync")

    def run() -> SyncResult:
        result = sync()
        entry.detail = {word: getattr(result, word) for word in ("created", "updated", "removed")}
        return result

    return audit.perform(run, entry)


def _entry(verb: str, name: str = "") -> audit.Act:
    return audit.Act(audit.by_command(), f"cron.{verb}", name, door="command")


def _time(instant: dt.datetime | None) -> str:
    """In the site's zone, which is named, for the schedule's may be another."""
    return timezone.localtime(instant).strftime("%Y-%m-%d %H:%M:%S %Z") if instant else "-"


_COLUMNS: dict[str, Callable[[CronSchedule], str]] = {
    "NAME": lambda schedule: schedule.name,
    "SCHEDULE": lambda schedule: schedule.expression,
    "ZONE": lambda schedule: schedule.timezone,
    "JOB TYPE": lambda schedule: schedule.type,
    "STATUS": lambda schedule: schedule.status,
    "NEXT RUN": lambda schedule: _time(schedule.next_run_at),
    "LAST RUN": lambda schedule: _time(schedule.last_run_at),
    "FROM": lambda schedule: schedule.source,
}
