"""PUSH, INFO, CANCEL, ACTIVATE over HTTP."""

import json
import re
import uuid
from typing import Any

import pytest

from django_ojs.client.handle import get_job
from django_ojs.envelope import validate
from django_ojs.errors import MiddlewareRejected
from django_ojs.models import Job
from django_ojs.rules import durations
from tests.http.conftest import Api, error_of
from tests.middlewares import added

UNKNOWN = "019539a4-0000-7000-8000-000000000000"


def test_a_pushed_job_is_answered_whole_and_can_be_read_where_location_says(api: Api) -> None:
    response = api.post("/jobs", {"type": "mail.send", "args": ["a@b.c", 5.0, None], "meta": {"k": 1}})
    job = response.json()["job"]
    assert response.status_code == 201
    assert response["Location"] == f"/ojs/v1/jobs/{job['id']}"
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", job["id"])
    assert (job["type"], job["queue"], job["state"], job["attempt"]) == ("mail.send", "default", "available", 0)
    assert not {"started_at", "completed_at", "error", "result"} & job.keys()
    assert api.client.get(response["Location"]).json()["job"] == job


def beside(answer: Any) -> dict[str, Any]:
    """The job in an answer, all of whose members stand beside it too."""
    body = answer.json()
    job: dict[str, Any] = body["job"]
    assert {name: body.get(name) for name in job} == job
    return job


def test_clients_that_read_the_top_level_find_the_job_there_in_every_answer_about_one(api: Api) -> None:
    pushed = beside(api.post("/jobs", {"type": "a.b", "args": [1.10, None], "pending": True, "x_own": {"k": []}}))
    path = f"/jobs/{pushed['id']}"
    assert beside(api.get(path)) == pushed
    assert beside(api.post(f"{path}/activate"))["previous_state"] == "pending"
    priority = api.client.patch(f"/ojs/v1{path}", {"priority": 7}, content_type="application/json")
    assert (beside(priority)["priority"], priority.json()["previous_priority"]) == (7, 0)
    assert beside(api.post(f"{path}/cancel"))["previous_state"] == "available"
    assert beside(api.delete(path))["state"] == "cancelled"
    unique = {"type": "a.b", "args": ["u"], "unique": {"key": [], "on_conflict": "ignore"}}
    first, second = api.post("/jobs", unique), api.post("/jobs", unique)
    assert second.status_code == 200
    assert second.json()["deduplicated"] is True
    assert beside(second) == beside(first)
    kept = [api.post("/jobs", unique, **{"Idempotency-Key": "same"}) for _ in range(2)]
    assert beside(kept[0]) == beside(kept[1])
    job = api.push(retry={"max_attempts": 1}, queue="failing")
    api.fetch("failing")
    failed = api.post("/workers/nack", {"job_id": job["id"], "error": {"message": "no"}}).json()
    assert (failed["id"], failed["state"]) == (job["id"], "discarded")
    assert beside(api.get(f"/jobs/{job['id']}"))["error"]["message"] == "no"
    letter = f"/dead-letter/{job['id']}"
    assert beside(api.get(letter))["state"] == "discarded"
    assert beside(api.post(f"{letter}/retry"))["state"] == "available"


def test_members_that_a_producer_named_like_those_of_an_answer_say_nothing_about_the_answer(api: Api) -> None:
    own = {"deduplicated": True, "warnings": ["x"], "dropped": True, "job": {"id": "other"}, "previous_priority": 9}
    body = api.post("/jobs", {"type": "a.b", "args": [], **own}).json()
    job = body["job"]
    assert {name: job[name] for name in own} == own
    assert body == {"job": job, **{name: value for name, value in job.items() if name not in own}}
    assert api.get(f"/jobs/{job['id']}").json() == body


