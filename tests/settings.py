"""The site that the tests run in.

OJS_TEST_DATABASE_URL  the server to make test databases on; default: SQLite files in a directory of this run
OJS_TEST_REDIS_URL     a Redis for the channel layer (or REDIS_URL); default: in memory
OJS_TEST_RUN           set here, not by you: what the processes of one run share
"""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import django

from django_ojs.database import parse_url

#: For the processes that tests start: pytest itself finds it by its own settings.
sys.path.append(str(Path(__file__).resolve().parent.parent / "packages" / "ojs-conformance"))

BASE_DIR = Path(__file__).resolve().parent.parent

# Workers of pytest-xdist and processes started by tests inherit the run. conftest.py makes its directory and,
# where the run began, removes it; mypy reads these settings too and shall leave nothing behind.
BEGAN_RUN = "OJS_TEST_RUN" not in os.environ
RUN = os.environ.setdefault("OJS_TEST_RUN", uuid.uuid4().hex[:12])
SCRATCH = Path(tempfile.gettempdir()) / f"ojs-tests-{RUN}"

DEBUG = False
SECRET_KEY = "only-for-tests"
ALLOWED_HOSTS = ["testserver", "localhost", "127.0.0.1", "[::1]"]

INSTALLED_APPS = [
    "django.contrib.admin" if os.environ.get("OJS_TEST_ADMIN", "1") else "django.contrib.admin.apps.SimpleAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "channels",
    "django_ojs",
    "ojs_conformance.djangoapp",
    "benchmarks",
]

SILENCED_SYSTEM_CHECKS = [] if os.environ.get("OJS_TEST_ADMIN", "1") else ["django_ojs.W016"]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "tests.urls"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# A process that a test starts gets the URL of the test database itself (the fixture `child_environment`);
# pytest-django makes one database per xdist worker by adding `_gw0`, ... to TEST["NAME"]. On SQLite that is
# a file and not :memory:, because processes and threads share it, as they do at a site.
DATABASES = {"default": parse_url(os.environ.get("OJS_TEST_DATABASE_URL", f"sqlite:///{SCRATCH}/ojs"), BASE_DIR)}
_default = DATABASES["default"]
if _default["ENGINE"].endswith("sqlite3"):
    # Nobody pulls the plug on a test: no waiting for the disk.
    _default["OPTIONS"]["init_command"] = "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF"
    _default["TEST"] = {"NAME": f"{_default['NAME']}-test"}
elif _default["ENGINE"].endswith("mysql"):
    _default["TEST"] = {"CHARSET": "utf8mb4"}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = os.environ.get("OJS_TEST_REDIS_URL") or os.environ.get("REDIS_URL", "")
CHANNEL_LAYERS: dict[str, Any] = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
if REDIS_URL:
    CHANNEL_LAYERS["default"] = {
        "BACKEND": "channels_redis.core.RedisChannelLayer",
        "CONFIG": {
            "hosts": [REDIS_URL],
            # Runs and xdist workers share one Redis without hearing each other.
            "prefix": f"ojs-{RUN}-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}",
        },
    }

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STATIC_URL = "static/"
LANGUAGE_CODE = "en"
TIME_ZONE = "America/New_York"  # not UTC, so that a forgotten zone shows
USE_TZ = True
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}

# The Tasks framework is Django's own from 6.0 on; before that it is a package, and may be missing.
_TASKS = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
TASKS: dict[str, Any] = {}
if find_spec(_TASKS) is not None:
    TASKS = {
        "default": {"BACKEND": "django_ojs.tasks.OJSBackend", "QUEUES": ["default", "mail", "queue-1"]},
        "patient": {
            "BACKEND": "django_ojs.tasks.OJSBackend",
            "OPTIONS": {"max_attempts": 3, "backoff": {"initial_interval": "10ms", "jitter": False}},
        },
        "immediate": {"BACKEND": f"{_TASKS}.backends.immediate.ImmediateBackend", "QUEUES": []},
    }
    if _TASKS == "django_tasks":
        INSTALLED_APPS.append(_TASKS)
