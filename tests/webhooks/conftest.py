"""A loopback receiver that the site lets in, and the duties of the scheduler done by hand."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_ojs.events import order
from django_ojs.models import WebhookDelivery, WebhookSubscription
from django_ojs.queues import configuration
from django_ojs.scheduler.webhooks import SendWebhooks
from django_ojs.webhooks import subscriptions
from django_ojs.webhooks.relay import relay
from tests.webhooks.receiver import Receiver

USING = "default"
SECRET = "a-secret-for-tests"


@pytest.fixture(autouse=True)
def _site(settings: Any) -> None:
    settings.OJS = {
        "ALLOW_ANONYMOUS": True,
        "WEBHOOK_ALLOW_HTTP": True,
        "WEBHOOK_CONCURRENCY_PER_SUBSCRIPTION": 4,
        "WEBHOOK_ALLOWED_HOSTS": ["127.0.0.1", "localhost"],
    }
    configuration.forget()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def subscribe(url: str, events: Any = ("job.*",), **members: Any) -> WebhookSubscription:
    """A subscription, and the relay at its place in the log."""
    body = {"url": url, "events": list(events), "secret": SECRET, **members}
    subscription, _ = subscriptions.create(subscriptions.read_definition(body))
    return subscription


def relayed() -> int:
    """Hand everything out that is in the log; the number of events."""
    order.catch_up(USING)
    total = 0
    while found := relay():
        total += found
    return total


class Sender(SendWebhooks):
    """The duty, with its waiting taken out."""

    LOOK = 0.0

    def until(self, condition: Callable[[], Any], what: str = "it", timeout: float = 120.0) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"It did not happen in time: {what}"
            self.run_once(USING)
            time.sleep(0.002)

    def until_idle(self) -> None:
        """Send everything that is due at this instant."""
        self.run_once(USING)
        self.until(lambda: not self.in_flight and not self._tried(), "the end of sending")

    def _tried(self) -> int:
        self.run_once(USING)
        return self.in_flight


@pytest.fixture
def sender() -> Sender:
    return Sender()


def deliver(sender: Sender) -> None:
    relayed()
    sender.until_idle()


def deliveries(subscription: WebhookSubscription | None = None) -> list[WebhookDelivery]:
    rows = WebhookDelivery.objects.order_by("id")
    return list(rows.filter(subscription_id=subscription.pk) if subscription else rows)


def fresh(subscription: WebhookSubscription) -> WebhookSubscription:
    return WebhookSubscription.objects.get(pk=subscription.pk)


def is_uuid7(text: str, prefix: str) -> bool:
    return text.startswith(prefix) and uuid.UUID(text.removeprefix(prefix)).version == 7
