"""Percentiles that are further from the true ones than they say."""

from __future__ import annotations

import math
import random

import pytest

from django_ojs.statistics import percentiles
from django_ojs.statistics.percentiles import Sketch

SHARES = (0.0, 0.01, 0.25, 0.5, 0.9, 0.95, 0.99, 1.0)


def of(times: list[int]) -> Sketch:
    return Sketch(map(percentiles.bucket, times))


@pytest.mark.parametrize("seed", range(8))
def test_every_percentile_is_within_the_error(seed: int) -> None:
    chance = random.Random(seed)
    scale = chance.choice([3, 100, 10_000, 5_000_000])
    times = [int(chance.expovariate(1 / scale)) for _ in range(chance.choice([1, 2, 7, 1000]))]
    found = percentiles.of_sketch(of(times), SHARES)
    for share, value in zip(SHARES, found, strict=True):
        true = sorted(times)[max(math.ceil(share * len(times)), 1) - 1]
        assert value is not None
        assert abs(value - true) <= percentiles.ERROR * true + 0.051, share  # told to a tenth


def test_buckets_hold_what_they_stand_for() -> None:
    last = 0
    for ms in [*range(2000), *(2**power for power in range(11, 45))]:
        number = percentiles.bucket(ms)
        assert number >= last
        last = number
        assert percentiles.value(number) == pytest.approx(ms, rel=percentiles.ERROR + 1e-9)
    assert percentiles.bucket(-5) == 0


def test_sketches_add_up_and_survive_being_written() -> None:
    one, other = [0, 0, 5, 80_000], [3, 5, 1_000_000]
    both = percentiles.parse(percentiles.write(of(one)))
    both.update(percentiles.parse(percentiles.write(of(other))))
    assert both == of(one + other)
    assert percentiles.parse("") == Sketch()
    assert percentiles.of_sketch(Sketch(), (0.5, 0.99)) == [None, None]


def test_percentiles_of_values_are_nearest_ranks() -> None:
    shares = (0.5, 0.95, 0.99)
    assert percentiles.of_values([], shares) == []
    assert percentiles.of_values([7.0], shares) == [7.0, 7.0, 7.0]
    assert percentiles.of_values([float(n) for n in range(1, 101)], (0.07, *shares)) == [7.0, 50.0, 95.0, 99.0]
