"""A site's own subclass of a ViewSet: what it swaps is what clients get, and what the document says."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings
from django.urls import include, path
from django_filters import NumberFilter
from rest_framework import serializers
from rest_framework.permissions import BasePermission

from django_ojs.http.cron import CronViewSet, ScheduleFilter, ScheduleSerializer
from django_ojs.http.router import OJSRouter
from tests.http.conftest import Api, error_of

pytestmark = pytest.mark.django_db


class ShopScheduleSerializer(ScheduleSerializer):
    owner = serializers.SerializerMethodField()

    def get_owner(self, schedule: Any) -> str:
        return f"team {schedule.queue}"


class ShopScheduleFilter(ScheduleFilter):
    priority = NumberFilter(field_name="priority", method="by_priority")

    def by_priority(self, schedules: Any, name: str, value: Any) -> Any:
        return schedules.filter(name__endswith=str(value))


class NobodyDeletes(BasePermission):
    def has_permission(self, request: Any, view: Any) -> bool:
        return bool(view.action != "destroy")


class ShopCronViewSet(CronViewSet):
    serializer_class = ShopScheduleSerializer
    filterset_class = ShopScheduleFilter
    permission_classes = (*CronViewSet.permission_classes, NobodyDeletes)


router = OJSRouter()
router.register("cron", ShopCronViewSet, "cron")
urlpatterns = [path("ojs/v1/", include(router.urls))]


@override_settings(ROOT_URLCONF=__name__)
def test_a_swapped_serializer_filter_and_permission_are_those_in_use(api: Api) -> None:
    for name in ("night-1", "night-2"):
        made = api.post("/cron", {"name": name, "cron": "@daily", "type": "a.b", "queue": "mail"})
        assert made.status_code == 201
        assert (made.json()["owner"], made.json()["cron_job"]["owner"]) == ("team mail", "team mail")
    listed = api.get("/cron", {"priority": "2"}).json()
    assert [(one["name"], one["owner"]) for one in listed["crons"]] == [("night-2", "team mail")]
    assert error_of(api.get("/cron", {"priority": "x"}), 400, "invalid_request")["details"]["field"] == "priority"
    assert error_of(api.get("/cron", {"enabled": "x"}), 400, "invalid_request")["details"]["field"] == "enabled"
    error_of(api.client.delete("/ojs/v1/cron/night-1"), 401, "unauthenticated")
    assert api.get("/cron/night-1").status_code == 200


@override_settings(ROOT_URLCONF=__name__)
def test_a_sites_document_has_what_the_subclass_adds() -> None:
    generators = pytest.importorskip("drf_spectacular.generators")
    document = generators.SchemaGenerator().get_schema(request=None, public=True)
    listed = document["paths"]["/ojs/v1/cron"]["get"]
    assert {"enabled": "boolean", "priority": "number", "limit": "integer"}.items() <= {
        one["name"]: one["schema"]["type"] for one in listed["parameters"]
    }.items()
    assert "ShopSchedule" in str(listed["responses"]["200"])
    members = document["components"]["schemas"]["ShopSchedule"]["properties"]
    assert set(ScheduleSerializer().fields) | {"owner"} == set(members)
