"""The metrics as prometheus-client has them: for the text of `/metrics`, and for a registry of the site's own.

A site that exposes such a registry (with django-prometheus, say) adds ours:

from prometheus_client import REGISTRY
from django_ojs.telemetry.collector import OJSCollector
REGISTRY.register(OJSCollector())
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from django_ojs.telemetry.gather import Family, Histogram, gather

#: Of what `text` returns: the version of the format that every Prometheus reads.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class OJSCollector(Collector):
    """Asks the database at each scrape, as `/metrics` does, and so tells the same in every process."""

    def __init__(self, using: str | None = None) -> None:
        self._using = using

    def describe(self) -> list[Any]:
        """Nothing: registering must not ask the database."""
        return []

    def collect(self) -> Iterator[Any]:
        for family in gather(using=self._using):
            yield _converted(family)


def text() -> str:
    """A scrape, in the text format of Prometheus."""
    return generate_latest(OJSCollector()).decode()


def _converted(family: Family) -> Any:
    names = list(family.samples[0].labels) if family.samples else []
    make: Any = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    metric = make[family.kind](family.name, family.help, labels=names)
    for labels, value in family.samples:
        if isinstance(value, Histogram):
            edges = (*(str(edge) for edge in value.edges), "+Inf")
            buckets = list(zip(edges, accumulate(value.counts), strict=True))
            metric.add_metric(list(labels.values()), buckets, sum_value=value.total)
        else:
            metric.add_metric(list(labels.values()), value)
    return metric
