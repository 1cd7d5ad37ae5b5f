"""Wait ever longer between the tries of what fails, and log a condition that lasts without a line for each try."""

from __future__ import annotations

import logging
import random
import sys
import time

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
    """

    def __init__(
        self, what: str, first: float, longest: float, *, logger: SafeLogger | None = None, level: int = logging.ERROR
    ) -> None:  # fmt: skip
        self.what, self.first, self.longest = what, first, longest
        self._logger, self._level = logger or get_logger(__name__), level
        self.failures = 0  #: since all was well
        self._since = self._told_at = 0.0
        self._well_since: float | None = None
        self._told: set[type[BaseException] | None] = set()  #: kinds of errors that the log has with their tracebacks

    @property
    def lasts(self) -> float:
        """For how many seconds the thing has failed; 0.0 where it is well."""
        return time.monotonic() - self._since if self.failures else 0.0

    def failed(self, how: str = "failed") -> float:
        """Note a failure, log it if that is due, and return how many seconds to wait before the next try."""
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
        if kind not in self._told and len(self._told) < 10:
            self._told.add(kind)
            self._told_at = now
            told = None if error is None else (type(error), error, error.__traceback__)
            self._logger.log(
                self._level, "%s %s; the next try is in %.2g s.", self.what, how, pause, exc_info=told, stacklevel=2
            )
        elif now - self._told_at >= REMIND_EVERY:
            self._told_at = now
            cause = "" if error is None else f" ({described(error)})"
            self._logger.log(
                self._level, "%s %s again%s, %d times in %.0f s; the next try is in %.2g s.",
                self.what, how, cause, self.failures, now - self._since, pause, stacklevel=2,
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

    def _recover(self, now: float) -> None:
        if self._well_since is None or now - self._well_since < self.longest:
            return
        self._logger.warning(
            "%s works again, since %.0f s; it had failed %d times in %.0f s.",
            self.what, now - self._well_since, self.failures, self._well_since - self._since,
        )  # fmt: skip
        self.failures, self._well_since = 0, None
        self._told.clear()
