"""The base of every ViewSet of the binding, and the two doors through which one can be reached.

A ViewSet is registered on the router (`django_ojs.http.router`) once for `/ojs/v1/jobs`, and again for operators below
`/ojs/v1/admin/`. Behind both doors are the same actions, unless the class says that one of them belongs to one door.
A site subclasses a ViewSet and swaps its serializer, filter, pagination or permission classes as with any of DRF.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, cast

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from django_ojs.http.base import OJSView
from django_ojs.http.pagination import Key, OJSPagination
from django_ojs.http.serializers import AnswerSerializer

#: The scopes of the operator's door: for looking, for operating and for deleting.
_OPERATOR_SCOPES = {"get": "admin.read", "delete": "admin.purge"}


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
        public_only, operator_only: names of actions that the other door lacks.
        operations: by action, its name in a refusal and for an Idempotency-Key, where that is not method and path.
        aliases: further paths of an action: `@action(detail=True, methods=["post"], aliases=("fail",))`. A path that
            begins with a slash stands beside the resource, below `/ojs/v1`.
        serializer_class, operator_serializer_class: what one resource looks like behind each door.
        action_serializers: by action, the serializer of its answer where that is another one.
        body_serializers: by action, the serializer that reads its body.
        ordering: the order of the list, from which the cursors of its pages are made.
        list_names, operator_list_names: the members of a list's answer that hold its items.
    """

    operator: bool = False
    action_scopes: ClassVar[Mapping[str, str | None]] = {}
    operator_scopes: ClassVar[Mapping[str, str]] = {}
    action_rights: ClassVar[Mapping[str, str]] = {}
    model_name: ClassVar[str] = ""
    public_only: ClassVar[Collection[str]] = ()
    operator_only: ClassVar[Collection[str]] = ()
    operations: ClassVar[Mapping[str, str]] = {}
    aliases: Sequence[str] = ()
    #: By method, made of the tables above for every path by `as_view`, and what `ScopePermission` goes by.
    scopes: Mapping[str, str | None] = {}  # type: ignore[misc]
    rights: Mapping[str, str] = {}  # type: ignore[misc]

    operator_serializer_class: Any = None
    action_serializers: ClassVar[Mapping[str, Any]] = {}
    body_serializers: ClassVar[Mapping[str, Any]] = {}
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

    def initialize_request(self, request: Any, *args: Any, **kwargs: Any) -> Request:
        self.action = "metadata" if request.method == "OPTIONS" else self.action_map.get(request.method.lower()) or ""
        self.operation = self.operations.get(self.action, "")
        return super().initialize_request(request, *args, **kwargs)

    def get_serializer_class(self) -> Any:
        if (own := self.action_serializers.get(self.action)) is not None:
            return own
        return self.operator_serializer_class if self.operator else self.serializer_class

    # What actions use

    def validated(self, body: dict[str, Any]) -> dict[str, Any]:
        """The members of a body as the action's serializer reads them."""
        serializer = self.body_serializers[self.action](data=body, context=self.get_serializer_context())
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
