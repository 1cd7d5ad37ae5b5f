"""Supervise the worker's processes: fork them, watch them and replace those that end.

The supervisor has no threads and never opens the database, so that a fork is safe at any time and nothing it does can
hang. When a process dies, another short-lived process hands its jobs back, which needs the database; only then the next
process takes the place, under the same worker id.

Jobs that ran in a process that died are run alone (`workerregistry.deaths`): in processes for such jobs only, with
worker ids of their own, which the supervisor starts when such jobs wait, and which end when none does.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType

from django.utils import autoreload

from django_ojs import output
from django_ojs.backoff import Backoff
from django_ojs.client.context import log_fields
from django_ojs.conf import ojs_settings
from django_ojs.database import database
from django_ojs.guard import described, get_logger, may_fail
from django_ojs.messages import count, jobs
from django_ojs.registry import registry
from django_ojs.scheduler.service import RESTART, Service, persist
from django_ojs.states import State
from django_ojs.worker import joblogs, memory, processinfo
from django_ojs.worker.board import Board
from django_ojs.worker.lifecycle import ALL_SIGNALS, HANGUP, SIGNALS, Echoes, Lifecycle, Order, Pipes, obeyed, stopping
from django_ojs.worker.logring import LogRing
from django_ojs.worker.process import WorkerOptions, WorkerProcess
from django_ojs.worker.processinfo import HealthFile
from django_ojs.workerregistry import dead
from django_ojs.workerregistry.deaths import Death, RunId

logger = get_logger(__name__)

TICK = 0.5  #: seconds between two looks when nothing happens
SAME_SIGNAL = 2.0  #: so many seconds apart, a signal that reached the supervisor and a process was sent to both
#: Seconds before a place is taken again whose process has done nothing, and before jobs are handed back again.
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 30.0
BEYOND_GRACE = 15.0  #: seconds that a process may take to end after its handlers had their grace period
ALONE = 4  #: processes that run jobs alone, at most: a long job must not keep all others waiting
NEXT_ALONE = 10.0  #: seconds that such a job waits until one more process starts for it
NOTHING_DONE = 30.0  #: before another process looks for jobs to run alone, when the last one found none to run
HAND_BACK_SECONDS = 60.0  #: how long handing back waits for a database that is away, before another process tries


class ExitReport(enum.IntFlag):
    """The exit code of a process that handed jobs back: what an operator had ordered the dead worker to do, and whether
    jobs are to be run alone because of its death."""

    DONE = 64
    QUIET = 1
    TERMINATE = 2
    SUSPECTS = 4


@dataclasses.dataclass
class ProcessSlot:
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
    pause: float = 0.0  #: for how many seconds the place stays empty behind the process that has just ended
    stuck_since: float | None = None  #: since when it has said that a part of it has ended or hangs
    hand_back_due: float | None = None  #: when the next try to hand its jobs back is to begin
    completed: int = 0  #: by the processes before this one
    killed: bool = False  #: by us
    frozen: bool = False  #: because it no longer reported
    quiet: bool = False
    suspects: bool = False  #: its processes run the jobs that are to be run alone, and nothing else
    board: Board | None = None
    ring: LogRing | None = None  #: of what handlers have logged; kept until the jobs are handed back
    death: Death | None = None  #: how the process died; None: it was told to
    done_before: int = 0  #: `completed` when its process started

    def __post_init__(self) -> None:
        def backoff(what: str) -> Backoff:
            return Backoff(what, FIRST_PAUSE, LONGEST_PAUSE, logger=logger, level=logging.WARNING)

        self.starts = backoff(f"{self.worker_id}")
        self.hand_backs = backoff(f"Handing back the jobs of {self.worker_id}")

    @property
    def is_settled(self) -> bool:
        """No process is there, and none is to start."""
        return (self.pid, self.hand_back_pid, self.start_at, self.hand_back_due) == (None,) * 4

    @property
    def age(self) -> float:
        return time.monotonic() - self.started_at


class Supervisor:
    """`run()` returns True when all places are settled; False if a process had to be killed at the end, or had a name
    that another process has.

    With one process the worker id is the name itself, with more `NAME-1`, `NAME-2` and so on.
    """

    def __init__(
        self, options: WorkerOptions, processes: int, announce: Callable[[str], object] = logger.info,
        announce_child: Callable[[str], object] = lambda line: None, health: HealthFile | None = None,
    ) -> None:  # fmt: skip
        self._options, self._announce, self._announce_child = options, announce, announce_child
        names = [options.name] if processes == 1 else [f"{options.name}-{n}" for n in range(1, processes + 1)]
        alone = [f"{options.name}-alone", *(f"{options.name}-alone-{n}" for n in range(2, ALONE + 1))]
        self._alone = [ProcessSlot(name, suspects=True, start_at=None) for name in alone]
        self._suspects_wait, self._not_alone_before = False, 0.0
        self._number = len(names)
        self._places = [*map(ProcessSlot, names), *self._alone]
        self._health = health
        self._inherits = is_first_process()
        self._orders: list[tuple[Order, str]] = []
        self._noted: dict[str, float] = {}  #: when the supervisor got each signal last
        self._heard: list[tuple[float, str, int, str, str]] = []  #: what processes said of signals, and when
        self._stopping = self._hurried = self._killed = self._refused = False
        self._deadline = float("inf")
        self._rounds = Backoff("A round of the supervisor", TICK, LONGEST_PAUSE, logger=logger)

    def run(self) -> bool:
        started = time.monotonic()
        with self._signals_noted() as sleep:
            self._announce(self._greeting())
            while not all(place.is_settled for place in self._places):
                for step in self._steps():
                    try:
                        step()
                    except Exception:  # noqa: BLE001 - it is logged there; what fails must not keep from the rest
                        self._rounds.failed()
                    else:
                        self._rounds.worked()
                sleep(TICK)
            self._log_signals(time.monotonic())
        if self._health is not None:
            self._health.remove()
        total, uptime = sum(place.completed for place in self._places), time.monotonic() - started
        self._announce(f"ojs_worker {self._options.name} stopped: {jobs(total)} completed in {uptime:.1f} s.")
        return not (self._killed or self._refused)

    def _steps(self) -> Iterator[Callable[[], None]]:
        """What there is to do in each round. No step needs that another one went well."""
        yield self._obey
        for place in self._places:
            yield partial(self._check, place)
        if self._inherits:
            yield self._bury_orphans
        yield self._start_alone
        yield lambda: self._log_signals(time.monotonic() - TICK)
        yield self._report_health

    def _check(self, place: ProcessSlot) -> None:
        """Do what is to be done for one place now."""
        if place.pid is not None:
            self._hear(place)
            self._watch(place)
            self._reap(place)
        if place.hand_back_pid is not None:
            self._reap_hand_back(place)
        if place.hand_back_due is not None and (self._stopping or place.hand_back_due <= time.monotonic()):
            self._hand_back(place)
        if place.pid is None and place.hand_back_pid is None and place.start_at is not None:
            if self._stopping:
                place.start_at = None
            elif place.start_at <= time.monotonic():
                self._start(place)

    # The life of a process

    def _start(self, place: ProcessSlot) -> None:
        token = secrets.token_hex(4)
        options = dataclasses.replace(self._options, name=place.worker_id, token=token, quiet=place.quiet)
        if place.suspects:
            options = dataclasses.replace(
                options, concurrency=1, scheduler=False, suspects=True, until_empty=True, max_jobs=None
            )
            self._suspects_wait = False
        try:
            pipes = Pipes()
        except OSError:  # no more descriptors
            place.start_at = time.monotonic() + place.starts.failed("could not be started")
            return
        board, ring = Board(options.concurrency), LogRing() if ojs_settings.JOB_LOGS else None

        def body() -> int:
            self._let_go_of_others(place)
            pipes.close()
            memory.configure_gc()
            worker = WorkerProcess(options, self._announce_child, pipes=pipes, board=board, ring=ring)
            return 0 if worker.run() else 1

        try:
            pid = fork(body, known=place.starts.failures > 0)
        except Exception:  # noqa: BLE001 - no more processes, or no memory for one: it is logged there
            place.start_at = time.monotonic() + place.starts.failed("could not be started")
            pipes.keep_parents_end()
            pipes.close()
            return
        place.pid, place.pipes, place.board, place.ring = pid, pipes, board, ring
        place.incarnation = processinfo.incarnation(token, place.pid)
        pipes.keep_parents_end()
        place.started_at = place.heard_at = time.monotonic()
        place.start_at, place.killed, place.frozen, place.done_before = None, False, False, place.completed
        place.stuck_since = None

    def _let_go_of_others(self, mine: ProcessSlot) -> None:
        """In a new process: the pipes to the others end when the parent does, and only then."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for place in self._places:
            if place is not mine and place.pipes is not None:
                place.pipes.close()

    def _hear(self, place: ProcessSlot) -> None:
        if place.pipes is not None and place.pipes.read():
            place.heard_at = time.monotonic()
            if place.pipes.healthy:
                place.starts.worked()
            place.stuck_since = (place.stuck_since or place.heard_at) if place.pipes.stuck else None
            self._heard += [(place.heard_at, place.worker_id, *said) for said in place.pipes.signals]
            place.pipes.signals.clear()
            if place.pipes.suspects:
                place.pipes.suspects, self._suspects_wait = False, True

    def _log_signals(self, until: float) -> None:
        """Log what signals did to single processes. One that the supervisor got, too, is logged once, as its own: a
        terminal and systemd send it to all of them, in any order."""
        due = [said for said in self._heard if said[0] <= until]
        self._heard = [said for said in self._heard if said[0] > until]
        for at, worker_id, level, name, line in due:
            if abs(self._noted.get(name, float("-inf")) - at) > SAME_SIGNAL:
                logger.log(level, "%s: %s", worker_id, line)

    def _start_alone(self) -> None:
        """Start a process for jobs that are to be run alone, where one waits and those that run are busy."""
        if not self._suspects_wait or self._stopping:
            return
        now, free = time.monotonic(), [place for place in self._alone if place.is_settled]
        busy = [place.started_at for place in self._alone if not place.is_settled]
        if free and now >= max(self._not_alone_before, *(started + NEXT_ALONE for started in busy), 0.0):
            free[0].start_at = now

    def _watch(self, place: ProcessSlot) -> None:
        """Kill a process that no longer reports (a C call may hold the interpreter), or does not end in time, be it
        that it was told to or that a part of it hangs."""
        now = time.monotonic()
        silence = now - place.heard_at
        deadline = self._deadline
        if place.stuck_since is not None:
            deadline = min(deadline, place.stuck_since + ojs_settings.SHUTDOWN_GRACE_PERIOD + BEYOND_GRACE)
        if place.pid is None or place.killed or (now < deadline and silence < processinfo.longest_silence()):
            return
        place.killed, place.frozen = True, silence >= processinfo.longest_silence()
        self._killed = self._killed or self._stopping
        why = f"no sign of life for {silence:.0f} s" if place.frozen else "it does not end"
        logger.error("Killing %s (pid %d): %s.", place.worker_id, place.pid, why)
        os.kill(place.pid, signal.SIGKILL)

    def _reap(self, place: ProcessSlot) -> None:
        ended = _ended(place.pid)
        if ended is None or place.pipes is None or place.board is None:
            return
        status, memory_mb = ended
        self._hear(place)
        goodbye, place.completed = place.pipes.goodbye, place.completed + place.pipes.completed
        place.pipes.close()
        running = place.board.running()
        place.board.close()
        pid, place.pid, place.pipes, place.board = place.pid, None, None, None
        if goodbye not in ("done", "refused") and not self._stopping:
            place.pause = max(self._pause(place), 0.0 if goodbye == "replace" else FIRST_PAUSE)
        if goodbye not in ("", "failed") and place.ring is not None:
            place.ring.close()
            place.ring = None
        if goodbye == "refused":
            self._end_refused(place)
            return
        if goodbye not in ("", "failed"):
            place.quiet = False
            if place.suspects and place.completed == place.done_before:
                self._not_alone_before = time.monotonic() + NOTHING_DONE
            place.start_at = time.monotonic() + place.pause if goodbye == "replace" else None
            return
        death = death_of(status, memory_mb, running)
        logger.error("%s (pid %d) %s.", place.worker_id, pid, death)
        # No job is to blame for a fault of the worker's own, or where it was killed because it did not end.
        place.death = None if goodbye or (place.killed and not place.frozen) else death
        self._hand_back(place)

    def _end_refused(self, place: ProcessSlot) -> None:
        """Another supervisor's worker has our name: end all processes of this one."""
        place.start_at = None
        self._refused = True
        if not self._stopping:
            logger.error("Another process has the name %s: stopping.", place.worker_id)
            self._orders.append((Order.STOP, "the name is taken"))

    def _hand_back(self, place: ProcessSlot) -> None:
        def body() -> int:
            self._let_go_of_others(place)
            return hand_back(place.worker_id, place.incarnation, place.death, place.ring)

        place.hand_back_due = None
        try:
            place.hand_back_pid = fork(body, known=place.hand_backs.failures > 0)
        except Exception:  # noqa: BLE001 - it is logged there
            self._hand_back_later(place)
        place.hand_back_at = time.monotonic()

    def _hand_back_later(self, place: ProcessSlot) -> None:
        """The jobs could not be handed back: try again after a pause, unless the supervisor stops."""
        pause = place.hand_backs.failed("failed, and the server will notice")
        place.hand_back_due = None if self._stopping else time.monotonic() + pause

    def _reap_hand_back(self, place: ProcessSlot) -> None:
        ended = _ended(place.hand_back_pid)
        if ended is None:
            limit = BEYOND_GRACE if self._stopping else 2 * HAND_BACK_SECONDS
            if place.hand_back_pid and time.monotonic() - place.hand_back_at > limit:
                os.kill(place.hand_back_pid, signal.SIGKILL)
            return
        place.hand_back_pid, (status, _) = None, ended
        code = os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else 0
        if not code & ExitReport.DONE or code > sum(ExitReport):
            self._hand_back_later(place)
            return
        place.hand_backs.worked()
        if place.ring is not None:
            place.ring.close()
            place.ring = None
        place.quiet = bool(code & ExitReport.QUIET)
        self._suspects_wait = self._suspects_wait or bool(code & ExitReport.SUSPECTS)
        ends = code & ExitReport.TERMINATE or (place.suspects and not self._suspects_wait)
        place.start_at = None if ends else time.monotonic() + place.pause

    def _pause(self, place: ProcessSlot) -> float:
        """How long a place stays empty: not at all after a process that has completed jobs, or lasted."""
        if place.completed > place.done_before or place.age >= LONGEST_PAUSE:
            return 0.0
        return place.starts.failed(f"ended {place.age:.0f} s after its start and completed no job")

    def _bury_orphans(self) -> None:
        """Take note of the end of processes that ours have left behind: as the first process of a container this one
        gets them, and no other process would."""
        ours = {place.pid for place in self._places} | {place.hand_back_pid for place in self._places}
        with contextlib.suppress(ChildProcessError):  # there is none at all
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid in ours:  # it hides those behind it until `_reap` has seen it
                    return
                os.waitpid(ended.si_pid, 0)

    # Orders

    def _obey(self) -> None:
        while self._orders:
            order, source = self._orders.pop(0)
            if source == HANGUP and self._stopping:
                continue
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
            if not self._hurried:
                logger.warning("Stopping at once (%s).", source)
            self._hurried = True
            self._deadline = time.monotonic() + BEYOND_GRACE
            return Order.STOP_NOW
        self._stopping = True
        boards = [place.board for place in self._places if place.board is not None]
        logger.info("%s", stopping(source, sum(len(board.running()) for board in boards)))
        self._deadline = time.monotonic() + ojs_settings.SHUTDOWN_GRACE_PERIOD + BEYOND_GRACE
        return Order.STOP

    @contextlib.contextmanager
    def _signals_noted(self) -> Iterator[Callable[[float], None]]:
        """A block in which signals are noted; gives a sleep that ends when one comes, a child's end included."""
        reader, writer = os.pipe()
        for fd in (reader, writer):
            os.set_blocking(fd, False)

        echoes = Echoes()

        def handle_signal(number: int, frame: FrameType | None) -> None:
            name = signal.Signals(number).name
            if name in SIGNALS and not echoes.has(name):
                self._noted[name] = time.monotonic()
                self._orders.append((SIGNALS[name], name))

        before = {number: signal.signal(number, handle_signal) for number in (*obeyed(), signal.SIGCHLD)}
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
        options, number = self._options, self._number
        several = f"{number} processes, " if number > 1 else ""
        return (
            f"ojs_worker {options.name} started: {several}queues {', '.join(options.queues) or 'all'}, "
            f"concurrency {options.concurrency}, {count(len(registry.types()), 'job type')}."
        )


