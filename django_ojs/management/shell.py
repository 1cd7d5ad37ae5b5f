"""What the commands for operators share: how they end, ask and print, and how they choose jobs and act on them.

Exit codes: 0 done, 1 nothing was done (a mistake, no database, or the answer was no) or what was done could not be
shown, 2 wrong arguments, 3 done in part, 130 ended by Ctrl-C.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from django import forms
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper
from django.db import Error
from django.utils.text import Truncator

from django_ojs import audit, jsontext, output
from django_ojs.database import database
from django_ojs.errors import BackendUnavailable, OJSError
from django_ojs.faults import passes, unmigrated
from django_ojs.jobs import bulk
from django_ojs.jobs.bulk import BulkVerb, How
from django_ojs.jobs.filterfields import (
    COMMAND,
    LONGEST,
    DeclaredFilter,
    IdFilterField,
    InstantFilterField,
    StatesFilterField,
    TextFilterField,
    is_given,
)
from django_ojs.jobs.search import Look, typed_instant
from django_ojs.jobs.selection import JobFilter, JobListFilter, names_in, shown_in
from django_ojs.messages import jobs
from django_ojs.models import Job, Lease
from django_ojs.models.job import JobRow
from django_ojs.models.workflow import name_workflows
from django_ojs.output import one_line
from django_ojs.registry import InvalidHandler, registry
from django_ojs.rules import envelope, redaction
from django_ojs.rules.durations import format_instant, parse_duration_ms
from django_ojs.rules.names import is_storable
from django_ojs.states import State, ordered

T = TypeVar("T")

IN_PART, INTERRUPTED = 3, 130
MOST = 1_000_000  #: jobs that one command takes
SPELLED_OUT = 20  #: refusals that are written one by one

#: The columns that lists of jobs show.
_CELLS = ("id", "type", "queue", "state", "attempt", "max_attempts", "uncounted", "enqueued_at", "created_at",
          "finished_at", "errors")  # fmt: skip
#: A job, and why it is left as it is.
Refusal = tuple[uuid.UUID, OJSError]


class _Parser(CommandParser):
    """A parser that refuses `--queue=--`. Python before 3.13 reads that as an option without a value, whose filter
    would select more."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        for arg in map(str, args or ()):
            if arg == "--":
                break
            name, _, value = arg.partition("=")
            if name.startswith("--") and value == "--":
                self.error(f"argument {name}: '--' is no value")
        return super().parse_known_args(args, namespace)


class SteadyCommand(BaseCommand):
    """A command that goes on with what it does where its output cannot be read (`output`)."""

    #: Whether this is a process of its own; False in call_command().
    from_command_line = False

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        parser.__class__ = _Parser
        return parser

    def run_from_argv(self, argv: list[str]) -> None:
        self.from_command_line = True
        output.secure()
        self.stdout, self.stderr = OutputWrapper(sys.stdout), OutputWrapper(sys.stderr)
        self.stderr.style_func = self.style.ERROR
        super().run_from_argv(argv)

    def say(self, line: str) -> None:
        """Write a line to stdout, at once."""
        output.say(self.stdout, line)

    def announce(self, options: dict[str, Any], line: str) -> None:
        """The same, unless the verbosity is 0."""
        if options["verbosity"]:
            self.say(line)


