"""A transaction that somebody leaves open holds up what needs its rows, and nothing else that the scheduler does."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.db.models import Q, QuerySet

from django_ojs import clock
from django_ojs.database import piece_by_piece
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.push import push
from django_ojs.jobs.timers import apply_due
from django_ojs.models import Job, Maintenance, Queue, Worker, Workflow
from django_ojs.queues import bounds, maintenance
from django_ojs.queues.configuration import configure
from django_ojs.rules import workflows
from django_ojs.scheduler.scheduler import Scheduler
from django_ojs.workerregistry.dead import rescue_dead_workers
from django_ojs.workerregistry.registration import register
from django_ojs.workflows.workflow import create

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no locked rows: PostgreSQL, MariaDB"),
]
LATER = dt.timedelta(hours=1)
on_postgresql = pytest.mark.postgres


@contextmanager
def held(rows: Callable[[], QuerySet[Any]]) -> Iterator[None]:
    """Another connection's transaction holds these rows; statements here fail rather than wait for a second."""
    locked, done = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            assert list(rows().select_for_update())
            locked.set()
            assert done.wait(60)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(hold)
        try:
            assert locked.wait(30)
            wish = {"postgresql": "SET lock_timeout = '2s'", "mysql": "SET SESSION innodb_lock_wait_timeout = 2"}
            with connection.cursor() as cursor:
                cursor.execute(wish[connection.vendor])
            yield
        finally:
            done.set()
            running.result(30)
            pool.submit(connections.close_all).result(30)
            connection.close()  # and with it the limit


def job(queue: str = "q", **fields: Any) -> Any:
    (pushed,) = push([{"type": "a.b", "args": [], "queue": queue, **fields}])
    assert pushed.row is not None
    return pushed.row["id"]


def due_job() -> Any:
    """A scheduled job whose time has come, however long the push took."""
    made = job(options={"delay_until": (clock.now("default") + LATER).isoformat()})
    past = clock.now("default") - LATER
    assert Job.objects.filter(pk=made, state="scheduled").update(due_at=past, wake_at=past) == 1
    return made


def state(job_id: Any) -> str:
    return str(Job.objects.get(pk=job_id).state)


def pressed(name: str) -> None:
    """A bounded queue that was nearly full and has emptied since."""
    configure(name, {"max_size": 10})
    Queue.objects.filter(name=name).update(pressured_at=clock.now("default"))


def test_a_queue_whose_row_is_held_is_relieved_later_and_others_now() -> None:
    pressed("held")
    pressed("free")
    with held(lambda: Queue.objects.filter(name="held")):
        assert bounds.relieve() == 1
    assert list(Queue.objects.filter(pressured_at__isnull=False).values_list("name", flat=True)) == ["held"]
    assert bounds.relieve() == 1


def test_a_whole_pass_promotes_and_rescues_while_a_bounded_queue_is_held() -> None:
    """As the thread of the scheduler does it, one duty after the other."""
    pressed("held")
    register("dead", {"queues": ["q"]})
    lost = job()
    assert len(fetch(Fetch(["q"], worker_id="dead"))) == 1
    expired = job()
    assert len(fetch(Fetch(["q"], worker_id="alive", visibility_ms=1))) == 1
    Worker.objects.filter(pk="dead").update(last_heartbeat_at=clock.now("default") - LATER)
    due = due_job()
    scheduler = Scheduler("test")
    with held(lambda: Queue.objects.filter(name="held")):
        thread = scheduler._threads[0]
        for _ in range(3):
            thread._due = dict.fromkeys(thread._due, float("-inf"))
            thread.stopping.set()  # so that an error of the database is raised rather than waited for
            for duty in thread._duties:
                duty.run_once("default")
    assert [state(found) for found in (lost, expired, due)] == ["available"] * 3


def test_maintenance_that_is_held_is_ended_later() -> None:
    maintenance.start(lasting=LATER, auto_end=True)
    Maintenance.objects.update(estimated_end=clock.now("default") - LATER)
    with held(Maintenance.objects.all):
        assert not maintenance.end_if_over()
    assert maintenance.end_if_over()


def test_a_dead_worker_with_a_held_job_is_rescued_later_and_others_now() -> None:
    given = {}
    for name in ("busy", "dead"):
        register(name, {"queues": ["q"]})
        given[name] = job()
        assert len(fetch(Fetch(["q"], worker_id=name))) == 1
    Worker.objects.update(last_heartbeat_at=clock.now("default") - LATER)
    with held(lambda: Job.objects.filter(pk=given["busy"])):
        assert rescue_dead_workers() == 1
    assert (state(given["busy"]), state(given["dead"])) == ("active", "available")
    assert list(Worker.objects.values_list("pk", flat=True)) == ["busy"]
    assert rescue_dead_workers() == 1


@pytest.mark.mariadb
def test_what_is_done_piece_by_piece_waits_a_second_for_a_lock_on_mariadb() -> None:
    found = []

    def act(piece: Q, patient: bool) -> int:
        assert not patient
        with connection.execute_wrapper(lambda execute, sql, *rest: found.append(sql)):
            Queue.objects.filter(piece).update(draining=False)
        return 1

    assert piece_by_piece(act, list, "default") == 1
    assert found[-1].startswith("SET STATEMENT innodb_lock_wait_timeout=1 FOR UPDATE ")


@on_postgresql
@pytest.mark.parametrize("what", ["workflow", "queue"])
def test_what_a_workflow_needs_holds_up_that_workflow_only(what: str) -> None:
    """A member whose time runs out takes its workflow further, here to a callback in a bounded queue."""
    configure("held", {"max_size": 10})

    def flow(queue: str) -> Any:
        member = {"type": "a.b", "args": [], "queue": "q", "timeout": 1}
        callback = {"type": "a.c", "args": [], "queue": queue}
        plan = workflows.parse(
            {"type": "batch", "jobs": [member], "callbacks": {"on_complete": callback}}, now=clock.now()
        )
        return create(plan).workflow.pk

    stuck, free = flow("held"), flow("open")
    assert len(fetch(Fetch(["q"], count=9, visibility_ms=1))) == 2
    Job.objects.filter(queue="q").update(expires_at=None)
    Job.objects.filter(state="active").update(
        deadline_at=clock.now("default") - LATER, wake_at=clock.now("default") - LATER
    )
    due = due_job()
    rows = {"workflow": lambda: Workflow.objects.filter(pk=stuck), "queue": lambda: Queue.objects.filter(name="held")}
    with held(rows[what]):
        assert apply_due() == 2
        assert state(due) == "available"
        assert list(Job.objects.filter(state="active").values_list("workflow_id", flat=True)) == [stuck]
        assert Job.objects.filter(queue="open", workflow_id=free).exists()
    assert apply_due() == 1
    assert Job.objects.filter(queue="held", workflow_id=stuck).exists()
