"""Subscriptions and deliveries as the wire shows them (events 6.1, 6.2). A secret is never among it."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django_ojs.conf import ojs_settings
from django_ojs.models import WebhookDelivery, WebhookSubscription
from django_ojs.models.webhook import shown_headers
from django_ojs.operations import webhooks
from django_ojs.policies.durations import format_instant
from django_ojs.webhooks.outcome import Reply, Verdict
from django_ojs.webhooks.sealing import Unreadable


def subscription(row: WebhookSubscription, secret: str = "") -> dict[str, Any]:
    shown = {
        "id": row.public_id,
        "url": row.url,
        "events": row.events,
        "active": row.active,
        "filter": {"queues": row.queues or [], "job_types": row.job_types or []},
        "metadata": row.metadata or {},
        "headers": _headers(row),
        "timeout_seconds": row.timeout_seconds or round(ojs_settings.WEBHOOK_TIMEOUT),
        "signature_format": row.signature_format,
        "disabled_reason": row.disabled_reason or None,
        "created_by": row.created_by or None,
        "last_delivery_at": _time(row.last_delivery_at),
        "last_delivery_status": row.last_delivery_status,
        "success_count": row.success_count,
        "failure_count": row.failure_count,
        "created_at": _time(row.created_at),
        "updated_at": _time(row.updated_at),
    }
    return _without_nulls(shown) | ({"secret": secret} if secret else {})


def wrapped(row: WebhookSubscription, secret: str = "") -> dict[str, Any]:
    """Flat, and once more under `subscription`."""
    shown = subscription(row, secret)
    return {**shown, "subscription": shown}


def rotated(row: WebhookSubscription, secret: str) -> dict[str, Any]:
    ends = _time(row.previous_secret_expires_at)
    return {"id": row.public_id, "secret": secret, "new_secret": secret, "previous_secret_expires_at": ends}


def tested(delivery: WebhookDelivery, reply: Reply) -> dict[str, Any]:
    status = reply.status or 0
    return {
        "success": reply.verdict is Verdict.SUCCESS,
        "status_code": status,
        "status": status,
        "response_time_ms": reply.duration_ms,
        "response_body": reply.body,
        "error": reply.error or None,
        "delivery_id": delivery.public_id,
    }


def delivery(row: WebhookDelivery) -> dict[str, Any]:
    shown = {
        "id": row.public_id,
        "subscription_id": f"sub_{row.subscription_id}",
        "event_id": row.event_id,
        "event_type": row.event_type,
        "subject": row.subject,
        "status": row.status,
        "held": row.held and row.is_open,
        "attempt_count": row.attempt_count,
        "max_attempts": row.max_attempts,
        "response_status": row.response_status,
        "response_time_ms": row.response_time_ms,
        "error": row.error or None,
        "next_attempt_at": _time(row.next_attempt_at),
        "created_at": _time(row.created_at),
        "delivered_at": _time(row.delivered_at),
    }
    return _without_nulls(shown)


def detail(row: WebhookDelivery, *, with_answer: bool) -> dict[str, Any]:
    """`with_answer`: what the receiver said, which is for those who administer."""
    shown = {**delivery(row), "attempts": row.attempts or []}
    return shown | ({"response_body": row.response_body} if with_answer else {})


def _headers(row: WebhookSubscription) -> dict[str, str]:
    try:
        return shown_headers(webhooks.headers_of(row))
    except Unreadable:  # under a SECRET_KEY that is gone; sending says so
        return {}


def _without_nulls(shown: dict[str, Any]) -> dict[str, Any]:
    """What is not there is left out (binding 1.4)."""
    return {name: value for name, value in shown.items() if value is not None}


def _time(instant: dt.datetime | None) -> str | None:
    return format_instant(instant) if instant is not None else None
