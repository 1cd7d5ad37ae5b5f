"""Send deliveries: claim those that are due, and store what came of each attempt (events 6.4).

Claiming moves `next_attempt_at` to when the attempt counts as lost, and names the attempt; what came of it is
written only where that name still stands. So a process that is killed costs a delay, and two leaders at once send
a delivery twice at worst, under the same id.

An operator may send an ended delivery again, and try a receiver (events 6.2). Old deliveries are pruned.
"""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django.db.models import Exists, Min, OuterRef, Q, QuerySet

from django_ojs import audit, clock, jsontext
from django_ojs.audit import Act
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database, retried
from django_ojs.errors import Conflict, NotFound, RateLimited
from django_ojs.events import catalogue, log
from django_ojs.events.catalogue import Record
from django_ojs.events.log import source_of
from django_ojs.guard import get_logger
from django_ojs.lifecycle.transitions import still_fitting
from django_ojs.messages import phrase
from django_ojs.models import WebhookDelivery, WebhookSubscription
from django_ojs.rules.durations import format_instant
from django_ojs.rules.ids import new_id
from django_ojs.statistics import webhookcounts
from django_ojs.store import store_of
from django_ojs.webhooks import subscriptions, transport
from django_ojs.webhooks.transport import DeliveryOutcome, DeliveryReply

logger = get_logger(__name__)

#: How much longer than its timeout an attempt may take before it counts as lost; looking up names has no timeout.
GRACE = dt.timedelta(seconds=60)
#: The type of the event by which a caller tests a receiver.
TEST = "webhook.test"
#: How many of its latest attempts a delivery keeps.
KEPT_ATTEMPTS = 20
#: Tests of receivers that one process makes at a time, and seconds that each may take: they hold up a request.
MAX_TESTS, TEST_TIMEOUT = 4, 10
_tests = threading.BoundedSemaphore(MAX_TESTS)


class Sending(NamedTuple):
    """One claimed attempt with everything that it takes, so that sending needs no database."""

    delivery: WebhookDelivery
    subscription: WebhookSubscription


