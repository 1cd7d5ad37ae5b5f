"""A client that speaks JSON, and shortcuts for the calls that most tests begin with."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from django_ojs import keys
from django_ojs.http import testhooks
from django_ojs.queues import configuration
from django_ojs.testing import database

V1 = "/ojs/v1"


class Api:
    """`api.post("/jobs", {...})` below `/ojs/v1`; `headers` go with every call."""

    def __init__(self, **headers: str) -> None:
        self.client = Client(headers=headers)

    def get(self, path: str, query: dict[str, Any] | None = None, **headers: str) -> Any:
        return self.client.get(V1 + path, query, headers=headers)

    def delete(self, path: str, **headers: str) -> Any:
        return self.client.delete(V1 + path, headers=headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        """`body` as JSON; None sends none, and no Content-Type either."""
        if body is None:
            return self.client.generic("POST", V1 + path, b"", content_type="", headers=headers)
        return self.raw(path, json.dumps(body).encode(), **headers)

    def raw(self, path: str, body: bytes, content_type: str = "application/json", **headers: str) -> Any:
        return self.client.generic("POST", V1 + path, body, content_type=content_type, headers=headers)

    def push(self, job_type: str = "test.echo", args: Any = (), **attributes: Any) -> dict[str, Any]:
        response = self.post("/jobs", {"type": job_type, "args": list(args), **attributes})
        assert response.status_code == 201, response.content
        return response.json()["job"]

    def fetch(self, queue: str = "default", **body: Any) -> dict[str, Any]:
        """One job, claimed."""
        response = self.post("/workers/fetch", {"queues": [queue], **body})
        assert response.status_code == 200, response.content
        return response.json()["job"]

    def dead_letter(self, **attributes: Any) -> dict[str, Any]:
        """A job that failed for good."""
        attributes.setdefault("retry", {"max_attempts": 1})
        job = self.push(**attributes)
        self.fetch(job["queue"])
        failed = self.post("/workers/nack", {"job_id": job["id"], "error": {"message": "broken", "code": "x"}})
        assert failed.json()["state"] == "discarded", failed.content
        return failed.json()["job"]


def error_of(response: Any, status: int, code: str) -> dict[str, Any]:
    """The error object of a response, after checking what every error must have."""
    assert response.status_code == status, (response.status_code, response.content[:500])
    error = response.json()["error"]
    assert error["code"] == code, error
    assert error["request_id"] == response["X-Request-Id"]
    assert error["message"]
    assert isinstance(error["retryable"], bool)
    assert isinstance(error["hint"], str)
    assert error["docs_url"].startswith("https://")
    assert isinstance(error["details"], dict)
    return error


@pytest.fixture(autouse=True)
def _open_site(settings: Any) -> None:
    """No credentials needed, unless a test says otherwise."""
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    configuration.forget()


@pytest.fixture
def api(db: None) -> Api:
    return Api()


@pytest.fixture
def with_key(db: None, settings: Any) -> Any:
    """`with_key("push", queues=[...])`: a client with a key of these scopes, on a site that demands keys."""
    settings.OJS = {**settings.OJS, "ALLOW_ANONYMOUS": False}
    count = iter(range(100))

    def make(*scopes: str, **limits: Any) -> Api:
        _, text = keys.create(f"key {next(count)}", scopes, **limits)
        return Api(authorization=f"Bearer {text}")

    return make


@pytest.fixture
def hooks() -> Any:
    testhooks.enable(database.reset)
    yield
    testhooks.disable()
