"""The OpenAPI document of the binding: drf-spectacular makes it of ViewSets and serializers (the extra `openapi`).

Views say here what their serializers do not (`documented`), and `OJSView.schema` describes them to drf-spectacular, so
that they are also right in a site's own document. Without the package nothing of it is imported, and the document's
path answers 404. How the two meet is in `inspector`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, TypeVar

VERSION = "1.0.0-rc.1"
EVENT_STREAM = "text/event-stream"
#: The schemas of the parameters of a query that are no texts.
_PARAMETERS: dict[str, dict[str, Any]] = {
    **{name: {"type": "integer", "minimum": 1} for name in ("limit", "page", "per_page")},
    **{name: {"type": "integer", "minimum": 0} for name in ("offset", "timeout")},
    **{name: {"type": "boolean"} for name in ("wait", "confirm", "dry_run", "cancel_active")},
    "format": {"type": "string", "enum": ["json", "prometheus"]},
}
_Method = TypeVar("_Method", bound=Callable[..., Any])


def documented(*statuses: int, **facts: Any) -> Callable[[_Method], _Method]:
    """Say of a view's method what its serializers do not; a view without it on its methods has `documented` itself.

    Args:
        statuses: those of its answers that the serializer shows; 204 has none. Without any it is 200, 201 for `create`.
        facts: what `inspector.Doc` has beside; `answers` are added to those of the serializer. `public` is the
            serializer of the public door's answer, where that is not as the ViewSet's serializer shows it.
    """

    def decorate(method: _Method) -> _Method:
        method.documented = (statuses, facts)  # type: ignore[attr-defined]
        return method

    return decorate


def parameters(*names: str) -> list[dict[str, Any]]:
    """Parameters of the query, in the words of the document."""
    return [{"name": name, "in": "query", "schema": _PARAMETERS.get(name, {"type": "string"})} for name in names]


def available() -> bool:
    return _inspector() is not None


def document(version: str, url: str) -> dict[str, Any]:
    """The whole document, as Django routes our paths. ImportError where drf-spectacular is not installed."""
    from django_ojs.http import inspector

    paths, components = inspector.paths_and_components()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Open Job Spec server",
            "version": version,
            "description": f"The HTTP binding of Open Job Spec {VERSION}, its extensions and the operator's API.",
        },
        "servers": [{"url": url or "/"}],
        "paths": paths,
        "components": components,
        "security": inspector.secured(True),
    }


class LazySchema:
    """DRF's `schema` attribute: drf-spectacular's inspector where it is installed and asked for; None hides a view."""

    def __get__(self, view: Any, owner: type) -> Any:
        made = _inspector()
        return None if made is None else made().__get__(view, owner)

    def __set__(self, view: Any, value: Any) -> None:
        """drf-spectacular sets what it has just read."""


@lru_cache(maxsize=1)
def _inspector() -> Any:
    if find_spec("drf_spectacular") is None:
        return None
    from django_ojs.http.inspector import Inspector

    return Inspector
