"""The OpenAPI document of the binding: drf-spectacular makes it of ViewSets and serializers (the extra `openapi`).

Views say here what their serializers do not (`documented`), and `OJSView.schema` describes them to drf-spectacular, so
that they are also right in a site's own document. Without the package nothing of it is imported, and the document's
path answers 404. How the two meet is in `inspector`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from inspect import getdoc
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


@dataclasses.dataclass(frozen=True)
class Doc:
    """What a method takes and answers.

    Attributes:
        answers: status -> serializer or schema of the JSON, or several of them; None for an answer without any.
        query: names of the query's parameters.
        body: what it takes, None for nothing; `needed`: whether there must be a body.
        text: the media type of the text that 200 may be, or always is where it has no schema.
        resumes: whether `Last-Event-ID` counts.
        errors: statuses of errors beside those that every method may answer.
        optional: whether the site decides if credentials are needed.
        lists: the members of the answer that hold the items of a list; none where it is no list.
        beside: the serializer of what a list's answer has beside its items.
        summary: what it does in a few words, where the method's docstring does not say so.
    """

    answers: Mapping[int, Any]
    query: str = ""
    body: Any = None
    needed: bool = True
    text: str = ""
    resumes: bool = False
    errors: tuple[int, ...] = ()
    optional: bool = False
    lists: tuple[str, ...] = ()
    beside: Any = None
    summary: str = ""


def documented(*statuses: int, **facts: Any) -> Callable[[_Method], _Method]:
    """Say of a view's method what its serializers do not; a view without it on its methods has `documented` itself.

    Args:
        statuses: those of its answers that the serializer shows; 204 has none. Without any it is 200, 201 for `create`.
        facts: what `Doc` has beside; `answers` are added to those of the serializer. `public` is the serializer of the
            public door's answer, where that is not as the ViewSet's serializer shows it.
    """

    def decorate(method: _Method) -> _Method:
        method.documented = (statuses, facts)  # type: ignore[attr-defined]
        return method

    return decorate


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


def doc_of(view: Any, method: str) -> Doc | None:
    """What a view's method, in capitals, takes and answers; None if it has no description."""
    name = getattr(view, "action", None) or method.lower()
    said: Any = getattr(getattr(view, name, None), "documented", getattr(view, "documented", ((), {})))
    statuses: tuple[int, ...] = said[0]
    facts: dict[str, Any] = said[1]
    body = view.get_body_serializer_class() if hasattr(view, "get_body_serializer_class") else None
    answers: dict[int, Any] = {}
    found: dict[str, Any] = {"body": body, "needed": getattr(body, "needed", True)}
    if hasattr(view, "get_serializer_class"):
        serializer = view.get_serializer_class() if view.operator else facts.get("public", view.get_serializer_class())
        if name == "destroy" and not statuses and "destroy" not in view.action_serializers:
            serializer = None
        statuses = statuses or (204 if serializer is None else 201 if name == "create" else 200,)
        answers = {status: None if status == 204 else serializer for status in statuses}
        if name == "list" and view.pagination_class is not None:
            found["lists"] = tuple((view.operator and view.operator_list_names) or view.list_names)
    found |= {name: fact for name, fact in facts.items() if name != "public"}
    found["answers"] = answers | facts.get("answers", {})
    return Doc(**found) if found["answers"] else None


def summary_of(view: Any, path: str, method: str) -> str:
    """The first sentence of the method's docstring, in a few words."""
    text = getdoc(getattr(view, getattr(view, "action", None) or method.lower())) or f"{method} {path}"
    return " ".join(text.partition("\n\n")[0].split()).rstrip(".")


def parameters(*names: str) -> list[dict[str, Any]]:
    """Parameters of the query, in the words of the document."""
    return [{"name": name, "in": "query", "schema": _PARAMETERS.get(name, {"type": "string"})} for name in names]
