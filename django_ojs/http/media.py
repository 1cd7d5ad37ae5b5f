"""Read from headers what a client demands (media type, version, extensions), and refuse what this server does not have.

Accept chooses between two names of one format and is never refused (binding 1.2). A version or an extension that this
server lacks is (binding 1.3).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from django.http import HttpRequest
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from django_ojs import jsontext
from django_ojs.errors import Unsupported
from django_ojs.http import compat, manifest
from django_ojs.models.fields import RawJSON
from django_ojs.rules.faults import shorten

OPENJOBSPEC = "application/openjobspec+json"
JSON = "application/json"
SUPPORTED = ["1.0", "1.0.0-rc.1"]  #: versions of the protocol
#: A text that holds one may have characters escaped that UTF-8 cannot carry, and others with them. Then each member of
#: the answer is written for itself, so that no other member is escaped.
_ESCAPE = "\\u"
_VERSION = re.compile(r"1(\.0(\.0)?)?(-rc\.[0-9]+)?")


def response_type(request: HttpRequest) -> str:
    """The Content-Type of an answer: plain JSON for those who ask for it alone."""
    if (accept := request.META.get("HTTP_ACCEPT")) and _wants_plain_json(accept):
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
        return (data.text if isinstance(data, RawJSON) else to_text(data)).encode()


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
    candidates = [value for value in data.values() if isinstance(value, RawJSON | list)]
    if not any(map(_holds_text, candidates)) and _ESCAPE not in (whole := jsontext.dumps(data)):
        return whole
    return "{" + ",".join(f"{jsontext.dumps(key)}:{_text(value)}" for key, value in data.items()) + "}"


def _holds_text(value: Any) -> bool:
    return isinstance(value, RawJSON) or (isinstance(value, list) and bool(value) and isinstance(value[0], RawJSON))


def _text(value: Any) -> str:
    if not _holds_text(value):
        return jsontext.dumps(value)
    return value.text if isinstance(value, RawJSON) else "[" + ",".join(item.text for item in value) + "]"


def check_demands(request: HttpRequest) -> None:
    """Raise Unsupported for a version or an extension that this server does not have."""
    meta = request.META
    if (version := meta.get("HTTP_OJS_VERSION")) is not None and not _VERSION.fullmatch(version.strip(" \t")):
        raise Unsupported(
            f"OJS-Version {shorten(version)!r} is not supported.",
            details={"received": shorten(version), "supported": SUPPORTED},
            hint="Send OJS-Version: 1.0, or leave the header out.",
        )
    if "HTTP_OJS_REQUIRES_EXTENSION" in meta:
        _check_extensions(meta["HTTP_OJS_REQUIRES_EXTENSION"])


def _check_extensions(header: str) -> None:
    known = manifest.extension_uris()
    unranked = set(map(_unranked, known))
    for urn in filter(None, map(str.strip, header.split(","))):
        if _unranked(urn) not in unranked:
            short = shorten(urn)
            raise Unsupported(
                f"This server does not have the extension {short!r}.",
                details={"extension": short, "supported": sorted(known), "canonical": "EXTENSION_NOT_SUPPORTED"},
                extra={"extension": short},
            )


def _unranked(urn: str) -> str:
    """The name of an extension without its rank: what some sources call experimental is official in others."""
    return urn.replace(":experimental:", ":", 1)
