"""`manage.py ojs_bulk`: acts on many jobs in the background, what `--background` and the admin began."""

from __future__ import annotations

import sys
import time
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_ojs import audit
from django_ojs.database import database, leave_old_server
from django_ojs.jobs import bulk
from django_ojs.management.shell import IN_PART, ProgressLine, ShellCommand, entry, positive
from django_ojs.messages import jobs
from django_ojs.models import BulkAction
from django_ojs.output import one_line
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
        listing.add_argument("--limit", type=positive, default=50, metavar="N", help="at most this many (default: 50)")
        showing = actions.add_parser("show", help="one, and what it was refused; exits with 3 where it was, or failed")
        showing.add_argument("--watch", action="store_true", help="wait for its end, with a progress bar")
        stopping = actions.add_parser("cancel", help="let it end where it is; what it has done stays done")
        for action in (showing, stopping):
            action.add_argument("id", type=positive)
        for action in (listing, showing):
            action.add_argument("--json", action="store_true", help="as JSON")

    def do_list(self, options: dict[str, Any]) -> None:
        found = list(BulkAction.objects.using(database(None)).order_by("-pk")[: options["limit"]])
        if options["json"]:
            self.write_json([bulk.describe_action(one) for one in found])
            return
        rows = [
            (str(one.pk), _act(one), one.state, f"{one.matched:,}", f"{max(one.expected, one.matched):,}",
             f"{one.failed:,}", one.actor, format_instant(one.created_at))
            for one in found
        ]  # fmt: skip
        self.write_table(_HEADINGS, rows, "There are no bulk actions.")

    def do_show(self, options: dict[str, Any]) -> None:
        action, watch = _get(options["id"]), options["watch"]
        if watch:
            action = self._wait(action)
        if options["json"]:
            self.write_json(bulk.describe_action(action))
        else:
            of = max(action.expected, action.matched)
            self.stdout.write(
                f"{_act(action)}: {action.state}, {action.matched:,} of {jobs(of)}, {action.failed:,} refused."
            )
            for refusal in action.errors or ():
                self.stderr.write(one_line(f"{refusal['job_id']}: {refusal['error']}"))
            if action.problem:
                self.stderr.write(one_line(f"Its latest batch broke off: {action.problem}"))
        if action.state == _RUNNING:
            self.warn_without_scheduler("goes on")
        if action.state == _RUNNING and watch:
            sys.exit(IN_PART)
        if action.failed or action.state in (BulkAction.State.CANCELLED, BulkAction.State.FAILED):
            sys.exit(IN_PART)

    def _wait(self, action: BulkAction) -> BulkAction:
        """Until it has ended. Ctrl-C ends the waiting and nothing else."""
        progress = ProgressLine(self.stderr, max(action.expected, 1))
        warned = False
        try:
            while action.state == _RUNNING:
                warned = warned or self.warn_without_scheduler("goes on")
                progress.show(action.matched)
                time.sleep(_EVERY)
                leave_old_server(database(None))
                action = _get(action.pk)
        finally:
            progress.clear()
        return action

    def do_cancel(self, options: dict[str, Any]) -> None:
        pk = options["id"]
        action = audit.perform(lambda: bulk.cancel_action(pk), entry("bulkaction.cancel", str(pk)))
        self.stdout.write(f"Bulk action {pk} is cancelled after {jobs(action.matched)}.")


def _get(pk: int) -> BulkAction:
    found = BulkAction.objects.using(database(None)).filter(pk=pk).first()
    if found is None:
        raise CommandError(f"There is no bulk action {pk}. `ojs_bulk list` shows which there are.")
    return found


def _act(action: BulkAction) -> str:
    if action.verb == bulk.PURGE_HISTORY:
        return "erase history"
    return f"{action.verb} {'dead letters' if action.filter.get('dead_letters') else 'jobs'}"
