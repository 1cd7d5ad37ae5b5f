"""Request bodies: bounded while they are read, decompressed safely, parsed strictly."""

import gzip
import io
import json
import os
import zlib
from typing import Any

import pytest
import zstandard
from django.test import RequestFactory

from django_ojs import jsontext
from django_ojs.errors import InvalidPayload, PayloadTooLarge
from django_ojs.http import body, manifest
from django_ojs.models import Job
from tests.http.conftest import Api, error_of

PUSH = b'{"type":"a.b","args":["' + b"x" * 3000 + b'"]}'


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"{ invalid json }", b"[]", b'"x"', b"null", b"5", b'{"type":"a.b","args":[NaN]}', b"[" * 100_000,
        b'{"type":"a.b","args":[-Infinity]}', b'{"type":"a.b\xff","args":[]}', b"\xef\xbb\xbf{}", b"\x00", b"{}{}",
        b'{"a":' * 5000 + b"1" + b"}" * 5000, b'{"type":"a.b","args":[' + b"9" * 5000 + b"]}", "{}".encode("utf-16"),
    ],
    ids=lambda raw: repr(raw[:30]),
)  # fmt: skip
@pytest.mark.parametrize("path", ["/jobs", "/jobs/batch", "/workers/fetch", "/workers/nack", "/workers/heartbeat"])
def test_what_is_no_json_object_is_400_everywhere(api: Api, path: str, raw: bytes) -> None:
    error_of(api.raw(path, raw), 400, "invalid_payload")


@pytest.mark.parametrize(
    "path", ["/queues/q/pause", "/jobs/{id}/activate", "/jobs/{id}/cancel", "/dead-letter/{id}/retry"]
)
def test_an_optional_body_must_still_be_json_if_it_is_there(api: Api, path: str) -> None:
    job = api.push(pending=True)
    error_of(api.raw(path.format(id=job["id"]), b"{oops"), 400, "invalid_payload")
    error_of(api.raw(path.format(id=job["id"]), b"[]"), 400, "invalid_payload")
    assert api.get(f"/jobs/{job['id']}").json()["job"]["state"] == "pending"


@pytest.mark.parametrize("path", ["/jobs", "/queues/q/pause"])
def test_a_body_that_a_server_dropped_is_refused_and_the_caller_learns_why(api: Api, path: str) -> None:
    """As uvicorn's httptools does after an offer of HTTP/2; at a path where the body is optional it would go unseen."""

    def send(sent: bytes, **headers: str) -> dict[str, Any]:
        """A request whose head promises 27 bytes."""
        stream: Any = {"wsgi.input": io.BytesIO(sent), "CONTENT_LENGTH": "27"}
        answer = api.client.generic("POST", f"/ojs/v1{path}", b"", "application/json", headers=headers, **stream)
        return error_of(answer, 400, "invalid_payload")

    error = send(b"", Upgrade="h2c", Connection="Upgrade, HTTP2-Settings")
    assert error["details"] == {"field": "body", "actual_bytes": 0, "declared_bytes": 27}
    assert "--http h11" in error["hint"]
    assert send(b'{"type"')["message"] == "The request body ended early: 7 of 27 bytes came."


def test_deep_arguments_are_refused_not_crashed_on(api: Api) -> None:
    deep = b'{"type":"a.b","args":' + b"[" * 150 + b"]" * 150 + b"}"
    error_of(api.raw("/jobs", deep), 400, "invalid_payload")


def test_the_limit_of_a_single_envelope_stops_the_reading(api: Api) -> None:
    error = error_of(api.raw("/jobs", b" " * (2 * 1_048_576 + 1)), 413, "payload_too_large")
    assert error["details"] == {"actual_bytes": 2_097_153, "max_bytes": 2_097_152, "field": "envelope"}


def test_white_space_does_not_count_against_an_envelope(api: Api) -> None:
    assert api.raw("/jobs", b'{"type":"a.b",' + b" " * 1_500_000 + b'"args":[]}').status_code == 201


