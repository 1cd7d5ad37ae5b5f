"""What an answer means and when to try again (events 6.4), as pure functions."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import NamedTuple

#: The longest wait that a receiver's Retry-After is granted, seconds.
LONGEST_WAIT = 86_400.0


class Verdict(StrEnum):
    SUCCESS = "success"
    RETRY = "failed"
    DEAD = "dead"


class Reply(NamedTuple):
    """One attempt: `status` None where no answer came, `error` '' where it went well."""

    verdict: Verdict
    status: int | None = None
    error: str = ""
    body: str = ""
    retry_after: float | None = None  #: seconds
    duration_ms: int = 0


def verdict(status: int) -> Verdict:
    """2xx is success, 429 and 5xx may pass, everything else never will."""
    if 200 <= status < 300:
        return Verdict.SUCCESS
    return Verdict.RETRY if status == 429 or status >= 500 else Verdict.DEAD


def retry_after(value: str | None, now: dt.datetime) -> float | None:
    """The seconds that a Retry-After header asks for, as a number or a date; None where it says nothing sensible."""
    text = (value or "").strip()
    if re.fullmatch(r"[0-9]{1,10}", text):
        return min(float(text), LONGEST_WAIT)
    try:
        instant = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    instant = instant if instant.tzinfo else instant.replace(tzinfo=dt.UTC)
    return min(max((instant - now).total_seconds(), 0.0), LONGEST_WAIT)


def next_delay(attempts: int, delays: Sequence[float], wanted: float | None) -> float | None:
    """Seconds until the next attempt after `attempts` of them; None where there is none. Retry-After only lengthens."""
    if attempts > len(delays):
        return None
    return max(delays[attempts - 1], wanted or 0.0)
