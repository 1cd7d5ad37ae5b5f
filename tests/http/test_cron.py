"""Schedules over HTTP: every spelling in and out, refusals, limits of keys."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_ojs.cron.runs import tick
from django_ojs.models import CronSchedule
from tests.http.conftest import Api, error_of

pytestmark = pytest.mark.django_db

TEMPLATE = {"type": "report.make", "args": [{"n": 1}], "options": {"queue": "reports"}}


def put(api: Api, method: str, path: str, body: Any) -> Any:
    return api.client.generic(method, f"/ojs/v1{path}", json.dumps(body).encode(), content_type="application/json")


def register(api: Api, name: str = "nightly", **members: Any) -> dict[str, Any]:
    response = api.post("/cron", {"name": name, "expression": "0 3 * * *", "job_template": TEMPLATE, **members})
    assert response.status_code in (200, 201), response.content
    return response.json()


def test_the_entry_in_every_spelling(api: Api, frozen_clock: Any) -> None:
    response = api.post(
        "/cron",
        {"name": "nightly", "expression": "@daily", "timezone": "Asia/Tokyo", "job_template": TEMPLATE, "x": 1},
    )
    assert response.status_code == 201
    assert response["Location"] == "/ojs/v1/cron/nightly"
    body = response.json()
    entry = {
        "id": "nightly", "name": "nightly", "cron": "@daily", "expression": "@daily", "schedule": "@daily",
        "timezone": "Asia/Tokyo", "type": "report.make", "args": [{"n": 1}], "meta": {}, "queue": "reports",
        "options": {"queue": "reports"},
        "job_template": {"type": "report.make", "args": [{"n": 1}], "meta": {}, "options": {"queue": "reports"}},
        "overlap_policy": "skip", "enabled": True, "status": "active", "description": "", "last_run_at": None,
        "next_run_at": "2026-01-15T15:00:00.000Z", "run_count": 0,
        "created_at": "2026-01-15T12:00:00.000Z", "updated_at": "2026-01-15T12:00:00.000Z",
    }  # fmt: skip
    assert body["cron"] == body["cron_job"] == entry
    assert {name: body[name] for name in entry if name != "cron"} == {k: v for k, v in entry.items() if k != "cron"}
    assert api.get("/cron/nightly").json() == body
    assert api.get("/crons/nightly").json() == body
    listed = api.get("/cron").json()
    assert listed["crons"] == listed["cron_jobs"] == listed["items"] == [entry]
    assert (listed["count"], listed["pagination"]["total"]) == (1, 1)


@pytest.mark.parametrize("field", ["cron", "expression", "schedule"])
@pytest.mark.parametrize(
    "job",
    [
        {"type": "a.b", "args": [1], "meta": {"m": 1}, "options": {"queue": "q"}},
        {"job_template": {"type": "a.b", "args": [1], "meta": {"m": 1}, "options": {"queue": "q"}}},
        {"type": "a.b", "args": [1], "meta": {"m": 1}, "queue": "q"},
        {"queue": "q", "job_template": {"type": "a.b", "args": [1], "meta": {"m": 1}}},
    ],
    ids=["flat", "template", "flat with a queue", "template with a queue"],
)
def test_every_spelling_means_the_same(api: Api, field: str, job: dict[str, Any]) -> None:
    response = api.post("/cron", {"name": "n", field: "*/5 * * * *", **job})
    assert response.status_code == 201, response.content
    entry = response.json()["cron"]
    assert (entry["cron"], entry["type"], entry["args"], entry["queue"]) == ("*/5 * * * *", "a.b", [1], "q")
    assert entry["meta"] == {"m": 1}
    made = api.post("/cron/n/trigger").json()["job"]
    assert (made["queue"], made["args"], made["meta"]["m"]) == ("q", [1], 1)


def test_an_entry_can_be_sent_back_as_it_was_read(api: Api) -> None:
    entry = register(api, overlap_policy="replace", description="every night")["cron"]
    again = api.post("/cron", entry)
    assert again.status_code == 200
    kept = {name: value for name, value in again.json()["cron"].items() if name != "updated_at"}
    assert kept == {name: value for name, value in entry.items() if name != "updated_at"}


def test_flat_attributes_of_the_job_are_kept(api: Api) -> None:
    body = {"name": "n", "cron": "@daily", "type": "a.b", "priority": 7, "retry": {"max_attempts": 9}, "tags": ["t"]}
    assert api.post("/cron", body).status_code == 201
    job = api.post("/cron/n/trigger").json()["job"]
    assert (job["priority"], job["max_attempts"], job["tags"]) == (7, 9, ["t"])


def test_unknown_attributes_of_the_job_are_kept_null_too(api: Api) -> None:
    unknown = {"x_own": [1, None], "x_null": None, "options": {"x_option": None}}
    template = {"type": "a.b", "args": [], "priority": None, **unknown}
    body = {"name": "n", "cron": "@daily", "overlap_policy": "allow", "job_template": template}
    assert api.post("/cron", body).status_code == 201
    job = api.post("/cron/n/trigger").json()["job"]
    assert {**unknown, "priority": 0}.items() <= job.items()
    assert put(api, "PATCH", "/cron/n", {"job_template": {"args": [1], "x_own": None}}).status_code == 200
    job = api.post("/cron/n/trigger").json()["job"]
    assert {**unknown, "x_own": None, "args": [1]}.items() <= job.items()
    beside = {"type": "a.b", "job_template": {"args": [2], "type": None, "x_null": None}}
    assert put(api, "PUT", "/cron/n", {"cron": "@daily", "overlap_policy": "allow", **beside}).status_code == 200
    job = api.post("/cron/n/trigger").json()["job"]
    assert {"type": "a.b", "args": [2], "x_null": None}.items() <= job.items()


@pytest.mark.parametrize("null", ["retry_policy", "retry", "metadata", "meta", "delay_until", "timeout_ms"])
@pytest.mark.parametrize("place", ["beside", "options"])
def test_a_null_takes_nothing_back(api: Api, null: str, place: str) -> None:
    says = {"retry": {"max_attempts": 7}, "meta": {"m": 1}, "scheduled_at": "2099-01-01T00:00:00Z", "timeout": 5}
    register(api, job_template={**TEMPLATE, **(says if place == "beside" else {"options": says})})

    def kept() -> dict[str, Any]:
        document = CronSchedule.objects.get().document
        return document if place == "beside" else document["options"]

    assert put(api, "PATCH", "/cron/nightly", {"job_template": {null: None}}).status_code == 200
    assert says.items() <= kept().items()


@pytest.mark.parametrize(
    "members,field,canonical",
    [
        ({"expression": "not a valid cron"}, "expression", "INVALID_CRON_EXPRESSION"),
        ({"expression": "0 0 0 0 0 0 0"}, "expression", "INVALID_CRON_EXPRESSION"),
        ({"expression": "99 25 32 13 8"}, "expression", "INVALID_CRON_EXPRESSION"),
        ({"expression": "*/0 * * * *"}, "expression", "INVALID_CRON_EXPRESSION"),
        ({"expression": "0 0 30 2 *"}, "expression", "INVALID_CRON_EXPRESSION"),
        ({"expression": ""}, "expression", "INVALID_CRON_EXPRESSION"),
        ({"expression": 5}, "expression", "INVALID_CRON_EXPRESSION"),
        ({"expression": None}, "cron", "INVALID_CRON_EXPRESSION"),
        ({"cron": "@daily"}, "cron", ""),
        ({"timezone": "EST"}, "timezone", ""),
        ({"timezone": "Etc/GMT+5"}, "timezone", ""),
        ({"timezone": "+05:00"}, "timezone", ""),
        ({"timezone": 7}, "timezone", ""),
        ({"name": "Nightly_Report"}, "name", ""),
        ({"name": "n" * 256}, "name", ""),
        ({"name": None}, "name", ""),
        ({"overlap_policy": "never"}, "overlap_policy", ""),
        ({"overlap_policy": ["skip"]}, "overlap_policy", ""),
        ({"enabled": "yes"}, "enabled", ""),
        ({"description": "\x00"}, "description", ""),
        ({"description": "\ud800"}, "description", ""),
        ({"job_template": "report.make"}, "job_template", ""),
        ({"job_template": {}}, "type", "INVALID_JOB_TYPE"),
        ({"job_template": {"type": "Not A Type"}}, "job_template.type", "INVALID_JOB_TYPE"),
        ({"job_template": {**TEMPLATE, "args": {}}}, "job_template.args", "INVALID_ARGS"),
        ({"job_template": {**TEMPLATE, "options": {"retry": {"max_attempts": -1}}}}, "", "INVALID_RETRY_POLICY"),
        ({"job_template": {**TEMPLATE, "id": "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"}}, "job_template.id", ""),
        ({"type": "another.type"}, "job_template.type", ""),
    ],
)
def test_what_is_refused(api: Api, members: dict[str, Any], field: str, canonical: str) -> None:
    body = {"name": "n", "expression": "0 3 * * *", "job_template": TEMPLATE, **members}
    error = error_of(api.post("/cron", body), 400, "invalid_request")
    if field:
        assert error["details"]["field"] == field
    if canonical:
        assert error["canonical_code"] == canonical
    assert not CronSchedule.objects.exists()


def test_an_unpaired_surrogate_in_a_job_is_kept(api: Api) -> None:
    raw = b'{"name": "n", "cron": "@daily", "type": "a.b", "args": ["\\ud800", 1e400, "\\u0000"]}'
    assert api.raw("/cron", raw).status_code == 201
    assert b'["\\ud800",1e400,"\\u0000"]' in api.post("/cron/n/trigger").content


def test_registering_twice_updates(api: Api, frozen_clock: Any) -> None:
    first = register(api)
    frozen_clock.advance(seconds=5)
    response = api.post("/cron", {"name": "nightly", "cron": "0 4 * * *", "type": "other.type"})
    assert response.status_code == 200
    entry = response.json()["cron"]
    assert (entry["type"], entry["queue"], entry["created_at"]) == ("other.type", "default", first["created_at"])


def test_put_takes_the_name_from_the_path(api: Api) -> None:
    body = {"cron": "@daily", "type": "a.b"}
    response = put(api, "PUT", "/cron/n", body)
    assert (response.status_code, response["Location"]) == (201, "/ojs/v1/cron/n")
    assert put(api, "PUT", "/cron/n", body).status_code == 200
    error_of(put(api, "PUT", "/cron/n", {**body, "name": "m"}), 400, "invalid_request")


def test_patch_changes_what_is_given_and_keeps_the_rest(api: Api) -> None:
    register(api, timezone="Europe/Paris", description="d")
    body = {"expression": "0 5 * * *", "job_template": {"args": [2]}, "queue": "other"}
    response = put(api, "PATCH", "/cron/nightly", body)
    assert response.status_code == 200, response.content
    entry = response.json()["cron"]
    assert (entry["cron"], entry["args"], entry["type"]) == ("0 5 * * *", [2], "report.make")
    assert (entry["timezone"], entry["description"], entry["queue"]) == ("Europe/Paris", "d", "other")
    error_of(put(api, "PATCH", "/cron/nightly", {"timezone": "EST"}), 400, "invalid_request")
    error_of(put(api, "PATCH", "/cron/nightly", {"name": "other"}), 400, "invalid_request")
    assert api.get("/cron/nightly").json()["cron"] == entry


def test_patch_of_the_retry_policy_beats_the_attempts_of_the_options(api: Api) -> None:
    register(api, job_template={**TEMPLATE, "options": {"max_attempts": 7, "tags": ["t"]}})
    body = {"retry": {"maxAttempts": 2}}
    assert put(api, "PATCH", "/cron/nightly", body).json()["cron"]["options"] == {"tags": ["t"]}
    assert api.post("/cron/nightly/trigger", {}).json()["job"]["max_attempts"] == 2
    put(api, "PATCH", "/cron/nightly", {"options": {"max_attempts": 7}})
    put(api, "PATCH", "/cron/nightly", {"retry": {"jitter": False}})
    assert api.get("/cron/nightly").json()["cron"]["options"] == {"max_attempts": 7}, "which this does not tell"


@pytest.mark.parametrize("off,on", [("pause", "resume"), ("disable", "enable"), ("PATCH", "PATCH")])
def test_switching_off_and_on(api: Api, off: str, on: str) -> None:
    register(api)

    def switch(word: str, enabled: bool) -> dict[str, Any]:
        if word == "PATCH":
            return put(api, "PATCH", "/cron/nightly", {"enabled": enabled}).json()["cron"]
        return api.post(f"/cron/nightly/{word}").json()["cron"]

    entry = switch(off, False)
    assert (entry["enabled"], entry["status"], entry["next_run_at"]) == (False, "paused", None)
    assert [e["name"] for e in api.get("/cron", {"enabled": "false"}).json()["items"]] == ["nightly"]
    assert api.get("/cron", {"enabled": "true"}).json()["count"] == 0
    entry = switch(on, True)
    assert (entry["enabled"], entry["status"]) == (True, "active")
    assert entry["next_run_at"] is not None


def test_trigger_and_history(api: Api, frozen_clock: Any) -> None:
    register(api)
    answer = api.post("/crons/nightly/trigger")
    assert answer.status_code == 200
    job_id = answer.json()["job_id"]
    assert answer.json()["cron"]["run_count"] == 1
    assert api.fetch("reports")["id"] == job_id
    refusal = error_of(api.post("/cron/nightly/trigger"), 409, "conflict")
    assert refusal["details"]["existing_job_id"] == job_id
    api.post("/workers/ack", {"job_id": job_id})
    now = "2026-01-15T12:00:00.000Z"
    assert api.get("/cron/nightly/history", {"limit": "5"}).json()["executions"] == [
        {"job_id": job_id, "state": "completed", "scheduled_at": now, "triggered_at": now, "started_at": now,
         "completed_at": now}
    ]  # fmt: skip


def test_delete_answers_what_was_there(api: Api) -> None:
    register(api)
    body = api.delete("/cron/nightly").json()
    assert (body["deleted"], body["name"], body["cron"]["name"]) == (True, "nightly", "nightly")
    assert api.get("/cron").json()["crons"] == []
    for response in (api.delete("/cron/nightly"), api.get("/cron/nightly"), api.post("/cron/nightly/trigger")):
        assert error_of(response, 404, "not_found")["details"]["resource_id"] == "nightly"


@pytest.mark.parametrize("name", ["No_Such", "%00", "a" * 300])
def test_a_name_that_cannot_be_is_not_found(api: Api, name: str) -> None:
    error_of(api.get(f"/cron/{name}"), 404, "not_found")
    error_of(api.get(f"/cron/{name}/history"), 404, "not_found")


def test_lists_have_pages_and_refuse_nonsense(api: Api) -> None:
    for name in ("c", "a", "b"):
        register(api, name)
    page = api.get("/cron", {"limit": "2"}).json()
    assert [entry["name"] for entry in page["crons"]] == ["a", "b"]
    rest = api.get("/cron", {"limit": "2", "cursor": page["pagination"]["next_cursor"]}).json()
    assert [entry["name"] for entry in rest["crons"]] == ["c"]
    error_of(api.get("/cron", {"enabled": "maybe"}), 400, "invalid_request")


def test_a_key_needs_the_scope(with_key: Any) -> None:
    reader, pusher, admin = with_key("read"), with_key("push", "work"), with_key("admin")
    register(admin)
    assert reader.get("/cron").json()["count"] == 1
    assert reader.get("/cron/nightly/history").status_code == 200
    for caller in (reader, pusher):
        error_of(caller.post("/cron", {"name": "n", "cron": "@daily", "type": "a.b"}), 403, "permission_denied")
        error_of(caller.post("/cron/nightly/trigger"), 403, "permission_denied")
        error_of(caller.delete("/cron/nightly"), 403, "permission_denied")
    error_of(pusher.get("/cron"), 403, "permission_denied")
    error_of(Api().get("/cron"), 401, "unauthenticated")


def test_a_limited_key_neither_sees_nor_touches_what_lies_outside(with_key: Any) -> None:
    register(with_key("admin"))
    for limited in (with_key("admin", queues=["mine"]), with_key("admin", job_types=["mail.*"])):
        assert "nightly" not in [entry["name"] for entry in limited.get("/cron").json()["crons"]]
        mine = {"name": "nightly", "cron": "@daily", "type": "mail.send", "queue": "mine"}
        for response in (
            limited.get("/cron/nightly"),
            limited.post("/cron/nightly/trigger"),
            limited.delete("/cron/nightly"),
            limited.post("/cron", mine),  # would replace it
            limited.post("/cron", {**mine, "name": "n", "type": "report.make", "queue": "reports"}),
        ):
            error_of(response, 403, "permission_denied")
        assert limited.post("/cron", {**mine, "name": "n"}).status_code in (200, 201)
        error_of(put(limited, "PATCH", "/cron/n", {"queue": "other", "type": "a.b"}), 403, "permission_denied")
    assert CronSchedule.objects.get(pk="nightly").type == "report.make"


def test_a_tick_is_fetched_over_http(api: Api, frozen_clock: Any) -> None:
    api.post("/cron", {"name": "n", "expression": "* * * * *", "job_template": TEMPLATE})
    frozen_clock.advance(minutes=1)
    tick()
    job = api.fetch("reports")
    assert (job["type"], job["state"], job["meta"]["cron_name"]) == ("report.make", "active", "n")
    entry = api.get("/cron/n").json()["cron"]
    assert (entry["run_count"], entry["last_run_at"]) == (1, "2026-01-15T12:01:00.000Z")


def test_the_manifest_says_so(api: Api) -> None:
    assert api.client.get("/ojs/manifest").json()["capabilities"]["cron_jobs"] is True
