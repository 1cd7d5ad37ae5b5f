"""What `ojs_jobs` and `ojs_dead_letter` share: listing the chosen jobs, and acting on them at once or later on."""

from __future__ import annotations

import dataclasses
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_ojs import clock
from django_ojs.errors import OJSError
from django_ojs.management.choosing import FILTERS, add_choice, chosen, told
from django_ojs.management.shell import IN_PART, Progress, ShellCommand, add_act, jobs, positive
from django_ojs.models import Job, Lease
from django_ojs.models.job import JobRow
from django_ojs.operations import audit, bulkactions
from django_ojs.operations.common import database
from django_ojs.operations.foretelling import TAKES, foretold
from django_ojs.operations.selection import Selection
from django_ojs.states import State

CHUNK = 500  #: jobs that one operation, and one transaction, gets
MOST = 1_000_000  #: jobs that one command takes
SPELLED_OUT = 20  #: refusals that are told one by one

#: Takes ids, returns an outcome for each, an `OJSError` where it is refused.
Run = Callable[[Sequence[uuid.UUID]], Sequence[Any]]
#: A job, and why it is left as it is.
Refusal = tuple[uuid.UUID, OJSError]


@dataclasses.dataclass(frozen=True, slots=True)
class Deed:
    """What is done to jobs.

    Attributes:
        name: what a bulk action in the background calls it, one of `TAKES`.
        asks, done: `Retry`, `retried`.
        action: in the audit log.
        run: does it to a batch.
        detail: what an entry says besides, as far as it says anything.
        override: what a retry changes.
    """

    name: str
    asks: str
    done: str
    action: str
    run: Run
    detail: dict[str, Any] = dataclasses.field(default_factory=dict)
    override: dict[str, Any] | None = None


