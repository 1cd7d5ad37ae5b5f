"""What keeps two workers from having one job: SKIP LOCKED, and the fence of state, holder and attempt.

Each guarantee is a check; each test of a check is followed by one that takes the safeguard out of a copy of
the code and sees the check fail, so that neither can be lost without a word.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, connection, connections, transaction

from django_ojs import states
from django_ojs.errors import InvalidStateTransition, OJSError
from django_ojs.jobs import finish as fail_module
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail, requeue
from django_ojs.jobs.push import push
from django_ojs.models import Job, RateStart
from django_ojs.store import orm, postgresql, sqlite, store_of
from tests.waiting import eventually

Check = Callable[[], None]
Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.django_db(transaction=True)
#: The module of the statements in use here.
STATEMENTS: Any = {"postgresql": postgresql, "sqlite": sqlite}.get(connection.vendor, orm)
several_writers = pytest.mark.skipif(
    connection.vendor == "sqlite", reason="SQLite has one writer, so no locked rows to skip: PostgreSQL, MariaDB"
)


def make(count: int = 1) -> list[uuid.UUID]:
    rows = [pushed.row for pushed in push([{"type": "a.b", "args": [n]} for n in range(count)])]
    return [row["id"] for row in rows if row is not None]


def look(job_id: uuid.UUID) -> tuple[str, int, str]:
    job = Job.objects.get(pk=job_id)
    return str(job.state), job.attempt, job.worker_id


@pytest.fixture
def elsewhere() -> Iterator[ThreadPoolExecutor]:
    """A thread with a connection of its own; `close_all` is its last task."""
    with ThreadPoolExecutor(1) as pool:
        yield pool
        pool.submit(connections.close_all).result(30)


# SKIP LOCKED


def wait_at_most_a_second() -> None:
    wish = {"postgresql": "SET lock_timeout = '1s'", "mysql": "SET SESSION innodb_lock_wait_timeout = 1"}
    with connection.cursor() as cursor:
        cursor.execute(wish[connection.vendor])


def check_a_claim_passes_by_an_open_claim(elsewhere: ThreadPoolExecutor) -> None:
    """One claim is not committed yet; the next one gets other jobs, at once."""
    ids = make(6)
    claimed, done = threading.Event(), threading.Event()

    def first() -> list[uuid.UUID]:
        with transaction.atomic():
            rows = fetch(Fetch(["default"], count=3, worker_id="first"))
            claimed.set()
            assert done.wait(60)
        return [row["id"] for row in rows]

    running = elsewhere.submit(first)
    try:
        assert claimed.wait(30)
        wait_at_most_a_second()
        second = [row["id"] for row in fetch(Fetch(["default"], count=6, worker_id="second"))]
    finally:
        done.set()
        held = running.result(30)
        connection.close()  # and with it the limit
    assert (held, second) == (ids[:3], ids[3:])
    assert [look(job_id) for job_id in ids] == [("active", 1, "first")] * 3 + [("active", 1, "second")] * 3


@several_writers
def test_a_claim_neither_waits_for_nor_sees_what_another_is_claiming(elsewhere: ThreadPoolExecutor) -> None:
    check_a_claim_passes_by_an_open_claim(elsewhere)


@several_writers
def test_a_limit_counts_no_start_of_a_job_that_another_transaction_holds(elsewhere: ThreadPoolExecutor) -> None:
    limit = {"key": "api", "rate": {"limit": 2, "period": "1h"}}
    ids = [row["id"] for n in range(3) if (row := push([{"type": "a.b", "args": [n], "rate_limit": limit}])[0].row)]
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            list(Job.objects.select_for_update().filter(pk=ids[0]))
            held.set()
            assert done.wait(60)

    running = elsewhere.submit(hold)
    try:
        assert held.wait(30)
        assert [row["id"] for row in fetch(Fetch(["default"], count=3))] == ids[1:]
        assert sum(RateStart.objects.values_list("count", flat=True)) == 2
    finally:
        done.set()
        running.result(30)


@several_writers
def test_without_skip_locked_that_check_fails(elsewhere: ThreadPoolExecutor, monkeypatch: Patch) -> None:
    if STATEMENTS is orm:
        monkeypatch.setattr(store_of("default"), "skip_locked", False)
    else:
        without(monkeypatch, "_claim_statement", " SKIP LOCKED")
    with pytest.raises((AssertionError, OperationalError)):
        check_a_claim_passes_by_an_open_claim(elsewhere)


def without(monkeypatch: Patch, maker: str, clause: str) -> None:
    """Take a clause out of a statement, in a copy of its maker."""
    original = getattr(STATEMENTS, maker)

    def copy(*args: Any, **kwargs: Any) -> str:
        return shortened(original(*args, **kwargs), clause)

    monkeypatch.setattr(STATEMENTS, maker, copy)


def shortened(statement: str, clause: str) -> str:
    assert statement.count(clause) == 1, f"{clause!r} is not in the statement: {statement}"
    return statement.replace(clause, "")


# The fence of a worker's report

ERROR = {"message": "no"}
REPORTS: dict[str, Callable[..., list[Any]]] = {
    "ack": lambda job_id, worker="", attempt=None: ack([Ack(job_id, "1", worker, attempt)]),
    "fail": lambda job_id, worker="", attempt=None: fail([Failure(job_id, ERROR, worker, attempt)]),
}


def refused(outcomes: list[Any]) -> bool:
    return [type(outcome) for outcome in outcomes] == [InvalidStateTransition]


def check_the_holder(report: Callable[..., list[Any]]) -> None:
    """Another worker's report changes nothing."""
    (job_id,) = make()
    fetch(Fetch(["default"], worker_id="holder"))
    assert refused(report(job_id, "stranger"))
    assert look(job_id) == ("active", 1, "holder")


