"""FETCH, ACK, FAIL, BEAT, registration over HTTP."""

from typing import Any
from urllib.parse import quote

import pytest

from django_ojs.events import log
from django_ojs.models import Job, Worker
from tests.http.conftest import Api, error_of
from tests.http.test_jobs import UNKNOWN


def test_a_fetched_job_is_active_and_the_first_one_stands_alone_too(api: Api) -> None:
    pushed = [api.push() for _ in range(3)]
    body = api.post("/workers/fetch", {"queues": ["default"], "count": 2, "worker_id": "w1"}).json()
    assert [job["id"] for job in body["jobs"]] == [job["id"] for job in pushed[:2]]
    assert body["job"] == body["jobs"][0]
    assert (body["job"]["state"], body["job"]["attempt"], body["job"]["worker_id"]) == ("active", 1, "w1")


def test_nothing_to_fetch_is_200_without_job(api: Api) -> None:
    response = api.post("/workers/fetch", {"queues": ["empty"]})
    assert (response.status_code, response.json()) == (200, {"jobs": []})


def test_the_older_path_fetches_too(api: Api) -> None:
    job = api.push()
    assert api.post("/jobs/fetch", {"queues": ["default"], "max_jobs": 5}).json()["job"]["id"] == job["id"]


@pytest.mark.parametrize("count", [0, -5, 10**30, 1.0, None])
def test_a_count_beyond_the_bounds_is_clamped(api: Api, count: Any) -> None:
    api.push()
    assert len(api.post("/workers/fetch", {"queues": ["default"], "count": count}).json()["jobs"]) == 1


@pytest.mark.parametrize(
    "field, value",
    [
        ("queues", None),
        ("queues", []),
        ("queues", "default"),
        ("queues", ["Bad Queue"]),
        ("queues", [""]),
        ("queues", [7]),
        ("queues", ["a\x00"]),
        ("queues", ["a\n"]),
        ("queues", ["q"] * 1001),
        ("count", "2"),
        ("count", True),
        ("count", 1.5),
        ("visibility_timeout_ms", 0),
        ("visibility_timeout_ms", "30s"),
        ("visibility_timeout_ms", True),
        ("worker_id", ""),
        ("worker_id", 5),
        ("worker_id", "a\x00b"),
        ("worker_id", "x" * 300),
        ("worker_id", "\ud800"),
    ],
)
def test_a_malformed_fetch_is_refused_and_claims_nothing(api: Api, field: str, value: Any) -> None:
    job = api.push()
    error = error_of(api.post("/workers/fetch", {"queues": ["default"], field: value}), 400, "invalid_request")
    assert error["details"]["field"].startswith(field)
    assert api.get(f"/jobs/{job['id']}").json()["job"]["state"] == "available"


def test_an_endless_reservation_is_cut_instead_of_overflowing(api: Api) -> None:
    api.push()
    assert api.fetch(visibility_timeout_ms=10**25)["state"] == "active"


@pytest.mark.parametrize("result", [None, False, 0, "", [], {}, {"a": [1.5, None]}])
def test_every_json_value_is_a_result_null_included(api: Api, result: Any) -> None:
    job = api.push()
    api.fetch()
    response = api.post("/workers/ack", {"job_id": job["id"], "result": result})
    body = response.json()
    assert response.status_code == 200
    assert body["acknowledged"] is True
    assert body["id"] == body["job_id"] == job["id"]
    assert body["state"] == body["job"]["state"] == "completed"
    assert body["completed_at"] == body["job"]["completed_at"]
    stored = api.get(f"/jobs/{job['id']}").json()["job"]
    assert "result" in stored
    assert stored["result"] == result


def test_an_ack_without_result_stores_none(api: Api) -> None:
    job = api.push()
    api.fetch()
    assert api.post(f"/jobs/{job['id']}/ack").status_code == 200
    assert "result" not in api.get(f"/jobs/{job['id']}").json()["job"]


def test_a_result_over_the_limit_leaves_the_job_active(api: Api, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "MAX_RESULT_BYTES": 100}
    job = api.push()
    api.fetch()
    error_of(api.post("/workers/ack", {"job_id": job["id"], "result": "x" * 200}), 413, "RESULT_TOO_LARGE")
    assert api.get(f"/jobs/{job['id']}").json()["job"]["state"] == "active"


