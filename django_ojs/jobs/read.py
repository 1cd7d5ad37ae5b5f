"""INFO (core 7.7): reads a job."""

from __future__ import annotations

import uuid

from django.db import router

from django_ojs.errors import NotFound
from django_ojs.hooks import replaceable
from django_ojs.jobs import progress
from django_ojs.lifecycle.ended import jobs_read
from django_ojs.models import Job
from django_ojs.models.job import JobRow


@replaceable("read_job")
def info(job_id: uuid.UUID, *, using: str | None = None) -> JobRow:
    """Read a job; return its row. Never writes. Raises `NotFound`."""
    using = using or router.db_for_write(Job)
    rows = Job.objects.using(using).filter(pk=job_id).rows()
    if not rows:
        raise NotFound.resource("job", str(job_id))
    jobs_read(rows, using)
    progress.attach(rows, using)
    return rows[0]
