"""Let what this process asks of the database fail, below Django, while a file says so.

What the server can be made to say it says itself: PostgreSQL raises any SQLSTATE, MariaDB signals any number, and
sessions of PostgreSQL and SQLite are made read-only. Everything else the driver's exception says. A session that met a
lost connection is cut, half of them after the statement was done: then only its answer is lost. A session that was
read-only stays so for as long as it lasts, as one that leads to the old server after a failover.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import socket
import sqlite3
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn

#: Where the switch is, and which process this is.
SWITCH, ROLE = "OJS_FAULTS_SWITCH", "OJS_FAULTS_ROLE"
#: What a statement carries that is itself at fault.
MARK = "at-fault-itself"
#: SQLite has no code for it.
CLOSED = "closed"
CANNOT_OPEN = "14"

_WRITES = ("INSERT", "UPDATE", "DELETE", "REPLACE", "SET STATEMENT", "WITH", "START TRANSACTION READ WRITE")


class Fault(NamedTuple):
    """A row of the table: what an error means, and its code."""

    name: str
    code: str
    roles: tuple[str, ...] = ()

    def hits(self, sql: str, params: object = None) -> bool:
        """Whether a statement meets it."""
        match self.name:
            case "STATEMENT" | "TOO_LARGE":
                return MARK in sql or MARK in str(params)
            case "LOST_RACE" | "FULL" | "READ_ONLY":
                return sql.lstrip().upper().startswith(_WRITES)
            case "UNMIGRATED":
                return "django_ojs_" in sql
        return True


def turn(switch: Path, fault: Fault | None) -> None:
    """Let all processes meet this fault from now on; None: none."""
    new = switch.with_suffix(".new")
    new.write_text(json.dumps(fault), encoding="utf-8")
    new.replace(switch)


class Injection:
    """What this process meets now, and how its driver says so."""

    def __init__(self, switch: Path, role: str) -> None:
        self._switch, self._role = switch, role
        self._read: tuple[int, Fault | None] = (0, None)
        self._lock = threading.Lock()
        self._number = itertools.count()
        self._sessions: weakref.WeakSet[Any] = weakref.WeakSet()
        self._old: weakref.WeakSet[Any] = weakref.WeakSet()  #: that lead to a server which is read-only

    def install(self) -> None:
        """Put itself between Django and the driver."""
        raise NotImplementedError

    def now(self) -> Fault | None:
        """The fault that this process is to meet. Where connections are lost, half of those that are open are lost at
        once; the others meet it in the middle of a statement."""
        try:
            changed = self._switch.stat().st_mtime_ns
        except FileNotFoundError:
            return None
        with self._lock:
            if changed == self._read[0]:
                return self._read[1]
            found = json.loads(self._switch.read_text(encoding="utf-8"))
            fault = None if found is None else Fault(*found)
            if fault is not None and fault.roles and self._role not in fault.roles:
                fault = None
            self._read = changed, fault
            lost = list(self._sessions) if fault is not None and fault.name == "AWAY" else []
        for raw in lost[::2]:
            with contextlib.suppress(Exception):
                self._cut(raw)
        return fault

    def _is(self, name: str) -> Fault | None:
        """The fault that this process is to meet, if it has this name."""
        fault = self.now()
        return fault if fault is not None and fault.name == name else None

    def _lose(self, raw: Any, act: Callable[[], object], error: Exception) -> NoReturn:
        """Lose the connection, with what is asked or with the answer to it."""
        if next(self._number) % 2:
            act()
        with contextlib.suppress(Exception):
            self._cut(raw)
        raise error

    def _cut(self, raw: Any) -> None:
        """End a connection as the network does."""
        with socket.socket(fileno=os.dup(raw.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)


class OnPostgreSQL(Injection):
    def install(self) -> None:
        import psycopg

        cursor: Any = psycopg.Cursor
        connection: Any = psycopg.Connection
        self._execute = cursor.execute
        execute, executemany, commit = self._execute, cursor.executemany, connection.commit
        connect = connection.connect.__func__

        def patched_execute(own: Any, query: Any, params: Any = None, **how: Any) -> Any:
            return self._run(own, query, params, lambda: execute(own, query, params, **how))

        def patched_executemany(own: Any, query: Any, params_seq: Any, **how: Any) -> Any:
            params = list(params_seq)
            return self._run(own, query, params, lambda: executemany(own, query, params, **how))

        def patched_commit(raw: Any) -> None:
            if (fault := self._is("AWAY")) is not None and not raw.closed:
                self._lose(raw, functools.partial(commit, raw), self._lost(fault))
            commit(raw)

        def patched_connect(cls: Any, *args: Any, **how: Any) -> Any:
            if (fault := self._is("AWAY")) is not None:  # libpq knows no code of it
                raise psycopg.OperationalError(f"connection failed: FATAL: refused ({fault.code})")
            raw = connect(cls, *args, **how)
            self._sessions.add(raw)
            if self._is("READ_ONLY"):
                self._grow_old(raw)
            return raw

        cursor.execute, cursor.executemany = patched_execute, patched_executemany
        connection.commit, connection.connect = patched_commit, classmethod(patched_connect)
        psycopg.connect = connection.connect

    def _run(self, cursor: Any, query: Any, params: Any, act: Callable[[], Any]) -> Any:
        fault, raw = self.now(), cursor.connection
        if fault is None or raw.closed:
            return act()
        text = query if isinstance(query, str) else query.decode() if isinstance(query, bytes) else query.as_string(raw)
        if fault.name == "READ_ONLY" and raw not in self._old and _is_idle(raw) and raw.autocommit:
            self._grow_old(raw)
        if raw in self._old or not fault.hits(text, params):
            return act()
        if fault.name == "AWAY":
            self._lose(raw, act, self._lost(fault))
        return self._execute(cursor, _raising(fault.code))

    @staticmethod
    def _lost(fault: Fault) -> Exception:
        import psycopg

        return psycopg.errors.lookup(fault.code)(f"refused ({fault.code})")

    def _grow_old(self, raw: Any) -> None:
        raw.pgconn.exec_(b"SET default_transaction_read_only = on")
        self._old.add(raw)


def _is_idle(raw: Any) -> bool:
    """Whether no transaction is open on a connection of psycopg."""
    return bool(raw.pgconn.transaction_status == 0)


def _raising(code: str) -> str:
    """A statement at which PostgreSQL raises this SQLSTATE."""
    text = 'relation "django_ojs_job" does not exist' if code == "42P01" else f"refused ({code})"
    return f"DO $ojs$ BEGIN RAISE EXCEPTION USING ERRCODE = '{code}', MESSAGE = '{text}'; END $ojs$"


class OnMariaDB(Injection):
    def install(self) -> None:
        from MySQLdb import connections  # type: ignore[import-untyped]

        connection: Any = connections.Connection
        self._query = connection.query
        begin, query = connection.__init__, self._query

        def patched_begin(raw: Any, *args: Any, **how: Any) -> None:
            if (fault := self._is("AWAY")) is not None:
                raise self._error(int(fault.code))
            begin(raw, *args, **how)
            self._sessions.add(raw)
            if self._is("READ_ONLY"):
                self._old.add(raw)

        def patched_query(raw: Any, sql: Any) -> Any:
            text = sql if isinstance(sql, str) else bytes(sql).decode(errors="replace")
            return self._run(raw, text, lambda: query(raw, sql))

        connection.__init__, connection.query = patched_begin, patched_query
        for name in ("commit", "ping"):
            setattr(connection, name, self._around(getattr(connection, name)))

    def _run(self, raw: Any, sql: str, act: Callable[[], Any]) -> Any:
        fault = self.now()
        if raw in self._old and (known := Fault("READ_ONLY", "1290")).hits(sql):
            fault = known
        if fault is None or raw not in self._sessions or not fault.hits(sql):
            return act()
        code = int(fault.code)
        if fault.name == "AWAY":

            def ask() -> None:
                act()
                raw.store_result()  # or the driver would find the answer that is lost

            self._lose(raw, ask, self._error(code))
        if fault.name == "READ_ONLY":
            self._old.add(raw)
        if code < 1000 or 2000 <= code < 3000:  # the client's own
            raise self._error(code)
        text = "Table 'ojs.django_ojs_job' doesn't exist" if code == 1146 else "refused"
        self._query(raw, f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = \"{text}\"".encode())
        raise AssertionError(f"MariaDB did not signal {code}.")

    def _around(self, inner: Any) -> Callable[..., Any]:
        def patched(raw: Any, *args: Any) -> Any:
            if (fault := self._is("AWAY")) is None or raw not in self._sessions:
                return inner(raw, *args)
            return self._lose(raw, functools.partial(inner, raw, *args), self._error(int(fault.code)))

        return patched

    @staticmethod
    def _error(code: int) -> Exception:
        import MySQLdb

        kinds: dict[int, Any] = {0: MySQLdb.InterfaceError, 2014: MySQLdb.ProgrammingError}
        found: Exception = kinds.get(code, MySQLdb.OperationalError)(code, "refused")
        return found


class OnSQLite(Injection):
    #: What Python's module raises where it is not an OperationalError.
    KINDS: ClassVar[dict[int, type[Exception]]] = {
        2: sqlite3.InternalError, 7: MemoryError, 11: sqlite3.DatabaseError, 18: sqlite3.DataError,
        19: sqlite3.IntegrityError, 20: sqlite3.IntegrityError, 21: sqlite3.InterfaceError, 23: sqlite3.DatabaseError,
        25: sqlite3.InterfaceError, 26: sqlite3.DatabaseError,
    }  # fmt: skip

    def install(self) -> None:
        from django.db.backends.sqlite3 import base

        cursor: Any = base.SQLiteCursorWrapper
        database: Any = vars(base)["Database"]
        execute, executemany, connect = cursor.execute, cursor.executemany, database.connect

        def patched_execute(own: Any, query: str, params: Any = None) -> Any:
            return self._run(own, query, params, lambda: execute(own, query, params))

        def patched_executemany(own: Any, query: str, param_list: Any) -> Any:
            params = list(param_list)
            return self._run(own, query, params, lambda: executemany(own, query, params))

        def patched_connect(*args: Any, **how: Any) -> Any:
            fault = self.now()
            if fault is not None and fault.code == CANNOT_OPEN:
                raise self._error(fault.code)
            return connect(*args, **how, factory=_Session)

        cursor.execute, cursor.executemany, database.connect = patched_execute, patched_executemany, patched_connect

    def _run(self, cursor: Any, sql: str, params: Any, act: Callable[[], Any]) -> Any:
        fault, raw = self.now(), cursor.connection
        if raw.lost:
            raise self._error(CLOSED)
        if fault is None or not fault.hits(sql, params):
            return act()
        if fault.name == "AWAY":
            self._lose(raw, act, self._error(fault.code))
        if fault.name == "READ_ONLY":  # and so the session stays
            raw.execute("PRAGMA query_only = ON")
            return act()
        raise self._error(fault.code)

    def _error(self, code: str) -> Exception:
        if code == CLOSED:
            return sqlite3.ProgrammingError("Cannot operate on a closed database.")
        found: Exception = self.KINDS.get(int(code), sqlite3.OperationalError)("refused")
        if isinstance(found, sqlite3.Error):
            found.sqlite_errorcode = int(code)
        return found

    def _cut(self, raw: Any) -> None:
        raw.lost = True


class _Session(sqlite3.Connection):
    """A connection that can be lost."""

    lost = False


def install() -> None:
    """Let this process meet the faults, if it was started for that."""
    if not (switch := os.environ.get(SWITCH)):
        return
    kinds = {"postgres": OnPostgreSQL, "postgresql": OnPostgreSQL, "mysql": OnMariaDB, "mariadb": OnMariaDB}
    kind = kinds.get(os.environ["OJS_BENCH_DATABASE"].partition(":")[0], OnSQLite)
    kind(Path(switch), os.environ[ROLE]).install()
