"""Settings of the worker that is soaked: those of the benchmark, its handlers, and a short memory."""

from __future__ import annotations

from typing import Any

from benchmarks.settings import *  # noqa: F403
from benchmarks.settings import INSTALLED_APPS as _APPS

INSTALLED_APPS = [*_APPS, "benchmarks.soak"]
#: Events outlive the jobs they are about, so that `audit` can compare every row that is left with its events.
JOBS_LIVE, EVENTS_LIVE = 45.0, 90.0
OJS: dict[str, Any] = {  # type: ignore[no-redef]
    "ALLOW_ANONYMOUS": True,
    "RESULT_TTL": 20,
    "EVENT_RETENTION": EVENTS_LIVE,
    "RETENTION": dict.fromkeys(("completed", "cancelled", "discarded", "dead_letter"), JOBS_LIVE),
}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
    # Failures of handlers are what is asked for here.
    "loggers": {"django_ojs.jobs": {"level": "CRITICAL"}},
}