#: The ids that core 13.5 and 13.6 print: their variants are c and d, which RFC 9562 gives to others.
@pytest.mark.parametrize(
    "job_id", ["019461a8-5e6f-7071-c283-9d0e1f2a3b4c", "019461a8-6f70-7182-d394-0e1f2a3b4c5d"]
)  # fmt: skip
def test_the_ids_that_the_specification_prints_are_taken_through_every_door(api: Api, job_id: str) -> None:
    assert validate({"type": "a.b", "args": [], "id": job_id}) == []
    assert api.push(id=job_id)["id"] == job_id
    assert api.fetch(worker_id="w")["id"] == job_id
    beat = api.post("/workers/heartbeat", {"worker_id": "w", "active_jobs": [job_id]}).json()
    assert beat["jobs_extended"] == [job_id]
    assert {event["data"]["job_id"] for event in api.get("/events", {"job_id": job_id}).json()["events"]} == {job_id}
    assert api.post("/workers/ack", {"job_id": job_id, "result": 1}).status_code == 200
    assert api.get(f"/jobs/{job_id}").json()["job"]["state"] == "completed"
    assert api.get(f"/admin/jobs/{job_id}").json()["id"] == job_id
    assert get_job(job_id).id == uuid.UUID(job_id)
    assert api.post("/jobs/bulk/delete", {"job_ids": [job_id]}).status_code == 200
    assert api.get(f"/jobs/{job_id}").status_code == 404


def test_an_unfinished_job_says_when_to_look_again(api: Api) -> None:
    job = api.push()
    for state in ("available", "active"):
        response = api.get(f"/jobs/{job['id']}")
        assert (response.json()["job"]["state"], response["Retry-After"]) == (state, "1")
        api.fetch() if state == "available" else api.post("/workers/ack", {"job_id": job["id"]})
    response = api.get(f"/jobs/{job['id']}")
    assert response.json()["job"]["state"] == "completed"
    assert "Retry-After" not in response


@pytest.mark.parametrize("name", ["timeout", "timeout_ms", "visibility_timeout", "visibility_timeout_ms"])
@pytest.mark.parametrize("place", [lambda given: given, lambda given: {"options": given}], ids=["top", "options"])
def test_a_timeout_beyond_the_longest_is_refused_rather_than_cut(api: Api, name: str, place: Any) -> None:
    most = durations.MAX_MS // (1 if name.endswith("_ms") else 1000)
    assert api.post("/jobs", {"type": "a.b", "args": [], **place({name: most})}).json()["job"][name] == most
    error = error_of(api.post("/jobs", {"type": "a.b", "args": [], **place({name: most + 1})}), 400, "invalid_payload")
    assert error["details"]["field"].endswith(name)
    assert str(most) in error["message"]


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59-08:00"])
def test_never_as_clients_write_it_is_a_time_of_a_job(api: Api, text: str) -> None:
    job = api.push(scheduled_at=text, expires_at=text)
    assert (job["state"], job["scheduled_at"], job["expires_at"]) == ("scheduled", text, text)
    assert api.get(f"/jobs/{job['id']}").json()["job"]["expires_at"] == text


def test_a_start_in_the_year_one_is_in_the_past(api: Api) -> None:
    assert api.push(scheduled_at="0001-01-01T00:00:00Z")["state"] == "available"


def test_numbers_and_odd_text_come_back_exactly_as_sent(api: Api) -> None:
    text = '{"type":"a.b","args":[1.10,1e400,12345678901234567890,"\\u0000","\\ud800","ü"]}'
    response = api.raw("/jobs", text.encode())
    assert response.status_code == 201
    args = re.search(rb'"args":(\[.*?\]),"meta"', response.content)
    assert args is not None
    assert args[1].decode() == '[1.10,1e400,12345678901234567890,"\\u0000","\\ud800","ü"]'.replace("1.10", "1.1")


@pytest.mark.parametrize(
    "body, field",
    [
        ({"args": []}, "type"),
        ({"type": "NO!", "args": []}, "type"),
        ({"type": "a.b"}, "args"),
        ({"type": "a.b", "args": "x"}, "args"),
        ({"type": "a.b", "args": [], "queue": ""}, "queue"),
        ({"type": "a.b", "args": [], "id": "4"}, "id"),
        ({"type": "a.b", "args": [], "options": []}, "options"),
    ],
)
def test_a_faulty_envelope_is_refused_with_the_name_of_the_field(api: Api, body: Any, field: str) -> None:
    error = error_of(api.post("/jobs", body), 400, "invalid_payload")
    assert error["type"] == "validation_error"
    assert error["retryable"] is False
    assert error["details"]["field"] == field
    assert not Job.objects.exists()


def test_impossible_retry_values_are_422(api: Api) -> None:
    error = error_of(
        api.post("/jobs", {"type": "a.b", "args": [], "retry": {"max_attempts": -1}}), 422, "invalid_payload"
    )
    assert error["canonical_code"] == "INVALID_RETRY_POLICY"


