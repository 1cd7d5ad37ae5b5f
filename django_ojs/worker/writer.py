"""Report the outcomes of runs to the server, in batches, and do what follows when they are stored.

An outcome whose job another transaction has locked waits, and keeps no other waiting. A worker that stops does not wait
for a database that is away. The outcomes that it could not report would be
forgotten, and their jobs run again: a file in `WORKER_SPOOL` keeps them until a worker starts there again. Each report
names worker and attempt, so one that comes too late, or twice, changes nothing.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import os
import queue
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from django.db import Error, connections

from django_ojs import jsontext
from django_ojs.client.context import JobContext, ProgressValue
from django_ojs.conf import ojs_settings
from django_ojs.database import answers
from django_ojs.errors import InvalidStateTransition, NotFound, OJSError
from django_ojs.faults import DatabaseFault, fault_of, is_about_data, is_contention, passes
from django_ojs.groupcommit import LEFT_OUT
from django_ojs.guard import get_logger, may_fail
from django_ojs.jobs import progress
from django_ojs.jobs.finish import Ack, Failure, ack, ack_free, fail, fail_free
from django_ojs.messages import jobs
from django_ojs.packets import MOST_CHARACTERS
from django_ojs.parts import PATIENCE
from django_ojs.rules import errorobjects
from django_ojs.scheduler.service import RESTART, GaveUp, Service, persist
from django_ojs.store import store_of
from django_ojs.worker.execution import tidy
from django_ojs.worker.joblogs import LogWriter
from django_ojs.worker.runs import Acknowledged, JobRun, RunOutcome, last_progress, report

logger = get_logger(__name__)

COLLECT_SECONDS = 0.005  #: how long the first outcome of a batch waits for others
MAX_BATCH = 500
LOCKED_PAUSE = 0.1  #: seconds until jobs that another transaction has locked are tried again
LOCKED_SECONDS = 0.5  #: how long one look at those may take: other outcomes wait meanwhile
LARGE = 100_000  #: characters of a report that may be what ends a connection
SHORTEST = 200  #: characters of each text in the shortest form of an error
SUFFIX = ".outcomes"
UNREADABLE = ".unreadable"  #: added to the name of a file that is no list of outcomes
UNDELIVERED = ".undelivered"  #: added to the name of a file with an outcome that the database does not take

_KINDS: dict[str, type[Ack] | type[Failure]] = {"ack": Ack, "fail": Failure}

#: What a definition has as `after`: called with the contexts of runs whose outcomes were stored, or refused.
After = Callable[[Sequence[JobContext]], None]

R = TypeVar("R", bound=Ack | Failure)
#: Reports to the server, given the database.
Submit: TypeAlias = Callable[[Sequence[Ack | Failure], str], Sequence[Any]]
#: Held while the worker writes a claim or a report: see `write_lock_for`.
WriteLock: TypeAlias = contextlib.AbstractContextManager[Any]


def write_lock_for(using: str) -> WriteLock:
    """The lock that lets the claimer and the writer of one worker write one after the other on SQLite.

    SQLite has one write lock of its own. Who finds that taken sleeps for 1, 2, 5, 10 and more milliseconds between two
    looks, however soon it becomes free.
    """
    return FairLock() if connections[using].vendor == "sqlite" else contextlib.nullcontext()


class FairLock:
    """A lock that goes to the thread that waits for it, even if the one that has it wants it again at once.

    A plain lock would go to that one. The claimer, which may claim twice in a row, would keep the writer waiting, and
    thousands of jobs would have ended whose outcomes are not known.
    """

    def __init__(self) -> None:
        self._lock, self._door = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._door:  # who waits for the lock holds it, so the next one waits here
            self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()

    def locked(self) -> bool:
        """Whether a thread has it."""
        return self._lock.locked()

    def is_wanted(self) -> bool:
        """Whether a thread waits for it."""
        return self._door.locked()


class Writer(Service):
    """Collects outcomes and reports them, in one thread. Calls `written` with the runs that it is done with."""

    name = "writer"

    def __init__(
        self, worker_id: str, using: str, written: Callable[[list[JobRun]], None], on_crash: Callable[[str], None],
        write_lock: WriteLock | None = None, logs: LogWriter | None = None,
    ) -> None:  # fmt: skip
        super().__init__(on_crash)
        self._logs = logs
        self._worker_id, self._using, self._written = worker_id, using, written
        self._inbox: queue.SimpleQueue[Sequence[tuple[JobRun, RunOutcome]] | None] = queue.SimpleQueue()
        self._impatient = self.event()
        self._write_lock = write_lock or contextlib.nullcontext()
        self._unreported: list[Ack | Failure] = []
        self._hindrance = ""  #: why they could not be reported
        self.completed = 0  #: jobs completed by this worker so far

    def put(self, done: Sequence[tuple[JobRun, RunOutcome]]) -> None:
        if done:
            self._inbox.put(done)

    def wake(self) -> None:
        self._inbox.put(None)

    def give_up(self) -> None:
        """Wait no longer for a database that is away: the server takes the jobs back when their reservations end."""
        self._impatient.set()

    def run(self) -> None:
        """Write batches until `stop()`, and what had been put before it; keep what could not be written.

        An outcome whose job another transaction has locked waits until that lets go, and no other waits for it.
        """
        locked: list[tuple[JobRun, RunOutcome]] = []
        try:
            while locked or not (self.stopping.is_set() and self._inbox.empty()):
                batch, later = _one_for_each_job(locked, self._collect(waits=not locked))
                self._notify_written(batch, left := self.write(batch))
                locked = [*self._again(locked), *left, *later]
                if locked and self._impatient.is_set():
                    self._leave(locked)
                    locked = []
        finally:
            self._keep_unreported()

    def _notify_written(
        self, batch: Sequence[tuple[JobRun, RunOutcome]], left: Sequence[tuple[JobRun, RunOutcome]]
    ) -> None:
        """Pass on the runs of a batch that are done with: all but those that are `left`."""
        ids = {id(run) for run, _ in left}
        self._written([run for run, _ in batch if id(run) not in ids])

    def _again(self, locked: Sequence[tuple[JobRun, RunOutcome]]) -> list[tuple[JobRun, RunOutcome]]:
        """Report those whose jobs were locked; return those that still wait. Of several outcomes of a job the first
        comes first."""
        batch, later = _one_for_each_job((), locked)
        tried: list[tuple[JobRun, RunOutcome]] = []
        untried = self._in_parts(batch, tried, time.monotonic() + LOCKED_SECONDS)
        return [*untried, *tried, *later]

    def _in_parts(
        self, batch: Sequence[tuple[JobRun, RunOutcome]], tried: list[tuple[JobRun, RunOutcome]], end: float
    ) -> list[tuple[JobRun, RunOutcome]]:  # fmt: skip
        """Report these together, and where that brought nothing in halves: what is locked may be more than a job, such
        as the workflow that some of them belong to. Those that still wait are added to `tried`; returns those for which
        there was no time until the instant `end`."""
        if not batch or time.monotonic() > end:
            return [*batch]
        left = self.write(batch)
        self._notify_written(batch, left)
        if len(left) < len(batch) or len(left) == 1:
            tried += left
            return []
        half = len(left) // 2
        return self._in_parts(left[:half], tried, end) + self._in_parts(left[half:], tried, end)

    def _leave(self, locked: Sequence[tuple[JobRun, RunOutcome]]) -> None:
        """Wait no longer: these outcomes could not be reported."""
        self._unreported += self._reports(locked)
        self._hindrance = self._hindrance or "another transaction has locked their jobs"
        self._written([run for run, _ in locked])

    def _collect(self, *, waits: bool = True) -> list[tuple[JobRun, RunOutcome]]:
        """The outcomes that have come in. After the first one it sleeps for a moment in which more may come, and is not
        woken for each. If it `waits`, it waits for the first one for as long as it takes."""
        batch: list[tuple[JobRun, RunOutcome]] = []
        try:
            with self.resting():
                first = self._inbox.get(timeout=None if waits else LOCKED_PAUSE)
        except queue.Empty:
            return batch
        if first is None:
            return batch
        batch += first
        if len(batch) < MAX_BATCH and not self.stopping.is_set():
            time.sleep(COLLECT_SECONDS)
        while len(batch) < MAX_BATCH:
            try:
                more = self._inbox.get_nowait()
            except queue.Empty:
                break
            if more is not None:
                batch += more
        return batch

    def write(self, batch: Sequence[tuple[JobRun, RunOutcome]]) -> list[tuple[JobRun, RunOutcome]]:
        """Report these outcomes now, in this thread; return those whose jobs another transaction has locked: they are
        to be reported again. A job must not be among them twice."""
        if self._logs is not None and any(run.context.run_log is not None for run, _ in batch):
            self._logs.flush()  # whoever hears of the end of a job finds its lines
        locked = self._report_progress(batch)
        reports = self._reports([item for item in batch if item[0].id not in locked] if locked else batch)
        acks = [done for done in reports if isinstance(done, Ack)]
        failures = [done for done in reports if isinstance(done, Failure)]
        rejected = self._send(acks, locked)
        failures += [_as_failure(done, error) for done, error in rejected]
        for done, error in self._send(failures, locked):
            if not (done.requeue and isinstance(error, NotFound)):  # what is gone need not be handed back
                logger.error("The outcome of job %s was refused: %s", done.job_id, error)
        left = [item for item in batch if item[0].id in locked] if locked else []
        self.completed += _number_acknowledged(batch) - _number_acknowledged(left)
        return left

    def _reports(self, batch: Sequence[tuple[JobRun, RunOutcome]]) -> list[Ack | Failure]:
        """What the server is to hear of these runs."""
        reports = [
            report(outcome, run.id, self._worker_id, run.attempt, in_workflow=run.context.workflow_id is not None)
            for run, outcome in batch
        ]
        return [done for done in reports if done is not None]

    def _keep_unreported(self) -> None:
        """Log by id which outcomes the server does not know, and put them into the spool where there is one."""
        if not self._unreported:
            return
        ids = ", ".join(f"{report.job_id} (attempt {report.attempt})" for report in self._unreported)
        count = jobs(len(self._unreported))
        if not ojs_settings.WORKER_SPOOL:
            logger.error("The outcomes of %s are lost, %s: %s.", count, self._hindrance, ids)
            return
        try:
            path = keep_reports(self._unreported, Path(ojs_settings.WORKER_SPOOL))
        except OSError:
            logger.exception("The outcomes of %s are lost, %s: %s.", count, self._hindrance, ids)
        else:
            logger.error("The outcomes of %s are kept in %s, %s: %s.", count, path, self._hindrance, ids)

    def _report_progress(self, batch: Sequence[tuple[JobRun, RunOutcome]]) -> set[uuid.UUID]:
        """Write the last progress of handlers before their jobs end. A report that is lost costs no outcome; one whose
        job another transaction has locked is kept, and the ids of those jobs are returned."""
        contexts = {run.id: run.context for run, _ in batch}
        reports = last_progress(contexts.values())
        if not reports:
            return set()
        try:
            found = persist(lambda: progress.report_free(reports, using=self._using), self._using, self._impatient)
        except GaveUp:
            logger.error("The last progress of %s could not be written: the database is away.", jobs(len(reports)))
            return set()
        except Exception:
            logger.exception("The last progress of %s could not be written.", jobs(len(reports)))
            return set()
        locked = [item for item, known in zip(reports, found, strict=True) if known is LEFT_OUT]
        for item in locked:
            contexts[item.job_id].give_back_progress(ProgressValue(item.percent or 0.0, item.message or "", item.data))
        return {item.job_id for item in locked}

    def _send(self, reports: Sequence[R], locked: set[uuid.UUID]) -> list[tuple[R, OJSError]]:
        """Report; returns what was refused for another reason than that the job is no longer ours. The ids of jobs that
        another transaction has locked are added to `locked`."""
        if not reports:
            return []
        refused = []
        for done, answer in _answered_in_pieces(reports, self._persist):
            if answer is LEFT_OUT:
                locked.add(done.job_id)
            elif isinstance(answer, InvalidStateTransition):
                logger.info("Job %s was no longer ours when it ended: %s", done.job_id, answer)
            elif isinstance(answer, OJSError):
                refused.append((done, answer))
            elif isinstance(done, Ack) and answer is not None:
                self.completed += 1
        return refused

    def _persist(self, reports: Sequence[Ack | Failure]) -> Sequence[Any]:
        """The answers to these reports; without any to all of them where the database is away and nothing waits.

        Raises `ReportsRefused` where not the database is away, but these reports are too much for it.
        """

        def act() -> Sequence[Any]:
            with self._write_lock:
                return _report_or_refuse(reports, _report_free, self._using)

        try:
            return persist(act, self._using, self._impatient)
        except GaveUp:
            self._unreported += reports
            self._hindrance = "the database is away"
            return [None] * len(reports)


def _number_acknowledged(batch: Sequence[tuple[JobRun, RunOutcome]]) -> int:
    return sum(isinstance(outcome, Acknowledged) for _, outcome in batch)


class ReportsRefused(Exception):
    """The database is there, and does not take these reports."""


class ResultNotStored(OJSError):
    """The database does not take a result that is within the limit (`MAX_RESULT_BYTES`)."""

    code = "result_not_stored"


def _report(reports: Sequence[Ack | Failure], using: str) -> Sequence[Any]:
    """ACK or FAIL for reports of one kind; the server's answer to each."""
    if isinstance(reports[0], Ack):
        return ack(cast("Sequence[Ack]", reports), columns=("id",), using=using)
    return fail(cast("Sequence[Failure]", reports), using=using)