def is_first_process() -> bool:
    """Whether this is the first process of a container, or of the machine, which inherits every orphan."""
    return os.getpid() == 1


def _is_well(place: ProcessSlot) -> bool:
    return place.pipes is not None and place.pipes.healthy and time.monotonic() - place.heard_at < 5 * TICK


def _number(name: str) -> int:
    number: signal.Signals = getattr(signal, name)
    return number


def _ended(pid: int | None) -> tuple[int | None, float | None] | None:
    """The status of a process that has ended, and the most memory that it had (MiB, resident); None while it runs. Both
    are None where another part has waited for it."""
    if pid is None:
        return None
    try:
        found, status, used = os.wait4(pid, os.WNOHANG)
    except ChildProcessError:
        return None, None
    return (status, processinfo.in_mb(used.ru_maxrss)) if found else None


def death_of(status: int | None, memory_mb: float | None = None, running: Iterable[RunId] = ()) -> Death:
    """How a process died that ended with this `waitpid` status; None: it is not known."""
    if status is None:
        return Death("", None, memory_mb, frozenset(running))
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return Death(name, None, memory_mb, frozenset(running))
    return Death("", os.WEXITSTATUS(status), memory_mb, frozenset(running))


def fork(body: Callable[[], int], *, known: bool = False) -> int:
    """Run `body` in a new process, which ends with the code it returns; its pid. Raises OSError where there is no room.

    `known`: the one before has failed, and the log has why.

    Signals wait until the new process has handlers of its own. To be called without an open database
    connection: a connection shared by two processes serves neither.
    """
    output.flush()  # or both processes would print what waits
    with _signals_held():
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            code = body()
        except BaseException as error:
            if known:
                logger.error("A process of the worker failed again: %s.", described(error))
            else:
                logger.exception("A process of the worker failed.")
        finally:
            _exit(code)
    raise AssertionError("A forked process went on.")


