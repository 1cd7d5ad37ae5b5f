"""The view that every endpoint is made of, and the ViewSet that every resource is made of.

The view names all of its own policies, so a site's REST_FRAMEWORK settings change nothing here, and keeps clear of
the site's middleware: no login page (LoginRequiredMiddleware), no transaction around the call (ATOMIC_REQUESTS;
what is answered has been committed), CSRF only for sessions (`authentication` checks it), no shared cache.

A ViewSet is registered on the router (`django_ojs.http.router`) once for `/ojs/v1/jobs`, and again for operators below
`/ojs/v1/admin/`. Behind both doors are the same actions, unless the class says that one of them belongs to one door.
A site subclasses a ViewSet and swaps its serializer, filter, pagination or permission classes as with any of DRF.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, cast

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
from rest_framework.viewsets import GenericViewSet

from django_ojs import errors
from django_ojs.audit import Act
from django_ojs.conf import ojs_settings
from django_ojs.database import look_at_health
from django_ojs.http import body, exceptions, media, openapi
from django_ojs.http.body import OJSParser
from django_ojs.http.pagination import Key, OJSPagination
from django_ojs.http.permissions import ScopePermission
from django_ojs.http.serializers import AnswerSerializer
from django_ojs.models import Job
from django_ojs.rules.faults import shorten
from django_ojs.rules.names import new_id
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
#: The scopes of the operator's door: for looking, for operating and for deleting.
_OPERATOR_SCOPES = {"get": "admin.read", "delete": "admin.purge"}


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
        if not self.gathers(request):
            look_at_health(using())
        try:
            return super().dispatch(request, *args, **kwargs)
        finally:
            tracing.forget(token)
            self.let_go()

    def gathers(self, request: HttpRequest) -> bool:
        """Whether this call goes to the database through a group, whose leader looks at its connection: no other caller
        of the group needs one."""
        return False

    def let_go(self) -> None:
        """Take apart the circles in which a view holds itself by its methods, and DRF's request itself and the view.

        They would keep a request in memory until Python's garbage collector comes by, and make it come more often.
        """
        for method in ("head", *getattr(self, "action_map", ())):
            self.__dict__.pop(method, None)
        if isinstance(self.request, Request):
            self.request.parser_context = {}

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
        prepare = getattr(request._request, "prepare", None)
        if prepare is not None:  # what another transport carries is read once its caller is known
            prepare()

    def options(self, request: Request, *args: Any, **kwargs: Any) -> Response:  # type: ignore[override]
        """The methods of this path, for every caller; the CORS headers are the site's (django-cors-headers)."""
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
        response.renderer_context = {}  # type: ignore[attr-defined]  # it has the response in it now
        if response.content:
            response["Content-Length"] = str(len(response.content))


class PublicView(OJSView):
    """A path for every caller, whatever credentials come with the request."""

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


