"""What `ojs_jobs` and `ojs_dead_letter` share: the arguments that choose jobs, listing them, and acting on them at once
or in the background."""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import sys
import uuid
from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_ojs import audit, clock
from django_ojs.database import database
from django_ojs.errors import OJSError
from django_ojs.jobs import bulk, bulkactions
from django_ojs.jobs.bulk import BulkVerb, How
from django_ojs.jobs.search import Look, moment
from django_ojs.jobs.selection import LONGEST, JobFilter
from django_ojs.management.shell import IN_PART, Progress, ShellCommand, add_act, positive
from django_ojs.messages import jobs
from django_ojs.models import Job, Lease
from django_ojs.models.job import JobRow
from django_ojs.rules.durations import format_instant
from django_ojs.states import State, ordered

MOST = 1_000_000  #: jobs that one command takes
SPELLED_OUT = 20  #: refusals that are told one by one

#: The members of a `JobFilter` by the arguments that narrow down, but for the states.
_MEMBERS = {
    "type": "type", "queue": "queue", "tag": "tag", "search": "text", "error": "error", "worker": "worker",
    "since": "since", "until": "until", "before": "enqueued_before", "after": "enqueued_after",
    "workflow": "workflow",
}  # fmt: skip
#: The arguments that narrow down.
FILTERS = ("state", *_MEMBERS)
#: A job, and why it is left as it is.
Refusal = tuple[uuid.UUID, OJSError]


@dataclasses.dataclass(frozen=True, slots=True)
class Deed:
    """What is done to jobs.

    Attributes:
        verb: one of `jobs.bulk`.
        asks, done: `Retry`, `retried`.
        action: in the audit log.
        override: what a retry changes.
    """

    verb: BulkVerb
    asks: str
    done: str
    action: str
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
            if len(ids) <= limit and (reach := reach_of(look)):
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
            refused = bulk.refusals(verb.verb, ids) if options["ids"] else []
            self.stdout.write(f"{jobs(len(ids) - len(refused))} would be {verb.done}.")
            if self._tell(refused):
                sys.exit(IN_PART)
            return
        if ids:
            self.confirm(f"{verb.asks} {jobs(len(ids))}?", yes=options["yes"])
        # A job that changes while the operator is asked may not fit the filter any more.
        refused, seen = self._run(ids, verb, None if options["ids"] else self._wanted(options, default))
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
        takes = verb.verb.takes
        if wrong := [state for state in options.get("state") or () if state not in takes]:
            raise CommandError(f"--state {','.join(wrong)}: only jobs that are {', '.join(takes)} can be {verb.done}.")

    def _wanted(self, options: dict[str, Any], default: Sequence[State]) -> JobFilter:
        return chosen(options, default, dead_letters=self.dead_letters)

    def _ids(self, options: dict[str, Any], default: Sequence[State]) -> list[uuid.UUID]:
        if options["ids"]:
            return list(dict.fromkeys(options["ids"]))
        wanted, using = self._wanted(options, default), database(None)
        if not wanted.searches:
            return list(wanted.jobs(using).order_by("pk").values_list("pk", flat=True)[:MOST])
        ids, look = wanted.searched(using, MOST)
        if reach := reach_of(look):
            self.stderr.write(f"{reach} Only what was looked at is meant.", str)
        return sorted(ids)[:MOST]

    def _later(self, options: dict[str, Any], default: Sequence[State], verb: Deed) -> None:
        """Hand it to the scheduler."""
        wanted, using = self._wanted(options, default), database(None)
        if wanted.searches:
            ids, look = wanted.searched(using, bulkactions.MANY)
            number, wanted = len(ids), wanted.bounded(look)
            if reach := reach_of(look):
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
        entry = audit.Act(audit.by_command(), f"job.bulk_{verb.verb.name}", door="command")
        try:
            action = bulkactions.start(verb.verb.name, wanted, entry, override=verb.override)
        except OJSError as error:
            raise CommandError(error.message) from error
        self.stdout.write(f"{action.pk}")
        follow = (
            f"Bulk action {action.pk}: {jobs(action.expected)} to be {verb.done}. `ojs_bulk show {action.pk} --watch`"
        )
        self.stderr.write(f"{follow} follows it.", str)
        if not Lease.objects.using(using).filter(name="scheduler", expires_at__gt=clock.now(using)).exists():
            self.stderr.write("No scheduler is running: it begins when one does.", str)

    def _run(self, ids: Sequence[uuid.UUID], verb: Deed, wanted: JobFilter | None) -> tuple[list[Refusal], int]:
        """What was refused, and how many jobs had their turn before the end or Ctrl-C."""
        refused: list[Refusal] = []
        seen, progress = 0, Progress(self.stderr, len(ids), live=len(ids) > bulk.BATCH)
        using, how = database(None), How(audit.by_command(), override=verb.override)

        def note(entry: audit.Act, done: Sequence[uuid.UUID], matched: int) -> None:
            audit.name_targets(entry, done, matched)
            entry.detail |= {"override": sorted(verb.override)} if verb.override else {}

        try:
            for part in bulk.split(ids):
                entry = audit.Act(audit.by_command(), verb.action, door="command")
                meant = wanted.jobs(using) if wanted else None
                outcomes = bulk.run_batch(verb.verb, part, how, entry, using, meant=meant, note=note)
                refused += [(pk, out) for pk, out in zip(part, outcomes, strict=True) if isinstance(out, OJSError)]
                seen += len(part)
                progress.show(seen)
        except KeyboardInterrupt:  # the batch it falls into is undone
            pass
        finally:
            progress.clear()
        return refused, seen


