"""Options in Python's words become the envelope's, and mistakes are told where they are made."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from django_ojs import spellings
from django_ojs.client.options import HANDLER_NAMES, attributes, checked_options, merged, milliseconds
from django_ojs.errors import InvalidRetryPolicy, OJSError
from django_ojs.rules import durations

WEST = dt.timezone(dt.timedelta(hours=-5))


@pytest.mark.parametrize(
    "value,ms",
    [
        ("10m", 600_000),
        ("PT1.5S", 1500),
        (2, 2000),
        (0.0015, 2),
        (1.1, 1100),
        (dt.timedelta(minutes=1), 60_000),
        (0, 0),
    ],
)
def test_durations_come_in_four_forms(value: Any, ms: int) -> None:
    assert milliseconds(value, "delay") == ms


@pytest.mark.parametrize("value", [-1, float("nan"), "soon", dt.timedelta(seconds=-1)])
def test_impossible_durations_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^delay="):
        milliseconds(value, "delay")


@pytest.mark.parametrize("value", [None, True, [1]])
def test_what_is_no_duration_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^delay="):
        milliseconds(value, "delay")


@pytest.mark.parametrize(
    "options,expected",
    [
        ({"queue": "email"}, {"queue": "email"}),
        ({"timeout": 30}, {"timeout": 30}),
        ({"timeout": "1500ms"}, {"timeout_ms": 1500}),
        ({"visibility_timeout": "2m"}, {"visibility_timeout": 120}),
        (
            {"total_timeout": "1h", "enqueue_ttl": 90, "heartbeat_timeout": "1.5s", "grace_period": 5},
            {"total_timeout": 3600, "enqueue_ttl": 90, "heartbeat_timeout_ms": 1500, "grace_period": 5},
        ),
        ({"delay": "10m"}, {"options": {"scheduled_at": "+PT10M"}}),
        ({"unique": True}, {"unique": {}}),
        ({"unique": False}, {}),
        ({"unique": {"period": "1h"}}, {"unique": {"period": "1h"}}),
        ({"tags": ("a", "b")}, {"tags": ["a", "b"]}),
        ({"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}, {"scheduled_at": "2026-01-01T00:00:00.000Z"}),
        ({"expires_at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}, {"expires_at": "2026-01-01T00:00:00.000Z"}),
        ({"rate_limit": {"key": "k", "concurrency": 2}}, {"rate_limit": {"key": "k", "concurrency": 2}}),
        ({"priority": "HIGH", "pending": True}, {"priority": "HIGH", "pending": True}),
    ],
)
def test_options_become_attributes(options: dict[str, Any], expected: dict[str, Any]) -> None:
    assert attributes(options) == expected


@pytest.mark.parametrize(
    "options,error,message",
    [
        ({"at": dt.datetime(2026, 1, 1)}, ValueError, "no time zone"),  # noqa: DTZ001
        ({"at": "tomorrow"}, TypeError, "give a datetime"),
        ({"at": dt.datetime.max.replace(tzinfo=dt.UTC)}, ValueError, "^at=.* is not within the years 1 to 9999"),
        ({"expires_at": dt.datetime.max.replace(tzinfo=WEST)}, ValueError, "^expires_at=.* is not within the years"),
        ({"tags": "a"}, TypeError, r"\['a'\]"),
        ({"tags": 5}, TypeError, "tags=5: give a list"),
        ({"tags": {"customer": 7}}, TypeError, "tags=.*: give a list"),
        ({"unique": "1h"}, TypeError, "unique='1h': give True"),
        ({"unique": 60}, TypeError, "unique=60: give True"),
        ({"timeout": 0}, ValueError, "leave it out"),
        ({"queue": "No Queue"}, ValueError, "queue='No Queue'"),
        ({"retry": 5}, TypeError, "max_attempts"),
        ({"retry": {"max_attempts": -1}}, InvalidRetryPolicy, "retry.max_attempts"),
        ({"meta": {"when": dt.date(2026, 1, 1)}}, TypeError, r'meta\["when"\]'),
        ({"meta": []}, TypeError, "give a dict"),
        ({"rate_limit": 5}, TypeError, "concurrency"),
        ({"rate_limit": "10/s"}, TypeError, '\'10/s\': give a dict .* or {"key": "partner", "max_per_second": 10}'),
        ({"rate_limit": {"key": "k", "concurrency": -1}}, OJSError, "rate_limit.concurrency"),
        ({"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "delay": 5}, TypeError, "not both"),
        ({"delay": -(10**5000)}, ValueError, "^delay=<int>: a duration is zero or more"),
    ],
)
def test_mistaken_options_name_themselves(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        attributes(options)


def test_a_policy_of_the_wrong_kind_names_itself_also_over_that_of_the_handler() -> None:
    for name, said in (("retry", "retry=5: give a dict"), ("meta", "meta=5: give a dict")):
        with pytest.raises(TypeError, match=said):
            attributes(merged({name: {}}, {name: 5}))


def test_a_duration_of_any_length_is_one() -> None:
    assert milliseconds(10**400, "delay") == durations.MAX_MS
    assert milliseconds(1e308, "delay") == durations.MAX_MS


def test_tags_that_can_be_read_once_only_are_those_of_each_job() -> None:
    options = checked_options({"tags": (tag for tag in "ab")})
    assert [attributes(options) for _ in range(2)] == [{"tags": ["a", "b"]}] * 2


def test_an_unknown_option_gets_a_suggestion() -> None:
    with pytest.raises(TypeError, match="Did you mean queue="):
        checked_options({"que": "email"})


@pytest.mark.parametrize(
    "options, said",
    [
        ({"retry": {"max_attemps": 30}}, "retry=: there is no member 'max_attemps'. Did you mean 'max_attempts'?"),
        ({"retry": {"max_retries": 30}}, "'max_retries'. Did you mean 'max_attempts'?"),
        ({"unique": {"on_conflit": "ignore"}}, "unique=: there is no member 'on_conflit'. Did you mean 'on_conflict'?"),
        ({"rate_limit": {"key": "k", "concurency": 1}}, "'concurency'. Did you mean 'concurrency'?"),
        ({"rate_limit": {"key": "k", "rate": {"limit": 1, "perod": "minute"}}}, "'rate.perod'. Did you mean 'period'?"),
        ({"unique": {"zzz": 1}}, "'zzz'. There are args_keys, key, keys,"),
    ],
)
def test_a_member_that_no_policy_has_is_refused_with_the_one_that_was_meant(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError) as refusal:
        attributes(options)
    assert said in str(refusal.value)


def test_members_of_the_callers_own_may_stand_in_a_policy() -> None:
    assert attributes({"retry": {"x_note": 1, "max_attempts": 2}}) == {"retry": {"x_note": 1, "max_attempts": 2}}


def test_an_option_of_one_job_is_refused_at_the_handler() -> None:
    with pytest.raises(TypeError, match=r"use \.options\(delay=\.\.\.\)"):
        checked_options({"delay": 5}, HANDLER_NAMES)


def test_retry_and_meta_are_merged_and_at_replaces_delay() -> None:
    base = {"retry": {"max_attempts": 5, "jitter": False}, "meta": {"a": 1}, "delay": 5, "queue": "a"}
    over = {"retry": {"max_attempts": 1}, "meta": {"b": 2}, "at": "now", "queue": "b"}
    assert merged(base, over) == {
        "retry": {"max_attempts": 1, "jitter": False}, "meta": {"a": 1, "b": 2}, "at": "now", "queue": "b",
    }  # fmt: skip


@pytest.mark.parametrize(
    "below, above",
    [
        ({"initial_interval": "30s"}, {"initial_interval_ms": 500}),
        ({"initial_interval_ms": 30_000}, {"initial_interval": "500ms"}),
        ({"initial_delay_ms": 30_000}, {"initial_interval_ms": 500}),
        ({"initial_interval_ms": 30_000}, {"initial_delay_ms": 500}),
    ],
)
def test_of_two_words_for_one_member_of_retry_that_of_the_call_counts(below: Any, above: Any) -> None:
    options = merged({"retry": {**below, "max_attempts": 5}}, {"retry": above})
    assert spellings.read_retry(attributes(options)["retry"]) == {"initial_ms": 500, "max_attempts": 5}


@pytest.mark.parametrize("two_seconds", [2, 2.0, "2s", "PT2S", dt.timedelta(seconds=2)])
def test_each_option_that_is_a_duration_takes_the_same_kinds_of_value(two_seconds: Any) -> None:
    retry = attributes({"retry": {"initial_interval": two_seconds, "max_interval": two_seconds}})["retry"]
    read = [durations.parse_duration_ms(retry[name]) for name in ("initial_interval", "max_interval")]
    limit = attributes({"rate_limit": {"key": "k", "rate": {"limit": 1, "period": two_seconds}}})["rate_limit"]
    unique = attributes({"unique": {"period": two_seconds}})["unique"]
    read += [durations.parse_duration_ms(limit["rate"]["period"]), durations.parse_duration_ms(unique["period"])]
    assert read == [2000] * 4
    assert attributes({"timeout": two_seconds}) == {"timeout": 2}


@pytest.mark.parametrize("wrong", [-1, float("nan"), dt.timedelta(seconds=-1)])
def test_a_duration_inside_an_option_that_cannot_be_meant_is_refused_by_its_name(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"retry\['initial_interval'\]="):
        attributes({"retry": {"initial_interval": wrong}})
