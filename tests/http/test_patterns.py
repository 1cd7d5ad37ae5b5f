"""A job type with `*` at its end, and an age, mean the same jobs at every door that takes a filter."""

from __future__ import annotations

import datetime as dt
import io
import json
from typing import Any

import pytest
from django.core.management import call_command

from django_ojs.jobs import bulk
from django_ojs.models import Job
from tests.http.conftest import Api, error_of

pytestmark = pytest.mark.django_db

MEANT, OTHERS = {"mail.send", "mail.list.clean"}, {"mail", "mails.send", "sms.send"}


@pytest.fixture
def ids(api: Api) -> dict[str, str]:
    return {name: api.push(name)["id"] for name in sorted(MEANT | OTHERS)}


def in_state(state: str) -> set[str]:
    return set(Job.objects.filter(state=state).values_list("type", flat=True))


def test_lists_and_dry_runs_find_the_same(api: Api, ids: dict[str, str]) -> None:
    body = {"filter": {"type": "mail.*"}, "dry_run": True}
    assert api.post("/admin/jobs/bulk/cancel", body).json()["matched"] == len(MEANT)
    for path in ("/jobs", "/admin/jobs"):
        found = api.get(path, {"type": "mail.*"}).json()["items"]
        assert {item["type"] for item in found} == MEANT
    out = io.StringIO()
    call_command("ojs_jobs", "list", "--type", "mail.*", "--json", stdout=out)
    assert {job["type"] for job in json.loads(out.getvalue())} == MEANT


@pytest.mark.parametrize("path", ["/jobs/bulk/cancel", "/admin/jobs/bulk/cancel"])
def test_a_cancel_by_filter_takes_them_and_no_others(api: Api, ids: dict[str, str], path: str) -> None:
    confirm = {"confirm": True} if "admin" in path else {}
    answer = api.post(path, {"filter": {"type": "mail.*"}, **confirm})
    assert answer.status_code == 200
    assert in_state("cancelled") == MEANT
    assert in_state("available") == OTHERS
    assert (answer.json().get("cancelled") or answer.json()["succeeded"]) == len(MEANT)


def test_the_data_plane_retries_and_deletes_by_them_too(api: Api) -> None:
    for name in sorted(MEANT | OTHERS):
        _fail(api, name)
    assert api.post("/jobs/bulk/retry", {"filter": {"type": "mail.*"}}).json()["retried"] == len(MEANT)
    assert in_state("available") == MEANT
    assert api.post("/jobs/bulk/delete", {"filter": {"type": "s*"}}).json()["deleted"] == 1
    assert set(Job.objects.values_list("type", flat=True)) == (MEANT | OTHERS) - {"sms.send"}


def _fail(api: Api, name: str) -> None:
    api.push(name, retry={"max_attempts": 1})
    job = api.fetch()
    api.post("/workers/nack", {"job_id": job["id"], "error": {"message": "no"}})


@pytest.mark.parametrize("path", ["/jobs/bulk/cancel", "/admin/jobs/bulk/cancel"])
def test_waiting_jobs_are_as_old_as_they_were_made(api: Api, frozen_clock: Any, path: str) -> None:
    old = api.push("a.old")["id"]
    frozen_clock.advance(hours=2)
    api.push("a.young")
    confirm = {"confirm": True} if "admin" in path else {}
    answer = api.post(path, {"filter": {"older_than": "1h", "queue": "default"}, **confirm}).json()
    assert (answer.get("cancelled") or answer["succeeded"]) == 1
    assert api.get(f"/jobs/{old}").json()["state"] == "cancelled"
    assert in_state("available") == {"a.young"}


@pytest.mark.parametrize("path", ["/jobs/bulk/delete", "/admin/jobs/bulk/delete", "/dead-letter/purge"])
def test_ended_jobs_are_as_old_as_their_end_is(api: Api, frozen_clock: Any, path: str) -> None:
    """One made long ago that failed a moment before is young: who purges what is older than an hour keeps it."""
    first, second = (api.push("a.b", retry={"max_attempts": 1})["id"] for _ in range(2))
    _end(api)
    frozen_clock.advance(hours=2)
    _end(api)
    edge = {"filter": {"state": "discarded", "older_than": "PT1H"}}
    answer = api.post(path, edge | ({} if path.startswith("/jobs") else {"confirm": True}))
    assert answer.status_code == 200, answer.content
    assert [str(pk) for pk in Job.objects.values_list("pk", flat=True)] == [second]
    assert first != second


def _end(api: Api) -> None:
    job = api.fetch()
    api.post("/workers/nack", {"job_id": job["id"], "error": {"message": "no"}})


def test_an_act_in_the_background_knows_the_age_as_a_moment(api: Api, frozen_clock: Any) -> None:
    """The age counts from when it was asked for, not from when the scheduler comes to it."""
    api.push("a.old")
    frozen_clock.advance(hours=2)
    api.push("a.young")
    body = {"filter": {"older_than": "1h"}, "confirm": True, "background": True}
    assert api.post("/admin/jobs/bulk/cancel", body).status_code == 202
    frozen_clock.advance(hours=2)
    while bulk.advance_action():
        pass
    assert in_state("cancelled") == {"a.old"}


@pytest.mark.parametrize("path", ["/jobs/bulk/cancel", "/admin/jobs/bulk/cancel"])
@pytest.mark.parametrize("age", ["soon", "", 5, "-1h", "2026-01-01"])
def test_an_age_that_cannot_be_read_changes_nothing(api: Api, ids: dict[str, str], path: str, age: Any) -> None:
    confirm = {"confirm": True} if "admin" in path else {}
    error = error_of(api.post(path, {"filter": {"older_than": age}, **confirm}), 400, "invalid_request")
    assert error["details"]["field"] == "filter.older_than"
    assert in_state("available") == MEANT | OTHERS


def test_a_history_may_begin_so_long_ago(api: Api, frozen_clock: Any) -> None:
    found = api.get("/admin/stats/history", {"since": "24h", "period": "1h"}).json()
    first = dt.datetime.fromisoformat(found["data"][0]["timestamp"])
    assert frozen_clock.now - first >= dt.timedelta(hours=23)
    error_of(api.get("/admin/stats/history", {"since": "yesterday"}), 400, "invalid_request")


def test_an_age_and_a_time_in_one_filter_both_count(api: Api, frozen_clock: Any) -> None:
    for name in ("a.first", "a.second", "a.third"):
        api.push(name)
        frozen_clock.advance(hours=2)
    until = (frozen_clock.now - dt.timedelta(hours=5)).isoformat()
    for given in ({"older_than": "1h", "until": until}, {"older_than": "5h", "until": frozen_clock.now.isoformat()}):
        found = api.post("/admin/jobs/bulk/cancel", {"filter": given, "dry_run": True}).json()
        assert found["matched"] == 1
