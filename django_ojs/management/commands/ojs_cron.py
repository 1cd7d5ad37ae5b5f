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
from django_ojs.management.shell import ShellCommand, entry, name_argument
from django_ojs.messages import count
from django_ojs.models import CronSchedule


class Command(ShellCommand):
    help = "List and operate schedules, and bring those of the code (@job(cron=...)) into the database."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="sync|list|trigger|enable|disable")
        syncing = actions.add_parser(
            "sync",
            help="Create, update and remove the schedules of the code; run it at deploy, after migrate. Those "
            "registered over HTTP stay as they are, and so does what operators changed.",
        )
        syncing.add_argument("--overwrite", action="store_true", help="Take back what operators changed, too.")
        syncing.add_argument("--dry-run", action="store_true", help="Only say what would change.")
        syncing.add_argument("--yes", action="store_true", help="Do not ask before schedules are removed.")
        actions.add_parser("list", help="Show all schedules.")
        for action, text in (
            ("trigger", "Make a job now; when the schedule runs next stays as it is."),
            ("enable", "Let it run again; what it missed is not made up for."),
            ("disable", "Let it not run until it is enabled again; a sync keeps it so."),
        ):
            actions.add_parser(action, help=text).add_argument("name", type=name_argument)

    def do_sync(self, options: dict[str, Any]) -> None:
        dry_run, overwrite = options["dry_run"], options["overwrite"]
        try:
            if not dry_run and (gone := sync(dry_run=True)).removed:
                self.confirm(_question(gone), yes=options["yes"])
            result = sync(dry_run=True, overwrite=overwrite) if dry_run else _audited_sync(overwrite)
        except NotSynchronised as error:
            raise CommandError(str(error)) from error
        would = "would be " if dry_run else ""
        for word, names in result.changes.items():
            for name in names:
                self.stdout.write(f"{name} {would}{word}")
        for name in result.kept:
            self.stdout.write(f"{name} stays as an operator changed it; --overwrite makes it as the code says")
        if not result.changes:
            same = len(set(result.unchanged) - set(result.kept))
            are = "is" if same == 1 else "are"
            self.stdout.write(f"Nothing to do: {count(same, 'schedule')} {are} as the code says.")

    def do_list(self, options: dict[str, Any]) -> None:
        found = CronSchedule.objects.using(database(None))
        rows = [[cell(schedule) for cell in _COLUMNS.values()] for schedule in found]
        empty = "There are no schedules. Write @job(..., cron=...), and start a worker, or run manage.py ojs_cron sync."
        self.write_table(list(_COLUMNS), rows, empty)

    def do_trigger(self, options: dict[str, Any]) -> None:
        name = options["name"]
        _, row = audit.perform(lambda: runs.trigger(name), entry("cron.trigger", name))
        self.stdout.write(f"{name} made the job {row['id']}.")

    def do_enable(self, options: dict[str, Any]) -> None:
        self._switch(options["name"], True)

    def do_disable(self, options: dict[str, Any]) -> None:
        self._switch(options["name"], False)

    def _switch(self, name: str, enabled: bool) -> None:
        act = entry(schedules.act_of_switch(enabled), name)
        schedule = audit.perform(lambda: schedules.set_enabled(name, enabled), act)
        state = f"runs next at {_time(schedule.next_run_at)}" if schedule.enabled else "does not run until enabled"
        self.stdout.write(f"{name} {state}.")


def _question(found: SyncResult) -> str:
    foreign = f" ({', '.join(found.foreign)}: maybe of other code with this database)" if found.foreign else ""
    return f"Remove {', '.join(found.removed)}, no longer in the code{foreign}?"


def _audited_sync(overwrite: bool) -> SyncResult:
    act = entry("cron.sync")

    def run() -> SyncResult:
        result = sync(overwrite=overwrite)
        act.detail = {word: getattr(result, word) for word in ("created", "updated", "removed")} | result.changes
        return result

    return audit.perform(run, act)


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
