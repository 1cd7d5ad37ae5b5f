"""A worker whose host has a clock that is a day wrong: durable jobs sleep, wait and tell the time as elsewhere."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator

import pytest
from django.db import connection

from django_ojs import ApprovalTimeout, EventTimeout, JobContext, clock, job
from django_ojs.models import Job, JobStep
from django_ojs.registry import registry
from django_ojs.testing.storedjobs import WorkerJobs
from django_ojs.testing.storedjobs import worker as stored
from tests.operations.test_clock_steps import Host, host

__all__ = ["host"]  # a fixture
pytestmark = pytest.mark.django_db

NEARLY = dt.timedelta(minutes=1)


@pytest.fixture
def jobs() -> Iterator[WorkerJobs]:
    with registry.isolated(), stored() as found:
        yield found


def sleep(context: JobContext) -> None:
    context.sleep("1h")


def wait(context: JobContext) -> None:
    with pytest.raises(EventTimeout):
        context.wait_for_event("clock.never", timeout="1h")


def ask(context: JobContext) -> None:
    with pytest.raises(ApprovalTimeout):
        context.wait_for_approval("ask", timeout="1h")


@pytest.mark.parametrize("seconds", [86_400.0, -86_400.0])
@pytest.mark.parametrize("rest", [sleep, wait, ask])
def test_a_durable_job_rests_as_long_as_it_should(
    jobs: WorkerJobs, host: Host, rest: Callable[[JobContext], None], seconds: float
) -> None:
    """A server database has the right time. SQLite has that of the host, which is set while the worker runs."""

    @job("clock.wrong", durable=True)
    def handler(context: JobContext) -> str:
        began = context.now()
        rest(context)
        return began.isoformat()

    start = clock.now("default")
    host.step(seconds)
    if connection.vendor != "sqlite":
        clock.forget()  # as a process that begins with this clock
    handle = handler.enqueue()
    jobs.drain()
    assert Job.objects.get(pk=handle.id).state == "retryable"
    due = JobStep.objects.exclude(due_at=None).values_list("due_at", flat=True).get()
    assert due is not None
    assert abs(due - start - dt.timedelta(hours=1)) < NEARLY
    assert len(jobs.tick("59m")) == 0
    assert jobs.tick("2m").completed == 1
    assert abs(dt.datetime.fromisoformat(str(handle.refresh().result)) - start) < NEARLY
