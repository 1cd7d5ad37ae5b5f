"""The attributes of a job as clients give them: where each is read from, what it may say, how large it may be.

A value in `options` comes before one at the top level, and null counts as absent (binding 3.2). Each attribute is read
and checked by one function (3.1 to 3.3). It takes the `AttributeSource`, returns the value that the server works with,
and raises InvalidPayload with the client's own path. What is echoed goes into `extra` as it was sent.

Each timeout has two members, and both are the specification's own: the core has seconds, the HTTP binding adds
milliseconds under the name with `_ms` (3.2), and answers repeat the one that was sent (3.5).
"""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from django_ojs import jsontext
from django_ojs.errors import MetadataTooLarge, PayloadTooLarge
from django_ojs.jsontext import byte_length, is_integer
from django_ojs.messages import Phrase, phrase, reason
from django_ojs.rules import durations, names, ratelimit, retrypolicy
from django_ojs.rules import unique as unique_policies
from django_ojs.rules.faults import checked, job_fault, shorten
from django_ojs.rules.ids import new_job_id, parse_id

SPECVERSION = "1.0.0-rc.1"
DEFAULT_QUEUE = "default"
MAX_RESULT_TTL = 2**31 - 1  #: seconds; what the column holds

_SPECVERSIONS = frozenset({SPECVERSION, "1.0", "1.0.0"})
_VERSION_SUFFIX = re.compile(r"(.*)@([0-9]+(?:\.[0-9]+)?)", re.DOTALL)

#: Attributes that the server sets (binding 3.1). A client's value of them is dropped without a word.
SYSTEM = frozenset(
    {
        *("state", "attempt", "max_attempts", "created_at", "enqueued_at", "started_at", "completed_at"),
        *("cancelled_at", "discarded_at", "activated_at", "error", "errors", "result", "next_attempt_at"),
        *("next_retry_at", "retry_delay_ms", "parent_results", "previous_state", "worker_id", "workflow_id"),
        *("result_stored_at", "result_expires_at", "result_size_bytes", "checkpoint", "last_checkpoint"),
    }
)

OTHER_TIMEOUTS = ("total_timeout", "enqueue_ttl", "heartbeat_timeout", "grace_period")
#: Each has two members: one of seconds and, with `_ms`, one of milliseconds.
TIMEOUTS = ("timeout", "visibility_timeout", *OTHER_TIMEOUTS)

#: What a job may have in `options`, and beside it.
OPTIONS = frozenset(
    {
        *("meta", "queue", "priority", "tags", "unique", "expires_at", "rate_limit", "pending", "schema", "version"),
        "result_ttl",
        *("scheduled_at", "retry"),
        *TIMEOUTS,
        *(f"{name}_ms" for name in TIMEOUTS),
    }
)
TOP_LEVEL = OPTIONS | SYSTEM | {"specversion", "id", "type", "args", "options"}  #: not copied as unknown


class Found(NamedTuple):
    """A value and the client's path to it. The value is None where the client gave none."""

    value: Any
    path: str


@lru_cache(maxsize=64)
def _absent(path: str) -> Found:
    return Found(None, path)


class AttributeSource:
    """A client's document with its `options`. Neither is changed."""

    __slots__ = ("document", "options")

    def __init__(self, document: dict[str, Any]) -> None:
        options = document.get("options")
        if options is not None and not isinstance(options, dict):
            raise job_fault("options", phrase("must be an object"), options)
        self.document = document
        self.options: dict[str, Any] = options or {}

    def top(self, name: str) -> Found:
        return Found(self.document.get(name), name)

    def find(self, *in_options: str, top: tuple[str, ...] = ()) -> Found:
        """The first of the names that has a value: in `options`, then at the top level (default: the first name)."""
        if self.options:
            for name in in_options:
                value = self.options.get(name)
                if value is not None:
                    return Found(value, f"options.{name}")
        for name in top or in_options[:1]:
            value = self.document.get(name)
            if value is not None:
                return Found(value, name)
        return _absent(in_options[0])

    def unknown(self) -> dict[str, Any]:
        """The members that no rule of ours names, in their places: at the top level, or under `options` (core 5.5)."""
        kept = {name: value for name, value in self.document.items() if name not in TOP_LEVEL}
        if self.options:
            rest = {name: value for name, value in self.options.items() if name not in OPTIONS}
            if rest:
                kept["options"] = rest
        return kept


class UniqueJob(Protocol):
    """What a unique key is made of."""

    type: str
    queue: str
    args: list[Any]
    meta: dict[str, Any]
    extra: dict[str, Any]


