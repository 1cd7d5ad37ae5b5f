"""Make the ids of jobs, workflows, webhooks, requests and workers, and read the time in one (RFC 9562, core 5.1).

All of them are UUIDv7. The uuid6 package makes those of what is made one at a time. It moves its clock on by a
millisecond for every id, so it would run ahead of the time where thousands are made in a second: jobs and requests have
a generator that does not (docs/why.md has the figures).
"""

from __future__ import annotations

import datetime as dt
import os
import re
import struct
import threading
import time
import uuid

import uuid6

#: RFC 9562 gives the variant 8, 9, a or b; the examples 13.5 and 13.6 of the core specification have c and d.
_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89a-d][0-9a-f]{3}-[0-9a-f]{12}")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MAX_MS = 2**48 - 1  # what the 48 bits of a UUIDv7's time hold


def parse_id(text: object) -> uuid.UUID | None:
    """Return the id that `text` is: a UUIDv7 in lowercase hexadecimal with hyphens. None where it is none."""
    return uuid.UUID(text) if isinstance(text, str) and _UUID7.fullmatch(text) else None


def new_id() -> uuid.UUID:
    """Return a new UUIDv7 for what is made one at a time: a workflow, a webhook, a subscription, a worker's name."""
    return uuid.UUID(int=uuid6.uuid7().int)  # no instance of a subclass: database adapters look at the type


def new_request_id() -> str:
    """Return the id of a request whose caller gave none: `req_` and a UUIDv7."""
    return f"req_{new_job_id()}"


def time_of(id: uuid.UUID) -> dt.datetime:
    """Return when a UUIDv7 was made, to the millisecond; the end of the calendar for an id that holds no time."""
    try:
        return _EPOCH + dt.timedelta(milliseconds=uuid6.UUID(int=id.int, version=7).time)
    except OverflowError:
        return dt.datetime.max.replace(tzinfo=dt.UTC) - dt.timedelta(days=1)


def first_at(instant: dt.datetime) -> uuid.UUID:
    """Return the lowest number that an id of this millisecond can have, with which lists by time compare ids."""
    milliseconds = (instant - _EPOCH) // dt.timedelta(milliseconds=1)
    return uuid.UUID(int=min(max(milliseconds, 0), _MAX_MS) << 80)


# Ids of jobs: in the order in which this process made them, by the counter of RFC 9562, section 6.2. The 42 bits are
# CPython 3.14's way; here the counter is locked. The time is that of the host's wall clock: an id's time decides
# nothing (jobs are ordered by `enqueued_at`), and `clock.now()` would make an id cost half as much again.
_COUNTER_BITS = 42
_SEED_BITS = _COUNTER_BITS - 1  # leaves half of the range for increments within one millisecond

_WORDS = 1024

_lock = threading.Lock()
_last_ms = 0
_counter = 0
_words: list[int] = []


def new_job_id() -> uuid.UUID:
    """Return a new UUIDv7 with the time of now, greater than all that this function returned in this process."""
    global _last_ms, _counter
    try:
        word = _words.pop()
    except IndexError:
        word = _word()
    now_ms = time.time_ns() // 1_000_000
    with _lock:
        if now_ms > _last_ms:
            _last_ms, _counter = now_ms, _seed()
        elif _counter < (1 << _COUNTER_BITS) - 1:  # also where the clock went back
            _counter += 1
        else:
            _last_ms, _counter = _last_ms + 1, _seed()
        ms, counter = _last_ms, _counter
    high, low = counter >> 30, counter & (1 << 30) - 1
    number = (ms & (1 << 48) - 1) << 80 | 7 << 76 | high << 64 | 2 << 62 | low << 32 | word >> 32
    new = object.__new__(uuid.UUID)  # what its constructor checks takes as long as all of the above
    _set_number(new, number)
    _set_safety(new, _UNKNOWN)
    return new


_set_number, _set_safety = uuid.UUID.__dict__["int"].__set__, uuid.UUID.__dict__["is_safe"].__set__
_UNKNOWN = uuid.SafeUUID.unknown


def _word() -> int:
    """64 random bits that no other call gets. The kernel is asked for some hundred ids at once."""
    while True:
        try:
            return _words.pop()
        except IndexError:
            _words.extend(struct.unpack(f"{_WORDS}Q", os.urandom(8 * _WORDS)))


def _seed() -> int:
    """Where the counter of a millisecond begins."""
    return _word() & (1 << _SEED_BITS) - 1


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread may have held it while the process was copied
    _words.clear()  # the other process draws the same


if hasattr(os, "register_at_fork"):  # a system that forks
    os.register_at_fork(after_in_child=_after_fork)
