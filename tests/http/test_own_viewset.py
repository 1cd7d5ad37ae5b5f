"""A site's own ViewSet: a list that it narrows, a permission that looks at the job, serializers for both doors."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import include, path
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.serializers import SerializerMethodField

from django_ojs.http.bulk import AdminBulkViewSet, BulkViewSet
from django_ojs.http.deadletter import DeadLetterSerializer, DeadLetterViewSet
from django_ojs.http.jobs import JobViewSet
from django_ojs.http.jobserializers import JobDetailSerializer, JobLineSerializer
from django_ojs.http.workers import WorkerLineSerializer, WorkerViewSet
from django_ojs.models import AuditEntry, Job, Worker
from django_ojs.models.job import JobRow
from django_ojs.urls import served_by
from django_ojs.workerregistry.registration import register
from tests.http.conftest import Api, error_of


class NotPayroll(BasePermission):
    message = "The payroll is nobody's business."

    def has_object_permission(self, request: Request, view: Any, obj: Any) -> bool:
        return bool(obj["queue"] != "payroll")


class ShortLine(JobLineSerializer):
    def show(self, instance: JobRow) -> dict[str, Any]:
        return {"id": super().show(instance)["id"]}


class Detail(JobDetailSerializer):
    def show(self, instance: JobRow) -> dict[str, Any]:
        return super().show(instance) | {"team": "blue"}


class SiteJobViewSet(JobViewSet):
    operator_serializer_class = Detail
    operation_changes = {"list": {"answer": ShortLine}}
    permission_classes = (*JobViewSet.permission_classes, NotPayroll)

    def get_queryset(self) -> Any:
        return super().get_queryset().exclude(queue="payroll")


class Letter(DeadLetterSerializer):
    def show(self, instance: JobRow) -> dict[str, Any]:
        return super().show(instance) | {"team": "blue"}


class SiteDeadLetterViewSet(DeadLetterViewSet):
    serializer_class = Letter
    operation_changes = {"list": {"answer": Letter}}
    permission_classes = (*DeadLetterViewSet.permission_classes, NotPayroll)

    def get_queryset(self) -> Any:
        return super().get_queryset().exclude(queue="payroll")


class NoDeletes(BasePermission):
    message = "Jobs are deleted by retention only."

    def has_permission(self, request: Request, view: Any) -> bool:
        return bool(view.action != "remove")


class SiteBulkViewSet(BulkViewSet):
    permission_classes = (*BulkViewSet.permission_classes, NoDeletes)


class SiteAdminBulkViewSet(AdminBulkViewSet):
    permission_classes = (*AdminBulkViewSet.permission_classes, NoDeletes)


class WorkerInRack(WorkerLineSerializer):
    rack = SerializerMethodField()

    def get_rack(self, worker: Worker) -> str:
        return worker.hostname.partition("-")[0]


class SiteWorkerViewSet(WorkerViewSet):
    operator_serializer_class = WorkerInRack


urlpatterns = [
    path("", include(served_by(
        SiteJobViewSet, SiteDeadLetterViewSet, SiteBulkViewSet, SiteAdminBulkViewSet, SiteWorkerViewSet
    )))
]  # fmt: skip
pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]


@pytest.fixture
def payroll(api: Api) -> str:
    return str(api.push(queue="payroll")["id"])


def test_a_narrowed_list_counts_what_it_shows(api: Api, payroll: str) -> None:
    """... and not all jobs, whose number is known without looking."""
    other = api.push(queue="mail")["id"]
    for door in ("/jobs", "/admin/jobs"):
        listed = api.get(door).json()
        assert (listed["items"], listed["total"]) == ([{"id": other}], 1)


@pytest.mark.parametrize(
    "call",
    ["GET /jobs/{}", "DELETE /jobs/{}", "POST /jobs/{}/cancel", "PATCH /jobs/{}", "POST /admin/jobs/{}/retry",
     "POST /admin/jobs/{}/run"],
)  # fmt: skip
def test_a_permission_that_looks_at_the_job_is_asked(with_key: Any, call: str) -> None:
    api = with_key("admin")
    payroll = api.push(queue="payroll")["id"]
    method, path = call.format(payroll).split()
    body = '{"priority": 5}' if method == "PATCH" else "{}"
    refused = api.client.generic(method, f"/ojs/v1{path}", body, content_type="application/json")
    assert error_of(refused, 403, "permission_denied")["message"] == NotPayroll.message
    assert Job.objects.get().state == "available"


def test_each_door_has_its_serializer(api: Api) -> None:
    job = api.push(queue="mail")["id"]
    assert api.get(f"/admin/jobs/{job}").json()["team"] == "blue"
    assert "team" not in api.get(f"/jobs/{job}").json()


def test_a_serializer_of_workers_shows_them_in_the_list_and_alone(api: Api) -> None:
    register("w", {"hostname": "r7-12"})
    assert [one["rack"] for one in api.get("/admin/workers").json()["items"]] == ["r7"]
    alone = api.get("/admin/workers/w").json()
    assert (alone["rack"], alone["id"], alone["jobs"]) == ("r7", "w", [])


def test_a_sites_dead_letters_are_its_own_at_both_doors(with_key: Any) -> None:
    api = with_key("admin")
    payroll, other = (api.dead_letter(queue=queue)["id"] for queue in ("payroll", "mail"))
    for door in ("/dead-letter", "/admin/dead-letter"):
        listed = api.get(door).json()
        assert ([(one["id"], one["team"]) for one in listed["items"]], listed["total"]) == ([(other, "blue")], 1)
    assert api.get(f"/dead-letter/{other}").json()["team"] == "blue"
    error_of(api.get(f"/dead-letter/{payroll}"), 404, "not_found")
    assert error_of(api.get(f"/admin/dead-letter/{payroll}"), 403, "permission_denied")["message"] == NotPayroll.message
    retried = api.post(f"/dead-letter/{other}/retry", {}).json()
    assert (retried["state"], "team" in retried) == ("available", False)


@pytest.mark.parametrize("door", ["/jobs/bulk", "/admin/jobs/bulk"])
def test_a_site_decides_who_changes_many_jobs(with_key: Any, door: str) -> None:
    api = with_key("admin")
    body = {"job_ids": [api.push()["id"]], **({"confirm": True} if "admin" in door else {})}
    assert error_of(api.post(f"{door}/delete", body), 403, "permission_denied")["message"] == NoDeletes.message
    assert api.post(f"{door}/cancel", body).status_code == 200
    assert Job.objects.get().state == "cancelled"


def test_only_operators_are_noted_where_two_doors_have_the_same_action(api: Api) -> None:
    first, second = (api.push(queue="mail", pending=True)["id"] for _ in range(2))
    assert api.post(f"/jobs/{first}/activate", {}).json()["previous_state"] == "pending"
    assert not AuditEntry.objects.exists()
    assert api.post(f"/admin/jobs/{second}/activate", {}).json()["previous_state"] == "pending"
    assert AuditEntry.objects.get().action == "job.activate"
