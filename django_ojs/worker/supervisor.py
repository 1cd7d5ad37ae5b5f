"""Supervise the worker's processes: fork them, watch them and replace those that end.

The supervisor has no threads and never opens the database, so that a fork is safe at any time and nothing it does can
hang. When a process dies, another short-lived process hands its jobs back, which needs the database; only then the next
process takes the place, under the same worker id.

In development (`ojs_worker --reload`) a simpler parent starts the worker again when the code changes, as `runserver`
does. Unlike there the inner process works in its main thread and watches the files in another, so that a change drains
it: no job is cut off.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import enum
import logging
import os
import secrets
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from django.utils import autoreload

from django_ojs.conf import ojs_settings
from django_ojs.database import database
from django_ojs.registry import registry
from django_ojs.scheduler.service import persist
from django_ojs.worker import memory, processinfo
from django_ojs.worker.lifecycle import SIGNALS, Lifecycle, Order, Pipes
from django_ojs.worker.process import Options, Worker
from django_ojs.worker.processinfo import HealthFile
from django_ojs.workers import dead

logger = logging.getLogger(__name__)

TICK = 0.5  #: seconds between two looks when nothing happens
EARLY = 2.0  #: a process that lived shorter than this died right after its start
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 30.0  #: before a place is taken again after early deaths
BEYOND_GRACE = 15.0  #: seconds that a process may take to end after its handlers had their grace period
HAND_BACK_SECONDS = 60.0  #: how long handing back waits for a database that is away, before another process tries

_HELD = {getattr(signal, name) for name in SIGNALS if hasattr(signal, name)}
#: Signals that a process gets for a fault of its own; all others come from outside.
_OWN_FAULTS = {getattr(signal, name) for name in ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGSYS")
              if hasattr(signal, name)}  # fmt: skip


class LastOrder(enum.IntEnum):
    """The exit code of a process that hands jobs back: the order that an operator had given to the dead worker."""

    NOTHING = 10
    QUIET = 11
    TERMINATE = 12


@dataclasses.dataclass
class Place:
    """A place that one process after the other takes, always under the same worker id.

    `pid` is that of the worker, `hand_back_pid` that of the process that hands a dead worker's jobs back. Instants are
    of the monotonic clock.
    """

    worker_id: str
    incarnation: str = ""  #: which process was started last, as the database knows it
    pid: int | None = None
    hand_back_pid: int | None = None
    hand_back_at: float = 0.0
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
        """No process is there, and none is to start."""
        return self.pid is None and self.hand_back_pid is None and self.start_at is None

    @property
    def age(self) -> float:
        return time.monotonic() - self.started_at


class Supervisor:
    """`run()` returns True when all places are settled; False if a process had to be killed at the end, or had a name
    that another process has.

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
        self._stopping = self._killed = self._refused = False
        self._deadline = float("inf")

    def run(self) -> bool:
        started = time.monotonic()
        with self._signals_noted() as sleep:
            self._announce(self._greeting())
            while not all(place.is_settled for place in self._places):
                self._obey()
                for place in self._places:
                    self._look_at(place)
                self._report_health()
                sleep(TICK)
        if self._health is not None:
            self._health.remove()
        total, uptime = sum(place.completed for place in self._places), time.monotonic() - started
        self._announce(f"ojs_worker {self._options.name} stopped: {total} jobs completed in {uptime:.1f} s.")
        return not (self._killed or self._refused)

    def _look_at(self, place: Place) -> None:
        """Do what is to be done for one place now."""
        if place.pid is not None:
            self._hear(place)
            self._watch(place)
            self._reap(place)
        if place.hand_back_pid is not None:
            self._reap_hand_back(place)
        if place.pid is None and place.hand_back_pid is None and place.start_at is not None:
            if self._stopping:
                place.start_at = None
            elif place.start_at <= time.monotonic():
                self._start(place)

    # The life of a process

    def _start(self, place: Place) -> None:
        token = secrets.token_hex(4)
        options = dataclasses.replace(
            self._options, name=place.worker_id, token=token, quiet=place.quiet, cautious=place.cautious
        )
        pipes = Pipes()

        def body() -> int:
            self._let_go_of_others(place)
            pipes.close()
            memory.settle()
            return 0 if Worker(options, self._announce_child, pipes=pipes).run() else 1

        place.pid, place.pipes = fork(body), pipes
        place.incarnation = processinfo.incarnation(token, place.pid)
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
        if place.pid is None or place.killed or (now < self._deadline and silence < processinfo.patience()):
            return
        place.killed, place.frozen = True, silence >= processinfo.patience()
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
        if goodbye == "refused":
            self._end_refused(place)
            return
        if goodbye:
            place.quiet = place.cautious = False
            place.start_at = time.monotonic() + self._pause(place) if goodbye == "replace" else None
            return
        logger.error("%s (pid %d) %s.", place.worker_id, pid, describe(status))
        place.blame = place.cautious = is_own_fault(status) or place.frozen
        self._hand_back(place)

    def _end_refused(self, place: Place) -> None:
        """Another supervisor's worker has our name: end all processes of this one."""
        place.start_at = None
        self._refused = True
        if not self._stopping:
            logger.error("Another process has the name %s: stopping.", place.worker_id)
            self._orders.append((Order.STOP, "the name is taken"))

    def _hand_back(self, place: Place) -> None:
        def body() -> int:
            self._let_go_of_others(place)
            return hand_back(place.worker_id, place.incarnation, blame=place.blame)

        place.hand_back_pid, place.hand_back_at = fork(body), time.monotonic()

    def _reap_hand_back(self, place: Place) -> None:
        status = _ended(place.hand_back_pid)
        if status is None:
            if self._stopping and place.hand_back_pid and time.monotonic() - place.hand_back_at > BEYOND_GRACE:
                os.kill(place.hand_back_pid, signal.SIGKILL)
            return
        place.hand_back_pid = None
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1
        if code not in tuple(LastOrder):
            logger.error("The jobs of %s could not be handed back; the server will notice.", place.worker_id)
            if not self._stopping:
                self._hand_back(place)
            return
        place.quiet = code == LastOrder.QUIET
        place.start_at = None if code == LastOrder.TERMINATE else time.monotonic() + self._pause(place)

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
        """Note the first signal and the second; return the order for the children."""
        if self._stopping:
            logger.warning("Stopping at once (%s).", source)
            self._deadline = time.monotonic() + BEYOND_GRACE
            return Order.STOP_NOW
        self._stopping = True
        logger.info("Stopping (%s).", source)
        self._deadline = time.monotonic() + ojs_settings.SHUTDOWN_GRACE_PERIOD + BEYOND_GRACE
        return Order.STOP

    @contextlib.contextmanager
    def _signals_noted(self) -> Iterator[Callable[[float], None]]:
        """A block in which signals are noted; gives a sleep that ends when one comes, a child's end included."""
        reader, writer = os.pipe()
        for fd in (reader, writer):
            os.set_blocking(fd, False)

        def note(number: int, frame: FrameType | None) -> None:
            name = signal.Signals(number).name
            if name in SIGNALS:
                self._orders.append((SIGNALS[name], name))

        before = {number: signal.signal(number, note) for number in map(_number, (*SIGNALS, "SIGCHLD"))}
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

    # Reports

    def _report_health(self) -> None:
        """Touch the health file while all processes are healthy. A place without a process does not count."""
        if self._health is None:
            return
        present = [place for place in self._places if place.pid is not None]
        if self._stopping or (present and all(_is_well(place) for place in present)):
            self._health.touch()

    def _greeting(self) -> str:
        options, count = self._options, len(self._places)
        several = f"{count} processes, " if count > 1 else ""
        return (
            f"ojs_worker {options.name} started: {several}queues {', '.join(options.queues) or 'all'}, "
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


def is_own_fault(status: int) -> bool:
    """Whether a process that ended with this `waitpid` status caused its end itself."""
    return not os.WIFSIGNALED(status) or os.WTERMSIG(status) in _OWN_FAULTS


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


def hand_back(worker_id: str, incarnation: str, *, blame: bool) -> int:
    """The body of a process that hands a dead worker's jobs back; short unless the database is away."""
    for number in _HELD:  # a terminal or systemd sends them to the whole group
        signal.signal(number, signal.SIG_IGN)
    too_late = threading.Event()
    timer = threading.Timer(HAND_BACK_SECONDS, too_late.set)
    timer.daemon = True
    timer.start()
    using = database(None)
    result = persist(
        lambda: dead.hand_back(worker_id, incarnation=incarnation, blame=blame, using=using), using, too_late
    )
    if result.returned:
        logger.warning("Handed back %d jobs of %s.", result.returned, worker_id)
    return {"quiet": LastOrder.QUIET, "terminate": LastOrder.TERMINATE}.get(result.directive, LastOrder.NOTHING)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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


#: When the inner process began. It may have read a file that changed since then too early.
_BEGAN = "OJS_RELOAD_BEGAN"
CHANGED = 3  #: the exit code that means "again", as Django's
LOOK = 1.0  #: seconds between two looks at the files


def is_inner_process() -> bool:
    """Whether this process was started by `restart_on_change`."""
    return os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) == "true"


