"""`POST /events/ticket`: a ticket with the caller's own rights, for the query of a WebSocket's URL."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import tickets
from django_ojs.conf import ojs_settings
from django_ojs.http.base import OJSView
from django_ojs.http.permissions import api_key
from django_ojs.policies.durations import format_instant


class EventsTicket(OJSView):
    """Answers 201 with `ticket`, to be used once before `expires_at`, as `?ticket=`."""

    scopes = {"POST": "read"}

    def post(self, request: Request) -> Response:
        key = api_key(request)
        user = request.user if key is None and getattr(request.user, "is_authenticated", False) else None
        text, expires_at = tickets.issue(key, user)
        told = {"ticket": text, "expires_at": format_instant(expires_at)}
        return Response({**told, "expires_in": ojs_settings.REALTIME_TICKET_TTL}, status=201)
