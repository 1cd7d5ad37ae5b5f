"""Tell drf-spectacular what it cannot know about our views. This module is imported only where that is installed.

drf-spectacular reads serializers and routes by itself. Here are our media types, errors, scopes and rights, and the
schema of an envelope.
"""

from __future__ import annotations

import dataclasses
import json
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
from rest_framework.viewsets import GenericViewSet

from django_ojs.guard import get_logger
from django_ojs.http import parameters
from django_ojs.http.operation import UNDECLARED, UNSET, Operation
from django_ojs.http.serializers import CappedPageSerializer, EnvelopeSerializer, ErrorSerializer, OnePageSerializer

MEDIA = ("application/openjobspec+json", "application/json")
SECURITY: dict[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, made by `manage.py ojs_apikey create`."},
    "session": {"type": "apiKey", "in": "cookie", "name": "sessionid", "description": "Writes need X-CSRFToken too."},
}
logger = get_logger("django_ojs.http")
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
    200: "Success.", 201: "Created.", 202: "Accepted; the work goes on in the background.",
    204: "Success, without a body.", 207: "Some items succeeded, others failed.", 400: "The request is not valid.",
    401: "Credentials are missing or not valid.", 403: "The caller may not do this.", 404: "Not found.",
    406: "The server cannot send streams, because it runs under WSGI.", 408: "The time given has passed.",
    409: "Conflicts with the current state.", 410: "No longer there.", 413: "The body is too large.",
    415: "The server does not know this media type or compression.",
    422: "The request is valid, but cannot be carried out.", 429: "Too many requests.",
    501: "This server does not have what is asked for.",
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
    """What the OpenAPI document says of one method of a view: its operation, with what depends on the view and its
    door.

    Attributes:
        operation: what the method declares.
        answers: status -> serializer of the JSON, or several of them; None for an answer without any.
        body: the serializer of what it takes, None for nothing.
        lists: the members of the answer that hold the items of a list; none where it is no list.
        entries: the members under which the answer stands once more; none where it does not.
    """

    operation: Operation
    answers: Mapping[int, Any]
    body: Any
    lists: tuple[str, ...]
    entries: tuple[str, ...]


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
        return self.doc.operation.summary or summary_of(self.view, self.path, self.method)

    def get_description(self) -> str:
        scope = None if self.public else self.view.scopes.get(self.method, "admin")
        if not scope:
            return ""
        said = f"Needs the scope `{scope}`" + (", unless it is public." if self.doc.operation.optional else ".")
        right = self.view.rights.get(self.method)
        return said + (f" A user needs the permission `django_ojs.{right}`." if right else "")

    def get_tags(self) -> list[str]:
        path = self.path.replace("/ojs/v1/ojs/v1/", "/ojs/v1/")  # as two of the published clients write it
        parts = [part for part in path.split("/") if part and not part.startswith("{")]
        return ["admin" if parts[:3] == ["ojs", "v1", "admin"] else parts[2] if len(parts) > 2 else "server"]

    def get_auth(self) -> list[dict[str, list[str]]]:
        return [{}] * self.doc.operation.optional + secured(not self.public)

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
        found = parameters.described(*self.doc.operation.query.split())
        if self.doc.lists and self.view.pagination_class is not None:
            found += self.view.pagination_class().get_schema_operation_parameters(self.view)
        return found + (
            [{"name": "Last-Event-ID", "in": "header", "schema": _TEXT}] if self.doc.operation.resumes else []
        )

    def _get_request_body(self, direction: Any = "request") -> Schema | None:
        if self.doc.body is None:
            return None
        return {"required": getattr(self.doc.body, "needed", True), "content": self._content(self.doc.body, direction)}

    def _get_response_bodies(self, direction: Any = "response") -> Schema:
        found = {str(status): self._response(status, answer) for status, answer in self.doc.answers.items()}
        if self.doc.operation.text:
            found["200"].setdefault("content", {})[self.doc.operation.text] = {"schema": _TEXT}
        operation = self.doc.operation
        wrong = {*operation.errors, *(operation.operator_errors if self.view.operator else ())} | self._refusals()
        for status in sorted(wrong):
            found.setdefault(str(status), self._response(status, ErrorSerializer))
        content = self._content(ErrorSerializer)
        other = {"description": "Another error.", "headers": self._headers(503), "content": content}
        return found | {"default": other}

    def _refusals(self) -> set[int]:
        """The statuses of the errors that the door, the path, the query and the body of the operation may lead to."""
        operation, has_query = (
            self.doc.operation,
            bool(self._get_filter_parameters() or self._get_pagination_parameters()),
        )
        found = {503} if self.view.needs_database else set()
        found |= set() if self.public else {401, 403}
        found |= {422} if self.view.negotiates else set()
        found |= {404} if "{" in self.path and not operation.missing_ok else set()
        found |= {400} if has_query else set()
        return found | ({400, 413, 415} if self.doc.body is not None else set())

    def _response(self, status: int, answer: Any) -> Schema:
        found: Schema = {"description": _TEXTS[status], "headers": self._headers(status)}
        return found | ({} if answer is None else {"content": self._content(answer)})

    def _headers(self, status: int) -> Schema:
        names = {*parameters.OF_ALL, *self.doc.operation.headers.split(), *parameters.OF_ERRORS.get(status, ())}
        component: Any = ResolvedComponent
        for name in names:
            part = component(name=name, type=component.HEADER, schema=parameters.header(name), object=name)
            self.registry.register_on_missing(part)
        return {name: {"$ref": f"#/components/headers/{name}"} for name in sorted(names)}

    def _content(self, answer: Any, direction: Any = "response") -> Schema:
        schema = self._schema(answer, direction)
        return {media: {"schema": schema} for media in MEDIA}

    def _schema(self, answer: Any, direction: Any) -> Schema:
        if isinstance(answer, tuple):
            return {"anyOf": [self._schema(one, direction) for one in answer]}
        component = self.resolve_serializer(answer, direction)
        schema: Schema = component.ref if component else _OBJECT
        if direction != "response" or answer is ErrorSerializer:
            return schema
        if self.doc.lists:
            return self._page(schema)
        operation = self.doc.operation
        return self._entry(component) if self.doc.entries or operation.beside or operation.outside else schema

    def _entry(self, component: Any) -> Schema:
        """The answer that is one thing, with what stands beside its members, and once more under each of the names."""
        operation, entries = self.doc.operation, self.doc.entries
        whole = _joined(_without(entries, component), self._more(operation.beside))
        again = self.resolve_serializer(self.view.get_serializer_class(), "response").ref
        under: Schema = {
            "type": "object", "required": [*entries],
            "properties": dict.fromkeys(entries, whole if operation.beside else again),
        }  # fmt: skip
        return _joined(whole, under if entries else {}, self._more(operation.outside))

    def _more(self, serializer: Any) -> Schema:
        """What stands beside the members of an answer; nothing where that is no serializer."""
        return self.resolve_serializer(serializer, "response").ref if serializer else {}

    def _page(self, item: Schema) -> Schema:
        """The answer of a list: the same rows under each of the names, and where they stand."""
        pages = self.view.pagination_class
        standing = OnePageSerializer if pages is None else getattr(pages, "answer", CappedPageSerializer)
        lists: Schema = {
            "type": "object", "required": [*self.doc.lists],
            "properties": {name: {"type": "array", "items": item} for name in self.doc.lists},
        }  # fmt: skip
        return _joined(lists, self._more(standing), self._more(self.doc.operation.beside))

    def resolve_serializer(self, serializer: Any, direction: Any, bypass_extensions: bool = False) -> Any:
        kind: Any = serializer if isinstance(serializer, type) else type(serializer)
        if kind.__name__ == EnvelopeSerializer.__name__:
            component: Any = ResolvedComponent
            return self.registry[component(name="Envelope", type=component.SCHEMA, object="Envelope")]
        return super().resolve_serializer(serializer, direction, bypass_extensions)

    def _map_basic_serializer(self, serializer: Any, direction: Any) -> Schema:
        schema: Schema = super()._map_basic_serializer(serializer, direction)
        if not vars(type(serializer)).get("__doc__"):  # what it inherits is about a base class
            schema.pop("description", None)
        schema["properties"] = {name: _moved(part) for name, part in schema.get("properties", {}).items()}
        if getattr(serializer, "closed", False) or getattr(serializer, "open", False):
            schema["additionalProperties"] = not getattr(serializer, "closed", False)
        also = [{"$ref": f"#/components/schemas/{name}"} for name in getattr(serializer, "also", ())]
        return {"allOf": [*also, schema]} if also else schema

    def _map_serializer_field(self, field: Any, direction: Any, bypass_extensions: bool = False) -> Any:
        if kinds := getattr(field, "kinds", ()):
            return {"oneOf": [self._map_serializer_field(kind, direction) for kind in kinds]}
        if (declared := getattr(field, "schema", None)) is not None:
            if field.allow_null and "type" in declared:  # else it may be anything
                declared = {**declared, "type": [declared["type"], "null"]}
            return declared | ({"description": str(field.help_text)} if field.help_text else {})
        schema = super()._map_serializer_field(field, direction, bypass_extensions)
        return {"type": "string", "enum": list(field.choices)} if isinstance(field, ChoiceField) else schema


