"""A client that speaks JSON, and shortcuts for the calls that most tests begin with."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from django.db import transaction
from django.test import Client

from django_ojs import jsontext, keys
from django_ojs.http import testhooks
from django_ojs.http.base import OJSView
from django_ojs.queues import configuration
from django_ojs.testing import database
from tests.http.described import Sent, described

V1 = "/ojs/v1"
#: The names of members in the bodies of requests, as they are written, and in the faults of answers.
_NAMES = re.compile(rb'"(?:[^"\\]|\\.)*"(?=\s*:)')
_UNDECLARED = re.compile(r" has (.*), undeclared$", re.DOTALL)


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


@contextlib.contextmanager
def undone() -> Iterator[None]:
    """A block whose writes are undone at its end, and which is no transaction of a caller's."""
    point = transaction.savepoint()
    yield
    transaction.savepoint_rollback(point)
    database.forget()


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
def echoed() -> None:
    """The test sends what no client should, and answers repeat it: they are not compared with the document."""


def _is_ours(view: Any) -> bool:
    """Whether the document is to have it: no view of a site's own, and none of the test hooks."""
    module = type(view).__module__
    return module.startswith("django_ojs.") and module != testhooks.__name__


@pytest.fixture(autouse=True)
def described_answers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Sent]]:
    """Every answer of our views that the test gets has the members that the OpenAPI document says, with their types,
    and no others. The answers that have been compared."""
    answers: list[Sent] = []
    if find_spec("drf_spectacular") is None or "echoed" in request.fixturenames:
        yield answers
        return
    document, found, sent, finalize = described(), dict[str, None](), set[bytes](), OJSView.finalize_response

    def checked(view: Any, request: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        answer = finalize(view, request, response, *args, **kwargs)
        match = view.request.resolver_match
        if match is not None and _is_ours(view) and not answer.streaming:
            route, media = match.route[max(match.route.find("ojs/"), 0) :], answer.get("Content-Type", "")
            sent.update(_NAMES.findall(getattr(view, "raw", None) or b""))
            method = "GET" if view.request.method == "HEAD" else view.request.method
            sent_answer = Sent(route, method, answer.status_code, media, answer.content, frozenset(answer.headers))
            answers.append(sent_answer)
            found.update(dict.fromkeys(document.faults(sent_answer)))
        return answer

    monkeypatch.setattr(OJSView, "finalize_response", checked)
    yield answers
    for fault in list(found):  # a job keeps the members of its client's own
        if (own := _UNDECLARED.search(fault)) and jsontext.dumps(own[1]).encode(errors="replace") in sent:
            del found[fault]
    assert not found, "\n".join(found)


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
