"""kill -9 in the middle of a push or of the end of a workflow: nothing is half done, and who comes next heals it.

Each process is stopped at a point inside its transaction and killed there. The points are of the code; where
PostgreSQL does everything in one statement, that statement is made to wait in its middle.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections, transaction

from django_ojs import clock
from django_ojs.errors import Duplicate
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack_one
from django_ojs.jobs.push import push
from django_ojs.jobs.timers import apply_due
from django_ojs.models import Event, Job, Queue, Workflow
from django_ojs.queues import configuration
from django_ojs.rules.ids import new_job_id
from django_ojs.statistics import counters
from django_ojs.workflows import workflow
from tests.hostile.invariants import violations
from tests.processes.conftest import Site
from tests.processes.test_fences import somebody_waits
from tests.waiting import eventually

pytestmark = [pytest.mark.slow]

SIZE = 1000
QUEUE = "crash"
AFTER = "django_ojs."
one_writer, postgres = connection.vendor == "sqlite", connection.vendor == "postgresql"


class Stalled:
    """A process that does `deed` and has stopped at `point`."""

    def __init__(self, site: Site, folder: Path, point: str, **deed: Any) -> None:
        self._file = folder / f"stopped-{len(site.processes)}"
        self._site = site
        others = sessions()
        self.process = start(site, point, self._file, deed)
        eventually(self._stopped, f"the process stops at {point}")
        self._sessions = sessions() - others

    def _stopped(self) -> bool:
        assert self.process.poll() is None, self._site.logs()
        return self._file.exists()

    def kill(self) -> None:
        """Until the server has noticed, too, and let go of the rows that the transaction had locked."""
        self._site.kill(self.process)
        eventually(lambda: self._sessions.isdisjoint(sessions()), "the server has noticed")


def start(site: Site, point: str, file: Path, deed: dict[str, Any]) -> subprocess.Popen[str]:
    process = site.start("-m", "tests.processes.stalling", point, str(file))
    assert process.stdin is not None
    process.stdin.write(json.dumps(deed))
    process.stdin.close()
    process.stdin = None
    return process


def documents(count: int = SIZE, **more: Any) -> list[dict[str, Any]]:
    """With ids of the client's, so that a retry cannot enqueue twice."""
    return [{"id": str(new_job_id()), "type": "a.b", "args": [n], "queue": QUEUE, **more} for n in range(count)]


def check_books(*, live: int) -> None:
    """Rows, events and counters tell the same, and so many jobs of the queue have not ended."""
    stored = Job.objects.values_list("pk", flat=True)
    assert violations(map(str, stored), ()) == []
    by_state = {state: Job.objects.filter(queue=QUEUE, state=state).count() for state in counters.count(QUEUE).states}
    assert counters.count(QUEUE).states == by_state
    assert counters.count(QUEUE).depth == live
    keys = list(Job.objects.live().exclude(unique_key="").values_list("unique_key", flat=True))
    assert len(keys) == len(set(keys))


def snapshot() -> Any:
    """Everything that a push may change."""
    return (
        sorted(Job.objects.values_list("pk", "state", "finished_at", "unique_key")),
        sorted(Event.objects.values_list("pk", "type")),
        sorted(Workflow.objects.values_list("pk", "state", "progress")),
        list(Queue.objects.order_by("pk").values()),
        counters.count_all(),
    )


# A push


@pytest.fixture
def room(transactional_db: None) -> None:
    """The queue, so that nobody need make it."""
    now = clock.now()
    Queue.objects.create(name=QUEUE, created_at=now, updated_at=now)
    configuration.forget()


@pytest.mark.sqlite_too
@pytest.mark.skipif(connection.vendor == "postgresql", reason="there it is one statement: the next test")
def test_a_plain_push_killed_between_its_jobs_and_their_events(site: Site, room: None, tmp_path: Path) -> None:
    jobs = documents()
    before = snapshot()
    point = "django_ojs.store.sqlite:SQLiteStore.count" if one_writer else "django_ojs.store.orm:Store.count"
    Stalled(site, tmp_path, point, push=jobs).kill()
    assert snapshot() == before
    push(jobs)
    check_books(live=SIZE)


