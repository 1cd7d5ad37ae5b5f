"""Store tasks as OJS jobs, and run them with Django's signals around: the backend that a site names in `TASKS`.

A job reaches only tasks that are registered: no path from the wire is ever imported.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import inspect
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from asgiref.sync import sync_to_async

from django_ojs import jsontext
from django_ojs.client.context import JobContext
from django_ojs.client.definition import JobDefinition, PreparedJob, check_schedule, push_prepared
from django_ojs.client.handle import JobHandle, get_job
from django_ojs.client.options import SCHEDULE_NAMES, ScheduleOptions, check_json, checked_options, encode_arguments
from django_ojs.database import database
from django_ojs.errors import NotFound
from django_ojs.guard import Interrupted, log_fault, may_fail, may_fail_inside
from django_ojs.hooks import together
from django_ojs.messages import shown
from django_ojs.registry import InvalidHandler, is_coroutine_function, registry
from django_ojs.rules import names, redaction
from django_ojs.states import TERMINAL
from django_ojs.tasks import results
from django_ojs.tasks.options import check_backend
from django_ojs.tasks.task import (
    AnyResult,
    AnyTask,
    BaseTaskBackend,
    InvalidTask,
    OJSTask,
    TaskResultDoesNotExist,
    normalize_json,
    policy,
    start_options,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
    type_of,
    variant,
)

if TYPE_CHECKING:
    from django_ojs.models import JobRow

T = TypeVar("T")


class OJSBackend(BaseTaskBackend):
    """A backend of Django's Tasks that runs tasks as OJS jobs of this site.

    OPTIONS: `max_attempts` and `backoff`, the retries of tasks that set none themselves, and `modules`, the dotted
    names of modules with tasks that workers would not import otherwise (`discovery`). An instance has no state: each
    thread has its own.
    """

    task_class = OJSTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: AnyTask) -> None:
        """Raise InvalidTask for what Django or OJS does not allow. Register a task that may run."""
        _check_kinds(task)
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
        """Store the job, in the open transaction if there is one.

        Raises InvalidTask, TypeError or ValueError for arguments that are not JSON, what PUSH raises, and JobDropped
        if an enqueue middleware dropped the job.
        """
        self.validate_task(task)
        definition = register(task, self.options)
        options: dict[str, Any] = {"queue": task.queue_name, "priority": int(task.priority), **start_options(task)}
        options["retry"] = policy(task, self.options)
        if task.backend != definition.task.backend:
            options["meta"] = {results.ALIAS_IN_META: task.backend}
        given = encode_arguments(args, kwargs)
        try:
            encoded = plain(given)
        except (TypeError, ValueError, RecursionError):
            try:
                check_json(given, "args")  # these two say where, and what to pass instead
                jsontext.dumps(given)
            except TypeError as error:
                raise TypeError(f"Unsupported type: {error}") from None  # in Django's words, too
            raise

        def store() -> tuple[results.OJSTaskResult, JobHandle]:
            (handle,) = push_prepared([PreparedJob(definition.type, encoded, options)])
            result = results.from_row(definition.task, handle.row, self.alias)
            task_enqueued.send(sender=type(self), task_result=result)
            return result, handle

        result, handle = together(store)
        ran = handle.row["state"] != result.state  # a test runs jobs at once
        return results.from_row(definition.task, handle.row, self.alias) if ran else result

    def get_result(self, result_id: str) -> results.OJSTaskResult:
        """Return the result with this id. Raises TaskResultDoesNotExist for jobs that are no tasks or were pruned,
        too.
        """
        key = results.key_of(result_id)
        if key is None:
            raise TaskResultDoesNotExist(result_id)
        try:
            row = get_job(key).row
        except NotFound:
            raise TaskResultDoesNotExist(result_id) from None
        definition = find(row["type"])
        if definition is None:
            raise TaskResultDoesNotExist(f"{result_id} is a job of the type {row['type']}, which is no task here.")
        return results.from_row(definition.task, row)

    def check(self, **kwargs: Any) -> list[Any]:
        """E201, E202, W201: what is wrong with this backend's settings."""
        return list(check_backend(self))


def _check_kinds(task: AnyTask) -> None:
    """Raise InvalidTask for options of a kind that their base class does not expect, and calculates with."""
    given: tuple[Any, Any, Any] = task.priority, task.queue_name, task.run_after
    priority, queue, after = given
    if not isinstance(priority, int | float) or (isinstance(priority, float) and not math.isfinite(priority)):
        raise InvalidTask(f"priority={shown(priority)}: it must be a whole number between -100 and 100.")
    if not isinstance(queue, str):
        raise InvalidTask(f"queue_name={shown(queue)}: give the name of a queue.")
    if not isinstance(after, dt.datetime | dt.timedelta | None):
        raise InvalidTask(f"run_after={shown(after)}: give an aware datetime, or a timedelta.")


_EXCEPTION = "django_ojs.tasks.exception"  #: the key of `context.metadata` under which the function's exception is kept


def finished(contexts: Sequence[JobContext]) -> None:
    """Send `task_finished` for those of these runs that were the last of their jobs.

    Called when their outcomes are stored: whether there will be another attempt is known only then, and a receiver
    that reads the result finds what the signal says.
    """
    from django_ojs.models import Job

    ids = [context.id for context in contexts]
    rows = Job.objects.using(database(None)).filter(pk__in=ids, state__in=list(TERMINAL)).rows()
    ended = {(row["id"], row["attempt"]): row for row in rows}
    for context in contexts:
        if (row := ended.get((context.id, context.attempt))) and (definition := find(context.type)):
            may_fail("Sending task_finished", _send_finished, definition, context, row)


