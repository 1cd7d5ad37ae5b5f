"""What identifiers, names and patterns of names may look like (binding 1.5), and new identifiers of jobs."""

from __future__ import annotations

import os
import re
import struct
import threading
import time
import uuid
from functools import lru_cache

from django_ojs.messages import phrase

MAX_TYPE_LENGTH = 255
MAX_QUEUE_LENGTH = 128
MAX_WORKER_ID_LENGTH = 255

#: RFC 9562 gives the variant 8, 9, a or b; the examples 13.5 and 13.6 of the core specification have c and d.
_JOB_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89a-d][0-9a-f]{3}-[0-9a-f]{12}")
_TYPE = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*")
_TYPE_WITH_HYPHENS = re.compile(r"[a-z][a-z0-9_\-]*(?:\.[a-z][a-z0-9_\-]*)*")
_QUEUE = re.compile(r"[a-z0-9][a-z0-9\-.]*")
_SCHEMA_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:\S+")


class NameTooLong(ValueError):
    """The name has a legal form but too many characters."""


def check_type(value: object, hyphens: bool = False) -> str:
    """`value` if it is a job type; `hyphens` also allows them inside segments (dialect `published`).

    ValueError with what is allowed, NameTooLong beyond 255 characters.
    """
    if isinstance(value, str):
        if len(value) > MAX_TYPE_LENGTH:
            raise NameTooLong(
                phrase("must have at most %(most)s characters, not %(number)s", most=MAX_TYPE_LENGTH, number=len(value))
            )
        if _is_type(value, hyphens):
            return value
    if hyphens:
        raise ValueError(
            phrase(
                "must be one or more segments joined by dots, each of lowercase letters, digits, underscores and "
                "hyphens and starting with a letter, such as email.send"
            )
        )
    raise ValueError(
        phrase(
            "must be one or more segments joined by dots, each of lowercase letters, digits and underscores "
            "and starting with a letter, such as email.send"
        )
    )


@lru_cache(maxsize=1024)
def _is_type(text: str, hyphens: bool) -> bool:
    return (_TYPE_WITH_HYPHENS if hyphens else _TYPE).fullmatch(text) is not None


@lru_cache(maxsize=1024)
def _is_queue(text: str) -> bool:
    return _QUEUE.fullmatch(text) is not None


def check_queue(value: object) -> str:
    """`value` if it is a queue name; ValueError with what is allowed, NameTooLong beyond 128 characters."""
    if isinstance(value, str):
        if len(value) > MAX_QUEUE_LENGTH:
            raise NameTooLong(
                phrase(
                    "must have at most %(most)s characters, not %(number)s", most=MAX_QUEUE_LENGTH, number=len(value)
                )
            )
        if _is_queue(value):
            return value
    raise ValueError(
        phrase(
            "must be lowercase letters, digits, hyphens and dots, starting with a letter or digit, such as email-high"
        )
    )


def is_job_id(text: object) -> bool:
    """Whether `text` is a UUIDv7 in lowercase hexadecimal with hyphens; of its variant c and d will do too."""
    return isinstance(text, str) and _JOB_ID.fullmatch(text) is not None


def prefix(entry: str) -> str | None:
    """What a pattern's names begin with: `mail.*` is `mail.`, `*` is ''; None where `entry` means one name exactly.

    Every filter, limit and claim reads its job types by this function, so a pattern means the same everywhere.
    """
    return entry[:-1] if entry.endswith("*") else None


def covers(entry: str, job_type: str) -> bool:
    """Whether a job type is this one, or falls under this pattern: `mail.*` covers `mail.send`, not `mail`."""
    begin = prefix(entry)
    return job_type == entry if begin is None else job_type.startswith(begin)


def is_schema_uri(text: object) -> bool:
    """Whether `text` is an absolute URI, as `schema` must be (core 5.2)."""
    return isinstance(text, str) and _SCHEMA_URI.fullmatch(text) is not None


def check_worker_id(value: object) -> str:
    """`value` if it can name a worker: 1 to 255 printable characters. ValueError otherwise."""
    if isinstance(value, str) and 1 <= len(value) <= MAX_WORKER_ID_LENGTH and value.isprintable():
        return value
    raise ValueError(
        phrase("must be 1 to %(most)s printable characters, such as host-1:4711", most=MAX_WORKER_ID_LENGTH)
    )


# Job identifiers: UUIDv7 in the order in which this process made them (core 5.1, RFC 9562 section 6.2).


# The uuid6 package is not used: it moves its clock on by a millisecond for every id (docs/why.md has the figures). The
# 42-bit counter below is CPython 3.14's way; here it is locked.
# The time is that of the host's wall clock: an id's time decides nothing (jobs are ordered by `enqueued_at`), and
# `clock.now()` would make an id cost half as much again.
_COUNTER_BITS = 42
_SEED_BITS = _COUNTER_BITS - 1  # leaves half of the range for increments within one millisecond

_WORDS = 1024

_lock = threading.Lock()
_last_ms = 0
_counter = 0
_words: list[int] = []


def new_id() -> uuid.UUID:
    """A new UUIDv7, greater than every one that this process made before."""
    ms, counter = _tick(time.time_ns() // 1_000_000)
    high, low = counter >> 30, counter & (1 << 30) - 1
    number = (ms & (1 << 48) - 1) << 80 | 7 << 76 | high << 64 | 2 << 62 | low << 32 | _word()
    new = object.__new__(uuid.UUID)  # what its constructor checks takes as long as all of the above
    _set_number(new, number)
    _set_safety(new, _UNKNOWN)
    return new


_set_number, _set_safety = uuid.UUID.__dict__["int"].__set__, uuid.UUID.__dict__["is_safe"].__set__
_UNKNOWN = uuid.SafeUUID.unknown


def _word() -> int:
    """32 random bits that no other call gets. The kernel is asked for some hundred ids at once."""
    while True:
        try:
            return _words.pop()
        except IndexError:
            _words.extend(struct.unpack(f"{_WORDS}I", os.urandom(4 * _WORDS)))


def _seed() -> int:
    """Where the counter of a millisecond begins."""
    return (_word() << 32 | _word()) & (1 << _SEED_BITS) - 1


def _tick(now_ms: int) -> tuple[int, int]:
    """The next (millisecond, counter), greater than the last one even where the clock went back."""
    global _last_ms, _counter
    with _lock:
        if now_ms > _last_ms:
            _last_ms, _counter = now_ms, _seed()
        elif _counter < (1 << _COUNTER_BITS) - 1:
            _counter += 1
        else:
            _last_ms, _counter = _last_ms + 1, _seed()
        return _last_ms, _counter


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread may have held it while the process was copied
    _words.clear()  # the other process draws the same


if hasattr(os, "register_at_fork"):  # a system that forks
    os.register_at_fork(after_in_child=_after_fork)
