"""Translate the options and arguments of a job from Python to the envelope (core section 5); refuse what is not JSON.

Options are Python values, such as a timedelta or an aware datetime. The positional arguments of a call become the
`args` of the job, an array. Keyword arguments follow them in one object `{"$kwargs": {...}}`, which is there only where
a caller uses keywords, so most jobs look as a client in any language would write them (docs/handlers.md, "Arguments").
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import math
import pathlib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NoReturn, TypeAlias, TypedDict

from django.db.models import Model, QuerySet
from django.utils.functional import Promise

from django_ojs import spellings
from django_ojs.client.otherwords import OTHER_OPTIONS
from django_ojs.jsontext import MAX_DEPTH, ExactNumber
from django_ojs.messages import shown, with_article
from django_ojs.rules import durations, errorobjects, names, problems, suggest

#: `"10m"`, `"PT10M"`, a number of seconds, or a timedelta.
Duration: TypeAlias = str | int | float | dt.timedelta


StateName: TypeAlias = Literal[
    "available", "scheduled", "pending", "active", "completed", "retryable", "cancelled", "discarded"
]


class RetryOptions(TypedDict, total=False):
    """What `retry` may have (jobs 1.1); a member that is missing has its default (docs/options.md)."""

    max_attempts: int  #: how often the job is tried, the first time included
    initial_interval: Duration  #: the wait after the first failed attempt
    backoff_strategy: Literal["exponential", "linear", "polynomial", "constant", "none"]  #: how waits grow
    backoff_coefficient: float  #: the factor, or the exponent, by which waits grow; at least 1.0
    max_interval: Duration  #: the longest wait
    jitter: bool  #: whether waits are spread, so that jobs that failed together do not come back together
    #: Only these are retried: classes, or types and codes by name; `"auth.*"` is a prefix.
    retryable_errors: Sequence[str | type[BaseException]]
    #: No retry helps against these, whatever `retryable_errors` says.
    non_retryable_errors: Sequence[str | type[BaseException]]
    on_exhaustion: Literal["discard", "dead_letter"]  #: what becomes of a job whose attempts are used up


class UniqueOptions(TypedDict, total=False):
    """What `unique` may have (jobs 2.1): which jobs count as the same, and what happens to the second one."""

    keys: Sequence[Literal["type", "queue", "args", "meta", "version"]]  #: what the server compares
    #: The arguments that count: `"0"` is the first, a name a field of an object among them; without it all count.
    args_keys: Sequence[str]
    meta_keys: Sequence[str]  #: the members of `meta` that count, where `keys` has `"meta"`
    period: Duration  #: how long a job counts after its creation; without it as long as its state is one of `states`
    states: Sequence[StateName]  #: the states in which a job counts; without it those of jobs that have not ended
    on_conflict: Literal["reject", "ignore", "replace", "replace_except_schedule"]  #: the default is `"reject"`


class RateWindow(TypedDict):
    """At most `limit` starts in each `period`."""

    limit: int
    period: Duration  #: or `"second"`, `"minute"`, `"hour"`, `"day"`


class RateLimitOptions(TypedDict, total=False):
    """What `rate_limit` may have (jobs 5.1): a limit that jobs share by its key."""

    key: str
    concurrency: int  #: how many jobs of the key run at once
    rate: RateWindow  #: how many start in a window
    throttle: RateWindow  #: how many start in a window, spread evenly over it
    max_per_second: float  #: a `throttle` of so many starts in a second
    on_limit: Literal["wait", "reschedule", "drop"]  #: what becomes of a job that must not start; default `"wait"`


class HandlerOptions(TypedDict, total=False):
    """The defaults of a handler's jobs."""

    queue: str
    priority: int | str  #: a number, or a name from `OJS["PRIORITY_LEVELS"]`
    retry: RetryOptions  #: the retry policy, with the names of the wire: `{"max_attempts": 5, "initial_interval": 2}`
    timeout: Duration  #: the time of one attempt
    #: The time from the creation of the job, waits and retries included. Then the job is discarded.
    total_timeout: Duration
    enqueue_ttl: Duration  #: the time from the creation to the first start; then the job is discarded
    #: The longest time between two calls of `heartbeat()` or `progress()`. Then the attempt has failed.
    heartbeat_timeout: Duration
    grace_period: Duration  #: the time to clean up after `timeout`, before the server takes the job back
    visibility_timeout: Duration  #: the length of a reservation; without it our worker renews reservations by itself
    unique: bool | UniqueOptions  #: True: only one job with this type and these arguments at a time
    tags: Iterable[str]
    meta: Mapping[str, Any]
    rate_limit: RateLimitOptions  #: a limit that jobs share, as on the wire: `{"key": "partner", "concurrency": 1}`
    result_ttl: Duration  #: how long the server keeps the result; 0: not at all, -1: for ever


