"""What a job may say of rate limits: no limit of a whole queue or type, no block for ever, and operators lift one."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from django.core.management import call_command

from django_ojs import clock, job
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.push import push
from django_ojs.limits import ratelimits
from django_ojs.models import AuditEntry, Event, Job, Queue, RateLimit
from django_ojs.queues.configuration import configure
from django_ojs.registry import registry
from tests.http.conftest import Api, error_of

pytestmark = pytest.mark.django_db

FAR = "2099-01-01T00:00:00Z"
KEYED = {"type": "a.b", "args": [], "queue": "a", "rate_limit": {"key": "stripe", "concurrency": 5}}


def blocked(api: Api, **attributes: Any) -> Any:
    """A job fails and asks for quiet until 2099 under its key."""
    pushed = api.post("/jobs", {**KEYED, **attributes}).json()["job"]
    claimed = api.fetch(pushed["queue"])
    error = {"message": "slow down", "code": "x", "rate_limit_until": FAR}
    response = api.post("/workers/nack", {"job_id": claimed["id"], "error": error})
    assert response.status_code == 200, response.content
    return response


class TestKeysOfTheServer:
    @pytest.mark.parametrize("key", ["queue:b", "type:pay.run", "queue:a", "queue:"])
    @pytest.mark.parametrize("limited", [True, False])
    def test_a_job_may_not_name_one(self, with_key: Any, key: str, limited: bool) -> None:
        api = with_key("push", **({"queues": ["a"]} if limited else {}))
        limit = {"key": key, "concurrency": 100}
        own = {**KEYED, "rate_limit": limit}
        error = error_of(api.post("/jobs", own), 400, "invalid_payload")
        assert error["details"]["field"].endswith("rate_limit.key")
        assert "queue: or type:" in error["message"]
        for path, body in (
            ("/jobs", {"type": "a.b", "args": [], "options": {"queue": "a", "rate_limit": limit}}),
            ("/jobs/batch", {"jobs": [own]}),
            ("/jobs/bulk", {"jobs": [own]}),
            ("/workflows", {"type": "chain", "name": "n", "steps": [own]}),
        ):
            response = api.post(path, body)
            assert response.status_code in (400, 422), (path, response.content)
            assert "rate_limit.key" in response.content.decode()
        assert not Job.objects.exists()
        assert not RateLimit.objects.exists()

    def test_nor_may_a_schedule_or_python(self, with_key: Any) -> None:
        limit = {"key": "queue:b", "concurrency": 1}
        template = {"type": "a.b", "args": [], "options": {"rate_limit": limit}}
        body = {"name": "s", "expression": "@daily", "job_template": template}
        assert with_key("admin").post("/admin/cron", body).status_code == 400
        with registry.isolated():
            job("limits.named", rate_limit=limit)(print)
            assert ["rate_limit.key" in fault.message for fault in registry.faults()] == [True]

    @pytest.mark.parametrize("limit", [{"concurrency": 0}, {"key": "k", "concurrency": 0}])
    def test_a_job_stops_no_key(self, with_key: Any, limit: Any) -> None:
        error = error_of(with_key("push").post("/jobs", {**KEYED, "rate_limit": limit}), 400, "invalid_payload")
        assert error["details"]["field"].endswith("rate_limit.concurrency")
        assert not Queue.objects.exists()


class TestBlocks:
    def test_a_block_ends_after_a_day_whatever_was_reported(self, api: Api, frozen_clock: Any) -> None:
        blocked(api)
        assert RateLimit.objects.get().blocked_until == clock.now() + dt.timedelta(days=1)
        told = Event.objects.get(type="rate_limit.dynamic_adjusted")
        assert told.data["until"].startswith("2026-01-16")

    def test_or_as_the_site_says(self, api: Api, frozen_clock: Any, settings: Any) -> None:
        settings.OJS = {**settings.OJS, "RATE_LIMIT_MAX_BLOCK": 60}
        blocked(api)
        assert RateLimit.objects.get().blocked_until == clock.now() + dt.timedelta(minutes=1)

    def test_a_limited_key_blocks_no_key_that_jobs_beyond_it_share(self, with_key: Any) -> None:
        push([{**KEYED, "queue": "b"}])
        blocked(with_key("push", "work", queues=["a"]))
        assert RateLimit.objects.get().blocked_until is None
        assert len(fetch(Fetch(["b"], count=1, worker_id="w"))) == 1

    def test_it_blocks_one_that_is_its_own(self, with_key: Any) -> None:
        api = with_key("push", "work", queues=["a"])
        push([KEYED, {**KEYED, "queue": "b", "rate_limit": {"key": "other", "concurrency": 1}}])
        blocked(api)
        assert RateLimit.objects.get(key="stripe").blocked_until is not None
        assert fetch(Fetch(["a"], count=1, worker_id="w")) == []

    def test_a_limited_key_is_not_told_how_much_of_a_shared_limit_is_used(self, with_key: Any) -> None:
        push([{**KEYED, "queue": "b"}] * 2)
        fetch(Fetch(["b"], count=2, worker_id="w"))
        answer = with_key("push", queues=["a"]).post("/jobs", KEYED)
        assert answer["X-RateLimit-Limit"] == "5"
        assert "X-RateLimit-Remaining" not in answer.headers
        assert with_key("push").post("/jobs", KEYED)["X-RateLimit-Remaining"] == "3"


def put(api: Api, path: str, body: Any) -> Any:
    return api.client.put(f"/ojs/v1{path}", body, content_type="application/json")


def lift_by_null(api: Api, key: str) -> None:
    assert "blocked_until" not in put(api, f"/admin/rate-limits/{key}", {"blocked_until": None}).json()


def lift_by_override(api: Api, key: str) -> None:
    assert put(api, f"/admin/rate-limits/{key}/override", {"blocked_until": None, "concurrency": 9}).status_code == 200


def lift_by_delete(api: Api, key: str) -> None:
    assert api.delete(f"/admin/rate-limits/{key}/override").status_code == 204


def lift_by_command(api: Api, key: str) -> None:
    call_command("ojs_rate_limits", "lift", key)


LIFTS = [lift_by_null, lift_by_override, lift_by_delete, lift_by_command]


class TestLifting:
    @pytest.mark.parametrize("on_limit", ["wait", "reschedule"])
    @pytest.mark.parametrize("lift", LIFTS, ids=lambda lift: lift.__name__)
    def test_an_operator_lifts_a_block_and_the_jobs_start(
        self, with_key: Any, lift: Any, on_limit: str, frozen_clock: Any
    ) -> None:
        api = with_key("admin")
        limit = {**KEYED["rate_limit"], "on_limit": on_limit}  # type: ignore[dict-item]
        blocked(api, rate_limit=limit, retry={"max_attempts": 1})
        push([{**KEYED, "rate_limit": limit}])
        assert fetch(Fetch(["a"], count=1, worker_id="w")) == []
        lift(api, "stripe")
        assert RateLimit.objects.get().blocked_until is None
        assert len(fetch(Fetch(["a"], count=1, worker_id="w"))) == 1
        entry = AuditEntry.objects.latest("id")
        assert entry.target == "stripe"
        assert entry.action == f"rate_limit.{'override' if lift is lift_by_override else 'lift'}"
        told = Event.objects.filter(type="rate_limit.dynamic_adjusted").latest("id").data
        assert told["reason"] == "lifted"
        assert told["lifted_by"] == entry.actor

    @pytest.mark.parametrize("is_blocked", [True, False])
    @pytest.mark.parametrize(
        "override", [{"concurrency": 9}, {"concurrency": 9, "expires_at": "2020-01-01T00:00:00Z"}, None],
        ids=["in force", "over", "none"],
    )  # fmt: skip
    def test_a_delete_is_called_what_it_does(self, with_key: Any, override: Any, *, is_blocked: bool) -> None:
        api = with_key("admin")
        if is_blocked:
            blocked(api)
        else:
            api.post("/jobs", KEYED)
        if override:
            ratelimits.override("stripe", override)
        lift_by_delete(api, "stripe")
        lifts = is_blocked and (override is None or "expires_at" in override)
        assert AuditEntry.objects.latest("id").action == f"rate_limit.{'lift' if lifts else 'clear_override'}"
        lift_by_delete(api, "stripe")
        assert AuditEntry.objects.latest("id").action == "rate_limit.clear_override"

    def test_the_block_of_a_queue_is_lifted_too(self, with_key: Any) -> None:
        configure("a", {"concurrency": 5})
        now = clock.now()
        RateLimit.objects.create(
            key="queue:a", blocked_until=now + dt.timedelta(days=9), created_at=now, updated_at=now
        )
        push([{"type": "a.b", "args": [], "queue": "a", "rate_limit": {"concurrency": 5}}])
        assert fetch(Fetch(["a"], count=1, worker_id="w")) == []
        api = with_key("admin", queues=["a"])
        assert put(api, "/admin/rate-limits/queue:a", {"blocked_until": None}).status_code == 200
        assert len(fetch(Fetch(["a"], count=1, worker_id="w"))) == 1

    def test_what_is_not_blocked_stays_as_it_is(self, with_key: Any) -> None:
        api = with_key("admin")
        api.post("/jobs", KEYED)
        lift_by_null(api, "stripe")
        assert not Event.objects.filter(type="rate_limit.dynamic_adjusted").exists()
        error_of(put(api, "/admin/rate-limits/nowhere", {"blocked_until": None}), 404, "not_found")

    def test_an_operator_sets_no_block(self, with_key: Any) -> None:
        api = with_key("admin")
        api.post("/jobs", KEYED)
        response = put(api, "/admin/rate-limits/stripe", {"blocked_until": FAR})
        assert error_of(response, 400, "invalid_request")["details"]["field"] == "blocked_until"

    def test_a_limited_key_lifts_no_block_that_others_share(self, with_key: Any) -> None:
        blocked(with_key("admin"))
        api = with_key("admin", queues=["a"])
        assert put(api, "/admin/rate-limits/stripe", {"blocked_until": None}).status_code == 403
        assert api.delete("/admin/rate-limits/stripe/override").status_code == 403
        assert RateLimit.objects.get().blocked_until is not None

    def test_the_command_lists_what_is_blocked(self, api: Api, capsys: Any) -> None:
        blocked(api)
        call_command("ojs_rate_limits", "list")
        assert "stripe" in capsys.readouterr().out
        assert ratelimits.inspect("stripe")["blocked_until"]

    def test_the_command_lists_page_by_page(self, api: Api, capsys: Any) -> None:
        blocked(api)
        for key in ("A", "a", "a.b", "z"):
            ratelimits.override(key, {"concurrency": 1})

        def listed(*more: str) -> tuple[list[str], str]:
            call_command("ojs_rate_limits", "list", "--json", *more)
            out, err = capsys.readouterr()
            return [fact["key"] for fact in json.loads(out)], err

        everything, said = listed()
        assert {"A", "a", "a.b", "stripe", "z"} <= set(everything)
        assert said == ""
        first, said = listed("--limit", "2")
        assert first == everything[:2]
        assert f"--after {first[-1]}" in said
        assert listed("--after", first[-1]) == (everything[2:], "")
        assert listed("--blocked")[0] == ["stripe"]
        ratelimits.lift("stripe")
        call_command("ojs_rate_limits", "list", "--blocked")
        assert "There are no such rate limits." in capsys.readouterr().out
