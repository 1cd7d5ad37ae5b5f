"""ASGI application of the benchmark."""

from django.core.asgi import get_asgi_application

from django_ojs.realtime.asgi import application as with_events

application = with_events(get_asgi_application())
