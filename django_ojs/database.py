"""The database that holds the jobs: which it is, what to do when it is busy or not migrated, and databases as URLs.

An operation that loses a race for locks has changed nothing, and `retried` runs it again. That is possible only where
the transaction is ours alone: inside the caller's transaction, the caller has to.
"""

from __future__ import annotations

import functools
import logging
import random
import re
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast
from urllib.parse import quote, urlencode, urlsplit

import dj_database_url
from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, Error, InterfaceError, OperationalError, connections, router, transaction
from django.db.models import Q

from django_ojs.errors import BackendUnavailable

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

#: What PostgreSQL and MariaDB call a missing table; SQLite has only words.
_NO_TABLE = frozenset({"42P01", 1146})

atomic = transaction.atomic


def database(using: str | None) -> str:
    """The alias of the database that jobs are written to."""
    if using:
        return using
    from django_ojs.models import Job  # Django may not have loaded the models when this module is imported

    return router.db_for_write(Job)


def unmigrated(error: BaseException) -> str:
    """The sentence that says to migrate, where `error` is a database's and about a missing table of a model of this
    site; '' for any other error. It asks no database: a transaction may be broken by now."""
    if not isinstance(error, Error):
        return ""
    text = str(error)
    code = getattr(error.__cause__, "sqlstate", None) or (error.args[0] if error.args else None)
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
    """Let an operation that finds no tables raise BackendUnavailable with the sentence that says to migrate."""

    @functools.wraps(operation)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return operation(*args, **kwargs)
        except Error as error:
            if sentence := unmigrated(error):
                raise BackendUnavailable(sentence, hint=sentence) from error
            raise

    return wrapper


# Lost races: deadlocks, serialization failures and busy locks.


TRIES = 5
FIRST_PAUSE = 0.01  #: seconds; doubled each time, and spread so that the same two do not meet again

#: SQLSTATEs of a serialization failure, a deadlock and a lock that could not be had.
_STATES = frozenset({"40001", "40P01", "55P03"})
#: MariaDB: lock wait timeout, deadlock.
_CODES = frozenset({1205, 1213})


class LostRace(OperationalError):
    """Another transaction was first, as a statement of ours has found: to be run again from the start."""


def is_contention(error: BaseException) -> bool:
    """Whether the database answered, and only another transaction was in the way."""
    return (
        isinstance(error, LostRace)
        or getattr(error.__cause__, "sqlstate", None) in _STATES
        or (bool(error.args) and error.args[0] in _CODES)
        or "database is locked" in str(error)
        or "database table is locked" in str(error)
    )


def is_disconnection(error: BaseException) -> bool:
    """Whether the connection may have been lost, and with it the answer to a commit."""
    return isinstance(error, OperationalError | InterfaceError) and not is_contention(error)


def retried(operation: Callable[P, T]) -> Callable[P, T]:
    """Let an operation, whose keyword `using` names the database, try again when it loses a race."""

    @functools.wraps(operation)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        for attempt in range(1, TRIES):
            try:
                return operation(*args, **kwargs)
            except OperationalError as error:
                if (
                    not is_contention(error)
                    or connections[database(cast("str | None", kwargs.get("using")))].in_atomic_block
                ):
                    raise
            time.sleep(FIRST_PAUSE * 2**attempt * random.uniform(0.5, 1.5))  # noqa: S311
        return operation(*args, **kwargs)

    return wrapper


def in_callers_transaction(using: str) -> bool:
    """Whether an `atomic` block is open on this connection that ends when the caller wants.

    That of a `TestCase` is none: it never commits, and so a test sees at once what would follow the commit.
    """
    return not all(getattr(block, "_from_testcase", False) for block in connections[using].atomic_blocks)


def commits_later(using: str) -> bool:
    """Whether what is written on this connection now is committed when the caller wants: in an `atomic` block of the
    caller's (`in_callers_transaction`), or because autocommit is off."""
    connection = connections[using]
    return in_callers_transaction(using) or not (connection.in_atomic_block or connection.get_autocommit())


