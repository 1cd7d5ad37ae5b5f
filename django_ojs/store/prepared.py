"""Run the statements of the hot path so that PostgreSQL parses and plans each once for a connection, not each time.

Planning takes most of a claim or a completion of one job: a millisecond of 1.4, and 0.7 of 1.0.

A connection prepares after its first few statements: one that a request opens for itself would pay another round trip
for nothing. Nothing is prepared where the statements of one connection may reach different processes of the server, so
behind a pooler such as pgbouncer. `prepare_threshold` in the OPTIONS of the site's database overrules that: with a
number statements are prepared, with `None` they never are. Where a session turns out not to have what was prepared on
it, the process prepares nothing more on that database, and says so once.

A worker that has nothing to do practises its claim (`practise`), so that the job that comes next waits for no plan.
"""

from __future__ import annotations

import datetime as dt
import re
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_ojs.faults import has_forgotten, has_lost_statements
from django_ojs.guard import get_logger

logger = get_logger(__name__)

#: Statements that a connection runs before it prepares the next.
UNPREPARED = 4
#: Runs of a prepared statement that the server plans for their parameters. The next one makes the plan that it keeps.
PLANNED_APART = 5
#: Seconds after which plans are made anew: at first after one, then after twice as many each time, up to this. A plan
#: made while a table was empty reads all of it later, and the server replaces it only when it has analyzed the table.
LONGEST_TRUST = 10.0

_UNSET = object()


def execute(
    using: str, statement: str, params: Sequence[Any] | Mapping[str, Any], *, urgent: bool = False
) -> list[tuple[Any, ...]]:
    """Run one statement and return its rows. The wrappers and the log of Django's connection see it as any other.

    Each distinct text is prepared for itself, so there should be few. The parameters travel beside the text, so one
    whose type the server cannot infer needs a cast. `urgent`: a caller waits, so plans may be older than otherwise.
    """
    connection: Any = connections[using]
    connection.close_if_health_check_failed()
    connection.ensure_connection()
    raw, session = connection.connection, _session(connection)
    with connection.wrap_database_errors:
        # Django's own cursor has the parameters in the text, which is what its log of queries is read for.
        if not connection.queries_logged and session.prepares(raw):
            session.renew(raw, urgent=urgent)
            wrapped = _preparing_cursor(connection, session, statement)
        else:
            wrapped = connection.cursor()
    with wrapped as cursor:
        try:
            cursor.execute(statement, params)
        except Error as error:
            session.handle_error(error, using)
            raise
        return cursor.fetchall() if _has_rows(cursor) else []


def _preparing_cursor(connection: Any, session: _Session, statement: str) -> Any:
    """A cursor of Django's that prepares the statement, which it is about to run."""
    session.count(statement)
    made = _cursor_class()(connection.connection, session.adapters_of(connection))
    return connection._prepare_cursor(made)  # as its cursor() does


def _has_rows(cursor: Any) -> bool:
    """Whether the statement is one that gives rows. psycopg describes all columns where their `description` is read."""
    result = getattr(cursor.cursor, "pgresult", None)  # psycopg2 has no such attribute, and a ready description
    return bool(cursor.description if result is None else result.nfields)


def can_pipeline(using: str) -> bool:
    """Whether `pipelined` works on this thread's connection now. A wrapper of the site's may want the answer to a
    statement before the next."""
    connection: Any = connections[using]
    connection.close_if_health_check_failed()
    connection.ensure_connection()
    if connection.queries_logged or connection.execute_wrappers:
        return False
    return _session(connection).prepares(connection.connection) and _pipelines()


