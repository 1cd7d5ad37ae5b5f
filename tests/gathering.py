"""Makes callers meet in a commit group (`django_ojs.groupcommit`): its leader is held until others wait behind it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from django.db import connections, transaction
from django.db.models import QuerySet

from django_ojs.groupcommit import CommitGroup, _Lane

SECONDS = 60  #: after which a test gives up, on the slowest machine, too


class Gathering:
    """Callers of one group, each in a thread of its own. `batches` has the items of every execution."""

    def __init__(self, group: CommitGroup[Any, Any], using: str) -> None:
        self.group, self.using = group, using
        self.batches: list[Sequence[Any]] = []
        self.go, self.leading = threading.Event(), threading.Event()
        self._armed = False
        self._joined = threading.Semaphore(0)
        self._pool = ThreadPoolExecutor(130)
        self._execute = group._execute
        self._lane: _Lane[Any, Any] = _Lane()
        self._lane.waiting = _Announced(self._joined)

    def execute(self, items: Sequence[Any], *, using: str) -> Sequence[Any]:
        self.batches.append(items)
        if self._armed:
            self._armed = False
            self.leading.set()
            assert self.go.wait(SECONDS)
        return self._execute(items, using=using)

    def start(self, act: Callable[[], Any]) -> Future[Any]:
        def run() -> Any:
            try:
                return act()
            finally:
                connections.close_all()

        return self._pool.submit(run)

    def lead(self, act: Callable[[], Any]) -> Future[Any]:
        """Start the call that leads, and wait until it executes; there it is held."""
        self._armed = True
        future = self.start(act)
        assert self.leading.wait(SECONDS)
        return future

    def follow(self, act: Callable[[], Any]) -> Future[Any]:
        """Start a call, and wait until it waits behind the leader."""
        future = self.start(act)
        assert self._joined.acquire(timeout=SECONDS)
        return future

    def together(self, first: Callable[[], Any], *others: Callable[[], Any]) -> list[Future[Any]]:
        """The first call leads and is held until the others wait, in this order; they are one batch then."""
        futures = [self.lead(first), *map(self.follow, others)]
        self.go.set()
        for future in futures:
            future.exception(SECONDS)
        return futures


class _Announced(deque[Any]):
    def __init__(self, joined: threading.Semaphore) -> None:
        super().__init__()
        self._joined = joined

    def append(self, call: Any) -> None:
        super().append(call)
        self._joined.release()


@contextmanager
def holding(rows: QuerySet[Any]) -> Iterator[None]:
    """A block in which another connection's transaction holds these rows."""
    locked, done = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                assert list(rows.select_for_update())
                locked.set()
                assert done.wait(90)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(hold)
        try:
            assert locked.wait(SECONDS)
            yield
        finally:
            done.set()
            running.result(SECONDS)


@contextmanager
def gathering(group: CommitGroup[Any, Any], using: str = "default") -> Iterator[Gathering]:
    """A block in which calls of the group can be made to meet."""
    found = Gathering(group, using)
    lanes, patience = group._lanes, group._patience
    group._lanes, group._patience = {using: found._lane}, float(SECONDS)
    group._execute = found.execute  # type: ignore[method-assign]
    try:
        yield found
    finally:
        found.go.set()
        found._pool.shutdown()
        group._lanes, group._patience, group._execute = lanes, patience, found._execute  # type: ignore[method-assign]
