"""Each part of a worker ends, and hangs: the worker is replaced, or the part runs again. It never goes on without."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from asgiref.sync import sync_to_async
from django.test import Client
from django.utils.module_loading import import_string

from django_ojs import job, parts
from django_ojs.events.filters import Filter
from django_ojs.realtime.hub import Hub
from django_ojs.scheduler import service as service_module
from django_ojs.scheduler.service import RESTART, Service
from django_ojs.worker import process, supervisor
from django_ojs.worker.lifecycle import Lifecycle, Pipes, Stage, SupervisorLink
from django_ojs.worker.wakers import Listener
from tests.realtime.conftest import database, enqueue, take
from tests.waiting import eventually
from tests.worker.conftest import WorkerThread

__all__ = ["database"]

Start = Callable[..., WorkerThread]

CRASHING = ["_supervisor", "_claimer", "_writer", "_heartbeat", "_deadlines", "_health_reporter"]
RESTARTED = ["_after_hooks", "_log_writer", "_scheduler._lease", *(f"_scheduler._threads.{n}" for n in range(8))]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "FIRST_RESTART", 0.001)


def part_of(worker: Any, path: str) -> Any:
    found, _, number = path.partition("._threads.")
    part = attrgetter(found)(worker)
    return part._threads[int(number)] if number else part


@pytest.fixture
def pipes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipes]:
    """Those of a supervisor, which holds its ends and says nothing."""
    monkeypatch.setattr(SupervisorLink, "set_alarm", lambda link, seconds: None)  # it would end the tests
    made = Pipes()
    yield made
    made.close()
    eventually(lambda: not any(thread.name == "ojs-supervisor link" for thread in threading.enumerate()))
    made.keep_parents_end()


def build(monkeypatch: pytest.MonkeyPatch, path: str, run: Callable[[Any, Callable[[], None]], None]) -> Any:
    """From now on the part of each new worker runs so; `run` is given the part and what it ran before."""

    def changed(worker: Any, real: Any = process.WorkerProcess._build) -> None:
        real(worker)
        part = part_of(worker, path)
        before = part.run
        part.run = lambda: run(part, before)

    monkeypatch.setattr(process.WorkerProcess, "_build", changed)


@pytest.mark.parametrize("error", [None, SystemExit(3), LookupError("a fault of ours")], ids=repr)
@pytest.mark.parametrize("path", CRASHING)
def test_a_part_that_ends_ends_the_worker(
    path: str, error: BaseException | None, start_worker: Start, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(part: Any, before: Any) -> None:
        if error is not None:
            raise error

    build(monkeypatch, path, run)
    worker = start_worker(pipes=pipes)
    worker.wait()
    pipes.read()
    assert worker.ended_well is False
    assert pipes.goodbye == "failed"
    assert worker.worker.lifecycle.replace
    assert parts._parts == []


@pytest.mark.parametrize("error", [None, SystemExit(3), LookupError("a fault of ours")], ids=repr)
@pytest.mark.parametrize("path", RESTARTED)
def test_a_part_that_ends_runs_again(
    path: str, error: BaseException | None, start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []
    again = threading.Event()

    def run(part: Any, before: Any) -> None:
        rounds.append(len(rounds))
        if len(rounds) > 1:
            again.set()
            before()
        elif error is not None:
            raise error

    @job("any.thing")
    def anything() -> str:
        return "done"

    build(monkeypatch, path, run)
    worker = start_worker()
    assert again.wait(60)
    assert anything.enqueue().wait(timeout=90).result == "done"
    assert parts.stuck() == []
    worker.stop()
    assert worker.ended_well
    assert parts._parts == []


@pytest.mark.parametrize("path", [*CRASHING[:-1], *RESTARTED[:4]])
def test_a_part_that_hangs_lets_another_process_take_over(
    path: str, start_worker: Start, pipes: Pipes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The health reporter is looked after by the supervisor, which waits for its reports."""
    caplog.set_level(logging.INFO, "django_ojs")
    held = threading.Event()

    def run(part: Any, before: Any) -> None:
        part.patience = 0.0
        held.wait()
        part.patience = parts.PATIENCE
        before()

    build(monkeypatch, path, run)
    worker = start_worker(pipes=pipes)
    eventually(lambda: worker.worker.lifecycle.stage is Stage.TERMINATE)
    held.set()
    worker.wait()
    assert worker.worker.lifecycle.replace
    assert " has been at one thing for " in caplog.text  # it says so when the stage is another already


