"""The envelope: what `parse` takes from a client's document, what it refuses and how, what `render` writes."""

from __future__ import annotations

import copy
import datetime as dt
import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ojs import jsontext
from django_ojs.conf import Settings
from django_ojs.errors import (
    InvalidPayload,
    InvalidRetryPolicy,
    MetadataTooLarge,
    OJSError,
    PayloadTooLarge,
)
from django_ojs.rules import attributes
from django_ojs.rules.attributes import OPTIONS, SYSTEM, TOP_LEVEL
from django_ojs.rules.envelope import JobSpec, parse, render, trace_id_of

NOW = dt.datetime(2026, 2, 12, 10, 30, tzinfo=dt.UTC)
ID = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"
SETTINGS = Settings()
PUBLISHED = Settings(DIALECT="published")


def spec(settings: Settings = SETTINGS, /, **document: Any) -> JobSpec:
    return parse({"type": "email.send", "args": []} | document, now=NOW, settings=settings)


def refusal(settings: Settings = SETTINGS, /, **document: Any) -> OJSError:
    with pytest.raises(OJSError) as caught:
        spec(settings, **document)
    return caught.value


# What a client sends


def test_a_minimal_job_gets_the_defaults() -> None:
    job = parse({"type": "email.send", "args": ["a@b.c", 1]}, now=NOW, settings=SETTINGS)
    assert job.id.version == 7
    assert (job.type, job.queue, job.args, job.meta) == ("email.send", "default", ["a@b.c", 1], {})
    assert (job.priority, job.pending, job.retry, job.unique) == (0, False, {}, None)
    assert (job.scheduled_at, job.expires_at, job.timeout_ms, job.visibility_ms) == (None, None, None, None)
    assert (job.trace_id, job.extra) == ("", {})
    assert (job.args_text, job.meta_text, job.extra_text) == ('["a@b.c",1]', "{}", "")


def test_settings_default_to_those_of_the_site() -> None:
    assert parse({"type": "a", "args": [], "priority": "high"}, now=NOW).priority == 3


def test_the_document_is_left_as_it_was() -> None:
    document = {"type": "a@2", "args": [1], "meta": {"a": 1}, "options": {"metadata": {"b": 2}, "x": 1, "queue": "q"}}
    before = copy.deepcopy(document)
    parse(document, now=NOW, settings=SETTINGS)
    assert document == before


def test_every_attribute_of_the_full_example() -> None:
    retry = {"max_attempts": 5, "initial_interval": "1s", "max_interval": "300s", "x_kept": None}
    job = spec(
        specversion="1.0.0-rc.1",
        id=ID,
        queue="reports",
        args=[42, {"include_charts": True}],
        meta={"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736"},
        priority=10,
        timeout=300,
        scheduled_at="2026-03-01T10:00:00+01:00",
        expires_at="2026-03-01T18:00:00Z",
        retry=retry,
        unique={"key": ["report_id"]},
        schema="urn:ojs:schema:report.generate:v2",
        tags=["a", "b"],
        version=2,
        rate_limit={"key": "k"},
        pending=True,
    )
    assert job.id == uuid.UUID(ID)
    assert job.scheduled_at == dt.datetime(2026, 3, 1, 9, tzinfo=dt.UTC)
    assert job.expires_at == dt.datetime(2026, 3, 1, 18, tzinfo=dt.UTC)
    assert (job.priority, job.timeout_ms, job.pending) == (10, 300_000, True)
    assert job.retry == {"max_attempts": 5, "initial_ms": 1_000, "max_ms": 300_000}
    assert job.unique == {"key": ["report_id"]}
    assert job.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert job.extra == {
        "timeout": 300,
        "timeout_ms": 300_000,
        "scheduled_at": "2026-03-01T10:00:00+01:00",
        "expires_at": "2026-03-01T18:00:00Z",
        "retry": retry,
        "unique": {"key": ["report_id"]},
        "schema": "urn:ojs:schema:report.generate:v2",
        "tags": ["a", "b"],
        "version": 2,
        "rate_limit": {"key": "k"},
    }
    assert jsontext.loads(job.extra_text) == job.extra


