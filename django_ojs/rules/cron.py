"""Schedules (orchestration 2): what a registration may say, how clients read one, and when its cron expression fires.

`parse` reads a registration in the words of the specification: `cron`, and the job under `job_template`. Clients write
it in several ways (2.2), which `spellings.schedule` reads; `render` writes all of them.

`parse_expression` checks an expression against a grammar of our own (2.3). croniter, which nothing else imports, then
only steps over wall-clock times. It would fire in the hour that spring skips and twice in the one that autumn repeats,
so it is never shown a zone: each wall time that it finds is put into the zone here, dropped where it does not exist,
and taken the first time it comes.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
import zoneinfo
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from django_ojs.errors import InvalidPayload, InvalidRequest
from django_ojs.messages import phrase, reason
from django_ojs.rules import attributes, durations, envelope, names, suggest
from django_ojs.rules.durations import format_instant
from django_ojs.rules.faults import fault, flag

if TYPE_CHECKING:
    from django_ojs.models import CronSchedule


class OverlapPolicy(StrEnum):
    SKIP = "skip"  #: no job this time; the default
    ALLOW = "allow"  #: one more job
    CANCEL_PREVIOUS = "cancel_previous"  #: cancel what is there, then one more
    ENQUEUE = "enqueue"  #: one more, which waits until those before it have ended


UTC_NAME = "UTC"
MAX_NAME = 255
MAX_DESCRIPTION = 2000

_NAME = re.compile(r"[a-z0-9][a-z0-9\-.]*")


@dataclasses.dataclass(frozen=True, slots=True)
class CronSpec:
    """A valid schedule to register; `template` is the envelope of its jobs."""

    name: str
    expression: str
    timezone: str
    type: str
    queue: str
    template: dict[str, Any]
    overlap_policy: OverlapPolicy
    enabled: bool
    description: str


def parse(
    body: Mapping[str, Any],
    *,
    now: dt.datetime,
    base: CronSchedule | None = None,
    read: Callable[..., envelope.JobSpec] = envelope.parse,
    rivals: Callable[[str, object], Collection[str]] = lambda name, value: (name,),
) -> CronSpec:
    """The schedule that `body` asks for; with a `base`, that schedule with the members of `body` changed.

    `read` reads the envelope of its jobs, as `envelope.parse` does. `rivals` names the members of a job that say the
    same as one that is changed to a value, itself included: they go.

    Raises InvalidRequest (400), naming the member, for an invalid one; PayloadTooLarge (413).
    """
    name = check_name(body.get("name") if base is None else body.get("name", base.name))
    if base is not None and name != base.name:
        raise fault("name", phrase("must be %(name)s, or absent: a schedule keeps its name", name=base.name), name)
    enabled = body.get("enabled")
    enabled = (base is None or base.enabled) if enabled is None else flag(enabled, "enabled")
    # What is switched off is not looked at, unless it is changed: its zone may have left this machine, and the site may
    # allow such a job no more.
    off = base if base is not None and not enabled else None
    if off and body.get("cron") is None and body.get("timezone") is None:
        expression, timezone = off.expression, off.timezone
    else:
        timezone = _timezone(body, base.timezone if base else UTC_NAME)
        expression = _expression(body, base.expression if base else None, timezone)
    policy = _policy(body, base.overlap_policy if base else OverlapPolicy.SKIP)
    if off and body.get("job_template") is None and body.get("overlap_policy") is None:
        template, job_type, queue = off.document, off.type, off.queue
    else:
        template, spec = _job(body, base.document if base else {}, now, read, rivals)
        job_type, queue = spec.type, spec.queue
        if policy is OverlapPolicy.ENQUEUE and (spec.pending or spec.scheduled_at is not None):
            raise fault(
                "overlap_policy", phrase("cannot be enqueue for jobs that are delayed or pending"), policy.value
            )
    return CronSpec(
        name=name,
        expression=expression,
        timezone=timezone,
        type=job_type,
        queue=queue,
        template=template,
        overlap_policy=policy,
        enabled=enabled,
        description=_description(body, base.description if base else ""),
    )


def check_name(value: object) -> str:
    """`value` if it can name a schedule. Raises InvalidRequest."""
    if isinstance(value, str) and len(value) <= MAX_NAME and _NAME.fullmatch(value):
        return value
    message = phrase(
        "must be 1 to %(most)s lowercase letters, digits, hyphens and dots, starting with a letter or digit, "
        "such as nightly-report",
        most=MAX_NAME,
    )
    raise fault("name", message, value)


def render(schedule: CronSchedule) -> dict[str, Any]:
    """The entry for clients, in every spelling (orchestration 2.6)."""
    document = schedule.document
    job = {
        "type": schedule.type,
        "args": document.get("args") or [],
        "meta": document.get("meta") or {},
        "options": document.get("options") or {},
    }
    others = {name: value for name, value in document.items() if name not in job and name != "queue"}
    return {
        "id": schedule.name,
        "name": schedule.name,
        "cron": schedule.expression,
        "expression": schedule.expression,
        "schedule": schedule.expression,
        "timezone": schedule.timezone,
        **job,
        "queue": schedule.queue,
        "job_template": {**others, **job},
        "overlap_policy": schedule.overlap_policy,
        "enabled": schedule.enabled,
        "status": schedule.status,
        "description": schedule.description,
        "last_run_at": _time(schedule.last_run_at),
        "next_run_at": _time(schedule.next_run_at),
        "run_count": schedule.run_count,
        "created_at": format_instant(schedule.created_at),
        "updated_at": format_instant(schedule.updated_at),
    }


def _expression(body: Mapping[str, Any], kept: str | None, timezone: str) -> str:
    value = kept if body.get("cron") is None else body["cron"]
    try:
        parse_expression(value, timezone)
    except InvalidExpression as error:
        hint = "minute hour day-of-month month day-of-week, as in `0 9 * * 1-5`; seconds may come first."
        raise fault("cron", reason(error), value, canonical="INVALID_CRON_EXPRESSION", hint=hint) from error
    assert isinstance(value, str)
    return value


def _timezone(body: Mapping[str, Any], kept: str) -> str:
    value = body.get("timezone")
    try:
        return str(load_zone(kept if value is None else value))
    except ValueError as error:
        raise fault("timezone", reason(error), value) from error


def _job(
    body: Mapping[str, Any],
    kept: Mapping[str, Any],
    now: dt.datetime,
    read: Callable[..., envelope.JobSpec],
    rivals: Callable[[str, object], Collection[str]],
) -> tuple[dict[str, Any], envelope.JobSpec]:
    """The envelope of the jobs, and how PUSH would read it."""
    nested = body.get("job_template")
    if nested is not None and not isinstance(nested, dict):
        raise fault("job_template", phrase("must be an object with at least a type"), nested)
    given = {
        name: value for name, value in (nested or {}).items() if value is not None or name not in attributes.TOP_LEVEL
    }
    if "id" in given:
        raise fault(
            "job_template.id",
            phrase("must be absent: every job of a schedule gets an id of its own"),
            given["id"],
        )
    said = {other for name, value in given.items() if value is not None for other in rivals(name, value)}
    template = {
        "args": [],
        **_without(kept, given, said),
        **given,
    }
    try:
        return template, read(template, now=now)
    except InvalidPayload as error:
        raise _of_job(error) from error


def _without(kept: Mapping[str, Any], given: Mapping[str, Any], said: Collection[str]) -> dict[str, Any]:
    """The template that a change keeps, without the members and options that would override what the change has
    `said`."""
    rest = {name: value for name, value in kept.items() if name not in said or name in given}
    options = kept.get("options")
    if not options or "options" in given:
        return rest
    return {**rest, "options": {name: value for name, value in options.items() if name not in said}}


def _of_job(error: InvalidPayload) -> InvalidRequest:
    """The error of an envelope, as one of a registration: 400 `invalid_request`."""
    prefix = "job_template."
    details = {**error.details, "field": f"{prefix}{error.details.get('field', '')}"}
    details["validation_errors"] = [
        {**entry, "path": f"{prefix}{entry['path']}"} for entry in error.details.get("validation_errors", ())
    ]
    return InvalidRequest(
        phrase("%(prefix)s%(problem)s", prefix=prefix, problem=reason(error)),
        details=details,
        canonical=error.canonical,
    )


def _policy(body: Mapping[str, Any], kept: str) -> OverlapPolicy:
    value = body.get("overlap_policy")
    if value is None:
        return OverlapPolicy(kept)
    if not isinstance(value, str) or value not in set(OverlapPolicy):
        raise fault("overlap_policy", phrase("must be one of %(words)s", words=", ".join(OverlapPolicy)), value)
    return OverlapPolicy(value)


def _description(body: Mapping[str, Any], kept: str) -> str:
    value = body.get("description")
    if value is None:
        return kept
    if not isinstance(value, str) or len(value) > MAX_DESCRIPTION or not names.is_storable(value):
        raise fault("description", phrase("must be a text of at most %(most)s characters", most=MAX_DESCRIPTION), value)
    return value


def _time(instant: dt.datetime | None) -> str | None:
    return format_instant(instant) if instant else None


# When an expression fires.


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


class InvalidExpression(ValueError):
    """A cron expression that is not valid. The text says what is wrong, after the name of the member."""


@dataclasses.dataclass(frozen=True, slots=True)
class LostOccurrence:
    """Wall times that a clock skipped: `at` is the instant it did so, `local` the first that was lost."""

    at: dt.datetime
    local: dt.datetime


@dataclasses.dataclass(frozen=True, slots=True)
class Occurrence:
    """When a schedule fires next (UTC), and what was lost before that to a clock that went forward."""

    at: dt.datetime
    lost: LostOccurrence | None = None

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

        `@every` counts from `anchor` (the registration or the last firing; without one, `instant`). Other expressions
        ignore it.
        """
        instant = instant.astimezone(UTC)  # two datetimes of one ZoneInfo would compare by wall clock
        if self.period is not None:
            start = (anchor or instant).astimezone(UTC)
            periods = max((instant - start) // self.period, 0) + 1
            return Occurrence(start + periods * self.period)
        return self._step(instant)

    def _step(self, instant: dt.datetime) -> Occurrence:
        start = self._start(instant)
        lost: LostOccurrence | None = None
        while True:
            wall = min(_next(fields, start) for fields in self.fields)
            at = wall.replace(tzinfo=self.zone).astimezone(UTC)
            if at.astimezone(self.zone).replace(tzinfo=None) == wall:
                return Occurrence(at, lost)
            edge = self._change(wall.replace(tzinfo=self.zone, fold=1).astimezone(UTC), at)
            lost = lost or LostOccurrence(edge, wall)
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


def parse_expression(expression: object, timezone: str = UTC_NAME) -> Schedule:
    """The schedule that an expression means in a zone.

    Raises InvalidExpression (a ValueError) with what is wrong and what to write instead; ValueError for a
    zone that `check_zone` refuses.
    """
    if not isinstance(expression, str) or not expression.strip():
        raise InvalidExpression(phrase("must be a cron expression such as */5 * * * *, @daily or @every 90m"))
    if len(expression) > MAX_LENGTH or not expression.isascii():
        raise InvalidExpression(phrase("must have at most %(most)s characters, all of them ASCII", most=MAX_LENGTH))
    return _parse(expression, timezone)


@lru_cache(maxsize=1024)
def _parse(expression: str, timezone: str) -> Schedule:
    zone = load_zone(timezone)
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
    return Schedule(expression, zone, _possible(_normalised(words), expression))


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
    return Schedule(expression, zone, tuple(_normalised(SHORTCUTS[word].split())))


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
    """The alternatives that some date fits. None fits 30 February."""
    from croniter.croniter import CroniterBadDateError, CroniterError

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
    from croniter import croniter  # it takes 40 ms to load, and most commands fire no schedule

    found: dt.datetime = croniter(fields, start, second_at_beginning=True, day_or=False).get_next(dt.datetime)
    return found


def _wall(instant: dt.datetime, zone: zoneinfo.ZoneInfo) -> dt.datetime:
    return instant.astimezone(zone).replace(tzinfo=None)


# The five or six fields of an expression. The grammar is stricter than croniter's, which takes ranges that run
# backwards, steps beyond the range (`*/90` would fire hourly), `R` for a new random time at every start, and writes
# `5L` as `L5`: here each of them is refused with advice, or translated.


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()


_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_DAY, _WEEKDAY = _Field("day of month", 1, 31), _Field("day of week", 0, 7, _DAYS)
_FIELDS = (
    _Field("second", 0, 59), _Field("minute", 0, 59), _Field("hour", 0, 23), _DAY, _Field("month", 1, 12, _MONTHS),
    _WEEKDAY,
)  # fmt: skip

_ITEM = re.compile(r"(?:(\*)|([0-9A-Z]+)(?:-([0-9A-Z]+))?)(?:/([0-9]+))?")
_NTH = re.compile(r"([0-9A-Z]+)#([0-9]+)")
_LAST_WEEKDAY = re.compile(r"([0-6]|7|SUN|MON|TUE|WED|THU|FRI|SAT)L")
_NEAREST = re.compile(r"([0-9]+)W")


def _normalised(words: Sequence[str]) -> list[str]:
    """The fields as croniter wants them, six with the seconds first; two alternatives where both days are restricted.

    A day that fits either of them is enough then. As in Vixie's cron a field that begins with `*` is open, `*/2` too,
    and a day must fit both. croniter has a rule of its own about that, so `_next` asks it for both.
    Raises InvalidExpression.
    """
    fields = _FIELDS[-len(words) :]
    texts = [_field(word.upper(), field) for word, field in zip(words, fields, strict=True)]
    if len(texts) == 5:
        texts.insert(0, "0")
    *time, day, month, weekday = texts
    lots = [(day, weekday)] if "*" in (day[0], weekday[0]) else [(day, "*"), ("*", weekday)]
    return [" ".join([*time, a, month, b]) for a, b in lots]


def _field(word: str, field: _Field) -> str:
    if word == "?" and field in (_DAY, _WEEKDAY):
        return "*"
    items = word.split(",")
    special = [item for item in items if _NEAREST.fullmatch(item) or "#" in item or _LAST_WEEKDAY.fullmatch(item)]
    if special and len(items) > len(special) and field is _WEEKDAY:
        raise _field_fault(word, field, "mixes days such as 5L or 5#3 with plain ones; register two schedules")
    return ",".join(_item(item, field, alone=len(items) == 1) for item in items)


def _item(item: str, field: _Field, *, alone: bool) -> str:
    if field is _DAY and item == "L":
        return "L"
    if field is _DAY and (found := _NEAREST.fullmatch(item)):
        if not alone:
            raise _field_fault(item, field, "must stand alone: W takes no list")
        return f"{_value(found[1], field)}W"
    if field is _WEEKDAY and (found := _LAST_WEEKDAY.fullmatch(item)):
        return f"L{_value(found[1], field) % 7}"
    if field is _WEEKDAY and (found := _NTH.fullmatch(item)):
        if not 1 <= _number(found[2]) <= 5:
            raise _field_fault(item, field, "must name the first to fifth such day of the month, as in 5#3")
        return f"{_value(found[1], field) % 7}#{_number(found[2])}"
    found = _ITEM.fullmatch(item)
    if found is None:
        raise _field_fault(item, field, f"is not understood; write {_range(field)}, *, lists, ranges or steps")
    return _plain(item, found, field)


def _plain(item: str, found: re.Match[str], field: _Field) -> str:
    star, first, last, step = found.groups()
    if star:
        text = "*"
    else:
        low = _value(first, field)
        text = str(low)
        if last is not None:
            high = _value(last, field)
            if field is _WEEKDAY and high == 0:  # SAT-SUN
                high = 7
            if low > high:
                raise _field_fault(item, field, f"runs backwards; write {first}-{field.high},{field.low}-{last}")
            text = f"{low}-{high}"
    if step is None:
        return text
    size = _number(step)
    if not 1 <= size <= field.high:
        hint = "" if size == 0 else "; for longer distances there is @every, as in @every 90m"
        raise _field_fault(item, field, f"has the step {step}, which must lie between 1 and {field.high}{hint}")
    return f"{text}/{size}"


def _value(text: str, field: _Field) -> int:
    if text in field.names:
        return field.names.index(text) + field.low
    number = _number(text) if text.isdecimal() else -1
    if not field.low <= number <= field.high:
        raise _field_fault(text, field, f"must be {_range(field)}")
    return number


def _number(text: str) -> int:
    return int(text[-9:]) if len(text.lstrip("0")) < 10 else 10**9


def _range(field: _Field) -> str:
    words = f" or {field.names[0]} to {field.names[-1]}" if field.names else ""
    return f"{field.low} to {field.high}{words}"


def _field_fault(text: str, field: _Field, message: str) -> InvalidExpression:
    return InvalidExpression(f"has the {field.name} {text[:40]!r}, which {message}")


# Time zones: the names of the IANA database (L2-TZ-001) but for offsets and abbreviations (2.3): `EST`, `EST5EDT` and
# `Etc/GMT+5` know no daylight saving, or not that of a place, so a schedule in them would be an hour off for half the
# year. The other names below `Etc` are UTC itself.


_AREAS = frozenset(
    {
        *("Africa", "America", "Antarctica", "Arctic", "Asia", "Atlantic", "Australia", "Europe", "Indian", "Pacific"),
        *("Brazil", "Canada", "Chile", "Mexico", "US"),  # older names that are links to those above
        "Etc",
    }
)
#: Places whose name has no area. They are links to names that have one.
_PLACES = frozenset(
    {
        *("Cuba", "Egypt", "Eire", "GB", "GB-Eire", "Hongkong", "Iceland", "Iran", "Israel", "Jamaica", "Japan"),
        *("Kwajalein", "Libya", "NZ", "NZ-CHAT", "Navajo", "PRC", "Poland", "Portugal", "ROC", "ROK", "Singapore"),
        *("Turkey", "W-SU"),
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


def check_zone(name: object) -> str:
    """`name` if it is a zone that schedules may have. ValueError with what is allowed, and a guess, otherwise."""
    if isinstance(name, str):
        if name == UTC_NAME or name in zone_names():
            return name
        guess = _guess(name)
        if guess:
            raise ValueError(
                phrase("must be UTC or an IANA name of the form Area/City; perhaps %(meant)s is meant", meant=guess)
            )
    raise ValueError(phrase("must be UTC or an IANA name of the form Area/City, such as Europe/Paris"))


def load_zone(name: str) -> zoneinfo.ZoneInfo:
    """The zone of this name. ValueError where `check_zone` refuses it, or this machine does not know it."""
    try:
        return zoneinfo.ZoneInfo(check_zone(name))
    except (zoneinfo.ZoneInfoNotFoundError, OSError) as error:
        raise ValueError(phrase("is not in the time zone database of this machine: %(error)s", error=error)) from error


@lru_cache(maxsize=1)
def zone_names() -> frozenset[str]:
    """The name of every place that this machine knows."""
    known = zoneinfo.available_timezones()
    of_areas = (name for name in known if "/" in name and name.split("/")[0] in _AREAS and not _OFFSET.search(name))
    return frozenset(of_areas) | (_PLACES & known)


def _guess(name: str) -> str:
    if name.upper() in _MEANT:
        return _MEANT[name.upper()]
    if _OFFSET.search(name):
        return ""  # a name that looks like it would be hours away
    return suggest.nearest(name.replace(" ", "_"), zone_names() | {UTC_NAME}, 0.75)
