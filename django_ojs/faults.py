"""What an error of the database means: one table of the codes of PostgreSQL, MariaDB, MySQL and SQLite.

Nothing else in the package judges an error of a database by its class, its code or its text. A caller asks one of the
questions below: whether to do it again now (`is_contention`), whether to wait (`passes`), whether the connection was
lost (`is_outage`), whether a commit may be done though it failed (`may_be_done`), and what to answer (`status_of`).

An error that the table does not know passes: nothing is thrown away because of it.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from django.apps import apps
from django.core.exceptions import SynchronousOnlyOperation
from django.db import (
    DEFAULT_DB_ALIAS,
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    connections,
    router,
)
from django.db.transaction import TransactionManagementError

from django_ojs.errors import BackendUnavailable

P = ParamSpec("P")
T = TypeVar("T")

IN_ASYNC_CODE = "Asynchronous code awaits the form with an a before its name, such as handler.aenqueue() or aget_job()."


class DatabaseFault(enum.Enum):
    """What an error of a database means."""

    LOST_RACE = enum.auto()  #: another transaction was first, or holds what is needed; nothing has changed
    AWAY = enum.auto()  #: no connection can be made, or the one in use is lost
    READ_ONLY = enum.auto()  #: the server answers, and stores nothing: a standby, or a leader that is being replaced
    FULL = enum.auto()  #: no disk or memory is left
    SLOW = enum.auto()  #: the statement ran into a time limit, or was ended by an operator
    UNMIGRATED = enum.auto()  #: a table, a column or a right is missing: the operator has to run migrate, or GRANT
    BROKEN = enum.auto()  #: the session, the file or the server is out of order; and what the table does not know
    TOO_LARGE = enum.auto()  #: the statement is at fault: it brings more than the database takes at once
    STATEMENT = enum.auto()  #: the statement is at fault: the same again would be refused again


#: What becomes of these is up to what was sent, and waiting does not help.
_OF_STATEMENT = frozenset({DatabaseFault.STATEMENT, DatabaseFault.TOO_LARGE})
#: These may concern one statement only, until the site mends it.
_OF_SOME = _OF_STATEMENT | {DatabaseFault.SLOW, DatabaseFault.UNMIGRATED}

#: PostgreSQL: by SQLSTATE, and else by its class, the first two characters.
_STATES = {
    DatabaseFault.LOST_RACE: "40001 40P01 55P03",
    # Shut down, starting, too many connections, database dropped, session ended because it was idle.
    DatabaseFault.AWAY: "08 57P01 57P02 57P03 57P04 57P05 25P03 25P04 53300 28 3D000",
    DatabaseFault.READ_ONLY: "25006",
    DatabaseFault.FULL: "53",
    DatabaseFault.SLOW: "57014",
    DatabaseFault.UNMIGRATED: "42P01 42703 42501 3F000",
    # Transactions in a wrong state, prepared statements that the session does not have, or with other columns.
    DatabaseFault.BROKEN: "25 26000 42P05 0A000 57 58 F0 XX",
    DatabaseFault.TOO_LARGE: "54",
    DatabaseFault.STATEMENT: "21 22 23 42 44",
}
#: MariaDB, MySQL and their client: by number.
_NUMBERS = {
    # Lock wait timeout, deadlock, NOWAIT, snapshot isolation, table definition changed, Galera and group replication.
    DatabaseFault.LOST_RACE: "1205 1213 3572 1020 1412 3101 1180",
    # Too many connections, no primary component, shut down, packets lost, killed, gone, idle too long, offline.
    DatabaseFault.AWAY: "0 1040 1047 1053 1077 1079 1158 1159 1160 1161 1184 1203 1927 2002 2003 2005 2006"
    " 2012 2013 2055 3032 3169 4031",
    DatabaseFault.READ_ONLY: "1290 1792 1836 1874 3100",
    DatabaseFault.FULL: "1021 1026 1030 1037 1038 1041 1114 1135",
    DatabaseFault.SLOW: "1317 1907 1969 3024",
    DatabaseFault.UNMIGRATED: "1054 1142 1143 1146",
    DatabaseFault.BROKEN: "2014",  # commands out of sync
    DatabaseFault.TOO_LARGE: "1153 2020",
    # Values that a column does not take; the classes that the driver gives to the others say it as well.
    DatabaseFault.STATEMENT: "1048 1062 1264 1265 1292 1300 1364 1366 1406 1690 3140 3141 3819 4025",
}
#: SQLite: by primary result code. 1 is what it says of all that has no code of its own: `_WORDS` tell them apart.
_RESULTS = {
    DatabaseFault.LOST_RACE: "5 6 15 17",  # busy, locked, locking protocol, schema changed
    DatabaseFault.READ_ONLY: "8",
    DatabaseFault.FULL: "13",  # without memory (7) Python raises MemoryError: the process lacks it, not a server
    DatabaseFault.SLOW: "9",
    DatabaseFault.BROKEN: "2 3 4 10 11 14 21 23 26",  # I/O error, corrupt, cannot open, not a database
    DatabaseFault.TOO_LARGE: "18",
    DatabaseFault.STATEMENT: "19 20 25",
}
#: The table as it is written, by Django's name of the database.
CODES = {"postgresql": _STATES, "mysql": _NUMBERS, "sqlite": _RESULTS}
#: What SQLite says in words only, and errors that come without the driver's.
_WORDS = (
    (DatabaseFault.LOST_RACE, re.compile(r"database (?:table |schema )?is locked")),
    (DatabaseFault.UNMIGRATED, re.compile(r"no such (?:table|column)|has no column named")),
    (DatabaseFault.AWAY, re.compile(r"closed database|connection (?:is |already )?closed")),
    (DatabaseFault.READ_ONLY, re.compile(r"readonly database")),
    (DatabaseFault.FULL, re.compile(r"disk is full")),
    (DatabaseFault.STATEMENT, re.compile(r"syntax error|unrecognized token|too many (?:SQL variables|terms)")),
)
#: The codes by which a table, and not a column or a right, is missing.
_NO_TABLE = frozenset({"42P01", 1146})
#: The codes by which a row that exists already is in the way, and not another constraint.
_TAKEN = frozenset({"23505", 1022, 1062, 1169, 1586, 1555, 2067, 2579})
#: The codes by which the disk is full, and not the memory: 53100, of MariaDB two, of SQLite one. Of memory a server may
#: lack what one statement needs; where it lacks it for all, a probe that asks it finds out.
_DISK_FULL = frozenset({"53100", 1021, 1114, 13})
SQLITE_ERROR = 1
TOO_LARGE = 1153  #: MariaDB's code of a packet that is too large


def _by_code(table: dict[DatabaseFault, str], kind: Callable[[str], Any] = int) -> dict[Any, DatabaseFault]:
    return {kind(code): fault for fault, codes in table.items() for code in codes.split()}


_OF_STATE, _OF_NUMBER, _OF_RESULT = _by_code(_STATES, str), _by_code(_NUMBERS), _by_code(_RESULTS)


class HeldByAnother(BackendUnavailable):
    """Another connection holds what this operation needs, and has not let go of it in time; the database answers."""


class LostRace(OperationalError):
    """Another transaction was first, as a statement of ours has found: to be run again from the start."""


class StoodStill(LostRace):
    """The database has ended a transaction of ours that stood still, before its commit: nothing of it is stored."""


class NotAnswered(OperationalError):
    """The database has not answered in time, as far as the caller waited."""


class ReadOnly(OperationalError):
    """The database answers, and stores nothing on this connection."""


class StoreFull(OperationalError):
    """The disk of the database was full a moment ago."""


def fault_of(error: BaseException) -> DatabaseFault | None:
    """What an error means; None: it is not the database's.

    A `BackendUnavailable` means what its cause means, and that the database is away where it has none.
    """
    if isinstance(error, LostRace | HeldByAnother):
        return DatabaseFault.LOST_RACE
    if isinstance(error, NotAnswered):
        return DatabaseFault.AWAY
    if isinstance(error, ReadOnly):
        return DatabaseFault.READ_ONLY
    if isinstance(error, StoreFull):
        return DatabaseFault.FULL
    if isinstance(error, BackendUnavailable):
        return fault_of(error.__cause__) or DatabaseFault.AWAY if error.__cause__ is not None else DatabaseFault.AWAY
    if not isinstance(error, Error):
        found = _as_djangos(error)
        return None if found is None else fault_of(found)
    if isinstance(error, IntegrityError):
        return DatabaseFault.STATEMENT
    return _of_code(error) or _of_class(error)


def _as_djangos(error: BaseException) -> Error | None:
    """Django's error for a driver's that Django has let through unchanged, as where it closes a cursor; None: it is
    none, or comes from code of the site that uses a driver by itself."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    if not any(str(frame.f_globals.get("__name__")).startswith("django.db.") for frame in frames):
        return None
    for connection in connections.all(initialized_only=True):
        drivers: Any = connection
        for kind in (DataError, OperationalError, IntegrityError, InternalError, ProgrammingError, NotSupportedError,
                     DatabaseError, InterfaceError, Error):  # as Django asks: the narrow ones first  # fmt: skip
            if isinstance(error, getattr(drivers.Database, kind.__name__)):
                found: Error = kind(*error.args)
                found.__cause__ = error
                return found
    return None


