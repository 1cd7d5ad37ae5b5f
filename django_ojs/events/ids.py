"""Make the public id of an event, which is computed and not stored, and find the event of such an id.

An id is `evt_` and a UUIDv7 made of the event's time, its position (the row's id) and 26 bits of a MAC
under the installation's salt. So it needs no column and no index, leads back to its row, cannot be
guessed, and differs between installations (events specification 2.3).
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import secrets
import threading
import uuid
from collections.abc import Hashable
from concurrent.futures import Future
from functools import lru_cache
from typing import NamedTuple

from django.db import IntegrityError, connections

from django_ojs import tenants
from django_ojs.database import atomic, commits_later, unseen
from django_ojs.errors import InvalidRequest
from django_ojs.faults import HeldByAnother
from django_ojs.models import EventLog
from django_ojs.rules import ids

PREFIX = "evt_"
_POSITION_BITS = 48
_MAC_BITS = 26
#: Flipped in the MAC of a `job.state_changed`, whose id has the time and the position of the event it is made of.
_CHANGE = 1 << (_MAC_BITS - 1)
#: Flipped in the MAC of a notice, whose id has the position of the event that was sent before it, and its own time.
_NOTICE = 1 << (_MAC_BITS - 2)
#: Seconds that the log's row may take to be made: of another transaction that has it, or a database that hangs.
PATIENCE = 5.0
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Cursor(NamedTuple):
    """What a public id leads back to: the row of its event, and whether it is that of a `job.state_changed`, or of a
    notice that stands at the place of the event."""

    position: int
    is_change: bool = False
    is_notice: bool = False


def encode(position: int, time: dt.datetime, salt: str, *, change: bool = False, notice: bool = False) -> str:
    """The public id of the event at `position` that happened at `time`; or of the `job.state_changed` made of it, or of
    a notice at `time` that comes right after one of the two."""
    ms = (time - _EPOCH) // dt.timedelta(milliseconds=1)
    mac = _mac(position, ms, salt) ^ (_CHANGE if change else 0) ^ (_NOTICE if notice else 0)
    low = (0b10 << 62) | ((mac & 0x3FFF) << _POSITION_BITS) | position
    return PREFIX + str(uuid.UUID(int=(ms << 80) | (0x7 << 76) | ((mac >> 14) << 64) | low))


def decode(text: str, salt: str) -> Cursor:
    """What a public id leads back to. Raises `InvalidRequest` when this server never issued it."""
    try:
        value = uuid.UUID(text.removeprefix(PREFIX)).int if text.startswith(PREFIX) else 0
    except ValueError:
        value = 0
    position = value & ((1 << _POSITION_BITS) - 1)
    mac = ((value >> 64) & 0xFFF) << 14 | (value >> _POSITION_BITS) & 0x3FFF
    flipped = mac ^ _mac(position, value >> 80, salt)
    if not position or flipped & ~(_CHANGE | _NOTICE):
        raise InvalidRequest(
            "The cursor is not an event id of this server.",
            details={"field": "after"},
            hint="Pass the `cursor` or the `id` of an event exactly as it was returned.",
        )
    return Cursor(position, bool(flipped & _CHANGE), bool(flipped & _NOTICE))


def of_change(text: str, salt: str) -> str:
    """The id of the `job.state_changed` made of the event with this id."""
    return encode(decode(text, salt).position, time_of(text), salt, change=True)


def time_of(text: str) -> dt.datetime:
    """When the event with this valid id happened, to the millisecond."""
    return ids.time_of(uuid.UUID(text.removeprefix(PREFIX)))


def _mac(position: int, ms: int, salt: str) -> int:
    digest = hmac.digest(salt.encode(), b"%d:%d" % (position, ms), hashlib.sha256)
    return int.from_bytes(digest[:4], "big") >> (32 - _MAC_BITS)


def salt_of(using: str) -> str:
    """The installation's salt, made on first use; of each tenant its own. Cached for the life of the process."""
    return _salt_of(using, tenants.key(using))


@lru_cache(maxsize=1024)
def _salt_of(using: str, tenant: Hashable) -> str:
    return log_row(using).salt


def forget() -> None:
    """Drop the salts that this process knows: the log is a new one."""
    _salt_of.cache_clear()


def log_row(using: str) -> EventLog:
    """The log's row, made on first use and committed at once.

    In a caller's transaction another connection makes it: until the caller commits, all others who need the row would
    wait for it, and after a rollback this process would go on with a salt that is nowhere.
    """
    log = EventLog.objects.using(using).filter(pk=1).first()
    if log is not None:
        return log
    show = tenants.carried(using)
    # On SQLite the caller has the only write lock.
    if not commits_later(using) or connections[using].vendor == "sqlite" or show is None:
        return _make_row(using)

    made: Future[EventLog] = Future()

    def make() -> None:
        try:
            try:
                show()
                row = _make_row(using)
            finally:
                connections[using].close()
        except BaseException as error:  # noqa: BLE001 - raised where the row is waited for
            made.set_exception(error)
        else:
            made.set_result(row)

    # A daemon: the process does not wait for it at its exit, however long a database that hangs keeps it.
    threading.Thread(target=make, name="ojs-log-row", daemon=True).start()
    try:
        return made.result(PATIENCE)
    except TimeoutError:
        raise HeldByAnother(f"The event log could not be begun within {PATIENCE:g} s.") from None


def _make_row(using: str) -> EventLog:
    try:
        with atomic(using=using):
            return EventLog.objects.using(using).create(pk=1, salt=secrets.token_hex(16))
    except IntegrityError as error:  # another process was first
        if (row := EventLog.objects.using(using).filter(pk=1).first()) is None:
            raise unseen(error, using) from error.__cause__
        return row
