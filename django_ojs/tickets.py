"""Tickets for WebSockets: made by an authenticated request, used once within seconds (events 3.5).

A browser cannot send `Authorization` with a WebSocket, and a key does not belong into a URL, where logs keep it.
"""

from __future__ import annotations

import datetime as dt
import secrets
from typing import Any

from django.db import router

from django_ojs import clock, keys
from django_ojs.conf import ojs_settings
from django_ojs.models import APIKey, Ticket

PREFIX = "tkt_"


def issue(key: APIKey | None, user: Any) -> tuple[str, dt.datetime]:
    """A ticket with the rights of this key, or else of this user of the site (None: nobody); and when it expires."""
    using = router.db_for_write(Ticket)
    now = clock.now(using)
    expires_at = now + dt.timedelta(seconds=ojs_settings.REALTIME_TICKET_TTL)
    text = PREFIX + secrets.token_urlsafe(32)
    tickets = Ticket.objects.using(using)
    tickets.filter(expires_at__lt=now).delete()
    tickets.create(digest=keys.digest(text), key=key, user="" if user is None else str(user.pk), expires_at=expires_at)
    return text, expires_at


def redeem(text: str) -> Ticket | None:
    """Use the ticket up; None if there is none, or if it was used before or has expired."""
    tickets = Ticket.objects.using(router.db_for_write(Ticket)).filter(pk=keys.digest(text))
    ticket = tickets.select_related("key").first()
    if ticket is None or not tickets.delete()[0]:  # of several that try one deletes it
        return None
    return ticket if ticket.expires_at > clock.now(router.db_for_write(Ticket)) else None
