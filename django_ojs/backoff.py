"""Wait ever longer between the tries of what fails, and log a condition that lasts without a line for each try."""

from __future__ import annotations

import logging
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from django_ojs.guard import SafeLogger, described, get_logger

REMIND_EVERY = 60.0  #: seconds between two lines about the same condition
DOUBLINGS = 32  #: the exponent grows no further: a condition may last for weeks


class Backoff:
    """The pauses between the tries of one thing, and its lines in the log. For one thread at a time.

    Each failure doubles the pause, from `first` to `longest` seconds. A pause is cut by up to a half at random, so that
    processes that failed together do not try again together. The pauses are short again only when the thing has worked
    for `longest` seconds: something that works for a moment between two failures has not recovered.

    The log has the first failure, with its traceback inside an `except` block, then a line a minute, and a line when
    all is well again.

    Args:
        what: the subject of the lines: `The scheduler's duty 'cron'`.
        logger: where the lines go; None: the logger of this module.
        level: of the failures.
        brief: the lines say what went wrong in the words of the exception, without a traceback, as for a server that
            does not answer.
        tell: gets the lines, which are brief, instead of a logger: a command shows them.
    """

    def __init__(
        self, what: str, first: float, longest: float, *, logger: SafeLogger | None = None, level: int = logging.ERROR,
        brief: bool = False, tell: Callable[[str], object] | None = None,
    ) -> None:  # fmt: skip
        self.what, self.first, self.longest = what, first, longest
        self._logger, self._level = logger or get_logger(__name__), level
        self._brief, self._tell = brief or tell is not None, tell
        self.failures = 0  #: since all was well
        self._since = self._told_at = 0.0
        self._well_since: float | None = None
        self._told: set[type[BaseException] | None] = set()  #: kinds of errors that the log has with their tracebacks

    @property
    def lasts(self) -> float:
        """For how many seconds the thing has failed; 0.0 where it is well."""
        return time.monotonic() - self._since if self.failures else 0.0

    def failed(self, how: str = "failed", *, quiet: float = 0.0) -> float:
        """Note a failure, log it if that is due, and return how many seconds to wait before the next try.

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
        error = sys.exc_info()[1]
        kind = None if error is None else type(error)
        if now - self._since < quiet:
            return pause
        if kind not in self._told and len(self._told) < 10:
            self._told.add(kind)
            self._told_at = now
            told = None if error is None or self._brief else (type(error), error, error.__traceback__)
            self._log(
                self._level, "%s %s%s; the next try is in %.2g s.", self.what, how, self._words(error), pause,
                exc_info=told,
            )  # fmt: skip
        elif now - self._told_at >= REMIND_EVERY:
            self._told_at = now
            cause = self._words(error) or ("" if error is None else f" ({described(error)})")
            self._log(
                self._level, "%s %s again%s, %d times in %.0f s; the next try is in %.2g s.",
                self.what, how, cause, self.failures, now - self._since, pause,
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
        return f" ({str(error).strip() or type(error).__name__})" if error is not None and self._brief else ""

    def _log(self, level: int, line: str, *args: object, exc_info: Any = None) -> None:
        if self._tell is not None:
            self._tell(line % args)
        else:
            self._logger.log(level, line, *args, exc_info=exc_info, stacklevel=3)
