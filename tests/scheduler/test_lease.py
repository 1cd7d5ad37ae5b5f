"""One leader at a time, by a row in the database and the database's clock."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.db.models import QuerySet

from django_ojs.models import Lease
from django_ojs.scheduler import scheduler as lease_module
from django_ojs.scheduler.scheduler import LEASE_SECONDS, Leadership

pytestmark = pytest.mark.django_db


def leadership(holder: str) -> Leadership:
    return Leadership("scheduler", holder, "default")


def test_the_first_leads_and_the_second_does_not(frozen_clock: Any) -> None:
    first, second = leadership("first"), leadership("second")
    assert first.run_once()
    assert not second.run_once()
    assert (first.leads, second.leads) == (True, False)
    assert Lease.objects.get().holder == "first"


def test_a_leader_that_renews_keeps_the_lease(frozen_clock: Any) -> None:
    first, second = leadership("first"), leadership("second")
    first.run_once()
    for _ in range(5):
        frozen_clock.advance(seconds=LEASE_SECONDS - 1)
        assert first.run_once()
        assert not second.run_once()


def test_another_takes_over_when_the_leader_falls_silent(frozen_clock: Any) -> None:
    first, second = leadership("first"), leadership("second")
    first.run_once()
    frozen_clock.advance(seconds=LEASE_SECONDS)
    assert second.run_once()
    assert not first.run_once()
    assert Lease.objects.get().holder == "second"


def test_a_lease_given_back_is_free_at_once(frozen_clock: Any) -> None:
    first, second = leadership("first"), leadership("second")
    first.run_once()
    first.resign()
    assert not first.leads
    assert second.run_once()
    first.resign()
    assert Lease.objects.get().holder == "second", "only the holder can give it back"


def test_a_leader_cut_off_from_the_database_stops_leading_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    first = leadership("first")
    first.run_once()
    later = time.monotonic() + LEASE_SECONDS
    monkeypatch.setattr(lease_module.time, "monotonic", lambda: later)
    assert not first.leads


def test_roles_are_apart(frozen_clock: Any) -> None:
    assert leadership("first").run_once()
    assert Leadership("cron", "second", "default").run_once()


def test_two_that_create_the_lease_at_once_do_not_both_lead(frozen_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second finds no row, and the first has made one when the second inserts."""
    first, second = leadership("first"), leadership("second")

    def exists(query: Any) -> bool:
        monkeypatch.undo()
        first.run_once()
        return False

    monkeypatch.setattr(QuerySet, "exists", exists)
    assert not second.run_once()
    assert Lease.objects.get().holder == "first"
