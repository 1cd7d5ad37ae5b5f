"""The queues that a worker serves: those it was given, or all there are."""

from __future__ import annotations

import time
from collections.abc import Sequence

from django_ojs.models import Queue
from django_ojs.registry import registry

REFRESH_SECONDS = 1.0


class QueueNames:
    """Given queues are served strictly left to right (L0: FETCH). Without any it is all queues: those of the
    handlers here and those in the database, looked up once a second, each in turn the first, so that a busy
    one does not starve the others."""

    def __init__(self, given: Sequence[str], using: str) -> None:
        self.given, self._using = list(given), using
        self._names: list[str] = list(given)
        self._read_at = float("-inf")
        self._turn = 0

    def current(self) -> list[str]:
        """The queues of this look, in the order in which to serve them."""
        if self.given:
            return self.given
        if time.monotonic() - self._read_at >= REFRESH_SECONDS:
            self.refresh()
        self._turn = (self._turn + 1) % max(len(self._names), 1)
        return self._names[self._turn :] + self._names[: self._turn]

    def refresh(self) -> list[str]:
        """Read the queues anew; all names, sorted unless they were given."""
        if not self.given:
            stored = Queue.objects.using(self._using).values_list("name", flat=True)
            self._names = sorted({*stored, *(definition.queue for definition in registry.definitions())})
            self._read_at = time.monotonic()
        return self._names

    def __str__(self) -> str:
        return described(self.given)


def described(given: Sequence[str]) -> str:
    return ", ".join(given) or "all"
