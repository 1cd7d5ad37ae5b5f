"""What a key limited to queues or job types may touch: new jobs, existing jobs, and what lists show it.

A job outside the limits answers 403, not 404: its id is known to the caller, and the reason helps.
An unlimited caller, which is the rule, costs nothing here.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from django.db import router
from django.db.models import Q
from rest_framework.request import Request

from django_ojs.errors import InvalidPayload
from django_ojs.http.permissions import api_key, check_queue, check_type, queue_limit, type_limit
from django_ojs.jobs.selection import allowed
from django_ojs.models import Job
from django_ojs.rules import attributes
from django_ojs.rules.source import Source
from django_ojs.states import State


def is_limited(request: Request) -> bool:
    key = api_key(request)
    return key is not None and bool(key.queues or key.job_types)


def check_documents(request: Request, documents: Iterable[Any]) -> None:
    """Raise PermissionDenied if a job to be pushed lies outside the caller's limits.

    Malformed documents pass: PUSH says what is wrong with them.
    """
    if not is_limited(request):
        return
    for document in documents:
        try:
            source = Source(document if isinstance(document, dict) else {})
            queue, job_type = attributes.queue(source), attributes.job_type(source, {}, hyphens=True)
        except InvalidPayload:
            continue
        check_queue(request, queue)
        check_type(request, job_type, queue=queue)


def check_jobs(request: Request, ids: Collection[uuid.UUID]) -> None:
    """Raise PermissionDenied if one of these jobs lies outside the caller's limits."""
    if ids and is_limited(request):
        _check_all(request, Q(pk__in=ids))


def check_held(request: Request, worker_id: str) -> None:
    """Raise PermissionDenied if this worker holds a job outside the caller's limits."""
    if is_limited(request):
        _check_all(request, Q(worker_id=worker_id, state=State.ACTIVE))


def check_row(request: Request, row: Mapping[str, Any]) -> None:
    if is_limited(request):
        check_queue(request, row["queue"])
        check_type(request, row["type"], queue=row["queue"])


def visible(request: Request) -> Q:
    """The jobs that a list may show to the caller."""
    return allowed(queue_limit(request), type_limit(request))


def queues_to_read(request: Request, wanted: Sequence[str]) -> Sequence[str]:
    """The queues a read is narrowed to: those asked for, if allowed, else those of the key; none means all."""
    if wanted:
        check_queue(request, wanted)
        return wanted
    return queue_limit(request) or ()


def _check_all(request: Request, condition: Q) -> None:
    jobs = Job.objects.using(router.db_for_write(Job)).filter(condition).order_by()
    for queue, job_type in jobs.values_list("queue", "type").distinct():
        check_queue(request, queue)
        check_type(request, job_type, queue=queue)
