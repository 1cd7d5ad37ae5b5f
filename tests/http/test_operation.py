"""An operation is declared once, on its method, and everything goes by that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, path
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import urls
from django_ojs.http.base import OJSView, OJSViewSet, PublicView
from django_ojs.http.operation import UNDECLARED, Operation, declared_by, operation
from django_ojs.http.router import OJSRouter
from django_ojs.http.serializers import BodySerializer, NothingSerializer
from django_ojs.models import AuditEntry


def patterns(found: Any) -> Iterator[URLPattern]:
    for one in found:
        if isinstance(one, URLResolver):
            yield from patterns(one.url_patterns)
        else:
            yield one


def test_every_routed_method_declares_what_it_is() -> None:
    seen = set()
    for one in patterns(urls.urlpatterns):
        made: Any = one.callback
        for method, declared in made.initkwargs.get("operations", {}).items():
            if issubclass(made.cls, PublicView):
                continue  # open to all, and some have no description
            assert declared is not UNDECLARED, (one.pattern, method)
            seen.add(id(declared))
    assert len(seen) > 110


def test_no_view_has_a_table_by_action() -> None:
    """A dictionary by the names of actions would be a second place that says what is true of them."""
    served = [getattr(one.callback, "cls", int) for one in patterns(urls.urlpatterns)]
    views = {view for view in served if issubclass(view, OJSView)}
    assert len(views) > 25
    for view in views:
        actions = {name for owner in view.__mro__ for name, value in vars(owner).items() if hasattr(value, "operation")}
        for name, value in vars(view).items():
            if isinstance(value, dict):
                assert actions.isdisjoint(value), (view, name)


class Basket(BodySerializer):
    pass


class FruitViewSet(OJSViewSet):
    lookup_url_kwarg = "name"

    @operation(detail=True, methods=["get"], scope="read", doors="public", answer=None)
    def taste(self, request: Request, name: str) -> Response:
        return Response({"name": self.operation_name, "method": request.method})

    @operation(at=taste, methods=["put", "patch"], body=Basket, operator_body=NothingSerializer, name="spice")
    def season(self, request: Request, name: str) -> Response:
        return Response({"name": self.operation_name, "body": self.get_body_serializer_class().__name__})

    @operation(detail=True, methods=["post"], right="change_job", audit="fruit.eat", audit_doors="operator")
    def eat(self, request: Request, name: str) -> Response:
        return Response(status=204)


class SiteFruitViewSet(FruitViewSet):
    operation_changes = {"season": {"body": NothingSerializer}}

    def taste(self, request: Request, name: str) -> Response:  # type: ignore[override]
        return super().taste(request, name)


router = OJSRouter()
router.register("fruit", FruitViewSet, "fruit")
router.register("admin/fruit", FruitViewSet, "admin-fruit", operator=True)
urlpatterns = [path("ojs/v1/", urls.include(router.urls))]


def test_a_subclass_inherits_what_is_declared_and_changes_only_what_it_names() -> None:
    assert declared_by(SiteFruitViewSet, "taste") == declared_by(FruitViewSet, "taste")
    changed = declared_by(SiteFruitViewSet, "season")
    assert (changed.body, changed.name) == (NothingSerializer, "spice")
    assert declared_by(FruitViewSet, "season").body is Basket
    assert declared_by(FruitViewSet, "unknown") is UNDECLARED


def test_a_change_that_no_operation_has_is_refused() -> None:
    class Wrong(FruitViewSet):
        operation_changes = {"season": {"bodi": NothingSerializer}}

    with pytest.raises(TypeError, match="bodi"):
        Wrong.as_view({"put": "season"})


def test_attributes_of_a_path_need_a_path() -> None:
    with pytest.raises(TypeError, match="no action"):
        operation(scope="read", conflict_code="x")
    with pytest.raises(TypeError, match="no action"):
        operation(methods=["post"])


def test_a_door_knows_what_is_behind_it() -> None:
    both, public = Operation(audit="a", audit_doors="operator"), Operation(doors="public")
    assert both.is_behind(operator=True)
    assert both.is_behind(operator=False)
    assert not public.is_behind(operator=True)
    assert both.is_audited(operator=True)
    assert not both.is_audited(operator=False)
    assert not public.is_audited(operator=False)


@pytest.mark.django_db
@pytest.mark.urls(__name__)
class TestOverHTTP:
    def test_several_methods_share_a_path(self, client: Client) -> None:
        assert client.get("/ojs/v1/fruit/fig/taste").json() == {"name": "", "method": "GET"}
        for call in (client.put, client.patch):
            assert call("/ojs/v1/fruit/fig/taste").json() == {"name": "spice", "body": "Basket"}
            assert call("/ojs/v1/admin/fruit/fig/taste").json() == {"name": "spice", "body": "NothingSerializer"}
        assert client.get("/ojs/v1/admin/fruit/fig/taste").status_code == 405

    def test_only_the_doors_that_are_named_have_an_entry(self, client: Client) -> None:
        assert client.post("/ojs/v1/fruit/fig/eat").status_code == 204
        assert not AuditEntry.objects.exists()
        assert client.post("/ojs/v1/admin/fruit/fig/eat").status_code == 204
        entry = AuditEntry.objects.get()
        assert (entry.action, entry.target, entry.outcome) == ("fruit.eat", "fig", "success")
