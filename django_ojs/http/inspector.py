"""Where our views meet drf-spectacular: what it cannot know about them. Imported only where that is installed.

It reads serializers and routes by itself. Here are our media types, errors, scopes and rights, and the schema of an
envelope.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from collections.abc import Mapping
from functools import lru_cache
from inspect import getdoc
from pathlib import Path
from typing import Any

from drf_spectacular.generators import EndpointEnumerator, SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ComponentRegistry, ResolvedComponent
from drf_spectacular.settings import patched_settings
from rest_framework.serializers import ChoiceField

from django_ojs.http import openapi
from django_ojs.http.serializers import EnvelopeSerializer, ErrorSerializer, PaginationSerializer

MEDIA = ("application/openjobspec+json", "application/json")
SECURITY: dict[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, made by `manage.py ojs_apikey create`."},
    "session": {"type": "apiKey", "in": "cookie", "name": "sessionid", "description": "Writes need X-CSRFToken too."},
}
logger = logging.getLogger("django_ojs.http")
Schema = dict[str, Any]
_AutoSchema: Any = AutoSchema  # drf-spectacular leaves much without types
_ENVELOPE = Path(__file__).parent.parent / "schemas" / "envelope.json"
_OBJECT: Schema = {"type": "object"}
_TEXT: Schema = {"type": "string"}
#: What our own document is made with.
_OURS: dict[str, Any] = {
    "OAS_VERSION": "3.1.0", "COMPONENT_SPLIT_REQUEST": False, "COMPONENT_NO_READ_ONLY_REQUIRED": False,
    "ENFORCE_NON_BLANK_FIELDS": False, "APPEND_COMPONENTS": {}, "SORT_OPERATION_PARAMETERS": False,
}  # fmt: skip
#: What a status says of an answer.
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


def paths_and_components() -> tuple[dict[str, Any], dict[str, Any]]:
    """Every path of ours with its operations, as Django routes them, and the components that they refer to."""
    generator: Any = SchemaGenerator
    enumerator: Any = EndpointEnumerator
    registry: Any = ComponentRegistry()
    found: dict[str, Any] = {}
    with patched_settings(_OURS):
        for path, regex, method, callback in enumerator(urlconf="django_ojs.urls").get_api_endpoints():
            view = generator().create_view(callback, method)
            if described := view.schema.get_operation(path, regex, "", method, registry):
                found.setdefault(path, {})[method.lower()] = described
        return dict(sorted(found.items())), registry.build({})


@dataclasses.dataclass(frozen=True)
class Doc:
    """What a method takes and answers.

    Attributes:
        answers: status -> serializer of the JSON, or several of them; None for an answer without any.
        query: names of the query's parameters.
        body: the serializer of what it takes, None for nothing.
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
    text: str = ""
    resumes: bool = False
    errors: tuple[int, ...] = ()
    optional: bool = False
    lists: tuple[str, ...] = ()
    beside: Any = None
    summary: str = ""


