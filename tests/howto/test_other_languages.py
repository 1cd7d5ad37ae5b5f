"""The workers of docs/how-to/other-languages.md against a live server: what they run, what fails, how they end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.howto.pages import titled
from tests.waiting import eventually

#: The server has a database of its own, so it is the same with each.
pytestmark = [pytest.mark.wide, pytest.mark.sqlite]

LIMIT = 180.0
NODE = shutil.which("node")
WORKERS = [
    pytest.param("worker.py", sys.executable, id="python"),
    pytest.param("worker.mjs", NODE, id="javascript", marks=pytest.mark.skipif(NODE is None, reason="needs node")),
]

#: A handler that runs until it is let go; and what makes of each a worker that beats more often and has that one.
HELD_PY = """def count_words(text):
    open("runs", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.05)"""
HELD_JS = """import { existsSync, writeFileSync } from "node:fs";
const until = async (file) => { while (!existsSync(file)) await sleep(50); };"""
LONG = {
    "worker.py": [
        (".wait(5)", ".wait(0.2)"),
        ("def count_words(text):", HELD_PY),
        ("lambda *_: stopping.set()", "lambda *_: (stopping.set(), open('told', 'w').close())"),
    ],
    "worker.mjs": [
        ("setInterval(beat, 5000)", "setInterval(beat, 200)"),
        ("let quiet", f"{HELD_JS}\nlet quiet"),
        ('"text.count": (text) => (', '"text.count": async (text) => (writeFileSync("runs", ""), await until("go"), '),
        ("() => (stopping = true)", '() => (writeFileSync("told", ""), (stopping = true))'),
    ],
}


@pytest.fixture
def server() -> Iterator[str]:
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    with subprocess.Popen(
        [sys.executable, "manage.py", "ojs_testserver", "--port", "0"],
        cwd=Path(__file__).parents[2], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            ready = process.stdout.readline().split()
            assert ready[:1] == ["ready"], ready
            yield ready[1]
        finally:
            process.terminate()


def call(url: str, body: Any = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "application/json"})) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


@contextmanager
def running(command: list[str], folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A worker, which the block tells to stop. Its log is printed where something goes wrong."""
    with (folder / "log").open("w") as log:
        worker = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        yield worker
        assert worker.wait(LIMIT) == 0
    except BaseException:
        print((folder / "log").read_text())
        raise
    finally:
        worker.kill()
        worker.wait()


@pytest.mark.parametrize("name, interpreter", WORKERS)
def test_a_worker_of_a_hundred_lines(server: str, tmp_path: Path, name: str, interpreter: str) -> None:
    api = f"{server.rstrip('/')}/ojs/v1"

    def push(**job: Any) -> str:
        pushed = call(f"{api}/jobs", {"queue": "words", **job})
        return str(pushed.get("job", pushed)["id"])

    def ended(job_id: str) -> dict[str, Any] | None:
        found = call(f"{api}/jobs/{job_id}")
        job: dict[str, Any] = found.get("job", found)
        return job if job["state"] in ("completed", "discarded") else None

    counted = push(type="text.count", args=["to be or not to be"])
    failing = push(type="text.count", args=[17], retry={"max_attempts": 2, "initial_interval": "PT0.1S"})
    unknown = push(type="text.translate", args=[])

    (tmp_path / name).write_text(titled("how-to/other-languages", name))
    environment = {**os.environ, "OJS_URL": server}
    with running([interpreter, name], tmp_path, environment) as worker:
        jobs = [eventually(lambda job=job: ended(job), f"{job} ends") for job in (counted, failing, unknown)]
        assert worker.poll() is None
        worker.terminate()

    assert (jobs[0]["state"], jobs[0]["result"]) == ("completed", {"words": 6})
    assert (jobs[1]["state"], jobs[1]["attempt"]) == ("discarded", 2)
    assert jobs[1]["errors"][-1]["type"] in ("AttributeError", "TypeError")
    assert jobs[1]["errors"][-1]["backtrace"]
    assert (jobs[2]["state"], jobs[2]["attempt"]) == ("discarded", 1)
    assert "no handler for text.translate" in jobs[2]["errors"][-1]["message"]


def drain(command: list[str], folder: Path, environment: dict[str, str], beat_at: Callable[[], str]) -> None:
    """Start a worker whose program is one of `LONG`, and tell it to stop while its job runs, which ends after that."""
    with running(command, folder, environment) as worker:
        eventually((folder / "runs").exists, "the job runs")
        worker.terminate()
        eventually((folder / "told").exists, "the worker has been told to stop")
        for _ in range(2):  # the first may have been on its way
            last = beat_at()
            eventually(lambda last=last: beat_at() > last, "it sends heartbeats while the job runs")
        (folder / "go").touch()


@pytest.mark.parametrize("name, interpreter", WORKERS)
def test_a_worker_that_stops_keeps_the_job_that_it_still_runs(
    server: str, tmp_path: Path, name: str, interpreter: str
) -> None:
    api = f"{server.rstrip('/')}/ojs/v1"

    def beat_at() -> str:
        found: str = call(f"{api}/admin/workers")["items"][0]["last_heartbeat_at"]
        return found

    program = titled("how-to/other-languages", name)
    for before, after in LONG[name]:
        assert before in program
        program = program.replace(before, after)
    (tmp_path / name).write_text(program)
    pushed = call(f"{api}/jobs", {"queue": "words", "type": "text.count", "args": ["to be or not to be"]})["job"]["id"]
    environment = {**os.environ, "OJS_URL": server}
    drain([interpreter, name], tmp_path, environment, beat_at)
    assert call(f"{api}/jobs/{pushed}")["job"]["state"] == "completed"
    assert call(f"{api}/admin/workers")["items"] == []
