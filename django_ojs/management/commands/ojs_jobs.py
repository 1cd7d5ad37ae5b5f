"""`manage.py ojs_jobs`: jobs by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.text import Truncator

from django_ojs import jsontext, states
from django_ojs.errors import NotFound
from django_ojs.jobs.bulk import JOBS
from django_ojs.jobs.info import info
from django_ojs.management.operating import Deed, Operator
from django_ojs.management.shell import table
from django_ojs.models.job import JobRow
from django_ojs.rules import envelope, redaction
from django_ojs.rules.durations import format_instant
from django_ojs.states import State

_COLUMNS = ("id", "type", "queue", "state", "attempt", "max_attempts", "uncounted", "enqueued_at", "created_at",
            "errors")  # fmt: skip


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

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        match action:
            case "list":
                self._list(options)
            case "show":
                self._show(options["id"])
            case verb:
                default, what = _VERBS[verb]
                self.act(options, default, what)

    def _list(self, options: dict[str, Any]) -> None:
        if options["json"]:
            rows = self.rows(options, list(State))
            self.stdout.write(jsontext.dumps([redaction.job(envelope.render(row)) for row in rows]))
            return
        rows = self.rows(options, list(State), _COLUMNS)
        lines = table([_HEADINGS, *map(_cells, rows)]) if rows else ["There are no such jobs."]
        self.stdout.write("\n".join(lines))

    def _show(self, text: str) -> None:
        from django_ojs.client.handle import get_job

        try:
            row = info(get_job(text).id)
        except NotFound as error:
            raise CommandError(error.message) from None
        shown = redaction.job(envelope.render(row))
        members = (f"  {jsontext.dumps(name)}: {jsontext.dumps(value)}" for name, value in shown.items())
        self.stdout.write("{\n" + ",\n".join(members) + "\n}")


#: By name: the states that are meant where nothing is said, and what is done.
_VERBS: dict[str, tuple[Sequence[State], Deed]] = {
    "retry": (JOBS["retry"].takes, Deed(JOBS["retry"], "Retry", "retried", "job.retry")),
    "run": (JOBS["run"].takes, Deed(JOBS["run"], "Run", "made available", "job.run")),
    "cancel": (states.ordered(states.WAITING), Deed(JOBS["cancel"], "Cancel", "cancelled", "job.cancel")),
    "purge": (JOBS["delete"].takes, Deed(JOBS["delete"], "Delete", "deleted", "job.purge")),
}
_HEADINGS = ("ID", "TYPE", "QUEUE", "STATE", "ATTEMPT", "ENQUEUED", "ERROR")


def _cells(row: JobRow) -> tuple[str, ...]:
    since = row["enqueued_at"] or row["created_at"]
    attempt = f"{row['attempt']}/{row['max_attempts'] + (row['uncounted'] or 0)}"
    return (str(row["id"]), row["type"], row["queue"], row["state"], attempt, format_instant(since), last_error(row))


def last_error(row: JobRow) -> str:
    """The latest error of a row in one short line."""
    errors = jsontext.loads(row["errors"]) if row["errors"] else []
    if not errors or row["state"] == State.COMPLETED:
        return ""
    error = redaction.error(row["type"], errors[-1])
    text = f"{error['type']}: {error['message']}"
    return Truncator(" ".join(text.split())).chars(80)
