"""The site of these tests, which lets nobody in without credentials."""

from __future__ import annotations

from typing import Any

import pytest

from django_ojs.webhooks import deliveries
from django_ojs.webhooks.transport import DeliveryOutcome, DeliveryReply
from tests.grpc.conftest import guarded
from tests.realtime.conftest import database
from tests.rights.world import World, build, forget

__all__ = ["database", "guarded"]


@pytest.fixture
def closed(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # A slow test must not make the world's workers dead: they report once.
    settings.OJS = {"ALLOW_ANONYMOUS": False, "METRICS_PUBLIC": False, "HEARTBEAT_TIMEOUT": 3600.0}
    monkeypatch.setattr(
        deliveries, "attempt", lambda sending: DeliveryReply(DeliveryOutcome.SUCCESS, 200)
    )  # nothing leaves this host
    forget()


@pytest.fixture
def world(closed: None, db: None) -> World:
    return build()
