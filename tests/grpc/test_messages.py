"""Messages and the JSON objects of the HTTP binding: each becomes the other, and nothing gets lost."""

from __future__ import annotations

import datetime as dt
import math
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("google.protobuf")

from django_ojs import jsontext, spellings
from django_ojs.errors import InvalidPayload, InvalidRequest, InvalidWorkflow, OJSError
from django_ojs.grpc.definition import ENUMS, MESSAGES, Duration, Timestamp, Value
from django_ojs.grpc.messages import SHAPES, to_document, to_message
from django_ojs.rules import attributes, envelope
from django_ojs.rules.durations import parse_instant
from tests.grpc.test_values import json_values, meaning, texts

NOW = dt.datetime(2026, 11, 23, 10, tzinfo=dt.UTC)
TIME = "2026-11-23T10:00:00.123Z"
JOB_ID = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"
JOB = {
    "specversion": "1.0.0-rc.1", "id": JOB_ID, "type": "email.send", "queue": "mail", "args": ["a", {"b": [1.5, None]}],
    "meta": {"k": "v"}, "priority": 0, "x_note": {"deep": [2**60]}, "retry": {"max_attempts": 5, "strategy": "linear"},
    "state": "retryable", "attempt": 1, "max_attempts": 5, "created_at": TIME, "enqueued_at": TIME, "started_at": TIME,
    "retry_delay_ms": 900, "next_attempt_at": TIME, "next_retry_at": TIME,
    "errors": [{"type": "smtp", "code": "handler_error", "message": "no", "retryable": True, "attempt": 1,
                "occurred_at": TIME, "timestamp": TIME, "backtrace": ["at a", "at b\n  b()"], "details": {"n": 1}}],
}  # fmt: skip

WORKFLOW = {
    "id": "w", "name": "", "state": "active", "created_at": TIME,
    "steps": [
        {"index": 0, "id": "s", "type": "a.b", "state": "available", "job_id": JOB_ID, "depends_on": [],
         "job_state": "retryable"},
        {"index": 1, "id": "t", "type": "a.b", "state": "pending", "job_id": None, "depends_on": ["s"]},
    ],
}  # fmt: skip


def wire(message: Any) -> Any:
    """The message as the other side parses it."""
    return type(message).FromString(message.SerializeToString())


def through(name: str, document: dict[str, Any]) -> dict[str, Any]:
    return to_document(wire(to_message(name, document)))


