"""Collect what handlers log while they run, and write it, in batches and in a thread of its own.

`begin` lets what is logged in the context of a run belong to it: in its thread or task, and in threads that copy the
context. A handler of Python's logging at the root (`in_use`) gets the records, and a `Collector` keeps their lines
within the bounds of each attempt until its `LogWriter` has stored them. Nothing here waits for the database in the
thread of a handler, and a job that logs nothing costs no statement.

The root logger is set to the lowest level that is wanted, and where that is lower than the site has it, other handlers
get no record that they would not have got before.
"""

from __future__ import annotations

import contextlib
import contextvars
import datetime as dt
import logging
import os
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from django_ojs import clock
from django_ojs.client.context import JobContext, instant, log_fields
from django_ojs.conf import ojs_settings
from django_ojs.guard import Interrupted, get_logger
from django_ojs.jobs import joblog
from django_ojs.jobs.joblog import TAIL, LogAttempt, LogBounds, LogLine
from django_ojs.rules import joblogs
from django_ojs.scheduler.service import RESTART, GaveUp, Service, persist
from django_ojs.worker.logring import LogRing

if TYPE_CHECKING:
    from django_ojs.worker.writer import WriteLock

logger = get_logger(__name__)

#: Seconds that a line waits for others before it is stored.
PAUSE = 0.5
#: What the handler of a run and all that it calls in its context see.
_current: contextvars.ContextVar[JobContext | None] = contextvars.ContextVar("ojs_logging_run", default=None)
_inside = threading.local()  #: `busy` while a line is taken in this thread: what is logged meanwhile is none


class TakenLine(NamedTuple):
    """A line as it waits to be stored. `created` is the time of the host; `fields` is JSON text."""

    sequence: int
    created: float
    level: int
    logger: str
    message: str
    fields: str | None
    exception: str

    @property
    def size(self) -> int:
        return joblog.size_of(self.message, self.fields, self.exception)


class RunLog:
    """The lines of one run that are still to be stored, and how far it is with its bounds. Its collector guards it."""

    __slots__ = (
        "attempt", "begun", "dropped", "first", "first_size", "is_open", "last", "last_size", "number", "pending",
        "sizes", "told",
    )  # fmt: skip

    def __init__(self, context: JobContext) -> None:
        row = context.row
        self.attempt = LogAttempt(row["id"], row["attempt"], instant(row["started_at"]))
        #: The attempt as a ring keeps it.
        self.begun = (row["id"].bytes, row["attempt"], self.attempt.started_at.isoformat())
        self.pending: deque[TakenLine] = deque()  #: of the first part
        self.last: deque[TakenLine] = deque()  #: of the last part
        self.first = self.first_size = 0  #: lines and bytes of the first part
        self.is_open = True  #: the first part takes lines
        self.number = 0  #: of the newest line of the last part
        self.sizes: deque[int] = deque()  #: of the lines that the last part keeps
        self.last_size = 0
        self.dropped = 0  #: lines that fell out of the last part
        self.told = 0  #: how many of those the database knows of

    def add(self, line: TakenLine, bounds: LogBounds) -> TakenLine:
        """Take a line; returns it with its number."""
        size = line.size
        if self.is_open and self.first < bounds.lines and self.first_size + size <= bounds.size:
            self.first, self.first_size = self.first + 1, self.first_size + size
            line = line._replace(sequence=self.first)
            self.pending.append(line)
            return line
        self.is_open = False
        self.number += 1
        line = line._replace(sequence=TAIL + self.number)
        self.last.append(line)
        self.sizes.append(size)
        self.last_size += size
        while len(self.sizes) > 1 and (len(self.sizes) > bounds.lines or self.last_size > bounds.size):
            self.last_size -= self.sizes.popleft()
            self.dropped += 1
            if self.last[0].sequence == TAIL + self.dropped:  # else it is stored, or about to be
                self.last.popleft()
        return line