BOTH_PLACES: list[tuple[str, Any, str, Any]] = [
    ("queue", "q", "queue", "q"),
    ("priority", 7, "priority", 7),
    ("pending", True, "pending", True),
    ("retry", {"max_attempts": 9}, "retry", {"max_attempts": 9}),
    ("unique", {"keys": ["type"]}, "unique", {"keys": ["type"]}),
    ("scheduled_at", "2026-03-01T00:00:00Z", "scheduled_at", dt.datetime(2026, 3, 1, tzinfo=dt.UTC)),
    ("expires_at", "2026-03-01T00:00:00Z", "expires_at", dt.datetime(2026, 3, 1, tzinfo=dt.UTC)),
    ("timeout", 5, "timeout_ms", 5_000),
    ("timeout_ms", 500, "timeout_ms", 500),
    ("visibility_timeout", 5, "visibility_ms", 5_000),
    ("visibility_timeout", "PT2S", "visibility_ms", 2_000),
    ("visibility_timeout_ms", 500, "visibility_ms", 500),
    ("meta", {"a": 1}, "meta", {"a": 1}),
]


@pytest.mark.parametrize("name, value, attribute, expected", BOTH_PLACES)
def test_an_attribute_is_read_at_the_top_and_inside_options(
    name: str, value: Any, attribute: str, expected: Any
) -> None:
    assert getattr(spec(**{name: value}), attribute) == expected
    assert getattr(spec(options={name: value}), attribute) == expected
    assert getattr(spec(**{name: value}, options={name: None}), attribute) == expected


@pytest.mark.parametrize("name", ["tags", "schema", "version", "rate_limit", "unique", "retry", "total_timeout_ms"])
def test_an_attribute_inside_options_is_echoed_at_the_top(name: str) -> None:
    value: Any = {
        "tags": ["t"],
        "schema": "urn:x",
        "version": "2.0",
        "rate_limit": {"key": "k"},
        "unique": {},
        "retry": {},
        "total_timeout_ms": 5,
    }[name]
    assert spec(options={name: value}).extra == {name: value}
    assert spec(**{name: value}).extra == {name: value}


@pytest.mark.parametrize(
    "document, attribute, expected",
    [
        ({"queue": "top", "options": {"queue": "inside"}}, "queue", "inside"),
        ({"priority": 1, "options": {"priority": 2}}, "priority", 2),
        ({"timeout": 1, "options": {"timeout": 2}}, "timeout_ms", 2_000),
        ({"timeout": 1, "options": {"timeout_ms": 5, "timeout": 2}}, "timeout_ms", 5),
        ({"timeout": 1, "timeout_ms": 5}, "timeout_ms", 1_000),
        (
            {"visibility_timeout": 1, "options": {"visibility_timeout_ms": 5, "visibility_timeout": 2}},
            "visibility_ms",
            5,
        ),
        ({"visibility_timeout": 1, "visibility_timeout_ms": 5}, "visibility_ms", 1_000),
        ({"retry": {"max_attempts": 1}, "options": {"retry": {"jitter": False}}}, "retry", {"jitter": False}),
        (
            {"scheduled_at": "2026-03-01T00:00:00Z", "options": {"scheduled_at": "2026-04-01T00:00:00Z"}},
            "scheduled_at",
            dt.datetime(2026, 4, 1, tzinfo=dt.UTC),
        ),
    ],
)
def test_options_win_and_units_keep_their_order(document: dict[str, Any], attribute: str, expected: Any) -> None:
    assert getattr(spec(**document), attribute) == expected


def test_meta_in_options_is_laid_over_meta_key_by_key() -> None:
    job = spec(meta={"a": 1, "b": 1, "c.d": 1}, options={"meta": {"b": 3, "e": 4}})
    assert job.meta == {"a": 1, "b": 3, "c.d": 1, "e": 4}
    assert jsontext.loads(job.meta_text) == job.meta
    assert spec(metadata={"a": 1}, options={"meta": None}).meta == {}


@pytest.mark.parametrize("name", sorted(TOP_LEVEL - SYSTEM - {"type", "args", "id"}))
def test_null_counts_as_absent(name: str) -> None:
    job = spec(**{name: None})
    assert replace(job, id=uuid.UUID(ID)) == replace(spec(id=ID), id=uuid.UUID(ID))
    assert spec(id=None).id.version == 7


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_null_inside_options_counts_as_absent(name: str) -> None:
    assert spec(id=ID, options={name: None}) == spec(id=ID)


@pytest.mark.parametrize("name", sorted(SYSTEM))
@pytest.mark.parametrize("value", ["forged", 7, {"a": 1}, None])
def test_attributes_of_the_server_are_dropped_in_silence(name: str, value: Any) -> None:
    assert spec(id=ID, **{name: value}) == spec(id=ID)


