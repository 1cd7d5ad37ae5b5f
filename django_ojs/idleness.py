"""Limits how long a transaction of the server's own may stand still before the database ends it.

A process that is stopped (SIGSTOP), or that is on a machine that is suspended, keeps its connections. A transaction
that it has open would keep all that it has locked, until the process goes on. So `database.atomic` gives each
transaction that begins with it a limit, and what it holds is free when that has passed.

- **PostgreSQL**: `idle_in_transaction_session_timeout` of this transaction alone. It is sent with the BEGIN; through
  pgpool by itself, behind it.
- **MariaDB**: `idle_transaction_timeout` of the session. It is set by the statement that begins the transaction, and
  set to what it was by the one that gives autocommit back.
- **SQLite** knows no such limit: the lock is one of the file, and ends with the transaction or the process.

So it costs no round trip (through pgpool one), works behind a pooler, and what the site does on the connection is not
limited: neither in transactions of its own, nor where the server's statements are in one of them. A shorter limit of
the site's stays.
"""

from __future__ import annotations

import functools
from typing import Any

from django.db import Error

from django_ojs.faults import ended_for_idleness, is_about_data, may_be_done

#: Seconds for which a transaction may stand still. Between two statements of ours is some Python code, and never a call
#: elsewhere, unless an enqueue middleware of the site's makes one.
SECONDS = 10.0

_SETTING = "idle_in_transaction_session_timeout"
#: By the alias of a database: the limit of the site's own in milliseconds, 0 for none. Each process asks once.
_sites: dict[str, int] = {}
#: By the alias of a database: whether pgpool is before it. Each process asks once.
_pgpools: dict[str, bool] = {}
_IS_PGPOOL = "SHOW pool_version"  # which it answers itself, and nothing else does


def limit_next(connection: Any, seconds: float) -> None:
    """Limit the transaction that `connection`, which is in none, begins next. Call `forget` if it does not begin."""
    connection.close_if_health_check_failed()
    connection.ensure_connection()
    if connection.vendor == "postgresql":
        _site_limit(connection)
        _is_pgpool(connection)
        connection._set_autocommit = functools.partial(_begin_postgresql, connection, seconds)
    elif connection.vendor == "mysql" and connection.mysql_is_mariadb:
        connection._set_autocommit = functools.partial(_mariadb, connection, connection.connection, seconds)


def forget(connection: Any) -> None:
    """Let the next transaction of `connection` begin as Django has it."""
    connection.__dict__.pop("_set_autocommit", None)


def limit_open(connection: Any, seconds: float = SECONDS) -> None:
    """Limit the transaction that is open on `connection`, by a statement more. On PostgreSQL only."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(_set_local(_shorter(seconds, _site_limit(connection))))


def stood_still(connection: Any, error: BaseException, lasted: float, seconds: float) -> bool:
    """Whether a transaction with this limit, which failed by this error after so many seconds, was ended for it.

    MariaDB closes the connection without a word, and psycopg does not always read PostgreSQL's.
    """
    if ended_for_idleness(error):
        return True
    if lasted < seconds or not may_be_done(error):
        return False
    raw = connection.connection
    if raw is None or connection.vendor == "sqlite":
        return False
    return bool(raw.closed) if connection.vendor == "postgresql" else not connection.is_usable()


# Each of these takes the place of the connection's `_set_autocommit`, by which Django begins and ends transactions.


def _begin_postgresql(connection: Any, seconds: float, autocommit: bool) -> None:
    forget(connection)
    connection._set_autocommit(autocommit)
    raw = connection.connection
    statement = _set_local(_shorter(seconds, _site_limit(connection)))
    with connection.wrap_database_errors:
        if hasattr(raw, "pgconn"):
            apart = [_begin(raw), statement]
            for script in apart if _is_pgpool(connection) else ["; ".join(apart)]:
                _send(raw, script)
        else:  # psycopg2, which sends its BEGIN by itself
            with raw.cursor() as cursor:
                cursor.execute(statement)


def _mariadb(connection: Any, raw: Any, seconds: float, autocommit: bool) -> None:
    if autocommit:
        forget(connection)
    if connection.connection is not raw:  # lost, and so is what was set
        forget(connection)
        connection._set_autocommit(autocommit)
        return
    with connection.wrap_database_errors:
        raw.query(_GO_BACK if autocommit else _LIMIT % {"seconds": round(seconds)})


_LIMIT = (
    "SET @ojs_idle = @@SESSION.idle_transaction_timeout, SESSION idle_transaction_timeout = "
    "IF(@@SESSION.idle_transaction_timeout BETWEEN 1 AND %(seconds)d, @@SESSION.idle_transaction_timeout, %(seconds)d)"
    ", autocommit = 0"
)
_GO_BACK = "SET autocommit = 1, SESSION idle_transaction_timeout = @ojs_idle"


def _site_limit(connection: Any) -> int:
    """The limit that the site has set, in milliseconds; 0: none."""
    if (found := _sites.get(connection.alias)) is None:
        with connection.wrap_database_errors, connection.connection.cursor() as cursor:
            cursor.execute("SELECT setting::int FROM pg_settings WHERE name = %s", [_SETTING])
            found = _sites[connection.alias] = int(cursor.fetchone()[0])
    return found


def _is_pgpool(connection: Any) -> bool:
    """Whether pgpool is in between. What comes in one message it gives to the primary alone, and a SAVEPOINT to the
    replica that it reads from, too: that has to know that the transaction has begun.

    Only something in between is asked, since PostgreSQL logs an error: it listens on another port than the server.
    """
    if (found := _pgpools.get(connection.alias)) is None:
        raw, found = connection.connection, False
        try:
            with connection.wrap_database_errors, raw.cursor() as cursor:
                cursor.execute("SELECT inet_server_port()")
                ((port,),) = cursor.fetchall()
                if port not in (None, raw.info.port):
                    cursor.execute(_IS_PGPOOL)
                    found = True
        except Error as error:
            if not is_about_data(error):
                raise
        _pgpools[connection.alias] = found
    return found


def _shorter(seconds: float, of_site: int) -> int:
    """The shorter limit of the two, in milliseconds."""
    ours = round(seconds * 1000)
    return min(ours, of_site) if of_site else ours


def _set_local(milliseconds: int) -> str:
    return f"SET LOCAL {_SETTING} = {milliseconds}"


def _begin(raw: Any) -> str:
    """BEGIN, as psycopg would send it on this connection."""
    parts = ["BEGIN"]
    if raw.isolation_level is not None:
        parts.append(f"ISOLATION LEVEL {raw.isolation_level.name.replace('_', ' ')}")
    if raw.read_only is not None:
        parts.append("READ ONLY" if raw.read_only else "READ WRITE")
    if raw.deferrable is not None:
        parts.append("DEFERRABLE" if raw.deferrable else "NOT DEFERRABLE")
    return " ".join(parts)


def _send(raw: Any, script: str) -> None:
    """Run statements in one round trip. psycopg finds a transaction begun, and begins none."""
    from psycopg import errors, generators, pq  # a site on another database need not have it

    raw.pgconn.send_query(script.encode())
    for result in raw.wait(generators.execute(raw.pgconn)):
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise errors.error_from_result(result, encoding=raw.info.encoding)