class ShellCommand(SteadyCommand):
    """A command that ends as a shell expects it, with a method `do_NAME` for each of its actions (`ojs_cron sync`).

    It does what it was told though its output cannot be written, and ends with 1 then: without a word after a reader
    who left (`| head`). Ctrl-C ends it with 130. A database that is away or has no tables is one line, not a traceback;
    `--traceback` has it. What a terminal cannot show, or would obey, is escaped as JSON does it, so that JSON
    stays JSON, and `NO_COLOR` is obeyed.
    """

    def __init__(
        self, stdout: Any = None, stderr: Any = None, no_color: bool = False, force_color: bool = False
    ) -> None:  # fmt: skip
        plain = no_color or (bool(os.environ.get("NO_COLOR")) and not force_color)
        super().__init__(stdout, stderr, plain, force_color)

    def run_from_argv(self, argv: list[str]) -> None:
        try:
            super().run_from_argv(argv)
            self.flush()
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except (Error, BackendUnavailable) as error:
            if "--traceback" in argv or not (sentence := _outage(error)):
                raise
            self.stderr.write(sentence)
            sys.exit(1)

    def execute(self, *args: Any, **options: Any) -> Any:
        """Run the command. A refusal (`OJSError`) becomes a CommandError with its sentence."""
        try:
            return super().execute(*args, **options)
        except BackendUnavailable:
            raise
        except OJSError as error:
            raise CommandError(error.message) from error

    def handle(self, *args: Any, **options: Any) -> None:
        getattr(self, f"do_{options['action'].replace('-', '_')}")(options)

    def flush(self) -> None:
        """Write what waits. Raises SystemExit where what was written is lost: to be called where nothing is to be done
        any more but to show more."""
        if (fault := self.unread()) is None:
            return
        if not isinstance(fault, BrokenPipeError):
            self.stderr.write(f"The output could not be written: {fault}")
        sys.exit(1)

    def unread(self) -> Exception | None:
        """Why something that was written to stdout so far is lost; None where nothing is."""
        self.stdout.flush()
        return output.fault_of(self.stdout)

    def write_json(self, value: Any) -> None:
        self.stdout.write(jsontext.printable(jsontext.dumps(value)))

    def write_table(self, headings: Sequence[str], rows: Sequence[Sequence[str]], empty: str) -> None:
        """The rows under their headings, or the sentence `empty` where there are none."""
        if not rows:
            self.stdout.write(empty)
            return
        heading, *lines = table([headings, *rows])
        self.stdout.write("\n".join([self.style.MIGRATE_HEADING(heading), *lines]))

    def warn_without_scheduler(self, what: str) -> bool:
        """Say where no scheduler runs that would do what was left to it; whether that was said."""
        if Lease.is_held("scheduler", database(None)):
            return False
        self.stderr.write(f"No scheduler is running: it {what} when one does.", str)
        return True

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask, unless `yes` was said. Raises CommandError where the answer is no or no terminal is there to ask."""
        if yes:
            return
        try:
            answer = input(f"{question} [y/N] ")
        except EOFError:
            raise CommandError("Nobody is there to answer: say --yes. Nothing was changed.") from None
        except KeyboardInterrupt:
            raise CommandError("\nNothing was changed.") from None
        if self.unread() is not None:
            raise CommandError("The question could not be shown: say --yes. Nothing was changed.")
        if answer.strip().lower() not in ("y", "yes"):
            raise CommandError("Nothing was changed.")


class ProgressLine:
    """How far a long run is: one line on a terminal, rewritten as it goes, and nothing anywhere else."""

    WIDTH = 30

    def __init__(self, stream: OutputWrapper, total: int, *, live: bool = True) -> None:
        self._stream, self._total = stream, total
        self._live = live and output.is_terminal(stream)

    def show(self, done: int) -> None:
        numbers = f" {done:,} of {self._total:,}"
        room = shutil.get_terminal_size().columns - len(numbers) - 3  # the brackets, and a column that stays free
        width = max(0, min(self.WIDTH, room))
        bar = "#" * (width * min(done, self._total) // max(self._total, 1))
        self._write(f"\r[{bar:.<{width}}]{numbers}" if width else f"\r{numbers[1:]}")

    def clear(self) -> None:
        self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        if self._live:
            self._stream.write(text, str, ending="")
            self._stream.flush()


def add_act(parser: CommandParser, counted: str = "only say how many") -> None:
    """The arguments of what cannot be taken back."""
    parser.add_argument("--dry-run", action="store_true", help=counted)
    parser.add_argument("--yes", action="store_true", help="do not ask")


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; the first row is its heading. What is not printable in a cell is replaced."""
    rows = [list(map(one_line, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def positive(text: str) -> int:
    """A whole number above zero."""
    number = jsontext.digits(text)
    if not number or number >= 2**31:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a number above zero and below {2**31:,}")
    return number


def port_argument(text: str) -> int:
    """The port of an address; 0 takes any that is free."""
    number = jsontext.digits(text)
    if number is None or number > 65535:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no port, a number from 0 to 65535")
    return number


def path_argument(text: str) -> Path:
    """The path of a file."""
    if not text.strip():  # a variable of a shell that is not set would name the current folder
        raise argparse.ArgumentTypeError("it is empty: leave it out for none")
    return Path(text)


def name_argument(text: str) -> str:
    """The name of something that the database may hold."""
    if not is_storable(text):
        raise argparse.ArgumentTypeError(f"{text!r} is the name of nothing: a byte of it is no UTF-8")
    return text


def duration_argument(text: str) -> dt.timedelta:
    """A length of time as an argument: `90s`, `15m`, `2h`, `7d`."""
    try:
        return dt.timedelta(milliseconds=parse_duration_ms(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time such as 90s, 15m, 2h or 7d") from error


def member_argument(text: str) -> tuple[str, Any]:
    """`KEY=JSON`."""
    name, found, value = text.partition("=")
    if not found or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=JSON")
    try:
        return name, jsontext.loads(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is not JSON; texts stand in quotes, '{name}=\"text\"'") from None


def refuse_faulty_handlers() -> None:
    """Raise CommandError where a declaration of a handler is wrong, also where `--skip-checks` let it pass."""
    try:
        registry.refuse_faulty()
    except InvalidHandler as error:
        raise CommandError(f"Handlers are declared wrongly:\n{error}") from None


def refuse_unmigrated() -> None:
    """Raise CommandError where the database of the jobs lacks their tables; one that is away may come back."""
    try:
        Job.objects.using(database(None)).filter(pk=uuid.UUID(int=0)).exists()
    except Error as error:
        if sentence := unmigrated(error):
            raise CommandError(sentence) from error


def _outage(error: Exception) -> str:
    """What to say of a database that cannot be used; '' for any other error, which is ours."""
    if sentence := unmigrated(error):
        return sentence
    if not passes(error):
        return ""
    return f"The database does not answer: {' '.join(str(error).split())}"


@dataclasses.dataclass(frozen=True, slots=True)
class JobAction:
    """What a command does to jobs.

    Attributes:
        verb: one of `jobs.bulk`.
        asks, done: `Retry`, `retried`.
        audited: what the audit log calls it.
        override: what a retry changes.
        default: the states of the jobs that it is for where no `--state` is given; None: all that the verb takes.
        noted: what the audit log says beside.
    """

    verb: BulkVerb
    asks: str
    done: str
    audited: str
    override: dict[str, Any] | None = None
    default: Sequence[State] | None = None
    noted: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def states(self) -> Sequence[State]:
        return self.verb.takes if self.default is None else self.default


class Operator(ShellCommand):
    """A command that lists jobs and does something to those that are chosen."""

    #: Whether its jobs are dead letters.
    dead_letters = False

    def add_list(self, parser: CommandParser, *, states: bool = True) -> None:
        """The arguments of a list."""
        add_choice(parser, states=states, act=False)
        parser.add_argument("--limit", type=positive, default=50, metavar="N", help="at most this many (default: 50)")
        parser.add_argument("--json", action="store_true", help="as JSON, an array of envelopes")

    def add_verb(self, parser: CommandParser, *, states: bool = True) -> None:
        """The arguments of what changes jobs."""
        add_choice(parser, states=states)
        add_act(parser)
        parser.add_argument(
            "--background", action="store_true", help="let the scheduler do it; `ojs_bulk` shows how far it is"
        )
        parser.add_argument(
            "--per-minute", type=positive, metavar="N", help="in the background, to at most so many jobs in a minute"
        )

    def write_jobs(
        self, options: dict[str, Any], default: Sequence[State], columns: dict[str, Callable[[JobRow], str]], empty: str
    ) -> None:
        """The chosen jobs as a table with these columns, or as JSON."""
        if options["json"]:
            found = self._rows(options, default)
            name_workflows(found, database(None))
            self.write_json([redaction.job(envelope.render(row)) for row in found])
            return
        rows = self._rows(options, default, _CELLS)
        self.write_table(list(columns), [[cell(row) for cell in columns.values()] for row in rows], empty)

    def _rows(self, options: dict[str, Any], default: Sequence[State], columns: Sequence[str] | None = None) -> Any:
        """The newest of the chosen jobs as rows, at most `limit`."""
        wanted, limit, every = self._wanted(options, default), options["limit"], Job.objects.using(database(None))
        if options["ids"]:
            found: Any = every.filter(wanted.condition(), pk__in=options["ids"]).order_by("-pk")
            look = None
        else:
            found, look = JobListFilter(wanted.values).listed(every, limit + 1)
        rows: list[JobRow] = found[: limit + 1].rows(columns)
        if look is not None and len(rows) <= limit and (reach := reach_of(look)):
            self.stderr.write(reach, str)
        if len(rows) > limit and not options["json"]:
            self.stderr.write(f"The newest {limit}; --limit shows more.", str)
        return rows[:limit]

    def act(self, options: dict[str, Any], action: JobAction) -> None:
        """Do it to the chosen jobs, in batches, after asking; exits with 3 where some were refused.

        Each batch has an entry in the audit log.
        """
        self._check(options, action)
        wanted = None if options["ids"] else self._wanted(options, action.states)
        if _in_background(options):
            assert wanted is not None
            self._later(options, wanted, action)
            return
        ids = list(dict.fromkeys(options["ids"])) if wanted is None else self._found(wanted)
        if options["dry_run"]:
            refused = bulk.refusals(action.verb, ids) if wanted is None else []
            self.stdout.write(f"{jobs(len(ids) - len(refused))} would be {action.done}.")
            if self._write_refusals(refused):
                sys.exit(IN_PART)
            return
        if ids:
            self.confirm(f"{action.asks} {jobs(len(ids))}?", yes=options["yes"])
        # A job that changes while the operator is asked may not fit the filter any more.
        refused, seen = self._run(ids, action, wanted)
        self.stdout.write(f"{jobs(seen - len(refused))} {action.done}.")
        if self._write_refusals(refused):
            left = "1 job was left as it is." if len(refused) == 1 else f"{len(refused)} jobs were left as they are."
            self.stderr.write(left)
        if seen < len(ids):
            self.stderr.write(f"Interrupted before the last {len(ids) - seen}.")
        if refused or seen < len(ids):
            sys.exit(IN_PART)

    def _write_refusals(self, refused: Sequence[Refusal]) -> bool:
        """Say which jobs refused, and why; whether any did."""
        for job_id, error in refused[:SPELLED_OUT]:
            reason = one_line(error)
            self.stderr.write(reason if str(job_id) in reason else f"{job_id}: {reason}")
        return bool(refused)

    def _check(self, options: dict[str, Any], action: JobAction) -> None:
        filtered = any(is_given(options.get(name)) for name in shown_in(COMMAND))
        if sum((bool(options["ids"]), options["everything"], filtered)) != 1:
            raise CommandError("Say which jobs: either their ids, or a filter such as --queue, or --all.")
        if options["ids"] and _in_background(options):
            option = "--background" if options["background"] else "--per-minute"
            raise CommandError(f"{option} takes a filter or --all: jobs that are named are done at once.")
        takes = action.verb.takes
        if wrong := [state for state in options.get("state") or () if state not in takes]:
            raise CommandError(
                f"--state {','.join(wrong)}: only jobs that are {', '.join(takes)} can be {action.done}."
            )

    def _wanted(self, options: dict[str, Any], default: Sequence[State]) -> JobFilter:
        """What the arguments of `add_choice` say, but for ids."""
        names = names_in(COMMAND)
        given = {names[name]: options.get(name) for name in shown_in(COMMAND)}
        given["states"] = given["states"] or ordered(default)
        return JobFilter({**given, "dead_letters": self.dead_letters})

    def _found(self, wanted: JobFilter) -> list[uuid.UUID]:
        """The ids of the jobs that fit, the oldest first."""
        using = database(None)
        if not wanted.searches:
            return list(wanted.jobs(using).order_by("pk").values_list("pk", flat=True)[:MOST])
        return sorted(self._searched(wanted, MOST)[0])[:MOST]

    def _searched(self, wanted: JobFilter, limit: int) -> tuple[Collection[uuid.UUID], Look]:
        ids, look = wanted.searched(database(None), limit)
        if reach := reach_of(look):
            self.stderr.write(f"{reach} Only what was looked at is meant.", str)
        return ids, look

    def _later(self, options: dict[str, Any], wanted: JobFilter, action: JobAction) -> None:
        """Hand it to the scheduler."""
        if wanted.searches:
            ids, look = self._searched(wanted, bulk.MANY)
            number, wanted = len(ids), wanted.bounded(look)
        else:
            number = wanted.jobs(database(None)).count()
        if options["dry_run"]:
            self.stdout.write(f"{jobs(number)} would be {action.done} in the background.")
            return
        if not number:
            self.stdout.write(f"0 jobs {action.done}.")
            return
        self.confirm(f"{action.asks} {jobs(number)} in the background?", yes=options["yes"])
        name = action.verb.name
        row = bulk.start_action(
            name,
            wanted,
            entry(f"job.bulk_{name}"),
            override=action.override,
            per_minute=options["per_minute"],
        )
        self.stdout.write(f"{row.pk}")
        text = f"Bulk action {row.pk}: {jobs(row.expected)} to be {action.done}."
        self.stderr.write(f"{text} `ojs_bulk show {row.pk} --watch` follows it.", str)
        self.warn_without_scheduler("begins")

    def _run(self, ids: Sequence[uuid.UUID], action: JobAction, wanted: JobFilter | None) -> tuple[list[Refusal], int]:
        """What was refused, and how many jobs had their turn before the end or Ctrl-C."""
        refused: list[Refusal] = []
        seen, progress = 0, ProgressLine(self.stderr, len(ids), live=len(ids) > bulk.BATCH)
        using, how = database(None), How(audit.by_command(), override=action.override)

        def fill_entry(act: audit.Act, done: Sequence[uuid.UUID], matched: int) -> None:
            audit.name_targets(act, done, matched)
            act.detail |= {**bulk.noted(wanted, action.override), **action.noted}

        try:
            for part in bulk.split(ids):
                meant = wanted.jobs(using) if wanted else None
                outcomes = bulk.run_batch(
                    action.verb, part, how, entry(action.audited), using, selected=meant, fill_entry=fill_entry
                )
                refused += [(pk, out) for pk, out in zip(part, outcomes, strict=True) if isinstance(out, OJSError)]
                seen += len(part)
                progress.show(seen)
        except KeyboardInterrupt:  # the batch it falls into is undone
            pass
        finally:
            progress.clear()
        return refused, seen


def _in_background(options: dict[str, Any]) -> bool:
    """Whether the scheduler is to do it: it alone keeps to a rate."""
    return bool(options["background"] or options["per_minute"])


def entry(action: str, target: str = "", detail: dict[str, Any] | None = None) -> audit.Act:
    """What the audit log will say of what a command does."""
    return audit.Act(audit.by_command(), action, target, detail or {}, "command")


def last_error(row: JobRow) -> str:
    """The latest error of a row in one short line."""
    errors = jsontext.loads(row["errors"]) if row["errors"] else []
    if not errors or row["state"] == State.COMPLETED:
        return ""
    error = redaction.error(row["type"], errors[-1])
    return Truncator(" ".join(f"{error['type']}: {error['message']}".split())).chars(80)


def add_choice(parser: CommandParser, *, states: bool = True, act: bool = True) -> None:
    """The arguments that select jobs: their ids, and the filters that `jobs.selection` declares for commands."""
    parser.add_argument("ids", nargs="*", type=job_id, metavar="ID", help="these jobs")
    if act:
        parser.add_argument("--all", action="store_true", dest="everything", help="all jobs that it can change")
    names = names_in(COMMAND)
    for name, declared in shown_in(COMMAND).items():
        if not states and names[name] == "states":
            continue
        called = [one for one in names if names[one] == names[name]]
        about = (
            f"{declared.sentence[:1].lower()}{declared.sentence[1:-1]}{', among the newest' if declared.rest else ''}"
        )
        parser.add_argument(
            *(f"--{one.replace('_', '-')}" for one in called), dest=name, type=_reader(declared),
            metavar=declared.metavar, help=about.replace("%", "%%"),
        )  # fmt: skip


def _reader(declared: DeclaredFilter) -> Callable[[str], Any]:
    """Reads the argument of a filter. Raises ArgumentTypeError."""
    found = next((read for kind, read in _READERS.items() if issubclass(declared.field_class, kind)), None)
    if found is not None:
        return found

    def read(text: str) -> Any:
        if not text.strip():  # a variable of a shell that is not set: the filter would select more jobs without it
            raise argparse.ArgumentTypeError("it is empty: leave it out for all")
        try:
            return declared.field_class(required=False).clean(text)
        except ValidationError as error:
            raise argparse.ArgumentTypeError(f"{text!r} {' '.join(error.messages).rstrip('.')}") from error

    return read


def reach_of(look: Look) -> str:
    """How far a search looked; '' where it looked at all."""
    if look.looked is None or look.back_to is None:
        return ""
    reach = f"Looked at the newest {jobs(look.looked)}, back to {format_instant(look.back_to)}"
    return f"{reach}; --until {look.further} looks at those before."


def job_id(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no id such as 01a201d1-1122-710b-befd-b4272ad0d41e") from None


def _text(text: str) -> str:
    if not text.strip() or len(text) > LONGEST or not is_storable(text):
        raise argparse.ArgumentTypeError(f"a text of 1 to {LONGEST} characters is needed")
    return text


def _states(text: str) -> list[State]:
    found = [word.strip() for word in text.split(",")]
    if not set(found) <= set(State):
        raise argparse.ArgumentTypeError(f"{text!r} is not made of {', '.join(State)}")
    return [State(word) for word in dict.fromkeys(found)]


def _time(text: str) -> dt.datetime:
    try:
        found = typed_instant(text)
    except ValueError:
        found = None
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is neither so long ago (2h) nor an instant (2026-01-31T12:00:00Z)")
    return found


#: What reads the values of filters as people write them in a shell: times are in the site's time zone, for example.
_READERS: dict[type[forms.Field], Callable[[str], Any]] = {
    StatesFilterField: _states, TextFilterField: _text, InstantFilterField: _time, IdFilterField: job_id,
}  # fmt: skip
