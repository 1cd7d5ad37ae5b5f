"""`manage.py ojs_demo`, as a user runs it, on a database of its own."""

from __future__ import annotations

import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from example_project.paths import BASE_DIR

SECONDS = 10


def _start(data: Path, *options: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    environment |= {
        "DJANGO_SETTINGS_MODULE": "example_project.settings",
        "DJANGO_DATA_DIR": str(data),
        "PYTHONUNBUFFERED": "1",
    }
    return subprocess.Popen(
        [sys.executable, "manage.py", "ojs_demo", *options],
        cwd=BASE_DIR, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def _read_until(process: subprocess.Popen[str], pattern: str) -> tuple[str, re.Match[str]]:
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if match := re.search(pattern, line):
            return seen, match
    raise AssertionError(seen)


def _call(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def _complete(url: str, job_id: str) -> Any:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        job = _call(f"{url}/ojs/v1/jobs/{job_id}")["job"]
        if job["state"] == "completed":
            return job
        time.sleep(0.1)
    raise AssertionError(job)


def _states(data: Path) -> dict[str, int]:
    with sqlite3.connect(data / "db.sqlite3") as database:
        found = dict(database.execute("SELECT state, count(*) FROM django_ojs_job GROUP BY state"))
    database.close()
    return found


@pytest.mark.wide
def test_demo_runs_jobs_ends_cleanly_and_carries_on(tmp_path: Path) -> None:
    with _start(tmp_path, "--port", "0", "--seconds", str(SECONDS)) as process:
        output, match = _read_until(process, r"(http://127\.0\.0\.1:\d+)/ojs/manifest")
        url = match[1]
        assert f"{url}/admin/django_ojs/job/overview/" in output
        family = psutil.Process(process.pid).children(recursive=True)
        assert _call(f"{url}/ojs/manifest")["implementation"]["name"] == "django-ojs"
        job = _call(f"{url}/ojs/v1/jobs", {"type": "files.hash", "args": ["json/decoder.py"]})["job"]
        assert _complete(url, job["id"])["result"]["module"] == "json/decoder.py"
        for path in ("/", "/reports/", "/static/admin/css/base.css"):
            with urllib.request.urlopen(url + path, timeout=60) as response:
                assert response.status == 200
        rest, _ = process.communicate(timeout=SECONDS + 30)
    output += rest
    assert process.returncode == 0, output
    assert "Traceback" not in output
    assert output.endswith("Stopped.\n")
    assert re.search(r"/s  available \d+  active 0  .*completed [1-9]", output)
    assert not [member for member in family if member.is_running()]
    said = {file.stem: file.read_text().splitlines() for file in (tmp_path / "log").glob("*.out")}
    assert said["server"] == []
    assert [line.split()[2] for line in said["worker"]] == ["started:", "stopped:"]

    states = _states(tmp_path)
    assert states["completed"] >= 15
    assert states["discarded"] >= 1
    assert states["cancelled"] >= 1
    assert states.get("active", 0) == 0
    assert list((tmp_path / "reports").iterdir())
    assert list((tmp_path / "mail").iterdir())
    assert "password" in output
    assert (tmp_path / "admin-password").read_text().strip() in output

    with _start(tmp_path, "--port", "0", "--seconds", "1", "--no-load") as again:
        output, _ = again.communicate(timeout=90)
    assert again.returncode == 0, output
    assert (tmp_path / "admin-password").read_text().strip() in output
    assert _states(tmp_path)["completed"] >= states["completed"]


def test_demo_says_that_its_port_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with _start(tmp_path, "--port", str(port)) as process:
            output, _ = process.communicate(timeout=90)
    assert process.returncode == 1
    assert f"Port {port} is taken" in output
    assert "Traceback" not in output
