"""Show log lines on the terminal for a site that has not configured its logging."""

from __future__ import annotations

import logging
import sys

from django_ojs.telemetry import logs
from django_ojs.worker import middleware

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
#: ANSI colours by level; a failed, retried or discarded job stands out, and a completed one is green.
_COLOURS = {logging.DEBUG: "2", logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "1;31"}
_GREEN = "32"

#: Completed jobs a second that get a line each at verbosity 1, and how often those beyond are summed up.
LINES_A_SECOND, SUMMARY_SECONDS = 10, 5.0


def show_logs(verbosity: int) -> None:
    """Send our log to stderr, unless the site's LOGGING takes care of it.

    Verbosity 0 shows warnings, 1 what the worker does and how jobs end (a line each while they are few, a count of
    them while they are many), 2 a line for each job, 3 everything, every change of a job's state included.
    """
    ours = logging.getLogger("django_ojs")
    if ours.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Terminal(_FORMAT, colours=sys.stderr.isatty()))
    ours.addHandler(handler)
    levels = {0: logging.WARNING, 1: logging.INFO, 2: logging.INFO}
    ours.setLevel(levels.get(verbosity, logging.DEBUG))
    if verbosity == 1:
        middleware.few = middleware.Few(LINES_A_SECOND, SUMMARY_SECONDS)
    if verbosity in (1, 2):
        logs.logger.setLevel(logging.WARNING)


class Terminal(logging.Formatter):
    """Lines for people: coloured where the stream is a terminal."""

    def __init__(self, line: str, *, colours: bool) -> None:
        super().__init__(line)
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        colour = _GREEN if getattr(record, "status", "") == "completed" else _COLOURS.get(record.levelno, "")
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colours and colour else text