def _report_free(reports: Sequence[Ack | Failure], using: str) -> Sequence[Any]:
    """`_report`, with `LEFT_OUT` for the answer of a job that another transaction has locked, or of all where that has
    locked what all of them need. In a transaction of the caller's, and where rows cannot be locked, it waits."""
    if connections[using].in_atomic_block or not store_of(using).skip_locked:
        return _report(reports, using)
    try:
        if isinstance(reports[0], Ack):
            return ack_free(cast("Sequence[Ack]", reports), columns=("id",), using=using)
        return fail_free(cast("Sequence[Failure]", reports), using=using)
    except Error as error:
        if is_contention(error):
            return [LEFT_OUT] * len(reports)
        raise


def _report_or_refuse(reports: Sequence[Ack | Failure], act: Submit, using: str) -> Sequence[Any]:
    """`act`; raises `ReportsRefused` where the database can be reached and does not take these reports.

    A database may end the connection on which too much comes, and say no more than that it is gone: so does one that is
    restarted. Where it can be reached, and fails the next time in the same way, these reports are taken for the cause,
    if they are several, and may be tried in parts, or if one is large.
    """
    failed_before = False
    while True:
        try:
            return act(reports, using)
        except Error as error:
            if is_about_data(error):
                raise ReportsRefused from error
            suspicious = _may_be_the_cause(reports, error) and answers(using)
            if suspicious and failed_before:
                raise ReportsRefused from error
            if failed_before or not suspicious:
                raise
            failed_before = True


