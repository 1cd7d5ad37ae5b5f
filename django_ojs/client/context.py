"""Let a handler know its run: its job, its time, its progress, its checkpoint, its steps (`JobContext`)."""

from __future__ import annotations

import datetime as dt
import logging
import math
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from django_ojs import jsontext
from django_ojs.client.checkpoints import CheckpointLink, CheckpointMethods
from django_ojs.client.handle import log_level
from django_ojs.client.options import check_json
from django_ojs.client.otherwords import OF_CONTEXT, OtherWords
from django_ojs.client.steps import StepMethods
from django_ojs.messages import shown
from django_ojs.rules import envelope, errorobjects
from django_ojs.rules.rows import is_last_attempt

if TYPE_CHECKING:
    from django_ojs.models import JobRow


class ProgressValue(NamedTuple):
    """The newest progress report of a handler; without `data` the data that it has reported before stay."""

    percent: float
    message: str
    data: dict[str, Any] | None = None


class Link(CheckpointLink, Protocol):
    """How a context reaches its worker. These calls return at once; the worker's heartbeat thread does the work."""

    def heartbeat(self, context: JobContext) -> None: ...

    def progress(self, context: JobContext) -> None: ...


class NoLink:
    """The link of a context without a worker: tests make such contexts. Nothing is sent to the server, and the context
    keeps its checkpoint itself."""

    def heartbeat(self, context: JobContext) -> None:
        return None

    def progress(self, context: JobContext) -> None:
        return None

    def save_checkpoint(self, context: JobContext, state: Any) -> int:
        return context.checkpoint_sequence + 1

    def clear_checkpoint(self, context: JobContext) -> bool:
        return context.has_checkpoint


