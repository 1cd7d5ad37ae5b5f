"""Let the worker run, go quiet or terminate as signals and directives order it (orchestration 3.2 and 4).

Orders come from signals, from the supervisor, from the server's answers to heartbeats, from the claimer when
there is nothing left to do, and from a part that crashed. They go through one queue to the main thread,
because a signal handler may do nothing more than put something into a `SimpleQueue`.

Two pipes connect the supervisor and a worker process: orders go down, reports come up. An order is one byte. It is not
a signal, because the child may get the same signal itself, from a terminal or from systemd, and the second of two
signals means something else than the first. The end of the pipe means that the supervisor is gone, however it ended:
the worker then drains by itself.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import math
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from django_ojs.guard import get_logger
from django_ojs.messages import jobs_run
from django_ojs.scheduler.service import Service

logger = get_logger(__name__)


#: Seconds that the main thread waits for orders at a time. Python calls the handler of a signal that comes just before
#: a wait begins, or in another thread, only when the wait is over: a wait without an end would lose the signal.
LOOK_EVERY = 1.0
#: The source of orders that come through the supervisor's pipe.
SUPERVISOR = "the supervisor"
#: Seconds in which a signal that comes twice was sent once: what starts a worker, such as `timeout`, passes on a signal
#: that its whole group got as well.
ECHO = 0.1
#: What a terminal sends that is closed, often twice: once from the shell and once from the kernel.
HANGUP = "SIGHUP"


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

    `quiet`: it begins quiet, because an operator had made the process quiet whose place it takes. `running` counts the
    jobs that a stop waits for. `log_signal`, if there is one, takes what is to be logged about a signal, with its name:
    a supervisor may have got the same signal, and then says it for all its processes.
    """

    def __init__(
        self, *, quiet: bool = False, running: Callable[[], int] = lambda: 0,
        log_signal: Callable[[int, str, str], object] | None = None,
    ) -> None:  # fmt: skip
        self._running, self._log_signal = running, log_signal
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

    def crashed(self, part: str) -> None:
        """Order the worker to end because this part of it crashed."""
        self.give(Order.CRASH, f"the {part} crashed")

    def stuck(self, why: str) -> None:
        """Order the process to end because a part of it does nothing any more."""
        self.give(Order.CRASH, why)

    def hear(self, answer: str) -> None:
        """Take a heartbeat's answer, `running`, `quiet`, `terminate` or `restart`, for an order.

        `running` ends a quiet only after the server had said `quiet`: then an operator has resumed the worker.
        An operator's older `running`, which stays in force until a heartbeat says that the worker runs, must not undo
        a SIGTSTP.
        """
        if answer == Stage.TERMINATE:
            if self.stage is not Stage.TERMINATE:
                self.give(Order.STOP, "the operator")
        elif answer == "restart":
            if self.stage is not Stage.TERMINATE:
                self.give(Order.RECYCLE, "the operator")
        elif answer == Stage.QUIET:
            self._server_said_quiet = True
            if self.stage is Stage.RUNNING:
                self.give(Order.QUIET, "the operator")
        elif self._server_said_quiet:
            self._server_said_quiet = False
            if self.stage is Stage.QUIET:
                self.give(Order.RESUME, "the operator")

    def follow(self, timeout: float | None = None) -> Stage:
        """Wait for one order, at most `timeout` seconds, obey it, and return the stage that follows from it."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            try:
                order = self._orders.get(timeout=min(LOOK_EVERY, max(0.0, end - time.monotonic())))
            except queue.Empty:
                if time.monotonic() >= end:
                    return self.stage
            else:
                self._obey(*order)
                return self.stage

    def _obey(self, order: Order, source: str) -> None:
        if source == HANGUP and self.stage is Stage.TERMINATE:
            return
        if order is Order.STOP and source.startswith("SIG"):
            self._stop_signals += 1
        match order, self.stage:
            case Order.STOP, Stage.TERMINATE:
                if self._stop_signals > 1 and not self.hurried.is_set():
                    self.hurried.set()
                    self._say(source, f"Stopping at once ({source}).", logging.WARNING)
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
                self._say(source, stopping(source, self._running()))
            case Order.STOP, _:
                self.stage = Stage.TERMINATE
                self.reason = "signal" if source.startswith("SIG") or source == SUPERVISOR else "shutdown"
                self.replace = source.startswith("SIG")  # sent to this process alone, or the supervisor knows too
                self._say(source, stopping(source, self._running()))
            case Order.QUIET, Stage.RUNNING:
                self.stage = Stage.QUIET
                self._say(source, f"Quiet: no new jobs ({source}).")
            case Order.RESUME, Stage.QUIET:
                self.stage = Stage.RUNNING
                self._say(source, f"Running again ({source}).")

    def _say(self, source: str, line: str, level: int = logging.INFO) -> None:
        """Log what an order does; at DEBUG where the supervisor says it, once for all its processes."""
        if source == SUPERVISOR:
            level = logging.DEBUG
        elif self._log_signal is not None and source.startswith("SIG"):
            self._log_signal(level, source, line)
            level = logging.DEBUG
        logger.log(level, "%s", line)


def stopping(source: str, running: int) -> str:
    """What a worker says when it begins to stop: why, how many jobs it waits for, and how to stop without them."""
    if not running:
        return f"Stopping ({source})."
    hint = ""
    if source.startswith("SIG"):
        hint = " Press Ctrl-C again to stop at once." if source == "SIGINT" else " A second signal stops it at once."
    return f"Stopping ({source}): {jobs_run(running)}.{hint}"


#: What the signals to a worker, or to its supervisor, order.
SIGNALS = {
    "SIGTERM": Order.STOP, "SIGINT": Order.STOP, HANGUP: Order.STOP, "SIGTSTP": Order.QUIET, "SIGCONT": Order.RESUME,
}  # fmt: skip
ALL_SIGNALS = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]  #: Windows has two of them


def obeyed(*orders: Order) -> list[signal.Signals]:
    """The signals that give one of these orders, or any; without SIGHUP where this process ignores it (`nohup`)."""
    wanted = [number for number in ALL_SIGNALS if not orders or SIGNALS[number.name] in orders]
    return [n for n in wanted if n.name != HANGUP or signal.getsignal(n) is not signal.SIG_IGN]


class Echoes:
    """Tells the second signal, which hurries a process, from the first one that reaches it twice."""

    def __init__(self) -> None:
        self._heard: dict[str, float] = {}

    def has(self, name: str) -> bool:
        """Whether this signal is the one before, if that orders to stop. Safe in a signal handler."""
        now = time.monotonic()
        if SIGNALS[name] is Order.STOP and now - self._heard.get(name, -math.inf) < ECHO:
            return True
        self._heard[name] = now
        return False


@contextlib.contextmanager
def signals(lifecycle: Lifecycle) -> Iterator[None]:
    """Let this process' signals be orders; only in the main thread, elsewhere nothing happens."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    echoes = Echoes()

    def handle(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if not echoes.has(name):
            lifecycle.give(SIGNALS[name], name)

    known = obeyed()
    before = {number: signal.signal(number, handle) for number in known}
    _handled.update(known)
    if hasattr(signal, "pthread_sigmask"):  # a supervisor holds them back until here
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ALL_SIGNALS)
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


