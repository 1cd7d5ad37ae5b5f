"""The loser of a race between transactions tries again, unless the transaction is the caller's."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError, transaction

from django_ojs import database
from django_ojs.database import retried
from django_ojs.faults import is_contention


class Deadlock(Exception):
    sqlstate = "40P01"


def lost_race() -> OperationalError:
    error = OperationalError("deadlock detected")
    error.__cause__ = Deadlock()
    return error


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "FIRST_PAUSE", 0)


def failing(times: int, error: Any) -> Any:
    tries: list[int] = []

    @retried
    def operation(*, using: str | None = None) -> int:
        tries.append(1)
        if len(tries) <= times:
            raise error()
        return len(tries)

    return operation


@pytest.mark.django_db(transaction=True)
class TestRetried:
    def test_a_lost_race_is_run_again(self) -> None:
        assert failing(3, lost_race)() == 4

    def test_not_for_ever(self) -> None:
        with pytest.raises(OperationalError):
            failing(100, lost_race)()

    def test_what_is_no_race_is_raised_at_once(self) -> None:
        with pytest.raises(OperationalError, match="gone"):
            failing(1, lambda: OperationalError("the server is gone"))()

    def test_inside_the_callers_transaction_the_caller_decides(self) -> None:
        with transaction.atomic(), pytest.raises(OperationalError):
            failing(1, lost_race)()


@pytest.mark.parametrize(
    "error, expected",
    [
        (lost_race(), True), (OperationalError(1213, "Deadlock found"), True), (OperationalError(1205, "wait"), True),
        (OperationalError("database is locked"), True), (OperationalError("server closed the connection"), False),
    ],
)  # fmt: skip
def test_what_counts_as_a_race(error: OperationalError, expected: bool) -> None:
    assert is_contention(error) is expected
