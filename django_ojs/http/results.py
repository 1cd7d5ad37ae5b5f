"""Results of jobs: one, with waiting, and many (jobs 8)."""

from __future__ import annotations

import time
import uuid
from typing import Any

from django.db import router
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock, states
from django_ojs.errors import ResultPruned, WaitTimeout
from django_ojs.http import access, fields, query, shown
from django_ojs.http.base import OJSView
from django_ojs.http.jobs import check_size
from django_ojs.models import Job
from django_ojs.models.job import JobRow
from django_ojs.operations.info import info
from django_ojs.operations.results import retrieved
from django_ojs.policies import names, results
from django_ojs.states import State

DEFAULT_WAIT, MAX_WAIT = 30, 60


class Result(OJSView):
    """`GET /jobs/{id}/result?wait=true&timeout=30`; the timeout in seconds, cut to 60: it holds a thread."""

    scopes = {"GET": "read"}

    def get(self, request: Request, job_id: str) -> Response:
        identifier = fields.path_id(job_id)
        timeout = query.integer(request, "timeout", minimum=0)
        wait = _flag(request, "wait")
        row = info(identifier)
        access.check_row(request, row)
        if row["state"] not in states.TERMINAL and wait:
            row = _await(identifier, min(DEFAULT_WAIT if timeout is None else timeout, MAX_WAIT))
        if row["state"] not in states.TERMINAL:
            body = {"job_id": str(identifier), "state": row["state"], "result": None}
            return Response(body, status=202, headers={"Retry-After": "1"})
        found = outcome(row)
        retrieved([row])
        return Response({"job_id": str(identifier), **found})


class Results(OJSView):
    """`POST /jobs/results` `{"ids": [...]}`: null for an unknown job, and no result for one that has not ended."""

    scopes = {"POST": "read"}

    def post(self, request: Request) -> Response:
        ids = self.payload().get("ids")
        if not isinstance(ids, list) or not all(isinstance(item, str) and len(item) <= 255 for item in ids):
            raise fields.fault("ids", "must be an array of job ids", ids)
        check_size(len(ids), "ids")
        known = {item: uuid.UUID(item.lower()) for item in ids if names.is_job_id(item.lower())}
        access.check_jobs(request, set(known.values()))
        jobs = Job.objects.using(router.db_for_write(Job)).filter(pk__in=list(known.values()))
        rows = {row["id"]: row for row in jobs.rows()}
        retrieved(list(rows.values()))
        return Response({"results": {item: _brief(rows.get(known.get(item))) for item in ids}})


def _flag(request: Request, name: str) -> bool:
    given = query.text(request, name).lower()
    if given not in ("", "true", "false", "1", "0"):
        raise query.fault(name, "must be true or false", given)
    return given in ("true", "1")


def _await(job_id: uuid.UUID, seconds: float) -> JobRow:
    """The job once it has ended. Raises WaitTimeout."""
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
        if results.is_gone(row, clock.now()):
            details = {"resource_type": "result", "resource_id": str(row["id"])}
            raise ResultPruned(f"The result of job '{row['id']}' is no longer kept.", details=details)
        return {"state": row["state"], "result": job.get("result")}
    return {"state": row["state"], "error": job.get("error")}


def _brief(row: JobRow | None) -> dict[str, Any] | None:
    if row is None:
        return None
    job = shown.job(row)
    brief = {"state": row["state"], "result": job.get("result")}
    return brief | ({"error": job["error"]} if "error" in job else {})