class Operator(ShellCommand):
    """A command that lists jobs and does something to those that are chosen."""

    #: Whether its jobs are dead letters.
    dead_letters = False

    def add_list(self, parser: CommandParser, *, states: bool = True) -> None:
        """The arguments of a list."""
        add_choice(parser, states=states, act=False)
        parser.add_argument("--limit", type=positive, default=50, metavar="N", help="at most so many (default: 50)")
        parser.add_argument("--json", action="store_true", help="as JSON, an array of envelopes")

    def add_verb(self, parser: CommandParser, *, states: bool = True) -> None:
        """The arguments of what changes jobs."""
        add_choice(parser, states=states)
        add_act(parser)
        parser.add_argument(
            "--background", action="store_true", help="let the scheduler do it; `ojs_bulk` shows how far it is"
        )

    def rows(self, options: dict[str, Any], default: Sequence[State], columns: Sequence[str] | None = None) -> Any:
        """The newest of the chosen jobs as rows, at most `limit`."""
        wanted, limit, using = self._wanted(options, default), options["limit"], database(None)
        found = wanted.jobs(using)
        if options["ids"]:
            found = found.filter(pk__in=options["ids"])
        elif wanted.searches:
            ids, look = wanted.searched(using, limit + 1)
            found = Job.objects.using(using).filter(pk__in=sorted(ids, reverse=True)[: limit + 1])
            if len(ids) <= limit and (reach := told(look)):
                self.stderr.write(reach, str)
        rows: list[JobRow] = found.order_by("-pk")[: limit + 1].rows(columns)
        if len(rows) > limit and not options["json"]:
            self.stderr.write(f"The newest {limit}; --limit shows more.", str)
        return rows[:limit]

    def act(self, options: dict[str, Any], default: Sequence[State], verb: Deed) -> None:
        """Do it to the chosen jobs, in batches, after asking; exits with 3 where some were refused. Each batch has an
        entry in the audit log."""
        self._check(options, verb)
        if options["background"]:
            self._later(options, default, verb)
            return
        ids = self._ids(options, default)
        if options["dry_run"]:
            refused = foretold(verb.name, ids, dead_letters=self.dead_letters) if options["ids"] else []
            self.stdout.write(f"{jobs(len(ids) - len(refused))} would be {verb.done}.")
            if self._tell(refused):
                sys.exit(IN_PART)
            return
        if ids:
            self.confirm(f"{verb.asks} {jobs(len(ids))}?", yes=options["yes"])
        refused, seen = self._run(ids, verb)
        self.stdout.write(f"{jobs(seen - len(refused))} {verb.done}.")
        if self._tell(refused):
            left = "1 job was left as it is." if len(refused) == 1 else f"{len(refused)} jobs were left as they are."
            self.stderr.write(left)
        if seen < len(ids):
            self.stderr.write(f"Interrupted before the last {len(ids) - seen}.")
        if refused or seen < len(ids):
            sys.exit(IN_PART)

    def _tell(self, refused: Sequence[Refusal]) -> bool:
        """Say which jobs refused, and why; whether any did."""
        for job_id, error in refused[:SPELLED_OUT]:
            told = str(error)
            self.stderr.write(told if str(job_id) in told else f"{job_id}: {told}")
        return bool(refused)

    def _check(self, options: dict[str, Any], verb: Deed) -> None:
        filters = [options.get(name) for name in FILTERS]
        if sum((bool(options["ids"]), options["everything"], any(filters))) != 1:
            raise CommandError("Say which jobs: either their ids, or a filter such as --queue, or --all.")
        if options["ids"] and options["background"]:
            raise CommandError("--background takes a filter or --all: jobs that are named are done at once.")
        takes = TAKES[verb.name]
        if wrong := [state for state in options.get("state") or () if state not in takes]:
            raise CommandError(f"--state {','.join(wrong)}: only jobs that are {', '.join(takes)} can be {verb.done}.")

    def _wanted(self, options: dict[str, Any], default: Sequence[State]) -> Selection:
        return chosen(options, default, dead_letters=self.dead_letters)

    def _ids(self, options: dict[str, Any], default: Sequence[State]) -> list[uuid.UUID]:
        if options["ids"]:
            return list(dict.fromkeys(options["ids"]))
        wanted, using = self._wanted(options, default), database(None)
        if not wanted.searches:
            return list(wanted.jobs(using).order_by("pk").values_list("pk", flat=True)[:MOST])
        ids, look = wanted.searched(using, MOST)
        if reach := told(look):
            self.stderr.write(f"{reach} Only what was looked at is meant.", str)
        return sorted(ids)[:MOST]

    def _later(self, options: dict[str, Any], default: Sequence[State], verb: Deed) -> None:
        """Hand it to the scheduler."""
        wanted, using = self._wanted(options, default), database(None)
        if wanted.searches:
            ids, look = wanted.searched(using, bulkactions.MANY)
            number, wanted = len(ids), wanted.bounded(look)
            if reach := told(look):
                self.stderr.write(f"{reach} Only what was looked at is meant.", str)
        else:
            number = wanted.jobs(using).count()
        if options["dry_run"]:
            self.stdout.write(f"{jobs(number)} would be {verb.done} in the background.")
            return
        if not number:
            self.stdout.write(f"0 jobs {verb.done}.")
            return
        self.confirm(f"{verb.asks} {jobs(number)} in the background?", yes=options["yes"])
        entry = audit.Act(audit.by_command(), f"job.bulk_{verb.name}", door="command")
        try:
            action = bulkactions.start(verb.name, wanted, entry, override=verb.override)
        except OJSError as error:
            raise CommandError(error.message) from error
        self.stdout.write(f"{action.pk}")
        follow = (
            f"Bulk action {action.pk}: {jobs(action.expected)} to be {verb.done}. `ojs_bulk show {action.pk} --watch`"
        )
        self.stderr.write(f"{follow} follows it.", str)
        if not Lease.objects.using(using).filter(name="scheduler", expires_at__gt=clock.now(using)).exists():
            self.stderr.write("No scheduler is running: it begins when one does.", str)

    def _run(self, ids: Sequence[uuid.UUID], verb: Deed) -> tuple[list[Refusal], int]:
        """What was refused, and how many jobs had their turn before the end or Ctrl-C."""
        refused: list[Refusal] = []
        seen, progress = 0, Progress(self.stderr, len(ids), live=len(ids) > CHUNK)
        try:
            for part in _parts(ids):
                outcomes = zip(part, _audited(verb, part), strict=True)
                refused += [(job_id, outcome) for job_id, outcome in outcomes if isinstance(outcome, OJSError)]
                seen += len(part)
                progress.show(seen)
        except KeyboardInterrupt:  # the batch it falls into is undone
            pass
        finally:
            progress.clear()
        return refused, seen


def _audited(verb: Deed, ids: Sequence[uuid.UUID]) -> Sequence[Any]:
    entry = audit.Act(audit.by_command(), verb.action, door="command")

    def act() -> Sequence[Any]:
        outcomes = verb.run(ids)
        done = [pk for pk, outcome in zip(ids, outcomes, strict=True) if not isinstance(outcome, OJSError)]
        audit.name_targets(entry, done, len(ids))
        entry.detail |= {name: value for name, value in verb.detail.items() if value}
        return outcomes

    return audit.perform(act, entry)


def _parts(ids: Sequence[uuid.UUID]) -> Iterator[Sequence[uuid.UUID]]:
    for start in range(0, len(ids), CHUNK):
        yield ids[start : start + CHUNK]
