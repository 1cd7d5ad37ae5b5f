"""Show a stored job as the `TaskResult` of Django's Tasks API."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import re
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from asgiref.sync import sync_to_async

from django_ojs import jsontext
from django_ojs.client.context import JobContext
from django_ojs.client.handle import JobHandle, get_job
from django_ojs.client.options import decode_arguments
from django_ojs.database import database
from django_ojs.rules import errorobjects
from django_ojs.states import State
from django_ojs.tasks.discovery import aliases
from django_ojs.tasks.task import (
    TASK_REFRESH_ATTRS,
    AnyContext,
    AnyResult,
    AnyTask,
    TaskError,
    TaskResultStatus,
    variant,
)

if TYPE_CHECKING:
    from django_ojs.models import JobRow

#: The eight states in Django's four words. What waits is READY, for the first time or again.
STATUS: Mapping[str, TaskResultStatus] = {
    State.SCHEDULED: TaskResultStatus.READY,
    State.AVAILABLE: TaskResultStatus.READY,
    State.PENDING: TaskResultStatus.READY,
    State.RETRYABLE: TaskResultStatus.READY,
    State.ACTIVE: TaskResultStatus.RUNNING,
    State.COMPLETED: TaskResultStatus.SUCCESSFUL,
    State.DISCARDED: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}

#: Where a job notes the alias of its backend, if it is not that of the task's definition.
ALIAS_IN_META = "task_backend"


class TaskFailed(Exception):
    """The class in `TaskError` of a failure without a Python exception, such as the loss of a worker."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OJSTaskResult(AnyResult):  # type: ignore[misc]  # it is frozen, whatever its stubs say
    """The result of a task. `state` is the state of the job, one of eight; `status` is one of four."""

    state: str = ""

    @property
    def job(self) -> JobHandle:
        """The job, to wait for it, cancel it or retry it. Raises NotFound once it has been pruned."""
        return get_job(self.id)

    def refresh(self) -> None:
        """Read the result again. Raises TaskResultDoesNotExist once the job has been pruned."""
        fresh = self.task.get_backend().get_result(self.id)
        for name in (*TASK_REFRESH_ATTRS, "state"):
            object.__setattr__(self, name, getattr(fresh, name))

    async def arefresh(self) -> None:
        """`refresh` from asynchronous code."""
        await sync_to_async(self.refresh)()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OJSTaskContext(AnyContext):  # type: ignore[misc]
    """What a task with `takes_context=True` gets. `job` is the `JobContext`, which reports progress."""

    job: JobContext


class Start(NamedTuple):
    """One attempt: the worker that began it, and when."""

    worker_id: str
    at: dt.datetime | None


def from_row(task: AnyTask, row: JobRow, backend: str = "") -> OJSTaskResult:
    """The result of the job in `row`, a job of `task`, for the backend of this alias; '': as the job says.

    Reads the workers of earlier attempts, if there were any, from the event log.
    """
    starts = _starts(row)
    alias = backend or alias_of(task, jsontext.loads(row["meta"]) if row["meta"] else {})
    args, kwargs = decode_arguments(json.loads(row["args"]))  # Django takes no numbers but int and float
    due = row["due_at"] if row["state"] == State.SCHEDULED else None
    stored = variant(task, priority=row["priority"], queue_name=row["queue"], run_after=due, backend=alias)
    result = OJSTaskResult(
        task=stored, id=str(row["id"]), status=STATUS[row["state"]], state=str(row["state"]),
        enqueued_at=row["created_at"], finished_at=row["finished_at"],
        started_at=starts[0].at if starts else None, last_attempted_at=starts[-1].at if starts else None,
        args=args, kwargs=kwargs, backend=alias, worker_ids=[start.worker_id for start in starts],
        errors=[task_error(error) for error in (jsontext.loads(row["errors"]) if row["errors"] else ())],
    )  # fmt: skip
    if row["state"] == State.COMPLETED and row["result"]:
        object.__setattr__(result, "_return_value", jsontext.loads(row["result"]))
    return result


