"""The row of a new job: what its envelope asks for, its queue's defaults, and the site's (core 7.1)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from django_ojs.conf import ojs_settings
from django_ojs.envelope import JobSpec
from django_ojs.models.job import JobRow, blank_row
from django_ojs.operations import queues
from django_ojs.operations.common import wake_at
from django_ojs.policies import ratelimit
from django_ojs.policies import retry as retry_policy
from django_ojs.policies.retry import RetryPolicy
from django_ojs.states import State


def new_rows(
    specs: Sequence[JobSpec], defaults: Mapping[str, queues.QueueDefaults], now: dt.datetime, stamp: dt.datetime
) -> list[JobRow]:
    """The rows of jobs that are pushed together: first in, first out in the order given, from `stamp` on."""
    return [
        new_row(spec, defaults[spec.queue], now, stamp + dt.timedelta(microseconds=i)) for i, spec in enumerate(specs)
    ]


def new_row(spec: JobSpec, defaults: queues.QueueDefaults, now: dt.datetime, enqueued_at: dt.datetime) -> JobRow:
    """The row of a new job, in the state that its envelope asks for (core 7.1). One that is available at once is
    created when it is enqueued (core 5.3); others are created `now`."""
    policy = _policy(defaults.retry, spec.retry)
    later = spec.scheduled_at is not None and spec.scheduled_at > now
    state = State.PENDING if spec.pending else State.SCHEDULED if later else State.AVAILABLE
    created_at = enqueued_at if state is State.AVAILABLE else now
    row = blank_row(
        created_at, id=spec.id, type=spec.type, queue=spec.queue, state=state.value, priority=spec.priority,
        max_attempts=policy.max_attempts, args=spec.args_text, meta=spec.meta_text, extra=spec.extra_text,
        retry=retry_policy.to_json(policy), trace_id=spec.trace_id, expires_at=spec.expires_at,
        timeout_ms=spec.timeout_ms or defaults.timeout_ms or ojs_settings.DEFAULT_TIMEOUT * 1000,
        visibility_ms=spec.visibility_ms, due_at=spec.scheduled_at if later else None,
        enqueued_at=enqueued_at if state is State.AVAILABLE else None, unique_key=spec.unique_key,
        result_ttl=spec.result_ttl, workflow_id=spec.workflow_id,
    )  # fmt: skip
    if spec.limits_ms:
        _limit(row, spec.limits_ms)
    if spec.rate_limit is not None:
        row["rate_key"] = spec.rate_limit.key or ratelimit.queue_key(spec.queue)
        row["rate_limit"] = ratelimit.to_json(spec.rate_limit)
    row["wake_at"] = wake_at(row)
    return row


def _limit(row: JobRow, given: Mapping[str, int]) -> None:
    """Its other timeouts (binding 5): how long it may take as a whole, wait for its start, be silent, clean up."""
    for name, column in (("enqueue_ttl", "start_by"), ("total_timeout", "deadline_at")):
        if name in given:
            row[column] = row["created_at"] + dt.timedelta(milliseconds=given[name])
    row.update(heartbeat_ms=given.get("heartbeat_timeout"), grace_ms=given.get("grace_period") or None)


def _policy(of_queue: Mapping[str, Any] | None, of_job: Mapping[str, Any]) -> RetryPolicy:
    """Site, queue, job: the later layer wins, field by field (jobs 1.1)."""
    of_site = ojs_settings.RETRY
    if not (of_site or of_queue or of_job):
        return _DEFAULT_POLICY
    return retry_policy.merge(retry_policy.parse(of_site or {}), retry_policy.parse(of_queue or {}), of_job)


_DEFAULT_POLICY = RetryPolicy()
