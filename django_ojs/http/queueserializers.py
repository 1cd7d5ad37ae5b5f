"""Queues in answers: with the figures that clients expect, and those that operators read (jobs 4.4, admin 1.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import router

from django_ojs.http import fields
from django_ojs.http.compat import whole
from django_ojs.http.serializers import AnswerSerializer, BodySerializer, ObjectField, TextField
from django_ojs.models import Queue
from django_ojs.models.queue import TEMPLATE
from django_ojs.queues.configuration import MAX_REASON, document, effective
from django_ojs.rules.durations import format_instant
from django_ojs.states import State
from django_ojs.statistics import counters, latency
from django_ojs.statistics.counters import Counts
from django_ojs.statistics.throughput import Rate, Stats, rates

_NO_WAITS = {"p50": 0, "p95": 0, "p99": 0}


class QueueSerializer(AnswerSerializer):
    """A queue as the public door shows it: its state, and how many jobs are in which state."""

    def prepare(self, instances: Sequence[Queue]) -> None:
        self.counted = counters.count_all([queue.name for queue in instances])

    def show(self, instance: Queue) -> dict[str, Any]:
        return summary(instance) | tally(self.counted.get(instance.name))


class OperatorQueueSerializer(AnswerSerializer):
    """A queue as operators see it: with its rates and its waiting times."""

    def prepare(self, instances: Sequence[Queue]) -> None:
        named = [queue.name for queue in instances]
        self.counted, self.rates = counters.count_all(named), rates(named)
        self.waits = latency.waits(named)

    def show(self, instance: Queue) -> dict[str, Any]:
        return {
            "name": instance.name,
            "state": instance.status,
            "paused": instance.paused,
            "counts": by_state(self.counted.get(instance.name)),
            "throughput": throughput(self.rates.get(instance.name)),
            "latency_ms": self.waits.get(instance.name, _NO_WAITS),
            "created_at": format_instant(instance.created_at),
        }


class OperatorQueueDetailSerializer(OperatorQueueSerializer):
    """The same with its configuration, and how full it is."""

    def show(self, instance: Queue) -> dict[str, Any]:
        oldest = latency.oldest_available(instance.name)
        config = effective_config(instance)
        return super().show(instance) | {
            "configuration": _configuration(config, counters.count(instance.name).depth),
            "config": document(instance),
            "effective_config": config,
            "oldest_available_at": None if oldest is None else format_instant(oldest),
            "paused_at": format_instant(instance.paused_at) if instance.paused and instance.paused_at else None,
            "updated_at": format_instant(instance.updated_at),
        }


class QueueRequestSerializer(BodySerializer):
    """The body that makes a queue."""

    name = TextField(required=True, allow_null=False)
    config = ObjectField()

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        return {"name": fields.queue_name(data.get("name"), "name"), "config": fields.member(data, "config") or {}}


class QueueReasonSerializer(BodySerializer):
    """Why a queue is paused or resumed: for the event and the audit log."""

    reason = TextField(max_length=MAX_REASON)


def summary(queue: Queue) -> dict[str, Any]:
    return {
        "name": queue.name,
        "status": queue.status,
        "state": queue.status,
        "paused": queue.paused,
        "created_at": format_instant(queue.created_at),
    }


def tally(counted: Counts | None) -> dict[str, int]:
    """The numbers of jobs, flat: total, depth and each state."""
    if counted is None:
        return {"total": 0, "depth": 0, **{state.value: 0 for state in State}}
    return {"total": counted.total, "depth": counted.depth, **counted.states}


def statistics(stats: Stats, config: Mapping[str, Any]) -> dict[str, Any]:
    """The object under `stats`. `max_depth` 0 means unbounded."""
    done = stats.throughput
    return {
        "queue": stats.counts.queue,
        **tally(stats.counts),
        "max_depth": max_depth(config),
        "dead": stats.counts.dead,
        "completed_last_hour": done.completed_last_hour,
        "failed_last_hour": done.failed_last_hour,
        "completed_today": done.completed_today,
        "failed_today": done.failed_today,
        "avg_duration_ms": whole(done.avg_duration_ms),
        "avg_wait_ms": whole(done.avg_wait_ms),
        "throughput_per_second": done.completed_per_second,
        "failures_per_second": done.failed_per_second,
    }


def max_depth(config: Mapping[str, Any]) -> int:
    """The bound of a bounded queue: that of its backpressure, else its `max_size`."""
    bound = (config.get("backpressure") or {}).get("max_depth") or config.get("max_size")
    return int(bound or 0)


def by_state(counted: Counts | None) -> dict[str, int]:
    """The `counts` object: every state, none missing."""
    return {state.value: counted.states[state] if counted else 0 for state in State}


def throughput(rate: Rate | None) -> dict[str, float]:
    known = rate or Rate()
    return {"processed_per_minute": known.processed_per_minute, "failed_per_minute": known.failed_per_minute}


def effective_config(queue: Queue | None) -> dict[str, Any]:
    """What holds for a queue, the template's values included."""
    template = Queue.objects.using(router.db_for_write(Queue)).filter(name=TEMPLATE).first()
    return effective(queue, template)


def _configuration(config: dict[str, Any], depth: int) -> dict[str, Any]:
    """The part of the configuration that operators' tools read, with how full the queue is."""
    bound = config.get("backpressure") or {}
    most = max_depth(config)
    warning = bound.get("warning_threshold")
    share = depth / most if most else 0
    state = "full" if most and depth >= most else "warning" if warning and share >= warning else "normal"
    pressure = {"enabled": bool(most), "strategy": bound.get("strategy") or config.get("overflow_policy") or "reject",
                "threshold": most, "current_depth": depth, "state": state}  # fmt: skip
    named = {name: config.get(name) for name in ("concurrency", "rate_limit", "retention")}
    return {**named, "backpressure": pressure}
