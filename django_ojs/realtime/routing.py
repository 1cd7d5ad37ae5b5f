"""The paths of the WebSocket binding, for Channels' `URLRouter`."""

from __future__ import annotations

from django.urls import path

from django_ojs.http import manifest
from django_ojs.realtime.consumer import EventsConsumer

websocket_urlpatterns = [
    path("ojs/v1/ws", EventsConsumer.as_asgi()),  # type: ignore[arg-type]
    path("ojs/v1/events/ws", EventsConsumer.as_asgi()),  # type: ignore[arg-type]
]

manifest.announce("websocket")
