"""Report the outcomes of runs to the server, in batches, and do what follows when they are stored.

A worker that stops does not wait for a database that is away. The outcomes that it could not report would be
forgotten, and their jobs run again: a file in `WORKER_SPOOL` keeps them until a worker starts there again. Each report
names worker and attempt, so one that comes too late, or twice, changes nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
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

from django.db import DatabaseError, connections

from django_ojs import jsontext
from django_ojs.client.context import JobContext
from django_ojs.conf import ojs_settings
from django_ojs.errors import InvalidStateTransition, OJSError
from django_ojs.jobs import progress
from django_ojs.jobs.finish import Ack, Failure, ack, fail
from django_ojs.scheduler.service import ERRORS, Service, persist
from django_ojs.worker.execution import tidy
from django_ojs.worker.runs import Acknowledged, Completed, Outcome, Run, last_progress, report

logger = logging.getLogger(__name__)

COLLECT_SECONDS = 0.005  #: how long the first outcome of a batch waits for others
MAX_BATCH = 500
SUFFIX = ".outcomes"
UNREADABLE = ".unreadable"  #: added to the name of a file that is no list of outcomes

_KINDS: dict[str, type[Ack] | type[Failure]] = {"ack": Ack, "fail": Failure}

#: What a definition has as `after`: called with the contexts of runs whose outcomes were stored, or refused.
After = Callable[[Sequence[JobContext]], None]

R = TypeVar("R", bound=Ack | Failure)
#: Held for a claim, and for a report: see `turn_for`.
Turn: TypeAlias = contextlib.AbstractContextManager[Any]


def turn_for(using: str) -> Turn:
    """What the claimer and the writer of one worker take turns by: on SQLite, which has one write lock.

    Who finds that taken sleeps for 1, 2, 5, 10 and more milliseconds between two looks, however soon it becomes free.
    """
    return FairTurn() if connections[using].vendor == "sqlite" else contextlib.nullcontext()


class FairTurn:
    """A lock that goes to the thread that waits for it, even if the one that has it wants it again at once.

    A plain lock would go to that one. The claimer, which may claim twice in a row, would keep the writer waiting, and
    thousands of jobs would have ended whose outcomes nobody knows.
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
    """Collects outcomes and reports them, in one thread. Calls `written` with the runs whose outcomes are settled."""

    name = "writer"

    def __init__(
        self, worker_id: str, using: str, written: Callable[[list[Run]], None], on_crash: Callable[[str], None],
        turn: Turn | None = None,
    ) -> None:  # fmt: skip
        super().__init__(on_crash)
        self._worker_id, self._using, self._written = worker_id, using, written
        self._inbox: queue.SimpleQueue[Sequence[tuple[Run, Outcome]] | None] = queue.SimpleQueue()
        self._impatient = threading.Event()
        self._turn = turn or contextlib.nullcontext()
        self._unreported: list[Ack | Failure] = []
        self.completed = 0  #: jobs completed by this worker so far

    def put(self, done: Sequence[tuple[Run, Outcome]]) -> None:
        if done:
            self._inbox.put(done)

    def wake(self) -> None:
        self._inbox.put(None)

    def give_up(self) -> None:
        """Wait no longer for a database that is away: the server takes the jobs back when their reservations end."""
        self._impatient.set()

    def run(self) -> None:
        """Write batches until `stop()`, and what had been put before it; keep what could not be written."""
        kept: list[tuple[Run, Outcome]] = []
        try:
            while kept or not (self.stopping.is_set() and self._inbox.empty()):
                batch, kept = _one_for_each_job(kept or self._collect())
                self.write(batch)
                self._written([run for run, _ in batch])
        finally:
            self._keep_unreported()

    def _collect(self) -> list[tuple[Run, Outcome]]:
        """What came in, after a pause in which more may: asleep, and not woken for each of them."""
        batch: list[tuple[Run, Outcome]] = []
        first = self._inbox.get()
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

    def write(self, batch: Sequence[tuple[Run, Outcome]]) -> None:
        """Report these outcomes now, in this thread. A job must not be among them twice."""
        self._report_progress(batch)
        before = len(self._unreported)
        reports = [
            report(outcome, run.id, self._worker_id, run.attempt, in_workflow=run.context.workflow_id is not None)
            for run, outcome in batch
        ]
        acks = [done for done in reports if isinstance(done, Ack)]
        failures = [done for done in reports if isinstance(done, Failure)]
        rejected = self._send(acks)
        failures += [_as_failure(done, error) for done, error in rejected]
        for done, error in self._send(failures):
            logger.error("The outcome of job %s was refused: %s", done.job_id, error)
        self.completed += sum(isinstance(outcome, Completed | Acknowledged) for _, outcome in batch)
        self.completed -= sum(isinstance(done, Ack) for done in self._unreported[before:])

    def _keep_unreported(self) -> None:
        """Log by id which outcomes the server does not know, and put them into the spool where there is one."""
        if not self._unreported:
            return
        ids = ", ".join(f"{report.job_id} (attempt {report.attempt})" for report in self._unreported)
        count = len(self._unreported)
        if not ojs_settings.WORKER_SPOOL:
            logger.error("The outcomes of %d jobs are lost, the database is away: %s.", count, ids)
            return
        try:
            path = keep_reports(self._unreported, Path(ojs_settings.WORKER_SPOOL))
        except OSError:
            logger.exception("The outcomes of %d jobs are lost, the database is away: %s.", count, ids)
        else:
            logger.error("The outcomes of %d jobs are kept in %s, the database is away: %s.", count, path, ids)

    def _report_progress(self, batch: Sequence[tuple[Run, Outcome]]) -> None:
        """Write the last progress of handlers before their jobs end. A report that is lost costs no outcome."""
        reports = last_progress(run.context for run, _ in batch)
        if not reports:
            return
        try:
            persist(lambda: progress.report(reports, using=self._using), self._using, self._impatient)
        except ERRORS:
            logger.error("The last progress of %d jobs could not be written: the database is away.", len(reports))
        except DatabaseError:
            logger.exception("The last progress of %d jobs could not be written.", len(reports))

    def _send(self, reports: Sequence[R]) -> list[tuple[R, OJSError]]:
        """Report; returns what was refused for another reason than that the job is no longer ours."""
        if not reports:
            return []
        refused = []
        for done, answer in _answered(reports, self._persist):
            if isinstance(answer, InvalidStateTransition):
                logger.info("Job %s was no longer ours when it ended: %s", done.job_id, answer)
            elif isinstance(answer, OJSError):
                refused.append((done, answer))
        return refused

    def _persist(self, reports: Sequence[Ack | Failure]) -> Sequence[Any]:
        """The answers to these reports; without any to all of them where the database is away and nothing waits."""

        def act() -> Sequence[Any]:
            with self._turn:
                return _report(reports, self._using)

        try:
            return persist(act, self._using, self._impatient)
        except ERRORS:
            self._unreported += reports
            return [None] * len(reports)