def doc_of(view: Any, method: str) -> Doc | None:
    """What a view's method, in capitals, takes and answers; None if it declares neither."""
    operation = view.operations.get(method, UNDECLARED)
    answers, lists = dict(operation.answers), operation.lists
    entries: tuple[str, ...] = ()
    is_resource = isinstance(view, GenericViewSet)  # of ours that is an `OJSViewSet`
    if is_resource:
        if operation.answer_of(operator=view.operator) is UNSET and view.action != "list":
            entries = tuple(view.entry_names)
        answers = _serializer_answers(view, operation) | answers
        if view.action == "list" and view.pagination_class is not None and not lists:
            lists = tuple((view.operator and view.operator_list_names) or view.list_names)
    found = Doc(operation, dict(sorted(answers.items())), operation.body_of(operator=view.operator), lists, entries)
    return found if found.answers else None


def _serializer_answers(view: Any, operation: Operation) -> dict[int, Any]:
    """The answers that the view's serializer shows."""
    serializer = view.get_serializer_class()
    if not view.operator and operation.public_answer is not UNSET:
        serializer = operation.public_answer
    statuses = operation.statuses or (204 if serializer is None else 201 if view.action == "create" else 200,)
    return {status: None if status == 204 else serializer for status in statuses}


def summary_of(view: Any, path: str, method: str) -> str:
    """The first sentence of the method's docstring, in a few words."""
    text = getdoc(getattr(view, getattr(view, "action", None) or method.lower())) or f"{method} {path}"
    return " ".join(text.partition("\n\n")[0].split()).rstrip(".")