def alias_of(task: AnyTask, meta: Mapping[str, Any]) -> str:
    """The backend that a job of this task was enqueued with, among those there are."""
    named = meta.get(ALIAS_IN_META)
    return named if isinstance(named, str) and named in aliases() else task.backend


class OJSTaskError(TaskError):
    """A `TaskError` that imports no module: the name of the class comes from the worker that failed the job."""

    __slots__ = ()

    @property
    def exception_class(self) -> type[BaseException]:
        """The class. Raises ImportError where this process has not imported it, ValueError for what is no exception."""
        parts = self.exception_class_path.split(".")
        for size in range(len(parts) - 1, 0, -1):
            found: Any = sys.modules.get(".".join(parts[:size]))
            if found is not None:
                for name in parts[size:]:
                    found = getattr(found, "__dict__", {}).get(name)
                if isinstance(found, type) and issubclass(found, BaseException):
                    return found
                if found is not None:
                    raise ValueError(f"{self.exception_class_path!r} does not reference a valid exception.")
                break
        raise ImportError(f"This process has imported no exception {self.exception_class_path!r}.")


def task_error(error: Mapping[str, Any]) -> TaskError:
    """A stored error object (core 8) as Django shows it. The traceback is put together from its frames."""
    path = _class_path(error)
    name = path.removeprefix("builtins.") if path != _FAILED else str(error["type"])
    lines = [*_traceback(error.get("backtrace") or ()), f"{name}: {error['message']}"]
    return OJSTaskError(exception_class_path=path, traceback="\n".join(lines) + "\n")


def _starts(row: JobRow) -> list[Start]:
    """The attempts so far, in order; one whose event has been pruned is there without its facts."""
    attempt: int = row["attempt"]
    if attempt == 0:
        return []
    last = Start(row["worker_id"], row["started_at"])
    if attempt == 1 and row["started_at"] is not None:
        return [last]
    from django_ojs.models import Event

    events = Event.objects.using(database(None)).filter(job_id=row["id"], type="job.started").order_by("id")
    known = {number: Start(worker, at) for number, worker, at in events.values_list("attempt", "worker_id", "time")}
    if row["started_at"] is not None:
        known[attempt] = last
    return [known.get(number, Start("", None)) for number in range(1, attempt + 1)]


_FAILED = f"{TaskFailed.__module__}.{TaskFailed.__qualname__}"
_LINKS = tuple(f"{link}\n" for link in errorobjects.LINKS)
#: Errors of the server and of our worker that have a class in Python.
_CLASSES = {"timeout": "builtins.TimeoutError", "ResultNotSerializable": "builtins.TypeError"}
_PATH = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_FRAME = re.compile(r"at (?P<function>.+) \((?P<file>.+):(?P<line>\d+)\)(?P<source>(?:\n.*)*)")


def _class_path(error: Mapping[str, Any]) -> str:
    details = error.get("details")
    named = details.get("error_class") if isinstance(details, Mapping) else None
    if not isinstance(named, str) or not _PATH.fullmatch(named):
        return _CLASSES.get(str(error["type"]), _FAILED)
    return named if "." in named else f"builtins.{named}"


def _traceback(entries: Sequence[str]) -> Iterator[str]:
    """Stored frames below Python's headline, and the same for each exception that led to the last."""
    begins = True
    for entry in entries:
        if entry.endswith(_LINKS):
            yield entry
            begins = True
            continue
        if begins:
            yield "Traceback (most recent call last):"
            begins = False
        yield _frame(entry)


def _frame(text: str) -> str:
    """A frame of our worker as Python prints it; those of others stay as they are."""
    found = _FRAME.fullmatch(text)
    if found is None:
        return f"  {text}"
    return f'  File "{found["file"]}", line {found["line"]}, in {found["function"]}{found["source"]}'


def key_of(result_id: str) -> uuid.UUID | None:
    """The primary key that a result's id stands for; None where it can be none."""
    try:
        return uuid.UUID(result_id)
    except (ValueError, AttributeError, TypeError):
        return None
