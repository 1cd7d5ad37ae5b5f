"""The metrics, from a scrape of a database in which everything that is counted has happened once."""

from __future__ import annotations

from django.db import transaction

from django_ojs import clock
from django_ojs.database import database
from django_ojs.models import CountDelta, MetricSeries, WebhookCount
from django_ojs.statistics import webhookcounts
from django_ojs.telemetry.gather import COUNTERS, TIMINGS, Family, Histogram, gather
from ojsdocs.markdown import code, prose, table


def families() -> list[Family]:
    """Every family with a sample; the database is left as it was."""
    alias = database(None)
    events = {counter.event for counter in COUNTERS} | {event for timing in TIMINGS for event in timing.events}
    with transaction.atomic(using=alias):
        MetricSeries.objects.using(alias).bulk_create(
            MetricSeries(event=event, job_type="a.b", queue="q", label="first", count=1) for event in sorted(events)
        )
        CountDelta.objects.using(alias).create(queue="q", at=clock.now(alias), available=1)
        for status in ("success", "failed", "dead"):
            WebhookCount.objects.using(alias).create(
                event_type="job.completed", status=status, attempts=1,
                durations=[1] * (len(webhookcounts.DURATION_MS) + 1), retries=[1] * (len(webhookcounts.RETRIES) + 1),
            )  # fmt: skip
        found = gather(using=alias)
        transaction.set_rollback(True, using=alias)
    return found


def render() -> str:
    return table(("metric", "type", "labels", "what"), map(_row, families()))


def _row(family: Family) -> tuple[str, str, str, str]:
    (sample, *_) = family.samples
    name = f"{family.name}_total" if family.kind == "counter" else family.name
    text = prose(family.help)
    if isinstance(sample.value, Histogram):
        text += f" Buckets up to {', '.join(f'{edge:,}' for edge in sample.value.edges)}."
    return code(name), family.kind, ", ".join(map(code, sample.labels)), text
