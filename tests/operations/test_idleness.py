"""Transactions of the server's own are limited in how long they stand still, and those of the site are not."""

from __future__ import annotations

import ast
import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction

from django_ojs import database, enqueue, idleness
from django_ojs.client.definition import enqueue_many
from django_ojs.database import atomic
from django_ojs.faults import StoodStill, is_contention
from django_ojs.http.exceptions import to_error
from django_ojs.models import Job, Queue
from tests.sources import nodes, trees

pytestmark = pytest.mark.django_db(transaction=True)
limits = pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no such limit")
both = pytest.mark.parametrize("vendor", ["any", pytest.param("mysql", id="mariadb", marks=pytest.mark.mariadb)])
SHOWN = {
    "postgresql": "SELECT setting FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'",
    "mysql": "SELECT @@SESSION.idle_transaction_timeout * 1000",
}


def limit() -> int:
    """The limit of the transaction that is open, or that begins next; in milliseconds."""
    with connection.cursor() as cursor:
        cursor.execute(SHOWN[connection.vendor])
        return int(cursor.fetchone()[0])


def set_limit(milliseconds: int) -> None:
    """As a site does for its connections."""
    said = {
        "postgresql": f"SET idle_in_transaction_session_timeout = {milliseconds}",
        "mysql": f"SET SESSION idle_transaction_timeout = {milliseconds // 1000}",
    }
    with connection.cursor() as cursor:
        cursor.execute(said[connection.vendor])


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(idleness, "_sites", {})
    monkeypatch.setattr(idleness, "_pgpools", {})
    connection.close()
    yield
    connection.close()


