"""Every way in which a handler, its logging and its errors can end, in a real worker: the table is in `app/ends.py`.

Each job ends as docs/handlers.md says, its neighbours complete at their first attempt, and the worker goes on.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group

from django_ojs import enqueue, enqueue_many
from django_ojs.client.handle import JobHandle
from django_ojs.models import Event, Job, Worker
from tests.waiting import eventually
from tests.worker.app.ends import DEATHS, ENDS, KINDS
from tests.worker.conftest import WorkerCommand

Start = Callable[..., WorkerCommand]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
]  # fmt: skip

ONCE: Any = {"retry": {"max_attempts": 1}}
NEIGHBOURS = ("site.add", "site.aadd")
Ended = list[tuple[str, JobHandle]]


def neighbours(count: int) -> list[JobHandle]:
    return enqueue_many([(NEIGHBOURS[n % 2], [n, 1], ONCE) for n in range(count)])


def attempts(handle: JobHandle) -> int:
    """How many of its attempts count: a claim that waited too long behind others is given back, and does not."""
    return handle.attempt - (Job.objects.get(pk=handle.id).uncounted or 0)


def differences(kind: str, jobs: Ended) -> list[str]:
    """What is not as the table says."""
    found = []
    for name, handle in jobs:
        expected = ENDS[name]
        errors = handle.refresh().errors or []
        error = errors[-1] if errors else {}
        code = expected.code or error.get("code")
        wanted = (expected.state, 1, bool(expected.error), expected.error or None, code)
        got = (handle.state, attempts(handle), len(errors), error.get("type"), error.get("code"))
        if wanted != got or expected.says not in error.get("message", ""):
            said = str(error.get("message"))[:300]
            found.append(f"{kind} {name}: {wanted} {expected.says!r} expected, and not {got} {said!r}")
    return found


def put(kind: str) -> Ended:
    """A job for each end of this kind; those that time out soon do."""
    names = [name for name, end in ENDS.items() if kind in end.kinds]
    return [
        (name, enqueue(f"end.{kind}", name, timeout=1 if ENDS[name].code == "timeout" else 60, **ONCE))
        for name in names
    ]  # fmt: skip


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.wide)])
def test_every_end_of_every_kind_of_handler(start_process: Start, processes: int) -> None:
    first = neighbours(10)
    jobs = {kind: put(kind) for kind in KINDS}
    last = neighbours(10)
    process = start_process("ojs_worker", "--name", "w", "--processes", str(processes), "--concurrency", "4")
    eventually(lambda: Worker.objects.count() == processes)
    began = set(Worker.objects.values_list("pid", flat=True))
    eventually(lambda: not Job.objects.live().exists() or process.process.poll() is not None)
    for handle in (*first, *last):
        assert (handle.refresh().state, attempts(handle), handle.errors) == ("completed", 1, [])
    found = [line for kind, pairs in jobs.items() for line in differences(kind, pairs)]
    assert not found, "\n".join([*found, process.output])
    assert not Group.objects.exists(), "none of them was to write anything"
    # The worker is whole, and as many jobs run at once as before
    held = [enqueue("site.hold", f"hold-{n}", **ONCE) for n in range(4 * processes)]
    eventually(lambda: all(process.trace(f"hold-{n}.started") for n in range(4 * processes)))
    for n in range(4 * processes):
        process.let_go(f"hold-{n}")
    for handle in held:
        assert handle.wait(timeout=90).state == "completed"
    assert set(Worker.objects.values_list("pid", flat=True)) == began, "no process had to be replaced"
    assert set(Worker.objects.values_list("threads_replaced", flat=True)) == {0}
    for sentence in ("thread died", "A thread that runs handlers has died", "worker_fault"):
        assert not process.said(sentence), process.output
    process.signal(signal.SIGTERM)
    assert process.wait() == 0, process.output


@pytest.mark.wide
def test_every_way_to_end_the_process(start_process: Start) -> None:
    """Each is found out, and given up after as many losses in a row as are allowed; nobody else loses an attempt."""
    poison = {name: enqueue("end.dies", name, **ONCE) for name in DEATHS}
    others = neighbours(40)
    process = start_process("ojs_worker", "--name", "w", "--concurrency", "3", poison_limit=2)
    for name, handle in poison.items():
        eventually(
            lambda handle=handle: handle.refresh().is_finished or process.process.poll() is not None, timeout=300
        )  # type: ignore[misc]
        assert (handle.state, name) == ("discarded", name), process.output
        job = Job.objects.get(pk=handle.id)
        assert job.attempt == job.uncounted, "no handler has failed"
        assert [error["type"] for error in handle.errors] == ["worker_death", "visibility_timeout"]
        assert all(DEATHS[name][1] in error["message"] for error in handle.errors), (name, handle.errors)
    for handle in others:
        assert (handle.wait(timeout=90).state, handle.errors) == ("completed", [])
        assert attempts(handle) == 1
    process.signal(signal.SIGTERM)
    assert process.wait() == 0, process.output


@pytest.mark.parametrize(
    "kind", ["site.hold", *(pytest.param(kind, marks=pytest.mark.wide) for kind in ("site.ahold", "site.watch"))]
)
def test_a_handler_that_is_cancelled_while_it_runs(start_process: Start, kind: str) -> None:
    handle, neighbour = enqueue(kind, "job", **ONCE), enqueue("site.hold", "neighbour", **ONCE)
    process = start_process("ojs_worker", "--name", "w", "--concurrency", "2")
    eventually(lambda: process.trace("job.started") and process.trace("neighbour.started"))
    handle.cancel()
    process.let_go("neighbour")
    if kind == "site.hold":  # it never looks
        process.let_go("job")
    assert neighbour.wait(timeout=90).state == "completed"
    # Its slot is free again
    held = [enqueue("site.hold", f"hold-{n}", **ONCE) for n in range(2)]
    eventually(lambda: all(process.trace(f"hold-{n}.started") for n in range(2)))
    for n in range(2):
        process.let_go(f"hold-{n}")
    assert [one.wait(timeout=90).state for one in held] == ["completed"] * 2
    assert (handle.refresh().state, handle.attempt, handle.errors) == ("cancelled", 1, [])
    assert not Event.objects.filter(job_id=handle.id, type__in=["job.failed", "job.completed"]).exists()
    process.signal(signal.SIGTERM)
    assert process.wait() == 0, process.output


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["sync", "inline", "async"])
def test_a_handler_that_keeps_every_exception_by_which_it_is_to_end(start_process: Start, kind: str) -> None:
    """It has timed out, and costs its process; a neighbour that does not end in time is handed back with no error."""
    handle = enqueue(f"site.keeps.{kind}", "keeps", timeout=1, **ONCE)
    quick, slow = enqueue("site.hold", "quick", **ONCE), enqueue("site.hold", "slow")
    process = start_process("ojs_worker", "--name", "w", "--concurrency", "3", grace=2)
    eventually(lambda: all(process.trace(f"{name}.started") for name in ("keeps", "quick", "slow")))
    assert handle.wait(timeout=90, raise_error=False).state == "discarded"
    assert (attempts(handle), [error["code"] for error in handle.errors]) == (1, ["timeout"])
    process.let_go("quick")
    assert (quick.wait(timeout=90).state, quick.attempt) == ("completed", 1)
    eventually(lambda: process.said("does not end, so this process has to"))
    eventually(lambda: slow.refresh().attempt == 2)
    process.let_go("slow")
    assert (slow.wait(timeout=90).state, slow.errors) == ("completed", [])
    process.signal(signal.SIGTERM)
    assert process.wait() == 0, process.output


@pytest.mark.wide
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.wide)])
def test_a_signal_by_which_a_handler_stops_its_own_process(start_process: Start, number: int) -> None:
    """An order to the process: it finishes what it has, and another one takes its place."""
    handle = enqueue("site.signal", number, **ONCE)
    process = start_process("ojs_worker", "--name", "w", "--concurrency", "2")
    assert (handle.wait(timeout=90).state, handle.attempt, handle.errors) == ("completed", 1, [])
    after = enqueue("site.pid", **ONCE).wait(timeout=90)
    assert (after.state, after.result != handle.result) == ("completed", True)
    process.signal(signal.SIGTERM)
    assert process.wait() == 0, process.output


@pytest.mark.parametrize(
    "how", ["streams", *(pytest.param(how, marks=pytest.mark.wide) for how in ("descriptors", "none", "full"))]
)
def test_a_handler_that_takes_its_process_the_output(start_process: Start, how: str) -> None:
    """Logging has nowhere to go any more: jobs end as before."""
    handles = [enqueue("site.mute", how, **ONCE), enqueue("site.fail", "mute", **ONCE), *neighbours(10)]
    process = start_process("ojs_worker", "--name", "w", "--concurrency", "1")
    states = [handle.wait(timeout=90, raise_error=False).state for handle in handles]
    assert states == ["completed", "discarded", *["completed"] * 10], process.output
    assert handles[1].errors[-1]["message"] == "mute"
    assert {handle.attempt for handle in handles} == {1}
    process.signal(signal.SIGTERM)
    assert process.wait() == 0, process.output
