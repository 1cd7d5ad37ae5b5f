"""Check the setting `TASKS`; the numbers are listed in `django_ojs.checks`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.checks import Warning as Caution
from django.db import connections

from django_ojs.errors import OJSError
from django_ojs.messages import jobs_wait
from django_ojs.registry import registry
from django_ojs.rules import names
from django_ojs.tasks.discovery import available

if TYPE_CHECKING:
    from django_ojs.tasks.backend import OJSBackend

KNOWN = ("max_attempts", "backoff", "modules")


def check_backend(backend: OJSBackend) -> Iterator[CheckMessage]:
    """E201, E202, W201: queue names and options of one backend."""
    where = f"TASKS[{backend.alias!r}]"
    for queue in sorted(backend.queues, key=str):
        try:
            names.check_queue(queue)
        except ValueError as error:
            hint = "Rename it here and in @task(queue_name=...): OJS allows hyphens where you may have underscores."
            yield Error(f"{where}: the queue {queue!r} {error}.", hint=hint, id="django_ojs.E201")
    for name in backend.options:
        if name not in KNOWN:
            near = difflib.get_close_matches(str(name), KNOWN, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(KNOWN)}."
            yield Caution(
                f"{where}: OJSBackend has no option {name!r}, and ignores it.", hint=hint, id="django_ojs.W201"
            )
    yield from _check_options(where, backend.options)


@register(Tags.compatibility)
def check_home(**kwargs: Any) -> Iterator[CheckMessage]:
    """E203, W203: the Tasks API that the setting needs is missing."""
    given = getattr(settings, "TASKS", None)
    backends = given.values() if isinstance(given, dict) else ()
    if not any(str(params.get("BACKEND", "")).startswith("django_ojs.") for params in backends):
        return
    if not available():
        hint = "Use Django 6.0 or newer, or pip install 'django-ojs[tasks52]'."
        yield Error("TASKS names OJSBackend, but this Django has no Tasks framework.", hint=hint, id="django_ojs.E203")
        return
    from django_ojs.tasks.compat import NEEDS_BACKPORT

    if NEEDS_BACKPORT and not apps.is_installed("django_tasks"):
        hint = "Add 'django_tasks' to INSTALLED_APPS."
        message = "Without the app django_tasks its system checks and log lines are missing."
        yield Caution(message, hint=hint, id="django_ojs.W203")


@register(Tags.database)
def check_waiting(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """W202: jobs wait for a handler that neither this code nor a live worker has."""
    from django_ojs.database import database
    from django_ojs.models import Job
    from django_ojs.workers.directory import unserved_types

    alias = database(None)
    if alias not in (databases or ()) or Job._meta.db_table not in connections[alias].introspection.table_names():
        return []
    hint = (
        "Was the task or handler renamed or moved? Is its module imported by workers: tasks.py or jobs.py of an app, "
        "or named in OPTIONS['modules'] of the backend in TASKS?"
    )
    here = set(registry.types())
    return [
        Caution(
            f"{jobs_wait(count, f' of the type {name!r}')}, and no worker runs them.", hint=hint, id="django_ojs.W202"
        )
        for name, count in unserved_types(alias).items()
        if name not in here
    ]


def _check_options(where: str, options: dict[str, Any]) -> Iterator[CheckMessage]:
    from django_ojs.tasks.task import retries

    try:
        retries(options.get("max_attempts", 1), options.get("backoff"))
    except (TypeError, ValueError, OJSError) as error:
        hint = 'For instance OPTIONS = {"max_attempts": 5, "backoff": "2s"}.'
        yield Error(f"{where}: {error}", hint=hint, id="django_ojs.E202")
