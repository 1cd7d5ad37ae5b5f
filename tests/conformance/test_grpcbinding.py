"""The client that sends the steps of cases over gRPC: what it sends, what it leaves to HTTP, and that it can fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest

grpc = pytest.importorskip("grpc")

from google.protobuf import any_pb2  # noqa: E402
from google.rpc import error_details_pb2, status_pb2  # noqa: E402

from django_ojs.grpc import messages  # noqa: E402
from django_ojs.grpc.definition import METHODS, Struct  # noqa: E402
from ojs_conformance import report  # noqa: E402
from ojs_conformance.cases import Case, load_path, select  # noqa: E402
from ojs_conformance.djangoapp import servers  # noqa: E402
from ojs_conformance.grpcbinding import OPERATIONS, GrpcClient, NotOverGrpc, request_of  # noqa: E402
from ojs_conformance.suite import Target, run_case  # noqa: E402
from ojs_conformance.values import Clock  # noqa: E402

SUITE = Path(__file__).parent / "cases"
NOWHERE = "http://127.0.0.1:9"
JSON = {"Content-Type": "application/openjobspec+json"}
JOB = {"id": "0190f3c4-5b6a-7d8e-9f01-23456789abcd", "type": "a.b", "state": "available", "args": [], "queue": "q"}


class Answering(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A server that gives each RPC the document, or the error, that a test has put here."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, dict[str, Any], dict[str, Any]]] = []

    def service(self, details: Any) -> Any:
        rpc = details.method.rpartition("/")[2]

        def answer(raw: bytes, context: Any) -> bytes:
            request = METHODS[rpc].request.FromString(raw)
            self.asked.append((rpc, messages.to_document(request), dict(context.invocation_metadata())))
            found = self.answers[rpc]
            if isinstance(found, tuple):
                code, error, trailers = found
                context.set_trailing_metadata(trailers)
                context.abort(code, str(error))
            content: bytes = messages.to_message(f"{rpc}Response", found).SerializeToString()
            return content

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture
def server() -> Iterator[Any]:
    running = grpc.server(futures.ThreadPoolExecutor(2))
    answering = Answering()
    running.add_generic_rpc_handlers((answering,))
    answering.address = f"127.0.0.1:{running.add_insecure_port('127.0.0.1:0')}"  # type: ignore[attr-defined]
    running.start()
    yield answering
    running.stop(0).wait()


@pytest.fixture
def client(server: Any) -> Iterator[GrpcClient]:
    with GrpcClient(NOWHERE, server.address, timeout=10) as found:
        yield found


def details(error: dict[str, Any], *, whole: bool = True) -> bytes:
    status = status_pb2.Status(code=3, message=error["message"])
    facts = {"canonical_code": error["canonical_code"]}
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=error["code"], metadata=facts))
    if whole:
        struct = Struct()
        for name, value in error.items():
            struct.fields[name].string_value = value
        status.details.append(
            any_pb2.Any(type_url="type.googleapis.com/google.protobuf.Struct", value=struct.SerializeToString())
        )
    return status.SerializeToString()


def test_every_unary_rpc_is_some_step() -> None:
    unary = {name for name, method in METHODS.items() if not method.streams}
    assert {operation.rpc for operation in OPERATIONS} == unary


def test_a_push_goes_as_enqueue_and_comes_back_as_http_gives_it(server: Any, client: GrpcClient) -> None:
    server.answers["Enqueue"] = {"job": JOB, "deduplicated": False}
    body = json.dumps({"type": "a.b", "args": [9007199254740993], "options": {"queue": "q"}}).encode()
    headers = {**JSON, "Idempotency-Key": "k", "X-Request-Id": "r"}
    response = client.step("POST", "/ojs/v1/jobs", headers, body)
    assert response.status == 201
    assert isinstance(response.body, dict)
    assert response.body["job"]["id"] == JOB["id"]
    ((rpc, document, metadata),) = server.asked
    assert (rpc, document["args"], document["options"]) == ("Enqueue", [9007199254740993], {"queue": "q"})
    assert (metadata["x-ojs-idempotency-key"], metadata["x-ojs-request-id"]) == ("k", "r")
    server.answers["Enqueue"] = {"job": JOB, "deduplicated": True}
    assert client.step("POST", "/ojs/v1/jobs", headers, body).status == 200
    assert client.over_http == []


@pytest.mark.parametrize("whole", [True, False])
def test_errors_are_those_of_http(server: Any, client: GrpcClient, whole: bool) -> None:
    error = {"code": "invalid_payload", "message": "no", "canonical_code": "INVALID_RETRY_POLICY"}
    trailers = (("grpc-status-details-bin", details(error, whole=whole)), ("retry-after", "2"))
    server.answers["Enqueue"] = (grpc.StatusCode.INVALID_ARGUMENT, "no", trailers)
    response = client.step("POST", "/ojs/v1/jobs", JSON, b'{"type": "a.b", "args": []}')
    assert (response.status, response.body) == (422, {"error": error})
    assert response.header("Retry-After") == "2"


def test_a_refused_transition_has_the_code_of_its_path(server: Any, client: GrpcClient) -> None:
    error = {"code": "invalid_state_transition", "message": "no", "canonical_code": "INVALID_STATE_TRANSITION"}
    trailers = (("grpc-status-details-bin", details(error)),)
    server.answers["Ack"] = (grpc.StatusCode.FAILED_PRECONDITION, "no", trailers)
    for path, code in (("/workers/ack", "conflict"), (f"/jobs/{JOB['id']}/ack", "invalid_state_transition")):
        body = json.dumps({"job_id": JOB["id"]}).encode()
        response = client.step("POST", f"/ojs/v1{path}", JSON, body)
        assert isinstance(response.body, dict)
        assert (response.status, response.body["error"]["code"]) == (409, code)


def test_errors_without_details_and_servers_that_are_gone(server: Any, client: GrpcClient) -> None:
    server.answers["GetJob"] = (grpc.StatusCode.NOT_FOUND, "nothing", ())
    assert client.step("GET", "/ojs/v1/jobs/x", {}, None).status == 404
    with GrpcClient(NOWHERE, "127.0.0.1:9", timeout=10) as gone, pytest.raises(ConnectionError):
        gone.step("GET", "/ojs/v1/jobs/x", {}, None)


@pytest.mark.parametrize(
    "method,path,headers,body,looked_at,why",
    [
        ("GET", "/ojs/v1/events?limit=1", {}, None, (), "no RPC"),
        ("PUT", "/ojs/v1/jobs", JSON, b"{}", (), "no RPC"),
        ("POST", "/ojs/v1/jobs", JSON, b"{", (), "its body is no JSON"),
        ("POST", "/ojs/v1/jobs", JSON, b"[]", (), "its body is no object"),
        ("POST", "/ojs/v1/jobs", JSON, b'{"type": "a.b"}', (), "absent args"),
        ("POST", "/ojs/v1/jobs", {"content-type": "text/plain"}, b"{}", (), "it sends content-type"),
        ("GET", "/ojs/manifest", {}, None, ("Content-Type",), "the header content-type"),
        ("POST", "/ojs/v1/workers/ack", JSON, b"{}", (), "an absent job_id"),
        ("POST", "/ojs/v1/workers/nack", JSON, b'{"job_id": "j", "error": {"type": "X"}}', (), "text of an error"),
        ("POST", "/ojs/v1/jobs", JSON, b'{"args": [], "scheduled_at": "2030-01-01T00:00:00+02:00"}', (), "its zone"),
    ],
)
def test_what_grpc_cannot_say(
    method: str, path: str, headers: dict[str, str], body: bytes | None, looked_at: tuple[str, ...], why: str
) -> None:
    with pytest.raises(NotOverGrpc, match=why):
        request_of(method, path, headers, body, looked_at)


def test_paths_and_queries_become_fields() -> None:
    operation, document = request_of("GET", "/ojs/v1/queues/a%20b/stats", {}, None, ())
    assert (operation.rpc, document) == ("QueueStats", {"queue": "a b"})
    operation, document = request_of("GET", "/ojs/v1/dead-letter?queue=a&limit=2", {}, None, ())
    assert (operation.rpc, document) == ("ListDeadLetter", {"queue": "a", "limit": "2"})


def test_a_case_can_fail_over_grpc(server: Any, tmp_path: Path) -> None:
    case = {
        "test_id": "L0-900", "level": 0, "name": "n", "description": "d", "tags": [],
        "steps": [
            {"action": f"GET /ojs/v1/jobs/{JOB['id']}", "expect": {"status": 200, "body": {"job.state": "active"}}}
        ],
    }  # fmt: skip
    file = tmp_path / "level-0" / "L0-900-n.json"
    file.parent.mkdir()
    file.write_text(json.dumps(case))
    (loaded,) = load_path(tmp_path)
    for state, outcome in (("active", "passed"), ("available", "failed")):
        server.answers["GetJob"] = {"job": {**JOB, "state": state}}
        result = run_case(loaded, Target(NOWHERE, grpc=server.address))
        assert result.outcome == outcome, result.reason


def test_the_report_says_what_went_over_http() -> None:
    case = Case(file="f.json", test_id="L0-1", level=0, name="n", format="seed", raw={"steps": []})
    step = f"GET /ojs/v1/jobs/{JOB['id']}: no RPC"
    whole = report.Report([report.Result(case, "passed", over_http=(step,))], "t", Clock().now(), 1, binding="grpc")
    assert "    1  GET /ojs/v1/jobs/{id}: no RPC" in whole.as_text()
    assert whole.as_json()["binding"] == "grpc"
    cases: Any = whole.as_json()["cases"]
    assert cases["f.json"]["over_http"] == [step]


@pytest.mark.wide
@pytest.mark.database
def test_cases_of_every_level_pass_over_grpc() -> None:
    names = ("L0-107", "L0-109", "L1-103", "L2-104", "L3-102", "L4-103", "L4-110")
    cases = [case for name in names for case in select(load_path(SUITE), None, name)]
    assert len(cases) == len(names)
    with servers.farm(1, binding="grpc") as (target,):
        assert target.grpc
        results = [run_case(case, target) for case in cases]
    assert [result.reason for result in results if result.outcome != "passed"] == []