def _report(reports: Sequence[Ack | Failure], using: str) -> Sequence[Any]:
    """ACK or FAIL for reports of one kind; the server's answer to each."""
    if isinstance(reports[0], Ack):
        return ack(cast("Sequence[Ack]", reports), columns=("id",), using=using)
    return fail(cast("Sequence[Failure]", reports), using=using)


def _answered(reports: Sequence[R], submit: Callable[[Sequence[R]], Sequence[Any]]) -> list[tuple[R, Any]]:
    """Each of these reports with its answer. One that cannot be written is logged and left out, and costs no other."""
    try:
        answers = submit(reports)
    except ERRORS:
        raise
    except (DatabaseError, OJSError):
        if len(reports) > 1:  # one of them is poison
            return [pair for done in reports for pair in _answered([done], submit)]
        logger.exception("The outcome of job %s could not be written.", reports[0].job_id)
        return []
    return list(zip(reports, answers, strict=True))


def _as_failure(done: Ack, error: OJSError) -> Failure:
    """A job whose result the server refuses to store fails instead, or it would run again and again."""
    problem = {"type": type(error).__name__, "code": error.error_code, "message": str(error)}
    return Failure(done.job_id, problem, done.worker_id, done.attempt)


def _one_for_each_job(batch: list[tuple[Run, Outcome]]) -> tuple[list[tuple[Run, Outcome]], list[tuple[Run, Outcome]]]:
    """Split off second outcomes of a job: a run that lost it may report beside the run that has it."""
    seen: set[uuid.UUID] = set()
    now: list[tuple[Run, Outcome]] = []
    later: list[tuple[Run, Outcome]] = []
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
    """Report what the files in `folder` hold and delete them; how many outcomes the server took.

    Raises what a database that is away raises, and keeps the file then. Several processes may deliver at once: of two
    reports of one attempt the second is refused.
    """
    taken = 0
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            reports = [_read(line) for line in path.read_text("utf-8").splitlines()]
        except FileNotFoundError:  # another process was first
            continue
        except (OSError, ValueError, TypeError, KeyError):
            logger.exception("%s cannot be read as outcomes of jobs.", path)
            path.rename(path.with_name(path.name + UNREADABLE))
            continue
        accepted = _send_all(reports, using)
        path.unlink(missing_ok=True)
        logger.warning("Delivered the outcomes of %d jobs from %s; %d came too late.", accepted, path,
                       len(reports) - accepted)  # fmt: skip
        taken += accepted
    return taken


