"""`/admin/workers`: an operator sees the workers and tells them what to do."""

from __future__ import annotations

import datetime as dt
import io
import json
import re
from typing import Any
from urllib.parse import quote

import pytest
from django.core.management import call_command
from django.urls import reverse

from django_ojs import clock
from django_ojs.models import AuditEntry, Job, Worker
from django_ojs.statistics import summary
from django_ojs.workerregistry.registration import register
from tests.http.conftest import Api, error_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def stale(api: Api) -> str:
    register("old", {"hostname": "gone", "queues": ["default"]})
    Worker.objects.filter(pk="old").update(last_heartbeat_at=clock.now() - dt.timedelta(hours=1))
    return "old"


def test_the_list_names_all_workers_and_counts_them(api: Api, stale: str) -> None:
    for number in range(3):
        register(f"w-{number}", {"hostname": "here", "queues": ["a"], "concurrency": 5, "memory_mb": 60.5})
    api.push()
    api.fetch(worker_id="w-1")
    api.post("/workers/heartbeat", {"worker_id": "w-1", "state": "quiet", "active_jobs": 2})
    answer = api.get("/admin/workers", {"per_page": 2}).json()
    assert [item["id"] for item in answer["items"]] == ["old", "w-0"]
    assert answer["summary"] == {"total": 4, "running": 2, "quiet": 1, "stale": 1}
    assert (answer["pagination"]["total"], answer["pagination"]["per_page"]) == (4, 2)
    assert [item["state"] for item in answer["items"]] == ["stale", "running"]
    item = api.get("/admin/workers/w-1").json()
    assert (item["state"], item["active_jobs"], item["concurrency"], item["memory_mb"]) == ("quiet", 1, 5, 60.5)


def test_the_jobs_of_a_worker_that_only_fetches_are_counted_the_same_through_every_door(
    api: Api, admin_client: Any
) -> None:
    """It sends no heartbeat, so it never says how many it has nor when it was heard."""
    for _ in range(2):
        api.push()
        api.fetch(worker_id="silent")
    found = api.get("/admin/workers/silent").json()
    assert (found["active_jobs"], len(found["active_job_ids"])) == (2, 2)
    assert found["last_heartbeat_at"] == found["last_heartbeat"] == found["last_seen_at"]
    (line,) = api.get("/admin/workers").json()["items"]
    assert line == {name: found[name] for name in line}
    health = api.get("/workers/silent/health").json()
    assert (health["active_jobs"], health["last_heartbeat_at"]) == (2, found["last_seen_at"])
    (listed,) = json.loads(said("ojs_workers", "list", "--json"))
    assert listed["active_jobs"] == 2
    (worker,) = json.loads(said("ojs_status", "--json"))["workers"]
    assert worker["active_jobs"] == 2
    summary.forget()
    assert summary.snapshot()["workers"]["active"][0]["activeJobs"] == 2
    page = admin_client.get(reverse("admin:django_ojs_worker_changelist")).content.decode()
    assert re.search(r'class="field-jobs_held"[^>]*>2</td>', page)
    Worker.objects.update(last_seen_at=clock.now() - dt.timedelta(hours=1))
    assert api.get("/admin/workers/silent").json()["state"] == "stale"
    page = admin_client.get(reverse("admin:django_ojs_worker_changelist")).content.decode()
    assert ">silent</span>" in page


def said(*command: str) -> str:
    out = io.StringIO()
    call_command(*command, stdout=out)
    return out.getvalue()


@pytest.mark.parametrize(
    "verb,answered", [("quiet", "quiet"), ("terminate", "terminate"), ("restart", "terminate"), ("resume", "running")]
)
def test_a_directive_is_what_the_next_heartbeat_is_answered_and_stays(api: Api, verb: str, answered: str) -> None:
    register("w", {})
    answer = api.post(f"/admin/workers/w/{verb}").json()
    assert (answer["id"], answer["worker_id"], answer["state"]) == ("w", "w", answered)
    for _ in range(2):
        assert api.post("/workers/heartbeat", {"worker_id": "w"}).json()["state"] == answered
    assert AuditEntry.objects.values_list("action", "target").get() == (f"worker.{verb}", "w")


@pytest.mark.parametrize("name", ["a/b", "host/4711/quiet/1", "/", "a//b", "directive/1", "a/quiet/"])
def test_a_worker_is_reached_whose_id_holds_slashes(api: Api, name: str) -> None:
    register(name, {})
    for shown in (name, quote(name, safe="")):
        assert api.get(f"/admin/workers/{shown}").json()["id"] == name
        assert api.post(f"/admin/workers/{shown}/quiet").json()["worker_id"] == name
    error_of(api.get(f"/admin/workers/{name}/x"), 404, "not_found")
    Worker.objects.filter(pk=name).update(last_heartbeat_at=clock.now() - dt.timedelta(hours=1))
    assert api.delete(f"/admin/workers/{name}").status_code == 204
    assert not Worker.objects.exists()