@pytest.mark.parametrize("path", ["/workers/ack", "/workers/nack", "/workers/fail"])
@pytest.mark.parametrize("body", [{}, {"job_id": None}, {"job_id": 7}, {"job_id": ""}])
def test_a_report_without_job_is_refused(api: Api, path: str, body: Any) -> None:
    error_of(api.post(path, {**body, "error": {"message": "x"}}), 400, "invalid_request")


@pytest.mark.parametrize("job_id", [UNKNOWN, "nonsense", "x" * 5000, "\x00"])
def test_a_report_on_an_unknown_job_is_not_found(api: Api, job_id: str) -> None:
    error_of(api.post("/workers/ack", {"job_id": job_id}), 404, "not_found")
    error_of(api.post("/workers/nack", {"job_id": job_id, "error": {"message": "x"}}), 404, "not_found")


@pytest.mark.parametrize(
    "path, code",
    [
        ("/workers/ack", "conflict"),
        ("/workers/nack", "conflict"),
        ("/workers/fail", "conflict"),
        ("/jobs/{id}/ack", "invalid_state_transition"),
        ("/jobs/{id}/nack", "invalid_state_transition"),
        ("/jobs/{id}/fail", "invalid_state_transition"),
        ("/jobs/{id}/activate", "conflict"),
    ],
)
def test_the_code_of_a_state_conflict_depends_on_the_path(api: Api, path: str, code: str) -> None:
    job = api.push()
    if "activate" not in path:
        api.fetch()
        api.post("/workers/ack", {"job_id": job["id"]})
    error = error_of(
        api.post(path.format(id=job["id"]), {"job_id": job["id"], "error": {"message": "late"}}), 409, code
    )
    assert error["type"] == "invalid_state_transition"
    assert error["details"]["job_id"] == job["id"]
    assert error["details"]["current_state"] == ("available" if "activate" in path else "completed")
    assert {"attempted", "attempted_state", "expected_state"} <= error["details"].keys()


def test_another_worker_cannot_answer_for_a_job(api: Api) -> None:
    job = api.push()
    api.fetch(worker_id="w1")
    error = error_of(api.post("/workers/ack", {"job_id": job["id"], "worker_id": "w2"}), 409, "conflict")
    assert error["details"]["reason"] == "not_claimant"
    assert api.post("/workers/ack", {"job_id": job["id"], "worker_id": "w1"}).status_code == 200


def test_the_holder_that_names_another_attempt_is_not_told_of_another_worker(api: Api) -> None:
    job = api.push()
    api.fetch(worker_id="w1")
    report = {"job_id": job["id"], "worker_id": "w1", "attempt": 7}
    error = error_of(api.post("/workers/ack", report), 409, "conflict")
    assert error["message"] == f"Cannot ack job '{job['id']}': this worker does not hold it, or not for this attempt."


def test_the_strict_setting_demands_the_workers_name(api: Api, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "STRICT_OWNERSHIP": True}
    job = api.push()
    api.fetch(worker_id="w1")
    error_of(api.post("/workers/ack", {"job_id": job["id"]}), 400, "invalid_request")
    error_of(api.post(f"/jobs/{job['id']}/ack"), 400, "invalid_request")
    assert api.post("/workers/ack", {"job_id": job["id"], "worker_id": "w1"}).status_code == 200


def test_a_late_report_of_an_earlier_attempt_is_refused(api: Api) -> None:
    job = api.push()
    api.fetch(worker_id="w1")
    error_of(api.post("/workers/ack", {"job_id": job["id"], "attempt": 2}), 409, "conflict")


def test_a_failure_that_is_retried_says_when(api: Api) -> None:
    job = api.push(retry={"max_attempts": 3, "jitter": False})
    api.fetch()
    body = api.post("/workers/nack", {"job_id": job["id"], "error": {"message": "no"}}).json()
    assert (body["id"], body["job_id"]) == (job["id"], job["id"])
    assert (body["state"], body["attempt"], body["max_attempts"]) == ("retryable", 1, 3)
    assert body["next_attempt_at"] == body["next_retry_at"] == body["job"]["next_attempt_at"]
    assert body["retry_delay_ms"] == 1000
    assert not {"discarded_at", "completed_at"} & body.keys()


