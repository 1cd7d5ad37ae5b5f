"""Statements of the hot path are prepared on connections that are kept, and on no others."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import Sum
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs.database import retried
from django_ojs.errors import Duplicate
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack
from django_ojs.jobs.push import push
from django_ojs.models import CountDelta, Event, Job
from django_ojs.store import postgresql, prepared, store_of
from django_ojs.store.postgresql import PART

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def own_connection(db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A connection that has run nothing yet, and that no other test gets.

    The server plans by what it sees of the tables, and other tests have left that. They have few pages, so to read all
    of one would seem cheap. And a table that is emptied keeps the statistics of what was in it: after a test with
    twenty active jobs, for example, the plan of the claim for all parameters seems dearer than one for just these.
    """
    monkeypatch.setenv("PGOPTIONS", "-c seq_page_cost=1000")
    with transaction.atomic(), connection.cursor() as cursor:
        job = Job.objects.create(type="a.b", state="available", created_at=(now := timezone.now()), enqueued_at=now)
        cursor.execute("ANALYZE django_ojs_job")
        job.delete()
    connection.close()
    yield
    connection.close()


def work(jobs: int) -> None:
    """Push, fetch and acknowledge one job after the other."""
    for _ in range(jobs):
        push([{"type": "a.b", "args": []}])
        (row,) = fetch(Fetch(["default"], count=1))
        (done,) = ack([Ack(row["id"])])
        assert isinstance(done, dict)


def prepared_statements() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements WHERE NOT from_sql ORDER BY name")
        return [row[0] for row in cursor.fetchall()]


def ask(number: int) -> list[tuple[Any, ...]]:
    return prepared.execute(connection.alias, "SELECT %s::int + 1", [number])


def test_a_connection_that_is_kept_prepares_what_it_runs_often() -> None:
    work(1)
    assert prepared_statements() == []
    work(prepared.UNPREPARED)
    found = prepared_statements()
    for table in ("INSERT INTO django_ojs_job", "SET state = 'active'", "SET state = 'completed'"):
        assert len([statement for statement in found if table in statement]) == 1
    assert Job.objects.filter(state="completed").count() == prepared.UNPREPARED + 1


def test_values_are_those_of_djangos_own_cursor() -> None:
    work(prepared.UNPREPARED)
    texts = ["2026-07-28 12:00:00.1234+02", "1999-12-31 23:59:59.999999+00", "2000-01-01 00:00:00-00:30"]
    statement = ", ".join(["%s::timestamptz"] * len(texts)) + ", %s::uuid, %s::text, %s::bigint[], NULL::timestamptz"
    params = [*texts, uuid.UUID(int=1), "100 %, $1", [1, 2]]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {statement}", params)
        expected = cursor.fetchall()
    found = prepared.execute(connection.alias, f"SELECT {statement}", params)
    assert found == expected
    assert found[0][0].tzinfo is expected[0][0].tzinfo
    with connection.cursor() as cursor:
        cursor.execute("SET datestyle TO 'German'")
    with pytest.raises(NotImplementedError):  # psycopg reads no times in this style
        prepared.execute(connection.alias, f"SELECT {statement}", params)
    assert prepared_statements()


def test_parameters_have_names_or_come_in_order() -> None:
    work(prepared.UNPREPARED)
    named = prepared.execute(
        connection.alias, "SELECT %(b)s::int, '100 %%', %(a)s::text, %(b)s::int + 1", {"a": "%s", "b": 1, "more": 2}
    )
    assert named == [(1, "100 %", "%s", 2)]
    assert prepared.execute(connection.alias, "SELECT %s::text || '%%', %s::int", ["x", 3]) == [("x%", 3)]
    assert prepared.execute(connection.alias, "SET work_mem = '4MB'", []) == []
    assert prepared.execute(connection.alias, "SELECT 1 WHERE false", []) == []


def test_the_placeholders_of_a_long_statement_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """psycopg reads those of a statement with more than 4096 characters for each run of it."""
    from psycopg import _queries

    work(prepared.UNPREPARED)
    read: list[bytes] = []
    monkeypatch.setattr(_queries, "_split_query", lambda query, *rest, **more: read.append(query))
    statement = f"SELECT %s::int /* {'long ' * 1000} */"
    assert [prepared.execute(connection.alias, statement, [number]) for number in range(3)] == [[(0,)], [(1,)], [(2,)]]
    assert read == []