def _send_all(reports: Sequence[Ack | Failure], using: str) -> int:
    """Report in batches; how many were accepted."""
    accepted = 0
    for kind in _KINDS.values():
        of_kind = [report for report in reports if isinstance(report, kind)]
        for start in range(0, len(of_kind), MAX_BATCH):
            answers = _answered(of_kind[start : start + MAX_BATCH], partial(_report, using=using))
            accepted += sum(not isinstance(answer, OJSError) for _, answer in answers)
    return accepted


def _line(report: Ack | Failure) -> str:
    (kind,) = (name for name, known in _KINDS.items() if isinstance(report, known))
    return jsontext.dumps({"kind": kind, **dataclasses.asdict(report), "job_id": str(report.job_id)})


def _read(line: str) -> Ack | Failure:
    members = jsontext.loads(line)
    make: Callable[..., Ack | Failure] = _KINDS[members.pop("kind")]
    return make(**{**members, "job_id": uuid.UUID(members["job_id"])})


class AfterHooks(Service):
    """Calls the `after` of definitions, in a thread of its own. What it raises is logged and changes no job."""

    name = "after hooks"

    def __init__(self) -> None:
        super().__init__()
        self._inbox: queue.SimpleQueue[Sequence[tuple[After, JobContext]] | None] = queue.SimpleQueue()

    def put(self, runs: Sequence[Run]) -> None:
        """Call the hooks of these runs soon. Costs nothing where no definition has one."""
        if hooked := [(after, run.context) for run in runs if (after := run.definition.after) is not None]:
            self._inbox.put(hooked)

    def wake(self) -> None:
        self._inbox.put(None)

    def run(self) -> None:
        """Call hooks until `stop()`, and those of the runs that were put before it."""
        while (hooked := self._inbox.get()) is not None or not self.stopping.is_set():
            groups: dict[After, list[JobContext]] = {}
            for after, context in hooked or ():
                groups.setdefault(after, []).append(context)
            for after, contexts in groups.items():
                _call_hook(after, contexts)


def _call_hook(after: After, contexts: Sequence[JobContext]) -> None:
    try:
        after(contexts)
    except Exception:
        logger.exception("What is to follow on %d jobs failed.", len(contexts))
    finally:
        tidy()