def hand_back(worker_id: str, incarnation: str, death: Death | None, ring: LogRing | None = None) -> int:
    """The body of a process that hands a dead worker's jobs back; short unless the database is away."""
    for number in ALL_SIGNALS:  # a terminal or systemd sends them to the whole group
        signal.signal(number, signal.SIG_IGN)
    too_late = threading.Event()
    timer = threading.Timer(HAND_BACK_SECONDS, too_late.set)
    timer.daemon = True
    timer.start()
    using = database(None)
    if ring is not None:  # before another worker can run the jobs, and log
        may_fail("Storing the lines of handlers of a dead worker", joblogs.salvage, ring, using, too_late)
    result = persist(
        lambda: dead.hand_back(worker_id, incarnation=incarnation, death=death, using=using), using, too_late
    )
    if result.returned:
        logger.warning("Handed back %s of %s.", jobs(result.returned), worker_id)
    left = [row for row in result.ran if row["state"] == State.AVAILABLE]
    for row in result.ran:
        what = "it is run alone next time"
        if result.blamed:
            what = f"loss {row['losses']} of {ojs_settings.POISON_LIMIT}" if left else "it was given up"
        logger.log(
            logging.ERROR if result.blamed else logging.WARNING, "%s %s ran when %s %s: %s.",
            row["type"], row["id"], worker_id, death, what, extra=log_fields(row),
        )  # fmt: skip
    orders = {"quiet": ExitReport.QUIET, "terminate": ExitReport.TERMINATE}
    return (
        ExitReport.DONE | orders.get(result.directive, ExitReport(0)) | (ExitReport.SUSPECTS if left else ExitReport(0))
    )


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ALL_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _exit(code: int) -> None:
    """End without waiting for threads that are stuck in a handler, and without a way back into the parent's code."""
    try:
        atexit._run_exitfuncs()
        output.flush()
    finally:
        os._exit(code)


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
    signals: list[int] = []
    inner: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        if number != signal.SIGINT:  # a terminal sends its Ctrl-C to the inner process as well
            for process in inner:
                process.send_signal(number)

    for number in obeyed(Order.STOP):
        signal.signal(number, pass_on)
    environment = {**os.environ, autoreload.DJANGO_AUTORELOAD_ENV: "true"}
    starts = Backoff("Starting the worker", FIRST_PAUSE, LONGEST_PAUSE, logger=logger, level=logging.WARNING)
    while True:
        before, environment[_BEGAN] = _times(), str(time.time())
        began, code = time.monotonic(), _run_inner(environment, inner, signals, starts)
        if signals or code == 0:
            return code
        if code == CHANGED and time.monotonic() - began < LOOK:
            _sleep_until(signals, starts.failed("brought a process that ended at once"))
        if code == CHANGED:
            continue
        logger.error("The worker ended with code %d; it starts again when a file has changed.", code)
        while not signals and _times() == before:
            time.sleep(LOOK)