def test_a_batch_may_be_larger_but_not_endless(api: Api, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "MAX_BATCH_BYTES": 5000}
    error = error_of(api.raw("/jobs/batch", b'{"jobs":[' + PUSH + b"," + PUSH + b"]}"), 413, "payload_too_large")
    assert error["details"]["max_bytes"] == 5000
    assert api.raw("/jobs/batch", b'{"jobs":[' + PUSH + b"]}").status_code == 201


def test_djangos_own_body_limit_does_not_act_here(api: Api, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = 10
    assert api.raw("/jobs", PUSH).status_code == 201


def test_gzip_is_unpacked(api: Api) -> None:
    packed = gzip.compress(PUSH)
    for encoding in ("gzip", "GZIP", "x-gzip"):
        assert api.raw("/jobs", packed, **{"Content-Encoding": encoding}).status_code == 201


def test_gzip_in_several_members_is_one_body(api: Api) -> None:
    packed = gzip.compress(PUSH[:100]) + gzip.compress(PUSH[100:])
    assert api.raw("/jobs", packed, **{"Content-Encoding": "gzip"}).status_code == 201


def test_identity_is_no_compression(api: Api) -> None:
    assert api.raw("/jobs", PUSH, **{"Content-Encoding": "identity"}).status_code == 201


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "gzip, zstd", "é", "x" * 400])
def test_another_encoding_is_415(api: Api, encoding: str) -> None:
    error_of(api.raw("/jobs", PUSH, **{"Content-Encoding": encoding}), 415, "unsupported_compression")


PACKED = gzip.compress(PUSH, mtime=0)


@pytest.mark.parametrize(
    "packed",
    [PUSH, b"\x1f\x8b", PACKED[:-9], PACKED + b"rubbish", zlib.compress(PUSH)],
    ids=["plain", "header", "cut", "tail", "zlib"],
)
def test_broken_gzip_is_400(api: Api, packed: bytes) -> None:
    error_of(api.raw("/jobs", packed, **{"Content-Encoding": "gzip"}), 400, "invalid_payload")


def test_an_empty_packed_body_is_an_empty_body(api: Api) -> None:
    assert api.raw("/queues/q/pause", b"", **{"Content-Encoding": "gzip"}).status_code == 200


def test_a_zip_bomb_is_refused_before_it_is_unpacked(api: Api) -> None:
    bomb = gzip.compress(b'{"type":"a.b","args":["' + b"x" * 50_000_000 + b'"]}')
    assert len(bomb) < 100_000
    error = error_of(api.raw("/jobs", bomb, **{"Content-Encoding": "gzip"}), 413, "payload_too_large")
    assert error["details"]["actual_bytes"] == error["details"]["max_bytes"] + 1


def test_a_zip_bomb_costs_no_more_memory_than_the_limit(monkeypatch: Any) -> None:
    bomb = io.BytesIO(gzip.compress(b"x" * 50_000_000) * 2)
    largest = 0
    original = zlib.decompressobj

    def spy(*args: Any) -> Any:
        unpacker = original(*args)

        class Spy:
            def decompress(self, data: bytes, most: int) -> bytes:
                nonlocal largest
                largest = max(largest, most)
                return unpacker.decompress(data, most)

            def __getattr__(self, name: str) -> Any:
                return getattr(unpacker, name)

        return Spy()

    monkeypatch.setattr(zlib, "decompressobj", spy)
    request = RequestFactory().generic("POST", "/", bomb.read(), headers={"Content-Encoding": "gzip"})
    with pytest.raises(PayloadTooLarge):
        body.read(request, 1000)
    assert largest <= 1001


#: A window larger than we keep.
WIDE = zstandard.ZstdCompressionParameters(window_log=24)


def zstd(data: bytes, **options: Any) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)


def send_zstd(api: Api, packed: bytes) -> Any:
    return api.raw("/jobs", packed, **{"Content-Encoding": "zstd"})


