"""The attributes a client may give, each read and checked by one function (binding 3.1 to 3.3).

Every function takes the `Source`, returns the value that the server works with, and raises InvalidPayload
with the client's own path. What is echoed goes into `extra` as it was sent.
"""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Mapping
from typing import Any, Protocol

from django_ojs.jsontext import is_integer
from django_ojs.messages import phrase, reason
from django_ojs.rules import durations, names, priority, ratelimit, retry
from django_ojs.rules import unique as unique_policies
from django_ojs.rules.faults import job_fault
from django_ojs.rules.ids import new_id
from django_ojs.rules.source import Found, Source

SPECVERSION = "1.0.0-rc.1"
DEFAULT_QUEUE = "default"
MAX_RESULT_TTL = 2**31 - 1  #: seconds; what the column holds

_SPECVERSIONS = frozenset({SPECVERSION, "1.0", "1.0.0"})
_VERSION_SUFFIX = re.compile(r"(.*)@([0-9]+(?:\.[0-9]+)?)", re.DOTALL)


class Job(Protocol):
    """What a unique key is made of."""

    type: str
    queue: str
    args: list[Any]
    meta: dict[str, Any]
    extra: dict[str, Any]


def check_specversion(source: Source) -> None:
    value, path = source.top("specversion")
    if value is not None and not (isinstance(value, str) and value in _SPECVERSIONS):
        raise job_fault(
            path, phrase("must be %(specversion)s (1.0 and 1.0.0 are read alike)", specversion=SPECVERSION), value
        )


def job_id(source: Source) -> uuid.UUID:
    """The client's UUIDv7, or a new one."""
    value, path = source.top("id")
    if value is None:
        return new_id()
    if not names.is_job_id(value):
        example = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"
        raise job_fault(
            path,
            phrase("must be a UUIDv7 in lowercase such as %(example)s; leave it out to get one", example=example),
            value,
        )
    return uuid.UUID(value)


def job_type(source: Source, extra: dict[str, Any], hyphens: bool) -> str:
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


def version(source: Source, extra: dict[str, Any]) -> None:
    value, path = source.find("version")
    if value is None:
        return
    if not (value if isinstance(value, str) else is_integer(value)):
        raise job_fault(path, phrase('must be an integer or a string such as "2.0"'), value)
    extra["version"] = value


def queue(source: Source) -> str:
    value, path = source.find("queue")
    if value is None:
        return DEFAULT_QUEUE
    try:
        return names.check_queue(value)
    except names.NameTooLong as error:
        raise job_fault(path, reason(error), value, canonical="QUEUE_NAME_TOO_LONG") from error
    except ValueError as error:
        raise job_fault(path, reason(error), value, canonical="INVALID_QUEUE") from error


def args(source: Source) -> list[Any]:
    value, path = source.top("args")
    if isinstance(value, list):
        return value
    validation = "required" if value is None else "invalid"
    message = phrase("must be an array of JSON values, such as []")
    raise job_fault(path, message, value, canonical="INVALID_ARGS", validation=validation)


def meta(source: Source) -> dict[str, Any]:
    """`meta` overlaid by `options.meta` and `options.metadata`, key by key; every key is kept."""
    overlays = (name for name in ("meta", "metadata") if name in source.options)
    layers = [source.top("meta"), *(Found(source.options[name], f"options.{name}") for name in overlays)]
    merged: dict[str, Any] = {}
    for value, path in layers:
        if value is None:
            continue
        if not isinstance(value, dict):
            raise job_fault(path, phrase("must be an object"), value, canonical="INVALID_METADATA")
        merged = {**merged, **value} if merged else value
    return merged


def job_priority(source: Source, levels: Mapping[str, int]) -> int:
    value, path = source.find("priority")
    if value is None:
        return 0
    try:
        return priority.parse(value, levels)
    except ValueError as error:
        raise job_fault(path, reason(error), value) from error


