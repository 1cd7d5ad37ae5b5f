"""`manage.py ojs_jobs`: jobs by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandParser

from django_ojs import jsontext, states
from django_ojs.jobs.bulk import JOBS
from django_ojs.jobs.verbs import info
from django_ojs.management.shell import JobAction, Operator, last_error
from django_ojs.models.job import JobRow
from django_ojs.rules import envelope, redaction
from django_ojs.rules.durations import format_instant
from django_ojs.states import State


class Command(Operator):
    help = (
        "Lists and shows jobs, tries them again, cancels and purges them. Without --state: those that the verb is for."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", metavar="list|show|retry|run|cancel|purge", required=True)
        self.add_list(actions.add_parser("list", help="the newest jobs"))
        actions.add_parser("show", help="one job, as the wire shows it, as JSON").add_argument("id")
        for verb, text in (
            ("retry", "make failed jobs available now: discarded ones, and those that wait for their next attempt"),
            ("run", "make scheduled jobs, and those that wait for their next attempt, available now"),
            ("cancel", "stop jobs that have not ended; without --state those that are not running"),
            ("purge", "delete jobs that have ended, for good"),
        ):
            self.add_verb(actions.add_parser(verb, help=text))

    def do_list(self, options: dict[str, Any]) -> None:
        self.write_jobs(options, list(State), _COLUMNS, "There are no such jobs.")

    def do_show(self, options: dict[str, Any]) -> None:
        from django_ojs.client.handle import get_job

        row = info(get_job(options["id"]).id)
        shown = redaction.job(envelope.render(row))
        members = (f"  {jsontext.dumps(name)}: {jsontext.dumps(value)}" for name, value in shown.items())
        self.stdout.write("{\n" + ",\n".join(members) + "\n}")

    def do_retry(self, options: dict[str, Any]) -> None:
        self.act(options, JobAction(JOBS["retry"], "Retry", "retried", "job.retry"))

    def do_run(self, options: dict[str, Any]) -> None:
        self.act(options, JobAction(JOBS["run"], "Run", "made available", "job.run"))

    def do_cancel(self, options: dict[str, Any]) -> None:
        waiting = states.ordered(states.WAITING)
        self.act(options, JobAction(JOBS["cancel"], "Cancel", "cancelled", "job.cancel", default=waiting))

    def do_purge(self, options: dict[str, Any]) -> None:
        self.act(options, JobAction(JOBS["delete"], "Delete", "deleted", "job.purge"))


_COLUMNS: dict[str, Callable[[JobRow], str]] = {
    "ID": lambda row: str(row["id"]),
    "TYPE": lambda row: row["type"],
    "QUEUE": lambda row: row["queue"],
    "STATE": lambda row: row["state"],
    "ATTEMPT": lambda row: f"{row['attempt']}/{row['max_attempts'] + (row['uncounted'] or 0)}",
    "ENQUEUED": lambda row: format_instant(row["enqueued_at"] or row["created_at"]),
    "ERROR": last_error,
}
