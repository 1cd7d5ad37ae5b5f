"""Checkpoints over HTTP (orchestration 5.2): their calls, the mirrors of clients, and what refuses a save."""

from __future__ import annotations

import gzip
import json
import uuid
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from django_ojs import keys
from django_ojs.jobs import checkpoints
from django_ojs.models import AuditEntry, Job, JobCheckpoint
from tests.http.conftest import Api, error_of

pytestmark = pytest.mark.django_db

UNKNOWN = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"
LIMIT = 1_048_576
#: The two paths at which a checkpoint is saved and deleted, the second also with the prefix twice.
SAVE = ("/jobs/{}/checkpoint", "/checkpoints/{}", "/ojs/v1/checkpoints/{}")


def put(api: Api, job_id: str, body: Any) -> Any:
    return api.client.put(f"/ojs/v1/jobs/{job_id}/checkpoint", body, content_type="application/json")


def active(api: Api, worker_id: str = "w1", **attributes: Any) -> str:
    job_id: str = api.push(**attributes)["id"]
    assert api.fetch(worker_id=worker_id)["id"] == job_id
    return job_id


class TestTheWire:
    @pytest.mark.parametrize("method", ["put", "post"])
    def test_a_save_answers_with_what_is_kept_flat_and_wrapped(self, api: Api, method: str) -> None:
        job_id = active(api)
        body = {"state": {"page": 3}, "worker_id": "w1"}
        answer = put(api, job_id, body) if method == "put" else api.post(f"/jobs/{job_id}/checkpoint", body)
        assert answer.status_code == 200, answer.content
        whole = answer.json()
        saved = {name: value for name, value in whole.items() if name != "checkpoint"}
        wrapped = whole["checkpoint"]
        assert saved == wrapped
        assert set(saved) == {"job_id", "state", "sequence", "created_at"}
        assert (saved["job_id"], saved["state"], saved["sequence"]) == (job_id, {"page": 3}, 1)
        assert api.get(f"/jobs/{job_id}/checkpoint").json() == whole

    @pytest.mark.parametrize(
        "text", ["{}", "[]", "0", '""', "false", "null", "1e400", "12345678901234567890.5", '["\\u0000", "é", 1.0]']
    )
    def test_ckp_1_any_json_value_comes_back_as_it_was_sent(self, api: Api, text: str) -> None:
        job_id = active(api)
        assert api.raw(f"/jobs/{job_id}/checkpoint", f'{{"state": {text}}}'.encode()).status_code == 200
        compact = text.replace(", ", ",").encode()
        assert b'"state":%s,' % compact in api.get(f"/jobs/{job_id}/checkpoint").content
        assert b'"state":%s,' % compact in api.get(f"/checkpoints/{job_id}/resume").content
        api.post(f"/jobs/{job_id}/nack", {"error": {"message": "x"}, "requeue": True})
        fetched = api.post("/workers/fetch", {"queues": ["default"]})
        assert b'"checkpoint":{"state":%s,"sequence":1},"last_checkpoint":%s' % (compact, compact) in fetched.content

    @pytest.mark.parametrize("path", SAVE)
    def test_what_is_no_checkpoint_is_refused(self, api: Api, path: str) -> None:
        job_id = active(api)
        path = path.format(job_id)
        for body, field in (
            ({}, "state"),
            ({"sequence": 1}, "state"),
            ({"state": 1, "sequence": "2"}, "sequence"),
            ({"state": 1, "sequence": -1}, "sequence"),
            ({"state": 1, "sequence": 1.5}, "sequence"),
            ({"state": 1, "sequence": True}, "sequence"),
            ({"state": 1, "sequence": 2**53}, "sequence"),
            ({"state": 1, "step_index": "x"}, "step_index"),
            ({"state": 1, "metadata": []}, "metadata"),
            ({"state": 1, "metadata": {"attempt": 1}}, "metadata.attempt"),
            ({"state": 1, "worker_id": ""}, "worker_id"),
            ({"state": 1, "attempt": 0}, "attempt"),
        ):
            error = error_of(api.post(path, body), 400, "invalid_request")
            assert error["details"]["field"] == field
        assert not JobCheckpoint.objects.exists()

    def test_unknown_jobs_and_jobs_without_one(self, api: Api) -> None:
        for job_id in (UNKNOWN, "nonsense"):
            for path in SAVE:
                error_of(api.post(path.format(job_id), {"state": 1}), 404, "not_found")
                error_of(api.delete(path.format(job_id)), 404, "not_found")
            error_of(api.get(f"/jobs/{job_id}/checkpoint"), 404, "not_found")
            error_of(api.get(f"/checkpoints/{job_id}/resume"), 404, "not_found")
        error = error_of(api.get(f"/jobs/{active(api)}/checkpoint"), 404, "not_found")
        assert error["details"]["resource_type"] == "checkpoint"

    def test_ckp_3_a_delete_is_idempotent_and_the_next_save_is_the_first(self, api: Api) -> None:
        for path in SAVE:
            job_id = active(api)
            for sequence in (1, 2):
                assert api.post(path.format(job_id), {"state": "x"}).json()["sequence"] == sequence
            assert api.delete(path.format(job_id)).json() == {"deleted": True, "job_id": job_id}
            assert api.delete(path.format(job_id)).json() == {"deleted": False, "job_id": job_id}
            assert api.post(path.format(job_id), {"state": "x"}).json()["sequence"] == 1

    def test_ckp_4_a_sequence_has_to_be_greater(self, api: Api) -> None:
        job_id = active(api)
        assert put(api, job_id, {"state": 1, "sequence": 7}).json()["sequence"] == 7
        error = error_of(put(api, job_id, {"state": 2, "sequence": 7}), 409, "conflict")
        assert {name: error["details"][name] for name in ("job_id", "current_state", "attempted")} == {
            "job_id": job_id, "current_state": "active", "attempted": "checkpoint",
        }  # fmt: skip
        assert put(api, job_id, {"state": 2}).json()["sequence"] == 8
        assert api.get(f"/jobs/{job_id}/checkpoint").json()["state"] == 2

    def test_ckp_4_a_sequence_ends_where_readers_are_inexact(self, api: Api) -> None:
        job_id, largest = active(api), 2**53 - 1
        assert put(api, job_id, {"state": 1, "sequence": largest}).json()["sequence"] == largest
        error = error_of(put(api, job_id, {"state": 2}), 409, "conflict")
        assert error["details"]["stored_sequence"] == largest
        assert api.get(f"/jobs/{job_id}/checkpoint").json()["state"] == 1
        api.delete(f"/jobs/{job_id}/checkpoint")
        assert put(api, job_id, {"state": 2}).json()["sequence"] == 1

    def test_ckp_6_exactly_the_limit_passes_and_a_byte_more_does_not(self, api: Api) -> None:
        job_id = active(api)
        state = "x" * (LIMIT - 2)
        assert put(api, job_id, {"state": state}).status_code == 200
        error = error_of(put(api, job_id, {"state": state + "x"}), 413, "payload_too_large")
        assert error["details"] == {"actual_bytes": LIMIT + 1, "max_bytes": LIMIT, "field": "checkpoint"}
        error = error_of(
            api.post(f"/checkpoints/{job_id}", {"state": state, "metadata": {"a": ""}}), 413, "payload_too_large"
        )
        assert error["details"]["actual_bytes"] == LIMIT + 8
        error = error_of(put(api, job_id, {"state": state * 2}), 413, "payload_too_large")
        assert error["details"]["field"] == "checkpoint"
        packed = gzip.compress(json.dumps({"state": "x" * 50_000_000}).encode())
        answer = api.raw(f"/jobs/{job_id}/checkpoint", packed, **{"Content-Encoding": "gzip"})
        error_of(answer, 413, "payload_too_large")
        found = checkpoints.read(uuid.UUID(job_id))
        assert found is not None
        assert found.size == LIMIT

    @pytest.mark.parametrize("state", ["completed", "cancelled", "discarded"])
    def test_ckp_7_and_11_one_that_has_ended_takes_none_and_shows_what_it_had(self, api: Api, state: str) -> None:
        job_id = active(api, retry={"max_attempts": 1})
        put(api, job_id, {"state": "kept"})
        if state == "completed":
            api.post(f"/jobs/{job_id}/ack", {})
        elif state == "cancelled":
            api.delete(f"/jobs/{job_id}")
        else:
            api.post(f"/jobs/{job_id}/nack", {"error": {"message": "x"}})
        answers = [put(api, job_id, {"state": "late"})]
        answers += [api.post(path.format(job_id), {"state": "late"}) for path in SAVE]
        for answer in answers:
            error = error_of(answer, 409, "conflict")
            assert error["details"] == {"job_id": job_id, "current_state": state, "attempted": "checkpoint"}
        assert api.get(f"/jobs/{job_id}/checkpoint").json()["state"] == "kept"

    def test_ckp_8_a_job_that_waits_takes_one_unless_the_site_is_strict(self, api: Api, settings: Any) -> None:
        job_id = api.push()["id"]
        assert put(api, job_id, {"state": 1}).json()["sequence"] == 1
        settings.OJS = {**settings.OJS, "STRICT_CHECKPOINTS": True}
        error = error_of(put(api, job_id, {"state": 2}), 409, "conflict")
        assert error["details"]["current_state"] == "available"
        api.fetch(worker_id="w1")
        error_of(put(api, job_id, {"state": 2}), 409, "conflict")
        assert put(api, job_id, {"state": 2, "worker_id": "w1"}).json()["sequence"] == 2

    def test_ckp_9_another_worker_is_refused(self, api: Api, settings: Any) -> None:
        job_id = active(api)
        error = error_of(put(api, job_id, {"state": 1, "worker_id": "w2"}), 409, "conflict")
        assert {"job_id": job_id, "current_state": "active", "attempted": "checkpoint"}.items() <= (
            error["details"].items()
        )
        error_of(put(api, job_id, {"state": 1, "worker_id": "w1", "attempt": 2}), 409, "conflict")
        assert put(api, job_id, {"state": 1, "worker_id": "w1", "attempt": 1}).status_code == 200
        settings.OJS = {**settings.OJS, "STRICT_OWNERSHIP": True}
        error_of(put(api, job_id, {"state": 1}), 409, "conflict")

    def test_ckp_10_and_11_the_next_attempt_has_it_until_it_is_deleted(self, api: Api) -> None:
        job_id = active(api, retry={"max_attempts": 9, "initial_interval": "PT0.001S", "jitter": False})
        put(api, job_id, {"state": {"page": 3}})
        api.post(f"/jobs/{job_id}/nack", {"error": {"message": "x"}, "requeue": True})
        job = api.fetch()
        assert (job["id"], job["checkpoint"]) == (job_id, {"state": {"page": 3}, "sequence": 1})
        assert job["last_checkpoint"] == {"page": 3}
        api.post(f"/jobs/{job_id}/nack", {"error": {"message": "x"}, "requeue": True})
        api.delete(f"/jobs/{job_id}/checkpoint")
        assert api.fetch().keys().isdisjoint({"checkpoint", "last_checkpoint"})

    def test_what_a_client_pushes_under_these_names_is_the_servers(self, api: Api) -> None:
        api.push(checkpoint={"state": 1}, last_checkpoint=2)
        assert api.fetch().keys().isdisjoint({"checkpoint", "last_checkpoint"})

    def test_ckp_16_lists_and_the_job_itself_do_not_have_it(self, api: Api) -> None:
        job_id = active(api)
        put(api, job_id, {"state": "kept-state"})
        for path in (f"/jobs/{job_id}", "/jobs", f"/admin/jobs/{job_id}", "/admin/jobs", f"/jobs/{job_id}/history"):
            assert b"kept-state" not in api.get(path).content

    def test_ckp_16_a_deleted_job_takes_it_along(self, api: Api) -> None:
        job_id = api.dead_letter()["id"]
        assert not JobCheckpoint.objects.exists()
        other = active(api, retry={"max_attempts": 1})
        put(api, other, {"state": 1})
        api.post(f"/jobs/{other}/nack", {"error": {"message": "x"}})
        assert api.delete(f"/dead-letter/{other}").status_code == 200
        assert not JobCheckpoint.objects.exists()
        assert Job.objects.filter(pk=job_id).exists()


