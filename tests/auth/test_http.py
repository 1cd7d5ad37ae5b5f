"""The same rules through the real paths: statuses, headers and bodies as a client meets them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.test import Client

from django_ojs import clock, keys

pytestmark = pytest.mark.django_db
JOB = {"type": "mail.send", "args": []}


def send(client: Client, path: str, body: Any = None, key: str = "", **headers: str) -> Any:
    if key:
        headers["Authorization"] = f"Bearer {key}"
    if body is None:
        return client.get(path, headers=headers)
    return client.post(path, body, content_type="application/json", headers=headers)


def test_without_credentials_only_health_and_manifest_answer(client: Client) -> None:
    response = send(client, "/ojs/v1/jobs", JOB)
    assert response.status_code == 401
    assert response["WWW-Authenticate"].startswith("Bearer")
    assert response.json()["error"]["code"] == "unauthenticated"
    for path in ("/ojs/manifest", "/ojs/v1/health"):
        assert send(client, path).status_code == 200
        assert send(client, path, key="nonsense").status_code == 200


def test_a_producer_pushes_and_may_not_work(client: Client) -> None:
    _, text = keys.create("producer", ["push"], queues=["default"], job_types=["mail.*"])
    assert send(client, "/ojs/v1/jobs", JOB, text).status_code == 201
    response = send(client, "/ojs/v1/workers/fetch", {"queues": ["default"]}, text)
    assert response.status_code == 403
    error = response.json()["error"]
    assert error["code"] == "permission_denied"
    assert (error["details"]["principal"], error["details"]["required_scope"]) == ("key:producer", "work")


@pytest.mark.parametrize("change", [{"queue": "other"}, {"options": {"queue": "other"}}, {"type": "report.daily"}])
def test_a_producer_stays_within_its_limits(client: Client, change: dict[str, Any]) -> None:
    _, text = keys.create("producer", ["push"], queues=["default"], job_types=["mail.*"])
    assert send(client, "/ojs/v1/jobs", {**JOB, **change}, text).status_code == 403
    assert send(client, "/ojs/v1/jobs/batch", {"jobs": [JOB, {**JOB, **change}]}, text).status_code == 403


def test_an_expired_key_says_so(client: Client, frozen_clock: Any) -> None:
    _, text = keys.create("old", ["push"], expires_at=clock.now() + dt.timedelta(hours=1))
    frozen_clock.advance(hours=2)
    response = send(client, "/ojs/v1/jobs", JOB, text)
    assert response.status_code == 401
    assert response.json()["error"]["canonical_code"] == "TOKEN_EXPIRED"
    assert response["WWW-Authenticate"].startswith("Bearer")


def test_a_staff_session_reads_and_needs_the_csrf_token_to_write(admin_user: Any) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    assert send(client, "/ojs/v1/queues").status_code == 200
    assert send(client, "/ojs/v1/jobs", JOB).status_code == 403
    token = client.get("/admin/password_change/").cookies["csrftoken"].value
    assert send(client, "/ojs/v1/jobs", JOB, **{"X-CSRFToken": token}).status_code == 201


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "https://testserver"])
def test_a_page_of_another_site_sends_nothing_without_asking_first(client: Client, settings: Any, origin: str) -> None:
    """As browsers let it do where no credentials are needed, such as on a developer's own machine."""
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    body = b'{"type": "mail.send", "args": []}'

    def post(kind: str, origin: str | None, path: str = "jobs", body: bytes = body) -> int:
        headers = {} if origin is None else {"Origin": origin}
        return client.generic("POST", f"/ojs/v1/{path}", body, content_type=kind, headers=headers).status_code

    for kind in ("", "text/plain", "application/x-www-form-urlencoded"):
        assert post(kind, origin) == 403
        assert post(kind, origin, "queues/default/pause", b"") == 403
    assert post("application/json", origin) == 201, "the browser has asked"
    assert post("", None) == post("", "http://testserver") == 201
    settings.CSRF_TRUSTED_ORIGINS = [origin]
    assert post("", origin) == 201


def test_a_customer_of_the_site_is_refused(django_user_model: Any, client: Client) -> None:
    client.force_login(django_user_model.objects.create_user("bob", password="x"))
    response = send(client, "/ojs/v1/queues")
    assert response.status_code == 403
    assert response.json()["error"]["details"]["principal"] == "user:bob"
