"""The OpenAPI document of the whole binding, made with drf-spectacular (the extra `openapi`).

`OJSView.schema` describes our views to drf-spectacular, so that they are also right in a site's own document. Without
the package nothing here is imported but this module, and the document's path answers 404.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, TypeVar

from django_ojs.http import apiextensions, apioperations, apischemas
from django_ojs.http.apioperations import Doc
from django_ojs.http.apisummaries import SUMMARIES

VERSION = "1.0.0-rc.1"
MEDIA = ("application/openjobspec+json", "application/json")
logger = logging.getLogger("django_ojs.http")
_DOCS = apioperations.DOCS | apiextensions.DOCS
_AS = {"patch": "put"}
_T = TypeVar("_T")
_PARAMETER = re.compile(r"\{(\w+)\}")
_NUMBERS = {"limit", "offset", "page", "per_page", "timeout"}
_FLAGS = {"wait", "enabled", "confirm", "dry_run", "cancel_active"}
#: Words that a parameter of the query is one of.
_WORDS = {"format": ["json", "prometheus"]}
_TEXTS = {
    200: "Done.", 201: "Made.", 202: "Taken on, and not done yet.", 204: "Done; there is nothing to say.",
    207: "Done in part.", 400: "The request is not valid.", 401: "Credentials are missing or not valid.",
    403: "The caller may not do this.", 404: "There is no such thing.",
    406: "The server cannot answer with a stream: it runs under WSGI.", 408: "It did not happen in the time given.",
    409: "The state of the job or another request stands in the way.", 410: "It was there, and is gone.",
    413: "The body is too large.", 415: "The body is compressed in a way that the server does not know.",
    422: "The server understands it, but cannot do it.", 429: "Too many requests.",
    503: "The job store cannot be reached.",
}  # fmt: skip


class LazySchema:
    """DRF's `schema` attribute: drf-spectacular's inspector where it is installed and asked for; None hides a view."""

    def __get__(self, view: Any, owner: type) -> Any:
        made = _inspector()
        return None if made is None else made().__get__(view, owner)

    def __set__(self, view: Any, value: Any) -> None:
        """drf-spectacular sets what it has just read."""


def available() -> bool:
    return _inspector() is not None


def document(version: str, url: str) -> dict[str, Any]:
    """The whole document. RuntimeError where drf-spectacular is not installed."""
    from django_ojs.http.apigenerator import paths

    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Open Job Spec server",
            "version": version,
            "description": f"The HTTP binding of Open Job Spec {VERSION}, its extensions and the operator's API.",
        },
        "servers": [{"url": url or "/"}],
        "paths": paths(),
        "components": {"schemas": apischemas.components(), "securitySchemes": SECURITY},
        "security": _secured(True),
    }


SECURITY: dict[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, made by `manage.py ojs_apikey create`."},
    "session": {"type": "apiKey", "in": "cookie", "name": "sessionid", "description": "Writes need X-CSRFToken too."},
}


def operation(view: Any, path: str, method: str) -> dict[str, Any] | None:
    """The OpenAPI operation of `method`, in capitals, of a view at `path`; None, and a log entry, if undescribed."""
    doc = doc_of(type(view), method.lower())
    if doc is None:  # a view of the site's own, say: the rest of the document is still true
        logger.error("The OpenAPI document leaves out %s %s: nobody has described %r.", method, path, type(view))
        return None
    public = not view.permission_classes
    scope = None if public else view.scopes.get(method, "admin")
    found: dict[str, Any] = {
        "operationId": _operation_id(path, method),
        "summary": _summary(view, path, method),
        "tags": [_tag(path)],
        "parameters": [*_path_parameters(path), *(_query(name) for name in doc.query.split()), *_headers(doc)],
        "responses": _responses(doc, path, public),
        "security": [{}] * doc.optional + _secured(not public),
    }
    if scope:
        found["description"] = f"Needs the scope `{scope}`" + (", unless it is public." if doc.optional else ".")
        if right := view.rights.get(method):
            found["description"] += f" A user needs the permission `django_ojs.{right}`."
    if doc.body is not None:
        found["requestBody"] = {"required": doc.needed, "content": _content(doc.body)}
    return found


def doc_of(view: type, method: str) -> Doc | None:
    """What is said of this method, or of the one it is made of; None if nobody has described it."""
    return _said_of(view, method, _DOCS)


def _said_of(view: type, method: str, table: Mapping[str, _T]) -> _T | None:
    for name in (method, _AS.get(method, method)):
        for base in view.__mro__:
            module = base.__module__.rpartition(".")[2]
            for key in (f"{module}.{base.__name__}.{name}", f"{base.__name__}.{name}"):
                if key in table:
                    return table[key]
    return None


@lru_cache(maxsize=1)
def _inspector() -> Any:
    if find_spec("drf_spectacular") is None:
        return None
    from django_ojs.http.apigenerator import Inspector

    return Inspector


def _secured(needed: bool) -> list[dict[str, list[str]]]:
    return [{"bearer": []}, {"session": []}] if needed else [{}]


def _operation_id(path: str, method: str) -> str:
    below = path.removeprefix("/").removeprefix("ojs/v1/") if path.startswith("/ojs/") else f"root{path}"
    words = re.sub(r"[^a-z0-9]+", "_", below.lower()).strip("_")
    return f"{method.lower()}_{words}"


def _summary(view: Any, path: str, method: str) -> str:
    said = _said_of(type(view), method.lower(), SUMMARIES) or f"{method} {path}"
    verb = path.rpartition("/")[2]
    return said.replace("{verb}", verb if said.endswith("{verb}") else verb.capitalize())


def _tag(path: str) -> str:
    parts = [part for part in path.split("/") if part and not part.startswith("{")]
    if parts[:3] == ["ojs", "v1", "admin"]:
        return "admin"
    return parts[2] if len(parts) > 2 else "server"


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(path)
    ]


def _query(name: str) -> dict[str, Any]:
    kind = "integer" if name in _NUMBERS else "boolean" if name in _FLAGS else "string"
    schema: dict[str, Any] = {"type": kind}
    if kind == "integer":
        schema["minimum"] = 0 if name in ("offset", "timeout") else 1
    if words := _WORDS.get(name):
        schema["enum"] = words
    return {"name": name, "in": "query", "schema": schema}


def _headers(doc: Doc) -> list[dict[str, Any]]:
    return [{"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}}] if doc.resumes else []


def _responses(doc: Doc, path: str, public: bool) -> dict[str, Any]:
    found = {str(status): _response(status, schema) for status, schema in doc.answers.items()}
    if doc.text:
        found["200"].setdefault("content", {})[doc.text] = {"schema": apischemas.TEXT}
    wrong = {400, 409, 413, 422, 429, 503, *doc.errors} | (set() if public else {401, 403})
    wrong |= ({404} if "{" in path else set()) | ({415} if doc.body is not None else set())
    for status in sorted(wrong):
        found.setdefault(str(status), _response(status, apischemas.ref("Error")))
    return found | {"default": {"description": "Another error.", "content": _content(apischemas.ref("Error"))}}


def _response(status: int, schema: dict[str, Any] | None) -> dict[str, Any]:
    return {"description": _TEXTS[status]} | ({} if schema is None else {"content": _content(schema)})


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {media: {"schema": schema} for media in MEDIA}
