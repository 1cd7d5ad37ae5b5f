"""Two databases with a log each, of which one fails over: readers of the other learn nothing of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from django_ojs import clock
from django_ojs.errors import InvalidRequest
from django_ojs.events import ids, log, order
from django_ojs.jobs.push import push
from django_ojs.models import WebhookDelivery
from django_ojs.webhooks import relay as relaying
from django_ojs.webhooks import subscriptions
from tests.another import another_database
from tests.events.changing import Copy

pytestmark = pytest.mark.django_db(transaction=True)

OTHER = "other"
BOTH = ("default", OTHER)


@pytest.fixture(autouse=True)
def _two(frozen_clock: Any, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    settings.OJS = {"WEBHOOK_ALLOW_HTTP": True, "WEBHOOK_ALLOWED_HOSTS": ["127.0.0.1"]}
    ids.forget()
    relaying.forget()
    with another_database(OTHER, tmp_path, monkeypatch):
        yield
    ids.forget()
    relaying.forget()


def enqueue(*types: str) -> None:
    """Push a job of each type to both."""
    for name in types:
        clock.advance(seconds=1)
        for alias in BOTH:
            push([{"type": name, "args": []}], using=alias)


def relay(alias: str) -> None:
    order.catch_up(alias)
    while relaying.relay(using=alias):
        pass


def sent(alias: str) -> list[str]:
    """The types of jobs that the receiver of this database was told of; `gap` for a gap."""
    rows = WebhookDelivery.objects.using(alias).order_by("id").values_list("event_type", "body")
    return ["gap" if kind == "system.gap" else json.loads(body)["data"]["job_type"] for kind, body in rows]


@pytest.fixture
def cursors() -> dict[str, Any]:
    """Those of readers of both, of whom one has seen what is lost: the first has failed over. Then came `a.new`."""
    for alias in BOTH:
        body = {"url": "http://127.0.0.1:1/", "events": ["job.enqueued"]}
        subscriptions.create(subscriptions.read_definition(body), using=alias)
    enqueue("a.kept")
    copy = Copy()
    enqueue("a.lost", "a.gone")
    for alias in BOTH:
        relay(alias)
    found = {alias: log.read(using=alias).cursor for alias in BOTH}
    copy.come_back()
    enqueue("a.new")
    return found


def test_only_the_reader_of_that_one_is_told(cursors: dict[str, Any]) -> None:
    pages = {alias: log.read(after=cursors[alias], using=alias) for alias in BOTH}
    for page in pages.values():
        assert [event["data"]["job_type"] for event in page.events] == ["a.new"]
    gap = pages["default"].gap
    assert gap is not None
    assert gap["reason"] == "history_changed"
    assert pages[OTHER].gap is None


def test_only_the_webhooks_of_that_one_are_told(cursors: dict[str, Any]) -> None:
    for alias in (OTHER, "default", OTHER):
        relay(alias)
    assert sent("default") == ["a.kept", "a.lost", "a.gone", "gap", "a.new"]
    assert sent(OTHER) == ["a.kept", "a.lost", "a.gone", "a.new"]


def test_a_cursor_of_one_is_none_of_the_other(cursors: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        log.read(after=cursors["default"], using=OTHER)
