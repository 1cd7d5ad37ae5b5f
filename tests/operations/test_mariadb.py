"""MariaDB finds the jobs that it changes by their ids, and changes the rows that it locks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import Model

from django_ojs import clock, doctor, retention
from django_ojs.events import order
from django_ojs.jobs import steps
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack
from django_ojs.jobs.push import push
from django_ojs.limits import ratelimits
from django_ojs.models import Job, Queue, RateLimit, UniqueLock, WebhookSubscription, Workflow
from django_ojs.queues import bounds, configuration
from django_ojs.rules.steps import Step, StepKind
from django_ojs.store import mysql
from django_ojs.webhooks import relay, subscriptions
from django_ojs.workerregistry import directory
from django_ojs.workflows import children, workflow

pytestmark = [pytest.mark.mariadb, pytest.mark.django_db]


def test_a_change_of_jobs_fits_no_index_but_that_of_their_ids() -> None:
    """By an index of states it would wait for jobs that others have locked, which a claim has skipped."""
    plans: list[dict[str, Any]] = []

    def explained(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith(f"UPDATE `{Job._meta.db_table}`"):
            with connection.cursor() as cursor:
                cursor.cursor.execute(f"EXPLAIN {sql}", params)
                names = [column[0] for column in cursor.description]
                plans.extend(dict(zip(names, row, strict=True)) for row in cursor.fetchall())
        return execute(sql, params, many, context)

    push([{"type": "a.b", "args": [i]} for i in range(10)])
    with connection.execute_wrapper(explained):
        rows = fetch(Fetch(["default"], count=5))
        ack([Ack(row["id"]) for row in rows])
    assert len(rows) == 5
    assert len(plans) == 2
    assert {plan["possible_keys"] for plan in plans} == {"PRIMARY"}
    assert Job.objects.filter(state="completed").count() == 5


@pytest.fixture
def binary_database(transactional_db: None) -> Iterator[None]:
    """A site whose database compares texts by their bytes, and so the names of queues, too."""
    table = Queue._meta.db_table
    asked = "SELECT table_collation FROM information_schema.tables WHERE table_schema = database() AND table_name = %s"
    with connection.cursor() as cursor:
        cursor.execute(asked, [table])
        (before,) = cursor.fetchone()
        for number, collation in enumerate(["utf8mb4_bin", before]):
            cursor.execute(f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4 COLLATE {collation}")
            if not number:
                yield


@pytest.mark.django_db(transaction=True)
def test_a_database_with_a_binary_collation_compares_its_names_with_ours(binary_database: None) -> None:
    """MariaDB refuses to compare columns of two binary collations, and to make a union of them."""
    long_ago = clock.now("default") - dt.timedelta(days=400)
    push([{"type": "a.b", "args": [], "options": {"queue": "mail"}}])
    RateLimit.objects.bulk_create(
        RateLimit(key=f"queue:{name}", created_at=long_ago, updated_at=long_ago) for name in ("mail", "gone")
    )
    assert directory.presence({}).queues >= 1
    ratelimits.prune(clock.now("default"), 10, "default")
    assert set(RateLimit.objects.values_list("key", flat=True)) == {"queue:mail"}


def test_the_doctor_asks_nothing_that_the_server_refuses() -> None:
    assert [str(finding.says) for finding in doctor.examine() if finding.id == "not-examined"] == []


# A node of a Galera cluster tells the others what a transaction has changed, and not what it has locked.

UNIQUE = {"type": "a.b", "args": [1], "unique": {"keys": ["type", "args"], "on_conflict": "ignore"}}


def test_tables_that_tests_make_without_migrations_lack_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mysql, "_UNIQUE", "no_such_index")
    first, again = push([UNIQUE]), push([UNIQUE])
    assert first[0].row is not None
    assert again[0].row == first[0].row
    assert Job.objects.count() == 1


def pushed(**more: Any) -> Any:
    (one,) = push([{"type": "a.b", "args": [1], **more}])
    assert one.row is not None
    return one.row["id"]


def held() -> tuple[steps.Holder, Any]:
    """A job that runs, and its run."""
    pushed()
    (row,) = fetch(Fetch(["default"], worker_id="w"))
    return steps.Holder(row["id"], "w", 1), row["id"]


def step(name: str) -> Step:
    return Step(name, StepKind.CALL, clock.now("default"), 1, ended_at=clock.now("default"), result="1")


def a_unique_key() -> tuple[type[Model], str, Callable[[], object]]:
    push([UNIQUE])
    return UniqueLock, "used", lambda: push([UNIQUE])


def a_limit() -> tuple[type[Model], str, Callable[[], object]]:
    configuration.configure("default", {"concurrency": 2})
    RateLimit.objects.create(key="queue:default", created_at=clock.now("default"), updated_at=clock.now("default"))
    pushed()
    return RateLimit, "updated_at", lambda: fetch(Fetch(["default"], worker_id="w"))


def a_bounded_queue() -> tuple[type[Model], str, Callable[[], object]]:
    configuration.configure("default", {"backpressure": {"max_depth": 9}})
    configuration.forget()
    return Queue, "updated_at", pushed


def a_queue_that_empties() -> tuple[type[Model], str, Callable[[], object]]:
    configuration.configure("default", {"backpressure": {"max_depth": 9}})
    Queue.objects.update(pressured_at=clock.now("default"))
    return Queue, "updated_at", bounds.relieve


def the_flag_of_limits() -> tuple[type[Model], str, Callable[[], object]]:
    configuration.configure("default", {"concurrency": 2})
    return Queue, "updated_at", lambda: ratelimits.override("queue:default", {"concurrency": 1})


def a_job_whose_step_has_effects() -> tuple[type[Model], str, Callable[[], object]]:
    holder, _ = held()
    return Job, "visible_until", lambda: steps.record(holder, step("one"), locked=True, using="default")


def a_job_that_starts_over() -> tuple[type[Model], str, Callable[[], object]]:
    holder, _ = held()
    return Job, "visible_until", lambda: steps.delete_all(holder, using="default")


def a_parent_that_has_ended() -> tuple[type[Model], str, Callable[[], object]]:
    holder, pk = held()
    waits = Step("jobs", StepKind.CHILDREN, clock.now("default"), 1, event_name="children", event_key="x")
    document = {"type": "group", "name": "g", "jobs": [{"type": "a.c", "args": []}]}
    children.begin(holder, waits, document, using="default")
    ack([Ack(pk, worker_id="w")])
    return Job, "finished_at", children.follow_up


def a_subscription() -> tuple[type[Model], str, Callable[[], object]]:
    definition = subscriptions.read_definition({"url": "https://example.com/hook", "events": ["job.*"]})
    subscription, _ = subscriptions.create(definition)

    def lock() -> None:
        with transaction.atomic():
            subscriptions.lock(subscription.pk, "default")

    return WebhookSubscription, "updated_at", lock


def a_subscription_that_gets_deliveries() -> tuple[type[Model], str, Callable[[], object]]:
    definition = subscriptions.read_definition({"url": "https://example.com/hook", "events": ["job.*"]})
    subscriptions.create(definition)
    relay.relay()
    pushed()
    order.catch_up("default")
    return WebhookSubscription, "updated_at", relay.relay


def a_workflow_whose_members_are_pruned() -> tuple[type[Model], str, Callable[[], object]]:
    workflow.create({"type": "chain", "name": "c", "steps": [{"type": "a.b", "args": []}]})
    (row,) = fetch(Fetch(["default"], worker_id="w"))
    ack([Ack(row["id"])])
    Job.objects.update(finished_at=clock.now("default") - dt.timedelta(days=400))
    return Workflow, "finished_at", retention.prune


LOCKS = [
    a_unique_key, a_limit, a_bounded_queue, a_queue_that_empties, the_flag_of_limits, a_job_whose_step_has_effects,
    a_job_that_starts_over, a_parent_that_has_ended, a_subscription, a_subscription_that_gets_deliveries,
    a_workflow_whose_members_are_pruned,
]  # fmt: skip


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.__name__)
def test_a_row_that_is_locked_to_decide_by_others_changes(
    lock: Callable[[], Any], long_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or transactions on two nodes would both hold it, and both commit."""
    monkeypatch.setattr(mysql, "_IN_CLUSTER", "TRUE")
    assert mysql._knows_clusters("default")  # which a process asks once
    model, column, act = lock()
    table = connection.ops.quote_name(model._meta.db_table)
    locked: list[str] = []

    def noted(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        """What comes first behind the lock has to be the change: what is read before it could be old."""
        if "FOR UPDATE" in sql and sql.startswith("SELECT") and f"FROM {table}" in sql:
            locked.append("locks")
        elif locked[-1:] == ["locks"]:
            locked.append("changes" if sql.startswith(f"UPDATE {table}") else "reads")
        return execute(sql, params, many, context)

    before = set(model._default_manager.values_list("pk", column))
    with connection.execute_wrapper(noted):
        act()
    after = set(model._default_manager.values_list("pk", column))
    assert before
    assert not before & after
    assert locked[:2] in ([], ["locks", "changes"])


def test_a_claim_under_a_full_limit_writes_nothing_outside_of_a_cluster(long_memory: None) -> None:
    a_limit()
    assert len(fetch(Fetch(["default"], worker_id="w"))) == 1
    configuration.configure("default", {"concurrency": 1})
    fetch(Fetch(["default"], worker_id="w"))  # meets the limit, and says so
    before = RateLimit.objects.values_list("updated_at", flat=True).get()
    assert fetch(Fetch(["default"], worker_id="w")) == []
    assert RateLimit.objects.values_list("updated_at", flat=True).get() == before
