"""Who gets in: keys by bearer token, staff by session, and a site's own ways."""

from __future__ import annotations

import datetime as dt
import time
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.db import transaction
from django.middleware.csrf import _get_new_csrf_string
from rest_framework.authentication import BaseAuthentication, BasicAuthentication
from rest_framework.request import Request

from django_ojs import clock, keys
from django_ojs.http.authentication import APIKeyAuthentication, KeyUser, StaffSessionAuthentication
from django_ojs.models import APIKey
from tests.auth.conftest import Call, refusal

pytestmark = pytest.mark.django_db


def test_a_key_gets_in_under_its_name(call: Call, new_key: Any) -> None:
    _, text = new_key("read")
    assert call("read", key=text) == "key:ci"


@pytest.mark.parametrize("header", ["bearer {}", "BEARER {}", "Bearer   {}", "Bearer {} "])
def test_the_scheme_is_read_leniently(call: Call, new_key: Any, header: str) -> None:
    _, text = new_key("read")
    assert call("read", headers={"Authorization": header.format(text)}) == "key:ci"


@pytest.mark.parametrize("text", ["", " ", "x", "ojs_" + "0" * 64, "a b", "\xe9"])
def test_a_malformed_or_unknown_key_is_401(call: Call, text: str) -> None:
    error = refusal(lambda: call("read", headers={"Authorization": f"Bearer {text}"}))
    assert (error.status, error.error_code, error.canonical) == (401, "unauthenticated", "UNAUTHENTICATED")
    assert error.headers["WWW-Authenticate"].startswith("Bearer")


def test_an_expired_key_is_401_and_says_so(call: Call, new_key: Any, frozen_clock: Any) -> None:
    _, text = new_key("read", expires_at=clock.now() + dt.timedelta(days=1))
    assert call("read", key=text) == "key:ci"
    frozen_clock.advance(days=1)
    error = refusal(lambda: call("read", key=text))
    assert (error.status, error.canonical) == (401, "TOKEN_EXPIRED")


def test_a_revoked_key_is_401_at_the_very_next_call(call: Call, new_key: Any) -> None:
    key, text = new_key("read")
    assert call("read", key=text) == "key:ci"
    keys.revoke(key)
    error = refusal(lambda: call("read", key=text))
    assert (error.status, error.canonical) == (401, "UNAUTHENTICATED")


def test_a_refusal_repeats_nothing_of_the_key(call: Call, new_key: Any) -> None:
    key, text = new_key("read")
    keys.revoke(key)
    body = str(refusal(lambda: call("read", key=text)).as_dict())
    assert text not in body
    assert key.prefix not in body


