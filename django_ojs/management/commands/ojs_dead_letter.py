"""`manage.py ojs_dead_letter`: the jobs that failed for good and wait for somebody to look at them."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_ojs import envelope, jsontext
from django_ojs.errors import InvalidRequest
from django_ojs.management.commands.ojs_jobs import last_error
from django_ojs.management.operating import Deed, Operator
from django_ojs.management.shell import member, table
from django_ojs.operations.delete import delete
from django_ojs.operations.retry import check_override, retry
from django_ojs.policies import redaction
from django_ojs.policies.durations import format_instant
from django_ojs.states import State

_COLUMNS = ("id", "type", "queue", "state", "attempt", "finished_at", "errors")
_DEAD = [State.DISCARDED]


class Command(Operator):
    help = "Lists dead letters, makes them available again as if they had never run, or deletes them for good."
    dead_letters = True

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", metavar="list|retry|delete", required=True)
        self.add_list(actions.add_parser("list", help="the newest dead letters"), states=False)
        for verb, text in (("retry", "make them available again"), ("delete", "forget them")):
            action = actions.add_parser(verb, help=text)
            self.add_verb(action, states=False)
            if verb == "retry":
                action.add_argument(
                    "--set", action="append", default=[], type=member, dest="changes", metavar="KEY=JSON",
                    help="retry with another args, meta, queue, priority or retry; repeat it for several",
                )  # fmt: skip

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        if action == "list":
            self._list(options)
        elif action == "retry":
            self._retry(options)
        else:
            self.act(options, _DEAD, Deed("delete", "Delete", "deleted", "job.delete", delete))

    def _retry(self, options: dict[str, Any]) -> None:
        changes = dict(options["changes"])
        try:
            check_override(changes)
        except InvalidRequest as error:
            raise CommandError(error.message) from None
        override = changes or None
        again = partial(retry, override=override)
        verb = Deed("retry", "Retry", "retried", "job.retry", again, {"override": sorted(changes)}, override)
        self.act(options, _DEAD, verb)

    def _list(self, options: dict[str, Any]) -> None:
        if options["json"]:
            rows = self.rows(options, _DEAD)
            self.stdout.write(jsontext.dumps([redaction.job(envelope.render(row)) for row in rows]))
            return
        rows = [
            (str(row["id"]), row["type"], row["queue"], str(row["attempt"]), format_instant(row["finished_at"]),
             last_error(row))
            for row in self.rows(options, _DEAD, _COLUMNS)
        ]  # fmt: skip
        headings = ("ID", "TYPE", "QUEUE", "ATTEMPTS", "DISCARDED", "ERROR")
        self.stdout.write("\n".join(table([headings, *rows])) if rows else "There are no such dead letters.")
