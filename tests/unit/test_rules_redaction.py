"""What is hidden from readers, part by part, and that nothing is touched without a rule."""

from __future__ import annotations

from typing import Any

import pytest

from django_ojs.rules import redaction
from django_ojs.rules.errorobjects import cut
from django_ojs.rules.redaction import MASK

JOB: dict[str, Any] = {
    "id": "0190-job", "type": "payments.charge", "queue": "default", "state": "discarded", "attempt": 1,
    "args": ["4111", {"API_Token": "t", "amount": 5, "deep": [{"password": "p"}]}],
    "meta": {"password_hint": "dog", "tenant": "a"},
    "result": {"token": "r"},
    "error": {"type": "E", "message": "card 4111", "attempt": 1, "backtrace": ["at x"], "details": {"token": "d"}},
    "errors": [{"type": "E", "message": "card 4111", "attempt": 1, "backtrace": ["at x"]}],
    "x_custom": {"token": "c"}, "token": "top",
}  # fmt: skip


@pytest.fixture
def rule(settings: Any) -> Any:
    def set_rule(**redact: Any) -> None:
        settings.OJS = {"REDACT": redact}

    return set_rule


def test_without_rules_nothing_is_even_copied(settings: Any) -> None:
    settings.OJS = {}
    assert redaction.job(JOB) is JOB
    assert redaction.event("payments.charge", JOB) is JOB
    assert redaction.part("args", JOB["args"], "payments.charge", {}) is JOB["args"]
    assert not redaction.hides("errors", "payments.charge")


def test_a_key_is_hidden_wherever_it_is_and_whatever_its_case(rule: Any) -> None:
    rule(keys=["*token*", "password*"])
    shown = redaction.job(JOB)
    assert shown["args"] == ["4111", {"API_Token": MASK, "amount": 5, "deep": [{"password": MASK}]}]
    assert shown["meta"] == {"password_hint": MASK, "tenant": "a"}
    assert shown["result"] == {"token": MASK}
    assert shown["error"]["details"] == {"token": MASK}
    assert (shown["x_custom"], shown["token"]) == ({"token": MASK}, MASK)
    assert JOB["args"][1]["API_Token"] == "t", "the stored job is left alone"


def test_a_pattern_for_everything_hides_no_attribute_of_the_protocol(rule: Any) -> None:
    rule(keys=["*"])
    shown = redaction.job(JOB)
    assert {name: shown[name] for name in ("id", "type", "queue", "state", "attempt")} == {
        name: JOB[name] for name in ("id", "type", "queue", "state", "attempt")
    }


def test_parts_of_a_type_are_hidden_as_a_whole_and_keep_their_shape(rule: Any) -> None:
    rule(types={"payments.*": ["*"]})
    shown = redaction.job(JOB)
    assert shown["args"] == [MASK]
    assert shown["meta"] == {"password_hint": MASK, "tenant": MASK}
    assert shown["result"] == MASK
    assert shown["error"] == {"type": "E", "attempt": 1, "message": MASK, "details": MASK}
    assert "4111" not in str(shown)
    assert redaction.job({**JOB, "type": "mail.send"})["args"] == JOB["args"]


def test_backtraces_alone(rule: Any) -> None:
    rule(types={"*": ["backtraces"]})
    shown = redaction.job(JOB)
    assert "backtrace" not in shown["error"] | shown["errors"][0]
    assert shown["error"]["message"] == "card 4111"


@pytest.mark.parametrize("word,hidden", [("confidential", True), ("restricted", True), ("public", False)])
def test_classified_jobs_hide_everything(rule: Any, word: str, hidden: bool) -> None:
    rule(classified=True)
    shown = redaction.job({**JOB, "meta": {"data_classification": word}})
    assert (shown["args"] == [MASK]) is hidden


def test_events_hide_results_and_errors_of_the_type(rule: Any) -> None:
    rule(types={"payments.*": ["result", "errors"]})
    data = {"job_id": "1", "type": "payments.charge", "job_type": "payments.charge", "result": 1, "duration_ms": 3,
            "last_error": {"type": "E", "message": "m"}}  # fmt: skip
    shown = redaction.event("payments.charge", data)
    assert (shown["result"], shown["last_error"]["message"], shown["duration_ms"]) == (MASK, MASK, 3)
    assert redaction.event("mail.send", {**data, "type": "mail.send", "job_type": "mail.send"})["result"] == 1


def test_what_belongs_to_other_jobs_is_as_secret_as_the_most_secret_of_them(rule: Any) -> None:
    rule(types={"payments.*": ["result", "errors"]})
    shown = redaction.job({"type": "mail.send", "state": "active", "args": [1], "meta": {}, "parent_results": [7],
                           "parent_errors": {"0": {"type": "E", "message": "m"}}})  # fmt: skip
    assert shown["parent_results"] == [MASK]
    assert shown["parent_errors"]["0"] == {"type": "E", "message": MASK}
    assert shown["args"] == [1]


def test_events_do_not_tell_who_is_classified_so_none_shows_a_result(rule: Any) -> None:
    rule(classified=True)
    assert redaction.event("mail.send", {"type": "mail.send", "job_id": "1", "result": 1})["result"] == MASK