def test_an_exception_without_a_text_is_a_failure(api: Api) -> None:
    job = api.push()
    api.fetch()
    error = {"code": "handler_error", "message": "", "details": {"traceback": "ValueError"}}
    body = api.post("/workers/nack", {"job_id": job["id"], "error": error}).json()
    assert (body["state"], body["job"]["error"]["message"]) == ("retryable", "handler_error")


def test_a_failure_for_good_says_so(api: Api) -> None:
    job = api.push(retry={"max_attempts": 1})
    api.fetch()
    body = api.post(f"/jobs/{job['id']}/nack", {"error": {"message": "no", "code": "handler_error"}}).json()
    assert (body["state"], body["attempt"]) == ("discarded", 1)
    assert body["discarded_at"] == body["completed_at"]
    assert not {"next_attempt_at", "next_retry_at", "retry_delay_ms"} & body.keys()
    assert body["job"]["error"]["message"] == "no"


def test_a_job_handed_back_is_available_with_its_attempt(api: Api) -> None:
    job = api.push()
    api.fetch(worker_id="w1")
    body = api.post("/workers/nack", {"job_id": job["id"], "worker_id": "w1", "requeue": True}).json()
    assert (body["state"], body["attempt"]) == ("available", 1)
    assert "error" not in body["job"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"error": None},
        {"error": "text"},
        {"error": {}},
        {"error": {"message": 5}},
        {"error": {"message": "x", "retryable": "no"}},
        {"error": {"message": "x"}, "requeue": "yes"},
        {"error": {"message": "x"}, "attempt": "1"},
    ],
)
def test_a_malformed_failure_changes_nothing(api: Api, body: Any) -> None:
    job = api.push()
    api.fetch()
    error_of(api.post("/workers/nack", {"job_id": job["id"], **body}), 400, "invalid_request")
    assert api.get(f"/jobs/{job['id']}").json()["job"]["state"] == "active"


def test_a_heartbeat_keeps_jobs_and_tells_of_cancelled_and_lost_ones(api: Api) -> None:
    kept, cancelled = api.push(), api.push()
    api.post("/workers/fetch", {"queues": ["default"], "count": 2, "worker_id": "w1"})
    api.delete(f"/jobs/{cancelled['id']}")
    ids = [kept["id"], cancelled["id"], UNKNOWN, "no-id"]
    body = api.post("/workers/heartbeat", {"worker_id": "w1", "active_jobs": ids}).json()
    assert body["acknowledged"] is True
    assert (body["state"], body["directive"], body["worker_id"]) == ("running", "continue", "w1")
    assert body["jobs_extended"] == [kept["id"]]
    assert body["cancelled_jobs"] == body["jobs_cancelled"] == [cancelled["id"]]
    assert body["jobs_lost"] == [UNKNOWN, "no-id"]
    assert body["server_time"].endswith("Z")


@pytest.mark.parametrize(
    "form",
    [
        lambda i: {"active_jobs": [i]},
        lambda i: {"active_job_ids": [i], "active_jobs": 1},
        lambda i: {"job_id": i},
        lambda i: {"active_job_ids": [i.upper()]},
    ],
)
def test_each_client_has_its_own_way_to_name_its_jobs(api: Api, form: Any) -> None:
    job = api.push()
    api.fetch(worker_id="w1")
    body = api.post("/workers/beat", {"worker_id": "w1", **form(job["id"])}).json()
    assert body["jobs_extended"] == [job["id"]]


def test_a_count_alone_is_noted(api: Api) -> None:
    assert api.post("/workers/heartbeat", {"worker_id": "w1", "active_jobs": 4}).json()["jobs_extended"] == []
    assert Worker.objects.get().active_jobs == 4


