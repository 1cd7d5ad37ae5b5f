"""What the generator and the walks found, one by one."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from django.test import Client

from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Failure, fail_one
from django_ojs.jobs.push import push

pytestmark = pytest.mark.django_db


@pytest.fixture
def client(settings: Any) -> Client:
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    return Client()


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_a_forged_cursor_with_an_instant_beyond_the_calendar(
    client: Client, time: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_ojs.http.pagination.mark_of", lambda request, order: "known")
    push([{"type": "a.b", "args": [], "retry": {"max_attempts": 1}}])
    (row,) = fetch(Fetch(["default"]))
    fail_one(Failure(row["id"], {"message": "no"}))
    cursor = base64.urlsafe_b64encode(json.dumps([0, "known", time, str(row["id"])]).encode()).decode()
    response = client.get("/ojs/v1/dead-letter", {"cursor": cursor})
    assert (response.status_code, response.json()["error"]["details"]) == (400, {"field": "cursor"})


@pytest.mark.parametrize("source", ["ojs://django-ojs/workers/%00", "ojs://django-ojs/workers/a%00*"])
def test_a_source_with_a_nul_in_it_matches_nothing(client: Client, source: str) -> None:
    push([{"type": "a.b", "args": []}])
    fetch(Fetch(["default"], worker_id="a"))
    response = client.get("/ojs/v1/events", {"sources": source})
    assert (response.status_code, response.json()["events"]) == (200, [])


def test_a_session_cookie_with_a_nul_in_it_is_no_session(client: Client) -> None:
    response = client.get("/ojs/v1/queues", headers={"Cookie": 'sessionid="\\000aaaaaaaaaaa"'})
    assert response.status_code == 200


@pytest.mark.parametrize("version", ["9" * 5000, "0" * 5000 + "2", 10**4000, "\u0662"])
def test_a_unique_job_of_a_version_with_thousands_of_digits(client: Client, version: Any) -> None:
    body = json.dumps({"type": "a.b", "args": [], "version": version, "unique": {"keys": ["type"]}})
    assert client.post("/ojs/v1/jobs", body, content_type="application/json").status_code == 201
    assert client.post("/ojs/v1/jobs", body, content_type="application/json").status_code == 409


@pytest.mark.parametrize("query", [{"offset": 10**9}, {"page": 10**9}])
@pytest.mark.parametrize("path", ["jobs", "unique-jobs", "admin/audit"])
def test_a_page_too_far_behind_is_refused_by_the_name_that_the_caller_gave_it(
    client: Client, path: str, query: dict[str, int]
) -> None:
    response = client.get(f"/ojs/v1/{path}", query)
    assert (response.status_code, response.json()["error"]["details"]["field"]) == (400, *query)


@pytest.mark.parametrize("member, value", [("active_job_ids", "x"), ("active_jobs", "x"), ("job_id", [])])
def test_a_heartbeat_names_the_member_that_it_cannot_read(client: Client, member: str, value: Any) -> None:
    body = json.dumps({"worker_id": "w", member: value})
    response = client.post("/ojs/v1/workers/heartbeat", body, content_type="application/json")
    assert (response.status_code, response.json()["error"]["details"]["field"]) == (400, member)


def test_limits_of_a_queue_with_an_unknown_member_name_it(client: Client) -> None:
    body = json.dumps({"concurrency": 1, "burst": 5})
    response = client.put("/ojs/v1/admin/queues/q/rate-limit", body, content_type="application/json")
    assert (response.status_code, response.json()["error"]["details"]["field"]) == (400, "burst")


def test_a_deletion_page_of_the_dashboard_with_an_empty_field_to_look_by(admin_client: Client) -> None:
    """Django looks for a field without a name."""
    (pushed,) = push([{"type": "a.b", "args": []}])
    response = admin_client.get(f"/admin/django_ojs/event/{pushed.row['id']}/delete/", {"_to_field": ""})
    assert response.status_code in (302, 403, 404)