class OJSViewSet(OJSView, GenericViewSet[Any]):
    """The actions on one resource.

    Attributes:
        operator: whether this is the door below `/admin/`; the router says so.
        action_scopes: by action, the scope that a caller of the public door needs; `admin` where nothing is said, and
            None opens the action to all. The operator's door asks for `admin.read`, `admin.write` or `admin.purge` by
            the method.
        operator_scopes: by action, another scope for the operator's door.
        action_rights: by action, the permission on a model that a user needs where the scope is one of operators.
        model_name: the model that a user of the operator's door has to be allowed to view, such as `job`.
        gathered: the actions that go to the database through a group (`groupcommit`) and not beside it.
        public_only, operator_only: names of actions that the other door lacks.
        operations: by action, its name in a refusal and for an Idempotency-Key, where that is not method and path.
        aliases: further paths of an action: `@action(detail=True, methods=["post"], aliases=("fail",))`. A path that
            begins with a slash stands beside the resource, below `/ojs/v1`.
        serializer_class, operator_serializer_class: what one resource looks like behind each door.
        action_serializers, operator_action_serializers: by action, the serializer of its answer where that is another
            one; the second for the operator's door alone.
        body_serializers, operator_body_serializers: by action, the serializer that reads its body; the second for the
            operator's door, where that is another one.
        ordering: the order of the list, from which the cursors of its pages are made.
        list_names, operator_list_names: the members of a list's answer that hold its items.
    """

    operator: bool = False
    action_scopes: ClassVar[Mapping[str, str | None]] = {}
    operator_scopes: ClassVar[Mapping[str, str]] = {}
    action_rights: ClassVar[Mapping[str, str]] = {}
    model_name: ClassVar[str] = ""
    gathered: ClassVar[Collection[str]] = ()
    public_only: ClassVar[Collection[str]] = ()
    operator_only: ClassVar[Collection[str]] = ()
    operations: ClassVar[Mapping[str, str]] = {}
    aliases: Sequence[str] = ()
    #: By method, made of the tables above for every path by `as_view`, and what `ScopePermission` goes by.
    scopes: Mapping[str, str | None] = {}  # type: ignore[misc]
    rights: Mapping[str, str] = {}  # type: ignore[misc]

    operator_serializer_class: Any = None
    action_serializers: ClassVar[Mapping[str, Any]] = {}
    operator_action_serializers: ClassVar[Mapping[str, Any]] = {}
    body_serializers: ClassVar[Mapping[str, Any]] = {}
    operator_body_serializers: ClassVar[Mapping[str, Any]] = {}
    lookup_value_converter = "str"
    filter_backends: Any = ()
    pagination_class: Any = OJSPagination
    ordering: Sequence[Key] = ()
    list_names: Sequence[str] = ("items",)
    operator_list_names: Sequence[str] | None = None
    format_kwarg = None

    @classmethod
    def as_view(cls, actions: Any = None, **initkwargs: Any) -> Any:
        """The view for a path; `actions` says which action each method is, as in DRF."""
        operator = initkwargs.get("operator", cls.operator)
        found: dict[str, str] = {method: action for method, action in (actions or {}).items() if method != "head"}
        given = dict(initkwargs)
        scopes = {method: cls.scope_for(action, method, operator) for method, action in found.items()}
        rights = {method: cls.right_for(action, method, scopes[method], operator) for method, action in found.items()}
        initkwargs.setdefault("scopes", {method.upper(): scope for method, scope in scopes.items()})
        initkwargs.setdefault("rights", {method.upper(): right for method, right in rights.items() if right})
        view = super().as_view(found, **initkwargs)
        view.given = given  # without what this class has made of them
        return view

    @classmethod
    def has_action(cls, action: str, *, operator: bool) -> bool:
        """Whether this door has the action."""
        return hasattr(cls, action) and action not in (cls.public_only if operator else cls.operator_only)

    @classmethod
    def scope_for(cls, action: str, method: str, operator: bool) -> str | None:
        if operator:
            return cls.operator_scopes.get(action) or _OPERATOR_SCOPES.get(method, "admin.write")
        return cls.action_scopes.get(action, "admin")

    @classmethod
    def right_for(cls, action: str, method: str, scope: str | None, operator: bool) -> str:
        """A right is asked for where the scope is one of operators; other scopes are rights themselves."""
        if scope is None or not scope.startswith("admin"):
            return ""
        default = f"view_{cls.model_name}" if operator and method == "get" and cls.model_name else ""
        return cls.action_rights.get(action, default)

    def gathers(self, request: HttpRequest) -> bool:
        return self.action_map.get((request.method or "").lower()) in self.gathered

    def initialize_request(self, request: Any, *args: Any, **kwargs: Any) -> Request:
        self.action = "metadata" if request.method == "OPTIONS" else self.action_map.get(request.method.lower()) or ""
        self.operation = self.operations.get(self.action, "")
        return super().initialize_request(request, *args, **kwargs)

    def get_serializer_class(self) -> Any:
        for named in (self.operator_action_serializers if self.operator else {}, self.action_serializers):
            if self.action in named:
                return named[self.action]
        return self.operator_serializer_class if self.operator else self.serializer_class

    def get_body_serializer_class(self) -> Any:
        """The serializer that reads the body of the action; None for an action that has none."""
        own = self.operator_body_serializers.get(self.action) if self.operator else None
        return self.body_serializers.get(self.action) if own is None else own

    # What actions use

    def validated(self, body: dict[str, Any]) -> dict[str, Any]:
        """The members of a body as the action's serializer reads them."""
        serializer = self.get_body_serializer_class()(data=body, context=self.get_serializer_context())
        serializer.is_valid(raise_exception=True)
        found: dict[str, Any] = serializer.validated_data
        return found

    def represent(self, instance: Any) -> Any:
        """`instance` as the action's serializer shows it, without the copy that `Serializer.data` makes."""
        serializer = cast("AnswerSerializer", self.get_serializer())
        serializer.prepare([instance])
        return serializer.to_representation(instance)

    def listed(self, queryset: Any, **more: Any) -> Response:
        """The page of `queryset` that the query asks for, shown by the serializer; `more` stands beside the items."""
        page = self.paginate_queryset(self.filter_queryset(queryset))
        items = self.get_serializer(many=True).to_representation(page)
        return self.page_answer(items, **more)

    def page_answer(self, items: Any, **more: Any) -> Response:
        """The answer with what is shown of the page that `paginate_queryset` has found."""
        return cast("OJSPagination", self.paginator).get_paginated_response(items, **more)


def using() -> str:
    """The alias of the database that jobs are written to."""
    return router.db_for_write(Job)


@lru_cache(maxsize=8)
def authenticators(paths: tuple[str, ...]) -> list[BaseAuthentication]:
    """The authentication classes of the setting, one instance each: they hold no state of a request."""
    return [import_string(path)() for path in paths]
