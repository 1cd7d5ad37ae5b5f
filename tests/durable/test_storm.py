"""A storm of kill -9 over the workers of durable jobs: every flow ends, and its effects in the database happen once.

OJS_TEST_FULL=1 runs the size that counts: 2,000 flows of ten steps, a kill every second until the end.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import Group

from django_ojs import enqueue_many
from django_ojs.models import Job, JobStep, Worker, Workflow
from tests.waiting import eventually
from tests.worker.conftest import WorkerCommand, start_process
from tests.worker.test_storm import FULL, any_worker, storm

__all__ = ["start_process"]  # a fixture
pytestmark = [pytest.mark.wide, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]

FLOWS, KILLS = (2000, 10**6) if FULL else (40, 4)
BOOKS, CALLS = 4, 4
FAMILIES = 300 if FULL else 20


def test_workers_of_durable_jobs_are_killed_at_random(
    start_process: Callable[..., WorkerCommand], tmp_path: Path, record_property: Callable[..., None]
) -> None:
    enqueue_many([("flow.ten", [number]) for number in range(FLOWS)])
    process = start_process(
        "ojs_worker", "--name", "w", "--processes", "2", "--concurrency", "4", poison_limit=1000
    )  # a flow may be killed again and again, and nobody is to blame
    eventually(lambda: Worker.objects.count() == 2)
    killed = storm(any_worker, KILLS)
    process.signal(signal.SIGTERM)
    assert process.wait(60) == 0, process.output
    assert killed, "nobody was killed"
    ends = Counter(Job.objects.values_list("state", flat=True))
    assert ends == {"completed": FLOWS}, Job.objects.exclude(state="completed").first().errors  # type: ignore[union-attr]
    booked = Counter(name.rpartition(":")[0] for name in Group.objects.values_list("name", flat=True))
    assert booked == {f"{flow}:{number}": 1 for flow in range(FLOWS) for number in range(BOOKS)}
    called = Counter((tmp_path / "calls").read_text().split())
    assert set(called) == {f"{flow}:write-{number}" for flow in range(FLOWS) for number in range(CALLS)}
    again = sum(called.values()) - len(called)
    assert again <= 8 * len(killed)  # what was called and not yet recorded, in each slot of a killed process
    assert JobStep.objects.count() == FLOWS * (BOOKS + CALLS + 2)
    record_property("storm", f"{len(killed)} kills, {again} calls of steps that were not recorded yet")
    print(f"\n{len(killed)} kills, {again} calls again of steps that were not recorded yet")


def test_workers_of_parents_and_children_are_killed_at_random(start_process: Callable[..., WorkerCommand]) -> None:
    enqueue_many([("flow.family", [number]) for number in range(FAMILIES)])
    process = start_process(
        "ojs_worker", "--name", "w", "--processes", "2", "--concurrency", "4", poison_limit=1000
    )  # as above
    eventually(lambda: Worker.objects.count() == 2)
    killed = storm(any_worker, KILLS)
    process.signal(signal.SIGTERM)
    assert process.wait(60) == 0, process.output
    assert killed, "nobody was killed"
    ends = Counter(Job.objects.values_list("type", "state"))
    assert ends == {("flow.family", "completed"): FAMILIES, ("flow.member", "completed"): 5 * FAMILIES}
    for family in Job.objects.filter(type="flow.family"):
        (number,) = family.args
        assert family.result == [*range(4 * number, 4 * number + 4), number]
    assert Workflow.objects.count() == 2 * FAMILIES
    assert not Workflow.objects.exclude(state="completed", awaited=None).exists()