def test_the_log_of_queries_shows_statements_with_their_parameters_and_nothing_else() -> None:
    ask(0)
    with CaptureQueriesContext(connection) as captured:
        for number in range(prepared.UNPREPARED + 3):
            assert ask(number) == [(number + 1,)]
    texts = [f"SELECT {number}::int + 1" for number in range(prepared.UNPREPARED + 3)]
    assert [query["sql"] for query in captured] == texts


def test_nothing_else_on_the_connection_is_prepared() -> None:
    work(prepared.UNPREPARED + 1)
    before = len(prepared_statements())
    for _ in range(20):
        assert Job.objects.count() > 0
    assert len(prepared_statements()) == before
    assert connection.connection.prepare_threshold is None


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("option", [{}, {"prepare_threshold": None}, {"prepare_threshold": 5}], ids=str)
def test_behind_a_pooler_only_a_site_that_says_so_prepares(
    direct: bool, option: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {**connection.settings_dict["OPTIONS"], **option})
    if not direct:
        monkeypatch.setattr("psycopg.ConnectionInfo.backend_pid", property(lambda info: 0))
    for number in range(prepared.UNPREPARED + 3):
        ask(number)
    wanted = direct if not option else option["prepare_threshold"] is not None
    assert bool(prepared_statements()) == wanted


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The databases on which this process prepares no more."""
    monkeypatch.setattr(prepared, "_losing", found := set[str]())
    return found


def test_a_connection_whose_statements_were_taken_away_is_replaced_and_nothing_more_is_prepared(
    losing: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    """As by a pooler that gives the next statement to another session. The caller notices nothing."""
    work(prepared.UNPREPARED + 1)
    before = connection.connection
    with connection.cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")
    work(prepared.UNPREPARED + 3)
    assert before.closed
    assert losing == {connection.alias}
    assert prepared_statements() == []
    assert caplog.text.count("does not have a prepared statement") == 1
    connection.close()
    work(prepared.UNPREPARED + 3)
    assert prepared_statements() == [], "by no other connection either"


def test_in_a_callers_transaction_a_lost_statement_is_the_callers_and_the_next_is_not_prepared(
    losing: set[str],
) -> None:
    work(prepared.UNPREPARED + 1)
    with connection.cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")
    with pytest.raises(DatabaseError), transaction.atomic():
        work(1)
    with transaction.atomic():
        work(1)


def test_a_plan_that_fits_no_more_is_no_reason_to_prepare_nothing_elsewhere(losing: set[str]) -> None:
    """As on a connection that has lived through a migration."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE planned (number integer)")
    try:
        ask_table = retried(lambda using: prepared.execute(using, "SELECT * FROM planned", []))
        for _ in range(prepared.UNPREPARED + 3):
            assert ask_table(using=connection.alias) == []
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE planned ADD COLUMN name text")
        before = connection.connection
        assert ask_table(using=connection.alias) == []
        assert before.closed
        assert losing == set()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE planned")


def test_a_transaction_that_is_rolled_back_takes_no_statement_with_it() -> None:
    for _ in range(3):
        with transaction.atomic():
            work(prepared.UNPREPARED + 1)
            transaction.set_rollback(True)
    assert Job.objects.count() == 0
    work(2)
    assert Job.objects.filter(state="completed").count() == 2


def test_plans_made_for_an_empty_table_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(prepared.time, "monotonic", lambda: now[0])
    statement = "SELECT id FROM django_ojs_job WHERE id = %s::uuid"

    def look() -> str:
        prepared.execute(connection.alias, statement, [uuid.uuid4()])
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT name FROM pg_prepared_statements WHERE statement LIKE 'SELECT id FROM django_ojs_j%'"
            )
            (name,) = cursor.fetchone()
            cursor.execute(f"EXPLAIN EXECUTE {name}(NULL)")
            return "\n".join(row[0] for row in cursor.fetchall())

    with connection.cursor() as cursor:
        cursor.execute("VACUUM django_ojs_job")
    for _ in range(prepared.UNPREPARED + 8):
        prepared.execute(connection.alias, statement, [uuid.uuid4()])
    assert "Seq Scan" in look()
    push([{"type": "a.b", "args": []} for _ in range(2000)])
    assert "Seq Scan" in look()
    now[0] += 100
    assert "Seq Scan" not in look()


