"""Percentiles that are further from the true ones than they say."""

from __future__ import annotations

import math
import random

import pytest

from django_ojs.policies import sketch
from django_ojs.policies.sketch import Sketch

SHARES = (0.0, 0.01, 0.25, 0.5, 0.9, 0.95, 0.99, 1.0)


def of(times: list[int]) -> Sketch:
    return Sketch(map(sketch.bucket, times))


@pytest.mark.parametrize("seed", range(8))
def test_every_percentile_is_within_the_error(seed: int) -> None:
    chance = random.Random(seed)
    scale = chance.choice([3, 100, 10_000, 5_000_000])
    times = [int(chance.expovariate(1 / scale)) for _ in range(chance.choice([1, 2, 7, 1000]))]
    found = sketch.percentiles(of(times), SHARES)
    for share, value in zip(SHARES, found, strict=True):
        true = sorted(times)[max(math.ceil(share * len(times)), 1) - 1]
        assert value is not None
        assert abs(value - true) <= sketch.ERROR * true + 0.051, share  # told to a tenth


def test_buckets_hold_what_they_stand_for() -> None:
    last = 0
    for ms in [*range(2000), *(2**power for power in range(11, 45))]:
        number = sketch.bucket(ms)
        assert number >= last
        last = number
        assert sketch.value(number) == pytest.approx(ms, rel=sketch.ERROR + 1e-9)
    assert sketch.bucket(-5) == 0


def test_sketches_add_up_and_survive_being_written() -> None:
    one, other = [0, 0, 5, 80_000], [3, 5, 1_000_000]
    both = sketch.parse(sketch.write(of(one)))
    both.update(sketch.parse(sketch.write(of(other))))
    assert both == of(one + other)
    assert sketch.parse("") == Sketch()
    assert sketch.percentiles(Sketch(), (0.5, 0.99)) == [None, None]