class TestTheHelpersOfClients:
    @pytest.mark.parametrize("prefix", ["", "/ojs/v1"])
    def test_ckp_2_a_client_saves_resumes_and_deletes(self, api: Api, prefix: str) -> None:
        job_id = active(api)
        resume = f"{prefix}/checkpoints/{job_id}/resume"
        assert api.get(resume).json() == {"has_checkpoint": False}
        metadata = {"attempt": "1", "_replay_log": '[{"seq":0,"type":"time","result":"x"}]'}
        body = {"state": {"page": 3}, "step_index": 2, "metadata": metadata}
        saved = api.post(f"{prefix}/checkpoints/{job_id}", body).json()
        assert (saved["state"], saved["sequence"], saved["checkpoint"]["job_id"]) == ({"page": 3}, 1, job_id)
        found = api.get(resume).json()
        assert found == {
            "has_checkpoint": True,
            "checkpoint": {**body, "sequence": 1, "created_at": saved["created_at"]},
        }
        api.post(f"{prefix}/checkpoints/{job_id}", {"state": None})
        kept = api.get(resume).json()["checkpoint"]
        assert (kept["state"], kept["step_index"], kept["metadata"], kept["sequence"]) == (None, None, {}, 2)
        assert api.delete(f"{prefix}/checkpoints/{job_id}").json() == {"deleted": True, "job_id": job_id}
        assert api.get(resume).json() == {"has_checkpoint": False}


