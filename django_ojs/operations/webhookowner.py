"""Whom to tell that a webhook was switched off."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.core.mail import EmailMessage

from django_ojs.conf import ojs_settings
from django_ojs.models import WebhookSubscription


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
