"""The router of the binding: DRF's, with paths and URL names as the binding has them.

The list of a resource is named in the plural (`jobs`), one of it in the singular (`job`), and an action by both
(`job-cancel`). Paths have no slash at their end, and are paths of Django rather than regular expressions.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from django.urls import URLPattern, URLResolver, path
from rest_framework.routers import DynamicRoute, Route, SimpleRouter

from django_ojs.http.base import OJSViewSet


class OJSRouter(SimpleRouter):
    """`router.register("jobs", JobViewSet, "job")`; the same below `admin/` with `operator=True`."""

    #: Actions come before the resource itself: the id of a worker may hold slashes.
    routes = [
        Route(url="{prefix}", mapping={"get": "list", "post": "create", "delete": "clear"}, name="{basename}s",
              detail=False, initkwargs={}),
        DynamicRoute(url="{prefix}/{url_path}", name="{basename}-{url_name}", detail=False, initkwargs={}),
        DynamicRoute(url="{prefix}/{lookup}/{url_path}", name="{basename}-{url_name}", detail=True, initkwargs={}),
        Route(url="{prefix}/{lookup}", mapping={"get": "retrieve", "put": "update", "patch": "partial_update",
                                                "delete": "destroy"},
              name="{basename}", detail=True, initkwargs={}),
    ]  # fmt: skip

    def __init__(self) -> None:
        super().__init__(trailing_slash=False, use_regex_path=False)
        self._given: dict[str, tuple[Mapping[str, str], dict[str, Any]]] = {}

    def register(  # type: ignore[override]
        self,
        prefix: str,
        viewset: type[OJSViewSet],
        basename: str,
        *,
        plural: str = "",
        names: Mapping[str, str] = MappingProxyType({}),
        **initkwargs: Any,
    ) -> None:
        """Serve `viewset` at `prefix`.

        Args:
            basename: the name of one resource in URL names, such as `job`.
            plural: the name of the list, where it is not `basename` with an `s`.
            names: other URL names, by those that the router would give.
            initkwargs: attributes of the view at these paths, such as `operator=True` for the operator's door.
        """
        super().register(prefix, viewset, basename)
        self._given[basename] = ({f"{basename}s": plural} if plural else names, initkwargs)

    def get_urls(self) -> list[URLPattern | URLResolver]:
        found: list[URLPattern | URLResolver] = []
        for prefix, viewset, basename in self.registry:
            for route in self.get_routes(viewset):
                found += self._paths(prefix, viewset, basename, route)
        return found

    def _paths(self, prefix: str, viewset: Any, basename: str, route: Route) -> list[URLPattern]:
        names, given = self._given[basename]
        operator = given.get("operator", viewset.operator)
        actions = {method: action for method, action in route.mapping.items()
                   if viewset.has_action(action, operator=operator)}  # fmt: skip
        if not actions:
            return []
        initkwargs = {**route.initkwargs, **given, "basename": basename, "detail": route.detail}
        aliases = initkwargs.pop("aliases", ())
        view = viewset.as_view(actions, **initkwargs)
        lookup = f"<{viewset.lookup_value_converter}:{viewset.lookup_url_kwarg}>"
        main = route.url.format(prefix=prefix, lookup=lookup)
        name = route.name.format(basename=basename)
        before = f"{prefix}/{lookup}" if route.detail else prefix
        further = [alias[1:] if alias.startswith("/") else f"{before}/{alias}" for alias in aliases]
        return [path(main, view, name=names.get(name, name)), *(path(alias, view) for alias in further)]
