"""A view per scope, and keys to call them with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.http import HttpRequest
from django.test import RequestFactory
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ojs import keys
from django_ojs.errors import OJSError
from django_ojs.http.authentication import APIKeyAuthentication, StaffSessionAuthentication
from django_ojs.http.permissions import ScopePermission, principal
from django_ojs.models import APIKey


class Stub(APIView):
    """Says who called; errors are raised to the test."""

    authentication_classes = [APIKeyAuthentication, StaffSessionAuthentication]
    permission_classes = [ScopePermission]
    required_scope: str | None = None
    scopes: dict[str, str] | None = None
    model_name: str = ""

    def get(self, request: Request) -> Response:
        return Response({"principal": principal(request)})

    post = delete = get

    def handle_exception(self, exc: Exception) -> Response:
        raise exc


Call = Callable[..., Any]


@pytest.fixture
def call(rf: RequestFactory) -> Call:
    """`call("push", key=text, user=user, method="post", view={...})` returns the principal or raises."""

    def send(scope: str | None = "read", *, key: str = "", user: Any = None, method: str = "get", **more: Any) -> Any:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        headers |= more.pop("headers", {})
        request: HttpRequest = getattr(rf, method)("/stub", headers=headers, **more.pop("request", {}))
        if user is not None:
            request.user = user
        request._dont_enforce_csrf_checks = more.pop("skip_csrf", True)  # type: ignore[attr-defined]
        view: Callable[[HttpRequest], Any] = Stub.as_view(required_scope=scope, **more.pop("view", {}))
        return view(request).data["principal"]

    return send


@pytest.fixture
def new_key(db: None) -> Callable[..., tuple[APIKey, str]]:
    def make(*scopes: str, name: str = "ci", **limits: Any) -> tuple[APIKey, str]:
        return keys.create(name, scopes or ["read"], **limits)

    return make


@pytest.fixture
def new_user(db: None) -> Callable[..., Any]:
    def make(name: str, *, permissions: tuple[str, ...] = (), **flags: Any) -> Any:
        user = get_user_model().objects.create_user(name, password="x", **flags)
        content_type = ContentType.objects.get_for_model(APIKey)
        for codename in permissions:
            permission, _ = Permission.objects.get_or_create(codename=codename, content_type=content_type)
            user.user_permissions.add(permission)
        return user

    return make


def refusal(call: Callable[[], Any]) -> OJSError:
    """The error with which `call` is refused."""
    with pytest.raises(OJSError) as caught:
        call()
    return caught.value
