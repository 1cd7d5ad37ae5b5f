"""Settings of the processes that meet the faults: those of the benchmark, a log that has warnings, and the faults."""

from __future__ import annotations

from typing import Any

from benchmarks.faults import injection
from benchmarks.settings import *  # noqa: F403
from benchmarks.settings import INSTALLED_APPS as _APPS

INSTALLED_APPS = [*_APPS, "benchmarks.faults"]
ROOT_URLCONF = "benchmarks.faults.urls"
LOGGING: dict[str, Any] = {  # type: ignore[no-redef]
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"timed": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "timed"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
    "loggers": {"psycopg.pool": {"level": "ERROR"}},  # it has a line for each try to connect
}

injection.install()