def test_unknown_attributes_stay_where_they_were() -> None:
    job = spec(
        x_custom={"n": [1]}, ext_other=None, metadata={"a": 1}, options={"x_more": 5, "queue": "q", "state": "?"}
    )
    assert job.extra == {
        "x_custom": {"n": [1]},
        "ext_other": None,
        "metadata": {"a": 1},
        "options": {"x_more": 5, "state": "?"},
    }


@pytest.mark.parametrize("version", ["1.0.0-rc.1", "1.0", "1.0.0"])
def test_the_versions_of_the_specification(version: str) -> None:
    assert spec(specversion=version).extra == {}


# Types and versions


def test_hyphens_in_a_type_belong_to_the_published_dialect() -> None:
    assert spec(PUBLISHED, type="retry.test.max-attempts").type == "retry.test.max-attempts"
    assert refusal(type="retry.test.max-attempts").canonical == "INVALID_JOB_TYPE"


@pytest.mark.parametrize(
    "document, version",
    [
        ({"type": "email.send@2.0"}, "2.0"),
        ({"type": "email.send@3"}, "3"),
        ({"type": "email.send@2.0", "version": 5}, 5),
        ({"type": "email.send@2.0", "options": {"version": "1.1"}}, "1.1"),
    ],
)
def test_a_version_behind_the_type_is_the_version(document: dict[str, Any], version: Any) -> None:
    job = spec(**document)
    assert (job.type, job.extra["version"]) == ("email.send", version)


# Times


@pytest.mark.parametrize("name", ["scheduled_at", "expires_at"])
def test_a_relative_time_inside_options_is_resolved(name: str) -> None:
    job = spec(options={name: "+PT5S"})
    assert getattr(job, name) == NOW + dt.timedelta(seconds=5)
    assert job.extra == {name: "2026-02-12T10:30:05.000Z"}


def test_a_clients_time_is_echoed_as_written() -> None:
    assert spec(options={"scheduled_at": "2020-01-01t00:00:00.1234567z"}).extra == {
        "scheduled_at": "2020-01-01t00:00:00.1234567z"
    }


# Timeouts


@pytest.mark.parametrize(
    "document, echoed",
    [
        ({"timeout": 30}, {"timeout": 30, "timeout_ms": 30_000}),
        ({"timeout": 30.0}, {"timeout": 30.0, "timeout_ms": 30_000}),
        ({"timeout": 0}, {"timeout": 0}),
        ({"timeout_ms": 0}, {}),
        ({"options": {"timeout_ms": 30_000}}, {"timeout_ms": 30_000}),
        ({"visibility_timeout": "PT30S"}, {"visibility_timeout": "PT30S", "visibility_timeout_ms": 30_000}),
        ({"visibility_timeout": 30}, {"visibility_timeout": 30, "visibility_timeout_ms": 30_000}),
        ({"visibility_timeout_ms": 3}, {"visibility_timeout_ms": 3}),
        ({"grace_period": 0, "enqueue_ttl": 5}, {"grace_period": 0, "enqueue_ttl": 5}),
        (
            {"timeout": 5, "total_timeout": 5, "heartbeat_timeout": 1},
            {"timeout": 5, "timeout_ms": 5_000, "total_timeout": 5, "heartbeat_timeout": 1},
        ),
        ({"total_timeout": 9, "options": {"total_timeout_ms": 5}}, {"total_timeout_ms": 5}),
    ],
)
def test_timeouts_are_echoed_as_the_producer_spelt_them(document: dict[str, Any], echoed: dict[str, Any]) -> None:
    assert spec(**document).extra == echoed


def test_a_zero_timeout_asks_for_the_default() -> None:
    assert spec(timeout=0).timeout_ms is None


def test_a_hundred_years_is_the_longest_timeout() -> None:
    longest = 100 * 365 * 86_400
    assert spec(timeout=longest).timeout_ms == spec(timeout_ms=longest * 1000).timeout_ms == longest * 1000


# Refusals

FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"timeout": 3_153_600_001}, "timeout", "INVALID_PAYLOAD"),
    ({"timeout": 10**30}, "timeout", "INVALID_PAYLOAD"),
    ({"options": {"timeout_ms": 3_153_600_000_001}}, "options.timeout_ms", "INVALID_PAYLOAD"),
    ({"specversion": "2.0"}, "specversion", "INVALID_PAYLOAD"),
    ({"specversion": 1.0}, "specversion", "INVALID_PAYLOAD"),
    ({"specversion": []}, "specversion", "INVALID_PAYLOAD"),
    ({"id": ""}, "id", "INVALID_PAYLOAD"),
    ({"id": ID.upper()}, "id", "INVALID_PAYLOAD"),
    ({"id": 5}, "id", "INVALID_PAYLOAD"),
    ({"id": "7f8c0f2e-94b1-4a3c-8a57-1d2f3e4a5b6c"}, "id", "INVALID_PAYLOAD"),
    ({"type": None}, "type", "INVALID_JOB_TYPE"),
    ({"type": ""}, "type", "INVALID_JOB_TYPE"),
    ({"type": "Email.Send"}, "type", "INVALID_JOB_TYPE"),
    ({"type": "email@send!"}, "type", "INVALID_JOB_TYPE"),
    ({"type": "email.send\n"}, "type", "INVALID_JOB_TYPE"),
    ({"type": 5}, "type", "INVALID_JOB_TYPE"),
    ({"type": "a" * 256}, "type", "JOB_TYPE_TOO_LONG"),
    ({"version": True}, "version", "INVALID_PAYLOAD"),
    ({"version": 1.5}, "version", "INVALID_PAYLOAD"),
    ({"version": ""}, "version", "INVALID_PAYLOAD"),
    ({"version": []}, "version", "INVALID_PAYLOAD"),
    ({"queue": ""}, "queue", "INVALID_QUEUE"),
    ({"options": {"queue": "UP"}}, "options.queue", "INVALID_QUEUE"),
    ({"queue": "a" * 129}, "queue", "QUEUE_NAME_TOO_LONG"),
    ({"args": None}, "args", "INVALID_ARGS"),
    ({"args": {}}, "args", "INVALID_ARGS"),
    ({"args": "x"}, "args", "INVALID_ARGS"),
    ({"args": 0}, "args", "INVALID_ARGS"),
    ({"args": False}, "args", "INVALID_ARGS"),
    ({"meta": []}, "meta", "INVALID_METADATA"),
    ({"options": {"meta": 5}}, "options.meta", "INVALID_METADATA"),
    ({"priority": 101}, "priority", "INVALID_PAYLOAD"),
    ({"options": {"priority": "urgent"}}, "options.priority", "INVALID_PAYLOAD"),
    ({"pending": 1}, "pending", "INVALID_PAYLOAD"),
    ({"scheduled_at": "2026-03-01T00:00:00"}, "scheduled_at", "INVALID_PAYLOAD"),
    ({"scheduled_at": "+PT5S"}, "scheduled_at", "INVALID_PAYLOAD"),
    ({"scheduled_at": 5}, "scheduled_at", "INVALID_PAYLOAD"),
    ({"options": {"scheduled_at": "+soon"}}, "options.scheduled_at", "INVALID_PAYLOAD"),
    ({"options": {"expires_at": True}}, "options.expires_at", "INVALID_PAYLOAD"),
    ({"expires_at": "2026-02-30T00:00:00Z"}, "expires_at", "INVALID_PAYLOAD"),
    ({"timeout": -1}, "timeout", "INVALID_PAYLOAD"),
    ({"timeout": 1.5}, "timeout", "INVALID_PAYLOAD"),
    ({"timeout": "30"}, "timeout", "INVALID_PAYLOAD"),
    ({"options": {"timeout_ms": True}}, "options.timeout_ms", "INVALID_PAYLOAD"),
    ({"visibility_timeout": 0}, "visibility_timeout", "INVALID_PAYLOAD"),
    ({"visibility_timeout": "soon"}, "visibility_timeout", "INVALID_PAYLOAD"),
    ({"visibility_timeout": "PT0S"}, "visibility_timeout", "INVALID_PAYLOAD"),
    ({"visibility_timeout_ms": "PT5S"}, "visibility_timeout_ms", "INVALID_PAYLOAD"),
    ({"total_timeout": 0}, "total_timeout", "INVALID_PAYLOAD"),
    ({"timeout": 5, "total_timeout": 4}, "total_timeout", "INVALID_PAYLOAD"),
    ({"enqueue_ttl": 0}, "enqueue_ttl", "INVALID_PAYLOAD"),
    ({"heartbeat_timeout": "x"}, "heartbeat_timeout", "INVALID_PAYLOAD"),
    ({"grace_period": -1}, "grace_period", "INVALID_PAYLOAD"),
    ({"retry": []}, "retry", "INVALID_PAYLOAD"),
    ({"options": {"retry": 5}}, "options.retry", "INVALID_PAYLOAD"),
    ({"unique": True}, "unique", "INVALID_PAYLOAD"),
    ({"schema": "no uri"}, "schema", "INVALID_PAYLOAD"),
    ({"schema": 5}, "schema", "INVALID_PAYLOAD"),
    ({"tags": "a"}, "tags", "INVALID_PAYLOAD"),
    ({"tags": [1]}, "tags", "INVALID_PAYLOAD"),
    ({"options": []}, "options", "INVALID_PAYLOAD"),
    ({"options": "x"}, "options", "INVALID_PAYLOAD"),
]


