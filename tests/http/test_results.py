"""Results, priorities and full queues over HTTP."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest
from django.db import OperationalError, connections

from django_ojs import retention as pruning
from django_ojs.events import log
from django_ojs.http import waits
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack_one
from django_ojs.jobs.read import info
from django_ojs.models import Job
from django_ojs.queues.deletion import remove
from django_ojs.retention import prune
from django_ojs.rules import durations
from tests.http.conftest import Api, error_of
from tests.http.test_bulk import bounded

UNKNOWN = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"


def done(api: Api, result: Any = None, **attributes: Any) -> str:
    job_id: str = api.push(**attributes)["id"]
    api.fetch()
    answer = api.post("/workers/ack", {"job_id": job_id} | ({} if result is None else {"result": result}))
    assert answer.status_code == 200
    return job_id


def test_a_job_that_leaves_the_queues_of_a_key_while_it_waits(with_key: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = with_key("push", "read", queues=["mail"])
    job_id = caller.push(options={"queue": "mail"})["id"]

    def wait_for_end(*args: Any) -> bool:
        remove("mail", "move", "other")
        (row,) = fetch(Fetch(["other"]))
        ack_one(Ack(row["id"], '"secret"'))
        return True

    monkeypatch.setattr(waits, "wait_for_end", wait_for_end)
    error_of(caller.get(f"/jobs/{job_id}/result", {"wait": "true"}), 403, "permission_denied")


class TestResult:
    @pytest.mark.parametrize("value", [0, False, "", [], {}, {"a": 1.50}, "x"])
    def test_any_value_comes_back(self, api: Api, value: Any) -> None:
        job_id = done(api, value)
        answer = api.get(f"/jobs/{job_id}/result")
        assert (answer.status_code, answer.json()) == (
            200, {"job_id": job_id, "state": "completed", "result": value},
        )  # fmt: skip

    def test_no_result_is_null(self, api: Api) -> None:
        assert api.get(f"/jobs/{done(api)}/result").json()["result"] is None

    def test_a_job_that_did_not_end_well_has_an_error(self, api: Api) -> None:
        body = api.get(f"/jobs/{api.dead_letter()['id']}/result").json()
        assert (body["state"], body["error"]["message"]) == ("discarded", "broken")
        cancelled = api.push()["id"]
        api.delete(f"/jobs/{cancelled}")
        assert api.get(f"/jobs/{cancelled}/result").json()["state"] == "cancelled"

    def test_an_unfinished_job_is_202_and_408_after_waiting(self, api: Api) -> None:
        job_id = api.push()["id"]
        answer = api.get(f"/jobs/{job_id}/result")
        assert (answer.status_code, answer["Retry-After"]) == (202, "1")
        assert answer.json() == {"job_id": job_id, "state": "available", "result": None}
        error_of(api.get(f"/jobs/{job_id}/result", {"wait": "true", "timeout": "0"}), 408, "timeout")

    def test_unknown_jobs_and_bad_queries(self, api: Api) -> None:
        error_of(api.get(f"/jobs/{UNKNOWN}/result"), 404, "not_found")
        error_of(api.get("/jobs/nonsense/result"), 404, "not_found")
        job_id = api.push()["id"]
        for query in ({"wait": "perhaps"}, {"timeout": "-1"}, {"timeout": "x"}):
            error_of(api.get(f"/jobs/{job_id}/result", query), 400, "invalid_request")

    def test_a_result_is_kept_for_its_time(self, api: Api, frozen_clock: Any) -> None:
        job_id = done(api, {"a": 1}, result_ttl=60)
        shown = api.get(f"/jobs/{job_id}").json()["job"]
        assert shown["result_ttl"] == 60
        assert shown["result_size_bytes"] == 7
        assert shown["result_stored_at"] == shown["completed_at"]
        assert shown["result_expires_at"] == durations.format_instant(frozen_clock.now.replace(minute=1))
        frozen_clock.advance(seconds=60)
        for _ in range(2):
            error_of(api.get(f"/jobs/{job_id}/result"), 410, "RESULT_PRUNED")
            assert "result" not in api.get(f"/jobs/{job_id}").json()["job"]
            prune()
        assert info(uuid.UUID(job_id))["result"] is None
        assert [e["data"]["job_id"] for e in log.read(types=["result.pruned"]).events] == [job_id]

    def test_zero_keeps_nothing_and_minus_one_for_ever(self, api: Api, settings: Any, frozen_clock: Any) -> None:
        settings.OJS = {**settings.OJS, "RETENTION": {"completed": None}}
        gone, kept, usual = (done(api, 1, options={"result_ttl": ttl}) for ttl in (0, -1, None))
        error_of(api.get(f"/jobs/{gone}/result"), 410, "RESULT_PRUNED")
        Job.objects.filter(pk=usual).update(queue="other")
        frozen_clock.advance(days=6.9)
        prune()
        assert api.get(f"/jobs/{usual}/result").json()["result"] == 1
        frozen_clock.advance(days=0.1, milliseconds=1)  # the three were pushed one after the other
        assert prune()["results"] == 1
        answer = api.get(f"/jobs/{kept}")
        assert answer.json()["job"]["result"] == 1
        assert "result_expires_at" not in answer.json()["job"]
        error_of(api.get(f"/jobs/{usual}/result"), 410, "RESULT_PRUNED")

    def test_the_sites_time_prunes_too(self, api: Api, settings: Any, frozen_clock: Any) -> None:
        settings.OJS = {**settings.OJS, "RESULT_TTL": 100}
        jobs = [done(api, n) for n in range(3)]
        frozen_clock.advance(seconds=100, milliseconds=1)  # the three were pushed one after the other
        assert [prune(batch=2)["results"] for _ in range(3)] == [2, 1, 0]
        assert {info(uuid.UUID(job_id))["result"] for job_id in jobs} == {None}

    @pytest.mark.parametrize("ttl", ["1h", -2, 1.5, True, 2**31])
    def test_a_bad_ttl_is_refused(self, api: Api, ttl: Any) -> None:
        answer = api.post("/jobs", {"type": "a.b", "args": [], "result_ttl": ttl})
        assert error_of(answer, 400, "invalid_payload")["details"]["field"] == "result_ttl"

    def test_many_at_once(self, api: Api) -> None:
        finished, waiting = done(api, {"n": 1}), api.push()["id"]
        answer = api.post("/jobs/results", {"ids": [finished, waiting, UNKNOWN, "nonsense"]})
        assert answer.json() == {
            "results": {
                finished: {"state": "completed", "result": {"n": 1}},
                waiting: {"state": "available", "result": None},
                UNKNOWN: None,
                "nonsense": None,
            }
        }
        for body in ({}, {"ids": "x"}, {"ids": [1]}):
            error_of(api.post("/jobs/results", body), 400, "invalid_request")


@pytest.mark.django_db(transaction=True)
def test_a_waiting_caller_is_answered_when_the_job_ends() -> None:
    api = Api()
    job_id = api.push()["id"]
    asked = threading.Event()

    def work() -> None:
        try:
            assert asked.wait(60)
            (row,) = fetch(Fetch(["default"]))
            ack_one(Ack(row["id"], "42"))
        finally:
            connections.close_all()

    worker = threading.Thread(target=work)
    worker.start()
    asked.set()
    answer = api.get(f"/jobs/{job_id}/result", {"wait": "true", "timeout": "20"})
    worker.join(20)
    assert answer.json() == {"job_id": job_id, "state": "completed", "result": 42}


class TestPriority:
    def test_a_waiting_job_overtakes(self, api: Api) -> None:
        api.push()
        late = api.push()["id"]
        answer = api.client.patch(
            f"/ojs/v1/jobs/{late}", '{"priority": 5}', content_type="application/openjobspec+json"
        )
        body = answer.json()
        assert (body["id"], body["priority"], body["previous_priority"]) == (late, 5, 0)
        (event,) = log.read(types=["priority.changed"]).events
        assert (event["data"]["priority"], event["data"]["previous_priority"]) == (5, 0)
        assert api.fetch()["id"] == late

    def test_names_and_the_alias(self, api: Api) -> None:
        job_id = api.push(scheduled_at="2100-01-01T00:00:00Z")["id"]
        answer = api.client.patch(
            f"/ojs/v1/admin/jobs/{job_id}", '{"priority": "high"}', content_type="application/json"
        )
        assert answer.json()["priority"] == 3

    @pytest.mark.parametrize(
        "body, field",
        [
            ("{}", "priority"),
            ('{"priority":101}', "priority"),
            ('{"priority":true}', "priority"),
            ('{"priority":1,"queue":"x"}', "queue"),
        ],
    )
    def test_bad_requests(self, api: Api, body: str, field: str) -> None:
        answer = api.client.patch(f"/ojs/v1/jobs/{api.push()['id']}", body, content_type="application/json")
        assert answer.status_code == 400
        assert answer.json()["error"]["details"]["field"] == field

    def test_a_job_that_does_not_wait_is_a_conflict(self, api: Api) -> None:
        job_id = done(api)
        answer = api.client.patch(f"/ojs/v1/jobs/{job_id}", '{"priority":1}', content_type="application/json")
        assert error_of(answer, 409, "conflict")["details"]["current_state"] == "completed"
        answer = api.client.patch(f"/ojs/v1/jobs/{UNKNOWN}", '{"priority":1}', content_type="application/json")
        error_of(answer, 404, "not_found")

    def test_counts_by_priority(self, api: Api) -> None:
        for priority in (0, 5, 0, -3):
            api.push(priority=priority, queue="q")
        api.push(scheduled_at="2100-01-01T00:00:00Z", queue="q", priority=9)
        assert api.get("/queues/q/priority-stats").json() == {
            "queue": "q",
            "counts_by_priority": {"5": 1, "0": 2, "-3": 1},
            "total": 4,
            "distribution": [{"priority": 5, "count": 1}, {"priority": 0, "count": 2}, {"priority": -3, "count": 1}],
        }
        assert api.get("/queues/none/priority-stats").json()["total"] == 0
        error_of(api.get("/queues/A%20b/priority-stats"), 404, "not_found")


class TestFullQueue:
    def test_the_headers_of_a_refusal(self, api: Api) -> None:
        bounded(1)
        assert api.post("/jobs", {"type": "a.b", "args": []})["X-OJS-Queue-Pressure"] == "1.00"
        for headers in ({}, {"idempotency_key": "k"}):
            answer = api.post("/jobs", {"type": "a.b", "args": []}, **headers)
            error = error_of(answer, 429, "QUEUE_FULL")
            assert (error["depth"], error["bound"], error["strategy"]) == (1, 1, "reject")
            assert (answer["Retry-After"], answer["X-OJS-Queue-Depth"], answer["X-OJS-Queue-Bound"]) == ("1", "1", "1")
        error_of(api.post("/jobs/batch", {"jobs": [{"type": "a.b", "args": []}]}), 429, "QUEUE_FULL")
        assert len(log.read(types=["backpressure.rejected"]).events) == 3

    def test_no_warning_far_from_the_bound(self, api: Api) -> None:
        bounded(10)
        assert not api.post("/jobs", {"type": "a.b", "args": []}).has_header("X-OJS-Queue-Pressure")

    def test_a_push_may_say_how_long_it_waits(self, api: Api) -> None:
        bounded(1, strategy="block")
        api.push()
        answer = api.post("/jobs", {"type": "a.b", "args": []}, ojs_block_timeout="0")
        assert error_of(answer, 429, "QUEUE_FULL")["strategy"] == "block"
        error_of(api.post("/jobs", {"type": "a.b", "args": []}, ojs_block_timeout="soon"), 400, "invalid_request")


class TestUnique:
    JOB = {"type": "a.b", "args": [1], "unique": {"keys": ["type", "args"]}}

    def test_a_duplicate_is_409_with_the_existing_job(self, api: Api) -> None:
        job_id = api.push(**{k: v for k, v in self.JOB.items() if k != "type"}, job_type="a.b")["id"]
        details = error_of(api.post("/jobs", self.JOB), 409, "duplicate")["details"]
        assert (details["existing_job_id"], details["existing_job_state"]) == (job_id, "available")
        assert len(details["unique_key"]) == 64

    def test_an_ignored_one_is_200_with_the_whole_job(self, api: Api) -> None:
        first = api.post("/jobs", self.JOB).json()["job"]
        answer = api.post("/jobs", {**self.JOB, "unique": {"on_conflict": "ignore"}})
        assert (answer.status_code, answer.json()) == (200, {**first, "job": first, "deduplicated": True})

    def test_in_a_batch_it_takes_its_position(self, api: Api) -> None:
        first = api.post("/jobs", self.JOB).json()["job"]
        ignored = {**self.JOB, "unique": {"on_conflict": "ignore"}}
        answer = api.post("/jobs/batch", {"jobs": [{"type": "a.b", "args": [2]}, ignored]})
        jobs = answer.json()["jobs"]
        assert (answer.status_code, jobs[1]) == (201, first | {"deduplicated": True})
        assert "deduplicated" not in jobs[0]
        error = error_of(api.post("/jobs/batch", {"jobs": [{"type": "a.b", "args": [3]}, self.JOB]}), 409, "duplicate")
        assert error["details"]["index"] == 1

    def test_a_malformed_policy_is_400(self, api: Api) -> None:
        answer = api.post("/jobs", {"type": "a.b", "args": [], "options": {"unique": {"keys": ["meta"]}}})
        assert error_of(answer, 400, "invalid_request")["details"]["field"] == "options.unique.meta_keys"

    def test_the_manifest_says_how_strong_it_is(self, api: Api) -> None:
        manifest = api.client.get("/ojs/manifest").json()
        assert manifest["unique_job_strength"] == "strong"
        assert manifest["capabilities"]["unique_jobs"] is True


def test_on_request_the_log_says_who_was_shown_and_refused_what(api: Api, settings: Any) -> None:
    settings.OJS |= {"EXTENSION_EVENTS": True, "MAX_RESULT_BYTES": 100}
    job_id = done(api, "x")
    api.get(f"/jobs/{job_id}/result")
    api.post("/jobs/results", {"ids": [job_id, UNKNOWN]})
    api.get(f"/jobs/{job_id}")
    running = api.fetch(api.push()["queue"])["id"]
    error_of(api.post("/workers/ack", {"job_id": running, "result": "x" * 100}), 413, "RESULT_TOO_LARGE")
    types = "result.stored,result.retrieved,result.rejected"
    told = [(event["type"], event["job_id"]) for event in api.get("/events", {"types": types}).json()["events"]]
    shown = [("result.stored", job_id), ("result.retrieved", job_id), ("result.retrieved", job_id)]
    assert told == [*shown, ("result.rejected", running)], "INFO tells nobody"


class TestAPassBreaksNothingOff:
    """`prune` remembers how far it has come: only what is dealt with, and only when that is committed."""

    @pytest.fixture(autouse=True)
    def _beginning(self, settings: Any) -> None:
        settings.OJS = {**settings.OJS, "RESULT_TTL": 100}
        pruning.forget()

    def _left(self) -> int:
        return Job.objects.filter(result__isnull=False).count()

    @pytest.mark.django_db(transaction=True)
    def test_results_with_a_time_of_their_own_leave_room_for_the_rest(self, api: Api, frozen_clock: Any) -> None:
        for n in range(3):
            done(api, n)
        frozen_clock.advance(hours=3)
        for n in range(2):
            done(api, n, result_ttl=1)
        frozen_clock.advance(hours=3)
        assert [prune(batch=4)["results"] for _ in range(3)] == [4, 1, 0]
        assert self._left() == 0

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("stretch", [1, 2, 3])
    def test_jobs_are_looked_at_in_stretches(
        self, api: Api, frozen_clock: Any, monkeypatch: pytest.MonkeyPatch, stretch: int
    ) -> None:
        monkeypatch.setattr(pruning, "_STRETCH", stretch)
        for n in range(9):
            done(api, n if n % 3 == 0 else None)
            frozen_clock.advance(seconds=n % 2)  # some end at the same instant
        frozen_clock.advance(hours=3)
        assert [prune(batch=2)["results"] for _ in range(3)] == [2, 1, 0]
        done(api, 9)
        assert prune(batch=2)["results"] == 0
        frozen_clock.advance(hours=3)
        assert prune(batch=2)["results"] == 1
        assert self._left() == 0

    @pytest.mark.django_db(transaction=True)
    def test_each_time_that_jobs_name_is_looked_for(self, api: Api, frozen_clock: Any) -> None:
        for ttl in (0, 5, 5, 7, 10_000, -1):
            done(api, ttl, result_ttl=ttl)
        frozen_clock.advance(seconds=60)
        assert [prune(batch=3)["results"] for _ in range(3)] == [3, 1, 0]
        assert self._left() == 2

    @pytest.mark.django_db(transaction=True)
    def test_a_batch_of_those_alone_moves_no_place(self, api: Api, frozen_clock: Any) -> None:
        done(api, 0)
        frozen_clock.advance(hours=3)
        for n in range(2):
            done(api, n, result_ttl=1)
        frozen_clock.advance(hours=3)
        assert [prune(batch=2)["results"] for _ in range(3)] == [2, 1, 0]

    @pytest.mark.django_db(transaction=True)
    def test_what_was_rolled_back_is_looked_at_again(
        self, api: Api, frozen_clock: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        done(api, 1)
        frozen_clock.advance(hours=3)
        with monkeypatch.context() as patch:
            patch.setattr(pruning.store_of("default").__class__, "lock", _away)
            with pytest.raises(OperationalError):
                prune()
        assert self._left() == 1
        assert prune()["results"] == 1


def _away(*args: Any, **kwargs: Any) -> None:
    raise OperationalError("the database is away")
