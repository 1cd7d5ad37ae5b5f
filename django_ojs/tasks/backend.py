"""Store tasks as OJS jobs: the backend that a site names in `TASKS`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from django_ojs.client import arguments
from django_ojs.client.definition import PreparedJob, push
from django_ojs.client.handle import JobHandle
from django_ojs.doubles import together
from django_ojs.errors import NotFound
from django_ojs.rules import names
from django_ojs.tasks import results
from django_ojs.tasks.compat import AnyTask, BaseTaskBackend, InvalidTask, TaskResultDoesNotExist, task_enqueued
from django_ojs.tasks.definition import find, plain, register
from django_ojs.tasks.task import OJSTask, policy, start, variant


class OJSBackend(BaseTaskBackend):
    """Tasks as OJS jobs of this site.

    OPTIONS: `max_attempts` and `backoff`, the retries of tasks that say nothing themselves, and `modules`, the
    dotted names of modules with tasks that workers would not import otherwise (`discovery`).
    An instance holds nothing: there is one in each thread.
    """

    task_class = OJSTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: AnyTask) -> None:
        """Raise InvalidTask for what Django or OJS does not allow. A task that may run is registered."""
        if isinstance(task.run_after, dt.timedelta):  # documented for all backends, and unknown to their base
            super().validate_task(variant(task, run_after=None))
        else:
            super().validate_task(task)
        try:
            names.check_queue(task.queue_name)
        except ValueError as error:
            raise InvalidTask(f"The queue {task.queue_name!r} of {task.module_path} {error}.") from None
        policy(task, self.options)
        register(task, self.options)

    def enqueue(  # type: ignore[override]  # `args` comes as a tuple
        self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> results.OJSTaskResult:
        """Store the job, in the transaction that is open, if there is one.

        Raises InvalidTask, TypeError or ValueError for arguments that are not JSON, what PUSH raises, and JobDropped
        where an enqueue middleware dropped it.
        """
        self.validate_task(task)
        definition = register(task, self.options)
        options: dict[str, Any] = {"queue": task.queue_name, "priority": int(task.priority), **start(task)}
        options["retry"] = policy(task, self.options)
        if task.backend != definition.task.backend:
            options["meta"] = {results.ALIAS_IN_META: task.backend}
        encoded = plain(arguments.encode(args, kwargs))

        def store() -> tuple[results.OJSTaskResult, JobHandle]:
            (handle,) = push([PreparedJob(definition.type, encoded, options)])
            result = results.from_row(definition.task, handle.row, self.alias)
            task_enqueued.send(sender=type(self), task_result=result)
            return result, handle

        result, handle = together(store)
        ran = handle.row["state"] != result.state  # a test runs jobs at once
        return results.from_row(definition.task, handle.row, self.alias) if ran else result

    def get_result(self, result_id: str) -> results.OJSTaskResult:
        """The result with this id. Raises TaskResultDoesNotExist also for jobs that are no tasks, or pruned."""
        from django_ojs.jobs.info import info

        key = results.key_of(result_id)
        if key is None:
            raise TaskResultDoesNotExist(result_id)
        try:
            row = info(key)
        except NotFound:
            raise TaskResultDoesNotExist(result_id) from None
        definition = find(row["type"])
        if definition is None:
            raise TaskResultDoesNotExist(f"{result_id} is a job of the type {row['type']}, which is no task here.")
        return results.from_row(definition.task, row)

    def check(self, **kwargs: Any) -> list[Any]:
        """E201, E202, W201: what is wrong with this backend's settings."""
        from django_ojs.tasks.checks import check_backend

        return list(check_backend(self))