class LogCollector:
    """Collects the lines of all runs of one process. Any thread may use it, and no call waits for long.

    `ring` gets a copy of the lines, which a supervisor stores if this process is killed.
    """

    def __init__(self, ring: LogRing | None = None) -> None:
        self.lock = threading.RLock()
        self.filled = threading.Event()  #: there are lines to store
        self.urgent = threading.Event()  #: the ring has little room
        self.ring = ring
        self._dirty: dict[RunLog, None] = {}

    def take(self, context: JobContext, line: TakenLine) -> None:
        bounds = joblog.bounds()
        with self.lock:
            log = context.run_log
            if log is None:
                log = context.run_log = RunLog(context)
            line = log.add(line, bounds)
            self._dirty[log] = None
            if self.ring is not None:
                self.ring.put((*log.begun, *line))
                if self.ring.is_half_full:
                    self.urgent.set()
        self.filled.set()

    def collect(self) -> tuple[list[tuple[LogAttempt, TakenLine]], list[RunLog], int]:
        """Take all lines out that are to be stored; the runs of which lines have fallen out; and the ring's place."""
        with self.lock:
            self.filled.clear()
            self.urgent.clear()
            lines: list[tuple[LogAttempt, TakenLine]] = []
            over = []
            for log in self._dirty:
                lines += [(log.attempt, line) for line in (*log.pending, *log.last)]
                log.pending.clear()
                log.last.clear()
                if log.dropped > log.told:
                    over.append(log)
            self._dirty.clear()
            return lines, over, self.ring.place if self.ring is not None else 0

    def free(self, place: int) -> None:
        if self.ring is not None:
            with self.lock:
                self.ring.free(place)


def begin(collector: LogCollector, context: JobContext) -> None:
    """Let what is logged in this context from now on belong to the run of this job."""
    context.collector, context.take_line = collector, take_line
    _current.set(context)


def take_line(
    context: JobContext, level: int, name: str, message: Any, fields: Mapping[str, Any] | None, error: Any
) -> None:  # fmt: skip
    """Take a line that the handler gives to its context, from any thread."""
    if _active and level >= _lowest(name):
        _take(context, time.time(), level, name, message, fields, error)


class LogWriter(Service):
    """Stores the lines of a collector, half a second after the first of them, or at once when it is asked to.

    `write_lock`: taken for each write, on SQLite.
    """

    name = "log writer"

    def __init__(self, collector: LogCollector, using: str, write_lock: WriteLock | None = None) -> None:
        super().__init__(RESTART)  # one that dies costs lines and no jobs: `flush` goes on in the thread of the reports
        self.collector, self._using = collector, using
        self._write_lock = write_lock or contextlib.nullcontext()
        self._writing = threading.Lock()
        self._impatient = self.event()

    def give_up(self) -> None:
        """Wait no longer for a database that is away."""
        self._impatient.set()

    def wake(self) -> None:
        self.collector.filled.set()
        self.collector.urgent.set()

    def run(self) -> None:
        while not self.stopping.is_set():
            with self.resting():
                self.collector.filled.wait()
                self.collector.urgent.wait(PAUSE)
            self.flush()
        self.flush()

    def flush(self) -> None:
        """Store all lines that were taken before this call. Raises nothing; waits for a database that is away until
        it is to `give_up`, and then leaves the lines out."""
        with self._writing:
            lines, over, place = self.collector.collect()
            if lines or over:
                self._write(lines, over)
            self.collector.free(place)

    def _write(self, lines: Sequence[tuple[LogAttempt, TakenLine]], over: Sequence[RunLog]) -> None:
        try:
            store(lines, self._using, self._impatient, self._write_lock)
            for log in over:
                dropped = log.dropped
                persist(partial(self._drop, log.attempt, dropped), self._using, self._impatient)
                log.told = dropped
        except GaveUp as error:
            logger.error("%d lines of handlers are lost, the database is away: %s", len(lines), str(error).strip())
        except Interrupted:
            raise
        except BaseException:
            logger.exception("%d lines of handlers could not be stored.", len(lines))

    def _drop(self, attempt: LogAttempt, dropped: int) -> None:
        with self._write_lock:
            joblog.drop(attempt, TAIL + dropped + 1, dropped, self._using)


def store(
    taken: Sequence[tuple[LogAttempt, TakenLine]], using: str, stopping: threading.Event,
    write_lock: WriteLock | None = None,
) -> None:  # fmt: skip
    """Store these lines; those that the database refuses are left out, and cost no others."""
    if not taken:
        return
    behind = clock.now(using) - dt.datetime.fromtimestamp(time.time(), dt.UTC)  # of the database, to our own
    lines = [
        LogLine(
            attempt, line.sequence, dt.datetime.fromtimestamp(line.created, dt.UTC) + behind, line.level, line.logger,
            line.message, line.fields, line.exception,
        )
        for attempt, line in taken
    ]  # fmt: skip
    _store(lines, using, stopping, write_lock or contextlib.nullcontext())


