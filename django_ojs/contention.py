"""Deadlocks, serialization failures and busy locks: the database answered, only somebody was in the way.

The loser of such a race has changed nothing and simply does it again. That is possible only where the
transaction is ours alone: inside the caller's, the caller has to.
"""

from __future__ import annotations

import functools
import logging
import random
import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from django.db import Error, OperationalError, connections, router

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

TRIES = 5
FIRST_PAUSE = 0.01  #: seconds; doubled each time, and spread so that the same two do not meet again

#: SQLSTATEs of a serialization failure, a deadlock and a lock that could not be had.
_STATES = frozenset({"40001", "40P01", "55P03"})
#: MariaDB: lock wait timeout, deadlock.
_CODES = frozenset({1205, 1213})


def is_contention(error: BaseException) -> bool:
    """Whether the database answered, and only somebody else was in the way."""
    return (
        getattr(error.__cause__, "sqlstate", None) in _STATES
        or (bool(error.args) and error.args[0] in _CODES)
        or "database is locked" in str(error)
        or "database table is locked" in str(error)
    )


def retried(operation: Callable[P, T]) -> Callable[P, T]:
    """Let an operation, whose keyword `using` names the database, try again when it loses a race."""

    @functools.wraps(operation)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        for attempt in range(1, TRIES):
            try:
                return operation(*args, **kwargs)
            except OperationalError as error:
                if not is_contention(error) or connections[_database(kwargs)].in_atomic_block:
                    raise
            time.sleep(FIRST_PAUSE * 2**attempt * random.uniform(0.5, 1.5))  # noqa: S311
        return operation(*args, **kwargs)

    return wrapper


def harmless(act: Callable[[], None], using: str) -> Callable[[], None]:
    """`act`, for behind a commit: there it raises nothing of the database's, and logs it instead.

    By then the caller's work is stored, so an error would have it done twice, by the caller or by `retried`. Only for
    what may be missing until somebody does it again. Inside a transaction errors are raised, since they spoil it.
    """

    def call() -> None:
        try:
            act()
        except Error:
            if connections[using].in_atomic_block:
                raise
            logger.warning("What was to follow a commit could not be done.", exc_info=True)

    return call


def _database(kwargs: dict[str, Any]) -> str:
    from django_ojs.models import Job

    return kwargs.get("using") or router.db_for_write(Job)
