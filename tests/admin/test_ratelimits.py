"""Rate limits in the admin: seen with what holds, and the block of a worker lifted by whoever may, with an entry."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_ojs import clock
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Failure, fail
from django_ojs.jobs.push import push
from django_ojs.limits import ratelimits
from django_ojs.models import AuditEntry, RateLimit
from tests.admin.conftest import said, url

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def blocked() -> None:
    """Two keys, of which a worker has blocked one."""
    for key in ("partner", "queue.x"):
        push([{"type": "api.call", "args": [], "rate_limit": {"key": key, "concurrency": 2}}])
    until = (clock.now() + dt.timedelta(hours=2)).isoformat()
    (row,) = fetch(Fetch(["default"], count=1))
    fail([Failure(row["id"], {"message": "busy", "rate_limit_until": until})])
    assert RateLimit.objects.get(pk="partner").blocked_until is not None


def lift(client: Client, key: str = "partner") -> Any:
    return client.post(url("ratelimit", "verb", key, "lift_blocks"), follow=True)


def test_the_list_says_which_keys_are_blocked(admin_client: Client) -> None:
    page = admin_client.get(url("ratelimit")).content.decode()
    assert "partner" in page
    assert "queue.x" in page
    assert "concurrency" in page
    found = admin_client.get(url("ratelimit"), {"blocked": "yes"}).context["cl"].result_list
    assert [row.key for row in found] == ["partner"]
    assert [row.key for row in admin_client.get(url("ratelimit"), {"key": "queue.*"}).context["cl"].result_list] == [
        "queue.x"
    ]


def test_a_block_is_lifted_with_an_entry_and_an_event(admin_client: Client) -> None:
    assert b"Lift the block" in admin_client.get(url("ratelimit", "change", "partner")).content
    assert b"Lift the block" not in admin_client.get(url("ratelimit", "change", "queue.x")).content
    assert said(lift(admin_client)) == ["1 rate limit unblocked."]
    assert RateLimit.objects.get(pk="partner").blocked_until is None
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.target, entry.actor, entry.door) == (
        "rate_limit.lift",
        "partner",
        "user:admin",
        "admin",
    )
    assert ratelimits.inspect("partner").get("blocked_until") is None


def test_it_asks_first(admin_client: Client) -> None:
    page = admin_client.get(url("ratelimit", "verb", "partner", "lift_blocks")).content
    assert b"left alone" in page
    assert RateLimit.objects.get(pk="partner").blocked_until is not None


def test_the_list_shows_the_block_before_the_limits_in_one_line(admin_client: Client) -> None:
    limits = {"concurrency": 1, "rate": {"limit": 100, "period": "PT1M"}, "on_limit": "drop"}
    ratelimits.override("smtp", limits)
    page = admin_client.get(url("ratelimit")).content.decode()
    assert "concurrency 1, on_limit drop, rate 100/PT1M" in page
    assert page.index("column-blocked") < page.index("column-shown_policy")


def test_several_are_lifted_from_the_list(admin_client: Client) -> None:
    chosen = {"action": "lift_blocks", "_selected_action": ["partner", "queue.x"]}
    assert b"left alone" in admin_client.post(url("ratelimit"), chosen, follow=True).content
    assert RateLimit.objects.filter(blocked_until__isnull=False).exists()
    admin_client.post(url("ratelimit"), {**chosen, "sure": "yes"}, follow=True)
    assert not RateLimit.objects.filter(blocked_until__isnull=False).exists()


def test_only_who_may_change_rate_limits_lifts_one(operator: Callable[..., Client]) -> None:
    client = operator("view_ratelimit")
    assert client.get(url("ratelimit")).status_code == 200
    assert lift(client).status_code == 403
    assert RateLimit.objects.get(pk="partner").blocked_until is not None
