"""The site of the tests with an app that has handlers, for the workers that tests start as processes."""

import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES
from tests.settings import INSTALLED_APPS as _APPS

if pool := os.environ.get("OJS_TEST_POOL"):
    DATABASES["default"].setdefault("OPTIONS", {})["pool"] = {"min_size": 1, "max_size": int(pool), "timeout": 2.0}

INSTALLED_APPS = [*_APPS, "tests.worker.app"]
OJS = {
    "SHUTDOWN_GRACE_PERIOD": float(os.environ.get("OJS_TEST_GRACE", "10")),
    "HEARTBEAT_INTERVAL": 0.2,
    "HEARTBEAT_TIMEOUT": float(os.environ.get("OJS_TEST_HEARTBEAT_TIMEOUT", "45")),
    "POISON_LIMIT": int(os.environ.get("OJS_TEST_POISON_LIMIT", "5")),
    "WORKER_SPOOL": os.environ.get("OJS_TEST_SPOOL", ""),
    "WORKER_VISIBILITY_TIMEOUT": int(os.environ.get("OJS_TEST_VISIBILITY", "60")),
}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(levelname)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "loggers": {"django_ojs": {"handlers": ["console"], "level": "INFO"}},
}
