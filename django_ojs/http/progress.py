"""Progress of a job: a worker reports it, anybody who may read asks for it (orchestration 5.1).

Which scale a number has is told by its name: `progress` runs from 0 to 1, `percentage` and `progress_percent`
from 0 to 100.
"""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from django.db import router
from django.utils.http import http_date
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import jsontext
from django_ojs.errors import OJSError
from django_ojs.http import access, fields, shown
from django_ojs.http.base import OJSView
from django_ojs.models import Job
from django_ojs.operations import progress
from django_ojs.operations.info import info

MAX_DEPTH = 32  #: of arrays and objects in `data`
#: Names of the number -> what makes percent of it.
_SCALES = {"progress": 100.0, "percentage": 1.0, "progress_percent": 1.0}


class Reporting(OJSView):
    """What both ways to report share."""

    def take(self, request: Request, job_id: uuid.UUID, body: dict[str, Any]) -> Response:
        """Report, and answer with what is known now: also where the report came too late and was ignored."""
        access.check_jobs(request, [job_id])
        (known,) = progress.report([_read(job_id, body)])
        if isinstance(known, OJSError):
            raise known
        return Response(shown.progress(known.row, known.progress))


class JobProgress(Reporting):
    """`GET /jobs/{id}/progress`; `PUT` reports some."""

    scopes = {"GET": "read", "PUT": "work"}

    def get(self, request: Request, job_id: str) -> Response:
        row = info(fields.path_id(job_id))
        access.check_row(request, row)
        found = progress.of([row], router.db_for_write(Job)).get(row["id"])
        body = shown.progress(row, found)
        headers = {} if body["progress"] is None else {"X-OJS-Progress": f"{body['progress']:g}"}
        if found is not None:
            headers["Last-Modified"] = http_date(found.updated_at.astimezone(dt.UTC).timestamp())
        return Response(body, headers=headers)

    def put(self, request: Request, job_id: str) -> Response:
        return self.take(request, fields.path_id(job_id), self.payload())

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        response = super().finalize_response(request, response, *args, **kwargs)
        response["Cache-Control"] = "no-cache"  # what the binding asks for at this path
        return response


class WorkerProgress(Reporting):
    """`POST /workers/progress`, for the published clients."""

    scopes = {"POST": "work"}

    def post(self, request: Request) -> Response:
        body = self.payload()
        return self.take(request, fields.job_id(body), body)


def _read(job_id: uuid.UUID, body: dict[str, Any]) -> progress.Report:
    percent, data = _percent(body), fields.member(body, "data")
    if percent is None and data is None:
        raise fields.fault("progress", "must be there, from 0 to 1, unless there is data", None)
    if data is not None and jsontext.is_deeper(data, MAX_DEPTH):
        raise fields.fault("data", f"must not nest deeper than {MAX_DEPTH} levels", data)
    if data is not None and (size := len(jsontext.dumps(data).encode())) > progress.MAX_DATA_BYTES:
        raise fields.fault("data", f"must be at most {progress.MAX_DATA_BYTES} bytes of JSON, not {size}", data)
    return progress.Report(
        job_id, percent,
        message=fields.text(body, "message", maximum=progress.MAX_MESSAGE),
        data=data,
        worker_id=fields.claimant(body),
        attempt=fields.integer(body, "attempt", minimum=1),
    )  # fmt: skip


def _percent(body: dict[str, Any]) -> float | None:
    for name, scale in _SCALES.items():
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float | jsontext.ExactNumber):
            raise fields.fault(name, "must be a number", value)
        return float(min(max(value, 0), 100)) * scale
    return None
