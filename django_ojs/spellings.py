"""Read the other words that clients use for what the specification names, so that `rules/` sees its words only.

Clients of several generations and languages write one thing in several ways: `max_jobs` for `count`, `replace` for
`cancel_previous`. The tables below have those words. Whoever takes a document from a client calls
the function for its kind, hands the result to `rules/`, and lets `as_written` name faults in the client's own words.
gRPC's messages become requests of the HTTP binding, so what is understood there is understood over gRPC.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from django_ojs.errors import InvalidRequest, OJSError
from django_ojs.jsontext import ExactNumber, is_integer
from django_ojs.messages import Phrase, phrase, reason
from django_ojs.rules import (
    attributes,
    cron,
    durations,
    envelope,
    errorobjects,
    joblogs,
    problems,
    queueconfig,
    ratelimit,
    retrypolicy,
    unique,
    workflows,
)
from django_ojs.rules.attributes import SYSTEM, TOP_LEVEL
from django_ojs.rules.faults import checked, fault, job_fault, retry_fault

if TYPE_CHECKING:
    from django_ojs.models import CronSchedule

T = TypeVar("T")


class Table(NamedTuple):
    """The other words for one kind of thing."""

    place: str  #: where they are read, for the reference
    doors: str
    words: Mapping[str, str]  #: what a client may write -> the word of the specification

    def names(self, canonical: str) -> tuple[str, ...]:
        """What a client may write for a word of the specification: first that word."""
        return (canonical, *(written for written, meant in self.words.items() if meant == canonical))

    def name_in(self, body: Mapping[str, Any], canonical: str) -> str:
        """The name under which a body has this member, `canonical` where it has none. That name beats the others."""
        return next((name for name in self.names(canonical) if body.get(name) is not None), canonical)

    def with_words(self, canonical: Iterable[T]) -> dict[str, T]:
        """These words of the specification by all that a client may write for them."""
        known = {str(word): word for word in canonical}
        return {written: known[meant] for written, meant in self.words.items()} | known


_EVERYWHERE = "HTTP, gRPC, Python"

#: The attributes of a job inside `options`; beside it they are called as the specification calls them. Of two words for
#: `meta` both count, key by key, and the other word's keys lie above.
OPTION = Table(
    "`options` of a job, a step, a workflow or a schedule",
    _EVERYWHERE,
    {"retry_policy": "retry", "delay_until": "scheduled_at", "metadata": "meta"},
)

#: A retry policy (jobs 1.1), wherever one stands. What ends in `_ms` is an integer of milliseconds. The words with
#: capitals are those of the JavaScript client, which leaves them so in the steps of a workflow.
RETRY = Table(
    "`retry` of a job, a step, a schedule or a queue",
    _EVERYWHERE,
    {
        "initial_interval_ms": "initial_interval",
        "initial_delay_ms": "initial_interval",
        "backoff_multiplier": "backoff_coefficient",
        "max_interval_ms": "max_interval",
        "backoff_type": "backoff_strategy",
        "strategy": "backoff_strategy",
        "maxAttempts": "max_attempts",
        "initialInterval": "initial_interval",
        "backoffCoefficient": "backoff_coefficient",
        "maxInterval": "max_interval",
        "nonRetryableErrors": "non_retryable_errors",
        "onExhaustion": "on_exhaustion",
    },
)

#: How often a job is tried, beside its policy: gRPC's field and a published command line. The policy's own beats it.
ATTEMPTS = Table(OPTION.place, _EVERYWHERE, {"max_attempts": "retry.max_attempts"})

#: How the waits between the attempts of a job grow (jobs 1.3).
BACKOFF_STRATEGY = Table("`backoff_strategy` of a retry policy", _EVERYWHERE, {"none": "constant"})

#: A unique policy (jobs 2.1). `period_ms` and `period_seconds` are integers.
UNIQUE = Table(
    "`unique` of a job, a step or a schedule",
    _EVERYWHERE,
    {"period_ms": "period", "period_seconds": "period", "conflict_policy": "on_conflict"},
)

#: What happens where a job with the same key is there already (jobs 2.5).
ON_CONFLICT = Table("`on_conflict` of a unique policy", _EVERYWHERE, {"use_existing": "ignore"})

#: The window of a rate limit (jobs 5.1): the limit itself has one, or its `rate` or `throttle`. The other words are
#: integers.
RATE_LIMIT = Table(
    "`rate_limit` of a job, a step, a schedule or a queue, an override, `rate` and `throttle` of these",
    _EVERYWHERE,
    {"period_ms": "period", "period_seconds": "period"},
)

#: How long such a window is.
RATE_PERIOD = Table(
    "`period` of a rate limit", RATE_LIMIT.doors, {"second": "PT1S", "minute": "PT1M", "hour": "PT1H", "day": "P1D"}
)

#: The cron expression of a schedule (orchestration 2.2). Of several in one body each must say the same.
SCHEDULE = Table("a schedule", _EVERYWHERE, {"expression": "cron", "schedule": "cron"})

#: Whether a schedule makes a job while its last one has not ended (orchestration 2.5).
OVERLAP_POLICY = Table(
    "`overlap_policy` of a schedule", _EVERYWHERE, {"replace": "cancel_previous", "queue": "enqueue"}
)

#: What failed, as a worker reports it (core 8.1). `backtrace` is an array with a text for each frame; some clients send
#: one text, with a frame in each line.
ERROR = Table("`error` of a FAIL", _EVERYWHERE, {"stack_trace": "backtrace"})

#: The jobs of a worker. `job_id` is one id, the others are lists. A number in `active_jobs` is how many there are.
ACTIVE_JOBS = Table("a heartbeat", "HTTP, gRPC", {"active_jobs": "active_job_ids", "job_id": "active_job_ids"})

#: How far a job is (orchestration 5.1): `progress` runs from 0 to 1, the others from 0 to 100.
PROGRESS = Table(
    "a report on progress",
    "HTTP",
    {"percentage": "progress", "progress_percent": "progress", "progress_message": "message"},
)

#: The levels of lines in a job's log, as other languages have them.
LOG_LEVEL = Table(
    "`level` of a line of a job's log, and of a query for lines",
    "HTTP, SSE, Python",
    {"trace": "debug", "notice": "info", "warn": "warning", "fatal": "critical"},
)

#: How workers of other languages name their states in a heartbeat.
WORKER_STATE = Table(
    "`state` of a heartbeat",
    "HTTP, gRPC",
    {"drain": "quiet", "draining": "quiet", "terminating": "terminate", "shutting_down": "terminate"},
)

#: What a FETCH asks for.
FETCH = Table("FETCH", "HTTP, gRPC", {"max_jobs": "count"})

#: Event types as the dashboard and gRPC's clients call them. A filter takes them, and answers have the canonical ones.
EVENT_TYPE = Table(
    "event types of a filter or a webhook",
    "HTTP, SSE, WebSocket, gRPC, Python",
    {
        "job.retried": "job.retrying",
        "job.dead": "job.discarded",
        "worker.deregistered": "worker.terminated",
        "worker.stale": "worker.terminated",
    },
)

#: What `GET /events`, the history of a job and its log are asked for.
EVENT_QUERY = Table(
    "the query of events, and of a job's log",
    "HTTP",
    {
        "type": "types", "event_types": "types", "queue": "queues", "cursor": "after", "last_event_id": "after",
    },
)  # fmt: skip

#: What a stream of events is asked for, and where it begins. `GET /events` calls that `after` where it is no stream.
STREAM_QUERY = Table(
    "the query of an event stream",
    "SSE",
    {"types": "event_types", "type": "event_types", "after": "last_event_id", "cursor": "last_event_id"},
)

#: What a webhook gets.
SUBSCRIPTION = Table("a webhook", "HTTP, Python", {"filters": "filter"})

#: The jobs that a schema is for.
SCHEMA = Table("a schema", "HTTP", {"type": "job_type"})

#: The schema itself, as an operator's tools send it.
ADMIN_SCHEMA = Table("a schema at the operator's door", "HTTP", {"args_schema": "schema"})

#: How long the maintenance will take. Of both words in one body each must say the same.
MAINTENANCE = Table("the maintenance mode", "HTTP", {"duration": "estimated_duration"})

#: How much of a list is asked for.
LIST_QUERY = Table("the query of a list", "HTTP", {"per_page": "limit"})

#: The states of workflows in the words of published cases.
WORKFLOW_STATE = Table("`state` of the list of workflows", "HTTP, gRPC", {"active": "running"})

#: The verbs of a list of operations, in the words of the bindings and of published cases.
VERB = Table(
    "an operation of `ojs_validate --sequence`",
    "command",
    {
        "enqueue": "push", "dequeue": "fetch", "claim": "fetch", "complete": "ack", "nack": "fail",
        "reclaim": "rescue", "heartbeat": "beat",
    },
)  # fmt: skip

#: The members of one operation in such a list.
OPERATION = Table("a member of such an operation", "command", {"op": "operation", "job_id": "job", "to": "state"})

#: What a client says on a WebSocket.
MESSAGE = Table("a message", "WebSocket", {"type": "action", "last_event_id": "after"})

#: What the filter of a subscription has.
FILTER = Table("`filter` or `filters` of a subscription", "WebSocket", {"types": "event_types"})

#: All of them, in the order of the reference.
TABLES = (
    OPTION,
    RETRY,
    ATTEMPTS,
    BACKOFF_STRATEGY,
    UNIQUE,
    ON_CONFLICT,
    RATE_LIMIT,
    RATE_PERIOD,
    SCHEDULE,
    OVERLAP_POLICY,
    ERROR,
    ACTIVE_JOBS,
    PROGRESS,
    LOG_LEVEL,
    WORKER_STATE,
    FETCH,
    EVENT_TYPE,
    EVENT_QUERY,
    STREAM_QUERY,
    SUBSCRIPTION,
    SCHEMA,
    ADMIN_SCHEMA,
    MAINTENANCE,
    LIST_QUERY,
    WORKFLOW_STATE,
    VERB,
    OPERATION,
    MESSAGE,
    FILTER,
)


# Faults in the caller's words


@contextlib.contextmanager
def as_written(written: Callable[[str], str]) -> Iterator[None]:
    """Give the faults that are found inside the paths that the caller wrote.

    Args:
        written: the caller's path for a canonical one.
    """
    try:
        yield
    except OJSError as error:
        rename(error, written)
        raise


def as_named(names: Mapping[str, str]) -> Callable[[str], str]:
    """How the caller wrote a path, given the paths that are written otherwise: what is inside one of them is, too."""

    def written(path: str) -> str:
        if path in names:
            return names[path]
        holder, dot, member = path.rpartition(".")
        return f"{written(holder)}.{member}" if dot else path

    return written if names else str


def rename(error: OJSError, written: Callable[[str], str]) -> None:
    """Let an error of `rules/` name its member as the caller wrote it, in the message and in the details."""
    field = error.details.get("field")
    if not isinstance(field, str) or (own := written(field)) == field:
        return
    error.details["field"] = own
    for entry in error.details.get("validation_errors", ()):
        entry["message"] = entry["message"].replace(entry["path"], written(entry["path"]), 1)
        entry["path"] = written(entry["path"])
    text = _renamed(error.args[0], field, own)
    error.args = (text,)
    error.message = str(text)


def _renamed(text: str, field: str, own: str) -> str:
    """The sentence about `own` instead of `field`, as a `Phrase` if it was one."""
    if isinstance(text, Phrase) and isinstance(inner := text.values.get("problem"), Phrase) and "prefix" in text.values:
        text = inner  # about a job inside something else
    if isinstance(text, Phrase) and "field" in text.values:
        return phrase(text.template, **text.values | {"field": own})
    return text.replace(field, own, 1)


# Jobs and their policies


class _PolicySpelling(NamedTuple):
    """What a kind of policy has of other words, and how they are read."""

    members: Table
    others: frozenset[str]
    readers: Mapping[str, Callable[[Any], str]]  #: of members whose values are written in another way, too
    values: Mapping[str, Mapping[str, str]]  #: other values, by the canonical names of their members
    fault: Callable[[str, str, Any], OJSError]

    def is_canonical(self, given: Mapping[str, Any]) -> bool:
        """Whether a policy has no other words."""
        if not self.others.isdisjoint(given):
            return False
        for name, others in self.values.items():
            if type(value := given.get(name)) is str and value in others:
                return False
        return True

    def canonical(self, given: dict[str, Any], path: str, names: dict[str, str], counts: bool = True) -> dict[str, Any]:
        """A policy in the words of the specification; `names` as for `job`.

        Values of a policy that does not count are not looked at.
        """
        if self.is_canonical(given):
            return given
        words, place = self.members.words, as_named(names)(path)
        found = {name: value for name, value in given.items() if name not in words}
        for canonical in dict.fromkeys(words.values()):
            written = self.members.name_in(given, canonical)
            if written == canonical:
                continue
            read = self.readers.get(written)
            found[canonical] = value = given[written]
            names[f"{path}.{canonical}"] = f"{place}.{written}"
            if counts and read is not None:
                found[canonical] = checked(read, value, f"{place}.{written}", self.fault)
        for name, others in self.values.items():
            if isinstance(value := found.get(name), str):
                found[name] = others.get(value, value)
        return found

    def read(self, parse: Callable[[Any, str], T], given: Any, path: str) -> T:
        """`parse` of a policy in any of its spellings."""
        if not isinstance(given, dict) or self.is_canonical(given):
            return parse(given, path)
        names: dict[str, str] = {}
        canonical = self.canonical(given, path, names)
        with as_written(as_named(names)):
            return parse(canonical, path)


class _RateLimitSpelling(_PolicySpelling):
    """The same for a rate limit, whose `rate` and `throttle` may be windows with words of their own."""

    def is_canonical(self, given: Mapping[str, Any]) -> bool:
        if not _PolicySpelling.is_canonical(self, given):
            return False
        for name in _WINDOWS:
            if isinstance(window := given.get(name), dict) and not _PolicySpelling.is_canonical(self, window):
                return False
        return True

    def canonical(self, given: dict[str, Any], path: str, names: dict[str, str], counts: bool = True) -> dict[str, Any]:
        if self.is_canonical(given):
            return given
        rate = given.get("rate")
        flat = given.get("limit") if rate is None else None if isinstance(rate, dict) else rate
        found = dict(_canonical(self, given, path, names, counts and flat is not None))
        for name in _WINDOWS:
            if isinstance(window := given.get(name), dict):
                found[name] = _canonical(self, window, f"{path}.{name}", names, counts)
        return found


_canonical = _PolicySpelling.canonical
_WINDOWS = ("rate", "throttle")


def _milliseconds(value: object) -> str:
    if is_integer(value) and value > 0:
        return durations.format_iso(min(int(value), durations.MAX_MS))
    raise ValueError(phrase("must be a positive integer of milliseconds"))


def _whole(unit_ms: int) -> Callable[[object], str]:
    def read(value: object) -> str:
        if is_integer(value) and value > 0:
            return durations.format_iso(min(int(value) * unit_ms, durations.MAX_MS))
        raise ValueError(phrase("must be a positive integer"))

    return read


def _period(unit_ms: int) -> Callable[[object], str]:
    def read(value: object) -> str:
        most = ratelimit.MAX_NUMBER
        if is_integer(value) and 1 <= value <= most:
            return durations.format_iso(min(int(value) * unit_ms, durations.MAX_MS))
        raise ValueError(phrase("must be an integer from %(minimum)s to %(maximum)s", minimum=1, maximum=most))

    return read


_RETRY = _PolicySpelling(
    RETRY,
    frozenset(RETRY.words),
    dict.fromkeys(("initial_interval_ms", "initial_delay_ms", "max_interval_ms"), _milliseconds),
    {"backoff_strategy": BACKOFF_STRATEGY.words},
    retry_fault,
)
_UNIQUE = _PolicySpelling(
    UNIQUE,
    frozenset(UNIQUE.words),
    {"period_ms": _whole(1), "period_seconds": _whole(1000)},
    {"on_conflict": ON_CONFLICT.words},
    partial(fault, validation="unique_policy"),
)
_RATE_LIMIT = _RateLimitSpelling(
    RATE_LIMIT,
    frozenset(RATE_LIMIT.words),
    {"period_ms": _period(1), "period_seconds": _period(1000)},
    {"period": RATE_PERIOD.words},
    job_fault,
)
_RATE_LIMIT_OF_OPERATOR = _RATE_LIMIT._replace(fault=fault)
#: The attributes with a policy.
_POLICIES: dict[str, _PolicySpelling] = {"retry": _RETRY, "unique": _UNIQUE, "rate_limit": _RATE_LIMIT}
_PLACES = tuple(_POLICIES.items())
#: An envelope without these has nothing to read here: most have none.
_CARRIERS = frozenset({*_POLICIES, "options"})
_IN_OPTIONS: Mapping[str, str] = {**OPTION.words, **ATTEMPTS.words}
_OPTION_WORDS = frozenset(_IN_OPTIONS)
#: What has a meaning in the `options` of a job.
OPTIONS = attributes.OPTIONS | _OPTION_WORDS


def read_job(document: Any, *, now: dt.datetime, index: int | None = None) -> envelope.JobSpec:
    """`rules.envelope.parse` of a job in any of its spellings. Answers echo its policies as they were sent, and faults
    and warnings name what the caller wrote."""
    return envelope.parse(document, now=now, index=index, respelled=_respelled)


def _respelled(document: dict[str, Any], read: envelope.ReadJob) -> envelope.JobSpec:
    """`read` of a job in the words of the specification."""
    if _CARRIERS.isdisjoint(document) or _is_canonical(document):
        return read(document)
    names: dict[str, str] = {}
    sent = _with_options(document, names)  # its policies are echoed
    canonical = job(sent, names)
    written = as_named(names)
    with as_written(written):
        spec = read(canonical, None if canonical is sent else sent)
    if spec.warnings:
        spec.warnings = tuple(_rewritten(entry, written) for entry in spec.warnings)
    return spec


def _rewritten(entry: dict[str, Any], written: Callable[[str], str]) -> dict[str, Any]:
    """A warning about the path that the caller wrote."""
    path, own = entry["path"], written(entry["path"])
    return {**entry, "path": own, "message": entry["message"].replace(path, own, 1)}


def _is_canonical(document: dict[str, Any]) -> bool:
    """Whether neither `options` nor a policy of the job has another word, which is so for most jobs."""
    options = document.get("options")
    if type(options) is dict and not _OPTION_WORDS.isdisjoint(options):
        return False
    for holder in (document, options) if type(options) is dict else (document,):
        for name, kind in _PLACES:
            policy = holder.get(name)
            if policy is not None and type(policy) is dict and not kind.is_canonical(policy):
                return False
    return True


def job(document: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The envelope with its options and policies in the words of the specification; itself where it has no others.

    Args:
        names: takes the caller's path of each member that is called otherwise here.

    Raises InvalidRetryPolicy or InvalidRequest for a value that its spelling does not allow, in a policy that counts.
    """
    document = _with_options(document, names)
    if _is_canonical(document):
        return document
    found = dict(document)
    options = document.get("options")
    if isinstance(options, dict):
        found["options"] = options = dict(options)
    else:
        options = {}
    for name, kind in _POLICIES.items():
        if isinstance(policy := options.get(name), dict):
            options[name] = kind.canonical(policy, f"options.{name}", names)
        if isinstance(policy := document.get(name), dict):
            found[name] = kind.canonical(policy, name, names, options.get(name) is None)
    return found


