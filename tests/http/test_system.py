"""Manifest and health."""

import dataclasses
from typing import Any

import pytest

import django_ojs
from django_ojs.http import claim, manifest
from tests.http.conftest import Api


def test_the_manifest_claims_what_there_is(api: Api) -> None:
    body = api.client.get("/ojs/manifest").json()
    assert (body["specversion"], body["ojs_version"]) == ("1.0", "1.0")
    assert body["implementation"]["name"] == "django-ojs"
    assert body["implementation"]["version"] == django_ojs.__version__
    assert body["implementation"]["language"] == "python"
    assert (body["conformance_tier"], body["protocols"]) == ("runtime", ["http"])
    assert body["backend"] in ("sqlite", "postgres", "mysql", "mariadb")
    assert all(isinstance(value, bool) for value in body["capabilities"].values())
    assert body["capabilities"]["workflows"] is True
    assert set(body["extensions"]) == {"official", "experimental"}
    assert body["endpoints"]["base_url"] == "http://testserver/ojs/v1"


def test_the_conformance_level_is_what_a_recorded_run_has_shown(api: Api, monkeypatch: Any) -> None:
    body, recorded = api.client.get("/ojs/manifest").json(), claim.read()
    assert recorded is not None
    assert body["conformance_level"] == recorded.level
    assert body["test_suite_version"] == f"{recorded.suite} {recorded.test_suite_version}"
    assert body["test_suite_passed_at"] == recorded.passed_at
    monkeypatch.setattr(manifest, "CLAIM", None)
    assert "test_suite_version" not in api.client.get("/ojs/manifest").json()


def test_the_tier_is_full_where_both_bindings_are_offered_and_have_passed(
    api: Api, settings: Any, monkeypatch: Any
) -> None:  # fmt: skip
    def tier() -> str:
        found: str = api.client.get("/ojs/manifest").json()["conformance_tier"]
        return found

    recorded = claim.read()
    assert recorded is not None
    assert tier() == "runtime"
    settings.OJS = {**settings.OJS, "GRPC": True}
    assert tier() == "full"
    over_http = dataclasses.replace(recorded, bindings={"http": recorded.bindings["http"]})
    for known in (over_http, None):
        monkeypatch.setattr(manifest, "CLAIM", known)
        assert tier() == "runtime"


def test_clients_that_send_a_version_get_the_extensions_as_a_list(api: Api, monkeypatch: Any, settings: Any) -> None:
    entry = {"name": "x", "uri": "urn:ojs:ext:x", "version": "1.0.0"}
    monkeypatch.setitem(manifest.EXTENSIONS, "official", [entry])
    settings.OJS = {**settings.OJS, "EXECUTION_HISTORY": False}
    assert api.client.get("/ojs/manifest").json()["extensions"]["official"] == [entry]
    assert api.client.get("/ojs/manifest", headers={"OJS-Version": "1.0"}).json()["extensions"] == ["x"]


def test_the_manifest_follows_the_settings(api: Api, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "MAX_ENVELOPE_BYTES": 5_000_000}
    assert api.client.get("/ojs/manifest").json()["payload_limits"]["max_envelope_bytes"] == 5_000_000


def test_health_counts_queues_and_workers(api: Api) -> None:
    api.push(queue="a")
    api.post("/queues/b/pause")
    api.post("/workers/heartbeat", {"worker_id": "w1"})
    body = api.get("/health").json()
    assert (body["status"], body["version"]) == ("ok", "1.0")
    assert body["uptime_seconds"] >= 0
    assert body["backend"]["status"] == "ok"
    assert body["backend"]["connection"] == "connected"
    assert body["backend"]["latency_ms"] >= 0
    assert body["queues"] == {"active": 1, "paused": 1, "total": 2, "unserved": {}}
    assert body["workers"] == {"connected": 1, "active": 1, "total": 1, "stale": 0}


def test_a_silent_worker_is_stale(api: Api, frozen_clock: Any) -> None:
    api.post("/workers/heartbeat", {"worker_id": "w1"})
    frozen_clock.advance(seconds=46)
    assert api.get("/health").json()["workers"]["stale"] == 1
    silent = api.get("/workers/w1/health")
    assert (silent.status_code, silent.json()["status"]) == (503, "stale")


def test_events_are_declared_as_they_are_kept_and_can_be_had(
    api: Api, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Channels in its place, and over WSGI, neither WebSocket nor streams work."""
    monkeypatch.setattr(manifest, "TRANSPORTS", ["http-polling"])
    settings.OJS = {**settings.OJS, "EVENT_RETENTION": 36 * 3600, "EVENT_MAX_COUNT": 5000}
    body = api.client.get("/ojs/manifest").json()
    assert body["events"] == {
        "delivery": "at_least_once", "delivery_guarantee": "at_least_once", "ordering": "per_job",
        "retention_period": "36h", "max_count": 5000, "transports": ["http-polling", "webhook"],
    }  # fmt: skip
    assert "websocket" not in body["endpoints"]
    assert [body["capabilities"][name] for name in ("events", "webhooks", "cron", "cron_jobs")] == [True] * 4
    monkeypatch.setattr("django_ojs.webhooks.missing", lambda: ("urllib3",))
    assert api.client.get("/ojs/manifest").json()["events"]["transports"] == ["http-polling"]


def test_a_server_that_can_stream_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    # A list of its own: another test may have announced it for good, as the import of the WebSockets' routes does.
    monkeypatch.setattr(manifest, "TRANSPORTS", ["http-polling"])
    manifest.announce("websocket")
    told = manifest.manifest("http://x", [], streams=True)
    assert told["events"]["transports"] == ["http-polling", "websocket", "sse", "webhook"]
    assert told["endpoints"]["websocket"] == "/ojs/v1/ws"
