"""Webhooks: subscriptions, the relay from the event log, deliveries, and how one is signed and sent."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

HINT = "Install what webhooks need: pip install 'django-ojs[webhooks]'."


@cache
def missing() -> tuple[str, ...]:
    """The packages that webhooks need and this installation does not have."""
    return tuple(name for name in ("urllib3", "cryptography") if find_spec(name) is None)