#: Parts of other processes, or of some databases only, and where each is ended: the test below, or one of its own.
OTHERS: dict[str, Callable[[], Service]] = {
    "worker.wakers.Listener": lambda: Listener("default", lambda: None),
    "grpc.claims._Claimer": lambda: _streams()._claimer,
    "grpc.claims._Asker": lambda: _streams()._asker,
    "worker.supervisor.Reloader": lambda: supervisor.Reloader(Lifecycle()),
}


def _streams() -> Any:
    pytest.importorskip("grpc")
    from django_ojs.grpc.claims import JobStreams

    return JobStreams("default")


def kinds(of: type[Service] = Service) -> Iterator[type[Service]]:
    for kind in of.__subclasses__():
        if kind.__module__.startswith("django_ojs."):
            yield kind
            yield from kinds(kind)


@pytest.mark.parametrize("kind", OTHERS)
def test_a_part_of_another_process_that_ends_runs_again(kind: str) -> None:
    part, rounds, again = OTHERS[kind](), list[int](), threading.Event()

    def run() -> None:
        rounds.append(len(rounds))
        if len(rounds) == 1:
            raise SystemExit(3)
        again.set()
        part.stopping.wait()

    part.run = run  # type: ignore[method-assign]
    part._restarts.first = 0.001
    part.start()
    assert again.wait(60)
    assert (part in parts._parts, parts.stuck()) == (True, [])
    assert part.stop(60)


def test_no_kind_of_part_is_left_out(start_worker: Start, pipes: Pipes) -> None:
    """Whoever writes a new one says here how it is ended and hung."""
    worker = start_worker(pipes=pipes)
    eventually(worker.worker._heartbeat.known.is_set)
    tried = {type(part_of(worker.worker, path)) for path in (*CRASHING, *RESTARTED)}
    worker.stop()
    left = {f"{kind.__module__}.{kind.__name__}".removeprefix("django_ojs.") for kind in {*kinds()} - tried}
    assert left <= OTHERS.keys()


def test_these_are_all_parts(start_worker: Start) -> None:
    @job("any.thing")
    def anything() -> None: ...

    worker = start_worker()
    eventually(worker.worker._heartbeat.known.is_set)
    listed = {part_of(worker.worker, path).name for path in (*CRASHING[1:], *RESTARTED)}  # it has no supervisor
    eventually(lambda: {part.name for part in parts._parts} >= listed)
    assert {part.name for part in parts._parts} - listed <= {"listener"}
    for part in parts._parts:
        assert isinstance(part, Service)
        assert part._owner == RESTART or part._owner == worker.worker.lifecycle.crashed
    worker.stop()


def test_a_lasting_task_that_ends_runs_again_until_it_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "FIRST_RESTART", 0.001)
    ends = iter([None, LookupError("a fault of ours"), None])

    async def main() -> None:
        again = asyncio.Event()

        async def run() -> None:
            if (error := next(ends, again)) is again:
                again.set()
                await asyncio.Event().wait()
            if isinstance(error, LookupError):
                raise error

        task = parts.LastingTask("task of a test", run)
        task.start()
        await asyncio.wait_for(again.wait(), 60)
        assert task in parts._parts
        assert (parts.stuck(), task.failing() > 0.0) == ([], True)
        task.patience = 0.0
        assert parts.stuck()[0].startswith("the task of a test has been at one thing for ")
        task.tick()
        await task.stop()
        assert (task.is_running(), parts._parts) == (False, [])
        left = parts.LastingTask("task that the loop ends", asyncio.Event().wait)  # type: ignore[arg-type]
        left.start()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert parts._parts == []


