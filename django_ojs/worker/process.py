"""Run the worker: one process that claims jobs, runs their handlers and reports the outcomes.

Its parts are threads that know little of each other. The *claimer* fetches jobs for free slots of the *pool*, whose
*runners* call the handlers, in threads or on an event loop. What a handler did becomes an *outcome*; the *writer*
reports outcomes in batches. The *heartbeat* renews reservations and reads the orders of the server, *deadlines* ends
handlers that take too long, and the *scheduler* does what is due for the whole site if this process leads. The main
thread waits for orders (*lifecycle*), and the *health reporter* says whether all is well. A *supervisor* may start the
process and give it orders through *pipes*.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.db import connections
from django.dispatch import Signal

import django_ojs
from django_ojs import parts
from django_ojs.conf import ojs_settings
from django_ojs.database import database
from django_ojs.errors import NotFound
from django_ojs.faults import is_unusable, suppress_passing
from django_ojs.guard import get_logger
from django_ojs.jobs.finish import requeue
from django_ojs.messages import count, jobs, jobs_run, jobs_wait
from django_ojs.middleware import enqueue_chain, execution_chain
from django_ojs.registry import registry
from django_ojs.scheduler.scheduler import Scheduler
from django_ojs.signals import worker_started, worker_stopped
from django_ojs.telemetry import tracing
from django_ojs.worker import joblogs, middleware, processinfo
from django_ojs.worker.board import Board
from django_ojs.worker.claimer import Claimer, QueueNames, Suspects
from django_ojs.worker.execution import tidy
from django_ojs.worker.keepalive import Heartbeat
from django_ojs.worker.lifecycle import Lifecycle, Order, Pipes, Stage, SupervisorLink, signals
from django_ojs.worker.logring import LogRing
from django_ojs.worker.memory import GarbageCollector
from django_ojs.worker.pool import Deadlines, Pool
from django_ojs.worker.processinfo import HealthFile, HealthReporter
from django_ojs.worker.runs import Interruption, JobRun
from django_ojs.worker.wakers import waker_for
from django_ojs.worker.writer import AfterHooks, Writer, write_lock_for
from django_ojs.workerregistry.directory import unserved_queues
from django_ojs.workerregistry.registration import deregister

logger = get_logger(__name__)

COUNT_EVERY = 5.0  #: how often a drain says how many jobs are left, seconds
END_OF_HANDLERS = 0.5  #: how long handlers may take to end after they were interrupted, seconds
END_OF_SERVICES = 5.0


@dataclasses.dataclass(frozen=True)
class WorkerOptions:
    """The options of `manage.py ojs_worker`. No queues: all of them."""

    queues: Sequence[str] = ()
    concurrency: int = 10
    name: str = ""
    scheduler: bool = True
    until_empty: bool = False
    max_jobs: int | None = None
    max_memory: float | None = None  #: MiB, resident
    quiet: bool = False  #: begin quiet, as the process was whose place this one takes
    token: str = ""  #: distinguishes this process from others of its name; empty: a random one
    suspects: bool = False  #: run the jobs that are to be run alone, one at a time, and end when none is left


class WorkerProcess:
    """`run()` returns when the worker has ended; `stop()`, from another thread, makes it end.

    `pipes` lead to the supervisor, where there is one, which sees on the `board` what runs, and stores what is left in
    the `ring` of what handlers have logged; without one the worker touches the `health` file itself.
    """

    def __init__(
        self, options: WorkerOptions, announce: Callable[[str], object] = logger.info, *,
        pipes: Pipes | None = None, board: Board | None = None, health: HealthFile | None = None,
        ring: LogRing | None = None,
    ) -> None:  # fmt: skip
        self._board, self._ring = board, ring
        self.options, self._announce = options, announce
        self.id = options.name or processinfo.default_name()
        self.incarnation = processinfo.incarnation(options.token or secrets.token_hex(4))
        self.using = database(None)
        registry.refuse_faulty()
        self.types = registry.types()
        self.lifecycle = Lifecycle(
            quiet=options.quiet,
            running=lambda: len(self.pool.running()),
            log_signal=self._report_signal if pipes else None,
        )
        self._supervisor = SupervisorLink(pipes.orders_out, pipes.reports_in, self.lifecycle) if pipes else None
        self._health = health
        self._started = time.monotonic()
        self._cpu = processinfo.CPU()
        self._told_stuck = False
        self._build()

    def run(self) -> bool:
        """Serve until an order ends the worker. False if a part of the worker crashed."""
        fine = False
        try:
            with signals(self.lifecycle), enqueue_chain.in_use(), execution_chain.in_use(), self._capture():
                try:
                    self._join()
                    self._work()
                    self._drain()
                    self._hand_back()
                finally:
                    self._leave()
            fine = self.lifecycle.reason != "error"
        finally:
            if self._supervisor is not None:
                self._supervisor.say_goodbye(
                    replace=self.lifecycle.replace, refused=self.lifecycle.refused, failed=not fine
                )
                self._supervisor.ask_to_stop()
        return fine

    def stop(self) -> None:
        self.lifecycle.give(Order.STOP, "stop()")

    def _build(self) -> None:
        self._waker = waker = waker_for(self.using, lambda: [self.id])
        crash = self.lifecycle.crashed
        self.queues = QueueNames(self.options.queues, self.using)
        self._after_hooks = AfterHooks()
        write_lock = write_lock_for(self.using)
        logs = joblogs.LogCollector(self._ring) if ojs_settings.JOB_LOGS else None
        self._log_writer = joblogs.LogWriter(logs, self.using, write_lock) if logs is not None else None
        self._writer = Writer(self.id, self.using, self._written, crash, write_lock, self._log_writer)
        self.pool = Pool(self.options.concurrency, self._writer.put, waker.wake, self._board, logs)
        notify = self._supervisor.report_suspects if self._supervisor is not None else None
        suspects = Suspects(self.queues, self.types, self.using, only=self.options.suspects, notify=notify)
        self._heartbeat = Heartbeat(
            self.id, self._info, self.pool, self.lifecycle, self.using, self.incarnation, after=suspects.start
        )
        self._deadlines = Deadlines(self.pool, crash, self._replace_because_of)
        checks = self._check_memory, _sum_up, GarbageCollector().collect
        self._health_reporter = HealthReporter(self._is_healthy, self._report_health, *checks, on_crash=crash)
        self.pool.tells_when_idle = self.options.until_empty
        self._scheduler = Scheduler(self.id, self.using, self._heartbeat.known) if self.options.scheduler else None
        self._claimer = Claimer(
            self.id, self.types, self.queues, self.pool, self._heartbeat, self.lifecycle, waker,
            self._heartbeat.known, self.using, suspects=suspects, write_lock=write_lock, incarnation=self.incarnation,
            max_jobs=self.options.max_jobs, until_empty=self.options.until_empty,
        )  # fmt: skip

    def _join(self) -> None:
        """Start every part, and announce it. The first heartbeat registers the worker."""
        tracing.spans_in_use()  # imports what makes spans: the first job would wait for that
        services = (
            self._supervisor, self._after_hooks, self._log_writer, self._writer, self._heartbeat, self._waker,
            self._deadlines, self._scheduler, self._health_reporter,
        )  # fmt: skip
        for service in services:
            if service is not None:
                service.start()
        self._send(worker_started)  # slow receivers delay the first claim, and no sign of life
        self._claimer.start()
        self._announce(
            f"ojs_worker {self.id} started: queues {self.queues}, concurrency {self.options.concurrency}, "
            f"{count(len(self.types), 'job type')}."
        )
        with suppress_passing():  # a database that is away is waited for elsewhere
            self._warn_of_queues()

    def _send(self, signal: Signal) -> None:
        """Send a signal of Django's about this worker, and leave nothing behind that its receivers have opened."""
        for receiver, answer in signal.send_robust(type(self), worker=self):
            if isinstance(answer, Exception):
                logger.error("The receiver %r of a signal about the worker failed.", receiver, exc_info=answer)
        tidy()

    def _warn_of_queues(self) -> None:
        """Warn of queues in `--queues` that do not exist, and of queues with jobs that no worker serves."""
        for sentence in self.queues.unknown():
            logger.warning(sentence)
        mine = set(self.queues.refresh())
        for name, number in unserved_queues(leaving=True, using=self.using).items():
            if name not in mine:
                logger.warning("%s, and no worker serves it.", jobs_wait(number, f" in the queue {name}"))

    def _work(self) -> None:
        """Obey orders until one of them ends the worker."""
        stage = self.lifecycle.stage
        while stage is not Stage.TERMINATE:
            before, stage = stage, self.lifecycle.follow()
            if stage is not before:
                self._heartbeat.beat_now()

    def _drain(self) -> None:
        """Claim nothing more and let the jobs finish, for at most the grace period; a second signal hurries."""
        self._claimer.stop(END_OF_SERVICES)
        self._requeue(self.pool.empty_line())
        self.pool.end_between_steps()
        deadline = time.monotonic() + ojs_settings.SHUTDOWN_GRACE_PERIOD
        counted = time.monotonic()
        while (left := deadline - time.monotonic()) > 0 and not self.lifecycle.hurried.is_set():
            if self.pool.wait_until_idle(min(left, 0.05)):
                return
            self.lifecycle.follow(timeout=0)
            if time.monotonic() - counted >= COUNT_EVERY:
                counted = time.monotonic()
                logger.info("%s.", jobs_run(len(self.pool.running()), "still"))

    def _hand_back(self) -> None:
        """Stop the handlers that are left, and give their jobs back at once, without an error."""
        self.pool.interrupt_all(Interruption.SHUTDOWN)
        self.pool.wait_until_idle(END_OF_HANDLERS)
        unfinished = self.pool.abandon()
        self._stop(self._deadlines, self._writer)
        if unfinished:
            logger.warning("Handing %s back.", count(len(unfinished), "unfinished job"))
            if self._log_writer is not None:
                self._log_writer.give_up()
                self._log_writer.flush()
            self._requeue(unfinished)

    def _leave(self) -> None:
        """End every part, deregister, and announce it."""
        self._writer.give_up()
        if self._log_writer is not None:
            self._log_writer.give_up()
        self._stop(self._claimer, self._waker, self._heartbeat, self._scheduler, self._deadlines, self._writer)
        self._stop(self._log_writer, self._after_hooks)
        self._send(worker_stopped)
        with contextlib.suppress(NotFound):
            self._tell(
                partial(
                    deregister, self.id, reason=self.lifecycle.reason, incarnation=self.incarnation, using=self.using
                )
            )
        self._stop(self._health_reporter)
        if self._health is not None:
            self._health.remove()
        self.pool.close()
        uptime = time.monotonic() - self._started
        self._announce(f"ojs_worker {self.id} stopped: {jobs(self._writer.completed)} completed in {uptime:.1f} s.")

    def _capture(self) -> contextlib.AbstractContextManager[None]:
        """A block in which what handlers log is stored, if the site wants that."""
        return contextlib.nullcontext() if self._log_writer is None else joblogs.in_use()

    def _report_signal(self, level: int, name: str, line: str) -> None:
        if self._supervisor is not None:
            self._supervisor.report_signal(level, name, line)

    def _requeue(self, runs: Sequence[JobRun]) -> None:
        if runs:
            attempts = {run.id: run.attempt for run in runs}
            unrun = [run.id for run in runs if not run.began]
            self._tell(partial(requeue, attempts, worker_id=self.id, attempts=attempts, unrun=unrun, using=self.using))

    def _written(self, runs: list[JobRun]) -> None:
        self._after_hooks.put(runs)
        self.pool.forget(runs)

    def _stop(self, *parts: Any) -> None:
        for part in parts:
            if part is not None and not part.stop(END_OF_SERVICES):
                logger.warning("The %s did not end in time.", part.name)

    def _is_healthy(self) -> bool:
        return not parts.troubles() and self.pool.is_whole() and self._heartbeat.was_answered_lately()

    def _report_health(self, healthy: bool) -> None:
        stuck = parts.stuck()
        if stuck and self.lifecycle.stage is not Stage.TERMINATE and not self._told_stuck:
            self._told_stuck = True
            self.lifecycle.give(Order.RECYCLE, "; ".join(stuck))
        if self._supervisor is not None:
            self._supervisor.report(healthy=healthy, completed=self._writer.completed, stuck=bool(stuck))
            self._supervisor.set_alarm(2 * processinfo.longest_silence())
        elif self._health is not None and healthy:
            self._health.touch()

    def _check_memory(self) -> None:
        """Let another process take over when this one takes too much memory."""
        limit, memory = self.options.max_memory, processinfo.memory_mb()
        if limit and memory and memory > limit and self.lifecycle.stage is Stage.RUNNING:
            self.lifecycle.give(Order.RECYCLE, f"{memory:g} MB of memory are in use, {limit:g} are allowed")

    def _replace_because_of(self, run: JobRun) -> None:
        """A handler cannot be ended, so its process has to."""
        logger.error("%s %s does not end, so this process has to.", run.definition.type, run.id)
        self.lifecycle.give(Order.RECYCLE, "a handler does not end")

    def _tell(self, act: Callable[[], object]) -> None:
        """Tell the server something on the way out. The connection of this thread was last in use when the worker
        started, or a moment ago: where it is lost by now, it is told on a new one. A database that is away is not
        waited for."""
        with suppress_passing(self._could_not_tell):
            try:
                act()
            except Exception as error:
                if not is_unusable(error):
                    raise
                connections[self.using].close()
                act()

    def _could_not_tell(self, error: Exception) -> None:
        logger.warning("Could not deregister, as the database is away (%s): the server will notice.", error)

    def _info(self) -> dict[str, Any]:
        """What registration and heartbeats send (orchestration 3.3 and 3.7)."""
        return {
            "hostname": socket.gethostname(), "pid": os.getpid(), "queues": self.queues.refresh(),
            "concurrency": self.options.concurrency, "job_types": self.types, "version": django_ojs.__version__,
            "release": ojs_settings.RELEASE[:64] or None,
            "memory_mb": processinfo.memory_mb(), "cpu_percent": self._cpu.percent(),
            "jobs_completed": self._writer.completed, "threads_replaced": self.pool.deaths,
        }  # fmt: skip


def _sum_up() -> None:
    if middleware.line_limit is not None:
        middleware.line_limit.sum_up()
