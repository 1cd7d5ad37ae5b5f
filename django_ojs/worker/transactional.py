"""`@job(..., transactional=True)`: what the handler wrote and the job's completion, in one database transaction."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from django.db import connections, transaction

from django_ojs.operations import progress
from django_ojs.operations.ack import Ack, ack
from django_ojs.operations.common import database
from django_ojs.worker.context import log_fields
from django_ojs.worker.outcomes import Acknowledged, Completed, Forgotten, Outcome
from django_ojs.worker.reporting import last_reports
from django_ojs.worker.run import Run

logger = logging.getLogger("django_ojs.jobs")

LONG = 1.0  #: seconds after which a transaction is too long for SQLite, which lets nobody else write


class NotCompleted(BaseException):
    """Rolls back what the handler wrote, because its outcome is another one. Not an Exception: nobody catches it."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


def inside_transaction(run: Run, perform: Callable[[], Any], judge: Callable[[Any], Outcome]) -> Outcome:
    """The outcome of `perform`, run with the execution chain around it in one transaction with the job's ACK.

    The ACK is the last statement, so the job's row is not locked while the handler works. If it meets a job
    that is no longer ours, everything is rolled back and forgotten. Exceptions of `perform` pass through,
    after the rollback.
    """
    using = run.definition.transactional
    assert using is not None
    started = time.monotonic()
    try:
        with transaction.atomic(using=using, durable=True):
            outcome = judge(perform())
            if not isinstance(outcome, Completed):
                raise NotCompleted(outcome)
            _acknowledge(run, outcome, using)
    except NotCompleted as other:
        return other.outcome
    finally:
        _warn_if_long(run, using, time.monotonic() - started)
    return Acknowledged()


def _acknowledge(run: Run, outcome: Completed, using: str) -> None:
    claim = Ack(run.id, outcome.result, run.context.row["worker_id"], run.attempt)
    if news := last_reports([run.context]):
        progress.report(news, using=using)
    (answer,) = ack([claim], columns=("id",), using=using)
    if isinstance(answer, Exception):
        logger.info("Job %s was no longer ours when it ended, so nothing of it stays: %s", run.id, answer)
        raise NotCompleted(Forgotten())


def _warn_if_long(run: Run, using: str, seconds: float) -> None:
    if seconds > LONG and connections[using].vendor == "sqlite":
        logger.warning(
            "%s %s held the only write lock of SQLite for %.1f s: nobody else could write, enqueue or claim. "
            "Leave out transactional=True or use PostgreSQL.",
            run.definition.type, run.id, seconds, extra=log_fields(run.context.row),
        )  # fmt: skip


def refusal(using: str) -> str:
    """Why a handler that writes to this database cannot be transactional; empty: it can."""
    jobs = database(None)
    if using == jobs:
        return ""
    return (
        f"transactional=True needs one transaction for what the handler writes, to the database {using!r}, and "
        f"for the job, which is in {jobs!r}: leave it out and make the handler idempotent, or, if it writes to "
        f"{jobs!r}, say transactional={jobs!r}."
    )
