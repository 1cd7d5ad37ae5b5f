"""Names, ids and priorities."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

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
        ("019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f", True),
        ("019461A8-1a2b-7c3d-8e4f-5a6b7c8d9e0f", False),
        ("019461a8-1a2b-4c3d-8e4f-5a6b7c8d9e0f", False),
        ("019461a8-1a2b-7c3d-ce4f-5a6b7c8d9e0f", True),
        ("019461a8-1a2b-7c3d-d394-5a6b7c8d9e0f", True),
        ("019461a8-1a2b-7c3d-ee4f-5a6b7c8d9e0f", False),
        ("019461a8-1a2b-7c3d-7e4f-5a6b7c8d9e0f", False),
        ("019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f\n", False),
        ("019461a81a2b7c3d8e4f5a6b7c8d9e0f", False),
        ("", False),
        (None, False),
        (uuid.UUID(int=0), False),
    ],
)
def test_job_ids(text: object, valid: bool) -> None:
    assert names.is_job_id(text) is valid


@pytest.mark.parametrize(
    "text, valid",
    [
        ("urn:ojs:schema:a:v1", True),
        ("https://x/y", True),
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


def test_new_ids_are_uuid7_and_in_order() -> None:
    made = [names.new_id() for _ in range(5_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert all(names.is_job_id(str(one)) for one in made)


def test_threads_never_share_an_id_and_the_time_does_not_run_ahead() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = [one for part in pool.map(lambda _: [names.new_id() for _ in range(2_000)], range(8)) for one in part]
    assert len(set(made)) == len(made)
    milliseconds = [one.int >> 80 for one in made]
    assert max(milliseconds) <= (names.new_id().int >> 80)
    assert max(milliseconds) - min(milliseconds) < 10_000


def test_a_clock_set_back_and_a_spent_counter_keep_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_last_ms", 1_000)
    monkeypatch.setattr(names, "_counter", (1 << 42) - 2)
    seeds = iter([5, 6])
    monkeypatch.setattr(names, "_seed", lambda: next(seeds))
    assert names._tick(900) == (1_000, (1 << 42) - 1)
    assert names._tick(900) == (1_001, 5)
    assert names._tick(2_000) == (2_000, 6)


def test_a_counter_begins_anywhere_in_half_of_its_range() -> None:
    seeds = {names._seed() for _ in range(1_000)}
    assert len(seeds) > 990
    assert all(0 <= seed < 1 << 41 for seed in seeds)
    assert max(seeds) > 1 << 40


def test_a_forked_child_gets_its_own_lock_and_random_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_lock", names._lock)
    before = names._lock
    names.new_id()
    assert names._words
    names._after_fork()
    assert names._lock is not before
    assert not names._words
    assert names.is_job_id(str(names.new_id()))


@given(st.text())
def test_no_text_breaks_a_check(text: str) -> None:
    for check in (names.check_type, names.check_queue, names.check_worker_id):
        try:
            assert check(text) == text
        except ValueError as error:
            assert "must " in str(error)  # noqa: PT017 - either outcome is right
