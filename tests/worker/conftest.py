from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.conf import settings
from django.db import connections

from django_ojs.queues import configuration
from django_ojs.registry import Registry, registry
from django_ojs.worker.lifecycle import Pipes
from django_ojs.worker.process import WorkerOptions, WorkerProcess


@pytest.fixture
def handlers() -> Iterator[Registry]:
    """A registry without handlers; what a test adds to it is gone afterwards."""
    with registry.isolated() as isolated:
        yield isolated


@pytest.fixture(autouse=True)
def _forget_queues() -> None:
    configuration.forget()


class WorkerThread:
    """A whole worker inside the test's process; stopped, and waited for, by the fixture."""

    def __init__(self, *, pipes: Pipes | None = None, **options: Any) -> None:
        self.lines: list[str] = []
        self.worker = WorkerProcess(WorkerOptions(**options), self.lines.append, pipes=pipes)
        self.ended_well: bool | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.ended_well = self.worker.run()
        finally:
            connections.close_all()

    def wait(self, timeout: float = 90.0) -> None:
        self.thread.join(timeout)
        assert not self.thread.is_alive(), "The worker did not end."

    def stop(self) -> None:
        self.worker.stop()
        self.wait()


@pytest.fixture
def start_worker(handlers: Registry, transactional_db: None, settings: Any) -> Iterator[Callable[..., WorkerThread]]:
    started: list[WorkerThread] = []

    def start(**options: Any) -> WorkerThread:
        worker = WorkerThread(**options)
        started.append(worker)
        worker.thread.start()
        return worker

    yield start
    # Nobody waits for what a test left running, which may never end.
    settings.OJS = {**getattr(settings, "OJS", {}), "SHUTDOWN_GRACE_PERIOD": 0.5}
    for worker in started:
        worker.stop()


@pytest.fixture
def drain(start_worker: Callable[..., WorkerThread]) -> Callable[..., WorkerThread]:
    """Run every job that can run now; returns the worker when it has ended."""

    def run(**options: Any) -> WorkerThread:
        worker = start_worker(until_empty=True, scheduler=False, **options)
        worker.wait()
        return worker

    return run


class WorkerCommand:
    """`manage.py ojs_worker` with the handlers of tests.worker.app."""

    def __init__(self, environment: dict[str, str], traces: Path, *arguments: str) -> None:
        self.traces = traces
        self.process = subprocess.Popen(
            [sys.executable, str(Path(settings.BASE_DIR) / "manage.py"), *arguments],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1, process_group=0,
        )  # fmt: skip
        self.lines: list[str] = []
        self.family: set[psutil.Process] = set()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def said(self, text: str) -> bool:
        return text in self.output

    def trace(self, name: str) -> bool:
        return (self.traces / name).exists()

    def let_go(self, name: str) -> None:
        (self.traces / f"{name}.go").touch()

    def relatives(self) -> set[psutil.Process]:
        try:
            return set(psutil.Process(self.process.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return set()

    def signal(self, number: signal.Signals) -> None:
        self.family |= self.relatives()  # who may outlive it
        self.process.send_signal(number)

    def press_ctrl_c(self) -> None:
        """What a terminal does: the signal reaches the parent and every process of its group."""
        self.family |= self.relatives()
        os.killpg(self.process.pid, signal.SIGINT)

    def wait(self, timeout: float = 90.0) -> int:
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # Python writes where each thread stands
            self.process.wait(timeout)
            self._reader.join(5.0)
            raise AssertionError(f"It did not end in {timeout:g} s:\n{self.output}") from None
        self._reader.join(5.0)
        return code


@pytest.fixture
def start_process(child_environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., WorkerCommand]]:
    started: list[WorkerCommand] = []

    def start(
        *arguments: str, grace: float = 10.0, heartbeat_timeout: float = 45.0, pool: int | None = None,
        release: str = "", visibility: int = 60, poison_limit: int = 5,
    ) -> WorkerCommand:  # fmt: skip
        environment = child_environment | {
            "DJANGO_SETTINGS_MODULE": "tests.worker.settings",
            "OJS_TEST_TRACES": str(tmp_path),
            "OJS_TEST_GRACE": str(grace),
            "OJS_TEST_HEARTBEAT_TIMEOUT": str(heartbeat_timeout),
            "OJS_TEST_POOL": str(pool or ""),
            "OJS_TEST_RELEASE": release,
            "OJS_TEST_VISIBILITY": str(visibility),
            "OJS_TEST_POISON_LIMIT": str(poison_limit),
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
        }
        environment.pop("PYTEST_XDIST_WORKER", None)
        process = WorkerCommand(environment, tmp_path, *(arguments or ("ojs_worker",)))
        started.append(process)
        return process

    yield start
    for process in started:
        process.family |= process.relatives()
        if process.process.poll() is None:
            os.kill(process.process.pid, signal.SIGKILL)
            process.process.wait()
        for relative in process.family:
            with contextlib.suppress(psutil.NoSuchProcess):
                relative.kill()
        if process.process.stdout is not None:
            process._reader.join(5.0)
            process.process.stdout.close()
