"""`ojs_doctor`: what it prints, and how it exits."""

from __future__ import annotations

import datetime as dt
import io
import json
import sys
from typing import Any

import pytest
from django.core.management import CommandError, call_command, load_command_class
from django.db import OperationalError, connections

from django_ojs import clock, doctor
from django_ojs.jobs.push import push
from django_ojs.workerregistry.registration import register
from tests.doctor.conftest import own

pytestmark = pytest.mark.django_db(transaction=True)


def run(*arguments: str) -> tuple[int, str]:
    """The exit code and what was printed, without what the tests' own server causes."""
    out = io.StringIO()
    ignored = [f"--ignore={name}" for name in sorted(own())]
    try:
        call_command("ojs_doctor", *arguments, *ignored, stdout=out, stderr=out, no_color=True)
    except SystemExit as ended:
        return int(str(ended.code)), out.getvalue().strip()
    return 0, out.getvalue().strip()


def test_nothing_to_mend() -> None:
    assert run() == (0, "Nothing to mend was found.")
    code, text = run("--json")
    assert (code, json.loads(text)["findings"]) == (0, [])


def test_something_to_mend() -> None:
    push([{"type": "mail.send", "args": []} for _ in range(1200)])
    code, text = run("--ignore", "scheduler-missing")
    assert code == 1
    assert text.splitlines() == [
        "Jobs wait and no worker runs [workers-missing]",
        "  No worker runs, and jobs wait: 1,200.",
        "  Mend: Start a worker: manage.py ojs_worker.",
    ]
    code, text = run("--json")
    told: dict[str, Any] = json.loads(text)
    assert code == 1
    assert [one["id"] for one in told["findings"]] == ["scheduler-missing", "workers-missing"]
    assert told["findings"][1] == {
        "id": "workers-missing", "title": "Jobs wait and no worker runs",
        "says": "No worker runs, and jobs wait: 1,200.", "mend": "Start a worker: manage.py ojs_worker.", "about": "",
        "figures": {"jobs": 1200, "queues": {"default": 1200}},
    }  # fmt: skip
    assert run("--ignore=scheduler-missing", "--ignore=workers-missing")[0] == 0


@pytest.mark.parametrize("wrong,hint", [("clock-ofset", "did you mean clock-offset"), ("x", "lists them")])
def test_an_id_that_is_none(wrong: str, hint: str) -> None:
    with pytest.raises(CommandError, match=hint):
        run("--ignore", wrong)


def test_what_a_worker_says_does_not_steer_the_terminal() -> None:
    register("w-1", {"queues": ["default"], "hostname": "box\x1b[2J\nNothing to mend"})
    clock.freeze(clock.now() + dt.timedelta(hours=1))
    code, text = run()
    assert code == 1
    assert "on box�[2J�Nothing to mend) has sent no heartbeat" in text
    assert "\x1b" not in text


def test_ids_of_checks_can_be_ignored(settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    assert run()[0] == 1
    assert run("--ignore", "django_ojs.W001")[0] == 0


def test_a_database_that_is_away_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(using: Any = None) -> Any:
        raise OperationalError("connection refused")

    monkeypatch.setattr(doctor, "examine", away)
    monkeypatch.setattr(type(connections), "close_all", lambda self: None)
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(SystemExit) as ended:
        load_command_class("django_ojs", "ojs_doctor").run_from_argv(["manage.py", "ojs_doctor"])
    sys.stderr.seek(0)
    assert (ended.value.code, sys.stderr.read()) == (1, "The database does not answer: connection refused\n")
