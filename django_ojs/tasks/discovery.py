"""Import the modules that define tasks: those that a web process imports, and never what a job names."""

from __future__ import annotations

import dataclasses
import logging
import sys
from importlib import import_module
from importlib.util import find_spec

from django.apps import apps
from django.conf import settings
from django.utils.module_loading import autodiscover_modules

from django_ojs.conf import ojs_settings
from django_ojs.registry import InvalidHandler

logger = logging.getLogger(__name__)


def available() -> bool:
    """Whether this site has the Tasks API and sets `TASKS`."""
    import django

    has_api = django.VERSION >= (6, 0) or find_spec("django_tasks") is not None
    return has_api and bool(getattr(settings, "TASKS", None))


def aliases() -> list[str]:
    """The aliases of `TASKS` whose backend is an `OJSBackend`."""
    if not available():
        return []
    return [alias for alias in settings.TASKS if _is_ours(alias)]


def _is_ours(alias: str) -> bool:
    from django_ojs.tasks.backend import OJSBackend
    from django_ojs.tasks.compat import InvalidTaskBackend, task_backends

    try:
        return isinstance(task_backends[alias], OJSBackend)
    except InvalidTaskBackend:  # its users and Django's check report it; ours work nevertheless
        return False


def discover() -> None:
    """Import every module that may define tasks: `tasks` (setting TASKS_MODULE) of each app, what the option
    `modules` names, and the root URLconf, which brings along what the views use."""
    ours = aliases()
    if not ours:
        return
    from django_ojs.tasks.compat import task_backends

    autodiscover_modules(ojs_settings.TASKS_MODULE)
    for alias in ours:
        _import(alias, task_backends[alias].options.get("modules", ()))
    if root := getattr(settings, "ROOT_URLCONF", None):
        import_module(root)
    _adopt(ours[0])


def _import(alias: str, modules: object) -> None:
    where = f"TASKS[{alias!r}]['OPTIONS']['modules'] is {modules!r}"
    if not isinstance(modules, list | tuple) or not all(isinstance(name, str) for name in modules):
        raise InvalidHandler(f"{where}: give a list of dotted names.")
    for name in modules:
        try:
            import_module(name)
        except ImportError as error:
            raise InvalidHandler(f"{where}, and {name} cannot be imported: {error}.") from error


def _adopt(alias: str) -> None:
    """Register the tasks of other backends too, where their apps define them: `.using(backend=...)` may send
    them here at any time, and this worker has to know them then."""
    from django_ojs.tasks.compat import AnyTask, InvalidTask, task_backends

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
