"""Sends the HTTP requests of cases over gRPC, and gives their answers the shape that HTTP's would have.

`GrpcClient` is the client that a run with `--binding grpc` uses in place of `exchange.Client`. It finds the RPC that is
equal to a step's method and path, makes the message of the step's body, and turns the message of the answer, or the
error with its details, back into status, headers and JSON, which the case's assertions then look at. A step that gRPC
has no RPC for, or that is about HTTP itself, goes over HTTP; `over_http` says which did and why.

It needs the extra `grpc`, and nothing imports it where a run does not ask for that binding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import grpc
from google.rpc import error_details_pb2, status_pb2

from django_ojs import jsontext
from django_ojs.errors import OJSError
from django_ojs.grpc import messages, values
from django_ojs.grpc.definition import Struct, Stub
from ojs_conformance.exchange import Client, Response
from ojs_conformance.values import MISSING

CALL_SECONDS: Final = 30.0


@dataclass(frozen=True)
class Operation:
    """An RPC and its equal over HTTP.

    Attributes:
        path: may have one part in braces, the field of the request that holds it.
        status: what HTTP answers where the operation made something new.
        conflict: the code of a refused transition at this path, where it is not the RPC's.
    """

    rpc: str
    method: str
    path: str
    status: int = 200
    conflict: str = ""

    def match(self, method: str, path: str) -> dict[str, str] | None:
        """The fields that a path gives to this operation's request; None if it is another operation's."""
        pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", self.path)
        found = re.fullmatch(pattern, path) if method == self.method else None
        return None if found is None else {name: unquote(each) for name, each in found.groupdict().items()}


#: The first that matches counts.
OPERATIONS: Final = (
    Operation("Manifest", "GET", "/ojs/manifest"),
    Operation("Health", "GET", "/ojs/v1/health"),
    Operation("Enqueue", "POST", "/ojs/v1/jobs", 201),
    Operation("EnqueueBatch", "POST", "/ojs/v1/jobs/batch", 201),
    Operation("GetJob", "GET", "/ojs/v1/jobs/{job_id}"),
    Operation("CancelJob", "DELETE", "/ojs/v1/jobs/{job_id}"),
    Operation("CancelJob", "POST", "/ojs/v1/jobs/{job_id}/cancel"),
    Operation("ActivateJob", "POST", "/ojs/v1/jobs/{job_id}/activate"),
    Operation("Ack", "POST", "/ojs/v1/jobs/{job_id}/ack"),
    Operation("Nack", "POST", "/ojs/v1/jobs/{job_id}/nack"),
    Operation("Fetch", "POST", "/ojs/v1/workers/fetch"),
    Operation("Ack", "POST", "/ojs/v1/workers/ack", conflict="conflict"),
    Operation("Nack", "POST", "/ojs/v1/workers/nack", conflict="conflict"),
    Operation("Heartbeat", "POST", "/ojs/v1/workers/heartbeat"),
    Operation("ListQueues", "GET", "/ojs/v1/queues"),
    Operation("QueueStats", "GET", "/ojs/v1/queues/{queue}/stats"),
    Operation("PauseQueue", "POST", "/ojs/v1/queues/{queue}/pause"),
    Operation("ResumeQueue", "POST", "/ojs/v1/queues/{queue}/resume"),
    Operation("ListDeadLetter", "GET", "/ojs/v1/dead-letter"),
    Operation("RetryDeadLetter", "POST", "/ojs/v1/dead-letter/{job_id}/retry"),
    Operation("DeleteDeadLetter", "DELETE", "/ojs/v1/dead-letter/{job_id}"),
    Operation("RegisterCron", "POST", "/ojs/v1/cron", 201),
    Operation("ListCron", "GET", "/ojs/v1/cron"),
    Operation("UnregisterCron", "DELETE", "/ojs/v1/cron/{name}"),
    Operation("CreateWorkflow", "POST", "/ojs/v1/workflows", 201),
    Operation("GetWorkflow", "GET", "/ojs/v1/workflows/{workflow_id}"),
    Operation("CancelWorkflow", "DELETE", "/ojs/v1/workflows/{workflow_id}"),
)

#: HTTP's statuses of a server's errors by their canonical codes, where the gRPC status leaves more than one.
HTTP_STATUS: Final[Mapping[str, int]] = {
    "INVALID_RETRY_POLICY": 422,
    "SCHEMA_VALIDATION_FAILED": 422,
    "UNSUPPORTED_FEATURE": 422,
    "JOB_TYPE_NOT_ALLOWED": 422,
    "QUEUE_PAUSED": 422,
    "BATCH_ABORTED": 422,
    "PAYLOAD_TOO_LARGE": 413,
    "METADATA_TOO_LARGE": 413,
    "BATCH_SIZE_EXCEEDED": 413,
    "RESULT_TOO_LARGE": 413,
}
#: And by the gRPC status alone.
HTTP_STATUS_OF: Final[Mapping[grpc.StatusCode, int]] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}

#: Headers of a request, and the metadata that says the same.
METADATA: Final[Mapping[str, str]] = {
    "authorization": "authorization",
    "x-request-id": "x-ojs-request-id",
    "idempotency-key": "x-ojs-idempotency-key",
    "traceparent": "traceparent",
    "tracestate": "tracestate",
    "ojs-version": "ojs-version",
    "ojs-requires-extension": "ojs-requires-extension",
}
#: Metadata of an answer, and the header that says the same.
HEADERS: Final[Mapping[str, str]] = {
    "x-ojs-request-id": "x-request-id",
    "x-ojs-idempotency-replayed": "idempotency-replayed",
    "x-ojs-ratelimit-limit": "x-ratelimit-limit",
    "x-ojs-ratelimit-remaining": "x-ratelimit-remaining",
    "x-ojs-ratelimit-reset": "x-ratelimit-reset",
}
#: Headers that gRPC has no equal of: a step that sends or looks at another than the usual value is about HTTP.
ABOUT_HTTP: Final = frozenset({"content-type", "location", "allow", "content-encoding", "vary", "etag"})
USUAL_TYPES: Final = frozenset({"application/json", "application/openjobspec+json", "*/*"})
_ZONED: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+[+-]\d\d:\d\d")


class NotOverGrpc(Exception):
    """A request that gRPC cannot express. The text says why."""


class GrpcClient(Client):
    """A client that sends the steps of cases over gRPC, and the runner's own requests over HTTP, for one thread.

    Args:
        base_url: where the same server answers HTTP.
        address: `host:port` of its gRPC port, without TLS.
    """

    def __init__(self, base_url: str, address: str, timeout: float = CALL_SECONDS) -> None:
        super().__init__(base_url, timeout)
        self._seconds = timeout
        self._channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self._stub = Stub(self._channel)

    def __exit__(self, *raised: Any) -> None:
        self._channel.close()
        super().__exit__(*raised)

    def step(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, looked_at: Collection[str] = ()
    ) -> Response:
        """Send a step's request by the RPC that is equal to it, else over HTTP.

        OSError if the server cannot be reached.
        """
        try:
            operation, document = request_of(method, path, headers, body, looked_at)
            message = messages.to_message(f"{operation.rpc}Request", document)
        except OJSError as error:
            return self._over_http(method, path, headers, body, f"no message can say it: {error}")
        except NotOverGrpc as error:
            return self._over_http(method, path, headers, body, str(error))
        try:
            answer, call = getattr(self._stub, operation.rpc).with_call(
                message, timeout=self._seconds, metadata=metadata_of(headers)
            )
        except grpc.RpcError as error:
            return refusal(error, operation)
        document = as_over_http(operation, headers, json.loads(jsontext.dumps(messages.to_document(answer))))
        given = headers_of([*(call.initial_metadata() or ()), *(call.trailing_metadata() or ())])
        return Response(status_of(operation, document), given, document)

    def _over_http(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, why: str) -> Response:
        told = f"{method} {urlsplit(path).path}: {why}"
        if told not in self.over_http:
            self.over_http.append(told)
        return self.request(method, path, headers, body)


def request_of(
    method: str, path: str, headers: Mapping[str, str], body: bytes | None, looked_at: Collection[str]
) -> tuple[Operation, dict[str, Any]]:
    """The operation of a request, and the document that its message is made of. NotOverGrpc if there is none."""
    url = urlsplit(path)
    for operation in OPERATIONS:
        fields = operation.match(method, url.path)
        if fields is not None:
            break
    else:
        raise NotOverGrpc("no RPC")
    about_http = sorted(ABOUT_HTTP.intersection(map(str.lower, looked_at)))
    if about_http:
        raise NotOverGrpc(f"it looks at the header {', '.join(about_http)}")
    for name, value in headers.items():
        if name.lower() in ("content-type", "accept") and value.partition(";")[0].strip() not in USUAL_TYPES:
            raise NotOverGrpc(f"it sends {name}: {value}")
    document = _object(body)
    if operation.rpc == "Enqueue" and "args" not in document:
        raise NotOverGrpc("in a message, absent args are no arguments")
    if operation.rpc in ("Ack", "Nack") and not fields and not document.get("job_id"):
        raise NotOverGrpc("in a message, an absent job_id is the id of no job")
    if operation.rpc == "Nack" and isinstance(error := document.get("error"), dict) and "message" not in error:
        raise NotOverGrpc("in a message, the absent text of an error is an empty one")
    if any(_ZONED.fullmatch(str(document.get(name))) for name in ("scheduled_at", "expires_at")):
        raise NotOverGrpc("a message keeps an instant without its zone")
    return operation, document | dict(parse_qsl(url.query, keep_blank_values=True)) | fields


def _object(body: bytes | None) -> dict[str, Any]:
    if not body:
        return {}
    try:
        document = jsontext.loads(body)
    except ValueError:
        raise NotOverGrpc("its body is no JSON") from None
    if not isinstance(document, dict):
        raise NotOverGrpc("its body is no object")
    return document


def metadata_of(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """The metadata that says what the headers of a request say."""
    return [(METADATA[name.lower()], value) for name, value in headers.items() if name.lower() in METADATA]


def headers_of(metadata: Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
    """The headers that say what the metadata of an answer says."""
    return {HEADERS.get(key, key): value for key, value in metadata if isinstance(value, str)}


def as_over_http(operation: Operation, headers: Mapping[str, str], document: dict[str, Any]) -> dict[str, Any]:
    """An answer as HTTP gives it to a request without `OJS-Version`; gRPC has the exact shapes of the specification."""
    if operation.rpc == "QueueStats" and not any(name.lower() == "ojs-version" for name in headers):
        return document | {"queue": {"name": document.get("queue"), **document.get("stats", {})}}
    return document


def status_of(operation: Operation, document: Mapping[str, Any]) -> int:
    """HTTP's status of a success: 201 only if the operation made something."""
    found = document.get("deduplicated") is True or document.get("created") is False
    return 200 if found else operation.status


