"""Orders and stages: whoever gives them, there is one way through, and none back from terminate."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from django_ojs.management.commands import ojs_grpc
from django_ojs.worker import lifecycle as module
from django_ojs.worker.lifecycle import Lifecycle, Order, Stage, obeyed, signals
from django_ojs.worker.supervisor import Supervisor


def obey(lifecycle: Lifecycle, *orders: tuple[Order, str]) -> Stage:
    for order, source in orders:
        lifecycle.give(order, source)
        lifecycle.follow(timeout=1)
    return lifecycle.stage


def test_quiet_and_resume() -> None:
    lifecycle = Lifecycle()
    assert obey(lifecycle, (Order.QUIET, "SIGTSTP")) is Stage.QUIET
    assert obey(lifecycle, (Order.RESUME, "SIGCONT")) is Stage.RUNNING


@pytest.mark.parametrize("order", [Order.RESUME, Order.QUIET])
def test_there_is_no_way_back_from_terminate(order: Order) -> None:
    lifecycle = Lifecycle()
    assert obey(lifecycle, (Order.STOP, "SIGTERM"), (order, "SIGCONT")) is Stage.TERMINATE


def test_the_second_signal_hurries_and_an_operator_does_not() -> None:
    lifecycle = Lifecycle()
    obey(lifecycle, (Order.STOP, "the operator"), (Order.STOP, "the operator"), (Order.STOP, "SIGTERM"))
    assert not lifecycle.hurried.is_set()
    obey(lifecycle, (Order.STOP, "SIGINT"))
    assert lifecycle.hurried.is_set()


def test_a_hangup_stops_and_comes_twice_where_a_terminal_is_closed() -> None:
    lifecycle = Lifecycle()
    obey(lifecycle, (Order.STOP, "SIGHUP"), (Order.STOP, "SIGHUP"))
    assert (lifecycle.stage, lifecycle.reason, lifecycle.hurried.is_set()) == (Stage.TERMINATE, "signal", False)
    obey(lifecycle, (Order.STOP, "SIGTERM"))
    assert lifecycle.hurried.is_set()


@pytest.mark.parametrize("before, is_obeyed", [(signal.SIG_DFL, True), (signal.SIG_IGN, False)])
def test_a_hangup_is_ignored_where_the_process_was_told_to(before: signal.Handlers, is_obeyed: bool) -> None:
    """As `nohup` does it."""
    kept = signal.signal(signal.SIGHUP, before)
    try:
        assert (signal.SIGHUP in obeyed()) is is_obeyed
        assert (signal.SIGHUP in obeyed(Order.STOP)) is is_obeyed
        assert signal.SIGHUP not in obeyed(Order.QUIET)
        lifecycle = Lifecycle()
        with signals(lifecycle):
            signal.raise_signal(signal.SIGHUP)
            assert lifecycle.follow(timeout=1 if is_obeyed else 0) is (Stage.TERMINATE if is_obeyed else Stage.RUNNING)
        assert signal.getsignal(signal.SIGHUP) is before
    finally:
        signal.signal(signal.SIGHUP, kept)


def test_a_signal_that_a_wrapper_passes_on_to_a_group_that_got_it_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `timeout` does. Python's handler is called here: the kernel makes one of two signals at times."""
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])

    def given(block: Any, orders: Any) -> list[Any]:
        with block:
            for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGTSTP, signal.SIGTSTP):
                signal.getsignal(number)(number, None)  # type: ignore[operator, misc]
            clock[0] += module.ECHO
            signal.getsignal(signal.SIGTERM)(signal.SIGTERM, None)  # type: ignore[operator, misc]
        return list(orders)

    once = [(Order.STOP, "SIGTERM"), (Order.STOP, "SIGINT"), *[(Order.QUIET, "SIGTSTP")] * 2, (Order.STOP, "SIGTERM")]
    worker: Any = SimpleNamespace(orders=[])
    worker.give = lambda *order: worker.orders.append(order)
    assert given(signals(worker), worker.orders) == once
    supervisor: Any = SimpleNamespace(_orders=[], _noted={})
    assert given(Supervisor._signals_noted(supervisor), supervisor._orders) == once