def _may_be_the_cause(reports: Sequence[Ack | Failure], error: Error) -> bool:
    """Whether an error of a database that answers may be because of what these reports bring, or how many they are.
    One report alone is given up for that (`_answered_alone`), so there only a connection that was cut counts."""
    fault = fault_of(error)
    if len(reports) > 1:
        return fault in (DatabaseFault.AWAY, DatabaseFault.BROKEN, DatabaseFault.SLOW)
    return fault is DatabaseFault.AWAY and _size(reports[0]) > LARGE


def _answered_in_pieces(reports: Sequence[R], submit: Callable[[Sequence[R]], Sequence[Any]]) -> list[tuple[R, Any]]:
    """`_answered`, in batches that are not larger than databases take at once (MariaDB: `max_allowed_packet`)."""
    pairs: list[tuple[R, Any]] = []
    batch: list[R] = []
    size = 0
    for done in reports:
        weight = _size(done)
        if batch and size + weight > MOST_CHARACTERS:
            pairs += _answered(batch, submit)
            batch, size = [], 0
        batch.append(done)
        size += weight
    return pairs + _answered(batch, submit)


def _answered(reports: Sequence[R], submit: Callable[[Sequence[R]], Sequence[Any]]) -> list[tuple[R, Any]]:
    """Each of these reports with its answer. One that cannot be written costs no other: a result is answered with an
    error, and a failure is written in its shortest form. What cannot be written even so is logged and left out.

    The server stores some reports before the others. Those whose answer is that the database failed after that are
    reported again, for the job's sake: one that is not stored after all would be run a second time.
    """
    if not reports:
        return []
    try:
        given = submit(reports)
    except Exception as error:  # a driver may refuse a text with an error of its own
        if passes(error):
            raise
        if len(reports) > 1:  # one of them is poison
            half = len(reports) // 2
            return _answered(reports[:half], submit) + _answered(reports[half:], submit)
        return _answered_alone(reports[0], submit, error)
    pairs: list[tuple[R, Any]] = []
    failed = []
    for done, answer in zip(reports, given, strict=True):
        if isinstance(answer, Exception) and answer is not LEFT_OUT and not isinstance(answer, OJSError):
            failed.append(done)  # no answer of the server's to the report, but an error that kept it from being stored
        else:
            pairs.append((done, answer))
    return pairs + _answered(failed, submit)


