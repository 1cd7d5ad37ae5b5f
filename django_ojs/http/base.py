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
from django_ojs.database import check_health
from django_ojs.http import body, exceptions, media, openapi
from django_ojs.http.body import OJSParser
from django_ojs.http.operation import UNDECLARED, UNSET, Operation, declared_by
from django_ojs.http.pagination import OJSPagination, SortKey
from django_ojs.http.permissions import ScopePermission
from django_ojs.http.serializers import AnswerSerializer, OnePageSerializer, shared
from django_ojs.models import Job
from django_ojs.rules import suggest
from django_ojs.rules.faults import shorten
from django_ojs.rules.ids import new_request_id
from django_ojs.telemetry import tracing

VERSION = "1.0"
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_NEGOTIATOR = media.FixedNegotiation()
_RENDERER = media.OJSRenderer()
_PARSER = OJSParser()
#: On every answer, with `cache_control`: no cache may keep it, or make a bodiless 304 without our headers of it.
HEADERS = {
    "OJS-Version": VERSION,
    "X-OJS-Version": VERSION,
    "X-Content-Type-Options": "nosniff",
}
#: What a site's middleware (Django's ConditionalGetMiddleware) would answer with a bodiless 304 or 412 without our
#: headers, by times of whole seconds. Our answers are whole.
_CONDITIONS = ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH", "HTTP_IF_MODIFIED_SINCE", "HTTP_IF_UNMODIFIED_SINCE")
#: The scopes of the operator's door: for looking, for operating and for deleting.
_OPERATOR_SCOPES = {"GET": "admin.read", "DELETE": "admin.purge"}
_METHODS = ("get", "post", "put", "patch", "delete")


def sent_id(given: str) -> str:
    """The id that a client gives its request; '' for one that is not taken (binding 1.1)."""
    return given if _REQUEST_ID.fullmatch(given) else ""