def check_specversion(source: AttributeSource) -> None:
    value = source.document.get("specversion")
    if value is not None and not (isinstance(value, str) and value in _SPECVERSIONS):
        raise job_fault(
            "specversion",
            phrase("must be %(specversion)s (1.0 and 1.0.0 are read alike)", specversion=SPECVERSION),
            value,
        )


def job_id(document: Mapping[str, Any]) -> uuid.UUID:
    """The client's UUIDv7, or a new one where the client gave none."""
    value = document.get("id")
    if value is None:
        return new_job_id()
    found = parse_id(value)
    if found is None:
        example = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"
        raise job_fault(
            "id",
            phrase("must be a UUIDv7 in lowercase such as %(example)s; leave it out to get one", example=example),
            value,
        )
    return found


def job_type(source: AttributeSource, extra: dict[str, Any], hyphens: bool) -> str:
    """The job type; a `@major.minor` at its end becomes the version where the client names none (jobs 9.3)."""
    value, path = source.top("type")
    if value is None:
        message = phrase("must name the job type, such as email.send")
        raise job_fault(path, message, canonical="INVALID_JOB_TYPE", validation="required")
    name = value
    if isinstance(value, str) and "@" in value and (found := _VERSION_SUFFIX.fullmatch(value)):
        name = found[1]
        extra.setdefault("version", found[2])
    try:
        return names.check_type(name, hyphens)
    except names.NameTooLong as error:
        raise job_fault(path, reason(error), value, canonical="JOB_TYPE_TOO_LONG") from error
    except ValueError as error:
        raise job_fault(path, reason(error), value, canonical="INVALID_JOB_TYPE") from error


def version(source: AttributeSource, extra: dict[str, Any]) -> None:
    value, path = source.find("version")
    if value is None:
        return
    if not (value if isinstance(value, str) else is_integer(value)):
        raise job_fault(path, phrase('must be an integer or a string such as "2.0"'), value)
    extra["version"] = value


def queue(source: AttributeSource) -> str:
    value, path = source.find("queue")
    if value is None:
        return DEFAULT_QUEUE
    try:
        return names.check_queue(value)
    except names.NameTooLong as error:
        raise job_fault(path, reason(error), value, canonical="QUEUE_NAME_TOO_LONG") from error
    except ValueError as error:
        raise job_fault(path, reason(error), value, canonical="INVALID_QUEUE") from error


def args(document: Mapping[str, Any]) -> list[Any]:
    value = document.get("args")
    if isinstance(value, list):
        return value
    validation = "required" if value is None else "invalid"
    message = phrase("must be an array of JSON values, such as []")
    raise job_fault("args", message, value, canonical="INVALID_ARGS", validation=validation)