class TestWithProgress:
    def test_a_report_saves_the_same_checkpoint(self, api: Api) -> None:
        job_id = active(api)
        for call, body in (
            (lambda body: api.client.put(f"/ojs/v1/jobs/{job_id}/progress", body, content_type="application/json"), {}),
            (lambda body: api.post("/workers/progress", body), {"job_id": job_id}),
        ):
            answer = call({**body, "progress": 0.5, "checkpoint": {"page": 4}, "worker_id": "w1"})
            assert (answer.status_code, answer.json()["progress"]) == (200, 0.5)
        assert api.get(f"/jobs/{job_id}/checkpoint").json()["state"] == {"page": 4}
        assert api.get(f"/jobs/{job_id}/checkpoint").json()["sequence"] == 2

    def test_one_that_does_not_count_saves_nothing(self, api: Api) -> None:
        job_id = active(api)
        body = {"job_id": job_id, "progress": 0.5, "checkpoint": 1, "worker_id": "w2"}
        assert api.post("/workers/progress", body).status_code == 200
        assert not JobCheckpoint.objects.exists()

    def test_one_that_is_too_large_reports_nothing(self, api: Api) -> None:
        job_id = active(api)
        body = {"job_id": job_id, "progress": 0.5, "checkpoint": "x" * LIMIT}
        error_of(api.post("/workers/progress", body), 413, "payload_too_large")
        assert api.get(f"/jobs/{job_id}/progress").json()["progress"] is None