def test_zstd_is_unpacked_where_it_is_installed(api: Api, monkeypatch: Any) -> None:
    assert send_zstd(api, zstd(PUSH)).status_code == 201
    assert send_zstd(api, zstd(PUSH[:100]) + zstd(PUSH[100:], write_checksum=True)).status_code == 201
    assert manifest.payload_limits()["supported_compression"] == ["gzip", "zstd"]
    large = b'{"type":"a.b","args":["' + os.urandom(100_000).hex().encode() + b'"]}'
    assert send_zstd(api, zstd(large)).status_code == 201
    assert Job.objects.latest("created_at").args == jsontext.loads(large)["args"]
    monkeypatch.setattr(body, "_zstandard", lambda: None)
    error = error_of(send_zstd(api, zstd(PUSH)), 415, "unsupported_compression")
    assert error["details"]["supported"] == ["gzip"]
    assert manifest.payload_limits()["supported_compression"] == ["gzip"]


@pytest.mark.parametrize(
    "packed",
    [
        PUSH, zstd(PUSH)[:3], zstd(PUSH)[:-5], zstd(PUSH) + b"rubbish", gzip.compress(PUSH),
        zstd(PUSH, write_checksum=True)[:-1] + b"?", zstd(b" " * 20_000_000, compression_params=WIDE),
    ],
    ids=["plain", "header", "cut", "tail", "gzip", "checksum", "window"],
)  # fmt: skip
def test_broken_zstd_is_400(api: Api, packed: bytes) -> None:
    error_of(send_zstd(api, packed), 400, "invalid_payload")


def test_an_empty_body_in_zstd_is_an_empty_body(api: Api) -> None:
    assert api.raw("/queues/q/pause", b"", **{"Content-Encoding": "zstd"}).status_code == 200


# What a body costs is bounded by what may be sent


@pytest.fixture
def handed(monkeypatch: Any) -> list[int]:
    """The bytes that decompressors were given, and those that they handed back."""
    counted = [0]

    def spy(unpacker: Any) -> Any:
        class Spy:
            def decompress(self, data: bytes, *most: int) -> bytes:
                counted[0] += len(data)
                return unpacker.decompress(data, *most)

            @property
            def unused_data(self) -> bytes:
                counted[0] += len(unpacker.unused_data)
                return unpacker.unused_data

            def __getattr__(self, name: str) -> Any:
                return getattr(unpacker, name)

        return Spy()

    gzip_opener, zstd_opener = zlib.decompressobj, zstandard.ZstdDecompressor
    monkeypatch.setattr(zlib, "decompressobj", lambda *given: spy(gzip_opener(*given)))

    class Opener:
        def __init__(self, **given: Any) -> None:
            self.opener = zstd_opener(**given)

        def decompressobj(self) -> Any:
            return spy(self.opener.decompressobj())

    monkeypatch.setattr(zstandard, "ZstdDecompressor", Opener)
    return counted


def test_a_zstd_bomb_is_refused_before_it_is_unpacked(handed: list[int]) -> None:
    bomb = zstd(b"x" * 50_000_000) * 2
    assert len(bomb) < 200_000
    request = RequestFactory().generic("POST", "/", bomb, headers={"Content-Encoding": "zstd"})
    with pytest.raises(PayloadTooLarge):
        body.read(request, 100_000)
    assert 0 < handed[0] <= 1024  # of which a decompressor makes a few blocks, of 128 KB at most


#: A frame that decompressors skip.
SKIPPED = b"\x50\x2a\x4d\x18\0\0\0\0"


