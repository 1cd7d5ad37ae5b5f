"""Tests that count statements count the same on a slow machine: what a process remembers for seconds does not end in
between. They need not ask for it: `tests/conftest.py` sees that a module imports CaptureQueriesContext."""

from __future__ import annotations

import time

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs import clock
from django_ojs.jobs import schemas
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.push import push
from django_ojs.queues import configuration


def counted() -> int:
    with CaptureQueriesContext(connection) as captured:
        push([{"type": "report.make", "args": []}])
        assert len(fetch(Fetch(["default"], worker_id="w", check_worker=False))) == 1
    return len(captured)


@pytest.mark.django_db(transaction=True)
def test_minutes_between_two_counts_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    counted()
    before = counted()

    class Later:
        monotonic = staticmethod(lambda: time.monotonic() + 1800.0)

    monkeypatch.setattr(clock, "_ticks", lambda ticks=clock._ticks: ticks() + 1800.0)
    for module in (configuration, schemas):
        monkeypatch.setattr(module, "time", Later)
    assert counted() == before
