"""Read, cancel, retry and wait for a stored job: the handle that `enqueue` returns, and its base for workflows."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import time
import uuid
from typing import TYPE_CHECKING, Any, Self

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections
from django.db.transaction import TransactionManagementError
from django.utils.functional import Promise

from django_ojs import jsontext, spellings, states
from django_ojs.client.checkpoints import Checkpoint
from django_ojs.client.otherwords import OF_HANDLE, OtherWords
from django_ojs.conf import ojs_settings
from django_ojs.database import Looks, database
from django_ojs.errors import Conflict, NotFound
from django_ojs.faults import or_migrate
from django_ojs.messages import shown
from django_ojs.rules import envelope
from django_ojs.rules.durations import MAX_MS
from django_ojs.rules.rows import END_OF_TIME
from django_ojs.states import State

if TYPE_CHECKING:
    from django_ojs.jobs.attempts import Attempt
    from django_ojs.models import JobLog, JobRow


class JobDropped(LookupError):
    """The job that was asked for is not there: an enqueue middleware dropped it."""


class JobFailed(Exception):
    """The job that was waited for ended discarded, a dead letter or not.

    The testing kit also uses it for a run that failed although its handler raised nothing, for instance because the
    result is not JSON.

    Attributes:
        handle: the job.
        error: its latest error, as `handle.error` has it; None if it has none.
    """

    def __init__(self, handle: JobHandle) -> None:
        super().__init__(handle)  # so that it can be pickled
        self.handle = handle
        self.error = handle.error

    def __str__(self) -> str:
        job, error = self.handle, self.error
        return f"Job {job.id} ({job.type}) is {job.state}" + (
            f": {error['type']}: {error['message']}" if error else "."
        )


class JobCancelled(JobFailed):
    """The job that `wait()` waited for was cancelled. It is a JobFailed, so one `except` catches both."""


class Handle(OtherWords):
    """What the handles of jobs and of workflows share: they read what is stored again, and wait for its end."""

    __slots__ = ("in_outbox", "outbox_error")
    _other_words = OF_HANDLE

    in_outbox: bool
    outbox_error: str

    @property
    def is_finished(self) -> bool:
        raise NotImplementedError

    def refresh(self) -> Self:
        raise NotImplementedError

    async def arefresh(self) -> Self:
        """`refresh` from asynchronous code."""
        return await sync_to_async(self.refresh)()

    def wait(self, timeout: float | None = None, *, raise_error: bool = True) -> Self:
        """Wait until the job or workflow is completed, and return this handle. This is for scripts.

        `timeout` is in seconds; None waits without a limit. Raises JobFailed or WorkflowFailed, with the error, if it
        failed, and JobCancelled or WorkflowCancelled if it was cancelled; with `raise_error=False` it returns the
        handle then, too. Raises TimeoutError. A database that is away for a while ends no wait. Raises
        TransactionManagementError inside an open transaction, because no worker sees the job before the commit, which
        this call would delay.
        """
        looks = self._looks(timeout)
        for pause in looks:
            if self._look(looks):
                return self._ended(raise_error)
            time.sleep(pause)
        raise self._late(timeout) from looks.error

    async def await_(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - the same contract as wait()
        *,
        raise_error: bool = True,
    ) -> Self:
        """`wait` from asynchronous code (`await` itself is Python's)."""
        looks = self._looks(timeout)
        for pause in looks:
            if await sync_to_async(self._look)(looks):
                return self._ended(raise_error)
            await asyncio.sleep(pause)
        raise self._late(timeout) from looks.error

    def _looks(self, timeout: float | None) -> Looks:
        if timeout is not None:
            if isinstance(timeout, bool) or not isinstance(timeout, int | float):
                raise TypeError(f"timeout={shown(timeout)}: give seconds, or None to wait without a limit.")
            if timeout != timeout:  # NaN
                raise ValueError(f"timeout={timeout}: give seconds, or None to wait without a limit.")
            timeout = min(max(timeout, 0), MAX_MS / 1000)  # an int may be too long for a float
        kind, name, _ = self._what()
        return Looks(f"Waiting for {kind} {name}", timeout, database(None), ojs_settings.OUTBOX)

    def _look(self, looks: Looks) -> bool:
        """Whether it is finished, as far as the database says so."""
        with looks.outlasting():
            if self.refresh().is_finished:
                return True
            self._refuse_endless()
        return False

    def _what(self) -> tuple[str, str, str]:
        """`job` or `workflow`, its id, and its type and state in a sentence."""
        raise NotImplementedError

    def _failure(self) -> Exception | None:
        """What `wait` raises for one that has ended like this."""
        raise NotImplementedError

    def _ended(self, raise_error: bool) -> Self:
        if raise_error and (failure := self._failure()) is not None:
            raise failure
        return self

    def _late(self, timeout: float | None) -> TimeoutError:
        kind, name, state = self._what()
        return TimeoutError(f"{kind.capitalize()} {name} {state} after {shown(timeout)} seconds.")

    def _refuse_in_outbox(self, verb: str) -> None:
        """Raise Conflict for a verb that has nothing to work on yet."""
        if not self.in_outbox or not self.refresh().in_outbox:
            return
        kind, name, _ = self._what()
        raise Conflict(
            f"Cannot {verb} {kind} '{name}': it is in the outbox, on its way to the database of the jobs.",
            details={"attempted": verb},
            hint="Try again when handle.refresh().in_outbox is False, or roll the transaction back.",
        )

    def _refuse_endless(self) -> None:
        """Raise RuntimeError for a job that was set aside in the outbox, and TransactionManagementError where the
        caller would wait inside the transaction that has to end first."""
        from django_ojs import outbox

        kind, name, _ = self._what()
        if self.outbox_error:
            raise RuntimeError(
                f"wait() for {kind} {name} would never end: it is set aside in the outbox. {self.outbox_error}"
            )
        if connections[outbox.place() or database(None)].in_atomic_block:
            raise TransactionManagementError(
                f"wait() for {kind} {name} inside an open transaction would never end: workers see the job, and this "
                "transaction sees their work, only after its commit. Call wait() after the atomic block. In a TestCase "
                "let inline() of django_ojs.testing, or drain() of its worker(), run the job first."
            )


class JobHandle(Handle):
    """A job. Its attributes have the values of the last read: at `enqueue`, or by `refresh()`.

    `deduplicated` is True, and `created` False, if a unique policy found an existing job. `dropped` is True if an
    enqueue middleware dropped the job; all other attributes of such a handle raise JobDropped. `in_outbox` is True
    while the job is on its way to another database (`OJS["OUTBOX"]`); its state is then the one that it will have
    there. `outbox_error` is not empty if that database has refused the job for good.

    Where a step of a durable handler has returned it, its id and type are known, and the rest is read when it is asked
    for: in an asynchronous handler `await handle.arefresh()` first.
    """

    __slots__ = ("_row", "created", "deduplicated", "dropped")

    def __init__(self, row: JobRow | None, status: str = "created") -> None:
        self._row = row
        self.created = status in ("created", "outbox")
        self.in_outbox, self.outbox_error = status == "outbox", ""
        self.deduplicated = status == "duplicate"
        self.dropped = row is None

    @property
    def row(self) -> JobRow:
        if self._row is None:
            raise JobDropped("An enqueue middleware dropped this job: look at handle.dropped before you ask for more.")
        if self._is_unread:
            self.refresh()
        return self._row

    @property
    def _is_unread(self) -> bool:
        return self._row is not None and "state" not in self._row

    @property
    def id(self) -> uuid.UUID:
        value: uuid.UUID = (self._row or self.row)["id"]
        return value

    @property
    def type(self) -> str:
        return str((self._row or self.row)["type"])

    @property
    def queue(self) -> str:
        return str(self.row["queue"])

    @property
    def state(self) -> State:
        return State(self.row["state"])

    @property
    def attempt(self) -> int:
        return int(self.row["attempt"])

    @property
    def next_attempt_at(self) -> dt.datetime | None:
        """When the next attempt may start, if the job waits for that: it failed and is retried, was snoozed, or is
        delayed. None if it is not waiting, or waits for something else than time. The wire calls the same
        `next_attempt_at`, `next_retry_at` or, before the first attempt, `scheduled_at`.
        """
        due: dt.datetime | None = self.row["due_at"]
        waits = self.state in (State.SCHEDULED, State.RETRYABLE)
        return due if waits and due is not None and due < END_OF_TIME else None

    @property
    def is_finished(self) -> bool:
        """Completed, cancelled or discarded."""
        return self.state in states.TERMINAL

    @property
    def args(self) -> list[Any]:
        value: list[Any] = jsontext.loads(self.row["args"])
        return value

    @property
    def meta(self) -> dict[str, Any]:
        return jsontext.loads(self.row["meta"]) if self.row["meta"] else {}

    @property
    def result(self) -> Any:
        """What the handler returned. None before the job has completed."""
        text = self.row["result"]
        return jsontext.loads(text) if text else None

    @property
    def errors(self) -> list[dict[str, Any]]:
        """The errors of all attempts that failed, oldest first (core section 8)."""
        return jsontext.loads(self.row["errors"]) if self.row["errors"] else []

    @property
    def error(self) -> dict[str, Any] | None:
        """The latest error. None if the job has completed."""
        return self.errors[-1] if self.errors and self.state is not State.COMPLETED else None

    def attempts(self) -> list[Attempt]:
        """Every attempt that is known, newest first: who ran it when, and what came of it.

        It is read now; the other attributes are as old as the last read. A job in the outbox has none.
        """
        from django_ojs.jobs.attempts import of_job

        return [] if self.refresh().in_outbox else of_job(self.row).attempts

    @property
    def envelope(self) -> dict[str, Any]:
        """The job as the wire shows it (core section 5). In asynchronous code, where no database is asked here, its
        workflow may have the server's id instead of its client's own."""
        from django_ojs.models.workflow import name_workflows

        row = dict(self.row)
        with contextlib.suppress(SynchronousOnlyOperation):
            name_workflows([row], database(None))
        return envelope.render(row)

    def refresh(self) -> JobHandle:
        """Read the job again. Raises NotFound once it has been pruned.

        Where a unique policy let another job stand for one that came out of the outbox, that one is read.
        """
        asked = self.id
        self._row, self.in_outbox, self.outbox_error = _load(asked)
        if self.id != asked:
            self.created, self.deduplicated = False, True
        return self

    def logs(self, *, attempt: int | None = None, level: str | int = "debug") -> list[JobLog]:
        """What the handler has logged, oldest first: of one attempt or of all, from a level on. A row with `dropped`
        says how many lines are missing at its place."""
        from django_ojs.jobs import joblog

        lowest = log_level(level)
        if attempt is not None and (isinstance(attempt, bool) or not isinstance(attempt, int)):
            raise TypeError(f"attempt={shown(attempt)}: give the number of an attempt, or leave it out for all.")
        found: list[JobLog] = []
        after = None
        while True:
            page = joblog.read(self.id, attempt=attempt, level=lowest, after=after)
            found += page.lines
            after = page.cursor
            if not page.has_more:
                return found

    def cancel(self, reason: str = "") -> JobHandle:
        """Stop the job (core 7.6). Raises InvalidStateTransition if it is completed or discarded already, and
        Conflict while it is in the outbox."""
        from django_ojs.jobs.cancel import cancel_one

        self._refuse_in_outbox("cancel")
        self._row = cancel_one(self.id, reason=reason_text(reason)).row
        return self

    def retry(self, *, from_step: str = "") -> JobHandle:
        """Make a discarded job available again; with `from_step` a failed or waiting durable job, whose handler does
        this step and all later ones again.

        Raises InvalidStateTransition for a job in another state, and NotFound where there is no such step."""
        from django_ojs.jobs.retry import restart_from, retry_one

        self._refuse_in_outbox("retry")
        self._row = restart_from(self.id, from_step) if from_step else retry_one(self.id, any_discarded=True)
        return self

    aattempts = sync_to_async(attempts)
    alogs = sync_to_async(logs)

    def checkpoint(self) -> Checkpoint | None:
        """What the job has saved last; None if it has no checkpoint. Reads the database."""
        from django_ojs.jobs import checkpoints

        if self.in_outbox and self.refresh().in_outbox:
            return None
        found = checkpoints.read(self.id)
        if found is None:
            return None
        return Checkpoint(found.state, found.sequence, found.created_at, found.step_index, found.metadata)

    acancel = sync_to_async(cancel)
    aretry = sync_to_async(retry)
    acheckpoint = sync_to_async(checkpoint)

    def _what(self) -> tuple[str, str, str]:
        return "job", str(self.id), f"({self.type}) is still {self.state}"

    def _late(self, timeout: float | None) -> TimeoutError:
        error = super()._late(timeout)
        if self.state is State.AVAILABLE:
            error.add_note("No worker has it now: manage.py ojs_status says whether one runs and serves its queue.")
        return error

    def _failure(self) -> JobFailed | None:
        match self.state:
            case State.CANCELLED:
                return JobCancelled(self)
            case State.DISCARDED:
                return JobFailed(self)
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and not self.dropped and not other.dropped and self.id == other.id

    def __hash__(self) -> int:
        return hash(None if self.dropped else self.id)

    def __repr__(self) -> str:
        if self.dropped:
            return "<job dropped>"
        if self._is_unread:
            return f"<job {self.type} {self.id}>"
        return f"<job {self.type} {self.id}: {'in the outbox' if self.in_outbox else self.state}>"


def get_job(id: str | uuid.UUID) -> JobHandle:
    """Return the job with this id. Raises NotFound."""
    key = key_of("job", id)
    row, in_outbox, error = or_migrate(_load)(key)
    handle = JobHandle(row, "outbox" if in_outbox else "created" if row["id"] == key else "duplicate")
    handle.outbox_error = error
    return handle


def reason_text(reason: object) -> str:
    """Why something is cancelled. Raises TypeError for what is no text; None says nothing."""
    if isinstance(reason, Promise):
        return str(reason)
    if reason is not None and not isinstance(reason, str):
        raise TypeError(f"reason={shown(reason)}: give a text.")
    return reason or ""


def log_level(level: object) -> int:
    """The number of a level. Raises ValueError for an unknown word, and TypeError for what is neither."""
    if isinstance(level, str):
        return spellings.read_log_level(level)
    if isinstance(level, bool) or not isinstance(level, int):
        raise TypeError(f"level={shown(level)}: give a word such as 'info', or a number of Python's logging.")
    return level


def key_of(kind: str, id: object) -> uuid.UUID:
    """The primary key that an id stands for, whatever a caller has in its place. Raises NotFound where it is none."""
    try:
        return id if isinstance(id, uuid.UUID) else uuid.UUID(id if isinstance(id, str) else shown(id))
    except ValueError:
        raise NotFound.resource(kind, id[:128] if isinstance(id, str) else shown(id)) from None


def _load(job_id: uuid.UUID) -> tuple[JobRow, bool, str]:
    """The job, whether it is in the outbox still, and why it will stay there. Raises NotFound."""
    from django_ojs import outbox
    from django_ojs.jobs.read import info

    try:
        return info(job_id), False, ""
    except NotFound:
        if ojs_settings.OUTBOX is None:
            raise
    entry = outbox.find(job_id)
    if entry is None or entry.kind != entry.Kind.JOB:  # it may have been on its way between the two looks
        return info(outbox.existing_job(job_id) or job_id), False, ""
    return outbox.job_row(entry), True, entry.error if entry.aside else ""


aget_job = sync_to_async(get_job)
