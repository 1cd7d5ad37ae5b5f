"""Unique policies: every spelling means what its client meant (jobs 2.1 to 2.3)."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from django_ojs.errors import InvalidRequest
from django_ojs.rules import unique
from django_ojs.rules.unique import Strategy, UniquePolicy
from django_ojs.states import LIVE, State

ARGS = [{"user_id": 42, "at": "now"}, "x", {"user_id": 43, "zone": 1}]
META = {"tenant": "t", "trace": 1}


def key(policy: dict[str, Any], args: Any = ARGS, meta: Any = META, version: Any = None) -> str:
    return unique.key(unique.parse(policy), "email.send", "notifications", args, meta, version)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


WHOLE = '{"args":[{"at":"now","user_id":42},"x",{"user_id":43,"zone":1}],"type":"email.send"}'


@pytest.mark.parametrize(
    "policy, text",
    [
        ({}, WHOLE), ({"key": []}, WHOLE), ({"keys": []}, WHOLE), ({"keys": None, "key": None}, WHOLE),
        ({"keys": ["args"]}, WHOLE), ({"key": ["type", "args"]}, WHOLE),
        ({"keys": ["type"]}, '{"type":"email.send"}'), ({"key": ["type"]}, '{"type":"email.send"}'),
        ({"keys": ["queue"]}, '{"queue":"notifications","type":"email.send"}'),
        ({"keys": ["type", "queue", "args"], "args_keys": ["user_id"]},
         '{"args":{"user_id":42},"queue":"notifications","type":"email.send"}'),
        ({"key": ["user_id"]}, '{"args":{"user_id":42},"type":"email.send"}'),
        ({"key": ["user_id", "missing"]}, '{"args":{"user_id":42},"type":"email.send"}'),
        ({"key": ["missing"]}, WHOLE), ({"key": ["version"]}, WHOLE),
        ({"args_keys": ["zone", "1"]}, '{"args":{"1":"x","zone":1},"type":"email.send"}'),
        ({"keys": ["meta"], "meta_keys": ["tenant", "absent"]},
         '{"meta":{"absent":null,"tenant":"t"},"type":"email.send"}'),
        ({"keys": ["type"], "keys_of_tomorrow": 1}, '{"type":"email.send"}'),
    ],
)  # fmt: skip
def test_dimensions(policy: dict[str, Any], text: str) -> None:
    assert key(policy) == digest(text)


def test_a_dimension_spelled_with_an_argument_name_beside_it_is_an_argument() -> None:
    assert key({"key": ["type", "user_id"]}) == digest('{"args":{"user_id":42},"type":"email.send"}')


def test_versions_are_distinct_and_spelled_alike() -> None:
    keys = {key({}, version=version) for version in (None, 2, "2", "2.0", "2.1")}
    assert len(keys) == 3
    assert key({}, version=2) == key({}, version="2.0")


@pytest.mark.parametrize(
    "given, ms",
    [({"period": "PT1M"}, 60_000), ({"period": "90s"}, 90_000), ({"period_ms": 5}, None), ({"period_seconds": 5}, None),
     ({"period": "1s", "period_ms": 5}, 1000), ({}, None), ({"period": None}, None)],
)  # fmt: skip
def test_periods(given: dict[str, Any], ms: int | None) -> None:
    assert unique.parse(given).period_ms == ms


@pytest.mark.parametrize(
    "given, expected",
    [({}, "reject"), ({"on_conflict": "ignore"}, "ignore"), ({"conflict_policy": "replace"}, "reject"),
     ({"on_conflict": "replace_except_schedule", "conflict_policy": "ignore"}, "replace_except_schedule")],
)  # fmt: skip
def test_strategies(given: dict[str, Any], expected: str) -> None:
    assert unique.parse(given).on_conflict == Strategy(expected)


def test_states_default_to_the_live_ones() -> None:
    assert UniquePolicy().states == unique.parse({}).states == unique.parse({"states": []}).states == LIVE
    assert unique.parse({"states": ["completed", "active"]}).states == {State.COMPLETED, State.ACTIVE}


def test_a_policy_that_was_read_before_is_told_from_one_that_looks_like_it() -> None:
    """What is remembered of one policy never answers for another."""
    alike: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"key": ["period", "PT1M"]}, {"key": ["period"], "period": "PT1M"}),
        ({"keys": ["type"], "period": "PT1S"}, {"keys": ["type"], "period": "PT2S"}),
        ({"keys": ["args"], "args_keys": ["a"]}, {"key": ["a"]}),
        ({"states": ["active"]}, {"states": ["active", "available"]}),
        ({"on_conflict": "ignore"}, {"on_conflict": "replace"}),
    ]
    for first, second in alike:
        for _ in range(2):
            assert unique.parse(first) != unique.parse(second)
            assert unique.parse(first) == unique.parse(dict(reversed(first.items())))
    unique.parse({"period": "PT1S", "keys": ["args"]})
    for wrong in (
        {"keys": "args"},
        {"period": True},
        {"on_conflict": "use_existing"},
        {"keys": ["args"], "period": "1"},
    ):
        for _ in range(2):
            with pytest.raises(InvalidRequest) as refused:
                unique.parse(wrong, "options.unique")
            assert refused.value.details["field"].startswith("options.unique.")


def test_policies_that_are_many_or_large_are_not_all_kept() -> None:
    for number in range(1000):
        unique.parse({"args_keys": [f"name {number}"]})
        unique.parse({"args_keys": ["x" * 100_000]})
        unique.parse({"args_keys": [str(n) for n in range(20)]})
    assert len(unique._parsed) <= 256
    assert max(len(repr(known)) for known in unique._parsed) < 1000


@pytest.mark.parametrize(
    "value, text",
    [
        (10**21 - 1, "9" * 21), (10**21, "1e+21"), (-(10**21) + 1, f"-{'9' * 21}"), (-(10**21), "-1e+21"), (0, "0"),
        (-0.0, "0"), (True, "true"), (State.ACTIVE, '"active"'), ("\x7f", '"\x7f"'), ('a"\\\n', '"a\\"\\\\\\n"'),
        ("e\u0301", '"\u00e9"'), ({"e\u0301": 1, "f": 2}, '{"f":2,"\u00e9":1}'), ("\ud800", '"\\ud800"'),
    ],
)  # fmt: skip
def test_the_canonical_text_of_what_is_usual_and_of_what_is_not(value: Any, text: str) -> None:
    assert unique.canonical(value) == text