class Inspector(_AutoSchema):  # type: ignore[misc]
    """Describes one of our views, in our document and in a site's."""

    def get_operation(self, path: str, path_regex: str, path_prefix: str, method: str, registry: Any) -> Any:
        found = doc_of(self.view, method)
        if found is None:  # a view of the site's own, say: the rest of the document is still true
            logger.error("The OpenAPI document leaves out %s %s: %r has no description.", method, path,
                         type(self.view))  # fmt: skip
            return None
        self.doc = found
        self.public = not self.view.permission_classes
        component: Any = ResolvedComponent
        for kind, parts in ((component.SCHEMA, envelope()), (component.SECURITY_SCHEMA, SECURITY)):
            for name, part in parts.items():
                registry.register_on_missing(component(name=name, type=kind, schema=part, object=name))
        start = path.find("/ojs/")  # a site may have put us below a prefix
        described = super().get_operation(path[max(start, 0) :], path_regex, path_prefix, method, registry)
        return {"parameters": [], **described}

    def get_operation_id(self) -> str:
        below = self.path.removeprefix("/")
        below = below.removeprefix("ojs/v1/") if self.path.startswith("/ojs/") else f"root_{below}"
        words = re.sub(r"[^a-z0-9]+", "_", below.lower()).strip("_")
        return f"{self.method.lower()}_{words}"

    def get_summary(self) -> str:
        return self.doc.summary or summary_of(self.view, self.path, self.method)

    def get_description(self) -> str:
        scope = None if self.public else self.view.scopes.get(self.method, "admin")
        if not scope:
            return ""
        said = f"Needs the scope `{scope}`" + (", unless it is public." if self.doc.optional else ".")
        right = self.view.rights.get(self.method)
        return said + (f" A user needs the permission `django_ojs.{right}`." if right else "")

    def get_tags(self) -> list[str]:
        parts = [part for part in self.path.split("/") if part and not part.startswith("{")]
        return ["admin" if parts[:3] == ["ojs", "v1", "admin"] else parts[2] if len(parts) > 2 else "server"]

    def get_auth(self) -> list[dict[str, list[str]]]:
        return [{}] * self.doc.optional + secured(not self.public)

    def _resolve_path_parameters(self, variables: list[str]) -> list[Schema]:
        schema = {"type": "string", "minLength": 1}
        return [{"name": name, "in": "path", "required": True, "schema": schema} for name in variables]

    def _get_filter_parameters(self) -> list[Schema]:
        found: list[Schema] = []
        for backend in self.view.filter_backends if self.doc.lists else ():
            if (named := getattr(backend(), "get_schema_operation_parameters", None)) is not None:
                found += named(self.view)
        return found

    def _get_pagination_parameters(self) -> list[Schema]:
        found = openapi.parameters(*self.doc.query.split())
        if self.doc.lists and self.view.pagination_class is not None:
            found += self.view.pagination_class().get_schema_operation_parameters(self.view)
        return found + ([{"name": "Last-Event-ID", "in": "header", "schema": _TEXT}] if self.doc.resumes else [])

    def _get_request_body(self, direction: Any = "request") -> Schema | None:
        if self.doc.body is None:
            return None
        return {"required": getattr(self.doc.body, "needed", True), "content": self._content(self.doc.body, direction)}

    def _get_response_bodies(self, direction: Any = "response") -> Schema:
        found = {str(status): self._response(status, answer) for status, answer in self.doc.answers.items()}
        if self.doc.text:
            found["200"].setdefault("content", {})[self.doc.text] = {"schema": _TEXT}
        wrong = {400, 409, 413, 422, 429, 503, *self.doc.errors} | (set() if self.public else {401, 403})
        wrong |= ({404} if "{" in self.path else set()) | ({415} if self.doc.body is not None else set())
        for status in sorted(wrong):
            found.setdefault(str(status), self._response(status, ErrorSerializer))
        other = {"description": "Another error.", "content": self._content(ErrorSerializer)}
        return found | {"default": other}

    def _response(self, status: int, answer: Any) -> Schema:
        return {"description": _TEXTS[status]} | ({} if answer is None else {"content": self._content(answer)})

    def _content(self, answer: Any, direction: Any = "response") -> Schema:
        schema = self._schema(answer, direction)
        return {media: {"schema": schema} for media in MEDIA}

    def _schema(self, answer: Any, direction: Any) -> Schema:
        if isinstance(answer, tuple):
            return {"anyOf": [self._schema(one, direction) for one in answer]}
        component = self.resolve_serializer(answer, direction)
        schema: Schema = component.ref if component else _OBJECT
        listed = self.doc.lists and direction == "response" and answer is not ErrorSerializer
        return self._page(schema) if listed else schema

    def _page(self, item: Schema) -> Schema:
        """The answer of a list: the same rows under each of the names, and where they stand."""
        members = {name: {"type": "array", "items": item} for name in self.doc.lists}
        beside = self._map_basic_serializer(self.doc.beside(), "response") if self.doc.beside else {}
        pagination = self.resolve_serializer(PaginationSerializer, "response").ref
        counted = {"total": {"type": "integer"}, "total_is_minimum": {"type": "boolean"}}
        return {
            "type": "object", "required": [*self.doc.lists, "pagination", *beside.get("required", ())],
            "properties": {**members, **counted, "pagination": pagination, **beside.get("properties", {})},
        }  # fmt: skip

    def resolve_serializer(self, serializer: Any, direction: Any, bypass_extensions: bool = False) -> Any:
        kind: Any = serializer if isinstance(serializer, type) else type(serializer)
        if kind.__name__ == EnvelopeSerializer.__name__:
            component: Any = ResolvedComponent
            return self.registry[component(name="Envelope", type=component.SCHEMA, object="Envelope")]
        return super().resolve_serializer(serializer, direction, bypass_extensions)

    def _map_basic_serializer(self, serializer: Any, direction: Any) -> Schema:
        schema: Schema = super()._map_basic_serializer(serializer, direction)
        if direction == "response" and (optional := getattr(serializer, "optional", ())):
            schema["required"] = [name for name in schema.get("required", ()) if name not in optional]
        if not vars(type(serializer)).get("__doc__"):  # what it inherits is about a base class
            schema.pop("description", None)
        schema["properties"] = {name: _moved(part) for name, part in schema.get("properties", {}).items()}
        if getattr(serializer, "closed", False):
            schema["additionalProperties"] = False
        also = [{"$ref": f"#/components/schemas/{name}"} for name in getattr(serializer, "also", ())]
        return {"allOf": [*also, schema]} if also else schema

    def _map_serializer_field(self, field: Any, direction: Any, bypass_extensions: bool = False) -> Any:
        schema = super()._map_serializer_field(field, direction, bypass_extensions)
        if isinstance(field, ChoiceField):
            return {"type": "string", "enum": list(field.choices)}
        return schema