def refusal(error: grpc.RpcError, operation: Operation) -> Response:
    """HTTP's answer for an error: its details hold the whole `error` object, or enough to make one.

    Ack and Nack refuse a transition with the code of `/jobs/{id}/ack`; at `/workers/ack` HTTP has another.

    OSError if no server answered.
    """
    code = error.code()
    trailers: Any = error.trailing_metadata() or ()
    details = dict(trailers).get("grpc-status-details-bin")
    if details is None:
        if code == grpc.StatusCode.UNAVAILABLE:
            raise ConnectionError(error.details())
        body: Any = {"error": {"code": code.name.lower(), "message": error.details()}}
        return Response(HTTP_STATUS_OF.get(code, 500), headers_of(trailers), body)
    shown = error_object(details)
    if operation.conflict and shown.get("code") == "invalid_state_transition":
        shown["code"] = operation.conflict
    status = HTTP_STATUS.get(str(shown.get("canonical_code")), HTTP_STATUS_OF.get(code, 500))
    return Response(status, headers_of(trailers), {"error": shown} if shown else MISSING)


def error_object(details: str | bytes) -> dict[str, Any]:
    """The `error` object of HTTP from the bytes of a google.rpc.Status: its Struct, else its ErrorInfo."""
    status = status_pb2.Status.FromString(details if isinstance(details, bytes) else details.encode("latin-1"))
    for each in status.details:
        if each.type_url.endswith("/google.protobuf.Struct"):
            return dict(json.loads(jsontext.dumps(values.read_object(Struct.FromString(each.value)))))
    info = error_details_pb2.ErrorInfo()
    for each in status.details:
        if each.Unpack(info):
            return {"code": info.reason, "message": status.message, **info.metadata}
    return {"message": status.message}
