"""Where our views meet drf-spectacular. Imported only where that is installed."""

from __future__ import annotations

from typing import Any

from drf_spectacular.generators import EndpointEnumerator, SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ResolvedComponent

from django_ojs.http import apidoc, apischemas


class Inspector(AutoSchema):
    """Describes one of our views as `apidoc` does, whatever the site's settings say."""

    def get_operation(self, path: str, path_regex: str, path_prefix: str, method: str, registry: Any) -> Any:
        component: Any = ResolvedComponent
        schemas, schemes = apischemas.components(), apidoc.SECURITY
        for kind, parts in ((component.SCHEMA, schemas), (component.SECURITY_SCHEMA, schemes)):
            for name, part in parts.items():
                registry.register_on_missing(component(name=name, type=kind, schema=part, object=name))
        start = path.find("/ojs/")  # a site may have put us below a prefix
        return apidoc.operation(self.view, path[max(start, 0) :], method)


def paths() -> dict[str, Any]:
    """Every path of ours with its operations, as Django routes them."""
    found: dict[str, Any] = {}
    generator: Any = SchemaGenerator  # drf-spectacular leaves these without types
    endpoints: Any = EndpointEnumerator(urlconf="django_ojs.urls")
    for path, _, method, callback in endpoints.get_api_endpoints():
        view = generator().create_view(callback, method)
        if described := apidoc.operation(view, path, method):
            found.setdefault(path, {})[method.lower()] = described
    return dict(sorted(found.items()))
