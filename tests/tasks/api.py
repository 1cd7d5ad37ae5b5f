"""The Tasks API as a site imports it, from wherever this Django has it."""

from __future__ import annotations

import django

if django.VERSION >= (6, 0):
    from django.tasks import TaskContext, TaskResultStatus, default_task_backend, task, task_backends
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
    from django.tasks.signals import task_enqueued, task_finished, task_started

    LOGGER = "django.tasks"
else:
    from django_tasks import TaskContext, TaskResultStatus, default_task_backend, task, task_backends
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.signals import task_enqueued, task_finished, task_started

    LOGGER = "django_tasks"

__all__ = [
    "LOGGER", "InvalidTask", "TaskContext", "TaskResultDoesNotExist", "TaskResultMismatch", "TaskResultStatus",
    "default_task_backend", "task", "task_backends", "task_enqueued", "task_finished", "task_started",
]  # fmt: skip
