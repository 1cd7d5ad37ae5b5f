"""The request body: bounded while it is read, decompressed, and parsed to a JSON object (binding 1.1, 1.4, 1.6).

Django's own limits (DATA_UPLOAD_MAX_MEMORY_SIZE) do not act here: the stream is read past them, against ours.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from django.http import HttpRequest
from rest_framework.parsers import BaseParser

from django_ojs import jsontext
from django_ojs.conf import ojs_settings
from django_ojs.errors import InvalidPayload, InvalidRequest, PayloadTooLarge, UnsupportedCompression
from django_ojs.rules.faults import shorten

_CHUNK = 65_536
#: 16 + 15: a gzip header and the largest window.
_GZIP = 31
#: What a frame may ask us to keep in memory (RFC 9659), and how much is unpacked at a time, in bytes.
_ZSTD_WINDOW, _ZSTD_PIECE = 8 * 1_048_576, 128
_ACCEPTED = frozenset({"application/openjobspec+json", "application/json"})


def read(request: HttpRequest, limit: int, field: str = "body") -> bytes:
    """The body as bytes, decompressed. PayloadTooLarge beyond `limit` bytes, of which no more are kept."""
    encoding = request.META.get("HTTP_CONTENT_ENCODING", "").strip().lower()
    if encoding in ("", "identity"):
        return _read_plain(request, limit, field)
    name = "gzip" if encoding == "x-gzip" else encoding
    if name not in (supported := compressions()):
        raise UnsupportedCompression(
            f"The Content-Encoding {shorten(encoding)!r} is not supported.",
            details={"received": shorten(encoding), "supported": supported},
        )
    packed = _read_plain(request, limit + limit // 100 + 1024, field)  # both may grow what cannot be packed
    unpack = _gunzip if name == "gzip" else _unzstd
    return unpack(packed, limit, field) if packed else b""


def compressions() -> list[str]:
    """The encodings that bodies may have: `zstd` where zstandard is installed (the extra `zstd`)."""
    return ["gzip"] if _zstandard() is None else ["gzip", "zstd"]


def parse(raw: bytes, *, required: bool = True) -> dict[str, Any]:
    """The JSON object in `raw`; no bytes at all are `{}` where no body is required. InvalidPayload otherwise."""
    if not raw and not required:
        return {}
    if not raw:
        raise InvalidPayload("The request body is empty; a JSON object is needed.", details={"field": "body"})
    try:
        value = jsontext.loads(raw)
    except jsontext.JSONTextError as error:
        raise InvalidPayload(f"The request body is not valid JSON. {error}", details={"field": "body"}) from error
    if not isinstance(value, dict):
        details = {"field": "body", "expected": "object", "received": shorten(value)}
        raise InvalidPayload("The request body must be a JSON object.", details=details)
    return value


def check_type(request: HttpRequest) -> None:
    """InvalidRequest where a body came under another media type than ours. Parameters and case do not count."""
    given = request.META.get("CONTENT_TYPE", "")
    if given and given.partition(";")[0].strip().lower() not in _ACCEPTED:
        raise InvalidRequest(
            f"The Content-Type {shorten(given)!r} is not accepted.",
            details={"received": shorten(given), "expected": sorted(_ACCEPTED)},
            hint="Send JSON with Content-Type: application/openjobspec+json or application/json.",
        )


def _read_plain(request: HttpRequest, limit: int, field: str) -> bytes:
    declared = _declared_length(request)
    if declared > limit:
        raise too_large(declared, limit, field)
    already: bytes | None = getattr(request, "_body", None)  # a middleware may have read it, and may have changed it
    found = _drain(request, limit) if already is None else already
    if len(found) > limit:
        raise too_large(len(found), limit, field)
    if len(found) < declared and not (already and found):
        raise _cut_short(request, len(found), declared)
    return found


def _cut_short(request: HttpRequest, actual: int, declared: int) -> InvalidPayload:
    """The body has fewer bytes than its Content-Length says: the sender stopped, or a server between dropped them."""
    hint = ""
    if request.META.get("HTTP_UPGRADE") and not actual:
        hint = (
            "Some web servers drop the body of a request that offers an upgrade of the protocol. Start uvicorn with "
            "--http h11, or have the client speak HTTP/1.1 and offer none."
        )
    return InvalidPayload(
        f"The request body ended early: {actual} of {declared} bytes came.",
        details={"field": "body", "actual_bytes": actual, "declared_bytes": declared},
        hint=hint,
    )


def _declared_length(request: HttpRequest) -> int:
    """What Content-Length says, 0 where it says nothing sensible."""
    given = request.META.get("CONTENT_LENGTH") or ""
    return int(given[:18]) if given.isascii() and given.isdigit() else 0


def _drain(request: HttpRequest, limit: int) -> bytes:
    """What the stream holds, but never more than one byte beyond `limit`: that one tells that it is too long."""
    pieces: list[bytes] = []
    missing = limit + 1
    while missing > 0 and (piece := request.read(min(missing, _CHUNK))):
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def _gunzip(packed: bytes, limit: int, field: str) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while packed:  # a gzip body may have several members
        unpacker = zlib.decompressobj(_GZIP)
        try:
            piece = unpacker.decompress(packed, limit + 1 - size)
        except zlib.error as error:
            raise _broken("gzip") from error
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise too_large(size, limit, field)
        if not unpacker.eof:
            raise _broken("gzip")
        packed = unpacker.unused_data
    return b"".join(pieces)


def _unzstd(packed: bytes, limit: int, field: str) -> bytes:
    """In small pieces, since the decompressor takes no limit: four bytes may be 128 KiB."""
    zstd = _zstandard()
    opener = zstd.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    pieces: list[bytes] = []
    size = begin = 0
    while begin < len(packed):  # a body may have several frames
        unpacker = opener.decompressobj()
        while not unpacker.eof:
            if begin >= len(packed):
                raise _broken("zstd")
            given = packed[begin : begin + _ZSTD_PIECE]
            begin += len(given)
            try:
                piece = unpacker.decompress(given)
            except zstd.ZstdError as error:
                raise _broken("zstd") from error
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise too_large(size, limit, field)
        begin -= len(unpacker.unused_data)
    return b"".join(pieces)


@lru_cache(maxsize=1)
def _zstandard() -> Any:
    """The module, None where it is not installed."""
    try:
        import zstandard
    except ImportError:
        return None
    return zstandard


def _broken(encoding: str) -> InvalidPayload:
    return InvalidPayload(
        f"The request body is not valid {encoding}, as its Content-Encoding says.", details={"field": "body"}
    )


def too_large(actual: int, limit: int, field: str) -> PayloadTooLarge:
    details = {"actual_bytes": actual, "max_bytes": limit, "field": field}
    return PayloadTooLarge(f"The request body has more than the {limit} bytes allowed here.", details=details)


def single_limit() -> int:
    """Bytes of a body that is no batch. Twice an envelope: white space and escapes do not count against a job."""
    return 2 * max(ojs_settings.MAX_ENVELOPE_BYTES, ojs_settings.MAX_RESULT_BYTES)


class OJSParser(BaseParser):
    """DRF's parser for our bodies: a JSON object of bounded size, whatever the Content-Type calls it. Views call
    `OJSView.payload()`; `request.data` gives the same object."""

    media_type = "application/openjobspec+json"

    def parse(
        self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        return parse(read(stream, single_limit()))