def pipelined(using: str, statements: Iterable[tuple[str, Mapping[str, Any]]]) -> list[list[tuple[Any, ...]]]:
    """Run these statements with their parameters in the caller's transaction, or in one of their own; return the rows
    of each.

    None waits for the answer to the one before, so the server executes one while the caller makes the parameters of the
    next. Only where `can_pipeline`.
    """
    connection: Any = connections[using]
    raw, session = connection.connection, _session(connection)
    session.renew(raw)
    cursors = []
    try:
        with connection.wrap_database_errors, raw.pipeline():
            for statement, params in statements:
                cursors.append(_preparing_cursor(connection, session, statement))
                cursors[-1].execute(statement, params)
        if connection.in_atomic_block:
            # psycopg has asked for the answers behind the last statement, and PostgreSQL takes that for a new one: it
            # would not notice a transaction that stands still from here on (`idleness`).
            with connection.wrap_database_errors:
                raw.execute("")
        return [cursor.fetchall() if _has_rows(cursor) else [] for cursor in cursors]
    except Error as error:
        session.handle_error(error, using)
        raise
    finally:
        for cursor in cursors:
            cursor.close()


@lru_cache(maxsize=1)
def _pipelines() -> bool:
    import psycopg  # a site on another database need not have it

    return bool(psycopg.Pipeline.is_supported())


def is_pooled(raw: Any) -> bool:
    """Whether a pooler is between this connection of psycopg and the server: it greets its clients with a number of its
    own, not with that of the process behind it."""
    (process,) = raw.execute("SELECT pg_backend_pid()").fetchone()
    return bool(process != raw.info.backend_pid)


def are_old(using: str) -> bool:
    """Whether this thread's connection would soon plan its statements anew, or has not begun to prepare them."""
    connection: Any = connections[using]
    if connection.connection is None or connection.queries_logged:
        return False
    return _session(connection).is_old()


def practise(
    using: str, statement: str, params: Sequence[Any] | Mapping[str, Any], found: list[tuple[Any, ...]]
) -> list[tuple[Any, ...]]:
    """Run a statement that has just found nothing again, until the server keeps a plan of it or it finds something.

    Returns the rows that it found. The caller does this while no job waits: it can take several runs.
    """
    connection: Any = connections[using]
    while not found and not connection.queries_logged and _session(connection).plans_again(statement):
        found = execute(using, statement, params)
    if not found:
        _session(connection).practised = True
    return found


#: How Django's own backends make a cursor.
_MAKES_CURSORS: Any = BaseDatabaseWrapper._cursor  # type: ignore[attr-defined]


class _Session:
    """What is known of one connection to the server."""

    def __init__(self, threshold: object) -> None:
        self.decided = None if threshold is _UNSET else threshold is not None  #: whether to prepare; None: not yet
        self._runs = 0
        self._trust, self._trusted_until = 0.5, 0.0
        self.practised = False  #: since plans were last given up
        self._counts: dict[str, int] = {}  #: runs of each prepared statement, as far as they matter to its plan
        self._adapters: Any = None

    def prepares(self, raw: Any) -> bool:
        """Whether to prepare the next statement. Asks the server once for what that depends on."""
        self._runs += 1
        if self._runs <= UNPREPARED:
            return False
        if self.decided is None:
            self.decided = not is_pooled(raw)
        return bool(self.decided)

    def is_old(self) -> bool:
        return self.decided is not False and (not self.practised or time.monotonic() >= self._trusted_until)

    def adapters_of(self, connection: Any) -> Any:
        """How values travel, as on Django's connection. Where times come in UTC they are read in a faster way."""
        if self._adapters is None:
            self._adapters = connection.connection.adapters
            if connection.timezone is dt.UTC:
                self._adapters = _with_fast_times(self._adapters)
        return self._adapters

    def plans_again(self, statement: str) -> bool:
        """Whether the server would parse or plan this statement if it came now."""
        return self.decided is not False and self._counts.get(statement, 0) <= PLANNED_APART

    def handle_error(self, error: Exception, using: str) -> None:
        """Prepare nothing more on a connection that has lost what was prepared there, and on none where that is the
        pooler's way."""
        if has_forgotten(error):
            self.decided = False
        if has_lost_statements(error) and using not in _losing:
            _losing.add(using)
            logger.warning(_LOST, using, str(error).strip())

    def count(self, statement: str) -> None:
        """Note a run of a prepared statement."""
        self._counts[statement] = self._counts.get(statement, 0) + 1

    def renew(self, raw: Any, *, urgent: bool = False) -> None:
        """Give plans up that have been in use for long; where it is `urgent`, for twice as long."""
        now = time.monotonic()
        if now < self._trusted_until + (self._trust if urgent else 0.0):
            return
        if self._trusted_until:
            raw.execute("DISCARD PLANS")
            self.practised = False
            self._counts = {statement: min(count, PLANNED_APART) for statement, count in self._counts.items()}
        self._trust = min(self._trust * 2, LONGEST_TRUST)
        self._trusted_until = now + self._trust


