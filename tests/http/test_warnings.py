"""Members that mean nothing are kept, as core 5.5 demands, and named in the answer of every call that took them."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.http.conftest import Api

SLIPS: list[tuple[dict[str, Any], str, str | None]] = [
    ({"retry": {"max_attemps": 30}}, "retry.max_attemps", "max_attempts"),
    ({"retry": {"max_retries": 30}}, "retry.max_retries", "max_attempts"),
    ({"retry": {"zzz": 1}}, "retry.zzz", None),
    ({"unique": {"on_conflit": "ignore"}}, "unique.on_conflit", "on_conflict"),
    ({"rate_limit": {"key": "k", "concurency": 1}}, "rate_limit.concurency", "concurrency"),
    ({"rate_limit": {"key": "k", "rate": {"limit": 1, "period": "minute", "brust": 5}}}, "rate_limit.rate.brust", None),
    ({"options": {"retry_policy": {"max_attemps": 3}}}, "options.retry_policy.max_attemps", "max_attempts"),
    ({"options": {"timout": 30}}, "options.timout", "timeout"),
    ({"prority": 5}, "prority", "priority"),
    ({"retry_policy": {"max_attempts": 3}}, "retry_policy", "retry"),
    ({"delay_until": "2030-01-01T00:00:00Z"}, "delay_until", "scheduled_at"),
]


def job(**more: Any) -> dict[str, Any]:
    return {"type": "test.echo", "args": [str(uuid.uuid4())], **more}


def named(warnings: list[dict[str, Any]]) -> list[tuple[str, str | None]]:
    for warning in warnings:
        assert warning["code"] == "unknown_member"
        assert warning["message"].startswith(f"{warning['path']}: ")
    return [(warning["path"], warning.get("suggestion")) for warning in warnings]


@pytest.mark.parametrize("slip, path, meant", SLIPS, ids=[path for _, path, _ in SLIPS])
class TestEveryCallThatTakesJobs:
    def test_one_job(self, api: Api, slip: dict[str, Any], path: str, meant: str | None) -> None:
        response = api.post("/jobs", job(**slip))
        assert response.status_code == 201
        assert named(response.json()["warnings"]) == [(path, meant)]
        kept = api.get(f"/jobs/{response.json()['job']['id']}").json()["job"]
        if "retry_policy" not in path and not path.startswith("options."):
            assert {name: kept[name] for name in slip} == slip

    def test_batches(self, api: Api, slip: dict[str, Any], path: str, meant: str | None) -> None:
        jobs = [job(), job(**slip)]
        (warning,) = api.post("/jobs/batch", {"jobs": jobs}).json()["warnings"]
        assert (warning["index"], named([warning])) == (1, [(path, meant)])
        jobs = [job(), job(**slip)]
        fine, slipped = api.post("/jobs/bulk", {"jobs": jobs}).json()["items"]
        assert "warnings" not in fine
        assert named(slipped["warnings"]) == [(path, meant)]

    def test_workflows(self, api: Api, slip: dict[str, Any], path: str, meant: str | None) -> None:
        body = {
            "type": "batch", "jobs": [job(), {"type": "chain", "steps": [job(**slip)]}],
            "callbacks": {"on_complete": job(**slip)},
        }  # fmt: skip
        response = api.post("/workflows", body)
        assert response.status_code == 201, response.content
        assert named(response.json()["warnings"]) == [
            (f"$.jobs[1].steps[0].{path}", meant), (f"$.callbacks.on_complete.{path}", meant),
        ]  # fmt: skip
        assert "warnings" not in response.json()["workflow"], "they are about the request, not about the workflow"

    def test_schedules(self, api: Api, slip: dict[str, Any], path: str, meant: str | None) -> None:
        flat = api.post("/cron", {"name": "n", "cron": "@daily", **job(**slip)})
        assert flat.status_code == 201, flat.content
        assert named(flat.json()["warnings"]) == [(path, meant)]
        nested = api.post("/cron", {"name": "n", "cron": "@daily", "job_template": job(**slip)})
        assert nested.status_code == 200, nested.content
        assert named(nested.json()["warnings"]) == [(f"job_template.{path}", meant)]
        changed = api.client.patch("/ojs/v1/cron/n", slip, content_type="application/json")
        assert named(changed.json()["warnings"]) == [(path, meant)]
        assert "warnings" not in api.get("/cron/n").json()


def test_a_workflow_s_own_members(api: Api) -> None:
    body = {"type": "chain", "queue": "q", "nam": "x", "options": {"retry": {"max_attemps": 1}}, "steps": [job()]}
    response = api.post("/workflows", body)
    assert sorted(named(response.json()["warnings"])) == [
        ("$.nam", "name"), ("$.options.retry.max_attemps", "max_attempts"), ("$.queue", "options.queue"),
    ]  # fmt: skip


def test_a_schedule_s_own_members(api: Api) -> None:
    response = api.post("/cron", {"name": "n", "cron": "@daily", "timezne": "UTC", **job()})
    assert named(response.json()["warnings"]) == [("timezne", "timezone")]


@pytest.mark.parametrize(
    "members",
    [
        {"x_timeout": 5, "ext_retry": {}, "correlation": 1, "headers": {}, "retry": {"x_note": 1, "jitter": None}},
        {"state": "active", "attempt": 3, "error": {}, "workflow_id": "w", "options": {"source": "web"}},
    ],
)
def test_members_of_the_clients_own_and_of_the_servers_are_no_slips(api: Api, members: dict[str, Any]) -> None:
    assert "warnings" not in api.post("/jobs", job(**members)).json()


def test_a_replayed_answer_has_the_same_warnings(api: Api) -> None:
    document = job(retry={"max_attemps": 3})
    first, second = (api.post("/jobs", document, **{"Idempotency-Key": "k"}) for _ in range(2))
    assert second["Idempotency-Replayed"] == "true"
    assert first.json() == second.json()