def test_an_id_that_is_taken_is_a_conflict(api: Api) -> None:
    job = api.push()
    error = error_of(api.post("/jobs", {"id": job["id"], "type": "a.b", "args": []}), 409, "duplicate")
    assert error["details"]["existing_job_id"] == job["id"]
    assert Job.objects.count() == 1


def test_what_a_middleware_drops_is_answered_as_dropped(api: Api) -> None:
    with added(lambda job, proceed: None):
        response = api.post("/jobs", {"type": "a.b", "args": []})
    assert (response.status_code, response.json()) == (200, {"job": None, "dropped": True})
    assert not response.has_header("Location")


@pytest.mark.parametrize("path,more", [("/jobs/batch", {}), ("/jobs/bulk", {"atomicity": "atomic"})])
def test_a_middleware_that_drops_one_job_of_an_atomic_batch_lets_none_of_it_be_stored(
    api: Api, path: str, more: dict[str, Any]
) -> None:
    body = {"jobs": [{"type": name, "args": []} for name in ("a.b", "drop.me", "a.c")], **more}
    with added(lambda job, proceed: None if job["type"] == "drop.me" else proceed(job)):
        response = api.post(path, body)
        assert not Job.objects.exists()
        partial = api.post("/jobs/bulk", {**body, "atomicity": "partial"})
    assert response.status_code == 422, response.content
    answer = response.json()
    error = answer["error"] if path == "/jobs/batch" else answer["items"][1]["error"]
    assert (error["code"], error["details"]["index"]) == ("x_middleware_rejected", 1)
    assert partial.status_code < 300
    assert Job.objects.count() == 2


def test_what_a_middleware_refuses_is_422(api: Api) -> None:
    def refuse(job: Any, proceed: Any) -> Any:
        raise MiddlewareRejected("Not on Sundays.")

    with added(refuse):
        error = error_of(api.post("/jobs", {"type": "a.b", "args": []}), 422, "x_middleware_rejected")
    assert error["message"] == "Not on Sundays."


def test_a_middleware_that_breaks_is_a_500_in_json(api: Api, caplog: Any) -> None:
    with added(lambda job, proceed: 1 / 0):
        response = api.post("/jobs", {"type": "a.b", "args": []})
    error_of(response, 500, "backend_error")
    assert b"ZeroDivision" not in response.content


@pytest.mark.parametrize("path", [f"/jobs/{UNKNOWN}", "/jobs/nonsense", f"/jobs/{UNKNOWN}%00", "/jobs/%FF%FE"])
def test_an_unknown_or_malformed_id_is_not_found(api: Api, path: str) -> None:
    for response in (api.get(path), api.delete(path), api.post(f"{path}/cancel"), api.post(f"{path}/ack")):
        assert error_of(response, 404, "not_found")["details"]["resource_type"] == "job"


def test_ids_in_paths_may_be_in_capitals(api: Api) -> None:
    job = api.push()
    assert api.get(f"/jobs/{job['id'].upper()}").json()["job"]["id"] == job["id"]


def test_reading_changes_nothing_even_if_the_job_is_due(api: Api, django_assert_num_queries: Any) -> None:
    job = api.push()
    with django_assert_num_queries(1):
        api.get(f"/jobs/{job['id']}")


@pytest.mark.parametrize("verb", ["delete", "post"])
def test_cancelling_is_answered_with_what_the_job_was(api: Api, verb: str) -> None:
    job = api.push()
    path = f"/jobs/{job['id']}"
    response = api.delete(path) if verb == "delete" else api.post(f"{path}/cancel")
    answered = response.json()["job"]
    assert response.status_code == 200
    assert (answered["state"], answered["previous_state"]) == ("cancelled", "available")
    assert answered["cancelled_at"]
    assert "completed_at" not in answered


def test_cancelling_twice_is_no_error(api: Api) -> None:
    job = api.push()
    first = api.delete(f"/jobs/{job['id']}").json()["job"]
    again = api.delete(f"/jobs/{job['id']}")
    assert again.status_code == 200
    assert again.json()["job"]["cancelled_at"] == first["cancelled_at"]


def test_the_published_dialect_answers_409_to_a_second_cancel(api: Api, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "DIALECT": "published"}
    job = api.push()
    api.delete(f"/jobs/{job['id']}")
    error_of(api.delete(f"/jobs/{job['id']}"), 409, "conflict")