#: The databases where a session did not have what was prepared on it.
_losing: set[str] = set()
_LOST = (
    "The database '%s' does not have a prepared statement (%s): a pooler hands the statements of one connection to"
    " several sessions. This process prepares no statements there any more. Set prepare_threshold to None in OPTIONS,"
    " or let the pooler keep them; manage.py ojs_doctor says more."
)
#: By psycopg's connection: a pool gives it to one connection of Django after the other.
_sessions: weakref.WeakKeyDictionary[Any, _Session] = weakref.WeakKeyDictionary()


def _session(connection: Any) -> _Session:
    raw = connection.connection
    if (found := _sessions.get(raw)) is None:
        # psycopg2 prepares nothing. A backend that makes cursors its own way, as those do that switch the schema with
        # each, has to make ours.
        able = hasattr(raw, "prepare_threshold") and type(connection)._cursor is _MAKES_CURSORS
        able = able and connection.alias not in _losing
        threshold = connection.settings_dict["OPTIONS"].get("prepare_threshold", _UNSET) if able else None
        found = _sessions[raw] = _Session(threshold)
    return found


@lru_cache(maxsize=1)
def _cursor_class() -> type[Any]:
    import psycopg  # a site on another database need not have it

    class PreparingCursor(psycopg.RawCursor[Any]):
        """Prepares what it executes, on a connection where nothing else is prepared unless the site wants that."""

        def __init__(self, connection: Any, adapters: Any) -> None:
            super().__init__(connection)
            self._known_adapters = adapters

        @property
        def adapters(self) -> Any:
            return self._known_adapters

        def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            text, names = numbered(query)
            if names is not None:
                params = [params[name] for name in names]
            connection = self.connection
            threshold, connection.prepare_threshold = connection.prepare_threshold, 0
            try:
                return super().execute(text, params, **options)
            finally:
                connection.prepare_threshold = threshold

    return PreparingCursor


_PLACEHOLDER = re.compile(r"%(?:([%s])|\((\w+)\)s)")


@lru_cache(maxsize=1024)
def numbered(statement: str) -> tuple[str, tuple[str, ...] | None]:
    """A statement with the placeholders of the server (`$1`), and the names of its parameters in their order; None: it
    has none, and its parameters come in order.

    psycopg does the same, but for each run of a statement that is longer than 4096 characters, as a claim can be.
    """
    places: dict[str, int] = {}
    unnamed = 0

    def placeholder(found: re.Match[str]) -> str:
        nonlocal unnamed
        if found[1] == "%":
            return "%"
        if found[2] is None:
            unnamed += 1
            return f"${unnamed}"
        return f"${places.setdefault(found[2], len(places) + 1)}"

    text = _PLACEHOLDER.sub(placeholder, statement)
    return text, tuple(places) if places else None


def _with_fast_times(adapters: Any) -> Any:
    """These adapters of a connection, and a loader of times that leaves the work to C: Django's is Python code."""
    from psycopg.adapt import AdaptersMap
    from psycopg.pq import Format

    oid = adapters.types["timestamptz"].oid
    loader: Any = adapters.get_loader(oid, Format.TEXT)

    class FastLoader(loader):  # type: ignore[misc]
        def load(self, data: Any) -> Any:
            try:
                return dt.datetime.fromisoformat(str(data, "ascii"))
            except ValueError:  # another DateStyle, or a time that Python lacks
                return super().load(data)

    found = AdaptersMap(adapters)
    found.register_loader(oid, FastLoader)
    return found
