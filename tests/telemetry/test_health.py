"""Probes: for everybody, quickly, and without telling strangers much."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError

from django_ojs.http import probes
from django_ojs.statistics import summary

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("_root")]

PATHS = ("/health", "/ojs/v1/health", "/ready", "/readyz", "/healthz")


@pytest.fixture
def _root(settings: Any) -> None:
    settings.ROOT_URLCONF = "django_ojs.testing.urls"


@pytest.fixture
def hanging(monkeypatch: Any) -> Iterator[list[int]]:
    """A database that says nothing; the list tells how often it was asked."""
    let_go, asked = threading.Event(), list[int]()

    class Silent:
        def cursor(self) -> Any:
            asked.append(1)
            let_go.wait(60)
            raise OperationalError("timed out")

        def close(self) -> None:
            pass

    with monkeypatch.context() as patch:
        patch.setattr(probes, "connections", {"default": Silent()})
        patch.setattr(probes, "PATIENCE", 0.05)
        yield asked
        let_go.set()
        while probes._asking:
            time.sleep(0.001)


@pytest.mark.parametrize("path", PATHS)
def test_probes_answer_strangers_also_with_bad_credentials(api: Any, settings: Any, path: str) -> None:
    settings.OJS = {**settings.OJS, "ALLOW_ANONYMOUS": False}
    for headers in ({}, {"authorization": "Bearer nonsense"}):
        response = api.client.get(path, headers=headers)
        assert response.status_code == 200
        assert response.json()["status"] in ("ok", "ready")


def test_strangers_see_no_more_than_that_it_works(api: Any, with_key: Any) -> None:
    bare = {"status", "version", "uptime_seconds", "timestamp", "backend"}
    assert api.get("/health").json().keys() == bare
    assert api.get("/health").json()["backend"].keys() == {"type", "status", "connection", "latency_ms"}
    assert with_key("push").get("/health").json().keys() == bare
    assert with_key("read", queues=["a"]).get("/health").json().keys() == bare
    assert with_key("read").get("/health").json().keys() == bare | {"queues", "jobs", "workers", "maintenance"}


def test_probes_fill_no_log_while_the_database_is_away(api: Any, monkeypatch: Any, caplog: Any) -> None:
    def fail() -> float:
        raise OperationalError("gone")

    monkeypatch.setattr(probes, "_sign_of_life", fail)
    for path in PATHS[:4] * 5:
        assert api.client.get(path).status_code == 503
    records = [record for record in caplog.records if record.name in ("django_ojs.http", "django.request")]
    assert [record.getMessage().partition(" (request ")[0] for record in records] == [
        "The database refuses requests, as the health check"
    ]


def test_a_silent_database_is_503_within_bounds(api: Any, hanging: list[int]) -> None:
    for path in ("/health", "/ojs/v1/health", "/ready", "/readyz"):
        response = api.client.get(path)
        assert response.status_code == 503
        assert response["Retry-After"]
    assert api.client.get("/health").json()["backend"]["status"] == "unhealthy"
    assert api.client.get("/ready").json()["status"] == "not_ready"
    assert api.client.get("/healthz").status_code == 200
    assert len(hanging) == 1  # nobody piles up behind it


def test_a_database_that_is_back_is_asked_anew(api: Any, monkeypatch: Any) -> None:
    def refuse(self: Any) -> Any:
        raise OperationalError("connection refused")

    with monkeypatch.context() as patch:
        patch.setattr(type(probes.connections["default"]), "cursor", refuse)
        with pytest.raises(OperationalError):
            probes.ask("default")
    assert probes.ask("default") >= 0
    assert api.client.get("/ready").status_code == 200


def test_figures_take_two_statements_and_are_shared_for_a_second(
    api: Any, monkeypatch: Any, django_assert_num_queries: Any
) -> None:
    """Also while jobs wait that no worker serves."""
    api.push(queue="nobody")
    api.post("/workers/heartbeat", {"worker_id": "w1", "queues": ["other"]})
    asked = list[str]()
    monkeypatch.setattr(probes, "_ask", counting(probes._ask, asked))
    now = time.monotonic()
    monkeypatch.setattr(summary.time, "monotonic", lambda: now)
    with django_assert_num_queries(2):
        first = api.get("/health").json()
    assert first["queues"]["unserved"] == {"nobody": 1}
    api.push()
    with django_assert_num_queries(0):
        assert api.get("/health").json()["jobs"] == first["jobs"]
    assert len(asked) == 1
    now += summary.FRESH
    assert api.get("/health").json()["jobs"]["available"] == 2
    assert len(asked) == 2


def counting(act: Any, calls: list[str]) -> Any:
    def called(using: str, *args: Any) -> Any:
        calls.append(using)
        return act(using, *args)

    return called


# What the published cases on observability look at


def test_the_request_id_is_echoed_and_else_made(api: Any) -> None:
    assert api.client.get("/health", headers={"x-request-id": "req-from-client"})["X-Request-ID"] == "req-from-client"
    assert api.client.get("/health")["X-Request-ID"].startswith("req_")
    assert api.client.get("/metrics", headers={"x-request-id": "r"})["X-Request-ID"] == "r"


def test_health_has_a_word_for_the_backend(api: Any) -> None:
    assert api.client.get("/health").json()["backend"]["status"] in ("ok", "healthy", "degraded", "unhealthy")


def test_a_traceparent_survives_enqueue_and_fetch(api: Any) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    job = api.push(meta={"traceparent": parent})
    assert job["meta"] == api.fetch()["meta"] == {"traceparent": parent}


def test_the_latency_is_whole_milliseconds_for_clients_that_decode_an_integer(api: Any) -> None:
    found = api.get("/health").content
    assert re.search(rb'"latency_ms":\d+[,}]', found), found
