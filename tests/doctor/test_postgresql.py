"""Faults of a PostgreSQL server, each made to happen by a second connection or by statements."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction

from django_ojs import doctor, job
from django_ojs.doctor import findings, postgresql
from django_ojs.models import Queue, Worker
from django_ojs.registry import registry
from django_ojs.workerregistry.heartbeat import Beat, beat
from tests.doctor.conftest import elsewhere, found, made_queue, sql
from tests.waiting import eventually

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]
Ids = Callable[[], list[str]]


def pid() -> int:
    return int(sql("SELECT pg_backend_pid()")[0][0])


# Settings


@pytest.fixture
def session() -> Iterator[Callable[[str], Any]]:
    """`session("SET …")` holds until the test ends."""
    yield sql
    connection.close()


def test_commits_that_do_not_wait_for_the_disk(session: Callable[[str], Any]) -> None:
    session("SET synchronous_commit = on")
    assert "synchronous_commit" not in [finding.about for finding in found("commits-can-be-lost")]
    session("SET synchronous_commit = off")
    (finding,) = [one for one in found("commits-can-be-lost") if one.about == "synchronous_commit"]
    assert finding.says.startswith("synchronous_commit is off: a crash")
    assert finding.figures == {"setting": "synchronous_commit", "value": "off"}


def test_a_session_that_only_reads(session: Callable[[str], Any], ids: Ids) -> None:
    session("SET default_transaction_read_only = on")
    assert ids() == ["database-read-only"]
    assert found("database-read-only")[0].figures == {"replica": False}


def test_the_isolation_level_is_what_the_check_says(monkeypatch: pytest.MonkeyPatch, ids: Ids) -> None:
    import psycopg

    level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.close()
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "isolation_level", level)
    monkeypatch.setattr(connection, "isolation_level", level)
    try:
        assert ids() == ["django_ojs.W104"]
    finally:
        connection.close()


def test_server_side_cursors_behind_a_pooler(monkeypatch: pytest.MonkeyPatch, ids: Ids) -> None:
    assert ids() == []
    monkeypatch.setattr("psycopg.ConnectionInfo.backend_pid", property(lambda info: 0))  # as a pooler greets
    assert ids() == ["pooler-cursors"]
    monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", True)
    assert ids() == []


@pytest.mark.parametrize(
    "option, kept, expected",
    [
        ({"prepare_threshold": 5}, False, ["statements-lost"]),
        ({"prepare_threshold": 5}, True, []),
        ({"prepare_threshold": None}, False, []),
        ({}, False, []),  # behind a pooler nothing is prepared then
    ],
)
def test_prepared_statements_behind_a_pooler(
    option: dict[str, Any], kept: bool, expected: list[str], monkeypatch: pytest.MonkeyPatch, ids: Ids
) -> None:
    monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", True)
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {**connection.settings_dict["OPTIONS"], **option})
    connection.close()
    monkeypatch.setattr("psycopg.ConnectionInfo.backend_pid", property(lambda info: 0))  # as a pooler greets
    if kept:  # under names of its own
        monkeypatch.setattr(postgresql, "_OF_CLIENTS", "_another")
    try:
        assert ids() == expected
        left = sql("SELECT name FROM pg_prepared_statements")
        assert left == [] or kept, "the session goes back to the pooler as it came"
    finally:
        connection.close()


def test_a_name_that_another_client_has_left_in_the_session(monkeypatch: pytest.MonkeyPatch, ids: Ids) -> None:
    monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", True)
    options = {**connection.settings_dict["OPTIONS"], "prepare_threshold": 5}
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
    connection.close()
    monkeypatch.setattr("psycopg.ConnectionInfo.backend_pid", property(lambda info: 0))
    try:
        with connection.cursor() as cursor:
            cursor.execute("PREPARE _pg3_0 AS SELECT 1")
        assert ids() == ["statements-lost"]
    finally:
        connection.close()


def test_reads_that_go_to_a_replica(monkeypatch: pytest.MonkeyPatch, ids: Ids) -> None:
    monkeypatch.setattr(postgresql, "_ONLY_READS", "SELECT true")  # as the proxy lets the replica answer
    assert ids() == ["reads-elsewhere"]
    (finding,) = found("reads-elsewhere")
    assert f"database_redirect_preference_list = '{connection.settings_dict['NAME']}:primary'" in finding.mend


# Sessions


def test_a_transaction_that_is_held_open(monkeypatch: pytest.MonkeyPatch, ids: Ids) -> None:
    def write() -> int:
        made_queue("held")
        return pid()

    with elsewhere(write) as holder:
        assert ids() == []
        monkeypatch.setattr(postgresql, "LONG_TRANSACTION", 0.0)
        (finding,) = [one for one in found("transaction-long") if one.about == str(holder)]
        assert f"Process {holder} (" in finding.says
        assert "idle in transaction" in finding.says
        assert f"pg_terminate_backend({holder})" in finding.mend
    assert str(holder) not in [one.about for one in found("transaction-long")]


def test_a_transaction_that_holds_nothing_back_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "LONG_TRANSACTION", 0.0)
    with elsewhere(pid) as holder:  # it has neither written nor does it keep a snapshot
        assert str(holder) not in [one.about for one in found("transaction-long")]


def test_a_session_for_which_another_waits(monkeypatch: pytest.MonkeyPatch, ids: Ids) -> None:
    made_queue("held")

    def lock() -> int:
        Queue.objects.select_for_update().get(pk="held")
        return pid()

    def wait() -> None:
        try:
            with transaction.atomic():
                Queue.objects.select_for_update().get(pk="held")
        finally:
            connections.close_all()

    waiter = threading.Thread(target=wait)
    with elsewhere(lock) as holder:
        waiter.start()
        eventually(lambda: sql("SELECT 1 FROM pg_locks WHERE NOT granted AND waitstart IS NOT NULL"))
        assert ids() == []
        monkeypatch.setattr(postgresql, "LOCK_WAIT", 0.0)
        (finding,) = found("lock-wait")
        assert finding.about == str(holder)
        assert finding.figures["waiting"] == 1
        assert "Process" in finding.says
        assert "UPDATE" not in finding.says, "queries have arguments of jobs in them"
    waiter.join(30)
    assert found("lock-wait") == []


def test_it_does_not_wait_for_the_lock_that_it_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "PATIENCE", 0.1)
    table = Worker._meta.db_table
    with elsewhere(lambda: sql(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")):
        told = {one.about: one for one in found("not-examined")}
    assert {"worker_versions", "silent_workers"} <= told.keys()
    assert "lock timeout" in told["silent_workers"].says
    assert found("not-examined") == []
    assert sql("SHOW lock_timeout") == [("0",)]


# Connections


def test_a_database_whose_connections_are_used_up(ids: Ids) -> None:
    name = connection.ops.quote_name(str(connection.settings_dict["NAME"]))
    sql(f"ALTER DATABASE {name} CONNECTION LIMIT 2")
    try:
        with elsewhere(pid):
            assert ids() == ["connections-near-limit"]
            (finding,) = found("connections-near-limit")
            assert finding.figures["most"] == 2
            assert finding.figures["used"] >= 2
    finally:
        sql(f"ALTER DATABASE {name} CONNECTION LIMIT -1")


def test_more_slots_than_connections() -> None:
    for number in range(3):
        beat(Beat(f"w-{number}", info={"queues": ["default"], "concurrency": 20}, incarnation=str(number)))
    assert found("connections-too-few") == []
    beat(Beat("huge", info={"queues": ["default"], "concurrency": 500}, incarnation="x"))
    (finding,) = found("connections-too-few")
    assert finding.figures["needed"] == 4 * 5 + 3 * 20 + 500 + 4
    assert (finding.figures["workers"], finding.figures["slots"]) == (4, 560)


@pytest.mark.parametrize("is_async", [True, False])
def test_slots_whose_handlers_may_not_all_have_a_connection(settings: Any, is_async: bool) -> None:
    settings.OJS = {"ASYNC_CONNECTIONS": 10}

    async def wait() -> None: ...

    with registry.isolated():
        job("doctor.wait")(wait if is_async else lambda: None)
        beat(Beat("huge", info={"queues": ["default"], "concurrency": 500}, incarnation="x"))
        assert [one.id for one in postgresql.connections_needed(findings.Site("default"))] == (
            [] if is_async else ["connections-too-few"]
        )


def test_a_pool_that_is_larger_than_the_server(monkeypatch: pytest.MonkeyPatch, ids: Ids) -> None:
    options = connection.settings_dict["OPTIONS"]
    monkeypatch.setitem(options, "pool", {"max_size": 5000, "timeout": 5, "reconnect_timeout": 2})
    assert [one.figures["pool"] for one in postgresql.connections_needed(findings.Site("default"))] == [5000]


# Vacuum


@pytest.fixture
def table() -> Iterator[str]:
    """A table of ours with many rows, which autovacuum leaves alone; empty and as it was afterwards."""
    name = "django_ojs_countdelta"
    sql(f"ALTER TABLE {name} SET (autovacuum_enabled = false, autovacuum_vacuum_threshold = 1000,"
        " autovacuum_vacuum_scale_factor = 0, autovacuum_analyze_threshold = 1000,"
        " autovacuum_analyze_scale_factor = 0)")  # fmt: skip
    sql(f"VACUUM ANALYZE {name}")
    sql(f"INSERT INTO {name} (queue, at) SELECT 'q', now() FROM generate_series(1, 12000)")
    told()
    yield name
    sql(f"TRUNCATE {name}")
    sql(f"ALTER TABLE {name} RESET (autovacuum_enabled, autovacuum_vacuum_threshold,"
        " autovacuum_vacuum_scale_factor, autovacuum_analyze_threshold, autovacuum_analyze_scale_factor)")  # fmt: skip
    sql(f"VACUUM ANALYZE {name}")
    told()


def told() -> None:
    """Let the server count what this session has changed."""
    if connection.cursor().connection.info.server_version >= 150000:
        sql("SELECT pg_stat_force_next_flush()")
    else:
        connection.close()
    sql("SELECT 1")


def of(name: str, table: str) -> list[findings.Finding]:
    return [finding for finding in found(name) if finding.figures.get("table") == table]


def test_a_table_that_autovacuum_may_not_touch(table: str) -> None:
    (finding,) = of("autovacuum-off", table)
    assert finding.mend == f"ALTER TABLE {table} RESET (autovacuum_enabled);"
    sql(finding.mend)
    assert of("autovacuum-off", table) == []


# Before version 15 the server writes its statistics some time after the session that made them.


def test_a_table_that_is_not_vacuumed_and_not_analyzed(table: str) -> None:
    (finding,) = eventually(lambda: of("analyze-late", table))
    assert finding.figures["changed"] >= 12_000
    assert eventually(lambda: of("vacuum-late", table) == [])
    sql(finding.mend)
    told()
    assert eventually(lambda: of("analyze-late", table) == [])
    sql(f"DELETE FROM {table}")
    told()
    (finding,) = eventually(lambda: of("vacuum-late", table))
    assert finding.figures["dead"] >= 12_000
    assert finding.figures["limit"] == 1000
    sql(f"VACUUM (ANALYZE) {table}")
    told()
    assert eventually(lambda: of("vacuum-late", table) == [])


def test_an_index_that_has_kept_its_size(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "BLOATED_BYTES", 100_000)
    sql(f"VACUUM ANALYZE {table}")
    told()
    assert eventually(lambda: of("index-bloat", table) == []), "it is as large as its entries need"
    sql(f"DELETE FROM {table} WHERE id < (SELECT max(id) - 20 FROM {table})")
    told()
    sql(f"VACUUM ANALYZE {table}")
    told()
    (finding,) = eventually(lambda: of("index-bloat", table))
    assert finding.about == "django_ojs_countdelta_pkey"
    assert finding.figures["bytes"] > 200_000 > finding.figures["needed"]
    sql(f"INSERT INTO {table} (queue, at) SELECT 'q', now() FROM generate_series(1, 12000)")
    told()
    assert eventually(lambda: of("index-bloat", table) == []), "it may hold what has come since"
    sql(f"TRUNCATE {table}")
    sql(f"REINDEX INDEX {finding.about}")
    sql(f"VACUUM ANALYZE {table}")
    told()
    assert eventually(lambda: of("index-bloat", table) == [])


def cut(site: findings.Site) -> list[findings.Finding]:
    site.rows("SELECT pg_terminate_backend(pg_backend_pid())")
    return []


def test_a_connection_that_is_cut_costs_one_diagnosis(monkeypatch: pytest.MonkeyPatch, ids: Ids) -> None:
    monkeypatch.setattr(doctor, "DIAGNOSES", (cut, *doctor.DIAGNOSES))
    assert ids() == ["not-examined"]
    assert [one.about for one in found("not-examined")] == ["cut"]


def test_a_server_that_goes_away_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(site: findings.Site) -> list[findings.Finding]:
        monkeypatch.setitem(connection.settings_dict, "PORT", "1")  # where nobody listens
        return cut(site)

    monkeypatch.setattr(doctor, "DIAGNOSES", (away,))
    with pytest.raises(OperationalError):
        doctor.examine()
    monkeypatch.undo()
    connection.close()
    assert found("not-examined") == []


# Cost


def test_it_reads_no_table_of_jobs_or_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it asks of the large tables is one look at an index, also where the planner knows nothing of them."""
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as captured:
        doctor.examine()
    statements = [one["sql"] for one in captured if one["sql"] not in ("BEGIN", "COMMIT")]  # around each diagnosis
    asked = [sql for sql in statements if '"django_ojs_job"' in sql or "django_ojs_event" in sql]
    assert 0 < len(asked) < 10
    assert len(statements) < 100
    assert [statement for statement in asked if "COUNT(" in statement.upper()] == []
