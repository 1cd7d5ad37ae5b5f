"""Settings of the processes that the benchmark starts: nothing but the app, on the throwaway database."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django_ojs.database import parse_url

SECRET_KEY = "only for measuring"
DEBUG = False
ALLOWED_HOSTS = ["*"]
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "rest_framework",
    "channels",
    "django_ojs",
    "benchmarks.handlers",
]
MIDDLEWARE: list[str] = []
ROOT_URLCONF = "benchmarks.urls"
DATABASES: dict[str, Any] = {"default": parse_url(os.environ["OJS_BENCH_DATABASE"], Path.cwd())}
if _replica := os.environ.get("OJS_BENCH_REPLICA"):
    DATABASES["replica"] = parse_url(_replica, Path.cwd())
    DATABASE_ROUTERS = ["benchmarks.failover.ReadsFromReplica"]
SILENCED_SYSTEM_CHECKS = ["django_ojs.W002"]  # there is nothing here but us
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
OJS: dict[str, Any] = {
    "ALLOW_ANONYMOUS": True, "GRPC": True, "REALTIME_RATE_LIMIT": None, "REALTIME_MAX_CONNECTIONS": None,
    "WEBHOOK_ALLOW_HTTP": True, "WEBHOOK_ALLOWED_HOSTS": ["127.0.0.1"],
}  # fmt: skip
if "OJS_BENCH_FLOWS" in os.environ:  # a flow is killed again and again, and nobody is to blame
    OJS["POISON_LIMIT"] = 10_000
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "ERROR"},
    "loggers": {"django.request": {"level": "ERROR"}},
}
