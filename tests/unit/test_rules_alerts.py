"""`OJS["ALERTS"]`: which limit holds for which queue or type, and that every slip is told with its place."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError

from django_ojs.errors import InvalidRequest
from django_ojs.rules.alertrules import AlertLimits, AlertRules, parse

MINUTE = dt.timedelta(minutes=1)


def test_without_a_setting_the_defaults_hold() -> None:
    for rules in (parse(None), parse({})):
        assert rules == AlertRules()
        assert rules.of_queue("mail") == AlertLimits(oldest_wait=15 * MINUTE, drain_time=60 * MINUTE)
        assert rules.of_type("mail.send") == AlertLimits(error_rate=0.2)
        assert (rules.mail_to, rules.every) == ((), dt.timedelta(seconds=30))


def test_the_longest_pattern_counts_and_the_name_most() -> None:
    rules = parse({
        "queues": {
            "mail-bulk": {"oldest_wait": "1h"}, "mail*": {"oldest_wait": "5m", "backlog": 10},
            "*": {"oldest_wait": "2m", "backlog": 5, "dead_letters": 3}, "mail-b*": {"workers": False},
        },
        "types": {"mail.*": {"error_rate": None}},
    })  # fmt: skip
    assert rules.of_queue("mail-bulk") == AlertLimits(
        oldest_wait=60 * MINUTE, backlog=10, dead_letters=3, workers=False, drain_time=60 * MINUTE
    )
    assert rules.of_queue("mailer").oldest_wait == 5 * MINUTE
    assert rules.of_queue("other") == AlertLimits(
        oldest_wait=2 * MINUTE, backlog=5, dead_letters=3, drain_time=60 * MINUTE
    )
    assert rules.of_type("mail.send").error_rate is None
    assert rules.of_type("mailer").error_rate == 0.2


@pytest.mark.parametrize("given, path", [
    ([], "ALERTS"), ({"queue": {}}, "queue"), ({"queues": []}, "queues"), ({"queues": {"a*b": {}}}, "queues"),
    ({"queues": {"": {}}}, "queues"), ({"queues": {"a": []}}, "queues.a"),
    ({"queues": {"a": {"age": 1}}}, "queues.a.age"),
    ({"queues": {"a": {"oldest_wait": 5}}}, "queues.a.oldest_wait"),
    ({"queues": {"a": {"oldest_wait": "0s"}}}, "queues.a.oldest_wait"),
    ({"queues": {"a": {"backlog": 0}}}, "queues.a.backlog"), ({"queues": {"a": {"workers": 1}}}, "queues.a.workers"),
    ({"types": {"a": {"error_rate": 2}}}, "types.a.error_rate"), ({"types": {"a": {"backlog": 1}}}, "types.a.backlog"),
    ({"types": {"a": {"dead_letters": True}}}, "types.a.dead_letters"), ({"mail_to": "a@b"}, "mail_to"),
    ({"mail_to": ["nobody"]}, "mail_to"), ({"every": "1s"}, "every"), ({"every": 30}, "every"),
])  # fmt: skip
def test_a_slip_is_told_with_its_place(given: Any, path: str, settings: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(given)
    assert refused.value.message.startswith(path) or path in refused.value.message
    settings.OJS = {"ALERTS": given}
    with pytest.raises(SystemCheckError, match="ALERTS"):
        call_command("check")
