"""How often the calls that workers make all the time ask the database, over HTTP as well.

Statements are counted without BEGIN and COMMIT. On PostgreSQL round trips are counted where the driver waits for the
server, with BEGIN, COMMIT and everything else.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from django_ojs import database, groupcommit
from django_ojs.http import base, probes
from django_ojs.jobs import fetch as fetching
from django_ojs.jobs.fetch import Fetch, fetch, fetch_each
from django_ojs.jobs.finish import Ack, Failure, ack_one, fail_one
from django_ojs.jobs.push import push
from django_ojs.store import prepared
from django_ojs.workerregistry.heartbeat import Beat, beat
from tests.gathering import gathering
from tests.http.conftest import Api

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("long_memory")]
ON_POSTGRESQL = connection.vendor == "postgresql"


@pytest.fixture
def cost(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], tuple[int, int]]:
    """Of a call: statements and round trips; other databases than PostgreSQL take the first for the second."""
    trips = 0
    if ON_POSTGRESQL:
        import psycopg

        wait = psycopg.Connection.wait

        def counting(self: Any, steps: Any, *args: Any, **options: Any) -> Any:
            nonlocal trips
            trips += steps.__name__ != "_set_autocommit_gen"  # which sends nothing
            return wait(self, steps, *args, **options)

        monkeypatch.setattr(psycopg.Connection, "wait", counting)
        monkeypatch.setattr(prepared._Session, "renew", lambda session, raw, **options: None)  # after some seconds

    def measure(act: Callable[[], Any]) -> tuple[int, int]:
        connection.ensure_connection()
        before = trips
        with CaptureQueriesContext(connection) as captured:
            act()
        statements = sum(query["sql"] not in ("BEGIN", "COMMIT") for query in captured)
        return statements, trips - before if ON_POSTGRESQL else statements

    return measure


def jobs(count: int) -> None:
    patient = {"initial_interval": "1h"}  # or a slow machine sees them come due
    push([{"type": "a.b", "args": [number], "retry": patient} for number in range(count)])


def claimed(count: int) -> list[uuid.UUID]:
    jobs(count)
    return [row["id"] for row in fetch(Fetch(["default"], count=count, worker_id="w"))]


def warm() -> None:
    """What a process remembers, and what a connection does before it prepares statements."""
    for job in claimed(9):
        ack_one(Ack(job))
    for job in claimed(9):
        fail_one(Failure(job, {"message": "no"}))
    beat(Beat("w"))
    jobs(3)
    while fetch(Fetch(["mail", "default"], worker_id="w")):
        pass


#: Statements and round trips at most: on PostgreSQL, and statements elsewhere. On SQLite each of five workers claims
#: for itself (5 statements within the process), in one transaction.
LIMITS = {
    "fetch": ((2, 2), 10), "idle": ((1, 1), 1), "together": ((2, 2), 30), "ack": ((1, 1), 6), "fail": ((3, 5), 9),
    "beat": ((3, 5), 6), "push": ((1, 1), 6), "unique": ((3, 3), 7), "keyed": ((4, 6), 9), "health": ((2, 2), 2),
}  # fmt: skip


def check(name: str, found: tuple[int, int]) -> None:
    most, elsewhere = LIMITS[name]
    assert found[0] <= (most[0] if ON_POSTGRESQL else elsewhere), (name, found)
    if ON_POSTGRESQL:
        assert found[1] <= most[1], (name, found)


def test_the_verbs(cost: Any) -> None:
    warm()
    check("idle", cost(lambda: fetch(Fetch(["default", "mail"], worker_id="w"))))
    jobs(30)
    check("fetch", cost(lambda: fetch(Fetch(["default"], worker_id="w"))))
    check("fetch", cost(lambda: fetch(Fetch(["mail", "default"], count=3, worker_id="w"))))
    some = [Fetch(("default",), 1, "w") for _ in range(5)]
    check("together", cost(lambda: fetch_each(some, using="default")))
    one, two = claimed(2)
    check("ack", cost(lambda: ack_one(Ack(one, "1", "w", 1))))
    check("fail", cost(lambda: fail_one(Failure(two, {"message": "no"}))))
    check("beat", cost(lambda: beat(Beat("w"))))


def test_over_http(cost: Any) -> None:
    """The same: permissions of an unlimited caller, and the answer, ask for nothing more."""
    warm()

    def post(name: str, path: str, **body: Any) -> None:
        check(name, cost(lambda: call(200, path, body)))

    post("idle", "/workers/fetch", queues=["default"], worker_id="w")
    jobs(3)
    post("fetch", "/workers/fetch", queues=["default"], worker_id="w")
    one, two = claimed(2)
    post("ack", "/workers/ack", job_id=str(one))
    post("fail", "/workers/nack", job_id=str(two), error={"message": "no"})
    post("beat", "/workers/heartbeat", worker_id="w")


def call(status: int, path: str, body: Any, **headers: str) -> None:
    assert Api().post(path, body, **headers).status_code == status


def test_pushes_over_http(cost: Any) -> None:
    warm()
    job = {"type": "a.b", "args": [1]}
    unique = job | {"unique": {"keys": ["type", "args"]}}
    check("push", cost(lambda: call(201, "/jobs", job)))
    check("unique", cost(lambda: call(201, "/jobs", unique)))
    check("unique", cost(lambda: call(201, "/jobs", unique | {"args": [2]})))
    call(201, "/jobs", job, **{"Idempotency-Key": "warm"})
    for _ in range(2):  # the second is answered as the first was
        check("keyed", cost(lambda: call(201, "/jobs", job, **{"Idempotency-Key": "a"})))


def test_the_health_check_over_http(cost: Any) -> None:
    """Beside the sign of life, for which another thread asks on a connection of its own."""
    warm()
    probes._figures.forget()
    probes._life.get("default")
    for limit in (2, 0):  # the second within a second
        statements, _ = cost(lambda: Api().get("/health"))
        assert statements <= limit


class TestHealthOfConnections:
    """The query by which Django checks a kept connection (`CONN_HEALTH_CHECKS`) when a request first uses it."""

    @pytest.fixture(autouse=True)
    def _kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connections["default"], "health_check_enabled", True)
        warm()

    def request(self, cost: Any) -> int:
        """The round trips of a FETCH that finds nothing."""
        connection.health_check_done = False
        ask = {"queues": ["default"], "worker_id": "w"}
        statements, trips = cost(lambda: Api().post("/workers/fetch", ask))
        assert statements == 1
        return int(trips)

    @pytest.mark.postgres
    def test_it_is_spared_where_the_socket_of_a_connection_in_use_says_enough(self, cost: Any) -> None:
        assert [self.request(cost) for _ in range(3)] == [2, 1, 1]

    @pytest.mark.postgres
    def test_of_calls_that_meet_only_those_that_lead_look(self, monkeypatch: pytest.MonkeyPatch) -> None:
        looks: list[int] = []
        for module in (groupcommit, base):
            monkeypatch.setattr(module, "check_health", lambda using: looks.append(threading.get_ident()))
        with gathering(fetching._fetches) as meeting:
            asks = [{"queues": ["default"], "worker_id": f"w{number}"} for number in range(6)]
            done = meeting.together(*(lambda ask=ask: Api().post("/workers/fetch", ask) for ask in asks))  # type: ignore[misc]
            assert {future.result().status_code for future in done} == {200}
            assert [len(batch) for batch in meeting.batches] == [1, 5]
        assert len(looks) == len(set(looks)) == 2
        Api().get("/jobs")
        assert len(looks) == 3

    @pytest.mark.postgres
    def test_not_after_some_seconds(self, cost: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(database, "LOOKED_AT", 0.0)
        assert [self.request(cost) for _ in range(3)] == [2, 2, 2]

    @pytest.mark.postgres
    def test_a_connection_that_the_server_has_closed_is_replaced(self, cost: Any) -> None:
        import psycopg

        assert [self.request(cost) for _ in range(2)] == [2, 1]
        before = connection.connection
        settings = connection.settings_dict
        place = {"host": settings["HOST"], "port": settings["PORT"], "user": settings["USER"], "dbname": "postgres"}
        with psycopg.connect(**place, autocommit=True) as other:
            ended = before.info.backend_pid
            other.execute("SELECT pg_terminate_backend(%s, 10000)", [ended])
        connection.health_check_done = False
        assert Api().post("/workers/fetch", {"queues": ["default"]}).status_code == 200
        assert connection.connection is not before
