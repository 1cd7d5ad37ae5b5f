"""INFO (core 7.7): read a job. Never writes."""

from __future__ import annotations

import uuid

from django.db import router

from django_ojs.doubles import replaceable
from django_ojs.errors import NotFound
from django_ojs.jobs import progress
from django_ojs.models import Job
from django_ojs.models.job import JobRow
from django_ojs.workflows import graphs


@replaceable("read_job")
def info(job_id: uuid.UUID, *, using: str | None = None) -> JobRow:
    """The job's row. Raises `NotFound`."""
    using = using or router.db_for_write(Job)
    rows = Job.objects.using(using).filter(pk=job_id).rows()
    if not rows:
        raise NotFound.resource("job", str(job_id))
    graphs.attach_parent_results(rows, using)
    progress.attach(rows, using)
    return rows[0]
