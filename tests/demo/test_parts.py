"""The parts of `ojs_demo`: its workload, login and processes."""

from __future__ import annotations

import io
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from django.contrib.auth import get_user_model

from django_ojs import enqueue
from django_ojs.models import Job
from django_ojs.states import State
from example_project import paths
from example_project.demo import load, login, status
from example_project.demo.processes import Child, ChildFailed, stop_all


@pytest.mark.django_db
@pytest.mark.parametrize("errand", load.ERRANDS, ids=lambda errand: errand.act.__name__)
def test_every_errand_enqueues_jobs(errand: load.Errand) -> None:
    errand.act(8000)
    assert Job.objects.exists()


@pytest.mark.django_db
def test_load_does_an_errand_when_it_is_due_and_not_before() -> None:
    done: list[str] = []
    often, rarely = (
        load.Errand(0, lambda port: done.append("often")),
        load.Errand(9, lambda port: done.append("rarely")),
    )
    workload = load.Load(8000, [often, rarely])
    workload.run_once()
    workload.run_once()
    assert done == ["often", "rarely", "often"]


@pytest.mark.django_db
def test_load_waits_while_nobody_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "BACKLOG", 3)
    workload = load.Load(8000, [load.Errand(0, lambda port: enqueue("a.b"))])
    for _ in range(9):
        workload.run_once()
    assert Job.objects.count() == 3


@pytest.mark.django_db
def test_password_is_random_kept_and_private(tmp_path: Path) -> None:
    file = tmp_path / "password"
    password = login.ensure(file)
    user = get_user_model().objects.get(username=login.NAME)
    assert len(password) >= 12
    assert user.check_password(password)
    assert user.is_superuser
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert login.ensure(file) == password


@pytest.mark.django_db
def test_a_password_that_somebody_changed_stays_changed(tmp_path: Path) -> None:
    login.ensure(tmp_path / "password")
    user = get_user_model().objects.get(username=login.NAME)
    user.set_password("another")
    user.save()
    assert login.ensure(tmp_path / "password") == ""
    assert login.ensure(tmp_path / "lost") == ""
    assert get_user_model().objects.get(username=login.NAME).check_password("another")


@pytest.mark.django_db
def test_status_line_rewrites_a_terminal_and_appends_to_a_log() -> None:
    enqueue("a.b")
    terminal, log = io.StringIO(), io.StringIO()
    for stream, live in ((terminal, True), (log, False)):
        line = status.StatusLine(stream, live=live)
        line.update()
        line.update()
        line.say("News.")
    assert terminal.getvalue().count("\n") == 1
    assert terminal.getvalue().endswith("\r\x1b[KNews.\n")
    first, news = log.getvalue().splitlines()
    assert f"0.0/s  {State.AVAILABLE.value} 1  " in first
    assert news == "News."


def _script(folder: Path, text: str) -> str:
    file = folder / "script.py"
    file.write_text(text)
    return str(file)


def _wait_for_end(pid: int) -> None:
    psutil.Process(pid).wait(60)


def test_a_process_that_cannot_start_says_why(tmp_path: Path) -> None:
    child = Child("thing", [_script(tmp_path, "raise SystemExit('No such thing.')")], tmp_path)
    child.start()
    assert child.pid is not None
    while child.is_running:
        time.sleep(0.02)
    with pytest.raises(ChildFailed, match=r"No such thing\."):
        child.revive()
    child.close()


def test_a_process_that_dies_later_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("example_project.demo.processes.HEALTHY_AFTER", 0.0)
    child = Child("thing", [_script(tmp_path, "import time; time.sleep(60)")], tmp_path)
    child.start()
    first = child.pid
    assert first is not None
    assert child.revive() == ""
    os.kill(first, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while not (news := child.revive()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "The thing ended (signal 9); the next try is in " in news
    while child.pid == first and time.monotonic() < deadline:
        assert child.revive() == ""
        time.sleep(0.02)
    assert child.pid != first
    stop_all([child], lambda: False)
    assert not child.is_running


STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def test_a_process_that_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child("thing", [_script(tmp_path, STUBBORN)], tmp_path)
    child.start()
    while "up" not in (tmp_path / "thing.out").read_text():
        time.sleep(0.02)
    monkeypatch.setattr("example_project.demo.processes.GRACE_PERIOD", 0.1)
    stop_all([child], lambda: False)
    assert not child.is_running


PARENT = """
import sys, time
from pathlib import Path
from example_project.demo.processes import Child
child = Child("thing", [sys.argv[1]], Path(sys.argv[2]))
child.start()
print(child.pid, flush=True)
time.sleep(60)
"""


def test_processes_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    script = _script(tmp_path, "import time; time.sleep(60)")
    command = [sys.executable, "-c", PARENT, script, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=paths.BASE_DIR) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    _wait_for_end(pid)