class TimedOptions(HandlerOptions, total=False):
    """What `PreparedWorkflow.enqueue()` takes for all of its jobs: the same options, and when the jobs may run."""

    delay: Duration  #: the time from now to the earliest start
    at: dt.datetime  #: the earliest start
    expires_at: dt.datetime  #: a job that still waits at this instant is discarded
    pending: bool  #: the job waits until a caller activates it


class JobOptions(TimedOptions, total=False):
    """What `.options()` and `enqueue()` take for one job."""

    id: str | uuid.UUID  #: a UUIDv7 that the caller has made


class ScheduleOptions(TypedDict, total=False):
    """What `@job` and `@scheduled` say of the schedule that enqueues jobs."""

    cron: str  #: `"0 9 * * 1-5"`, `"@daily"`, `"@every 90m"`
    timezone: str  #: `"Europe/Paris"`; the default is UTC
    overlap: str  #: `"skip"` (default), `"allow"`, `"enqueue"` or `"cancel_previous"`
    cron_args: Sequence[Any]  #: the arguments of the jobs that the schedule enqueues
    cron_name: str  #: the name of the schedule; the default is the job type, with hyphens for underscores


class ScheduledOptions(HandlerOptions, ScheduleOptions, total=False):
    """What `@job` takes: the defaults of a handler's jobs, and the schedule that enqueues such jobs."""


HANDLER_NAMES = frozenset(HandlerOptions.__annotations__)
NAMES = frozenset(JobOptions.__annotations__)
SCHEDULE_NAMES = frozenset(ScheduleOptions.__annotations__)


def checked_options(options: Mapping[str, Any], known: frozenset[str] = NAMES) -> dict[str, Any]:
    """`options` without those that are None. Raises TypeError for an unknown one."""
    for name in options:
        if name not in known:
            raise TypeError(_unknown(name, known))
    # Tags that can be read once only are kept: several jobs may get them.
    return {
        name: tuple(value) if name == "tags" and isinstance(value, Iterator) else value
        for name, value in options.items()
        if value is not None
    }


