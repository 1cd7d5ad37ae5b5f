"""What a worker says of itself, read leniently: a heartbeat must not fail over an odd hostname."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from django_ojs.errors import InvalidRequest
from django_ojs.http import compat, fields
from django_ojs.operations.beat import STATES
from django_ojs.policies import durations, names
from django_ojs.policies.faults import shorten

#: Jobs that one heartbeat may name.
MAX_JOBS = 10_000


def facts(body: dict[str, Any]) -> dict[str, Any]:
    """The well-formed ones among the things a worker may tell about itself."""
    found: dict[str, Any] = {}
    for name, read in _READERS.items():
        with contextlib.suppress(InvalidRequest):
            found[name] = read(body, name)
    return {name: value for name, value in found.items() if value is not None}


def state(body: dict[str, Any]) -> str:
    """The state that a worker reports, as it spells it; `shutdown: true` means terminate."""
    if body.get("shutdown") is True:
        return "terminate"
    value = body.get("state")
    if value is None:
        return "running"
    if not isinstance(value, str) or value.lower() not in STATES:
        raise fields.fault("state", f"must be one of {', '.join(STATES)}", value)
    return value.lower()


def active_jobs(body: dict[str, Any]) -> tuple[list[uuid.UUID], list[str], int | None]:
    """The jobs a worker says it holds: ids, texts that are no ids of ours, and how many where it says so."""
    ids, number = compat.active_ids(body)
    count = fields.integer({"active_jobs": number}, "active_jobs", minimum=0)
    if ids is None:
        return [], [], count
    if not isinstance(ids, list) or len(ids) > MAX_JOBS or not all(isinstance(item, str) for item in ids):
        raise fields.fault("active_jobs", f"must be an array of at most {MAX_JOBS} job ids", ids)
    known: dict[uuid.UUID, None] = {}
    unknown: list[str] = []
    for item in ids:
        if names.is_job_id(item.lower()):
            known[uuid.UUID(item.lower())] = None
        else:
            unknown.append(shorten(item))
    return list(known), unknown, count


def _labels(body: dict[str, Any], name: str) -> Any:
    return body[name] if isinstance(body.get(name), dict) else fields.texts(body, name)


def _instant(body: dict[str, Any], name: str) -> Any:
    given = body.get(name)
    try:
        return durations.parse_instant(given) if given is not None else None
    except ValueError as error:
        raise fields.fault(name, str(error), given) from error


_READERS: dict[str, Callable[[dict[str, Any], str], Any]] = {
    "hostname": fields.text,
    "version": partial(fields.text, maximum=64),
    "pid": partial(fields.integer, minimum=0),
    "concurrency": partial(fields.integer, minimum=0),
    "jobs_completed": partial(fields.integer, minimum=0),
    "memory_mb": fields.number,
    "cpu_percent": fields.number,
    "queues": fields.texts,
    "job_types": fields.texts,
    "labels": _labels,
    "started_at": _instant,
}