def _store(lines: Sequence[LogLine], using: str, stopping: threading.Event, write_lock: WriteLock) -> None:
    def act() -> None:
        with write_lock:
            joblog.store(lines, using)

    try:
        persist(act, using, stopping)
    except GaveUp:
        raise
    except Exception as error:  # noqa: BLE001 - a driver may refuse a text with an error of its own
        _store_apart(lines, using, stopping, write_lock, error)


def _store_apart(
    lines: Sequence[LogLine], using: str, stopping: threading.Event, write_lock: WriteLock, error: Exception
) -> None:  # fmt: skip
    if len(lines) == 1:
        logger.error("A line of job %s could not be stored: %s", lines[0].attempt.job_id, type(error).__name__)
        return
    half = len(lines) // 2
    _store(lines[:half], using, stopping, write_lock)
    _store(lines[half:], using, stopping, write_lock)


def salvage(ring: LogRing, using: str, stopping: threading.Event) -> int:
    """Store what a process that died has left in its ring; return how many lines that were."""
    found: list[tuple[LogAttempt, TakenLine]] = []
    for job_id, number, started_at, *line in ring.left():
        found.append((_attempt(job_id, number, started_at), TakenLine(*line)))
    store(found, using, stopping)
    for attempt in {attempt for attempt, line in found if line.sequence > TAIL}:
        joblog.settle(attempt, using)
    return len(found)


def _attempt(job_id: bytes, number: int, started_at: str) -> LogAttempt:
    return LogAttempt(uuid.UUID(bytes=job_id), number, dt.datetime.fromisoformat(started_at))


# Python's logging


class RootHandler(logging.Handler):
    """Gives each record to the run in whose context it was logged."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Without the lock of other handlers: threads do not wait for each other here."""
        context = _current.get()
        if context is not None and _active and not getattr(record, "ojs_taken", False):
            self._take(context, record)
        if not _has_others(record.name):  # without this handler Python would have shown it itself
            last = logging.lastResort
            if last is not None and record.levelno >= last.level and _is_shown(record):
                last.handle(record)
        return True

    def _take(self, context: JobContext, record: logging.LogRecord) -> None:
        name = record.name
        if name == _OURS or name.startswith(f"{_OURS}."):  # what the worker says of its jobs
            return
        if record.levelno < _lowest(name):
            return
        try:
            message = record.getMessage()
        except Interrupted:
            raise
        except Exception as error:  # noqa: BLE001 - a fault of the call, or of what is logged
            message = f"{joblogs.str_of(record.msg, 1000)} [not formatted: {type(error).__name__}]"
        fields = None
        if len(record.__dict__) > len(_PLAIN) or not record.__dict__.keys() <= _PLAIN:
            fields = {key: value for key, value in record.__dict__.items() if key not in _PLAIN}
        if type(record.msg) is dict and "event" in record.msg:
            message, fields = _of_structlog(record.msg, fields or {})
        _take(context, record.created, record.levelno, name, message, fields, record.exc_info)


def _take(
    context: JobContext, created: float, level: int, name: str, message: Any, fields: Mapping[str, Any] | None,
    error: Any,
) -> None:  # fmt: skip
    """Take a line. Raises nothing but `Interrupted`; one that is logged while another is taken is left out."""
    if getattr(_inside, "busy", False) or context.collector is None:
        return
    _inside.busy = True
    try:
        limit = ojs_settings.JOB_LOG_LINE_LENGTH
        line = TakenLine(
            0, created, joblogs.level_number(level), joblogs.text(name, 255),
            joblogs.text(message, limit) if isinstance(message, str) else joblogs.str_of(message, limit),
            joblogs.fields_text(fields, limit) if fields else None,
            _traceback(error, limit) if error else "",
        )  # fmt: skip
        context.collector.take(context, line)
    except Interrupted:
        raise
    except BaseException as fault:  # noqa: BLE001 - a line is no reason for a handler to fail
        logger.error("A line of a handler could not be taken: %s", type(fault).__name__)
    finally:
        _inside.busy = False


