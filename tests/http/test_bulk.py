"""Bulk operations: every item has its answer, and atomic means all or nothing."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs.events import log
from django_ojs.models import AuditEntry, Job, Queue
from tests.http.conftest import Api, error_of


def job(n: int = 0, **more: Any) -> dict[str, Any]:
    return {"type": "test.echo", "args": [n], **more}


def unique(n: int = 0, on_conflict: str = "reject") -> dict[str, Any]:
    return job(n, unique={"on_conflict": on_conflict})


def statuses(response: Any) -> list[str]:
    items = response.json()["items"]
    assert [item["index"] for item in items] == list(range(len(items)))
    return [item["status"] for item in items]


def bulk_events(name: str) -> list[dict[str, Any]]:
    return [event["data"] for event in log.read(types=[f"bulk.{name}.completed"]).events]


class TestEnqueue:
    def test_all_fine(self, api: Api) -> None:
        response = api.post("/jobs/bulk", {"jobs": [job(n) for n in range(3)]})
        body = response.json()
        assert (response.status_code, response["X-OJS-Batch-Size"]) == (201, "3")
        assert (body["total"], body["succeeded"], body["failed"]) == (3, 3, 0)
        assert [item["job"]["args"] for item in body["items"]] == [[0], [1], [2]]
        assert statuses(response) == ["created"] * 3
        (event,) = bulk_events("enqueue")
        assert {k: event[k] for k in ("total", "succeeded", "failed", "atomicity")} == {
            "total": 3, "succeeded": 3, "failed": 0, "atomicity": "partial",
        }  # fmt: skip

    def test_partly_the_others_are_stored(self, api: Api) -> None:
        first = api.push(**unique())
        jobs = [unique(), unique(0, "ignore"), {"type": "test.echo"}, job(7), unique(0, "replace")]
        response = api.post("/jobs/bulk", {"jobs": jobs})
        assert (response.status_code, statuses(response)) == (
            207, ["failed", "duplicate", "failed", "created", "created"],
        )  # fmt: skip
        items = response.json()["items"]
        assert items[0]["error"]["code"] == "duplicate"
        assert items[1]["job"]["id"] == first["id"]
        assert (items[2]["error"]["code"], items[2]["error"]["details"]["index"]) == ("invalid_payload", 2)
        assert response.json()["succeeded"] == 3
        assert api.get(f"/jobs/{first['id']}").json()["job"]["state"] == "cancelled"

    def test_all_failed(self, api: Api) -> None:
        response = api.post("/jobs/bulk", {"jobs": [{"type": "A"}, {"args": []}]})
        assert (response.status_code, statuses(response)) == (422, ["failed", "failed"])

    @pytest.mark.parametrize("culprit", [{"type": "test.echo"}, unique()])
    def test_atomically_nothing_is_stored_and_the_culprit_named(self, api: Api, culprit: dict[str, Any]) -> None:
        api.push(**unique())
        response = api.post("/jobs/bulk", {"jobs": [job(1), culprit, unique(2)], "atomicity": "atomic"})
        assert (response.status_code, statuses(response)) == (422, ["failed"] * 3)
        codes = [item["error"]["code"] for item in response.json()["items"]]
        assert codes[::2] == ["x_batch_aborted"] * 2
        assert codes[1] in ("invalid_payload", "duplicate")
        assert Job.objects.count() == 1
        assert bulk_events("enqueue")[0]["failed"] == 3

    def test_a_full_queue_takes_what_fits(self, api: Api) -> None:
        bounded(2)
        response = api.post("/jobs/bulk", {"jobs": [job(n) for n in range(4)]})
        assert (response.status_code, statuses(response)) == (207, ["created", "created", "failed", "failed"])
        assert response.json()["items"][3]["error"]["code"] == "QUEUE_FULL"
        assert response["X-OJS-Queue-Pressure"] == "1.00"

    def test_the_same_key_replays_status_and_body(self, api: Api) -> None:
        jobs = {"jobs": [job(1), {"type": "test.echo"}], "idempotency_key": "k1"}
        first, second = api.post("/jobs/bulk", jobs), api.post("/jobs/bulk", jobs)
        assert (first.status_code, second.status_code) == (207, 207)
        assert first.json() == second.json()
        assert Job.objects.count() == 1
        error_of(api.post("/jobs/bulk", {**jobs, "jobs": [job(2)]}), 409, "conflict")
        other = api.post("/jobs/bulk", {"jobs": [job(3)], "idempotency_key": "k1"}, idempotency_key="k2")
        assert other.status_code == 201

    @pytest.mark.parametrize(
        "body",
        [{}, {"jobs": []}, {"jobs": {}}, {"jobs": [job()], "atomicity": "maybe"},
         {"jobs": [job()], "idempotency_key": "x" * 257}],
    )  # fmt: skip
    def test_a_bad_request_is_refused(self, api: Api, body: dict[str, Any]) -> None:
        error_of(api.post("/jobs/bulk", body), 400, "invalid_request")

    def test_too_many_are_refused_with_the_limit(self, api: Api, settings: Any) -> None:
        settings.OJS = {**settings.OJS, "MAX_BATCH_SIZE": 2}
        response = api.post("/jobs/bulk", {"jobs": [job()] * 3})
        error = error_of(response, 413, "batch_size_exceeded")
        assert error["max_batch_size"] == error["details"]["max_batch_size"] == 2
        assert (response["X-OJS-Max-Batch-Size"], response["X-OJS-Batch-Size"]) == ("2", "3")

    @pytest.mark.usefixtures("long_memory")
    def test_many_cost_what_few_do(self, api: Api) -> None:
        api.push()
        costs = []
        for count in (10, 200):
            with CaptureQueriesContext(connection) as captured:
                api.post("/jobs/bulk", {"jobs": [job(n) for n in range(count)]})
            costs.append(len(captured))
        assert costs[0] == costs[1]


def bounded(size: int, **more: Any) -> None:
    Queue.objects.update_or_create(
        name="default",
        defaults={"config": {"backpressure": {"max_depth": size, **more}}},
        create_defaults={
            "config": {"backpressure": {"max_depth": size, **more}},
            "created_at": "2026-01-01T00:00:00Z",
            "updated_at": "2026-01-01T00:00:00Z",
        },
    )


class TestChanges:
    @pytest.fixture
    def jobs(self, api: Api) -> dict[str, str]:
        """One job in each of some states, by state."""
        ids = {"completed": api.push()["id"]}
        api.fetch()
        api.post("/workers/ack", {"job_id": ids["completed"]})
        ids["retryable"] = api.push(retry={"initial_interval": "1h", "max_interval": "1h"})["id"]
        api.fetch()
        api.post("/workers/nack", {"job_id": ids["retryable"], "error": {"message": "no", "code": "x"}})
        ids["discarded"] = api.dead_letter()["id"]
        ids["hidden"] = api.dead_letter(retry={"max_attempts": 1, "on_exhaustion": "discard"})["id"]
        ids["active"] = api.push()["id"]
        api.fetch()
        ids["scheduled"] = api.push(scheduled_at="2100-01-01T00:00:00Z")["id"]
        ids["cancelled"] = api.push()["id"]
        api.delete(f"/jobs/{ids['cancelled']}")
        ids["available"] = api.push(priority=7, meta={"tenant": "a", "n": 1}, queue="other")["id"]
        return ids

    def test_cancel_by_ids(self, api: Api, jobs: dict[str, str]) -> None:
        names = ["available", "active", "completed", "cancelled"]
        ids = [jobs[name] for name in names] + ["0", "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"]
        response = api.post("/jobs/bulk/cancel", {"job_ids": ids})
        body = response.json()
        assert (response.status_code, response["X-OJS-Batch-Size"]) == (207, "6")
        assert statuses(response) == ["cancelled", "cancelled", *["skipped"] * 4]
        assert [item.get("reason") for item in body["items"]] == [
            None, None, "completed", "already_cancelled", "not_found", "not_found",
        ]  # fmt: skip
        assert (body["total_matched"], body["cancelled"], body["skipped"]) == (6, 2, 4)
        assert bulk_events("cancel")[0]["cancelled"] == 2, "as the answer says"

    @pytest.mark.parametrize(
        "verb, good, done", [("cancel", "available", "cancelled"), ("retry", "discarded", "retried"),
                             ("delete", "completed", "deleted")]
    )  # fmt: skip
    @pytest.mark.parametrize("atomicity", ["partial", "atomic"])
    def test_a_job_that_is_named_twice_counts_once(
        self, api: Api, jobs: dict[str, str], verb: str, good: str, done: str, atomicity: str
    ) -> None:
        ids = [jobs[good], jobs[good], jobs[good].upper()]
        response = api.post(f"/jobs/bulk/{verb}", {"job_ids": ids, "atomicity": atomicity})
        body = response.json()
        assert (response.status_code, statuses(response), response["X-OJS-Batch-Size"]) == (200, [done] * 3, "3")
        assert (body["total_matched"], body[done], body["skipped"], body["failed"]) == (1, 1, 0, 0)
        (event,) = bulk_events(verb)
        assert (event["total"], event[done], event["skipped"]) == (1, 1, 0), "as the answer says"
        detail = AuditEntry.objects.get(action=f"job.bulk_{verb}").detail
        assert (detail["matched"], detail["succeeded"], detail["job_ids"]) == (1, 1, [jobs[good]])

    def test_cancel_by_filter_spares_what_runs(self, api: Api, jobs: dict[str, str]) -> None:
        response = api.post("/jobs/bulk/cancel", {"filter": {}})
        assert {item["job_id"] for item in response.json()["items"]} == {jobs["available"], jobs["scheduled"]}
        assert response.status_code == 200
        response = api.post("/jobs/bulk/cancel", {"filter": {"state": ["active", "retryable"]}})
        assert (response.status_code, sorted(statuses(response))) == (207, ["cancelled", "skipped"])
        assert api.get(f"/jobs/{jobs['active']}").json()["job"]["state"] == "active"

    @pytest.mark.parametrize(
        "given, matches",
        [
            ({"type": "test.echo"}, 2), ({"type": "x"}, 0), ({"queue": "other"}, 1), ({"priority": 7}, 1),
            ({"meta": {"tenant": "a"}}, 1), ({"meta": {"tenant": "a", "n": 1.0}}, 1), ({"meta": {"n": True}}, 0),
            ({"meta": {"tenant": "b"}}, 0), ({"enqueued_before": "2000-01-01T00:00:00Z"}, 0),
            ({"enqueued_after": "2000-01-01T00:00:00Z"}, 1), ({"queue": "other", "state": "scheduled"}, 0),
        ],
    )  # fmt: skip
    def test_filters(self, api: Api, jobs: dict[str, str], given: dict[str, Any], matches: int) -> None:
        response = api.post("/jobs/bulk/cancel", {"filter": given})
        assert (response.status_code, response.json()["total_matched"]) == (200, matches)

    def test_retry_takes_discarded_and_retryable_jobs(self, api: Api, jobs: dict[str, str]) -> None:
        names = ["discarded", "hidden", "retryable", "completed", "active"]
        response = api.post("/jobs/bulk/retry", {"job_ids": [jobs[name] for name in names]})
        assert (response.status_code, statuses(response)) == (207, ["retried"] * 3 + ["failed"] * 2)
        assert response.json()["items"][3]["error"]["code"] == "conflict"
        states = {name: api.get(f"/jobs/{jobs[name]}").json()["job"]["state"] for name in names}
        assert list(states.values()) == ["available"] * 3 + ["completed", "active"]

    def test_delete_takes_ended_jobs(self, api: Api, jobs: dict[str, str]) -> None:
        names = ["completed", "cancelled", "discarded", "hidden", "active"]
        response = api.post("/jobs/bulk/delete", {"job_ids": [jobs[name] for name in names]})
        assert (response.status_code, statuses(response)) == (207, ["deleted"] * 4 + ["failed"])
        assert api.get(f"/jobs/{jobs['completed']}").status_code == 404
        assert api.get(f"/jobs/{jobs['active']}").status_code == 200

    @pytest.mark.parametrize("verb, good, bad", [("cancel", "available", "completed"), ("retry", "discarded", "active"),
                                                 ("delete", "completed", "available")])  # fmt: skip
    def test_atomically_nothing_happens(
        self, api: Api, jobs: dict[str, str], verb: str, good: str, bad: str
    ) -> None:  # fmt: skip
        before = {j.pk: j.state for j in Job.objects.all()}
        for stranger in (jobs[bad], "nonsense"):
            response = api.post(f"/jobs/bulk/{verb}", {"job_ids": [jobs[good], stranger], "atomicity": "atomic"})
            assert response.status_code == 422
            assert response.json()["items"][0]["error"]["code"] == "x_batch_aborted"
            assert {j.pk: j.state for j in Job.objects.all()} == before
        assert api.post(f"/jobs/bulk/{verb}", {"job_ids": [jobs[good]], "atomicity": "atomic"}).status_code == 200

    @pytest.mark.parametrize(
        "body",
        [
            {}, {"job_ids": ["x"], "filter": {}}, {"job_ids": []}, {"job_ids": [1]}, {"job_ids": "x"},
            {"filter": []}, {"filter": {"states_": []}}, {"filter": {"state": ["gone"]}}, {"filter": {"priority": "x"}},
            {"filter": {"enqueued_before": "yesterday"}}, {"filter": {"queue": "A b"}}, {"filter": {"meta": 1}},
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("verb", ["cancel", "retry", "delete"])
    def test_a_bad_request_is_refused(self, api: Api, verb: str, body: dict[str, Any]) -> None:
        error_of(api.post(f"/jobs/bulk/{verb}", body), 400, "invalid_request")

    def test_a_filter_that_meets_too_many_says_that_there_are_more(self, api: Api, settings: Any) -> None:
        for n in range(3):
            api.push(args=[n])
        settings.OJS = {**settings.OJS, "MAX_BATCH_SIZE": 2}
        body = api.post("/jobs/bulk/cancel", {"filter": {"type": "test.echo"}}).json()
        assert (body["cancelled"], body["has_more"]) == (2, True)
        body = api.post("/jobs/bulk/cancel", {"filter": {"type": "test.echo"}}).json()
        assert (body["cancelled"], "has_more" in body) == (1, False)

    def test_a_limited_key_reaches_its_own_queues_only(self, with_key: Any) -> None:
        anybody, limited = with_key("admin"), with_key("admin", queues=["mine"])
        other, mine = anybody.push(queue="other"), anybody.push(queue="mine")
        error_of(limited.post("/jobs/bulk/cancel", {"job_ids": [other["id"]]}), 403, "permission_denied")
        items = limited.post("/jobs/bulk/cancel", {"filter": {}}).json()["items"]
        assert [item["job_id"] for item in items] == [mine["id"]]
        error_of(with_key("push").post("/jobs/bulk/delete", {"filter": {}}), 403, "permission_denied")


class TestAMetaThatIsLookedFor:
    """No index finds a meta, and what the site hides is not to be found out by asking for it."""

    @pytest.fixture
    def hidden(self, api: Api, settings: Any) -> Api:
        rules = {"keys": ["password"], "types": {"secret.*": ["meta"]}, "classified": True}
        settings.OJS = {**settings.OJS, "REDACT": rules}
        return api

    @pytest.mark.parametrize(
        "type, meta, guess",
        [
            ("a.b", {"password": "right"}, {"password": "right"}),
            ("a.b", {"login": {"password": "right"}}, {"login": {"password": "right"}}),
            ("secret.b", {"tenant": "right"}, {"tenant": "right"}),
            ("a.b", {"tenant": "right", "data_classification": "restricted"}, {"tenant": "right"}),
        ],
    )
    @pytest.mark.parametrize("verb", ["cancel", "retry", "delete"])
    def test_a_right_guess_tells_no_more_than_a_wrong_one(
        self, hidden: Api, verb: str, type: str, meta: Any, guess: Any
    ) -> None:
        hidden.push(type, meta=meta)
        body = {"filter": {"meta": guess, "state": "available"}}
        assert hidden.post(f"/jobs/bulk/{verb}", body).json()["total_matched"] == 0

    def test_what_is_shown_can_be_asked_for(self, hidden: Api) -> None:
        hidden.push(meta={"password": "right", "tenant": "a"})
        body = {"filter": {"meta": {"tenant": "a"}}}
        assert hidden.post("/jobs/bulk/cancel", body).json()["total_matched"] == 1

    @pytest.mark.parametrize("name", ["\ud800", "\0", 'a"b', "a\n", "ü"])
    @pytest.mark.parametrize("value", [1, "\ud800"])
    def test_its_members_may_have_any_name(self, api: Api, name: str, value: Any) -> None:
        api.push(meta={name: value})
        for matches in (1, 0):  # then it is cancelled
            answer = api.post("/jobs/bulk/cancel", {"filter": {"meta": {name: value}}})
            assert (answer.status_code, answer.json()["total_matched"]) == (200, matches)

    def test_it_is_looked_for_only_so_far(self, api: Api, settings: Any) -> None:
        settings.OJS = {**settings.OJS, "SEARCH_DEPTH": 1, "SEARCH_SECONDS": 60.0}
        wanted = api.push(queue="small", meta={"tenant": "a"})["id"]
        for n in range(6):
            api.push(args=[n], meta={"tenant": "b"})
        answer = api.post("/jobs/bulk/cancel", {"filter": {"meta": {"tenant": "a"}}})
        error = error_of(answer, 400, "invalid_request")
        assert (error["details"]["field"], error["details"]["searched"]) == ("filter.meta", 5)
        assert not Job.objects.filter(state="cancelled").exists()
        answer = api.post("/jobs/bulk/cancel", {"filter": {"meta": {"tenant": "a"}, "queue": "small"}})
        assert [item["job_id"] for item in answer.json()["items"]] == [wanted]

    def test_it_ends_where_there_are_enough_oldest_first(self, api: Api, settings: Any) -> None:
        settings.OJS = {**settings.OJS, "SEARCH_DEPTH": 1, "SEARCH_SECONDS": 60.0, "MAX_BATCH_SIZE": 2}
        ids = [api.push(args=[n], meta={"tenant": "a"})["id"] for n in range(7)]
        body = api.post("/jobs/bulk/cancel", {"filter": {"meta": {"tenant": "a"}}}).json()
        assert ([item["job_id"] for item in body["items"]], body["has_more"]) == (ids[:2], True)