def same(value: Any) -> Any:
    """What a value means, with times as instants."""
    if isinstance(value, str) and re.fullmatch(r"\d{4}-.*(Z|[+-]\d\d:\d\d)", value):
        try:
            return ("instant", parse_instant(value))
        except ValueError:
            return value
    if isinstance(value, dict):
        return {name: same(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [same(inner) for inner in value]
    return meaning(value)


# Every message

plausible = st.one_of(
    json_values,
    st.sampled_from(["email.send", "", "5", "active", "pending", "running", "reject", "ok", "PT1S", "1h", "+PT5M",
                     "+1h", "PT0S", TIME, "2026-11-23T12:00:00+02:00", "1970-01-01T00:00:00Z", "2026-02-30T00:00:00Z",
                     0, 1, -1, 2**31, 2**63, 0.0, 1.5, True, False, None, [], {}, ["a"], [""], [1], [None]]),
)  # fmt: skip
ALIASES = ("timeout_ms", "visibility_timeout_ms", "scheduled_at", "delay_until", "time", "available", "crons", "jobs",
           "items", "pagination", "total", "state", "job", "dropped", "cron_job", "expires_at", "retry_policy",
           "cancelled_at", "discarded_at", "job_state", "stats", "paused", "error")  # fmt: skip


def documents_of(name: str, depth: int = 2) -> st.SearchStrategy[dict[str, Any]]:
    """JSON objects with members that the message has fields for, right and wrong, and with any others."""
    fields = MESSAGES[name].DESCRIPTOR.fields
    inner = []
    for field in fields:
        kind = field.message_type
        if kind is not None and kind.name in SHAPES and depth:
            nested = documents_of(kind.name, depth - 1)
            inner += [nested, st.lists(nested, max_size=2)]
    names = st.sampled_from([*(field.name for field in fields if field.number != 200), *ALIASES]) | texts
    return st.dictionaries(names, st.one_of(plausible, *inner), max_size=6)


WITH_ATTRIBUTES = sorted(set(MESSAGES) - {"Implementation", "BatchJobError"})
ANSWERS = sorted(name for name, shape in SHAPES.items() if shape.answer)
REQUESTS = sorted(set(SHAPES) - set(ANSWERS))
#: Members of requests that become options, where those say the same.
MOVED = {"queue", "priority", "tags", "retry", "unique", "meta", "timeout_ms", "visibility_timeout_ms", "pending",
         "scheduled_at"}  # fmt: skip

OWN_OPTIONS = {"ttl", "trace_id"}


def test_every_message_has_a_shape() -> None:
    assert SHAPES.keys() == MESSAGES.keys()
    assert {name for name in REQUESTS if not name.endswith("Request")} == {
        "RetryPolicy", "UniquePolicy", "EnqueueOptions", "BatchJobEntry", "WorkflowStep",
    }  # fmt: skip


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_no_document_loses_anything(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(WITH_ATTRIBUTES))
    document = data.draw(documents_of(name))
    if name == "EnqueueOptions":  # its own words for what is elsewhere in JSON
        document = {member: value for member, value in document.items() if member not in OWN_OPTIONS}
    message = wire(to_message(name, document))
    try:
        back = to_document(message)
    except OJSError as error:
        pytest.fail(f"{name} refuses what it wrote itself: {error.message}")
    assert lost(document, back) == {}, (document, back)


def lost(document: dict[str, Any], back: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for member, value in document.items():
        if member in back and agree(value, back[member]):
            continue
        options = back.get("options")
        moved = {"scheduled_at": "delay_until"}.get(member, member)
        if member in MOVED and isinstance(options, dict) and agree(value, options.get(moved)):
            continue
        if value is None and member not in back:
            continue
        found[member] = value
    return found


def agree(before: Any, after: Any) -> bool:
    """Whether nothing of `before` is missing in `after`, which may say more: zeros, and what HTTP says twice."""
    if isinstance(before, dict) and isinstance(after, dict):
        return not lost(before, after)
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(agree, before, after))
    return bool(same(before) == same(after))


# Requests


def test_a_push_is_the_envelope_that_http_takes() -> None:
    request = MESSAGES["EnqueueRequest"](type="email.send")
    assert to_document(request) == {"type": "email.send", "args": []}
    values_of(request.args, "a", 5, {"b": None})
    options = request.options
    options.queue, options.trace_id, options.priority, options.pending = "mail", "t1", 0, False
    options.delay_until.FromJsonString("2026-11-24T00:00:00Z")
    options.timeout.FromMilliseconds(1500)
    options.visibility_timeout.FromMilliseconds(30_000)
    options.ttl.FromSeconds(3600)
    options.tags.append("x")
    options.meta.fields["trace_id"].string_value = "beaten"
    options.meta.fields["k"].number_value = 1
    options.max_attempts = 7
    options.retry.initial_interval.FromSeconds(90)
    options.retry.jitter = False
    options.unique.key.append("user_id")
    options.unique.period.FromSeconds(60)
    options.unique.on_conflict = 3
    options.unique.states.extend([2, 4])
    options.attributes["id"].string_value = JOB_ID
    options.attributes["result_ttl"].number_value = 60
    request.attributes["x_note"].bool_value = True
    assert to_document(wire(request)) == {
        "type": "email.send",
        "args": ["a", 5, {"b": None}],
        "id": JOB_ID,
        "x_note": True,
        "options": {
            "queue": "mail", "priority": 0, "pending": False, "delay_until": "2026-11-24T00:00:00Z", "timeout_ms": 1500,
            "visibility_timeout_ms": 30000, "expires_at": "+PT1H", "tags": ["x"], "result_ttl": 60,
            "meta": {"trace_id": "t1", "k": 1},
            "max_attempts": 7, "retry": {"initial_interval": "PT1M30S", "jitter": False},
            "unique": {"key": ["user_id"], "period": "PT1M", "on_conflict": "ignore",
                       "states": ["available", "active"]},
        },
    }  # fmt: skip


def values_of(repeated: Any, *values: Any) -> None:
    repeated.extend(to_message("EnqueueRequest", {"args": list(values)}).args)


def test_a_zero_counts_only_where_it_can_be_told_from_nothing() -> None:
    request = MESSAGES["EnqueueRequest"](type="t", options={"queue": "", "retry": {"max_attempts": 0, "jitter": False}})
    assert to_document(wire(request))["options"] == {"retry": {"max_attempts": 0, "jitter": False}}
    request.options.retry.Clear()
    assert to_document(wire(request))["options"] == {"retry": {}}
    nack = MESSAGES["NackRequest"](job_id="x", error={"message": "no", "retryable": False})
    assert to_document(wire(nack))["error"] == {"message": "no", "retryable": False}
    nack.error.ClearField("retryable")
    assert to_document(wire(nack))["error"] == {"message": "no"}


def test_a_field_beats_the_attribute_of_its_name_in_a_request() -> None:
    request = MESSAGES["AckRequest"](job_id="field")
    request.attributes["job_id"].string_value = "attribute"
    request.attributes["worker_id"].string_value = "w"
    assert to_document(request) == {"job_id": "field", "worker_id": "w"}


def test_the_attribute_beats_its_field_in_an_answer() -> None:
    error = {"type": "smtp", "code": "handler_error", "message": "no"}
    message = to_message("JobError", error)
    assert message.code == "smtp"
    assert to_document(wire(message)) == error


def test_the_max_attempts_of_the_options_are_for_a_policy_without() -> None:
    request = MESSAGES["EnqueueRequest"](type="t", options={"max_attempts": 7, "retry": {"max_attempts": 2}})
    assert spellings.read_job(to_document(request), now=NOW).retry == {"max_attempts": 2}
    request.options.retry.Clear()
    request.options.retry.jitter = False
    assert spellings.read_job(to_document(request), now=NOW).retry == {"max_attempts": 7, "jitter": False}


#: What every spelling of a job has to become again: the same job, however it travelled.
SPELLINGS = [
    {"type": "a.b", "args": [1]},
    {"type": "a.b", "args": [], "queue": "q", "priority": 5, "meta": {"a": 1}, "tags": ["x"], "pending": True},
    {"type": "a.b", "args": [], "queue": "q", "options": {"queue": "r", "meta": {"b": 1}}, "meta": {"a": 1}},
    {"type": "a.b", "args": [], "timeout": 5, "timeout_ms": 700, "options": {"visibility_timeout": "30s"}},
    {"type": "a.b", "args": [], "timeout_ms": 700, "options": {"timeout": 3}, "visibility_timeout_ms": 5000},
    {"type": "a.b", "args": [], "scheduled_at": "2027-01-01T00:00:00Z", "options": {"delay_until": "+1h"}},
    {"type": "a.b", "args": [], "scheduled_at": "2027-01-01T00:00:00Z", "options": {"expires_at": "+2400h"}},
    {"type": "a.b", "args": [], "retry": {"max_attempts": 2, "initial_interval": "90s", "backoff_strategy": "linear"}},
    {"type": "a.b", "args": [], "meta": {"a": 1},
     "options": {"retry_policy": {"max_attempts": 2}, "metadata": {"c": 1}}},
    {"type": "a.b", "args": [{"u": 1}], "unique": {"keys": ["type", "args"], "args_keys": ["u"], "period_ms": 5000}},
    {"type": "a.b", "args": [], "id": JOB_ID, "x": 1, "options": {"x": 2, "id": 3, "priority": -100}, "version": "2.0"},
    {"type": "a.b", "args": [], "rate_limit": {"limit": 1, "period": "PT1S", "key": "k"}, "result_ttl": 0},
    {"type": "a.b", "args": [], "priority": None, "options": None, "meta": {}, "tags": []},
    {"type": "a.b@1.2", "args": [9007199254740993], "meta": {"\ud800": 1e300}},
    {"type": "a.b", "args": [], "options": {}, "total_timeout": 9, "retry": {}},
]  # fmt: skip
WRONG = [
    {"type": 5, "args": []}, {"type": "", "args": []}, {"args": []}, {"type": "a.b", "args": {}},
    {"type": "a.b", "args": None}, {"type": "a.b", "args": [], "options": []}, {"type": "a.b", "args": [], "meta": 5},
    {"type": "a.b", "args": [], "options": {"priority": "x"}}, {"type": "a.b", "args": [], "priority": 101},
    {"type": "a.b", "args": [], "options": {"queue": "NO!"}}, {"type": "a.b", "args": [], "queue": ""},
    {"type": "a.b", "args": [], "scheduled_at": "+1h"}, {"type": "a.b", "args": [], "options": {"delay_until": "soon"}},
    {"type": "a.b", "args": [], "retry": {"max_attempts": -1}}, {"type": "a.b", "args": [], "retry": "often"},
    {"type": "a.b", "args": [], "retry": {"max_attempts": True}}, {"type": "a.b", "args": [], "timeout_ms": 1.5},
    {"type": "a.b", "args": [], "retry": {"backoff_coefficient": 0.5}}, {"type": "a.b", "args": [], "tags": [1]},
    {"type": "a.b", "args": [], "unique": {"on_conflict": "explode"}}, {"type": "a.b", "args": [], "id": "x"},
    {"type": "a.b", "args": [], "unique": {"states": ["gone"]}}, {"type": "a.b", "args": [], "pending": "yes"},
    {"type": "a.b", "args": [], "expires_at": 5}, {"type": "a.b", "args": [], "options": {"expires_at": "+soon"}},
]  # fmt: skip


def parsed(document: dict[str, Any]) -> envelope.JobSpec:
    spec = spellings.read_job(document, now=NOW)
    spec.id = spec.id if "id" in document else None  # type: ignore[assignment]
    return spec


@pytest.mark.parametrize("document", SPELLINGS)
@pytest.mark.parametrize("in_batch", [False, True])
def test_a_job_is_the_same_job_in_whatever_spelling_it_travelled(document: dict[str, Any], in_batch: bool) -> None:
    back = through("EnqueueBatchRequest", {"jobs": [document]})["jobs"][0] if in_batch else through(
        "EnqueueRequest", document
    )  # fmt: skip
    before, after = parsed(document), parsed(back)
    for name in ("extra_text", "args_text", "meta_text"):  # only the order of keys may differ
        texts = [jsontext.loads(getattr(spec, name) or "null") for spec in (before, after)]
        assert same(texts[0]) == same(texts[1])
        setattr(after, name, getattr(before, name))
    after.extra, before.extra = same(after.extra), same(before.extra)
    assert after == before


@pytest.mark.parametrize("document", WRONG)
def test_a_faulty_job_is_as_faulty_behind_its_message(document: dict[str, Any]) -> None:
    with pytest.raises(OJSError) as before:
        spellings.read_job(document, now=NOW)
    with pytest.raises(OJSError) as after:
        spellings.read_job(
            through("EnqueueRequest", document) | ({} if "args" in document else {"args": None}), now=NOW
        )
    assert type(after.value) is type(before.value)
    assert after.value.details["field"].removeprefix("options.") == before.value.details["field"].removeprefix(
        "options."
    )
    assert after.value.details["received"] == before.value.details["received"]


def test_the_options_of_an_entry_lie_over_those_of_its_batch() -> None:
    request = MESSAGES["EnqueueBatchRequest"](
        jobs=[
            {"type": "a.b"},
            {"type": "a.b", "options": {"queue": "own", "priority": 0, "trace_id": "mine", "retry": {"jitter": False}}},
            {"type": "a.b", "options": {"max_attempts": 1, "meta": {"both": "own", "own": 1}}},
            {"type": "a.b"},
        ],
        default_options={
            "queue": "q", "priority": 9, "trace_id": "theirs", "max_attempts": 4, "ttl": {"seconds": 60},
            "meta": {"both": "default", "default": 1}, "delay_until": {"seconds": 1_800_000_000},
        },
    )  # fmt: skip
    request.default_options.attributes["x_all"].bool_value = True
    request.jobs[3].options.attributes["expires_at"].string_value = "2027-01-01T00:00:00Z"
    request.jobs[3].options.attributes["delay_until"].string_value = "+5m"
    request.jobs[3].options.meta.fields["trace_id"].string_value = "inside"
    plain, second, third, fourth = to_document(wire(request))["jobs"]
    common = {"queue": "q", "priority": 9, "max_attempts": 4, "expires_at": "+PT1M",
              "delay_until": "2027-01-15T08:00:00Z"}  # fmt: skip
    assert plain == {
        "type": "a.b", "args": [], "x_all": True,
        "options": {**common, "meta": {"both": "default", "default": 1, "trace_id": "theirs"}},
    }  # fmt: skip
    assert second["options"] == {
        **common, "queue": "own", "priority": 0, "retry": {"jitter": False},
        "meta": {"both": "default", "default": 1, "trace_id": "mine"},
    }  # fmt: skip
    assert third["options"]["meta"] == {"both": "own", "default": 1, "own": 1, "trace_id": "theirs"}
    assert third["options"]["max_attempts"] == 1
    assert fourth["options"] == {
        **common, "expires_at": "2027-01-01T00:00:00Z", "delay_until": "+5m",
        "meta": {"both": "default", "default": 1, "trace_id": "inside"},
    }  # fmt: skip


@pytest.mark.parametrize("name", attributes.TIMEOUTS)
def test_a_timeout_of_an_entry_beats_that_of_its_batch_in_either_unit(name: str) -> None:
    for theirs, own in ((name, f"{name}_ms"), (f"{name}_ms", name)):
        request = MESSAGES["EnqueueBatchRequest"](jobs=[{"type": "a.b"}], default_options={"queue": "q"})
        request.default_options.attributes[theirs].number_value = 9
        request.jobs[0].options.attributes[own].number_value = 7
        assert to_document(wire(request))["jobs"][0]["options"] == {"queue": "q", own: 7}


def test_the_attempts_of_an_entry_beat_those_of_the_policy_of_its_batch() -> None:
    """A policy beats the number beside it in one job."""
    request = MESSAGES["EnqueueBatchRequest"](
        jobs=[{"type": "a.b", "options": {"max_attempts": 9}}, {"type": "a.b", "options": {"retry": {"jitter": True}}}],
        default_options={"retry": {"max_attempts": 3, "jitter": False}},
    )
    first, second = (job["options"] for job in to_document(wire(request))["jobs"])
    assert first == {"max_attempts": 9, "retry": {"jitter": False}}
    assert second == {"retry": {"jitter": True}}


@pytest.mark.parametrize("value", [None, 5, "done", [1, 2], {}, {"a": 1}, {"__ojs_json": "5"}, 2**70, "\ud800", False])
def test_a_result_of_any_kind(value: Any) -> None:
    message = wire(to_message("AckRequest", {"job_id": JOB_ID, "result": value}))
    assert to_document(message) == {"job_id": JOB_ID, "result": value}
    assert ("__ojs_json" in message.result.fields) is (value not in ({}, {"a": 1}))
    assert through("Job", JOB | {"result": value})["result"] == value


def test_no_result_is_none() -> None:
    assert to_document(MESSAGES["AckRequest"](job_id="x")) == {"job_id": "x"}
    assert not to_message("AckRequest", {"job_id": "x"}).HasField("result")


def test_a_beat_in_the_words_of_http() -> None:
    request = MESSAGES["HeartbeatRequest"](worker_id="w", current_state=2, extend_by={"seconds": 30})
    assert to_document(request) == {"worker_id": "w", "state": "quiet", "visibility_timeout_ms": 30_000}
    answer = {"state": "terminate", "worker_id": "w", "jobs_extended": [], "cancelled_jobs": [JOB_ID]}
    message = to_message("HeartbeatResponse", answer | {"new_deadline": TIME})
    assert message.directed_state == 3
    assert message.new_deadline.ToJsonString() == TIME
    assert same(to_document(wire(message))) == same(answer | {"new_deadline": TIME})


def test_a_limit_may_be_the_text_of_a_query() -> None:
    message = to_message("ListDeadLetterRequest", {"limit": "20", "cursor": "c", "queue": "q"})
    assert (message.limit, message.cursor, message.queue) == (20, "c", "q")
    assert to_message("ListQueuesRequest", {"limit": "x"}).attributes["limit"].string_value == "x"


# What no document can say

BROKEN: list[tuple[str, Any, type[OJSError], str]] = [
    ("EnqueueRequest", {"args": [Value()]}, InvalidPayload, "args[0]"),
    ("EnqueueRequest", {"args": [Value(number_value=math.nan)]}, InvalidPayload, "args[0]"),
    ("EnqueueRequest", {"options": {"delay_until": Timestamp(seconds=2**60)}}, InvalidPayload, "options.delay_until"),
    ("EnqueueRequest", {"options": {"timeout": Duration(seconds=-1)}}, InvalidPayload, "options.timeout_ms"),
    ("EnqueueRequest", {"options": {"ttl": Duration()}}, InvalidPayload, "options.ttl"),
    ("EnqueueRequest", {"options": {"unique": {"on_conflict": 9}}}, InvalidRequest, "options.unique.on_conflict"),
    ("EnqueueRequest", {"options": {"unique": {"states": [0]}}}, InvalidRequest, "options.unique.states"),
    ("EnqueueRequest", {"options": {"retry": {"backoff_coefficient": math.inf}}}, InvalidPayload,
     "options.retry.backoff_coefficient"),
    ("EnqueueRequest", {"options": {"attributes": {"x": Value()}}}, InvalidPayload, "options.x"),
    ("EnqueueRequest", {"attributes": {"__ojs_json": Value(string_value="[]")}}, InvalidPayload, "__ojs_json"),
    ("EnqueueBatchRequest", {"jobs": [{}, {"args": [Value()]}]}, InvalidPayload, "jobs[1].args[0]"),
    ("EnqueueBatchRequest", {"default_options": {"ttl": Duration()}}, InvalidPayload, "default_options.ttl"),
    ("CreateWorkflowRequest", {"steps": [{"args": [Value()]}]}, InvalidWorkflow, "$.steps[0].args[0]"),
    ("HeartbeatRequest", {"current_state": 17}, InvalidRequest, "state"),
    ("HeartbeatRequest", {"extend_by": Duration(seconds=1, nanos=-1)}, InvalidRequest, "visibility_timeout_ms"),
]  # fmt: skip


@pytest.mark.parametrize("name, given, error, field", BROKEN)
def test_what_is_no_json_is_refused_with_the_words_of_http(
    name: str, given: dict[str, Any], error: type[OJSError], field: str
) -> None:
    with pytest.raises(OJSError) as raised:
        to_document(wire(MESSAGES[name](**given)))
    assert type(raised.value) is error
    assert raised.value.details["field"] == field
    assert raised.value.details["validation_errors"][0]["path"] == field
    if field.startswith("jobs"):
        assert raised.value.details["index"] == 1


def test_unknown_fields_are_ignored() -> None:
    known = to_message("AckRequest", {"job_id": "x"})
    raw = known.SerializeToString() + b"\x98\x06\x01"  # the number 99
    assert to_document(MESSAGES["AckRequest"].FromString(raw)) == {"job_id": "x"}


# Answers


def test_a_job_says_everything_that_http_shows() -> None:
    message = wire(to_message("Job", JOB))
    assert same(to_document(message)) == same(JOB)
    assert message.state == ENUMS["JobState"].values_by_name["JOB_STATE_RETRYABLE"].number
    assert message.retry_policy.max_attempts == 5
    assert message.retry_policy.jitter is True
    assert message.retry_policy.on_exhaustion == "dead_letter"
    assert message.retry_policy.attributes["backoff_strategy"].string_value == "linear"
    assert message.errors[0].code == "smtp"
    assert message.errors[0].backtrace == "at a\nat b\n  b()"
    assert message.HasField("meta")


def test_the_stored_policy_is_the_one_that_is_shown() -> None:
    stored = (
        '{"max_attempts":9,"initial_ms":2500,"jitter":false,"non_retryable":["a.*"],"on_exhaustion":"discard",'
        '"retryable":["b"]}'
    )
    message = wire(to_message("Job", JOB | {envelope.POLICY_MEMBER: stored}))
    policy = message.retry_policy
    assert (policy.max_attempts, policy.initial_interval.ToMilliseconds(), policy.jitter) == (9, 2500, False)
    assert policy.HasField("jitter")
    assert (policy.max_interval.ToSeconds(), policy.backoff_coefficient) == (300, 2.0)
    assert ([*policy.non_retryable_errors], policy.on_exhaustion) == (["a.*"], "discard")
    assert policy.attributes["retryable_errors"].list_value.values[0].string_value == "b"
    assert to_document(policy)["retryable_errors"] == ["b"]
    assert envelope.POLICY_MEMBER not in to_document(message)


def test_an_envelope_tells_its_policy_only_where_it_is_asked() -> None:
    row = dict.fromkeys(("retry_delay_ms", "activated_at", "enqueued_at", "started_at", "finished_at", "result",
                         "due_at", "worker_id", "workflow_id"))  # fmt: skip
    row |= {"id": JOB_ID, "type": "a.b", "queue": "q", "args": "[]", "meta": "{}", "priority": 0, "extra": "",
            "state": "available", "attempt": 0, "max_attempts": 3, "created_at": NOW, "errors": "",
            "retry": "{}"}  # fmt: skip
    assert envelope.POLICY_MEMBER not in envelope.render(row)
    token = envelope.with_policy.set(True)
    try:
        assert envelope.render(row)[envelope.POLICY_MEMBER] == "{}"
    finally:
        envelope.with_policy.reset(token)


@pytest.mark.parametrize(
    "given, shown",
    [
        ({"keys": ["type", "queue"]}, {"key": ["type", "queue"]}),
        ({"key": ["user_id"], "period": "1h"}, {"key": ["user_id"], "period": 3600}),
        ({"key": ["args"], "args_keys": ["u"]}, {"key": ["type", "args"], "args_keys": ["u"]}),
        ({"on_conflict": "use_existing"}, {"key": ["type", "args"], "on_conflict": 3}),
    ],
)
def test_a_unique_policy_is_shown_as_it_works_and_as_it_was_written(given: Any, shown: dict[str, Any]) -> None:
    message = wire(to_message("Job", JOB | {"unique": given}))
    policy = message.unique_policy
    assert [*policy.key] == shown["key"]
    assert policy.period.ToSeconds() == shown.get("period", 0)
    assert [*policy.args_keys] == shown.get("args_keys", [])
    assert policy.on_conflict == shown.get("on_conflict", 1)
    assert to_document(message)["unique"] == given


@pytest.mark.parametrize("state, name", [("cancelled", "cancelled_at"), ("discarded", "discarded_at")])
def test_completed_at_is_the_end_of_whatever_kind(state: str, name: str) -> None:
    job = JOB | {"state": state, name: TIME} | ({"completed_at": TIME} if state == "discarded" else {})
    message = wire(to_message("Job", job))
    assert message.completed_at.ToJsonString() == TIME
    assert same(to_document(message)) == same(job)


@pytest.mark.parametrize(
    "meta, trace_id",
    [
        ({"trace_id": "t"}, "t"),
        ({"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}, "a" * 32),
        ({"trace_id": "\ud800"}, ""),
    ],
)
def test_a_job_names_its_trace(meta: dict[str, Any], trace_id: str) -> None:
    message = wire(to_message("Job", JOB | {"meta": meta}))
    assert message.trace_id == trace_id
    assert to_document(message)["meta"] == meta


@pytest.mark.parametrize(
    "name, answer",
    [
        ("EnqueueResponse", {"job": JOB, **JOB, "warnings": [{"code": "unknown_member", "path": "x", "message": "m"}]}),
        ("EnqueueResponse", {"job": JOB, **JOB, "deduplicated": True}),
        ("EnqueueResponse", {"job": None, "dropped": True}),
        ("GetJobResponse", {"job": JOB | {"previous_state": "x"}, **JOB, "previous_state": "x"}),
        ("FetchResponse", {"jobs": []}),
        ("FetchResponse", {"jobs": [JOB, JOB | {"id": "other"}], "job": JOB}),
        ("AckResponse", {"acknowledged": True, "job_id": JOB_ID, "state": "completed", "completed_at": TIME,
                         "job": JOB}),
        ("NackResponse", {"id": JOB_ID, "state": "retryable", "next_attempt_at": TIME, "job": JOB}),
        ("EnqueueBatchResponse", {"jobs": [JOB], "count": 1, "dropped": [0, 2]}),
        ("EnqueueBatchResponse", {"jobs": [], "count": 0}),
        ("ListQueuesResponse", {"queues": [{"name": "q", "paused": False, "available": 3, "created_at": TIME,
                                            "total": 9}],
                                "total": 1, "pagination": {"total": 1, "has_more": True, "next_cursor": "abc"}}),
        ("QueueStatsResponse", {"queue": {"name": "q"}, "name": "q", "paused": True,
                                "stats": {**dict.fromkeys(("available", "active", "scheduled", "retryable", "dead",
                                                           "completed_last_hour", "failed_last_hour"), 0),
                                          "avg_duration_ms": 12, "avg_wait_ms": 0.5, "throughput_per_second": 0.25,
                                          "max_depth": 0}}),
        ("PauseQueueResponse", {"queue": {"name": "q"}, "name": "q", "paused": True, "paused_at": TIME}),
        ("ListDeadLetterResponse", {"jobs": [JOB], "items": [JOB], "total": 5, "pagination": {"next_cursor": "n"}}),
        ("DeleteDeadLetterResponse", {"deleted": True, "job_id": JOB_ID}),
        ("RegisterCronResponse", {"id": "n", "name": "n", "expression": "* * * * *", "next_run_at": None,
                                  "cron": {"id": "n", "name": "n", "cron": "* * * * *", "expression": "* * * * *",
                                           "next_run_at": None},
                                  "cron_job": {"id": "n", "name": "n", "cron": "* * * * *", "expression": "* * * * *",
                                               "next_run_at": None}}),
        ("ListCronResponse", {name: [{"name": "n", "cron": "@daily", "type": "a.b", "args": [], "queue": "q",
                                      "meta": {}, "options": {"priority": 5, "callback": 1}, "enabled": True,
                                      "last_run_at": None, "next_run_at": TIME}]
                              for name in ("crons", "cron_jobs", "items")} | {"count": 1}),
        ("GetWorkflowResponse", {"workflow": WORKFLOW, **WORKFLOW}),
        ("Workflow", WORKFLOW),
        ("Event", {"specversion": "1.0", "id": "e", "type": "job.started", "source": "/s", "time": TIME, "subject": "x",
                   "datacontenttype": "application/json", "data": {"job_id": JOB_ID, "job_type": "a.b", "queue": "q"}}),
        ("HealthResponse", {"status": "ok", "timestamp": TIME, "version": "1", "backend": {"latency_ms": 0.5}}),
        ("ManifestResponse", {"ojs_version": "1.0", "conformance_level": 4, "protocols": ["http", "grpc"],
                              "implementation": {"name": "d", "version": "1", "language": "python",
                                                 "backend": "sqlite"},
                              "extensions": {"official": [{"name": "priority", "uri": "u", "version": "1"}],
                                             "experimental": []}, "backend": "sqlite", "schema_validation": False}),
    ],
)  # fmt: skip
def test_an_answer_of_http_comes_back_as_it_was(name: str, answer: dict[str, Any]) -> None:
    back = through(name, answer)
    assert lost(answer, back) == {}
    assert lost(back, answer) == {}, "nothing is made up"


def test_an_answer_that_repeats_a_job_carries_it_once() -> None:
    message = to_message("EnqueueResponse", {"job": JOB, **JOB, "deduplicated": True})
    assert [*message.attributes] == ["deduplicated"]


def test_steps_of_workflows_are_judged_by_their_jobs() -> None:
    def state(**step: Any) -> str:
        message = to_message("WorkflowStepStatus", {"id": "s", **step})
        return str(ENUMS["WorkflowStepState"].values_by_number[message.state].name.removeprefix("WORKFLOW_STEP_STATE_"))

    assert state(state="waiting", job_id=None) == "WAITING"
    assert state(state="pending", job_id=None) == "WAITING"  # so says the free form
    assert state(state="pending", job_id=JOB_ID, job_state="scheduled") == "PENDING"
    assert state(state="available", job_id=JOB_ID, job_state="retryable") == "PENDING"
    assert state(state="active", job_id=JOB_ID, job_state="active") == "ACTIVE"
    assert state(state="failed", job_id=JOB_ID, job_state="discarded") == "FAILED"
    assert state(state="cancelled", job_id=None) == "CANCELLED"
    assert to_message("Workflow", {"state": "active"}).state == 1


def test_what_repeats_other_members_is_set_for_typed_clients() -> None:
    event = to_message("Event", {"id": "", "data": {"job_id": JOB_ID, "queue": "q", "job_type": "a.b", "x": 1}})
    assert (event.job_id, event.queue, event.job_type, event.workflow_id) == (JOB_ID, "q", "a.b", "")
    page = to_message("ListDeadLetterResponse", {"jobs": [], "total": 7, "pagination": {"next_cursor": "c"}})
    assert (page.total_count, page.next_cursor) == (7, "c")
    entry = to_message("CronEntry", {"name": "n", "queue": "q", "meta": {"a": 1}, "options": {"priority": 3}})
    assert (entry.options.queue, entry.options.priority, entry.options.meta.fields["a"].number_value) == ("q", 3, 1)
    manifest = to_message("ManifestResponse", {"extensions": {"official": [{"name": "priority"}], "experimental": []}})
    assert [*manifest.extensions] == ["priority"]
    batch = to_message("EnqueueBatchResponse", {"jobs": [], "count": 0, "dropped": [2]})
    assert {index: error.code for index, error in batch.errors.items()} == {2: "dropped"}


def test_answers_hold_no_unspecified_state() -> None:
    for enum, name, field, member in (
        ("JobState", "Job", "state", "state"),
        ("WorkerState", "HeartbeatResponse", "directed_state", "state"),
        ("HealthStatus", "HealthResponse", "status", "status"),
        ("WorkflowState", "Workflow", "state", "state"),
    ):
        words = [value.name for value in ENUMS[enum].values if value.number]
        for number, word in enumerate(words, start=1):
            prefix = "".join(f"{part.upper()}_" for part in re.findall("[A-Z][a-z]+", enum))
            assert getattr(to_message(name, {member: word.removeprefix(prefix).lower()}), field) == number
