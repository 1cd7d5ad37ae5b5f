"""The dead letter queue as an operator sees it: `/admin/dead-letter` (admin 1.7). Bulk acts are in `adminbulk`."""

from __future__ import annotations

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import states
from django_ojs.errors import NotFound
from django_ojs.http import access, fields, overriding
from django_ojs.http.adminbulk import DeadLetterPurge
from django_ojs.http.adminjobs import AdminView, Base, detail, listing
from django_ojs.http.auditing import audited
from django_ojs.http.bulkbody import said
from django_ojs.http.deadletter import dead_by_queue, dead_letters, listed, meant
from django_ojs.http.permissions import type_limit
from django_ojs.models import Job
from django_ojs.models.job import JobRow
from django_ojs.operations import overview
from django_ojs.operations.common import refuse
from django_ojs.operations.delete import delete_one
from django_ojs.operations.info import info
from django_ojs.operations.retry import retry_one
from django_ojs.operations.walking import FEW
from django_ojs.policies.durations import format_instant
from django_ojs.states import State, Verb

RESOURCE = "dead_letter_job"


class DeadLetterRoot(DeadLetterPurge):
    """`GET /admin/dead-letter`: the filters of `/admin/jobs`, newest end first. `DELETE`: all that are meant."""

    http_method_names = ["get", "head", "delete", "options"]
    scopes = {"GET": "admin.read", "DELETE": "admin.purge"}
    rights = {"GET": "view_job", "DELETE": "delete_job"}

    def get(self, request: Request) -> Response:
        found, letters, narrowed = meant(request)
        base: Base | None = {"finished_at": (dead_letters(), found)} if letters > FEW else None
        total = None if narrowed else letters
        return listed(listing(request, found, total, base, default="finished_at", columns=None))


class AdminDeadLetterStats(AdminView):
    """`GET /admin/dead-letter/stats`: how many there are by queue, and the newest 10,000 by type and error."""

    scopes = {"GET": "admin.read"}
    rights = {"GET": "view_job"}

    def get(self, request: Request) -> Response:
        jobs: QuerySet[Job] = dead_letters().filter(access.visible(request))
        found = overview.dead_letters(jobs)
        by_queue = dead_by_queue(request, "")
        if type_limit(request) is not None:  # the counts know no types
            by_queue = {}
            found["total"] = found["looked_at"]
        total = found.pop("total", sum(by_queue.values()))
        times = {name: format_instant(found[name]) if found[name] else None for name in ("oldest_at", "newest_at")}
        return Response({"total": total, "by_queue": by_queue, **found, **times})


class AdminDeadLetterDetail(AdminView):
    """`GET` and `DELETE /admin/dead-letter/{id}`"""

    scopes = {"GET": "admin.read", "DELETE": "admin.purge"}
    rights = {"GET": "view_job", "DELETE": "delete_job"}

    def get(self, request: Request, job_id: str) -> Response:
        return Response(detail(_find(request, job_id)))

    @audited("job.delete")
    def delete(self, request: Request, job_id: str) -> Response:
        delete_one(_find(request, job_id)["id"])
        return Response(status=204)


class AdminDeadLetterRetry(AdminView):
    """`POST /admin/dead-letter/{id}/retry`: available again, as if it had never run; `override` may change the job."""

    scopes = {"POST": "admin.write"}
    rights = {"POST": "change_job"}

    @audited("job.retry")
    def post(self, request: Request, job_id: str) -> Response:
        body = fields.only(self.payload(required=False), "override", "reason", "confirm")
        override = overriding.read(request, body)
        row = _find(request, job_id)
        self.act.detail |= said(body) | {"override": sorted(override or {})}
        return Response(detail(retry_one(row["id"], override=override)))


def _find(request: Request, text: str) -> JobRow:
    """A dead letter. A job that is none is not found, but one that lives is named with its state."""
    row = info(fields.path_id(text, RESOURCE))
    access.check_row(request, row)
    if row["state"] == State.DISCARDED and row["dead_letter"]:
        return row
    if request.method == "POST" and row["state"] in states.LIVE:
        raise refuse(row, Verb.RETRY, State.AVAILABLE)
    raise NotFound.resource(RESOURCE, text)
