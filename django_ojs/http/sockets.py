"""Where a page of the site finds the WebSocket of events: worked out here, so that no page has to guess."""

from __future__ import annotations

import copy

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest
from django.urls import get_script_prefix
from rest_framework.exceptions import APIException
from rest_framework.request import Request

from django_ojs.conf import ojs_settings
from django_ojs.errors import OJSError
from django_ojs.http import base, manifest, permissions

#: Below the root of the site; `realtime.routing` serves it.
PATH = "ojs/v1/ws"


def address(request: HttpRequest) -> str:
    """The path or URL at which this visitor's browser may connect; '' where there is none, or he would be refused.

    Without `OJS["REALTIME_URL"]` there is one where the process that serves the page serves WebSockets too.
    """
    found = ojs_settings.REALTIME_URL
    if found is None:
        served = isinstance(request, ASGIRequest) and "websocket" in manifest.TRANSPORTS
        found = f"{get_script_prefix()}{PATH}" if served else ""
    return found if found and _may_read(request) else ""


def _may_read(request: HttpRequest) -> bool:
    """Whether the binding knows this visitor by his session, and lets him read. The page's own request stays."""
    asked = Request(copy.copy(request), authenticators=base.authenticators(tuple(ojs_settings.AUTHENTICATION_CLASSES)))
    try:
        permissions.require_scope(asked, "read", operation="events")
    except (OJSError, APIException):
        return False
    return True