class JobContext(CheckpointMethods, StepMethods, OtherWords):
    """One run of one job. Safe to use from the handler's thread or task.

    Attributes: `id`, `type`, `queue`, `attempt` (1 for the first; it counts every run, also those that `max_attempts`
    does not count: ask `is_last_attempt` instead of comparing the two), `max_attempts`, `job` (the envelope as a dict),
    `meta`, `metadata` (a dict for middlewares and handler, forgotten after the run), `log`.
    """

    _other_words = OF_CONTEXT
    _link: Link
    #: For the worker, where it stores what handlers log: takes lines, keeps them, and those of this run.
    take_line: Any = None
    collector: Any = None
    run_log: Any = None
    #: For the worker: writes the log line of a run whose handler has returned; takes what became of it.
    tell_end: Any = None

    def __init__(self, row: JobRow, link: Link | None = None) -> None:
        self._row, self._link = row, link or NoLink()
        self._begin_checkpoints()
        self.id: uuid.UUID = row["id"]
        self.type: str = row["type"]
        self.queue: str = row["queue"]
        self.attempt: int = row["attempt"]
        self.max_attempts: int = row["max_attempts"]
        self.metadata: dict[str, Any] = {}
        self.result: Any = None
        self._cancelled = False
        self.saw_cancel = False  #: the handler has read `is_cancelled` when it was true
        self._progress: ProgressValue | None = None
        self._progress_lock = threading.Lock()

    @cached_property
    def job(self) -> dict[str, Any]:
        """The envelope, as FETCH returns it (core section 5)."""
        return envelope.render(self.whole_row)

    @cached_property
    def args(self) -> list[Any]:
        value: list[Any] = jsontext.loads(self._row["args"])
        return value

    @cached_property
    def meta(self) -> dict[str, Any]:
        return jsontext.loads(self._row["meta"]) if self._row["meta"] else {}

    @property
    def is_last_attempt(self) -> bool:
        """Whether no attempt follows if this one fails, whatever its error: `max_attempts` is reached.

        Runs that were snoozed, that were given back before the handler began, during which the database went away, or
        whose worker died do not count. An attempt that is not the last may end the job all the same: by an error that
        is not retried, by `Fail` or `Discard`, or because the time of the job as a whole (`total_timeout`) is over.
        """
        return is_last_attempt(self._row)

    @property
    def workflow_id(self) -> str | None:
        """The workflow that the job belongs to."""
        found = self._row.get("lineage", {}).get("workflow_id") or self._row.get("workflow_id")
        return None if found is None else str(found)

    @cached_property
    def parent_results(self) -> ParentResults:
        """The results of the jobs before this one in its workflow. Empty if there is none."""
        lineage = self._row.get("lineage", {})
        return ParentResults(lineage.get("parent_results", ()), lineage.get("parent_results_by_step", {}))

    @cached_property
    def parent_errors(self) -> dict[str, dict[str, Any]]:
        """For the callback of a batch: the errors of the jobs that failed, by their place ("0", "1", ...)."""
        return dict(self._row.get("lineage", {}).get("parent_errors", {}))

    @property
    def row(self) -> JobRow:
        return self._row

    @cached_property
    def line(self) -> dict[str, str]:
        """What jobs that this run enqueues say of where they come from: this job, and the first of its line."""
        job = str(self.id)
        given = self.job if self._row.get("extra") else {}
        root = given.get("root_id") or given.get("parent_id")
        return {"parent_id": job, "root_id": root if isinstance(root, str) and root else job}

    @property
    def whole_row(self) -> JobRow:
        """The row with every column that an envelope shows, and times as datetimes."""
        return _whole(self._row)

    @cached_property
    def log(self) -> JobLogger:
        """The logger `django_ojs.jobs`, with the job's id, type, queue and attempt on every record. To be called, too:
        `context.log("charged", level="info", order=17)`. What it logs is stored with the job (docs/logs.md)."""
        return JobLogger(self)

    @property
    def is_cancelled(self) -> bool:
        """Whether the outcome of this run no longer counts: the job was cancelled, has timed out or was lost to
        another worker, or this worker stops. A handler that runs long should check it now and then, and return.
        """
        self.saw_cancel = self.saw_cancel or self._cancelled
        return self._cancelled

    def heartbeat(self) -> bool:
        """Renew the reservation of this job in the background, for the time that its claim was granted.

        Only jobs with a `visibility_timeout` or a `heartbeat_timeout` of their own need this; the worker renews all
        others by itself. It never blocks, so it works in coroutines, too. Returns False if the handler should stop
        (`is_cancelled`).
        """
        self._link.heartbeat(self)
        return not self.is_cancelled

    def progress(self, percent: float, message: str = "", *, data: Mapping[str, Any] | None = None) -> bool:
        """Report how far the handler is, from 0 to 100 (orchestration 5.1), and renew the reservation.

        It never blocks, in coroutines neither, may be called from any thread, and as often as the handler likes: once
        a second, and once more at the end, the worker stores the newest report with the job and sends it as a
        `job.progress` event. It cuts a message of more than 1,000 characters. `data` is an object of the handler's
        own, of at most 4,096 bytes of JSON; a report without it leaves the data of the one before. Returns what
        `heartbeat()` returns.

        Raises ValueError for a `percent` that is no number and for `data` that are too large, and TypeError for `data`
        that are no object of JSON values.
        """
        try:
            percent = float(percent)
        except (TypeError, ValueError, OverflowError):
            percent = math.nan
        if math.isnan(percent):
            raise ValueError("Progress is a number from 0 to 100, and this is none.")
        message = errorobjects.progress_message(message)  # here, where what its `__str__` raises reaches the handler
        own = None if data is None else _progress_data(data)
        with self._progress_lock:
            first = self._progress is None
            own = self._progress.data if own is None and self._progress is not None else own
            self._progress = ProgressValue(min(max(percent, 0.0), 100.0), message, own)
        if first:  # else the worker knows already that there is a report
            self._link.progress(self)
        return not self.is_cancelled

    def take_progress(self) -> ProgressValue | None:
        """For the worker: the newest progress report, once."""
        with self._progress_lock:
            progress, self._progress = self._progress, None
        return progress

    def give_back_progress(self, progress: ProgressValue) -> None:
        """For the worker: what it could not write, unless the handler has reported anew."""
        with self._progress_lock:
            newer = self._progress or progress
            self._progress = newer._replace(data=progress.data) if newer.data is None else newer

    def set_result(self, value: Any) -> None:
        """Set the result of the job, for a handler that returns None."""
        self.result = value

    def cancel(self) -> None:
        """For the worker: let `is_cancelled` be true from now on."""
        self._cancelled = True


