"""A site for the build: the commands, the OpenAPI document and a scrape need one. Its database is in memory."""

from __future__ import annotations

from importlib.util import find_spec

import django
from django.conf import settings
from django.core.management import call_command

TASKS = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"


def start() -> None:
    if settings.configured:
        return
    settings.configure(
        SECRET_KEY="only-for-the-documentation",
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        ROOT_URLCONF="django_ojs.urls",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=[
            "django.contrib.admin",
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.sessions",
            "django.contrib.messages",
            "rest_framework",
            "django_ojs",
        ],
        TASKS={"default": {"BACKEND": "django_ojs.tasks.OJSBackend"}} if find_spec(TASKS.partition(".")[0]) else {},
    )
    django.setup()
    call_command("migrate", verbosity=0)