def _of_code(error: Error) -> DatabaseFault | None:
    cause: Any = error.__cause__
    if state := sqlstate(error):
        return _OF_STATE.get(state) or _OF_STATE.get(state[:2])
    result = getattr(cause, "sqlite_errorcode", None)
    if result is not None and result != SQLITE_ERROR:
        return _OF_RESULT.get(result & 0xFF)
    number = error.args[0] if error.args else None
    if isinstance(number, int):
        return _OF_NUMBER.get(number)
    text = str(error)
    if (found := next((fault for fault, words in _WORDS if words.search(text)), None)) is not None:
        return found
    # PostgreSQL gives each error of its own a code: without one, no connection could be made, or it was lost.
    if isinstance(error, OperationalError) and (hasattr(cause, "sqlstate") or hasattr(cause, "pgcode")):
        return DatabaseFault.AWAY
    return None


def _of_class(error: Error) -> DatabaseFault:
    """What an error without a code means, or with one that the table does not have."""
    if isinstance(error, InterfaceError):
        return DatabaseFault.AWAY
    if isinstance(error, TransactionManagementError):  # what follows an error that went before
        return DatabaseFault.BROKEN
    at_fault = isinstance(error, DataError | ProgrammingError | NotSupportedError)
    return DatabaseFault.STATEMENT if at_fault else DatabaseFault.BROKEN


