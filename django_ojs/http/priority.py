"""Priorities: change that of a job, and count a queue's jobs by theirs (jobs 3)."""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.models import Count
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs.http import access, fields
from django_ojs.http.base import OJSView
from django_ojs.http.permissions import check_queue, principal
from django_ojs.models import Job
from django_ojs.operations.prioritise import prioritise
from django_ojs.states import State


class PriorityStats(OJSView):
    """`GET /queues/{name}/priority-stats`: how many jobs can be fetched, by priority, highest first."""

    scopes = {"GET": "read"}

    def get(self, request: Request, name: str) -> Response:
        check_queue(request, fields.queue_name(name))
        jobs = Job.objects.using(router.db_for_write(Job)).filter(queue=name, state=State.AVAILABLE)
        found = jobs.order_by("-priority").values_list("priority").annotate(count=Count("pk"))
        counts = list(found)
        return Response(
            {
                "queue": name,
                "counts_by_priority": {str(priority): count for priority, count in counts},
                "total": sum(count for _, count in counts),
                "distribution": [{"priority": priority, "count": count} for priority, count in counts],
            }
        )


def change(request: Request, job_id: str, body: dict[str, Any]) -> Response:
    """Set `priority`, the only attribute of a job that can be changed."""
    identifier = fields.path_id(job_id)
    others = sorted(body.keys() - {"priority"})
    if others or body.get("priority") is None:
        name = others[0] if others else "priority"
        raise fields.fault(name, "cannot be changed; send priority" if others else "must be given", body.get(name))
    access.check_jobs(request, [identifier])
    done = prioritise(identifier, body["priority"], by=principal(request))
    row = done.row
    return Response({"id": str(row["id"]), "priority": row["priority"], "previous_priority": done.previous})