def autocommits(using: str) -> bool:
    """Whether a statement on this connection is committed by itself. Opens no connection to find out."""
    connection = connections[using]
    if connection.in_atomic_block:
        return False
    known = connection.autocommit if connection.connection is not None else connection.settings_dict["AUTOCOMMIT"]
    return bool(known)


def piece_by_piece(act: Callable[[Q, bool], int], pieces: Callable[[], Iterable[Q]], using: str) -> int:
    """`act` on all at once; where another transaction holds what some need, on each of `pieces` by itself.

    `act` is given what to act on, and whether it may wait for others: inside the caller's transaction it has to.

    Returns the sum of what the acts return. The pieces that still cannot be had are left alone, for the next time.
    """
    if connections[using].in_atomic_block:
        return act(Q(), True)
    try:
        return act(Q(), False)
    except OperationalError as error:
        if not is_contention(error):
            raise
    done = 0
    for piece in pieces():
        try:
            done += act(piece, False)
        except OperationalError as error:
            if not is_contention(error):
                raise
    return done


def harmless(act: Callable[[], None], using: str) -> Callable[[], None]:
    """`act`, for behind a commit: there it raises nothing of the database's, and logs it instead.

    By then the caller's work is stored, so an error would have it done twice, by the caller or by `retried`. Only for
    what may be missing until it is done again. Inside a transaction errors are raised, since they spoil it.
    """

    def call() -> None:
        try:
            act()
        except Error:
            if connections[using].in_atomic_block:
                raise
            logger.warning("What was to follow a commit could not be done.", exc_info=True)

    return call


# A database URL as an entry of Django's `DATABASES`: for `ojs_testserver`, the example project and the tests.
#
#     sqlite:///db.sqlite3                                relative to `base`
#     sqlite:////var/lib/site/db.sqlite3                  absolute
#     postgres://user:p%40ss@host:5432/name?sslmode=require&conn_max_age=600
#     postgres:///name?host=/var/run/postgresql           a socket
#     mysql://root@127.0.0.1:3306/name
#
# Names and passwords are percent-decoded. Of the query, `conn_max_age`, `conn_health_checks` and
# `atomic_requests` are settings of Django; everything else is an option of the database driver.
#
# dj-database-url reads the URL. This module adds what it lacks: the way back, paths relative to a folder, the options
# that the claim needs on SQLite, pools, and Django's own settings in a query.


#: What the claim needs on SQLite: readers beside one writer, and the write lock taken when a transaction
#: begins, so that the busy timeout (seconds) applies. A lock taken later fails at once instead.
SQLITE_OPTIONS: dict[str, Any] = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
}
ENGINES = {
    "sqlite": "django.db.backends.sqlite3",
    "postgres": "django.db.backends.postgresql",
    "postgresql": "django.db.backends.postgresql",
    "mysql": "django.db.backends.mysql",
    "mariadb": "django.db.backends.mysql",
}
#: Django under ASGI has a thread for each request, where a kept connection would only be left behind: none is kept
#: unless the URL asks, by `?pool=true` (PostgreSQL: `POOL_OPTIONS`) or, for threads that last (WSGI, workers, and the
#: binding under ASGI), `?conn_max_age=60`.
SERVER_SETTINGS: dict[str, Any] = {"CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": True}
#: A pool of psycopg for a server, as Django takes it in `OPTIONS["pool"]`. `timeout` is how long a request waits for a
#: connection before it is answered with 503, and `reconnect_timeout` how long the pool goes on with an attempt to
#: connect, ever more rarely, before the next request begins a new one; both in seconds. With psycopg's own 30 and 300,
#: requests stall for 30 to 60 s after connections were cut, and for as long after an outage of the database.
POOL_OPTIONS: dict[str, Any] = {"min_size": 1, "max_size": 16, "timeout": 5, "reconnect_timeout": 2}
DJANGO_KEYS = {"conn_max_age", "conn_health_checks", "atomic_requests", "disable_server_side_cursors"}

dj_database_url.register("mariadb", ENGINES["mariadb"])


