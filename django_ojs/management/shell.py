"""What all commands for operators share: how they end, how they ask, how they show a long run and a table.

Exit codes: 0 done, 1 nothing was done (a mistake, no database, or the answer was no), 2 wrong arguments, 3 done in
part, 130 ended by Ctrl-C.
"""

from __future__ import annotations

import argparse
import codecs
import datetime as dt
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper
from django.db import DatabaseError, InterfaceError, OperationalError

from django_ojs import jsontext
from django_ojs.database import database, unmigrated
from django_ojs.errors import BackendUnavailable
from django_ojs.models import Job
from django_ojs.rules.durations import parse_duration_ms

IN_PART, INTERRUPTED = 3, 130
#: What a database says that cannot be used, or that has no tables.
ERRORS = (DatabaseError, InterfaceError, BackendUnavailable)


class ShellCommand(BaseCommand):
    """A command that ends as a shell expects it.

    A reader who leaves (`| head`) ends it without a word, and Ctrl-C with 130. A database that is away or has no tables
    is one line, not a traceback; `--traceback` has it. What a terminal cannot show is escaped as JSON does
    it, so that JSON stays JSON, and `NO_COLOR` is obeyed.
    """

    def __init__(
        self, stdout: Any = None, stderr: Any = None, no_color: bool = False, force_color: bool = False
    ) -> None:  # fmt: skip
        plain = no_color or (bool(os.environ.get("NO_COLOR")) and not force_color)
        super().__init__(stdout, stderr, plain, force_color)

    def run_from_argv(self, argv: list[str]) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors=_ESCAPED)  # type: ignore[union-attr]
        try:
            super().run_from_argv(argv)
            sys.stdout.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())  # what is buffered must not fail once more at the exit
            sys.exit(1)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except ERRORS as error:
            if "--traceback" in argv or not (told := _outage(error)):
                raise
            self.stderr.write(told)
            sys.exit(1)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask, unless `yes` was said. Raises CommandError where the answer is no or nobody answers."""
        if yes:
            return
        try:
            answer = input(f"{question} [y/N] ")
        except EOFError:
            raise CommandError("Nobody is there to answer: say --yes. Nothing was changed.") from None
        except KeyboardInterrupt:
            raise CommandError("\nNothing was changed.") from None
        if answer.strip().lower() not in ("y", "yes"):
            raise CommandError("Nothing was changed.")


class Progress:
    """How far a long run is: one line on a terminal, rewritten as it goes, and nothing anywhere else."""

    WIDTH = 30

    def __init__(self, stream: OutputWrapper, total: int, *, live: bool = True) -> None:
        self._stream, self._total = stream, total
        self._live = live and stream.isatty()

    def show(self, done: int) -> None:
        told = f" {done:,} of {self._total:,}"
        room = shutil.get_terminal_size().columns - len(told) - 3  # the brackets, and a column that stays free
        width = max(0, min(self.WIDTH, room))
        bar = "#" * (width * min(done, self._total) // max(self._total, 1))
        self._write(f"\r[{bar:.<{width}}]{told}" if width else f"\r{told[1:]}")

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
    """The lines of a table; the first row is its heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def positive(text: str) -> int:
    """A whole number above zero."""
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above zero")
    return int(text)


def duration(text: str) -> dt.timedelta:
    """A length of time as an argument: `90s`, `15m`, `2h`, `7d`."""
    try:
        return dt.timedelta(milliseconds=parse_duration_ms(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time such as 90s, 15m, 2h or 7d") from error


def member(text: str) -> tuple[str, Any]:
    """`KEY=JSON`."""
    name, found, value = text.partition("=")
    if not found or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=JSON")
    try:
        return name, jsontext.loads(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is not JSON; texts stand in quotes, '{name}=\"text\"'") from None


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """What codecs write for what they cannot: UTF-16 units, as in JSON."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4)), error.end


_ESCAPED = "django_ojs.escaped"
codecs.register_error(_ESCAPED, _escaped)


def refuse_unmigrated() -> None:
    """Raise CommandError where the database of the jobs lacks their tables; one that is away may come back."""
    try:
        Job.objects.using(database(None)).exists()
    except ERRORS as error:
        if sentence := unmigrated(error):
            raise CommandError(sentence) from error


def _outage(error: Exception) -> str:
    """What to say of a database that cannot be used; '' for any other error, which is ours."""
    if sentence := unmigrated(error):
        return sentence
    if not isinstance(error, (OperationalError, InterfaceError, BackendUnavailable)):
        return ""
    return f"The database does not answer: {' '.join(str(error).split())}"
