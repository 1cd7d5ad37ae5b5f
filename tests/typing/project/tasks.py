"""A user's tasks.py on the backend for Django's Tasks, under mypy --strict."""

from __future__ import annotations

import datetime as dt
from typing import Any, reveal_type

from django.tasks import Task, task

from django_ojs.tasks import OJSBackend, OJSTask, OJSTaskContext, OJSTaskResult, TaskFailed, scheduled


@scheduled(cron="0 9 * * *", timezone="Europe/Paris")
@task
def count_stock() -> int:
    return 42


def later(task: OJSTask) -> OJSTask:
    return task.using(run_after=dt.timedelta(minutes=5), max_attempts=3, backoff={"initial_interval": "2s"})


def look(result: OJSTaskResult) -> str:
    reveal_type(result.job)  # django_ojs.client.handle.JobHandle
    reveal_type(result.state)  # str
    result.refresh()
    if any(issubclass(error.exception_class, TaskFailed) for error in result.errors):
        result.job.retry()
    return result.job.wait(timeout=1).state


def report(context: OJSTaskContext) -> bool:
    context.job.progress(50, "half")
    reveal_type(context.attempt)  # int
    return context.job.is_cancelled


class Patient(OJSBackend):
    """A backend of the project's own."""

    def validate_task(self, task: Task[..., Any]) -> None:
        if isinstance(task, OJSTask) and task.max_attempts is None:
            task = task.using(max_attempts=5, backoff="10s")
        super().validate_task(task)