@pytest.mark.postgres
def test_a_plain_push_killed_inside_its_statement(site: Site, room: None, tmp_path: Path) -> None:
    """The server may finish a statement whose client is gone: all of it, or nothing."""
    jobs = documents()
    before = sessions()
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("LOCK TABLE django_ojs_event IN SHARE MODE")  # it reads still, but nobody writes
        process = start(site, "nowhere", tmp_path / "never", {"push": jobs})
        eventually(somebody_waits, "the push has inserted its jobs and waits to log them")
        site.kill(process)
    eventually(lambda: sessions() <= before, "the server has noticed")
    assert Job.objects.count() in (0, SIZE)
    check_books(live=Job.objects.count())
    try:
        push(jobs)
    except Duplicate:
        assert Job.objects.count() == SIZE
    check_books(live=SIZE)


#: By vendor: which sessions clients have in this database. SQLite has none: there a process that ends lets go itself.
SESSIONS = {
    "postgresql": (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
    ),
    "mysql": "SELECT id FROM information_schema.processlist WHERE db = database()",
}


def sessions() -> set[int]:
    """The sessions of clients in this database; other tests of this process may have left some."""
    if connection.vendor not in SESSIONS:
        return set()
    with connection.cursor() as cursor:
        cursor.execute(SESSIONS[connection.vendor])
        return {int(number) for (number,) in cursor}


PUSH_POINTS = {
    "locked": f"{AFTER}queues.bounds:lock",
    "cancelled": f"{AFTER}jobs.decisions:cancel",
    "dropped": f"{AFTER}queues.bounds:enforce",
    "inserted": f"{AFTER}jobs.decisions:insert",
    "called back": f"{AFTER}workflows.advance:enqueue",
    "commit": "commit",
}


@pytest.mark.parametrize(
    "point", [*(pytest.param(point, marks=pytest.mark.wide) for point in [*PUSH_POINTS][:-2]), *[*PUSH_POINTS][-2:]]
)
def test_a_push_that_replaces_and_drops(site: Site, room: None, tmp_path: Path, point: str) -> None:
    """A full queue: half of the new jobs replace one with their key, the others push the oldest out.

    Among those that go are members of workflows, whose callbacks are enqueued in the same transaction.
    """
    config = {"backpressure": {"max_depth": SIZE, "strategy": "drop_oldest"}}
    Queue.objects.filter(pk=QUEUE).update(config=config)
    callbacks = {"on_failure": {"type": "a.c", "args": [], "queue": "elsewhere"}}
    for unique in ({}, {"unique": {"on_conflict": "replace"}}):
        member = {"type": "a.b", "args": ["member"], "queue": QUEUE, **unique}
        workflow.create({"type": "batch", "jobs": [member], "callbacks": callbacks})
    half = SIZE // 2
    push(documents(half - 1))
    push(documents(half - 1, unique={}))
    jobs = documents(half, unique={"on_conflict": "replace"}) + documents(half)
    jobs[half - 1]["args"] = ["member"]
    before = snapshot()
    Stalled(site, tmp_path, PUSH_POINTS[point], push=jobs).kill()
    assert snapshot() == before
    check_books(live=SIZE)

    done = push(jobs)
    assert [pushed.status for pushed in done] == ["created"] * SIZE
    check_books(live=SIZE)
    assert Job.objects.filter(queue=QUEUE, state="cancelled").count() == half
    assert Job.objects.filter(queue=QUEUE, state="discarded").count() == half
    assert Job.objects.filter(queue="elsewhere", state="available").count() == 2, "one callback for each"


# The end of a workflow