@pytest.mark.parametrize("document, path, canonical", FAULTS)
def test_a_fault_names_its_field_and_what_to_do(document: dict[str, Any], path: str, canonical: str) -> None:
    error = refusal(**document)
    assert isinstance(error, InvalidPayload)
    body = error.as_dict()
    assert (error.status, body["code"], body["type"]) == (400, "invalid_payload", "validation_error")
    assert body["canonical_code"] == canonical
    assert body["message"].startswith(f"{path}: ")
    assert body["message"].endswith(".")
    assert body["details"]["field"] == path
    assert body["details"]["expected"]
    assert body["details"]["validation_errors"] == [{"path": path, "message": body["message"]}]
    assert "index" not in body["details"]
    jsontext.dumps(body)


@pytest.mark.parametrize("document", [None, [], "x", 5, True, {}])
def test_what_is_no_job_is_refused(document: object) -> None:
    with pytest.raises(InvalidPayload):
        parse(document, now=NOW, settings=SETTINGS)


@pytest.mark.parametrize(
    "document, message",
    [
        ({"type": "A", "args": []}, "jobs[3].type: must be"),
        (
            {"type": "a", "args": [], "options": {"retry": {"max_attempts": -1}}},
            "jobs[3].options.retry.max_attempts: must be",
        ),
        (7, "jobs[3]: must be a JSON object"),
        ({"type": "a", "args": [], "meta": {"a": "x" * 70_000}}, "jobs[3]: meta takes 70008 bytes"),
    ],
)
def test_in_a_batch_the_index_is_in_message_and_details(document: object, message: str) -> None:
    with pytest.raises(OJSError) as caught:
        parse(document, now=NOW, settings=SETTINGS, index=3)
    assert caught.value.message.startswith(message)
    assert str(caught.value) == caught.value.message
    assert caught.value.details["index"] == 3


def test_a_bad_retry_value_is_a_422() -> None:
    error = refusal(retry={"backoff_coefficient": 0.5})
    assert isinstance(error, InvalidRetryPolicy)
    assert error.status == 422
    assert "backoff_coefficient" in error.message


@pytest.mark.parametrize(
    "value, received",
    [
        ("x" * 200, "x" * 100 + "…"),
        ({"secret": 1}, "object"),
        ([1], "array"),
        (True, True),
        (5, 5),
        (1.5, 1.5),
        (10**30, "a very large integer"),
        (float("nan"), "nan"),
        (jsontext.ExactNumber("1e400"), "1e400"),
        ("\ud800", "?"),
        (NOW, repr(NOW)),
    ],
)
def test_what_was_received_is_shown_short_and_safe(value: object, received: object) -> None:
    shown = refusal(queue=value).details["received"]
    assert shown == received
    jsontext.dumps_bytes(shown)


# Values that only Python callers can send


@pytest.mark.parametrize(
    "document, path, canonical",
    [
        ({"args": [object()]}, "args", "INVALID_ARGS"),
        ({"args": [float("nan")]}, "args", "INVALID_ARGS"),
        ({"meta": {"a": NOW}}, "meta", "INVALID_METADATA"),
        ({"x_other": {1, 2}}, "job", "INVALID_PAYLOAD"),
    ],
)
def test_what_json_cannot_hold_is_refused(document: dict[str, Any], path: str, canonical: str) -> None:
    error = refusal(**document)
    assert (error.details["field"], error.canonical) == (path, canonical)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_endless_nesting_is_refused_without_a_crash() -> None:
    value = nested(100_000)
    error = refusal(args=value)
    assert error.details["field"] == "args"
    while isinstance(value, list):  # taken apart here, not by a recursive deallocation
        value = value.pop()