def _of_structlog(event: Mapping[str, Any], extra: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The message and the fields of a record of structlog, which leaves it to a formatter to make a text of them."""
    named = {key: value for key, value in extra.items() if key not in ("_logger", "_name", "_from_structlog")}
    said = ("event", "level", "logger", "timestamp")  # the line has them already
    return event["event"], {**named, **{key: value for key, value in event.items() if key not in said}}


def _traceback(error: Any, limit: int) -> str:
    """The traceback as Python prints it, its end where it is too long; '' where the site stores none."""
    if not ojs_settings.STORE_BACKTRACES:
        return ""
    if isinstance(error, BaseException):
        error = (type(error), error, error.__traceback__)
    if not isinstance(error, tuple) or error[0] is None:
        return ""
    try:
        shown = "".join(traceback.format_exception(*error)).rstrip()
    except Exception as failed:  # noqa: BLE001 - code of the site
        return f"[not formatted: {type(failed).__name__}]"
    if len(shown) > limit:
        shown = f"… [cut: {len(shown)} characters]\n{shown[-limit:]}"
    return joblogs.text(shown, limit + 100)


_OURS = "django_ojs"
#: What every record has, and what we have put there.
_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message", "asctime", "taskName", "ojs_taken", *log_fields({"id": "", "type": "", "queue": "", "attempt": 0})
}  # fmt: skip

_handler = RootHandler()
_lock = threading.Lock()
_users = 0
_active = False  #: False in a process that a handler has forked
_before: int | None = None  #: the root logger's level as the site has it, where we have set another
_own_level = 0  #: the same of our own loggers
_filtered: list[logging.Handler] = []
_levels: dict[str, int] = {}  #: the lowest level that is stored, by logger


class _OnlyBefore(logging.Filter):
    """Keeps from the site's handlers what they would not have got with the root logger's own level."""

    def filter(self, record: logging.LogRecord) -> bool:
        return _is_shown(record)


_only_before = _OnlyBefore()


def _is_shown(record: logging.LogRecord) -> bool:
    """Whether the record's logger would have made it with the level that the site has given to the root logger."""
    return _before is None or record.levelno >= _before or _has_own_level(record.name)


def _has_own_level(name: str) -> bool:
    found: logging.Logger | None = logging.getLogger(name)
    while found is not None and found is not logging.root:
        if found.level:
            return True
        found = found.parent
    return False


def _has_others(name: str) -> bool:
    """Whether a handler other than ours gets the records of a logger, which have come to the root logger."""
    if len(logging.root.handlers) > 1:
        return True
    found: logging.Logger | None = logging.root if name == "root" else logging.getLogger(name)
    while found is not None:
        if any(handler is not _handler for handler in found.handlers):
            return True
        found = found.parent if found.propagate else None
    return False


def _lowest(name: str) -> int:
    found = _levels.get(name)
    if found is None:
        if len(_levels) > 10_000:
            _levels.clear()
        found = joblogs.lowest(name, ojs_settings.JOB_LOG_LEVEL, ojs_settings.JOB_LOG_LEVELS)
        _levels[name] = found
    return found


@contextlib.contextmanager
def in_use() -> Iterator[None]:
    """A block in which what is logged in the context of a run is taken; several may be at the same time."""
    global _users, _active
    with _lock:
        _users += 1
        _active = True
        if _users == 1:
            _install()
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _uninstall()


def _install() -> None:
    global _before, _own_level
    _levels.clear()
    root = logging.root
    wanted = joblogs.LEVELS[ojs_settings.JOB_LOG_LEVEL.lower()]
    if root.level > wanted:
        ours = logging.getLogger(_OURS)
        _own_level = ours.level
        ours.setLevel(ours.getEffectiveLevel())  # what the worker logs does not become more
        _before = root.level
        root.setLevel(wanted)
        _filtered[:] = _all_handlers()
        for handler in _filtered:
            handler.addFilter(_only_before)
    root.addHandler(_handler)


def _uninstall() -> None:
    global _before
    logging.root.removeHandler(_handler)
    if _before is not None:
        logging.root.setLevel(_before)
        logging.getLogger(_OURS).setLevel(_own_level)
        for handler in _filtered:
            handler.removeFilter(_only_before)
    _filtered.clear()
    _before = None


def _all_handlers() -> list[logging.Handler]:
    found = [
        logging.root,
        *(one for one in logging.root.manager.loggerDict.values() if isinstance(one, logging.Logger)),
    ]
    return list(dict.fromkeys(handler for one in found for handler in one.handlers))


def _forget_in_child() -> None:
    """In a process that a handler forks: its lines are not the worker's, and the locks may be held for ever."""
    global _active
    _active = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