def _with_options(document: dict[str, Any], names: dict[str, str], path: str = "") -> dict[str, Any]:
    """A job, a step or a workflow with the members of its `options` in the words of the specification; itself where it
    has no others. `names` as for `job`; `path` is where it stands, with a full stop."""
    options = document.get("options")
    if not isinstance(options, dict) or _OPTION_WORDS.isdisjoint(options):
        return document
    found = {name: value for name, value in options.items() if name not in _OPTION_WORDS}
    for written, canonical in OPTION.words.items():
        value, below = options.get(written), found.get(canonical)
        if value is None:
            continue
        if canonical == "meta" and isinstance(below, dict) and isinstance(value, dict):
            found[canonical] = {**below, **value}
        elif below is None or (canonical == "meta" and isinstance(below, dict)):
            found[canonical] = value
            names[f"{path}options.{canonical}"] = f"{path}options.{written}"
    if (most := options.get("max_attempts")) is not None:
        _set_attempts(most, document, found, names, path)
    return {**document, "options": found}


def _set_attempts(
    most: Any, document: dict[str, Any], options: dict[str, Any], names: dict[str, str], path: str
) -> None:
    """Put `max_attempts` of the options into the policy: that of the options, which may say how many itself, or that
    beside them. The other arguments as for `_with_options`; `options` are those in the words of the specification."""
    policy = options.get("retry")
    if policy is None:
        policy = {} if document.get("retry") is None else document["retry"]
        names[f"{path}options.retry"] = f"{path}retry"
    elif isinstance(policy, dict) and policy.get(RETRY.name_in(policy, "max_attempts")) is not None:
        return
    if isinstance(policy, dict):
        options["retry"] = {**policy, "max_attempts": most}
        names[f"{path}options.retry.max_attempts"] = f"{path}options.max_attempts"


