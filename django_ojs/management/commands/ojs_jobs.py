"""`manage.py ojs_jobs`: jobs by hand."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.text import Truncator

from django_ojs import envelope, jsontext, states
from django_ojs.errors import NotFound
from django_ojs.management.operating import Operator, add_act, add_choice, positive, table
from django_ojs.models.job import JobRow
from django_ojs.operations import audit
from django_ojs.operations.bulk import DELETE_STATES, RETRY_STATES, cancel_many, delete_many, retry_many
from django_ojs.operations.hurry import hurry
from django_ojs.operations.info import info
from django_ojs.policies import redaction
from django_ojs.policies.durations import format_instant
from django_ojs.states import State

_COLUMNS = ("id", "type", "queue", "state", "attempt", "max_attempts", "enqueued_at", "created_at", "errors")


class Command(Operator):
    help = (
        "Lists and shows jobs, tries them again, cancels and purges them. Without --state: those that the verb is for."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", metavar="list|show|retry|run|cancel|purge", required=True)
        listing = actions.add_parser("list", help="the newest jobs")
        add_choice(listing, ids=False)
        listing.add_argument("--limit", type=positive, default=50, metavar="N", help="at most so many (default: 50)")
        listing.add_argument("--json", action="store_true", help="as JSON, an array of envelopes")
        actions.add_parser("show", help="one job, as the wire shows it, as JSON").add_argument("id")
        for verb, text in (
            ("retry", "make failed jobs available now: discarded ones, and those that wait for their next attempt"),
            ("run", "make scheduled jobs, and those that wait for their next attempt, available now"),
            ("cancel", "stop jobs that have not ended; without --state those that are not running"),
            ("purge", "delete jobs that have ended, for good"),
        ):
            action = actions.add_parser(verb, help=text)
            add_choice(action)
            add_act(action)

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        match action:
            case "list":
                self._list(options)
            case "show":
                self._show(options["id"])
            case "retry":
                self.act(
                    options, RETRY_STATES, lambda ids: retry_many(ids, partial=True), "Retry", "retried", "job.retry"
                )
            case "run":
                self.act(options, [State.SCHEDULED, State.RETRYABLE], hurry, "Run", "made available", "job.run")
            case "cancel":
                self.act(options, states.ordered(states.WAITING), self._cancel, "Cancel", "cancelled", "job.cancel")
            case "purge":
                self.act(
                    options, DELETE_STATES, lambda ids: delete_many(ids, partial=True), "Delete", "deleted", "job.purge"
                )

    def _cancel(self, ids: Any) -> list[Any]:
        return cancel_many(ids, partial=True, by=audit.by_command())

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


_HEADINGS = ("ID", "TYPE", "QUEUE", "STATE", "ATTEMPT", "ENQUEUED", "ERROR")


def _cells(row: JobRow) -> tuple[str, ...]:
    since = row["enqueued_at"] or row["created_at"]
    attempt = f"{row['attempt']}/{row['max_attempts']}"
    return (str(row["id"]), row["type"], row["queue"], row["state"], attempt, format_instant(since), last_error(row))


def last_error(row: JobRow) -> str:
    """The latest error of a row in one short line."""
    errors = jsontext.loads(row["errors"]) if row["errors"] else []
    if not errors or row["state"] == State.COMPLETED:
        return ""
    error = redaction.error(row["type"], errors[-1])
    text = f"{error['type']}: {error['message']}"
    return Truncator(" ".join(text.split())).chars(80)
