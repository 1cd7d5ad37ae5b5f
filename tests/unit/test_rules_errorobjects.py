"""Error objects: a worker's report becomes one shape, whatever client wrote it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from django_ojs.errors import InvalidRequest
from django_ojs.rules import errorobjects
from django_ojs.rules.errorobjects import from_exception, normalise, server_error

AT = dt.datetime(2026, 2, 12, 10, 30, tzinfo=dt.UTC)
STAMP = {"attempt": 2, "occurred_at": "2026-02-12T10:30:00.000Z", "timestamp": "2026-02-12T10:30:00.000Z"}


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def test_a_bare_message_gets_every_required_key() -> None:
    stored = normalise({"message": "boom"})
    assert stored == {"type": "handler_error", "code": "handler_error", "message": "boom", "retryable": True}


@pytest.mark.parametrize(
    "given, kind, code",
    [
        ({"type": "T", "code": "c", "details": {"error_class": "E"}}, "T", "c"),
        ({"code": "c", "details": {"error_class": "E"}}, "E", "c"),
        ({"code": "c", "details": {"error_class": 1}}, "c", "c"),
        ({"type": "T"}, "T", "handler_error"),
        ({"type": "", "code": None}, "handler_error", "handler_error"),
    ],
)
def test_type_and_code_are_derived(given: dict[str, Any], kind: str, code: str) -> None:
    stored = normalise({"message": "m", **given})
    assert (stored["type"], stored["code"]) == (kind, code)


def test_what_the_worker_added_is_kept_and_what_is_ours_is_not_taken_over() -> None:
    given = {
        "message": "m",
        "retryable": False,
        "details": {"a": [1]},
        "x_more": {"b": 2},
        "attempt": 99,
        "timestamp": "?",
    }
    stored = normalise(given)
    assert normalise({"message": "m", "details": nested(31)})["details"] == nested(31)
    assert stored["retryable"] is False
    assert stored["details"] == {"a": [1]}
    assert stored["x_more"] == {"b": 2}
    assert STAMP.keys().isdisjoint(stored)


@pytest.mark.parametrize(
    "given, frames",
    [
        ({"backtrace": ["a", "b"]}, ["a", "b"]),
        ({"backtrace": []}, []),
        ({"backtrace": [str(number) for number in range(60)]}, [str(number) for number in range(50)]),
        ({"backtrace": ["x" * 6_000] * 3}, ["x" * 6_000, "x" * 4_000]),
    ],
)
def test_backtraces_are_lists_within_limits(given: dict[str, Any], frames: list[str]) -> None:
    stored = normalise({"message": "m", **given})
    assert stored["backtrace"] == frames
    assert "backtrace" not in normalise({"message": "m", **given}, store_backtrace=False)


@pytest.mark.parametrize(
    "given, message",
    [
        ({}, "handler_error"),
        ({"code": "C"}, "C"),
        ({"code": "C", "details": {"error_class": "app.Bad"}}, "app.Bad"),
        ({"code": "C", "type": "Bad"}, "Bad"),
    ],
)
def test_an_exception_without_a_text_is_told_by_its_type(given: dict[str, Any], message: str) -> None:
    assert normalise({"message": "", **given})["message"] == message


@pytest.mark.parametrize(
    "error, field",
    [
        (None, "error"),
        ("boom", "error"),
        ([], "error"),
        ({"message": "m", "details": nested(32)}, "error"),
        ({}, "error.message"),
        ({"message": None}, "error.message"),
        ({"message": 5}, "error.message"),
        ({"message": "m", "retryable": "no"}, "error.retryable"),
        ({"message": "m", "retryable": 0}, "error.retryable"),
        ({"message": "m", "type": 5}, "error.type"),
        ({"message": "m", "code": ["c"]}, "error.code"),
        ({"message": "m", "details": []}, "error.details"),
        ({"message": "m", "backtrace": 5}, "error.backtrace"),
        ({"message": "m", "backtrace": "a\nb"}, "error.backtrace"),
        ({"message": "m", "backtrace": ["a", 5]}, "error.backtrace"),
    ],
)
def test_a_malformed_report_is_refused_with_its_field(error: object, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        normalise(error)
    assert caught.value.status == 400
    assert caught.value.details["field"] == field
    assert caught.value.message.startswith(f"{field}: must ")


class Custom(Exception):
    """An exception of an application."""


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def deep(levels: int, error: Exception) -> None:
    if levels:
        deep(levels - 1, error)
    raise error


def caught(error: Exception, levels: int = 1) -> Exception:
    try:
        deep(levels, error)
    except Exception as raised:  # noqa: BLE001 - whatever the test raises
        return raised
    raise AssertionError


def test_an_exception_becomes_a_report_that_the_server_accepts() -> None:
    report = from_exception(caught(Custom("boom")))
    assert (report["type"], report["message"]) == ("Custom", "boom")
    assert report["details"]["error_class"] == f"{__name__}.Custom"
    assert report["backtrace"][0].startswith("at caught (")
    assert report["backtrace"][-1].startswith("at deep (")
    assert normalise(report)["type"] == "Custom"


@pytest.mark.parametrize(
    "error, message, error_class",
    [
        (ValueError("x"), "x", "ValueError"),
        (ValueError(), "ValueError", "ValueError"),
        (Unspeakable(), "Unspeakable", f"{__name__}.Unspeakable"),
    ],
)
def test_every_exception_has_a_message(error: Exception, message: str, error_class: str) -> None:
    report = from_exception(error)
    assert report["message"] == message
    assert report["details"]["error_class"] == error_class
    assert report["backtrace"] == []


def test_of_a_deep_traceback_the_innermost_frames_are_kept() -> None:
    frames = from_exception(caught(Custom("boom"), levels=100))["backtrace"]
    assert len(frames) <= errorobjects.MAX_FRAMES
    assert sum(map(len, frames)) <= errorobjects.MAX_CHARACTERS
    assert frames[-1].startswith("at deep (")
    assert not frames[0].startswith("at caught (")


def test_frames_have_their_source_and_what_led_to_the_error() -> None:
    def translate(cause: BaseException | None) -> Exception:
        try:
            try:
                raise KeyError("price")
            except KeyError as first:
                if cause is None:
                    raise ValueError("no price") from first
                raise ValueError("no price") from None
        except ValueError as second:
            return second

    first, middle, last = from_exception(translate(None))["backtrace"]
    assert first.splitlines()[0].endswith(f"errorobjects.py:{translate.__code__.co_firstlineno + 3})")
    assert first.splitlines()[1].strip() == 'raise KeyError("price")'
    assert middle == f"KeyError: 'price'\n\n{errorobjects.LINKS[0]}\n"
    assert last.splitlines()[1].strip() == 'raise ValueError("no price") from first'
    assert len(from_exception(translate(ValueError()))["backtrace"]) == 1, "what is suppressed stays so"


def test_a_story_that_goes_in_circles_ends() -> None:
    first, second = caught(ValueError("a")), caught(KeyError("b"))
    first.__cause__, second.__context__ = second, first
    assert len(from_exception(first)["backtrace"]) == 7


def test_a_long_line_of_source_is_left_out(tmp_path: Any) -> None:
    file = tmp_path / "long.py"
    file.write_text(f"raise ValueError('{'x' * 600}'[:1])\n")
    with pytest.raises(ValueError, match="x") as raised:
        exec(compile(file.read_text(), str(file), "exec"), {})
    assert from_exception(raised.value)["backtrace"][-1] == f"at <module> ({file}:1)"


@pytest.mark.parametrize(
    "kind, retryable", [("timeout", True), ("visibility_timeout", True), ("worker_death", True), ("expired", False)]
)
def test_errors_of_the_server_have_the_same_shape(kind: str, retryable: bool) -> None:
    stored = server_error(kind, "m", 2, AT, limit_seconds=2)
    assert stored == {"type": kind, "code": kind, "message": "m", "retryable": retryable, "limit_seconds": 2} | STAMP
    assert server_error(kind, "m", 2, AT, retryable=False)["retryable"] is False
