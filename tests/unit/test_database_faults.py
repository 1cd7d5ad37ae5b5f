"""What the errors of each database mean, and what becomes of a call, a wait and a connection because of them."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from django.db import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    connection,
)
from django.db.backends.utils import CursorWrapper
from django.db.transaction import TransactionManagementError

from django_ojs import faults
from django_ojs.errors import BackendUnavailable, NotFound
from django_ojs.faults import DatabaseFault, fault_of
from django_ojs.http.exceptions import to_error
from django_ojs.models import Job


class OfServer(Exception):
    def __init__(self, sqlstate: str | None) -> None:
        super().__init__("said")
        self.sqlstate = sqlstate


@pytest.mark.django_db
def test_an_error_that_django_has_let_through_as_the_driver_raised_it_means_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So it comes where the ORM closes a cursor."""
    kind: Any = connection.Database.OperationalError
    said = {"sqlite": ("database is locked",), "mysql": (1213, "deadlock"), "postgresql": ("connection lost",)}

    def close(cursor: CursorWrapper) -> None:
        raise kind(*said[connection.vendor])

    with monkeypatch.context() as patch:
        patch.setattr(CursorWrapper, "close", close, raising=False)
        with pytest.raises(kind) as caught:
            Job.objects.exists()
    error = caught.value
    assert not isinstance(error, Error)
    meant = DatabaseFault.AWAY if connection.vendor == "postgresql" else DatabaseFault.LOST_RACE
    assert (fault_of(error), faults.passes(error), to_error(error).status) == (meant, True, 503)
    assert fault_of(LookupError("a fault of ours")) is None


def test_a_row_that_is_there_already_is_told_from_other_constraints() -> None:
    for taken in (
        of_postgresql(IntegrityError, "23505"), IntegrityError(1062, "said"),
        of_sqlite(IntegrityError, 1555), of_sqlite(IntegrityError, 2067),
    ):  # fmt: skip
        faults.only_if_taken(taken)  # type: ignore[arg-type]
    for other in (
        of_postgresql(IntegrityError, "23502"), of_postgresql(IntegrityError, "23514"), IntegrityError(1048, "said"),
        IntegrityError(4025, "said"), of_sqlite(IntegrityError, 1299), of_sqlite(IntegrityError, 275),
    ):  # fmt: skip
        with pytest.raises(IntegrityError):
            faults.only_if_taken(other)  # type: ignore[arg-type]


def test_a_process_without_threads_is_busy() -> None:
    assert to_error(RuntimeError("can't start new thread")).status == 503
    assert to_error(RuntimeError("a fault of ours")).status == 500


class OfPsycopg2(Exception):
    pgcode = "25006"


class OfFile(Exception):
    def __init__(self, code: int) -> None:
        super().__init__("said")
        self.sqlite_errorcode = code


def because(error: Any, cause: Exception | None) -> Any:
    error.__cause__ = cause
    return error


def of_postgresql(kind: type[Error], sqlstate: str | None) -> Error:
    return because(kind("said"), OfServer(sqlstate))


def of_sqlite(kind: type[Error], code: int, text: str = "said") -> Error:
    return because(kind(text), OfFile(code))


#: Each as Django raises it. What is the same on several databases is in one line.
MEANINGS: list[tuple[DatabaseFault, list[BaseException]]] = [
    (
        DatabaseFault.LOST_RACE,
        [
            *(of_postgresql(OperationalError, state) for state in ("40001", "40P01", "55P03")),
            *(OperationalError(number, "said") for number in (1205, 1213, 3572, 1020, 3101, 1180)),
            *(of_sqlite(OperationalError, code) for code in (5, 261, 517, 6, 262, 17)),
            *(OperationalError(f"database {what}is locked") for what in ("", "table ", "schema ")),
            faults.LostRace("first"), faults.StoodStill("still"), faults.HeldByAnother("held"),
        ],
    ),
    (
        DatabaseFault.AWAY,
        [
            *(of_postgresql(OperationalError, state) for state in (None, "08006", "57P01", "57P02", "57P05", "53300")),
            *(of_postgresql(InternalError, state) for state in ("25P03", "25P04")),
            *(OperationalError(number, "said") for number in (1040, 1047, 1053, 1158, 2002, 2006, 2013, 2055, 4031)),
            InterfaceError(0, ""), InterfaceError("connection already closed"),
            ProgrammingError("Cannot operate on a closed database."),
            faults.NotAnswered("for 2 s"), BackendUnavailable("away"),
        ],
    ),
    (
        DatabaseFault.READ_ONLY,
        [
            of_postgresql(InternalError, "25006"), because(InternalError("said"), OfPsycopg2()),
            *(OperationalError(number, "said") for number in (1290, 1836, 1792, 3100)),
            of_sqlite(OperationalError, 8), of_sqlite(OperationalError, 1032),
        ],
    ),
    (
        DatabaseFault.FULL,
        [
            *(of_postgresql(OperationalError, state) for state in ("53100", "53200")),
            *(OperationalError(number, "said") for number in (1021, 1114, 1030)), of_sqlite(OperationalError, 13),
        ],
    ),
    (
        DatabaseFault.SLOW,
        [of_postgresql(OperationalError, "57014"), *(OperationalError(number, "") for number in (3024, 1969, 1317))],
    ),
    (
        DatabaseFault.UNMIGRATED,
        [
            *(of_postgresql(ProgrammingError, state) for state in ("42P01", "42703", "42501")),
            ProgrammingError(1146, "said"), OperationalError(1054, "said"), OperationalError(1142, "said"),
            *(of_sqlite(OperationalError, 1, f"no such {what}: a") for what in ("table", "column")),
            because(BackendUnavailable("run migrate"), of_postgresql(ProgrammingError, "42P01")),
        ],
    ),
    (
        DatabaseFault.BROKEN,
        [
            *(of_postgresql(InternalError, state) for state in ("XX000", "XX001", "XX002", "25P02")),
            of_postgresql(ProgrammingError, "26000"), of_postgresql(NotSupportedError, "0A000"),
            *(of_sqlite(DatabaseError, code) for code in (11, 26)),
            *(of_sqlite(OperationalError, code) for code in (10, 14, 266)),
            InternalError(145, "crashed"), ProgrammingError(2014, "out of sync"), TransactionManagementError("said"),
            # What nobody has met yet: it passes.
            of_postgresql(OperationalError, "99ZZZ"), OperationalError(6969, "said"), of_sqlite(DatabaseError, 99),
            OperationalError("said"), DatabaseError("said"), Error("said"),
        ],
    ),
    (
        DatabaseFault.TOO_LARGE,
        [
            of_postgresql(OperationalError, "54000"), OperationalError(1153, "said"), OperationalError(2020, "said"),
            of_sqlite(DataError, 18),
        ],
    ),
    (
        DatabaseFault.STATEMENT,
        [
            of_postgresql(DataError, "22001"), of_postgresql(ProgrammingError, "42601"), of_postgresql(DataError, None),
            of_postgresql(IntegrityError, "23505"), IntegrityError(1062, "said"), IntegrityError(2006, "said"),
            OperationalError(1366, "said"), of_sqlite(OperationalError, 1, 'near "X": syntax error'),
            DataError("said"), ProgrammingError("said"), NotSupportedError("said"),
        ],
    ),
]  # fmt: skip
ERRORS = [(fault, error) for fault, errors in MEANINGS for error in errors]


