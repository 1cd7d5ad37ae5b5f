"""`manage.py ojs_apikey`."""

from __future__ import annotations

import datetime as dt
import io
import json
import re
import sys
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_ojs import keys
from django_ojs.models import APIKey

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("ojs_apikey", *arguments, stdout=out, no_color=True)
    return out.getvalue()


def test_create_prints_the_key_once_and_how_to_use_it() -> None:
    out = run("create", "billing", "--scope", "push", "--scope", "work", "--queue", "mail", "--type", "mail.*")
    (text,) = re.findall(r"ojs_[0-9a-f]{64}", out)
    key = keys.find(text)
    assert key is not None
    assert (key.name, key.scopes, key.queues, key.job_types) == ("billing", ["push", "work"], ["mail"], ["mail.*"])
    assert "Authorization: Bearer" in out
    assert text not in run("list")
    assert text not in run("list", "--json")


def test_create_as_json_for_scripts() -> None:
    made = json.loads(run("create", "ci", "--scope", "push,read", "--json"))
    assert keys.find(made["key"]) is not None
    assert (made["name"], made["scopes"], made["status"]) == ("ci", ["push", "read"], "active")


@pytest.mark.parametrize(
    "text, expected",
    [
        ("90d", dt.datetime(2026, 4, 15, 12, tzinfo=dt.UTC)),
        ("12h", dt.datetime(2026, 1, 16, 0, tzinfo=dt.UTC)),
        ("2027-01-01", dt.datetime(2027, 1, 1, 5, tzinfo=dt.UTC)),
        ("2027-01-01T12:00+01:00", dt.datetime(2027, 1, 1, 11, tzinfo=dt.UTC)),
        ("2027-01-01 12:00", dt.datetime(2027, 1, 1, 17, tzinfo=dt.UTC)),
    ],
)
def test_expiry_is_a_length_or_a_time_of_the_site(text: str, expected: dt.datetime, frozen_clock: Any) -> None:
    run("create", "ci", "--scope", "push", "--expires", text)
    assert APIKey.objects.get().expires_at == expected


@pytest.mark.parametrize(
    "arguments, advice",
    [
        (["ci"], "at least one scope"),
        (["ci", "--scope", "pusj"], "choose from push, work, emit, approve, read, admin"),
        (["ci", "--scope", "push", "--queue", "Mail"], "no queue name"),
        (["ci", "--scope", "push", "--type", "*"], "no job type"),
        (["ci", "--scope", "push", "--expires", "2020-01-01"], "choose a later time"),
        (["ci", "--scope", "push", "--expires", "soon"], "write 90d, 12h or 2027-01-01"),
        (["ci", "--scope", "push", "--expires", "2027-02-30"], "day"),
        (["ci", "--scope", "push", "--expires", "0d"], "is no time"),
        (["taken", "--scope", "push"], "choose another name"),
        (["?", "--scope", "push"], "A name has"),
    ],
)
def test_a_refusal_says_what_to_do(arguments: list[str], advice: str) -> None:
    keys.create("taken", ["read"])
    with pytest.raises(CommandError, match=re.escape(advice)):
        run("create", *arguments)
    assert APIKey.objects.count() == 1


def test_list_shows_what_each_key_may_do() -> None:
    assert "ojs_apikey create" in run("list")
    keys.create("billing", ["push"], queues=["mail"])
    key, _ = keys.create("old", ["admin"])
    keys.revoke(key)
    lines = run("list").splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "billing", "old"]
    assert "mail" in lines[1]
    assert "revoked" in lines[2]
    assert [entry["name"] for entry in json.loads(run("list", "--json"))] == ["billing", "old"]


def test_revoke_works_once() -> None:
    _, text = keys.create("billing", ["push"])
    assert "revoked" in run("revoke", "billing", "--yes")
    key = keys.find(text)
    assert key is not None
    assert keys.status(key) == "revoked"
    with pytest.raises(CommandError, match="revoked already"):
        run("revoke", "billing", "--yes")


def test_revoking_an_unknown_key_points_to_the_list() -> None:
    with pytest.raises(CommandError, match="ojs_apikey list"):
        run("revoke", "nobody")


def test_a_database_without_tables_points_to_migrate(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.core.management import load_command_class
    from django.db import OperationalError, connections

    def fail(*args: Any) -> None:
        raise OperationalError("no such table: django_ojs_apikey")

    monkeypatch.setattr(APIKey.objects, "order_by", fail)
    monkeypatch.setattr(type(connections), "close_all", lambda self: None)
    with monkeypatch.context() as patched:
        beside = io.TextIOWrapper(io.BytesIO())
        patched.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
        patched.setattr(sys, "stderr", beside)
        with pytest.raises(SystemExit):
            load_command_class("django_ojs", "ojs_apikey").run_from_argv(["manage.py", "ojs_apikey", "list"])
    beside.seek(0)
    assert beside.read().endswith("lacks tables of this site: run manage.py migrate.\n")


def test_revoke_asks_and_a_no_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    key, _ = keys.create("billing", ["push"])
    asked: list[str] = []

    def no(question: str) -> str:
        asked.append(question)
        raise EOFError

    monkeypatch.setattr("builtins.input", no)
    with pytest.raises(CommandError, match="say --yes"):
        run("revoke", "billing")
    assert asked == ["Revoke the API key 'billing' (never used) for ever? [y/N] "]
    key.refresh_from_db()
    assert key.revoked_at is None


@pytest.mark.parametrize("option", ["--queue", "--type"])
def test_an_empty_limit_makes_no_key_without_limits(option: str) -> None:
    """It is a variable of a shell that is not set."""
    with pytest.raises(CommandError, match=f"^{option}: '' is no "):
        run("create", "ci", "--scope", "push", f"{option}=")
    assert not APIKey.objects.exists()
