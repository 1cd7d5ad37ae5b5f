"""What the tests of the gRPC binding share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections


@pytest.fixture
def served(transactional_db: None, settings: Any) -> Iterator[Any]:
    """A server for callers without credentials."""
    pytest.importorskip("grpc")
    from tests.grpc.serving import serving

    settings.OJS = {**getattr(settings, "OJS", {}), "ALLOW_ANONYMOUS": True, "GRPC": True}
    with serving() as found:
        yield found
    connections.close_all()


@pytest.fixture
def guarded(transactional_db: None, settings: Any) -> Iterator[Any]:
    """A server that asks for keys, and looks at them often."""
    pytest.importorskip("grpc")
    from tests.grpc.serving import serving

    settings.OJS = {
        **getattr(settings, "OJS", {}),
        "ALLOW_ANONYMOUS": False,
        "REALTIME_RECHECK_INTERVAL": 0.05,
        "GRPC": True,
    }
    with serving() as found:
        yield found
    connections.close_all()
