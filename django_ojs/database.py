"""The database that holds the jobs: which it is, what to do when it is busy or not migrated, and databases as URLs.

An operation that loses a race for locks has changed nothing, and `retried` runs it again. That is possible only where
the transaction is ours alone: inside the caller's transaction, the caller has to.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import random
import re
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

import dj_database_url
from django.db import Error, IntegrityError, OperationalError, connections, router, transaction
from django.db.models import Q

from django_ojs import idleness, lockwaits, packets, tenants
from django_ojs.backoff import Backoff, SharedBackoff
from django_ojs.faults import (
    DatabaseFault,
    LostRace,
    ReadOnly,
    StoodStill,
    ended_for_idleness,
    fault_of,
    has_forgotten,
    is_contention,
    is_general,
    only_if_taken,
)
from django_ojs.guard import get_logger

P = ParamSpec("P")
T = TypeVar("T")

logger = get_logger(__name__)


def database(using: str | None) -> str:
    """The alias of the database that jobs are written to."""
    if using:
        return using
    from django_ojs.models import Job  # Django may not have loaded the models when this module is imported

    return router.db_for_write(Job)


# Lost races: deadlocks, serialization failures and busy locks.


TRIES = 5
FIRST_PAUSE = 0.01  #: seconds; doubled each time, and spread so that the same two do not meet again

_STOOD_STILL = (
    "The database has ended a transaction of this process, because it stood still for more than %g s, as where a"
    " process is stopped or a machine is suspended. Nothing of the transaction is stored."
)


def answers(using: str, *, writes: bool = False) -> bool:
    """Whether the database can be reached now, by a new connection of this thread where the old one is lost; with
    `writes`, whether it would store something as well."""
    connection = connections[using]
    try:
        if connection.connection is not None and not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
        with connection.cursor() as cursor:
            if writes:
                try_to_write(cursor)
            else:
                cursor.execute("SELECT 1")
                cursor.fetchall()
    except Error:
        return False
    return True


def try_to_write(cursor: Any) -> None:
    """Ask the database whether it would store something now. Changes nothing, and waits for no other transaction.

    It does not see a full disk, which only what is written finds: a small row often has room in a file that is there.

    Raises:
        django.db.Error: it would not (`ReadOnly`, where it says so only when asked), or it does not answer.
    """
    vendor = cursor.db.vendor
    if vendor == "postgresql":
        cursor.execute("SELECT current_setting('transaction_read_only')")
        if cursor.fetchone() == ("on",):
            raise ReadOnly("The database is read-only: a standby, or by default_transaction_read_only.")
    elif vendor == "mysql":  # a server with read_only refuses the first, except for its administrators
        cursor.execute("START TRANSACTION READ WRITE")
        cursor.execute("ROLLBACK")
    elif vendor == "sqlite":
        from django_ojs.models import Lease

        cursor.execute("PRAGMA busy_timeout")
        (patience,) = cursor.fetchone()
        cursor.execute("PRAGMA busy_timeout = 0")
        try:
            cursor.execute(f"DELETE FROM {Lease._meta.db_table} WHERE 0")  # noqa: S608 - a name of ours
        except Error as error:
            if not is_contention(error):  # another writes
                raise
        finally:
            cursor.execute(f"PRAGMA busy_timeout = {int(patience)}")
    else:
        cursor.execute("SELECT 1")


def waits_to_try_again(error: BaseException, number: int, using: str | None) -> bool:
    """Whether an operation is to be run again whose try `number`, of at most `TRIES`, ended in `error`. If so, wait
    first, longer each time.

    It is run again if it lost a race in its own transaction, or if its session had lost a prepared statement: neither
    has changed anything. After a lost prepared statement the operation gets a new session, and is run again at once.
    """
    connection = connections[database(using)]
    if number == TRIES or connection.in_atomic_block:
        return False
    if has_forgotten(error) and autocommits(connection.alias):
        leave(connection, error)
        return True
    if not is_contention(error):
        return False
    time.sleep(FIRST_PAUSE * 2**number * random.uniform(0.5, 1.5))  # noqa: S311
    return True


def retried(operation: Callable[P, T]) -> Callable[P, T]:
    """Let an operation, whose keyword `using` names the database, try again when it loses a race, or its session has
    lost what was prepared there."""

    @functools.wraps(operation)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        number = 0
        while True:
            number += 1
            try:
                return operation(*args, **kwargs)
            except Error as error:
                if not waits_to_try_again(error, number, cast("str | None", kwargs.get("using"))):
                    raise

    return wrapper


class Looks:
    """When a caller that waits for a change looks again: `for pause in looks:` look, then sleep for `pause` seconds.

    The pauses grow by half, from 20 ms to `longest` seconds, and never pass the deadline, after which there is one more
    look. A look that fails because another transaction is in the way, or the database is away, ends no wait.

    Args:
        what: waits, as the subject of a line of the log.
        timeout: seconds; None: no deadline.
        using: the databases that a look asks; None among them is left out.

    Attributes:
        error: why the last look failed; None where it did not.
    """

    FIRST = 0.02

    def __init__(self, what: str, timeout: float | None, *using: str | None, longest: float = 1.0) -> None:
        self._timeout, self._using, self._longest = timeout, using, longest
        self._faults = Backoff(what, self.FIRST, longest, logger=logger, level=logging.WARNING, brief=True, tries=False)
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[float]:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        pause = self.FIRST
        while True:
            left = pause if deadline is None else deadline - time.monotonic()
            yield max(min(pause, left), 0)
            if deadline is not None and left <= 0:
                return
            pause = min(pause * 1.5, self._longest)

    @contextlib.contextmanager
    def outlasting(self) -> Iterator[None]:
        """A block with one look, which ends without an exception where the next may go well."""
        aliases = [alias for alias in self._using if alias is not None]
        for alias in aliases:
            if autocommits(alias) and tenants.shows_elsewhere(alias) is not None:
                leave_old_server(alias)
        try:
            yield
        except Exception as error:
            asked = [connections[alias] for alias in aliases]
            if any(one.in_atomic_block for one in asked) or not (is_contention(error) or is_general(error)):
                raise
            if not is_contention(error):
                for one in asked:
                    one.close()
            self.error = error
            self._faults.failed(quiet=1.0)
        else:
            self.error = None
            self._faults.worked()


class Atomic(transaction.Atomic):
    """The block that `atomic` returns: Django's, and more. If the transaction begins here, the database ends it when it
    stays idle for too long (`idleness`). A statement that is too long for the database raises another error than an
    outage does (`packets`).

    Each is entered once: it is no decorator.
    """

    def __init__(self, using: str | None, savepoint: bool, durable: bool, idle: float) -> None:
        super().__init__(using, savepoint, durable)
        self._idle = idle
        self._began: float | None = None  #: None: the transaction is the caller's
        self._watch = contextlib.ExitStack()

    def __enter__(self) -> None:
        connection = transaction.get_connection(self.using)
        if connection.in_atomic_block or not connection.get_autocommit():
            super().__enter__()
            return
        self._began = time.monotonic()
        try:
            idleness.limit_next(connection, self._idle)
            super().__enter__()
        except BaseException:
            idleness.forget(connection)
            if connection.vendor != "sqlite":  # a connection that cannot begin is of no use
                connection.close()
            raise
        self._watch.enter_context(packets.watched(connection))

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        if self._began is None:
            super().__exit__(exc_type, exc_value, traceback)
            return
        self._watch.close()
        connection = transaction.get_connection(self.using)
        lasted = time.monotonic() - self._began
        error, ended = exc_value, False
        if isinstance(exc_value, Error):
            ended = idleness.stood_still(connection, exc_value, lasted, self._idle)
        try:
            super().__exit__(exc_type, exc_value, traceback)
        except Error as at_end:
            if not ended_for_idleness(at_end):
                raise
            if connection.run_commit_hooks_on_set_autocommit_on:  # in what follows the commit
                raise OperationalError(str(at_end)) from at_end
            error, ended = at_end, True
        if ended:
            logger.warning(_STOOD_STILL, self._idle)
            raise StoodStill(_STOOD_STILL % self._idle) from error


def atomic(
    using: str | None = None, savepoint: bool = True, durable: bool = False, *, idle: float = idleness.SECONDS
) -> Atomic:
    """`transaction.atomic` for what the server does: for code that runs none of the site's, unless by the way.

    Args:
        idle: seconds for which a transaction that begins here may stand still. One that the caller has begun has no
            such limit.

    Raises:
        StoodStill: the database has ended the transaction for that, before its commit.
    """
    return Atomic(using, savepoint, durable, idle)


def in_callers_transaction(using: str) -> bool:
    """Whether an `atomic` block is open on this connection that ends when the caller wants.

    That of a `TestCase` is none: it never commits, and so a test sees at once what would follow the commit.
    """
    return not all(getattr(block, "_from_testcase", False) for block in connections[using].atomic_blocks)


def in_own_transaction(using: str) -> bool:
    """Whether a transaction is open on this connection that an `atomic` of ours began."""
    blocks = connections[using].atomic_blocks
    return bool(blocks) and isinstance(blocks[0], Atomic)


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


def give_back(using: str) -> None:
    """Let others have this thread's connection while it waits for something: it goes back to its pool, or is closed.

    Nothing is done inside a transaction, which would be lost, and where the site has told this connection whose data to
    show: the next one would show other data.
    """
    if autocommits(using) and tenants.shows_elsewhere(using) is not None:
        connections[using].close()


def piece_by_piece(act: Callable[[Q, bool], int], pieces: Callable[[], Iterable[Q]], using: str) -> int:
    """`act` on all at once; where another transaction holds what some need, on each of `pieces` by itself.

    `act` is given what to act on, and whether it may wait for others: inside the caller's transaction it has to. On
    MariaDB it waits for a second all the same, because only the time of a whole statement can be limited to less.

    Returns the sum of what the acts return. The pieces that still cannot be had are left alone, for the next time.
    """
    if connections[using].in_atomic_block:
        return act(Q(), True)

    def hurried(piece: Q) -> int:
        is_mysql = connections[using].vendor == "mysql"
        with lockwaits.LockTimeout(lockwaits.OWN, using) if is_mysql else contextlib.nullcontext():
            return act(piece, False)

    try:
        return hurried(Q())
    except Error as error:
        if not is_contention(error):
            raise
    done = 0
    for piece in pieces():
        try:
            done += hurried(piece)
        except Error as error:
            if not is_contention(error):
                raise
    return done


_followers = SharedBackoff("What was to follow a commit", logger=logger, level=logging.WARNING)


def harmless(act: Callable[[], None], using: str) -> Callable[[], None]:
    """`act`, for behind a commit: there it raises nothing of the database's, and logs it instead.

    By then the caller's work is stored, so an error would have it done twice, by the caller or by `retried`. Only for
    what may be missing until it is done again. Inside a transaction errors are raised, since they spoil it.
    """

    def call() -> None:
        try:
            act()
        except Error as error:
            if connections[using].in_atomic_block:
                raise
            _followers.failed("could not be done", error)
        else:
            _followers.worked()

    return call


# A database URL as an entry of Django's `DATABASES`: for `ojs_testserver`, the example project and the tests.
#
#     sqlite:///db.sqlite3                                relative to `base`
#     sqlite:////var/lib/site/db.sqlite3                  absolute
#     postgres://user:p%40ss@host:5432/name?sslmode=require&conn_max_age=600
#     postgres:///name?host=/var/run/postgresql           a socket
#     postgres://user@one:5432,two:5433/name?target_session_attrs=read-write     the one of several that takes writes
#     postgres://?service=shop                            what pg_service.conf says
#     mysql://root@127.0.0.1:3306/name
#
# Names and passwords are percent-decoded. Of the query, `conn_max_age`, `conn_health_checks` and
# `atomic_requests` are settings of Django; everything else is an option of the database driver.
#
# dj-database-url reads the URL. This module adds what it lacks: the way back, paths relative to a folder, the options
# that the claim needs on SQLite, pools, several hosts, and Django's own settings in a query.


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
    scheme, separator, rest = url.partition("://")
    place = re.split("[/?#]", rest, maxsplit=1)[0]
    login, at, hosts = place.rpartition("@")
    several = hosts.split(",") if "," in hosts else []
    if several:  # urlsplit refuses brackets that are not around all of the host
        url = f"{scheme}{separator}{login}{at}{rest.removeprefix(place)}"
    try:
        parts = urlsplit(url)
    except ValueError:  # its text may name the password
        parts = urlsplit("")
    named = parts.path.strip("/") or (parts.scheme.startswith("postgres") and "service" in parse_qs(parts.query))
    if parts.scheme not in ENGINES or not named:
        raise ValueError(f"A database URL is <{'|'.join(ENGINES)}>://[user:password@host:port]/name, see {__name__}.")
    if several and not parts.scheme.startswith("postgres"):
        raise ValueError("Only a database URL of PostgreSQL names several hosts: its driver chooses among them.")
    config: dict[str, Any] = {**dj_database_url.parse(url)}
    if several:
        config |= _hosts(several)
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


def _hosts(places: Iterable[str]) -> dict[str, str]:
    """Several hosts, each with its port or none, as libpq takes them: two lists, of hosts and of ports."""
    found = [re.fullmatch(r"\[([^]]+)\](?::(\d*))?|([^:]+)(?::(\d*))?", place) for place in places]
    if not all(found):
        raise ValueError("A database URL with several hosts names each as host:port, [IPv6]:port or host.")
    hosts = [unquote(match[1] or match[3]) for match in found if match]
    ports = [match[2] or match[4] or "" for match in found if match]
    return {"HOST": ",".join(hosts), "PORT": ",".join(ports) if any(ports) else ""}


def url_of(config: dict[str, Any]) -> str:
    """The URL that `parse_url` reads as `config`, to hand a database to another process."""
    scheme = next(scheme for scheme, engine in ENGINES.items() if engine == config["ENGINE"])
    if scheme == "sqlite":
        return f"sqlite:///{quote(str(config['NAME']))}"
    login = ":".join(quote(config[key], safe="") for key in ("USER", "PASSWORD") if config[key])
    hosts, ports = config["HOST"].split(","), str(config["PORT"]).split(",")
    pairs = itertools.zip_longest(hosts, ports, fillvalue=ports[-1])  # one port may be that of all hosts
    place = ",".join(quote(host, safe="") + (f":{port}" if port else "") for host, port in pairs)
    query = config["OPTIONS"] | {key: config[key.upper()] for key in sorted(DJANGO_KEYS) if key.upper() in config}
    query = {key: True if isinstance(value, dict) else value for key, value in query.items()}  # a pool's sizes
    return f"{scheme}://{login}{'@' * bool(login)}{place}/{quote(config['NAME'], safe='')}?{urlencode(query)}"


def _value(found: Any) -> Any:
    """A value of a query: the last of several under one name, and `none` as what it means."""
    value = found[-1] if isinstance(found, list) else found
    return None if isinstance(value, str) and value.lower() == "none" else value


def unseen(error: IntegrityError, using: str) -> IntegrityError | LostRace:
    """What to raise where a row was in the way of an insert, and a look finds none.

    The open transaction may see only what had been committed before it began: then the row is newer, and who begins
    the transaction again finds it. Else it is the error itself, which is raised here where it is about another
    constraint.
    """
    only_if_taken(error)
    if not _sees_the_past(using):
        return error
    return LostRace("Another transaction has stored a row that this one is too old to see.")


def _sees_the_past(using: str) -> bool:
    """Whether what the open transaction reads is as old as itself: REPEATABLE READ and what is stricter."""
    connection: Any = connections[using]
    if not connection.in_atomic_block or connection.needs_rollback:
        return False
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SHOW transaction_isolation")
        elif connection.vendor == "mysql":
            name = "tx_isolation" if connection.mysql_is_mariadb else "transaction_isolation"
            cursor.execute(f"SELECT @@{name}")
        else:  # an insert of SQLite's fails for the age of its transaction
            return False
        return str(cursor.fetchone()[0]).lower().replace("-", " ") in ("repeatable read", "serializable")


# Connections to a server that is gone, or takes no writes any more.


_renewing = threading.Lock()
#: When a thread of this process last met a server that takes no writes, and when each thread last closed its sessions.
_read_only_at = float("-inf")
_closed_at = threading.local()
CLOSE_EVERY = 1.0  #: seconds, at least, between two closes by the same thread
#: Seconds after which such a thread closes its session also where nothing has refused to write: a thread that only
#: reads does not notice that an old server answers it.
LASTS = 30.0


def note_read_only(error: BaseException) -> None:
    """Let `leave_old_server` close what led this process to a server that takes no writes, if that is what it met."""
    global _read_only_at
    if fault_of(error) is DatabaseFault.READ_ONLY:
        _read_only_at = time.monotonic()


def forget() -> None:
    """As if no server had refused to write, as tests begin."""
    global _read_only_at
    _read_only_at = float("-inf")
    vars(_closed_at).clear()


def leave_old_server(using: str) -> None:
    """Close the connection of this thread where another one has met a server that takes no writes since the last call,
    and every `LASTS` seconds. A thread that asks the database again and again calls this before each look.

    Behind the address of the database there may be another server by now, while a session stays with the old one. A
    thread that only reads there never meets an error that says so.
    """
    now, before = time.monotonic(), getattr(_closed_at, using, None)
    is_due = before is None or (before <= _read_only_at and now - before >= CLOSE_EVERY) or now - before >= LASTS
    if is_due:
        setattr(_closed_at, using, now)
        if before is not None and not connections[using].in_atomic_block:
            connections[using].close()


def leave(connection: Any, error: BaseException) -> None:
    """Close a connection that is of no more use because of this error (`faults.is_unusable`), so that its next user
    gets another. Those of its pool that are no better are replaced in a thread of its own.

    Left to themselves, the next requests would find the others one by one, and wait longer after each. Inside a
    transaction only the pool is looked after: who began it has the connection.
    """
    note_read_only(error)
    pool = getattr(connection, "pool", None)
    if not connection.in_atomic_block:
        if pool is not None and connection.connection is not None:
            connection.connection.close()  # or the pool would give it to the next
        connection.close()
    if pool is None or not _renewing.acquire(blocking=False):
        return

    # A look finds connections that are cut, and not those to a server that has become read-only.
    renewal = pool.drain if fault_of(error) is DatabaseFault.READ_ONLY and hasattr(pool, "drain") else pool.check

    def renew() -> None:
        try:
            renewal()
        finally:
            _renewing.release()

    try:
        threading.Thread(target=renew, name="ojs-pool", daemon=True).start()
    except RuntimeError:  # the system has no more threads for this process: the next request may have one
        _renewing.release()
        logger.exception("The pool of connections is not renewed now.")


# The health of connections that a thread keeps from one request to the next (`CONN_HEALTH_CHECKS`).


#: For how many seconds without a look a connection is not taken for healthy any more.
LOOKED_AT = 5.0
_looked_at: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()  #: by the driver's connection


def check_health(using: str) -> None:
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
    if not _has_heard(raw):  # not even goodbye
        connection.health_check_done = True


def _has_heard(raw: Any) -> bool:
    """Whether the server has said something on a connection of psycopg that waits for nothing."""
    socket = select.poll()
    socket.register(raw.fileno(), select.POLLIN)
    return bool(socket.poll(0))


def close_if_cut(connection: Any) -> None:
    """Close an idle connection that the server has closed: its next user gets a new one. Asks only the socket, unless
    that has something to say; so it finds what a PostgreSQL did that was restarted, and nothing on other databases."""
    raw = connection.connection
    if raw is None or connection.vendor != "postgresql" or not hasattr(select, "poll"):
        return
    if not connection.in_atomic_block and (raw.closed or (_has_heard(raw) and not connection.is_usable())):
        connection.close()
