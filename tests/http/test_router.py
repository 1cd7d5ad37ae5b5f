"""The router and the base of the ViewSets: paths, URL names, and what each door lets whom do."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import include, path, reverse
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle

from django_ojs.http.base import OJSViewSet
from django_ojs.http.operation import operation
from django_ojs.http.router import OJSRouter


class FullThrottle(BaseThrottle):
    def allow_request(self, request: Any, view: Any) -> bool:
        return False

    def wait(self) -> float:
        return 7.0


class BoatViewSet(OJSViewSet):
    lookup_url_kwarg = "boat_id"
    model_name = "job"

    @operation(scope="read")
    def list(self, request: Request) -> Response:
        return Response({"boats": [], "operator": self.operator})

    @operation(doors="public")
    def create(self, request: Request) -> Response:
        return Response(self.payload(), status=201)

    @operation(scope="read")
    def retrieve(self, request: Request, boat_id: str) -> Response:
        return Response({"id": boat_id})

    @operation(detail=True, methods=["post"], scope="push", right="change_job", aliases=("paddle", "/paddles"))
    def row(self, request: Request, boat_id: str = "") -> Response:
        return Response({"rowed": boat_id})

    @operation(detail=True, methods=["post"], right="delete_job", doors="operator")
    def sink(self, request: Request, boat_id: str) -> Response:
        return Response(status=204)

    @operation(detail=False, methods=["get"], throttle_classes=(FullThrottle,))
    def fleet(self, request: Request) -> Response:
        return Response({})


router = OJSRouter()
router.register("boats", BoatViewSet, "boat")
router.register("admin/boats", BoatViewSet, "admin-boat", operator=True)
urlpatterns = [path("ojs/v1/", include(router.urls))]
pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]


@pytest.fixture
def client() -> Client:
    return Client()


def test_paths_have_the_names_of_the_binding() -> None:
    assert reverse("boats") == "/ojs/v1/boats"
    assert reverse("boat", args=["x"]) == "/ojs/v1/boats/x"
    assert reverse("boat-row", args=["x"]) == "/ojs/v1/boats/x/row"
    assert reverse("admin-boat-sink", args=["x"]) == "/ojs/v1/admin/boats/x/sink"


def test_an_action_answers_at_its_aliases_too(client: Client) -> None:
    assert client.post("/ojs/v1/boats/x/paddle").json() == {"rowed": "x"}
    assert client.post("/ojs/v1/paddles").json() == {"rowed": ""}


def test_each_door_has_its_own_actions(client: Client) -> None:
    assert client.get("/ojs/v1/admin/boats").json()["operator"] is True
    assert client.post("/ojs/v1/boats", "{}", content_type="application/json").status_code == 201
    assert client.post("/ojs/v1/admin/boats", "{}", content_type="application/json").status_code == 405
    assert client.post("/ojs/v1/admin/boats/x/sink").status_code == 204
    assert client.post("/ojs/v1/boats/x/sink").status_code == 404


def test_the_methods_of_a_path_are_those_of_its_actions(client: Client) -> None:
    response = client.options("/ojs/v1/boats")
    assert (response.status_code, response["Allow"]) == (204, "GET, POST, HEAD, OPTIONS")
    assert client.head("/ojs/v1/boats/x").status_code == 200
    refused = client.delete("/ojs/v1/boats/x")
    assert (refused.status_code, refused["Allow"]) == (405, "GET, HEAD, OPTIONS")


def test_scopes_and_rights_are_those_of_the_door() -> None:
    found = {pattern.name: pattern.callback.initkwargs for pattern in router.urls if pattern.name}
    assert found["boats"]["scopes"] == {"GET": "read", "POST": "admin"}
    assert found["boats"]["rights"] == {}
    assert found["boat-row"]["scopes"] == {"POST": "push"}
    assert found["boat-row"]["rights"] == {}
    assert found["admin-boats"]["scopes"] == {"GET": "admin.read"}
    assert found["admin-boats"]["rights"] == {"GET": "view_job"}
    assert found["admin-boat-row"]["scopes"] == {"POST": "admin.write"}
    assert found["admin-boat-row"]["rights"] == {"POST": "change_job"}


def test_a_throttle_class_of_drf_is_asked(client: Client) -> None:
    response = client.get("/ojs/v1/boats/fleet")
    assert (response.status_code, response["Retry-After"]) == (429, "7")
    assert response.json()["error"]["code"] == "rate_limited"
