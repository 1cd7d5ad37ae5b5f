"""Names and priorities."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ojs.jsontext import ExactNumber
from django_ojs.rules import attributes, names

LEVELS = {"HIGH": 3, "NORMAL": 2, "Low": 1}


@pytest.mark.parametrize("value", ["a", "email.send", "data.etl_2.transform", "a" * 255])
def test_job_types(value: str) -> None:
    assert names.check_type(value) == value
    assert names.check_type(value, hyphens=True) == value


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Email.Send",
        "email send",
        "1email",
        "email@send!",
        "email.",
        ".email",
        "a..b",
        "a.1b",
        "_a",
        "a\n",
        "é",
        None,
        5,
        ["a"],
        "-a",
        "a.-b",
    ],
)
def test_what_is_no_job_type_in_either_dialect(value: object) -> None:
    for hyphens in (False, True):
        with pytest.raises(ValueError, match=r"such as email\.send"):
            names.check_type(value, hyphens)


def test_hyphens_belong_to_one_dialect() -> None:
    assert names.check_type("retry.test.max-attempts", hyphens=True) == "retry.test.max-attempts"
    with pytest.raises(ValueError, match="underscores and starting"):
        names.check_type("retry.test.max-attempts", hyphens=False)


@pytest.mark.parametrize("value", ["default", "0", "email-high", "a.b-c.", "q" * 128])
def test_queues(value: str) -> None:
    assert names.check_queue(value) == value


@pytest.mark.parametrize("value", ["", "Default", "-a", ".a", "a_b", "a b", "a\n", "é", None, 5, {}])
def test_what_is_no_queue(value: object) -> None:
    with pytest.raises(ValueError, match="such as email-high"):
        names.check_queue(value)


def test_too_long_is_told_apart() -> None:
    with pytest.raises(names.NameTooLong, match="at most 255 characters, not 256"):
        names.check_type("a" * 256)
    with pytest.raises(names.NameTooLong, match="at most 128 characters, not 129"):
        names.check_queue("a" * 129)


@pytest.mark.parametrize(
    "text, valid",
    [
        ("urn:ojs:schema:a:v1", True),
        ("https://x/y", True),
        ("https://u%40:p@x.example:443/a/b;c=1,2/?q=[1", False),
        ("https://u%40:p@x.example:443/a/b;c=1,2/?q=%5B1&r=a/b?#/$defs/~1", True),
        ("http://[2001:db8::7]:8080/a", True),
        ("http://me@[::1]", True),
        ("http://[::1]x/", False),
        ("http://[x]/", False),
        ("urn:a[1]", False),
        ("mailto:a@b.example", True),
        ("tag:example.org,2026:a", True),
        ("file:///a.json", True),
        ("a:b#c#d", False),
        ("a:%4", False),
        ("a:%zz", False),
        ("urn:ojs:schema:é:v1", False),
        *((f"http://a/{character}", False) for character in '<>"{}|\\^` \x7f\x00'),
        ("noscheme", False),
        ("a: b", False),
        ("a:b\n", False),
        ("1a:b", False),
        ("a:", False),
        (5, False),
    ],
)
def test_schema_uris(text: object, valid: bool) -> None:
    assert names.is_schema_uri(text) is valid


@pytest.mark.parametrize("value", ["w", "host-1:4711", "wörker 7", "x" * 255])
def test_worker_ids(value: str) -> None:
    assert names.check_worker_id(value) == value


@pytest.mark.parametrize("value", ["", "x" * 256, "a\x00b", "a\n", "\ud800", "\x7f", None, 5])
def test_what_is_no_worker_id(value: object) -> None:
    with pytest.raises(ValueError, match="1 to 255 printable characters"):
        names.check_worker_id(value)


@pytest.mark.parametrize(
    "value, number",
    [(0, 0), (100, 100), (-100, -100), (5.0, 5), ("HIGH", 3), ("normal", 2), ("LOW", 1), (ExactNumber("1e1"), 10)],
)
def test_priorities(value: object, number: int) -> None:
    assert attributes.parse_priority(value, LEVELS) == number


@pytest.mark.parametrize(
    "value",
    [
        101,
        -101,
        5.5,
        True,
        None,
        "",
        "urgent",
        "5",
        [],
        float("nan"),
        float("inf"),
        10**400,
        ExactNumber("1e999999999"),
        ExactNumber("1e-999999999"),
        ExactNumber("0.10000000000000000000001"),
    ],
)
def test_what_is_no_priority(value: object) -> None:
    with pytest.raises(ValueError, match="integer from -100 to 100, or one of HIGH, NORMAL, Low"):
        attributes.parse_priority(value, LEVELS)
    with pytest.raises(ValueError, match=r"integer from -100 to 100$"):
        attributes.parse_priority(value, {})


@given(st.text())
def test_no_text_breaks_a_check(text: str) -> None:
    for check in (names.check_type, names.check_queue, names.check_worker_id):
        try:
            assert check(text) == text
        except ValueError as error:
            assert "must " in str(error)  # noqa: PT017 - either outcome is right
