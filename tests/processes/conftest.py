from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.conf import settings

from django_ojs.client.definition import enqueue_many
from django_ojs.models import Job

TIMEOUT = 90.0


def enqueue(job_type: str, count: int, **options: Any) -> None:
    """`count` jobs with the arguments 0, 1, 2, ..."""
    for first in range(0, count, 1000):
        enqueue_many([(job_type, [number], options) for number in range(first, min(first + 1000, count))])


def settled() -> bool:
    """Whether every job has ended."""
    return not Job.objects.live().exists()


class Site:
    """The processes of one test, and what their handlers wrote down."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self._environment = environment | {
            "DJANGO_SETTINGS_MODULE": "tests.processes.settings",
            "OJS_TEST_LEDGER": str(folder / "ledger"),
        }
        self._folder = folder
        self.processes: list[subprocess.Popen[str]] = []
        (folder / "ledger").touch()

    def start(self, *arguments: str, **ojs: Any) -> subprocess.Popen[str]:
        """`manage.py` or, behind `-m`, a module; `ojs` are settings of its own."""
        program = arguments if arguments[0] == "-m" else (str(settings.BASE_DIR / "manage.py"), *arguments)
        number = len(self.processes)
        with (self._folder / f"log-{number}").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, *program], env=self._environment | {"OJS_TEST_OJS": json.dumps(ojs)},
                cwd=settings.BASE_DIR, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def worker(self, name: str, *arguments: str, **ojs: Any) -> subprocess.Popen[str]:
        """A worker that has said that it started."""
        process = self.start("ojs_worker", "--name", name, *arguments, **ojs)
        assert process.stdout is not None
        assert process.stdout.readline(), self.logs()
        return process

    def stop(self, *processes: subprocess.Popen[str]) -> None:
        """SIGTERM, and wait for a good end."""
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.communicate(timeout=TIMEOUT)
            assert process.returncode == 0, self.logs()

    def kill(self, process: subprocess.Popen[str]) -> None:
        """kill -9 of a worker with its supervisor, as when the machine goes away: nobody hands anything back."""
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for member in family:
            member.suspend()  # so that none of them notices the end of another
        for member in family:
            member.kill()
        process.wait()
        psutil.wait_procs(family, timeout=TIMEOUT)

    def let_go(self) -> None:
        (self._folder / "go").touch()

    def runs(self, word: str) -> Counter[int]:
        """How often the handlers noted `word`, for each number."""
        lines = [line.split() for line in (self._folder / "ledger").read_text().splitlines()]
        return Counter(int(number) for noted, number, _ in lines if noted == word)

    def logs(self) -> str:
        return "\n".join(path.read_text()[-4000:] for path in sorted(self._folder.glob("log-*")))

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


@pytest.fixture
def site(child_environment: dict[str, str], tmp_path: Path) -> Iterator[Site]:
    site = Site(child_environment, tmp_path)
    try:
        yield site
    finally:
        site.end()
