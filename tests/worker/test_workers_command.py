"""`manage.py ojs_workers`."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import CommandError, call_command

from django_ojs.models import Worker
from django_ojs.workerregistry.registration import register

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("ojs_workers", *arguments, stdout=out, no_color=True)
    return out.getvalue()


def told() -> dict[str, str]:
    return {name: directive for name, directive in Worker.objects.values_list("pk", "directive") if directive}


@pytest.fixture(autouse=True)
def _workers(db: None) -> None:
    for name in ("web-1", "web-2", "web-11", "web-x", "web", "webs-1"):
        register(name, {"hostname": "h", "pid": 7, "queues": ["a", "b"], "concurrency": 4, "memory_mb": 61.4})


def test_the_list_is_a_table_or_json() -> None:
    call_command("ojs_workers", "quiet", "web-1", stdout=io.StringIO())
    heading, *lines = run("list").splitlines()
    assert heading.split() == ["NAME", "STATE", "TOLD", "JOBS", "DONE", "MEMORY", "CPU", "SEEN", "QUEUES"]
    (line,) = [line for line in lines if line.startswith("web-1 ")]
    *facts, seconds, unit, ago, queues = line.split()
    assert facts == ["web-1", "running", "quiet", "0/4", "0", "61", "MB"]
    assert (seconds.isdecimal(), unit, ago, queues) == (True, "s", "ago", "a,b")
    rows = {row["id"]: row for row in json.loads(run("list", "--json"))}
    assert (rows["web-1"]["directive"], rows["web-2"]["directive"], rows["web-2"]["pid"]) == ("quiet", None, 7)
    Worker.objects.all().delete()
    assert run("list") == "There are no workers.\n"
    assert json.loads(run("list", "--json")) == []


def test_the_name_of_a_parent_means_its_processes() -> None:
    assert run("quiet", "web").splitlines() == ["web: quiet", "web-1: quiet", "web-11: quiet", "web-2: quiet"]
    assert set(told()) == {"web", "web-1", "web-2", "web-11"}


@pytest.mark.parametrize(
    "verb,word", [("quiet", "quiet"), ("resume", "running"), ("terminate", "terminate"), ("restart", "restart")]
)
def test_one_worker_is_told(verb: str, word: str) -> None:
    run(verb, "web-2", *(["--yes"] if verb == "terminate" else []))
    assert told() == {"web-2": word}


def test_all_workers_are_told() -> None:
    run("terminate", "--all", "--yes")
    assert set(told().values()) == {"terminate"}
    assert len(told()) == 6


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["quiet"], "Name the workers"),
        (["quiet", "web", "--all"], "Name the workers"),
        (["quiet", "we"], "no worker 'we'"),
    ],
)
def test_mistakes_are_told_and_change_nothing(arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        run(*arguments)
    assert told() == {}


def test_a_mistaken_name_among_good_ones_changes_nothing() -> None:
    with pytest.raises(CommandError, match="'nobody'"):
        run("quiet", "web-1", "nobody")
    assert told() == {}


def test_workers_are_terminated_only_on_a_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def no(question: str) -> str:
        asked.append(question)
        return "n"

    monkeypatch.setattr("builtins.input", no)
    for arguments in (["--all"], ["web-2"]):
        with pytest.raises(CommandError, match="Nothing was changed"):
            run("terminate", *arguments)
    assert asked == ["Terminate 6 workers? [y/N] ", "Terminate the worker web-2? [y/N] "]
    assert told() == {}


def test_a_dry_run_only_says_who_would_be_told() -> None:
    assert run("terminate", "web-2", "--dry-run") == "web-2 would be told: terminate\n"
    assert len(run("quiet", "--all", "--dry-run").splitlines()) == 6
    assert told() == {}
    Worker.objects.all().delete()
    assert run("terminate", "--all") == "There are no workers.\n"
