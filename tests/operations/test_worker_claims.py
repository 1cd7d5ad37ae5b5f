"""The claims of our worker: they ask nothing first where a job is known to wait."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs import clock
from django_ojs.jobs.fetch import MANY, Fetch, fetch
from django_ojs.jobs.push import push
from django_ojs.models import Job, Worker
from django_ojs.queues import configuration, maintenance
from django_ojs.queues.configuration import configure
from django_ojs.store import store_of

pytestmark = pytest.mark.django_db(transaction=True)


def make(count: int = 1, **fields: Any) -> None:
    push([{"type": "a.b", "args": [], "queue": "q", **fields} for _ in range(count)])


# A claim that asks nothing first


def _due() -> None:
    make(scheduled_at="2099-01-01T00:00:00Z", priority=9)
    Job.objects.filter(state="scheduled").update(wake_at=clock.now(connection.alias))


HINDRANCES: dict[str, Callable[[], Any]] = {
    "a limit of the queue": lambda: configure("q", {"concurrency": 5}),
    "a limit of all queues": lambda: configure("_default", {"concurrency": 5}),
    "a limit of a job": lambda: make(rate_limit={"key": "k", "concurrency": 5}),
    "a job that is due": _due,
}


def optimistic(names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], int]:
    """The jobs that a claim takes, and how many statuses it asked for."""
    statuses: list[Any] = []
    real = type(store_of(connection.alias)).queue_status

    def queue_status(self: Any, *args: Any, **options: Any) -> Any:
        statuses.append(args)
        return real(self, *args, **options)

    monkeypatch.setattr(type(store_of(connection.alias)), "queue_status", queue_status)
    rows = fetch(Fetch(names, count=9, worker_id="w", check_worker=False, optimistic=True))
    monkeypatch.undo()
    return [str(row["id"]) for row in rows], len(statuses)


@pytest.mark.parametrize("names", [("q",), ("empty", "q")])
def test_a_hopeful_claim_takes_what_another_takes(names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    configuration.forget()
    make(2, queue="q")
    asked = 0 if connection.vendor == "postgresql" else 1
    rows, statuses = optimistic(names, monkeypatch)
    assert (len(rows), statuses) == (2, asked)
    assert optimistic(names, monkeypatch) == ([], 1)


@pytest.mark.parametrize("names", [("q",), ("empty", "q"), (*(f"empty-{n}" for n in range(MANY)), "q")], ids=len)
@pytest.mark.parametrize("what", HINDRANCES)
def test_what_a_plain_claim_cannot_do_is_left_to_the_other(
    what: str, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promotion comes first, and limits hold."""
    configuration.forget()
    make()
    HINDRANCES[what]()
    waiting = Job.objects.order_by("-priority", "enqueued_at").values_list("pk", flat=True)
    expected = [str(pk) for pk in waiting]
    rows, statuses = optimistic(names, monkeypatch)
    assert statuses >= 1
    assert sorted(rows) == sorted(expected)


def test_maintenance_closes_a_hopeful_claim_too(monkeypatch: pytest.MonkeyPatch) -> None:
    make()
    maintenance.start(reason="now", using=connection.alias)
    assert optimistic(("q",), monkeypatch)[0] == []
    maintenance.stop(using=connection.alias)
    assert len(optimistic(("q",), monkeypatch)[0]) == 1


@pytest.mark.parametrize(
    "how", [{}, {"optimistic": True}, {"unsuspected": True}, {"only": [uuid.UUID(int=7)]}], ids=str
)
def test_a_worker_of_all_queues_gets_nothing_where_there_is_none_yet(how: dict[str, Any]) -> None:
    assert fetch(Fetch((), count=9, worker_id="w", check_worker=False, **how)) == []


def test_of_very_many_queues_those_without_jobs_cost_no_statement() -> None:
    """One worker may serve the queues of thousands of tenants, and a statement takes only so many parameters."""
    names = [f"q{number:05}" for number in range(14_000)]
    make(queue=names[9_000])
    make(queue=names[3_000])
    make(queue=names[6_000], scheduled_at="2099-01-01T00:00:00Z")
    with CaptureQueriesContext(connection) as captured:
        rows = fetch(Fetch(names, count=9, worker_id="w"))
    assert [row["queue"] for row in rows] == [names[3_000], names[9_000]]
    assert len(captured) < 40
    assert fetch(Fetch(names, count=9, worker_id="w")) == []
    assert Worker.objects.get(pk="w").queues == names
