"""What the metrics count: one row for each kind of event, job type and queue (events specification 7).

The rows grow with what happens, never with the number of jobs, and outlive every process and the events that
they were made of. `statistics.eventcounts` counts the log into them and keeps its place there in the same transaction.
"""

from __future__ import annotations

from django.db import models


class MetricSeries(models.Model):
    """How often one kind of event happened, and for those that measure a time, how long it took."""

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


class MetricPlace(models.Model):
    """The single row that says up to where the log has been counted. Its lock serialises counting."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    seq = models.BigIntegerField(default=0, help_text="The number of the transaction, or of the event, in the log.")
    event = models.BigIntegerField(default=0, help_text="The id of the last event counted.")

    def __str__(self) -> str:
        return f"counted up to {self.seq}, event {self.event}"