def parse_url(url: str, base: Path) -> dict[str, Any]:
    """The `DATABASES` entry for `url`. Raises ValueError, without the password, if it cannot be read."""
    parts = urlsplit(url)
    if parts.scheme not in ENGINES or not parts.path.strip("/"):
        raise ValueError(f"A database URL is <{'|'.join(ENGINES)}>://[user:password@host:port]/name, see {__name__}.")
    config: dict[str, Any] = {**dj_database_url.parse(url)}
    query = {key: _value(value) for key, value in config.pop("OPTIONS", {}).items()}
    if parts.scheme == "sqlite":
        config = {"ENGINE": config["ENGINE"], "NAME": base / config["NAME"], "OPTIONS": dict(SQLITE_OPTIONS)}
    else:
        config |= SERVER_SETTINGS | {"OPTIONS": {"charset": "utf8mb4"} if config["ENGINE"].endswith("mysql") else {}}
    config |= {key.upper(): query.pop(key) for key in DJANGO_KEYS & query.keys()}
    config["OPTIONS"] |= query
    if config["OPTIONS"].get("pool") is True:
        config["OPTIONS"]["pool"] = dict(POOL_OPTIONS)
    return config


def url_of(config: dict[str, Any]) -> str:
    """The URL that `parse_url` reads as `config`, to hand a database to another process."""
    scheme = next(scheme for scheme, engine in ENGINES.items() if engine == config["ENGINE"])
    if scheme == "sqlite":
        return f"sqlite:///{quote(str(config['NAME']))}"
    login = ":".join(quote(config[key], safe="") for key in ("USER", "PASSWORD") if config[key])
    place = quote(config["HOST"], safe="") + (f":{config['PORT']}" if config["PORT"] else "")
    query = config["OPTIONS"] | {key: config[key.upper()] for key in sorted(DJANGO_KEYS) if key.upper() in config}
    query = {key: True if isinstance(value, dict) else value for key, value in query.items()}  # a pool's sizes
    return f"{scheme}://{login}{'@' * bool(login)}{place}/{quote(config['NAME'], safe='')}?{urlencode(query)}"


def _value(found: Any) -> Any:
    """A value of a query: the last of several under one name, and `none` as what it means."""
    value = found[-1] if isinstance(found, list) else found
    return None if isinstance(value, str) and value.lower() == "none" else value


# A pool whose connections were cut.


_renewing = threading.Lock()


def renew_pool(connection: Any) -> None:
    """Replace the connections of a pool that are cut, in a thread of its own; without a pool, do nothing.

    For when a request has met a cut connection. Left to themselves, the next requests would find the others one by
    one, and wait longer after each.
    """
    pool = getattr(connection, "pool", None)
    if pool is None or not _renewing.acquire(blocking=False):
        return

    def renew() -> None:
        try:
            pool.check()
        finally:
            _renewing.release()

    threading.Thread(target=renew, name="ojs-pool", daemon=True).start()


# The health of connections that a thread keeps from one request to the next (`CONN_HEALTH_CHECKS`).


#: For how many seconds without a look a connection is not taken for healthy any more.
LOOKED_AT = 5.0
_looked_at: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()  #: by the driver's connection


def look_at_health(using: str) -> None:
    """Spare a request the query by which Django checks a kept connection, where a look at its socket says enough.

    The query costs a round trip, as much as an ACK. A server that ends or dies closes the socket, which shows here; one
    that the network has cut off does not, so a connection that was not in use for some seconds is left to Django.
    """
    connection: Any = connections[using]
    raw = connection.connection
    if raw is None or not connection.health_check_enabled or connection.health_check_done:
        return
    if connection.vendor != "postgresql" or not hasattr(select, "poll"):
        return
    before, now = _looked_at.get(raw, float("-inf")), time.monotonic()
    _looked_at[raw] = now
    if now - before > LOOKED_AT or raw.closed:
        return
    socket = select.poll()
    socket.register(raw.fileno(), select.POLLIN)
    if not socket.poll(0):  # the server has said nothing, not even goodbye
        connection.health_check_done = True
