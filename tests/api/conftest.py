from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_ojs.queues import configuration
from django_ojs.registry import Registry, registry


@pytest.fixture
def handlers() -> Iterator[Registry]:
    """A registry without handlers; what a test adds to it is gone afterwards."""
    with registry.isolated() as isolated:
        yield isolated


@pytest.fixture(autouse=True)
def _forget_queues() -> None:
    configuration.forget()
