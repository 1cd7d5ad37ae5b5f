"""The files beside this test show every statement of the hot path as it is sent, for each database.

    OJS_TEST_WRITE_SQL=1 pytest tests/sql      write them anew, for the database of OJS_TEST_DATABASE_URL

They show the usual case: what a process sends that has made such a call before, on a queue that nothing is configured
for, under no limit. A review sees there what a change does to a statement.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django
import pytest
from django.db import connection

from django_ojs.events import order
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail
from django_ojs.jobs.push import push
from django_ojs.jobs.retry import retry
from django_ojs.jobs.timers import apply_due
from django_ojs.workerregistry.heartbeat import Beat, beat
from django_ojs.workerregistry.registration import register
from django_ojs.workflows import workflow
from tests.sql.recording import file_of, recorded

HERE = Path(__file__).parent
WRITES = bool(os.environ.get("OJS_TEST_WRITE_SQL"))

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("long_memory"),
    pytest.mark.skipif(
        django.VERSION[:2] != (5, 2), reason="the files show what the ORM of Django 5.2 makes of its part"
    ),
]

Call = Callable[[], Any]
PATIENT = {"initial_interval": "1h", "max_interval": "1h"}


def jobs(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"type": "mail.send", "args": [number], "retry": PATIENT, **more} for number in range(count)]


def claimed(count: int) -> list[Any]:
    push(jobs(count))
    return [row["id"] for row in fetch(Fetch(["default"], count=count, worker_id="w"))]


def steps(count: int) -> list[Any]:
    workflow.create({"type": "chain", "name": "c", "steps": jobs(count)})
    return [row["id"] for row in fetch(Fetch(["default"], count=1, worker_id="w"))]


# Each of these prepares a call and returns it. Their docstrings begin the files.


def push_one() -> Call:
    """PUSH of one job: the row, its event, the count of its queue."""
    return lambda: push(jobs(1))


def push_many() -> Call:
    """PUSH of several jobs, however many."""
    return lambda: push(jobs(3))


def push_unique() -> Call:
    """PUSH of one unique job: no job that is open may have its key."""
    unique = {"keys": ["type", "args"], "on_conflict": "reject"}
    number = iter(range(1000, 2000))
    return lambda: push([{**jobs(1)[0], "args": [next(number)], "unique": unique}])


def push_many_unique() -> Call:
    """PUSH of several unique jobs: their keys are locked, then those that are taken are looked for."""
    unique = {"keys": ["type", "args"], "on_conflict": "reject"}
    number = iter(range(2000, 3000))
    return lambda: push([{**job, "args": [next(number)], "unique": unique} for job in jobs(3)])


def fetch_nothing() -> Call:
    """FETCH from a queue in which no job waits: one look says so."""
    return lambda: fetch(Fetch(["default"], worker_id="w"))


def fetch_one_queue() -> Call:
    """FETCH from one queue: a look at the queue and the worker, then the claim."""
    push(jobs(8))
    return lambda: fetch(Fetch(["default"], count=4, worker_id="w"))


def fetch_several_queues() -> Call:
    """FETCH from several queues, which are served from left to right, of some job types."""
    push(jobs(4))
    push(jobs(4, queue="mail"))
    return lambda: fetch(Fetch(["mail", "default"], count=4, worker_id="w", types=["mail.send", "report.*"]))


def worker_claim() -> Call:
    """The claim of `ojs_worker`, which was told of a job: where the database can, it claims without a look before."""
    push(jobs(8))
    return lambda: fetch(Fetch(["default"], count=4, worker_id="w", check_worker=False, optimistic=True, urgent=True))


def ack_one() -> Call:
    """ACK of one job with a result."""
    ids = iter(claimed(2))
    return lambda: ack([Ack(next(ids), "1", "w", 1)])


def ack_many() -> Call:
    """ACK of several jobs, as the worker reports them together."""
    ids = claimed(6)
    return lambda: ack([Ack(ids.pop(), "1", "w", 1) for _ in range(3)])


def ack_step() -> Call:
    """ACK of a step of a chain: the workflow is locked and the job of the next step is enqueued."""
    ids = [steps(3)[0], steps(3)[0]]
    return lambda: ack([Ack(ids.pop(), "1", "w", 1)])


def nack_back_off() -> Call:
    """NACK of a job that has attempts left."""
    ids = iter(claimed(2))
    return lambda: fail([Failure(next(ids), {"type": "Boom", "message": "no"}, "w", 1)])


def nack_discard() -> Call:
    """NACK of a job that fails for good."""
    ids = iter(claimed(2))
    return lambda: fail([Failure(next(ids), {"type": "Boom", "message": "no", "retryable": False}, "w", 1)])


def cancel_one() -> Call:
    """CANCEL of one job that waits."""
    ids = [one.row["id"] for one in push(jobs(2)) if one.row]
    return lambda: cancel([ids.pop()])


def retry_one() -> Call:
    """An operator retries one job that was discarded."""
    ids = claimed(2)
    fail([Failure(job_id, {"type": "Boom", "message": "no", "retryable": False}) for job_id in ids])
    return lambda: retry([ids.pop()])


def beat_with_jobs() -> Call:
    """BEAT of a worker that runs jobs: its row is brought up to date and their reservations are extended."""
    register("w", {"queues": ["default"]})
    ids = claimed(3)
    return lambda: beat(Beat("w", ids))


def promote_due() -> Call:
    """What time brings: scheduled jobs that are due become available."""

    def call() -> None:
        push(jobs(3, scheduled_at="2020-01-01T00:00:00Z"))
        with recorded():
            apply_due()

    call()
    push(jobs(3, scheduled_at="2020-01-01T00:00:00Z"))
    return apply_due


def order_events() -> Call:
    """Committed events get their places in the log."""

    def call() -> None:
        order.catch_up(connection.alias)

    push(jobs(3))
    call()
    push(jobs(3))
    return call


CALLS: list[Callable[[], Call]] = [
    push_one, push_many, push_unique, push_many_unique, fetch_nothing, fetch_one_queue, fetch_several_queues,
    worker_claim, ack_one, ack_many, ack_step, nack_back_off, nack_discard, cancel_one, retry_one, beat_with_jobs,
    promote_due, order_events,
]  # fmt: skip
#: They do their work in `prepare`, and what is left for a second time is what is recorded.
ONCE = {promote_due, order_events}


@pytest.fixture(autouse=True)
def _prepared() -> None:
    """A connection that has run some statements, as that of a process that works."""
    for _ in range(2):
        ack([Ack(claimed(1)[0])])


@pytest.mark.parametrize("prepare", CALLS)
def test_a_call_sends_what_its_file_shows(prepare: Callable[[], Call]) -> None:
    call = prepare()
    if prepare not in ONCE:
        call()
    with recorded() as statements:
        call()
    made = file_of(str(prepare.__doc__), statements)
    file = HERE / connection.vendor / f"{prepare.__name__}.sql"
    if WRITES:
        file.parent.mkdir(exist_ok=True)
        file.write_text(made)
    shown = file.read_text() if file.exists() else ""
    assert made == shown, (
        f"{file.relative_to(HERE.parent.parent)} shows something else. If the change is meant, write it anew with "
        f"OJS_TEST_WRITE_SQL=1 and read the difference.\n{made}"
    )


def test_no_file_is_left_over() -> None:
    names = {prepare.__name__ for prepare in CALLS}
    assert {file.stem for file in HERE.glob("*/*.sql")} == names
