"""Webhook subscriptions: create, change, switch, rotate and delete them (events 6.1, 6.2), and mail their owners."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from django.contrib.auth import get_user_model
from django.core.mail import EmailMessage

from django_ojs import clock, jsontext
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database
from django_ojs.errors import Conflict, NotFound
from django_ojs.events import catalogue, log
from django_ojs.messages import phrase
from django_ojs.models import WebhookDelivery, WebhookSubscription
from django_ojs.models.webhook import HIDDEN
from django_ojs.webhooks import sealing
from django_ojs.webhooks.definition import Definition

#: How long the secret before the current one still signs (events 6.3).
OVERLAP = dt.timedelta(hours=24)
_PLAIN = (
    "url", "events", "queues", "job_types", "metadata", "timeout_seconds", "signature_format",
)  # fmt: skip


def create(
    definition: Definition, *, by: str = "", limited: bool = False, using: str | None = None
) -> tuple[WebhookSubscription, str]:
    """Store a subscription; returns it and its secret, which nothing will show again.

    `limited`: the caller who defines it may see its queues and job types only. Raises `Conflict` when there are
    `WEBHOOK_MAX_SUBSCRIPTIONS`, `Unsupported` where a package is missing.
    """
    using = database(using)
    now = clock.now(using)
    secret = definition.secret or sealing.new_secret()
    subscription = WebhookSubscription(
        created_by=by, limited=limited, active=definition.active, active_since=now if definition.active else None,
        secret=sealing.seal(secret), headers=_sealed(definition.headers), created_at=now, updated_at=now,
        **{name: getattr(definition, name) for name in _PLAIN},
    )  # fmt: skip
    with atomic(using=using):
        if WebhookSubscription.objects.using(using).count() >= ojs_settings.WEBHOOK_MAX_SUBSCRIPTIONS:
            raise Conflict(
                phrase(
                    "There are %(most)s webhook subscriptions, as many as there may be.",
                    most=ojs_settings.WEBHOOK_MAX_SUBSCRIPTIONS,
                ),
                hint="Delete one that is no longer needed, or raise OJS['WEBHOOK_MAX_SUBSCRIPTIONS'].",
            )
        subscription.save(using=using, force_insert=True)
        _record("created", subscription, now, using, by=by, events=subscription.events)
    return subscription, secret


def get(pk: uuid.UUID, *, using: str | None = None) -> WebhookSubscription:
    """Raises `NotFound`."""
    found = WebhookSubscription.objects.using(database(using)).filter(pk=pk).first()
    if found is None:
        raise not_found(pk)
    return found


def update(
    pk: uuid.UUID, definition: Definition, *, by: str = "", limited: bool | None = None, using: str | None = None
) -> WebhookSubscription:
    """Change what the definition names. A new secret begins an overlap, as in `rotate`. Raises `NotFound`.

    Switched on again, it gets the events from now on; what happened in between is not made up for.
    """
    using = database(using)
    with atomic(using=using):
        subscription = lock(pk, using)
        now = clock.now(using)
        for name in _PLAIN:
            if name in definition.given:
                setattr(subscription, name, getattr(definition, name))
        if "headers" in definition.given:
            subscription.headers = _sealed(_merged(definition.headers, headers_of(subscription)))
        if "secret" in definition.given:
            _change_secret(subscription, definition.secret, now)
        if "active" in definition.given:
            _switch(subscription, definition.active, now)
        if limited is not None:
            subscription.limited = limited
        _touch(subscription, now)
        subscription.save(using=using, force_update=True)
        if definition.given:
            _record("updated", subscription, now, using, by=by, active=subscription.active)
    return subscription


def set_active(pk: uuid.UUID, active: bool, *, by: str = "", using: str | None = None) -> WebhookSubscription:
    """Pause or resume; twice is no error. Deliveries that wait stay, and are sent when it is resumed."""
    return update(pk, Definition(frozenset({"active"}), active=active), by=by, using=using)


def rotate(pk: uuid.UUID, secret: str = "", *, by: str = "", using: str | None = None) -> tuple[Any, str]:
    """Give a subscription a new secret; the old one signs beside it for 24 hours. Raises `NotFound`."""
    fresh = secret or sealing.new_secret()
    return update(pk, Definition(frozenset({"secret"}), secret=fresh), by=by, using=using), fresh


def delete(pk: uuid.UUID, *, by: str = "", using: str | None = None) -> WebhookSubscription:
    """Forget a subscription and the deliveries that it still had coming; those that ended stay for the record."""
    using = database(using)
    with atomic(using=using):
        subscription = lock(pk, using)
        waiting = WebhookDelivery.objects.using(using).filter(subscription_id=pk, status__in=WebhookDelivery.OPEN)
        cancelled = waiting.count()
        waiting._raw_delete(using)
        WebhookSubscription.objects.using(using).filter(pk=pk)._raw_delete(using)
        _record("deleted", subscription, clock.now(using), using, by=by, cancelled_deliveries=cancelled)
    return subscription


def lock(pk: uuid.UUID, using: str) -> WebhookSubscription:
    """The subscription, locked until the end of the transaction. Raises `NotFound`."""
    found = WebhookSubscription.objects.using(using).select_for_update().filter(pk=pk).first()
    if found is None:
        raise not_found(pk)
    return found


def not_found(pk: uuid.UUID | str) -> NotFound:
    text = f"sub_{pk}" if isinstance(pk, uuid.UUID) else pk
    return NotFound.resource("webhook_subscription", text)


def headers_of(subscription: WebhookSubscription) -> dict[str, str]:
    """The custom headers with their values. Raises `sealing.Unreadable`."""
    return jsontext.loads(sealing.unseal(subscription.headers)) if subscription.headers else {}


def signing_keys(subscription: WebhookSubscription, now: dt.datetime) -> list[str]:
    """The secrets that sign now, new first. Raises `sealing.Unreadable`."""
    keys = [sealing.unseal(subscription.secret)]
    ends = subscription.previous_secret_expires_at
    if ends is not None and now < ends:
        keys.append(sealing.unseal(subscription.previous_secret))
    return keys


def disable(subscription: WebhookSubscription, reason: str, now: dt.datetime, using: str) -> None:
    """Switch off, for a reason that everybody sees; the caller holds the row's lock and saves it."""
    subscription.active, subscription.disabled_reason = False, reason
    _touch(subscription, now)
    _record("disabled", subscription, now, using, reason=reason)