def test_cancelling_what_is_completed_is_a_conflict(api: Api) -> None:
    job = api.push()
    api.fetch()
    api.post("/workers/ack", {"job_id": job["id"]})
    error = error_of(api.delete(f"/jobs/{job['id']}"), 409, "conflict")
    assert error["type"] == "invalid_state_transition"
    assert error["details"]["job_id"] == job["id"]
    assert error["details"]["current_state"] == "completed"
    assert error["details"]["attempted"] == "cancel"


def test_a_staged_job_waits_until_it_is_activated(api: Api) -> None:
    job = api.push(pending=True)
    assert job["state"] == "pending"
    response = api.post(f"/jobs/{job['id']}/activate")
    activated = response.json()["job"]
    assert response.status_code == 200
    assert (activated["state"], activated["previous_state"]) == ("available", "pending")
    assert activated["activated_at"]
    error_of(api.post(f"/jobs/{job['id']}/activate", {}), 409, "conflict")


def test_a_batch_keeps_the_order_and_counts(api: Api) -> None:
    response = api.post("/jobs/batch", {"jobs": [{"type": f"t.n{i}", "args": []} for i in range(5)]})
    body = response.json()
    assert response.status_code == 201
    assert [job["type"] for job in body["jobs"]] == [f"t.n{i}" for i in range(5)]
    assert body["count"] == 5


@pytest.mark.parametrize("good_before", [0, 2])
def test_one_faulty_job_refuses_the_whole_batch_and_says_which(api: Api, good_before: int) -> None:
    good = [{"type": "a.b", "args": []}] * good_before
    error = error_of(api.post("/jobs/batch", {"jobs": [*good, {"type": "a.b"}]}), 400, "invalid_payload")
    assert error["details"]["index"] == good_before
    assert f"[{good_before}]" in error["message"]
    assert not Job.objects.exists()


def test_an_id_twice_in_a_batch_stores_nothing(api: Api) -> None:
    job = {"type": "a.b", "args": [], "id": UNKNOWN}
    error_of(api.post("/jobs/batch", {"jobs": [job, job]}), 409, "duplicate")
    assert not Job.objects.exists()


@pytest.mark.parametrize("body", [{}, {"jobs": []}, {"jobs": None}, {"jobs": {"0": {}}}, {"jobs": "x"}])
def test_a_batch_without_jobs_is_refused(api: Api, body: Any) -> None:
    error_of(api.post("/jobs/batch", body), 400, "invalid_request")


def test_too_many_jobs_at_once_are_refused_with_the_limit(api: Api, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "MAX_BATCH_SIZE": 2}
    response = api.post("/jobs/batch", {"jobs": [{"type": "a.b", "args": []}] * 3})
    error = error_of(response, 413, "batch_size_exceeded")
    assert error["max_batch_size"] == error["details"]["max_batch_size"] == 2
    assert response["X-OJS-Max-Batch-Size"] == "2"


def test_a_thousand_jobs_of_a_kilobyte_fit_into_a_batch(api: Api) -> None:
    jobs = [{"type": "a.b", "args": ["x" * 1100]}] * 1000
    response = api.post("/jobs/batch", {"jobs": jobs})
    assert response.status_code == 201
    assert response.json()["count"] == 1000


def test_an_envelope_over_the_limit_is_413_and_a_large_meta_has_its_own_code(api: Api) -> None:
    error = error_of(
        api.raw("/jobs", json.dumps({"type": "a.b", "args": ["x" * 600_000] * 2}).encode()), 413, "payload_too_large"
    )
    assert error["details"]["field"] == "envelope"
    assert error["details"]["max_bytes"] == 1_048_576
    error_of(api.post("/jobs", {"type": "a.b", "args": [], "meta": {"x": "y" * 66_000}}), 413, "metadata_too_large")


def test_what_comes_to_an_envelope_on_its_way_does_not_count(api: Api, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "MAX_ENVELOPE_BYTES": 3000}
    headers = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01", "x-request-id": "r-1"}
    empty = '{"type":"a.b","args":[""]}'
    for size, status in ((3000, 201), (3001, 413)):
        body = empty.replace('""', f'"{"x" * (size - len(empty))}"')
        with added(lambda job, proceed: proceed(job)):
            answer = api.raw("/jobs", body.encode(), **headers)
        assert answer.status_code == status, answer.content
    assert Job.objects.get().meta["trace_id"] == "1" * 32
