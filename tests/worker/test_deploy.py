"""A deploy without a pause: old and new workers side by side on one schema, while jobs keep coming.

The steps of docs/how-to/deploys.md, with real processes: `quiet` the old, start the new, `terminate` the old.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connections

from django_ojs import enqueue, enqueue_many
from django_ojs.client.handle import JobHandle
from django_ojs.models import Event, Job, Worker
from tests.waiting import eventually
from tests.worker.conftest import WorkerCommand

Start = Callable[..., WorkerCommand]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
]

#: A type that only the new release has a handler for, and what both know.
NOVELTY, COMMON = "site.novelty", "site.release"


class Traffic:
    """A site that goes on enqueueing, in a thread of its own: plain jobs, delayed ones, and those of the new type."""

    def __init__(self) -> None:
        self.handles: list[JobHandle] = []
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.02):
                n = len(self.handles)
                self.handles += enqueue_many([(COMMON, [n]), (COMMON, [n + 1], {"delay": "200ms"}), (NOVELTY, [n + 2])])
        except BaseException as error:  # noqa: BLE001 - raised in the test
            self._error = error
        finally:
            connections.close_all()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error


@pytest.fixture
def traffic() -> Iterator[Traffic]:
    traffic = Traffic()
    yield traffic
    traffic.stop()


def runs(traces: Path) -> list[tuple[str, uuid.UUID]]:
    """Every run of a handler, in order: the release that ran it, and the job."""
    path = traces / "releases"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(release, uuid.UUID(job)) for release, job in map(str.split, lines)]


def ran(traces: Path, release: str) -> int:
    return sum(1 for found, _ in runs(traces) if found == release)


def held_by(names: list[str]) -> set[uuid.UUID]:
    return set(Job.objects.filter(state="active", worker_id__in=names).values_list("pk", flat=True))


def states(names: list[str]) -> set[str]:
    return set(Worker.objects.filter(pk__in=names).values_list("state", flat=True))


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.wide)])
def test_a_deploy_loses_nothing_and_repeats_nothing(
    start_process: Start, traffic: Traffic, tmp_path: Path, processes: int
) -> None:
    def start(release: str) -> WorkerCommand:
        return start_process(
            "ojs_worker",
            "--name",
            release,
            "--processes",
            str(processes),
            "--concurrency",
            "4",
            release=release,
            grace=60,
        )

    olds = ["old"] if processes == 1 else ["old-1", "old-2"]
    long = enqueue("site.hold", "long")
    old = start("old")
    eventually(lambda: old.trace("long.started") and ran(tmp_path, "old") > 20)

    call_command("ojs_workers", "quiet", "old")
    eventually(lambda: states(olds) == {"quiet"} and Worker.objects.count() == processes)
    eventually(lambda: held_by(olds) == {long.id})  # what else it held it has finished
    by_old = ran(tmp_path, "old")

    new = start("new")
    eventually(lambda: ran(tmp_path, "new") > 60)
    assert ran(tmp_path, "old") == by_old, "a quiet worker ran another job"
    assert held_by(olds) == {long.id}

    call_command("ojs_workers", "terminate", "old", "--yes")
    eventually(lambda: states(olds) == {"terminate"})
    before = ran(tmp_path, "new")
    eventually(lambda: ran(tmp_path, "new") > before + 20)
    assert old.process.poll() is None, "it did not wait for the job that it was at"
    old.let_go("long")
    assert old.wait() == 0, old.output
    assert not Worker.objects.filter(pk__in=olds).exists()

    before = ran(tmp_path, "new")
    eventually(lambda: ran(tmp_path, "new") > before + 20)  # and so it goes on
    traffic.stop()
    eventually(lambda: not Job.objects.exclude(state="completed").exists())
    call_command("ojs_workers", "terminate", "new", "--yes")
    assert new.wait() == 0, new.output

    assert ran(tmp_path, "old") == by_old
    assert (long.refresh().result, long.attempt) == ("long", 1)
    assert_all_is_well(traffic.handles, runs(tmp_path))
    for worker in (old, new):
        assert not [line for line in worker.lines if line.startswith(("ERROR", "CRITICAL", "Traceback"))], worker.output


def assert_all_is_well(handles: list[JobHandle], done: list[tuple[str, uuid.UUID]]) -> None:
    """Each job was run once, by the release whose result it has; what only the new one knows, by that one."""
    assert Counter(job for _, job in done) == Counter(handle.id for handle in handles), "lost, or run twice"
    results = dict(Job.objects.exclude(type="site.hold").values_list("pk", "result"))
    assert results == {job: release for release, job in done}
    assert {results[handle.id] for handle in handles if handle.type == NOVELTY} == {"new"}
    assert {"old", "new"} == set(results.values())
    completed = Counter(Event.objects.filter(type="job.completed").values_list("job_id", flat=True))
    assert set(completed.values()) == {1}
    assert not Event.objects.filter(type__in=["job.discarded", "job.failed", "job.retrying", "job.stalled"]).exists()