def test_a_step_of_a_workflow_and_a_schedule_follow_the_rules_of_their_type(rule: Any) -> None:
    rule(types={"payments.*": ["args", "result", "meta"]})
    flow = {"id": "w", "type": "chain", "state": "running", "steps": [
        {"id": "a", "type": "payments.charge", "state": "completed", "job_id": "1", "args": [1], "result": 2},
        {"id": "b", "type": "mail.send", "state": "waiting", "job_id": None, "args": [1]}]}  # fmt: skip
    first, second = redaction.job(flow)["steps"]
    assert (first["args"], first["result"], second["args"]) == ([MASK], MASK, [1])
    entry = {"type": "payments.charge", "args": [1], "meta": {}, "options": {"metadata": {"x": 1}},
             "job_template": {"type": "payments.charge", "args": [1], "meta": {}}}  # fmt: skip
    shown = redaction.job(entry)
    assert shown["args"] == shown["job_template"]["args"] == [MASK]
    assert shown["options"] == {"metadata": {"x": MASK}}


@pytest.mark.parametrize(
    "setting", [1, {"key": []}, {"keys": "token"}, {"types": []}, {"types": {"a": ["argz"]}}, {"classified": "yes"}]
)
def test_a_wrong_setting_is_named(setting: Any) -> None:
    assert redaction.problems(setting)


def test_a_right_setting_passes() -> None:
    assert not redaction.problems({"keys": ["a"], "types": {"b.*": ["args", "*"]}, "classified": True})


def logs(args: Any = (), meta: Any = None) -> redaction.Logs:
    return redaction.Logs("mail.send", list(args), meta or {})


@pytest.mark.parametrize(
    "text, shown",
    [
        ("token=abc", "token=*"),
        ('{"token": "a b", "n": 1}', '{"token": *, "n": 1}'),
        ('request: "GET /x?token=abc HTTP/1.1"', 'request: "GET /x?token=* HTTP/1.1"'),
        ("https://x/?n=1&token=abc d", "https://x/?n=1&token=* d"),
        ("{'headers': {'Authorization': 'Bearer a b'}, 'n': 1}", "{'headers': {'Authorization': *}, 'n': 1}"),
        ("headers={'Authorization': 'Bearer a b'}", "headers={'Authorization': *}"),
        ("Authorization: Bearer abc next", "Authorization: * next"),
        ("authorization=Basic abc", "authorization=*"),
        (r'body: "{\"token\": \"a b\", \"n\": 1}"', r'body: "{\"token\": *, \"n\": 1}"'),
        (r'token="a\"b c" n=1', "token=* n=1"),
        (r'body: "{\"token\": \"a\\\"b c\", \"n\": 1}"', r'body: "{\"token\": *, \"n\": 1}"'),
        ("'token': b'a b', 'n': 1", "'token': *, 'n': 1"),
        ("token={'a': 'x}y', 'b': 'c'} n=1", "token=* n=1"),
        ('token=["a]b", "c"] n=1', "token=* n=1"),
        ("token: ['abc', 'def'], n=1", "token: *, n=1"),
        ("token={'user': {'a': 'b'}, 'z': [1]} n=1", "token=* n=1"),
        ("token: [a, b\nn=1", "token: *\nn=1"),
        ("token: 'never closed and long\nn=1", "token: *\nn=1"),
        ('says: "hello token=abc', 'says: "hello token=*'),
        ("tokens=abc, no token here: none, n=token", "tokens=abc, no token here: none, n=token"),
        ("token=", "token="),
    ],
)
def test_what_a_hidden_name_is_said_to_be_is_hidden_in_a_message(rule: Any, text: str, shown: str) -> None:
    rule(keys=["token", "authorization"])
    assert logs().message(text) == shown.replace("*", MASK)
    assert logs().exception(text) == shown.replace("*", MASK)
    assert logs().fields({"a": [text, 7, None]}) == {"a": [shown.replace("*", MASK), 7, None]}
    rule(keys=["other"])
    assert logs().message(text) == text


@pytest.mark.parametrize("length", [3, 4, 100, 1389, 1390])
@pytest.mark.parametrize("before", ["", "it is ", "012 and 01", "whole and "])
def test_a_secret_that_is_cut_off_in_a_message_is_hidden(rule: Any, before: str, length: int) -> None:
    rule(keys=["token"])
    secret = "".join(map(str, range(500)))
    mask = logs([{"token": secret, "n": 1}], {"token": "012"})
    before = before.replace("whole", secret)
    end = "… [cut: 10000 characters]"
    stored = cut(before + secret[:length] + "x" * 10000, len(before) + length + len(end))[: -len(end)] + end
    shown = before.replace(secret, MASK).replace("012", MASK) + MASK + end
    assert mask.message(stored) == shown
    assert mask.exception(stored) == shown
    assert mask.fields({"a": [stored]}) == {"a": [shown]}


@pytest.mark.parametrize("text", ["0, 1 … [cut: 9 characters]", "01… [cut: 9 characters] or not", "n 01"])
def test_what_is_no_beginning_of_a_secret_is_shown(rule: Any, text: str) -> None:
    rule(keys=["token"])
    assert logs([{"token": "0123"}]).message(text) == text