# The lasting tasks of servers


@contextlib.asynccontextmanager
async def _hub() -> AsyncIterator[Task]:
    hub = Hub.current()

    async def works() -> None:
        (job_id,) = await enqueue("a.one")
        (item,) = await take(stream, 1)
        assert item.envelope is not None
        assert item.envelope["data"]["job_id"] == job_id

    async with hub.subscribe(Filter()) as stream:
        assert hub._tail is not None
        yield Task(hub._tail, works, hub._reader, "tail")


@contextlib.asynccontextmanager
async def _grpc_health() -> AsyncIterator[Task]:
    from grpc_health.v1 import health_pb2

    from django_ojs.grpc.server import SERVING, Server

    server = Server("127.0.0.1:0")
    await server.start()
    looked, look = asyncio.Event(), server._look

    async def watched() -> None:
        await look()
        looked.set()

    async def works() -> None:
        await server._set_health(False)
        looked.clear()
        await asyncio.wait_for(looked.wait(), 60)
        answer = await server._health.Check(health_pb2.HealthCheckRequest(service=""), None)
        assert answer.status == SERVING

    server._look = watched  # type: ignore[method-assign]
    try:
        yield Task(server._watch, works, server, "_store_answers")
    finally:
        await server.stop(0)


class Task(NamedTuple):
    """A task that runs: the part, what shows that it works, and the method that it waits for in each of its rounds."""

    part: parts.LastingTask
    works: Callable[[], Awaitable[None]]
    waits_for: Any
    method: str


TASKS: dict[str, tuple[str, str, Callable[[], Any]]] = {
    "event hub": ("django_ojs.realtime.hub.Hub", "_run", _hub),
    "health task of gRPC": ("django_ojs.grpc.server.Server", "_watch_store", _grpc_health),
}


