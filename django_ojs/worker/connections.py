"""Clean up the database connections of a thread after a handler, and keep a worker's threads out of pools."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from typing import Any

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_ojs.client.context import JobContext, log_fields

logger = logging.getLogger("django_ojs.jobs")


def tidy(context: JobContext | None = None) -> None:
    """End transactions and close dead connections that a handler left behind in this thread.

    An open transaction is rolled back and logged as an error; the outcome of the handler counts nevertheless,
    or a job that did its work would do it again. A thread that never opened a connection costs nothing.
    """
    for connection in connections.all(initialized_only=True):
        connection.queries_log.clear()
        if connection.connection is None:
            continue
        state = _state(connection)
        if state == "open transaction":
            _log_open(context, connection.alias)
        if state:
            drop(connection)
        else:
            _close(connection.close_if_unusable_or_obsolete)


def drop(connection: BaseDatabaseWrapper) -> None:
    """Close a connection whatever it is in the middle of; Django would keep one that is inside `atomic`."""
    connection.in_atomic_block = False
    _close(connection.close)


def drop_all() -> None:
    """`drop` all connections of this thread."""
    for connection in connections.all(initialized_only=True):
        drop(connection)


def leave_pools() -> None:
    """Close all connections, which must not go through a fork, and let each thread of this process connect for itself.

    A pool (`OPTIONS["pool"]`) is for the many short requests of a server. The threads of a worker live long: those
    that claim, write and send heartbeats would hold most of a pool for ever, and handlers would wait for the rest.
    """
    for connection in connections.all():
        connection.close()
        if hasattr(connection, "close_pool"):
            connection.close_pool()
        config = connection.settings_dict
        if config.get("OPTIONS", {}).pop("pool", None):
            config.update(CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=True)  # kept, as a pool would have kept it


def _close(close: Callable[[], None]) -> None:
    """mysqlclient refuses to close what the handler has closed; Django has dropped the connection by then."""
    try:
        close()
    except Error as error:
        logger.debug("A connection could not be closed: %s", error)


def _state(connection: BaseDatabaseWrapper) -> str:
    """What is wrong with this connection, if anything: as Django sees it, and as its driver does."""
    if connection.in_atomic_block or not connection.autocommit:
        return "open transaction"
    raw: Any = connection.connection
    if connection.vendor == "postgresql":
        if raw.closed:
            return "closed"
        return "" if raw.info.transaction_status == 0 else "open transaction"
    if connection.vendor == "sqlite":
        try:
            return "open transaction" if raw.in_transaction else ""
        except sqlite3.ProgrammingError:  # the handler closed it behind Django's back
            return "closed"
    return ""


def _log_open(context: JobContext | None, alias: str) -> None:
    who = f"{context.type} {context.id}" if context else "An asynchronous handler"
    extra = log_fields(context.row) if context else {}
    logger.error("%s left a transaction open on the database %r: it was rolled back.", who, alias, extra=extra)
