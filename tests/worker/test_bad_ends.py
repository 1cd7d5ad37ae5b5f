"""Handlers that end badly, or never: each has a defined end, and its neighbours are none the worse for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import psutil
import pytest
from django.db import connection

from django_ojs import enqueue, enqueue_many
from django_ojs.models import Job, Worker
from tests.waiting import eventually
from tests.worker.conftest import WorkerCommand

Start = Callable[..., WorkerCommand]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]

ONCE = {"timeout": 1, "retry": {"max_attempts": 1}}


def stop(process: WorkerCommand) -> None:
    process.signal(signal.SIGTERM)
    assert process.wait() == 0, process.output


def pid_of(worker: str) -> int | None:
    return Worker.objects.filter(pk=worker).values_list("pid", flat=True).first()


def test_a_call_that_no_exception_ends_costs_its_process_and_nobody_else(start_process: Start) -> None:
    """Neighbours that end within the grace period complete; those that do not are handed back, without an error."""
    stuck = enqueue("site.sleep", "stuck", **ONCE)
    quick, slow = enqueue("site.hold", "quick"), enqueue("site.hold", "slow")
    process = start_process("ojs_worker", "--name", "w", grace=3)
    eventually(lambda: all(process.trace(f"{name}.started") for name in ("stuck", "quick", "slow")))
    first = pid_of("w")
    assert stuck.wait(timeout=90, raise_error=False).state == "discarded"
    assert stuck.error is not None
    assert stuck.error["code"] == "timeout"
    eventually(lambda: process.said("does not end, so this process has to"))
    process.let_go("quick")
    assert (quick.wait(timeout=90).result, quick.attempt) == ("quick", 1)
    eventually(lambda: pid_of("w") not in (first, None))
    process.let_go("slow")
    assert (slow.wait(timeout=90).result, slow.attempt, slow.errors) == ("slow", 2, [])
    assert first is not None
    assert not psutil.pid_exists(first)
    stop(process)


@pytest.mark.wide
def test_a_coroutine_that_blocks_its_loop_is_ended_and_the_others_go_on(start_process: Start) -> None:
    process = start_process("ojs_worker", "--name", "w")
    neighbour = enqueue("site.ahold", "neighbour")
    eventually(lambda: process.trace("neighbour.started"))
    first = pid_of("w")
    spinning = enqueue("site.aspin", "spin", **ONCE)
    assert spinning.wait(timeout=90, raise_error=False).error is not None
    assert spinning.error is not None
    assert spinning.error["code"] == "timeout"
    eventually(lambda: process.trace("spin.ended"))
    process.let_go("neighbour")
    assert (neighbour.wait(timeout=90).result, neighbour.attempt) == ("neighbour", 1)
    assert pid_of("w") == first, "no process had to end for it"
    stop(process)


def test_a_retry_does_not_begin_before_its_earlier_run_has_ended(start_process: Start) -> None:
    """Time is up for the server as well, and the backoff is short: the same worker claims the retry."""
    policy = {"max_attempts": 2, "initial_interval": "10ms", "jitter": False}
    handle = enqueue("site.linger", "job", timeout=1, retry=policy)
    process = start_process("ojs_worker", "--name", "w")
    assert handle.wait(timeout=40).result == "second"
    lines = [line.split("-") for line in process.traces.joinpath("job.log").read_text().split()]
    assert [word for word, _ in lines] == ["begin", "end"] * 2
    assert [error["code"] for error in handle.errors] == ["timeout"], "the wait cost no attempt"
    stop(process)


@pytest.mark.wide
def test_a_handler_that_holds_the_interpreter_is_noticed_from_outside(start_process: Start) -> None:
    handle = enqueue("site.hog", "hog")
    process = start_process("ojs_worker", "--name", "w", heartbeat_timeout=3)
    eventually(lambda: process.said("no sign of life for"))
    eventually(lambda: handle.refresh().errors)
    assert handle.errors[0]["code"] == "worker_death", "it was alone, so it is to blame"
    assert enqueue("site.add", 1, 2, queue="other").wait(timeout=60).result == 3
    process.signal(signal.SIGKILL)


@pytest.mark.parametrize(
    "how", [pytest.param("return", marks=pytest.mark.wide), "raise", pytest.param("exit", marks=pytest.mark.wide)]
)
def test_the_copy_of_a_handler_that_forks_is_no_worker(start_process: Start, how: str) -> None:
    handles = enqueue_many([("site.fork", [f"fork-{n}", how]) for n in range(3)] + [
        ("site.once", [f"once-{n}"]) for n in range(20)])  # fmt: skip
    process = start_process("ojs_worker", "--until-empty", "--concurrency", "2")
    assert process.wait(60) == 0, process.output
    for handle in handles:
        assert (handle.refresh().state, handle.attempt, handle.errors) == ("completed", 1, [])
    assert all(process.trace(f"fork-{n}.copy") for n in range(3))
    assert process.said("stopped: 23 jobs completed")
    assert process.said("RuntimeError: in the copy") == (how == "raise")


@pytest.mark.wide
def test_a_process_that_a_handler_forked_can_be_ended_by_a_signal(start_process: Start) -> None:
    """Our handlers of signals are none of its business."""
    handle = enqueue("site.child", "child")
    process = start_process()
    assert handle.wait(timeout=90).result == -signal.SIGTERM
    stop(process)


@pytest.mark.parametrize(
    "how",
    [
        "raw-close",
        "atomic",
        *(pytest.param(how, marks=pytest.mark.wide) for how in ("close", "autocommit", "savepoint", "raw-begin")),
    ],
)
def test_what_a_handler_leaves_in_its_connection_is_cleared_away(start_process: Start, how: str) -> None:
    """Its outcome counts, its open transaction does not; the next handler in that thread finds all in order."""
    if how == "raw-begin" and connection.vendor == "mysql":
        pytest.skip("its driver does not tell what SQL of the handler's own began")
    handle = enqueue("site.leave", how)
    process = start_process("ojs_worker", "--concurrency", "1")
    assert (handle.wait(timeout=90).state, handle.result, handle.errors) == ("completed", how, [])
    counts = [enqueue("site.groups").wait(timeout=90) for _ in range(2)]
    assert [(handle.result, handle.attempt) for handle in counts] == [(0, 1), (0, 1)]
    left_open = how not in ("close", "raw-close")
    eventually(lambda: process.said("left a transaction open") == left_open)
    stop(process)


@pytest.mark.wide
def test_a_thread_of_a_handler_does_not_keep_the_process_from_ending(start_process: Start) -> None:
    handle = enqueue("site.thread")
    process = start_process(grace=1)
    handle.wait(timeout=90)
    stop(process)


@pytest.mark.wide
def test_nothing_is_left_active(start_process: Start) -> None:
    """All of them in one worker, beside jobs that are as they should be."""
    bad = [
        enqueue("site.exit", retry={"max_attempts": 1}),
        enqueue("site.spin", "spin", **ONCE),
        enqueue("site.sleep", "sleep", **ONCE),
        enqueue("site.leave", "atomic"),
        enqueue("site.fork", "fork", "raise"),
        enqueue("site.die", "die", "exit"),
    ]
    good = enqueue_many([("site.add", [n, 0]) for n in range(50)])
    process = start_process("ojs_worker", "--processes", "2", "--concurrency", "3", grace=2)
    for handle in good:
        assert (handle.wait(timeout=60).state, handle.errors) == ("completed", [])
    for handle in bad:
        assert handle.wait(timeout=90, raise_error=False).is_finished
    assert not Job.objects.filter(state="active").exists()
    stop(process)
