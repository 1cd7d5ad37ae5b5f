"""What the commands for operators share: tables, the choice of jobs, the question before, the account after.

Exit codes: 0 done, 1 nothing was done (a mistake, or the answer was no), 2 wrong arguments, 3 done in part.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper
from django.db.models import Q

from django_ojs import clock, jsontext
from django_ojs.errors import OJSError
from django_ojs.models import Job
from django_ojs.operations import audit
from django_ojs.operations.bulk import Filter, matching
from django_ojs.operations.common import database
from django_ojs.operations.deadletters import telling
from django_ojs.policies import durations
from django_ojs.states import State, ordered

IN_PART = 3
CHUNK = 500  #: jobs that one operation, and one transaction, gets
MOST = 1_000_000  #: jobs that one command takes
SPELLED_OUT = 20  #: refusals that are told one by one

#: The dead letter queue, in words that find its index.
DEAD_LETTER = Q(state=State.DISCARDED, dead_letter=True, finished_at__isnull=False)

#: Takes ids, returns an outcome for each, an `OJSError` where it is refused.
Run = Callable[[Sequence[uuid.UUID]], Sequence[Any]]


class ShellCommand(BaseCommand):
    """A command whose reader may leave: after `| head` it ends without a word."""

    def run_from_argv(self, argv: list[str]) -> None:
        try:
            super().run_from_argv(argv)
            sys.stdout.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())  # what is buffered must not fail once more at the exit
            sys.exit(1)


class Progress:
    """How far a long run is: one line on a terminal, rewritten as it goes, and nothing anywhere else."""

    WIDTH = 30

    def __init__(self, stream: OutputWrapper, total: int) -> None:
        self._stream, self._total = stream, total
        self._live = total > CHUNK and stream.isatty()

    def show(self, done: int) -> None:
        bar = "#" * (self.WIDTH * done // self._total)
        self._write(f"\r[{bar:.<{self.WIDTH}}] {done:,} of {self._total:,}")

    def clear(self) -> None:
        self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        if self._live:
            self._stream.write(text, str, ending="")
            self._stream.flush()


def jobs(number: int) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number} job" if number == 1 else f"{number} jobs"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; the first row is its heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def add_choice(parser: CommandParser, *, states: bool = True, ids: bool = True) -> None:
    """The arguments that say which jobs are meant."""
    if ids:
        parser.add_argument("ids", nargs="*", type=_id, metavar="ID", help="these jobs, whatever else is said")
        parser.add_argument("--all", action="store_true", dest="everything", help="all jobs that may be meant")
    if states:
        parser.add_argument("--state", type=_states, metavar="STATE[,STATE]", help="only jobs in these states")
    parser.add_argument(
        "--type", default="", metavar="TYPE", help="only this job type; `email.*` for all that begin so"
    )
    parser.add_argument("--queue", default="", metavar="NAME", help="only this queue")
    parser.add_argument("--worker", default="", metavar="NAME", help="only jobs that this worker has, or had last")
    parser.add_argument("--workflow", type=_id, metavar="ID", help="only members of this workflow")
    when = "an instant such as 2026-01-31T12:00:00Z, or so long ago: 90m, 2h, 7d"
    parser.add_argument("--before", type=_time, metavar="WHEN", help=f"only jobs enqueued before: {when}")
    parser.add_argument("--after", type=_time, metavar="WHEN", help="only jobs enqueued after")
    parser.add_argument("--error", default="", metavar="TEXT", help="only dead letters in whose errors this text is")


def add_act(parser: CommandParser) -> None:
    """The arguments of what changes jobs."""
    parser.add_argument("--dry-run", action="store_true", help="only say how many")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def chosen(options: dict[str, Any], default: Sequence[State]) -> tuple[Filter, Q]:
    """The filter that the arguments of `add_choice` make, and what it cannot say."""
    named: str = options["type"]
    begins = named.endswith("*")
    found = Filter(
        states=options.get("state") or ordered(default), type="" if begins else named, queue=options["queue"],
        enqueued_before=options["before"], enqueued_after=options["after"],
    )  # fmt: skip
    more = Q(type__startswith=named[:-1]) if begins else Q()
    if options["worker"]:
        more &= Q(worker_id=options["worker"])
    if options["workflow"]:
        more &= Q(workflow_id=options["workflow"])
    if options["error"]:
        more &= DEAD_LETTER & telling(options["error"])
    return found, more


class Operator(ShellCommand):
    """A command that lists jobs and does something to those that are chosen."""

    #: What its jobs have in common, such as being dead letters.
    every = Q()

    def rows(self, options: dict[str, Any], default: Sequence[State], columns: Sequence[str] | None = None) -> Any:
        """The newest of the chosen jobs as rows, at most `limit`."""
        wanted, more = chosen(options, default)
        found = Job.objects.using(database(None)).filter(wanted.condition() & more & self.every)
        rows = found.order_by("-pk")[: options["limit"] + 1].rows(columns)
        if len(rows) > options["limit"] and not options["json"]:
            self.stderr.write(f"The newest {options['limit']}; --limit shows more.", str)
        return rows[: options["limit"]]

    def act(
        self, options: dict[str, Any], default: Sequence[State], run: Run, verb: str, done: str, action: str,
        **detail: Any,
    ) -> None:  # fmt: skip
        """Do it to the chosen jobs, in batches, after asking; exits with 3 where some were refused. Each batch has an
        entry with this `action` in the audit log, and with those of `detail` that say anything."""
        ids = self._ids(options, default)
        if options["dry_run"]:
            self.stdout.write(f"{jobs(len(ids))} would be {done}.")
            return
        if ids and not options["yes"]:
            self._ask(f"{verb} {jobs(len(ids))}?")
        refused, seen = self._run(ids, lambda part: _audited(run, part, action, detail))
        self.stdout.write(f"{jobs(seen - len(refused))} {done}.")
        for error in refused[:SPELLED_OUT]:
            self.stderr.write(str(error))
        if refused:
            left = "1 job was left as it is." if len(refused) == 1 else f"{len(refused)} jobs were left as they are."
            self.stderr.write(left)
        if seen < len(ids):
            self.stderr.write(f"Interrupted before the last {len(ids) - seen}.")
        if refused or seen < len(ids):
            sys.exit(IN_PART)

    def _run(self, ids: Sequence[uuid.UUID], run: Run) -> tuple[list[OJSError], int]:
        """What was refused, and how many jobs had their turn before the end or Ctrl-C."""
        refused: list[OJSError] = []
        seen, progress = 0, Progress(self.stderr, len(ids))
        try:
            for part in _parts(ids):
                refused += [outcome for outcome in run(part) if isinstance(outcome, OJSError)]
                seen += len(part)
                progress.show(seen)
        except KeyboardInterrupt:  # the batch it falls into is undone
            pass
        finally:
            progress.clear()
        return refused, seen

    def _ids(self, options: dict[str, Any], default: Sequence[State]) -> list[uuid.UUID]:
        filters = [options.get(name) for name in _FILTERS]
        if sum((bool(options["ids"]), options["everything"], any(filters))) != 1:
            raise CommandError("Say which jobs: either their ids, or a filter such as --queue, or --all.")
        if options["ids"]:
            return list(dict.fromkeys(options["ids"]))
        wanted, more = chosen(options, default)
        return matching(wanted, more & self.every, MOST)

    def _ask(self, question: str) -> None:
        try:
            answer = input(f"{question} [y/N] ")
        except EOFError:
            raise CommandError("Nobody is there to answer: say --yes. Nothing was changed.") from None
        except KeyboardInterrupt:
            raise CommandError("\nNothing was changed.") from None
        if answer.strip().lower() not in ("y", "yes"):
            raise CommandError("Nothing was changed.")


#: The options of `add_choice` that narrow down.
_FILTERS = ("state", "type", "queue", "worker", "workflow", "before", "after", "error")


def _audited(run: Run, ids: Sequence[uuid.UUID], action: str, detail: dict[str, Any]) -> Sequence[Any]:
    entry = audit.Act(audit.by_command(), action, door="command")

    def act() -> Sequence[Any]:
        outcomes = run(ids)
        done = [pk for pk, outcome in zip(ids, outcomes, strict=True) if not isinstance(outcome, OJSError)]
        audit.name_targets(entry, done, len(ids))
        entry.detail |= {name: value for name, value in detail.items() if value}
        return outcomes

    return audit.perform(act, entry)


def _parts(ids: Sequence[uuid.UUID]) -> Iterator[Sequence[uuid.UUID]]:
    for start in range(0, len(ids), CHUNK):
        yield ids[start : start + CHUNK]


def _id(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no id such as 01a201d1-1122-710b-befd-b4272ad0d41e") from None


def _states(text: str) -> list[State]:
    found = [word.strip() for word in text.split(",")]
    if not set(found) <= set(State):
        raise argparse.ArgumentTypeError(f"{text!r} is not made of {', '.join(State)}")
    return [State(word) for word in dict.fromkeys(found)]


def _time(text: str) -> dt.datetime:
    try:
        return clock.now() - dt.timedelta(milliseconds=durations.parse_duration_ms(text))
    except ValueError:
        pass
    try:
        return durations.parse_instant(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is neither so long ago nor an instant: it {error}") from None


def positive(text: str) -> int:
    """A whole number above zero."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above zero")
    return int(text)


def member(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=JSON")
    try:
        return name, jsontext.loads(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is not JSON; texts stand in quotes, '{name}=\"text\"'") from None
