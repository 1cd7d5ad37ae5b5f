"""Figures: how many jobs each queue has in each state, how much it got done, and what the metrics count.

Jobs are counted as they change, never by scanning.

Every statement that changes states adds one row with the differences (`CountDelta`), in its own
transaction; the scheduler folds these rows into one row a queue (`QueueCount`) and one a queue and minute
(`QueueMinute`). A reader adds what is folded and what is not: exact at any time (`statistics.counters`).

What these rows cannot tell, how many jobs came in and how the waits were spread, is counted from the event log
(`QueueTraffic`), and so is what became of each job type (`TypeMinute`). After two days the minutes of the queues are
added up by the hour (`QueueHour`).
"""

from __future__ import annotations

from typing import Any

from django.db import models

from django_ojs.models.fields import OJSModel
from django_ojs.states import State


def _number() -> Any:
    return models.BigIntegerField(default=0, db_default=0)


class StateCounts(OJSModel):
    """One number for each state, and for the discarded jobs that are in the dead letter queue."""

    scheduled = _number()
    available = _number()
    pending = _number()
    active = _number()
    completed = _number()
    retryable = _number()
    cancelled = _number()
    discarded = _number()
    dead = _number()

    class Meta:
        abstract = True


class CountDelta(StateCounts):
    """What one statement changed in one queue. No index but the key: rows are appended, and folded soon."""

    id = models.BigAutoField(primary_key=True)
    queue = models.CharField(max_length=128)
    at = models.DateTimeField()
    failed = models.IntegerField(default=0, db_default=0, help_text="Failures that ended a job.")
    run_ms = models.BigIntegerField(default=0, db_default=0, help_text="Time that the completed jobs took.")
    wait_ms = models.BigIntegerField(default=0, db_default=0, help_text="Time that the started jobs had waited.")

    def __str__(self) -> str:
        return f"{self.queue} at {self.at}"


class QueueCount(StateCounts):
    """The folded counts of one queue. The row without a name belongs to no queue: its lock serialises folding."""

    queue = models.CharField(max_length=128, primary_key=True)

    def __str__(self) -> str:
        return self.queue


class QueueMinute(OJSModel):
    """What one queue got done in one minute; kept for two days, then part of its hour."""

    queue = models.CharField(max_length=128)
    minute = models.DateTimeField(db_index=True)
    started = _number()
    completed = _number()
    failed = _number()
    run_ms = _number()
    wait_ms = _number()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["queue", "minute"], name="ojs_minute_once")]

    def __str__(self) -> str:
        return f"{self.queue} at {self.minute}"


class QueueTraffic(OJSModel):
    """What came into one queue in one minute, and how long what was started had waited; kept as long as the minutes.

    The row without a name is all queues together. Counted from the event log, a second or so behind it.
    """

    queue = models.CharField(max_length=128)
    minute = models.DateTimeField(db_index=True)
    enqueued = _number()
    waits = models.TextField(default="", help_text="Starts by how long the jobs had waited: a sketch.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["queue", "minute"], name="ojs_traffic_once")]

    def __str__(self) -> str:
        return f"{self.queue} at {self.minute}"


class TypeMinute(OJSModel):
    """What became of the jobs of one type in one minute; kept for two days.

    Counted from the event log, a second or so behind it, under the names of the metrics: `other` stands for the types
    beyond `METRICS_MAX_SERIES`.
    """

    job_type = models.CharField(max_length=255)
    minute = models.DateTimeField(db_index=True)
    completed = _number()
    failed = models.BigIntegerField(default=0, db_default=0, help_text="Attempts that failed.")
    discarded = models.BigIntegerField(default=0, db_default=0, help_text="Jobs that a failure ended.")
    run_ms = models.BigIntegerField(default=0, db_default=0, help_text="Time that the completed jobs took.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job_type", "minute"], name="ojs_type_minute_once")]

    def __str__(self) -> str:
        return f"{self.job_type} at {self.minute}"


class QueueHour(OJSModel):
    """`QueueMinute` and `QueueTraffic` of one hour; kept for thirty days. Without a name: all queues together."""

    queue = models.CharField(max_length=128)
    hour = models.DateTimeField(db_index=True)
    started = _number()
    completed = _number()
    failed = _number()
    run_ms = _number()
    wait_ms = _number()
    enqueued = _number()
    waits = models.TextField(default="", help_text="Starts by how long the jobs had waited: a sketch.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["queue", "hour"], name="ojs_hour_once")]

    def __str__(self) -> str:
        return f"{self.queue} at {self.hour}"


#: The columns of `StateCounts`, in the order of the states.
NUMBERS: tuple[str, ...] = (*(state.value for state in State), "dead")


class MetricSeries(OJSModel):
    """How often one kind of event happened to one job type in one queue, and how long it took (events 7).

    The metrics are made of these rows, which outlive every process and the events that they count.
    `statistics.eventcounts` counts the log into them and keeps its place there in the same transaction.
    """

    event = models.CharField(max_length=64)
    job_type = models.CharField(max_length=255)
    queue = models.CharField(max_length=128)
    label = models.CharField(
        max_length=16, default="", help_text="The job's state after it; first or again of a start."
    )
    count = models.BigIntegerField(default=0)
    total_ms = models.BigIntegerField(default=0)
    buckets = models.TextField(default="", help_text="Events by bucket, separated by commas; empty: nothing measured.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["event", "job_type", "queue", "label"], name="ojs_metric_series_once")
        ]

    def __str__(self) -> str:
        return f"{self.event} {self.job_type} in {self.queue}: {self.count}"


class MetricPlace(OJSModel):
    """The single row that says up to where the log has been counted. Its lock serialises counting."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    seq = models.BigIntegerField(default=0, help_text="The number of the transaction, or of the event, in the log.")
    event = models.BigIntegerField(default=0, help_text="The id of the last event counted.")

    def __str__(self) -> str:
        return f"counted up to {self.seq}, event {self.event}"
