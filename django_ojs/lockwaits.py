"""Limits how long a statement of ours waits for what another transaction has locked.

A statement that serves several callers waits for a moment only, and then fails as a lost race: each of them goes on by
itself. A caller by itself waits longer, and gets an error that says so.

    with LockTimeout(SHARED, using):
        ...

The limit costs no round trip, and ends with the transaction: what the site does next on the connection, also behind a
pooler, knows nothing of it. On PostgreSQL the statements that lock something carry it themselves (`store.postgresql`),
on MariaDB each statement of the block does. SQLite has one lock for all writers, and its own timeout for that.

Do not use it in a transaction of the caller's: on PostgreSQL the limit would last as long as that.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any

from django.db import Error, connections

from django_ojs.faults import DatabaseFault, LostRace, fault_of

#: Seconds that a statement which serves several callers waits for a lock.
SHARED = 0.1
#: Seconds that the statement of one caller does. One that fails is tried again (`database.retried`), five times in all.
OWN = 1.0

#: On MariaDB only the time of a whole statement can be limited to a part of a second, and so the work of the statement
#: counts, too. An insert of a hundred jobs may take a while on a busy server: it is not limited to less than this,
_SHORTEST_STATEMENT = 0.25
#: and a statement that brings so many characters may take a second longer.
_CHARACTERS_PER_SECOND = 1_000_000


class _ThreadLimits(threading.local):
    def __init__(self) -> None:
        self.limits: dict[str, float] = {}  #: by database


_thread = _ThreadLimits()


class LockTimeout:
    """A block in which no statement of this thread waits longer for a lock in the database `using`."""

    __slots__ = ("_before", "_limits", "_seconds", "_using", "_wrapped")
    _wrapped: contextlib.AbstractContextManager[None] | None

    def __init__(self, seconds: float, using: str) -> None:
        self._seconds, self._using = seconds, using

    def __enter__(self) -> None:
        self._limits = limits = _thread.limits
        self._before = limits.get(self._using)
        limits[self._using] = self._seconds
        self._wrapped = None
        if _is_mysql(self._using):
            self._wrapped = connections[self._using].execute_wrapper(_of_mariadb(self._seconds))
            self._wrapped.__enter__()

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        if self._wrapped is not None:
            self._wrapped.__exit__(exc_type, exc_value, traceback)
        if self._before is None:
            del self._limits[self._using]
        else:
            self._limits[self._using] = self._before


@functools.cache
def _is_mysql(using: str) -> bool:
    return connections[using].vendor == "mysql"


def lock_timeout(using: str) -> float | None:
    """The seconds of the block that this thread is in; None: it is in none."""
    return _thread.limits.get(using)


def _of_mariadb(seconds: float) -> Callable[..., Any]:
    """What puts the limit before each statement that may wait for a lock, and knows its error."""

    def prefix(params: Any) -> str:
        if seconds >= 1:
            return f"SET STATEMENT innodb_lock_wait_timeout={round(seconds)} FOR "
        brought = sum(len(value) for value in params or () if isinstance(value, str | bytes))
        limit = max(seconds, _SHORTEST_STATEMENT) + brought / _CHARACTERS_PER_SECOND
        return f"SET STATEMENT max_statement_time={limit:.3f} FOR "

    def execute_limited(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if many or not _may_wait(sql) or not context["connection"].mysql_is_mariadb:
            return execute(sql, params, many, context)
        try:
            return execute(prefix(params) + sql, params, many, context)
        except Error as error:
            if fault_of(error) is DatabaseFault.SLOW:
                raise LostRace("Another transaction holds what this statement needs.") from error
            raise

    return execute_limited


def _may_wait(sql: str) -> bool:
    return sql.startswith(("INSERT", "UPDATE", "DELETE", "REPLACE")) or sql.rstrip().endswith("FOR UPDATE")
