"""Faults of SQLite, each made to happen on the file of the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from django_ojs.doctor import engines
from django_ojs.models import CountDelta
from tests.doctor.conftest import elsewhere, found, made_queue, sql

pytestmark = [pytest.mark.sqlite, pytest.mark.django_db(transaction=True)]
Ids = Callable[[], list[str]]


@pytest.fixture(autouse=True)
def own_connection(db: None) -> Iterator[None]:
    """Pragmas of a test end with its connection."""
    connection.close()
    yield
    connection.close()


def test_durability_is_what_the_pragma_says() -> None:
    sql("PRAGMA synchronous = NORMAL")
    assert found("commits-can-be-lost") == []
    sql("PRAGMA synchronous = OFF")
    (finding,) = found("commits-can-be-lost")
    assert finding.figures == {"setting": "synchronous", "value": "OFF"}


def test_a_wrong_pragma_is_what_the_check_says(ids: Ids, monkeypatch: pytest.MonkeyPatch) -> None:
    sql("PRAGMA busy_timeout = 500")
    assert ids() == ["django_ojs.W103"]
    (finding,) = found("django_ojs.W103")
    assert "500 ms" in finding.says
    assert '"timeout": 20' in finding.mend
    sql("PRAGMA busy_timeout = 20000")
    monkeypatch.setattr(connection, "transaction_mode", "DEFERRED")
    assert ids() == ["django_ojs.W102"]


def test_a_write_lock_that_is_held(ids: Ids, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "PATIENCE", 0.1)
    with elsewhere(lambda: made_queue("held")):
        assert ids() == ["write-lock-held"]
        (finding,) = found("write-lock-held")
        assert str(connection.settings_dict["NAME"]) in finding.mend
    assert ids() == []
    assert sql("PRAGMA busy_timeout") == [(20_000,)]
    made_queue("free")


def test_ones_own_write_lock_is_none(ids: Ids) -> None:
    with transaction.atomic():
        made_queue("mine")
        assert ids() == []


def test_a_log_that_no_checkpoint_empties(ids: Ids, monkeypatch: pytest.MonkeyPatch) -> None:
    sql("PRAGMA wal_checkpoint(TRUNCATE)")
    monkeypatch.setattr(engines, "LARGE_WAL", 100_000)
    assert ids() == []
    CountDelta.objects.bulk_create(CountDelta(queue="q" * 100, at="2026-01-01T00:00:00Z") for _ in range(2000))
    assert ids() == ["wal-large"]
    (finding,) = found("wal-large")
    assert finding.figures["bytes"] > 100_000
    sql("PRAGMA wal_checkpoint(TRUNCATE)")
    assert ids() == []


def test_a_file_of_free_pages(ids: Ids, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "FREE_BYTES", 100_000)
    monkeypatch.setattr(engines, "FREE_SHARE", 0.1)
    sql("VACUUM")
    CountDelta.objects.bulk_create(CountDelta(queue="q" * 100, at="2026-01-01T00:00:00Z") for _ in range(4000))
    assert ids() == []
    sql(f"DELETE FROM {CountDelta._meta.db_table}")
    assert ids() == ["file-bloat"]
    figures: Any = found("file-bloat")[0].figures
    assert 100_000 < figures["free_bytes"] < figures["bytes"]
    sql("VACUUM")
    assert ids() == []
