"""The filter of realtime subscriptions, which is that of the log."""

from django_ojs.events.filters import Filter

__all__ = ["Filter"]