@lru_cache(maxsize=1)
def envelope() -> dict[str, Schema]:
    """The components of an envelope: the parts of its JSON Schema that others refer to become some of their own."""
    found = json.loads(_ENVELOPE.read_text())
    parts = {f"Envelope{name.capitalize()}": schema for name, schema in found.pop("$defs").items()}
    hidden = parts["EnvelopeError"]["properties"]["details"]
    hidden["type"], hidden["description"] = [*hidden["type"], "string"], "A text where the site hides them (`REDACT`)."
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


def _without(names: tuple[str, ...], component: Any) -> Schema:
    """The schema of a component, but for members of these names, where it has some."""
    shown: Schema = component.schema
    if not shown["properties"].keys() & set(names):
        return component.ref  # type: ignore[no-any-return]
    left = {name: part for name, part in shown["properties"].items() if name not in names}
    return {**shown, "properties": left, "required": [name for name in shown.get("required", ()) if name in left]}


def _joined(*parts: Schema) -> Schema:
    """The schema of what has the members of all these; empty ones do not count."""
    filled = [part for part in parts if part]
    return {"allOf": filled} if len(filled) > 1 else filled[0]


def secured(needed: bool) -> list[dict[str, list[str]]]:
    return [{"bearer": []}, {"session": []}] if needed else [{}]