def doc_of(view: Any, method: str) -> Doc | None:
    """What a view's method, in capitals, takes and answers; None if it has no description."""
    name = getattr(view, "action", None) or method.lower()
    said: Any = getattr(getattr(view, name, None), "documented", getattr(view, "documented", ((), {})))
    statuses: tuple[int, ...] = said[0]
    facts: dict[str, Any] = said[1]
    body = view.get_body_serializer_class() if hasattr(view, "get_body_serializer_class") else None
    answers: dict[int, Any] = {}
    found: dict[str, Any] = {"body": body}
    if hasattr(view, "get_serializer_class"):
        serializer = view.get_serializer_class() if view.operator else facts.get("public", view.get_serializer_class())
        if name == "destroy" and not statuses and "destroy" not in view.action_serializers:
            serializer = None
        statuses = statuses or (204 if serializer is None else 201 if name == "create" else 200,)
        answers = {status: None if status == 204 else serializer for status in statuses}
        if name == "list" and view.pagination_class is not None:
            found["lists"] = tuple((view.operator and view.operator_list_names) or view.list_names)
    found |= {name: fact for name, fact in facts.items() if name != "public"}
    found["answers"] = dict(sorted((answers | facts.get("answers", {})).items()))
    return Doc(**found) if found["answers"] else None


def summary_of(view: Any, path: str, method: str) -> str:
    """The first sentence of the method's docstring, in a few words."""
    text = getdoc(getattr(view, getattr(view, "action", None) or method.lower())) or f"{method} {path}"
    return " ".join(text.partition("\n\n")[0].split()).rstrip(".")


@lru_cache(maxsize=1)
def envelope() -> dict[str, Schema]:
    """The components of an envelope: the parts of its JSON Schema that others refer to become some of their own."""
    found = json.loads(_ENVELOPE.read_text())
    parts = {f"Envelope{name.capitalize()}": schema for name, schema in found.pop("$defs").items()}
    for name in ("$schema", "$id"):
        found.pop(name)
    return {name: _moved(schema) for name, schema in {"Envelope": found, **parts}.items()}


def _moved(value: Any) -> Any:
    """References to `$defs` of the envelope's schema as references to components; lists of words one level down.

    drf-spectacular would give each list of words in a site's document a name, and warn where it finds none.
    """
    if isinstance(value, list):
        return [_moved(item) for item in value]
    if not isinstance(value, dict):
        return value
    if isinstance(target := value.get("$ref"), str) and target.startswith("#/$defs/"):
        return {"$ref": f"#/components/schemas/Envelope{target.removeprefix('#/$defs/').capitalize()}"}
    return {"allOf": [value]} if "enum" in value else {name: _moved(item) for name, item in value.items()}


def secured(needed: bool) -> list[dict[str, list[str]]]:
    return [{"bearer": []}, {"session": []}] if needed else [{}]