def _answered_alone(done: R, submit: Callable[[Sequence[R]], Sequence[Any]], error: Exception) -> list[tuple[R, Any]]:
    """What becomes of a report that cannot be written as it is, because of this error."""
    cause = error.__cause__ if isinstance(error, ReportsRefused) else error
    logger.error("The outcome of job %s could not be written.", done.job_id, exc_info=cause)
    if isinstance(done, Ack):
        if done.result is None or not (isinstance(error, ReportsRefused | ValueError) or is_about_data(error)):
            return []
        size = jsontext.byte_length(done.result)
        message = f"The database does not take the result of {size} bytes ({type(cause).__name__}): {_HINT}"
        return [(done, ResultNotStored(message))]
    if done.error is None:
        return []
    shortest = dataclasses.replace(done, error=_shortest(done.error))
    try:
        (answer,) = submit([cast("R", shortest)])
    except Exception as again:
        if passes(again):
            raise
        logger.exception("Nor could the shortest form of it.")
        return []
    return [(done, answer)]


_HINT = "store it elsewhere and return a reference."


def _shortest(error: Any) -> dict[str, Any]:
    """What is left of an error that the database does not take: type, code, the beginning of its message, in ASCII."""
    given = error if isinstance(error, dict) else {}

    def text(name: str) -> str:
        return (
            errorobjects.cut(str(given.get(name) or ""), SHORTEST)
            .encode("ascii", "replace")
            .decode()
            .replace("\0", "?")
        )

    kind, code = text("type") or "handler_error", text("code") or text("type") or "handler_error"
    message = f"{text('message') or kind} [the rest could not be stored]"
    short = {"type": kind, "code": code, "message": message}
    return short | ({"retryable": given["retryable"]} if isinstance(given.get("retryable"), bool) else {})


