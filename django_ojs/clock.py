"""Give the time: all code asks this clock, so that tests can stop it.

Whether a job is due, and whether a reservation or a lease is over, must not depend on the host that looks, nor on an
operator or an NTP daemon that sets a host's wall clock while jobs run. So `now()` is an instant that was looked up
once, plus the time that has passed since by a clock that nothing can set:

- **PostgreSQL, MariaDB, MySQL**: the database's time, asked again each minute. A host's wall clock does not matter.
- **SQLite**: the wall clock of this host, looked at again each minute. Where it has been set, `now()` goes faster or
  slower by at most 5 % until the two agree: no reservation ends before its holder could renew it, no delayed job
  starts early, and time never stands still or goes back, so that schedules go on firing.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from django.db import connections

from django_ojs.guard import get_logger

logger = get_logger(__name__)

UTC = dt.UTC
#: How far ahead what was done may lie: clocks of databases are set right by less all the time. What is further ahead
#: was done while the clock was.
AHEAD = dt.timedelta(seconds=10)
_RESYNC_SECONDS = 60.0
_FRESH_SECONDS = 1.0  #: how long before a decision that cannot be taken back a server database was asked, at most
_SET_SECONDS = 90.0  #: after so long all processes have noticed that a clock was set, and workers have sent heartbeats
_SLEW = 0.05  #: how much faster or slower than time itself `now()` may go to meet a wall clock that was set
_STEP_SECONDS = 1.0  #: a wall clock that is further away has been set, and the log says so
_ASK = {"postgresql": "SELECT clock_timestamp()", "mysql": "SELECT UTC_TIMESTAMP(6)"}

#: Linux's boot clock and macOS's monotonic clock go on while the machine sleeps; `time.monotonic` need not.
_TICKING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC if sys.platform == "darwin" else None)


#: Seconds by the clock that nothing can set.
_ticks: Callable[[], float] = time.monotonic if _TICKING is None else partial(time.clock_gettime, _TICKING)


class _Anchor(NamedTuple):
    """An instant, when it was looked up by the clock that nothing can set (seconds), and how fast to meet the wall
    clock from there."""

    instant: dt.datetime
    at: float
    slew: float = 0.0

    def time(self, ticks: float) -> dt.datetime:
        passed = ticks - self.at
        return self.instant + dt.timedelta(seconds=passed + self.slew * min(passed, _RESYNC_SECONDS))


_override: dt.datetime | None = None
_host: _Anchor | None = None
_databases: dict[str, _Anchor] = {}
_set_back: Counter[str] = Counter()
_set_at: dict[str, float] = {}  #: when the clock of a database was last found to have been set
_on_this_host: set[str] = set()  #: the databases that have no clock of their own
_asked_last: str | None = None
_gap_logged = False
_stamp_lock = threading.Lock()
_last_stamp = dt.datetime.min.replace(tzinfo=UTC)


def now(using: str | None = None) -> dt.datetime:
    """The current instant, UTC. With a database alias: as that database sees it.

    Without one it asks no database: it is the time of the server database that was asked last, else this host's.
    A caller that compares the time with what another process has stored names the database.
    """
    if _override is not None:
        return _override
    ticks = _ticks()
    alias = using or _asked_last
    known = _databases.get(alias) if alias is not None else None
    if known is not None and (using is None or ticks - known.at < _RESYNC_SECONDS):
        return known.time(ticks)
    if using is None or using in _on_this_host:
        return _host_time(ticks)
    if connections[using].vendor not in _ASK:
        _on_this_host.add(using)
        return _host_time(ticks)
    return _ask(using)


def stamps(count: int, current: dt.datetime) -> dt.datetime:
    """The first of `count` instants, one microsecond apart, that this process hands out only once; `current` is now.

    They become `enqueued_at`, so that jobs pushed one after the other, or in one batch, keep their
    order though the clock stood still in between. First in, first out is decided by them (core 5.2).
    """
    global _last_stamp
    with _stamp_lock:
        first = max(current, _last_stamp + dt.timedelta(microseconds=1))
        if first - current > dt.timedelta(seconds=1):  # the clock was set back: follow it
            first = current
        _last_stamp = first + dt.timedelta(microseconds=max(count - 1, 0))
    return first


def forget() -> None:
    """Look everything up again at the next call. For tests."""
    global _host, _asked_last, _gap_logged
    _host, _asked_last, _gap_logged = None, None, False
    _databases.clear()
    _set_back.clear()
    _set_at.clear()
    _on_this_host.clear()


def _wall() -> dt.datetime:
    return dt.datetime.now(UTC)


def _host_time(ticks: float) -> dt.datetime:
    """The wall clock as this process first saw it, plus what has passed since; one that was set is met slowly."""
    global _host, _gap_logged
    if _host is None:
        _host = _Anchor(_wall(), ticks)
    shown = _host.time(ticks)
    if ticks - _host.at < _RESYNC_SECONDS:
        return shown
    gap = (_wall() - shown).total_seconds()
    _host = _Anchor(shown, ticks, max(-_SLEW, min(_SLEW, gap / _RESYNC_SECONDS)))
    if abs(gap) > _STEP_SECONDS and not _gap_logged:
        logger.warning(
            "The clock of this host was set %s by %.0f s. Jobs and schedules follow it by %.0f s a minute, so that "
            "none is lost. To follow it at once, stop all processes that use the jobs' database and start them again.",
            "forward" if gap > 0 else "back", abs(gap), _SLEW * 60,
        )  # fmt: skip
    _gap_logged = abs(gap) > _STEP_SECONDS
    return shown


def offset(using: str) -> float | None:
    """How many seconds the wall clock of this host is ahead of the database's, accurate to half a round trip; None
    where both are one clock, as with SQLite."""
    if connections[using].vendor not in _ASK:
        return None
    answer = _question(using)
    return (answer.wall - answer.theirs).total_seconds()


def times_set_back(using: str) -> int:
    """How often this process has found the clock of a database behind what it was, by more than `AHEAD`."""
    return _set_back[using]


def look(using: str) -> None:
    """Ask a server database for the time again, unless it was asked within a second."""
    known = _databases.get(using)
    if _override is None and known is not None and _ticks() - known.at > _FRESH_SECONDS:
        _ask(using)


def was_set_lately(using: str) -> bool:
    """Whether this process has found within 90 s that the clock of a database was set, forward or back: others may go
    by the old time yet."""
    return _ticks() - _set_at.get(using, float("-inf")) < _SET_SECONDS


class _ClockReading(NamedTuple):
    """What a server database said of the time, by its clock and by the wall clock of this host when the answer came."""

    theirs: dt.datetime
    wall: dt.datetime
    at: float  #: by the clock that nothing can set
    took: float  #: seconds


def _question(using: str) -> _ClockReading:
    with connections[using].cursor() as cursor:  # which may have to connect first
        before = _ticks()
        cursor.execute(_ASK[connections[using].vendor])
        theirs: dt.datetime = cursor.fetchone()[0]
        wall, after = _wall(), _ticks()
    if theirs.tzinfo is None:
        theirs = theirs.replace(tzinfo=UTC)
    # The answer was made somewhere between the two.
    return _ClockReading(theirs + dt.timedelta(seconds=(after - before) / 2), wall, after, after - before)


def _ask(using: str) -> dt.datetime:
    """Ask a server database for the time, and remember it."""
    global _asked_last
    answer = _question(using)
    answered = answer.theirs
    # Where the wall clock says the same within the error of the answer, the two are one clock, and all processes of
    # this host agree to the microsecond.
    if abs((answer.wall - answered).total_seconds()) < max(answer.took, 0.005):
        answered = answer.wall
    if (known := _databases.get(using)) is not None and abs(gap := answered - known.time(answer.at)) > AHEAD:
        _set_at[using] = answer.at
        _set_back[using] += gap < -AHEAD
    _databases[using], _asked_last = _Anchor(answered, answer.at), using
    return answered


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