def rivals(name: str, value: object = None) -> frozenset[str]:
    """The members of a job's `options` that say the same as this one, itself included; for a retry policy that says how
    many attempts there are, `max_attempts`, too."""
    unit = name.removesuffix("_ms")
    same = {unit, f"{unit}_ms"} if unit in attributes.TIMEOUTS else {*OPTION.names(OPTION.words.get(name, name))}
    counts = "retry" in same and isinstance(value, dict) and value.get(RETRY.name_in(value, "max_attempts")) is not None
    return frozenset(same | {"max_attempts"} if counts else same)


def metas(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The objects that `meta` of a job is made of; keys of a later one lie above those before."""
    options = document.get("options")
    found = [document.get("meta")]
    if isinstance(options, Mapping):
        found += [options.get(name) for name in OPTION.names("meta")]
    return [meta for meta in found if isinstance(meta, Mapping)]


def with_meta(document: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The envelope with these keys in its `meta`, whatever it says there of its own."""
    options = document.get("options") or {}
    above = {name: {**options[name], **more} for name in OPTION.names("meta") if options.get(name)}
    found = {**document, "meta": {**(document.get("meta") or {}), **more}}
    return {**found, "options": {**options, **above}} if above else found


def read_retry(given: Any, path: str = "retry") -> dict[str, Any]:
    """`rules.retrypolicy.parse` of a policy in any of its spellings."""
    return _RETRY.read(retrypolicy.parse, given, path)


def retry_below(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """What counts of a policy below another one that is merged with it: not what that one says in another word."""
    return _without_rivals(below, above, RETRY)


def read_unique(given: Any, path: str = "unique") -> unique.UniquePolicy:
    """`rules.unique.parse` of a policy in any of its spellings."""
    return _UNIQUE.read(unique.parse, given, path)


def read_rate_limit(given: Any, path: str = "rate_limit") -> ratelimit.RatePolicy:
    """`rules.ratelimit.parse_of_job` of a policy in any of its spellings."""
    return _RATE_LIMIT.read(ratelimit.parse_of_job, given, path)


def read_override(given: Any) -> ratelimit.RatePolicy:
    """`rules.ratelimit.parse` of what an operator lays over the limits of a key, in any of its spellings."""
    return _RATE_LIMIT_OF_OPERATOR.read(partial(ratelimit.parse, fault=fault), given, "rate_limit")


#: What a rate limit may have on the wire.
RATE_LIMIT_MEMBERS = ratelimit.MEMBERS | RATE_LIMIT.words.keys()


def read_workflow(document: object, *, now: dt.datetime) -> workflows.Plan:
    """`rules.workflows.parse` of a workflow with options and jobs in any of their spellings. Faults name what the
    caller wrote."""
    names: dict[str, str] = {}
    canonical = _workflow(document, "$", names)
    with as_written(as_named(names)):
        return workflows.parse(canonical, now=now, read=read_job)


def _workflow(document: Any, path: str, names: dict[str, str], inherited: Iterable[str] = (), depth: int = 0) -> Any:
    """A workflow, or an item of one, with all `options` in the words of the specification.

    Args:
        inherited: the other words in the options of the workflows around it, which become options of each job.
    """
    if not isinstance(document, dict) or depth > workflows.MAX_DEPTH:  # which is refused
        return document
    found = _with_options(document, names, f"{path}.")
    options = found.get("options")
    options = options if isinstance(options, dict) else {}
    passed = [name for name in inherited if options.get(_IN_OPTIONS[name].partition(".")[0]) is None]
    for name in passed:
        names[f"{path}.options.{_IN_OPTIONS[name]}"] = f"{path}.options.{name}"
    own = document.get("options")
    passed += [name for name in _IN_OPTIONS if isinstance(own, dict) and own.get(name) is not None]
    parts: dict[str, Any] = {}
    for key in ("steps", "jobs"):
        if isinstance(items := document.get(key), list):
            parts[key] = [
                _workflow(item, f"{path}.{key}[{index}]", names, passed, depth + 1) for index, item in enumerate(items)
            ]
    if isinstance(callbacks := document.get("callbacks"), dict):
        parts["callbacks"] = {
            name: _workflow(item, f"{path}.callbacks.{name}", names, passed, depth + 1)
            for name, item in callbacks.items()
        }
    return {**found, **parts} if parts else found


def unknown_in_workflow(document: Mapping[str, Any]) -> Iterator[problems.Unknown]:
    """The members of a workflow that mean nothing, at the paths that the caller wrote."""
    names: dict[str, str] = {}
    canonical = _workflow(document, "$", names)
    written = as_named(names)
    for unknown in not_spellings(problems.unknown_in_workflow(canonical)):
        yield unknown._replace(path=written(unknown.path))


def check_queue(config: object) -> None:
    """`rules.queueconfig.check` of a configuration in any of its spellings."""
    names: dict[str, str] = {}
    if isinstance(config, dict):
        try:
            config = _queue(config, names)
        except OJSError as error:  # a configuration has no 422
            raise InvalidRequest(reason(error), details=error.details) from error
    with as_written(as_named(names)):
        queueconfig.check(config)


#: The policies of a queue.
_OF_QUEUES: dict[str, _PolicySpelling] = {"default_retry": _RETRY, "rate_limit": _RATE_LIMIT_OF_OPERATOR}
#: Members of a configuration that mean the same as the member at a path in it.
_TWICE = {
    "max_size": ("backpressure", "max_depth"), "max_size_bytes": ("backpressure", "max_size_bytes"),
    "overflow_policy": ("backpressure", "strategy"), "concurrency": ("rate_limit", "concurrency"),
    "dead_letter_ttl": ("dead_letter", "retention", "max_age"),
    "dead_letter_max_size": ("dead_letter", "retention", "max_count"),
}  # fmt: skip
#: Members of a rate limit that are forms of the same limit (jobs 5.1). Where a policy has both, the first counts.
_FORMS = (("rate", "limit"), ("throttle", "max_per_second"))


def _queue(config: Mapping[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """A configuration with its policies in the words of the specification; `names` as for `job`."""
    policies = {
        name: kind.canonical(config[name], name, names)
        for name, kind in _OF_QUEUES.items()
        if isinstance(config.get(name), dict)
    }
    return {**config, **policies}


def rate_policy(config: Mapping[str, Any]) -> ratelimit.RatePolicy:
    """`rules.queueconfig.rate_policy` of a configuration in any of its spellings."""
    given = config.get("rate_limit")
    if isinstance(given, dict) and not _RATE_LIMIT.is_canonical(given):
        config = {**config, "rate_limit": _RATE_LIMIT_OF_OPERATOR.canonical(given, "rate_limit", {})}
    return queueconfig.rate_policy(config)


def merge_queue(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`rules.queueconfig.merge` of configurations in any of their spellings: a member takes the place of all that mean
    the same."""
    kept = dict(base)
    for name, kind in _OF_QUEUES.items():
        below, above = base.get(name), over.get(name)
        if isinstance(below, dict) and isinstance(above, dict):
            kept[name] = _without_rivals(below, above, kind.members)
            if kind.members is RATE_LIMIT:
                kept[name] = _without_other_forms(kept[name], above)
            for window in _WINDOWS if kind.members is RATE_LIMIT else ():
                if isinstance(below.get(window), dict) and isinstance(above.get(window), dict):
                    kept[name][window] = _without_rivals(below[window], above[window], kind.members)
    for name, path in _TWICE.items():
        if queueconfig.deep(over, *path) is not None:
            kept.pop(name, None)
        elif over.get(name) is not None and queueconfig.deep(kept, *path) is not None:
            kept = _without_leaf(kept, path)
    return queueconfig.merge(kept, over)


def _without_other_forms(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a rate limit without those that say in another form what one above them says."""
    said = {form for forms in _FORMS if any(above.get(one) is not None for one in forms) for form in forms}
    periods, rate = {*RATE_LIMIT.names("period")}, below.get("rate")
    if isinstance(above.get("rate"), dict):  # which has the period inside
        said |= periods
    elif isinstance(rate, dict) and "rate" not in said and any(above.get(name) is not None for name in periods):
        below = {**below, **{name: value for name, value in rate.items() if name not in periods}}
        said = {"rate"}
    return {name: value for name, value in below.items() if name in above or name not in said}


def _without_leaf(config: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """A copy without the member at this path, and without the objects that held only it."""
    first, *rest = path
    left = _without_leaf(config[first], rest) if rest else {}
    return {name: value for name, value in config.items() if name != first} | ({first: left} if left else {})


def _without_rivals(below: Mapping[str, Any], above: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """The members of a policy without those that say what one above them says in another word."""
    said = {table.words.get(name, name) for name in above}
    return {name: value for name, value in below.items() if name in above or table.words.get(name, name) not in said}


def validate(document: object, *, complete: bool = False, arguments: bool = True) -> list[problems.Problem]:
    """`rules.problems.validate` of a job in any of its spellings."""
    found: list[problems.Problem] = []
    names: dict[str, str] = {}
    canonical = document
    while isinstance(document, dict):
        try:
            canonical = job(document, names)
            break
        except OJSError as error:
            found.append(problems.of_error(error))
            document = _without(document, str(error.details["field"]).split("."))
    more = problems.validate(canonical, complete=complete, arguments=arguments)
    written = as_named(names)
    known = {one.path for one in found}  # which is not there for `rules/`, and so it may miss it
    return found + [_problem(one, written(one.path)) for one in more if written(one.path) not in known]


def _problem(one: problems.Problem, path: str) -> problems.Problem:
    """The problem at the path that the caller wrote."""
    return one if path == one.path else one._replace(path=path, hint=one.hint.replace(one.path, path, 1))


def _without(document: dict[str, Any], path: list[str]) -> dict[str, Any]:
    """A copy without the member at this path."""
    first, *rest = path
    if rest:
        return {**document, first: _without(document[first], rest)}
    return {name: value for name, value in document.items() if name != first}


def not_spellings(found: Iterable[problems.Unknown]) -> Iterator[problems.Unknown]:
    """The members that mean nothing, without those that another word stands for."""
    for unknown in found:
        holder = unknown.path.rpartition(".")[0]
        name = "retry" if holder == "OJS['RETRY']" else holder.rpartition(".")[2]
        name = "rate_limit" if name in _WINDOWS else name
        if name not in _POLICIES or unknown.name not in _POLICIES[name].members.words:
            yield unknown


# Schedules

#: The members of its job that a schedule may have beside its own.
_FLAT = TOP_LEVEL - SYSTEM - {"id", "specversion"}


class SpelledSchedule(NamedTuple):
    """The registration of a schedule in the words of the specification, and how the client wrote each path of it."""

    body: dict[str, Any]
    written: Callable[[str], str]


def schedule(body: Mapping[str, Any]) -> SpelledSchedule:
    """The registration with `cron`, with its job under `job_template`, and with a known `overlap_policy`.

    Raises InvalidRequest for two members that say different things.
    """
    found = {name: value for name, value in body.items() if name not in SCHEDULE.words and name not in _FLAT}
    expression = _one(body, ("expression", "cron", "schedule"))
    found.pop("cron", None)
    if expression:
        found["cron"] = body[expression]
    policy = body.get("overlap_policy")
    if isinstance(policy, str):
        found["overlap_policy"] = OVERLAP_POLICY.words.get(policy, policy)
    flat = {name: value for name, value in body.items() if name in _FLAT and value is not None}
    nested = body.get("job_template")
    inner = nested if isinstance(nested, dict) else {}
    for name in sorted(flat):
        if inner.get(name) not in (None, flat[name]):
            raise _contradiction(name, f"job_template.{name}", inner[name])
    if flat and (nested is None or isinstance(nested, dict)):
        found["job_template"] = {**inner, **flat}

    def written(path: str) -> str:
        if path == "cron":
            return expression or "cron"
        head, dot, rest = path.partition(".")
        if head != "job_template" or not dot:
            return path
        member = rest.partition(".")[0]
        return rest if member in flat or not inner else path

    return SpelledSchedule(found, written)


def read_schedule(body: Mapping[str, Any], *, now: dt.datetime, base: CronSchedule | None = None) -> cron.CronSpec:
    """`rules.cron.parse` of a registration in any of its spellings. Faults name what the caller wrote."""
    found = schedule(body)
    with as_written(found.written):
        return cron.parse(found.body, now=now, base=base, read=read_job, rivals=rivals)


def unknown_in_schedule(body: Mapping[str, Any]) -> Iterator[problems.Unknown]:
    """The members of a registration that mean nothing, at the paths that the caller wrote."""
    found = schedule(body)
    names: dict[str, str] = {}
    template = found.body.get("job_template")
    if isinstance(template, dict):
        found.body["job_template"] = _with_options(template, names, "job_template.")
    written = as_named(names)
    for unknown in not_spellings(problems.unknown_in_schedule(found.body)):
        yield unknown._replace(path=found.written(written(unknown.path)))


def _one(body: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """The first of these names that has a value, '' without one; all that have one must have the same."""
    given = [name for name in names if body.get(name) is not None]
    for other in given[1:]:
        if body[other] != body[given[0]]:
            raise _contradiction(given[0], other, body[other])
    return given[0] if given else ""


def _contradiction(field: str, other: str, received: Any) -> InvalidRequest:
    return fault(other, phrase("must not say anything else than %(field)s; give one of them", field=field), received)


# What workers report


def read_error(error: object, *, store_backtrace: bool = True) -> dict[str, Any]:
    """`rules.errorobjects.normalise` of an error in any of its spellings."""
    names: dict[str, str] = {}
    if isinstance(error, dict):
        if not ERROR.words.keys().isdisjoint(error):
            written = ERROR.name_in(error, "backtrace")
            frames = error.get(written)
            error = {name: value for name, value in error.items() if name not in ERROR.words} | {"backtrace": frames}
            names["error.backtrace"] = f"error.{written}"
        if isinstance(text := error.get("backtrace"), str):
            error = {**error, "backtrace": text.splitlines()}
    with as_written(as_named(names)) if names else contextlib.nullcontext():
        return errorobjects.normalise(error, store_backtrace=store_backtrace)


class ActiveJobs(NamedTuple):
    """The jobs of a heartbeat, unchecked: their ids, how many there are, and the member that has the ids."""

    ids: Any
    count: Any
    written: str


def active_jobs(body: Mapping[str, Any]) -> ActiveJobs:
    """The jobs that a worker says it holds."""
    count = body.get("active_jobs")
    if is_integer(count):
        body = {name: value for name, value in body.items() if name != "active_jobs"}
    else:
        count = None
    written = ACTIVE_JOBS.name_in(body, "active_job_ids")
    ids = body.get(written)
    return ActiveJobs([ids] if written == "job_id" else ids, count, written)


def percent(body: Mapping[str, Any]) -> float | None:
    """How far a job is by a report, in percent; None where the report does not say. Raises InvalidRequest."""
    written = PROGRESS.name_in(body, "progress")
    value = body.get(written)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | ExactNumber):
        raise fault(written, phrase("must be a number"), value)
    return float(min(max(value, 0), 100)) * (1 if written in PROGRESS.words else 100)


def read_log_level(word: str) -> int:
    """`rules.joblogs.level_of` of a level in any of its spellings. Raises ValueError."""
    return joblogs.level_of(LOG_LEVEL.words.get(word.lower(), word))


# Events


def event_types(names: Iterable[str]) -> list[str]:
    """The event types of a filter, which may end in `*`, by the names of the specification; without empty ones."""
    return [EVENT_TYPE.words.get(name, name) for name in names if name]


# Lists of operations


def operations(given: object) -> object:
    """A list of operations, or an object with one, in the verbs and members of the specification."""
    if isinstance(given, dict):
        return {**given, "operations": operations(given.get("operations"))}
    return [_operation(entry) for entry in given] if isinstance(given, list) else given


def _operation(entry: object) -> object:
    if isinstance(entry, str):
        return VERB.words.get(entry.lower(), entry)
    if not isinstance(entry, dict):
        return entry
    found = {OPERATION.words.get(name, name): value for name, value in entry.items()}
    found |= {name: value for name, value in entry.items() if name not in OPERATION.words}
    word = found.get("operation")
    return found | {"operation": VERB.words.get(word.lower(), word)} if isinstance(word, str) else found