@retried
def claim(slots: int, in_flight: Mapping[uuid.UUID, int], *, using: str | None = None) -> list[Sending]:
    """At most `slots` due deliveries, shared fairly among the subscriptions; `in_flight` counts what each has already.

    The one with the fewest comes first and none gets more than a quarter of what is free, so that a few slow receivers
    leave room for the others. One that is failing gets a single attempt at a time.
    """
    using = database(using)
    now = clock.now(using)
    due = WebhookDelivery.objects.using(using).filter(next_attempt_at__lte=now)
    if slots <= 0 or not due.exists():
        return []
    waiting = Exists(due.filter(subscription_id=OuterRef("pk")))
    receivers = list(WebhookSubscription.objects.using(using).filter(waiting, active=True))
    receivers.sort(key=lambda one: (in_flight.get(one.pk, 0), one.last_delivery_at or one.created_at))
    found: list[Sending] = []
    with atomic(using=using):
        for subscription in receivers:
            share = max(1, (slots - len(found)) // 4)
            room = min(_cap(subscription) - in_flight.get(subscription.pk, 0), share, slots - len(found))
            if room > 0:
                found += _take(subscription, room, now, using)
    return found


def attempt(sending: Sending) -> DeliveryReply:
    """Send one delivery now, in this thread, and say what came of it. Touches no database."""
    delivery, subscription = sending
    now = clock.now()
    try:
        keys = subscriptions.signing_keys(subscription, now)
        extra = subscriptions.headers_of(subscription)
    except subscriptions.UnreadableSecret as error:
        return DeliveryReply(DeliveryOutcome.RETRY, error=str(error))
    body = delivery.body.encode()
    headers = transport.signed_headers(
        body, keys, "timestamp.body" if subscription.signature_format == "timestamp.body" else "body",
        event_type=delivery.event_type, delivery_id=delivery.public_id, subscription_id=subscription.public_id,
        timestamp=int(now.timestamp()), extra=extra,
    )  # fmt: skip
    request = transport.WebhookRequest(subscription.url, body, headers, timeout_of(subscription), frozenset(extra))
    return transport.send(request)


def timeout_of(subscription: WebhookSubscription) -> float:
    return subscription.timeout_seconds or ojs_settings.WEBHOOK_TIMEOUT


@retried
def record_replies(
    done: Iterable[tuple[Sending, DeliveryReply]], *, using: str | None = None
) -> list[WebhookSubscription]:
    """Write down what came of attempts; returns the subscriptions that were switched off because of it."""
    using = database(using)
    by_subscription: dict[uuid.UUID, list[tuple[Sending, DeliveryReply]]] = defaultdict(list)
    for sending, reply in done:
        by_subscription[sending.subscription.pk].append((sending, reply))
    disabled = []
    for pk in sorted(by_subscription):
        with atomic(using=using):
            subscription = WebhookSubscription.objects.using(using).select_for_update().filter(pk=pk).first()
            if subscription is not None and _record_replies(subscription, by_subscription[pk], using):
                disabled.append(subscription)
    return disabled


@retried
def set_right(*, using: str | None = None) -> None:
    """Make the deliveries due whose next attempt was set while the clock was ahead, and let subscriptions that were
    made then begin now. Otherwise their receivers would get nothing until the clock is there again."""
    using = database(using)
    now = clock.now(using)
    edge = now + clock.AHEAD
    for pk in list(_ahead(edge, using).order_by("pk").values_list("pk", flat=True)):
        with atomic(using=using):
            locked = _ahead(edge, using).filter(pk=pk).select_for_update(skip_locked=store_of(using).skip_locked)
            if (subscription := locked.first()) is not None:
                _set_right(subscription, now, using)
                subscription.save(using=using, update_fields=["active_since", "last_delivery_at", "failing_since"])
    rows = WebhookDelivery.objects.using(using)
    stored = rows.filter(status__in=WebhookDelivery.OPEN, created_at__gt=edge)
    if stored.exists():
        stored.filter(claim=None, next_attempt_at__gt=edge).update(next_attempt_at=now)
        stored.update(created_at=now)
    longest = dt.timedelta(seconds=max(ojs_settings.WEBHOOK_TIMEOUT, subscriptions.MAX_TIMEOUT)) + GRACE
    lost = rows.filter(claim__isnull=False, next_attempt_at__gt=edge + longest)
    if lost.exists():
        lost.update(next_attempt_at=now)


def _ahead(edge: dt.datetime, using: str) -> QuerySet[WebhookSubscription]:
    return WebhookSubscription.objects.using(using).filter(Q(last_delivery_at__gt=edge) | Q(active_since__gt=edge))


def _set_right(subscription: WebhookSubscription, now: dt.datetime, using: str) -> None:
    """Change a locked subscription, and let its deliveries be tried now that were to be tried again later."""
    edge = now + clock.AHEAD
    if subscription.active_since is not None and subscription.active_since > edge:
        # Other processes may have gone by the right clock for a minute.
        subscription.active_since = now - dt.timedelta(minutes=1)
    if subscription.last_delivery_at is not None and subscription.last_delivery_at > edge:
        rows = WebhookDelivery.objects.using(using).filter(subscription_id=subscription.pk, claim=None)
        rows.filter(next_attempt_at__gt=edge).update(next_attempt_at=now)
        subscription.last_delivery_at = now
        subscription.failing_since = subscription.failing_since and min(subscription.failing_since, now)


def record_attempt(delivery: WebhookDelivery, reply: DeliveryReply, now: dt.datetime) -> None:
    """Note an attempt in the row, and decide when the next one is, if any."""
    delivery.attempt_count += 1
    delivery.status, delivery.next_attempt_at, delivery.claim = reply.verdict.value, None, None
    if reply.verdict is DeliveryOutcome.RETRY:
        left = delivery.attempt_count < delivery.max_attempts
        delays = ojs_settings.WEBHOOK_RETRY_DELAYS
        delay = transport.next_delay(delivery.attempt_count, delays, reply.retry_after) if left else None
        if delay is None:
            delivery.status = WebhookDelivery.Status.DEAD
        else:
            delivery.next_attempt_at = now + dt.timedelta(seconds=delay)
    elif reply.verdict is DeliveryOutcome.SUCCESS:
        delivery.delivered_at = now
    delivery.response_status, delivery.response_time_ms = reply.status, reply.duration_ms
    delivery.response_body, delivery.error = reply.body, str(reply.error)
    entry: dict[str, Any] = {"at": format_instant(now), "status": reply.status, "response_time_ms": reply.duration_ms}
    if reply.error:
        entry["error"] = str(reply.error)
    delivery.attempts = [*(delivery.attempts or []), entry][-KEPT_ATTEMPTS:]


#: What `record_attempt` changes.
ATTEMPT_COLUMNS = (
    "attempt_count", "status", "next_attempt_at", "claim", "delivered_at", "response_status", "response_time_ms",
    "response_body", "error", "attempts",
)  # fmt: skip


def _cap(subscription: WebhookSubscription) -> int:
    return 1 if subscription.failing_since else ojs_settings.WEBHOOK_CONCURRENCY_PER_SUBSCRIPTION


def _take(subscription: WebhookSubscription, room: int, now: dt.datetime, using: str) -> list[Sending]:
    due = WebhookDelivery.objects.using(using).filter(subscription_id=subscription.pk, next_attempt_at__lte=now)
    locked = due.select_for_update(skip_locked=store_of(using).skip_locked)
    rows = list(locked.order_by("next_attempt_at", "id")[:room])
    if rows:
        name, until = new_id(), now + dt.timedelta(seconds=timeout_of(subscription)) + GRACE
        ids = [row.pk for row in rows]
        WebhookDelivery.objects.using(using).filter(pk__in=ids).update(claim=name, next_attempt_at=until)
        for row in rows:
            row.claim = name
    return [Sending(row, subscription) for row in rows]


def _record_replies(
    subscription: WebhookSubscription, done: Sequence[tuple[Sending, DeliveryReply]], using: str
) -> bool:
    """Write down the attempts of one locked subscription; whether it was switched off."""
    now = clock.now(using)
    _set_right(subscription, now, using)
    ours = {sending.delivery.pk: (sending.delivery.claim, reply) for sending, reply in done}
    rows = WebhookDelivery.objects.using(using).select_for_update().filter(pk__in=list(ours)).defer("body")
    records: list[Record] = []
    tried: list[WebhookDelivery] = []
    for delivery in rows.order_by("id"):
        name, reply = ours[delivery.pk]
        if delivery.claim != name:  # it counted as lost, and another scheduler has it
            continue
        record_attempt(delivery, reply, now)
        delivery.save(using=using, update_fields=ATTEMPT_COLUMNS)
        _count(subscription, reply, now)
        records += _events(subscription, delivery, now)
        tried.append(delivery)
    let_next_go(subscription.pk, [delivery.subject for delivery in tried if not delivery.is_open], now, using)
    disabled = _is_hopeless(subscription, now)
    if disabled:
        subscriptions.disable(subscription, _reason(subscription), now, using)
    subscription.save(using=using, force_update=True)
    webhookcounts.count(tried, using)
    log.append(records, using)
    return disabled


def let_next_go(subscription: uuid.UUID, subjects: Iterable[str], now: dt.datetime, using: str) -> None:
    """Let the next delivery of each subject go; the caller holds the subscription's lock."""
    if not (wanted := set(subjects)):
        return
    rows = WebhookDelivery.objects.using(using)
    waiting = rows.filter(
        subscription_id=subscription, status=WebhookDelivery.Status.PENDING, subject__in=wanted, held=True
    )
    if firsts := list(waiting.values("subject").annotate(first=Min("id")).values_list("first", flat=True)):
        rows.filter(pk__in=firsts).update(held=False, next_attempt_at=now)


def _count(subscription: WebhookSubscription, reply: DeliveryReply, now: dt.datetime) -> None:
    subscription.last_delivery_at, subscription.last_delivery_status = now, reply.status
    if reply.verdict is DeliveryOutcome.SUCCESS:
        subscription.success_count += 1
        subscription.failing_since = None
    else:
        subscription.failure_count += 1
        subscription.failing_since = subscription.failing_since or now


def _is_hopeless(subscription: WebhookSubscription, now: dt.datetime) -> bool:
    limit, since = ojs_settings.WEBHOOK_DISABLE_AFTER, subscription.failing_since
    return (
        subscription.active
        and limit is not None
        and since is not None
        and now - since >= dt.timedelta(seconds=limit)
    )  # fmt: skip


def _reason(subscription: WebhookSubscription) -> str:
    since = format_instant(subscription.failing_since) if subscription.failing_since else "the beginning"
    last = subscription.last_delivery_status
    return f"Every attempt since {since} failed, the last one {f'with status {last}' if last else 'without an answer'}."


def _events(subscription: WebhookSubscription, delivery: WebhookDelivery, now: dt.datetime) -> list[Record]:
    """`webhook.dead` always; `.delivered` and `.failed`, which come with every attempt, where the site wants them."""
    words = {"success": "delivered", "failed": "failed", "dead": "dead"}
    if delivery.status != WebhookDelivery.Status.DEAD and not ojs_settings.EXTENSION_EVENTS:
        return []
    return [
        catalogue.of_webhook(
            f"webhook.{words[delivery.status]}", subscription.public_id, now, "scheduler",
            subscription_id=subscription.public_id, delivery_id=delivery.public_id, event_id=delivery.event_id,
            event_type=delivery.event_type, attempts=delivery.attempt_count, response_status=delivery.response_status,
            error=delivery.error,
        )
    ]  # fmt: skip


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


def send_test(
    pk: uuid.UUID, *, entry: Act | None = None, using: str | None = None
) -> tuple[WebhookDelivery, DeliveryReply]:
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
        doomed = still_fitting(old, listed, using, skip_locked=True)  # an operator may have had one sent again since
        if doomed:
            rows.filter(pk__in=doomed)._raw_delete(using)
    return len(doomed)


def _test_event(subscription: WebhookSubscription, now: dt.datetime) -> dict[str, Any]:
    time = format_instant(now)
    return {
        "specversion": "1.0",
        "id": f"evt_{new_id()}",
        "type": TEST,
        "source": source_of("api"),
        "time": time,
        "subject": subscription.public_id,
        "datacontenttype": "application/json",
        "data": {"subscription_id": subscription.public_id, "message": "A test of this webhook.", "timestamp": time},
    }
