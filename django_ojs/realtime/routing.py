"""The paths of the WebSocket binding, for Channels' `URLRouter`."""

from __future__ import annotations

from django.conf import settings
from django.urls import URLPattern, path

from django_ojs.http import events, manifest
from django_ojs.realtime.websocket import EventsConsumer


def urlpatterns(script_name: str) -> list[URLPattern]:
    """Both paths, and below the site's script name too: Django lets a proxy leave it there or take it away."""
    prefixes = dict.fromkeys(("", f"{script_name.strip('/')}/".removeprefix("/")))
    paths = (events.SOCKET_PATH, "ojs/v1/events/ws")
    return [path(f"{prefix}{each}", EventsConsumer.as_asgi()) for prefix in prefixes for each in paths]  # type: ignore[arg-type]


websocket_urlpatterns = urlpatterns(settings.FORCE_SCRIPT_NAME or "")

manifest.announce("websocket")