def _progress_data(given: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a report as JSON has them by now: the handler may change its own while the report waits."""
    if not isinstance(given, Mapping):
        raise TypeError(f"The data of a progress report are an object, a dict, and not {shown(given)}.")
    check_json(dict(given), "data")
    if problem := errorobjects.fault_of_progress_data(given):
        raise ValueError(f"The data of a progress report {problem}.")
    value: dict[str, Any] = jsontext.loads(jsontext.dumps(dict(given)))
    return value


class ParentResults(Mapping[str, Any]):
    """The results of earlier jobs by their place, as `"0"` or `0`, counted from the end as `-1`, or by step id.

    A job without a result, and one that failed, reads as None.
    """

    def __init__(self, values: Sequence[Any], by_step: Mapping[str, Any]) -> None:
        self._values, self._by_step = tuple(values), dict(by_step)

    def __getitem__(self, key: str | int) -> Any:
        if isinstance(key, str) and not key.isdecimal() and key in self._by_step:
            return self._by_step[key]
        try:
            return self._values[int(key)]
        except (TypeError, ValueError, IndexError):
            raise KeyError(key) from None

    def __iter__(self) -> Iterator[str]:
        return map(str, range(len(self._values)))

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"ParentResults({list(self._values)!r})"


#: What a worker needs of a job it claimed: all that its envelope shows, and the terms of the claim.
CONTEXT_COLUMNS = (
    "id", "type", "queue", "state", "priority", "args", "meta", "extra", "attempt", "max_attempts", "timeout_ms",
    "grace_ms", "visibility_ms", "deadline_at", "created_at", "enqueued_at", "started_at", "activated_at",
    "retry_delay_ms", "errors", "worker_id", "trace_id", "workflow_id", "lease_ms", "heartbeat_ms", "resumable",
    "uncounted", "retry",
)  # fmt: skip
#: What an envelope reads and no job has that was just claimed.
_NEVER = {"due_at": None, "finished_at": None, "result": None}


def _whole(row: JobRow) -> JobRow:
    """The row as `envelope.render` takes it; times that were claimed as the database has them are read only here."""
    times = {name: instant(value) for name, value in row.items() if name.endswith("_at") and value is not None}
    return {**_NEVER, **row, **times}


def time_left(row: JobRow) -> float:
    """Seconds between the claim and the end of the job's time as a whole; inf where that has no end."""
    if row["deadline_at"] is None:
        return math.inf
    return (instant(row["deadline_at"]) - instant(row["started_at"])).total_seconds()


def instant(value: str | dt.datetime) -> dt.datetime:
    """Text, or on versions of SQLite that tell a column's type what Django made of it: both without a zone, in UTC."""
    moment = dt.datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the job's fields to a record without losing those that the caller passes as `extra`.

    Its lines are stored with the job whatever the level of the Python logger is; `OJS["JOB_LOG_LEVEL"]` counts.
    """

    def __init__(self, context: JobContext) -> None:
        super().__init__(logging.getLogger("django_ojs.jobs"), log_fields(context.row))
        self._context = context

    def __call__(self, message: str, /, *, level: str | int = "info", **fields: Any) -> None:
        """Log a message with fields: `context.log("charged", order=17)`. Raises ValueError for an unknown level."""
        number = log_level(level)
        self._log_line(number, message, (), {"extra": fields, "stacklevel": 2})

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        self._log_line(level, msg, args, kwargs)

    def _log_line(self, level: int, msg: object, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
        """Give the line to the worker that stores it, and to Python's logging."""
        fields = dict(kwargs.get("extra") or {})
        if self._context.take_line is not None:
            error = kwargs.get("exc_info")
            error = sys.exc_info() if error and not isinstance(error, BaseException | tuple) else error
            text = _formatted(msg, args)
            self._context.take_line(self._context, level, self.logger.name, text, fields, error)
            fields["ojs_taken"] = True
        if self.isEnabledFor(level):
            kwargs["extra"] = {name: value for name, value in fields.items() if name not in _RESERVED}
            kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
            super().log(level, msg, *args, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


#: Names that a record has already: Python refuses fields that are called so.
_RESERVED = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


def _formatted(msg: object, args: tuple[object, ...]) -> object:
    """The message as Python's logging makes it; where that fails the message alone."""
    if not args:
        return msg
    try:
        return logging.makeLogRecord({"msg": msg, "args": args[0] if _is_mapping(args) else args}).getMessage()
    except Exception:  # noqa: BLE001 - a fault of the call, which Python's logging tells of
        return msg


def _is_mapping(args: tuple[object, ...]) -> bool:
    return len(args) == 1 and isinstance(args[0], Mapping) and bool(args[0])


def log_fields(row: JobRow) -> dict[str, Any]:
    """What every log record about a job carries. Never its arguments: they may be secrets."""
    return {"job_id": str(row["id"]), "job_type": row["type"], "queue": row["queue"], "attempt": row["attempt"]}
