"""Who is calling: API keys for programs, Django's session for users in a browser.

These are plain DRF authentication classes, named by the setting `AUTHENTICATION_CLASSES`. A site may put its
own there; a class that also reads `Authorization: Bearer` belongs before `APIKeyAuthentication`, which
refuses every bearer token that is none of its keys. What the caller may do is the business of `permissions`.
"""

from __future__ import annotations

import contextlib
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.auth.models import AnonymousUser
from django.contrib.sessions.backends.base import SessionBase
from django.core.exceptions import DisallowedHost
from django.db import Error
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import CsrfViewMiddleware
from django.utils.http import is_same_domain
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from django_ojs import keys
from django_ojs.conf import ojs_settings
from django_ojs.errors import PermissionDenied, Unauthenticated
from django_ojs.faults import is_about_data
from django_ojs.http import body
from django_ojs.models import APIKey

#: Media types that a page of another site can send without asking first.
FORM_TYPES = frozenset({"application/x-www-form-urlencoded", "multipart/form-data"})


class KeyUser(AnonymousUser):
    """Stands in `request.user` for a program that showed an API key: authenticated, but no user of the site."""

    def __init__(self, key: APIKey) -> None:
        self.key = key
        name: Any = f"key:{key.name}"
        self.username = self.pk = name  # DRF's throttles count by pk

    def __str__(self) -> str:
        return str(self.username)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyUser) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.username)

    @property
    def is_anonymous(self) -> bool:  # type: ignore[override]
        return False

    @property
    def is_authenticated(self) -> bool:  # type: ignore[override]
        return True


class APIKeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer ojs_…`. Other schemes are left to other classes."""

    def authenticate(self, request: Request) -> tuple[KeyUser, APIKey] | None:
        scheme, _, text = request.META.get("HTTP_AUTHORIZATION", "").strip().partition(" ")
        if scheme.lower() != "bearer":
            return None
        key = self._valid(text.strip())
        keys.touch(key)
        return KeyUser(key), key

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"

    def _valid(self, text: str) -> APIKey:
        key = keys.find(text)
        status = "unknown" if key is None else keys.status(key)
        if key is not None and status == "active":
            return key
        raise Unauthenticated(
            _REFUSALS[status],
            canonical="TOKEN_EXPIRED" if status == "expired" else "",
            headers={"WWW-Authenticate": 'Bearer error="invalid_token"'},
        )


_REFUSALS = {
    "unknown": "The API key in the Authorization header is not valid.",
    "expired": "The API key has expired.",
    "revoked": "The API key has been revoked.",
}


class StaffSessionAuthentication(BaseAuthentication):
    """Django's session, for users who are logged in to the site; writes need the CSRF token.

    What a user may do is what their permissions say (`permissions`): one who has none is recognised, and then refused
    with 403, not sent to log in again. The name is older than that rule: being staff is neither asked for nor enough.
    """

    def authenticate(self, request: Request) -> tuple[Any, None] | None:
        user = getattr(request._request, "user", None)
        try:
            if user is None or not user.is_authenticated or not user.is_active:
                return None
        except (Error, ValueError) as error:
            if isinstance(error, Error) and not is_about_data(error):
                raise
            return None  # a session cookie that the database refuses to look for: NUL on PostgreSQL
        self._enforce_csrf(request._request)
        return user, None

    def _enforce_csrf(self, request: HttpRequest) -> None:
        reason: str | None = None
        if request.method not in ("GET", "HEAD", "OPTIONS", "TRACE"):
            if request.content_type in FORM_TYPES:  # would also read the body before its size was looked at
                reason = "Forms are not accepted here: send JSON."
            else:
                reason = _check_csrf(request)
        if reason:
            hint = "Send the value of the csrftoken cookie as X-CSRFToken, or use an API key."
            raise PermissionDenied(f"CSRF check failed: {reason}", details={"reason": "csrf"}, hint=hint)


def session_of(request: Request) -> SessionBase | None:
    """The session that says who is calling; None where something else does."""
    session = getattr(request._request, "session", None)
    if not isinstance(session, SessionBase) or not request.user.is_authenticated:
        return None
    return session if session.get(SESSION_KEY) == str(request.user.pk) else None


#: The classes that go by the headers `Authorization` and `Cookie` alone, and whose callers are looked up again by
#: their key or their session. One of the site may go by anything.
OURS = (APIKeyAuthentication, StaffSessionAuthentication)


def is_allowed_origin(origin: str, request: HttpRequest) -> bool:
    """Whether an origin is the server's own, with scheme and port, or one that the site trusts.

    Django decides so for a POST with a session.
    """
    with contextlib.suppress(DisallowedHost):
        if origin == f"{request.scheme}://{request.get_host()}":
            return True
    trusted = (*settings.CSRF_TRUSTED_ORIGINS, *ojs_settings.REALTIME_ALLOWED_ORIGINS)
    if "*" not in origin and origin in trusted:
        return True
    try:
        asked = urlsplit(origin)
        patterns = [urlsplit(pattern) for pattern in trusted if "*" in pattern]
    except ValueError:
        return False
    domains = [pattern.netloc.lstrip("*") for pattern in patterns if pattern.scheme == asked.scheme]
    return any(is_same_domain(asked.netloc, domain) for domain in domains)


def check_page(request: HttpRequest) -> None:
    """Raise PermissionDenied for a POST that a page of another site makes without asking first (CORS), which browsers
    let it do without JSON. It is for callers without credentials: the browser of a visitor may reach a server that the
    other site does not reach.
    """
    origin = request.META.get("HTTP_ORIGIN")
    if request.method != "POST" or origin is None or body.is_accepted(request.META.get("CONTENT_TYPE", "")):
        return
    if not is_allowed_origin(origin, request):
        hint = (
            "Send it with Content-Type: application/json, also without a body, or add the origin to "
            "OJS['REALTIME_ALLOWED_ORIGINS'] if its pages may call."
        )
        raise PermissionDenied("Pages of this origin may send JSON only.", details={"reason": "origin"}, hint=hint)


def _check_csrf(request: HttpRequest) -> str | None:
    """Django's own check, as a reason instead of a page; a view exempt from the middleware is checked all the same."""
    check: Any = _CSRFCheck(lambda _: HttpResponse())
    check.process_request(request)
    reason: str | None = check.process_view(request, None, (), {})
    return reason


class _CSRFCheck(CsrfViewMiddleware):
    def _reject(self, request: HttpRequest, reason: str) -> str:
        return reason
