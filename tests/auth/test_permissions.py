"""What a caller may do: scopes, queues, job types."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from django.test import RequestFactory
from rest_framework.exceptions import MethodNotAllowed
from rest_framework.request import Request
from rest_framework.views import APIView

from django_ojs.http import permissions
from django_ojs.http.authentication import APIKeyAuthentication
from django_ojs.models import APIKey
from tests.auth.conftest import Call, Stub, refusal

SCOPES = APIKey.Scope.values


@pytest.mark.django_db
@pytest.mark.parametrize("needed", SCOPES)
@pytest.mark.parametrize("held", SCOPES)
def test_a_key_reaches_what_its_scope_covers_and_nothing_else(call: Call, new_key: Any, held: str, needed: str) -> None:
    _, text = new_key(held)
    if held in (needed, "admin"):
        assert call(needed, key=text) == "key:ci"
        return
    error = refusal(lambda: call(needed, key=text))
    assert (error.status, error.error_code) == (403, "permission_denied")
    assert error.details == {
        "principal": "key:ci", "operation": "GET /stub", "required_scope": needed, "required_role": needed,
    }  # fmt: skip


@pytest.mark.django_db
def test_a_key_may_have_several_scopes(call: Call, new_key: Any) -> None:
    _, text = new_key("push", "read")
    assert call("push", key=text) == call("read", key=text) == "key:ci"
    assert refusal(lambda: call("work", key=text)).status == 403


@pytest.mark.django_db
def test_each_method_has_its_scope(call: Call, new_key: Any) -> None:
    view = {"scopes": {"GET": "read", "POST": "push"}}
    _, text = new_key("push")
    assert call(key=text, method="post", view=view) == "key:ci"
    for method in ("get", "head"):
        error = refusal(partial(call, key=text, method=method, view=view))
        assert error.details["required_scope"] == "read"


@pytest.mark.django_db
def test_a_method_left_out_of_the_table_needs_admin(call: Call, new_key: Any) -> None:
    _, text = new_key("read", "push", "work")
    error = refusal(lambda: call(key=text, method="delete", view={"scopes": {"GET": "read"}}))
    assert error.details["required_scope"] == "admin"


def test_a_view_that_says_nothing_needs_admin(rf: RequestFactory) -> None:
    class Silent(APIView):
        get = Stub.get

    assert permissions.scope_of(Request(rf.get("/")), Silent()) == "admin"


@pytest.mark.django_db
def test_a_method_the_view_does_not_have_is_405_for_everybody(call: Call) -> None:
    with pytest.raises(MethodNotAllowed):
        call("read", method="patch")


@pytest.mark.django_db
def test_limits_to_queues(rf: RequestFactory, new_key: Any) -> None:
    request = _authenticated(rf, new_key("push", queues=["mail", "sms"])[1])
    permissions.check_queue(request, "mail")
    permissions.check_queue(request, ["mail", "sms"])
    error = refusal(lambda: permissions.check_queue(request, ["mail", "default"]))
    assert (error.status, error.details["queue"], error.details["principal"]) == (403, "default", "key:ci")
    assert permissions.queue_limit(request) == ("mail", "sms")


@pytest.mark.django_db
def test_limits_to_job_types(rf: RequestFactory, new_key: Any) -> None:
    request = _authenticated(rf, new_key("push", job_types=["report.daily", "mail.*"])[1])
    for allowed in ("report.daily", "mail.send", "mail.bulk.send"):
        permissions.check_type(request, allowed)
    for refused in ("report.daily.x", "mail", "mailer.send", "report", "x.mail.send"):
        error = refusal(partial(permissions.check_type, request, refused))
        assert error.details["job_type"] == refused
        assert "queue" not in error.details
    error = refusal(partial(permissions.check_type, request, "x", queue="mail"))
    assert (error.details["job_type"], error.details["queue"]) == ("x", "mail")


@pytest.mark.django_db
def test_an_admin_key_with_limits_stays_within_them(rf: RequestFactory, new_key: Any) -> None:
    request = _authenticated(rf, new_key("admin", queues=["mail"])[1])
    assert refusal(lambda: permissions.check_queue(request, "default")).status == 403


@pytest.mark.django_db
def test_who_has_no_limits_may_use_everything(rf: RequestFactory, new_key: Any) -> None:
    for request in (_authenticated(rf, new_key("push")[1]), Request(rf.get("/"))):
        permissions.check_queue(request, "anything")
        permissions.check_type(request, "any.thing")
        assert permissions.queue_limit(request) is permissions.type_limit(request) is None


def test_the_principal_of_refused_credentials_is_anonymous(rf: RequestFactory) -> None:
    request = Request(rf.get("/", headers={"Authorization": "Bearer no"}), authenticators=[APIKeyAuthentication()])
    assert permissions.principal(request) == "anonymous"
    assert permissions.principal(rf.get("/")) == "anonymous"


def _authenticated(rf: RequestFactory, text: str) -> Request:
    headers = {"Authorization": f"Bearer {text}"}
    return Request(rf.get("/", headers=headers), authenticators=[APIKeyAuthentication()])