def meta(document: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """`meta`, with the keys of `options.meta` laid over it."""
    given = document.get("meta")
    if given is None and not options:
        return {}
    merged: dict[str, Any] = {}
    for value, path in ((given, "meta"), (options.get("meta"), "options.meta")):
        if value is None:
            continue
        if not isinstance(value, dict):
            raise job_fault(path, phrase("must be an object"), value, canonical="INVALID_METADATA")
        merged = {**merged, **value} if merged else value
    return merged


def job_priority(source: AttributeSource, levels: Mapping[str, int]) -> int:
    value, path = source.find("priority")
    if value is None:
        return 0
    try:
        return parse_priority(value, levels)
    except ValueError as error:
        raise job_fault(path, reason(error), value) from error


def pending(source: AttributeSource) -> bool:
    value, path = source.find("pending")
    if value is None or isinstance(value, bool):
        return bool(value)
    raise job_fault(path, phrase("must be true or false"), value)


def scheduled_at(source: AttributeSource, extra: dict[str, Any], now: dt.datetime) -> dt.datetime | None:
    """The earliest start; a relative time is allowed inside `options` and echoed resolved."""
    return _instant(source.find("scheduled_at"), "scheduled_at", extra, now)


def expires_at(source: AttributeSource, extra: dict[str, Any], now: dt.datetime) -> dt.datetime | None:
    return _instant(source.find("expires_at"), "expires_at", extra, now)


def retry_policy(source: AttributeSource, extra: dict[str, Any]) -> dict[str, Any]:
    """The given fields of the retry policy by their names in `RetryPolicy`; `{}` without one."""
    value, path = source.find("retry")
    if value is None:
        return {}
    parsed = retrypolicy.parse(value, path)
    extra["retry"] = value
    return parsed


def unique(source: AttributeSource, extra: dict[str, Any]) -> dict[str, Any] | None:
    value, path = source.find("unique")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise job_fault(path, phrase('must be an object such as {"keys": ["type", "args"]}'), value)
    extra["unique"] = value
    return value


def unique_policy(source: AttributeSource) -> unique_policies.UniquePolicy | None:
    """The policy that `unique` means. InvalidRequest for a malformed one (jobs 2.1)."""
    value, path = source.find("unique")
    return None if value is None else unique_policies.parse(value, path)


def unique_key(policy: unique_policies.UniquePolicy, path: str, job: UniqueJob) -> str:
    """The key under which the policy, which the client gave at `path`, looks for other jobs."""
    return unique_policies.key(policy, job.type, job.queue, job.args, job.meta, job.extra.get("version"), path)


def result_ttl(source: AttributeSource, extra: dict[str, Any]) -> int | None:
    """Seconds for which the result is kept: 0 not at all, -1 for ever; None: the site's own (jobs 8)."""
    value, path = source.find("result_ttl")
    if value is None:
        return None
    if not is_integer(value) or not -1 <= value <= MAX_RESULT_TTL:
        raise job_fault(
            path, phrase("must be an integer of seconds, 0 to keep nothing or -1 to keep it for ever"), value
        )
    extra["result_ttl"] = value
    return int(value)


def schema(source: AttributeSource, extra: dict[str, Any]) -> None:
    value, path = source.find("schema")
    if value is None:
        return
    if not names.is_schema_uri(value):
        raise job_fault(path, phrase("must be a URI such as urn:ojs:schema:email.send:v1"), value)
    extra["schema"] = value


def tags(source: AttributeSource, extra: dict[str, Any]) -> None:
    value, path = source.find("tags")
    if value is None:
        return
    if not (isinstance(value, list) and all(isinstance(tag, str) for tag in value)):
        raise job_fault(path, phrase("must be an array of strings"), value)
    extra["tags"] = value


def rate_limit(source: AttributeSource, extra: dict[str, Any]) -> ratelimit.RatePolicy | None:
    value, path = source.find("rate_limit")
    if value is None:
        return None
    policy = ratelimit.parse_of_job(value, path)
    extra["rate_limit"] = value
    return policy


def _instant(found: tuple[Any, str], name: str, extra: dict[str, Any], now: dt.datetime) -> dt.datetime | None:
    value, path = found
    if value is None:
        return None
    try:
        relative = durations.resolve_relative(value, now) if path != name and isinstance(value, str) else None
        instant = durations.nearest_instant(value) if relative is None else relative
    except ValueError as error:
        raise job_fault(path, reason(error), value) from error
    extra[name] = value if relative is None else durations.format_instant(relative)
    return instant


#: The member of `meta` in which a client says what its codecs did to the arguments, such as encrypt them.
ENCODINGS = "ojs.codec.encodings"


def is_encoded(meta: Mapping[str, Any]) -> bool:
    """Whether a codec changed the arguments: then they fit no schema, and the same arguments may differ between jobs.

    The client says so in `meta`: `ojs_encoded` is true, or `ojs.codec.encodings` names a codec.
    """
    encodings = meta.get(ENCODINGS)
    return meta.get("ojs_encoded") is True or (isinstance(encodings, list | str) and bool(encodings))


# Priorities: an integer from -100 to 100, higher first, or the name of a level (jobs 3, L4-PRI-001).


MIN_PRIORITY, MAX_PRIORITY = -100, 100


def parse_priority(value: object, levels: Mapping[str, int]) -> int:
    """The number of a priority. `5.0` is an integer, `true` is not; case does not matter in names.

    ValueError for everything else. `levels` has the number of each name: `{"HIGH": 3, ...}`.
    """
    if isinstance(value, str):
        return _named(value, levels)
    if (
        isinstance(value, int | float | Decimal)
        and not isinstance(value, bool)
        and value == value
        and MIN_PRIORITY <= value <= MAX_PRIORITY
    ):
        number = int(value)
        if number == value:
            return number
    raise ValueError(_allowed(levels))


def _named(name: str, levels: Mapping[str, int]) -> int:
    wanted = name.casefold()
    for level, number in levels.items():
        if level.casefold() == wanted:
            return number
    raise ValueError(_allowed(levels))


def _allowed(levels: Mapping[str, int]) -> Phrase:
    if levels:
        return phrase(
            "must be an integer from %(minimum)s to %(maximum)s, or one of %(words)s",
            minimum=MIN_PRIORITY, maximum=MAX_PRIORITY, words=", ".join(levels),
        )  # fmt: skip
    return phrase("must be an integer from %(minimum)s to %(maximum)s", minimum=MIN_PRIORITY, maximum=MAX_PRIORITY)


# The timeouts: in seconds (core 5.2) or, with `_ms`, in milliseconds (binding 3.1, 3.2 and 5).


def execution_timeout(source: AttributeSource, extra: dict[str, Any]) -> int | None:
    """Milliseconds that one attempt may run; None, and so the default, where the client gave nothing or 0.

    `timeout` is echoed only where the client used it, `timeout_ms` wherever it set a limit, because some workers
    read `timeout` as milliseconds.
    """
    found = source.find("timeout_ms", "timeout", top=("timeout", "timeout_ms"))
    if found.value is None:
        return None
    ms = _milliseconds(found, least=0)
    if not found.path.endswith("_ms"):
        extra["timeout"] = found.value
    if not ms:
        return None
    extra["timeout_ms"] = ms
    return ms


def visibility_timeout(source: AttributeSource, extra: dict[str, Any]) -> int | None:
    """Milliseconds that a claim holds; None where the queue or the server decides. A string is a duration."""
    in_options = ("visibility_timeout_ms", "visibility_timeout")
    found = source.find(*in_options, top=("visibility_timeout", "visibility_timeout_ms"))
    if found.value is None:
        return None
    ms = _milliseconds(found, least=1, or_duration=True)
    if not found.path.endswith("_ms"):
        extra["visibility_timeout"] = found.value
    extra["visibility_timeout_ms"] = ms
    return ms


def other_timeouts(source: AttributeSource, extra: dict[str, Any], timeout_ms: int | None) -> dict[str, int]:
    """Total, enqueue, heartbeat and grace timeouts in milliseconds, those that were given; echoed as sent."""
    limits: dict[str, int] = {}
    for name in OTHER_TIMEOUTS:
        found = source.find(f"{name}_ms", name, top=(name, f"{name}_ms"))
        if found.value is None:
            continue
        ms = _milliseconds(found, least=0 if name == "grace_period" else 1)
        if name == "total_timeout" and timeout_ms is not None and ms < timeout_ms:
            raise job_fault(
                found.path,
                phrase("must not be shorter than the execution timeout (%(timeout_ms)s ms)", timeout_ms=timeout_ms),
                found.value,
            )
        extra[found.path.removeprefix("options.")] = found.value
        limits[name] = ms
    return limits


def _milliseconds(found: Found, least: int, or_duration: bool = False) -> int:
    value, path = found
    in_ms = path.endswith("_ms")
    if or_duration and not in_ms and isinstance(value, str):
        return checked(durations.parse_length_ms, value, path, job_fault)
    factor, unit = (1, "milliseconds") if in_ms else (1_000, "seconds")
    if not is_integer(value) or value < least:
        raise job_fault(
            path, phrase("must be an integer of %(unit)s, at least %(least)s", unit=unit, least=least), value
        )
    if value > (most := durations.MAX_MS // factor):
        raise job_fault(path, phrase("must be an integer of %(unit)s, at most %(most)s", unit=unit, most=most), value)
    return int(value) * factor


# How large and how nested an envelope may be (binding 1.4 and 1.6).


MAX_DEPTH = 32  #: nested arrays and objects, the envelope itself included
MAX_MEMBERS = 10_000  #: keys and values below the attributes
_MOST_NAMES = 1_000  #: members that need no closer look
MAX_ARRAY = 10_000
MAX_STRING = 1_048_576  #: characters

# What the envelope's keys, its type, queue, id and punctuation add to the texts of args, meta and extra:
# well under this, so that only envelopes near the limit are serialised as a whole to be measured.
_OVERHEAD_BYTES = 1_024
_WIDEST = 4  #: bytes of a character at most, so that most texts need not be measured
#: What the server adds to `meta`, from the headers of the request. Like the id, which it adds too, it does not count: a
#: job that a client may send is not too large because of what comes to it on the way.
_ADDED = frozenset({"traceparent", "tracestate", "trace_id", "baggage", "request_id"})


def to_text(value: Any, path: str, canonical: str = "") -> str:
    """The JSON text of an attribute; InvalidPayload for what JSON cannot hold (Python callers can send it)."""
    try:
        return jsontext.dumps(value)
    except (TypeError, ValueError) as error:
        raise job_fault(
            path, phrase("must hold JSON values only (%(error)s)", error=error), canonical=canonical
        ) from error


def check_meta(text: str, maximum: int) -> None:
    """MetadataTooLarge where the text of `meta` has more than `maximum` bytes."""
    if len(text) * _WIDEST <= maximum:
        return
    size = byte_length(text)
    if size > maximum:
        details = {"actual_bytes": size, "max_bytes": maximum, "field": "meta"}
        raise MetadataTooLarge(
            phrase("meta takes %(size)s bytes; at most %(maximum)s are allowed.", size=size, maximum=maximum),
            details=details,
        )


def check_envelope(document: dict[str, Any], texts: tuple[str, ...], maximum: int) -> None:
    """PayloadTooLarge where `document` takes more than `maximum` bytes; `texts` are those of its attributes."""
    if sum(map(len, texts)) * _WIDEST + _OVERHEAD_BYTES <= maximum:
        return
    if sum(map(byte_length, texts)) + _OVERHEAD_BYTES <= maximum:
        return
    size = byte_length(to_text(_as_sent(document), "job"))
    if size > maximum:
        details = {"actual_bytes": size, "max_bytes": maximum, "field": "envelope"}
        raise PayloadTooLarge(
            phrase("The envelope takes %(size)s bytes; at most %(maximum)s are allowed.", size=size, maximum=maximum),
            details=details,
        )


def _as_sent(document: dict[str, Any]) -> dict[str, Any]:
    """The envelope without what the server adds to one."""
    meta = _without_added(document.get("meta"))
    sent = {name: value for name, value in document.items() if name not in ("id", "meta")}
    return {**sent, "meta": meta} if meta else sent


def _without_added(meta: Any) -> Any:
    return {name: meta[name] for name in meta if name not in _ADDED} if isinstance(meta, dict) else meta


def check_members(document: dict[str, Any], maximum: int) -> None:
    """Refuse a document with too many members, in itself or in a policy, before one of them is looked at."""
    count = len(document)
    if count <= _MOST_NAMES:
        options = document.get("options")
        for holder in (document, options if isinstance(options, dict) else {}):
            count += sum(len(value) for name, value in holder.items() if isinstance(value, dict) and name != "meta")
    if count > _MOST_NAMES:
        check_envelope(document, (to_text(document, "job"),), maximum)
        check_shape({"args": None, "meta": None, **document})


def is_simple(texts: tuple[str, ...]) -> bool:
    """Whether an envelope passes `check_shape` for sure, by the count of brackets and commas in the texts of its
    attributes: most do."""
    size = sum(map(len, texts))
    if size < MAX_DEPTH:
        return True
    opened = separated = longest = 0
    for text in texts:
        if text:
            opened += text.count("[") + text.count("{")
    if opened >= MAX_DEPTH:
        return False
    if size >= MAX_MEMBERS - MAX_DEPTH:  # else there can be no more of them
        for text in texts:
            separated += text.count(",") + text.count(":")
            longest = max(longest, len(text))
    # Each container holds one value more than it has commas.
    return opened + separated < MAX_MEMBERS and longest <= MAX_STRING


def check_shape(attributes: dict[str, Any]) -> None:
    """InvalidPayload where `attributes` nest too deeply or hold too many or too long values."""
    for name, value in attributes.items():
        if jsontext.is_deeper(value, MAX_DEPTH - 1):
            raise job_fault(
                shorten(name),
                phrase("must not nest deeper than %(most)s levels, the envelope included", most=MAX_DEPTH),
            )
    _check_members({**attributes, "meta": _without_added(attributes.get("meta"))})


def _check_members(attributes: dict[str, Any]) -> None:
    total = 2 * (len(attributes) - 2)  # without args and meta, so that an array of the largest size fits
    for name, value in attributes.items():
        level = [value]
        while level:
            total += sum(_members(node, name) for node in level)
            if total > MAX_MEMBERS:
                raise job_fault(
                    shorten(name),
                    phrase("must not take the envelope beyond %(most)s keys and values", most=MAX_MEMBERS),
                )
            level = [
                child for node in level for child in _children(node) if isinstance(child, str | list | tuple | dict)
            ]


def _members(node: Any, name: str) -> int:
    if isinstance(node, dict):
        return 2 * len(node)
    if isinstance(node, list | tuple):
        if len(node) > MAX_ARRAY:
            raise job_fault(
                shorten(name), phrase("must not hold an array of more than %(most)s elements", most=MAX_ARRAY)
            )
        return len(node)
    if isinstance(node, str) and len(node) > MAX_STRING:
        raise job_fault(
            shorten(name), phrase("must not hold a string of more than %(most)s characters", most=MAX_STRING)
        )
    return 0


def _children(node: Any) -> Any:
    if isinstance(node, dict):
        return [*node, *node.values()]
    return node if isinstance(node, list | tuple) else ()