@pytest.mark.postgres
@pytest.mark.parametrize(
    "port, asked, messages",
    [
        (None, "SHOW pool_version", 1),  # that of the server: nothing is in between, and nothing is asked
        (1, "SHOW pool_version", 1),  # another pooler hands it to the server, which refuses it
        (1, "SHOW server_version", 2),  # as pgpool, which answers
    ],
)
def test_through_pgpool_a_transaction_begins_before_it_is_limited(
    port: int | None, asked: str, messages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes in one message goes to the primary only, and later statements to a replica, too."""
    sent: list[str] = []
    send = idleness._send
    if port is not None:
        monkeypatch.setattr("psycopg.ConnectionInfo.port", property(lambda info: port))
    monkeypatch.setattr(idleness, "_IS_PGPOOL", asked)
    monkeypatch.setattr(idleness, "_send", lambda raw, script: (sent.append(script), send(raw, script)))
    for _ in range(2):
        with atomic():
            assert limit() == 10_000
    assert len(sent) == 2 * messages
    assert sent[0].startswith("BEGIN")
    assert ("SET LOCAL" in sent[0]) == (messages == 1)


@limits
@both
def test_a_transaction_of_ours_is_limited_and_nothing_else_is(vendor: str) -> None:
    assert limit() == 0
    with atomic():
        assert limit() == 10_000
        with transaction.atomic():
            assert limit() == 10_000
        transaction.on_commit(lambda: seen.append(limit()))
        seen: list[int] = []
    assert seen == [0]
    with transaction.atomic():
        assert limit() == 0
        with atomic():
            assert limit() == 0, "the site's own transaction"
        assert limit() == 0
    with contextlib.suppress(ZeroDivisionError), atomic(idle=3):
        assert limit() == 3_000
        raise ZeroDivisionError
    assert limit() == 0
    transaction.set_autocommit(False)
    with atomic():
        assert limit() == 0
    transaction.rollback()
    transaction.set_autocommit(True)


@limits
@both
@pytest.mark.parametrize("of_site, expected", [(4_000, 4_000), (60_000, 10_000), (0, 10_000)])
def test_a_shorter_limit_of_the_site_stays(vendor: str, of_site: int, expected: int) -> None:
    set_limit(of_site)
    with atomic():
        assert limit() == expected
    assert limit() == of_site


@limits
@both
def test_a_commit_hook_may_begin_transactions_of_its_own(vendor: str) -> None:
    seen: list[int] = []

    def hook() -> None:
        with transaction.atomic():
            seen.append(limit())
        with atomic():
            seen.append(limit())
        seen.append(limit())

    with atomic():
        transaction.on_commit(hook)
    assert seen == [0, 10_000, 0]


@limits
@both
def test_a_transaction_that_stood_still_says_so_and_stores_nothing(
    vendor: str, caplog: pytest.LogCaptureFixture
) -> None:

    def act() -> None:
        with atomic(idle=1):
            enqueue("a.b")
            stand_still()
            enqueue("a.b")

    with pytest.raises(StoodStill, match="stood still for more than 1 s") as error:
        act()
    assert "stood still" in caplog.text
    assert is_contention(error.value), "it may be done again"
    answer = to_error(error.value)
    assert (answer.status, answer.message) == (
        503, "The server stood still in the middle of this call, so the database ended it. Nothing was changed.",
    )  # fmt: skip
    assert not Job.objects.exists()
    with atomic():
        assert limit() == 10_000, "on a new connection"


@limits
def test_so_does_one_that_stood_still_before_its_commit() -> None:

    def act() -> None:
        with atomic(idle=1):
            enqueue("a.b")
            stand_still()

    with pytest.raises(OperationalError):
        act()
    assert not Job.objects.exists()
    assert not connection.in_atomic_block


def stand_still() -> None:
    """Until the database has ended this thread's transaction, which another connection sees."""
    other = connections.create_connection("default")
    pid = (
        connection.connection.info.backend_pid
        if connection.vendor == "postgresql"
        else connection.connection.thread_id()
    )
    asks = {
        "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE pid = %s",
        "mysql": "SELECT count(*) FROM information_schema.processlist WHERE id = %s",
    }
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            with other.cursor() as cursor:
                cursor.execute(asks[connection.vendor], [pid])
                if not cursor.fetchone()[0]:
                    return
            time.sleep(0.05)
    finally:
        other.close()
    raise AssertionError("The transaction was not ended.")


@limits
@both
def test_what_is_tried_again_is_done_after_all(vendor: str) -> None:
    rounds: list[int] = []

    @database.retried
    def act(*, using: str) -> None:
        with atomic(using=using, idle=1):
            enqueue("a.b")
            rounds.append(1)
            if len(rounds) == 1:
                stand_still()
            enqueue("a.b")

    act(using="default")
    assert (len(rounds), Job.objects.count()) == (2, 2)


@pytest.mark.postgres
def test_a_batch_that_is_sent_in_parts_is_limited_until_its_commit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver asks for answers behind the last part, and PostgreSQL stops its clock for that."""
    for _ in range(9):
        enqueue("a.warm")
    commit, rounds = connection.commit, []

    def still() -> None:
        rounds.append(1)
        stand_still()
        commit()

    monkeypatch.setattr(database.Atomic, "__init__", _short(database.Atomic.__init__))
    monkeypatch.setattr(connection, "commit", still)
    enqueue_many([("a.b", [number], {}) for number in range(1000)])
    assert "stood still" in caplog.text
    assert len(rounds) == 1, "a new connection sends it in one statement"
    assert Job.objects.filter(type="a.b").count() == 1000


def _short(original: Callable[..., None]) -> Callable[..., None]:
    def init(self: Any, using: Any, savepoint: bool, durable: bool, idle: float) -> None:
        original(self, using, savepoint, durable, 1)

    return init


@pytest.mark.postgres
def test_the_options_of_a_connection_are_those_of_its_transactions() -> None:
    from psycopg import IsolationLevel

    connection.ensure_connection()
    raw = connection.connection
    raw.isolation_level, raw.read_only, raw.deferrable = IsolationLevel.REPEATABLE_READ, True, False
    with atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only')")
        assert cursor.fetchone() == ("repeatable read", "on")


def test_a_connection_that_cannot_begin_leaves_the_next_transaction_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise OperationalError("no")

    with monkeypatch.context() as patch:
        patch.setattr(type(connections["default"]), "set_autocommit", refuse)
        with pytest.raises(OperationalError, match="no"), atomic():
            raise AssertionError("it has not begun")
    assert "_set_autocommit" not in vars(connections["default"])
    with transaction.atomic():
        Queue.objects.first()


#: What may begin a transaction without a limit: the handlers of a site run in the first, its tests with the others.
THE_SITES = {
    "worker/execution.py", "client/steps.py", "testing/database.py", "testing/storedjobs.py", "testing/crashes.py",
}  # fmt: skip


def test_the_package_begins_no_transaction_without_a_limit() -> None:
    found = set()
    for path in trees():
        for node in nodes(path):
            if isinstance(node, ast.Attribute) and node.attr == "atomic" and ast.unparse(node.value) == "transaction":
                found.add(path)
            if isinstance(node, ast.ImportFrom) and {"atomic", "Atomic"} & {name.name for name in node.names}:
                if node.module == "django_ojs.database":
                    continue
                found.add(path)
    assert found == THE_SITES


def test_migrations_are_limited() -> None:
    from django.db.migrations.loader import MigrationLoader

    from django_ojs.migrations._limited import LimitedMigration

    ours = [one for (app, _), one in MigrationLoader(None).disk_migrations.items() if app == "django_ojs"]
    assert ours
    assert all(isinstance(one, LimitedMigration) for one in ours)