@pytest.fixture(params=TASKS)
def lasting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, str, Callable[[], Any]]:
    """The class of a task, the name of the method that it is, and how to run it."""
    place, body, run = TASKS[request.param]
    if request.param == "health task of gRPC":
        pytest.importorskip("grpc")
        monkeypatch.setattr("django_ojs.grpc.server.LOOK_EVERY", 0.001)
    return import_string(place), body, run


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("error", [None, LookupError("a fault of ours")], ids=repr)
async def test_a_task_of_a_server_that_ends_runs_again(
    lasting: Any, error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, body, run = lasting
    monkeypatch.setattr(parts, "FIRST_RESTART", 0.001)
    again, before, rounds = asyncio.Event(), getattr(owner, body), list[int]()

    async def ends_first(self: Any) -> None:
        rounds.append(len(rounds))
        if len(rounds) > 1:
            again.set()
            await before(self)
        if error is not None:
            raise error

    monkeypatch.setattr(owner, body, ends_first)
    async with run() as task:
        await asyncio.wait_for(again.wait(), 60)
        await task.works()
        assert task.part in parts._parts
        assert parts.stuck() == []
    assert task.part not in parts._parts


@pytest.mark.usefixtures("database")
async def test_a_task_of_a_server_that_hangs_is_told(
    lasting: Any, monkeypatch: pytest.MonkeyPatch, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """To whoever asks whether the server is ready; `ojs_grpc` ends, so that another process takes over."""
    settings.ROOT_URLCONF = "tests.http.urls_probed"
    _, _, run = lasting
    async with run() as task:
        reached, go_on, before = asyncio.Event(), asyncio.Event(), getattr(task.waits_for, task.method)

        async def hangs(*args: Any, **kwargs: Any) -> Any:
            reached.set()
            await go_on.wait()
            return await before(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(task.waits_for, task.method, hangs)
            await asyncio.wait_for(reached.wait(), 60)
            task.part.patience = 0.0
            (told,) = parts.stuck()
            assert told.startswith(f"the {task.part.name} has been at one thing for ")
            answer = await sync_to_async(Client().get)("/readyz")
            assert answer.status_code == 503
            assert f"the {task.part.name} has been at one thing for " in caplog.text
        task.part.patience = parts.PATIENCE
        go_on.set()
        await task.works()
        assert parts.stuck() == []


class Inner:
    """A process that `--reload` starts, and that has ended."""

    def __init__(self, code: int) -> None:
        self.code, self.signals = code, list[int]()

    def poll(self) -> int:
        return self.code

    def send_signal(self, number: int) -> None:
        self.signals.append(number)


@pytest.fixture
def outer(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What happens when `--reload` starts a process, one after the other: an error, or a process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    starts: list[Any] = []

    def start(*args: Any, **kwargs: Any) -> Any:
        found = starts.pop(0)
        found = found() if callable(found) else found
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(supervisor.subprocess, "Popen", start)
    monkeypatch.setattr(supervisor.autoreload, "get_child_arguments", list)
    monkeypatch.setattr(supervisor, "_times", dict)
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.001)
    yield starts
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_process_that_cannot_be_started_or_ends_at_once_is_started_again_after_pauses(
    outer: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    changed = Inner(supervisor.CHANGED)
    outer += [BlockingIOError("no more processes"), OSError("no memory"), changed, changed, Inner(0)]
    assert supervisor.restart_on_change() == 0
    assert outer == []
    assert "Starting the worker failed; the next try is in " in caplog.text
    assert "Starting the worker brought a process that ended at once; the next try is in " in caplog.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_process_is_started_ends_both(outer: list[Any], number: signal.Signals) -> None:
    """Also where it does not begin. It may have missed what the terminal gives to both, and is not to ignore it."""
    inner = Inner(7)

    def interrupted(then: Any) -> Any:
        assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
        os.kill(os.getpid(), number)
        return then

    outer.append(lambda: interrupted(inner))
    assert supervisor.restart_on_change() == 7
    assert inner.signals == [number]
    outer.append(lambda: interrupted(OSError("no memory")))
    assert supervisor.restart_on_change() == 0


def test_the_thread_that_reloads_is_a_part_and_keeps_what_it_has_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, lifecycle = tmp_path / "jobs.py", Lifecycle()
    source.write_text("")
    files: Iterator[Any] = iter([LookupError("a module without a file")])

    def found() -> list[Path]:
        if (error := next(files, None)) is not None:
            raise error
        return [source]

    monkeypatch.setattr(supervisor, "LOOK", 0.001)
    monkeypatch.setattr(supervisor.autoreload, "iter_all_python_module_files", found)
    watch = supervisor.Reloader(lifecycle)
    watch.start()
    assert watch in parts._parts
    eventually(lambda: source in watch._seen)
    os.utime(source, (1, 1))
    assert lifecycle.follow() is Stage.TERMINATE
    assert watch.changed
    assert watch.stop(60)
    assert parts._parts == []


@pytest.mark.django_db(transaction=True)
def test_a_scheduler_touches_its_health_file_while_it_is_healthy_and_ends_where_a_part_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.core.management import call_command

    from django_ojs.management.commands import ojs_scheduler

    path, held, seen = tmp_path / "healthy", threading.Event(), list[bool]()
    built: list[Any] = []

    class Hanging(ojs_scheduler.Scheduler):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            built.append(self)
            self._threads[0].run = self._hang  # type: ignore[method-assign]

        def _hang(self) -> None:
            eventually(path.exists)
            seen.append(True)
            self._threads[0].patience = 0.0
            held.wait(60)

        def stop(self, timeout: float | None = None) -> bool:
            held.set()
            return super().stop(timeout)

    monkeypatch.setattr(ojs_scheduler, "Scheduler", Hanging)
    with pytest.raises(SystemExit, match="1"):
        call_command("ojs_scheduler", health_file=path, verbosity=0)
    assert seen == [True]
    assert not path.exists()
    assert built[0].stop(60)
