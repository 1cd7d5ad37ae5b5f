"""A value that all who ask in a process share: computed when one of them asks and it is too old, else as it is.

So ten open dashboards cost the database what one does.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from django_ojs.database import database

T = TypeVar("T")


class Shared(Generic[T]):
    """The result of `compute`, for each database, for `seconds`. Callers that come while it is computed wait for it."""

    _all: ClassVar[weakref.WeakSet[Shared[Any]]] = weakref.WeakSet()

    def __init__(self, compute: Callable[[str], T], seconds: float) -> None:
        self._compute, self._seconds = compute, seconds
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, T]] = {}
        self._all.add(self)

    def get(self, using: str | None = None) -> T:
        using = database(using)
        with self._lock:
            known = self._known.get(using)
            if known is None or time.monotonic() - known[0] >= self._seconds:
                known = self._known[using] = (time.monotonic(), self._compute(using))
            return known[1]

    def forget(self) -> None:
        self._known.clear()


def forget() -> None:
    """Compute everything anew: an operator has just changed something, and wants to see it."""
    for shared in list(Shared._all):
        shared.forget()