def _run_inner(
    environment: dict[str, str], inner: list[subprocess.Popen[bytes]], signals: list[int], starts: Backoff
) -> int:
    """Start the inner process, as often as it takes, and wait for its end: its exit code, 0 where a signal came before
    it began."""
    while not signals:
        try:
            process = subprocess.Popen(autoreload.get_child_arguments(), env=environment, close_fds=False)  # noqa: S603
        except OSError:  # no more processes or memory
            _sleep_until(signals, starts.failed())
            continue
        inner[:] = [process]
        for number in signals:  # that came meanwhile
            process.send_signal(number)
        while (code := process.poll()) is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LOOK)  # so that no signal has to wait longer
        inner.clear()
        return code
    return 0


def _sleep_until(signals: Sequence[int], seconds: float) -> None:
    """Sleep for so long, or until a signal has come."""
    deadline = time.monotonic() + seconds
    while not signals and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, LOOK))


def _times() -> dict[Path, float]:
    times = {}
    for path in autoreload.iter_all_python_module_files():
        with contextlib.suppress(OSError):  # an editor is replacing it
            times[path] = path.stat().st_mtime
    return times


class Reloader(Service):
    """In the inner process: stops the worker when a file has changed."""

    name = "reload"

    def __init__(self, lifecycle: Lifecycle) -> None:
        super().__init__(RESTART)
        self._lifecycle = lifecycle
        self._seen: dict[Path, float] = {}
        self.changed = False

    def run(self) -> None:
        began = float(os.environ.get(_BEGAN, time.time()))
        while not self.stopping.is_set():
            times = _times()
            if any(_has_changed(at, self._seen.get(path), began) for path, at in times.items()):
                self.changed = True
                self._lifecycle.give(Order.STOP, "the code has changed")
                self.ask_to_stop()
                return
            self._seen = times
            self.stopping.wait(LOOK)


def _has_changed(at: float, seen: float | None, began: float) -> bool:
    """A file not seen before has, if it is younger than the process; a time in the future is another machine's."""
    return at != seen if seen is not None else began < at <= time.time()


def end_inner_process(watch: Reloader, *, fine: bool) -> None:
    """End the inner process with the exit code that the outer one needs."""
    if watch.changed:
        sys.exit(CHANGED)
    if not fine:
        sys.exit(1)
