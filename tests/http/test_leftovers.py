"""A request leaves nothing in memory that only Python's garbage collector would find."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import RequestFactory
from django.urls import resolve

from tests.http.conftest import V1, Api

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def is_gone_after(method: str, path: str, body: Any = None, status: int = 200) -> bool:
    """Whether the view and the request are gone as soon as nobody holds the answer."""
    request = RequestFactory().generic(method, path, json.dumps(body) if body else "", "application/json")
    match = resolve(path)
    response = match.func(request, *match.args, **match.kwargs)
    assert response.status_code == status, response.content
    found = [weakref.ref(request), weakref.ref(response)]
    del request, response
    return all(ref() is None for ref in found)


def test_nothing_is_left_of_the_calls_of_clients_and_workers() -> None:
    assert is_gone_after("POST", f"{V1}/jobs", {"type": "a.b", "args": []}, 201)
    assert is_gone_after("POST", f"{V1}/workers/heartbeat", {"worker_id": "w"})
    assert is_gone_after("POST", f"{V1}/workers/fetch", {"queues": ["default"], "worker_id": "w"})
    for name, more in (("ack", {}), ("nack", {"error": {"message": "no"}})):
        Api().push()
        job = Api().fetch()
        assert is_gone_after("POST", f"{V1}/workers/{name}", {"job_id": job["id"], **more})


def test_nor_of_a_look_at_a_job_or_at_the_server() -> None:
    job = Api().push()
    assert is_gone_after("GET", f"{V1}/jobs/{job['id']}")
    assert is_gone_after("GET", f"{V1}/health")
