"""Acts on many jobs in the background over HTTP: asked for, followed, stopped, and within the limits of who asked."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import RequestFactory
from rest_framework.request import Request

from django_ojs.http import filters
from django_ojs.jobs import bulk
from django_ojs.jobs.selection import JobFilter
from django_ojs.models import AuditEntry, BulkAction, Job
from django_ojs.states import State
from tests.http.conftest import Api, error_of

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BATCH", 2)


def finish() -> None:
    while bulk.advance_action():
        pass


def state(job: str) -> str:
    return str(Job.objects.get(pk=job).state)


def test_a_rate_leaves_it_to_the_scheduler(api: Api) -> None:
    answer = api.post("/admin/jobs/bulk/cancel", {"filter": {}, "confirm": True, "per_minute": 50})
    assert answer.status_code == 202
    assert answer.json()["per_minute"] == 50
    assert api.get(f"/admin/bulk-actions/{answer.json()['id']}").json()["per_minute"] == 50
    plain = api.post("/admin/jobs/bulk/cancel", {"filter": {}, "confirm": True, "background": True})
    assert plain.json()["per_minute"] is None


@pytest.mark.parametrize("more", [
    {"filter": {}, "per_minute": 0}, {"filter": {}, "per_minute": "50"}, {"filter": {}, "per_minute": True},
    {"filter": {}, "per_minute": 10**6}, {"filter": {}, "per_minute": 5, "background": False},
    {"job_ids": ["0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"], "per_minute": 5},
])  # fmt: skip
def test_a_rate_that_cannot_be(api: Api, more: dict[str, Any]) -> None:
    error = error_of(api.post("/admin/jobs/bulk/cancel", {"confirm": True, **more}), 400, "invalid_request")
    assert "per_minute" in error["message"]
    assert not BulkAction.objects.exists()


def test_a_cancel_is_accepted_done_later_and_followed(api: Api) -> None:
    jobs = [api.push("mail.send")["id"] for _ in range(3)]
    other = api.push("report.make")["id"]
    body = {"filter": {"type": "mail.*"}, "confirm": True, "background": True, "reason": "moved"}
    response = api.post("/admin/jobs/bulk/cancel", body)
    assert response.status_code == 202, response.content
    answer = response.json()
    assert (answer["action"], answer["state"], answer["expected"], answer["matched"]) == ("cancel", "running", 3, 0)
    assert response["Location"] == f"/ojs/v1/admin/bulk-actions/{answer['id']}"
    assert [state(job) for job in jobs] == ["available"] * 3
    bulk.advance_action()
    assert api.client.get(response["Location"]).json()["matched"] == 2
    finish()
    done = api.client.get(response["Location"]).json()
    assert (done["state"], done["matched"], done["succeeded"], done["failed"]) == ("completed", 3, 3, 0)
    assert done["finished_at"] >= done["created_at"]
    assert done["filter"] == {"states": ["scheduled", "available", "pending", "retryable"], "type": "mail.*"}
    assert [state(job) for job in [*jobs, other]] == ["cancelled"] * 3 + ["available"]
    begun = AuditEntry.objects.filter(action="job.bulk_cancel").earliest("pk")
    assert (begun.door, begun.detail["reason"], begun.detail["expected"]) == ("http", "moved", 3)


def test_retry_and_delete_and_the_dead_letters_go_to_the_background(api: Api) -> None:
    first, second = api.dead_letter(type="mail.send")["id"], api.dead_letter(type="report.make")["id"]
    also = {"confirm": True, "background": True}
    api.post("/admin/jobs/bulk/retry", {"filter": {"type": "mail.send", "error_type": "x"}, **also})
    api.post("/admin/dead-letter/retry", {"filter": {}, "override": {"queue": "later"}, **also})
    finish()
    assert [state(first), state(second)] == ["available"] * 2
    assert Job.objects.get(pk=second).queue == "later"
    api.delete(f"/jobs/{first}")
    assert api.post("/admin/jobs/bulk/delete", {"filter": {"state": "cancelled"}, **also}).status_code == 202
    finish()
    assert not Job.objects.filter(pk=first).exists()
    items = api.get("/admin/bulk-actions").json()["items"]
    assert [(item["action"], item["succeeded"]) for item in items] == [("delete", 1), ("retry", 1), ("retry", 1)]
    assert items[1]["override"] == {"queue": "later"}
    assert len(api.get("/admin/bulk-actions", {"state": "completed", "limit": 2}).json()["items"]) == 2
    assert api.get("/admin/bulk-actions", {"state": "running"}).json()["items"] == []


def test_running_jobs_are_spared_unless_their_state_is_named(api: Api) -> None:
    job = api.push()["id"]
    also = {"confirm": True, "background": True}
    api.post("/admin/jobs/bulk/cancel", {"filter": {}, **also})
    api.fetch()
    finish()
    assert state(job) == "active"
    api.post("/admin/jobs/bulk/cancel", {"filter": {"state": ["active"]}, **also})
    finish()
    assert state(job) == "cancelled"


def test_the_header_is_a_wish_for_filters_only(api: Api) -> None:
    job = api.push()["id"]
    wish = {"Prefer": "wait=5, Respond-Async"}
    named = {"job_ids": [job], "confirm": True}
    assert (
        api.post("/admin/jobs/bulk/cancel", {"filter": {}, "confirm": True, "background": False}, **wish).status_code
        == 200
    )
    assert api.post("/admin/jobs/bulk/cancel", named, **wish).status_code == 200
    assert api.post("/admin/jobs/bulk/cancel", {"filter": {}, "confirm": True}, **wish).status_code == 202
    assert BulkAction.objects.count() == 1


@pytest.mark.parametrize(
    "path,body,field",
    [
        ("/jobs/bulk/cancel", {"filter": {}}, "confirm"),
        ("/jobs/bulk/cancel", {"filter": {"stat": "x"}, "confirm": True}, "filter.stat"),
        ("/jobs/bulk/cancel", {"confirm": True}, "job_ids"),
        ("/jobs/bulk/retry", {"filter": {"state": "completed"}, "confirm": True}, "filter.state"),
        ("/jobs/bulk/delete", {"filter": {}, "confirm": True}, "filter.state"),
        ("/dead-letter/retry", {"filter": {}, "override": {"state": "x"}, "confirm": True}, "override.state"),
        ("/jobs/bulk/cancel", {"job_ids": ["0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"], "confirm": True}, "background"),
        ("/jobs/bulk/cancel", {"filter": {}, "confirm": True, "background": "yes"}, "background"),
    ],
)
def test_what_is_wrong_is_refused_at_once(api: Api, path: str, body: dict[str, Any], field: str) -> None:
    error = error_of(api.post(f"/admin{path}", {"background": True, **body}), 400, "invalid_request")
    assert error["details"]["field"] == field
    assert not BulkAction.objects.exists()


def test_a_dry_run_counts_and_begins_nothing(api: Api) -> None:
    api.push()
    answer = api.post("/admin/jobs/bulk/cancel", {"filter": {}, "dry_run": True, "background": True})
    assert (answer.status_code, answer.json()["matched"]) == (200, 1)
    assert not BulkAction.objects.exists()


def test_one_that_fails_says_why(api: Api) -> None:
    api.push()
    where = api.post("/admin/jobs/bulk/cancel", {"filter": {}, "confirm": True, "background": True}).json()["id"]
    assert api.get(f"/admin/bulk-actions/{where}").json()["problem"] is None
    BulkAction.objects.update(filter={})  # nothing that could be read
    assert bulk.advance_action()
    answer = api.get(f"/admin/bulk-actions/{where}").json()
    assert (answer["state"], answer["problem"]) == ("failed", "KeyError: 'states'")
    assert len(api.get("/admin/bulk-actions", {"state": "failed"}).json()["items"]) == 1


def test_one_is_stopped_once(api: Api) -> None:
    for _ in range(3):
        api.push()
    where = api.post("/admin/jobs/bulk/cancel", {"filter": {}, "confirm": True, "background": True}).json()["id"]
    bulk.advance_action()
    answer = api.post(f"/admin/bulk-actions/{where}/cancel").json()
    assert (answer["state"], answer["matched"]) == ("cancelled", 2)
    assert not bulk.advance_action()
    error = error_of(api.post(f"/admin/bulk-actions/{where}/cancel"), 409, "conflict")
    assert error["details"] == {"resource_type": "bulk_action", "resource_id": str(where), "current_state": "cancelled"}
    assert "job's" not in error["hint"]
    entry = AuditEntry.objects.get(action="bulkaction.cancel")
    assert (entry.target, entry.door) == (str(where), "http")
    for stranger in ("0", "x", "9" * 30, "1e5"):
        error_of(api.get(f"/admin/bulk-actions/{stranger}"), 404, "not_found")
    error_of(api.get("/admin/bulk-actions", {"state": "done"}), 400, "invalid_request")


def test_a_limited_key_acts_within_its_limits_and_sees_its_own(with_key: Any) -> None:
    everything = with_key("admin")
    mine, foreign = everything.push(queue="mine")["id"], everything.push(queue="other")["id"]
    limited = with_key("admin", queues=["mine"])
    body = {"filter": {}, "confirm": True, "background": True}
    own = limited.post("/admin/jobs/bulk/cancel", body).json()
    assert own["expected"] == 1
    finish()
    assert [state(mine), state(foreign)] == ["cancelled", "available"]
    theirs = everything.post("/admin/jobs/bulk/cancel", body).json()["id"]
    assert [item["id"] for item in limited.get("/admin/bulk-actions").json()["items"]] == [own["id"]]
    error_of(limited.get(f"/admin/bulk-actions/{theirs}"), 404, "not_found")
    error_of(limited.post(f"/admin/bulk-actions/{theirs}/cancel"), 404, "not_found")
    body["override"] = {"queue": "other"}
    error_of(limited.post("/admin/dead-letter/retry", body), 403, "permission_denied")
    assert len(everything.get("/admin/bulk-actions").json()["items"]) == 2


def test_who_may_only_read_begins_and_stops_nothing(with_key: Any) -> None:
    reader, writer = with_key("admin.read"), with_key("admin.write")
    body = {"filter": {}, "confirm": True, "background": True}
    error_of(reader.post("/admin/jobs/bulk/cancel", body), 403, "permission_denied")
    error_of(
        writer.post("/admin/jobs/bulk/delete", {**body, "filter": {"state": "completed"}}), 403, "permission_denied"
    )
    begun = writer.post("/admin/jobs/bulk/cancel", body).json()["id"]
    error_of(reader.post(f"/admin/bulk-actions/{begun}/cancel"), 403, "permission_denied")
    assert reader.get(f"/admin/bulk-actions/{begun}").json()["state"] == "running"


def test_every_filter_means_the_same_later_on(api: Api) -> None:
    api.dead_letter(type="mail.send", queue="a")
    api.push("mail.send", queue="a")
    api.push("mail.drop", queue="b")
    api.fetch("b", worker_id="w-7")
    since = Job.objects.order_by("created_at")[1].created_at.isoformat().replace("+00:00", "Z")
    for given in (
        {}, {"queue": "a"}, {"type": "mail.*"}, {"type": "mail.drop"}, {"worker_id": "w-7"}, {"error_type": "x"},
        {"since": since}, {"until": since}, {"queue": "a", "type": "mail.send", "since": since},
    ):  # fmt: skip
        for wanted in ([State.DISCARDED], [State.AVAILABLE, State.ACTIVE], list(State)):
            request = Request(RequestFactory().get("/"))
            now = filters.of_body(request, given).replace(states=wanted)
            later = JobFilter.from_json(now.to_json())
            assert set(now.jobs().values_list("pk")) == set(later.jobs().values_list("pk")), given
