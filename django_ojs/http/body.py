"""The request body: bounded while it is read, decompressed, and parsed to a JSON object (binding 1.1, 1.4, 1.6).

Django's own limits (DATA_UPLOAD_MAX_MEMORY_SIZE) do not act here: the stream is read past them, against ours.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

from django.http import HttpRequest, UnreadablePostError
from rest_framework.parsers import BaseParser

from django_ojs import jsontext
from django_ojs.conf import ojs_settings
from django_ojs.errors import (
    BatchSizeExceeded,
    InvalidPayload,
    InvalidRequest,
    PayloadTooLarge,
    UnsupportedCompression,
)
from django_ojs.rules.faults import shorten

_CHUNK = 65_536
#: 16 + 15: a gzip header and the largest window.
_GZIP = 31
#: What a frame may ask us to keep in memory (RFC 9659), and how much is unpacked at a time, in bytes: four bytes may be
#: 128 KiB, and the decompressor takes no limit.
_ZSTD_WINDOW, _ZSTD_PIECE = 8 * 1_048_576, 128
#: Members of a gzip body, frames of one in zstd. Each costs as much as a kilobyte, even where it is empty.
MAX_PARTS = 1000
#: Numbers of a body that are read exactly. A float would change them, or they are written with more digits than it has.
MAX_EXACT_NUMBERS = 100_000
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
    return _unpack(packed, _coding(name), limit, field) if packed else b""


def compressions() -> list[str]:
    """The encodings that bodies may have: `zstd` where zstandard is installed (the extra `zstd`)."""
    return ["gzip"] if _zstandard() is None else ["gzip", "zstd"]


def parse(raw: bytes, *, required: bool = True, arrays: Collection[str] = ()) -> dict[str, Any]:
    """The JSON object in `raw`; no bytes at all are `{}` where no body is required. `arrays` are the members that have
    an element for each job: those are not made before their number is known.

    Raises InvalidPayload; PayloadTooLarge for more keys and values than a body may have; BatchSizeExceeded.
    """
    if not raw and not required:
        return {}
    if not raw:
        raise InvalidPayload("The request body is empty; a JSON object is needed.", details={"field": "body"})
    bounds = jsontext.Bounds(ojs_settings.MAX_BODY_VALUES, MAX_EXACT_NUMBERS, arrays, ojs_settings.MAX_BATCH_SIZE)
    try:
        value = jsontext.loads(raw, bounds)
    except jsontext.BeyondBounds as error:
        if error.what in arrays:
            check_size(error.most + 1, error.what, at_least=True)
        raise too_costly(error.what, error.most) from error
    except jsontext.JSONTextError as error:
        raise InvalidPayload(f"The request body is not valid JSON. {error}", details={"field": "body"}) from error
    if not isinstance(value, dict):
        details = {"field": "body", "expected": "object", "received": shorten(value)}
        raise InvalidPayload("The request body must be a JSON object.", details=details)
    return value


def is_accepted(media_type: str) -> bool:
    """Whether this is one of our media types. Parameters and case do not count."""
    return media_type.partition(";")[0].strip().lower() in _ACCEPTED


def check_type(request: HttpRequest) -> None:
    """InvalidRequest where a body came under another media type than ours."""
    given = request.META.get("CONTENT_TYPE", "")
    if given and not is_accepted(given):
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
    chunked = not already and _takes_chunks(request)
    found = _drain(request, limit) if chunked or already is None else already
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
    try:
        while missing > 0 and (piece := request.read(min(missing, _CHUNK))):
            pieces.append(piece)
            missing -= len(piece)
    except OSError:
        raise
    except Exception as error:  # as a WSGI server calls a chunk that is none
        raise UnreadablePostError(error) from error
    return b"".join(pieces)


def _takes_chunks(request: HttpRequest) -> bool:
    """Whether the body comes in chunks under WSGI, where Django takes it for an empty one: an ACK would lose its result
    without a word. From here on it can be read. Raises InvalidPayload where the server does not say where it ends."""
    meta: Any = request.META
    chunked = "chunked" in meta.get("HTTP_TRANSFER_ENCODING", "").lower() and not meta.get("CONTENT_LENGTH")
    if not chunked or "wsgi.input" not in meta:
        return False
    if not meta.get("wsgi.input_terminated"):
        raise InvalidPayload(
            "This server takes no body in chunks.",
            details={"field": "body"},
            hint="Send the body as a whole, with its Content-Length.",
        )
    request._stream = meta["wsgi.input"]
    return True


class _Coding(NamedTuple):
    """How bodies of one Content-Encoding are unpacked.

    Attributes:
        open: makes the decompressor of one part.
        decompress: gives it some bytes, of which it should make so many at most.
        step: how many bytes it is given at a time. What lies behind its part it hands back, as a copy.
        fault: what it raises.
    """

    name: str
    open: Callable[[], Any]
    decompress: Callable[[Any, bytes, int], bytes]
    step: int
    fault: type[Exception]


def _coding(name: str) -> _Coding:
    if name == "gzip":
        opener = partial(zlib.decompressobj, _GZIP)
        return _Coding(name, opener, lambda part, given, room: part.decompress(given, room), _CHUNK, zlib.error)
    zstd = _zstandard()
    opener = zstd.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj
    return _Coding(name, opener, lambda part, given, room: part.decompress(given), _ZSTD_PIECE, zstd.ZstdError)


def _unpack(packed: bytes, coding: _Coding, limit: int, field: str) -> bytes:
    pieces: list[bytes] = []
    size = begin = parts = 0
    while begin < len(packed):
        parts += 1
        if parts > MAX_PARTS:
            raise too_costly("parts", MAX_PARTS)
        unpacker = coding.open()
        while not unpacker.eof:
            if begin >= len(packed):
                raise _broken(coding.name)
            given = packed[begin : begin + coding.step]
            begin += len(given)
            try:
                piece = coding.decompress(unpacker, given, limit + 1 - size)
            except coding.fault as error:
                raise _broken(coding.name) from error
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


_COSTLY = {
    "parts": "The request body is packed in more than {most} parts.",
    "values": "The request body has more than the {most} keys and values allowed in one body.",
    "numbers": "The request body has more than {most} numbers that are too large or have too many digits for a float.",
}
_CHEAPER = {
    "parts": "Compress the body as a whole: one member in gzip, one frame in zstd.",
    "numbers": "Send such numbers as texts, or send fewer.",
}


def too_costly(what: str, most: int) -> PayloadTooLarge:
    """The error for a body with more than `most` of something (`parts`, `values` or `numbers`)."""
    details = {f"max_{what}": most, "field": "body"}
    return PayloadTooLarge(_COSTLY[what].format(most=most), details=details, hint=_CHEAPER.get(what, ""))


def check_size(count: int, field: str = "jobs", *, at_least: bool = False) -> None:
    """Raise BatchSizeExceeded for more items than are taken at once; where there are `at_least` so many, they have not
    been counted further."""
    limit = ojs_settings.MAX_BATCH_SIZE
    if count <= limit:
        return
    said = f"more than {limit}" if at_least else str(count)
    details = {"actual": count, "max_batch_size": limit, "field": field}
    raise BatchSizeExceeded(
        f"The request has {said} {field}; at most {limit} are taken at once.",
        details=details | ({"actual_is_minimum": True} if at_least else {}),
        extra={"max_batch_size": limit},
        headers={"X-OJS-Max-Batch-Size": str(limit), "X-OJS-Batch-Size": str(count)},
    )


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