COMPLETED = {
    "postgresql": "store.postgresql:PostgreSQLStore.complete_members", "sqlite": "store.sqlite:SQLiteStore.complete",
}  # fmt: skip


@pytest.mark.parametrize(
    "last", [pytest.param(False, marks=pytest.mark.wide, id="first"), pytest.param(True, id="last")]
)
@pytest.mark.parametrize(
    "point", [*(pytest.param(point, marks=pytest.mark.wide) for point in ("completed", "pushed")), "saved", "commit"]
)
def test_a_fan_in_counts_each_member_once_and_calls_back_once(
    site: Site, room: None, tmp_path: Path, point: str, last: bool, elsewhere: Any
) -> None:
    if point == "pushed" and not last:
        pytest.skip("only the last member pushes anything")
    if point == "saved" and last and postgres:
        pytest.skip("PostgreSQL stores the progress and the callback in one statement, where `pushed` stops")
    points = {
        # The job is completed, and its workflow has not heard of it. PostgreSQL has locked it in the same statement.
        "completed": AFTER + COMPLETED.get(connection.vendor, "store.orm:Store.complete"),
        "pushed": f"{AFTER}workflows.advance:enqueue",
        "saved": f"{AFTER}store.orm:Store.save",
        "commit": "commit",
    }
    callbacks = {"on_complete": {"type": "a.c", "args": [], "queue": QUEUE}}
    members = [{"type": "a.b", "args": [n], "queue": QUEUE} for n in range(2)]
    flow = workflow.create({"type": "batch", "name": "n", "jobs": members, "callbacks": callbacks}).workflow
    mine, other = (row["id"] for row in fetch(Fetch([QUEUE], count=2, worker_id="victim", visibility_ms=1000)))
    if last:
        ack_one(Ack(other, "2", "victim"))
    before = snapshot()
    stalled = Stalled(site, tmp_path, points[point], ack=[str(mine)])
    if last or one_writer:
        stalled.kill()
        assert snapshot() == before
        if not last:
            ack_one(Ack(other, "2", "victim"))
    else:
        # The other member ends at the same time: at once, or as soon as the workflow's lock is free.
        ending = elsewhere(lambda: ack_one(Ack(other, "2", "victim")))
        if point == "completed" and not postgres:
            ending.result(30)
        stalled.kill()
        ending.result(30)

    assert Job.objects.get(pk=mine).state == "active"
    assert Workflow.objects.get().progress == "r" + letters(flow, mine)
    clock.freeze(clock.now())
    clock.advance(seconds=60)
    assert apply_due() == 1, "the reservation is over"
    (row,) = fetch(Fetch([QUEUE], count=9, worker_id="heir"))
    assert (row["id"], row["attempt"]) == (mine, 2)
    ack_one(Ack(mine, "1", "heir"))
    (callback,) = fetch(Fetch([QUEUE], count=9, worker_id="heir"))
    assert callback["type"] == "a.c"
    ack_one(Ack(callback["id"], None, "heir"))

    assert Workflow.objects.get().state == "completed"
    told = list(Event.objects.filter(type__startswith="workflow.").order_by("id").values_list("type", flat=True))
    assert told == ["workflow.started", *["workflow.step_completed"] * 2, "workflow.completed"]
    assert Event.objects.filter(type="job.completed").count() == Job.objects.count() == 3
    check_books(live=0)


def letters(flow: Workflow, open_job: Any) -> str:
    """The progress behind the root's letter while only this member and the callback are missing."""
    steps = flow.steps.order_by("position").values_list("job_id", "step_id")
    return "".join("w" if name == "on_complete" else "r" if job == open_job else "c" for job, name in steps)


@pytest.fixture
def elsewhere() -> Any:
    """`elsewhere(act)` in a thread with a connection of its own."""
    with ThreadPoolExecutor(1) as pool:

        def run(act: Callable[[], Any]) -> Any:
            return pool.submit(act)

        yield run
        pool.submit(connections.close_all).result(30)
