"""The rows of new jobs are made when they are looked at, once each and in their order."""

from __future__ import annotations

import datetime as dt
from itertools import count
from typing import Any

import pytest

from django_ojs.jobs.newrows import NewRows

NOW = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)


def rows(length: int, made: list[int]) -> NewRows:
    def make(spec: Any, stamp: dt.datetime) -> dict[str, Any]:
        made.append(spec)
        return {"id": spec, "enqueued_at": stamp}

    stamps = (NOW + dt.timedelta(microseconds=i) for i in count())
    return NewRows(make, range(length), stamps, length)  # type: ignore[arg-type]


def test_a_part_makes_what_it_needs_and_no_row_twice() -> None:
    made: list[int] = []
    found = rows(7, made)
    assert (len(found), made) == (7, [])
    assert [row["id"] for row in found[2:4]] == [2, 3]
    assert made == [0, 1, 2, 3]
    assert [row["id"] for row in found[0:3]] == [0, 1, 2]
    assert [row["id"] for row in found] == list(range(7)) == made
    assert [row["id"] for row in found[6:20]] == [6]
    assert [row["enqueued_at"].microsecond for row in found] == made


def test_places_are_those_of_a_list() -> None:
    assert rows(3, [])[-1]["id"] == 2
    assert rows(3, [])[5:] == []
    assert not rows(0, [])
    with pytest.raises(IndexError):
        rows(3, [])[3]
