"""The errors of the binding: the gRPC status of an error, its google.rpc details, and how large they may be (grpc 6).

What a view answers over HTTP is the source: the `error` object, the status and the headers. Nothing here decides what
went wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

from django_ojs import jsontext
from django_ojs.errors import OJSError
from django_ojs.grpc import definition, metadata, values
from django_ojs.guard import get_logger
from django_ojs.http import exceptions

Code = grpc.StatusCode
logger = get_logger("django_ojs.grpc")

DOMAIN = "openjobspec.org"
DETAILS = "grpc-status-details-bin"
#: Bytes of all details together, and of a message as it travels. Larger ones make some clients drop the whole error.
MAX_DETAILS, MAX_MESSAGE = 4096, 1000
#: How long a text in the details may be, tried from the left until all fit.
_CUTS = (4096, 512, 128)
#: The members of an ErrorInfo's metadata that every error has.
_FIXED = ("retryable", "request_id", "canonical_code", "type", "hint", "docs_url")
_MOST = 64  #: entries of that metadata

_BY_CODE = {
    "invalid_payload": Code.INVALID_ARGUMENT,
    "invalid_request": Code.INVALID_ARGUMENT,
    "invalid_workflow": Code.INVALID_ARGUMENT,
    "schema_validation": Code.INVALID_ARGUMENT,
    "not_found": Code.NOT_FOUND,
    "duplicate": Code.ALREADY_EXISTS,
    "permission_denied": Code.PERMISSION_DENIED,
    "unauthenticated": Code.UNAUTHENTICATED,
    "rate_limited": Code.RESOURCE_EXHAUSTED,
    "QUEUE_FULL": Code.RESOURCE_EXHAUSTED,
    "payload_too_large": Code.RESOURCE_EXHAUSTED,
    "metadata_too_large": Code.RESOURCE_EXHAUSTED,
    "batch_size_exceeded": Code.RESOURCE_EXHAUSTED,
    "RESULT_TOO_LARGE": Code.RESOURCE_EXHAUSTED,
    "invalid_state_transition": Code.FAILED_PRECONDITION,
    "conflict": Code.FAILED_PRECONDITION,
    "queue_paused": Code.FAILED_PRECONDITION,
    "unsupported": Code.FAILED_PRECONDITION,
    "JOB_TYPE_NOT_ALLOWED": Code.FAILED_PRECONDITION,
}
#: For codes that the table lacks: those of a site's middleware, and what only HTTP knows.
_BY_STATUS = {
    401: Code.UNAUTHENTICATED, 403: Code.PERMISSION_DENIED, 404: Code.NOT_FOUND, 409: Code.FAILED_PRECONDITION,
    410: Code.NOT_FOUND, 413: Code.RESOURCE_EXHAUSTED, 422: Code.FAILED_PRECONDITION, 429: Code.RESOURCE_EXHAUSTED,
    503: Code.UNAVAILABLE, 504: Code.UNAVAILABLE,
}  # fmt: skip


class RpcError(Exception):
    """An answer that is an error.

    Attributes:
        code: the gRPC status.
        message: the status message, at most `MAX_MESSAGE` bytes long on the wire.
        trailers: the trailing metadata, with the details.
    """

    def __init__(self, error: Mapping[str, Any], status: int, headers: Mapping[str, str], code: Code | None = None):
        """`error` is the object that HTTP shows; `code` a status that is not that of the table."""
        self.code = code or code_of(error, status)
        self.request_id = str(error.get("request_id", ""))
        self.message = _cut_message(str(error.get("message", "")))
        details = _details(self.code, self.message, error, headers)
        self.trailers: metadata.Pairs = (*metadata.trailers(self.request_id, headers), (DETAILS, details))
        super().__init__(self.message)

    @classmethod
    def of(cls, error: OJSError, request_id: str, code: Code | None = None) -> RpcError:
        """What an error becomes that no view has answered."""
        return cls(error.as_dict(request_id), error.status, exceptions.headers_of(error), code)


def refusal(exc: Exception, rpc: str, request_id: str) -> RpcError:
    """What an exception of the RPC `rpc` becomes that no view has answered. A fault of ours is logged."""
    if isinstance(exc, RpcError):
        return exc
    error = exceptions.to_error(exc)
    if not isinstance(exc, OJSError):
        exceptions.log_call(rpc, exc, error, request_id, logger)
    return RpcError.of(error, request_id)


def code_of(error: Mapping[str, Any], status: int) -> Code:
    """The gRPC status of an `error` object that HTTP sends with `status`."""
    word = error.get("code", "")
    if word == "conflict" and error.get("canonical_code") == "IDEMPOTENCY_KEY_IN_USE":
        return Code.ABORTED
    if word == "backend_error":
        return Code.UNAVAILABLE if status in (503, 504) else Code.INTERNAL
    if word in _BY_CODE:
        return _BY_CODE[word]
    return _BY_STATUS.get(status, Code.INTERNAL if status >= 500 else Code.INVALID_ARGUMENT)


def _details(code: Code, message: str, error: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
    """The google.rpc.Status, made smaller until it fits: shorter texts, no `error` object, no violations, no facts."""
    attempts = [(cut, True, True, True) for cut in _CUTS]
    attempts += [(_CUTS[-1], False, True, True), (_CUTS[-1], False, False, True), (_CUTS[-1], False, False, False)]
    found = b""
    for cut, whole, violations, facts in attempts:
        status = status_pb2.Status(code=code_pb2.Code.Value(code.name), message=message)
        info = error_details_pb2.ErrorInfo(
            domain=DOMAIN, reason=_text(error.get("code", ""), cut), metadata=_facts(error, cut, facts=facts)
        )
        _add(status, "google.rpc.ErrorInfo", info)
        if violations and (request := _violations(error, cut)) is not None:
            _add(status, "google.rpc.BadRequest", request)
        if (delay := _delay(code, error, headers)) is not None:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromMilliseconds(round(delay * 1000))
            _add(status, "google.rpc.RetryInfo", retry)
        if whole:
            struct = definition.Struct()
            values.write_object(struct, _shortened(error, cut))
            _add(status, "google.protobuf.Struct", struct)
        found = status.SerializeToString()
        if len(found) <= MAX_DETAILS:
            break
    return found


def _facts(error: Mapping[str, Any], cut: int, *, facts: bool) -> dict[str, str]:
    fixed = {name: _text(error[name], cut) for name in _FIXED if error.get(name) is not None}
    details = error.get("details") if facts else None
    if not isinstance(details, Mapping):
        return fixed
    named = {_text(name, 64): _text(value, cut) for name, value in [*details.items()][:_MOST]}
    return named | fixed


def _violations(error: Mapping[str, Any], cut: int) -> error_details_pb2.BadRequest | None:
    details = error.get("details")
    if not isinstance(details, Mapping):
        return None
    entries = details.get("validation_errors")
    found = [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []
    if not found and details.get("field"):
        found = [{"path": details["field"], "message": error.get("message", "")}]
    if not found:
        return None
    request = error_details_pb2.BadRequest()
    for entry in found:
        field = next((entry[name] for name in ("path", "field", "pointer") if entry.get(name)), "")
        said = next((entry[name] for name in ("message", "description") if entry.get(name)), "")
        request.field_violations.add(field=_text(field, cut), description=_text(said, cut))
    return request


def _delay(code: Code, error: Mapping[str, Any], headers: Mapping[str, str]) -> float | None:
    """Seconds after which the call may be repeated, where the status is one that says so."""
    retryable = code is Code.UNAVAILABLE or (code is Code.RESOURCE_EXHAUSTED and error.get("retryable"))
    try:
        return float(headers["Retry-After"]) if retryable and "Retry-After" in headers else None
    except ValueError:
        return None


def _add(status: status_pb2.Status, name: str, message: Any) -> None:
    status.details.append(any_pb2.Any(type_url=f"type.googleapis.com/{name}", value=message.SerializeToString()))


def _text(value: Any, cut: int) -> str:
    """A scalar as it is, anything else as JSON."""
    text = value if isinstance(value, str) else jsontext.dumps(value)
    return _valid(text if len(text) <= cut else f"{text[: cut - 1]}…")


def _valid(text: str) -> str:
    """`text` without lone surrogates, which no message can hold."""
    return text.encode("utf-8", "replace").decode()


def _shortened(value: Any, cut: int) -> Any:
    if isinstance(value, str):
        return _text(value, cut)
    if isinstance(value, Mapping):
        return {_text(name, 64): _shortened(item, cut) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shortened(item, cut) for item in value]
    return value


def _cut_message(text: str) -> str:
    """`text`, so short that it has at most `MAX_MESSAGE` bytes on the wire, where all but plain ASCII takes three."""
    size = 0
    for number, character in enumerate(text := _valid(text)):
        size += 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode())
        if size > MAX_MESSAGE - 9:
            return f"{text[:number]}…"
    return text