class TestRetries:
    @pytest.mark.parametrize("path", ["/dead-letter/{}/retry", "/admin/dead-letter/{}/retry", "/admin/jobs/{}/retry"])
    def test_ckp_13_a_retry_keeps_it_unless_it_is_to_be_cleared(self, api: Api, path: str) -> None:
        for body, kept in (({}, True), ({"clear_checkpoint": False}, True), ({"clear_checkpoint": True}, False)):
            job_id = active(api, retry={"max_attempts": 1})
            put(api, job_id, {"state": "so far"})
            api.post(f"/jobs/{job_id}/nack", {"error": {"message": "x"}})
            assert api.post(path.format(job_id), body).status_code == 200
            job = api.fetch()
            assert (job["id"], job.get("last_checkpoint")) == (job_id, "so far" if kept else None)
        error_of(api.post(path.format(api.dead_letter()["id"]), {"clear_checkpoint": 1}), 400, "invalid_request")

    def test_ckp_13_of_a_job_that_waits_for_its_backoff_too(self, api: Api) -> None:
        job_id = active(api)
        put(api, job_id, {"state": "so far"})
        api.post(f"/jobs/{job_id}/nack", {"error": {"message": "x"}})
        answer = api.post(f"/admin/jobs/{job_id}/retry", {"clear_checkpoint": True, "reason": "bad state"})
        assert (answer.status_code, answer.json()["state"]) == (200, "available")
        assert "checkpoint" not in api.fetch()
        assert AuditEntry.objects.get(action="job.retry").detail == {"reason": "bad state", "clear_checkpoint": True}


