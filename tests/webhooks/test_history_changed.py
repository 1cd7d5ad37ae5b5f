"""Webhooks of a log that has lost its newest events: they go on with what it has now, once, and say what is lost."""

from __future__ import annotations

from typing import Any

import pytest

from django_ojs import clock
from django_ojs.models import WebhookDelivery, WebhookRelay
from django_ojs.webhooks import deliveries as webhookdeliveries
from tests.events.changing import Copy, enqueue
from tests.webhooks.conftest import USING, Sender, deliver, deliveries, relayed, subscribe
from tests.webhooks.receiver import Receiver

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("frozen_clock")]

#: What goes back with the log: all of it, or nothing, where an older log was restored beside the webhooks of now.
TOGETHER, ALONE = (WebhookRelay, WebhookDelivery), ()


def written(*types: str) -> None:
    for name in types:
        clock.advance(seconds=1)
        enqueue(name)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "django_ojs.webhooks.relay"]


@pytest.mark.parametrize("beside", [TOGETHER, ALONE], ids=["together", "alone"])
@pytest.mark.parametrize("new", [[], ["a.new"], ["a.new", "a.b", "a.c"]], ids=["nothing new", "shorter", "longer"])
def test_they_go_on_with_what_comes_then(
    receiver: Receiver, sender: Sender, caplog: pytest.LogCaptureFixture, beside: Any, new: list[str]
) -> None:
    """Whether the log is shorter than before, or longer."""
    subscribe(receiver.url())
    written("a.first", "a.kept")
    deliver(sender)
    copy = Copy(*beside)
    written("a.lost", "a.gone")
    deliver(sender)
    copy.come_back(*new)
    deliver(sender)
    written("a.later")
    deliver(sender)
    names = [got.event["data"]["job_type"] for got in receiver.got]
    assert sorted(names) == sorted(["a.first", "a.kept", "a.lost", "a.gone", *new, "a.later"])
    (line,) = told(caplog)
    assert "at most 2" in line
    assert len({got.headers["X-OJS-Delivery-ID"] for got in receiver.got}) == len(names)


def test_what_was_sent_and_not_recorded_any_more_is_sent_again_under_its_id(
    receiver: Receiver, sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    subscribe(receiver.url())
    written("a.kept")
    relayed()
    copy = Copy(WebhookRelay, WebhookDelivery)
    deliver(sender)
    copy.come_back()
    deliver(sender)
    first, again = receiver.got
    assert (first.body, first.headers["X-OJS-Delivery-ID"]) == (again.body, again.headers["X-OJS-Delivery-ID"])
    assert told(caplog) == []


def test_an_attempt_whose_delivery_is_lost_ends_no_other(receiver: Receiver) -> None:
    """The delivery that comes then has its number."""
    subscribe(receiver.url())
    relayed()
    copy = Copy(WebhookRelay, WebhookDelivery)
    written("a.lost")
    relayed()
    (sending,) = webhookdeliveries.claim(1, {})
    reply = webhookdeliveries.attempt(sending)
    copy.come_back("a.new")
    relayed()
    WebhookDelivery.objects.update(id=sending.delivery.pk)
    webhookdeliveries.record_replies([(sending, reply)], using=USING)
    (delivery,) = deliveries()
    assert (delivery.status, delivery.attempt_count) == ("pending", 0)
