"""A worker whose host has a clock that is a day wrong: durable jobs sleep, wait and tell the time as elsewhere."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from django_ojs import ApprovalTimeout, EventTimeout, JobContext, clock, emit_event, job
from django_ojs.client.options import milliseconds
from django_ojs.jobs import approvals
from django_ojs.jobs.promote import run_now
from django_ojs.models import Job, JobStep
from django_ojs.registry import registry
from django_ojs.scheduler.scheduler import SetRight
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


def until_noon(context: JobContext) -> None:
    context.sleep_until(NOON)


NOON = dt.datetime(2026, 1, 17, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize("rest, left", [(sleep, "1h"), (wait, "1h"), (ask, "1h"), (until_noon, "48h")])
def test_a_rest_that_began_while_the_clock_was_ahead_begins_anew(
    jobs: WorkerJobs, frozen_clock: Any, rest: Callable[[JobContext], None], left: str
) -> None:
    """It lasted until the clock was there again. What the handler has named itself stays."""

    @job("clock.ahead", durable=True)
    def handler(context: JobContext) -> None:
        rest(context)

    start = frozen_clock.now
    frozen_clock.advance(days=1)
    handle = handler.enqueue()
    jobs.drain()
    frozen_clock.move_to(start)
    SetRight().run_once("default")
    approvals.sweep()
    assert run_now([handle.id])
    jobs.drain()
    assert Job.objects.get(pk=handle.id).state == "retryable"
    assert len(jobs.tick("59m")) == 0
    frozen_clock.advance(milliseconds=milliseconds(left, "left") - 59 * 60_000 - 2000)
    assert len(jobs.drain()) == 0
    assert jobs.tick("3s").completed == 1


def test_a_wait_that_an_event_ends_as_it_begins_anew_goes_on(jobs: WorkerJobs, frozen_clock: Any) -> None:
    """Another process has emitted it between the look at the record and the wait."""

    @job("clock.met", durable=True)
    def handler(context: JobContext) -> Any:
        if context.attempt > 1:
            emit_event("clock.paid", payload="paid")
        return context.wait_for_event("clock.paid", timeout="1h")

    start = frozen_clock.now
    frozen_clock.advance(days=1)
    handle = handler.enqueue()
    jobs.drain()
    frozen_clock.move_to(start)
    SetRight().run_once("default")
    assert run_now([handle.id])
    assert len(jobs.drain()) == 1
    assert handle.refresh().result == "paid"
