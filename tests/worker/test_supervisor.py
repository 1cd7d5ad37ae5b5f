"""One parent and its processes: what dies is replaced, what it held comes back, what stops stops together."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from django.core.management import call_command

from django_ojs import enqueue, enqueue_many
from django_ojs.models import Event, Job, Worker
from django_ojs.workerregistry.registration import direct
from tests.waiting import eventually
from tests.worker.conftest import WorkerCommand

Start = Callable[..., WorkerCommand]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]


def children(process: WorkerCommand) -> list[psutil.Process]:
    """The worker processes, not those that hand jobs back: the ones that have registered."""
    pids = set(Worker.objects.values_list("pid", flat=True))
    return [child for child in psutil.Process(process.process.pid).children() if child.pid in pids]


def stop(process: WorkerCommand) -> None:
    process.signal(signal.SIGTERM)
    assert process.wait() == 0, process.output


@pytest.mark.wide
def test_each_process_has_an_id_of_its_own_and_there_is_one_line_at_start_and_stop(start_process: Start) -> None:
    enqueue_many([("site.pid", []) for _ in range(40)])
    process = start_process("ojs_worker", "--name", "w", "--processes", "2", "--concurrency", "1")
    eventually(lambda: set(Worker.objects.values_list("pk", flat=True)) == {"w-1", "w-2"})
    eventually(lambda: Job.objects.filter(state="completed").count() == 40)
    stop(process)
    lines = [line for line in process.lines if line.startswith("ojs_worker")]
    assert lines[0].startswith("ojs_worker w started: 2 processes, queues all, concurrency 1,")
    assert lines[1].startswith("ojs_worker w stopped: 40 jobs completed in")
    assert len(lines) == 2
    assert not Worker.objects.exists()


def test_the_jobs_of_a_killed_process_come_back_at_once_and_without_an_error(start_process: Start) -> None:
    handles = [enqueue("site.hold", name) for name in ("one", "two")]
    process = start_process("ojs_worker", "--name", "w", "--queues", "default")
    eventually(lambda: process.trace("one.started") and process.trace("two.started"))
    (victim,) = children(process)
    os.kill(victim.pid, signal.SIGKILL)
    for name in ("one", "two"):
        process.let_go(name)
    for handle in handles:
        handle.wait(timeout=90)
        assert (handle.state, handle.attempt, handle.errors) == ("completed", 2, [])
        assert Job.objects.get(pk=handle.id).losses == 0
    assert process.said("was killed by SIGKILL")
    died = Event.objects.get(type="worker.terminated", worker_id="w").time
    started = Event.objects.filter(type="job.started", attempt=2).latest("time").time
    assert died < started
    stop(process)


@pytest.mark.parametrize("how", [*(pytest.param(how, marks=pytest.mark.wide) for how in ("exit", "abort")), "kill"])
def test_a_job_that_ends_its_process_is_given_up_in_the_end(start_process: Start, how: str) -> None:
    """An exit code of 0 does not pass for a good end. Beside it other jobs are run as ever."""
    poison = enqueue("site.die", "poison", how)
    others = enqueue_many([("site.add", [n, 1]) for n in range(20)])
    process = start_process("ojs_worker", "--name", "w", "--concurrency", "4")
    assert poison.wait(timeout=60, raise_error=False).state == "discarded", process.output
    errors = Job.objects.get(pk=poison.id).errors
    assert len(errors) == 5
    assert {error["code"] for error in errors[:-1]} == {"worker_death"}
    assert errors[-1]["code"] == "visibility_timeout"
    for handle in others:
        assert handle.wait(timeout=90).errors == []
    stop(process)


def test_killing_the_parent_lets_its_processes_drain(start_process: Start) -> None:
    handle = enqueue("site.hold", "slow")
    process = start_process("ojs_worker", "--processes", "2", "--concurrency", "1")
    eventually(lambda: process.trace("slow.started") and Worker.objects.count() == 2)
    orphans = children(process)
    process.signal(signal.SIGKILL)
    eventually(lambda: sum(orphan.is_running() and orphan.status() != "zombie" for orphan in orphans) == 1)
    process.let_go("slow")
    assert handle.wait(timeout=90).result == "slow"
    eventually(lambda: not any(orphan.is_running() and orphan.status() != "zombie" for orphan in orphans))
    assert not Worker.objects.exists()


@pytest.mark.wide
def test_a_killed_parents_processes_hand_back_what_does_not_end_in_time(start_process: Start) -> None:
    handle = enqueue("site.hold", "slow")
    process = start_process(grace=0.2)
    eventually(lambda: process.trace("slow.started"))
    process.signal(signal.SIGKILL)
    eventually(lambda: handle.refresh().state == "available")
    assert (handle.attempt, handle.errors) == (1, [])


@pytest.mark.wide
def test_signals_that_reach_the_whole_group_are_one_order(start_process: Start) -> None:
    """A terminal's Ctrl-C and systemd's SIGTERM reach parent and processes; that is no second signal."""
    handle = enqueue("site.hold", "slow")
    process = start_process("ojs_worker", "--name", "w", grace=600)
    eventually(lambda: process.trace("slow.started"))
    (child,) = children(process)
    for pid in (child.pid, process.process.pid):
        os.kill(pid, signal.SIGINT)
    eventually(lambda: Worker.objects.filter(pk="w", state="terminate").exists())
    assert not process.said("Stopping at once")
    process.let_go("slow")
    assert process.wait() == 0, process.output
    assert handle.refresh().result == "slow"


@pytest.mark.wide
def test_a_terminal_that_is_closed_costs_no_job_its_end(start_process: Start) -> None:
    """SIGHUP reaches the whole group, and mostly twice: from the shell and from the kernel."""
    handle = enqueue("site.hold", "slow")
    process = start_process("ojs_worker", "--name", "w", grace=600)
    eventually(lambda: process.trace("slow.started"))
    process.family |= process.relatives()
    for _ in range(2):
        os.killpg(process.process.pid, signal.SIGHUP)
        eventually(lambda: Worker.objects.filter(pk="w", state="terminate").exists())
    assert process.said("Stopping (SIGHUP): 1 job is running.")
    process.let_go("slow")
    assert process.wait() == 0, process.output
    assert not process.said("Stopping at once")
    assert (handle.refresh().result, handle.attempt) == ("slow", 1)


FIRST_PROCESS = """
import ctypes
import django
django.setup()
from django.core.management import execute_from_command_line
from django_ojs.worker import supervisor
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: it inherits orphans, as process 1 does
supervisor.is_first_process = lambda: True
execute_from_command_line(["manage.py", "ojs_worker"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process stand in for the first one")
def test_the_first_process_of_a_container_leaves_no_zombie_of_what_handlers_left(
    child_environment: dict[str, str], tmp_path: Path
) -> None:
    around = {"DJANGO_SETTINGS_MODULE": "tests.worker.settings", "OJS_TEST_TRACES": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", FIRST_PROCESS], env=child_environment | around)
    try:
        for _ in range(3):
            orphan = enqueue("site.orphan").wait(timeout=90).result
            eventually(lambda pid=orphan: not psutil.pid_exists(pid))
        (victim,) = Worker.objects.values_list("pid", flat=True)
        os.kill(victim, signal.SIGKILL)  # ours are taken note of as ever
        eventually(lambda: Worker.objects.exclude(pid=victim).exists())
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.wide
def test_a_process_that_is_told_to_stop_by_itself_is_replaced(start_process: Start) -> None:
    process = start_process("ojs_worker", "--name", "w")
    first = eventually(lambda: children(process))[0].pid
    eventually(lambda: Worker.objects.filter(pid=first, last_heartbeat_at__isnull=False))
    os.kill(first, signal.SIGTERM)
    eventually(lambda: [child for child in children(process) if child.pid != first])
    assert enqueue("site.add", 1, 2).wait(timeout=90).result == 3
    stop(process)


@pytest.mark.wide
def test_max_jobs_replaces_the_process_and_until_empty_ends_all(start_process: Start) -> None:
    handles = enqueue_many([("site.pid", []) for _ in range(10)])
    process = start_process("ojs_worker", "--max-jobs", "4", "--until-empty", "--concurrency", "2")
    assert process.wait(60) == 0, process.output
    pids = [handle.refresh().result for handle in handles]
    assert sorted(pids.count(pid) for pid in set(pids)) == [2, 4, 4]
    assert process.said("stopped: 10 jobs completed")


@pytest.mark.wide
def test_a_process_that_takes_too_much_memory_is_replaced(start_process: Start) -> None:
    process = start_process("ojs_worker", "--max-memory", "300")
    first = enqueue("site.grow", 400).wait(timeout=90).result
    eventually(lambda: process.said("MB of memory are in use, 300 are allowed"))
    eventually(lambda: [child for child in children(process) if child.pid != first])
    assert enqueue("site.pid").wait(timeout=90).result != first
    stop(process)


@pytest.mark.wide
def test_a_process_that_an_operator_restarts_is_replaced_when_its_job_is_done(start_process: Start) -> None:
    process = start_process("ojs_worker", "--processes", "2", "--name", "site")
    eventually(lambda: len(children(process)) == 2)
    first = {child.pid for child in children(process)}
    eventually(lambda: Worker.objects.filter(pk__in=["site-1", "site-2"]).count() == 2)
    chosen = Worker.objects.get(pk="site-2").pid
    call_command("ojs_workers", "restart", "site-2", stdout=io.StringIO())
    eventually(lambda: Worker.objects.filter(pk="site-2", directive="").exclude(pid=chosen).exists())
    assert {child.pid for child in children(process)} & first == first - {chosen}
    assert enqueue("site.pid").wait(timeout=90).state == "completed"
    stop(process)


@pytest.mark.wide
def test_the_health_file_is_touched_while_all_is_well_and_removed_at_the_end(
    start_process: Start, tmp_path: Path
) -> None:
    path = tmp_path / "healthy"
    process = start_process("ojs_worker", "--health-file", str(path), "--processes", "2")
    eventually(path.exists)
    before = path.stat().st_mtime_ns
    eventually(lambda: path.stat().st_mtime_ns > before)
    victim = eventually(lambda: children(process))[0]
    victim.suspend()
    try:
        eventually(lambda: not is_touched(path))
    finally:
        victim.resume()
    eventually(lambda: is_touched(path))
    stop(process)
    assert not path.exists()


def is_touched(path: Path) -> bool:
    """Whether the file gets younger within three seconds."""
    before = path.stat().st_mtime_ns
    try:
        return bool(eventually(lambda: path.stat().st_mtime_ns > before, timeout=3))
    except AssertionError:
        return False


@pytest.mark.wide
def test_a_terminated_process_is_not_replaced_and_the_last_one_ends_the_parent(start_process: Start) -> None:
    process = start_process("ojs_worker", "--name", "w", "--processes", "2")
    eventually(lambda: Worker.objects.filter(last_heartbeat_at__isnull=False).count() == 2)
    direct("w-1", "terminate")
    eventually(lambda: list(Worker.objects.values_list("pk", flat=True)) == ["w-2"])
    assert enqueue("site.add", 1, 2).wait(timeout=90).result == 3
    assert list(Worker.objects.values_list("pk", flat=True)) == ["w-2"]
    direct("w-2", "terminate")
    assert process.wait() == 0, process.output


@pytest.mark.wide
def test_a_quiet_process_that_is_killed_comes_back_quiet(start_process: Start) -> None:
    process = start_process("ojs_worker", "--name", "w")
    eventually(lambda: Worker.objects.filter(pk="w", last_heartbeat_at__isnull=False).exists())
    direct("w", "quiet")
    eventually(lambda: Worker.objects.filter(pk="w", state="quiet").exists())
    (victim,) = children(process)
    victim.kill()
    eventually(lambda: Worker.objects.filter(pk="w", state="quiet").exclude(pid=victim.pid).exists())
    direct("w", "running")
    assert enqueue("site.add", 1, 2).wait(timeout=90).result == 3
    stop(process)


@pytest.mark.wide
def test_call_command_runs_in_this_process(start_process: Start, tmp_path: Path) -> None:
    """Whoever calls it from code of his own may have threads and open connections."""
    handle = enqueue("site.pid")
    process = start_process(
        "shell", "-c", "import os; from django.core.management import call_command; print('pid', os.getpid());"
        "call_command('ojs_worker', until_empty=True)",
    )  # fmt: skip
    assert process.wait() == 0, process.output
    assert process.said(f"pid {handle.refresh().result}\n")


@pytest.mark.wide
def test_reload_starts_anew_when_the_code_changes_and_after_a_failure(
    start_process: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = tmp_path / "reloaded"
    app.mkdir()
    (app / "__init__.py").touch()

    def write(body: str) -> None:
        (app / "jobs.py").write_text(f"from django_ojs import job\n@job('re.load')\ndef load():\n    {body}\n")

    write("return 1")
    (tmp_path / "reloading_settings.py").write_text(
        "from tests.worker.settings import *\nINSTALLED_APPS = [*INSTALLED_APPS, 'reloaded']\n"
    )
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    process = start_process("ojs_worker", "--reload", "--settings", "reloading_settings", "--pythonpath", str(tmp_path))
    assert enqueue("re.load").wait(timeout=40).result == 1
    for text, result in (("return 2", 2), ("return 3", 3)):
        write("}" if result == 3 else text)
        if result == 3:
            eventually(lambda: process.said("starts again when a file has changed"))
            write(text)
        handle = enqueue("re.load")
        while handle.wait(timeout=40).result != result:  # the old code may have been faster
            handle = enqueue("re.load")
    process.signal(signal.SIGTERM)
    process.wait()
    assert process.said("the code has changed")


@pytest.mark.parametrize("arguments,message", [(["--reload", "--processes", "2"], "--reload runs one process")])
def test_what_cannot_be_had_together_is_told(start_process: Start, arguments: list[str], message: str) -> None:
    process = start_process("ojs_worker", *arguments)
    assert process.wait() == 1
    assert process.said(message)


@pytest.mark.wide
def test_nothing_of_the_parent_is_left_behind(start_process: Start) -> None:
    process = start_process("ojs_worker", "--processes", "3")
    eventually(lambda: len(children(process)) == 3)
    family = psutil.Process(process.process.pid).children(recursive=True)
    stop(process)
    assert not any(member.is_running() for member in family)
