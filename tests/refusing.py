"""A database that refuses what is asked of it, below Django's cursors, as while it is read-only, full or broken.

with refusing(READ_ONLY) as refused:
    ...
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from django.db.backends.utils import CursorWrapper

#: What each database says: a SQLSTATE, an error number, a primary result code.
READ_ONLY = {"postgresql": "25006", "mysql": 1290, "sqlite": 8}
FULL = {"postgresql": "53100", "mysql": 1021, "sqlite": 13}
MEMORY = {"postgresql": "53200", "mysql": 1041, "sqlite": 7}
BROKEN = {"postgresql": "XX000", "mysql": 145, "sqlite": 11}
RACE = {"postgresql": "40001", "mysql": 1020, "sqlite": 6}
SLOW = {"postgresql": "57014", "mysql": 1969, "sqlite": 9}
PASSING = {"read-only": READ_ONLY, "full": FULL, "broken": BROKEN}

_WRITES = ("INSERT", "UPDATE", "DELETE", "REPLACE", "SET STATEMENT", "WITH")


class Refused:
    """Which threads have been refused a statement."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def by(self, name: str) -> int:
        """How often the thread of this name was."""
        return self.threads.count(name)


def writes(sql: str) -> bool:
    return sql.lstrip().upper().startswith(_WRITES)


@contextlib.contextmanager
def refusing(codes: dict[str, Any], which: Callable[[str], bool] = writes) -> Iterator[Refused]:
    """A block in which each statement of any thread for which `which` is true fails with the code of its database."""
    refused, execute = Refused(), CursorWrapper._execute

    def refuse(self: Any, sql: Any, params: Any, *ignored: Any) -> Any:
        if not which(str(sql)):
            return execute(self, sql, params, *ignored)
        refused.threads.append(threading.current_thread().name)
        with self.db.wrap_database_errors:
            raise driver_error(self.db, codes[self.db.vendor])

    with mock.patch.object(CursorWrapper, "_execute", refuse):
        yield refused


def driver_error(connection: Any, code: Any) -> Exception:
    """The exception of the driver that has this code."""
    if connection.vendor == "postgresql":
        import psycopg

        found: Exception = psycopg.errors.lookup(code)("refused")
    elif connection.vendor == "mysql":
        kind = connection.Database.InternalError if code < 1000 else connection.Database.OperationalError
        found = kind(code, "refused")
    else:
        kind = sqlite3.DatabaseError if code == 11 else sqlite3.OperationalError
        found = kind("refused")
        found.sqlite_errorcode = code  # type: ignore[attr-defined]
    return found