def is_known(error: BaseException) -> bool:
    """Whether the table has an error of the database, so that its words say enough."""
    return fault_of(error) is not None and (not isinstance(error, Error) or _of_code(error) is not None)


def sqlstate(error: BaseException) -> str:
    """The SQLSTATE that PostgreSQL has given to an error of Django's; '' where it has none."""
    cause = error.__cause__
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or ""


# The questions.


def is_contention(error: BaseException) -> bool:
    """Whether the database answered, and only another transaction was in the way: the same may go well at once."""
    return fault_of(error) is DatabaseFault.LOST_RACE


def passes(error: BaseException) -> bool:
    """Whether an error is the database's and will be over some time, so that the same is to be done again then."""
    fault = fault_of(error)
    return fault is not None and fault not in _OF_STATEMENT


def is_general(error: BaseException) -> bool:
    """Whether an error passes and concerns whatever is asked of the database, and not one statement only."""
    fault = fault_of(error)
    return fault is not None and fault not in _OF_SOME


def is_unusable(error: BaseException) -> bool:
    """Whether nothing can be stored until the server is back, or another has taken over: the connection is lost, or
    leads to a server that is read-only. Such a connection is of no more use."""
    return isinstance(error, StoodStill) or fault_of(error) in (DatabaseFault.AWAY, DatabaseFault.READ_ONLY)


def is_outage(error: BaseException) -> bool:
    """Whether the connection was lost or none could be made, as while the server restarts; not what a server that
    answers says of a statement."""
    return isinstance(error, StoodStill) or (isinstance(error, Error) and fault_of(error) is DatabaseFault.AWAY)


def may_be_done(error: BaseException) -> bool:
    """Whether a commit that failed with this error may have been done: its answer can be lost with the connection."""
    return fault_of(error) in (DatabaseFault.AWAY, DatabaseFault.BROKEN)


