"""`manage.py ojs_bulk`: acts on many jobs in the background, what `--background` and the admin began."""

from __future__ import annotations

import sys
import time
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_ojs import audit, clock, jsontext
from django_ojs.database import database
from django_ojs.errors import OJSError
from django_ojs.jobs import bulkactions
from django_ojs.management.shell import IN_PART, Progress, ShellCommand, positive, table
from django_ojs.messages import jobs
from django_ojs.models import BulkAction, Lease
from django_ojs.rules.durations import format_instant

_HEADINGS = ("ID", "ACT", "STATE", "DONE", "OF", "REFUSED", "WHO", "ASKED FOR")
_RUNNING = BulkAction.State.RUNNING
#: Seconds between two looks.
_EVERY = 0.5


class Command(ShellCommand):
    help = (
        "Lists, shows and stops acts on many jobs that the scheduler does in the background: those of --background, of "
        "the admin and of the HTTP API."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", metavar="list|show|cancel", required=True)
        listing = actions.add_parser("list", help="the newest, those that run and those of the last 30 days")
        listing.add_argument("--limit", type=positive, default=50, metavar="N", help="at most so many (default: 50)")
        showing = actions.add_parser("show", help="one, and what it was refused; exits with 3 where it was, or failed")
        showing.add_argument("--watch", action="store_true", help="wait for its end, with a progress bar")
        stopping = actions.add_parser("cancel", help="let it end where it is; what it has done stays done")
        for action in (showing, stopping):
            action.add_argument("id", type=positive)
        for action in (listing, showing):
            action.add_argument("--json", action="store_true", help="as JSON")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        if action == "list":
            self._list(options["limit"], options["json"])
        elif action == "show":
            self._show(options["id"], options["watch"], options["json"])
        else:
            self._cancel(options["id"])

    def _list(self, limit: int, as_json: bool) -> None:
        found = list(BulkAction.objects.using(database(None)).order_by("-pk")[:limit])
        if as_json:
            self.stdout.write(jsontext.dumps([bulkactions.facts(one) for one in found]))
            return
        rows = [
            (str(one.pk), _act(one), one.state, f"{one.matched:,}", f"{max(one.expected, one.matched):,}",
             f"{one.failed:,}", one.actor, format_instant(one.created_at))
            for one in found
        ]  # fmt: skip
        self.stdout.write("\n".join(table([_HEADINGS, *rows])) if rows else "There are no bulk actions.")

    def _show(self, pk: int, watch: bool, as_json: bool) -> None:
        action = _get(pk)
        if watch:
            action = self._wait(action)
        if as_json:
            self.stdout.write(jsontext.dumps(bulkactions.facts(action)))
        else:
            of = max(action.expected, action.matched)
            self.stdout.write(
                f"{_act(action)}: {action.state}, {action.matched:,} of {jobs(of)}, {action.failed:,} refused."
            )
            for refusal in action.errors or ():
                self.stderr.write(f"{refusal['job_id']}: {refusal['error']}")
            if action.problem:
                self.stderr.write(f"Its latest batch broke off: {action.problem}")
        if action.state == _RUNNING and not _led():
            self.stderr.write("No scheduler is running: it goes on when one does.", str)
        if action.state == _RUNNING and watch:
            sys.exit(IN_PART)
        if action.failed or action.state in (BulkAction.State.CANCELLED, BulkAction.State.FAILED):
            sys.exit(IN_PART)

    def _wait(self, action: BulkAction) -> BulkAction:
        """Until it has ended. Ctrl-C ends the waiting and nothing else."""
        progress = Progress(self.stderr, max(action.expected, 1))
        told = False
        try:
            while action.state == _RUNNING:
                if not told and not _led():
                    self.stderr.write("No scheduler is running: it goes on when one does.", str)
                    told = True
                progress.show(action.matched)
                time.sleep(_EVERY)
                action = _get(action.pk)
        finally:
            progress.clear()
        return action

    def _cancel(self, pk: int) -> None:
        entry = audit.Act(audit.by_command(), "bulkaction.cancel", str(pk), door="command")
        try:
            action = audit.perform(lambda: bulkactions.cancel(pk), entry)
        except OJSError as error:
            raise CommandError(error.message) from error
        self.stdout.write(f"Bulk action {pk} is cancelled after {jobs(action.matched)}.")


def _get(pk: int) -> BulkAction:
    found = BulkAction.objects.using(database(None)).filter(pk=pk).first()
    if found is None:
        raise CommandError(f"There is no bulk action {pk}. `ojs_bulk list` shows which there are.")
    return found


def _act(action: BulkAction) -> str:
    return f"{action.verb} {'dead letters' if action.filter.get('dead_letters') else 'jobs'}"


def _led() -> bool:
    using = database(None)
    return Lease.objects.using(using).filter(name="scheduler", expires_at__gt=clock.now(using)).exists()
