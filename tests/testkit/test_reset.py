"""An empty store is empty: every table but those of the installation, and what the process knew of them."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps

from django_ojs import keys, tickets
from django_ojs.admin.shared import Shared
from django_ojs.events import order
from django_ojs.events.ids import log_row
from django_ojs.models import (
    APIKey,
    AuditEntry,
    BulkAction,
    EventLog,
    Job,
    Lease,
    Maintenance,
    MetricSeries,
    OutboxEntry,
    Ticket,
)
from django_ojs.operations import bulkactions, glance, maintenance, metrics, prune, queues, shapes, workflow
from django_ojs.operations.ack import Ack, ack_one
from django_ojs.operations.audit import Act
from django_ojs.operations.fetch import fetch
from django_ojs.operations.push import push
from django_ojs.operations.selection import Selection
from django_ojs.states import State
from django_ojs.testing import database

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
    assert glance.glance()["queues"]
    assert shared.get() == "a"
    database.reset()
    assert (queues._cache, queues.noted, shapes._cache, prune._seen) == ({}, {}, {}, {})
    assert glance.glance()["queues"] == []
    assert shared.get() == "b"


def test_work_goes_on_afterwards() -> None:
    _use()
    database.reset()
    push([{"type": "a.b", "args": []}])
    (row,) = fetch(["default"])
    ack_one(Ack(row["id"]))
    order.catch_up("default")
    metrics.catch_up("default")
    assert MetricSeries.objects.exists()


def _use() -> None:
    """Something in most tables."""
    job: dict[str, Any] = {"type": "a.b", "args": []}
    push([job | {"unique": {}, "rate_limit": {"key": "k", "concurrency": 1}}])
    workflow.create({"type": "chain", "steps": [job | {"args": [1]}]})
    (row,) = fetch(["default"])
    ack_one(Ack(row["id"]))
    order.catch_up("default")
    metrics.catch_up("default")
    act = Act("user:ann", "job.bulk_cancel", door="admin")
    bulkactions.start("cancel", Selection((State.AVAILABLE,)), act)
    maintenance.start(reason="tests")
    tickets.issue(None, None)
    OutboxEntry.objects.create(target_id=row["id"], type="a.b", document={}, created_at=row["created_at"])