def restart_on_change() -> int:
    """The outer process: returns the exit code of the inner one that ended for another reason than a change.

    One that failed, as over a syntax error, is started again when a file has changed.
    """
    # A terminal sends its Ctrl-C to the inner process as well.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signals: list[int] = []
    inner: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        for process in inner:
            process.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    environment = {**os.environ, autoreload.DJANGO_AUTORELOAD_ENV: "true"}
    while True:
        before, environment[_BEGAN] = _times(), str(time.time())
        inner[:] = [subprocess.Popen(autoreload.get_child_arguments(), env=environment, close_fds=False)]  # noqa: S603
        while (code := inner[0].poll()) is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                inner[0].wait(LOOK)  # so that no signal has to wait longer
        if signals or code == 0:
            return code
        if code != CHANGED:
            logger.error("The worker ended with code %d; it starts again when a file has changed.", code)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            while not signals and _times() == before:
                time.sleep(LOOK)
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _times() -> dict[Path, float]:
    times = {}
    for path in autoreload.iter_all_python_module_files():
        with contextlib.suppress(OSError):  # an editor is replacing it
            times[path] = path.stat().st_mtime
    return times


class FileWatch:
    """In the inner process: a thread that stops the worker when a file has changed."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self.changed = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="ojs-reload", daemon=True).start()

    def _run(self) -> None:
        began = float(os.environ.get(_BEGAN, time.time()))
        seen: dict[Path, float] = {}
        while True:
            times = _times()
            if any(_has_changed(at, seen.get(path), began) for path, at in times.items()):
                break
            seen = times
            time.sleep(LOOK)
        self.changed = True
        self._lifecycle.give(Order.STOP, "the code has changed")


def _has_changed(at: float, seen: float | None, began: float) -> bool:
    """A file not seen before has, if it is younger than the process; a time in the future is another machine's."""
    return at != seen if seen is not None else began < at <= time.time()


def end_inner_process(watch: FileWatch, *, fine: bool) -> None:
    """End the inner process with the exit code that the outer one needs."""
    if watch.changed:
        sys.exit(CHANGED)
    if not fine:
        sys.exit(1)
