"""The answers of ACK, FAIL, BEAT and worker health: supersets of what the sources and their readers expect."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django_ojs import envelope
from django_ojs.conf import ojs_settings
from django_ojs.http import compat
from django_ojs.models import Worker
from django_ojs.models.job import JobRow
from django_ojs.operations.beat import BeatAnswer
from django_ojs.operations.register import mood
from django_ojs.policies.durations import format_instant

#: What FAIL repeats beside the envelope, where the outcome has it (jobs 1.7).
_FAIL_KEYS = ("state", "attempt", "max_attempts", "retry_delay_ms", "next_attempt_at", "next_retry_at",
              "discarded_at", "completed_at")  # fmt: skip


def acknowledged(row: JobRow) -> dict[str, Any]:
    job = envelope.render(row)
    return {
        "acknowledged": True,
        "id": job["id"],
        "job_id": job["id"],
        "state": job["state"],
        "completed_at": job["completed_at"],
        "job": job,
    }


def failed(row: JobRow) -> dict[str, Any]:
    """`attempt` is the one that failed; retry and end times as the outcome has them."""
    job = envelope.render(row)
    names = _FAIL_KEYS if job["state"] != "available" else _FAIL_KEYS[:3]
    outcome = {name: job[name] for name in names if name in job}
    return {"id": job["id"], "job_id": job["id"], **outcome, "job": job}


def beaten(worker_id: str, answer: BeatAnswer, unknown: list[str], directive: str | None = None) -> dict[str, Any]:
    """`unknown` are reported ids that no job of ours can have; `directive` is that of a test."""
    state = directive or answer.state
    cancelled = [str(job_id) for job_id in answer.cancelled]
    return {
        "acknowledged": True,
        "worker_id": worker_id,
        "state": state,
        "directive": compat.DIRECTIVES.get(state, state),
        "jobs_extended": [str(job_id) for job_id in answer.extended],
        "cancelled_jobs": cancelled,
        "jobs_cancelled": cancelled,
        "jobs_lost": [*(str(job_id) for job_id in answer.lost), *unknown],
        "server_time": format_instant(answer.server_time),
    }


def worker_health(worker: Worker, now: dt.datetime) -> dict[str, Any]:
    """`state` is `draining` or `shutting_down` once the worker reported so or was told to."""
    patience = dt.timedelta(seconds=ojs_settings.HEARTBEAT_TIMEOUT)
    stale = now - (worker.last_heartbeat_at or worker.last_seen_at) > patience
    times = {"started_at": worker.started_at, "last_heartbeat_at": worker.last_heartbeat_at}
    return {
        "id": worker.pk,
        "worker_id": worker.pk,
        "status": "stale" if stale else "ok",
        "state": compat.HEALTH_STATES[mood(worker)],
        "active_jobs": worker.active_jobs,
        "concurrency": worker.concurrency,
        "queues": worker.queues or [],
        **{name: format_instant(time) for name, time in times.items() if time is not None},
    }
