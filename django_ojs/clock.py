"""The one clock. Everything that asks for the time asks here, so that tests own it.

Hosts disagree about the time, and what is due or whose lease is over must not depend on who looks. So on a server
database `now(using)` is this host's clock plus how far the database's is ahead of it, which is looked up each minute.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
import time
from collections.abc import Iterator

from django.db import connections

UTC = dt.UTC
_RESYNC_SECONDS = 60.0

_override: dt.datetime | None = None
_offsets: dict[str, tuple[float, dt.timedelta]] = {}
_stamp_lock = threading.Lock()
_last_stamp = dt.datetime.min.replace(tzinfo=UTC)


def now(using: str | None = None) -> dt.datetime:
    """The current instant, UTC. With a database alias: as that database sees it."""
    if _override is not None:
        return _override
    local = dt.datetime.now(UTC)
    return local if using is None else local + _offset(using)


def stamps(count: int, using: str | None = None) -> dt.datetime:
    """The first of `count` instants, one microsecond apart, that this process hands out only once.

    They become `enqueued_at`, so that jobs pushed one after the other, or in one batch, keep their
    order though the clock stood still in between. First in, first out is decided by them (core 5.2).
    """
    global _last_stamp
    current = now(using)
    with _stamp_lock:
        first = max(current, _last_stamp + dt.timedelta(microseconds=1))
        if first - current > dt.timedelta(seconds=1):  # the clock was set back: follow it
            first = current
        _last_stamp = first + dt.timedelta(microseconds=max(count - 1, 0))
    return first


def _offset(using: str) -> dt.timedelta:
    connection = connections[using]
    if connection.vendor == "sqlite":
        return dt.timedelta(0)
    known = _offsets.get(using)
    if known is not None and time.monotonic() - known[0] < _RESYNC_SECONDS:
        return known[1]
    return _measure(using)


def _measure(using: str) -> dt.timedelta:
    sql = {"postgresql": "SELECT clock_timestamp()", "mysql": "SELECT UTC_TIMESTAMP(6)"}.get(connections[using].vendor)
    if sql is None:
        return dt.timedelta(0)
    before = dt.datetime.now(UTC)
    with connections[using].cursor() as cursor:
        cursor.execute(sql)
        theirs: dt.datetime = cursor.fetchone()[0]
    after = dt.datetime.now(UTC)
    if theirs.tzinfo is None:
        theirs = theirs.replace(tzinfo=UTC)
    offset = theirs - (before + (after - before) / 2)
    if abs(offset) < max(after - before, dt.timedelta(milliseconds=5)):
        offset = dt.timedelta(0)  # within the error of the measurement: the same clock
    _offsets[using] = (time.monotonic(), offset)
    return offset


def freeze(instant: dt.datetime | None) -> None:
    """Stop the clock of this process at `instant`; None lets it run again. For tests."""
    global _override
    _override = None if instant is None else instant.astimezone(UTC)


def override() -> dt.datetime | None:
    """The instant at which the clock stands; None while it runs."""
    return _override


def advance(**delta: float) -> dt.datetime:
    """Move a frozen clock: `advance(seconds=5)`. For tests."""
    global _override
    if _override is None:
        raise RuntimeError("Only a frozen clock can be advanced: call clock.freeze() first.")
    _override += dt.timedelta(**delta)
    return _override


@contextlib.contextmanager
def frozen(instant: dt.datetime) -> Iterator[None]:
    """A block in which time stands still at `instant` until `advance()`. For tests."""
    before = _override
    freeze(instant)
    try:
        yield
    finally:
        freeze(before)