def test_what_is_an_echo_is_decided_when_a_signal_arrives_not_when_a_busy_loop_hears_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])

    async def busy() -> None:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
        clock[0] += module.ECHO
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0)

    names: list[str] = []
    before, runner = signal.getsignal(signal.SIGTERM), asyncio.Runner()
    with ojs_grpc._signals_heard(runner.get_loop(), names.append):
        with runner:
            runner.run(busy())
        assert names == ["SIGTERM", "SIGINT", "SIGTERM"]
        signal.raise_signal(signal.SIGINT)  # the server has stopped
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    "source,running,line",
    [
        ("SIGINT", 1, "Stopping (SIGINT): 1 job is running. Press Ctrl-C again to stop at once."),
        ("SIGTERM", 1200, "Stopping (SIGTERM): 1,200 jobs are running. A second signal stops it at once."),
        ("the operator", 2, "Stopping (the operator): 2 jobs are running."),
        ("SIGINT", 0, "Stopping (SIGINT)."),
    ],
)
def test_a_stop_says_what_it_waits_for_and_more_signals_are_told_once(
    source: str, running: int, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    lifecycle = Lifecycle(running=lambda: running)
    with caplog.at_level(logging.INFO, "django_ojs"):
        obey(lifecycle, (Order.STOP, source))
        assert caplog.messages == [line]
        obey(lifecycle, *[(Order.STOP, "SIGTERM")] * 4)
    assert caplog.messages == [line, "Stopping at once (SIGTERM)."]


def test_what_a_signal_does_under_a_supervisor_is_for_the_supervisor_to_log(caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[int, str, str]] = []
    lifecycle = Lifecycle(running=lambda: 1, log_signal=lambda *said: told.append(said))
    with caplog.at_level(logging.INFO, "django_ojs"):
        obey(lifecycle, (Order.QUIET, "SIGTSTP"), (Order.STOP, "SIGTERM"), (Order.STOP, "SIGTERM"))
    assert told == [
        (logging.INFO, "SIGTSTP", "Quiet: no new jobs (SIGTSTP)."),
        (logging.INFO, "SIGTERM", "Stopping (SIGTERM): 1 job is running. A second signal stops it at once."),
        (logging.WARNING, "SIGTERM", "Stopping at once (SIGTERM)."),
    ]
    assert caplog.messages == []


@pytest.mark.parametrize(
    "order,source,reason",
    [
        (Order.STOP, "SIGTERM", "signal"), (Order.STOP, "the operator", "shutdown"),
        (Order.CRASH, "the writer crashed", "error"),
    ],
)  # fmt: skip
def test_the_reason_is_one_of_the_three_words_of_the_event(order: Order, source: str, reason: str) -> None:
    lifecycle = Lifecycle()
    obey(lifecycle, (order, source))
    assert lifecycle.reason == reason


def test_a_crash_while_draining_is_not_forgotten() -> None:
    lifecycle = Lifecycle()
    obey(lifecycle, (Order.STOP, "SIGTERM"), (Order.CRASH, "the heart crashed"))
    assert lifecycle.reason == "error"


def hear(lifecycle: Lifecycle, *answers: str) -> Stage:
    for answer in answers:
        lifecycle.hear(answer)
        lifecycle.follow(timeout=0)
    return lifecycle.stage


def test_directives_are_obeyed() -> None:
    lifecycle = Lifecycle()
    assert hear(lifecycle, "running", "quiet", "quiet") is Stage.QUIET
    assert hear(lifecycle, "running") is Stage.RUNNING
    assert hear(lifecycle, "terminate", "terminate", "running") is Stage.TERMINATE
    assert not lifecycle.hurried.is_set()


@pytest.mark.parametrize("before", [(), ("quiet",)])
def test_a_restart_ends_the_process_and_asks_for_another(before: tuple[str, ...]) -> None:
    lifecycle = Lifecycle()
    assert hear(lifecycle, *before, "restart", "restart") is Stage.TERMINATE
    assert (lifecycle.replace, lifecycle.hurried.is_set(), lifecycle.reason) == (True, False, "shutdown")


def test_a_worker_that_terminates_is_not_restarted() -> None:
    lifecycle = Lifecycle()
    assert hear(lifecycle, "terminate", "restart") is Stage.TERMINATE
    assert not lifecycle.replace


def test_an_older_running_directive_does_not_undo_a_sigtstp() -> None:
    lifecycle = Lifecycle()
    hear(lifecycle, "quiet", "running")
    obey(lifecycle, (Order.QUIET, "SIGTSTP"))
    assert hear(lifecycle, "running", "running") is Stage.QUIET


def test_an_operator_may_resume_a_worker_that_went_quiet_by_itself() -> None:
    lifecycle = Lifecycle()
    obey(lifecycle, (Order.QUIET, "SIGTSTP"))
    assert hear(lifecycle, "quiet", "running") is Stage.RUNNING


def test_signals_are_orders_and_are_given_back_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    lifecycle = Lifecycle()
    with signals(lifecycle):
        signal.raise_signal(signal.SIGTSTP)
        assert lifecycle.follow(timeout=1) is Stage.QUIET
        signal.raise_signal(signal.SIGCONT)
        assert lifecycle.follow(timeout=1) is Stage.RUNNING
        signal.raise_signal(signal.SIGTERM)
        assert lifecycle.follow(timeout=1) is Stage.TERMINATE
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_worker_in_a_thread_leaves_the_signals_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    found = []

    def look() -> None:
        with signals(Lifecycle()):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [before]


def test_a_signal_that_does_not_wake_the_main_thread_is_obeyed_all_the_same() -> None:
    """Another thread takes it here. One that comes just before the main thread begins to wait wakes it as little."""
    lifecycle = Lifecycle()
    with signals(lifecycle):
        taker = threading.Timer(0.2, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM))
        taker.start()
        assert lifecycle.follow() is Stage.TERMINATE
        taker.join()
    assert lifecycle.reason == "signal"


def test_it_waits_no_longer_than_it_is_told() -> None:
    lifecycle = Lifecycle()
    assert lifecycle.follow(timeout=0) is Stage.RUNNING
    assert lifecycle.follow(timeout=0.01) is Stage.RUNNING
    lifecycle.give(Order.STOP, "the operator")
    assert lifecycle.follow(timeout=0) is Stage.TERMINATE
