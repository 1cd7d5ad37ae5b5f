"""What handlers leave behind in the connections of their thread, and how it is cleared away."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from typing import Any

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_ojs.worker.context import JobContext, log_fields

logger = logging.getLogger("django_ojs.jobs")


def tidy(context: JobContext | None = None) -> None:
    """What Django does around a request, and more: no transaction and no dead connection outlives a handler.

    An open transaction is rolled back and logged as an error; the outcome of the handler counts nevertheless,
    or a job that did what it should would do it again. A thread that never opened a connection costs nothing.
    """
    for connection in connections.all(initialized_only=True):
        connection.queries_log.clear()
        if connection.connection is None:
            continue
        state = _state(connection)
        if state == "open transaction":
            _tell(context, connection.alias)
        if state:
            drop(connection)
        else:
            _let_go(connection.close_if_unusable_or_obsolete)


def drop(connection: BaseDatabaseWrapper) -> None:
    """Close a connection whatever it is in the middle of; Django would keep one that is inside `atomic`."""
    connection.in_atomic_block = False
    _let_go(connection.close)


def drop_all() -> None:
    """The same for all connections of this thread."""
    for connection in connections.all(initialized_only=True):
        drop(connection)


def leave_pools() -> None:
    """Close what is open, which must not go through a fork, and let each thread of this process connect for itself.

    A pool (`OPTIONS["pool"]`) is for the many short requests of a server. The threads of a worker live long, and
    those that claim, write and beat would hold most of it for ever, while handlers wait for the rest in vain.
    """
    for connection in connections.all():
        connection.close()
        if hasattr(connection, "close_pool"):
            connection.close_pool()
        config = connection.settings_dict
        if config.get("OPTIONS", {}).pop("pool", None):
            config.update(CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=True)  # kept, as a pool would have kept it


def _let_go(close: Callable[[], None]) -> None:
    """mysqlclient refuses to close what the handler has closed; Django has let go of it by then all the same."""
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


def _tell(context: JobContext | None, alias: str) -> None:
    who = f"{context.type} {context.id}" if context else "An asynchronous handler"
    extra = log_fields(context.row) if context else {}
    logger.error("%s left a transaction open on the database %r: it was rolled back.", who, alias, extra=extra)