def check_the_attempt(report: Callable[..., list[Any]]) -> None:
    """A report about a claim that was lost changes nothing, though the same worker has the job again."""
    (job_id,) = make()
    fetch(Fetch(["default"], worker_id="holder"))
    requeue([job_id])
    fetch(Fetch(["default"], worker_id="holder"))
    assert refused(report(job_id, "holder", 1))
    assert look(job_id) == ("active", 2, "holder")


def check_the_state(report: Callable[..., list[Any]]) -> None:
    """A report about a job that is over changes nothing."""
    (job_id,) = make()
    fetch(Fetch(["default"], worker_id="holder"))
    cancel([job_id])
    assert refused(report(job_id, "holder", 1))
    assert look(job_id) == ("cancelled", 1, "holder")


CHECKS = {"holder": check_the_holder, "attempt": check_the_attempt, "state": check_the_state}
#: The same three in the WHERE clause of the statements in SQL ...
CLAUSES = {
    "holder": "AND (a.worker = '' OR j.worker_id = '' OR j.worker_id = a.worker)",
    "attempt": "AND (a.attempt IS NULL OR a.attempt = j.attempt)",
    "state": f"AND {postgresql._still('active')}" if STATEMENTS is postgresql else "AND j.state = 'active'",
}


def holds_without(part: str) -> Callable[[Any, str, int | None], bool]:
    """... and in the condition of those through the ORM."""

    def holds(row: Any, worker_id: str, attempt: int | None) -> bool:
        return (
            (part == "state" or row["state"] == "active")
            and (part == "holder" or worker_id in ("", row["worker_id"]))
            and (part == "attempt" or attempt in (None, row["attempt"]))
        )

    return holds


def no_guard(monkeypatch: Patch) -> None:
    """Let the statements that write rows back touch a row in any state."""
    monkeypatch.setattr(STATEMENTS, "guarded_states", lambda guard: states.ordered(states.State))


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("part", CHECKS)
def test_a_worker_that_lost_its_job_changes_nothing(part: str, report: str) -> None:
    CHECKS[part](REPORTS[report])


@pytest.mark.parametrize("part", CHECKS)
def test_without_its_clause_in_the_completion_that_check_fails(part: str, monkeypatch: Patch) -> None:
    if STATEMENTS is orm:
        monkeypatch.setattr(orm, "holds", holds_without(part))
        no_guard(monkeypatch)
    elif STATEMENTS is sqlite:  # which looks for the jobs first, and then finds them by their places
        without(monkeypatch, "_held_statement", CLAUSES[part])
        if part == "state":
            monkeypatch.setattr(sqlite, "_COMPLETE", shortened(sqlite._COMPLETE, CLAUSES[part]))
    else:
        without(monkeypatch, "_complete_statement", CLAUSES[part])
    with pytest.raises(AssertionError):
        CHECKS[part](REPORTS["ack"])


@pytest.mark.parametrize("part", CHECKS)
def test_without_its_condition_in_the_failure_that_check_fails(part: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(fail_module, "holds", holds_without(part))
    no_guard(monkeypatch)
    with pytest.raises((AssertionError, IntegrityError)):  # the table's CHECK constraint is the last line
        CHECKS[part](REPORTS["fail"])


def test_the_write_of_a_failure_has_a_guard_of_its_own(monkeypatch: Patch) -> None:
    """The WHERE clause refuses what the condition in front of it would have let through."""
    monkeypatch.setattr(fail_module, "holds", holds_without("state"))
    (job_id,) = make()
    fetch(Fetch(["default"], worker_id="holder"))
    cancel([job_id])
    with pytest.raises(InvalidStateTransition):
        fail([Failure(job_id, ERROR, "holder", 1)])
    assert look(job_id)[0] == "cancelled"


# Reports that meet another change half-way


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_that_waits_for_a_cancellation_comes_too_late(report: str, elsewhere: ThreadPoolExecutor) -> None:
    (job_id,) = make()
    fetch(Fetch(["default"], worker_id="holder"))
    with transaction.atomic():
        cancel([job_id])
        late = elsewhere.submit(lambda: REPORTS[report](job_id, "holder", 1))
        if connection.vendor == "postgresql":
            eventually(somebody_waits, "the report waits for the row")
    assert refused(late.result(60))
    assert look(job_id)[0] == "cancelled"


def test_of_two_reports_at_once_one_counts() -> None:
    (job_id,) = make()
    fetch(Fetch(["default"], worker_id="holder"))
    start = threading.Barrier(8)

    def settle(number: int) -> bool:
        start.wait(30)
        try:
            (outcome,) = REPORTS[("ack", "fail")[number % 2]](job_id, "holder", 1)
            return not isinstance(outcome, OJSError)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(settle, range(8))) == 1


def somebody_waits() -> bool:
    """Whether another connection waits for a lock of this one. Not asked of pg_stat_activity, which is a
    snapshot within a transaction."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
        )
        return bool(cursor.fetchone()[0])
