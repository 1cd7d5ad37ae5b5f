"""Import the Tasks API from Django (6.0 and newer) or from the package `django-tasks`.

Where both are installed, Django's own is taken, so signals come from one place. Tasks that a library defines with the
other package work as well, because either decorator asks the backend for its class of task.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

import django

#: Whether this Django is older than its Tasks framework.
NEEDS_BACKPORT = django.VERSION < (6, 0)

if TYPE_CHECKING or not NEEDS_BACKPORT:
    from django.tasks import Task, TaskContext, TaskResult, TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TASK_REFRESH_ATTRS, TaskError
    from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
elif find_spec("django_tasks") is None:
    raise ImportError(
        "django_ojs.tasks needs Django 6.0 or newer, or on Django 5.2 the package django-tasks: "
        "pip install 'django-ojs[tasks52]'."
    )
else:
    from django_tasks import TaskContext, TaskResult, TaskResultStatus, exceptions, task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import TASK_REFRESH_ATTRS, Task, TaskError
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

    # Versions after 0.12 take the name that Django has.
    InvalidTask = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
    InvalidTaskBackend = getattr(exceptions, "InvalidTaskBackend", None) or exceptions.InvalidTaskBackendError

if TYPE_CHECKING:
    AnyTask: TypeAlias = Task[..., Any]
    AnyResult: TypeAlias = TaskResult[..., Any]
    AnyContext: TypeAlias = TaskContext[..., Any]
else:  # not generic everywhere
    AnyTask, AnyResult, AnyContext = Task, TaskResult, TaskContext

__all__ = [
    "NEEDS_BACKPORT",
    "TASK_REFRESH_ATTRS",
    "AnyContext",
    "AnyResult",
    "AnyTask",
    "BaseTaskBackend",
    "InvalidTask",
    "InvalidTaskBackend",
    "TaskError",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
