"""Percentiles of times, always by nearest rank: of the times themselves, or of sketches that count them by bucket.

A sketch's buckets grow by a constant factor: one holds the times between a power of `GROWTH` and the next, and stands
for the value that is at most `ERROR` of itself away from both ends. So a percentile is that close to the true one,
whatever the times are and however many sketches were added up. Times of sketches are whole milliseconds; zero has a
bucket of its own and is exact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

#: How far a percentile of a sketch may be from the true one, as a share of it.
ERROR = 0.05
GROWTH = (1 + ERROR) / (1 - ERROR)
_LOG = math.log(GROWTH)

#: Times by bucket.
Sketch = Counter[int]


def nearest_rank(share: float, number: int) -> int:
    """The rank, from 1, of the percentile `share` (0 to 1) among `number` values in rising order."""
    # Rounded first: 0.07 * 100 is a little more than 7.
    return max(math.ceil(round(share * number, 9)), 1)


def of_values(values: Sequence[float], shares: Iterable[float]) -> list[float]:
    """The percentiles of values in rising order; empty without any value."""
    return [values[nearest_rank(share, len(values)) - 1] for share in shares] if values else []


def of_sketch(sketch: Sketch, shares: Iterable[float]) -> list[float | None]:
    """The percentiles, in ms; None where there is no time at all. Shares from 0 to 1, rising."""
    total, seen = sketch.total(), 0
    found: list[float | None] = []
    buckets = iter(sorted(sketch.items()))
    last = 0
    for share in shares:
        while total and seen < nearest_rank(share, total):
            last, number = next(buckets)
            seen += number
        found.append(round(value(last), 1) if total else None)
    return found


def bucket(ms: int) -> int:
    """The bucket of a time: 0 for none at all."""
    return 0 if ms <= 0 else 1 + math.ceil(math.log(ms) / _LOG - 1e-9)


def value(number: int) -> float:
    """The time, in ms, that stands for all in this bucket."""
    return 0.0 if number == 0 else 2 * GROWTH ** (number - 1) / (GROWTH + 1)


def parse(text: str) -> Sketch:
    """From what `write` made."""
    pairs = (pair.partition(":") for pair in text.split(",") if pair)
    return Counter({int(number): int(count) for number, _, count in pairs})


def write(sketch: Sketch) -> str:
    """As a short text: only buckets that hold anything."""
    return ",".join(f"{number}:{count}" for number, count in sorted(sketch.items()) if count)
