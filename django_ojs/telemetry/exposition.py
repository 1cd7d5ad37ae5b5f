"""The text format of Prometheus, version 0.0.4. It is a dozen lines, so that no library has to be installed for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from django_ojs.telemetry.families import Family, Histogram, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(families: Iterable[Family]) -> str:
    """The text of a scrape."""
    return "".join(line + "\n" for family in families for line in _family(family))


def _family(family: Family) -> Iterator[str]:
    name = f"{family.name}_total" if family.kind == "counter" else family.name
    yield f"# HELP {name} {_escaped(family.help, quotes=False)}"
    yield f"# TYPE {name} {family.kind}"
    for sample in family.samples:
        if isinstance(sample.value, Histogram):
            yield from _histogram(name, sample, sample.value)
        else:
            yield f"{name}{_labels(sample.labels)} {_number(sample.value)}"


def _histogram(name: str, sample: Sample, histogram: Histogram) -> Iterator[str]:
    cumulated = list(accumulate(histogram.counts))
    for edge, count in zip((*map(_number, histogram.edges), "+Inf"), cumulated, strict=True):
        yield f"{name}_bucket{_labels({**sample.labels, 'le': edge})} {count}"
    yield f"{name}_sum{_labels(sample.labels)} {_number(histogram.total)}"
    yield f"{name}_count{_labels(sample.labels)} {cumulated[-1]}"


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str, *, quotes: bool = True) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _number(value: float) -> str:
    """As Prometheus clients write it: `5.0` for 5, so that an edge has one name everywhere."""
    return str(value) if isinstance(value, int) else repr(float(value))
