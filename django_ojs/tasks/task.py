"""Make a function a task with retries and a job type: `@task` under this backend makes an `OJSTask`.

The Tasks API comes from Django (6.0 and newer) or from the package `django-tasks`, and only this module knows from
which. Where both are installed, Django's own is taken, so signals come from one place. Tasks that a library defines
with the other package work as well, because either decorator asks the backend for its class of task.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import django
from django.utils import timezone

from django_ojs.client.options import Duration, attributes, milliseconds
from django_ojs.errors import OJSError
from django_ojs.messages import shown
from django_ojs.rules import durations, names

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
    "OJSTask",
    "TaskError",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]


#: The first pause, which then doubles, or the retry policy in the wire's spelling (jobs 1.1) but `max_attempts`.
TaskBackoff: TypeAlias = Duration | Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OJSTask(AnyTask):
    """A task that runs as an OJS job.

    `max_attempts` and `backoff` take precedence over the OPTIONS of the backend. Without either a task is tried once,
    as with Django's own backends. `job_type` is the name on the wire; set it before you move the function, or for a
    worker in another language.
    """

    max_attempts: int | None = None
    backoff: TaskBackoff | None = dataclasses.field(default=None, hash=False)
    job_type: str = ""

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: dt.datetime | dt.timedelta | None = None,
        backend: str | None = None,
        max_attempts: int | None = None,
        backoff: TaskBackoff | None = None,
    ) -> Self:
        """Return the same task with other options. A timedelta counts from `enqueue()`, not from this call."""
        if backend is not None and not isinstance(backend, str):
            raise InvalidTask(f"backend={shown(backend)}: give the alias of a backend in TASKS.")
        given: dict[str, Any] = {
            "priority": priority, "queue_name": queue_name, "run_after": run_after, "backend": backend,
            "max_attempts": max_attempts, "backoff": backoff,
        }  # fmt: skip
        return dataclasses.replace(self, **{name: value for name, value in given.items() if value is not None})


def type_of(task: AnyTask) -> str:
    """`job_type=` of the task, else the path of its function. Raises InvalidTask for what no job type can be."""
    wanted = getattr(task, "job_type", "") or from_path(task.module_path)
    try:
        return names.check_type(wanted)
    except ValueError as error:
        raise InvalidTask(f"The job type {wanted[:80]!r} of {task.module_path} {error}.") from None


def from_path(path: str) -> str:
    """`shop.tasks.send` as it is; `Shop.tasks._send` becomes `shop.tasks.send`.

    Two paths may become the same type: `definition.register` refuses the second.
    """
    return ".".join(_segment(part) for part in path.split("."))


def _segment(text: str) -> str:
    return re.sub(r"^[^a-z]+", "", re.sub(r"[^a-z0-9_]", "_", text.lower())) or "x"


def policy(task: AnyTask, options: Mapping[str, Any]) -> dict[str, Any]:
    """The `retry` of the task's jobs, checked. Raises InvalidTask."""
    if not isinstance(options, Mapping):
        raise InvalidTask(f"The OPTIONS of the backend {task.backend!r} are {shown(options)}, and no dict.")
    setting = f"TASKS[{task.backend!r}]"
    own = getattr(task, "backoff", None)
    attempts = getattr(task, "max_attempts", None)
    place = setting if attempts is None else task.module_path
    attempts = options.get("max_attempts", 1) if attempts is None else attempts
    if own is not None and attempts == 1:
        raise InvalidTask(f"{task.module_path} has a backoff and is tried only once: give max_attempts= as well.")
    try:
        retries(attempts, None)
        place = setting if own is None else task.module_path  # what is wrong now is the backoff
        return retries(attempts, options.get("backoff") if own is None else own)
    except (TypeError, ValueError, OJSError) as error:
        raise InvalidTask(f"{place}: {error}") from None


def retries(attempts: Any, backoff: Any) -> dict[str, Any]:
    """The retry policy for two options. Raises TypeError, ValueError or InvalidRetryPolicy."""
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise ValueError(f"max_attempts={shown(attempts)}: give a whole number from 1 on, the first attempt included.")
    found: dict[str, Any] = {"max_attempts": attempts}
    if isinstance(backoff, Mapping):
        if "max_attempts" in backoff:
            raise ValueError("backoff has max_attempts: give it as an option of its own.")
        found = {**backoff, **found}
    elif backoff is not None:
        found["initial_interval"] = durations.format_iso(milliseconds(backoff, "backoff"))
    attributes({"retry": found})
    return found


def start_options(task: AnyTask) -> dict[str, Any]:
    """When a job of the task is to start, as an option of `client.options`."""
    after: dt.datetime | dt.timedelta | None = task.run_after
    if after is None:
        return {}
    if isinstance(after, dt.timedelta):
        return {"delay": max(after, dt.timedelta())}
    return {"at": timezone.make_aware(after) if timezone.is_naive(after) else after}


def variant(task: AnyTask, **values: Any) -> Any:
    """A copy of a task that is not validated: it says what a stored job is like, not what one may be."""
    copied = object.__new__(type(task))
    for field in dataclasses.fields(task):
        object.__setattr__(copied, field.name, values.get(field.name, getattr(task, field.name)))
    return copied