# Sizes


def sized(total: int) -> dict[str, Any]:
    """A document whose compact text has `total` bytes."""
    document = {"type": "email.send", "args": [""]}
    document["args"] = ["x" * (total - len(jsontext.dumps(document)))]
    assert len(jsontext.dumps(document)) == total
    return document


def test_the_envelope_is_measured_to_the_byte() -> None:
    limit = SETTINGS.MAX_ENVELOPE_BYTES
    assert parse(sized(limit), now=NOW, settings=SETTINGS)
    with pytest.raises(PayloadTooLarge) as caught:
        parse(sized(limit + 1), now=NOW, settings=SETTINGS)
    assert caught.value.status == 413
    assert caught.value.details == {"actual_bytes": limit + 1, "max_bytes": limit, "field": "envelope"}


def test_bytes_are_counted_not_characters() -> None:
    small = Settings(MAX_ENVELOPE_BYTES=2_000)
    assert spec(small, args=["é" * 900])
    assert refusal(small, args=["é" * 1_000]).details["field"] == "envelope"


def test_meta_is_measured_to_the_byte() -> None:
    limit = SETTINGS.MAX_META_BYTES
    assert spec(meta={"a": "x" * (limit - 8)})
    error = refusal(meta={"a": "x" * (limit - 7)})
    assert isinstance(error, MetadataTooLarge)
    assert error.details == {"actual_bytes": limit + 1, "max_bytes": limit, "field": "meta"}


def test_unknown_attributes_count_towards_the_envelope() -> None:
    assert isinstance(refusal(x_large="x" * 1_100_000), PayloadTooLarge)


def test_what_the_server_adds_makes_no_job_too_large() -> None:
    added = {
        "id": ID,
        "meta": {"traceparent": "00-" + "1" * 52, "trace_id": "1" * 32, "request_id": "r", "baggage": "a=1"},
    }
    limit = SETTINGS.MAX_ENVELOPE_BYTES
    assert parse({**sized(limit), **added}, now=NOW, settings=SETTINGS)
    with pytest.raises(PayloadTooLarge) as caught:
        parse({**sized(limit + 1), **added}, now=NOW, settings=SETTINGS)
    assert caught.value.details["actual_bytes"] == limit + 1
    assert spec(args=[0] * 10_000, **added)


@pytest.mark.parametrize(
    "document, field",
    [
        ({"args": nested(32)}, "args"),
        ({"meta": {"a": nested(31)}}, "meta"),
        ({"x_deep": nested(32)}, "x_deep"),
        ({"options": {"x_deep": nested(31)}}, "options"),
        ({"args": [0] * 10_001}, "args"),
        ({"args": [{str(n): n for n in range(5_001)}]}, "args"),
        ({"meta": {str(n): 0 for n in range(5_001)}}, "meta"),
        ({"args": [0] * 10_000, "meta": {"a": 1}}, "meta"),
        ({"x_wide": [[0] * 5_000, [0] * 5_001]}, "x_wide"),
    ],
)
def test_shapes_beyond_the_caps_are_refused(document: dict[str, Any], field: str) -> None:
    error = refusal(**document)
    assert (error.status, error.details["field"]) == (400, field)


@pytest.mark.parametrize(
    "document",
    [
        {"args": nested(31)},
        {"args": [0] * 10_000},
        {"args": [{str(n): n for n in range(4_999)}]},
        {"args": ["[{,:" * 5_000]},
        {"args": [[]] * 40},
        {"args": [{"a": {}}] * 40, "x_more": [1, "a"], "x_number": 5},
    ],
)
def test_shapes_within_the_caps_are_accepted(document: dict[str, Any]) -> None:
    assert spec(**document)


def test_twenty_thousand_unknown_attributes_are_refused() -> None:
    assert refusal(**{f"x_{n}": n for n in range(20_000)}).status == 400


def test_a_string_beyond_the_cap_is_refused_where_the_envelope_may_be_larger() -> None:
    large = Settings(MAX_ENVELOPE_BYTES=10 * 1_048_576)
    assert spec(large, args=["x" * attributes.MAX_STRING, {"y": 1}])
    assert refusal(large, args=["x" * (attributes.MAX_STRING + 1)]).details["field"] == "args"
    assert refusal(large, args=[{"x" * (attributes.MAX_STRING + 1): 1}]).details["field"] == "args"
    assert refusal(large, x_long="x" * (attributes.MAX_STRING + 1)).details["field"] == "x_long"


