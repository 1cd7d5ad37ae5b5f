"""The supervisor: one parent that forks the worker's processes, watches them and replaces those that end.

It has no threads and never opens the database, so that a fork is safe at any time and nothing it does can
hang. What needs the database, handing back the jobs of a process that died, is done by another short-lived
process, the undertaker; only when that is done the next process takes the place, under the same worker id.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType

from django_ojs.conf import ojs_settings
from django_ojs.worker import vitals
from django_ojs.worker.child import Place, Told, describe, fork, hand_back, is_own_doing, work
from django_ojs.worker.health import HealthFile
from django_ojs.worker.lifecycle import Order
from django_ojs.worker.process import Options
from django_ojs.worker.tether import Pipes

logger = logging.getLogger(__name__)

TICK = 0.5  #: seconds between two looks when nothing happens
EARLY = 2.0  #: a process that lived shorter than this died right after its start
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 30.0  #: before a place is taken again after early deaths
BEYOND_GRACE = 15.0  #: seconds that a process may take to end after its handlers had their grace period

_SIGNALS = {"SIGTERM": Order.STOP, "SIGINT": Order.STOP, "SIGTSTP": Order.QUIET, "SIGCONT": Order.RESUME}


class Supervisor:
    """`run()` returns True when all places are settled, False if a process had to be killed at the end.

    With one process the worker id is the name itself, with more `NAME-1`, `NAME-2` and so on.
    """

    def __init__(
        self, options: Options, processes: int, announce: Callable[[str], object] = logger.info,
        announce_child: Callable[[str], object] = lambda line: None, health: HealthFile | None = None,
    ) -> None:  # fmt: skip
        self._options, self._announce, self._announce_child = options, announce, announce_child
        names = [options.name] if processes == 1 else [f"{options.name}-{n}" for n in range(1, processes + 1)]
        self._places = [Place(name) for name in names]
        self._health = health
        self._orders: list[tuple[Order, str]] = []
        self._stopping = self._killed = False
        self._deadline = float("inf")

    def run(self) -> bool:
        started = time.monotonic()
        with self._awake() as sleep:
            self._announce(self._greeting())
            while not all(place.is_settled for place in self._places):
                self._obey()
                for place in self._places:
                    self._look_at(place)
                self._tell_health()
                sleep(TICK)
        if self._health is not None:
            self._health.remove()
        total, uptime = sum(place.completed for place in self._places), time.monotonic() - started
        self._announce(f"ojs_worker {self._options.name} stopped: {total} jobs completed in {uptime:.1f} s.")
        return not self._killed

    def _look_at(self, place: Place) -> None:
        """Whatever is to be done for one place now."""
        if place.pid is not None:
            self._hear(place)
            self._watch(place)
            self._reap(place)
        if place.undertaker is not None:
            self._reap_undertaker(place)
        if place.pid is None and place.undertaker is None and place.start_at is not None:
            if self._stopping:
                place.start_at = None
            elif place.start_at <= time.monotonic():
                self._start(place)

    # The life of a process

    def _start(self, place: Place) -> None:
        options = replace(self._options, name=place.worker_id, quiet=place.quiet, cautious=place.cautious)
        pipes = Pipes()

        def body() -> int:
            self._let_go_of_others(place)
            pipes.keep_childs_end()
            return work(options, pipes, self._announce_child)

        place.pid, place.pipes = fork(body), pipes
        pipes.keep_parents_end()
        place.started_at = place.heard_at = time.monotonic()
        place.start_at, place.killed, place.frozen = None, False, False

    def _let_go_of_others(self, mine: Place) -> None:
        """In a new process: the pipes to the others end when the parent does, and only then."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for place in self._places:
            if place is not mine and place.pipes is not None:
                place.pipes.close()

    def _hear(self, place: Place) -> None:
        if place.pipes is not None and place.pipes.read():
            place.heard_at = time.monotonic()

    def _watch(self, place: Place) -> None:
        """Kill a process that no longer reports (a C call may hold the interpreter), or does not end in time."""
        now = time.monotonic()
        silence = now - place.heard_at
        if place.pid is None or place.killed or (now < self._deadline and silence < vitals.patience()):
            return
        place.killed, place.frozen = True, silence >= vitals.patience()
        self._killed = self._killed or self._stopping
        why = f"no sign of life for {silence:.0f} s" if place.frozen else "it does not end"
        logger.error("Killing %s (pid %d): %s.", place.worker_id, place.pid, why)
        os.kill(place.pid, signal.SIGKILL)

    def _reap(self, place: Place) -> None:
        status = _ended(place.pid)
        if status is None or place.pipes is None:
            return
        self._hear(place)
        goodbye, place.completed = place.pipes.goodbye, place.completed + place.pipes.completed
        place.pipes.close()
        pid, place.pid, place.pipes = place.pid, None, None
        place.early_deaths = place.early_deaths + 1 if place.age < EARLY else 0
        if goodbye:
            place.quiet = place.cautious = False
            place.start_at = time.monotonic() + self._pause(place) if goodbye == "replace" else None
            return
        logger.error("%s (pid %d) %s.", place.worker_id, pid, describe(status))
        place.blame = place.cautious = is_own_doing(status) or place.frozen
        self._bury(place)

    def _bury(self, place: Place) -> None:
        def body() -> int:
            self._let_go_of_others(place)
            return hand_back(place.worker_id, blame=place.blame)

        place.undertaker, place.undertaken_at = fork(body), time.monotonic()

    def _reap_undertaker(self, place: Place) -> None:
        status = _ended(place.undertaker)
        if status is None:
            if self._stopping and place.undertaker and time.monotonic() - place.undertaken_at > BEYOND_GRACE:
                os.kill(place.undertaker, signal.SIGKILL)
            return
        place.undertaker = None
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1
        if code not in tuple(Told):
            logger.error("The jobs of %s could not be handed back; the server will notice.", place.worker_id)
            if not self._stopping:
                self._bury(place)
            return
        place.quiet = code == Told.QUIET
        place.start_at = None if code == Told.TERMINATE else time.monotonic() + self._pause(place)

    def _pause(self, place: Place) -> float:
        if place.early_deaths == 0:
            return 0.0
        pause: float = min(FIRST_PAUSE * 2 ** (place.early_deaths - 1), LONGEST_PAUSE)
        logger.warning("%s ended right after its start; the next one starts in %g s.", place.worker_id, pause)
        return pause

    # Orders

    def _obey(self) -> None:
        while self._orders:
            order, source = self._orders.pop(0)
            if order is Order.STOP:
                order = self._stop(source)
            elif not self._stopping:
                logger.info("%s (%s).", "Quiet: no new jobs" if order is Order.QUIET else "Running again", source)
                for place in self._places:
                    place.quiet = order is Order.QUIET
            for place in self._places:
                if place.pipes is not None:
                    place.pipes.give(order)

    def _stop(self, source: str) -> Order:
        """Take down the first signal and the second; what the children are to be told."""
        if self._stopping:
            logger.warning("Stopping at once (%s).", source)
            self._deadline = time.monotonic() + BEYOND_GRACE
            return Order.HURRY
        self._stopping = True
        logger.info("Stopping (%s).", source)
        self._deadline = time.monotonic() + ojs_settings.SHUTDOWN_GRACE_PERIOD + BEYOND_GRACE
        return Order.STOP

    @contextlib.contextmanager
    def _awake(self) -> Iterator[Callable[[float], None]]:
        """A block in which signals are noted; gives a sleep that ends when one comes, a child's end included."""
        reader, writer = os.pipe()
        for fd in (reader, writer):
            os.set_blocking(fd, False)

        def note(number: int, frame: FrameType | None) -> None:
            name = signal.Signals(number).name
            if name in _SIGNALS:
                self._orders.append((_SIGNALS[name], name))

        before = {number: signal.signal(number, note) for number in map(_number, (*_SIGNALS, "SIGCHLD"))}
        wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        with selectors.DefaultSelector() as selector:
            selector.register(reader, selectors.EVENT_READ)

            def sleep(seconds: float) -> None:
                if selector.select(seconds):
                    os.read(reader, 4096)

            try:
                yield sleep
            finally:
                signal.set_wakeup_fd(wakeup)
                for number, handler in before.items():
                    signal.signal(number, handler)
                os.close(reader)
                os.close(writer)

    # What it says

    def _tell_health(self) -> None:
        """Healthy are all processes that are there; a place that waits for its next one is not ill yet."""
        if self._health is None:
            return
        present = [place for place in self._places if place.pid is not None]
        if self._stopping or (present and all(_is_well(place) for place in present)):
            self._health.touch()

    def _greeting(self) -> str:
        from django_ojs.registry import registry
        from django_ojs.worker.queues import described

        options, count = self._options, len(self._places)
        several = f"{count} processes, " if count > 1 else ""
        return (
            f"ojs_worker {options.name} started: {several}queues {described(options.queues)}, "
            f"concurrency {options.concurrency}, {len(registry.types())} job types."
        )


def _is_well(place: Place) -> bool:
    return place.pipes is not None and place.pipes.healthy and time.monotonic() - place.heard_at < 5 * TICK


def _number(name: str) -> int:
    number: signal.Signals = getattr(signal, name)
    return number


def _ended(pid: int | None) -> int | None:
    """The status of a process that has ended; None while it runs."""
    if pid is None:
        return None
    found, status = os.waitpid(pid, os.WNOHANG)
    return status if found else None