@pytest.mark.parametrize(
    "reported, answered",
    [
        ({"state": "running"}, ("running", "continue")),
        ({"state": "quiet"}, ("quiet", "quiet")),
        ({"state": "drain"}, ("quiet", "quiet")),
        ({"state": "draining"}, ("quiet", "quiet")),
        ({"state": "terminate"}, ("terminate", "terminate")),
        ({"state": "shutting_down"}, ("terminate", "terminate")),
        ({"shutdown": True}, ("terminate", "terminate")),
    ],
)
def test_the_answer_is_never_less_severe_than_what_the_worker_reports(api: Api, reported: Any, answered: Any) -> None:
    body = api.post("/workers/heartbeat", {"worker_id": "w1", **reported}).json()
    assert (body["state"], body["directive"]) == answered


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"worker_id": None},
        {"worker_id": "a\x00"},
        {"worker_id": "w", "state": "dancing"},
        {"worker_id": "w", "state": 5},
        {"worker_id": "w", "active_jobs": "x"},
        {"worker_id": "w", "active_jobs": [5]},
        {"worker_id": "w", "active_jobs": -1},
        {"worker_id": "w", "active_job_ids": {"a": 1}},
        {"worker_id": "w", "visibility_timeout_ms": -1},
    ],
)
def test_a_malformed_heartbeat_is_refused(api: Api, body: Any) -> None:
    error_of(api.post("/workers/heartbeat", body), 400, "invalid_request")
    assert not Worker.objects.exists()


def test_odd_self_descriptions_do_not_cost_a_worker_its_heartbeat(api: Api) -> None:
    facts = {
        "hostname": ["x"], "pid": "twelve", "queues": "default", "concurrency": 10**40, "labels": 5,
        "memory_mb": "much", "cpu_percent": 1e300, "started_at": "yesterday", "jobs_completed": -1,
        "version": "v" * 900,
    }  # fmt: skip
    assert api.post("/workers/heartbeat", {"worker_id": "w1", **facts}).status_code == 200
    facts = {"hostname": "h1", "pid": 42, "queues": ["a"], "concurrency": 8, "labels": ["x"], "memory_mb": 12.5}
    assert api.post("/workers/heartbeat", {"worker_id": "w1", **facts}).status_code == 200
    worker = Worker.objects.get()
    assert (worker.hostname, worker.pid, worker.queues, worker.concurrency) == ("h1", 42, ["a"], 8)
    assert (worker.labels, worker.memory_mb) == (["x"], 12.5)


@pytest.mark.parametrize("path", ["/workers/register", "/workers"])
def test_registration_tells_the_intervals(api: Api, path: str) -> None:
    facts = {"worker_id": "w1", "hostname": "h", "pid": 1, "queues": ["a"], "concurrency": 3}
    body = api.post(path, facts).json()
    assert body["ok"] is True
    assert (body["heartbeat_interval"], body["heartbeat_timeout"]) == (5, 45)
    assert body["visibility_timeout_default"] == 1800
    assert Worker.objects.get().concurrency == 3


@pytest.mark.parametrize("by_path", [True, False])
def test_a_worker_that_leaves_hands_its_jobs_back(api: Api, by_path: bool) -> None:
    job = api.push()
    api.fetch(worker_id="w1")
    leave = api.delete("/workers/w1") if by_path else api.post("/workers/deregister", {"worker_id": "w1"})
    assert leave.status_code == 200
    assert leave.json()["jobs_requeued"] == 1
    assert api.get(f"/jobs/{job['id']}").json()["job"]["state"] == "available"
    again = api.delete("/workers/w1") if by_path else api.post("/workers/deregister", {"worker_id": "w1"})
    assert error_of(again, 404, "not_found")["details"]["resource_type"] == "worker"


@pytest.mark.parametrize("name", ["host/4711", "/"])
def test_a_worker_leaves_by_its_path_whose_id_holds_slashes(api: Api, name: str) -> None:
    api.post("/workers/heartbeat", {"worker_id": name})
    assert api.get(f"/workers/{name}/health").json()["worker_id"] == name
    assert api.delete(f"/workers/{quote(name, safe='')}").json()["worker_id"] == name


def test_a_worker_that_registers_again_runs(api: Api) -> None:
    """It is a new process: the last words of the one before were not its own."""
    job = api.push()
    api.post("/workers/heartbeat", {"worker_id": "w1", "state": "terminate"})
    assert api.post("/workers/fetch", {"queues": ["default"], "worker_id": "w1"}).json() == {"jobs": []}
    api.post("/workers", {"worker_id": "w1"})
    assert api.fetch(worker_id="w1")["id"] == job["id"]


