"""How long a PUSH takes, as a histogram of OpenTelemetry in the process that does it (events specification 8.1).

Only that process knows, and no event tells: so it is not among the numbers of the whole installation on `/metrics`.
Without a `MeterProvider` a push pays one look.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import django_ojs
from django_ojs.conf import ojs_settings
from django_ojs.telemetry.gather import DURATION_S

NAME = "ojs.job.enqueue_duration"

_otel: Any = None  #: the module `telemetry.otel`; False: OpenTelemetry is not installed, None: not looked yet
_instrument: tuple[Any, Any] = (None, None)  #: the histogram, and the provider that it is of
_queues: set[str] = set()  #: those that have series of their own


def is_possible() -> bool:
    """Whether OpenTelemetry is installed. It is not imported before the first push."""
    return find_spec("opentelemetry") is not None


@contextlib.contextmanager
def timed(documents: Sequence[Any]) -> Iterator[tuple[Sequence[Any], Callable[[Sequence[Any]], None] | None]]:
    """A block that pushes documents; record how long it took until the outcomes were there, once for each queue
    (`hooks.around_work_of_push`)."""
    histogram = _histogram()
    if histogram is None:
        yield documents, None
        return
    began = time.perf_counter()

    def record(outcomes: Sequence[Any]) -> None:
        seconds = time.perf_counter() - began
        for queue in _named(outcomes):
            histogram.record(seconds, {"queue": queue})

    yield documents, record


def _named(outcomes: Sequence[Any]) -> set[str]:
    """The queues of the jobs that are stored now, as the metrics call them."""
    found = {row["queue"] for row in (getattr(outcome, "row", None) for outcome in outcomes) if row is not None}
    for queue in found:
        if len(_queues) < ojs_settings.METRICS_MAX_SERIES:
            _queues.add(queue)
    return {queue if queue in _queues else "other" for queue in found}


def _histogram() -> Any:
    """The instrument of the provider that the site has set; None without one: the API's own drops everything."""
    global _otel, _instrument
    if _otel is None:
        try:
            from django_ojs.telemetry import otel
        except ImportError:
            _otel = False
        else:
            _otel = otel
    if _otel is False or not ojs_settings.METRICS or not _otel.is_on():
        return None
    provider = _otel.metrics.get_meter_provider()
    if _instrument[1] is not provider:
        meter = provider.get_meter("django_ojs", django_ojs.__version__)
        text = "Time of an accepted PUSH in this process, without the commit of a transaction around it."
        made = meter.create_histogram(NAME, "s", text, explicit_bucket_boundaries_advisory=list(DURATION_S))
        _instrument = made, provider
    return _instrument[0]
