"""Percentiles of times without the times: counts by buckets that grow by a constant factor.

A bucket holds times between a power of `GROWTH` and the next, and stands for the one value that is at most `ERROR`
of itself away from both ends. So a percentile is that close to the true one, whatever the times are and however many
sketches were added up. Times are whole milliseconds; zero has a bucket of its own and is exact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

#: How far a percentile may be from the true one, as a share of it.
ERROR = 0.05
GROWTH = (1 + ERROR) / (1 - ERROR)
_LOG = math.log(GROWTH)

#: Times by bucket.
Sketch = Counter[int]


def bucket(ms: int) -> int:
    """The bucket of a time: 0 for none at all."""
    return 0 if ms <= 0 else 1 + math.ceil(math.log(ms) / _LOG - 1e-9)


def value(number: int) -> float:
    """The time, in ms, that stands for all in this bucket."""
    return 0.0 if number == 0 else 2 * GROWTH ** (number - 1) / (GROWTH + 1)


def percentiles(sketch: Sketch, shares: Iterable[float]) -> list[float | None]:
    """By nearest rank, in ms; None where there is no time at all. Shares from 0 to 1, rising."""
    total, seen = sketch.total(), 0
    found: list[float | None] = []
    buckets = iter(sorted(sketch.items()))
    last = 0
    for share in shares:
        while total and seen < max(math.ceil(share * total), 1):
            last, number = next(buckets)
            seen += number
        found.append(round(value(last), 1) if total else None)
    return found


def parse(text: str) -> Sketch:
    """From what `write` made."""
    pairs = (pair.partition(":") for pair in text.split(",") if pair)
    return Counter({int(number): int(count) for number, _, count in pairs})


def write(sketch: Sketch) -> str:
    """As a short text: only buckets that hold anything."""
    return ",".join(f"{number}:{count}" for number, count in sorted(sketch.items()) if count)