def test_a_worker_that_was_told_to_be_quiet_gets_no_jobs_until_it_is_resumed(api: Api) -> None:
    api.push()
    register("w", {})
    api.post("/admin/workers/w/quiet")
    assert api.post("/workers/fetch", {"queues": ["default"], "worker_id": "w"}).json() == {"jobs": []}
    api.post("/admin/workers/w/resume")
    assert api.fetch(worker_id="w")["state"] == "active"


class TestLimitedKeys:
    """A worker serves whoever uses its queues: who may use a few sees their workers and directs none."""

    @pytest.fixture(autouse=True)
    def _workers(self, api: Api, stale: str) -> None:
        register("mine", {"queues": ["mail", "other"]})
        register("others", {"queues": ["other"]})
        register("silent", {})
        for queue in ("mail", "other"):
            api.push(queue=queue)
            api.fetch(queue, worker_id="mine")

    def test_the_list_and_its_summary(self, with_key: Any) -> None:
        answer = with_key("admin.read", queues=["mail"]).get("/admin/workers").json()
        assert [item["id"] for item in answer["items"]] == ["mine"]
        assert answer["summary"] == {"total": 1, "running": 1, "quiet": 0, "stale": 0}
        assert answer["pagination"]["total"] == 1
        assert with_key("admin.read", queues=["none"]).get("/admin/workers").json()["items"] == []

    def test_one_worker_and_those_of_its_jobs_that_are_the_keys(self, with_key: Any) -> None:
        api = with_key("admin.read", queues=["mail"])
        assert [job["queue"] for job in api.get("/admin/workers/mine").json()["jobs"]] == ["mail"]
        assert len(with_key("admin.read").get("/admin/workers/mine").json()["jobs"]) == 2
        for worker in ("others", "silent", "old"):
            error = error_of(api.get(f"/admin/workers/{worker}"), 403, "permission_denied")
            assert error["details"]["worker_id"] == worker
        assert with_key("admin.read", job_types=["x.y"]).get("/admin/workers/mine").json()["jobs"] == []

    @pytest.mark.parametrize("limits", [{"queues": ["mail"]}, {"job_types": ["test.*"]}])
    def test_they_are_not_directed(self, with_key: Any, limits: dict[str, Any]) -> None:
        api = with_key("admin", **limits)
        for response in (
            api.post("/admin/workers/directive", {"directive": "terminate"}),
            *(api.post(f"/admin/workers/mine/{verb}") for verb in ("quiet", "resume", "terminate", "restart")),
            api.delete("/admin/workers/old"),
        ):
            error_of(response, 403, "permission_denied")
        assert set(Worker.objects.values_list("directive", flat=True)) == {""}
        assert Worker.objects.filter(pk="old").exists()


def test_all_workers_can_be_told_at_once(api: Api) -> None:
    for name in ("a", "b"):
        register(name, {})
    assert api.post("/admin/workers/directive", {"directive": "quiet"}).json()["workers"] == ["a", "b"]
    assert set(Worker.objects.values_list("directive", flat=True)) == {"quiet"}
    error_of(api.post("/admin/workers/directive", {"directive": "dance"}), 400, "invalid_request")
    for one in ({"worker_id": "a"}, {"workers": ["a"]}, {"queue": "mail"}):  # and not an order to all
        error_of(api.post("/admin/workers/directive", {"directive": "terminate", **one}), 400, "invalid_request")


def test_only_a_dead_worker_can_be_deleted_and_its_jobs_come_back(api: Api, stale: str) -> None:
    register("alive", {})
    error_of(api.delete("/admin/workers/alive"), 409, "conflict")
    job = api.push()
    api.fetch(worker_id=stale)
    Worker.objects.filter(pk=stale).update(last_heartbeat_at=clock.now() - dt.timedelta(hours=1))
    assert api.get(f"/admin/workers/{stale}").json()["active_job_ids"] == [job["id"]]
    assert api.delete(f"/admin/workers/{stale}").status_code == 204
    assert Job.objects.get(pk=job["id"]).state == "available"
    assert not Worker.objects.filter(pk=stale).exists()


@pytest.mark.parametrize("path", ["/admin/workers/nobody", "/admin/workers/%00", "/admin/workers/" + "x" * 300])
def test_an_unknown_worker_is_not_found(api: Api, path: str) -> None:
    error_of(api.get(path), 404, "not_found")
    error_of(api.post(f"{path}/quiet"), 404, "not_found")
    error_of(api.delete(path), 404, "not_found")


def test_only_the_admin_scope_may(with_key: Any) -> None:
    register("w", {})
    for scopes, status in ((["read", "work", "push"], 403), (["admin"], 200)):
        caller = with_key(*scopes)
        assert caller.get("/admin/workers").status_code == status
        assert caller.post("/admin/workers/w/quiet").status_code == status
