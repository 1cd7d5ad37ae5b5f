"""`manage.py ojs_events`: what it shows, from where on, and how it ends."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import OperationalError

from django_ojs.events import log
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack_one, fail_one
from django_ojs.jobs.push import push
from django_ojs.management.commands import ojs_events
from django_ojs.workflows import workflow


def enqueue(name: str = "mail.send", **more: Any) -> Any:
    return push([{"type": name, "args": [], **more}])[0].row


def show(*arguments: str, **options: Any) -> list[str]:
    out = io.StringIO()
    call_command("ojs_events", *arguments, stdout=out, no_color=not options.pop("colour", False), **options)
    return out.getvalue().splitlines()


@pytest.mark.django_db
class TestWhatItShows:
    def test_one_aligned_line_for_each_event(self) -> None:
        row = enqueue(queue="mail")
        fetch(Fetch(["mail"], worker_id="w1"))
        fail_one(Failure(row["id"], {"message": "no\x1b[2Jgood", "type": "Boom"}))
        lines = show("--types", "job.*")
        assert [line.split()[1] for line in lines] == ["job.enqueued", "job.started", "job.failed", "job.retrying"]
        assert len({line.index("mail.send") for line in lines}) == 1
        assert len({line.index(str(row["id"])) for line in lines}) == 1
        assert lines[2].endswith("#1  Boom: no�[2Jgood"), "what a job says does not steer the terminal"

    def test_json_is_the_envelope(self) -> None:
        enqueue()
        (line,) = show("--json")
        assert json.loads(line) == log.read().events[0]

    def test_colours_only_where_they_are_wanted(self) -> None:
        row = enqueue()
        fetch(Fetch(["default"], worker_id="w1"))
        ack_one(Ack(row["id"]))
        assert "\x1b[" not in "".join(show())
        out = io.StringIO()
        call_command("ojs_events", stdout=out, force_color=True)
        assert "\x1b[" in out.getvalue().splitlines()[-1]

    def test_filters(self) -> None:
        mail = enqueue(queue="mail")
        enqueue("report.make")
        fetch(Fetch(["mail"], worker_id="w1"))
        for arguments, expected in (
            (["--types", "job.started"], 1), (["--types", "job.*"], 3), (["--queues", "mail"], 2),
            (["--job-types", "report.make"], 1), (["--job", str(mail["id"])], 2), (["--limit", "1"], 1),
            (["--queues", "mail,default", "--types", "job.enqueued"], 2), (["--types", "queue.*"], 0),
        ):  # fmt: skip
            assert len(show(*arguments)) == expected, arguments
        workflow.create({"id": "order-17", "type": "chain", "steps": [{"type": "a.b", "args": []}]})
        assert len(show("--workflow", "order-17")) == 1

    def test_from_where_on(self, frozen_clock: Any) -> None:
        enqueue("a.old")
        frozen_clock.advance(hours=1)
        for number in range(30):
            enqueue(f"a.n{number}")
        ids = [event["id"] for event in log.read().events]
        assert len(show()) == ojs_events.LAST
        assert "a.n29" in show()[-1]
        assert len(show("--since", "10m")) == 30
        assert len(show("--since", "2h")) == 31
        assert len(show("--since", "2026-01-15T12:30:00Z")) == 30
        assert "a.n0" in show("--since", "10m", "--limit", "2")[0]
        assert len(show("--after", ids[-3])) == 2

    @pytest.mark.parametrize(
        "arguments, word",
        [
            (["--since", "yesterday"], "--since"), (["--after", "nonsense"], "cursor"), (["--job", "7"], "--job"),
            (["--workflow", "order-18"], "Workflow 'order-18' not found"),
            (["--limit", "0"], "--limit"),
        ],
    )  # fmt: skip
    def test_nonsense_is_refused(self, arguments: list[str], word: str) -> None:
        with pytest.raises(CommandError, match=word):
            show(*arguments)

    def test_a_database_that_is_away_is_waited_for_with_follow_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        enqueue()
        read, calls = log.read, iter(range(100))

        def flaky(**query: Any) -> Any:
            number = next(calls)
            if number in (1, 2):
                raise OperationalError("gone fishing")
            if number == 4:
                raise KeyboardInterrupt
            return read(**query)

        monkeypatch.setattr(log, "read", flaky)
        for name in ("AFTER_FAULT", "LONGEST_AFTER_FAULT"):
            monkeypatch.setattr(ojs_events, name, 0.0)
        monkeypatch.setattr(ojs_events, "PAUSE", 0.0)
        monkeypatch.setattr(ojs_events, "connections", {"default": io.StringIO()})  # the test's own stays open
        out, err = io.StringIO(), io.StringIO()
        call_command("ojs_events", "--follow", stdout=out, stderr=err, no_color=True)
        assert len(out.getvalue().splitlines()) == 1
        assert err.getvalue().splitlines() == [
            "Reading the event log failed (gone fishing); the next try is in 0 s.",
            "Reading the event log works again, since 0 s; it had failed 2 times in 0 s.",
        ]  # fmt: skip
        calls = iter(range(1, 100))
        with pytest.raises(CommandError, match="gone fishing"):
            show("--since", "10m")


class Following:
    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(settings.BASE_DIR) / "manage.py"), "ojs_events", *arguments],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            # Where this suite runs in the background of a shell, it and its children ignore SIGINT.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - takes no lock
        )  # fmt: skip

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err


@pytest.fixture
def follow(child_environment: dict[str, str]) -> Iterator[Any]:
    started: list[Following] = []

    def start(*arguments: str) -> Following:
        started.append(Following(child_environment, *arguments))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.communicate()
        for pipe in (each.process.stdout, each.process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
class TestProcesses:
    def test_it_follows_until_it_is_interrupted(self, follow: Any) -> None:
        enqueue("a.before")
        process = follow("--follow", "--json")
        assert json.loads(process.line())["data"]["job_type"] == "a.before"
        for name in ("a.one", "a.two"):
            enqueue(name)
            assert json.loads(process.line())["data"]["job_type"] == name
        process.process.send_signal(signal.SIGINT)
        assert process.end() == (0, "")

    def test_a_reader_that_has_seen_enough_ends_it(self, follow: Any) -> None:
        enqueue("a.before")
        process = follow("--follow")
        assert "a.before" in process.line()
        process.process.stdout.close()
        stop = threading.Event()

        def produce() -> None:
            while not stop.is_set():
                enqueue("a.more")
                time.sleep(0.1)

        def wait() -> None:
            process.process.wait(60)
            stop.set()

        waiter = threading.Thread(target=wait)
        waiter.start()
        produce()
        waiter.join()
        assert process.process.returncode == 0
        assert process.process.stderr.read() == ""
