"""What a process says ends nothing, whatever has become of its stdout and stderr."""

from __future__ import annotations

import ast
import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as site
from django.core.management import CommandError, call_command

from django_ojs import enqueue, enqueue_many, output
from django_ojs.models import APIKey, AuditEntry, DurableEvent, Job, Lease, Queue, Worker
from django_ojs.workerregistry.registration import register
from tests.sources import PACKAGE, nodes, trees
from tests.waiting import eventually


class Broken(io.TextIOBase):
    """A stream that takes nothing."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def write(self, text: str) -> int:
        raise self.error

    def flush(self) -> None:
        raise self.error

    def isatty(self) -> bool:
        raise self.error

    def close(self) -> None:
        """What collects it has nothing to flush."""


class TestOneStream:
    @pytest.mark.parametrize("error", [OSError(28, "full"), BrokenPipeError(32, "gone"), ValueError("closed")])
    def test_nothing_that_a_stream_raises_leaves_it_and_its_fault_is_known(self, error: Exception) -> None:
        stream = output.OutputStream(Broken(error))  # type: ignore[arg-type]
        assert output.fault_of(stream) is None
        print("lost", file=stream)
        stream.writelines(["lost", "too"])
        stream.flush()
        assert not stream.isatty()
        assert output.fault_of(stream) is error

    @pytest.mark.parametrize("stream", [None, Broken(OSError(28, "full")), Broken(ValueError("closed"))])
    def test_nor_what_is_said_to_any_stream(self, stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, stream)
        output.say(stream, "lost")
        output.say_error(RuntimeError("lost"))
        output.flush()
        assert not output.is_terminal(stream)
        assert output.fault_of(stream) is None, "it is not ours"

    def test_a_disk_that_has_room_again_gets_the_lines_that_follow(self) -> None:
        inner = io.StringIO()
        stream = output.OutputStream(inner)
        write, inner.write = inner.write, Broken(OSError(28, "full")).write  # type: ignore[method-assign]
        print("lost", file=stream)
        inner.write = write  # type: ignore[method-assign]
        print("heard", file=stream)
        assert inner.getvalue() == "heard\n"

    def test_what_an_encoding_lacks_is_escaped(self) -> None:
        raw = io.BytesIO()
        stream = output.OutputStream(io.TextIOWrapper(raw, "ascii"))
        print("Käse 🧀", file=stream)
        stream.flush()
        assert raw.getvalue() == b"K\\u00e4se \\ud83e\\uddc0\n"
        assert output.fault_of(stream) is None

    def test_a_log_handler_goes_on_when_a_handler_of_a_job_closes_the_stream(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stream = output.OutputStream(io.StringIO())
        monkeypatch.setattr(sys, "stderr", stream)
        logger = logging.getLogger("tests.unheard")
        logger.addHandler(handler := logging.StreamHandler(stream))
        stream.close()
        logger.error("lost")
        logger.error("lost, too")
        logger.removeHandler(handler)
        assert isinstance(output.fault_of(stream), ValueError)


#: What reads or replaces a stream for another reason than to write to it.
ALLOWED = {
    "management/shell.py": "gives Django's wrappers the streams that `secure` has put in place",
    "worker/middleware.py": "gives logging the stream, and asks whether it is a terminal",
    "guard.py": "says through `output` that a line of the log is lost",
}


def test_nothing_else_of_the_package_writes_to_the_streams() -> None:
    names = {"sys.stdout", "sys.stderr", "print", "traceback.print_exc", "traceback.print_exception"}
    last = {name.rpartition(".")[2] for name in names}
    found = set()
    for path in trees():
        for node in nodes(path):
            if getattr(node, "attr", getattr(node, "id", "")) in last and ast.unparse(node) in names:
                found.add(path)
    assert sorted(found) == sorted({*ALLOWED, "output.py"})


#: A line of the log may raise there: it is the site's own, or a handler's.
OWN_LOGGERS = {
    "guard.py", "client/context.py", "worker/joblogs.py", "worker/middleware.py", "testing/server.py",
    "management/commands/ojs_testserver.py",
}  # fmt: skip


def test_no_line_of_our_log_can_raise() -> None:
    found = {
        str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if "logging.getLogger(" in path.read_text()
    }
    assert found == OWN_LOGGERS


@pytest.mark.django_db
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_key_that_could_not_be_shown_is_not_made(options: tuple[str, ...]) -> None:
    stream = output.OutputStream(Broken(OSError(28, "No space left on device")))  # type: ignore[arg-type]
    with pytest.raises(CommandError, match=r"could not be shown, so there is none.*No space left"):
        call_command("ojs_apikey", "create", "ci", "--scope", "push", *options, stdout=stream)
    assert not APIKey.objects.exists()
    assert not AuditEntry.objects.exists()


@pytest.mark.django_db
def test_a_question_that_could_not_be_shown_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    job = enqueue("site.add", 1, 2)
    monkeypatch.setattr("builtins.input", lambda question: stream.write(question) and "y")
    stream = output.OutputStream(Broken(BrokenPipeError(32, "gone")))  # type: ignore[arg-type]
    with pytest.raises(CommandError, match="question could not be shown: say --yes"):
        call_command("ojs_jobs", "cancel", "--all", stdout=stream)
    assert job.refresh().state == "available"


#: What each command of operators is called with, and what it has done then.
COMMANDS: dict[str, tuple[list[str], Callable[[], bool]]] = {
    "ojs_apikey": (["list"], lambda: True),
    "ojs_bulk": (["list"], lambda: True),
    "ojs_cron": (["list"], lambda: True),
    "ojs_dead_letter": (["list"], lambda: True),
    "ojs_doctor": ([], lambda: True),
    "ojs_emit": (["order.paid", "7"], lambda: DurableEvent.objects.filter(name="order.paid").exists()),
    "ojs_events": ([], lambda: True),
    "ojs_jobs": (["cancel", "--all", "--yes"], lambda: not Job.objects.exclude(state="cancelled").exists()),
    "ojs_maintenance": (["on", "--yes"], lambda: AuditEntry.objects.filter(action__contains="maintenance").exists()),
    "ojs_moving_in": (["documents.json"], lambda: True),
    "ojs_queues": (
        ["pause", "one", "two", "three"],
        lambda: Queue.objects.filter(pk__in=["one", "two", "three"], paused=True).count() == 3,
    ),
    "ojs_rate_limits": (["list"], lambda: True),
    "ojs_status": ([], lambda: True),
    "ojs_validate": (["documents.json"], lambda: True),
    "ojs_workers": (["quiet", "--all"], lambda: set(Worker.objects.values_list("directive", flat=True)) == {"quiet"}),
}  # fmt: skip
#: Those that serve until a signal comes, and how one sees from outside that they do.
SERVICES = {"ojs_worker", "ojs_scheduler", "ojs_grpc", "ojs_testserver"}
ENDLESS = [
    ["ojs_status", "--watch", "1"], ["ojs_status", "--watch", "1", "--json"], ["ojs_events", "--follow"],
]  # fmt: skip


def test_the_walk_knows_every_command() -> None:
    there = {path.stem for path in (PACKAGE / "management/commands").glob("ojs_*.py")}
    assert there == {*COMMANDS, *SERVICES}


def environment(child_environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    return child_environment | {"DJANGO_SETTINGS_MODULE": "tests.worker.settings", "OJS_TEST_TRACES": str(tmp_path)}


def walk(how: str, numbers: str, commands: list[list[str]], environment: dict[str, str], folder: Path) -> list[Any]:
    """The exit codes of commands whose streams with these numbers are broken."""
    report = folder / "report"
    with report.open("wb") as file:
        arguments = f'"$@" 3>&{file.fileno()}'
        subprocess.run(
            ["bash", "-c", arguments, "walk", sys.executable, "-m", "tests.commands.unheard", how, numbers,
             json.dumps(commands)],
            env=environment, cwd=folder, pass_fds=[file.fileno()], timeout=300, check=True,
        )  # fmt: skip
    return [json.loads(line) for line in report.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "how, numbers",
    [
        ("missing", "12"),
        ("full", "1"),
        *(
            pytest.param(how, numbers, marks=pytest.mark.wide)
            for how, numbers in (("missing", "2"), ("closed", "12"), ("full", "2"), ("unread", "1"), ("unread", "2"))
        ),
    ],
)
def test_every_command_does_what_it_is_told_though_nobody_can_read_it(
    how: str, numbers: str, child_environment: dict[str, str], tmp_path: Path
) -> None:
    enqueue_many([("site.add", [1, 2], {"queue": name}) for name in ("one", "two", "three")])
    for name in ("w1", "w2", "w3"):
        register(name, {"queues": ["default"]})
    (tmp_path / "documents.json").write_text('{"type": "a", "args": []}')
    calls = [[name, *words] for name, (words, _) in COMMANDS.items()]
    lost = 1 if "1" in numbers else 0
    if lost:  # else they would go on
        calls += [*ENDLESS, ["ojs_apikey", "create", "ci", "--scope", "push"]]
    seen_enough = how == "unread"  # of the log, of which nobody reads everything
    expected = [
        1 if name == "ojs_doctor" else 0 if name == "ojs_events" and seen_enough else lost for name, *_ in calls
    ]  # the doctor has found something
    codes = walk(how, numbers, calls, environment(child_environment, tmp_path), tmp_path)
    assert [(call, code) for call, code in zip(calls, codes, strict=True)] == [*zip(calls, expected, strict=True)]
    assert [name for name, (_, is_done) in COMMANDS.items() if not is_done()] == []
    assert not APIKey.objects.exists()


def start(words: list[str], how: str, numbers: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """`manage.py` as a shell starts it with such redirections."""
    breaks = {"missing": ">&-", "full": ">/dev/full", "unread": ">&4"}[how]
    redirections = " ".join(f"{number}{breaks}" for number in numbers)
    reader, writer = os.pipe()
    try:
        return subprocess.Popen(
            ["bash", "-c", f'[ "{how}" = unread ] && exec 4>&{writer}; exec "$@" {redirections}', "start",
             sys.executable, str(Path(site.BASE_DIR) / "manage.py"), *words],
            env=environment, pass_fds=[writer], process_group=0,
        )  # fmt: skip
    finally:
        os.close(writer)
        os.close(reader)


@pytest.fixture
def started() -> Any:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def connects(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.wide
@pytest.mark.once
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "how, numbers",
    [
        ("missing", "12"),
        *(
            pytest.param(how, numbers, marks=pytest.mark.wide)
            for how, numbers in (("missing", "2"), ("full", "12"), ("unread", "12"))
        ),
    ],
)
def test_every_service_serves_and_ends_well_though_nobody_can_read_it(
    how: str, numbers: str, child_environment: dict[str, str], tmp_path: Path, started: Any
) -> None:
    around = environment(child_environment, tmp_path)
    once = {"retry": {"max_attempts": 1}}
    added, failed, said = enqueue_many(
        [("site.add", [1, 2]), ("site.fail", ["broken"], once), ("site.say", ["hello"], once)]
    )
    worker = start(["ojs_worker", "--no-scheduler", "-v", "2"], how, numbers, around)
    started.append(worker)
    assert added.wait(timeout=90).result == 3
    assert said.wait(timeout=90).result == "hello"
    assert failed.wait(timeout=90, raise_error=False).state == "discarded"
    worker.send_signal(signal.SIGTERM)

    scheduler = start(["ojs_scheduler"], how, numbers, around)
    started.append(scheduler)
    eventually(lambda: Lease.is_held("scheduler", "default"))
    scheduler.send_signal(signal.SIGTERM)
    processes = [worker, scheduler]

    try:
        import grpc  # noqa: F401
    except ImportError:
        pass
    else:
        place = tmp_path / "grpc"
        server = start(["ojs_grpc", "--bind", f"unix:{place}"], how, numbers, around)
        started.append(server)
        eventually(place.exists)
        server.send_signal(signal.SIGTERM)
        processes.append(server)
    assert [process.wait(90) for process in processes] == [0] * len(processes)
    assert not Worker.objects.exists(), "the worker said goodbye"