def test_the_name_of_a_refused_attribute_is_shown_short_and_safe() -> None:
    error = refusal(**{"\ud800" + "x" * 500: nested(40)})
    assert len(error.details["field"]) <= 101
    jsontext.dumps_bytes(error.as_dict())


# Any document

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=15,
)
likely_values = json_values | st.sampled_from(
    [
        ID,
        "+PT5S",
        "PT5S",
        "5s",
        "2026-03-01T00:00:00Z",
        "HIGH",
        "a.b@2",
        "q",
        5,
        0,
        -1,
        1e300,
        [],
        {},
        ["a"],
        "1.0",
        jsontext.ExactNumber("1e400"),
        10**60,
        {"max_attempts": 2},
        {"initial_interval": "1s", "max_interval": "0.5s"},
    ]
)
options_strategy = st.dictionaries(st.sampled_from(sorted(OPTIONS)) | st.text(max_size=5), likely_values, max_size=6)
any_document = st.fixed_dictionaries(
    {"type": st.just("email.send") | likely_values, "args": st.just([]) | likely_values},
    optional=dict.fromkeys(sorted(TOP_LEVEL - {"type", "args", "options"}), likely_values)
    | {"options": options_strategy | likely_values, "x_unknown": json_values},
)


@given(any_document | json_values, st.none() | st.integers(0, 9))
def test_any_document_is_a_job_or_an_error_of_ours(document: Any, index: int | None) -> None:
    try:
        job = parse(document, now=NOW, settings=SETTINGS, index=index)
    except OJSError as error:
        jsontext.dumps_bytes(error.as_dict())
        assert error.message  # noqa: PT017 - either outcome is right
        return
    assert jsontext.loads(job.args_text) == job.args
    assert jsontext.loads(job.meta_text) == job.meta
    assert jsontext.loads(job.extra_text or "{}") == job.extra
    assert not job.extra.keys() & (SYSTEM | {"id", "type", "queue", "args", "meta", "priority", "specversion"})
    assert len(job.trace_id) <= 64


# What a client reads


def row(**columns: Any) -> dict[str, Any]:
    return {
        "id": uuid.UUID(ID),
        "type": "email.send",
        "queue": "default",
        "state": "available",
        "priority": 0,
        "attempt": 0,
        "max_attempts": 3,
        "args": '["a"]',
        "meta": "{}",
        "extra": "",
        "created_at": NOW,
        "enqueued_at": NOW,
        "due_at": None,
        "expires_at": None,
        "started_at": None,
        "finished_at": None,
        "activated_at": None,
        "retry_delay_ms": None,
        "errors": "",
        "result": None,
        "result_ttl": None,
        "workflow_id": None,
        "worker_id": "",
    } | columns


T0, T1, T2 = "2026-02-12T10:30:00.000Z", "2026-02-12T10:30:01.000Z", "2026-02-12T10:30:02.000Z"
AT1, AT2 = NOW + dt.timedelta(seconds=1), NOW + dt.timedelta(seconds=2)
BASE = {
    "specversion": "1.0.0-rc.1",
    "id": ID,
    "type": "email.send",
    "queue": "default",
    "args": ["a"],
    "meta": {},
    "priority": 0,
    "attempt": 0,
    "max_attempts": 3,
    "created_at": T0,
}
FAILED = '[{"type":"A"},{"type":"B"}]'
EXPIRED = '[{"type":"expired"}]'


