"""The outcome of a job as its readers get it, and waiting until there is one (jobs 8)."""

from __future__ import annotations

import time
import uuid
from typing import Any

from django.db import router

from django_ojs import clock, states
from django_ojs.errors import ResultPruned, WaitTimeout
from django_ojs.http import shown
from django_ojs.jobs.verbs import info
from django_ojs.models import Job
from django_ojs.models.job import JobRow
from django_ojs.rules import envelope
from django_ojs.states import State

DEFAULT_WAIT, MAX_WAIT = 30, 60  #: seconds


def ended(job_id: uuid.UUID, timeout: int | None) -> JobRow:
    """The job once it has ended, at most `timeout` seconds from now (`DEFAULT_WAIT`, cut to `MAX_WAIT`).

    Raises WaitTimeout.
    """
    seconds = min(DEFAULT_WAIT if timeout is None else timeout, MAX_WAIT)
    deadline = time.monotonic() + seconds
    pause = 0.02
    while True:
        row = info(job_id)
        left = deadline - time.monotonic()
        if row["state"] in states.TERMINAL:
            return row
        if left <= 0:
            details = {"job_id": str(job_id), "state": row["state"], "waited_seconds": seconds}
            raise WaitTimeout(f"Job '{job_id}' is still {row['state']} after {seconds} seconds.", details=details)
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, 0.5)


def outcome(row: JobRow) -> dict[str, Any]:
    """The result of a completed job, the error of any other. Raises ResultPruned."""
    job = shown.job(row)
    if row["state"] == State.COMPLETED:
        if envelope.result_is_gone(row, clock.now(router.db_for_write(Job))):
            details = {"resource_type": "result", "resource_id": str(row["id"])}
            raise ResultPruned(f"The result of job '{row['id']}' is no longer kept.", details=details)
        return {"state": row["state"], "result": job.get("result")}
    return {"state": row["state"], "error": job.get("error")}


def brief(row: JobRow | None) -> dict[str, Any] | None:
    """The outcome in the answer about several jobs; None for an unknown one."""
    if row is None:
        return None
    job = shown.job(row)
    found = {"state": row["state"], "result": job.get("result")}
    return found | ({"error": job["error"]} if "error" in job else {})
