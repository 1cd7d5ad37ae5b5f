"""HTTP and WebSocket: `uvicorn example_project.asgi:application --http h11`."""

import os
from typing import Any

from django.conf import settings
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application

from django_ojs.realtime.asgi import application as with_events

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")

http: Any = get_asgi_application()  # sets Django up: what imports models comes after it
if settings.DEBUG:  # `runserver` does this by itself, other servers do not
    http = ASGIStaticFilesHandler(http)

application = with_events(http)
