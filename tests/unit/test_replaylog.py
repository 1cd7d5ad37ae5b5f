"""The steps of a durable job as the log of other clients, and the reverse (CKP-19)."""

from __future__ import annotations

import datetime as dt
import json

import pytest

from django_ojs.rules import replaylog
from django_ojs.rules.steps import Step

NOW = dt.datetime(2026, 5, 4, 12, tzinfo=dt.UTC)


def step(name: str, kind: str, result: str | None, *, ended: bool = True) -> Step:
    return Step(name, kind, NOW, 1, ended_at=NOW if ended else None, result=result)


def test_a_log_has_what_ended_and_has_a_word_there() -> None:
    steps = [
        step("charge", "call", '{"id":12345678901234567890.25}'),
        step("$time-1", "time", '{"$type":"datetime","value":"2026-05-04T12:00:00+00:00"}'),
        step("$uuid-1", "random", '{"$type":"uuid","value":"00000000-0000-0000-0000-000000000005"}'),
        step("$random-1", "random", '"ab"'),
        step("$sleep-1", "sleep", None, ended=False),
        step("$arguments", "arguments", "[5]"),
        step("mail", "call", None, ended=False),
        step("none", "call", "null"),
    ]
    text = replaylog.write(steps)
    assert "12345678901234567890.25" in text  # a number as it was returned
    assert json.loads(text) == [
        {"seq": 1, "type": "call", "key": "charge", "result": {"id": 12345678901234567890.25}},
        {"seq": 2, "type": "time", "key": "$time-1", "result": "2026-05-04T12:00:00.000Z"},
        {"seq": 3, "type": "random", "key": "$uuid-1", "result": "00000000-0000-0000-0000-000000000005"},
        {"seq": 4, "type": "random", "key": "$random-1", "result": "ab"},
        {"seq": 5, "type": "call", "key": "none", "result": None},
    ]


def test_a_log_of_another_client_becomes_steps() -> None:
    text = json.dumps([
        {"seq": 1, "type": "call", "key": "charge", "result": {"id": 1}},
        {"seq": 2, "type": "time", "result": "2026-05-04T12:00:00Z"},
        {"seq": 3, "type": "random", "result": "ab"},
        {"seq": 4, "type": "time", "result": "2026-05-04T13:00:00Z"},
        {"seq": 5, "type": "call", "key": "charge", "result": 2},
        {"seq": 6, "type": "magic", "result": 2},
        {"seq": 7, "type": "call", "result": None},
    ])  # fmt: skip
    found = replaylog.read(text, NOW)
    assert [(one.name, one.kind, one.result, one.ended_at) for one in found] == [
        ("charge", "call", '{"id":1}', NOW),
        ("$time-1", "time", '"2026-05-04T12:00:00Z"', NOW),
        ("$random-1", "random", '"ab"', NOW),
        ("$time-2", "time", '"2026-05-04T13:00:00Z"', NOW),
        ("$call-3", "call", "null", NOW),
    ]
    assert [one.name for one in replaylog.read(replaylog.write(found), NOW)] == [one.name for one in found]


@pytest.mark.parametrize(
    "text", [None, 5, "", "{", "{}", "[5, null, []]", "[" * 5000], ids=lambda text: repr(text)[:20]
)
def test_what_is_no_log_brings_nothing(text: object) -> None:
    assert replaylog.read(text, NOW) == []
