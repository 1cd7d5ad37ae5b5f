"""A database that nobody has migrated: one sentence that says what to do, at every door."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest
from django.core.management import CommandError, call_command, load_command_class
from django.db import connection, connections

from django_ojs import enqueue, get_job, get_workflow, group, job
from django_ojs.errors import BackendUnavailable
from django_ojs.models import Job, Queue, Workflow
from django_ojs.registry import Registry
from tests.api.conftest import handlers
from tests.http.conftest import Api, error_of

__all__ = ["handlers"]  # a fixture

SENTENCE = "The database 'default' lacks tables of this site: run manage.py migrate."

UNKNOWN = "01976f5e-0000-7000-8000-000000000000"

TABLES = [model._meta.db_table for model in (Job, Queue, Workflow)]

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def unmigrated() -> Iterator[None]:
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"ALTER TABLE {table} RENAME TO aside_{table}")
    yield
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"ALTER TABLE aside_{table} RENAME TO {table}")


@pytest.mark.usefixtures("unmigrated")
def test_python_says_to_migrate(handlers: Registry) -> None:
    @job("email.send")
    def send(to: str) -> None: ...

    known = "01976f5e-0000-7000-8000-000000000000"
    enqueues = (lambda: send.enqueue("a"), lambda: enqueue("x.y", 1), group(send.s("a")).enqueue)
    for call in (*enqueues, lambda: get_job(known), lambda: get_workflow(known)):
        with pytest.raises(BackendUnavailable) as caught:
            call()
        assert (str(caught.value), caught.value.hint) == (SENTENCE, SENTENCE)
        assert caught.value.__cause__ is not None
        assert not hasattr(caught.value, "__notes__"), "the sentence stands there once"


@pytest.mark.usefixtures("unmigrated")
def test_http_says_to_migrate(api: Api) -> None:
    for response in (
        api.post("/jobs", {"type": "a.b", "args": []}),
        api.get(f"/jobs/{UNKNOWN}"),
    ):
        error = error_of(response, 503, "backend_error")
        assert (error["canonical_code"], error["hint"]) == ("BACKEND_UNAVAILABLE", SENTENCE)
    health = api.get("/health")
    assert (health.status_code, health.json()["backend"]["error"]) == (503, SENTENCE)


@pytest.mark.usefixtures("unmigrated")
@pytest.mark.parametrize("command", [["ojs_worker", "--until-empty"], ["ojs_scheduler"], ["ojs_events"]])
def test_a_process_that_would_wait_for_the_database_says_to_migrate(command: list[str], handlers: Registry) -> None:
    @job("email.send")
    def send(to: str) -> None: ...

    with pytest.raises(CommandError) as caught:
        call_command(*command, stdout=io.StringIO(), stderr=io.StringIO())
    assert str(caught.value) == SENTENCE


@pytest.mark.usefixtures("unmigrated")
@pytest.mark.parametrize("command", ["ojs_status", "ojs_jobs list", "ojs_dead_letter list"])
def test_commands_of_operators_say_to_migrate(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, *rest = command.split()
    monkeypatch.setattr(type(connections), "close_all", lambda self: None)
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(SystemExit) as ended:
        load_command_class("django_ojs", name).run_from_argv(["manage.py", name, *rest])
    sys.stderr.seek(0)
    assert (ended.value.code, sys.stderr.read()) == (1, SENTENCE + "\n")


@pytest.mark.usefixtures("unmigrated")
def test_another_fault_of_a_statement_is_not_taken_for_it() -> None:
    from django.db import Error

    from django_ojs.faults import unmigrated

    for statement in ("SELEC 1", "SELECT * FROM nobody_made_it", "SELECT nothing FROM django_ojs_lease"):
        with connection.cursor() as cursor, pytest.raises(Error) as caught:
            cursor.execute(statement)
        assert unmigrated(caught.value) == ""
    assert unmigrated(ValueError("no such table: django_ojs_job")) == ""