class TaskDefinition(JobDefinition[..., ..., Any]):
    """A task as the handler of its job type. `task` is the one that the decorator made."""

    after = staticmethod(finished)

    def __init__(self, type: str, task: AnyTask, options: Mapping[str, Any]) -> None:
        self.task = task
        self.job_retry = options["retry"]
        super().__init__(type, self._handler(task.func), True, options, {})

    def check_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """For callers who enqueue the job by its type: Django itself checks no argument."""
        first = [None] if self.task.takes_context else []
        try:
            inspect.signature(self.task.func).bind(*first, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"The task {self.task.module_path} cannot take these arguments: {error}.") from None

    def _handler(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What the worker calls, under the name and place of the task's own function."""

        def perform(context: JobContext, /, *args: Any, **kwargs: Any) -> Any:
            return _perform(self, context, args, kwargs)

        async def aperform(context: JobContext, /, *args: Any, **kwargs: Any) -> Any:
            return await _aperform(self, context, args, kwargs)

        handler: Callable[..., Any] = aperform if is_coroutine_function(function) else perform
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


def scheduled(**options: Unpack[ScheduleOptions]) -> Callable[[T], T]:
    """Let a schedule enqueue a task: `@scheduled(cron="0 9 * * *", timezone="Europe/Paris")` above `@task`.

    `cron`, `timezone`, `overlap`, `cron_args` and `cron_name` are those of `@job` (docs/cron.md). Under a backend that
    is no `OJSBackend`, as tests may have one, the task has no schedule.

    Raises InvalidTask for a schedule that cannot be kept, and TypeError for what is no task.
    """

    def declare(task: Any) -> Any:
        if not hasattr(task, "module_path"):
            raise TypeError(f"@scheduled(...) stands above @task, and got {shown(task)}.")
        if not isinstance(task_backends[task.backend], OJSBackend):
            return task
        definition = register(task, task_backends[task.backend].options)
        try:
            definition.cron_options = checked_options(options, SCHEDULE_NAMES)
            if "cron" not in definition.cron_options:
                raise TypeError("give cron=, such as cron='0 9 * * *'.")
            check_schedule(definition)
        except (InvalidHandler, TypeError) as error:
            definition.cron_options = {}
            raise InvalidTask(f"@scheduled of {task.module_path}: {error}") from None
        return task

    return declare


def find(type: str) -> TaskDefinition | None:
    """The task of a job type; None where the type belongs to another handler, or has none here."""
    definition = registry.get(type)
    return definition if isinstance(definition, TaskDefinition) else None


def plain(value: Any) -> Any:
    """`value` as JSON would bring it back: tuples are lists, bytes are text, keys are strings.

    Raises TypeError or ValueError for what Django's own backends refuse.
    """
    return json.loads(json.dumps(normalize_json(value)))


def _perform(definition: TaskDefinition, context: JobContext, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call the task's function for one attempt; its result as JSON has it. Raises what the function raises."""
    result = results.from_row(definition.task, context.whole_row)
    may_fail_inside("Sending task_started", task_started.send_robust, sender=_sender(result), task_result=result)
    given = _arguments(definition, context, args, result)
    try:
        value = definition.task.func(*given, **kwargs)
        return _aplain(context, value) if inspect.isawaitable(value) else plain(value)
    except BaseException as error:
        context.metadata[_EXCEPTION] = error
        raise


async def _aperform(
    definition: TaskDefinition, context: JobContext, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """`_perform` for a coroutine function. Receivers that are synchronous run in a thread."""
    if context.attempt == 1:  # only a later attempt has to ask the database
        result = results.from_row(definition.task, context.whole_row)
    else:
        result = await sync_to_async(results.from_row)(definition.task, context.whole_row)
    try:
        await task_started.asend_robust(sender=_sender(result), task_result=result)
    except (Interrupted, asyncio.CancelledError):
        raise
    except BaseException as error:  # noqa: BLE001 - a receiver that raises SystemExit
        log_fault("Sending task_started", error)
    given = _arguments(definition, context, args, result)
    try:
        return plain(await definition.task.func(*given, **kwargs))
    except BaseException as error:
        context.metadata[_EXCEPTION] = error
        raise


async def _aplain(context: JobContext, value: Awaitable[Any]) -> Any:
    """The result of a plain function that has returned an awaitable, which the worker awaits."""
    try:
        return plain(await value)
    except BaseException as error:
        context.metadata[_EXCEPTION] = error
        raise


def _sender(result: AnyResult) -> type:
    """The class of the backend, which is what receivers filter by."""
    return type(task_backends[result.backend])


def _send_finished(definition: TaskDefinition, context: JobContext, row: JobRow) -> None:
    result = results.from_row(definition.task, row)
    error = context.metadata.pop(_EXCEPTION, None)
    hidden = any(redaction.hides(part, context.type, context.meta) for part in ("errors", "backtraces"))
    if error is None or hidden or result.state == "completed":
        task_finished.send_robust(sender=_sender(result), task_result=result)
        return
    try:
        raise error
    except BaseException:  # noqa: BLE001 - error trackers ask sys.exc_info() in their receivers, as Django's log does
        task_finished.send_robust(sender=_sender(result), task_result=result)


def _arguments(
    definition: TaskDefinition, context: JobContext, args: Sequence[Any], result: results.OJSTaskResult
) -> list[Any]:
    if definition.task.takes_context:
        return [results.OJSTaskContext(task_result=result, job=context), *args]
    return list(args)
