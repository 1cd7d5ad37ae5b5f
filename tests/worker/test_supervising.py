"""What the supervisor does when its own means fail, with its clock, its forks and its children's ends in hand."""

from __future__ import annotations

import errno
import logging
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from django_ojs import backoff as backoff_module
from django_ojs.registry import registry
from django_ojs.worker import supervisor as module
from django_ojs.worker.board import Board
from django_ojs.worker.lifecycle import Pipes
from django_ojs.worker.process import WorkerOptions, WorkerProcess
from django_ojs.worker.supervisor import ExitReport, ProcessSlot, Supervisor

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

FAILED = 1 << 8  #: the status of a process that ended with code 1


class Stage:
    """A supervisor of one process whose world is made of lists."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.forks: list[int] = []  #: the pids that were made
        self.errors: list[BaseException] = []  #: what the next forks raise
        self.ends: Callable[[int], Any] = lambda pid: None
        self.killed: list[int] = []
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(backoff_module, "time", clock)
        monkeypatch.setattr(module, "fork", self._fork)
        monkeypatch.setattr(module, "_ended", self._ended)
        monkeypatch.setattr(module.os, "kill", lambda pid, number: self.killed.append(pid))
        self.supervisor = Supervisor(WorkerOptions(name="w"), 1)
        self.place = self.supervisor._places[0]

    def _ended(self, pid: int | None) -> Any:
        return None if pid is None else self.ends(pid)

    def _fork(self, body: Any, *, known: bool = False) -> int:
        if self.errors:
            raise self.errors.pop(0)
        self.forks.append(100 + len(self.forks))
        return self.forks[-1]

    def rounds(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            for step in self.supervisor._steps():
                step()
            self.now += module.TICK
            if self.place.pid is not None and self.place.pid not in self.killed:
                self.place.heard_at = self.now

    def report(self, line: bytes) -> None:
        """What the process says; its end of the pipe is closed in this process, so the line is read as if it came."""
        assert self.place.pipes is not None
        self.place.pipes._hear(line)
        self.place.pipes.read = lambda: True  # type: ignore[method-assign]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    stage = Stage(monkeypatch)
    yield stage
    monkeypatch.undo()
    if stage.place.pipes is not None:
        stage.place.pipes.close()


def test_a_hand_back_that_fails_for_an_hour_forks_seldom_and_logs_little(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """A broken file, a database that only reads: each try ends with code 1 at once."""
    stage.ends = lambda pid: (FAILED, 50.0)
    stage.rounds(3600)
    assert 100 < len(stage.forks) < 300
    assert len(caplog.records) < 100
    assert "Handing back the jobs of w failed, and the server will notice again, " in caplog.text
    stage.ends = lambda pid: (int(ExitReport.DONE) << 8, 50.0) if pid == stage.place.hand_back_pid else None
    stage.rounds(60)
    assert stage.place.hand_back_due is None
    assert stage.place.pid is not None, "the place is taken again"


def test_a_hand_back_that_fails_while_it_stops_is_not_tried_again(stage: Stage) -> None:
    stage.rounds(1)
    stage.ends = lambda pid: (FAILED, 50.0)
    stage.rounds(0.5)
    stage.supervisor._stopping = True
    stage.rounds(60)
    assert stage.place.is_settled
    assert len(stage.forks) <= 3


def test_a_hand_back_that_hangs_is_killed_and_tried_again(stage: Stage) -> None:
    stage.rounds(1)
    worker = stage.forks[0]
    stage.ends = lambda pid: (FAILED, 50.0) if pid == worker or pid in stage.killed else None
    stage.rounds(2 * module.HAND_BACK_SECONDS + 5)
    assert stage.killed == [stage.forks[1]]
    assert len(stage.forks) == 3


def test_a_process_that_dies_at_once_for_ever_is_started_seldom(stage: Stage) -> None:
    stage.ends = lambda pid: (FAILED if pid % 2 == 0 else int(ExitReport.DONE) << 8, 50.0)
    stage.rounds(3600)
    assert 200 < len(stage.forks) < 600, "each start has its hand-back"
    stage.place.starts.failures = 10**6
    stage.rounds(60)


@pytest.mark.parametrize(
    "error", [OSError(errno.EAGAIN, "no more processes"), OSError(errno.ENOMEM, "no memory"), ValueError("closed")]
)
def test_a_fork_that_fails_is_tried_again(stage: Stage, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    before = descriptors()
    stage.errors = [error] * 3
    stage.rounds(10)
    assert stage.place.pid == stage.forks[0]
    assert len(descriptors()) == len(before) + 2, "the pipes of what was not started are closed"
    assert caplog.text.count("Traceback") == 1
    worker = stage.place.pid
    stage.errors = [error] * 3
    stage.ends = lambda pid: (FAILED, 50.0) if pid == worker else None
    stage.rounds(10)
    assert stage.place.hand_back_pid is not None


def test_a_pipe_that_cannot_be_had_is_tried_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    before, real, left = descriptors(), os.pipe, iter([True, False, True])

    def pipe() -> tuple[int, int]:
        if not next(left, True):
            raise OSError(errno.EMFILE, "no more descriptors")
        return real()

    monkeypatch.setattr(os, "pipe", pipe)
    stage.rounds(module.TICK)
    assert stage.place.pid is None
    assert descriptors() == before
    stage.rounds(10)
    assert stage.place.pid is not None


def descriptors() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").glob("*"))


@pytest.mark.parametrize("place", ["_obey", "_start_alone", "_report_health", "_check"])
def test_a_step_that_fails_ends_nothing(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole `run()`, whose second round goes well."""
    supervisor = Supervisor(WorkerOptions(name="w"), 1, announce=lambda line: None)
    faults = iter([RuntimeError("odd"), MemoryError()])

    def step(*args: Any) -> None:
        for fault in faults:
            raise fault
        for slot in supervisor._places:
            slot.start_at = None

    monkeypatch.setattr(module, "TICK", 0.001)
    monkeypatch.setattr(supervisor, "_check", lambda slot: None)
    monkeypatch.setattr(supervisor, place, step)
    assert supervisor.run()
    assert next(faults, None) is None