def plans_of_the_claim() -> tuple[int, int]:
    """How often the server planned the claim for its parameters, and how often it used the plan that it keeps."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT custom_plans, generic_plans FROM pg_prepared_statements "
            "WHERE statement LIKE '%SET state = ''active''%'"
        )
        row = cursor.fetchone()
    return row or (0, 0)


def claim(*, urgent: bool, count: int = 9) -> list[Any]:
    return fetch(Fetch(["default"], count=count, worker_id="w", check_worker=False, optimistic=True, urgent=urgent))


def test_a_claim_in_vain_for_which_nobody_waits_is_practised_until_the_server_keeps_its_plan() -> None:
    store = store_of(connection.alias)
    assert not store.needs_warmup()  # there is no connection yet
    ask(0)
    assert store.needs_warmup()
    assert claim(urgent=True) == []
    assert plans_of_the_claim() == (0, 0)
    assert claim(urgent=False) == []
    assert plans_of_the_claim() == (prepared.PLANNED_APART, 1)
    assert not store.needs_warmup()
    assert claim(urgent=False) == []
    assert plans_of_the_claim() == (prepared.PLANNED_APART, 2)


def test_practice_ends_with_the_job_that_comes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []
    real = prepared.execute

    def execute(using: str, statement: str, params: Any, **options: Any) -> Any:
        if "SET state = 'active'" in statement:
            runs.append(statement)
            if len(runs) == 3:
                push([{"type": "a.b", "args": []}])
        return real(using, statement, params, **options)

    monkeypatch.setattr(prepared, "execute", execute)
    assert len(claim(urgent=False)) == 1
    assert len(runs) == 3
    assert Job.objects.get().attempt == 1


def test_no_claim_is_practised_where_nothing_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {"prepare_threshold": None})
    for _ in range(prepared.UNPREPARED + 1):
        ask(0)
    assert not store_of(connection.alias).needs_warmup()
    with CaptureQueriesContext(connection) as captured:  # which prepares nothing either
        assert claim(urgent=False) == []
    assert len([query for query in captured if "SET state = 'active'" in query["sql"]]) == 1


def test_a_claim_for_which_somebody_waits_gives_no_plan_up_until_it_is_twice_as_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(prepared.time, "monotonic", lambda: now[0])
    assert claim(urgent=False) == []  # in use from here on, for a second
    session = prepared._session(connection)
    push([{"type": "a.b", "args": []} for _ in range(4)])
    for at, urgent, made_anew in ((1.5, True, False), (1.5, False, True), (4.0, True, False), (5.5, True, True)):
        now[0], before = at, session._trusted_until
        assert len(claim(urgent=urgent, count=1)) == 1
        assert (session._trusted_until != before) == made_anew


def test_a_claim_is_practised_again_when_another_statement_has_given_the_plans_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(prepared.time, "monotonic", lambda: now[0])
    assert claim(urgent=False) == []
    store = store_of(connection.alias)
    assert not store.needs_warmup()
    now[0] = 1.5
    assert claim(urgent=True) == []  # then it asks for the queue_status, which is not urgent
    assert store.needs_warmup()
    kept = plans_of_the_claim()[1]
    assert claim(urgent=False) == []
    assert plans_of_the_claim() == (prepared.PLANNED_APART, kept + 1)
    assert not store.needs_warmup()


def test_a_parameter_keeps_its_value() -> None:
    """What Django's cursor writes into the text and what travels beside it mean the same to the store."""
    awkward = 'quote " backslash \\ percent % brace { nul-free ü 漢'
    for _ in range(prepared.UNPREPARED + 2):
        (pushed,) = push([{"type": "a.b", "args": [awkward], "meta": {"k": awkward}}])
        (row,) = fetch(Fetch(["default"], count=1, worker_id="w"))
        assert row["id"] == pushed.row["id"]
        (done,) = ack([Ack(row["id"], result=f'"{uuid.uuid4()}"', worker_id="w", attempt=1)])
        assert isinstance(done, dict)
        stored = Job.objects.get(pk=row["id"])
        assert stored.args == [awkward]
        assert stored.meta == {"k": awkward}
    assert store_of(connection.alias).using == connection.alias