ORDERS = {Order.STOP: b"s", Order.STOP_NOW: b"h", Order.QUIET: b"q", Order.RESUME: b"r"}
_MEANING = {code: order for order, code in ORDERS.items()}


class SupervisorLink(Service):
    """The worker's end of the pipes: a thread that reads orders, and `report()`, which never blocks."""

    name = "supervisor link"

    def __init__(self, orders: int, reports: int, lifecycle: Lifecycle) -> None:
        super().__init__(lifecycle.crashed)
        self._orders, self._reports, self._lifecycle = orders, reports, lifecycle

    def run(self) -> None:
        while data := self._read():
            for code in data:
                self._lifecycle.give(_MEANING[bytes([code])], SUPERVISOR)
        self._lifecycle.give(Order.STOP, "the supervisor is gone")
        self.ask_to_stop()

    def _read(self) -> bytes:
        with self.resting():
            return os.read(self._orders, 64)

    def set_alarm(self, seconds: float) -> None:
        """Let the kernel end this process if this is not called again within so many seconds.

        A handler may hold the interpreter for ever in a C call. The supervisor kills such a process; this is
        for the one whose supervisor has been killed. No thread has to run for it, and a handler's own
        processes do not inherit it.
        """
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def report(self, *, healthy: bool, completed: int, stuck: bool = False) -> None:
        """Say that this process lives, whether it is healthy, and how many jobs it has completed. `stuck`: a part of it
        has ended or hangs, so that it has to be replaced."""
        self._send(b"%d %d" % (2 if stuck else healthy, completed))

    def report_suspects(self) -> None:
        """Say that jobs wait which are to be run alone."""
        self._send(b"suspects")

    def report_signal(self, level: int, name: str, line: str) -> None:
        """Say what a signal to this process did, for the supervisor to log unless it got the same signal."""
        self._send(f"signal {level} {name} {line}".encode())

    def say_goodbye(self, *, replace: bool, refused: bool = False, failed: bool = False) -> None:
        """Send the last message. An exit code would not do: a handler can call `os._exit(0)`. `failed`: the worker ends
        by a fault that is no job's, and has jobs to hand back."""
        self._send(b"refused" if refused else b"failed" if failed else b"replace" if replace else b"done")

    def _send(self, line: bytes) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._reports, line + b"\n")


