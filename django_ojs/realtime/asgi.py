"""A site's `asgi.py` with our WebSockets beside its HTTP:

from django.core.asgi import get_asgi_application
from django_ojs.realtime.asgi import application as with_events

application = with_events(get_asgi_application())
"""

from __future__ import annotations

from typing import Any

from django.apps import apps

from django_ojs.realtime.handler import ASGI, on_threads


def application(http: ASGI, websocket: ASGI | None = None) -> ASGI:
    """`http` with our WebSockets beside it, and `websocket` for those at any other path.

    Short requests of the binding are served on threads that last (`handler.on_threads`).
    Without Channels among the site's apps ours are refused with 404 (the system check django_ojs.W003 says so).
    """
    from django_ojs.http import manifest  # a site imports this module before Django has loaded its models

    manifest.announce("sse")
    http = on_threads(http)
    if not apps.is_installed("channels"):
        return _without(http, websocket or nowhere)
    from channels.routing import ProtocolTypeRouter, URLRouter
    from django.urls import re_path

    from django_ojs.realtime.routing import websocket_urlpatterns

    rest: Any = websocket or nowhere
    routes: list[Any] = [*websocket_urlpatterns, re_path(r"", rest)]
    router = URLRouter(routes)
    return ProtocolTypeRouter({"http": http, "websocket": router, "lifespan": lifespan})


def _without(http: ASGI, websocket: ASGI) -> ASGI:
    """Django's own application fails on a WebSocket, so those go elsewhere."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        await (websocket if scope["type"] == "websocket" else http)(scope, receive, send)

    return serve


async def nowhere(scope: Any, receive: Any, send: Any) -> None:
    """Refuses a WebSocket at a path that is not served."""
    await receive()
    if "websocket.http.response" in (scope.get("extensions") or {}):
        from django_ojs.errors import NotFound
        from django_ojs.realtime.access import answer_handshake

        await answer_handshake(scope, send, NotFound("There is nothing at this path."))
    else:
        await send({"type": "websocket.close"})


async def lifespan(scope: Any, receive: Any, send: Any) -> None:
    """Drains the connections where the server ends its lifespan before its connections."""
    from django_ojs.realtime.shutdown import drain_connections

    while True:
        message = await receive()
        if message["type"] == "lifespan.shutdown":
            await drain_connections()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
