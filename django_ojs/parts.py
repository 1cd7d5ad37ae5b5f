"""Know the threads and lasting tasks of this process: which should run, and which have ended or hang.

A `Part` is in the register from the moment it runs until it is asked to end. It shows that it lives by asking whether
it is to stop, which every loop does (`PartEvent`), or says that it waits for work (`resting`). What the register says
goes into the health file, the report to the supervisor, `/ready` and gRPC's health.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator

from django_ojs.backoff import Backoff

#: Seconds that a part may be at one thing. A database that answers nothing at all holds a statement for minutes.
PATIENCE = 300.0
#: Seconds before a part that has ended by itself runs again.
FIRST_RESTART, LONGEST_RESTART = 0.5, 60.0


class Part:
    """Something that runs for as long as the process does, or until it is asked to end.

    `patience`: after so many seconds without a sign of life it hangs.
    """

    name = "part"
    patience = PATIENCE

    def __init__(self) -> None:
        self._seen_at = time.monotonic()
        self._rests = False

    def is_running(self) -> bool:
        """Whether it has not ended."""
        raise NotImplementedError

    def failing(self) -> float:
        """For how many seconds it has ended again and again; 0.0 where it has not."""
        return 0.0

    def tick(self) -> None:
        """Give a sign of life."""
        self._seen_at, self._rests = time.monotonic(), False

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """A block in which it waits for work, for as long as none comes."""
        self._rests = True
        try:
            yield
        finally:
            self.tick()

    def why_stuck(self) -> str:
        """Why it does not do what it is there for, and never will; '' where it does."""
        if not self.is_running():
            return f"the {self.name} has ended"
        idle = 0.0 if self._rests else time.monotonic() - self._seen_at
        return f"the {self.name} has been at one thing for {idle:.0f} s" if idle > self.patience else ""


class PartEvent(threading.Event):
    """An event of a part. The part shows that it lives whenever it looks at the event, or waits for it."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self._part, self._thread = part, 0

    def belongs_to_this_thread(self) -> None:
        """The part runs in this thread. What another thread asks says nothing of it."""
        self._thread = threading.get_ident()

    def is_set(self) -> bool:
        if threading.get_ident() == self._thread:
            self._part.tick()
        return super().is_set()

    def wait(self, timeout: float | None = None) -> bool:
        if threading.get_ident() != self._thread:
            return super().wait(timeout)
        with self._part.resting():
            return super().wait(timeout)


class LastingTask(Part):
    """A task of an event loop that lasts until it is cancelled. It runs again, after pauses that grow, where it ends by
    itself. `run` calls `tick()` in each of its rounds."""

    def __init__(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self.name = name
        self._body = run
        self._restarts = Backoff(f"The {name}", FIRST_RESTART, LONGEST_RESTART)
        self._task: asyncio.Task[None] | None = None

    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def failing(self) -> float:
        return self._restarts.lasts

    def tick(self) -> None:
        super().tick()
        self._restarts.worked()

    def start(self) -> None:
        self.tick()
        self._task = asyncio.create_task(self._run(), name=f"ojs-{self.name}")
        register(self)

    def cancel(self) -> None:
        """Ask it to end, and do not wait for it."""
        unregister(self)
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        self.cancel()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while True:
                try:
                    await self._body()
                    raise RuntimeError(f"The {self.name} has ended without being asked to.")
                except Exception:  # noqa: BLE001 - it is logged there; SystemExit ends the loop, and the process
                    pause = self._restarts.failed("died")
                await asyncio.sleep(pause)
        except asyncio.CancelledError:
            unregister(self)  # the loop cancels what is left when it ends
            raise


_lock = threading.Lock()
_parts: list[Part] = []


def register(part: Part) -> None:
    """The part runs from now on. To be called when its start has come back."""
    with _lock:
        if part not in _parts:
            _parts.append(part)


def unregister(part: Part) -> None:
    """The part is asked to end: that it has ended is no fault any more."""
    with _lock:
        if part in _parts:
            _parts.remove(part)


def stuck() -> list[str]:
    """A sentence's part for each that has ended without being asked to, or hangs: it needs another process."""
    with _lock:
        found = list(_parts)
    return [why for part in found if (why := part.why_stuck())]


def troubles() -> list[str]:
    """The same, and those that have failed for a minute and more and are tried again and again."""
    with _lock:
        found = list(_parts)
    failing = [(part.name, seconds) for part in found if (seconds := part.failing()) >= 60.0]
    return [*stuck(), *(f"the {name} has failed for {seconds:.0f} s" for name, seconds in failing)]


def _forget() -> None:
    global _lock
    _lock = threading.Lock()
    _parts.clear()


if hasattr(os, "register_at_fork"):  # no thread of the parent's runs in a process that it forks
    os.register_at_fork(after_in_child=_forget)