@pytest.mark.parametrize(
    "encoding, nothing, step",
    [("gzip", gzip.compress(b"", mtime=0), 65_536), ("zstd", zstd(b""), 128), ("zstd", SKIPPED, 128)],
    ids=["gzip", "zstd", "skippable"],
)
def test_the_parts_of_a_packed_body_are_counted_and_none_costs_the_rest(
    api: Api, handed: list[int], encoding: str, nothing: bytes, step: int
) -> None:
    large = b'{"type":"a.b","args":["' + os.urandom(400_000).hex().encode() + b'"]}'
    packed = nothing * 900 + (gzip.compress(large) if encoding == "gzip" else zstd(large))
    assert api.raw("/jobs", packed, **{"Content-Encoding": encoding}).status_code == 201
    assert handed[0] <= len(packed) + 2 * step * 901
    handed[0] = 0
    error = error_of(api.raw("/jobs", nothing * 40_000, **{"Content-Encoding": encoding}), 413, "payload_too_large")
    assert error["details"] == {"max_parts": 1000, "field": "body"}
    assert handed[0] <= 2 * step * 1001


@pytest.fixture
def numbers(monkeypatch: Any) -> list[str]:
    """The numbers that were read."""
    read: list[str] = []
    plain = jsontext._plain
    monkeypatch.setattr(jsontext, "_plain", lambda literal: read.append(literal) or plain(literal))
    return read


