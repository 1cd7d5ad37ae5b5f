"""The programs of docs/how-to/grpc.md against a live server, made from the `ojs.proto` that is in the package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.howto.pages import titled
from tests.howto.test_other_languages import HELD_PY, drain, running
from tests.waiting import eventually

pytest.importorskip("grpc_tools", reason="needs grpcio-tools, which makes the client's code")
pytestmark = [
    pytest.mark.wide,
    pytest.mark.sqlite,  # the server has a database of its own
]

ROOT = Path(__file__).parents[2]
LIMIT = 60.0
NODE = shutil.which("node")
#: Where `npm install @grpc/grpc-js @grpc/proto-loader` was run, if it was: the tests install nothing.
NODE_MODULES = os.environ.get("OJS_TEST_NODE_MODULES", "")
WORKERS = [
    pytest.param("worker.py", sys.executable, id="python"),
    pytest.param(
        "worker.mjs", NODE, id="javascript",
        marks=pytest.mark.skipif(not (NODE and NODE_MODULES), reason="needs node, and OJS_TEST_NODE_MODULES"),
    ),
]  # fmt: skip


@pytest.fixture
def server() -> Iterator[tuple[str, str]]:
    """The URL of a server, and the address of its gRPC."""
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    with subprocess.Popen(
        [sys.executable, "manage.py", "ojs_testserver", "--port", "0", "--grpc-port", "0"],
        cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            ready = process.stdout.readline().split()
            assert (ready[0], ready[2]) == ("ready", "grpc")
            yield ready[1], ready[3]
        finally:
            process.terminate()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the code that the page has made, and its programs."""
    shutil.copy(ROOT / "django_ojs" / "grpc" / "ojs.proto", tmp_path)
    made = [sys.executable, "-m", "grpc_tools.protoc", "-I", ".", "--python_out", ".", "--grpc_python_out", "."]
    subprocess.run([*made, "ojs.proto"], cwd=tmp_path, check=True)
    for name in ("worker.py", "worker.mjs", "push.py"):
        (tmp_path / name).write_text(titled("how-to/grpc", name))
    if NODE_MODULES:
        (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    return tmp_path


def job(url: str, job_id: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/ojs/v1/jobs/{job_id}") as answer:
        found: dict[str, Any] = json.load(answer)["job"]
        return found


def ended(url: str, job_id: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found = job(url, job_id)
        return found if found["state"] in ("completed", "discarded") else None

    found = eventually(look, job_id)
    assert found is not None
    return found


@pytest.mark.parametrize("name,interpreter", WORKERS)
def test_a_worker_takes_jobs_from_its_stream(
    server: tuple[str, str], folder: Path, name: str, interpreter: str
) -> None:
    url, address = server
    environment = {**os.environ, "OJS_GRPC": address, "PYTHONPATH": ""}

    def push(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "push.py", *arguments],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False,
        )  # fmt: skip

    before = push("to be or not to be", "key-1").stdout.strip()
    with running([interpreter, name], folder, environment) as worker:
        assert ended(url, before)["result"] == {"words": 6}
        after = push("it comes while the worker waits", "key-2").stdout.strip()
        assert ended(url, after)["result"] == {"words": 6}
        assert push("to be or not to be", "key-1").stdout.strip() == before
        other = push("another request", "key-1")
        assert "conflict" in other.stdout
        assert "FAILED_PRECONDITION" in other.stderr
        failed = {"type": "text.unknown", "args": [], "queue": "words", "retry": {"max_attempts": 1}}
        body = urllib.request.Request(
            f"{url}/ojs/v1/jobs", json.dumps(failed).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(body) as answer:
            pushed = json.load(answer)["job"]["id"]
        assert "no handler for text.unknown" in ended(url, pushed)["error"]["message"]
        assert worker.poll() is None
        worker.terminate()


#: What makes of each a worker that beats more often, and whose handler runs until it is let go.
LONG = {
    "worker.py": [
        (".wait(15)", ".wait(0.2)"),
        ("def count_words(text):", HELD_PY),
        ("lambda *_: stopping.set()", "lambda *_: (stopping.set(), open('told', 'w').close())"),
    ],
    "worker.mjs": [
        ("setInterval(beat, 15_000)", "setInterval(beat, 200)"),
        ("let stream", "const until = async (file) => { while (!existsSync(file)) await pause(50); };\nlet stream"),
        (
            'import os from "node:os";',
            'import os from "node:os";\nimport { existsSync, writeFileSync } from "node:fs";',
        ),
        ('"text.count": (text) => (', '"text.count": async (text) => (writeFileSync("runs", ""), await until("go"), '),
        ("function stop() {", 'function stop() {\n  writeFileSync("told", "");'),
    ],
}


@pytest.mark.parametrize("name,interpreter", WORKERS)
def test_a_worker_that_stops_keeps_the_jobs_that_it_still_runs(
    server: tuple[str, str], folder: Path, name: str, interpreter: str
) -> None:
    url, address = server
    program = (folder / name).read_text()
    for before, after in LONG[name]:
        assert before in program
        program = program.replace(before, after)
    (folder / name).write_text(program)
    environment = {**os.environ, "OJS_GRPC": address, "PYTHONPATH": ""}
    push = [sys.executable, "push.py", "to be or not to be", "key-1"]
    pushed = subprocess.check_output(push, cwd=folder, env=environment, text=True, timeout=LIMIT).strip()

    def beat_at() -> str:
        with urllib.request.urlopen(f"{url}/ojs/v1/admin/workers") as answer:
            found: str = json.load(answer)["items"][0]["last_heartbeat_at"]
            return found

    drain([interpreter, name], folder, environment, beat_at)
    assert job(url, pushed)["state"] == "completed"