def test_a_draining_worker_shows_in_its_health_and_gets_nothing(api: Api) -> None:
    api.push()
    api.post("/workers/heartbeat", {"worker_id": "w1"})
    running = api.get("/workers/w1/health")
    assert (running.status_code, running.json()["state"]) == (200, "running")
    api.post("/workers/heartbeat", {"worker_id": "w1", "state": "drain"})
    draining = api.get("/workers/w1/health")
    assert (draining.status_code, draining.json()["state"]) == (503, "draining")
    assert int(draining["Retry-After"]) >= 1
    assert api.post("/workers/fetch", {"queues": ["default"], "worker_id": "w1"}).json() == {"jobs": []}
    error_of(api.get("/workers/unknown/health"), 404, "not_found")
    error_of(api.get("/workers/%00/health"), 404, "not_found")


def test_the_directive_of_a_test_acts_only_in_a_test_server(api: Api, hooks: Any) -> None:
    from django_ojs.http import testhooks

    job = api.push(options={"metadata": {"test_directive": "terminate"}})
    api.fetch(worker_id="w1")
    beat = {"worker_id": "w1", "active_jobs": [job["id"]]}
    assert api.post("/workers/heartbeat", beat).json()["state"] == "terminate"
    assert Worker.objects.get().directive == ""
    testhooks.disable()
    assert api.post("/workers/heartbeat", beat).json()["state"] == "running"


def test_the_rejecting_middleware_acts_only_in_a_test_server(api: Api, hooks: Any) -> None:
    from django_ojs.http import testhooks

    faulty = {"type": "a.b", "args": [], "meta": {"ojs_validate": True}}
    error_of(api.post("/jobs", faulty), 422, "x_middleware_rejected")
    assert api.post("/jobs", {**faulty, "args": [1]}).status_code == 201
    testhooks.disable()
    assert api.post("/jobs", faulty).status_code == 201


def test_the_reset_is_not_there_unless_this_is_a_test_server(api: Api) -> None:
    api.push()
    error_of(api.post("/admin/reset"), 404, "not_found")
    assert Job.objects.exists()


def test_the_reset_leaves_nothing(api: Api, hooks: Any) -> None:
    api.push(queue="q1")
    api.fetch("q1", worker_id="w1")
    assert api.post("/admin/reset").status_code == 200
    assert not Job.objects.exists()
    assert not Worker.objects.exists()
    assert api.get("/events").json()["events"] == []
    assert [queue["name"] for queue in api.get("/queues").json()["queues"]] == ["default"]
    api.push(queue="q1")
    assert len(api.get("/queues").json()["queues"]) == 2


@pytest.mark.parametrize(
    "given, stopped",
    [(None, "shutdown"), ("signal", "signal"), ("SIGTERM", "signal"), ("sigint", "signal"), ("no disk", "error")],
)
def test_the_end_of_a_worker_has_one_of_three_reasons_whatever_it_says(api: Api, given: Any, stopped: str) -> None:
    api.post("/workers/register", {"worker_id": "w1", "queues": ["default"]})
    api.post("/workers/deregister", {"worker_id": "w1", "reason": given})
    ends = log.read(types=["worker.terminated", "worker.stopped"]).events
    assert [event["data"]["reason"] for event in ends] == [given or "shutdown", stopped]


@pytest.mark.parametrize("says_so", [False, True])
def test_the_jobs_of_a_worker_over_http_are_counted_until_it_counts_them_itself(api: Api, says_so: bool) -> None:
    for _ in range(3):
        api.push()
    for job in api.post("/workers/fetch", {"queues": ["default"], "count": 3, "worker_id": "w1"}).json()["jobs"]:
        api.post("/workers/ack", {"job_id": job["id"], "worker_id": "w1"})
    if says_so:
        api.post("/workers/heartbeat", {"worker_id": "w1", "jobs_completed": 12})
    api.post("/workers/deregister", {"worker_id": "w1"})
    (event,) = log.read(types=["worker.stopped"]).events
    assert event["data"]["jobs_completed"] == (12 if says_so else 3)