@pytest.mark.parametrize("path", ["/jobs/batch", "/jobs/bulk", "/jobs", "/workflows", "/workers/ack", "/cron"])
def test_16_kilobytes_that_are_four_million_numbers_are_refused_before_one_is_read(
    api: Api, numbers: list[str], path: str
) -> None:
    limit = 16_000_000 if path in ("/jobs/batch", "/jobs/bulk", "/workflows") else 2_000_000
    packed = gzip.compress(b'{"jobs":[' + b"1e5," * (limit // 4) + b"1]}")
    if limit < 4_000_000:  # that many numbers fit no such body
        packed = gzip.compress(b'{"jobs":[' + b"0," * (limit // 2) + b"1]}")
    assert len(packed) < 20_000
    error = error_of(api.raw(path, packed, **{"Content-Encoding": "gzip"}), 413, "payload_too_large")
    assert error["details"] == {"max_values": 1_000_000, "field": "body"}
    assert numbers == []


@pytest.mark.parametrize(
    "path, member",
    [("/jobs/batch", "jobs"), ("/jobs/bulk", "jobs"), ("/jobs/bulk/cancel", "job_ids"), ("/jobs/results", "ids"),
     ("/admin/jobs/bulk/retry", "job_ids"), ("/admin/dead-letter/retry", "job_ids")],
)  # fmt: skip
def test_a_batch_that_is_too_large_is_refused_before_it_is_read(
    api: Api, settings: Any, numbers: list[str], path: str, member: str
) -> None:
    settings.OJS = {**settings.OJS, "MAX_BATCH_SIZE": 20}
    response = api.raw(path, b'{"' + member.encode() + b'":[' + b"1e5," * 50_000 + b"1]}")
    error = error_of(response, 413, "batch_size_exceeded")
    assert error["details"]["field"] == member
    assert error["details"]["actual_is_minimum"] is True
    assert response["X-OJS-Max-Batch-Size"] == "20"
    assert len(numbers) == 20
    assert "21" not in error["message"]


def test_numbers_that_no_float_holds_are_counted(api: Api, numbers: list[str]) -> None:
    error = error_of(api.raw("/jobs/batch", b'{"jobs":[[' + b"1e999," * 400_000 + b"1]]}"), 413, "payload_too_large")
    assert error["details"] == {"max_numbers": 100_000, "field": "body"}
    assert "texts" in error["hint"]
    assert len(numbers) == 100_001


def test_a_text_full_of_commas_is_one_value(api: Api) -> None:
    assert api.raw("/jobs", b'{"type":"a.b","args":["' + b",:" * 500_000 + b'"]}').status_code == 201


class Endless(io.RawIOBase):
    """A body that never ends, as a chunked one may be."""

    def __init__(self) -> None:
        self.given = 0

    def read(self, size: int = -1) -> bytes:
        assert size >= 0, "never read all of it"
        self.given += size
        return b"x" * size


def test_a_body_of_unknown_length_is_not_read_to_its_end() -> None:
    request = RequestFactory().post("/", b"", content_type="application/json")
    stream = Endless()
    request._stream = stream  # type: ignore[attr-defined]
    with pytest.raises(PayloadTooLarge):
        body.read(request, 100_000)
    assert stream.given == 100_001


def test_a_body_that_arrives_in_pieces_is_whole() -> None:
    class Trickle(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(7)

    request = RequestFactory().post("/", b"", content_type="application/json")
    request._stream = Trickle(PUSH)  # type: ignore[attr-defined]
    assert body.read(request, 10_000) == PUSH


def chunked(api: Api, path: str, stream: Any, **server: Any) -> Any:
    """The answer to a POST without a Content-Length, as a WSGI server passes it on."""
    environ = {"wsgi.input": stream, "wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked", **server}
    return api.client.generic("POST", f"/ojs/v1{path}", b"", content_type="application/json", **environ)


def test_a_body_in_chunks_is_read_under_wsgi(api: Api) -> None:
    job = api.push()
    api.fetch()
    done = chunked(api, f"/jobs/{job['id']}/ack", io.BytesIO(b'{"result": 42}'))
    assert (done.status_code, done.json()["job"]["result"]) == (200, 42)
    error_of(chunked(api, "/jobs", Endless()), 413, "payload_too_large")


def test_a_body_in_chunks_is_refused_where_its_end_is_not_known(api: Api) -> None:
    job = api.push()
    api.fetch()
    answer = chunked(api, f"/jobs/{job['id']}/ack", io.BytesIO(b"5\r\n{"), **{"wsgi.input_terminated": False})
    assert "Content-Length" in error_of(answer, 400, "invalid_payload")["hint"]
    assert api.get(f"/jobs/{job['id']}").json()["job"]["state"] == "active"


def test_a_chunk_that_is_none_is_the_clients_fault(api: Api) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise ValueError("Invalid chunk size")  # a server has a class of its own, which is no OSError

    error_of(chunked(api, "/jobs", Broken()), 400, "invalid_payload")


def test_a_body_that_a_proxy_has_put_together_goes_by_its_length(api: Api) -> None:
    sent = {"wsgi.input": io.BytesIO(PUSH), "HTTP_TRANSFER_ENCODING": "chunked", "CONTENT_LENGTH": str(len(PUSH))}
    assert api.client.generic("POST", "/ojs/v1/jobs", b"", content_type="application/json", **sent).status_code == 201


@pytest.mark.parametrize("length", ["-1", "abc", "9" * 30, "٣"])
def test_a_nonsensical_content_length_is_survived(api: Api, length: str) -> None:
    response = api.client.generic("POST", "/ojs/v1/jobs", PUSH, content_type="application/json", CONTENT_LENGTH=length)
    assert response.status_code in (201, 400, 413)
    assert response.json()


def test_a_body_that_a_middleware_has_read_already_is_used() -> None:
    request = RequestFactory().post("/", PUSH, content_type="application/json")
    assert request.body
    assert body.read(request, 10_000) == PUSH
    with pytest.raises(PayloadTooLarge):
        body.read(request, 100)


def test_a_client_that_goes_away_is_no_fault_of_ours(api: Api) -> None:
    class Gone(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise ConnectionResetError("gone")

    response = api.client.generic(
        "POST", "/ojs/v1/jobs", PUSH, content_type="application/json", **{"wsgi.input": Gone()}
    )
    error_of(response, 400, "invalid_payload")


def test_the_last_of_repeated_keys_wins() -> None:
    assert body.parse(b'{"a":1,"a":2}') == {"a": 2}
    assert body.parse(b"", required=False) == {}
    with pytest.raises(InvalidPayload):
        body.parse(b"")


def test_drf_meets_the_same_parser(rf: RequestFactory) -> None:
    from rest_framework.request import Request

    from django_ojs.http.body import OJSParser

    django = rf.post("/", json.dumps({"a": [1]}), content_type="application/openjobspec+json")
    assert Request(django, parsers=[OJSParser()]).data == {"a": [1]}
