"""One thread writes the outcomes of all runs, those that come together in one transaction."""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from django.db import DatabaseError

from django_ojs.errors import InvalidStateTransition, OJSError
from django_ojs.operations import progress
from django_ojs.operations.ack import Ack, ack
from django_ojs.operations.fail import Failure, fail
from django_ojs.scheduler.outage import ERRORS, persist
from django_ojs.scheduler.service import Service
from django_ojs.worker.outcomes import Acknowledged, Completed, Outcome, report
from django_ojs.worker.reporting import last_reports
from django_ojs.worker.run import Run

logger = logging.getLogger(__name__)

COLLECT_SECONDS = 0.005  #: how long the first outcome of a batch waits for others
MAX_BATCH = 500

R = TypeVar("R", Ack, Failure)


class Writer(Service):
    """Collects outcomes and reports them. `written` is told about every run whose outcome is settled."""

    name = "writer"

    def __init__(
        self, worker_id: str, using: str, written: Callable[[list[Run]], None], on_crash: Callable[[str], None]
    ) -> None:
        super().__init__(on_crash)
        self._worker_id, self._using, self._written = worker_id, using, written
        self._inbox: queue.SimpleQueue[Sequence[tuple[Run, Outcome]] | None] = queue.SimpleQueue()
        self._patience = threading.Event()
        self.completed = 0  #: jobs completed by this worker so far

    def put(self, done: Sequence[tuple[Run, Outcome]]) -> None:
        if done:
            self._inbox.put(done)

    def wake(self) -> None:
        self._inbox.put(None)

    def give_up(self) -> None:
        """Do not wait for a database that is away any longer: the server will notice by itself."""
        self._patience.set()

    def run(self) -> None:
        """Write batches until `stop()`, and what had been put before it."""
        kept: list[tuple[Run, Outcome]] = []
        while kept or not (self.stopping.is_set() and self._inbox.empty()):
            batch, kept = _one_for_each_job(kept or self._collect())
            self.write(batch)
            self._written([run for run, _ in batch])

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
        self._tell_progress(batch)
        reports = [report(outcome, run.id, self._worker_id, run.attempt) for run, outcome in batch]
        acks = [done for done in reports if isinstance(done, Ack)]
        failures = [done for done in reports if isinstance(done, Failure)]
        rejected = self._send(self._ack, acks)
        failures += [_as_failure(done, error) for done, error in rejected]
        for done, error in self._send(self._fail, failures):
            logger.error("The outcome of job %s was refused: %s", done.job_id, error)
        self.completed += sum(isinstance(outcome, Completed | Acknowledged) for _, outcome in batch)

    def _tell_progress(self, batch: Sequence[tuple[Run, Outcome]]) -> None:
        """What handlers reported last, before the job is theirs no longer. A lost report costs no outcome."""
        news = last_reports(run.context for run, _ in batch)
        if not news:
            return
        try:
            persist(lambda: progress.report(news, using=self._using), self._using, self._patience)
        except ERRORS:
            logger.error("The last progress of %d jobs could not be written: the database is away.", len(news))
        except DatabaseError:
            logger.exception("The last progress of %d jobs could not be written.", len(news))

    def _ack(self, acks: Sequence[Ack]) -> list[Any]:
        return ack(acks, columns=("id",), using=self._using)

    def _fail(self, failures: Sequence[Failure]) -> list[Any]:
        return fail(failures, using=self._using)

    def _send(self, operation: Callable[..., list[Any]], reports: list[R]) -> list[tuple[R, OJSError]]:
        """Report; returns what was refused for another reason than that the job is no longer ours."""
        if not reports:
            return []
        try:
            answers = persist(lambda: operation(reports), self._using, self._patience)
        except ERRORS:
            logger.error("The outcomes of %d jobs could not be written: the database is away.", len(reports))
            return []
        except (DatabaseError, OJSError):
            if len(reports) == 1:
                logger.exception("The outcome of job %s could not be written.", reports[0].job_id)
                return []
            # One of them is poison: find it, and lose no other.
            return [refused for done in reports for refused in self._send(operation, [done])]
        return list(_refused(reports, answers))


def _refused(reports: list[R], answers: list[Any]) -> Iterable[tuple[R, OJSError]]:
    for done, answer in zip(reports, answers, strict=True):
        if isinstance(answer, InvalidStateTransition):
            logger.info("Job %s was no longer ours when it ended: %s", done.job_id, answer)
        elif isinstance(answer, OJSError):
            yield done, answer


def _as_failure(done: Ack, error: OJSError) -> Failure:
    """A success that the server refuses to store fails instead, or it would run again and again."""
    problem = {"type": type(error).__name__, "code": error.error_code, "message": str(error)}
    return Failure(done.job_id, problem, done.worker_id, done.attempt)


def _one_for_each_job(batch: list[tuple[Run, Outcome]]) -> tuple[list[tuple[Run, Outcome]], list[tuple[Run, Outcome]]]:
    """Split off what speaks a second time of the same job: a run that lost it, beside the one that has it."""
    seen: set[uuid.UUID] = set()
    now: list[tuple[Run, Outcome]] = []
    later: list[tuple[Run, Outcome]] = []
    for item in batch:
        (later if item[0].id in seen else now).append(item)
        seen.add(item[0].id)
    return now, later