class TestRights:
    def test_a_delete_by_an_operator_is_in_the_audit_log(self, api: Api) -> None:
        job_id = active(api)
        put(api, job_id, {"state": "kept"})
        assert api.get(f"/admin/jobs/{job_id}/checkpoint").json()["state"] == "kept"
        assert api.delete(f"/admin/jobs/{job_id}/checkpoint").json() == {"deleted": True, "job_id": job_id}
        entry = AuditEntry.objects.get()
        assert (entry.action, entry.target, entry.outcome) == ("job.clear_checkpoint", job_id, "success")
        put(api, job_id, {"state": "kept"})
        api.delete(f"/jobs/{job_id}/checkpoint")
        assert AuditEntry.objects.count() == 1

    def test_a_key_reaches_the_checkpoints_of_its_jobs_only(self, api: Api) -> None:
        job_id = active(api)
        put(api, job_id, {"state": "kept"})
        _, text = keys.create("limited", ["work", "read"], queues=["other"])
        limited = Api(Authorization=f"Bearer {text}")
        for path in SAVE:
            error_of(limited.post(path.format(job_id), {"state": 1}), 403, "permission_denied")
            error_of(limited.delete(path.format(job_id)), 403, "permission_denied")
        for path in (f"/jobs/{job_id}/checkpoint", f"/checkpoints/{job_id}/resume"):
            error_of(limited.get(path), 403, "permission_denied")
        found = checkpoints.read(uuid.UUID(job_id))
        assert found is not None
        assert found.state == "kept"

    def test_a_caller_may_not_speak_for_the_worker_of_another(self, api: Api) -> None:
        _, first = keys.create("first", ["work", "push"])
        _, second = keys.create("second", ["work"])
        one, other = Api(Authorization=f"Bearer {first}"), Api(Authorization=f"Bearer {second}")
        one.post("/workers", {"worker_id": "w1"})
        job_id = active(one)
        error_of(other.post(f"/jobs/{job_id}/checkpoint", {"state": 1, "worker_id": "w1"}), 403, "permission_denied")
        assert one.post(f"/jobs/{job_id}/checkpoint", {"state": 1, "worker_id": "w1"}).status_code == 200

    def test_a_user_who_may_view_jobs_reads_it_and_saves_none(self, api: Api, settings: Any) -> None:
        job_id = active(api)
        put(api, job_id, {"state": "kept"})
        settings.OJS = {**settings.OJS, "ALLOW_ANONYMOUS": False}
        user = User.objects.create_user("viewer", is_staff=True)
        user.user_permissions.add(Permission.objects.get(codename="view_job"))
        client = Client()
        client.force_login(user)
        assert client.get(f"/ojs/v1/jobs/{job_id}/checkpoint").json()["state"] == "kept"
        for call in (client.put, client.post, client.delete):
            answer = call(f"/ojs/v1/jobs/{job_id}/checkpoint", {"state": 1}, content_type="application/json")
            assert answer.status_code == 403

    @pytest.mark.parametrize(
        "rules, shown",
        [
            ({"keys": ["token"]}, {"token": "[REDACTED]", "page": 3}),
            ({"types": {"test.*": ["checkpoint"]}}, {"token": "[REDACTED]", "page": "[REDACTED]"}),
            ({"types": {"test.*": ["args"]}}, {"token": "[REDACTED]", "page": "[REDACTED]"}),
            ({"types": {"test.*": ["result"]}}, {"token": "secret", "page": 3}),
        ],
    )
    def test_what_readers_see_is_redacted_and_what_workers_get_is_not(
        self, api: Api, settings: Any, rules: Any, shown: Any
    ) -> None:
        state = {"token": "secret", "page": 3}
        settings.OJS = {**settings.OJS, "REDACT": rules}
        job_id = active(api)
        assert put(api, job_id, {"state": state}).json()["state"] == state
        for door in ("", "/admin"):
            found = api.get(f"{door}/jobs/{job_id}/checkpoint").json()
            assert (found["state"], found["checkpoint"]["state"]) == (shown, shown)
        assert api.get(f"/checkpoints/{job_id}/resume").json()["checkpoint"]["state"] == state
        api.post(f"/jobs/{job_id}/nack", {"error": {"message": "x"}, "requeue": True})
        assert api.fetch()["last_checkpoint"] == state