@pytest.mark.parametrize(
    "columns, more",
    [
        ({}, {"state": "available", "enqueued_at": T0}),
        ({"state": "scheduled", "due_at": AT1}, {"state": "scheduled"}),
        ({"state": "pending"}, {"state": "pending"}),
        ({"activated_at": AT1}, {"state": "available", "enqueued_at": T0, "activated_at": T1}),
        (
            {"state": "active", "started_at": AT1, "worker_id": "w1", "retry_delay_ms": 0},
            {"state": "active", "enqueued_at": T0, "started_at": T1, "worker_id": "w1", "retry_delay_ms": 0},
        ),
        ({"state": "active", "enqueued_at": None}, {"state": "active"}),
        (
            {"state": "retryable", "due_at": AT2, "retry_delay_ms": 1_000, "errors": FAILED, "worker_id": "w1"},
            {
                "state": "retryable",
                "enqueued_at": T0,
                "next_attempt_at": T2,
                "next_retry_at": T2,
                "retry_delay_ms": 1_000,
                "error": {"type": "B"},
                "errors": [{"type": "A"}, {"type": "B"}],
            },
        ),
        ({"state": "retryable"}, {"state": "retryable", "enqueued_at": T0}),
        (
            {"state": "completed", "finished_at": AT2, "result": "null", "errors": FAILED},
            {
                "state": "completed",
                "enqueued_at": T0,
                "completed_at": T2,
                "result": None,
                "result_stored_at": T2,
                "result_size_bytes": 4,
                "result_expires_at": "2026-02-19T10:30:02.000Z",
                "errors": [{"type": "A"}, {"type": "B"}],
            },
        ),
        ({"state": "cancelled", "finished_at": AT2}, {"state": "cancelled", "enqueued_at": T0, "cancelled_at": T2}),
        (
            {"state": "discarded", "finished_at": AT2, "errors": EXPIRED},
            {
                "state": "discarded",
                "enqueued_at": T0,
                "completed_at": T2,
                "discarded_at": T2,
                "error": {"type": "expired"},
                "errors": [{"type": "expired"}],
            },
        ),
        ({"finished_at": AT2}, {"state": "available", "enqueued_at": T0}),
        (
            {"extra": '{"tags":["t"],"x_a":1e400,"state":"forged"}', "meta": '{"b":2}'},
            {
                "state": "available",
                "enqueued_at": T0,
                "tags": ["t"],
                "x_a": jsontext.ExactNumber("1e400"),
                "meta": {"b": 2},
            },
        ),
    ],
)
def test_an_envelope_shows_what_is_set_and_nothing_else(columns: dict[str, Any], more: dict[str, Any]) -> None:
    assert render(row(**columns), dialect="spec") == BASE | more


@pytest.mark.parametrize(
    "dialect, errors, present",
    [
        ("spec", EXPIRED, True),
        (None, EXPIRED, True),
        ("published", EXPIRED, False),
        ("published", FAILED, True),
        ("published", "", True),
    ],
)
def test_only_the_published_dialect_hides_when_an_expired_job_ended(
    dialect: str | None, errors: str, present: bool
) -> None:
    envelope = render(row(state="discarded", finished_at=AT2, errors=errors), dialect=dialect)
    assert ("completed_at" in envelope) is present
    assert envelope["discarded_at"] == T2


@given(any_document)
def test_what_was_sent_comes_back(document: dict[str, Any]) -> None:
    try:
        job = parse(document, now=NOW, settings=SETTINGS)
    except OJSError:
        return
    stored = row(type=job.type, queue=job.queue, args=job.args_text, meta=job.meta_text, extra=job.extra_text)
    envelope = render(stored, dialect="spec")
    assert envelope["args"] == document["args"]
    assert job.extra.items() <= envelope.items()
    for name, value in document.items():
        if name not in TOP_LEVEL:
            assert envelope[name] == value


# Traces


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(
    "meta, trace_id",
    [
        ({}, ""),
        ({"trace_id": "abc"}, "abc"),
        ({"trace_id": "x" * 70}, "x" * 64),
        ({"trace_id": "a\x00b"}, ""),
        ({"trace_id": 5}, ""),
        ({"trace_id": "", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}, TRACE),
        ({"trace_id": "mine", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}, "mine"),
        ({"traceparent": f"cc-{TRACE}-00f067aa0ba902b7-01-what-comes-later"}, TRACE),
        ({"traceparent": f"ff-{TRACE}-00f067aa0ba902b7-01"}, ""),
        ({"traceparent": f"00-{'0' * 32}-00f067aa0ba902b7-01"}, ""),
        ({"traceparent": f"00-{TRACE}-{'0' * 16}-01"}, ""),
        ({"traceparent": f"00-{TRACE.upper()}-00f067aa0ba902b7-01"}, ""),
        ({"traceparent": "nonsense"}, ""),
        ({"traceparent": 5}, ""),
    ],
)
def test_the_trace_of_a_job(meta: dict[str, Any], trace_id: str) -> None:
    assert trace_id_of(meta) == trace_id
    assert spec(meta=meta).trace_id == trace_id
