"""Media types of the binding (1.2): what an answer is called, the renderer, and a negotiation that never refuses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from django.http import HttpRequest
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from django_ojs import jsontext
from django_ojs.http import compat
from django_ojs.models.fields import RawJSON

OPENJOBSPEC = "application/openjobspec+json"
JSON = "application/json"


def response_type(request: HttpRequest) -> str:
    """The Content-Type of an answer: plain JSON for those who ask for it alone."""
    if _wants_plain_json(request.META.get("HTTP_ACCEPT", "")):
        return JSON
    return compat.ALIASED_TYPE if compat.wants_exact_shapes(request) else OPENJOBSPEC


@lru_cache(maxsize=256)
def _wants_plain_json(accept: str) -> bool:
    named = {entry.partition(";")[0].strip() for entry in accept[:1000].lower().split(",")}
    return JSON in named and OPENJOBSPEC not in named


class OJSRenderer(BaseRenderer):
    """Compact UTF-8 JSON. `RawJSON` as the answer, as a member of it or in a list there, is put in as it is."""

    media_type = OPENJOBSPEC
    format = "json"
    charset = None
    render_style = "binary"

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> bytes:
        if data is None:
            return b""
        return to_text(data).encode()


class FixedNegotiation(BaseContentNegotiation):
    """Accept chooses between two names of one format and is never refused."""

    def select_parser(self, request: Request, parsers: Iterable[BaseParser]) -> BaseParser:
        return next(iter(parsers))

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        return next(iter(renderers)), response_type(request._request)


def to_text(data: Any) -> str:
    """The JSON text of an answer."""
    if not isinstance(data, dict):
        return _text(data)
    return "{" + ",".join(f"{jsontext.dumps(key)}:{_text(value)}" for key, value in data.items()) + "}"


def _text(value: Any) -> str:
    if isinstance(value, RawJSON):
        return value.text
    if isinstance(value, list) and value and isinstance(value[0], RawJSON):
        return "[" + ",".join(item.text for item in value) + "]"
    return jsontext.dumps(value)
