"""What the caller may subscribe to: the rules of the HTTP binding for queues, job types and single jobs."""

from __future__ import annotations

import dataclasses
import uuid

from channels.db import database_sync_to_async
from django.db import router

from django_ojs.errors import NotFound
from django_ojs.http import access, permissions
from django_ojs.models import Job
from django_ojs.realtime.access import Caller
from django_ojs.realtime.messages import Subscribe


async def permit(caller: Caller, asked: Subscribe) -> None:
    """Raise `NotFound` or `PermissionDenied`, or narrow what is asked for to what the caller may see."""
    for queue in asked.wanted.queues:
        permissions.check_queue(caller.request, queue)
    for job_type in asked.wanted.job_types:
        permissions.check_type(caller.request, job_type)
    if asked.job is not None:
        await database_sync_to_async(_check_job)(caller, asked.job)
    narrow(caller, asked)


def narrow(caller: Caller, asked: Subscribe) -> None:
    """Put the limits of the caller's key into the filter."""
    request = caller.request
    queues, types = permissions.queue_limit(request), permissions.type_limit(request)
    asked.wanted = dataclasses.replace(asked.wanted, only_queues=queues, only_types=types)


def _check_job(caller: Caller, job: uuid.UUID) -> None:
    """The job of a channel must exist and lie within the caller's limits. A queue may still be to come."""
    row = Job.objects.using(router.db_for_write(Job)).filter(pk=job).values("queue", "type").first()
    if row is None:
        raise NotFound.resource("job", str(job))
    access.check_row(caller.request, row)
