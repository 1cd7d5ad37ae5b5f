"""The view that every endpoint is made of.

It names all of its own policies, so a site's REST_FRAMEWORK settings change nothing here, and keeps clear of
the site's middleware: no login page (LoginRequiredMiddleware), no transaction around the call (ATOMIC_REQUESTS;
what is answered has been committed), CSRF only for sessions (`authentication` checks it), no shared cache.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import router, transaction
from django.http import HttpRequest
from django.utils.cache import patch_vary_headers
from django.utils.module_loading import import_string
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ojs import errors
from django_ojs.audit import Act
from django_ojs.conf import ojs_settings
from django_ojs.http import body, exceptions, media, openapi
from django_ojs.http.body import OJSParser
from django_ojs.http.permissions import ScopePermission
from django_ojs.models import Job
from django_ojs.rules.faults import shorten
from django_ojs.rules.ids import new_id
from django_ojs.telemetry import tracing

VERSION = "1.0"
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_NEGOTIATOR = media.FixedNegotiation()
_RENDERER = media.OJSRenderer()
_PARSER = OJSParser()
#: On every answer, with `cache_control`: no cache may keep it, or make a bodiless 304 without our headers of it.
_HEADERS = {
    "OJS-Version": VERSION,
    "X-OJS-Version": VERSION,
    "X-Content-Type-Options": "nosniff",
}


class OJSView(APIView):
    """One path. A subclass says in `scopes` what each of its methods needs (see `permissions`)."""

    scopes: ClassVar[Mapping[str, str | None]] = {}
    #: `error.code` of a state conflict at this path: most clients know one, the operators' tools another.
    conflict_code: ClassVar[str] = "conflict"
    #: Whether the version headers count here: the manifest and the health check answer any client.
    negotiates: ClassVar[bool] = True
    #: The permission on a model that a user needs for a method, where the scope alone does not say (see `permissions`).
    rights: ClassVar[Mapping[str, str]] = {}
    cache_control: ClassVar[str] = "private, no-store, max-age=0"
    #: What `payload()` read.
    raw: bytes | None = None
    body: Mapping[str, Any] = MappingProxyType({})
    #: What the audit log will say of this call, where its method is `audited`.
    act: Act

    renderer_classes = (media.OJSRenderer,)
    parser_classes = (OJSParser,)
    permission_classes: Any = (ScopePermission,)
    throttle_classes = ()
    content_negotiation_class = media.FixedNegotiation
    metadata_class = None
    schema = openapi.LazySchema()
    versioning_class = None

    @classmethod
    def as_view(cls, *actions: Any, **initkwargs: Any) -> Any:
        view = login_not_required(super().as_view(*actions, **initkwargs))
        for alias in settings.DATABASES:
            view = transaction.non_atomic_requests(alias)(view)
        return view

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """With the trace context and the request id that the client sent at hand for the jobs it enqueues."""
        given = request.META.get("HTTP_X_REQUEST_ID", "")
        given = given if _REQUEST_ID.fullmatch(given) else ""
        self.request_id = given or f"req_{new_id()}"
        token = tracing.receive(request.META, given)
        try:
            return super().dispatch(request, *args, **kwargs)
        finally:
            tracing.forget(token)

    # What DRF calls, in this order

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        return Request(
            request, parsers=(_PARSER,), authenticators=self.get_authenticators(), negotiator=_NEGOTIATOR,
            parser_context={"view": self},
        )  # fmt: skip

    def get_authenticators(self) -> list[BaseAuthentication]:
        return authenticators(tuple(ojs_settings.AUTHENTICATION_CLASSES))

    default_response_headers: ClassVar[dict[str, str]] = {}

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        if request.method == "OPTIONS":
            return
        if self.negotiates:
            media.check_demands(request._request)
        self.perform_authentication(request)
        self.check_permissions(request)
        self.check_throttles(request)

    def options(self, request: Request, *args: Any, **kwargs: Any) -> Response:  # type: ignore[override]
        """The methods of this path, for everybody; the CORS headers are the site's (django-cors-headers)."""
        return Response(status=204, headers={"Allow": ", ".join(self.allowed_methods)})

    def http_method_not_allowed(self, request: Request, *args: Any, **kwargs: Any) -> Response:  # type: ignore[override]
        allowed = ", ".join(self.allowed_methods)
        raise errors.MethodNotAllowed(f"This path takes {allowed} only.", headers={"Allow": allowed})

    def get_exception_handler(self) -> Any:
        return exceptions.handler

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        """Render here, where a failure still becomes an answer of ours, and add the headers of every answer."""
        try:
            self._render(response)
        except Exception as exc:  # noqa: BLE001 - whatever cannot be written becomes the 500 of the spec
            response = self.handle_exception(exc)
            self._render(response)
        for name, value in _HEADERS.items():
            response[name] = value
        response["Cache-Control"] = self.cache_control
        response["X-Request-Id"] = self.request_id
        patch_vary_headers(response, ("Accept", "OJS-Version"))
        return response

    # What views use

    def payload(self, *, required: bool = True, limit: int | None = None, field: str = "body") -> dict[str, Any]:
        """The JSON object in the body, `{}` where none is `required`; its bytes stay in `self.raw`."""
        request = self.request._request
        if self.raw is None:  # read before where the call lost a race and begins again
            self.raw = body.read(request, body.single_limit() if limit is None else limit, field)
        if self.raw:
            body.check_type(request)
        self.body = body.parse(self.raw, required=required)
        return self.body

    def media_type(self) -> str:
        """The Content-Type of this view's answers."""
        return media.response_type(self.request._request)

    def _render(self, response: Response) -> None:
        response.accepted_renderer = _RENDERER
        response.accepted_media_type = media.OPENJOBSPEC
        response.renderer_context = {}  # type: ignore[attr-defined]
        response.content_type = self.media_type()
        response.render()
        if response.content:
            response["Content-Length"] = str(len(response.content))


class AdminView(OJSView):
    """What the operators' views share: the name of a state conflict."""

    conflict_code = "invalid_state_transition"


class PublicView(OJSView):
    """A path for everybody, whatever credentials come with the request."""

    negotiates = False
    permission_classes = ()

    def get_authenticators(self) -> list[BaseAuthentication]:
        return []


class NotFoundView(PublicView):
    """Every path below ours that leads nowhere, by any method: JSON, no redirect, no page of the site."""

    schema = None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        details = {"resource_type": "route", "resource_id": shorten(request.path)}
        raise errors.NotFound("There is nothing at this path.", details=details, hint="Check the path and the method.")


def using() -> str:
    """The alias of the database that jobs are written to."""
    return router.db_for_write(Job)


@lru_cache(maxsize=8)
def authenticators(paths: tuple[str, ...]) -> list[BaseAuthentication]:
    """The authentication classes of the setting, one instance each: they hold no state of a request."""
    return [import_string(path)() for path in paths]
