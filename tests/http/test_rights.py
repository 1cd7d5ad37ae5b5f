"""What a user of the site needs besides being staff: a permission for whatever an operator does, by every path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import URLPattern, URLResolver

from django_ojs import urls
from django_ojs.http.base import OJSView
from django_ojs.http.permissions import ADMIN
from django_ojs.models import WebhookDelivery, WebhookSubscription
from tests.http.conftest import error_of

#: Open by itself while tests of a site want it, and otherwise not there.
OPEN = "ojs/v1/admin/reset"


def views(patterns: Any, before: str = "") -> Iterator[tuple[str, OJSView]]:
    """Every path of ours with its view, as the URLconf makes it."""
    for pattern in patterns:
        route = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from views(pattern.url_patterns, route)
        elif isinstance(pattern, URLPattern):
            made: Any = pattern.callback
            view = made.cls(**made.initkwargs)
            for method, action in getattr(made, "actions", {}).items():
                setattr(view, method, getattr(view, action))
            yield route, view


def methods() -> Iterator[tuple[str, str, str | None, str]]:
    """Path, method, scope and right of every call that there is."""
    for route, view in views(urls.urlpatterns):
        for name in view.http_method_names:
            method = name.upper()
            if method in ("HEAD", "OPTIONS") or not hasattr(view, name) or not view.permission_classes:
                continue
            yield route, method, view.scopes.get(method, ADMIN), view.rights.get(method, "")


def test_every_call_of_an_operator_needs_a_right() -> None:
    known = set(methods())
    assert len([call for call in known if str(call[2]).startswith(ADMIN)]) > 50
    without = [call for call in known if str(call[2]).startswith(ADMIN) and not call[3]]
    assert not without


def test_every_call_below_admin_needs_the_scope_for_looking_operating_or_deleting() -> None:
    looking = {"GET": "admin.read"}
    for route, method, scope, right in methods():
        if not route.startswith("ojs/v1/admin/") or route == OPEN:
            continue
        assert scope in ("admin.read", "admin.write", "admin.purge"), (route, method)
        assert looking.get(method, scope) == scope, (route, method)
        assert right.startswith("view_") == (method == "GET"), (route, method, right)


@pytest.mark.django_db
def test_every_right_is_a_permission_that_there_is() -> None:
    rights = {right for *_, right in methods() if right}
    known = Permission.objects.filter(codename__in=rights, content_type__app_label="django_ojs")
    assert rights == set(known.values_list("codename", flat=True))


@pytest.mark.django_db
class TestWebhooks:
    """Staff who may not touch a webhook in Django's admin may not over HTTP either."""

    @pytest.fixture
    def user(self, settings: Any) -> Callable[..., Client]:
        settings.OJS = {"ALLOW_ANONYMOUS": False}

        def log_in(*codenames: str) -> Client:
            made = get_user_model().objects.create_user("-".join(codenames) or "staff", is_staff=True)
            found = Permission.objects.filter(codename__in=codenames, content_type__app_label="django_ojs")
            assert len(found) == len(codenames)
            made.user_permissions.set(found)
            client = Client()
            client.force_login(made)
            return client

        return log_in

    @pytest.fixture
    def delivery(self, db: None, settings: Any) -> WebhookDelivery:
        body = {"url": "https://example.com/hooks", "events": ["job.completed"], "secret": "whsec_test_secret12"}
        made = Client().post("/ojs/v1/webhooks/subscriptions", body, content_type="application/json")
        assert made.status_code == 201, made.content
        row = WebhookSubscription.objects.get()
        return WebhookDelivery.objects.create(
            subscription=row, event_id="evt_x", event_type="job.completed", subject="x", body="{}", status="dead",
            max_attempts=3, created_at=row.created_at, response_body="what it said",
        )  # fmt: skip

    def test_each_call_needs_its_right(self, delivery: WebhookDelivery, user: Callable[..., Client]) -> None:
        one, its = f"/subscriptions/sub_{delivery.subscription_id}", f"/deliveries/{delivery.public_id}"
        new = {"url": "https://example.com/more", "events": ["job.failed"]}
        calls: list[tuple[str, str, Any, str, int]] = [
            ("GET", "/subscriptions", None, "view_webhooksubscription", 200),
            ("POST", "/subscriptions", new, "add_webhooksubscription", 201),
            ("GET", one, None, "view_webhooksubscription", 200),
            ("PATCH", one, {"active": True}, "change_webhooksubscription", 200),
            ("PUT", one, {"active": True}, "change_webhooksubscription", 200),
            ("POST", f"{one}/rotate-secret", {}, "change_webhooksubscription", 200),
            ("GET", "/deliveries", None, "view_webhookdelivery", 200),
            ("GET", its, None, "view_webhookdelivery", 200),
            ("POST", f"{its}/retry", {}, "change_webhookdelivery", 202),
            ("DELETE", one, None, "delete_webhooksubscription", 204),
        ]
        staff, able = user(), {right: user(right) for right in {call[3] for call in calls}}

        def call(client: Client, method: str, path: str, body: Any) -> Any:
            headers = {} if body is None else {"content_type": "application/json", "data": body}
            return getattr(client, method.lower())(f"/ojs/v1/webhooks{path}", **headers)

        error = error_of(call(staff, "POST", f"{one}/test", {}), 403, "permission_denied")
        assert error["details"]["required_permission"] == "django_ojs.change_webhooksubscription"
        for method, path, body, right, status in calls:
            error = error_of(call(staff, method, path, body), 403, "permission_denied")
            assert error["details"]["required_permission"] == f"django_ojs.{right}"
            answer = call(able[right], method, path, body)
            assert answer.status_code == status, (method, path, answer.content)

    def test_what_the_receiver_answered_is_for_who_may_retry(
        self, delivery: WebhookDelivery, user: Callable[..., Client]
    ) -> None:
        path = f"/ojs/v1/webhooks/deliveries/{delivery.public_id}"
        looker, operator = user("view_webhookdelivery"), user("view_webhookdelivery", "change_webhookdelivery")
        assert b"what it said" not in looker.get(path).content
        assert b"what it said" in operator.get(path).content
