"""Django's Tasks framework on OJS: `TASKS = {"default": {"BACKEND": "django_ojs.tasks.OJSBackend"}}`.

A task of this backend is an OJS job like any other. The names are loaded on first use: importing this package
takes neither Django 6 nor the backport, and other queues that look for a `tasks` module in each app do no harm.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_ojs.tasks.backend import OJSBackend as OJSBackend
    from django_ojs.tasks.backend import scheduled as scheduled
    from django_ojs.tasks.results import OJSTaskContext as OJSTaskContext
    from django_ojs.tasks.results import OJSTaskResult as OJSTaskResult
    from django_ojs.tasks.results import TaskFailed as TaskFailed
    from django_ojs.tasks.task import OJSTask as OJSTask

_MODULES = {
    "OJSBackend": "django_ojs.tasks.backend",
    "OJSTask": "django_ojs.tasks.task",
    "OJSTaskContext": "django_ojs.tasks.results",
    "OJSTaskResult": "django_ojs.tasks.results",
    "TaskFailed": "django_ojs.tasks.results",
    "scheduled": "django_ojs.tasks.backend",
}

__all__ = ["OJSBackend", "OJSTask", "OJSTaskContext", "OJSTaskResult", "TaskFailed", "scheduled"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'django_ojs.tasks' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
