"""Let the claimer sleep until there may be jobs: PostgreSQL notifies, an SQLite file is watched, others are polled."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from django.db import connections

from django_ojs.models import Worker
from django_ojs.scheduler.outage import ERRORS
from django_ojs.scheduler.service import Service
from django_ojs.waking import CHANNEL, identity

logger = logging.getLogger(__name__)

SHORTEST, LONGEST = 0.05, 0.5  #: seconds between two looks: after a job was found, and when there is none for long
NOTIFIED_LONGEST = 1.0  #: the same where the database notifies us: a notification may have been missed


class Waker(Protocol):
    """How the claimer sleeps."""

    def wait(self, *, found: bool) -> None:
        """Return when it is time to look for jobs; `found`: whether the last look brought some."""

    def wait_for_slot(self) -> None:
        """Return when a slot may have become free."""

    def wake(self) -> None:
        """Let `wait` and `wait_for_slot` return. From any thread, but not from a signal handler."""

    def start(self) -> None:
        """Begin to listen."""

    def stop(self, timeout: float | None = None) -> bool:
        """Listen no longer."""


def waker_for(using: str, worker_id: str) -> Waker:
    """The best way of sleeping that the database offers."""
    kinds: dict[str, Callable[[], Waker]] = {
        "postgresql": lambda: ListeningWaker(using, worker_id),
        "sqlite": lambda: WatchingWaker(using),
    }
    return kinds.get(connections[using].vendor, PollingWaker)()


class PollingWaker:
    """Looks again after 50 ms, and up to ten times as long while there is nothing to do."""

    def __init__(self, shortest: float = SHORTEST, longest: float = LONGEST) -> None:
        self._shortest, self._longest = shortest, longest
        self._interval = shortest
        self._woken = threading.Event()

    def wait(self, *, found: bool) -> None:
        self._interval = self._shortest if found else min(self._interval * 1.5, self._longest)
        self._sleep(self._interval)

    def wait_for_slot(self) -> None:
        self._sleep(self._longest)

    def wake(self) -> None:
        self._woken.set()

    def start(self) -> None:
        return None

    def stop(self, timeout: float | None = None) -> bool:
        return True

    def _sleep(self, seconds: float) -> None:
        self._woken.wait(seconds)
        self._woken.clear()


class WatchingWaker(PollingWaker):
    """SQLite: asks the file for its version every few milliseconds, which costs some microseconds.

    `PRAGMA data_version` changes when another connection commits. What this process commits through other
    connections counts too; a look in vain is cheap.
    """

    EVERY = 0.005

    def __init__(self, using: str) -> None:
        super().__init__(longest=NOTIFIED_LONGEST)
        self._using = using
        self._seen: int | None = None

    def wait(self, *, found: bool) -> None:
        if found:
            return
        deadline = time.monotonic() + self._longest
        while time.monotonic() < deadline and not self._woken.wait(self.EVERY):
            version = self._version()
            if version != self._seen:
                self._seen = version
                break
        self._woken.clear()

    def _version(self) -> int:
        with connections[self._using].cursor() as cursor:
            cursor.execute("PRAGMA data_version")
            return int(cursor.fetchone()[0])


class ListeningWaker(PollingWaker):
    """PostgreSQL: sleeps until a NOTIFY, on a connection of its own; polls as long as that cannot be had.

    Before it sleeps it says so in the worker's row and lets the claimer look once more, so that a job that
    was enqueued in between is seen.
    """

    def __init__(self, using: str, worker_id: str) -> None:
        super().__init__()
        self._using, self._worker_id = using, worker_id
        self._asleep = False
        self._listener = Listener(using, self.wake)

    def start(self) -> None:
        self._listener.start()

    def stop(self, timeout: float | None = None) -> bool:
        return self._listener.stop(timeout)

    def wait(self, *, found: bool) -> None:
        if not self._listener.listening.is_set():
            super().wait(found=found)
        elif found:
            self._say_asleep(False)
        elif not self._asleep:
            self._say_asleep(True)
        else:
            self._sleep(NOTIFIED_LONGEST)

    def wait_for_slot(self) -> None:
        self._say_asleep(False)
        super().wait_for_slot()

    def _say_asleep(self, asleep: bool) -> None:
        if asleep == self._asleep:
            return
        with contextlib.suppress(*ERRORS):  # away: the next look will notice, and wait
            Worker.objects.using(self._using).filter(pk=self._worker_id).update(asleep=asleep)
            self._asleep = asleep


class Listener(Service):
    """The thread that holds the listening connection, and gets a new one when it breaks."""

    name = "listener"

    def __init__(self, using: str, notified: Callable[[], None]) -> None:
        super().__init__()
        self._using, self._notified = using, notified
        self.listening = threading.Event()
        self._warned = False

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self._listen()
            except Exception as error:  # noqa: BLE001 - polling goes on without notifications
                self._lost(error)
                self.stopping.wait(1.0)

    def _listen(self) -> None:
        with self._connect() as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            if not self._receives(connection):
                self._give_up()
                return
            self.listening.set()
            self._warned = False
            while not self.stopping.is_set():
                for notice in connection.notifies(timeout=0.5, stop_after=1):
                    if notice.payload != identity():
                        self._notified()

    def _receives(self, connection: Any) -> bool:
        """Whether notifications arrive: behind a pooler that gives out connections per transaction they do not."""
        with self._connect() as other:
            other.execute(f"NOTIFY {CHANNEL}")
        return any(True for _ in connection.notifies(timeout=2.0, stop_after=1))

    def _give_up(self) -> None:
        logger.warning(
            "Notifications do not arrive, as behind a transaction pooler: looking for jobs every %s s at most instead. "
            "Give the worker a direct connection to be woken at once.", LONGEST,
        )  # fmt: skip
        self.stopping.set()

    def _lost(self, error: Exception) -> None:
        self.listening.clear()
        self._notified()
        if not self._warned:
            self._warned = True
            logger.warning("No notifications from the database (%s): polling until they come back.", str(error).strip())

    def _connect(self) -> Any:
        import psycopg

        params = connections[self._using].get_connection_params()
        for name in ("cursor_factory", "pool", "context", "prepare_threshold"):
            params.pop(name, None)
        return psycopg.connect(**params, autocommit=True)
