"""Tells how much MariaDB and MySQL take in one statement (`max_allowed_packet`), and which statement was more.

A server ends the connection on which more comes. What the client then hears is a matter of time: that the packet is too
large (1153), or only that the server is gone (2006, 2013), as when it is restarted. Which it was decides a lot: a
statement that is too long was never executed, and would fail again. So a statement on which the connection was lost is
measured, and compared with what the server takes.

    with watched(connection):
        ...

It costs nothing where nothing fails. PostgreSQL and SQLite have no such limit that matters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable
from typing import Any

from django.db import Error, OperationalError, connections

from django_ojs.faults import TOO_LARGE, is_outage, is_too_large

#: Characters that one statement for several callers, or for several jobs of a worker, brings at most: each has four
#: bytes at most, and a server takes 16 MiB unless it is told otherwise.
MOST_CHARACTERS = 3_000_000
#: So few characters are no matter, and no server is asked.
FEW_CHARACTERS = 100_000

#: What the client puts a backslash before.
_ESCAPED = (b"\\", b"'", b'"', b"\0", b"\n", b"\r", b"\x1a")
_packets: dict[str, int] = {}  #: `max_allowed_packet` in bytes, by the alias of a database: each process asks once


def watched(connection: Any) -> contextlib.AbstractContextManager[None]:
    """A block in which a statement that was too long for the server raises OperationalError with `TOO_LARGE`, whatever
    the client heard. For a connection of any database."""
    wrapped: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if connection.vendor == "mysql":
        wrapped = connection.execute_wrapper(_execute)
    return wrapped


def room(using: str) -> int:
    """Characters that one statement to this server may bring from callers. Asks it, the first time."""
    if using not in _packets:
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT @@max_allowed_packet")
            _packets[using] = int(cursor.fetchone()[0])
    return min(MOST_CHARACTERS, _packets[using] // 5)


def length(sql: str, params: Iterable[Any] | None) -> int:
    """The bytes of a statement as the client sends it, to a few for each parameter that is no text."""
    return len(sql.encode()) + sum(map(_length, params or ()))


def _length(value: Any) -> int:
    text = value if isinstance(value, bytes) else str(value).encode()
    return len(text) + sum(map(text.count, _ESCAPED)) + 2


def _execute(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
    try:
        return execute(sql, params, many, context)
    except Error as error:
        connection = context["connection"]
        lost = is_outage(error) and not many and _is_too_long(sql, params, connection)
        if (lost or is_too_large(error)) and not connection.in_atomic_block:
            connection.close()  # the server has ended it, and the caller goes on
        if not lost:
            raise
        raise OperationalError(TOO_LARGE, "The statement is longer than 'max_allowed_packet'.") from error


def _is_too_long(sql: str, params: Collection[Any] | None, connection: Any) -> bool:
    """Whether the server answers, and takes no statement of this length."""
    size = length(sql, params)
    if size < FEW_CHARACTERS:
        return False
    other = connection.copy()  # that of the caller is lost, maybe in a transaction
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT @@max_allowed_packet")
            packet = int(cursor.fetchone()[0])
    except Error:
        return False
    finally:
        other.close()
    _packets[connection.alias] = packet
    return size >= packet