def split_schedule(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of `@job` that are of its jobs, and those of its schedule. TypeError for one without `cron`."""
    schedule = {name: value for name, value in options.items() if name in SCHEDULE_NAMES and value is not None}
    if schedule and "cron" not in schedule:
        raise TypeError(f"{', '.join(sorted(schedule))} of @job says how a schedule runs: give cron= as well.")
    return {name: value for name, value in options.items() if name not in SCHEDULE_NAMES}, schedule


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`; `retry` and `meta` are merged key by key, and a member of `retry` replaces what says the
    same in another word. A new `at` replaces an old `delay`."""
    result = {**base, **over}
    for name in ("retry", "meta"):
        if isinstance(base.get(name), Mapping) and isinstance(over.get(name), Mapping):  # `attributes` refuses others
            below = spellings.retry_below(base[name], over[name]) if name == "retry" else base[name]
            result[name] = {**below, **over[name]}
    for name, rival in (("at", "delay"), ("delay", "at")):
        if name in over and rival not in over:
            result.pop(rival, None)
    return result


def attributes(options: Mapping[str, Any]) -> dict[str, Any]:
    """The members of an envelope that say the same as `options`.

    Raises TypeError or ValueError, naming the option, for an impossible value, TypeError for a member that no
    policy has, and InvalidRetryPolicy or InvalidRequest for an impossible retry policy or rate limit.
    """
    if "at" in options and "delay" in options:
        raise TypeError("Give either at= or delay=, not both.")
    found: dict[str, Any] = {}
    for name, value in options.items():
        found |= _READERS[name](name, value)
    return found


def milliseconds(value: Duration, name: str) -> int:
    """A duration in milliseconds, rounded up. ValueError if it is negative or unreadable, TypeError if it is none."""
    if isinstance(value, dt.timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"{name}={shown(value)}: give seconds, a timedelta, or a text such as '10m' or 'PT10M'.")
    if isinstance(value, str):
        try:
            return durations.parse_duration_ms(value)
        except ValueError as error:
            raise ValueError(f"{name}={shown(value)} {error}.") from None
    if value < 0 or (isinstance(value, float) and not math.isfinite(value)):  # an int may be too long for a float
        raise ValueError(f"{name}={shown(value)}: a duration is zero or more seconds.")
    ms = value * 1000
    return durations.MAX_MS if ms >= durations.MAX_MS else math.ceil(round(ms, 6))


def _with_durations(name: str, value: Mapping[str, Any], members: Iterable[str]) -> dict[str, Any]:
    """`value` with the numbers and timedeltas of these members as the texts that the wire has for durations."""
    given = dict(value)
    for member in members:
        found = given.get(member)
        if isinstance(found, int | float | dt.timedelta) and not isinstance(found, bool):
            given[member] = durations.format_iso(milliseconds(found, f"{name}[{member!r}]"))
    return given


def _plain(name: str, value: Any) -> dict[str, Any]:
    return {name: value}


def _queue(name: str, value: Any) -> dict[str, Any]:
    try:
        return {name: names.check_queue(value)}
    except ValueError as error:
        raise ValueError(f"queue={shown(value)} {error}.") from None


def _retry(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f'retry={shown(value)}: give a dict such as {{"max_attempts": 5, "initial_interval": "2s"}}.')
    given = _with_durations(name, value, ("initial_interval", "max_interval"))
    for member in ("retryable_errors", "non_retryable_errors"):
        if isinstance(listed := given.get(member), list | tuple):
            given[member] = [_error_name(error) for error in listed]
    _policy(name, given)
    spellings.read_retry(given, name)
    return {name: given}


def _error_name(error: Any) -> Any:
    """A class of exceptions as the wire has it, by its name; anything else as it is."""
    is_class = isinstance(error, type) and issubclass(error, BaseException)
    return errorobjects.dotted(error) if is_class else error


def _policy(name: str, value: Mapping[str, Any]) -> None:
    """Refuse what is no JSON, and members that would mean nothing."""
    check_json(dict(value), name)
    for unknown in spellings.not_spellings(problems.unknown_in_policy(name, value)):
        known = ", ".join(sorted(problems.POLICY_MEMBERS[name]))
        meant = f" Did you mean {unknown.suggestion!r}?" if unknown.suggestion else ""
        raise TypeError(
            f"{name}=: there is no member {unknown.path.removeprefix(name + '.')!r}.{meant} There are {known}."
        )


def _rate_limit(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(
            f'rate_limit={shown(value)}: give a dict such as {{"key": "partner", "concurrency": 1}} '
            'or {"key": "partner", "max_per_second": 10}.'
        )
    given = _with_durations(name, value, ("period",))
    for member in ("rate", "throttle"):
        if isinstance(window := given.get(member), Mapping):
            given[member] = _with_durations(f"{name}.{member}", window, ("period",))
    _policy(name, given)
    spellings.read_rate_limit(given, name)
    return {name: given}


def _limit(name: str, value: Any) -> dict[str, Any]:
    ms = milliseconds(value, name)
    if ms == 0:
        raise ValueError(f"{name}=0: leave it out to get the default.")
    seconds, rest = divmod(ms, 1000)
    return {f"{name}_ms": ms} if rest else {name: seconds}


def _unique(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        given = _with_durations(name, value, ("period",))
        _policy(name, given)
        return {name: given}
    if not isinstance(value, bool):
        raise TypeError(f'unique={shown(value)}: give True or False, or a dict such as {{"period": "1h"}}.')
    return {name: {}} if value else {}


def _meta(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"meta={shown(value)}: give a dict.")
    check_json(dict(value), name)
    return {name: dict(value)}


def _tags(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        raise TypeError(f"tags={shown(value)}: give a list of strings, [{shown(value)}].")
    if not isinstance(value, Iterable) or isinstance(value, bytes | Mapping):
        raise TypeError(f"tags={shown(value)}: give a list of strings.")
    return {name: list(value)}


def _delay(name: str, value: Any) -> dict[str, Any]:
    """Inside `options` the binding takes relative times, so that one clock decides."""
    return {"options": {"scheduled_at": f"+{durations.format_iso(milliseconds(value, name))}"}}


def _instant(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dt.datetime):
        raise TypeError(
            f"{name}={shown(value)}: give a datetime with a time zone, such as timezone.now() + timedelta(hours=1)."
        )
    if value.utcoffset() is None:
        raise ValueError(f"{name}={shown(value)} has no time zone: use django.utils.timezone.make_aware(...).")
    try:
        if name == "at":  # the wire has milliseconds: rather a fraction of one late than early
            value += dt.timedelta(microseconds=-value.microsecond % 1000)
        return {"scheduled_at" if name == "at" else name: durations.format_instant(value)}
    except OverflowError:
        raise ValueError(f"{name}={shown(value)} is not within the years 1 to 9999 of UTC.") from None


def _result_ttl(name: str, value: Any) -> dict[str, Any]:
    if value == -1 and not isinstance(value, bool):
        return {name: -1}
    return {name: math.ceil(milliseconds(value, name) / 1000)}


def _id(name: str, value: Any) -> dict[str, Any]:
    return {name: id_text(value)}


def id_text(value: Any) -> str:
    """The text of an id that a caller has made. Raises TypeError for what is neither a text nor a UUID."""
    if not isinstance(value, str | uuid.UUID):
        raise TypeError(f"id={shown(value)}: give a UUID, or its text.")
    return str(value)


_READERS = {
    "queue": _queue, "priority": _plain, "retry": _retry, "timeout": _limit, "visibility_timeout": _limit,
    "total_timeout": _limit, "enqueue_ttl": _limit, "heartbeat_timeout": _limit, "grace_period": _limit,
    "unique": _unique, "tags": _tags, "meta": _meta, "delay": _delay, "at": _instant, "expires_at": _instant,
    "pending": _plain, "id": _id, "result_ttl": _result_ttl, "rate_limit": _rate_limit,
}  # fmt: skip


def _unknown(name: str, known: frozenset[str]) -> str:
    if name in NAMES:
        return f"{name}= belongs to one job, not to its handler: use .options({name}=...) where you enqueue."
    if name in OTHER_OPTIONS:
        return f"There is no option {name}=, a word of another queue: write {OTHER_OPTIONS[name]}=."
    near = suggest.nearest(name, known)
    meant = f" Did you mean {near}=?" if near else ""
    return (
        f"There is no option {name}=.{meant} There are {', '.join(sorted(known))}. "
        "Arguments of a job go to .enqueue(), not among its options."
    )


#: The only key of the object that holds keyword arguments.
MARKER = "$kwargs"

#: What is often passed by mistake, and what to pass instead; the first match counts.
FIXES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (Model, "pass obj.pk and load the object in the handler"),
    (QuerySet, "pass list(queryset.values_list('pk', flat=True)) and query again in the handler"),
    ((dt.datetime, dt.date, dt.time), "pass .isoformat()"),
    (dt.timedelta, "pass .total_seconds()"),
    ((decimal.Decimal, uuid.UUID, pathlib.PurePath, Promise), "pass str(...)"),
    ((set, frozenset), "pass sorted(...) or list(...)"),
    ((bytes, bytearray, memoryview), "pass base64.b64encode(...).decode(), or store the data and pass a reference"),
    (enum.Enum, "pass .value"),
)


def encode_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The `args` of the job for the call `handler(*args, **kwargs)`."""
    encoded = [*args]
    if kwargs or (encoded and _holds_keywords(encoded[-1])):  # marks a last argument that only looks so
        encoded.append({MARKER: dict(kwargs)})
    return encoded


def decode_arguments(args: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The positional and the keyword arguments for a handler: the inverse of `encode`."""
    if args and _holds_keywords(args[-1]):
        return list(args[:-1]), dict(args[-1][MARKER])
    return list(args), {}


def _holds_keywords(value: object) -> bool:
    return isinstance(value, Mapping) and value.keys() == {MARKER} and isinstance(value[MARKER], Mapping)


def check_arguments(args: Sequence[Any]) -> None:
    """`check_json` for each of the arguments of a job."""
    for index, value in enumerate(args):
        if type(value) not in _SCALARS:
            check_json(value, f"args[{index}]")


def check_json(value: Any, path: str) -> None:
    """Raise TypeError, naming the place below `path`, unless `value` is made of JSON values.

    A tuple counts as an array and arrives as a list; subclasses of str, int and float (a `TextChoices`
    member, a `SafeString`) arrive as plain values.
    """
    _check(value, path, 1)


#: What needs no look, and no path to be named by.
_SCALARS = frozenset({str, int, bool, type(None)})


def _check(value: Any, path: str, depth: int) -> None:
    if value is None or isinstance(value, str | int | ExactNumber):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            _refuse(path, f"is {value}, which JSON has no word for: pass None, or a string")
    elif isinstance(value, list | tuple | dict):
        if depth > MAX_DEPTH:
            _refuse(path, f"nests deeper than {MAX_DEPTH} levels, or contains itself")
        _check_members(value, path, depth + 1)
    else:
        _refuse(path, f"is {with_article(_name(value))}, which is not JSON: {_fix(value)}")


def _check_members(value: list[Any] | tuple[Any, ...] | dict[Any, Any], path: str, depth: int) -> None:
    if not isinstance(value, dict):
        for index, item in enumerate(value):
            if type(item) not in _SCALARS:
                _check(item, f"{path}[{index}]", depth)
        return
    for key, item in value.items():
        if not isinstance(key, str):
            _refuse(path, f"has the key {shown(key)}, and JSON has only strings as keys: pass str(...)")
        if type(item) not in _SCALARS:
            _check(item, f'{path}["{key}"]', depth)


def _name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _fix(value: Any) -> str:
    for kind, fix in FIXES:
        if isinstance(value, kind):
            return fix
    if dataclasses.is_dataclass(value):
        return "pass dataclasses.asdict(...)"
    if hasattr(type(value), "model_dump"):  # of pydantic
        return 'pass .model_dump(mode="json")'
    return "pass strings, numbers, booleans, None, lists and dicts"


def _refuse(path: str, said: str) -> NoReturn:
    raise TypeError(f"{brief(path)} {said}.")


def brief(path: str) -> str:
    """A place in a value, without the middle where it is long: that may be deep, or have long keys."""
    return path if len(path) <= 120 else f"{path[:60]} … {path[-57:]}"
