"""Log lines on the terminal for a site that has configured none."""

from __future__ import annotations

import logging
import sys

from django_ojs.telemetry import lifecycle

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def show_logs(verbosity: int) -> None:
    """Send our log to stderr, unless the site's LOGGING takes care of it.

    Verbosity 0 shows warnings, 1 what the worker does, 2 also a line for each job, 3 everything, every change of a
    job's state included.
    """
    ours, jobs = logging.getLogger("django_ojs"), logging.getLogger("django_ojs.jobs")
    if ours.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT))
    ours.addHandler(handler)
    levels = {0: logging.WARNING, 1: logging.INFO, 2: logging.INFO}
    ours.setLevel(levels.get(verbosity, logging.DEBUG))
    if verbosity == 1:
        jobs.setLevel(logging.WARNING)
    elif verbosity == 2:
        lifecycle.logger.setLevel(logging.WARNING)
