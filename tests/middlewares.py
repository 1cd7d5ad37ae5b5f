"""Put a middleware into a chain for the time of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django_ojs.middleware import Chain, enqueue_chain


@contextmanager
def added(middleware: Any, chain: Chain = enqueue_chain) -> Iterator[None]:
    """The middleware is called, as the innermost of its chain, until the block ends."""
    chain.add(middleware)
    try:
        yield
    finally:
        chain.remove(middleware)
