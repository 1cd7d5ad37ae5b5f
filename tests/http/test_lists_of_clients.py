"""What clients of the project call beside the binding: lists, totals, purges, held keys, the middleware."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs import clock
from django_ojs.models import AuditEntry, Job
from django_ojs.queues import configuration
from tests.http.conftest import Api, error_of
from tests.middlewares import added

pytestmark = pytest.mark.django_db


def ended(api: Api, queue: str = "default") -> str:
    job = api.push(queue=queue)["id"]
    api.fetch(queue)
    api.post("/workers/ack", {"job_id": job})
    return str(job)


def test_a_reading_key_lists_the_jobs_that_an_operator_sees(with_key: Any) -> None:
    api = with_key("admin")
    for queue in ("a", "b"):
        for number in range(3):
            api.push("a.b", [number], queue=queue)
    reader = with_key("read")
    for query in ({}, {"queue": "a"}, {"state": "available", "limit": 2}, {"type": "a.*", "sort": "priority"}):
        listed, operated = reader.get("/jobs", query).json(), api.get("/admin/jobs", query).json()
        assert listed["items"] == listed["jobs"] == operated["items"]
        assert listed["total"] == listed["pagination"]["total"] == (3 if "queue" in query else 6)
        assert "args" not in listed["items"][0]
    error_of(reader.get("/admin/jobs"), 403, "permission_denied")
    error_of(with_key("push").get("/jobs"), 403, "permission_denied")
    limited = with_key("read", queues=["a"]).get("/jobs").json()
    assert {item["queue"] for item in limited["items"]} == {"a"}
    assert limited["total"] == 3
    assert len(reader.get("/jobs", {"limit": 1000}).json()["items"]) == 6
    assert reader.get("/jobs").json()["pagination"]["limit"] == 50
    assert reader.get("/jobs", {"limit": 1000}).json()["pagination"]["limit"] == 200
    assert with_key("push").post("/jobs", {"type": "a.b", "args": []}).status_code == 201


LISTS = ["/jobs", "/queues", "/dead-letter", "/cron", "/workflows", "/rate-limits", "/schemas", "/unique-jobs",
         "/webhooks/subscriptions", "/admin/jobs", "/admin/queues", "/admin/workers", "/admin/dead-letter",
         "/admin/audit", "/admin/bulk-actions", "/admin/scheduling/stats"]  # fmt: skip


@pytest.mark.parametrize("path", LISTS)
def test_a_list_has_its_total_at_the_top(api: Api, path: str) -> None:
    body = api.get(path).json()
    assert body["total"] == body["pagination"]["total"]


def test_a_total_at_the_top_says_that_there_are_more_where_they_were_not_counted(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_ojs.http.pagination.CAP", 2)
    for number in range(4):
        api.push(args=[number])
    body = api.get("/jobs", {"worker_id": "", "since": "1h"}).json()
    assert (body["total"], body["total_is_minimum"], body["pagination"]["total_is_minimum"]) == (2, True, True)


def test_the_attempts_that_failed_are_told_and_what_the_site_hides_is_not(api: Api, settings: Any) -> None:
    job = api.push(retry={"max_attempts": 3, "initial_interval": "PT0.001S"})["id"]
    assert api.get(f"/jobs/{job}/retries").json()["retries"] == []
    api.fetch()
    error = {"message": "the card 4711", "code": "declined"}
    assert api.post("/workers/nack", {"job_id": job, "error": error}).json()["state"] == "retryable"
    found = api.get(f"/jobs/{job}/retries").json()
    assert (found["job_id"], found["state"], found["attempt"], found["max_attempts"]) == (job, "retryable", 1, 3)
    assert found["next_attempt_at"]
    assert found["retries"] == found["items"]
    assert (found["total"], found["retries"][0]["attempt"], found["retries"][0]["message"]) == (1, 1, "the card 4711")
    assert found["policy"] == found["retry_policy"]
    assert found["policy"]["max_attempts"] == 3
    told = found["retries"][0]
    assert (told["error"], told["failed_at"]) == (told["message"], told["occurred_at"])
    settings.OJS = {**settings.OJS, "REDACT": {"types": {"*": ["errors"]}}}
    assert "4711" not in api.get(f"/jobs/{job}/retries").content.decode()
    error_of(api.get("/jobs/019539a4-0000-7000-8000-000000000000/retries"), 404, "not_found")


def test_the_attempts_of_a_job_are_for_who_may_see_it(with_key: Any) -> None:
    api = with_key("admin")
    job = api.push(queue="a")["id"]
    assert with_key("read", queues=["a"]).get(f"/jobs/{job}/retries").status_code == 200
    error_of(with_key("read", queues=["b"]).get(f"/jobs/{job}/retries"), 403, "permission_denied")


def test_a_queue_is_purged_of_what_has_ended_by_who_may_purge(with_key: Any) -> None:
    api = with_key("admin")
    gone, kept, live = ended(api, "q"), ended(api, "other"), api.push(queue="q")["id"]
    body = {"states": ["completed"], "confirm": True}
    error_of(with_key("read", "push", "work").post("/queues/q/purge", body), 403, "permission_denied")
    for confirm in (False, None, "true"):
        error_of(api.post("/queues/q/purge", {**body, "confirm": confirm}), 400, "invalid_request")
    error_of(api.post("/queues/q/purge", {**body, "states": ["available"]}), 400, "invalid_request")
    assert Job.objects.count() == 3
    purger = with_key("admin")
    assert purger.post("/queues/q/purge", body).json()["purged_count"] == 1
    assert api.get(f"/jobs/{gone}").status_code == 404
    assert {str(pk) for pk in Job.objects.values_list("pk", flat=True)} == {kept, live}
    assert AuditEntry.objects.filter(action="job.purge", target="queue q", outcome="success").exists()


def test_dead_letters_are_purged_beside_the_list_as_below_admin(with_key: Any) -> None:
    api = with_key("admin")
    letter, live = api.dead_letter()["id"], api.push()["id"]
    error_of(with_key("read").post("/dead-letter/purge", {"confirm": True}), 403, "permission_denied")
    error_of(api.post("/dead-letter/purge", {}), 400, "invalid_request")
    assert api.post("/dead-letter/purge", {"confirm": True}).json()["purged_count"] == 1
    assert api.get(f"/jobs/{letter}").status_code == 404
    assert [str(pk) for pk in Job.objects.values_list("pk", flat=True)] == [live]
    assert AuditEntry.objects.filter(action="job.purge", outcome="success").exists()


class TestUniqueJobs:
    def keys(self, api: Api, **query: Any) -> dict[str, Any]:
        return {item["job_id"]: item for item in api.get("/unique-jobs", query).json()["items"]}

    def test_a_key_is_listed_while_it_is_held(self, api: Api, frozen_clock: Any) -> None:
        api.push()
        plain = api.push(args=[1], unique={"key": []})
        timed = api.push(args=[2], unique={"key": [], "period": "PT1H"})["id"]
        after = api.push(args=[3], unique={"key": [], "period": "PT1H", "states": ["completed"]}, queue="done")["id"]
        assert self.keys(api).keys() == {plain["id"], timed}
        conflict = error_of(
            api.post("/jobs", {"type": "test.echo", "args": [1], "unique": {"key": []}}), 409, "duplicate"
        )
        held = self.keys(api)[plain["id"]]
        assert held == {
            "key": conflict["details"]["unique_key"], "job_id": plain["id"], "type": "test.echo", "queue": "default",
            "state": "available", "locked_until": None,
        }  # fmt: skip
        api.fetch("done")
        api.post("/workers/ack", {"job_id": after})
        assert self.keys(api).keys() == {plain["id"], timed, after}
        assert self.keys(api)[after]["locked_until"] == self.keys(api)[timed]["locked_until"]
        frozen_clock.advance(hours=1, seconds=1)
        assert self.keys(api).keys() == {plain["id"]}
        api.post(f"/jobs/{plain['id']}/cancel")
        assert self.keys(api) == {}

    def test_a_key_does_not_tell_what_the_site_hides(self, api: Api, settings: Any) -> None:
        """It is a digest without a secret: who guesses the arguments could tell whether the guess is right."""
        job = api.push(unique={"key": []})["id"]
        settings.OJS = {**settings.OJS, "REDACT": {"types": {"*": ["args"]}}}
        assert self.keys(api)[job]["key"] == "[REDACTED]"

    def test_a_limited_key_sees_its_own_queues(self, with_key: Any) -> None:
        api = with_key("admin")
        own = api.push(queue="a", unique={"key": []})["id"]
        api.push(args=[1], queue="b", unique={"key": []})
        assert self.keys(with_key("read", queues=["a"])).keys() == {own}

    def test_it_looks_no_further_than_a_search_may(self, api: Api, settings: Any) -> None:
        settings.OJS = {**settings.OJS, "SEARCH_DEPTH": 20}
        oldest = api.push(args=["u"], unique={"key": []})["id"]
        api.post("/jobs/batch", {"jobs": [{"type": "a.b", "args": [n]} for n in range(200)]})
        seen: list[str] = []
        pages, query = 0, dict[str, str]()
        while True:
            with CaptureQueriesContext(connection) as captured:
                body = api.get("/unique-jobs", query).json()
            assert len(captured) < 30
            seen += [item["job_id"] for item in body["items"]]
            pages += 1
            if not body["pagination"]["has_more"]:
                break
            query = {"cursor": body["pagination"]["next_cursor"]}
        assert seen == [oldest]
        assert pages > 1


def outer(job: Any, next: Any) -> Any:
    return next(job)


def around(job: Any, context: Any, next: Any) -> Any:
    return next()


def test_the_middleware_is_named_in_its_order_without_the_sites_paths(settings: Any, with_key: Any) -> None:
    api = with_key("admin")
    settings.OJS = {**settings.OJS, "ENQUEUE_MIDDLEWARE": [f"{__name__}.outer"],
                    "EXECUTION_MIDDLEWARE": [f"{__name__}.around"]}  # fmt: skip
    with added(outer):
        answer = api.get("/middleware")
    assert answer.json() == {
        "enqueue": [{"name": "outer", "phase": "enqueue", "order": n} for n in range(2)],
        "execution": [{"name": "around", "phase": "execution", "order": 0}],
    }
    error_of(with_key("read").get("/middleware"), 403, "permission_denied")


def test_the_command_line_purges_without_confirm_and_no_other_path_does(api: Api) -> None:
    ended(api, "q")
    other: Any = {"content_type": "application/json", "data": json.dumps({"states": ["completed"]})}
    for path in ("/ojs/v1/admin/queues/q/jobs", "/ojs/v1/admin/dead-letter", "/ojs/v1/dead-letter"):
        given = other if "queues" in path else {**other, "data": "{}"}
        assert error_of(api.client.delete(path, **given), 400, "invalid_request")["details"]["field"] == "confirm"
    for path in ("/dead-letter/purge", "/admin/dead-letter/purge"):
        assert error_of(api.post(path, {"filter": {}}), 400, "invalid_request")["details"]["field"] == "confirm"
    counted = api.post("/queues/q/purge", {"states": ["completed"], "dry_run": True}).json()
    assert (counted["matched"], counted["purged_count"]) == (1, 0)
    assert api.post("/queues/q/purge", {"states": ["completed"]}).json()["purged_count"] == 1


def test_the_command_line_tells_how_many_jobs_of_a_batch_were_enqueued(api: Api) -> None:
    job = {"type": "a.b", "args": []}
    unique = {**job, "options": {"unique": {"keys": ["type"], "on_conflict": "ignore"}}}
    body = api.post("/jobs/batch", {"jobs": [job, unique, unique]}).json()
    assert (body["count"], body["enqueued"], body["failed"]) == (3, 2, 0)


def test_a_client_that_reads_one_page_sees_all_queues(api: Api) -> None:
    configuration.ensure([f"q{number:03}" for number in range(300)], clock.now(), "default")
    body = api.get("/queues").json()
    assert len(body["queues"]) == 301  # `default` is always there
    assert (body["pagination"]["has_more"], body["pagination"]["limit"]) == (False, 1000)
    assert len(api.get("/queues", {"limit": "7"}).json()["queues"]) == 7
    assert len(api.get("/admin/queues").json()["items"]) == 20


def test_schedules_stand_under_each_name_that_clients_look_for(api: Api) -> None:
    api.post("/cron", {"name": "nightly", "expression": "@daily", "type": "a.b", "args": []})
    for path in ("/cron", "/crons", "/admin/cron"):
        body = api.get(path).json()
        assert [entry["name"] for entry in body["entries"]] == ["nightly"]
        assert body["entries"] == body["crons"] == body["items"]


def test_no_workflow_is_pending(api: Api) -> None:
    api.post("/workflows", {"type": "chain", "steps": [{"type": "a.b", "args": []}]})
    listed = api.get("/workflows", {"state": "pending"})
    assert (listed.status_code, listed.json()["items"], listed.json()["total"]) == (200, [], 0)