def test_what_a_fetch_may_take_changes_no_statement_and_no_more_is_locked() -> None:
    """A worker asks for as many jobs as it has room for: each number would be prepared for itself."""
    push([{"type": "a.b", "args": []} for _ in range(200)])
    for count in (5, 6, 7, 8) * 3:
        assert len(fetch(Fetch(["default"], count=count))) == count
    assert Job.objects.filter(state="active").count() == 78
    claims = [statement for statement in prepared_statements() if "SET state = 'active'" in statement]
    assert len(claims) == 1
    with connection.cursor() as cursor:
        cursor.execute("CREATE EXTENSION IF NOT EXISTS pgrowlocks")
    with transaction.atomic():
        fetch(Fetch(["default"], count=5))
        other = connection.copy()
        try:
            with other.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pgrowlocks('django_ojs_job')")
                assert cursor.fetchone() == (5,)
        finally:
            other.close()


def test_a_completion_looks_at_its_own_jobs_only() -> None:
    """Not at all that are active, of which there were few at the last ANALYZE, and not at the table."""
    push([{"type": "a.b", "args": [], "queue": "many"} for _ in range(3000)])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE django_ojs_job")
    work(prepared.UNPREPARED + 6)  # more than the five that the server plans each for its parameters
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT name, array_length(parameter_types, 1) FROM pg_prepared_statements "
            "WHERE statement LIKE '%SET state = ''completed''%' OR statement LIKE '%SET state = ''active''%'"
        )
        found = cursor.fetchall()
        assert len(found) == 2
        for name, parameters in found:
            cursor.execute(f"EXPLAIN EXECUTE {name}({', '.join(['NULL'] * parameters)})")
            plan = "\n".join(row[0] for row in cursor.fetchall())
            assert "Seq Scan on django_ojs_job" not in plan
            assert "ojs_job_holder" not in plan
            assert "django_ojs_job_pkey" in plan


