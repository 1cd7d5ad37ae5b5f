"""`ojs_maintenance`, and what the other commands say while it is on."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from django.core.management import CommandError

from django_ojs import enqueue
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.models import AuditEntry
from django_ojs.queues import maintenance
from tests.commands.test_operating import partly, run
from tests.conftest import FrozenClock

pytestmark = pytest.mark.django_db


def test_on_status_and_off(frozen_clock: FrozenClock) -> None:
    assert run("ojs_maintenance", "status") == "Maintenance mode is off."
    enqueue("mail.send")
    told = run("ojs_maintenance", "on", "--reason", "new disks", "--for", "30m", "--yes")
    assert told == run("ojs_maintenance", "status")
    lines = told.splitlines()
    assert lines[0].startswith("Maintenance mode is on since 2026-01-15T12:00:00.000Z by command")
    assert lines[0].endswith(": new disks")
    assert lines[1:] == ["It will take until about 2026-01-15T12:30:00.000Z.", "No job runs."]
    assert fetch(Fetch(["default"])) == []
    assert run("ojs_maintenance", "off", "--yes") == "Maintenance mode is off."
    assert len(fetch(Fetch(["default"]))) == 1


def test_it_says_how_many_jobs_still_run(transactional_db: None) -> None:
    for _ in range(2):
        enqueue("mail.send")
    fetch(Fetch(["default"]))
    assert run("ojs_maintenance", "on", "--yes").endswith("1 job still runs.")
    run("ojs_maintenance", "off", "--yes")
    fetch(Fetch(["default"]))
    assert run("ojs_maintenance", "on", "--yes").endswith("2 jobs still run.")


def test_json_for_scripts() -> None:
    on = json.loads(run("ojs_maintenance", "on", "--for", "PT2H", "--auto-end", "--json", "--yes"))
    assert (on["enabled"], on["auto_end"]) == (True, True)
    assert json.loads(run("ojs_maintenance", "status", "--json")) == on
    assert not json.loads(run("ojs_maintenance", "on", "--no-auto-end", "--json"))["auto_end"]
    assert json.loads(run("ojs_maintenance", "off", "--json", "--yes"))["enabled"] is False


@pytest.mark.parametrize("answer,is_on", [("y", True), ("n", False), ("", False)])
def test_it_asks_first(monkeypatch: pytest.MonkeyPatch, answer: str, is_on: bool) -> None:
    asked: list[str] = []

    def say(question: str) -> str:
        asked.append(question)
        return answer

    monkeypatch.setattr("builtins.input", say)
    if is_on:
        run("ojs_maintenance", "on")
        run("ojs_maintenance", "on", "--reason", "what is on already is not asked for")
    else:
        with pytest.raises(CommandError, match="Nothing was changed"):
            run("ojs_maintenance", "on")
    assert asked == ["Stop delivery from all queues? [y/N] "]
    assert maintenance.is_on() is is_on


def test_nobody_there_to_answer_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(question: str) -> str:
        raise EOFError

    maintenance.start()
    monkeypatch.setattr("builtins.input", nobody)
    with pytest.raises(CommandError, match="say --yes"):
        run("ojs_maintenance", "off")
    assert maintenance.is_on()


@pytest.mark.parametrize(
    "wrong,problem",
    [
        (["--for", "soon"], "must be a duration"),
        (["--for", "PT0S"], "--for: must be longer than nothing"),
        (["--for", "800d"], "--for: must be longer than nothing and at most 366 days"),
        (["--auto-end"], "--auto-end: needs --for"),
        (["--reason", "x" * 501], "one line of at most 500"),
        (["--reason", "two\nlines"], "one line"),
        (["--auto-end", "--no-auto-end"], "not allowed with"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: list[str], problem: str) -> None:
    with pytest.raises(CommandError, match=problem):
        run("ojs_maintenance", "on", "--yes", *wrong)
    assert not maintenance.is_on()
    assert not AuditEntry.objects.exists()


def test_the_audit_log_has_both() -> None:
    run("ojs_maintenance", "on", "--reason", "disks", "--yes")
    run("ojs_maintenance", "off", "--yes")
    on, off = AuditEntry.objects.order_by("id")
    assert [on.action, off.action] == ["maintenance.start", "maintenance.stop"]
    assert on.actor.startswith("command")
    assert (on.door, on.detail, off.detail) == ("command", {"reason": "disks"}, {"reason": "disks"})


def test_the_status_says_it_and_when_it_takes_too_long(frozen_clock: FrozenClock, transactional_db: None) -> None:
    maintenance.start(reason="disks", lasting=dt.timedelta(hours=1))
    began, end = "2026-01-15T12:00:00.000Z", "2026-01-15T13:00:00.000Z"
    facts: Any = json.loads(partly("ojs_status", "--json", "--check"))
    assert facts["maintenance"]["enabled"]
    assert facts["attention"] == [
        f"Maintenance mode is on since {began} (disks): no worker gets a job until about {end}."
    ]
    frozen_clock.advance(hours=2)
    assert f"! Maintenance mode is on since {began} (disks). It should have ended at {end}." in run("ojs_status")
    assert run("ojs_workers", "list").endswith("none of them gets a job. See `ojs_maintenance status`.")
    maintenance.stop()
    assert json.loads(run("ojs_status", "--json", "--check"))["attention"] == []
    assert run("ojs_workers", "list") == "There are no workers."
