"""Write to stdout and stderr for a caller that goes on if the stream is closed, full or broken: nothing is raised.

A stream may be missing (`2>&-`), be closed by a handler that becomes a daemon, be full, or lead to a reader who has
left. What the process does goes on: commands, the worker, its supervisor, the scheduler and the servers write through
this module only. A process of our own calls `secure()` first: then whatever writes to `sys.stdout` or `sys.stderr`,
`logging` and handlers included, is as safe.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import sys
import traceback
from pathlib import Path
from typing import Any, TextIO

#: What writing raises: to a stream that is full, broken or closed, to none at all.
FAULTS = (OSError, ValueError, AttributeError)


def one_line(text: object) -> str:
    """One line of printable characters: what a job or a worker says must not steer the terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text))


def lines(text: str) -> str:
    """A text of several lines as `one_line` shows each of them."""
    return text if text.isprintable() else "\n".join(map(one_line, text.expandtabs().split("\n")))


def say(stream: Any, line: str) -> None:
    """Write a line and flush it; `stream` is whatever has `write` and `flush`, or None."""
    with contextlib.suppress(*FAULTS):
        stream.write(f"{line}\n")
        stream.flush()


def say_error(error: BaseException) -> None:
    """Write an exception with its traceback to stderr."""
    say(sys.stderr, "".join(traceback.format_exception(error)).rstrip("\n"))


def flush() -> None:
    """Write what waits in stdout and stderr."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(*FAULTS):
            stream.flush()


def is_terminal(stream: Any) -> bool:
    """Whether a person reads it."""
    with contextlib.suppress(*FAULTS):
        return bool(stream.isatty())
    return False


def fault_of(stream: Any) -> Exception | None:
    """Why the first write to a stream failed that `secure` put in place; None where none did."""
    with contextlib.suppress(AttributeError):
        fault: Exception | None = stream.fault
        return fault
    return None


class OutputStream:
    """stdout or stderr of this process, whose `write` and `flush` never raise; `fault` is why the first one failed.

    A stream without a reader, and one that is closed, leads nowhere from then on. One that is full loses what does not
    fit, and may have room again. What the stream's encoding does not have is escaped as in JSON.
    """

    def __init__(self, inner: TextIO, *, missing: bool = False) -> None:
        self._inner, self._missing = inner, missing
        self.fault: Exception | None = None

    def write(self, text: str) -> int:
        if self._missing:
            self.fault = OSError(errno.EBADF, os.strerror(errno.EBADF))
        try:
            return self._inner.write(text)
        except UnicodeEncodeError:
            return self.write(text.encode("ascii", _ESCAPED).decode())
        except FAULTS as error:
            self._lose(error)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._inner.flush()
        except FAULTS as error:
            self._lose(error)

    def isatty(self) -> bool:
        return is_terminal(self._inner)

    def _lose(self, error: Exception) -> None:
        self.fault = self.fault or error
        if isinstance(error, BrokenPipeError):  # also for what waits in the buffer, and for processes started from here
            with contextlib.suppress(*FAULTS), Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), self._inner.fileno())
        elif not isinstance(error, OSError) or error.errno == errno.EBADF:
            self._inner = _Nowhere()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Nowhere(io.StringIO):
    def write(self, text: str) -> int:
        return len(text)


def secure() -> None:
    """Let nothing that this process writes to stdout or stderr raise, whoever writes it.

    For a process of our own, before it opens anything that lasts: a descriptor below 3 that is closed would otherwise
    be given to the next connection, and what is written for people would go to the database.
    """
    missing = [number for number in range(3) if not _is_open(number)]
    for number in missing:
        nowhere = os.open(os.devnull, os.O_RDWR)
        if nowhere != number:
            os.dup2(nowhere, number)
            os.close(nowhere)
    if sys.stdin is None:
        sys.stdin = open(0)  # noqa: SIM115
    sys.stdout, sys.stderr = _secured(sys.stdout, 1), _secured(sys.stderr, 2)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _secured(stream: Any, number: int) -> Any:
    if isinstance(stream, OutputStream):
        return stream
    if stream is None:
        return OutputStream(open(number, "w", errors=_ESCAPED, closefd=False), missing=True)
    with contextlib.suppress(*FAULTS):
        stream.reconfigure(errors=_ESCAPED)
    return OutputStream(stream)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """What codecs write for what they cannot: UTF-16 units, as in JSON."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4)), error.end


_ESCAPED = "django_ojs.escaped"
codecs.register_error(_ESCAPED, _escaped)
