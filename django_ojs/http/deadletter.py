"""The dead letter queue as producers and workers see it: list, read, revive, delete (binding 2.6, jobs 7.3). Acts on
many are the operator's (`adminbulk`), by this path too."""

from __future__ import annotations

import uuid
from typing import Any

from django.db import router
from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs.errors import NotFound
from django_ojs.http import answers, compat, fields, filters, overriding, permissions, query, shown
from django_ojs.http.adminbulk import DeadLetterPurge
from django_ojs.http.auditing import audited
from django_ojs.http.base import OJSView
from django_ojs.http.joblists import unindexed
from django_ojs.http.pagination import DEFAULT_LIMIT, Key, Page, capped, paginate, parse_time, parse_uuid
from django_ojs.http.permissions import type_limit
from django_ojs.http.searching import searched
from django_ojs.jobs.search import FEW
from django_ojs.jobs.verbs import delete_one, retry_one
from django_ojs.models import Job
from django_ojs.models.job import JobQuerySet, JobRow
from django_ojs.statistics import counters

MAX_LIMIT = 1000
RESOURCE = "dead_letter_job"
#: Newest first.
_ORDER = [Key("finished_at", descending=True, parse=parse_time), Key("id", descending=True, parse=parse_uuid)]


class DeadLetters(DeadLetterPurge):
    """`GET /dead-letter`: the filters of `/admin/dead-letter`, newest first. `DELETE`: all that are meant, as there."""

    http_method_names = ["get", "head", "delete", "options"]
    scopes = {"GET": "read", "DELETE": "admin.purge"}
    rights = {"DELETE": "delete_job"}

    def get(self, request: Request) -> Response:
        found, letters, narrowed = meant(request)
        if letters > FEW and unindexed(request):
            page = searched(request, dead_letters(), found, _ORDER, _rows, maximum=MAX_LIMIT, default=DEFAULT_LIMIT)
        else:
            count = capped if narrowed else lambda _: (letters, False)
            page = paginate(found, request, _ORDER, rows=_rows, maximum=MAX_LIMIT, count=count, bounded=False)
        return listed(page)


class DeadLetterDetail(OJSView):
    """`GET` and `DELETE /dead-letter/{id}`"""

    scopes = {"GET": "read", "DELETE": "admin"}
    rights = {"DELETE": "delete_job"}

    def get(self, request: Request, job_id: str) -> Response:
        return Response(answers.one(_render(_find(request, job_id))))

    @audited("job.delete")
    def delete(self, request: Request, job_id: str) -> Response:
        row = _find(request, job_id)
        delete_one(row["id"])
        return Response({"deleted": True, "job_id": str(row["id"])})


class DeadLetterRetry(OJSView):
    """`POST /dead-letter/{id}/retry`: available again, as if it had never run; `override` may change the job."""

    scopes = {"POST": "admin"}
    rights = {"POST": "change_job"}

    @audited("job.retry")
    def post(self, request: Request, job_id: str) -> Response:
        override = overriding.read(request, self.payload(required=False))
        row = _find(request, job_id)
        job = shown.job(retry_one(row["id"], override=override))
        return Response(answers.one(job | {"re_enqueued_at": job["enqueued_at"]}))


def dead_by_queue(request: Request, queue: str) -> dict[str, int]:
    """The number of dead letters in each queue that has any: in this one, or in those that the caller may see."""
    limit = permissions.queues_to_read(request, [queue] if queue else [])
    found = counters.count_all(list(limit) or None, using=router.db_for_write(Job))
    return {name: counted.dead for name, counted in sorted(found.items()) if counted.dead}


def meant(request: Request) -> tuple[QuerySet[Job], int, bool]:
    """The dead letters that the query asks for; how many there are in its queue; whether it asks for fewer."""
    letters = sum(dead_by_queue(request, query.text(request, "queue")).values())
    given = request.query_params
    narrowed = type_limit(request) is not None or any(given.get(name) for name in set(filters.NAMES) - {"queue"})
    return filters.of_query(request, dead_letters()), letters, narrowed


def listed(page: Page) -> Response:
    """The answer of both lists: the same rows under the names of both (jobs 7.3)."""
    return Response(page.listed([_render(row) for row in page.rows], "jobs", "items"))


def dead_letters() -> JobQuerySet:
    return Job.objects.using(router.db_for_write(Job)).dead_letters()


def _rows(jobs: Any) -> list[JobRow]:
    return jobs.rows()  # type: ignore[no-any-return]


def _find(request: Request, text: str) -> JobRow:
    job_id: uuid.UUID = fields.path_id(text, RESOURCE)
    rows = dead_letters().filter(pk=job_id).rows()
    if not rows:
        raise NotFound.resource(RESOURCE, str(job_id))
    permissions.check_row(request, rows[0])
    return rows[0]


def _render(row: JobRow) -> dict[str, Any]:
    return compat.dead_letter(shown.job(row))
