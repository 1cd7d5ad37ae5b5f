"""What workers tell of themselves, and workers in answers (orchestration 3)."""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from rest_framework import serializers

from django_ojs.errors import InvalidRequest
from django_ojs.http import compat, fields
from django_ojs.http.serializers import AnswerSerializer, BodySerializer, TextField
from django_ojs.models import Worker
from django_ojs.rules import durations, names
from django_ojs.rules.durations import format_instant
from django_ojs.rules.faults import shorten
from django_ojs.workers.directory import state_of
from django_ojs.workers.heartbeat import STATES

#: Jobs that one heartbeat may name.
MAX_JOBS = 10_000
#: What an operator may tell a worker -> the state that its next heartbeat is answered with.
DIRECTIVES = {"quiet": "quiet", "resume": "running", "running": "running", "terminate": "terminate"}


class WorkerSerializer(AnswerSerializer):
    """A line of the list of workers. Its context has `now`, an aware time."""

    def show(self, instance: Worker) -> dict[str, Any]:
        return _line(instance, self.context["now"])


class DirectiveSerializer(BodySerializer):
    directive = serializers.ChoiceField(choices=sorted(DIRECTIVES))

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        value = data.get("directive")
        if not isinstance(value, str) or value not in DIRECTIVES:
            raise fields.fault("directive", "must be quiet, resume or terminate", value)
        return {"directive": value}


class DeregisterSerializer(BodySerializer):
    reason = TextField(max_length=64)
    worker_id = TextField()

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        reason = fields.text(data, "reason", maximum=64)
        return {"reason": reason, "worker_id": fields.worker_id(data, required=True)}


def facts(body: dict[str, Any]) -> dict[str, Any]:
    """The well-formed ones among the things a worker may tell about itself: no heartbeat fails over an odd hostname."""
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


def _line(worker: Worker, now: dt.datetime) -> dict[str, Any]:
    """A line of the list, without what the worker has never told."""
    beat = format_instant(worker.heard_at)
    shown = {
        "id": worker.pk,
        "worker_id": worker.pk,
        "hostname": worker.hostname,
        "pid": worker.pid,
        "state": state_of(worker, now),
        "directive": worker.directive or None,
        "queues": worker.queues or [],
        "job_types": worker.job_types,
        "labels": worker.labels,
        "concurrency": worker.concurrency,
        "active_jobs": worker.held,
        "jobs_completed": worker.jobs_completed,
        "memory_mb": worker.memory_mb,
        "cpu_percent": worker.cpu_percent,
        "version": worker.version,
        "started_at": format_instant(worker.started_at),
        "last_seen_at": format_instant(worker.last_seen_at),
        "last_heartbeat_at": beat,
        "last_heartbeat": beat,
        "metadata": {},
    }
    return {name: value for name, value in shown.items() if value is not None}
