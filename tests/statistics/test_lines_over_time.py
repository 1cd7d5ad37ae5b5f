"""The lines of a job over time, which each database counts by a statement of its own."""

from __future__ import annotations

import datetime as dt

import pytest

from django_ojs.jobs.joblog import LogBucket, buckets
from django_ojs.models import JobLog
from django_ojs.rules.ids import new_job_id

pytestmark = pytest.mark.django_db


def test_lines_are_counted_by_when_they_were_logged() -> None:
    job_id, first = new_job_id(), dt.datetime(2026, 1, 15, 12, 0, 0, 250_000, tzinfo=dt.UTC)
    for number, (seconds, level) in enumerate([(0, 20), (0.5, 40), (5.5, 10), (95, 30)]):
        time = first + dt.timedelta(seconds=seconds)
        JobLog.objects.create(job_id=job_id, attempt=1, started_at=first, sequence=number, time=time, level=level)
    found = buckets(job_id, first, first + dt.timedelta(seconds=100), 100)
    assert found == [LogBucket(0, 2, 40), LogBucket(5, 1, 10), LogBucket(95, 1, 30)]
