"""Jobs that end the process of their worker: the guilty one is given up, its neighbours lose nothing."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from django_ojs import enqueue, enqueue_many
from django_ojs.client.handle import JobHandle
from django_ojs.models import Event, Job, JobLog, Worker, WorkerDeath
from tests.waiting import eventually
from tests.worker.conftest import WorkerCommand

Start = Callable[..., WorkerCommand]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
]  # fmt: skip

#: A handler of each runner that ends its process.
KILLERS = ["site.kill", "site.akill", "site.ikill"]
ONCE = {"retry": {"max_attempts": 1}}


def stop(process: WorkerCommand) -> None:
    process.signal(signal.SIGTERM)
    assert process.wait() == 0, process.output


def starts(process: WorkerCommand, name: str) -> int:
    path: Path = process.traces / f"{name}.runs"
    return path.stat().st_size if path.exists() else 0


def given_up(poison: JobHandle, process: WorkerCommand) -> Job:
    eventually(lambda: poison.refresh().is_finished or process.process.poll() is not None)
    assert poison.state == "discarded", process.output
    return Job.objects.get(pk=poison.id)


@pytest.mark.parametrize("kind", [KILLERS[0], *(pytest.param(kind, marks=pytest.mark.wide) for kind in KILLERS[1:])])
def test_a_job_that_is_killed_is_given_up_and_its_neighbours_lose_no_attempt(start_process: Start, kind: str) -> None:
    """It goes first by its priority, and takes a process with its neighbours once. From then on it is alone."""
    poison = enqueue(kind, "poison", "kill", priority=10)
    held = [enqueue("site.hold", name, **ONCE) for name in ("one", "two")]
    process = start_process("ojs_worker", "--name", "w", "--concurrency", "3")
    eventually(lambda: all(process.trace(f"{name}.started") for name in ("one", "two")))
    process.let_go("poison")
    others = enqueue_many([("site.add", [n, 1], ONCE) for n in range(100)])
    eventually(lambda: WorkerDeath.objects.filter(job_id=poison.id).exists())
    for name in ("one", "two"):  # they were held beside it
        process.let_go(name)
    job = given_up(poison, process)
    assert starts(process, "poison") == 6, "once beside others, and five times alone"
    assert (job.max_attempts, job.uncounted) == (3, 6), "no handler has failed"
    assert job.errors is not None
    first, last = job.errors[0], job.errors[-1]
    assert (len(job.errors), first["type"], last["type"]) == (5, "worker_death", "visibility_timeout")
    assert (first["signal"], last["signal"]) == ("SIGKILL", "SIGKILL")
    assert first["memory_mb"] > 10
    assert "was killed by SIGKILL and had" in first["message"]
    assert "5 times in a row" in last["message"]
    for handle in (*held, *others):
        handle.wait(timeout=90)
        assert (handle.state, handle.errors) == ("completed", [])
        assert handle.attempt - (Job.objects.get(pk=handle.id).uncounted or 0) == 1
    deaths = list(WorkerDeath.objects.filter(job_id=poison.id).order_by("pk"))
    assert [death.alone for death in deaths] == [False, *[True] * 5]
    assert {death.signal for death in deaths} == {"SIGKILL"}
    assert process.said(f"{kind} {poison.id} ran when w was killed by SIGKILL and had")
    assert process.said("loss 1 of 5")
    stalled = Event.objects.filter(type="job.stalled", job_id=poison.id).order_by("id")[0]
    assert stalled.data["signal"] == "SIGKILL"
    told = Event.objects.filter(type="worker.terminated", worker_id="w").order_by("id")[0]
    assert (told.data["signal"], told.data["memory_mb"] > 10) == ("SIGKILL", True)
    stop(process)


@pytest.mark.wide
def test_a_neighbour_that_fails_once_is_tried_again(start_process: Start) -> None:
    """Its process was killed twice, and then it failed for the first of its two times."""
    shy = enqueue("site.shy", "shy", retry={"max_attempts": 2, "initial_interval": "PT0.1S"})
    poison = enqueue("site.kill", "poison", "kill")
    process = start_process("ojs_worker", "--name", "w", "--concurrency", "2")
    eventually(lambda: process.trace("shy.started"))
    process.let_go("poison")
    eventually(lambda: starts(process, "poison") >= 1)
    process.let_go("shy")
    assert shy.wait(timeout=90).state == "completed", process.output
    assert [error["type"] for error in Job.objects.get(pk=shy.id).errors] == ["ValueError"]
    given_up(poison, process)
    stop(process)


@pytest.mark.wide
def test_two_that_kill_are_both_found_and_hold_up_nobody(start_process: Start) -> None:
    poisons = [enqueue("site.kill", name, how, priority=10) for name, how in (("p", "kill"), ("q", "exit"))]
    process = start_process("ojs_worker", "--name", "w", "--processes", "2", "--concurrency", "4")
    for name in ("p", "q"):
        process.let_go(name)
    others = enqueue_many([("site.tick", [n], ONCE) for n in range(200)])
    for handle in others:
        handle.wait(timeout=90)
        assert (handle.state, handle.errors) == ("completed", []), process.output
    for poison in poisons:
        given_up(poison, process)
        assert 5 <= starts(process, "p") <= 7
    stop(process)


@pytest.mark.wide
def test_what_is_not_running_is_not_suspected(start_process: Start) -> None:
    """Jobs that were claimed ahead, and had not begun, go back to all processes."""
    enqueue_many([("site.note", [n], ONCE) for n in range(300)])
    process = start_process("ojs_worker", "--name", "w", "--concurrency", "2")
    eventually(lambda: Job.objects.filter(state="completed").count() > 50)
    poison = enqueue("site.kill", "poison", "kill", priority=10)
    process.let_go("poison")
    given_up(poison, process)
    eventually(lambda: not Job.objects.exclude(state="completed").exclude(pk=poison.id).exists())
    assert WorkerDeath.objects.exclude(job_id=poison.id).count() <= 1
    stop(process)


@pytest.mark.wide
def test_a_worker_that_ends_when_no_job_is_left_ends_after_those_that_are_run_alone(start_process: Start) -> None:
    poison = enqueue("site.kill", "poison", "kill")
    neighbour = enqueue("site.shy", "shy", retry={"max_attempts": 1})
    process = start_process("ojs_worker", "--until-empty", "--name", "w", "--concurrency", "2")
    eventually(lambda: process.trace("shy.started"))
    process.let_go("shy"), process.let_go("poison")
    assert process.wait(120) == 0, process.output
    assert poison.refresh().state == "discarded"
    assert neighbour.refresh().is_finished
    assert not Worker.objects.exists()


def kill_all(process: WorkerCommand) -> None:
    """The worker, its parent and all: as when the kernel kills a container for its memory."""
    family = [process.process.pid, *(child.pid for child in process.relatives())]
    for pid in family:
        os.kill(pid, signal.SIGSTOP)
    for pid in family:
        os.kill(pid, signal.SIGKILL)
    process.process.wait()


@pytest.mark.wide
@pytest.mark.parametrize("how", ["the next has its name", "the next has another name", "the reservations end"])
def test_where_the_parent_dies_too_each_that_it_held_is_run_alone(start_process: Start, how: str) -> None:
    """Nobody saw which of them it was."""
    names = ["one", "two", "three"]
    held = [enqueue("site.hold", name, **ONCE) for name in names]
    times = {"heartbeat_timeout": 600.0 if how == "the reservations end" else 1.0}
    if how == "the reservations end":
        times["visibility"] = 1
    process = start_process("ojs_worker", "--name", "w", "--concurrency", "3", **times)
    eventually(lambda: all(process.trace(f"{name}.started") for name in names))
    for name in names:
        (process.traces / f"{name}.started").unlink()
    kill_all(process)
    name = "w" if how == "the next has its name" else "v"
    process = start_process("ojs_worker", "--name", name, "--concurrency", "3", "--processes", "1", **times)
    for _ in held:
        running, *_ = eventually(lambda: [one for one in names if process.trace(f"{one}.started")])
        holders = list(Job.objects.filter(state="active").values_list("worker_id", flat=True))
        assert len(holders) == len(set(holders)), "none runs two"
        (process.traces / f"{running}.started").unlink()
        process.let_go(running)
        names.remove(running)
    for handle in held:
        handle.wait(timeout=90)
        job = Job.objects.get(pk=handle.id)
        assert (job.state, job.losses, job.worker_id[:7]) == ("completed", 0, f"{name}-alone")
        assert job.attempt - (job.uncounted or 0) == 1
    stop(process)


@pytest.fixture
def small_container() -> Iterator[Path]:
    """A control group whose processes have 600 MB of memory together, if this user may make one."""
    folder = next(filter(None, map(_limited, ("memory/{}/memory.limit_in_bytes", "{}/memory.max"))), None)
    if folder is None:
        pytest.skip("needs a control group of its own for memory")
    yield folder
    members = folder / "cgroup.procs"
    for pid in members.read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    eventually(lambda: not members.read_text().split())
    folder.rmdir()


def _limited(place: str) -> Path | None:
    limit = Path("/sys/fs/cgroup") / place.format(f"ojs-test-{os.getpid()}")
    if not (limit.parent.parent / "cgroup.procs").exists():
        return None
    try:
        limit.parent.mkdir()
        limit.write_text(str(600 * 2**20))
    except OSError:
        with contextlib.suppress(OSError):
            limit.parent.rmdir()
        return None
    return limit.parent


@pytest.mark.wide
def test_a_job_that_takes_all_memory_is_killed_by_the_kernel_and_given_up(
    start_process: Start, small_container: Path
) -> None:
    process = start_process("ojs_worker", "--name", "w", "--concurrency", "2")
    neighbour = enqueue("site.hold", "neighbour", **ONCE)
    eventually(lambda: process.trace("neighbour.started"))
    for pid in (process.process.pid, *(child.pid for child in process.relatives())):
        (small_container / "cgroup.procs").write_text(str(pid))
    hungry = enqueue("site.grow", 2000)
    eventually(WorkerDeath.objects.exists)
    process.let_go("neighbour")
    job = given_up(hungry, process)
    assert (job.attempt, job.uncounted) == (6, 6)
    assert job.errors is not None
    assert {error["signal"] for error in job.errors} == {"SIGKILL"}
    assert all(200 < error["memory_mb"] < 700 for error in job.errors), job.errors
    assert neighbour.wait(timeout=90).errors == []
    stop(process)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux")
def test_a_job_that_is_refused_memory_fails_and_ends_no_process(start_process: Start) -> None:
    """With `ulimit -v` Python gets no memory, and says so: that is an error of the handler."""
    process = start_process("ojs_worker", "--name", "w", "--concurrency", "2")
    neighbour = enqueue("site.hold", "neighbour", **ONCE)
    eventually(lambda: process.trace("neighbour.started"))
    for child in process.relatives():
        most = child.memory_info().vms + 500 * 2**20
        resource.prlimit(child.pid, resource.RLIMIT_AS, (most, most))
    hungry = enqueue("site.grow", 4000, **ONCE)
    assert [error["type"] for error in given_up(hungry, process).errors or []] == ["MemoryError"]
    process.let_go("neighbour")
    assert (neighbour.wait(timeout=90).errors, neighbour.attempt) == ([], 1)
    assert not WorkerDeath.objects.exists()
    stop(process)


def test_what_was_logged_before_a_process_is_killed_is_stored(start_process: Start) -> None:
    """Lines that the process had not stored yet are in memory that its parent has, too."""
    handle = enqueue("site.log", "log", 300, "kill", retry={"max_attempts": 1})
    neighbour = enqueue("site.log", "other", 3, "hold", retry={"max_attempts": 1})
    process = start_process("ojs_worker", "--name", "w", "--concurrency", "2", poison_limit=1)
    eventually(lambda: WorkerDeath.objects.filter(job_id=handle.id).exists())
    first = JobLog.objects.filter(job_id=handle.id, attempt=1).order_by("sequence")
    assert [line.message for line in first] == [
        *(f"line {number} of log" for number in range(1, 301)), "said at the end"
    ], process.output  # fmt: skip
    assert first[300].fields == {"number": 300}
    eventually(lambda: JobLog.objects.filter(job_id=neighbour.id).count() >= 4)
    process.let_go("other")
    neighbour.wait(timeout=90)
    stop(process)


@pytest.mark.wide
def test_the_end_of_many_lines_is_stored_though_the_process_is_killed(start_process: Start) -> None:
    """The process may have stored some of them, and numbered all: the first and the last are there, each once."""
    handle = enqueue("site.log", "log", 5_000, "kill", retry={"max_attempts": 1})
    process = start_process("ojs_worker", "--name", "w", "--concurrency", "1", poison_limit=1)
    eventually(lambda: handle.refresh().is_finished)
    assert process.said("was killed by SIGKILL"), process.output
    stop(process)
    begun = JobLog.objects.filter(job_id=handle.id).order_by("started_at").values_list("started_at", flat=True).first()
    lines = list(JobLog.objects.filter(job_id=handle.id, started_at=begun).order_by("sequence"))
    assert [line.message for line in lines[:500]] == [f"line {number} of log" for number in range(1, 501)]
    assert lines[500].dropped == 4001
    assert [line.message for line in lines[501:]] == [
        *(f"line {number} of log" for number in range(4_502, 5_001)), "said at the end"
    ]  # fmt: skip
