"""The OpenAPI document of the binding: drf-spectacular makes it of ViewSets and serializers (the extra `openapi`).

`OJSView.schema` describes views to drf-spectacular by what their operations declare, so that they are also right in a
site's own document. Without the package nothing of it is imported, and the document's
path answers 404. How the two meet is in `inspector`.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from typing import Any

VERSION = "1.0.0-rc.1"
EVENT_STREAM = "text/event-stream"


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