def add_choice(parser: CommandParser, *, states: bool = True, act: bool = True) -> None:
    """The arguments that say which jobs are meant: the filters of the admin's list, and those of enqueueing."""
    parser.add_argument("ids", nargs="*", type=job_id, metavar="ID", help="these jobs")
    if act:
        parser.add_argument("--all", action="store_true", dest="everything", help="all jobs that may be meant")
    if states:
        parser.add_argument("--state", type=_states, metavar="STATE[,STATE]", help="only jobs in these states")

    def text(name: str, metavar: str, about: str) -> None:
        parser.add_argument(name, type=_text, metavar=metavar, help=about)

    text("--type", "TYPE", "only this job type; `email.*` for all that begin so")
    text("--queue", "NAME", "only this queue")
    text("--tag", "TAG", "only jobs with this tag, among the newest")
    text("--search", "TEXT", "only jobs with this text in their arguments or meta, among the newest")
    when = "an instant such as 2026-01-31T12:00:00Z or 2026-01-31, or so long ago: 90m, 2h, 7d"
    for name, about in (
        ("--since", f"only jobs made since then, or ended since then if only ended ones are meant: {when}"),
        ("--until", "only jobs made, or ended, before then"), ("--before", "only jobs enqueued before then"),
        ("--after", "only jobs enqueued after then"),
    ):  # fmt: skip
        parser.add_argument(name, type=_time, metavar="WHEN", help=about)
    text("--error", "TEXT", "only jobs in whose errors this text is")
    text("--worker", "NAME", "only jobs that this worker has, or had last")
    parser.add_argument("--workflow", type=job_id, metavar="ID", help="only members of this workflow")


def chosen(options: dict[str, Any], default: Sequence[State], *, dead_letters: bool = False) -> JobFilter:
    """What the arguments of `add_choice` mean, but for ids."""
    given = {member: options[name] for name, member in _MEMBERS.items()}
    return JobFilter({"states": options.get("state") or ordered(default), "dead_letters": dead_letters, **given})


def reach_of(look: Look) -> str:
    """How far a search looked; '' where it looked at all."""
    if look.looked is None or look.back_to is None:
        return ""
    reach = f"Looked at the newest {look.looked:,} jobs, back to {format_instant(look.back_to)}"
    return f"{reach}; --until {look.further} looks at those before."


def job_id(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no id such as 01a201d1-1122-710b-befd-b4272ad0d41e") from None


def _text(text: str) -> str:
    if not text.strip() or "\0" in text or len(text) > LONGEST:
        raise argparse.ArgumentTypeError(f"a text of 1 to {LONGEST} characters is needed")
    return text


def _states(text: str) -> list[State]:
    found = [word.strip() for word in text.split(",")]
    if not set(found) <= set(State):
        raise argparse.ArgumentTypeError(f"{text!r} is not made of {', '.join(State)}")
    return [State(word) for word in dict.fromkeys(found)]


def _time(text: str) -> dt.datetime:
    try:
        found = moment(text)
    except ValueError:
        found = None
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is neither so long ago (2h) nor an instant (2026-01-31T12:00:00Z)")
    return found
