"""Tasks in the registry of handlers. A job reaches only what is in it: no path from the wire is ever imported."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from django_ojs.client.definition import JobDefinition
from django_ojs.registry import InvalidHandler, registry
from django_ojs.tasks import encoding, running
from django_ojs.tasks.home import AnyTask, InvalidTask
from django_ojs.tasks.naming import type_of
from django_ojs.tasks.task import policy

if TYPE_CHECKING:
    from django_ojs.worker.context import JobContext


class TaskDefinition(JobDefinition[..., ..., Any]):
    """A task as the handler of its job type. `task` is the one that the decorator made."""

    after = staticmethod(running.finished)

    def __init__(self, type: str, task: AnyTask, options: Mapping[str, Any]) -> None:
        self.task = task
        super().__init__(type, self._handler(task.func), True, options, {})

    def check_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """For those who enqueue the job by its type: they write keyword arguments as the wire has them."""
        super().check_arguments(args, kwargs)
        given, named = encoding.decode(args)
        first = [None] if self.task.takes_context else []
        try:
            inspect.signature(self.task.func).bind(*first, *given, **named)
        except TypeError as error:
            raise TypeError(f"The task {self.task.module_path} cannot take these arguments: {error}.") from None

    def _handler(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What the worker calls, under the name and place of the task's own function."""

        def perform(context: JobContext, *args: Any) -> Any:
            return running.perform(self, context, args)

        async def aperform(context: JobContext, *args: Any) -> Any:
            return await running.aperform(self, context, args)

        handler: Callable[..., Any] = aperform if inspect.iscoroutinefunction(function) else perform
        functools.update_wrapper(handler, function)
        del handler.__wrapped__  # type: ignore[attr-defined]  # its signature is not that of the function
        return handler


def register(task: AnyTask, options: Mapping[str, Any]) -> TaskDefinition:
    """The definition of a task; new if its function is new under this type. `options` are those of its backend.

    Raises InvalidTask where something else has the type already.
    """
    name = type_of(task)
    known = registry.known(name)
    if isinstance(known, TaskDefinition) and known.task.func is task.func:
        return known
    defaults = {"queue": task.queue_name, "priority": int(task.priority), "retry": policy(task, options)}
    definition = TaskDefinition(name, task, defaults)
    try:
        registry.register(definition)
    except InvalidHandler as error:
        raise InvalidTask(f"{error} A task's type is its path, or what @task(job_type=...) says.") from None
    return definition


def find(type: str) -> TaskDefinition | None:
    """The task of a job type; None where it belongs to another handler or to nobody here."""
    definition = registry.get(type)
    return definition if isinstance(definition, TaskDefinition) else None