def pending(source: Source) -> bool:
    value, path = source.find("pending")
    if value is None or isinstance(value, bool):
        return bool(value)
    raise job_fault(path, phrase("must be true or false"), value)


def scheduled_at(source: Source, extra: dict[str, Any], now: dt.datetime) -> dt.datetime | None:
    """The earliest start; a relative time is allowed inside `options` and echoed resolved."""
    return _instant(source.find("scheduled_at", "delay_until", top=("scheduled_at",)), "scheduled_at", extra, now)


def expires_at(source: Source, extra: dict[str, Any], now: dt.datetime) -> dt.datetime | None:
    return _instant(source.find("expires_at"), "expires_at", extra, now)


def retry_policy(source: Source, extra: dict[str, Any]) -> dict[str, Any]:
    """The given fields of the retry policy by their names in `RetryPolicy`; `{}` without one."""
    value, path = source.find("retry", "retry_policy", top=("retry",))
    if value is None:
        return {}
    parsed = retry.parse(value, path)
    extra["retry"] = value
    return parsed


def unique(source: Source, extra: dict[str, Any]) -> dict[str, Any] | None:
    value, path = source.find("unique")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise job_fault(path, phrase('must be an object such as {"keys": ["type", "args"]}'), value)
    extra["unique"] = value
    return value


def unique_policy(source: Source) -> unique_policies.UniquePolicy | None:
    """The policy that `unique` means. InvalidRequest for a malformed one (jobs 2.1)."""
    value, path = source.find("unique")
    return None if value is None else unique_policies.parse(value, path)


def unique_key(source: Source, policy: unique_policies.UniquePolicy, job: Job) -> str:
    """The key under which the policy looks for other jobs; `job` holds the attributes read so far."""
    path = source.find("unique").path
    return unique_policies.key(policy, job.type, job.queue, job.args, job.meta, job.extra.get("version"), path)


def result_ttl(source: Source, extra: dict[str, Any]) -> int | None:
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


def schema(source: Source, extra: dict[str, Any]) -> None:
    value, path = source.find("schema")
    if value is None:
        return
    if not names.is_schema_uri(value):
        raise job_fault(path, phrase("must be a URI such as urn:ojs:schema:email.send:v1"), value)
    extra["schema"] = value


def tags(source: Source, extra: dict[str, Any]) -> None:
    value, path = source.find("tags")
    if value is None:
        return
    if not (isinstance(value, list) and all(isinstance(tag, str) for tag in value)):
        raise job_fault(path, phrase("must be an array of strings"), value)
    extra["tags"] = value


def rate_limit(source: Source, extra: dict[str, Any]) -> ratelimit.RatePolicy | None:
    value, path = source.find("rate_limit")
    if value is None:
        return None
    policy = ratelimit.parse(value, path)
    extra["rate_limit"] = value
    return policy


def _instant(found: tuple[Any, str], name: str, extra: dict[str, Any], now: dt.datetime) -> dt.datetime | None:
    value, path = found
    if value is None:
        return None
    try:
        relative = durations.resolve_relative(value, now) if path != name and isinstance(value, str) else None
        instant = durations.parse_instant(value) if relative is None else relative
    except ValueError as error:
        raise job_fault(path, reason(error), value) from error
    extra[name] = value if relative is None else durations.format_instant(relative)
    return instant


#: The member of `meta` in which a client says what its codecs did to the arguments, such as encrypt them.
ENCODINGS = "ojs.codec.encodings"


def is_encoded(meta: Mapping[str, Any]) -> bool:
    """Whether the job says that its arguments are not what its handler gets: they fit no schema, and equal ones differ.

    `ojs_encoded` is true, or `ojs.codec.encodings` names a codec.
    """
    encodings = meta.get(ENCODINGS)
    return meta.get("ojs_encoded") is True or (isinstance(encodings, list | str) and bool(encodings))
