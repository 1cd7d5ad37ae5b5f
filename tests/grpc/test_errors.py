"""Errors over both bindings from one table, and how large their details may become."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("grpc")

import grpc
from django.test import Client
from google.rpc import error_details_pb2, status_pb2

from django_ojs import errors
from django_ojs.grpc import definition, messages, values
from django_ojs.grpc.errors import MAX_DETAILS, MAX_MESSAGE, RpcError
from tests.grpc.serving import Failure, Served, pairs

#: `error.code` -> (HTTP status, gRPC status, whether a RetryInfo goes with it).
CATALOGUE: dict[type[errors.OJSError], tuple[int, str, bool]] = {
    errors.InvalidPayload: (400, "INVALID_ARGUMENT", False),
    errors.InvalidRetryPolicy: (422, "INVALID_ARGUMENT", False),
    errors.InvalidRequest: (400, "INVALID_ARGUMENT", False),
    errors.InvalidWorkflow: (400, "INVALID_ARGUMENT", False),
    errors.SchemaValidation: (422, "INVALID_ARGUMENT", False),
    errors.NotFound: (404, "NOT_FOUND", False),
    errors.ResultPruned: (410, "NOT_FOUND", False),
    errors.Duplicate: (409, "ALREADY_EXISTS", False),
    errors.Unauthenticated: (401, "UNAUTHENTICATED", False),
    errors.PermissionDenied: (403, "PERMISSION_DENIED", False),
    errors.Conflict: (409, "FAILED_PRECONDITION", False),
    errors.ReservationLost: (409, "FAILED_PRECONDITION", False),
    errors.InvalidStateTransition: (409, "FAILED_PRECONDITION", False),
    errors.Unsupported: (422, "FAILED_PRECONDITION", False),
    errors.MiddlewareRejected: (422, "FAILED_PRECONDITION", False),
    errors.JobTypeNotAllowed: (422, "FAILED_PRECONDITION", False),
    errors.QueuePaused: (422, "FAILED_PRECONDITION", False),
    errors.BatchAborted: (422, "FAILED_PRECONDITION", False),
    errors.PayloadTooLarge: (413, "RESOURCE_EXHAUSTED", False),
    errors.MetadataTooLarge: (413, "RESOURCE_EXHAUSTED", False),
    errors.BatchSizeExceeded: (413, "RESOURCE_EXHAUSTED", False),
    errors.ResultTooLarge: (413, "RESOURCE_EXHAUSTED", False),
    errors.RateLimited: (429, "RESOURCE_EXHAUSTED", True),
    errors.QueueFull: (429, "RESOURCE_EXHAUSTED", True),
    errors.BackendUnavailable: (503, "UNAVAILABLE", True),
    errors.BackendError: (500, "INTERNAL", False),
}
#: These can only be met over HTTP.
HTTP_ONLY = {
    errors.OJSError, errors.MethodNotAllowed, errors.UnsupportedCompression, errors.WaitTimeout,
    errors.StreamingUnavailable, errors.SearchUnavailable,
}  # fmt: skip


def subclasses(kind: type[errors.OJSError]) -> set[type[errors.OJSError]]:
    return {kind}.union(*(subclasses(below) for below in kind.__subclasses__()))


def test_every_error_is_in_the_table() -> None:
    ours = {kind for kind in subclasses(errors.OJSError) if kind.__module__ == errors.__name__}
    assert ours == CATALOGUE.keys() | HTTP_ONLY


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", CATALOGUE, ids=lambda kind: kind.__name__)
def test_both_doors_say_the_same(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch, kind: type[errors.OJSError]
) -> None:
    status, code, delay = CATALOGUE[kind]

    def push_one(*args: Any, **kwargs: Any) -> Any:
        raise kind("Not this job.", details={"queue": "q", "count": 3, "names": ["a"], "ok": True})

    monkeypatch.setattr("django_ojs.http.jobs.push_one", push_one)
    over_http = client.post("/ojs/v1/jobs", '{"type":"a","args":[]}', content_type="application/json")
    refused = served.refused("Enqueue", {"type": "a", "args": []})
    error = over_http.json()["error"]
    assert (over_http.status_code, refused.code.name) == (status, code)
    assert refused.code.value[0] == refused.status.code
    assert refused.message == refused.status.message == error["message"]
    info = refused.info
    assert (info.domain, info.reason) == ("openjobspec.org", error["code"])
    told = dict(info.metadata)
    assert told["request_id"] == refused.trailers["x-ojs-request-id"] == refused.initial["x-ojs-request-id"]
    assert told["retryable"] == str(error["retryable"]).lower()
    assert (told["canonical_code"], told["hint"]) == (error["canonical_code"], error["hint"])
    assert (told["queue"], told["count"], told["names"], told["ok"]) == ("q", "3", '["a"]', "true")
    struct = values.read_object(definition.Struct.FromString(refused.details["google.protobuf.Struct"]))
    assert {**struct, "request_id": ""} == {**error, "request_id": ""}
    assert ("google.rpc.RetryInfo" in refused.details) is delay
    if delay:
        retry = error_details_pb2.RetryInfo.FromString(refused.details["google.rpc.RetryInfo"])
        assert retry.retry_delay.seconds == float(refused.trailers["retry-after"]) == 1
    assert len(refused.raw) <= MAX_DETAILS


def test_a_key_in_use_may_be_tried_again() -> None:
    error = errors.Conflict("Still running.", canonical="IDEMPOTENCY_KEY_IN_USE")
    assert RpcError.of(error, "r").code is grpc.StatusCode.ABORTED


def test_a_gateway_that_gave_up_is_unavailable() -> None:
    assert RpcError({"code": "backend_error", "message": "x"}, 504, {}).code is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("status", [402, 418, 451])
def test_an_unknown_status_of_a_site_is_the_request(status: int) -> None:
    assert RpcError({"code": "x_shop", "message": "x"}, status, {}).code is grpc.StatusCode.INVALID_ARGUMENT


def test_an_own_code_of_a_middleware_is_a_precondition() -> None:
    error = errors.MiddlewareRejected("No.", code="x_shop_closed")
    assert RpcError.of(error, "r").code is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("letter", ["x", "ü", "\ud800", "\U0001f600"])
@pytest.mark.parametrize("many", [1, 30, 500])
def test_details_stay_small(letter: str, many: int) -> None:
    details = {f"name{number}{letter * 200}": letter * 9000 for number in range(many)} | {
        "validation_errors": [{"path": f"jobs[{n}].type", "message": letter * 2000} for n in range(many)]
    }
    error = errors.InvalidPayload(letter * 5000, details=details, hint=letter * 5000)
    refused = RpcError.of(error, "req_1")
    found = dict(refused.trailers)
    assert len(found["grpc-status-details-bin"]) <= MAX_DETAILS
    assert len(refused.message) <= MAX_MESSAGE
    on_the_wire = sum(1 if " " <= c <= "~" and c != "%" else 3 * len(c.encode()) for c in refused.message)
    assert on_the_wire <= MAX_MESSAGE


def test_a_violation_for_each_fault() -> None:
    faults = [{"path": "$.args[0]", "message": "must be a number"}, {"path": "$.args[1]", "message": "is missing"}]
    refused = RpcError.of(errors.SchemaValidation("No.", details={"validation_errors": faults}), "r")
    status = dict(refused.trailers)["grpc-status-details-bin"]
    assert isinstance(status, bytes)
    packed = {entry.type_url: entry.value for entry in status_pb2.Status.FromString(status).details}
    request = error_details_pb2.BadRequest.FromString(packed["type.googleapis.com/google.rpc.BadRequest"])
    violations = request.field_violations
    assert [(one.field, one.description) for one in violations] == [(f["path"], f["message"]) for f in faults]


@pytest.mark.django_db(transaction=True)
def test_what_nobody_expected_tells_no_internals(served: Served, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def push_one(*args: Any, **kwargs: Any) -> Any:
        raise ValueError("the password is hunter2")

    monkeypatch.setattr("django_ojs.http.jobs.push_one", push_one)
    refused = served.refused("Enqueue", {"type": "a", "args": []})
    assert refused.code.name == "INTERNAL"
    assert b"hunter2" not in refused.raw
    assert "hunter2" not in refused.message
    assert refused.trailers["x-ojs-request-id"] in caplog.text


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("raw", [b"\xff\xff\xff", b'{"type": "a"}', b"\x0a\x05ab"])
@pytest.mark.parametrize("rpc", ["Enqueue", "GetJob", "ListQueues", "Heartbeat", "Manifest", "DeleteDeadLetter"])
def test_what_is_no_message_is_refused_by_us(served: Served, rpc: str, raw: bytes) -> None:
    call = served.channel.unary_unary(f"/ojs.v1.OJSService/{rpc}")
    with pytest.raises(grpc.RpcError) as caught:
        call(raw, timeout=60)
    refused = Failure(caught.value)
    assert (refused.code.name, refused.reason) == ("INVALID_ARGUMENT", "invalid_payload")
    assert ("JSON" in refused.info.metadata["hint"]) is raw.startswith(b"{")


@pytest.mark.django_db(transaction=True)
def test_the_request_id_is_echoed(served: Served) -> None:
    refused = served.refused("GetJob", {"job_id": "x"}, x_ojs_request_id="mine-1")
    assert refused.info.metadata["request_id"] == refused.initial["x-ojs-request-id"] == "mine-1"
    _, call = served.whole("Manifest", x_request_id="mine-2")
    assert dict(call.initial_metadata())["x-ojs-request-id"] == dict(call.trailing_metadata())["x-ojs-request-id"]
    assert dict(call.initial_metadata())["x-ojs-request-id"] == "mine-2"
    _, call = served.whole("Manifest", x_ojs_request_id="no spaces please")
    assert dict(call.initial_metadata())["x-ojs-request-id"].startswith("req_")
    assert dict(call.initial_metadata())["ojs-version"] == "1.0"


@pytest.mark.django_db(transaction=True)
def test_the_largest_message_is_refused_by_us(served: Served, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "MAX_BATCH_BYTES": 100_000}
    jobs = [{"type": "a", "args": ["x" * 1000]} for _ in range(110)]
    refused = served.refused("EnqueueBatch", {"jobs": jobs})
    assert (refused.code.name, refused.reason) == ("RESOURCE_EXHAUSTED", "payload_too_large")
    assert refused.info.metadata["retryable"] == "false"


@pytest.mark.django_db(transaction=True)
def test_a_version_that_is_not_ours_is_refused(served: Served) -> None:
    refused = served.refused("ListQueues", {}, ojs_version="2.0")
    assert (refused.code.name, refused.reason) == ("FAILED_PRECONDITION", "unsupported")
    refused = served.refused("ListQueues", {}, ojs_requires_extension="urn:ojs:ext:nothing")
    assert refused.info.metadata["extension"] == "urn:ojs:ext:nothing"


@pytest.mark.django_db(transaction=True)
def test_metadata_cannot_pose_as_headers(served: Served) -> None:
    given = pairs({"content_length": "5", "content_encoding": "gzip", "idempotency_key": "k", "x_forwarded_for": "1"})
    message = messages.to_message("EnqueueRequest", {"type": "a", "args": []})
    for _ in range(2):
        served.stub.Enqueue(message, metadata=given, timeout=60)
    assert len(served.call("Fetch", {"queues": ["default"], "count": 5})["jobs"]) == 2


# What a message costs is bounded as the body of HTTP is


@pytest.mark.django_db(transaction=True)
def test_the_options_of_a_batch_count_for_each_of_its_jobs(served: Served, monkeypatch: Any) -> None:
    """Else one message of 2 MB would become a body of 16 GB."""
    monkeypatch.setattr(messages.ENTRY, "read", lambda *given: pytest.fail("It was read."))
    jobs = [{"type": "a", "args": []} for _ in range(9000)]
    refused = served.refused("EnqueueBatch", {"jobs": jobs, "default_options": {"meta": {"text": "x" * 5000}}})
    assert (refused.code.name, refused.reason) == ("RESOURCE_EXHAUSTED", "payload_too_large")
    assert refused.info.metadata["field"] == "default_options"


@pytest.mark.django_db(transaction=True)
def test_the_jobs_of_a_batch_are_counted_before_they_are_read(
    served: Served, settings: Any, monkeypatch: Any
) -> None:  # fmt: skip
    settings.OJS = {**settings.OJS, "MAX_BATCH_SIZE": 5}
    monkeypatch.setattr(messages.ENTRY, "read", lambda *given: pytest.fail("It was read."))
    refused = served.refused("EnqueueBatch", {"jobs": [{"type": "a", "args": []} for _ in range(6)]})
    assert (refused.code.name, refused.reason) == ("RESOURCE_EXHAUSTED", "batch_size_exceeded")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "rpc, document",
    [
        ("Enqueue", {"type": "a", "args": [0] * 2000}),
        ("Enqueue", {"type": "a", "args": [[[0] * 2000]]}),
        ("Enqueue", {"type": "a", "args": [], "meta": {str(number): 0 for number in range(1000)}}),
        ("Enqueue", {"type": "a", "args": [], "options": {"tags": ["t"] * 2000}}),
        ("Enqueue", {"type": "a", "args": [], "attribute": dict.fromkeys(map(str, range(1000)), 1)}),
        ("EnqueueBatch", {"jobs": [{"type": "a", "args": []} for _ in range(2000)]}),
        ("CreateWorkflow", {"name": "w", "steps": [{"id": "a", "type": "a", "args": []} for _ in range(2000)]}),
        ("Ack", {"job_id": "x", "result": {"rows": [0] * 2000}}),
        ("Fetch", {"queues": ["a"] * 2000}),
        ("Heartbeat", {"worker_id": "w", "active_job_ids": ["a"] * 2000, "active_jobs": ["a"] * 2000}),
    ],
)
def test_the_values_of_a_message_are_counted_while_they_are_read(
    served: Served, settings: Any, monkeypatch: Any, rpc: str, document: dict[str, Any]
) -> None:
    settings.OJS = {**settings.OJS, "MAX_BODY_VALUES": 1500}
    monkeypatch.setattr("django_ojs.grpc.calls._ordered", lambda document: pytest.fail("It was read."))
    refused = served.refused(rpc, document)
    assert (refused.code.name, refused.reason) == ("RESOURCE_EXHAUSTED", "payload_too_large")
    assert refused.info.metadata["max_values"] == "1500"