_GOODBYES = (b"done", b"replace", b"failed", b"refused")


class Pipes:
    """The pipes between a supervisor and its worker: made before the fork, after which each side keeps its own ends."""

    def __init__(self) -> None:
        self.orders_out, self._orders_in = os.pipe()
        try:
            self._reports_out, self.reports_in = os.pipe()
        except OSError:
            os.close(self.orders_out)
            os.close(self._orders_in)
            raise
        os.set_blocking(self.reports_in, False)
        os.set_blocking(self._reports_out, False)
        self._rest = b""
        self.healthy, self.completed = False, 0
        self.stuck = False  #: a part of the child has ended or hangs
        self.signals: list[tuple[int, str, str]] = []  #: level, name and line of what signals to the child did
        self.suspects = False  #: the child has seen jobs that are to be run alone
        #: How the child ended by itself: "done", "replace", "failed", or "refused" if its name was taken.
        self.goodbye = ""

    def keep_parents_end(self) -> None:
        os.close(self.orders_out)
        os.close(self.reports_in)

    def give(self, order: Order) -> None:
        """For the parent: send an order. A child that has just ended reads nothing any more."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._orders_in, ORDERS[order])

    def read(self) -> bool:
        """For the parent: take in the reports that came; whether there were any."""
        data = b""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._reports_out, 4096):
                data += chunk
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            try:
                self._hear(line)
            except ValueError:  # torn: the pipe was full
                logger.warning("A report of a worker's process cannot be read: %r", line[:100])
        return bool(lines)

    def _hear(self, line: bytes) -> None:
        health, _, completed = line.partition(b" ")
        if health == b"signal":
            level, name, text = completed.decode().split(" ", 2)
            self.signals.append((int(level), name, text))
        elif completed:
            self.completed = int(completed)
            self.healthy, self.stuck = health == b"1", health == b"2"
        elif line == b"suspects":
            self.suspects = True
        elif line in _GOODBYES:
            self.goodbye = line.decode()
        else:
            raise ValueError(line)

    def close(self) -> None:
        """Give up the parent's ends: in the parent when the child has ended, in a child at once."""
        os.close(self._orders_in)
        os.close(self._reports_out)
