"""Finds deliveries, sends them again, tries a receiver, and prunes what is old (events 6.2)."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from typing import Any

from django.db.models import Q

from django_ojs import audit, clock, jsontext
from django_ojs.audit import Act
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database
from django_ojs.errors import Conflict, NotFound, RateLimited
from django_ojs.events.log import source_of
from django_ojs.messages import phrase
from django_ojs.models import WebhookDelivery, WebhookSubscription
from django_ojs.rules.durations import format_instant
from django_ojs.rules.names import new_id
from django_ojs.store import store_of
from django_ojs.webhooks import subscriptions
from django_ojs.webhooks.outcome import Reply
from django_ojs.webhooks.sending import Sending, attempt, record_attempt

#: Tests of receivers that one process makes at a time, and seconds that each may take: they hold up a request.
MAX_TESTS, TEST_TIMEOUT = 4, 10
_tests = threading.BoundedSemaphore(MAX_TESTS)


def get(uid: uuid.UUID, *, using: str | None = None) -> WebhookDelivery:
    """Raises `NotFound`."""
    found = WebhookDelivery.objects.using(database(using)).filter(uid=uid).first()
    if found is None:
        raise not_found(f"del_{uid}")
    return found


def not_found(text: str) -> NotFound:
    return NotFound.resource("webhook_delivery", text)


def replay(pk: int, *, using: str | None = None) -> WebhookDelivery:
    """Send an ended delivery once more, with the same id and body and the whole schedule ahead of it.

    Behind an open delivery of its subject it waits as any other. Raises `NotFound`, and `Conflict` while it is
    open or when its subscription is gone.
    """
    using = database(using)
    rows = WebhookDelivery.objects.using(using)
    subscription_id = rows.filter(pk=pk).values_list("subscription_id", flat=True).first()
    if subscription_id is None:
        raise not_found(str(pk))
    with atomic(using=using):
        try:
            subscriptions.lock(subscription_id, using)
        except NotFound as error:
            raise Conflict(
                phrase("The subscription of this delivery was deleted."),
                hint="Subscribe again; it gets new events.",
            ) from error
        delivery = rows.select_for_update().get(pk=pk)
        if delivery.is_open:
            hint = "It is sent when it is due."
            raise Conflict(phrase("This delivery has not ended yet."), details={"status": delivery.status}, hint=hint)
        open_ones = rows.filter(subscription_id=subscription_id, status__in=WebhookDelivery.OPEN)
        delivery.held = open_ones.filter(subject=delivery.subject).exists()
        delivery.status, delivery.attempt_count = WebhookDelivery.Status.PENDING, 0
        delivery.max_attempts = len(ojs_settings.WEBHOOK_RETRY_DELAYS) + 1
        delivery.next_attempt_at = None if delivery.held else clock.now(using)
        delivery.save(using=using, update_fields=["held", "status", "attempt_count", "max_attempts", "next_attempt_at"])
    return delivery


def send_test(pk: uuid.UUID, *, entry: Act | None = None, using: str | None = None) -> tuple[WebhookDelivery, Reply]:
    """Send a `webhook.test` event now and wait for the answer; it is tried once and kept in the record.

    It works for a paused subscription, too. `entry` is what the audit log says of it, written with the record. Raises
    `NotFound`, and `RateLimited` while too many are under way.
    """
    using = database(using)
    subscription = subscriptions.get(pk, using=using)
    now = clock.now(using)
    envelope = _test_event(subscription, now)
    delivery = WebhookDelivery(
        subscription=subscription, event_id=envelope["id"], event_type=envelope["type"], subject=envelope["subject"],
        body=jsontext.dumps(envelope), max_attempts=1, created_at=now,
    )  # fmt: skip
    subscription.timeout_seconds = min(subscription.timeout_seconds or TEST_TIMEOUT, TEST_TIMEOUT)
    if not _tests.acquire(blocking=False):
        raise RateLimited(phrase("Too many webhooks are being tested at this moment."))
    try:
        reply = attempt(Sending(delivery, subscription))
    finally:
        _tests.release()
    record_attempt(delivery, reply, clock.now(using))
    with atomic(using=using):
        delivery.save(using=using, force_insert=True)
        audit.append([entry] if entry else [], using)
    return delivery, reply


def prune(now: dt.datetime, batch: int, using: str) -> int:
    """Delete at most `batch` ended deliveries that are old enough, oldest first; open ones stay."""
    rows = WebhookDelivery.objects.using(using)
    arrived = Q(status="success", created_at__lt=now - dt.timedelta(seconds=ojs_settings.WEBHOOK_RETENTION))
    dead = Q(status="dead", created_at__lt=now - dt.timedelta(seconds=ojs_settings.WEBHOOK_DEAD_RETENTION))
    old = rows.filter(arrived | dead)
    listed = list(old.order_by("created_at").values_list("pk", flat=True)[:batch])
    if not listed:
        return 0
    with atomic(using=using):
        store = store_of(using)
        store.begin_writing()
        # Under the lock by the same condition: an operator may have had one sent again since.
        over = old.filter(pk__in=listed).order_by("pk").select_for_update(skip_locked=store.skip_locked)
        doomed = list(over.values_list("pk", flat=True))
        if doomed:
            rows.filter(pk__in=doomed)._raw_delete(using)
    return len(doomed)


def _test_event(subscription: WebhookSubscription, now: dt.datetime) -> dict[str, Any]:
    time = format_instant(now)
    return {
        "specversion": "1.0",
        "id": f"evt_{new_id()}",
        "type": "webhook.test",
        "source": source_of("api"),
        "time": time,
        "subject": subscription.public_id,
        "datacontenttype": "application/json",
        "data": {"subscription_id": subscription.public_id, "message": "A test of this webhook.", "timestamp": time},
    }
