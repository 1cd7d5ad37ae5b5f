"""Runs operations again that lost a race: deadlocks, serialization failures and busy locks.

The loser of such a race has changed nothing and simply does it again. That is possible only where the
transaction is ours alone: inside the caller's, the caller has to.
"""

from __future__ import annotations

import functools
import logging
import random
import time
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar, cast

from django.db import Error, OperationalError, connections
from django.db.models import Q

from django_ojs.database import database

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
    """Whether the database answered, and only another transaction was in the way."""
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
