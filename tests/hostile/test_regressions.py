"""What the generator found, one by one."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from django.test import Client

from django_ojs.jobs.fetch import fetch
from django_ojs.jobs.finish import Failure, fail_one
from django_ojs.jobs.push import push

pytestmark = pytest.mark.django_db


@pytest.fixture
def client(settings: Any) -> Client:
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    return Client()


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_a_forged_cursor_with_an_instant_beyond_the_calendar(client: Client, time: str) -> None:
    push([{"type": "a.b", "args": [], "retry": {"max_attempts": 1}}])
    (row,) = fetch(["default"])
    fail_one(Failure(row["id"], {"message": "no"}))
    cursor = base64.urlsafe_b64encode(json.dumps([0, time, str(row["id"])]).encode()).decode()
    response = client.get("/ojs/v1/dead-letter", {"cursor": cursor})
    assert (response.status_code, response.json()["error"]["details"]) == (400, {"field": "cursor"})


@pytest.mark.parametrize("source", ["ojs://django-ojs/workers/%00", "ojs://django-ojs/workers/a%00*"])
def test_a_source_with_a_nul_in_it_matches_nothing(client: Client, source: str) -> None:
    push([{"type": "a.b", "args": []}])
    fetch(["default"], worker_id="a")
    response = client.get("/ojs/v1/events", {"sources": source})
    assert (response.status_code, response.json()["events"]) == (200, [])


def test_a_session_cookie_with_a_nul_in_it_is_no_session(client: Client) -> None:
    response = client.get("/ojs/v1/queues", headers={"Cookie": 'sessionid="\\000aaaaaaaaaaa"'})
    assert response.status_code == 200
