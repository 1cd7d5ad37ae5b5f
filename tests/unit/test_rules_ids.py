"""Ids: their form, their time, their order, and that one module makes them."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import django_ojs
from django_ojs.rules import ids

PACKAGE = Path(django_ojs.__file__).parent


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
def test_what_is_an_id(text: object, valid: bool) -> None:
    assert ids.parse_id(text) == (uuid.UUID(str(text)) if valid else None)


@pytest.mark.parametrize("make", [ids.new_id, ids.new_job_id])
def test_every_generator_makes_plain_uuid7s_with_the_time_of_now(make: Callable[[], uuid.UUID]) -> None:
    before = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
    made = make()
    assert type(made) is uuid.UUID
    assert ids.parse_id(str(made)) == made
    assert ids.time_of(made) >= before
    assert make() > made


def test_a_request_id_is_readable_and_new() -> None:
    assert re.fullmatch(r"req_[0-9a-f-]{36}", ids.new_request_id())
    assert ids.new_request_id() != ids.new_request_id()


@pytest.mark.parametrize(
    "instant",
    [
        dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
        dt.datetime(2026, 11, 26, 16, 9, 6, 123_999, tzinfo=dt.UTC),
        dt.datetime(9999, 12, 30, 23, 59, 59, 999_000, tzinfo=dt.UTC),
    ],
)
def test_the_first_id_of_a_millisecond_has_its_time(instant: dt.datetime) -> None:
    first = ids.first_at(instant)
    assert ids.time_of(first) == instant.replace(microsecond=instant.microsecond // 1000 * 1000)
    assert ids.first_at(instant + dt.timedelta(milliseconds=1)).int - first.int == 1 << 80


def test_what_holds_no_time_has_one_all_the_same() -> None:
    assert ids.time_of(uuid.UUID(int=2**128 - 1)).year == 9999
    assert ids.first_at(dt.datetime(1, 1, 1, tzinfo=dt.UTC)).int == 0


def test_one_module_makes_ids_and_reads_their_time() -> None:
    """`events/ids.py` computes the public ids of events from their rows, and makes none."""
    own = {"rules/ids.py"}
    others = [path for path in PACKAGE.rglob("*.py") if str(path.relative_to(PACKAGE)) not in own | {"events/ids.py"}]
    others = [path for path in others if "conformance" not in path.parts]
    assert len(others) > 200
    for path in others:
        found = re.findall(r"uuid6|uuid\.uuid[1-8]\(|\.int >> 80|<< 80|0x?7 << 76|7\[0-9a-f\]\{3\}", path.read_text())
        assert not found, (path, found)


def test_new_ids_are_uuid7_and_in_order() -> None:
    made = [ids.new_job_id() for _ in range(5_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert all(ids.parse_id(str(one)) for one in made)


def test_threads_never_share_an_id_and_the_time_does_not_run_ahead() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = [one for part in pool.map(lambda _: [ids.new_job_id() for _ in range(2_000)], range(8)) for one in part]
    assert len(set(made)) == len(made)
    milliseconds = [one.int >> 80 for one in made]
    assert max(milliseconds) <= (ids.new_job_id().int >> 80)
    assert max(milliseconds) - min(milliseconds) < 10_000


def test_a_clock_set_back_and_a_spent_counter_keep_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "_last_ms", 1_000)
    monkeypatch.setattr(ids, "_counter", (1 << 42) - 2)
    seeds = iter([5, 6])
    monkeypatch.setattr(ids, "_seed", lambda: next(seeds))
    clock = iter([900, 900, 2_000])
    monkeypatch.setattr(ids.time, "time_ns", lambda: next(clock) * 1_000_000)
    made = [ids.new_job_id().int for _ in range(3)]
    assert [(one >> 80, (one >> 64 & 0xFFF) << 30 | one >> 32 & (1 << 30) - 1) for one in made] == [
        (1_000, (1 << 42) - 1), (1_001, 5), (2_000, 6)
    ]  # fmt: skip
    assert made == sorted(made)


def test_a_counter_begins_anywhere_in_half_of_its_range() -> None:
    seeds = {ids._seed() for _ in range(1_000)}
    assert len(seeds) > 990
    assert all(0 <= seed < 1 << 41 for seed in seeds)
    assert max(seeds) > 1 << 40


def test_a_forked_child_gets_its_own_lock_and_random_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "_lock", ids._lock)
    before = ids._lock
    ids.new_job_id()
    assert ids._words
    ids._after_fork()
    assert ids._lock is not before
    assert not ids._words
    assert ids.parse_id(str(ids.new_job_id()))
