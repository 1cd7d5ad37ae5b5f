"""What durable handlers get: a registry of their own, and a worker in the process while the clock stands still."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pytest

from django_ojs import clock
from django_ojs.registry import Registry, registry
from django_ojs.testing.storedjobs import WorkerJobs, worker

NOW = dt.datetime(2026, 5, 4, 12, tzinfo=dt.UTC)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[Registry]:
    """A registry without handlers; what a test adds to it is gone afterwards."""
    with registry.isolated() as isolated:
        yield isolated


@pytest.fixture
def jobs() -> Iterator[WorkerJobs]:
    with clock.frozen(NOW), worker() as found:
        yield found
