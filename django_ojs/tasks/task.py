"""Make a function a task with retries and a job type: `@task` under this backend makes an `OJSTask`."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from django.utils import timezone

from django_ojs.client.options import attributes, milliseconds
from django_ojs.errors import OJSError
from django_ojs.rules import durations, names
from django_ojs.tasks.compat import AnyTask, InvalidTask

if TYPE_CHECKING:
    from django_ojs.client.options import Duration

#: The first pause, which then doubles, or the retry policy in the wire's spelling (jobs 1.1) but `max_attempts`.
Backoff: TypeAlias = "Duration | Mapping[str, Any]"
#: `OPTIONS` of the backend that `policy` reads.
RETRY_OPTIONS = ("max_attempts", "backoff")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OJSTask(AnyTask):
    """A task that is run as an OJS job.

    `max_attempts` and `backoff` beat the backend's OPTIONS; without either a task is tried once, as Django's own
    backends do. `job_type` is the name on the wire, for a function that moves or a worker in another language.
    """

    max_attempts: int | None = None
    backoff: Backoff | None = dataclasses.field(default=None, hash=False)
    job_type: str = ""

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: dt.datetime | dt.timedelta | None = None,
        backend: str | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
    ) -> Self:
        """The same task with other options. A timedelta is counted from `enqueue()`, not from here."""
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
    own = getattr(task, "backoff", None)
    attempts = getattr(task, "max_attempts", None)
    attempts = options.get("max_attempts", 1) if attempts is None else attempts
    if own is not None and attempts == 1:
        raise InvalidTask(f"{task.module_path} has a backoff and is tried only once: give max_attempts= as well.")
    try:
        return retries(attempts, options.get("backoff") if own is None else own)
    except (TypeError, ValueError, OJSError) as error:
        raise InvalidTask(f"{task.module_path}: {error}") from None


def retries(attempts: Any, backoff: Any) -> dict[str, Any]:
    """The retry policy for two options. Raises TypeError, ValueError or InvalidRetryPolicy."""
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise ValueError(f"max_attempts={attempts!r}: give a whole number from 1 on, the first attempt included.")
    found: dict[str, Any] = {"max_attempts": attempts}
    if isinstance(backoff, Mapping):
        if "max_attempts" in backoff:
            raise ValueError("backoff has max_attempts: give it as an option of its own.")
        found = {**backoff, **found}
    elif backoff is not None:
        found["initial_interval"] = durations.format_iso(milliseconds(backoff, "backoff"))
    attributes({"retry": found})
    return found


def start(task: AnyTask) -> dict[str, Any]:
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