@pytest.mark.parametrize("fault, error", ERRORS, ids=lambda value: repr(value)[:60])
def test_what_an_error_means(fault: DatabaseFault, error: BaseException) -> None:
    assert fault_of(error) is fault


@pytest.mark.parametrize("error", [ValueError("a"), NotFound("a"), KeyboardInterrupt(), sqlite3.OperationalError("a")])
def test_what_is_no_error_of_a_database(error: BaseException) -> None:
    assert fault_of(error) is None
    for question in (faults.passes, faults.is_general, faults.is_contention, faults.is_unusable, faults.is_about_data):
        assert not question(error)


def test_each_code_is_in_one_place() -> None:
    for table in (faults._STATES, faults._NUMBERS, faults._RESULTS):
        codes = [code for codes in table.values() for code in codes.split()]
        assert len(codes) == len(set(codes))


def test_every_meaning_has_one_answer_to_each_question() -> None:
    """A row for each meaning: again now, waited for, of the whole database, and the connection is of no more use."""
    found = {
        fault: {
            (faults.is_contention(e), faults.passes(e), faults.is_general(e), faults.is_unusable(e))
            for e in errors
            if not isinstance(e, faults.StoodStill)  # whose connection is lost beside
        }
        for fault, errors in MEANINGS
    }
    assert found == {
        DatabaseFault.LOST_RACE: {(True, True, True, False)},
        DatabaseFault.AWAY: {(False, True, True, True)},
        DatabaseFault.READ_ONLY: {(False, True, True, True)},
        DatabaseFault.FULL: {(False, True, True, False)},
        DatabaseFault.SLOW: {(False, True, False, False)},
        DatabaseFault.UNMIGRATED: {(False, True, False, False)},
        DatabaseFault.BROKEN: {(False, True, True, False)},
        DatabaseFault.TOO_LARGE: {(False, False, False, False)},
        DatabaseFault.STATEMENT: {(False, False, False, False)},
    }


@pytest.mark.parametrize("fault, error", ERRORS, ids=lambda value: repr(value)[:60])
def test_the_status_of_http_and_grpc(fault: DatabaseFault, error: Any) -> None:
    """Before, the same condition was a 503 or a 500, by the database that it came from."""
    expected = {DatabaseFault.TOO_LARGE: 413, DatabaseFault.STATEMENT: 500}.get(fault, 503)
    assert to_error(error).status == faults.status_of(error) == expected


def test_what_sqlite_really_says(tmp_path: Path) -> None:
    """The codes come from the library, so they are asked of it."""
    path = tmp_path / "db"
    first, second = sqlite3.connect(path), sqlite3.connect(path, timeout=0)
    first.execute("CREATE TABLE a (b INTEGER)")
    first.commit()

    def meaning(connection: sqlite3.Connection, statement: str) -> DatabaseFault | None:
        with pytest.raises(sqlite3.Error) as caught:
            connection.execute(statement).fetchall()
        kind = {sqlite3.OperationalError: OperationalError, sqlite3.ProgrammingError: ProgrammingError}
        return fault_of(because(kind.get(caught.type, DatabaseError)(str(caught.value)), caught.value))

    first.execute("BEGIN IMMEDIATE")
    assert meaning(second, "BEGIN IMMEDIATE") is DatabaseFault.LOST_RACE
    first.rollback()
    assert meaning(first, "SELECT * FROM c") is meaning(first, "SELECT c FROM a") is DatabaseFault.UNMIGRATED
    assert meaning(first, "SELEC") is DatabaseFault.STATEMENT
    first.execute("PRAGMA query_only = 1")
    assert meaning(first, "INSERT INTO a VALUES (1)") is DatabaseFault.READ_ONLY
    first.close()
    assert meaning(first, "SELECT 1") is DatabaseFault.AWAY
    path.write_bytes(b"not a database at all" * 100)
    assert meaning(sqlite3.connect(path), "SELECT 1 FROM a") is DatabaseFault.BROKEN
