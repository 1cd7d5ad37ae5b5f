"""A task in a worker: Django's signals around it, and the call itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from django_ojs.states import TERMINAL
from django_ojs.tasks import encoding, results
from django_ojs.tasks.home import AnyResult, task_backends, task_finished, task_started

if TYPE_CHECKING:
    from django_ojs.models import JobRow
    from django_ojs.tasks.definition import TaskDefinition
    from django_ojs.worker.context import JobContext
    from django_ojs.worker.run import Run

_EXCEPTION = "django_ojs.tasks.exception"  #: where the run remembers what its function raised


def perform(definition: TaskDefinition, context: JobContext, given: Sequence[Any]) -> Any:
    """Call the task's function for one attempt; its result as JSON has it. Raises what the function raises."""
    result = results.from_row(definition.task, context.whole_row)
    task_started.send_robust(sender=sender(result), task_result=result)
    args, kwargs = _arguments(definition, context, given, result)
    try:
        return encoding.plain(definition.task.func(*args, **kwargs))
    except BaseException as error:
        context.metadata[_EXCEPTION] = error
        raise


async def aperform(definition: TaskDefinition, context: JobContext, given: Sequence[Any]) -> Any:
    """`perform` for a coroutine function. Receivers that are synchronous run in a thread."""
    result = await _result(definition, context)
    await task_started.asend_robust(sender=sender(result), task_result=result)
    args, kwargs = _arguments(definition, context, given, result)
    try:
        return encoding.plain(await definition.task.func(*args, **kwargs))
    except BaseException as error:
        context.metadata[_EXCEPTION] = error
        raise


def finished(runs: Sequence[Run]) -> None:
    """Tell the receivers of `task_finished` about those of these runs that were the last of their jobs.

    Called when their outcomes are stored: whether there will be another attempt is known only then, and whoever
    reads the result in a receiver finds what the signal says.
    """
    from django_ojs.models import Job
    from django_ojs.operations.common import database

    rows = Job.objects.using(database(None)).filter(pk__in=[run.id for run in runs], state__in=list(TERMINAL)).rows()
    ended = {(row["id"], row["attempt"]): row for row in rows}
    for run in runs:
        if row := ended.get((run.id, run.attempt)):
            _tell(run, row)


def sender(result: AnyResult) -> type:
    """The class of the backend, which is what receivers filter by."""
    return type(task_backends[result.backend])


def _tell(run: Run, row: JobRow) -> None:
    result = results.from_row(run.definition.task, row)  # type: ignore[attr-defined]
    error = run.context.metadata.pop(_EXCEPTION, None)
    if error is None or result.state == "completed":
        task_finished.send_robust(sender=sender(result), task_result=result)
        return
    try:
        raise error
    except BaseException:  # noqa: BLE001 - error trackers ask sys.exc_info() in their receivers
        task_finished.send_robust(sender=sender(result), task_result=result)


def _arguments(
    definition: TaskDefinition, context: JobContext, given: Sequence[Any], result: results.OJSTaskResult
) -> tuple[list[Any], dict[str, Any]]:
    args, kwargs = encoding.decode(given)
    if definition.task.takes_context:
        args.insert(0, results.OJSTaskContext(task_result=result, job=context))
    return args, kwargs


async def _result(definition: TaskDefinition, context: JobContext) -> results.OJSTaskResult:
    """Only a later attempt has to ask the database."""
    if context.attempt == 1:
        return results.from_row(definition.task, context.whole_row)
    return await sync_to_async(results.from_row)(definition.task, context.whole_row)
