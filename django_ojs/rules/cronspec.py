"""Parse the registration of a schedule, and render a schedule for clients. Uses no database.

Clients spell it in several ways (orchestration 2.2): the expression is `cron`, `expression` or `schedule`, and the
members of the job are beside it or in `job_template`. All spellings are read and all are written; two spellings in one
body must agree.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django_ojs.errors import InvalidPayload, InvalidRequest
from django_ojs.messages import phrase, reason
from django_ojs.rules import cron, envelope, zones
from django_ojs.rules.cronfields import InvalidExpression
from django_ojs.rules.durations import format_instant
from django_ojs.rules.faults import fault
from django_ojs.rules.overlap import OverlapPolicy
from django_ojs.rules.source import SYSTEM, TOP_LEVEL

if TYPE_CHECKING:
    from django_ojs.models import CronSchedule

MAX_NAME = 255
MAX_DESCRIPTION = 2000

_NAME = re.compile(r"[a-z0-9][a-z0-9\-.]*")
_EXPRESSION = ("expression", "cron", "schedule")
_JOB = TOP_LEVEL - SYSTEM - {"id", "specversion"}
_POLICIES = {policy.value: policy for policy in OverlapPolicy} | {
    "replace": OverlapPolicy.CANCEL_PREVIOUS,
    "queue": OverlapPolicy.ENQUEUE,
}
_DELAYS = frozenset({"scheduled_at", "delay_until", "pending"})


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

    @property
    def schedule(self) -> cron.Schedule:
        return cron.parse(self.expression, self.timezone)


def parse(body: Mapping[str, Any], *, now: dt.datetime, base: CronSchedule | None = None) -> CronSpec:
    """The schedule that `body` asks for; with a `base`, that schedule with the members of `body` changed.

    Raises InvalidRequest (400), naming the member, for an invalid one; PayloadTooLarge (413).
    """
    name = check_name(body.get("name") if base is None else body.get("name", base.name))
    if base is not None and name != base.name:
        raise fault("name", phrase("must be %(name)s, or absent: a schedule keeps its name", name=base.name), name)
    timezone = _timezone(body, base.timezone if base else zones.UTC_NAME)
    template, spec = _job(body, base.document if base else {}, now)
    policy = _policy(body, base.overlap_policy if base else OverlapPolicy.SKIP)
    if policy is OverlapPolicy.ENQUEUE and _DELAYS & {*template, *(template.get("options") or {})}:
        raise fault("overlap_policy", phrase("cannot be enqueue for jobs that are delayed or pending"), policy.value)
    return CronSpec(
        name=name,
        expression=_expression(body, base.expression if base else None, timezone),
        timezone=timezone,
        type=spec.type,
        queue=spec.queue,
        template=template,
        overlap_policy=policy,
        enabled=_flag(body, "enabled", base.enabled if base else True),
        description=_text(body, "description", base.description if base else ""),
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
    given = {name: body[name] for name in _EXPRESSION if body.get(name) is not None}
    field, value = next(iter(given.items()), ("cron", kept))
    for other, rival in given.items():
        if rival != value:
            raise _contradiction(field, other, rival)
    try:
        cron.parse(value, timezone)
    except InvalidExpression as error:
        hint = "minute hour day-of-month month day-of-week, as in `0 9 * * 1-5`; seconds may come first."
        raise fault(field, reason(error), value, canonical="INVALID_CRON_EXPRESSION", hint=hint) from error
    assert isinstance(value, str)
    return value


def _timezone(body: Mapping[str, Any], kept: str) -> str:
    value = body.get("timezone")
    try:
        return str(zones.load(kept if value is None else value))
    except ValueError as error:
        raise fault("timezone", reason(error), value) from error


def _job(body: Mapping[str, Any], kept: Mapping[str, Any], now: dt.datetime) -> tuple[dict[str, Any], envelope.JobSpec]:
    """The envelope of the jobs, and how PUSH would read it."""
    flat = {name: value for name, value in body.items() if name in _JOB and value is not None}
    nested = body.get("job_template")
    if nested is not None and not isinstance(nested, dict):
        raise fault("job_template", phrase("must be an object with at least a type"), nested)
    inner = {name: value for name, value in (nested or {}).items() if value is not None}
    if "id" in inner:
        raise fault(
            "job_template.id",
            phrase("must be absent: every job of a schedule gets an id of its own"),
            inner["id"],
        )
    for name in flat.keys() & inner.keys():
        if flat[name] != inner[name]:
            raise _contradiction(name, f"job_template.{name}", inner[name])
    template = {"args": [], **_without(kept, {**flat, **inner}), **flat, **inner}
    try:
        return template, envelope.parse(template, now=now)
    except InvalidPayload as error:
        raise _of_job(error, "job_template." if inner else "") from error


def _without(kept: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a change keeps: an option must not override a member that is given anew beside it."""
    options = kept.get("options")
    if not options or "options" in given:
        return dict(kept)
    return {**kept, "options": {name: value for name, value in options.items() if name not in given}}


def _of_job(error: InvalidPayload, prefix: str) -> InvalidRequest:
    """The fault of an envelope as that of a registration: 400 `invalid_request`."""
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
    if not isinstance(value, str) or value not in _POLICIES:
        raise fault("overlap_policy", phrase("must be one of %(words)s", words=", ".join(_POLICIES)), value)
    return _POLICIES[value]


def _flag(body: Mapping[str, Any], field: str, kept: bool) -> bool:
    value = body.get(field)
    if value is not None and not isinstance(value, bool):
        raise fault(field, phrase("must be true or false"), value)
    return kept if value is None else value


def _text(body: Mapping[str, Any], field: str, kept: str) -> str:
    value = body.get(field)
    if value is None:
        return kept
    if not isinstance(value, str) or len(value) > MAX_DESCRIPTION or "\0" in value or not _is_utf8(value):
        raise fault(
            field,
            phrase("must be a text of at most %(most)s characters", most=MAX_DESCRIPTION),
            value,
        )
    return value


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _contradiction(field: str, other: str, received: Any) -> InvalidRequest:
    return fault(other, phrase("must not say anything else than %(field)s; give one of them", field=field), received)


def _time(instant: dt.datetime | None) -> str | None:
    return format_instant(instant) if instant else None
