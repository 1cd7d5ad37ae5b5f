"""docs/options.md has every option and every member of the retry policy, with the defaults of the code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from django.conf import settings

from django_ojs.client.options import (
    HANDLER_NAMES,
    NAMES,
    RateLimitOptions,
    RateWindow,
    RetryOptions,
    ScheduledOptions,
    UniqueOptions,
)
from django_ojs.conf import Settings
from django_ojs.errors import InvalidRequest
from django_ojs.rules import cron, durations, names, ratelimit, retrypolicy, unique
from django_ojs.rules.retrypolicy import DEFAULT, MEMBERS
from django_ojs.spellings import BACKOFF_STRATEGY
from django_ojs.states import State

PAGE = (settings.BASE_DIR / "docs" / "options.md").read_text(encoding="utf-8")


def table(heading: str) -> dict[str, str]:
    """The default of each option in the table below a heading."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE))


def test_every_option_has_its_line() -> None:
    assert set(table("Options of the job")) == HANDLER_NAMES
    assert set(table("Options of one call")) == NAMES - HANDLER_NAMES
    own = {"context", "inline", "transactional", "durable", "on_change", "retry_if"}
    assert set(table("Options of `@job` only")) == own | (ScheduledOptions.__annotations__.keys() - HANDLER_NAMES)


def test_the_defaults_are_those_of_the_settings() -> None:
    told = table("Options of the job")
    assert told["timeout"].startswith(f"{Settings().DEFAULT_TIMEOUT // 60} minutes")
    assert Settings().RESULT_TTL == 7 * 86_400
    assert told["result_ttl"].startswith("a week")


@pytest.mark.parametrize(
    "shape, members, words",
    [
        (
            RetryOptions,
            retrypolicy.MEMBERS,
            {
                "backoff_strategy": [*retrypolicy.STRATEGIES, *BACKOFF_STRATEGY.words],
                "on_exhaustion": retrypolicy.EXHAUSTION,
            },
        ),
        (
            UniqueOptions,
            unique.MEMBERS,
            {"keys": unique.DIMENSIONS, "states": tuple(State), "on_conflict": tuple(unique.Strategy)},
        ),
        (RateLimitOptions, ratelimit.MEMBERS, {"on_limit": ratelimit.ON_LIMIT}),
        (RateWindow, ratelimit.WINDOW_MEMBERS, {}),
    ],
)
def test_the_types_of_policies_have_the_members_and_the_words_that_the_server_takes(
    shape: type, members: frozenset[str], words: dict[str, Iterable[str]]
) -> None:
    hints = get_type_hints(shape)
    assert hints.keys() <= members
    literals = {name: found for name, hint in hints.items() if (found := set(literal_words(hint)))}
    assert literals == {name: set(texts) for name, texts in words.items()}


def literal_words(hint: Any) -> Iterator[str]:
    """The words of every `Literal` inside a type."""
    for argument in get_args(hint):
        if get_origin(hint) is Literal:
            yield argument
        else:
            yield from literal_words(argument)


def test_each_backoff_strategy_is_explained() -> None:
    (row,) = re.findall(r"^\| `backoff_strategy` \|.*$", PAGE, re.MULTILINE)
    assert [word for word in retrypolicy.STRATEGIES if f"`{word}`" not in row] == []


def test_the_retry_policy_is_that_of_the_code() -> None:
    told = table("The retry policy")
    assert told.keys() <= MEMBERS
    assert told == {
        "max_attempts": str(DEFAULT.max_attempts),
        "initial_interval": durations.spell(DEFAULT.initial_ms),
        "backoff_strategy": f"`{DEFAULT.strategy}`",
        "backoff_coefficient": str(DEFAULT.coefficient),
        "max_interval": durations.spell(DEFAULT.max_ms),
        "jitter": str(DEFAULT.jitter).lower(),
        "retryable_errors": "all",
        "non_retryable_errors": "none",
        "on_exhaustion": "`dead_letter`",
    }


@pytest.mark.parametrize(
    "kind, check",
    [("a job type", names.check_type), ("a queue", names.check_queue), ("a schedule", cron.check_name)],
)
def test_names_that_the_page_calls_right_and_wrong_are(kind: str, check: Callable[[str], Any]) -> None:
    (row,) = re.findall(rf"^\| {kind} \| (.*) \|$", PAGE, re.MULTILINE)
    _, right, wrong = row.split(" | ")
    assert [check(name) for name in re.findall(r"`([^`]+)`", right)]
    for name in re.findall(r"`([^`]+)`", wrong):
        with pytest.raises((ValueError, InvalidRequest), match="must be"):
            check(name)