def _switch(subscription: WebhookSubscription, active: bool, now: dt.datetime) -> None:
    if active and not subscription.active:
        subscription.active_since, subscription.failing_since, subscription.disabled_reason = now, None, ""
    subscription.active = active


def _change_secret(subscription: WebhookSubscription, secret: str, now: dt.datetime) -> None:
    subscription.previous_secret = subscription.secret
    subscription.previous_secret_expires_at = now + OVERLAP
    subscription.secret = sealing.seal(secret)


def _touch(subscription: WebhookSubscription, now: dt.datetime) -> None:
    subscription.updated_at = max(now, subscription.updated_at + dt.timedelta(microseconds=1))


def _sealed(headers: dict[str, str]) -> str:
    return sealing.seal(jsontext.dumps(headers)) if headers else ""


def _merged(given: dict[str, str], stored: dict[str, str]) -> dict[str, str]:
    """A value that comes back as it was shown stays what it is."""
    return {name: stored.get(name, value) if value == HIDDEN else value for name, value in given.items()}


def _record(what: str, subscription: WebhookSubscription, now: dt.datetime, using: str, **data: Any) -> None:
    """The event of a change. It names neither the URL, which may hold a token, nor any secret."""
    by = data.pop("by", "")
    facts = {"subscription_id": subscription.public_id, **data} | ({"by": by} if by else {})
    log.append([catalogue.of_webhook(f"webhook.subscription.{what}", subscription.public_id, now, **facts)], using)


def mail_to_owner(subscription: WebhookSubscription, using: str) -> EmailMessage | None:
    """A mail to the user who made the subscription; None where an API key did, or the user has no address."""
    kind, _, name = subscription.created_by.partition(":")
    if kind != "user":
        return None
    model: Any = get_user_model()
    user = model._default_manager.filter(**{model.USERNAME_FIELD: name, "is_active": True}).first()
    address = getattr(user, model.get_email_field_name(), "") if user is not None else ""
    if not address:
        return None
    text = (
        f"The webhook {subscription.public_id} of {ojs_settings.SERVICE_NAME} was switched off.\n\n"
        f"{subscription.disabled_reason}\n\n"
        "Events that happen until it is switched on again are not sent to it. Deliveries that were waiting are kept.\n"
    )
    return EmailMessage(f"[{ojs_settings.SERVICE_NAME}] A webhook was switched off", text, to=[address])