def test_a_wrong_key_is_401_even_where_nobody_needs_one(call: Call, settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    assert refusal(lambda: call("read", key="ojs_nonsense")).status == 401


def test_a_process_trusts_what_it_has_read_of_a_key_for_a_moment(
    call: Call, new_key: Any, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(keys.time, "monotonic", lambda: now)
    key, text = new_key("read")
    call("read", key=text)
    with django_assert_num_queries(0):
        call("read", key=text)
    APIKey.objects.filter(pk=key.pk).update(revoked_at=clock.now())  # by another process
    assert call("read", key=text) == "key:ci"
    now += keys.TRUST
    with django_assert_num_queries(1):
        assert refusal(lambda: call("read", key=text)).status == 401


def test_what_this_process_changes_counts_at_once(call: Call, new_key: Any) -> None:
    key, text = new_key("read")
    assert call("read", key=text) == "key:ci"
    key.scopes = ["push"]
    key.save()
    assert refusal(lambda: call("read", key=text)).status == 403
    key.delete()
    assert refusal(lambda: call("read", key=text)).status == 401


@pytest.mark.django_db(transaction=True)
def test_a_key_read_before_the_commit_of_its_end_is_read_again(call: Call, new_key: Any) -> None:
    key, text = new_key("read")
    with transaction.atomic():
        keys.revoke(key)
        keys._read[keys.digest(text)] = time.monotonic(), APIKey(scopes=["read"])  # by another thread
    assert refusal(lambda: call("read", key=text)).status == 401


def test_what_is_no_key_is_not_remembered(call: Call, new_key: Any) -> None:
    for number in range(3):
        assert refusal(lambda text=keys.PREFIX + f"{number:064x}": call("read", key=text)).status == 401
    assert keys._read == {}


def test_a_key_is_no_user_of_the_site(new_key: Any) -> None:
    key, _ = new_key("admin")
    user = KeyUser(key)
    assert user.is_authenticated
    assert not user.is_anonymous
    assert not user.is_staff
    assert not user.is_superuser
    assert not user.has_perm("django_ojs.view_job")
    assert user == KeyUser(key)
    assert len({user, KeyUser(key)}) == 1


# Sessions


@pytest.mark.parametrize(
    "held, scopes",
    [
        ((), ()), (("view_job",), ("read",)), (("add_job",), ("push",)), (("change_job",), ("work",)),
        (("add_durableevent",), ("emit",)), (("decide_approval",), ("approve",)),
        (("ojs_read",), ("read",)), (("ojs_push",), ("push",)), (("ojs_work",), ("work",)),
        (("view_job", "add_job", "change_job", "delete_job"), ("read", "push", "work")),
        (("ojs_admin",), tuple(APIKey.Scope.values)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("staff", [False, True])
def test_a_session_has_the_scopes_that_its_permissions_mean(
    call: Call, new_user: Any, held: tuple[str, ...], scopes: tuple[str, ...], staff: bool
) -> None:
    user = new_user("ann", permissions=held, is_staff=staff)
    for scope in APIKey.Scope.values:
        if scope in scopes:
            assert call(scope, user=user) == "user:ann"
            continue
        error = refusal(partial(call, scope, user=user))
        assert (error.status, error.details["required_scope"]) == (403, scope)
        named = {
            "read": "view_job", "push": "add_job", "work": "change_job", "emit": "add_durableevent",
            "approve": "decide_approval",
        }.get(scope, "ojs_admin")  # fmt: skip
        assert error.details["required_permission"] == f"django_ojs.{named}"


def test_a_superuser_has_every_scope(call: Call, new_user: Any) -> None:
    user = new_user("root", is_superuser=True)
    for scope in APIKey.Scope.values:
        assert call(scope, user=user) == "user:root"


def test_reading_needs_the_permission_to_view_what_is_read(call: Call, new_user: Any) -> None:
    user = new_user("ann", permissions=("view_queue",))
    assert call("read", user=user, view={"model_name": "queue"}) == "user:ann"
    for model in ("", "job", "worker"):
        assert refusal(partial(call, "read", user=user, view={"model_name": model})).status == 403


def test_a_user_who_is_not_staff_is_recognised_and_refused(call: Call, new_user: Any) -> None:
    error = refusal(lambda: call("read", user=new_user("bob")))
    assert (error.status, error.error_code) == (403, "permission_denied")
    assert error.details["principal"] == "user:bob"


def test_an_inactive_user_is_nobody(call: Call, new_user: Any) -> None:
    assert refusal(lambda: call("read", user=new_user("eve", is_staff=True, is_active=False))).status == 401


def test_a_session_write_needs_the_csrf_token(call: Call, new_user: Any) -> None:
    user = new_user("ann", permissions=("view_job", "add_job"))
    body = {"data": "{}", "content_type": "application/json"}
    error = refusal(lambda: call("push", user=user, method="post", skip_csrf=False, request=body))
    assert (error.status, error.details["reason"]) == (403, "csrf")
    assert call("read", user=user, skip_csrf=False) == "user:ann"


def test_a_session_write_with_the_csrf_token_passes(call: Call, new_user: Any, rf: Any) -> None:
    token = _get_new_csrf_string()
    rf.cookies["csrftoken"] = token
    body = {"data": "{}", "content_type": "application/json"}
    headers = {"X-CSRFToken": token}
    user = new_user("ann", permissions=("view_job", "add_job"))
    assert call("push", user=user, method="post", skip_csrf=False, headers=headers, request=body) == "user:ann"


def test_a_token_from_another_origin_is_refused(call: Call, new_user: Any, rf: Any) -> None:
    token = _get_new_csrf_string()
    rf.cookies["csrftoken"] = token
    headers = {"X-CSRFToken": token, "Origin": "https://evil.example"}
    user = new_user("ann", permissions=("view_job", "add_job"))
    body = {"data": "{}", "content_type": "application/json"}
    error = refusal(lambda: call("push", user=user, method="post", skip_csrf=False, headers=headers, request=body))
    assert error.status == 403


def test_a_form_is_refused_before_its_body_is_read(call: Call, new_user: Any, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    user = new_user("ann", permissions=("view_job", "add_job"))
    error = refusal(lambda: call("push", user=user, method="post", skip_csrf=False, request={"data": {"a": "x" * 100}}))
    assert (error.status, error.details["reason"]) == (403, "csrf")


def test_a_key_needs_no_csrf_token_though_a_session_is_there(call: Call, new_user: Any, new_key: Any) -> None:
    _, text = new_key("push")
    user = new_user("ann", permissions=("view_job", "add_job"))
    assert call("push", key=text, user=user, method="post", skip_csrf=False) == "key:ci"


# A site's own classes


class HeaderUser(BaseAuthentication):
    """Believes what a proxy says, as a site behind single sign-on may."""

    def authenticate(self, request: Request) -> tuple[Any, Any] | None:
        from django.contrib.auth import get_user_model

        name = request.META.get("HTTP_REMOTE_USER")
        return (get_user_model().objects.get(username=name), {"claims": {}}) if name else None


def test_a_user_of_a_sites_class_has_the_scopes_that_django_grants(call: Call, new_user: Any) -> None:
    new_user("sso", permissions=("ojs_push",))
    view = {"authentication_classes": [HeaderUser]}
    headers = {"Remote-User": "sso"}
    assert call("push", headers=headers, view=view) == "user:sso"
    error = refusal(lambda: call("work", headers=headers, view=view))
    assert (error.status, error.details["required_scope"]) == (403, "work")


def test_the_permission_ojs_admin_covers_every_scope(call: Call, new_user: Any) -> None:
    new_user("root", permissions=("ojs_admin",))
    view = {"authentication_classes": [HeaderUser]}
    for scope in APIKey.Scope.values:
        assert call(scope, headers={"Remote-User": "root"}, view=view) == "user:root"


def test_other_schemes_are_left_to_other_classes(call: Call, new_user: Any) -> None:
    new_user("ann", permissions=("view_job",))
    view = {"authentication_classes": [APIKeyAuthentication, BasicAuthentication, StaffSessionAuthentication]}
    headers = {"Authorization": "Basic YW5uOng="}
    assert call("read", headers=headers, view=view) == "user:ann"


def test_the_challenge_names_every_scheme_of_the_view(call: Call) -> None:
    view = {"authentication_classes": [APIKeyAuthentication, BasicAuthentication, StaffSessionAuthentication]}
    error = refusal(lambda: call("read", view=view))
    assert error.headers["WWW-Authenticate"] == 'Bearer, Basic realm="api"'


# Nobody


@pytest.mark.parametrize(
    "debug, setting, allowed",
    [(False, None, False), (True, None, True), (True, False, False), (False, True, True), (False, False, False)],
)
def test_who_shows_nothing_gets_in_only_where_the_site_says_so(
    call: Call, settings: Any, debug: bool, setting: bool | None, allowed: bool
) -> None:
    settings.DEBUG = debug
    settings.OJS = {"ALLOW_ANONYMOUS": setting}
    if allowed:
        assert call("admin", user=AnonymousUser()) == "anonymous"
        return
    error = refusal(lambda: call("read"))
    assert (error.status, error.headers["WWW-Authenticate"]) == (401, "Bearer")


def test_logging_in_takes_nothing_away_from_what_everybody_may(call: Call, settings: Any, new_user: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    assert call("read", user=new_user("bob")) == "user:bob"


def test_a_key_keeps_its_limits_where_anonymous_callers_have_none(call: Call, settings: Any, new_key: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    _, text = new_key("push")
    assert refusal(lambda: call("work", key=text)).status == 403


def test_a_public_view_asks_nobody(call: Call) -> None:
    assert call(None) == "anonymous"
