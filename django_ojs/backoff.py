"""Wait ever longer between the tries of what fails, and log a condition that lasts without a line for each try."""

from __future__ import annotations

import enum
import logging
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django_ojs.faults import DatabaseFault, fault_of, is_known, passes
from django_ojs.guard import SafeLogger, described, get_logger, words_of

_OWN = f"{Path(__file__).parent}{os.sep}"
REMIND_EVERY = 60.0  #: seconds between two lines about the same condition
DOUBLINGS = 32  #: the exponent grows no further: a condition may last for weeks


#: What concerns all that is asked of the database: who meets it first says so, and the others have nothing to add.
_OF_ALL = frozenset({DatabaseFault.AWAY, DatabaseFault.READ_ONLY, DatabaseFault.FULL, DatabaseFault.BROKEN})
#: Here it matters what was asked.
_OF_PLACE = frozenset({DatabaseFault.SLOW, DatabaseFault.BROKEN})
#: When the log of this process last had a line about such a fault, by who met it.
_said: dict[tuple[str, DatabaseFault], float] = {}
_saying = threading.Lock()


class _Telling(enum.Enum):
    """How the log tells of an error."""

    TRACEBACK = enum.auto()
    WORDS = enum.auto()
    NOTHING = enum.auto()


def _telling_of(error: BaseException | None, among: str, now: float) -> _Telling:
    """How the log is to tell of a failure that is news to one `Backoff` of those `among` which it is. Many meet the
    same error of the database at once, and a line with a traceback of each would bury all else."""
    fault = None if error is None or not passes(error) else fault_of(error)
    if fault is None or not among:
        return _Telling.TRACEBACK
    if fault not in _OF_ALL:
        return _Telling.WORDS
    with _saying:
        if now - _said.get((among, fault), float("-inf")) < REMIND_EVERY:
            return _Telling.NOTHING
        _said[among, fault] = now
    return _Telling.WORDS if error is not None and is_known(error) else _Telling.TRACEBACK


