"""The processes that a supervisor starts: workers, and undertakers for those that died."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import enum
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

from django_ojs.operations.bury import bury
from django_ojs.operations.common import database
from django_ojs.scheduler.outage import persist
from django_ojs.worker.process import Options, Worker
from django_ojs.worker.tether import Pipes

logger = logging.getLogger(__name__)

UNDERTAKING = 60.0  #: how long an undertaker waits for a database that is away before another one tries


class Told(enum.IntEnum):
    """The exit code of an undertaker: what an operator had told the worker that died."""

    NOTHING = 10
    QUIET = 11
    TERMINATE = 12


@dataclasses.dataclass
class Place:
    """A place that one process after the other takes, always under the same worker id.

    `pid` is that of the worker, `undertaker` that of the process that hands a dead worker's jobs back. Instants
    are of the monotonic clock.
    """

    worker_id: str
    pid: int | None = None
    undertaker: int | None = None
    undertaken_at: float = 0.0
    pipes: Pipes | None = None
    started_at: float = 0.0
    heard_at: float = 0.0  #: the last report
    start_at: float | None = 0.0  #: when the next process is to start; None: not at all
    early_deaths: int = 0
    completed: int = 0  #: by the processes before this one
    killed: bool = False  #: by us
    frozen: bool = False  #: because it no longer reported
    quiet: bool = False
    cautious: bool = False
    blame: bool = False  #: the process that died did so by itself

    @property
    def is_settled(self) -> bool:
        """Nobody is there and nobody will come."""
        return self.pid is None and self.undertaker is None and self.start_at is None

    @property
    def age(self) -> float:
        return time.monotonic() - self.started_at


#: Signals that a process gets for what it did itself; all others come from outside.
_OWN_DOING = {getattr(signal, name) for name in ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGSYS")
              if hasattr(signal, name)}  # fmt: skip


def is_own_doing(status: int) -> bool:
    """Whether a process that ended with this `waitpid` status did so itself, and not somebody from outside."""
    return not os.WIFSIGNALED(status) or os.WTERMSIG(status) in _OWN_DOING


def describe(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended with code {os.WEXITSTATUS(status)}"


def fork(body: Callable[[], int]) -> int:
    """Run `body` in a new process, which ends with the code it returns; its pid.

    Signals wait until the new process has handlers of its own. To be called without an open database
    connection: a connection shared by two processes serves neither.
    """
    _flush()  # or both processes would print what waits
    with _signals_held():
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            code = body()
        except BaseException:
            logger.exception("A process of the worker failed.")
        finally:
            _exit(code)
    raise AssertionError("A forked process went on.")


def work(options: Options, pipes: Pipes, announce: Callable[[str], object]) -> int:
    """The life of a child."""
    return 0 if Worker(options, announce, pipes=pipes).run() else 1


def hand_back(worker_id: str, *, blame: bool) -> int:
    """The life of an undertaker, short unless the database is away."""
    for number in _ORDERS:  # a terminal or systemd sends them to the whole group
        signal.signal(number, signal.SIG_IGN)
    too_late = threading.Event()
    timer = threading.Timer(UNDERTAKING, too_late.set)
    timer.daemon = True
    timer.start()
    using = database(None)
    burial = persist(lambda: bury(worker_id, blame=blame, using=using), using, too_late)
    if burial.returned:
        logger.warning("Handed back %d jobs of %s.", burial.returned, worker_id)
    return {"quiet": Told.QUIET, "terminate": Told.TERMINATE}.get(burial.directive, Told.NOTHING)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ORDERS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_ORDERS = {getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGTSTP", "SIGCONT") if hasattr(signal, name)}


def _exit(code: int) -> None:
    """End without waiting for threads that are stuck in a handler, and without a way back into the parent's code."""
    try:
        atexit._run_exitfuncs()
        _flush()
    finally:
        os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
