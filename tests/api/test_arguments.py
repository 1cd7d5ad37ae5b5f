"""Arguments that are not JSON are refused at enqueue, with the place and the fix."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import itertools
import pathlib
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import models
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy

from django_ojs import JobContext, Typed, job, jsontext
from django_ojs.client.options import check_json
from django_ojs.jobs.push import push
from django_ojs.jsontext import ExactNumber, JSONTextError
from django_ojs.registry import Registry
from django_ojs.testing import worker


class Color(models.TextChoices):
    RED = "red"


class Plain(enum.Enum):
    ONE = 1


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -1, 10**40, 1.5, "", "Grüße", [], [1, [2]], (1, 2), {}, {"a": {"b": [None]}}, Color.RED,
        mark_safe("<b>"), ExactNumber("1e400"),
    ],
)  # fmt: skip
def test_json_values_are_accepted(value: Any) -> None:
    check_json(value, "args[0]")


@pytest.mark.parametrize(
    "value,fix",
    [
        (User(pk=1), "pass obj.pk"),
        (User.objects.none(), "values_list('pk', flat=True)"),
        (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), ".isoformat()"),
        (dt.date(2026, 1, 1), ".isoformat()"),
        (dt.timedelta(1), ".total_seconds()"),
        (decimal.Decimal("1.5"), "str(...)"),
        (uuid.uuid4(), "str(...)"),
        (pathlib.Path("/tmp"), "str(...)"),
        (gettext_lazy("Monday"), "str(...)"),
        ({1, 2}, "sorted(...)"),
        (b"bytes", "base64"),
        (Plain.ONE, ".value"),
        (type("Form", (), {"model_dump": dict})(), '.model_dump(mode="json")'),
        (object(), "strings, numbers"),
        (float("nan"), "pass None"),
        (float("inf"), "pass None"),
    ],
)
def test_what_is_not_json_is_refused_with_the_fix(value: Any, fix: str) -> None:
    with pytest.raises(TypeError) as caught:
        check_json(value, "args[0]")
    assert fix in str(caught.value)
    assert str(caught.value).startswith("args[0] is ")


def test_the_message_names_the_place() -> None:
    with pytest.raises(TypeError, match=r'^args\[1\]\["when"\]\[2\] is a datetime\.date'):
        check_json({"when": [1, 2, dt.date(2026, 1, 1)]}, "args[1]")


def test_keys_that_are_not_strings_are_refused() -> None:
    with pytest.raises(TypeError, match=r"args\[0\] has the key 1, and JSON has only strings"):
        check_json({1: "a"}, "args[0]")


def test_a_value_that_contains_itself_is_refused_and_not_followed_for_ever() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(TypeError, match="contains itself") as caught:
        check_json(value, "args[0]")
    assert len(str(caught.value)) < 200, "the way to it is not told in full"


def test_a_number_that_python_does_not_write_is_told_in_words() -> None:
    with pytest.raises(JSONTextError, match=r"too long: it has more than 4,300 digits\.$"):
        jsontext.dumps([10**5000])
    with pytest.raises(TypeError, match=r"has the key <int>"):
        check_json({10**5000: 1}, "args[0]")


def test_a_call_is_refused_where_the_handler_would_refuse_it(handlers: Registry) -> None:
    def by_place(a: int, b: int = 0, /, c: int = 0) -> None: ...
    def many(a: int, *rest: int) -> None: ...
    def by_name(*, a: int) -> None: ...
    def optional_name(a: int, *, b: int = 0, **rest: int) -> None: ...
    def nothing() -> None: ...
    def with_context(context: JobContext, a: int) -> None: ...

    def refuses(call: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
        try:
            call(*args, **kwargs)
        except TypeError:
            return True
        return False

    for number, handler in enumerate((by_place, many, by_name, optional_name, nothing, with_context)):
        definition: Any = job(f"a.b{number}")(handler)  # type: ignore[call-overload]
        hidden = [None] if handler is with_context else []
        for count, names in itertools.product(range(6), ({}, {"a": 1}, {"b": 1}, {"other": 1})):
            arguments = list(range(count))
            asked = refuses(definition.s, *arguments, **names)
            assert asked == refuses(handler, *hidden, *arguments, **names), (handler, count, names)


@pytest.mark.django_db
def test_a_job_of_an_earlier_release_is_told_what_its_handler_takes(handlers: Registry) -> None:
    @job("email.send")
    def send(to: str, *, subject: str) -> None:
        len(5)  # type: ignore[arg-type]

    @job("user.greet", args=Typed)
    async def greet(user: User) -> None: ...

    user = User.objects.create()
    with worker() as jobs:
        push([{"type": "email.send", "args": ["a", {"$kwargs": {name: "b"}}]} for name in ("title", "subject")])
        old, own = jobs.drain().exceptions
        push([{"type": "user.greet", "args": [user.pk, "b"]}])
        (asynchronous,) = jobs.drain().exceptions
    assert asynchronous.__notes__[0].endswith("its handler is user.greet(user: 'User') -> 'None'.")
    assert old.__notes__[0].endswith("its handler is email.send(to: 'str', *, subject: 'str') -> 'None'.")
    assert not hasattr(own, "__notes__")