def test_a_child_that_somebody_else_has_waited_for_has_ended() -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    assert module._ended(pid) == (None, None)
    assert str(module.death_of(None)) == "died"


@pytest.mark.parametrize("number", [signal.SIGKILL, 40])
def test_every_signal_can_end_a_process(number: int) -> None:
    assert module.death_of(int(number)).signal in ("SIGKILL", "signal 40")


@pytest.mark.parametrize("torn", [b"signal 20", b"signal x y z", b"1 2signal", b"\xff", b"1 1 1", b"repl"])
def test_a_report_that_is_torn_is_passed_by(torn: bytes) -> None:
    pipes = Pipes()
    os.write(pipes.reports_in, torn + b"\n1 7\n")
    assert pipes.read()
    assert (pipes.healthy, pipes.completed, pipes.goodbye) == (True, 7, "")
    pipes.keep_parents_end()
    pipes.close()


@pytest.mark.parametrize("goodbye,blames", [(b"failed", False), (b"", True)])
def test_no_job_is_blamed_for_a_fault_of_the_worker(stage: Stage, goodbye: bytes, blames: bool) -> None:
    stage.rounds(1)
    board: Board = stage.place.board  # type: ignore[assignment]
    board.enter(uuid.uuid4(), 1)
    if goodbye:
        stage.report(goodbye)
    worker = stage.place.pid
    stage.ends = lambda pid: (FAILED, 50.0) if pid == worker else None
    stage.rounds(1)
    assert stage.place.hand_back_pid is not None, "its jobs are handed back"
    assert (stage.place.death is not None) == blames


def test_a_process_that_says_that_it_hangs_and_does_not_end_is_killed(stage: Stage, settings: Any) -> None:
    settings.OJS = {"SHUTDOWN_GRACE_PERIOD": 5}
    stage.rounds(1)
    worker = stage.place.pid
    stage.report(b"2 0")
    stage.rounds(5 + module.BEYOND_GRACE - 2)
    assert stage.killed == []
    stage.rounds(4)
    assert stage.killed == [worker]


def test_health_that_lasts_lets_pauses_be_short_again(stage: Stage) -> None:
    stage.rounds(1)
    stage.place.starts.failed()
    stage.place.starts.failed()
    assert stage.place.starts.failures == 2
    stage.place.starts.worked()
    stage.now += module.LONGEST_PAUSE
    stage.place.starts.worked()
    assert stage.place.starts.failures == 0


def test_a_process_that_has_completed_jobs_is_replaced_at_once(stage: Stage) -> None:
    place = ProcessSlot("w", completed=3, started_at=stage.now)
    assert stage.supervisor._pause(place) == 0.0
    place.done_before = 3
    assert stage.supervisor._pause(place) > 0.0


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("where", ["_join", "_work", "_drain", "_hand_back"])
def test_a_worker_whose_own_code_fails_says_so_and_leaves(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    pipes = Pipes()

    def fail(worker: Any) -> None:
        raise LookupError("a fault of ours")

    with registry.isolated():
        worker = WorkerProcess(WorkerOptions(name="w"), lambda line: None, pipes=pipes)
        monkeypatch.setattr(WorkerProcess, where, fail)
        monkeypatch.setattr(module.signal, "setitimer", lambda *args: None)
        if where in ("_drain", "_hand_back"):
            worker.stop()
        with pytest.raises(LookupError):
            worker.run()
    pipes.read()
    assert pipes.goodbye == "failed"
    pipes.keep_parents_end()
    pipes.close()
    assert not worker._writer._thread.is_alive()
