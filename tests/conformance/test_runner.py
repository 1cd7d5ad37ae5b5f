"""The conformance runner is itself under test here: above all, that it can fail.

A tiny HTTP server answers right and wrong; its clock and the runner's are one fake, so that no test waits.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import http.server
import io
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ojs_conformance import cases, handlers, jsonpath, lint, matchers, running, values
from ojs_conformance.__main__ import main
from ojs_conformance.exchange import Client, Response, Scope, UnresolvedReference, check_response
from ojs_conformance.report import Report, Result
from ojs_conformance.running import needs_worker
from ojs_conformance.suite import Target, run_case, run_report, run_suite, waiting_time
from ojs_conformance.values import MISSING, Clock, equal
from ojs_conformance.workers import command_worker
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = Path(os.environ.get("OJS_CONFORMANCE_DIR") or ROOT.parent / "shared" / "conformance")
SEED_DOCUMENTS = [shared / "seeds" / "conformance-spec.md" for shared in (PUBLISHED.parent, ROOT.parent / "shared")]
SEED_DOCUMENT = next((path for path in SEED_DOCUMENTS if path.is_file()), SEED_DOCUMENTS[0])
UUID7 = "0190f3c4-5b6a-7d8e-9f01-23456789abcd"
UUID4 = "0190f3c4-5b6a-4d8e-9f01-23456789abcd"

needs_published = pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason=f"no published cases in {PUBLISHED}: name their directory in OJS_CONFORMANCE_DIR"
)
needs_seed = pytest.mark.skipif(not SEED_DOCUMENT.is_file(), reason=f"no seed document: {SEED_DOCUMENT} is absent")


# --- matchers -------------------------------------------------------------------------------------------------------

TEXT_EXAMPLES: list[tuple[str, Any, Any]] = [
    ("any", None, MISSING),
    ("exists", 0, MISSING),
    ("absent", MISSING, None),
    ("string:nonempty", "a", ""),
    ("string:non_empty", "a", 1),
    ("string:uuid", UUID4, UUID4[:-1]),
    ("string:uuidv7", UUID7, UUID4),
    ("string:datetime", "2026-02-28T12:00:00.123456789Z", "2026-02-30T12:00:00Z"),
    ("string:datetime", "2026-02-28T12:00:00+01:00", "2026-02-28 12:00:00"),
    ("string:contains:b", "abc", "ac"),
    ("string:matches:^a+$", "aa", "ab"),
    ("string:pattern(^a+$)", "aa", "ab"),
    ("number:positive", 0.5, 0),
    ("number:non_negative", 0, -1),
    ("number:integer", 3, 3.5),
    ("number:range(400,422)", 422, 423),
    ("number:range(-1, 1)", -1, True),
    ("number:range:1,2", 1.5, "1"),
    ("array:nonempty", [0], []),
    ("array:non_empty", [0], "a"),
    ("array:empty", [], [0]),
    ("array:length:2", [1, 2], [1]),
    ("array:length(2)", [1, 2], {"a": 1, "b": 2}),
    ("array:min_length:1", [1], []),
    ("array:max_length:1", [1], [1, 2]),
    ("array:contains:a", ["a"], "a"),
    ("one_of:400,422", 422, 404),
    ("one_of:a, b", "b", "ab"),
    ("contains:a", ["b", "a"], ["ab"]),
    ("contains:a", "bab", "b"),
    ("not_contains:a", ["ab"], ["a"]),
    ("not_contains:a", [], MISSING),
    ("~1000", 1500, 1501),
    ("~1000", 500, "soon"),
    ("~1s", 0.5, 0.4),
    ("~PT2S", "PT3S", "PT4S"),
    ("~500ms", 0.7, None),
    ("available", "available", "Available"),
    ("urn:ojs:ext:priority", "urn:ojs:ext:priority", "urn:ojs:ext"),
]

OPERATOR_EXAMPLES: list[tuple[dict[str, Any], Any, Any]] = [
    ({"$exists": True}, None, MISSING),
    ({"$exists": False}, MISSING, None),
    ({"$empty": True}, MISSING, [0]),
    ({"$empty": False}, 0, {}),
    ({"$type": "string"}, "", 1),
    ({"$type": "number"}, 1.5, True),
    ({"$type": "integer"}, 2, 2.5),
    ({"$type": "boolean"}, False, 0),
    ({"$type": "array"}, [], {}),
    ({"$type": "object"}, {}, []),
    ({"$type": ["null", "string"]}, None, MISSING),
    ({"$eq": 1}, 1.0, True),
    ({"$ne": 1}, 2, 1),
    ({"$in": [400, 422]}, 422, 404),
    ({"$nin": ["a"]}, "b", "a"),
    ({"$match": "^a.c$"}, "abc", "abcd"),
    ({"$regex": "b"}, "abc", 1),
    ({"$contains": "a"}, ["a"], ["b"]),
    ({"$contains": "a"}, "xax", None),
    ({"$gt": 1}, 2, 1),
    ({"$gte": 1}, 1, 0),
    ({"$lt": 1}, 0, 1),
    ({"$lte": 1}, 1, "1"),
    ({"$gte": 1, "$lte": 3}, 3, 4),
    ({"$size": 2}, [1, 2], [1]),
    ({"$size": {"$gte": 1}}, [1], []),
    ({"$not": {"$in": ["a"]}}, "b", "a"),
    ({"$or": [{"$.a": 1}, {"$.b": "absent"}]}, {"a": 1, "b": 2}, {"a": 2, "b": 2}),
    ({"$and": ["string:nonempty", {"$ne": "a"}]}, "b", "a"),
    ({"$.a[0].b": "x", "$.c": {"$exists": False}}, {"a": [{"b": "x"}]}, {"a": [{"b": "x"}], "c": 1}),
]

LITERAL_EXAMPLES: list[tuple[Any, Any, Any]] = [
    (1, 1, True),
    (True, True, 1),
    (None, None, 0),
    (None, MISSING, ""),
    ([], [], MISSING),
    (["a", "string:nonempty"], ["a", "b"], ["a", ""]),
    ([1], [1], [1, 2]),
    ({"a": "any"}, {"a": 0}, {}),
    ({"a": 1}, {"a": 1}, {"a": 1, "b": 2}),
    ({"a": {"b": [None, True]}}, {"a": {"b": [None, True]}}, {"a": {"b": [None, 1]}}),
]


@pytest.mark.parametrize("expected, good, bad", [*TEXT_EXAMPLES, *OPERATOR_EXAMPLES, *LITERAL_EXAMPLES])
def test_each_matcher_passes_and_fails(expected: Any, good: Any, bad: Any) -> None:
    assert lint.expectation_problems(expected) == []
    assert matchers.check(expected, good) == []
    assert matchers.check(expected, bad) != []


def test_every_matcher_in_the_tables_has_an_example() -> None:
    texts = [text for text, _, _ in TEXT_EXAMPLES]
    assert set(matchers.WORDS) <= set(texts)
    for name, _, _ in matchers.FORMS:
        assert any(re.match(rf"{name}[:(]", text) for text in texts), name
    used = {key for expected, _, _ in OPERATOR_EXAMPLES for key in expected}
    assert set(matchers.OPERATORS) <= used


@pytest.mark.parametrize(
    "unknown",
    [
        "string:emial",
        "number:huge",
        "array:length:many",
        "array:sorted",
        "object:any",
        "boolean:yes",
        "~12 parsecs",
        {"$between": [1, 2]},
        {"$exists": True, "other": 1},
        {"$or": [{"$near": 1}]},
        {"$size": "number:odd"},
        {"$.a[": 1},
        {"nested": ["string:emial"]},
    ],
)
def test_an_unknown_matcher_is_a_problem_and_never_passes(unknown: Any) -> None:
    assert lint.expectation_problems(unknown) != []
    with pytest.raises(ValueError, match=r"unknown|cannot read"):
        matchers.check(unknown, {"nested": ["x"]})


@pytest.mark.parametrize("bad", [{"$match": "("}, {"$type": "text"}, {"$type": ["string", "text"]}])
def test_a_bad_argument_of_an_operator_is_a_problem(bad: Any) -> None:
    assert lint.expectation_problems(bad) != []


def test_a_reason_names_the_place_what_was_expected_and_what_was_there() -> None:
    body = {"job": {"state": "active", "args": [1]}}
    assert matchers.check({"$.job.state": "available"}, body) == ['$.job.state: expected "available", got "active"']
    assert matchers.check({"$.job.args": [2]}, body) == ["$.job.args[0]: expected 2, got 1"]
    assert matchers.check({"$.job.id": "string:uuid"}, body) == ['$.job.id: expected "string:uuid", got nothing']
    assert matchers.check({"$.job.args": {"$size": 2}}, body) == ["size of $.job.args: expected 2, got 1"]
    (reason,) = matchers.check({"$or": [{"$.job.state": "a"}, {"$.x": 1}]}, body)
    assert '$.job.state: expected "a"' in reason
    assert "$.x: expected 1, got nothing" in reason


def test_equality_is_that_of_json() -> None:
    assert equal({"a": [1, 2.0]}, {"a": [1.0, 2]})
    assert not equal([True], [1])
    assert not equal(0, False)
    assert not equal({"a": 1}, {"a": 1, "b": 1})
    assert not equal(None, MISSING)


# --- paths, durations, references -------------------------------------------------------------------------------------

DOCUMENT: Any = {
    "jobs": [{"id": "a", "n": 1, "tags": []}, {"id": "b", "n": 2, "state": "active"}],
    "meta": {"ojs.codec.key_id": "k", "ojs": {"codec": {"key_id": "other"}}, "odd key": 1},
    "none": None,
    "empty": [],
}


@pytest.mark.parametrize(
    "path, values",
    [
        ("$", [DOCUMENT]),
        ("$.jobs[1].id", ["b"]),
        ("$.jobs[-1].id", ["b"]),
        ("$.jobs[2].id", []),
        ("$.jobs.id", []),
        ("$.none", [None]),
        ("$.none.more", []),
        ("$.jobs[*].n", [1, 2]),
        ("$.jobs[*].state", [MISSING, "active"]),
        ("$.jobs[?(@.id=='b')].state", ["active"]),
        ('$.jobs[?(@.id == "b")].n', [2]),
        ("$.jobs[?(@.n==1)].id", ["a"]),
        ("$.jobs[?(@.id!='b')].id", ["a"]),
        ("$.jobs[?(@.id=='c')]", []),
        ("$.jobs[?(@.id=='a')].state", [MISSING]),
        ("$.meta.ojs.codec.key_id", ["k"]),
        ("$['meta']['odd key']", [1]),
        ("$.empty[*].id", []),
    ],
)
def test_json_path(path: str, values: list[Any]) -> None:
    assert jsonpath.find(path, DOCUMENT).values == values


@pytest.mark.parametrize("path", ["jobs", "$jobs", "$.jobs[", "$..jobs", "$.jobs[?(@.id=~'a')]", "$.jobs[?(@.n==x)]"])
def test_a_path_outside_the_subset_is_an_error(path: str) -> None:
    with pytest.raises(jsonpath.PathError):
        jsonpath.parse(path)


def test_a_wildcard_asks_for_the_list_or_for_each_element() -> None:
    assert matchers.check({"$.jobs[*].id": "contains:b"}, DOCUMENT) == []
    assert matchers.check({"$.jobs[*].id": "not_contains:b"}, DOCUMENT) != []
    assert matchers.check({"$.jobs[*].id": {"$size": 2}}, DOCUMENT) == []
    assert matchers.check({"$.jobs[*].id": ["a", "b"]}, DOCUMENT) == []
    assert matchers.check({"$.jobs[*].n": "number:positive"}, DOCUMENT) == []
    assert matchers.check({"$.jobs[*].n": 1}, DOCUMENT) == ["$.jobs[*].n: expected 1, got 2"]
    assert matchers.check({"$.empty[*].id": "not_contains:b"}, DOCUMENT) == []


def test_a_wildcard_over_nothing_does_not_pass_silently() -> None:
    assert matchers.check({"$.gone[*].id": "not_contains:b"}, DOCUMENT) != []
    assert matchers.check({"$.jobs[*].nmae": "not_contains:b"}, DOCUMENT) != []
    assert matchers.check({"$.empty[*].id": "string:nonempty"}, DOCUMENT) != []


@pytest.mark.parametrize(
    "text, seconds",
    [("PT5S", 5), ("PT0.5S", 0.5), ("P1DT2H", 93600), ("PT1M30S", 90), ("P2W", 1209600), ("500ms", 0.5), ("2h", 7200)],
)
def test_durations(text: str, seconds: float) -> None:
    assert values.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "5", "5 s", "PT5", "-PT5S"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="no duration"):
        values.seconds(text)


class FakeClock:
    """A clock whose sleeping takes no time."""

    def __init__(self) -> None:
        self.start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        self.slept = 0.0
        self.clock = Clock(self.now, self.sleep)

    def now(self) -> dt.datetime:
        return self.start + dt.timedelta(seconds=self.slept)

    def sleep(self, seconds: float) -> None:
        self.slept += seconds

    def stamp(self, seconds: float) -> str:
        return values.timestamp(self.start + dt.timedelta(seconds=seconds))


def test_references_keep_their_type_and_fill_in_texts() -> None:
    scope = Scope(FakeClock().clock)
    scope.remember("step-1", Response(201, {"location": "/x"}, {"job": {"id": "i", "n": 3}, "list": [{"id": "j"}]}))
    assert scope.resolve("{{steps.step-1.response.body.job.n}}") == 3
    assert scope.resolve("{{ steps.step-1.response.body }}") == {"job": {"id": "i", "n": 3}, "list": [{"id": "j"}]}
    assert scope.resolve("n={{steps.step-1.response.body.job.n}}") == "n=3"
    assert scope.resolve("{{steps.step-1.response.status}}") == 201
    assert scope.resolve("{{steps.step-1.response.headers.location}}") == "/x"
    key = "$.jobs[?(@.id=='{{steps.step-1.response.body.list[0].id}}')]"
    assert scope.resolve({key: ["{{steps.step-1.response.body.job.id}}"]}) == {"$.jobs[?(@.id=='j')]": ["i"]}


def test_an_unknown_reference_is_an_error_and_is_never_sent_as_it_stands() -> None:
    for text, single in [("{{job_id}}", False), ("{{steps.a.response.body.x}}", False), ("/jobs/{job_id}", True)]:
        with pytest.raises(UnresolvedReference):
            Scope(FakeClock().clock, single).resolve(text)


def test_seed_references_are_captures_and_instants() -> None:
    scope = Scope(FakeClock().clock, single_braces=True)
    scope.capture(
        {"job_id": "body.job.id", "place": "headers.Location"}, Response(201, {"location": "/x"}, {"job": {"id": "i"}})
    )
    assert scope.resolve("/ojs/v1/jobs/{job_id}") == "/ojs/v1/jobs/i"
    assert scope.resolve("{place}") == "/x"
    assert scope.resolve(["{now}", "{now+5s}", "{now-PT1H}"]) == [
        "2026-01-01T00:00:00.000Z",
        "2026-01-01T00:00:05.000Z",
        "2025-12-31T23:00:00.000Z",
    ]
    assert scope.resolve("a{2,3}") == "a{2,3}"
    with pytest.raises(UnresolvedReference):
        scope.capture({"x": "body.job.gone"}, Response(200, {}, {"job": {}}))


# --- responses --------------------------------------------------------------------------------------------------------

OK = Response(200, {"content-type": "application/json", "retry-after": "3"}, {"a": 1, "job": {"state": "active"}})


@pytest.mark.parametrize(
    "good, bad",
    [
        ({"status": 200}, {"status": 201}),
        ({"status": "number:range(200,204)"}, {"status": "number:range(400,422)"}),
        ({"status": "one_of:200,201"}, {"status": "one_of:400,422"}),
        ({"status": {"$in": [200, 204]}}, {"status": {"$in": [201]}}),
        ({"status": [200, 204]}, {"status": [201, 204]}),
        ({"status_one_of": [200, 204]}, {"status_one_of": [201]}),
        ({"headers": {"Content-Type": "application/json"}}, {"headers": {"Content-Type": "application"}}),
        ({"headers": {"Retry-After": {"$exists": True}}}, {"headers": {"X-Other": {"$exists": True}}}),
        ({"headers": {"Retry-After": "3"}}, {"headers": {"Retry-After": "4"}}),
        ({"headers": {"Retry-After": {"$gte": 1}}}, {"headers": {"Retry-After": {"$gte": 4}}}),
        ({"headers": {"Retry-After": "number:positive"}}, {"headers": {"Content-Type": "number:positive"}}),
        ({"headers": {"X-Other": "absent"}}, {"headers": {"Retry-After": "absent"}}),
        ({"body": {"$.a": 1}}, {"body": {"$.a": 2}}),
        ({"body": {"job.state": "active"}}, {"body": {"job.state": "available"}}),
        ({"body": {"$or": [{"$.b": 1}, {"$.a": 1}]}}, {"body": {"$or": [{"$.b": 1}, {"$empty": True}]}}),
        ({"body": "any"}, {"body": "absent"}),
    ],
)
def test_assertions_about_a_response(good: dict[str, Any], bad: dict[str, Any]) -> None:
    assert check_response(good, OK) == []
    assert check_response(bad, OK) != []


def test_an_empty_body_is_nothing() -> None:
    nothing = Response(204)
    assert check_response({"body": {"$or": [{"$.jobs": {"$size": 0}}, {"$empty": True}]}}, nothing) == []
    assert check_response({"body": {"$.jobs": []}}, nothing) != []
    assert check_response({"body": "absent"}, nothing) == []


def test_a_failed_request_shows_the_servers_answer_in_the_reason() -> None:
    reasons = check_response({"status": 201}, Response(400, {}, {"error": {"message": "type is missing"}}))
    assert "type is missing" in reasons[-1]


# --- the cases themselves ---------------------------------------------------------------------------------------------


def published(*steps: dict[str, Any], **extra: Any) -> cases.Case:
    numbered = [{"id": f"step-{number}", **step} for number, step in enumerate(steps, 1)]
    return cases.load_dict({"test_id": "L0-X-001", "level": 0, "name": "x", "steps": numbered, **extra}, "x.json")


def seed(*steps: dict[str, Any], **extra: Any) -> cases.Case:
    return cases.load_dict({"test_id": "L0-001", "level": 0, "name": "x", "steps": list(steps), **extra}, "seed.json")


def get(path: str = "/a", **assertions: Any) -> dict[str, Any]:
    return {"action": "GET", "path": path, "assertions": assertions}


def test_the_format_is_recognised() -> None:
    assert published(get()).format == "published"
    assert seed({"action": "GET /a", "expect": {}}).format == "seed"
    assert seed(input={"type": "a"}, assertions=[{"attempt": 1}]).format == "seed"
    assert seed().format == "unreadable"
    assert cases.load_dict({"steps": [{"action": "GET"}]}).format == "unreadable"


def test_files_are_loaded_and_broken_ones_become_failing_cases(tmp_path: Path) -> None:
    (tmp_path / "level-0").mkdir()
    (tmp_path / "manifest.json").write_text('{"version": "1.2.3"}')
    (tmp_path / "level-0" / "good.json").write_text(json.dumps(published(get()).raw))
    (tmp_path / "level-0" / "list.json").write_text("[]")
    (tmp_path / "level-0" / "torn.json").write_text("{")
    loaded = cases.load_path(tmp_path)
    assert [case.file for case in loaded] == ["level-0/good.json", "level-0/list.json", "level-0/torn.json"]
    assert [case.format for case in loaded] == ["published", "unreadable", "unreadable"]
    result = run_case(loaded[2], Target("http://127.0.0.1:9"))
    assert result.outcome == "failed"
    assert "no valid JSON" in result.reason


def test_cases_are_selected_by_level_id_and_file() -> None:
    low, high = published(get()), published(get(), level=3, test_id="L3-X-001")
    extension = published(get(), tags=["ext"])
    assert cases.select([low, high, extension]) == [low, high, extension]
    assert cases.select([low, high, extension], level=2) == [low]
    assert cases.select([low, high], test_id="L3-X-001") == [high]
    assert cases.select([low, high], test_id="x.json") == [low, high]


@pytest.mark.parametrize(
    "case, part",
    [
        (published({**get(), "retries": 3}), "unknown key 'retries'"),
        (published({**get(), "action": "FETCH"}), "unknown action 'FETCH'"),
        (published({"action": "GET"}), "no path"),
        (published(get(statuses=200)), "unknown assertion 'statuses'"),
        (published(get(body={"$.a": "string:emial"})), "unknown matcher 'string:emial'"),
        (published(get(headers={"A": {"$like": 1}})), "unknown operator '$like'"),
        (published(get(status="number:odd")), "unknown matcher"),
        (published(get(body={"$.a[": 1})), "cannot read"),
        (published({"action": "WAIT"}), "WAIT names no duration"),
        (published({"action": "ASSERT", "assertions": {"inequality": {}}}), "unknown assertion 'inequality'"),
        (published({"action": "ASSERT", "assertions": {"equality": {"x": 1}}}), "does not begin"),
        (published(get("/{{steps.step-2.response.body.id}}"), get()), "refers to no earlier step"),
        (published({**get(), "delay_ms": "soon"}), "delay_ms: no number"),
        (published({**get(), "repeat": 0}), "repeat: cannot read 0"),
        (published({**get(), "repeat": {"until": 3}}), "unknown key 'until'"),
        (published(get(), setup={"handler": "x"}), "a published case has no 'setup'"),
        (seed({"action": "GET /a", "assert": {}}), "unknown key 'assert'"),
        (seed({"action": "GET /a", "wait": "a while"}), "no duration"),
        (seed({"action": "GET /a"}, {"action": "FLUSH"}), "unknown action 'FLUSH'"),
        (seed({"action": "GET /a"}, requires="L0-001"), "requires: no array"),
        (seed({"action": "GET /a"}, deprecated="yes"), "deprecated: neither"),
        (seed({"action": "GET /a"}, deprecated=True), "without a deprecated_reason"),
        (seed({"action": "GET /a"}, setup={"handler": "test.own"}), "no handler 'test.own'"),
        (seed({"action": "GET /a"}, setup={"worker": 1}), "unknown key 'worker'"),
        (seed(input={"type": "a"}, assertions=[{"attempt": 1, "colour": "red"}]), "unknown key 'colour'"),
        (seed(input={"type": "a"}, assertions=[{"state_after": "completed"}]), "names no attempt"),
        (seed(input={"type": "a"}), "need each other"),
    ],
)
def test_what_is_not_understood_fails_the_case(case: cases.Case, part: str) -> None:
    assert any(part in problem for problem in lint.problems(case)), lint.problems(case)
    result = run_case(case, Target("http://127.0.0.1:9"))
    assert (result.outcome, result.reason[:14]) == ("failed", "not understood")


@needs_published
def test_every_published_file_is_read_and_every_matcher_in_it_is_recognised() -> None:
    loaded = cases.load_path(PUBLISHED)
    assert len(loaded) == len(list(PUBLISHED.rglob("*.json"))) > 0
    assert {case.format for case in loaded} == {"published"}
    assert [f"{case.file}: {problem}" for case in loaded for problem in lint.problems(case)] == []


@needs_seed
def test_the_seed_documents_examples_are_found_and_understood() -> None:
    loaded = cases.load_path(SEED_DOCUMENT)
    assert len(loaded) == 14
    assert {case.format for case in loaded} == {"seed"}
    assert [problem for case in loaded for problem in lint.problems(case)] == []
    without_worker = {case.test_id for case in loaded if not needs_worker(case)}
    assert without_worker == {"L0-001", "L0-002", "L0-003", "L2-002", "L4-002"}


def test_seed_cases_are_extracted_from_after_the_heading_only() -> None:
    markdown = """
