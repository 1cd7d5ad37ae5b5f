"""Public event ids, computed instead of stored.

An id is `evt_` and a UUIDv7 made of the event's time, its position (the row's id) and 26 bits of a MAC
under the installation's salt. So it needs no column and no index, leads back to its row, cannot be
guessed, and differs between installations (events specification 2.3).
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import secrets
import uuid
from functools import lru_cache

from django.db import IntegrityError, transaction

from django_ojs.errors import InvalidRequest
from django_ojs.models import EventLog

PREFIX = "evt_"
_POSITION_BITS = 48
_MAC_BITS = 26
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def encode(position: int, time: dt.datetime, salt: str) -> str:
    """The public id of the event at `position` that happened at `time`."""
    ms = (time - _EPOCH) // dt.timedelta(milliseconds=1)
    mac = _mac(position, ms, salt)
    low = (0b10 << 62) | ((mac & 0x3FFF) << _POSITION_BITS) | position
    return PREFIX + str(uuid.UUID(int=(ms << 80) | (0x7 << 76) | ((mac >> 14) << 64) | low))


def decode(text: str, salt: str) -> int:
    """The position behind a public id. Raises `InvalidRequest` when this server never issued it."""
    try:
        value = uuid.UUID(text.removeprefix(PREFIX)).int if text.startswith(PREFIX) else 0
    except ValueError:
        value = 0
    position = value & ((1 << _POSITION_BITS) - 1)
    mac = ((value >> 64) & 0xFFF) << 14 | (value >> _POSITION_BITS) & 0x3FFF
    if not position or not hmac.compare_digest(str(mac), str(_mac(position, value >> 80, salt))):
        raise InvalidRequest(
            "The cursor is not an event id of this server.",
            details={"field": "after"},
            hint="Pass the `cursor` or the `id` of an event exactly as it was returned.",
        )
    return position


def time_of(text: str) -> dt.datetime:
    """When the event with this valid id happened, to the millisecond."""
    return _EPOCH + dt.timedelta(milliseconds=uuid.UUID(text.removeprefix(PREFIX)).int >> 80)


def _mac(position: int, ms: int, salt: str) -> int:
    digest = hmac.digest(salt.encode(), b"%d:%d" % (position, ms), hashlib.sha256)
    return int.from_bytes(digest[:4], "big") >> (32 - _MAC_BITS)


@lru_cache(maxsize=8)
def salt_of(using: str) -> str:
    """The installation's salt, made on first use. Cached for the life of the process."""
    return log_row(using).salt


def log_row(using: str) -> EventLog:
    log = EventLog.objects.using(using).filter(pk=1).first()
    if log is None:
        try:
            with transaction.atomic(using=using):
                log = EventLog.objects.using(using).create(pk=1, salt=secrets.token_hex(16))
        except IntegrityError:  # another process was first
            log = EventLog.objects.using(using).get(pk=1)
    return log