class Backoff:
    """The pauses between the tries of one thing, and its lines in the log. For one thread at a time.

    Each failure doubles the pause, from `first` to `longest` seconds. A pause is cut by up to a half at random, so that
    processes that failed together do not try again together. The pauses are short again only when the thing has worked
    for `longest` seconds: something that works for a moment between two failures has not recovered.

    The log has the first failure, with its traceback where there is an exception, then a line a minute, and a line
    when all is well again.

    Args:
        what: the subject of the lines: `The scheduler's duty 'cron'`.
        logger: where the lines go; None: the logger of this module.
        level: of the failures.
        brief: the lines say what went wrong in the words of the exception, without a traceback, as for a server that
            does not answer.
        tell: gets the lines, which are brief, instead of a logger: a command shows them.
        tries: whether the caller tries again after the pause; then the lines say when.
        among: the name of many that ask the database at the same time, and meet the same errors. Those that pass are
            told in words, but for the first that the table of faults does not know; what concerns all that is asked
            one of them tells once a minute for all.
    """

    def __init__(
        self, what: str, first: float, longest: float, *, logger: SafeLogger | None = None, level: int = logging.ERROR,
        brief: bool = False, tell: Callable[[str], object] | None = None, tries: bool = True,
        among: str = "",
    ) -> None:  # fmt: skip
        self.what, self.first, self.longest = what, first, longest
        self._logger, self._level = logger or get_logger(__name__), level
        self._brief, self._tell, self._tries = brief or tell is not None, tell, tries
        self._among = among
        self.failures = 0  #: since all was well
        self._since = self._told_at = 0.0
        self._well_since: float | None = None
        #: kinds of errors that the log has with their tracebacks
        self._told: set[tuple[type[BaseException], DatabaseFault | None] | None] = set()

    @property
    def lasts(self) -> float:
        """For how many seconds the thing has failed; 0.0 where it is well."""
        return time.monotonic() - self._since if self.failures else 0.0

    def failed(self, how: str = "failed", *, quiet: float = 0.0, error: BaseException | None = None) -> float:
        """Note a failure, log it if that is due, and return how many seconds to wait before the next try.

        The failure is `error`, or the exception that is being handled.

        Nothing is logged of what has not lasted for `quiet` seconds yet: at once only where it is worth a line at once.
        """
        now = time.monotonic()
        self._recover(now)
        if not self.failures:
            self._since = now
        self.failures += 1
        self._well_since = None
        longest = min(self.first * 2.0 ** min(self.failures - 1, DOUBLINGS), self.longest)
        pause = longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads the load
        error = error or sys.exc_info()[1]
        kind = None if error is None else (type(error), fault_of(error))
        if now - self._since < quiet:
            return pause
        upcoming = f"; the next try is in {pause:.2g} s" if self._tries else ""
        if kind not in self._told and len(self._told) < 10:
            telling = _telling_of(error, self._among, now)
            self._told_at = now
            if telling is not _Telling.NOTHING:
                self._told.add(kind)
                brief = self._brief or telling is _Telling.WORDS
                told = None if error is None or brief else (type(error), error, error.__traceback__)
                words = self._words(error) if brief else ""
                self._log(self._level, "%s %s%s%s.", self.what, how, words, upcoming, exc_info=told)
        elif now - self._told_at >= REMIND_EVERY:
            self._told_at = now
            known = error is None or self._brief or (bool(self._among) and passes(error))
            cause = self._words(error) if known or error is None else f" ({described(error)})"
            self._log(
                self._level, "%s %s again%s, %d times in %.0f s%s.",
                self.what, how, cause, self.failures, now - self._since, upcoming,
            )  # fmt: skip
        return pause

    def worked(self) -> None:
        """Note that a try went well, or that the thing still works."""
        if not self.failures:
            return
        now = time.monotonic()
        if self._well_since is None:
            self._well_since = now
        self._recover(now)

    def done(self) -> None:
        """Note that the thing is done, and is not tried any more."""
        if self.failures:
            self._end(time.monotonic(), "%s went well at last; it had failed %d times in %.0f s.")

    def _recover(self, now: float) -> None:
        if self._well_since is None or now - self._well_since < self.longest:
            return
        since = f"since {now - self._well_since:.0f} s"
        self._end(self._well_since, f"%s works again, {since}; it had failed %d times in %.0f s.")

    def _end(self, at: float, line: str) -> None:
        if self._told:
            self._log(logging.WARNING, line, self.what, self.failures, at - self._since)
        self.failures, self._well_since = 0, None
        self._told.clear()

    def _words(self, error: BaseException | None) -> str:
        if error is None:
            return ""
        asked = _own_place(error) if self._tell is None and fault_of(error) in _OF_PLACE else ""
        return f" ({words_of(error)}{f', at {asked}' if asked else ''})"

    def _log(self, level: int, line: str, *args: object, exc_info: Any = None) -> None:
        if self._tell is not None:
            self._tell(line % args)
        else:
            self._logger.log(level, line, *args, exc_info=exc_info, stacklevel=3)


class SharedBackoff:
    """Logs a failure that many threads meet as `Backoff` does, for threads that do not try again: their callers do."""

    def __init__(self, what: str, **how: Any) -> None:
        self._backoff = Backoff(what, 1.0, REMIND_EVERY, tries=False, among=what, **how)
        _shared.append(self._backoff)
        self._lock = threading.Lock()

    def failed(self, how: str, error: BaseException) -> None:
        """Note a failure, and log it if that is due."""
        if self._lock.acquire(timeout=1.0):  # who had it when a process was forked gives it back in the other one only
            try:
                self._backoff.failed(how, error=error)
            finally:
                self._lock.release()

    def worked(self) -> None:
        """Note that it went well for one of them."""
        if self._backoff.failures and self._lock.acquire(timeout=1.0):
            try:
                self._backoff.worked()
            finally:
                self._lock.release()


def _own_place(error: BaseException) -> str:
    """Where this package asked for what went wrong."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename.startswith(_OWN)]
    return f"{frames[-1].f_code.co_filename.removeprefix(_OWN)}:{frames[-1].f_lineno}" if frames else ""


#: Those of `SharedBackoff`, which last as long as the process.
_shared: list[Backoff] = []


def forget() -> None:
    """As if nothing had failed and the log had nothing yet, as tests begin."""
    _said.clear()
    for one in _shared:
        one.failures, one._well_since = 0, None
        one._told.clear()


def _forget_lock() -> None:
    global _saying
    _saying = threading.Lock()


if hasattr(os, "register_at_fork"):  # a thread of the parent's may have had it
    os.register_at_fork(after_in_child=_forget_lock)
