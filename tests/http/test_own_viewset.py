"""A site's own ViewSet: a list that it narrows, a permission that looks at the job, serializers for both doors."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import include, path
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from django_ojs.http.jobs import JobViewSet
from django_ojs.http.jobserializers import JobDetailSerializer, JobLineSerializer
from django_ojs.models import AuditEntry, Job
from django_ojs.models.job import JobRow
from django_ojs.urls import served_by
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
    action_serializers = {**JobViewSet.action_serializers, "list": ShortLine}
    permission_classes = (*JobViewSet.permission_classes, NotPayroll)

    def get_queryset(self) -> Any:
        return super().get_queryset().exclude(queue="payroll")


urlpatterns = [path("", include(served_by(SiteJobViewSet)))]
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


def test_only_operators_are_noted_where_two_doors_have_the_same_action(api: Api) -> None:
    first, second = (api.push(queue="mail", pending=True)["id"] for _ in range(2))
    assert api.post(f"/jobs/{first}/activate", {}).json()["previous_state"] == "pending"
    assert not AuditEntry.objects.exists()
    assert api.post(f"/admin/jobs/{second}/activate", {}).json()["previous_state"] == "pending"
    assert AuditEntry.objects.get().action == "job.activate"
