"""A thread that ends though nobody asked for it: its owner is told first, or it runs again; and one that hangs is told
of."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import DataError, InternalError, ProgrammingError
from django.urls import reverse

from django_ojs import parts
from django_ojs.scheduler import service as service_module
from django_ojs.scheduler.scheduler import ROLE, Leadership, Scheduler
from django_ojs.scheduler.service import RESTART, DutyThread, Service
from django_ojs.worker.writer import AfterHooks
from tests.scheduler.test_scheduler import Duty
from tests.waiting import eventually

ENDS = [
    InternalError("read-only"), ProgrammingError("no such table"), DataError("bad"), RuntimeError("odd"), MemoryError(),
    SystemExit(3), KeyboardInterrupt(), GeneratorExit(), None,
]  # fmt: skip


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(service_module, "FIRST_RESTART", 0.001)
    before = list(parts._parts)
    yield
    assert parts._parts == before, "whoever is asked to end is no part any more"


@pytest.fixture(params=ENDS, ids=lambda end: type(end).__name__)
def end(request: Any) -> BaseException | None:
    error: BaseException | None = request.param
    return error


class Ends(Service):
    """Ends once with an error, or without one, and then runs."""

    name = "ending"

    def __init__(self, owner: Any, error: BaseException | None) -> None:
        super().__init__(owner)
        self.error, self.rounds, self.again = error, 0, threading.Event()

    def run(self) -> None:
        self.rounds += 1
        if self.rounds == 1:
            if self.error is not None:
                raise self.error
            return
        self.again.set()
        self.stopping.wait()


def test_the_owner_is_told_first_of_any_end(end: BaseException | None, caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[str, int]] = []
    service = Ends(lambda name: told.append((name, len(caplog.records))), end)
    service.start()
    eventually(lambda: not service.is_running())
    assert told == [("ending", 0)]
    assert parts.stuck() == ["the ending has ended"]
    assert "The ending thread died." in caplog.text
    assert service.stop(10)
    assert parts.stuck() == []


def test_a_part_whose_owner_wants_that_runs_again(end: BaseException | None, caplog: pytest.LogCaptureFixture) -> None:
    service = Ends(RESTART, end)
    service.start()
    assert service.again.wait(60)
    assert "The ending thread died; the next try is in " in caplog.text
    assert parts.stuck() == []
    assert service.stop(60)
    assert service.rounds == 2


@pytest.mark.django_db(transaction=True)
def test_the_lease_outlives_any_fault(end: BaseException | None, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Leadership(ROLE, "me", "default")
    real, faults = lease._renew, iter([end or RuntimeError()])

    def renew() -> bool:
        for fault in faults:
            raise fault
        return real()

    monkeypatch.setattr(lease, "_renew", renew)
    lease.start()
    eventually(lambda: lease.leads)
    assert lease.stop(60)


def test_a_duty_outlives_any_fault_and_so_do_its_neighbours(end: BaseException | None) -> None:
    broken, sound = Duty("broken", end or RuntimeError()), Duty("sound")  # type: ignore[arg-type]
    thread = DutyThread("test", [broken, sound], "default")
    thread._faults["broken"].first = 0.001
    thread.start()
    eventually(lambda: broken.calls >= 2 and sound.calls >= 2)
    assert thread.stop(60)


def test_a_duty_with_a_fault_of_months(caplog: pytest.LogCaptureFixture) -> None:
    duty = Duty("duty", *[LookupError("a fault of ours") for _ in range(3000)])
    thread = DutyThread("test", [duty], "default")
    for _ in range(3000):
        thread._due["duty"] = 0.0
        thread.run_once()
    assert duty.calls == 3000
    assert caplog.text.count("Traceback") == 1


class Definition:
    def __init__(self, after: Callable[..., Any]) -> None:
        self.after, self.context = after, None
        self.definition = self


def test_what_follows_on_jobs_outlives_any_hook(end: BaseException | None) -> None:
    called = threading.Event()

    def bad(contexts: Any) -> None:
        if end is not None:
            raise end

    hooks = AfterHooks()
    hooks.start()
    hooks.put([Definition(bad)])  # type: ignore[list-item]
    hooks.put([Definition(lambda contexts: called.set())])  # type: ignore[list-item]
    assert called.wait(60)
    assert hooks.stop(60)


@pytest.mark.django_db(transaction=True)
def test_a_scheduler_that_cannot_start_all_its_threads_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler("me")
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "ojs-housekeeping":
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start"):
        scheduler.start()
    eventually(lambda: not any(thread._thread.is_alive() for thread in (*scheduler._threads, scheduler._lease)))
    assert not scheduler.leads


def test_a_part_that_hangs_is_told_of_and_one_that_waits_for_work_is_not() -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    class Hangs(Service):
        name = "hanging"
        patience = 0.0

        def run(self) -> None:
            with self.resting():
                goes_on.wait()
            hangs.set()
            held.wait()

    held = threading.Event()
    service = Hangs(RESTART)
    service.start()
    try:
        eventually(lambda: service._rests)
        assert parts.stuck() == []
        goes_on.set()
        assert hangs.wait(60)
        (told,) = eventually(parts.stuck)
        assert told.startswith("the hanging has been at one thing for ")
    finally:
        service.stopping.set()
        held.set()
        assert service.stop(60)


def test_what_another_thread_asks_is_no_sign_of_life() -> None:
    ready, held = threading.Event(), threading.Event()

    class Hangs(Service):
        patience = 0.0

        def run(self) -> None:
            self.stopping.is_set()
            ready.set()
            held.wait()

    service = Hangs(RESTART)
    service.start()
    assert ready.wait(60)
    seen = service._seen_at
    assert not service.stopping.is_set()
    assert not service.stopping.wait(0)
    assert service._seen_at == seen
    service.stopping.set()
    held.set()
    assert service.stop(60)


def test_an_owner_cannot_be_left_out() -> None:
    with pytest.raises(TypeError, match="owner"):
        Service()  # type: ignore[call-arg]


def test_a_restart_that_fails_for_long_is_no_health(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)

    class Fails(Service):
        name = "failing"

        def run(self) -> None:
            raise LookupError

    service = Fails(RESTART)
    service.start()
    eventually(lambda: service._restarts.failures > 3)
    assert parts.troubles() == []
    service._restarts._since -= 61
    assert parts.troubles()[0].startswith("the failing has failed for ")
    assert parts.stuck() == [], "another process would fail, too"
    assert service.stop(60)


def test_addresses_have_the_prefix_of_the_site(settings: Any) -> None:
    """In a thread of ours as in that of the command, for code of the site's and the links of mails."""
    settings.FORCE_SCRIPT_NAME = "/shop"
    found: list[str] = []

    class Looks(Service):
        name = "looking"

        def run(self) -> None:
            found.append(reverse("ojs:jobs"))
            self.stopping.wait()

    service = Looks(RESTART)
    service.start()
    eventually(lambda: found, "an address is found")
    assert service.stop(20)
    assert found == ["/shop/ojs/v1/jobs"]