def many(count: int = 4 * PART, **members: Any) -> list[dict[str, Any]]:
    return [{"type": "a.b", "args": [i], **members} for i in range(count)]


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many statements each push was sent in, on a connection that prepares."""
    for number in range(prepared.UNPREPARED + 1):
        ask(number)
    sent: list[int] = []
    pipelined = prepared.pipelined

    def counting(using: str, statements: Any) -> Any:
        found = pipelined(using, statements)
        sent.append(len(found))
        return found

    monkeypatch.setattr(prepared, "pipelined", counting)
    return sent


def test_a_large_push_is_sent_in_parts_and_is_one_push(parts: list[int]) -> None:
    done = push(many())
    assert parts == [4]
    stored = list(Job.objects.order_by("enqueued_at").values_list("pk", "args", "created_at"))
    assert [(row["id"], i) for i, row in enumerate(one.row for one in done if one.row)] == [
        (pk, args[0]) for pk, args, _ in stored
    ]
    events = Event.objects.filter(type="job.enqueued").order_by("pk").values_list("job_id", "commit_id")
    assert [job for job, _ in events] == [pk for pk, _, _ in stored]
    assert len({commit for _, commit in events}) == 1
    assert CountDelta.objects.aggregate(total=Sum("available"))["total"] == 4 * PART


@pytest.mark.parametrize("inside", [False, True])
def test_a_taken_id_in_the_last_part_leaves_nothing_of_the_others(parts: list[int], inside: bool) -> None:
    (taken,) = push([{"type": "a.b", "args": []}])
    assert taken.row is not None
    documents = many()
    documents[-1]["id"] = str(taken.row["id"])
    with transaction.atomic() if inside else contextlib.nullcontext():
        with pytest.raises(Duplicate) as caught:
            push(documents)
        push([{"type": "after.it", "args": []}])  # the transaction goes on
    assert caught.value.details["job_id"] == str(taken.row["id"])
    assert sorted(Job.objects.values_list("type", flat=True)) == ["a.b", "after.it"]
    assert Event.objects.filter(type="job.enqueued").count() == 2
    push(many())
    assert parts == [4]


def test_a_push_that_is_broken_off_between_two_parts_stores_nothing(
    parts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[object] = []
    literal = postgresql.array_literal

    def broken_off(values: Any) -> str:
        written.append(values)
        if len(written) == 5:
            raise KeyboardInterrupt
        return literal(values)

    monkeypatch.setattr(postgresql, "array_literal", broken_off)
    with pytest.raises(KeyboardInterrupt):
        push(many())
    monkeypatch.undo()
    assert Job.objects.count() == 0
    push(many(3))
    assert Job.objects.count() == 3


def test_a_large_push_joins_the_callers_transaction(parts: list[int]) -> None:
    with transaction.atomic():
        push(many())
        transaction.set_rollback(True)
    assert (Job.objects.count(), Event.objects.count(), parts) == (0, 0, [4])


def test_behind_a_pooler_a_large_push_is_one_statement(monkeypatch: pytest.MonkeyPatch, parts: list[int]) -> None:
    connection.close()
    monkeypatch.setattr("psycopg.ConnectionInfo.backend_pid", property(lambda info: 0))
    for number in range(prepared.UNPREPARED + 1):
        ask(number)
    push(many())
    assert (Job.objects.count(), parts) == (4 * PART, [])


@pytest.mark.parametrize("inside", [False, True])
def test_a_unique_job_that_comes_alone_is_prepared(parts: list[int], inside: bool) -> None:
    """Its lock and its insert travel together, and are one transaction."""
    unique = {"unique": {"keys": ["type", "args"], "period": "PT1H"}}
    with transaction.atomic() if inside else contextlib.nullcontext():
        for number in range(3):
            (new,) = push(many(1, **unique, args=[number]))
            with pytest.raises(Duplicate) as caught:
                push(many(1, **unique, args=[number]))
            assert new.row is not None
            assert caught.value.details["existing_job_id"] == str(new.row["id"])
        with pytest.raises(Duplicate):
            push(many(1, **unique, args=[3], id=str(new.row["id"])))
        push(many(1, **unique, args=[4]))
    assert parts == [2] * 7  # what failed is not among them
    assert len([statement for statement in prepared_statements() if "free AS" in statement]) == 1
    assert [args for (args,) in Job.objects.order_by("pk").values_list("args")] == [[0], [1], [2], [4]]
    assert Event.objects.filter(type="job.enqueued").count() == 4
    assert CountDelta.objects.aggregate(total=Sum("available"))["total"] == 4


def generic_plan(statement: str, arguments: str) -> str:
    """The plan of a statement for all parameters, as the server keeps it for a connection."""
    with connection.cursor() as cursor:
        cursor.execute("SET plan_cache_mode = force_generic_plan")
        cursor.execute(f"PREPARE look AS {statement}")
        cursor.execute(f"EXPLAIN EXECUTE look({arguments})")
        return "\n".join(line for (line,) in cursor.fetchall())


#: What policies may count. Where it is few states, another index has just the jobs in them.
COUNTING = [("available", "active"), ("available",), ("active",), ("scheduled", "retryable"), ("completed",)]


@pytest.mark.parametrize("counting", COUNTING)
def test_the_look_for_a_unique_key_uses_its_index_whatever_was_there_when_that_was_planned(
    counting: tuple[str, ...],
) -> None:
    """Such a plan is kept for some seconds, in which it would read a growing table or index for each push."""
    push(many(2, unique={"keys": ["type", "args"]}))
    insert = postgresql._push_one_statement(
        ("id", "type", "queue", "state", "created_at", "unique_key"), "available",
        logged=False, unless=postgresql._Unless(counting, aged=False),
    )  # fmt: skip
    plan = generic_plan(prepared.numbered(insert)[0], "NULL, NULL, NULL, NULL, NULL, NULL")
    assert "using ojs_job_unique" in plan or "on ojs_job_unique" in plan
    assert "Seq Scan on django_ojs_job" not in plan


@pytest.mark.parametrize("counting", COUNTING)
def test_unique_keys_are_looked_up_by_their_index_whatever_was_there_when_that_was_planned(
    counting: tuple[str, ...],
) -> None:
    push(many(2, unique={"keys": ["type", "args"]}))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE django_ojs_job")
    plan = generic_plan(postgresql._with_keys_statement(counting).replace("%s", "$1"), "'{a,b}'")
    assert "ojs_job_unique" in plan
    assert "Seq Scan" not in plan
