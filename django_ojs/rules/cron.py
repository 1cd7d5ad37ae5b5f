"""Cron expressions (orchestration 2.3): what is accepted, and the instants at which they fire.

`parse` checks the expression against a grammar of our own and gives a `Schedule`; croniter, which nothing
else imports, then only steps over wall-clock times. It would fire in the hour that spring skips and twice
in the one that autumn repeats, so it is never shown a zone: each wall time it finds is put into the zone
here, dropped where it does not exist, and taken the first time it comes.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import zoneinfo
from collections.abc import Sequence
from functools import lru_cache

from croniter import croniter
from croniter.croniter import CroniterBadDateError, CroniterError

from django_ojs.messages import phrase
from django_ojs.rules import cronfields, durations, zones
from django_ojs.rules.cronfields import InvalidExpression

UTC = dt.UTC
#: Nothing fires more often, whatever `@every` says.
SHORTEST = dt.timedelta(seconds=1)
MAX_LENGTH = 255

SHORTCUTS = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip

_SECOND = dt.timedelta(seconds=1)
_EPOCH = dt.datetime(2024, 1, 1)  # noqa: DTZ001 - a wall time


@dataclasses.dataclass(frozen=True, slots=True)
class Lost:
    """Wall times that a clock skipped: `at` is the instant it did so, `local` the first that was lost."""

    at: dt.datetime
    local: dt.datetime


@dataclasses.dataclass(frozen=True, slots=True)
class Occurrence:
    """When a schedule fires next (UTC), and what was lost before that to a clock that went forward."""

    at: dt.datetime
    lost: Lost | None = None

    @property
    def wake_at(self) -> dt.datetime:
        """When the scheduler has to look: at the firing, or before that at what was lost."""
        return min(self.at, self.lost.at) if self.lost else self.at


@dataclasses.dataclass(frozen=True, slots=True)
class Schedule:
    """A valid expression in a zone: either `fields` for croniter, whichever comes first, or a `period`."""

    expression: str
    zone: zoneinfo.ZoneInfo
    fields: tuple[str, ...] = ()
    period: dt.timedelta | None = None

    def next_after(self, instant: dt.datetime, anchor: dt.datetime | None = None) -> Occurrence:
        """The first occurrence after `instant`.

        `anchor` is from where `@every` counts (registration or the last firing; `instant` without one) and
        means nothing to other expressions.
        """
        instant = instant.astimezone(UTC)  # two datetimes of one ZoneInfo would compare by wall clock
        if self.period is not None:
            start = (anchor or instant).astimezone(UTC)
            periods = max((instant - start) // self.period, 0) + 1
            return Occurrence(start + periods * self.period)
        return self._step(instant)

    def _step(self, instant: dt.datetime) -> Occurrence:
        start = self._start(instant)
        lost: Lost | None = None
        while True:
            wall = min(_next(fields, start) for fields in self.fields)
            at = wall.replace(tzinfo=self.zone).astimezone(UTC)
            if at.astimezone(self.zone).replace(tzinfo=None) == wall:
                return Occurrence(at, lost)
            edge = self._change(wall.replace(tzinfo=self.zone, fold=1).astimezone(UTC), at)
            lost = lost or Lost(edge, wall)
            start = _wall(edge, self.zone) - _SECOND

    def _start(self, instant: dt.datetime) -> dt.datetime:
        """The wall time behind which to look; in the second pass of a repeated hour, that hour's last second."""
        local = instant.astimezone(self.zone)
        if not local.fold:
            return local.replace(tzinfo=None, microsecond=0)
        edge = self._change(local.replace(fold=0).astimezone(UTC), instant)
        return _wall(edge - _SECOND, self.zone)

    def _change(self, before: dt.datetime, after: dt.datetime) -> dt.datetime:
        """The instant between these two at which the zone's offset changed, to the second."""
        low, high = int(before.timestamp()), int(after.timestamp())
        old = before.astimezone(self.zone).utcoffset()
        while high - low > 1:
            middle = (low + high) // 2
            if dt.datetime.fromtimestamp(middle, self.zone).utcoffset() == old:
                low = middle
            else:
                high = middle
        return dt.datetime.fromtimestamp(high, UTC)


def parse(expression: object, timezone: str = zones.UTC_NAME) -> Schedule:
    """The schedule that an expression means in a zone.

    Raises InvalidExpression (a ValueError) with what is wrong and what to write instead; ValueError for a
    zone that `zones.check` refuses.
    """
    if not isinstance(expression, str) or not expression.strip():
        raise InvalidExpression(phrase("must be a cron expression such as */5 * * * *, @daily or @every 90m"))
    if len(expression) > MAX_LENGTH or not expression.isascii():
        raise InvalidExpression(phrase("must have at most %(most)s characters, all of them ASCII", most=MAX_LENGTH))
    return _parse(expression, timezone)


@lru_cache(maxsize=1024)
def _parse(expression: str, timezone: str) -> Schedule:
    zone = zones.load(timezone)
    words = expression.split()
    if words[0].startswith("@"):
        return _shortcut(expression, words, zone)
    if len(words) not in (5, 6):
        raise InvalidExpression(
            phrase(
                "must have 5 fields (minute, hour, day of month, month, day of week), or 6 with seconds first, "
                "not %(number)s; such as */5 * * * *, @daily or @every 90m",
                number=len(words),
            )
        )
    return Schedule(expression, zone, _possible(cronfields.normalise(words), expression))


def _shortcut(expression: str, words: list[str], zone: zoneinfo.ZoneInfo) -> Schedule:
    word = words[0].lower()
    if word == "@every":
        return Schedule(expression, zone, period=_period(words[1:]))
    if word not in SHORTCUTS or len(words) > 1:
        known = ", ".join(SHORTCUTS)
        raise InvalidExpression(
            phrase(
                "has no such shortcut; there are %(known)s and @every with a duration, as in @every 30m", known=known
            )
        )
    return Schedule(expression, zone, tuple(cronfields.normalise(SHORTCUTS[word].split())))


def _period(words: list[str]) -> dt.timedelta:
    try:
        (text,) = words
        milliseconds = durations.parse_duration_ms(text)
    except ValueError:
        raise InvalidExpression(phrase("needs one duration after @every, as in @every 30m or @every 1h30m")) from None
    if milliseconds == 0:
        raise InvalidExpression(phrase("needs a duration above zero after @every, as in @every 30m"))
    return max(dt.timedelta(milliseconds=milliseconds), SHORTEST)


def _possible(alternatives: Sequence[str], expression: str) -> tuple[str, ...]:
    """Those alternatives that ever come: 30 February does not."""
    found = []
    for fields in alternatives:
        try:
            _next(fields, _EPOCH)
        except CroniterBadDateError:
            continue
        except (CroniterError, ValueError, KeyError) as error:  # what croniter knows better than our grammar
            raise InvalidExpression(phrase("is no cron expression: %(error)s", error=error)) from error
        found.append(fields)
    if not found:
        raise InvalidExpression(phrase("never comes: no date fits %(expression)s", expression=repr(expression)))
    return tuple(found)


def _next(fields: str, start: dt.datetime) -> dt.datetime:
    """The first wall time after `start`; croniter sees no zone."""
    found: dt.datetime = croniter(fields, start, second_at_beginning=True).get_next(dt.datetime)
    return found


def _wall(instant: dt.datetime, zone: zoneinfo.ZoneInfo) -> dt.datetime:
    return instant.astimezone(zone).replace(tzinfo=None)
