"""The parser tier: every fault of a document is found, with its place and a hint, and our schema agrees."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from django.core.management import CommandError, call_command
from hypothesis import given
from hypothesis import strategies as st

from django_ojs import clock, states
from django_ojs.envelope import validate
from django_ojs.errors import Duplicate, InvalidRequest, OJSError
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Failure, fail
from django_ojs.jobs.push import push, push_each
from django_ojs.rules.attributes import SYSTEM
from django_ojs.rules.envelope import render
from django_ojs.rules.problems import validate_sequence
from django_ojs.spellings import read_job
from django_ojs.states import State, Verb

ID = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"
FINE: dict[str, Any] = {"type": "email.send", "args": []}
SCHEMA = json.loads(resources.files("django_ojs").joinpath("schemas/envelope.json").read_text())
JUDGE = jsonschema.Draft202012Validator(SCHEMA)

GOOD: list[dict[str, Any]] = [
    {}, {"specversion": "1.0", "id": ID, "queue": "q-1.x"}, {"priority": "high"}, {"priority": 5.0},
    {"x_own": {"a": 1}},
    {"options": {"queue": "q", "scheduled_at": "+PT5S", "retry": {"max_attempts": 0}, "metadata": {"a": 1}}},
    {"retry": {"initial_interval": "1s", "non_retryable_errors": ["a.*"], "on_exhaustion": "discard"}},
    {"unique": {"keys": ["type", "meta"], "meta_keys": ["tenant"], "period": "PT1M", "states": ["active"]}},
    {"scheduled_at": "2026-01-01T00:00:00+02:00", "expires_at": "2026-01-02T00:00:00Z"},
    {"timeout": 0, "total_timeout": 5000, "visibility_timeout": "PT5M", "tags": ["a"], "pending": True},
    {"schema": "urn:ojs:schema:a:v1", "version": 2, "result_ttl": -1, "type": "email.send@2.0"},
    {"state": "active", "attempt": 1, "created_at": "2026-01-01T00:00:00.000Z", "errors": []},
    {"error": {"type": "E", "message": "m", "backtrace": ["at x"], "code": None, "x_own": 1, "attempt": 1}},
    {"errors": [{"type": "E", "message": "m", "details": {}, "retryable": False, "timestamp": "2026-01-01T00:00:00Z"}]},
    {"rate_limit": {"key": "k", "rate": 5, "period": "minute"}}, {"rate_limit": {"key": "queues:a", "concurrency": 1}},
    {"rate_limit": {"max_per_second": 0.5}},
    {"id": "019461a8-6f70-7182-d394-0e1f2a3b4c5d"},
    {"queue": None, "meta": None, "retry": None, "unique": None, "id": None, "options": None},
]  # fmt: skip
BAD: list[tuple[dict[str, Any], str]] = [
    ({"type": None}, "type"), ({"type": "Email"}, "type"), ({"type": 5}, "type"), ({"args": None}, "args"),
    ({"args": {}}, "args"), ({"id": "x"}, "id"), ({"id": ID.upper()}, "id"), ({"queue": ""}, "queue"),
    ({"queue": "A b"}, "queue"), ({"specversion": "2.0"}, "specversion"), ({"meta": []}, "meta"),
    ({"priority": 101}, "priority"), ({"priority": True}, "priority"), ({"timeout": -1}, "timeout"),
    ({"timeout": "5"}, "timeout"), ({"scheduled_at": "tomorrow"}, "scheduled_at"), ({"pending": 1}, "pending"),
    ({"expires_at": "2026-01-01T00:00:00"}, "expires_at"), ({"tags": "a"}, "tags"), ({"tags": [1]}, "tags"),
    *(({name: value + "\n"}, name) for name, value in (("id", ID), ("type", "a"), ("queue", "a"), ("schema", "a:b"))),
    ({"scheduled_at": "2026-01-01T00:00:00Z\n"}, "scheduled_at"), ({"type": "a" * 256}, "type"),
    ({"scheduled_at": "\u0662026-01-01T00:00:00Z"}, "scheduled_at"),
    ({"retry": {"max_interval": "9\u0661s"}}, "retry.max_interval"),
    ({"type": "a" * 256 + "@2"}, "type"), ({"retry": {"initial_interval": "1s\n"}}, "retry.initial_interval"),
    ({"schema": "nope"}, "schema"), ({"options": {"schema": "http://a/<b>"}}, "options.schema"),
    ({"version": 1.5}, "version"), ({"result_ttl": "1h"}, "result_ttl"),
    ({"rate_limit": {"key": "queue:b", "concurrency": 1}}, "rate_limit.key"),
    ({"rate_limit": {"key": "k", "concurrency": 0}}, "rate_limit.concurrency"),
    ({"retry": 3}, "retry"), ({"retry": {"max_attempts": -1}}, "retry.max_attempts"),
    ({"retry": {"backoff_coefficient": 0.5}}, "retry.backoff_coefficient"),
    ({"retry": {"initial_interval": 5}}, "retry.initial_interval"), ({"retry": {"jitter": "no"}}, "retry.jitter"),
    ({"unique": True}, "unique"), ({"unique": {"keys": ["colour"]}}, "unique.keys"),
    ({"unique": {"states": ["gone"]}}, "unique.states"), ({"unique": {"on_conflict": "x"}}, "unique.on_conflict"),
    ({"unique": {"period": 5}}, "unique.period"), ({"options": []}, "options"),
    ({"options": {"queue": "A"}}, "options.queue"), ({"options": {"unique": {"key": "a"}}}, "options.unique.key"),
    ({"state": "gone"}, "state"), ({"attempt": -1}, "attempt"), ({"created_at": "now"}, "created_at"),
    ({"errors": {}}, "errors"), ({"state": []}, "state"), ({"error": []}, "error"),
    ({"error": {"type": "E"}}, "error.message"), ({"error": {"message": "m"}}, "error.type"),
    ({"error": {"type": 5, "message": "m"}}, "error.type"), ({"error": {"type": "E", "message": ""}}, "error.message"),
    ({"error": {"type": "E", "message": "m", "backtrace": "x"}}, "error.backtrace"),
    ({"error": {"type": "E", "message": "m", "occurred_at": "now"}}, "error.occurred_at"),
    ({"error": {"type": "E", "message": "m", "attempt": -1}}, "error.attempt"),
    ({"errors": [{"type": "E", "message": "m"}, {"type": "E", "message": 5}]}, "errors[1].message"),
    ({"rate_limit": {}}, "rate_limit.key"), ({"rate_limit": {"key": 0, "concurrency": 1}}, "rate_limit.key"),
    ({"rate_limit": {"key": "k", "rate": {"limit": 1}}}, "rate_limit.rate.period"),
    ({"timeout": 10**12}, "timeout"), ({"visibility_timeout": "soon"}, "visibility_timeout"),
]  # fmt: skip


@pytest.mark.parametrize("change", GOOD)
def test_a_good_document_has_no_problem_and_fits_the_schema(change: dict[str, Any]) -> None:
    document = {**FINE, **change}
    assert validate(document) == []
    JUDGE.validate(document)
    read_job(document, now=clock.now())


@pytest.mark.parametrize("change, path", BAD)
def test_each_fault_is_found_at_its_place_and_by_the_schema(change: dict[str, Any], path: str) -> None:
    document = {**FINE, **change}
    (problem,) = validate(document)
    assert problem.path == path
    assert problem.message
    assert problem.hint
    assert not JUDGE.is_valid(document)


INSTANT = "2026-01-01T00:00:00Z"
#: Documents that have each attribute once: PUSH looks at no second spelling (binding 3.2), and the schema looks at all.
WHOLE: list[dict[str, Any]] = [
    {
        **FINE, "specversion": "1.0", "id": ID, "queue": "q", "meta": {"k": 1}, "priority": 1, "timeout": 30,
        "enqueue_ttl": 60, "heartbeat_timeout": 5, "grace_period": 5, "visibility_timeout": "PT5M", "version": 2,
        "schema": "urn:a", "tags": ["a"], "pending": True, "result_ttl": 5, "x_own": 1,
        "retry": {
            "max_attempts": 3, "initial_interval": "PT1S", "max_interval": "PT5M", "backoff_coefficient": 2.0,
            "jitter": True, "non_retryable_errors": ["A"], "on_exhaustion": "discard", "backoff_strategy": "linear",
            "retryable_errors": ["B"],
        },
        "unique": {"keys": ["type", "args"], "period": "PT1M", "states": ["active"], "on_conflict": "reject"},
        "rate_limit": {
            "key": "k", "concurrency": 1, "rate": {"limit": 1, "period": "PT1M"}, "on_limit": "wait",
            "throttle": {"limit": 1, "period_ms": 5}, "scope": "tenant",
        },
        "state": "retryable", "attempt": 1, "max_attempts": 3, "retry_delay_ms": 5, "created_at": INSTANT,
        "enqueued_at": INSTANT, "started_at": INSTANT, "next_retry_at": INSTANT, "discarded_at": INSTANT,
        "error": {
            "type": "E", "message": "m", "code": "c", "retryable": True, "backtrace": ["x"], "details": {},
            "attempt": 1, "occurred_at": INSTANT,
        },
        "errors": [{"type": "E", "message": "m"}],
    },
    {
        **FINE,
        "options": {
            "timeout_ms": 5, "total_timeout_ms": 60_000, "grace_period_ms": 5, "visibility_timeout_ms": 5,
            "retry_policy": {
                "initial_delay_ms": 5, "max_interval_ms": 5000, "backoff_multiplier": 2, "strategy": "linear",
            },
            "unique": {"period_seconds": 5, "conflict_policy": "reject", "key": ["a"]}, "metadata": {"k": 1},
            "rate_limit": {"key": "k", "limit": 3, "period": "PT1S", "max_per_second": 2}, "delay_until": INSTANT,
        },
    },
]  # fmt: skip
ODD: list[Any] = [None, True, 5, 0, -1, 1.5, "x", "", "PT1S", [], {}, ["x"], [5], [""], {"a": 1}, 10**14]
#: What the schema cannot know: words that a site defines, and what depends on another member.
BEYOND_THE_SCHEMA = {
    "priority", "args", "unique.keys", "options.unique.key", "options.timeout_ms", "options.total_timeout_ms",
    "options.retry_policy.initial_delay_ms", "options.retry_policy.max_interval_ms",
}  # fmt: skip


def mutants(base: Any) -> Iterator[tuple[str, Any]]:
    """Every document that differs from `base` by one value: gone, or one of `ODD`."""
    if isinstance(base, dict):
        for name, value in base.items():
            yield name, {key: other for key, other in base.items() if key != name}
            yield from ((name, base | {name: odd}) for odd in ODD)
            yield from ((f"{name}.{path}", base | {name: inner}) for path, inner in mutants(value))
    elif isinstance(base, list):
        for index, value in enumerate(base):
            yield from ((str(index), [*base[:index], odd, *base[index + 1 :]]) for odd in ODD)
            yield from (
                (f"{index}.{path}", [*base[:index], inner, *base[index + 1 :]]) for path, inner in mutants(value)
            )


@pytest.mark.django_db
def test_library_schema_and_server_agree_about_every_mutant(settings: Any) -> None:
    """The attributes of the server itself are judged by library and schema; PUSH ignores them (core 5.3)."""
    settings.OJS = {"MAX_BATCH_SIZE": 10_000, "SCHEMA_VALIDATION": "off"}
    found = [("", base) for base in WHOLE] + [mutant for base in WHOLE for mutant in mutants(base)]
    unnamed = [{**document, "id": None} if document.get("id") == ID else document for _, document in found]
    unnamed = [{**document, "schema": None} if document.get("schema") == "urn:a" else document for document in unnamed]
    taken = [not isinstance(outcome, OJSError) or isinstance(outcome, Duplicate) for outcome in push_each(unnamed)]
    differing = set()
    for (path, document), server in zip(found, taken, strict=True):
        library = not validate(document)
        if library != JUDGE.is_valid(document) and not (not library and path in BEYOND_THE_SCHEMA):
            differing.add((path, "schema", library))
        if library != server and path.partition(".")[0] not in SYSTEM:
            differing.add((path, "server", library))
        assert server or path.partition(".")[0] not in SYSTEM
    assert differing == set()
    assert len(found) > 1000


@pytest.mark.django_db
def test_the_server_takes_from_a_worker_every_error_that_is_fine_in_an_envelope() -> None:
    """And shows none that is not, whatever the worker left out."""
    taken: list[Any] = []
    for path, document in mutants({"error": WHOLE[0]["error"]}):
        error = document.get("error")
        try:
            fail([Failure(uuid.uuid4(), error)])
        except InvalidRequest:
            assert error is None or validate({**FINE, **document}), (path, document)
        else:
            taken.append(error)
    assert len(taken) > 50
    push([FINE] * len(taken))
    claimed = fetch(Fetch(["default"], count=len(taken)))
    for row in fail([Failure(row["id"], error) for row, error in zip(claimed, taken, strict=True)]):
        assert not isinstance(row, OJSError)
        shown = render(row)
        assert validate(shown) == [], shown
        JUDGE.validate(shown)


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_every_fault_is_told_not_the_first_only() -> None:
    document = {
        "id": "x", "type": "B", "queue": "A", "args": 1, "priority": 1000, "state": "gone",
        "retry": {
            "max_attempts": -1, "backoff_coefficient": 0, "jitter": 5, "max_interval": "1s", "initial_interval": "2s",
        },
        "unique": {"keys": ["meta"], "period": "x", "states": ["gone"], "on_conflict": "y"},
    }  # fmt: skip
    assert sorted(problem.path for problem in validate(document)) == [
        "args", "id", "priority", "queue", "retry.backoff_coefficient", "retry.jitter", "retry.max_attempts",
        "retry.max_interval", "state", "type", "unique.meta_keys",
    ]  # fmt: skip
    document["unique"] = {"keys": ["x"], "period": "x", "states": ["gone"], "on_conflict": "y"}
    assert {problem.path for problem in validate(document)} >= {
        "unique.keys", "unique.period", "unique.states", "unique.on_conflict",
    }  # fmt: skip


def test_a_complete_envelope_needs_five_attributes() -> None:
    assert [problem.path for problem in validate({}, complete=True)] == ["specversion", "id", "queue", "type", "args"]
    assert validate({**FINE, "specversion": "1.0", "id": ID, "queue": "q"}, complete=True) == []


@pytest.mark.parametrize("document", [None, [], "x", 5])
def test_what_is_no_object_is_one_problem(document: Any) -> None:
    (problem,) = validate(document)
    assert problem.path == ""


def test_arguments_that_a_policy_names_must_be_there() -> None:
    (problem,) = validate({**FINE, "unique": {"args_keys": ["user"]}})
    assert problem.path == "unique.args_keys"


def test_limits_are_problems_too(settings: Any) -> None:
    settings.OJS = {"MAX_META_BYTES": 100, "MAX_ENVELOPE_BYTES": 2000}
    codes = {problem.code for problem in validate({**FINE, "args": ["x" * 3000]})}
    assert codes == {"payload_too_large"}
    assert {problem.code for problem in validate({**FINE, "meta": {"a": "x" * 200}})} == {"metadata_too_large"}
    deep: list[Any] = []
    for _ in range(40):
        deep = [deep]
    assert [problem.path for problem in validate({**FINE, "args": deep})] == ["args"]


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda x: st.lists(x, max_size=2))


ATTRIBUTES = [
    *("type", "args", "id", "queue", "meta", "priority", "timeout", "retry", "unique", "options", "schema", "tags"),
    *("scheduled_at", "expires_at", "pending", "version", "visibility_timeout", "result_ttl"),
]


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(ATTRIBUTES, JSON)))
def test_push_takes_exactly_what_has_no_problem(document: dict[str, Any]) -> None:
    places = {problem.path for problem in validate(document)}
    refused = None
    try:
        read_job(document, now=clock.now())
    except OJSError as error:
        refused = str(error.details.get("field", "")).replace("job", "")
    assert refused in places if refused is not None else not places


class TestSequence:
    @pytest.mark.parametrize(
        "operations",
        [
            ["PUSH", "FETCH", "BEAT", "ACK", "INFO"], ["push", "fetch", "fail", "promote", "fetch", "ack"],
            ["PUSH", "CANCEL", "CANCEL"],
            ["push", "fetch", {"operation": "fail", "state": "discarded"}, "retry", "fetch"],
            [{"operation": "push", "job": "a"}, {"operation": "push", "job": "b"}, {"operation": "fetch", "job": "a"}],
            {"operations": ["PUSH"]},
        ],
    )  # fmt: skip
    def test_legal(self, operations: Any) -> None:
        assert validate_sequence(operations) == []

    @pytest.mark.parametrize(
        "operations, path",
        [
            (["PUSH", "ACK"], "[1]"), (["FETCH"], "[0]"), (["PUSH", "FETCH", "ACK", "ACK"], "[3]"),
            (["PUSH", "FETCH", "ACK", "CANCEL"], "[3]"), (["PUSH", "PUSH"], "[1]"), (["INFO"], "[0]"),
            ([{"operation": "PUSH", "state": "pending"}, "FETCH"], "[1]"), (["PUSH", "explode"], "[1]"),
            ([{"operation": "PUSH", "state": "active"}], "[0]"), ([{"operation": "PUSH", "state": "x"}], "[0].state"),
            (["PUSH", "FETCH", {"operation": "FAIL", "state": "discarded"}, "PROMOTE"], "[3]"), ("PUSH", ""),
        ],
    )  # fmt: skip
    def test_illegal(self, operations: Any, path: str) -> None:
        (problem,) = validate_sequence(operations)
        assert problem.path == path
        assert problem.hint

    def test_every_step_is_judged_as_the_table_says(self) -> None:
        for source in State:
            for verb in set(Verb) - {Verb.PUSH}:
                for target in State:
                    operations = [*route(source), {"operation": verb, "state": target}]
                    legal = states.is_legal(verb, source, target) or (verb, source) == (Verb.CANCEL, State.CANCELLED)
                    assert (validate_sequence(operations) == []) is legal, operations


def route(goal: State) -> list[dict[str, str]]:
    """Operations that bring a new job into this state."""
    ways: dict[State, list[dict[str, str]]] = {
        target: [{"operation": "push", "state": target}] for target in states.ordered(states.INITIAL)
    }
    while goal not in ways:
        for step in states.TRANSITIONS:
            if step.source in ways and step.target not in ways:
                ways[step.target] = [*ways[step.source], {"operation": step.verb, "state": step.target}]
    return ways[goal]


class TestCommand:
    def run(self, *arguments: str) -> tuple[str, bool]:
        out = io.StringIO()
        try:
            call_command("ojs_validate", *arguments, stdout=out)
        except CommandError as error:
            return out.getvalue() + str(error), False
        return out.getvalue(), True

    def write(self, folder: Path, content: Any) -> str:
        file = folder / "jobs.json"
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(file)

    @pytest.mark.parametrize("content", [FINE, [FINE, FINE], {"jobs": [FINE]}])
    def test_good_files(self, tmp_path: Path, content: Any) -> None:
        assert self.run(self.write(tmp_path, content)) == ("No problems found.\n", True)

    @pytest.mark.parametrize(
        "content, said",
        [
            ({"type": "a.b"}, "args: must be an array"), ([FINE, {"args": []}], "[1].type: must name"),
            ({"jobs": [FINE, {**FINE, "queue": ""}]}, "jobs[1].queue: must be"), ("{", "document: Not valid JSON"),
            ([5], "[0]: must be a JSON object"),
        ],
    )  # fmt: skip
    def test_bad_files(self, tmp_path: Path, content: Any, said: str) -> None:
        output, fine = self.run(self.write(tmp_path, content))
        assert not fine
        assert said in output
        assert "1 problem found." in output

    def test_options(self, tmp_path: Path) -> None:
        assert not self.run("--complete", self.write(tmp_path, FINE))[1]
        output, fine = self.run("--sequence", self.write(tmp_path, ["PUSH", "ACK"]))
        assert not fine
        assert "[1]: cannot ack" in output
        output, _ = self.run("--json", self.write(tmp_path, {}))
        entries = json.loads(output[: output.rindex("]") + 1])
        assert [entry["path"] for entry in entries] == ["type", "args"]
        assert not self.run(str(tmp_path / "missing.json"))[1]