5.2 Test Case Structure
{ "test_id": "L9-000", "level": 0 }

## 6. Example Test Cases
{ not json
```json
{
  "test_id": "L9-001", "level": 0, "steps": [
    { "test_id": "inner", "level": 1 }
  ]
}
```
{ "failures": [ { "test_id": "L9-002", "level": 1 } ] }
  { "test_id": "L9-003", "level": 1 }
"""
    assert [raw["test_id"] for raw in cases.extract_seed_cases(markdown)] == ["L9-001", "L9-003"]
    assert cases.extract_seed_cases("no such heading") == []


def test_a_worker_is_needed_where_a_handler_is_named_or_completion_expected() -> None:
    expects = {"action": "GET /a", "expect": {"body": {"job.state": "completed"}}}
    assert needs_worker(seed(expects))
    assert needs_worker(seed({"action": "GET /a"}, setup={"handler": "test.echo"}))
    assert needs_worker(seed(input={"type": "a"}, assertions=[{"attempt": 1, "state_after": "completed"}]))
    assert not needs_worker(seed({"action": "POST /a", "body": {"state": "completed"}}))
    assert not needs_worker(published(get(body={"$.job.state": "completed"})))


# --- against a server -------------------------------------------------------------------------------------------------

Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]]
Handler = Callable[[str, str, Any, bytes], Answer]


class Server:
    """A server on a free port that asks a function for each answer and keeps every request."""

    def __init__(self, answer: Handler) -> None:
        self.requests: list[tuple[str, str, Any, bytes]] = []
        self.connections = 0
        outer = self

        class RequestHandler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                outer.connections += 1

            def handle_any(self) -> None:
                content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.requests.append((self.command, self.path, self.headers, content))
                status, body, headers = (*answer(self.command, self.path, self.headers, content), {})[:3]
                payload = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(payload))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(payload)

            do_GET = do_POST = do_DELETE = handle_any  # noqa: N815 - the base class's names

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), RequestHandler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def always(status: int, body: Any, headers: dict[str, str] | None = None) -> Handler:
    return lambda *request: (status, body, headers or {})


def run(case: cases.Case, answer: Handler, clock: FakeClock | None = None, **target: Any) -> tuple[Result, Server]:
    with Server(answer) as server:
        return run_case(case, Target(server.url, **target), (clock or FakeClock()).clock), server


def test_a_right_answer_passes_and_a_wrong_one_fails_with_its_step() -> None:
    case = published(get(status=200, body={"$.n": 1}), get("/b", status=200, body={"$.n": 2}))
    right, _ = run(case, lambda m, path, h, b: (200, {"n": 1 if path == "/a" else 2}))
    assert (right.outcome, right.reason) == ("passed", "")
    wrong, server = run(case, always(200, {"n": 1}))
    assert (wrong.outcome, wrong.reason) == ("failed", "step-2: $.n: expected 2, got 1")
    assert server.connections == 1


def test_the_steps_after_a_failed_one_are_not_run() -> None:
    result, server = run(published(get(status=200), get("/b", status=200)), always(500, {}))
    assert result.outcome == "failed"
    assert [path for _, path, _, _ in server.requests] == ["/a"]


def test_bodies_are_sent_exactly() -> None:
    step = {"action": "POST", "path": "/a", "assertions": {"status": 200}}
    bodies: list[dict[str, Any]] = [
        {"raw_body": "{ invalid json }"},
        {"raw_body": ""},
        {"body": {}},
        {"body": None},
        {},
    ]
    result, server = run(published(*({**step, **body} for body in bodies)), always(200, {}))
    assert result.outcome == "passed"
    assert [content for *_, content in server.requests] == [b"{ invalid json }", b"", b"{}", b"null", b""]
    assert [headers["Content-Length"] for _, _, headers, _ in server.requests] == ["16", "0", "2", "4", "0"]


def test_headers_are_the_steps_own_then_the_protocols() -> None:
    step = {"action": "POST", "path": "/a", "body": {}, "assertions": {}}
    own, without = {"headers": {"content-type": "text/plain"}}, {"headers": {"Content-Type": None}}
    _, server = run(published(step, {**step, **own}, {**step, **without}), always(200, {}))
    sent = [headers["Content-Type"] for _, _, headers, _ in server.requests]
    assert sent == ["application/openjobspec+json", "text/plain", None]


def test_references_captures_repeats_and_waits() -> None:
    clock = FakeClock()
    case = published(
        {"action": "POST", "path": "/jobs", "body": {"a": 1}, "capture": {"job_id": "$.job.id"}},
        {"action": "WAIT", "duration_ms": 2000},
        {**get("/jobs/{{job_id}}", status=200), "delay_ms": 500, "repeat": {"count": 3, "delay_ms": 100}},
        get("/jobs/{{steps.step-1.response.body.job.id}}/{{steps.step-3.response.status}}"),
    )
    result, server = run(case, always(200, {"job": {"id": "i"}}), clock)
    assert (result.outcome, result.duration_ms) == ("passed", 2700)
    assert [path for _, path, _, _ in server.requests] == ["/jobs", *["/jobs/i"] * 3, "/jobs/i/200"]
    assert clock.slept == pytest.approx(2.7)


def test_every_turn_of_a_repeated_step_must_hold() -> None:
    answers = iter([200, 200, 429])
    result, _ = run(published({**get(status=200), "repeat": 3}), lambda *request: (next(answers), {}))
    assert result.outcome == "failed"
    assert "expected 200, got 429" in result.reason


@pytest.mark.parametrize("second, outcome", [({"n": [1, True]}, "passed"), ({"n": [1, 1]}, "failed")])
def test_responses_are_compared_with_each_other(second: Any, outcome: str) -> None:
    equality = {"$.steps.step-1.response.body": "{{steps.step-2.response.body}}"}
    case = published(get(), get(), {"action": "ASSERT", "assertions": {"equality": equality}})
    answers = iter([{"n": [1, True]}, second])
    result, _ = run(case, lambda *request: (200, next(answers)))
    assert result.outcome == outcome


def test_a_reference_into_a_response_that_lacks_it_fails() -> None:
    result, server = run(published(get(), get("/{{steps.step-1.response.body.id}}")), always(200, {}))
    assert (result.outcome, len(server.requests)) == ("failed", 1)
    assert "nothing is known as 'steps.step-1.response.body.id'" in result.reason


def test_the_server_is_reset_first_and_a_refused_reset_fails() -> None:
    result, server = run(published(get(status=200)), always(200, {}), reset="/ojs/v1/admin/reset")
    assert result.outcome == "passed"
    assert [request[:2] for request in server.requests] == [("POST", "/ojs/v1/admin/reset"), ("GET", "/a")]
    result, _ = run(published(get(status=404)), always(404, {}), reset="/ojs/v1/admin/reset")
    assert result.reason.startswith("reset: POST /ojs/v1/admin/reset answered 404")


def test_no_server_is_a_failure() -> None:
    result = run_case(published(get(status=200)), Target("http://127.0.0.1:9"))
    assert result.outcome == "failed"
    assert "no answer" in result.reason


def test_a_connection_that_the_server_closed_is_opened_again() -> None:
    with Server(always(200, {}, {"Connection": "close"})) as server, Client(server.url) as client:
        assert [client.json("GET", "/a").status for _ in range(3)] == [200, 200, 200]
    assert server.connections == 3


def test_an_idle_connection_is_opened_again() -> None:
    with Server(always(200, b"text")) as server, Client(server.url + "/prefix") as client:
        client.idle_limit = 0
        assert [client.json("GET", path).body for path in ("/a", f"{server.url}/prefix/b")] == ["text", "text"]
    assert [path for _, path, _, _ in server.requests] == ["/prefix/a", "/prefix/b"]
    assert server.connections == 2


# --- the seed format --------------------------------------------------------------------------------------------------


def test_seed_steps_wait_capture_and_fill_in() -> None:
    clock = FakeClock()
    case = seed(
        {
            "action": "POST /ojs/v1/jobs",
            "body": {"type": "a", "scheduled_at": "{now+5s}"},
            "expect": {"status": 200, "body": {"job.id": "string:nonempty"}},
            "capture": {"job_id": "body.job.id"},
        },
        {"wait": "PT2S", "action": "GET /ojs/v1/jobs/{job_id}", "expect": {"body": {"job.id": "{job_id}"}}},
    )
    result, server = run(case, always(200, {"job": {"id": "i"}}), clock)
    assert (result.outcome, result.reason) == ("passed", "")
    assert json.loads(server.requests[0][3]) == {"type": "a", "scheduled_at": "2026-01-01T00:00:05.000Z"}
    assert server.requests[1][1] == "/ojs/v1/jobs/i"
    assert clock.slept == 2
    result, _ = run(case, always(200, {"job": {"id": ""}}))
    assert result.reason.startswith('step 1 (POST /ojs/v1/jobs): $.job.id: expected "string:nonempty", got ""')


def test_setup_and_teardown_of_a_seed_case() -> None:
    setup = {"queues": ["q"], "jobs": [{"type": "a"}], "cron": [{"name": "c"}]}
    case = seed({"action": "GET /a"}, setup=setup, teardown={"steps": [{"action": "DELETE /b"}]})
    result, server = run(case, always(200, {}))
    assert result.outcome == "passed"
    sent = [" ".join(request[:2]) for request in server.requests]
    assert sent == ["POST /ojs/v1/jobs", "POST /ojs/v1/cron", "GET /a", "DELETE /b"]


def test_the_worker_runs_around_the_case_that_needs_it_and_no_other() -> None:
    log: list[str] = []

    @contextlib.contextmanager
    def worker() -> Iterator[None]:
        log.append("start")
        yield
        log.append("stop")

    def answer(*request: Any) -> Answer:
        log.append(request[1])
        return 200, {}

    run(seed({"action": "GET /a"}), answer, worker=worker)
    assert log == ["/a"]
    log.clear()
    needing = seed({"action": "GET /a"}, setup={"handler": "test.echo"})
    assert run(needing, answer, worker=worker)[0].outcome == "passed"
    assert log == ["start", "/a", "stop"]
    result, _ = run(needing, answer)
    assert result.outcome == "failed"
    assert "needs a worker" in result.reason


def test_a_worker_that_breaks_fails_its_case_only() -> None:
    @contextlib.contextmanager
    def worker() -> Iterator[None]:
        raise RuntimeError("no database")
        yield

    needing = seed({"action": "GET /a"}, setup={"handler": "test.echo"})
    result, _ = run(needing, always(200, {}), worker=worker)
    assert (result.outcome, result.reason) == ("failed", "the runner broke: RuntimeError('no database')")


class JobServer:
    """A server with one job, whose states and events follow a script over the fake clock."""

    def __init__(
        self, states: list[tuple[float, str, int]], events: list[tuple[float, str, int | None]] | None
    ) -> None:
        self.clock = FakeClock()
        self.states = states
        self.events = events
        self.cancelled = False

    def __call__(self, method: str, path: str, headers: Any, content: bytes) -> Answer:
        if method == "DELETE":
            self.cancelled = True
        if path.startswith("/ojs/v1/events"):
            return self._events(path)
        _, state, attempt = [entry for entry in self.states if entry[0] <= self.clock.slept][-1]
        return (201 if method == "POST" else 200), {"job": {"id": "i", "state": state, "attempt": attempt}}

    def _events(self, path: str) -> Answer:
        if self.events is None:
            return 404, {}
        seen = [entry for entry in self.events if entry[0] <= self.clock.slept]
        cut = [entry for entry in seen if f"after={entry[0]}" in path]
        page = seen[seen.index(cut[0]) + 1 :][:2] if cut else seen[:2]
        more = bool(page) and page[-1] is not seen[-1]
        return 200, {"events": [self._event(*e) for e in page], "has_more": more, "cursor": page and str(page[-1][0])}

    def _event(self, at: float, kind: str, attempt: int | None) -> dict[str, Any]:
        data = {"job_id": "i"} | ({} if attempt is None else {"attempt": attempt})
        return {"type": kind, "time": self.clock.stamp(at + 3600), "data": data}  # the server's clock is an hour ahead


BACKOFF = [
    {"attempt": 1, "state_after": "retryable"},
    {"attempt": 2, "delay_after_failure": "~1s", "state_after": "retryable"},
    {"attempt": 3, "delay_after_failure": "~2s", "state_after": "completed"},
]


def backoff(second: float, third: float, *, end: str = "completed") -> JobServer:
    """A job that fails twice; the delays before its second and third attempt are given."""
    two, three = 0.3 + second, 0.5 + second + third
    states = [(0, "available", 0), (0.2, "active", 1), (0.3, "retryable", 1), (two, "active", 2)]
    states += [(two + 0.2, "retryable", 2), (three, "active", 3), (three + 0.1, end, 3)]
    events: list[tuple[float, str, int | None]] = [(0.2, "job.started", 1), (0.299, "job.failed", 1)]
    events += [(0.3, "job.retrying", 1), (two, "job.started", None), (two + 0.199, "job.failed", 2)]
    events += [(two + 0.2, "job.retrying", 2), (three, "job.started", 3), (three + 0.1, f"job.{end}", 3)]
    return JobServer(states, events)


def watch(server: JobServer, assertions: list[dict[str, Any]]) -> Result:
    case = seed(input={"type": "test.x", "args": []}, assertions=assertions)
    return run(case, server, server.clock, worker=contextlib.nullcontext)[0]


@pytest.mark.parametrize("with_events", [True, False])
@pytest.mark.parametrize(
    "server, reason",
    [
        (backoff(1, 2), ""),
        (backoff(1.5, 1), ""),
        (backoff(1, 5.2), 'attempt 3: delay_after_failure: expected "~2s", got 5.'),
        (backoff(0.1, 2), 'attempt 2: delay_after_failure: expected "~1s", got 0.1'),
        (backoff(1, 2, end="discarded"), 'attempt 3: state_after: expected "completed", got "discarded"'),
    ],
)
def test_attempts_are_watched(server: JobServer, reason: str, with_events: bool) -> None:
    witness = JobServer(server.states, server.events if with_events else None)
    result = watch(witness, BACKOFF)
    assert result.outcome == ("failed" if reason else "passed"), result.reason
    assert result.reason.startswith(reason)


def test_a_job_that_ends_before_the_last_asserted_attempt_fails() -> None:
    server = JobServer([(0, "active", 1), (0.1, "completed", 1)], None)
    result = watch(server, BACKOFF[:2])
    assert 'attempt 1: state_after: expected "retryable", got "completed"' in result.reason
    assert 'attempt 2: state_after: expected "retryable", got nothing' in result.reason
    assert not server.cancelled


def test_a_job_that_nobody_runs_fails_in_time_and_is_cancelled() -> None:
    server = JobServer([(0, "available", 0)], [])
    result = watch(server, BACKOFF[:1])
    assert result.reason == "attempt 1 is not over after 60 s (polled available(0); events none)"
    assert server.cancelled


REQUEUE = [{"attempt": 1, "active_for": "~2s", "state_after": "available"}]
FETCHED_AT_ONCE = [(0, "available", 0), (0.1, "active", 1), (2.1, "active", 2)]


@pytest.mark.parametrize(
    "server, reason",
    [
        (JobServer([*FETCHED_AT_ONCE[:2], (2.1, "available", 1)], None), ""),
        (JobServer(FETCHED_AT_ONCE, None), ""),
        (JobServer(FETCHED_AT_ONCE, [(0.1, "job.started", 1), (2.1, "job.stalled", 1), (2.11, "job.started", 2)]), ""),
        (JobServer(FETCHED_AT_ONCE, [(0.1, "job.started", 1), (2.1, "job.started", 2)]), ""),
        (
            JobServer(FETCHED_AT_ONCE, [(0.1, "job.started", 1), (2, "job.failed", 1), (2.1, "job.started", 2)]),
            'attempt 1: state_after: expected "available", got nothing',
        ),
        (
            JobServer([*FETCHED_AT_ONCE[:2], (9, "available", 1)], None),
            'attempt 1: active_for: expected "~2s", got 8.9',
        ),
        (
            JobServer([*FETCHED_AT_ONCE[:2], (2.1, "retryable", 1)], None),
            'attempt 1: state_after: expected "available", got "retryable"',
        ),
    ],
)
def test_a_reservation_that_expires_is_seen_even_if_the_next_fetch_is_faster_than_a_poll(
    server: JobServer, reason: str
) -> None:
    server.clock = FakeClock()
    result = watch(server, REQUEUE)
    assert result.outcome == ("failed" if reason else "passed"), result.reason
    assert result.reason.startswith(reason)
    assert server.cancelled


def test_events_of_other_jobs_are_left_out_and_a_missing_attempt_is_counted() -> None:
    time = "2026-01-01T00:00:00Z"
    raw = [
        {"type": "job.started", "time": time, "subject": "i", "data": {}},
        {"type": "job.started", "time": time, "data": {"job_id": "j"}},
        {"type": "job.completed", "time": time, "data": {"job_id": "i"}},
    ]
    assert [(e.type, e.attempt) for e in running.read_events(raw, "i")] == [("job.started", 1), ("job.completed", 1)]


def test_measuring_may_cost_a_little_and_no_more() -> None:
    line = running.Timeline(events=[running.Event(0, "job.failed", 1), running.Event(1.6, "job.started", 2)])
    assert running.check_attempt({"attempt": 2, "delay_after_failure": "~1s"}, line) == []
    line.events[1] = running.Event(1.7, "job.started", 2)
    assert running.check_attempt({"attempt": 2, "delay_after_failure": "~1s"}, line) != []


# --- many cases, the report, the command line -------------------------------------------------------------------------


def test_cases_are_spread_over_the_targets_each_with_one_case_at_a_time() -> None:
    busy: dict[str, int] = {}
    together = threading.Barrier(2, timeout=60)

    def answer(method: str, path: str, headers: Any, content: bytes) -> Answer:
        busy[headers["Host"]] = busy.get(headers["Host"], 0) + 1
        assert busy[headers["Host"]] == 1
        together.wait()
        busy[headers["Host"]] -= 1
        return 200, {}

    many = [published(get(status=200), test_id=f"L0-X-{n}") for n in range(4)]
    named = [cases.load_dict(case.raw, f"{n}.json") for n, case in enumerate(many)]
    with Server(answer) as one, Server(answer) as two:
        results = run_suite(named, [Target(one.url), Target(two.url)])
    assert [result.case.file for result in results] == ["0.json", "1.json", "2.json", "3.json"]
    assert {result.outcome for result in results} == {"passed"}
    assert len(one.requests) == len(two.requests) == 2


def test_what_ends_a_thread_or_shows_no_result_leaves_no_case_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(target: Target) -> Any:
        raise SystemExit(3)

    def show(result: Result) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(Target, "client", broken)
    some = [numbered("L0-001"), numbered("L0-002", requires=["L0-001"]), numbered("L0-003")]
    results = run_suite(some, [Target("http://one"), Target("http://two")], on_result=show)
    found = {result.case.test_id: (result.outcome, "the runner broke" in result.reason) for result in results}
    assert found == {"L0-001": ("failed", True), "L0-002": ("skipped", False), "L0-003": ("failed", True)}


def test_a_run_whose_output_is_closed_goes_on_and_writes_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite, report, closed = tmp_path / "suite", tmp_path / "report.json", io.StringIO()
    suite.mkdir()
    (suite / "one.json").write_text(json.dumps(numbered("L0-001").raw))
    closed.close()
    with Server(right_or_wrong) as server:
        monkeypatch.setattr("sys.stdout", closed)
        assert main(["--suites", str(suite), "--target", server.url, "--report", str(report)]) == 0
    assert json.loads(report.read_text())


def test_a_server_that_writes_much_is_not_stopped_by_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    servers = pytest.importorskip("ojs_conformance.djangoapp.servers")
    done = tmp_path / "done"
    much = (
        "import sys, pathlib; sys.stderr.write('database x\\n' + 'e' * 1000000); print('ready http://x', flush=True);"
        f"sys.stdout.write('o' * 1000000); sys.stdout.flush(); pathlib.Path({str(done)!r}).touch(); input()"
    )
    monkeypatch.setattr(servers, "_command", lambda *arguments: [sys.executable, "-c", much])
    with servers._server("spec", "") as server:
        assert servers._target(server).url == "http://x"
        eventually(done.exists)


def test_the_longest_cases_are_started_first() -> None:
    slow = published({"action": "WAIT", "duration_ms": 65000}, get(status=200))
    case = seed({"action": "GET /a", "wait": "PT5S"})
    order: list[str] = []
    with Server(always(200, {})) as server:
        target = [Target(server.url)]
        run_suite([published(get()), case, slow], target, FakeClock().clock, lambda r: order.append(r.case.file))
    assert order == ["x.json", "seed.json", "x.json"]
    assert (waiting_time(slow), waiting_time(case)) == (65, 5)


def numbered(name: str, path: str = "/right", **members: Any) -> cases.Case:
    raw = {"test_id": name, "level": 0, "name": "x", "steps": [{"action": f"GET {path}", "expect": {"status": 200}}]}
    return cases.load_dict({**raw, **members}, f"{name}.json")


def right_or_wrong(method: str, path: str, headers: Any, content: bytes) -> Answer:
    return (200 if path == "/right" else 500), {}


def ran(*some: cases.Case, servers: int = 2) -> dict[str, Result]:
    with contextlib.ExitStack() as stack:
        targets = [Target(stack.enter_context(Server(right_or_wrong)).url) for _ in range(servers)]
        return {result.case.test_id: result for result in run_suite(some, targets)}


def test_a_case_runs_after_those_that_it_requires_and_not_at_all_where_one_did_not_pass() -> None:
    order: list[str] = []
    some = [
        numbered("L0-004", requires=["L0-003"]), numbered("L0-003", requires=["L0-002"]), numbered("L0-002"),
        numbered("L0-005", "/wrong"), numbered("L0-006", requires=["L0-005", "L0-002"]),
        numbered("L0-007", requires=["L0-006"]), numbered("L0-008", requires=["L9-999"]),
    ]  # fmt: skip
    with Server(right_or_wrong) as one, Server(right_or_wrong) as two:
        results = run_suite(some, [Target(one.url), Target(two.url)], on_result=lambda r: order.append(r.case.test_id))
    outcomes = {result.case.test_id: result.outcome for result in results}
    assert outcomes == {
        "L0-002": "passed", "L0-003": "passed", "L0-004": "passed", "L0-005": "failed", "L0-006": "skipped",
        "L0-007": "skipped", "L0-008": "skipped",
    }  # fmt: skip
    assert order.index("L0-002") < order.index("L0-003") < order.index("L0-004")
    reasons = {result.case.test_id: result.reason for result in results}
    assert reasons["L0-006"] == "requires L0-005, which did not pass"
    assert reasons["L0-008"] == "requires L9-999, which did not pass"


def test_cases_that_wait_for_each_other_end_as_skipped() -> None:
    found = ran(numbered("L0-001", requires=["L0-002"]), numbered("L0-002", requires=["L0-001"]), numbered("L0-003"))
    assert {name: result.outcome for name, result in found.items()} == {
        "L0-001": "skipped", "L0-002": "skipped", "L0-003": "passed",
    }  # fmt: skip


def test_what_a_chosen_case_requires_is_chosen_with_it() -> None:
    some = [numbered("L0-001"), numbered("L0-002", requires=["L0-001"]), numbered("L0-003", requires=["L0-002"])]
    assert [case.test_id for case in cases.select(some, test_id="L0-003")] == ["L0-003", "L0-002", "L0-001"]


def test_a_deprecated_case_is_run_and_told_and_counts_for_nothing() -> None:
    old = numbered("L0-009", "/wrong", deprecated=True, deprecated_reason="replaced by L0-010")
    with Server(right_or_wrong) as server:
        report = run_report([numbered("L0-001"), old], [Target(server.url)], 0)
        assert len(server.requests) == 2
    content: Any = report.as_json()
    assert (report.failed, content["conformant"], content["conformant_level"]) == (False, True, 0)
    assert (content["results"]["total"], content["failures"]) == (1, [])
    (told,) = content["deprecated"]
    assert (told["test_id"], told["outcome"], told["deprecated_reason"]) == ("L0-009", "failed", "replaced by L0-010")
    assert "DEPRECATED (FAILED) L0-009" in report.as_text()


def test_steps_may_name_operations_in_place_of_paths() -> None:
    case = seed(
        {
            "action": "PUSH",
            "body": {"type": "a", "args": []},
            "expect": {"status": 200},
            "capture": {"job_id": "body.id"},
        },
        {"action": "FETCH", "body": {"queues": ["default"]}},
        {"action": "BEAT", "body": {"worker_id": "w"}},
        {"action": "ACK", "body": {"job_id": "{job_id}"}},
        {"action": "FAIL", "body": {"job_id": "{job_id}"}},
        {"action": "INFO"},
        {"action": "CANCEL", "body": {"job_id": "other"}},
    )
    assert (case.format, lint.problems(case), needs_worker(case)) == ("seed", [], False)
    result, server = run(case, always(200, {"id": "first"}))
    assert (result.outcome, result.reason) == ("passed", "")
    assert [(method, path) for method, path, _, _ in server.requests] == [
        ("POST", "/ojs/v1/jobs"), ("POST", "/ojs/v1/workers/fetch"), ("POST", "/ojs/v1/workers/heartbeat"),
        ("POST", "/ojs/v1/workers/ack"), ("POST", "/ojs/v1/workers/nack"), ("GET", "/ojs/v1/jobs/first"),
        ("DELETE", "/ojs/v1/jobs/other"),
    ]  # fmt: skip
    assert [content for _, _, _, content in server.requests][-2:] == [b"", b""]


@pytest.mark.parametrize("form", [
    {"handlers": [{"name": "test.own", "behavior": "does as it likes"}]}, [{"name": "test.own"}], {"test.own": "does"},
])  # fmt: skip
def test_a_suite_may_define_handlers_and_a_worker_that_lacks_one_fails_the_case(tmp_path: Path, form: Any) -> None:
    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers" / "handlers.json").write_text(json.dumps(form))
    raw = numbered("L0-001", setup={"handler": "test.own"}).raw
    (tmp_path / "L0-001.json").write_text(json.dumps(raw))
    (case,) = cases.load_path(tmp_path)
    assert lint.problems(case) == []
    result, server = run(case, always(200, {}), handlers=frozenset(handlers.HANDLERS))
    assert (result.outcome, server.requests) == ("failed", [])
    assert "no handler 'test.own'" in result.reason
    assert run(case, always(200, {}), worker=contextlib.nullcontext)[0].outcome == "passed"


def test_our_suite_defines_the_standard_handlers() -> None:
    assert cases.defined_handlers(Path(__file__).parent / "cases").keys() == handlers.HANDLERS.keys()


def test_the_one_case_that_nobody_passes_honestly_is_skipped_with_its_reason() -> None:
    skipped = published(get(), test_id="L1-RTR-014", level=1, name="retry-error-history-tracked")
    result, server = run(skipped, always(200, {}))
    assert (result.outcome, server.requests) == ("skipped", [])
    assert "never send" in result.reason
    other = published(get(), test_id="L1-RTR-014", level=1, name="another-case-of-the-same-id")
    assert run(other, always(200, {}))[0].outcome == "passed"


def _report(*outcomes: tuple[int, str]) -> Report:
    loaded = [
        cases.load_dict({"test_id": f"L{level}-{n}", "level": level, "name": "n", "input": {}}, f"{n}.json")
        for n, (level, _) in enumerate(outcomes)
    ]
    results = [Result(case, outcome, "why") for case, (_, outcome) in zip(loaded, outcomes, strict=True)]  # type: ignore[arg-type]
    return Report(results, "http://x", FakeClock().now(), 5, 1, "1.0.0")


def test_the_report_counts_by_level_and_is_keyed_by_file() -> None:
    report = _report((0, "passed"), (1, "passed"), (1, "failed"), (2, "skipped"))
    content: Any = report.as_json()
    assert json.loads(json.dumps(content)) == content
    assert content["test_suite_version"] == "1.0.0"
    assert content["run_at"] == "2026-01-01T00:00:00.000Z"
    assert {key: content["results"][key] for key in ("total", "passed", "failed", "skipped")} == {
        "total": 4,
        "passed": 2,
        "failed": 1,
        "skipped": 1,
    }
    assert content["results"]["level_1"] == {"total": 2, "passed": 1, "failed": 1, "skipped": 0}
    assert content["failures"] == [{"test_id": "L1-2", "name": "n", "file": "2.json", "reason": "why"}]
    assert [entry["file"] for entry in content["skipped"]] == ["3.json"]
    assert content["cases"]["0.json"]["outcome"] == "passed"
    assert (content["conformant"], content["conformant_level"]) == (False, 0)
    assert "FAILED L1-2 n [2.json]\n  why" in report.as_text()
    assert re.search(r"level 1 +2 +1 +1 +0\n", report.as_text())


@pytest.mark.parametrize(
    "outcomes, level, conformant",
    [
        ([(0, "passed"), (1, "passed")], 1, True),
        ([(0, "passed"), (1, "skipped")], 0, False),
        ([(0, "passed"), (2, "passed")], 0, False),
        ([(0, "failed"), (1, "passed")], None, False),
        ([], None, False),
    ],
)
def test_the_conformant_level_is_the_highest_without_a_gap(outcomes: Any, level: int | None, conformant: bool) -> None:
    content = _report(*outcomes).as_json()
    assert (content["conformant_level"], content["conformant"]) == (level, conformant)
    assert _report(*outcomes).failed is (not outcomes or "failed" in dict(outcomes).values())


def test_published_cases_claim_no_level() -> None:
    with Server(always(200, {})) as server:
        report = run_report([published(get(status=200))], [Target(server.url)])
    assert (report.conformant_level, report.failed) == (None, False)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite, report = tmp_path / "suite", tmp_path / "report.json"
    suite.mkdir()
    (suite / "manifest.json").write_text('{"version": "1.2.3"}')
    (suite / "right.json").write_text(json.dumps(published(get(status=200)).raw))
    (suite / "wrong.json").write_text(json.dumps(published(get(status=404), level=1).raw))
    with Server(always(200, {})) as server:
        options = ["--suites", str(suite), "--target", server.url, "--reset", "/reset", "--report", str(report)]
        assert main(options) == 1
        assert "status: expected 404, got 200" in capsys.readouterr().out
        content = json.loads(report.read_text())
        assert (content["test_suite_version"], content["results"]["failed"]) == ("1.2.3", 1)
        assert main([*options, "--level", "0"]) == 0
        assert main([*options, "--test", "wrong.json"]) == 1
        assert main([*options, "--test", "no-such-case"]) == 1
        assert main([*options, "--target", "http://127.0.0.1:9", "--jobs", "1", "--level", "0"]) == 0


def test_what_the_command_line_cannot_do_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for options, told in (
        (["--suites", str(tmp_path / "none")], "there is no"),
        (["--suites", str(tmp_path), "--grpc", "127.0.0.1:9"], "pip install 'ojs-conformance[grpc]'"),
    ):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(SystemExit):
            main([*options, "--target", "http://127.0.0.1:9"])
        assert told in capsys.readouterr().err


def test_a_worker_may_be_a_command(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with command_worker(f"sh -c 'echo $0 > {log}; exec sleep 60' {{target}}", "http://x")():
        for _ in range(500):
            if log.exists() and log.read_text() == "http://x\n":
                break
            threading.Event().wait(0.01)
        assert log.read_text() == "http://x\n"


def test_a_worker_command_that_ends_early_fails() -> None:
    with pytest.raises(RuntimeError, match="exit status 3"), command_worker("sh -c 'exit 3'", "http://x")():
        threading.Event().wait(0.2)


# --- the standard handlers --------------------------------------------------------------------------------------------


def test_the_standard_handlers_do_what_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(handlers.HANDLERS) == 9
    slept: list[float] = []
    monkeypatch.setattr(handlers, "sleep_in_slices", slept.append)

    def call(name: str, *args: object, attempt: int = 1) -> object:
        return handlers.HANDLERS[name](SimpleNamespace(attempt=attempt), *args)

    assert call("test.echo", "a", 1) == ["a", 1]
    assert call("test.produce", {"a": 1}) == {"a": 1}
    assert call("test.produce") is None
    assert call("test.noop") is None
    for name, failures in [("test.fail_once", 1), ("test.fail_twice", 2), ("test.fail_always", 3)]:
        for attempt in range(1, failures + 1):
            with pytest.raises(handlers.DeliberateFailure):
                call(name, attempt=attempt)
    assert call("test.fail_once", attempt=2) is call("test.fail_twice", attempt=3) is None
    for args in [(), (5,), ({"duration_ms": 250},), ({"duration": 2},)]:
        call("test.slow", *args)
    call("test.timeout")
    assert slept == [1.0, 5.0, 0.25, 2.0, 60.0]
    with pytest.raises(handlers.HandlerPanic):
        call("test.panic")


def test_a_sleeping_handler_sleeps_in_short_slices() -> None:
    handlers.sleep_in_slices(0.01)
    assert handlers.SLICE_SECONDS <= 0.1
