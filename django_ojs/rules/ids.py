"""Job identifiers: UUIDv7 in the order in which this process made them (core 5.1, RFC 9562 section 6.2)."""

from __future__ import annotations

import os
import threading
import time
import uuid

# By hand, because the uuid6 package moves its clock on by a millisecond for every id (docs/why.md has the figures). The
# 42-bit counter below is CPython 3.14's way; it is locked, which that one is not.
# The time is that of the host's wall clock: an id's time decides nothing (jobs are ordered by `enqueued_at`), and
# `clock.now()` would make an id cost half as much again.
_COUNTER_BITS = 42
_SEED_BITS = _COUNTER_BITS - 1  # leaves half of the range for increments within one millisecond

_lock = threading.Lock()
_last_ms = 0
_counter = 0


def new_id() -> uuid.UUID:
    """A new UUIDv7, greater than every one that this process made before."""
    tail = int.from_bytes(os.urandom(10), "big")
    ms, counter = _tick(time.time_ns() // 1_000_000, tail >> 32 & (1 << _SEED_BITS) - 1)
    high, low = counter >> 30, counter & (1 << 30) - 1
    number = (ms & (1 << 48) - 1) << 80 | 7 << 76 | high << 64 | 2 << 62 | low << 32 | tail & 0xFFFF_FFFF
    return uuid.UUID(int=number)


def _tick(now_ms: int, seed: int) -> tuple[int, int]:
    """The next (millisecond, counter), greater than the last one even where the clock went back."""
    global _last_ms, _counter
    with _lock:
        if now_ms > _last_ms:
            _last_ms, _counter = now_ms, seed
        elif _counter < (1 << _COUNTER_BITS) - 1:
            _counter += 1
        else:
            _last_ms, _counter = _last_ms + 1, seed
        return _last_ms, _counter


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread may have held it while the process was copied


os.register_at_fork(after_in_child=_after_fork)
