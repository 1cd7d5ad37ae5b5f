"""An empty store is empty: every table but those of the installation, and what the process knew of them."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.db import OperationalError, connection

from django_ojs import keys
from django_ojs import retention as prune
from django_ojs.audit import Act
from django_ojs.events import order
from django_ojs.events.ids import log_row
from django_ojs.jobs import bulk
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack_one
from django_ojs.jobs.push import push
from django_ojs.jobs.selection import JobFilter
from django_ojs.models import (
    APIKey,
    AuditEntry,
    BulkAction,
    Event,
    EventLog,
    Job,
    Lease,
    Maintenance,
    MetricSeries,
    OutboxEntry,
    Ticket,
)
from django_ojs.queues import configuration, maintenance
from django_ojs.states import State
from django_ojs.statistics import eventcounts, summary
from django_ojs.statistics.summary import Shared
from django_ojs.testing import database
from django_ojs.workflows import graphs, workflow

#: The log has its order when transactions have ended.
pytestmark = pytest.mark.django_db(transaction=True)


def test_every_table_is_either_emptied_or_kept_on_purpose() -> None:
    ours = set(apps.get_app_config("django_ojs").get_models())
    assert ours == {*database.TRANSIENT, *database.KEPT}
    assert not {*database.TRANSIENT} & {*database.KEPT}


def test_it_leaves_what_the_installation_has_and_nothing_else() -> None:
    key, _ = keys.create("ours", ["push"])
    salt = log_row("default").salt
    _use()
    filled = [model for model in database.TRANSIENT if model._default_manager.exists()]
    assert {Job, MetricSeries, AuditEntry, OutboxEntry, Maintenance, BulkAction, Ticket}.issubset(filled)
    database.reset()
    assert [model for model in database.TRANSIENT if model._default_manager.exists()] == []
    assert (APIKey.objects.get(), EventLog.objects.get().salt, Lease.objects.count()) == (key, salt, 0)


def test_the_process_remembers_nothing_of_it() -> None:
    answers = iter("ab")
    shared = Shared(lambda using: next(answers), 3600.0)
    _use()
    assert summary.snapshot()["queues"]
    assert shared.get() == "a"
    database.reset()
    assert (configuration._cache, configuration.noted, graphs._cache, prune._seen) == ({}, {}, {}, {})
    assert summary.snapshot()["queues"] == []
    assert shared.get() == "b"


def test_work_goes_on_afterwards() -> None:
    _use()
    database.reset()
    push([{"type": "a.b", "args": []}])
    (row,) = fetch(Fetch(["default"]))
    ack_one(Ack(row["id"]))
    order.catch_up("default")
    eventcounts.catch_up("default")
    assert MetricSeries.objects.exists()


def test_a_deadlock_with_a_running_scheduler_is_tried_again() -> None:
    """The test server's scheduler works while it is reset; PostgreSQL ends one of the two transactions."""
    deadlocks: list[str] = []

    def deadlock_once(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("DELETE") and Event._meta.db_table in sql and not deadlocks:
            deadlocks.append(sql)
            error = OperationalError("deadlock detected")
            error.__cause__ = _Deadlock()
            raise error
        return execute(sql, params, many, context)

    _use()
    with connection.execute_wrapper(deadlock_once):
        database.reset()
    assert len(deadlocks) == 1
    assert not Job.objects.exists()
    assert not Event.objects.exists()


class _Deadlock(Exception):
    sqlstate = "40P01"


def _use() -> None:
    """Something in most tables."""
    job: dict[str, Any] = {"type": "a.b", "args": []}
    push([job | {"unique": {}, "rate_limit": {"key": "k", "concurrency": 1}}])
    workflow.create({"type": "chain", "steps": [job | {"args": [1]}]})
    (row,) = fetch(Fetch(["default"]))
    ack_one(Ack(row["id"]))
    order.catch_up("default")
    eventcounts.catch_up("default")
    act = Act("user:ann", "job.bulk_cancel", door="admin")
    bulk.start_action("cancel", JobFilter({"states": [State.AVAILABLE]}), act)
    maintenance.start(reason="tests")
    keys.issue_ticket(None, None)
    OutboxEntry.objects.create(target_id=row["id"], type="a.b", document={}, created_at=row["created_at"])
