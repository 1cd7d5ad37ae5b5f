"""The hot path is a constant number of statements, however many jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs.jobs import schemas
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail
from django_ojs.jobs.push import push
from django_ojs.jobs.timers import apply_due
from django_ojs.queues import configuration
from django_ojs.workerregistry.heartbeat import Beat, beat

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("long_memory")]

#: What one call may cost at most, savepoints of the test included.
LIMIT = {"push": 10, "claim": 9, "complete": 7, "fail": 7}


def jobs(count: int) -> list[dict[str, Any]]:
    patient = {"initial_interval": "1h"}  # or a slow machine sees them come due
    return [{"type": "a.b", "args": [i], "retry": patient} for i in range(count)]


def statements(act: Callable[[], Any]) -> int:
    configuration.forget()
    schemas.forget()
    with CaptureQueriesContext(connection) as captured:
        act()
    return len(captured)


def claimed(count: int) -> list[Any]:
    push(jobs(count))
    return fetch(Fetch(["default"], count=count))


def test_push_claim_complete_and_fail_cost_the_same_for_one_and_for_many() -> None:
    costs: dict[str, list[int]] = {name: [] for name in LIMIT}
    for count in (1, 10, 300):
        costs["push"].append(statements(lambda: push(jobs(count))))  # noqa: B023
        costs["claim"].append(statements(lambda: fetch(Fetch(["default"], count=count))))  # noqa: B023
        acks = [Ack(row["id"], "1") for row in claimed(count)]
        costs["complete"].append(statements(lambda: ack(acks)))  # noqa: B023
        failures = [Failure(row["id"], {"message": "no"}) for row in claimed(count)]
        costs["fail"].append(statements(lambda: fail(failures)))  # noqa: B023
    for name, measured in costs.items():
        assert len(set(measured[1:])) == 1, (name, measured)
        assert max(measured) <= LIMIT[name], (name, measured)


def test_the_other_verbs_are_set_based_too() -> None:
    costs: dict[str, list[int]] = {"cancel": [], "beat": [], "settle": []}
    beat(Beat("w"))
    for count in (10, 100):
        ids = [row["id"] for row in claimed(count)]
        costs["beat"].append(statements(lambda: beat(Beat("w", ids))))  # noqa: B023
        costs["cancel"].append(statements(lambda: cancel(ids)))  # noqa: B023
        push([{**job, "scheduled_at": "2020-01-01T00:00:00Z"} for job in jobs(count)])
        costs["settle"].append(statements(apply_due))
    for name, measured in costs.items():
        assert measured[0] == measured[1], (name, measured)


@pytest.mark.sqlite
def test_on_sqlite_a_claim_and_a_completion_read_their_jobs_once() -> None:
    """Four statements each: the jobs, the change, the events and the counts. Beside them a claim asks for the status of
    its queues and their configuration, and both have a savepoint."""
    push(jobs(300))
    assert statements(lambda: fetch(Fetch(["default"], count=300))) == 2 + 4 + 2
    acks = [Ack(row["id"], "1") for row in claimed(300)]
    assert statements(lambda: ack(acks)) == 4 + 2