def is_about_data(error: BaseException) -> bool:
    """Whether a database has refused what it was given, so that the same again would be refused again."""
    return fault_of(error) in _OF_STATEMENT


def only_if_taken(error: IntegrityError) -> None:
    """Return where a row that exists already was in the way of an insert. Raises the error where it was another
    constraint, such as that of a column which a newer release of the site has added: nothing is "taken" then."""
    number = error.args[0] if error.args else None
    if (sqlstate(error) or getattr(error.__cause__, "sqlite_errorcode", number)) not in _TAKEN:
        raise error


def is_too_large(error: BaseException) -> bool:
    """Whether a database has refused what it was given because it is too much for one statement, or one row."""
    return fault_of(error) is DatabaseFault.TOO_LARGE


def is_disk_full(error: BaseException) -> bool:
    """Whether the database has no room on its disk for what was to be stored."""
    if fault_of(error) is not DatabaseFault.FULL:
        return False
    code = sqlstate(error) or getattr(error.__cause__, "sqlite_errorcode", None)
    return (code or (error.args[0] if error.args else None)) in _DISK_FULL


def has_forgotten(error: BaseException) -> bool:
    """Whether PostgreSQL does not have a prepared statement (any more) as it was: it is unknown, its name is taken, or
    its columns are of other types."""
    return sqlstate(error) in {"26000", "42P05", "0A000"}


def has_lost_statements(error: BaseException) -> bool:
    """Whether it is so because the session that runs a statement is not the one that has prepared it, or is that of
    several clients: where a pooler is in between, any statement can meet this."""
    return sqlstate(error) in {"26000", "42P05"}


def ended_for_idleness(error: BaseException) -> bool:
    """Whether PostgreSQL has ended the connection because a transaction stood still on it."""
    return sqlstate(error) == "25P03"


def lacks_index(error: BaseException) -> bool:
    """Whether MariaDB does not have an index that a statement names."""
    return isinstance(error, Error) and error.args[:1] == (1176,)


def is_refused(error: BaseException) -> bool:
    """Whether PostgreSQL says that the role may not do it."""
    return sqlstate(error) == "42501"


def is_not_offered(error: BaseException) -> bool:
    """Whether PostgreSQL says that it does not do this here, or not for this role, as hosted services do."""
    return is_refused(error) or sqlstate(error) in {"42883", "0A000"}


def status_of(error: BaseException) -> int:
    """The status of HTTP for an error of the database: 503 where it passes, else 413 or 500."""
    if is_too_large(error):
        return 413
    return 503 if passes(error) else 500


@contextlib.contextmanager
def suppress_passing(notice: Callable[[Exception], object] = lambda error: None) -> Iterator[None]:
    """A block that ends without an exception where it meets an error that `passes`; `notice` is told."""
    try:
        yield
    except Exception as error:
        if not passes(error):
            raise
        notice(error)


# Tables that are missing.


def unmigrated(error: BaseException) -> str:
    """The sentence that says to migrate, where `error` is a database's and about a missing table of a model of this
    site; '' for any other error. It asks no database: a transaction may be broken by now."""
    if not isinstance(error, Error):
        return ""
    text = str(error)
    code = sqlstate(error) or (error.args[0] if error.args else None)
    if code not in _NO_TABLE and "no such table" not in text:
        return ""
    found = set(re.findall(r"\w+", text))
    missing = next((model for model in apps.get_models() if model._meta.db_table in found), None)
    if missing is None:
        return ""
    using = router.db_for_write(missing)
    option = "" if using == DEFAULT_DB_ALIAS else f" --database {using}"
    return f"The database '{using}' lacks tables of this site: run manage.py migrate{option}."


def or_migrate(operation: Callable[P, T]) -> Callable[P, T]:
    """Let an operation that finds no tables raise BackendUnavailable with the sentence that says to migrate, and one
    that is called in asynchronous code name the form for that."""

    @functools.wraps(operation)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return operation(*args, **kwargs)
        except Error as error:
            if sentence := unmigrated(error):
                raise BackendUnavailable(sentence, hint=sentence) from error
            raise
        except SynchronousOnlyOperation as error:
            error.add_note(IN_ASYNC_CODE)
            raise

    return wrapper
