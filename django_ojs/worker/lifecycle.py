"""Obey orders: they make the worker run, go quiet or terminate (orchestration 3.2 and 4).

Orders come from signals, from the supervisor, from the server's answers to heartbeats, from the claimer when
there is nothing left to do, and from a part that crashed. They go through one queue to the main thread,
because a signal handler may do nothing more than put something into a `SimpleQueue`.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import queue
import signal
import threading
from collections.abc import Iterator
from types import FrameType

logger = logging.getLogger(__name__)


#: The source of orders that come through the supervisor's pipe.
SUPERVISOR = "the supervisor"


class Stage(enum.StrEnum):
    RUNNING = "running"  #: claims jobs
    QUIET = "quiet"  #: claims none, finishes what it has
    TERMINATE = "terminate"  #: finishes what it has, then ends; there is no way back


class Order(enum.Enum):
    """What the worker is to do."""

    QUIET = "quiet"
    RESUME = "resume"
    STOP = "stop"
    STOP_NOW = "stop now"  #: stop, and do not wait for the jobs
    RECYCLE = "recycle"  #: stop, and let another process take this one's place
    CRASH = "crash"
    REFUSE = "refuse"  #: another process has the worker's name


class Lifecycle:
    """The stage of one worker. `stage` may be read from any thread, only `follow()` changes it.

    `quiet`: it begins quiet, because an operator had made the process quiet whose place it takes.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.stage = Stage.QUIET if quiet else Stage.RUNNING
        self.reason = "shutdown"  #: for the event `worker.stopped`: shutdown, signal or error
        self.refused = False  #: another process has the worker's name
        self.replace = False  #: whether a supervisor is to start another process in this one's place
        self.hurried = threading.Event()  #: asked twice, or something crashed: do not wait for the jobs
        self._orders: queue.SimpleQueue[tuple[Order, str]] = queue.SimpleQueue()
        self._server_said_quiet = False
        self._stop_signals = 0

    def give(self, order: Order, source: str) -> None:
        """Hand in an order. Safe in a signal handler and from any thread."""
        self._orders.put((order, source))

    def hear(self, answer: str) -> None:
        """Take a heartbeat's answer, `running`, `quiet` or `terminate`, for an order.

        `running` ends a quiet only after the server had said `quiet`: then an operator has resumed the worker.
        An operator's older `running`, which stays in force, must not undo a SIGTSTP.
        """
        if answer == Stage.TERMINATE:
            if self.stage is not Stage.TERMINATE:
                self.give(Order.STOP, "the operator")
        elif answer == Stage.QUIET:
            self._server_said_quiet = True
            if self.stage is Stage.RUNNING:
                self.give(Order.QUIET, "the operator")
        elif self._server_said_quiet:
            self._server_said_quiet = False
            if self.stage is Stage.QUIET:
                self.give(Order.RESUME, "the operator")

    def follow(self, timeout: float | None = None) -> Stage:
        """Wait for one order, obey it, and return the stage that follows from it."""
        with contextlib.suppress(queue.Empty):
            self._obey(*self._orders.get(timeout=timeout))
        return self.stage

    def _obey(self, order: Order, source: str) -> None:
        if order is Order.STOP and source.startswith("SIG"):
            self._stop_signals += 1
        match order, self.stage:
            case Order.STOP, Stage.TERMINATE:
                if self._stop_signals > 1:
                    self.hurried.set()
                    logger.warning("Stopping at once (%s).", source)
            case Order.STOP_NOW, _:
                self.stage = Stage.TERMINATE
                self.hurried.set()
            case Order.CRASH, _:
                self.stage, self.reason, self.replace = Stage.TERMINATE, "error", True
                self.hurried.set()  # what a crashed part should have done would be waited for in vain
                logger.error("Stopping at once (%s).", source)
            case Order.REFUSE, _:
                self.stage, self.reason, self.replace, self.refused = Stage.TERMINATE, "error", False, True
                self.hurried.set()
                logger.error("Stopping at once: %s", source)
            case Order.RECYCLE, Stage.RUNNING | Stage.QUIET:
                self.stage, self.replace = Stage.TERMINATE, True
                _log("Stopping (%s).", source)
            case Order.STOP, _:
                self.stage = Stage.TERMINATE
                self.reason = "signal" if source.startswith("SIG") or source == SUPERVISOR else "shutdown"
                self.replace = source.startswith("SIG")  # sent to this process alone, or the supervisor knows too
                _log("Stopping (%s).", source)
            case Order.QUIET, Stage.RUNNING:
                self.stage = Stage.QUIET
                _log("Quiet: no new jobs (%s).", source)
            case Order.RESUME, Stage.QUIET:
                self.stage = Stage.RUNNING
                _log("Running again (%s).", source)


def _log(message: str, source: str) -> None:
    """Log at DEBUG what the supervisor orders: it has logged that itself, once for all its processes."""
    logger.log(logging.DEBUG if source == SUPERVISOR else logging.INFO, message, source)


_SIGNALS = {
    "SIGTERM": Order.STOP,
    "SIGINT": Order.STOP,
    "SIGTSTP": Order.QUIET,
    "SIGCONT": Order.RESUME,
}


@contextlib.contextmanager
def signals(lifecycle: Lifecycle) -> Iterator[None]:
    """Let this process' signals be orders; only in the main thread, elsewhere nothing happens."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        lifecycle.give(_SIGNALS[name], name)

    known = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]  # Windows has two of them
    before = {number: signal.signal(number, handle) for number in known}
    _handled.update(known)
    if hasattr(signal, "pthread_sigmask"):  # a supervisor holds them back until here
        signal.pthread_sigmask(signal.SIG_UNBLOCK, known)
    try:
        yield
    finally:
        _handled.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


_handled: set[int] = set()


class _Fork:
    """Resets our signals in a process that a handler forks.

    They would go into a queue that no thread reads there, so that `multiprocessing`, for instance, could not end the
    process. So they get their usual meaning again, and wait until they have it.
    """

    _mask = threading.local()

    def before(self) -> None:
        if _handled:
            self._mask.value = signal.pthread_sigmask(signal.SIG_BLOCK, _handled)

    def after_in_parent(self) -> None:
        if _handled:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask.value)

    def after_in_child(self) -> None:
        if _handled:
            for number in _handled:
                signal.signal(number, signal.SIG_DFL)
            _handled.clear()
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask.value)


if hasattr(os, "register_at_fork"):
    _fork = _Fork()
    os.register_at_fork(before=_fork.before, after_in_parent=_fork.after_in_parent, after_in_child=_fork.after_in_child)