class OJSView(APIView):
    """One path. Its methods declare what they are and who may call them (`operation`)."""

    #: By method in capitals, as `as_view` finds them: the operations, and what `ScopePermission` goes by.
    operations: Mapping[str, Operation] = MappingProxyType({})
    scopes: Mapping[str, str | None] = MappingProxyType({})
    rights: Mapping[str, str] = MappingProxyType({})
    #: Changes to the operations that a class inherits, by the name of the method: `{"list": {"answer": ShortLine}}`.
    operation_changes: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    #: Whether this is the door below `/admin/`.
    operator: bool = False
    #: What the method of this request declares.
    operation: Operation = UNDECLARED
    #: `error.code` of a state conflict at this path: most clients know one, the operators' tools another.
    conflict_code: ClassVar[str] = "conflict"
    #: Whether the version headers count here: the manifest and the health check answer any client.
    negotiates: ClassVar[bool] = True
    #: Whether a call may meet a database that is away: not where its answer is made of the code and the settings alone.
    needs_database: ClassVar[bool] = True
    cache_control: ClassVar[str] = "private, no-store, max-age=0"
    _text_type = ""  #: the Content-Type of an answer that is no JSON
    #: What `payload()` read.
    raw: bytes | None = None
    body: Mapping[str, Any] = MappingProxyType({})
    #: What the audit log will say of this call, where its operation has an entry there.
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
        if "operations" not in initkwargs:
            names = actions[0] if actions else {method: method for method in _METHODS if hasattr(cls, method)}
            initkwargs |= cls.declared(names, operator=initkwargs.get("operator", cls.operator))
        view = login_not_required(super().as_view(*actions, **initkwargs))
        for alias in settings.DATABASES:
            view = transaction.non_atomic_requests(alias)(view)
        return view

    @classmethod
    def declared(cls, names: Mapping[str, str], *, operator: bool) -> dict[str, Any]:
        """The operations, scopes and rights of a path, given which method of this class each HTTP method is."""
        found = {method.upper(): declared_by(cls, name) for method, name in names.items() if method != "head"}
        scopes = {method: cls.scope_for(one, method, operator=operator) for method, one in found.items()}
        rights = {
            method: cls.right_for(one, method, scopes[method], operator=operator) for method, one in found.items()
        }
        named = {method: right for method, right in rights.items() if right}
        return {"operations": found, "scopes": scopes, "rights": named}

    @classmethod
    def scope_for(cls, operation: Operation, method: str, *, operator: bool) -> str | None:
        """The scope that a method needs at this door; None opens it to all."""
        return operation.scope

    @classmethod
    def right_for(cls, operation: Operation, method: str, scope: str | None, *, operator: bool) -> str:
        """The permission that a user needs beside `scope`; '' for none."""
        return operation.right or ""

    @property
    def operation_name(self) -> str:
        """What this call is named in a refusal; '' for its method and path."""
        return self.operation.name

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Answer a request; jobs that it enqueues get the trace context and the request id that the client sent."""
        for name in _CONDITIONS:
            request.META.pop(name, None)
        charset, request._encoding = request.encoding, None  # type: ignore[attr-defined]  # it says nothing of the query
        if charset and charset.lower() != "utf-8":  # and a middleware may have read the query with it
            request.__dict__.pop("GET", None)
        given = sent_id(request.META.get("HTTP_X_REQUEST_ID", ""))
        self.request_id = given or new_request_id()
        token = tracing.receive(request.META, given)
        self.operation = self.operations.get("GET" if request.method == "HEAD" else request.method or "", UNDECLARED)
        if not self.operation.grouped:  # the leader of a commit group looks at its own: no other caller needs one
            check_health(using())
        try:
            with suggest.BoundedComparisons():
                response: Any = super().dispatch(request, *args, **kwargs)
            if request.method == "HEAD" and not response.streaming:  # some servers would send what there is
                response.content = b""
            return response
        finally:
            tracing.forget(token)
            self.break_reference_cycles()

    def break_reference_cycles(self) -> None:
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
            prepare(request)

    def options(self, request: Request, *args: Any, **kwargs: Any) -> Response:  # type: ignore[override]
        """The methods of this path, for every caller; the CORS headers are the site's (django-cors-headers)."""
        return Response(status=204, headers={"Allow": ", ".join(self.allowed_methods)})

    def http_method_not_allowed(self, request: Request, *args: Any, **kwargs: Any) -> Response:  # type: ignore[override]
        allowed = ", ".join(self.allowed_methods)
        raise errors.MethodNotAllowed(f"This path takes {allowed} only.", headers={"Allow": allowed})

    def handle_exception(self, exc: Exception) -> Response:
        self._text_type = ""
        return super().handle_exception(exc)

    def get_exception_handler(self) -> Any:
        return exceptions.handler

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        """Render here, where a failure still becomes an answer of ours, and add the headers of every answer."""
        try:
            self._render(response)
        except Exception as exc:  # noqa: BLE001 - whatever cannot be written becomes the 500 of the spec
            response = self.handle_exception(exc)
            self._render(response)
        if response.status_code < 500:
            exceptions.refusals.worked()
        for name, value in HEADERS.items():
            response[name] = value
        response["Cache-Control"] = self.cache_control
        response["X-Request-Id"] = self.request_id
        patch_vary_headers(response, ("Accept", "OJS-Version"))
        return response

    # What views use

    def payload(
        self, *, required: bool = True, limit: int | None = None, field: str = "body", arrays: Collection[str] = ()
    ) -> dict[str, Any]:
        """The JSON object in the body, `{}` where none is `required`; its bytes stay in `self.raw`. `arrays` are the
        members with an element for each job of a batch."""
        request = self.request._request
        if self.raw is None:  # read before where the call lost a race and begins again
            self.raw = body.read(request, body.single_limit() if limit is None else limit, field)
        if self.raw:
            body.check_type(request)
        self.body = body.parse(self.raw, required=required, arrays=arrays)
        return self.body

    def batch_payload(self, *arrays: str, required: bool = True) -> dict[str, Any]:
        """`payload` of a request about many jobs, as long as such a body may be."""
        return self.payload(required=required, limit=ojs_settings.MAX_BATCH_BYTES, arrays=arrays)

    def media_type(self) -> str:
        """The Content-Type of this view's answers."""
        return self._text_type or media.response_type(self.request._request)

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

    @classmethod
    def scope_for(cls, operation: Operation, method: str, *, operator: bool) -> str | None:
        return None

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
        model_name: the model that a user has to be allowed to view in order to read here, such as `job` ('').
        aliases: further paths of an action: `@operation(detail=True, methods=["post"], aliases=("fail",))`. A path that
            begins with a slash stands beside the resource, below `/ojs/v1`.
        serializer_class, operator_serializer_class: what one resource looks like behind each door, where the operation
            declares no other answer.
        ordering: the order of the list, from which the cursors of its pages are made.
        list_names, operator_list_names: the members of a list's answer that hold its items.
        entry_names: the members under which the answer that is one of the resource stands once more (`entry`).
    """

    model_name: ClassVar[str] = ""
    aliases: Sequence[str] = ()

    operator_serializer_class: Any = None
    lookup_value_converter = "str"
    filter_backends: Any = ()
    pagination_class: Any = OJSPagination
    ordering: Sequence[SortKey] = ()
    list_names: Sequence[str] = ("items",)
    operator_list_names: Sequence[str] | None = None
    entry_names: Sequence[str] = ()
    format_kwarg = None

    @classmethod
    def as_view(cls, actions: Any = None, **initkwargs: Any) -> Any:
        """The view for a path; `actions` says which action each method is, as in DRF."""
        found: dict[str, str] = {method: action for method, action in (actions or {}).items() if method != "head"}
        view = super().as_view(found, **initkwargs)
        view.given = initkwargs  # without what this class has made of them
        return view

    @classmethod
    def has_action(cls, action: str, *, operator: bool) -> bool:
        """Whether this door has the action."""
        return hasattr(cls, action) and declared_by(cls, action).is_behind(operator=operator)

    @classmethod
    def scope_for(cls, operation: Operation, method: str, *, operator: bool) -> str | None:
        """The operator's door asks for the scope of looking, operating or deleting."""
        if operator:
            return operation.operator_scope or _OPERATOR_SCOPES.get(method, "admin.write")
        return operation.scope

    @classmethod
    def right_for(cls, operation: Operation, method: str, scope: str | None, *, operator: bool) -> str:
        """A right is asked for where the scope is one of operators; other scopes are rights themselves."""
        if scope is None or not scope.startswith("admin"):
            return ""
        default = f"view_{cls.model_name}" if operator and method == "GET" and cls.model_name else ""
        return default if operation.right is None else operation.right

    def initialize_request(self, request: Any, *args: Any, **kwargs: Any) -> Request:
        self.action = "metadata" if request.method == "OPTIONS" else self.action_map.get(request.method.lower()) or ""
        return super().initialize_request(request, *args, **kwargs)

    def get_serializer_class(self) -> Any:
        own = declared_by(type(self), self.action).answer_of(operator=self.operator)
        if own is UNSET:
            return self.operator_serializer_class if self.operator else self.serializer_class
        return own

    def get_body_serializer_class(self) -> Any:
        """The serializer that reads the body of the action; None for an action that has none."""
        return declared_by(type(self), self.action).body_of(operator=self.operator)

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

    def quickly(self, instance: Any) -> Any:
        """`instance` as the answer that the operation declares shows it. The process has one instance of that
        serializer: this is for busy calls, whose answers need nothing of the request."""
        return shared(self.operation.answer).to_representation(instance)

    def entry(self, instance: Any, beside: Any = None, *, outside: Any = None) -> dict[str, Any]:
        """`instance` with what the operation shows `beside` its members, and the whole once more under each of the
        `entry_names`; `outside` is shown beside these."""
        whole = self.represent(instance) | self._beside(beside)
        more = {} if outside is None else shared(self.operation.outside).to_representation(outside)
        return {**whole, **dict.fromkeys(self.entry_names, whole), **more}

    def listed(self, queryset: Any, beside: Any = None) -> Response:
        """The page of `queryset` that the query asks for, shown by the serializer, with what the operation shows
        `beside` the items."""
        page = self.paginate_queryset(self.filter_queryset(queryset))
        items = self.get_serializer(many=True).to_representation(page)
        return self.page_answer(items, beside)

    def page_answer(self, items: Any, beside: Any = None) -> Response:
        """The answer with what is shown of the page that `paginate_queryset` has found."""
        return cast("OJSPagination", self.paginator).get_paginated_response(items, **self._beside(beside))

    def whole_list(self, items: Any, pagination: dict[str, Any], beside: Any = None) -> Response:
        """The answer of a list that `pagination_class` does not page: what is shown of the items under each of the
        operation's `lists`, what it shows `beside` them, and where they stand."""
        standing = shared(OnePageSerializer).to_representation({"pagination": pagination})
        lists = dict.fromkeys(self.operation.lists, items)
        return Response({**lists, **self._beside(beside), **standing})

    def _beside(self, instance: Any) -> dict[str, Any]:
        """`instance` as the serializer shows it that the operation names for it; nothing for None."""
        return {} if instance is None else shared(self.operation.beside).to_representation(instance)


def using() -> str:
    """The alias of the database that jobs are written to."""
    return router.db_for_write(Job)


@lru_cache(maxsize=8)
def authenticators(paths: tuple[str, ...]) -> list[BaseAuthentication]:
    """The authentication classes of the setting, one instance each: they hold no state of a request."""
    return [import_string(path)() for path in paths]
