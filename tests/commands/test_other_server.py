"""Commands that go on and on leave a server that still answers, though the site's database is another by now."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from django_ojs import database
from django_ojs.client.handle import get_job
from django_ojs.faults import ReadOnly
from django_ojs.jobs.push import push
from django_ojs.management.commands import ojs_bulk, ojs_events, ojs_jobs, ojs_status
from django_ojs.models import BulkAction

pytestmark = pytest.mark.django_db(transaction=True)


class Watch:
    """Stands for the `time` of a command: each pause notes the session of the last look; the third ends it."""

    def __init__(self, between: Any) -> None:
        self.sessions: list[Any] = []
        self._between = between

    def sleep(self, seconds: float) -> None:
        self.sessions.append(connection.connection)
        if len(self.sessions) == 3:
            raise KeyboardInterrupt
        self._between()


@pytest.fixture
def followed() -> dict[str, list[str]]:
    job = push([{"type": "a.b", "args": []}])[0].row
    call_command("ojs_jobs", "cancel", "--all", "--background", "--yes", stdout=io.StringIO(), stderr=io.StringIO())
    action = BulkAction.objects.get()
    return {
        "events": ["ojs_events", "--follow"],
        "status": ["ojs_status", "--watch", "1"],
        "jobs": ["ojs_jobs", "logs", str(job["id"]), "--follow"],
        "bulk": ["ojs_bulk", "show", str(action.pk), "--watch"],
    }


def sessions_of(arguments: list[str], monkeypatch: pytest.MonkeyPatch, between: Any) -> list[Any]:
    modules = {"ojs_events": ojs_events, "ojs_status": ojs_status, "ojs_jobs": ojs_jobs, "ojs_bulk": ojs_bulk}
    watch = Watch(between)
    monkeypatch.setattr(modules[arguments[0]], "time", watch)
    with contextlib.suppress(KeyboardInterrupt):
        call_command(*arguments, stdout=io.StringIO(), stderr=io.StringIO())
    return watch.sessions


@pytest.mark.skipif(
    connection.vendor == "sqlite" and connection.is_in_memory_db(), reason="Django never closes a database in memory"
)
@pytest.mark.parametrize("what", ["events", "status", "jobs", "bulk"])
class TestACommandThatGoesOn:
    def test_leaves_a_server_that_takes_no_writes(
        self, what: str, followed: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(database, "CLOSE_EVERY", 0.0)
        database.leave_old_server("default")
        refused = ReadOnly("It stores nothing.")
        before, *later = sessions_of(followed[what], monkeypatch, lambda: database.note_read_only(refused))
        assert all(session is not before for session in later)

    def test_and_any_other_after_a_while(
        self, what: str, followed: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only its address tells that an old server is not the site's any more, as where a name leads elsewhere."""
        database.leave_old_server("default")
        between = lambda: monkeypatch.setattr(database, "LASTS", 0.0)  # noqa: E731
        before, *later = sessions_of(followed[what], monkeypatch, between)
        assert all(session is not before for session in later)

    def test_and_keeps_its_session_until_then(
        self, what: str, followed: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(database, "LASTS", float("inf"))
        database.leave_old_server("default")
        sessions = sessions_of(followed[what], monkeypatch, lambda: None)
        assert len({id(session) for session in sessions}) == 1


@pytest.mark.skipif(
    connection.vendor == "sqlite" and connection.is_in_memory_db(), reason="Django never closes a database in memory"
)
def test_a_wait_for_a_job_leaves_it_too(followed: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    from django_ojs.client import handle

    database.leave_old_server("default")
    watch = Watch(lambda: monkeypatch.setattr(database, "LASTS", 0.0))
    monkeypatch.setattr(handle, "time", watch)
    with pytest.raises(KeyboardInterrupt):
        get_job(followed["jobs"][2]).wait()
    before, *later = watch.sessions
    assert all(session is not before for session in later)
