"""Time zones of schedules: `UTC` and Area/Location names of the IANA database, and nothing else (L2-TZ-001).

Offsets and abbreviations are refused even where the database has them as names (orchestration 2.3): `EST`, `EST5EDT`
and `Etc/GMT+5` know no daylight saving, so a schedule in them would be an hour off for half the year. The other
names below `Etc` are UTC itself.
"""

from __future__ import annotations

import difflib
import re
import zoneinfo
from functools import lru_cache

from django_ojs.messages import phrase

UTC_NAME = "UTC"

_AREAS = frozenset(
    {
        *("Africa", "America", "Antarctica", "Arctic", "Asia", "Atlantic", "Australia", "Europe", "Indian", "Pacific"),
        *("Brazil", "Canada", "Chile", "Mexico", "US"),  # older names that are links to those above
        "Etc",
    }
)
#: `Etc/GMT+5`, whose sign is the other way round besides, `UTC-05:00`, `+01`, and `Etc/GMT0`.
_OFFSET = re.compile(r"(^|/)(GMT|UTC|UT)?[+-]?[0-9]", re.IGNORECASE)
_MEANT = {
    "EST": "America/New_York", "EDT": "America/New_York", "EST5EDT": "America/New_York", "CST": "America/Chicago",
    "CDT": "America/Chicago", "CST6CDT": "America/Chicago", "MST": "America/Denver", "MDT": "America/Denver",
    "MST7MDT": "America/Denver", "PST": "America/Los_Angeles", "PDT": "America/Los_Angeles",
    "PST8PDT": "America/Los_Angeles", "CET": "Europe/Paris", "CEST": "Europe/Paris", "MET": "Europe/Paris",
    "EET": "Europe/Athens", "EEST": "Europe/Athens", "WET": "Europe/Lisbon", "BST": "Europe/London",
    "JST": "Asia/Tokyo", "IST": "Asia/Kolkata", "GMT": "UTC", "Z": "UTC", "ZULU": "UTC", "UCT": "UTC",
}  # fmt: skip


def check(name: object) -> str:
    """`name` if it is a zone that schedules may have. ValueError with what is allowed, and a guess, otherwise."""
    if isinstance(name, str):
        if name == UTC_NAME or name in names():
            return name
        guess = _guess(name)
        if guess:
            raise ValueError(
                phrase("must be UTC or an IANA name of the form Area/City; did you mean %(meant)s?", meant=guess)
            )
    raise ValueError(phrase("must be UTC or an IANA name of the form Area/City, such as Europe/Paris"))


def load(name: str) -> zoneinfo.ZoneInfo:
    """The zone behind a name that `check` passed. ValueError when this machine does not know it."""
    try:
        return zoneinfo.ZoneInfo(check(name))
    except (zoneinfo.ZoneInfoNotFoundError, OSError) as error:
        raise ValueError(phrase("is not in the time zone database of this machine: %(error)s", error=error)) from error


@lru_cache(maxsize=1)
def names() -> frozenset[str]:
    """Every Area/Location name that this machine knows and that is no offset."""
    known = zoneinfo.available_timezones()
    return frozenset(
        name for name in known if "/" in name and name.split("/")[0] in _AREAS and not _OFFSET.search(name)
    )


def _guess(name: str) -> str:
    if name.upper() in _MEANT:
        return _MEANT[name.upper()]
    if _OFFSET.search(name):
        return ""  # a name that looks like it would be hours away
    folded = {known.casefold(): known for known in (*names(), UTC_NAME)}
    near = difflib.get_close_matches(name.casefold()[:64].replace(" ", "_"), folded, 1, 0.75)
    return folded[near[0]] if near else ""
