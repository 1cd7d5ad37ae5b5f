"""Retry: what is accepted, how layers combine, how long to wait, and what FAIL decides."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ojs.errors import InvalidPayload, InvalidRetryPolicy
from django_ojs.jsontext import ExactNumber
from django_ojs.rules import retrypolicy
from django_ojs.rules.retrypolicy import (
    FailureOutcome,
    RetryPolicy,
    backoff_ms,
    decide,
    from_json,
    merge,
    parse,
    to_json,
)
from django_ojs.spellings import BACKOFF_STRATEGY

STEADY = RetryPolicy(jitter=False)


@pytest.mark.parametrize(
    "given_policy, parsed",
    [
        ({}, {}),
        ({"max_attempts": 5}, {"max_attempts": 5}),
        ({"max_attempts": 5.0}, {"max_attempts": 5}),
        ({"max_attempts": 0}, {"max_attempts": 0}),
        ({"max_attempts": None}, {}),
        ({"initial_interval": "PT1S"}, {"initial_ms": 1_000}),
        ({"initial_interval": "2s"}, {"initial_ms": 2_000}),
        ({"max_interval": "PT5M"}, {"max_ms": 300_000}),
        ({"backoff_coefficient": 1}, {"coefficient": 1.0}),
        ({"backoff_coefficient": 1.5}, {"coefficient": 1.5}),
        ({"backoff_coefficient": ExactNumber("1.00000000000000000000001")}, {"coefficient": 1.0}),
        ({"jitter": False}, {"jitter": False}),
        ({"retryable_errors": ["A"], "non_retryable_errors": []}, {"retryable": ("A",), "non_retryable": ()}),
        ({"non_retryable_errors": ["A", "b.*"]}, {"non_retryable": ("A", "b.*")}),
        ({"on_exhaustion": "discard"}, {"on_exhaustion": "discard"}),
        ({"on_exhaustion": "dead_letter"}, {"on_exhaustion": "dead_letter"}),
        ({"backoff_strategy": "linear"}, {"strategy": "linear"}),
        ({"strategy": "polynomial", "initial_interval_ms": "x", "backoff_multiplier": 0}, {}),
        ({"x_unknown": [1], "jitter": True}, {"jitter": True}),
        ({"initial_interval": "5s", "max_interval": "5s"}, {"initial_ms": 5_000, "max_ms": 5_000}),
    ],
)
def test_given_fields_are_read(given_policy: dict[str, Any], parsed: dict[str, Any]) -> None:
    assert parse(given_policy) == parsed


@pytest.mark.parametrize(
    "given_policy, field",
    [
        ({"max_attempts": -1}, "max_attempts"),
        ({"max_attempts": 1.5}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"max_attempts": "3"}, "max_attempts"),
        ({"max_attempts": 2**31}, "max_attempts"),
        ({"initial_interval": 1000}, "initial_interval"),
        ({"initial_interval": "PT0S"}, "initial_interval"),
        ({"initial_interval": "soon"}, "initial_interval"),
        ({"max_interval": []}, "max_interval"),
        ({"backoff_coefficient": 0.99}, "backoff_coefficient"),
        ({"backoff_coefficient": True}, "backoff_coefficient"),
        ({"backoff_coefficient": "2"}, "backoff_coefficient"),
        ({"backoff_coefficient": 10**400}, "backoff_coefficient"),
        ({"backoff_coefficient": ExactNumber("1e400")}, "backoff_coefficient"),
        ({"jitter": 1}, "jitter"),
        ({"non_retryable_errors": "A"}, "non_retryable_errors"),
        ({"non_retryable_errors": ["A", ""]}, "non_retryable_errors"),
        ({"non_retryable_errors": [1]}, "non_retryable_errors"),
        ({"retryable_errors": "A"}, "retryable_errors"),
        ({"retryable_errors": [""]}, "retryable_errors"),
        ({"on_exhaustion": "explode"}, "on_exhaustion"),
        ({"on_exhaustion": ["discard"]}, "on_exhaustion"),
        ({"backoff_strategy": "zigzag"}, "backoff_strategy"),
        ({"initial_interval": "5s", "max_interval": "4s"}, "max_interval"),
    ],
)
def test_a_bad_value_is_a_422_that_names_the_field(given_policy: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRetryPolicy) as caught:
        parse(given_policy, "options.retry")
    error = caught.value
    body = error.as_dict()
    assert (error.status, body["code"], body["type"]) == (422, "invalid_payload", "validation_error")
    assert body["canonical_code"] == "INVALID_RETRY_POLICY"
    assert body["retryable"] is False
    assert body["message"].startswith(f"options.retry.{field}: must be ")
    assert body["details"]["field"] == f"options.retry.{field}"
    assert {"value", "constraint", "received", "expected"} <= body["details"].keys()
    assert body["details"]["error_type"] == "validation.retry_policy_invalid"


@pytest.mark.parametrize("value", [None, [], "3", 3, True])
def test_a_policy_that_is_no_object_is_a_400(value: object) -> None:
    with pytest.raises(InvalidPayload, match="retry: must be an object") as caught:
        parse(value)
    assert caught.value.status == 400


def test_later_layers_win_field_by_field() -> None:
    assert merge() == RetryPolicy()
    assert merge({}, {}) == RetryPolicy()
    policy = merge({"max_attempts": 5, "jitter": False}, {}, {"max_attempts": 7, "coefficient": 3.0})
    assert policy == RetryPolicy(max_attempts=7, jitter=False, coefficient=3.0)


def test_a_large_initial_interval_raises_only_an_implied_cap() -> None:
    assert merge({"initial_ms": 600_000}).max_ms == 600_000
    assert merge({"max_ms": 2_000}, {"initial_ms": 5_000}).max_ms == 5_000
    assert merge({"initial_ms": 5_000}, {"max_ms": 2_000}).max_ms == 2_000
    assert merge({"initial_ms": 1_500}).max_ms == 300_000
    with pytest.raises(InvalidRetryPolicy, match="max_interval"):
        merge({"initial_ms": 5_000, "max_ms": 4_000})


policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(0, 100),
    initial_ms=st.integers(1, 10**12),
    coefficient=st.floats(1, 1e308),
    max_ms=st.integers(1, 10**12),
    jitter=st.booleans(),
    non_retryable=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1)).map(tuple),
    retryable=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1)).map(tuple),
    on_exhaustion=st.sampled_from([None, "discard", "dead_letter"]),
    strategy=st.sampled_from([*retrypolicy.STRATEGIES]),
)


def test_the_schema_of_an_envelope_knows_every_strategy() -> None:
    schema = json.loads(files("django_ojs").joinpath("schemas/envelope.json").read_text(encoding="utf-8"))
    known = {*retrypolicy.STRATEGIES, *BACKOFF_STRATEGY.words}
    assert set(schema["$defs"]["backoff_strategy"]["enum"]) - {None} == known
    for name in ("backoff_strategy", "backoff_type", "strategy"):
        assert schema["$defs"]["retry"]["properties"][name] == {"$ref": "#/$defs/backoff_strategy"}


def test_each_strategy_has_waits_of_its_own() -> None:
    policy = RetryPolicy(initial_ms=1_000, coefficient=3.0, max_ms=10**9, jitter=False)
    waits = {
        strategy: tuple(backoff_ms(replace(policy, strategy=strategy), number) for number in (1, 2, 3, 4))
        for strategy in retrypolicy.STRATEGIES
    }
    assert len(set(waits.values())) == len(waits)


@given(policies)
def test_a_policy_survives_its_text(policy: RetryPolicy) -> None:
    assert from_json(to_json(policy)) == policy


def test_the_text_holds_only_what_differs() -> None:
    assert to_json(RetryPolicy()) == ""
    assert from_json("") == RetryPolicy()
    assert to_json(RetryPolicy(max_attempts=5, non_retryable=("A",))) == '{"max_attempts":5,"non_retryable":["A"]}'
    assert from_json('{"max_attempts":5,"of_a_later_version":1}') == RetryPolicy(max_attempts=5)


@pytest.mark.parametrize(
    "policy, waits",
    [
        (STEADY, [1_000, 2_000, 4_000, 8_000]),
        (RetryPolicy(jitter=False, coefficient=10, max_ms=2_000), [1_000, 2_000, 2_000]),
        (RetryPolicy(jitter=False, strategy="linear"), [1_000, 2_000, 3_000]),
        (RetryPolicy(jitter=False, strategy="polynomial"), [1_000, 4_000, 9_000]),
        (RetryPolicy(jitter=False, strategy="constant"), [1_000, 1_000]),
        (RetryPolicy(jitter=False, coefficient=1.0), [1_000, 1_000]),
    ],
)
def test_backoff_without_jitter(policy: RetryPolicy, waits: list[int]) -> None:
    assert [backoff_ms(policy, attempt) for attempt in range(1, len(waits) + 1)] == waits
    assert backoff_ms(policy, 0) == waits[0]


def test_jitter_spreads_by_a_quarter_and_stays_capped() -> None:
    policy = RetryPolicy(initial_ms=2_000)
    assert backoff_ms(policy, 1, lambda: 0.0) == 1_500
    assert backoff_ms(policy, 1, lambda: 0.999_999) == 2_500
    assert backoff_ms(RetryPolicy(initial_ms=2_000, max_ms=2_000), 1, lambda: 0.9) == 2_000
    assert 1_500 <= backoff_ms(policy, 1) <= 2_500


@given(policies, st.integers(1, 10**9), st.floats(0, 1, exclude_max=True))
def test_no_backoff_overflows_or_exceeds_its_cap(policy: RetryPolicy, attempt: int, chance: float) -> None:
    assert 0 <= backoff_ms(policy, attempt, lambda: chance) <= policy.max_ms


@pytest.mark.parametrize(
    "entries, error, matches",
    [
        ((), {"type": "A"}, False),
        (("A",), {"type": "A"}, True),
        (("A",), {"type": "a"}, False),
        (("A",), {"type": "B", "code": "A"}, True),
        (("A",), {"type": "B", "details": {"error_class": "A"}}, True),
        (("A",), {"type": "B", "details": ["A"], "message": "A"}, False),
        (("A",), {"type": 1, "details": {"error_class": 2}, "code": None}, False),
        (("auth.*",), {"type": "auth.token_expired"}, True),
        (("auth.*",), {"type": "auth"}, False),
        (("auth.*",), {"type": "external.auth.x"}, False),
        (("B", "auth.*"), {"type": "x", "code": "auth.y.z"}, True),
    ],
)
def test_which_errors_are_not_retryable(entries: tuple[str, ...], error: dict[str, Any], matches: bool) -> None:
    assert retrypolicy.may_be_retried(RetryPolicy(non_retryable=entries), error) is not matches
    assert retrypolicy.may_be_retried(RetryPolicy(retryable=entries), error) is (matches or not entries)
    both = RetryPolicy(retryable=entries, non_retryable=entries)
    assert retrypolicy.may_be_retried(both, error) is (not entries), "who is on both lists is not retried"


CONNECTION_LOST = {
    "type": "ConnectTimeout",
    "details": {"error_class": "requests.ConnectTimeout", "error_bases": ["requests.RequestException", "OSError"]},
}


@pytest.mark.parametrize(
    "entries, matches",
    [
        (("requests.RequestException",), True),
        (("RequestException",), True),
        (("requests.*",), True),
        (("OSError",), True),
        (("Exception",), True),
        (("ValueError",), False),
        (("Request",), False),
    ],
)
def test_an_entry_stands_for_the_classes_made_from_it(entries: tuple[str, ...], matches: bool) -> None:
    assert retrypolicy.may_be_retried(RetryPolicy(retryable=entries), CONNECTION_LOST) is matches
    assert retrypolicy.may_be_retried(RetryPolicy(non_retryable=entries), CONNECTION_LOST) is not matches


def test_exception_stands_for_what_a_handler_raised_and_not_for_a_timeout() -> None:
    policy = RetryPolicy(retryable=("Exception",))
    assert retrypolicy.may_be_retried(policy, {"type": "Busy", "details": {"error_class": "shop.Busy"}})
    assert not retrypolicy.may_be_retried(policy, {"type": "timeout", "code": "timeout"})


LISTED = RetryPolicy(non_retryable=("Fatal", "ShutdownError", "cancelled"))
HIDDEN = RetryPolicy(on_exhaustion="discard", non_retryable=("Fatal",))
SHOWN = RetryPolicy(on_exhaustion="dead_letter")
ONLY = RetryPolicy(retryable=("Busy", "Fatal"), non_retryable=("Fatal",))


@pytest.mark.parametrize(
    "policy, error, attempt, outcome",
    [
        (STEADY, {"type": "X"}, 1, FailureOutcome.RETRY),
        (STEADY, {"type": "X", "retryable": True}, 2, FailureOutcome.RETRY),
        (STEADY, {"type": "X", "retryable": True}, 3, FailureOutcome.DEAD_LETTER),
        (STEADY, {"code": "DISCARD"}, 1, FailureOutcome.DISCARD),
        (STEADY, {"code": "FAIL"}, 1, FailureOutcome.DISCARD),
        (HIDDEN, {"code": "DEAD_LETTER"}, 1, FailureOutcome.DEAD_LETTER),
        (STEADY, {"retryable": False}, 1, FailureOutcome.DEAD_LETTER),
        (STEADY, {"retryable": False, "code": "RETRY"}, 1, FailureOutcome.RETRY),
        (STEADY, {"code": "RETRY"}, 3, FailureOutcome.DEAD_LETTER),
        (LISTED, {"type": "Fatal", "retryable": True, "code": "RETRY"}, 1, FailureOutcome.DEAD_LETTER),
        (HIDDEN, {"type": "Fatal"}, 1, FailureOutcome.DISCARD),
        (HIDDEN, {"type": "X"}, 3, FailureOutcome.DISCARD),
        (SHOWN, {"type": "X"}, 3, FailureOutcome.DEAD_LETTER),
        (RetryPolicy(max_attempts=0), {"type": "X"}, 1, FailureOutcome.DEAD_LETTER),
        (RetryPolicy(max_attempts=1), {"type": "X"}, 1, FailureOutcome.DEAD_LETTER),
        (LISTED, {"type": "ShutdownError"}, 1, FailureOutcome.RETRY),
        (LISTED, {"type": "ShutdownError", "retryable": False}, 1, FailureOutcome.RETRY),
        (LISTED, {"type": "X", "code": "shutdown"}, 1, FailureOutcome.RETRY),
        (LISTED, {"code": "ShutdownTimeout"}, 3, FailureOutcome.DEAD_LETTER),
        (LISTED, {"code": "cancelled", "retryable": True}, 1, FailureOutcome.RETRY),
        (LISTED, {"code": "cancelled", "retryable": False}, 1, FailureOutcome.DEAD_LETTER),
        (LISTED, {"code": "cancelled"}, 1, FailureOutcome.DEAD_LETTER),
        (ONLY, {"type": "Busy"}, 1, FailureOutcome.RETRY),
        (ONLY, {"type": "Busy"}, 3, FailureOutcome.DEAD_LETTER),
        (ONLY, {"type": "Busy", "retryable": False}, 1, FailureOutcome.DEAD_LETTER),
        (ONLY, {"type": "X", "retryable": True}, 1, FailureOutcome.DEAD_LETTER),
        (ONLY, {"type": "timeout", "code": "timeout"}, 1, FailureOutcome.DEAD_LETTER),
        (ONLY, {"type": "Fatal"}, 1, FailureOutcome.DEAD_LETTER),
        (ONLY, {"type": "X", "code": "RETRY"}, 1, FailureOutcome.RETRY),
        (ONLY, {"type": "Fatal", "code": "RETRY"}, 1, FailureOutcome.DEAD_LETTER),
        (ONLY, {"type": "shutdown"}, 1, FailureOutcome.RETRY),
    ],
)
def test_what_fail_decides(policy: RetryPolicy, error: dict[str, Any], attempt: int, outcome: FailureOutcome) -> None:
    assert decide(policy, error, attempt) is outcome


@pytest.mark.parametrize(
    "policy, error, retryable",
    [
        (STEADY, {"type": "X"}, True),
        (STEADY, {"type": "X", "retryable": False}, False),
        (STEADY, {"code": "RETRY", "retryable": False}, True),
        (LISTED, {"type": "Fatal", "retryable": True}, False),
        (LISTED, {"type": "ShutdownError", "retryable": False}, True),
        *((STEADY, {"code": code, "retryable": True}, False) for code in ("DISCARD", "FAIL", "DEAD_LETTER")),
    ],
)
def test_whether_an_error_is_worth_another_attempt(policy: RetryPolicy, error: dict[str, Any], retryable: bool) -> None:
    assert retrypolicy.is_retryable(policy, error) is retryable
