"""Import the modules that define tasks, and check the setting `TASKS` (its backends: `options`); the numbers are listed
in `django_ojs.checks`.

Imported is what a web process imports, and never what a job names.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.checks import Warning as Caution
from django.db import connections
from django.utils.module_loading import autodiscover_modules

from django_ojs.conf import ojs_settings
from django_ojs.database import database
from django_ojs.guard import get_logger
from django_ojs.messages import jobs_wait
from django_ojs.registry import Fault, registry

logger = get_logger(__name__)


def available() -> bool:
    """Whether this site has the Tasks API and sets `TASKS`."""
    import django

    has_api = django.VERSION >= (6, 0) or find_spec("django_tasks") is not None
    return has_api and bool(getattr(settings, "TASKS", None))


def aliases() -> list[str]:
    """The aliases of `TASKS` whose backend is an `OJSBackend`, which makes an `OJSTask` of a function."""
    if not available():
        return []
    return [alias for alias in settings.TASKS if _is_ours(alias)]


def modules() -> str:
    """The modules of an app that workers import, for people: `tasks.py` is one only where a backend of ours is."""
    names = [ojs_settings.JOBS_MODULE, *([ojs_settings.TASKS_MODULE] if aliases() else [])]
    return " / ".join(f"{name}.py" for name in dict.fromkeys(names))


def _is_ours(alias: str) -> bool:
    from django_ojs.tasks.task import InvalidTaskBackend, OJSTask, task_backends

    try:
        return issubclass(task_backends[alias].task_class, OJSTask)
    except InvalidTaskBackend:  # its users and Django's check report it; ours work nevertheless
        return False


def discover() -> None:
    """Import every module that may define tasks: `tasks` (setting TASKS_MODULE) of each app, what the option
    `modules` names, and the root URLconf, which brings along what the views use."""
    ours = aliases()
    if not ours:
        return
    from django_ojs.tasks.task import task_backends

    autodiscover_modules(ojs_settings.TASKS_MODULE)
    for alias in ours:
        _import(alias, task_backends[alias].options.get("modules", ()))
    if root := getattr(settings, "ROOT_URLCONF", None):
        import_module(root)
    _adopt(ours[0])


def _import(alias: str, modules: object) -> None:
    """Import what the option names. What it names wrongly is a fault, as a wrong declaration is."""
    where = f"TASKS[{alias!r}]['OPTIONS']['modules']"
    if not isinstance(modules, list | tuple) or not all(isinstance(name, str) for name in modules):
        registry.record([Fault("", where, f"it is {modules!r}: give a list of dotted names.")], where)
        return
    faults: list[Fault] = []
    for name in modules:
        try:
            import_module(name)
        except ImportError as error:
            faults.append(Fault("", where, f"it is {modules!r}, and {name} cannot be imported: {error}."))
    registry.record(faults, where)


def _adopt(alias: str) -> None:
    """Register the tasks of other backends too, where their apps define them: `.using(backend=...)` may send
    them here at any time, and this worker has to know them then."""
    from django_ojs.tasks.task import AnyTask, InvalidTask, task_backends

    backend, ours = task_backends[alias], aliases()
    for config in apps.get_app_configs():
        module = sys.modules.get(f"{config.name}.{ojs_settings.TASKS_MODULE}")
        for task in list(vars(module).values()) if module else ():
            if not isinstance(task, AnyTask) or task.backend in ours:
                continue
            allowed = not backend.queues or task.queue_name in backend.queues
            queue = task.queue_name if allowed else min(backend.queues)
            try:
                dataclasses.replace(task, backend=alias, queue_name=queue)
            except InvalidTask as error:
                logger.debug("%s cannot be sent to the backend %s: %s", task.module_path, alias, error)


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
    from django_ojs.tasks.task import NEEDS_BACKPORT

    if NEEDS_BACKPORT and not apps.is_installed("django_tasks"):
        hint = "Add 'django_tasks' to INSTALLED_APPS."
        message = "Without the app django_tasks its system checks and log lines are missing."
        yield Caution(message, hint=hint, id="django_ojs.W203")


@register(Tags.database)
def check_waiting(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """W202: jobs wait for a handler that neither this code nor a live worker has."""
    from django_ojs.models import Job
    from django_ojs.workerregistry.directory import unserved_types

    alias = database(None)
    if alias not in (databases or ()) or Job._meta.db_table not in connections[alias].introspection.table_names():
        return []
    hint = (
        f"Was the task or handler renamed or moved? Is its module imported by workers: {modules()} of an app "
        "(OJS['JOBS_MODULE']), or named in OPTIONS['modules'] of the backend in TASKS?"
    )
    here = set(registry.types())
    return [
        Caution(
            f"{jobs_wait(count, f' of the type {name!r}')}, and no worker runs this type.",
            hint=hint,
            id="django_ojs.W202",
        )
        for name, count in unserved_types(alias).items()
        if name not in here
    ]