def _size(report: Ack | Failure) -> int:
    """About how many characters a report brings to the database. An error is cut before, a result is not."""
    if isinstance(report, Ack):
        return len(report.result or "")
    return len(report.error.get("message", "")) if isinstance(report.error, dict) else 0


def _as_failure(done: Ack, error: OJSError) -> Failure:
    """A job whose result the server refuses to store fails instead, or it would run again and again."""
    problem = {"type": type(error).__name__, "code": error.error_code, "message": str(error)}
    return Failure(done.job_id, problem, done.worker_id, done.attempt)


def _one_for_each_job(
    locked: Sequence[tuple[JobRun, RunOutcome]], batch: Sequence[tuple[JobRun, RunOutcome]]
) -> tuple[list[tuple[JobRun, RunOutcome]], list[tuple[JobRun, RunOutcome]]]:
    """Split off second outcomes of a job: a run that lost it may report beside the run that has it. The first may be
    among those that are `locked`."""
    seen: set[uuid.UUID] = {run.id for run, _ in locked}
    now: list[tuple[JobRun, RunOutcome]] = []
    later: list[tuple[JobRun, RunOutcome]] = []
    for item in batch:
        (later if item[0].id in seen else now).append(item)
        seen.add(item[0].id)
    return now, later


def keep_reports(reports: Sequence[Ack | Failure], folder: Path) -> Path:
    """Write these reports to a new file in `folder`, which only this user may read. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}"
    unfinished = path.with_suffix(".unfinished")
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.writelines(f"{_line(report)}\n" for report in reports)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    return path


def deliver_reports(folder: Path, using: str) -> int:
    """Report what the files in `folder` hold; how many outcomes the server took.

    Only files of the worker's own user and of root are delivered: otherwise another user who can write into the folder
    could end any job. A file is deleted when each of its reports was answered. If a line of it cannot be read, or the
    database does not take a report, it is set aside for a person to look at when the others are delivered. Raises an
    error of the database that passes, and keeps the file then. Several processes may deliver at once: of two reports of
    one attempt the second is refused.
    """
    taken = 0
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        reports, unread = list[Ack | Failure](), 0
        try:
            if (lines := _lines(path)) is None:
                logger.error("%s is not delivered: another user has written it.", path)
                continue
        except FileNotFoundError:  # another process was first
            continue
        except (OSError, ValueError):
            logger.exception("%s cannot be read.", path)
            lines, unread = [], 1
        for number, line in enumerate(lines, start=1):
            try:
                reports += [_read(line)] if line else []
            except (ValueError, TypeError, KeyError, AttributeError):
                logger.exception("Line %d of %s cannot be read as the outcome of a job.", number, path)
                unread += 1
        accepted, answered = _send_all(reports, using)
        taken += accepted
        logger.warning("Delivered the outcomes of %s from %s; %d came too late.", jobs(accepted), path,
                       answered - accepted)  # fmt: skip
        if answered < len(reports):
            logger.error("%s has outcomes of %s that could not be stored.", path, jobs(len(reports) - answered))
        _settle(path, UNREADABLE if unread else "" if answered == len(reports) else UNDELIVERED)
    return taken


def _lines(path: Path) -> list[str] | None:
    """The lines of a file; None where another user has written it."""
    if _is_ours(path.lstat()):
        with path.open(encoding="utf-8") as file:
            if _is_ours(os.fstat(file.fileno())):  # there may be another file in its place by now
                return file.read().split("\n")
    return None


def _is_ours(facts: os.stat_result) -> bool:
    """Whether this user has written a file, or root has, where the system knows users."""
    return not hasattr(os, "geteuid") or facts.st_uid in (os.geteuid(), 0)


def _settle(path: Path, suffix: str) -> None:
    """Set a file aside under a name that ends so, or delete it. One that stays because the folder cannot be written is
    delivered again by the next worker, which changes nothing."""
    try:
        if suffix:
            path.rename(path.with_name(path.name + suffix))
        else:
            path.unlink()
    except FileNotFoundError:  # another process was first
        pass
    except OSError:
        logger.exception("%s could not be removed: the next worker delivers it again.", path)


def _send_all(reports: Sequence[Ack | Failure], using: str) -> tuple[int, int]:
    """Report in batches; how many were accepted, and how many were answered."""
    accepted = answered = 0
    submit = partial(_report_or_refuse, act=_report, using=using)
    for kind in _KINDS.values():
        of_kind = [report for report in reports if isinstance(report, kind)]
        for start in range(0, len(of_kind), MAX_BATCH):
            pairs = _answered_in_pieces(
                of_kind[start : start + MAX_BATCH], partial(_report_or_refuse, act=_report, using=using)
            )
            answered += len(pairs)
            accepted += sum(not isinstance(answer, OJSError) for _, answer in pairs)
            refused = [
                _as_failure(done, answer) for done, answer in pairs if isinstance(done, Ack) and _is_final(answer)
            ]
            stored = len(_answered(refused, submit)) if refused else 0
            accepted += stored
            answered -= len(refused) - stored
    return accepted, answered


def _is_final(answer: Any) -> bool:
    """Whether the server refused a result that it would refuse again."""
    return isinstance(answer, OJSError) and not isinstance(answer, InvalidStateTransition | NotFound)


def _line(report: Ack | Failure) -> str:
    """What it says, and no more: an older release, to which a site may go back, reads what it knows."""
    (kind,) = (name for name, known in _KINDS.items() if isinstance(report, known))
    values = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
    said = {field.name for field in dataclasses.fields(report) if values[field.name] != field.default}
    return jsontext.dumps({"kind": kind, **{name: values[name] for name in said}, "job_id": str(report.job_id)})


def _read(line: str) -> Ack | Failure:
    members = jsontext.loads(line)
    make: Callable[..., Ack | Failure] = _KINDS[members.pop("kind")]
    return make(**{**members, "job_id": uuid.UUID(members["job_id"])})


class AfterHooks(Service):
    """Calls the `after` of definitions, in a thread of its own. What it raises is logged and changes no job."""

    name = "after hooks"
    patience = 3 * PATIENCE  #: it runs code of the site

    def __init__(self) -> None:
        super().__init__(RESTART)
        self._inbox: queue.SimpleQueue[Sequence[tuple[After, JobContext]] | None] = queue.SimpleQueue()

    def put(self, runs: Sequence[JobRun]) -> None:
        """Call the hooks of these runs soon. Costs nothing where no definition has one."""
        if hooked := [(after, run.context) for run in runs if (after := run.definition.after) is not None]:
            self._inbox.put(hooked)

    def wake(self) -> None:
        self._inbox.put(None)

    def run(self) -> None:
        """Call hooks until `stop()`, and those of the runs that were put before it."""
        while (hooked := self._next()) is not None or not self.stopping.is_set():
            groups: dict[After, list[JobContext]] = {}
            for after, context in hooked or ():
                groups.setdefault(after, []).append(context)
            for after, contexts in groups.items():
                _call_hook(after, contexts)

    def _next(self) -> Sequence[tuple[After, JobContext]] | None:
        with self.resting():
            return self._inbox.get()


def _call_hook(after: After, contexts: Sequence[JobContext]) -> None:
    try:
        contextvars.copy_context().run(after, contexts)
    except BaseException:
        logger.exception("What is to follow on %s failed.", jobs(len(contexts)))
    finally:
        may_fail("Tidying up behind what follows on jobs", tidy)
