"""Send heartbeats: they keep the worker known and its jobs reserved, and their answers are orders of the server."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from django_ojs.client.context import JobContext, ProgressValue
from django_ojs.conf import ojs_settings
from django_ojs.faults import suppress_passing
from django_ojs.guard import get_logger
from django_ojs.messages import jobs
from django_ojs.scheduler.service import GaveUp, Service, outage, persist
from django_ojs.worker import processinfo
from django_ojs.worker.lifecycle import Lifecycle, Order, Stage
from django_ojs.worker.pool import Pool, present_runs
from django_ojs.worker.runs import Interruption, JobRun, clear_checkpoint, report_progress, save_checkpoint
from django_ojs.worker.writer import deliver_reports
from django_ojs.workerregistry import dead
from django_ojs.workerregistry.heartbeat import Beat, BeatAnswer, beat, extend
from django_ojs.workerregistry.registration import NameInUse

logger = get_logger(__name__)

#: A run that asks for a heartbeat (True), or only that its progress report is written.
ContextRequest = tuple[JobContext, bool]

PROGRESS_INTERVAL = 1.0  #: seconds between two progress reports of one run that are written
NAME_PAUSE = 0.25  #: seconds between two looks at which process has the worker's name
LOCKED_PAUSE = 0.25  #: seconds until a job that another transaction has locked is tried again
LOOK = 0.25  #: seconds between two looks at whether a job has been claimed that needs an earlier heartbeat
PAUSE = 0.05  #: seconds to collect requests, so that a handler in a tight loop does not flood the database


class Heartbeat(Service):
    """Beats every HEARTBEAT_INTERVAL seconds, or as often as the shortest reservation that it renews demands, and in
    between does what handlers ask for (`context.Link`).

    Its first beat registers the worker, and `after` is called behind each. A beat renews only jobs without a
    reservation length of their own. All other jobs are renewed by their handlers, through this thread: a handler may be
    inside a transaction, whose changes the server sees only when it is over.

    A name belongs to one process at a time. Where another process has it (`incarnation`), this one waits before its
    first heartbeat until that one is found dead, hands back its jobs, and takes its place; or this one stops, if the
    other still sends heartbeats.
    """

    name = "heartbeat"

    def __init__(
        self, worker_id: str, info: Callable[[], dict[str, Any]], pool: Pool, lifecycle: Lifecycle, using: str,
        incarnation: str = "", after: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        super().__init__(lifecycle.crashed)
        self._worker_id, self._info, self._pool = worker_id, info, pool
        self._lifecycle, self._using, self._incarnation = lifecycle, using, incarnation
        self._after = after
        self._holder: tuple[NameInUse, float] | None = None  #: the process with our name; its silence began at
        self._requests: queue.SimpleQueue[ContextRequest | None] = queue.SimpleQueue()
        self._later: dict[JobContext, float] = {}  #: when the next progress report of a run may be written
        self._held: set[JobContext] = set()  #: runs whose reservation is still to be renewed: their jobs are locked
        self.known = threading.Event()  #: the server knows this worker
        self._answered = time.monotonic()

    def was_answered_lately(self) -> bool:
        """Whether the database answered a heartbeat within three intervals, 15 s at least."""
        return time.monotonic() - self._answered < max(3 * ojs_settings.HEARTBEAT_INTERVAL, 15.0)

    def heartbeat(self, context: JobContext) -> None:
        self._requests.put((context, True))

    def progress(self, context: JobContext) -> None:
        self._requests.put((context, False))  # the report itself is taken when it can be written

    def save_checkpoint(self, context: JobContext, state: Any) -> int:
        return save_checkpoint(context, state, self._using)

    def clear_checkpoint(self, context: JobContext) -> bool:
        return clear_checkpoint(context, self._using)

    def beat_now(self) -> None:
        """Let the next beat come at once: the stage has changed."""
        self._requests.put(None)

    def wake(self) -> None:
        self.beat_now()

    def run(self) -> None:
        self._deliver_reports()
        while not self.stopping.is_set():
            try:
                self.beat_once()
            except NameInUse as error:
                self._answered = time.monotonic()
                if not self._awaits_holder(error):
                    self._lifecycle.give(Order.REFUSE, str(error))
                    self.ask_to_stop()
                    return
                self.stopping.wait(NAME_PAUSE)
                continue
            with suppress_passing():  # away by now: the next heartbeat will see
                self._after()
            beaten_at = time.monotonic()
            while (left := beaten_at + self._interval() - time.monotonic()) > 0:
                if not self._serve(min(left, LOOK)):
                    break

    def _interval(self) -> float:
        """Seconds until the next heartbeat: three come in the time of each reservation that they renew."""
        runs = present_runs(self._pool.active()).values()
        held = (run for run in runs if run.interruption not in (Interruption.LOST, Interruption.CANCELLED))
        return min([ojs_settings.HEARTBEAT_INTERVAL, *(run.renewable / 3 for run in held)])

    def beat_once(self) -> BeatAnswer | None:
        """One heartbeat, repeated while the database is away; None if the worker stops meanwhile."""
        try:
            answer, runs, asked_at = persist(self._beat, self._using, self.stopping)
        except GaveUp:
            return None
        self._answered = time.monotonic()
        self.known.set()
        for job_id in answer.extended:
            runs[job_id].renewed(asked_at)
        # These very runs, and not newer runs of the same jobs.
        self._pool.interrupt([runs[job_id] for job_id in answer.cancelled], Interruption.CANCELLED)
        self._pool.interrupt([runs[job_id] for job_id in answer.lost], Interruption.LOST)
        self._lifecycle.hear("restart" if answer.restart else answer.state)
        return answer

    def _beat(self) -> tuple[BeatAnswer, dict[uuid.UUID, JobRun], float]:
        """The answer, the runs that it is about, and the instant of the question."""
        runs, asked_at = present_runs(self._pool.active()), time.monotonic()
        heartbeat = Beat(
            self._worker_id, list(runs), state=self._lifecycle.stage.value, info=self._info(), renew_own=False,
            attempts={run.id: run.attempt for run in runs.values()}, incarnation=self._incarnation,
        )  # fmt: skip
        return beat(heartbeat, using=self._using), runs, asked_at

    def _deliver_reports(self) -> None:
        """Report what an earlier worker here could not, before its jobs are taken from it."""
        if not ojs_settings.WORKER_SPOOL:
            return
        deliver = partial(deliver_reports, Path(ojs_settings.WORKER_SPOOL), self._using)
        with contextlib.suppress(GaveUp):  # away, and the worker is to stop: the files stay
            persist(deliver, self._using, self.stopping)

    def _awaits_holder(self, found: NameInUse) -> bool:
        """Wait for the process that has our name, and take its place if it is dead; False if it lives elsewhere."""
        if self.known.is_set():  # it took our place while we could not beat
            return False
        now = time.monotonic()
        if self._holder is None:
            logger.warning("%s Waiting for a sign of life.", found)
        elif found.incarnation != self._holder[0].incarnation or (
            found.heard_at != self._holder[0].heard_at and found.state != Stage.TERMINATE
        ):
            return False
        if self._holder is None or found.heard_at != self._holder[0].heard_at:
            self._holder = found, now
        silence = now - self._holder[1]
        if (
            processinfo.has_ended(found.incarnation)
            or silence >= 3 * ojs_settings.HEARTBEAT_INTERVAL
            or (found.silence >= dead.dead_after() and not outage.is_recent)
        ):
            self._replace(found)
        return True

    def _replace(self, found: NameInUse) -> None:
        replace = partial(dead.replace_dead_worker, self._worker_id, found.incarnation, found.heard_at)
        with contextlib.suppress(GaveUp):  # away, and the worker is to stop
            returned = persist(lambda: replace(using=self._using), self._using, self.stopping)
            if returned is not None:
                logger.warning("%s is dead: handed back %s.", found.process, jobs(returned))

    def _serve(self, timeout: float) -> bool:
        """Wait for requests of handlers and do them. False where one asks for the worker's own heartbeat."""
        end = time.monotonic() + timeout
        try:
            first = self._requests.get(timeout=max(0.0, min(end, *self._later.values(), end) - time.monotonic()))
        except queue.Empty:
            now = time.monotonic()
            for context in [context for context, at in self._later.items() if at <= now]:
                self._answer(context, beat=context in self._held)
            return True
        if first is None:
            return False
        self.stopping.wait(PAUSE)
        requests, time_to_beat = self._waiting(first)
        for context, asked in requests:
            self._answer(context, beat=asked)
        return not time_to_beat

    def _waiting(self, first: ContextRequest) -> tuple[list[ContextRequest], bool]:
        """All runs with a request, each once, and whether the worker itself is to send a heartbeat."""
        found = dict([first])
        beat_asked = False
        while True:
            try:
                request = self._requests.get_nowait()
            except queue.Empty:
                return list(found.items()), beat_asked
            if request is None:
                beat_asked = True
            else:
                found[request[0]] = found.get(request[0], False) or request[1]

    def _answer(self, context: JobContext, *, beat: bool) -> None:
        """Write the newest report of a run, unless one was just written; else renew its reservation if it asked. What
        cannot be done because another transaction has locked the job is tried again soon, and keeps no other waiting.
        """
        now = time.monotonic()
        progress = None
        if self._later.get(context, now) <= now:
            self._later.pop(context, None)
            progress = context.take_progress()
        self._held.discard(context)
        if progress is None and not beat:
            return
        try:
            ours = persist(lambda: self._extend(context, progress), self._using, self.stopping)
        except GaveUp:
            return
        except Exception:  # one report must not end the heartbeats of all
            logger.exception("The progress of job %s could not be written.", context.id)
            return
        run = next((run for run in self._pool.active() if run.context is context), None)
        if ours is None:
            if progress is not None:
                context.give_back_progress(progress)
            if run is not None:  # else the writer reports its end, and its progress before that
                self._later[context] = now + LOCKED_PAUSE
                self._held |= {context} if beat else set()
            return
        if run is None:
            return
        if progress is not None:
            self._later[context] = now + PROGRESS_INTERVAL
        if ours:
            run.renewed(now)
        else:
            self.beat_now()  # the answer says whether it was cancelled or lost

    def _extend(self, context: JobContext, progress: ProgressValue | None) -> bool | None:
        if progress is None:
            return extend(context.id, self._worker_id, attempt=context.attempt, using=self._using)
        return report_progress(context, progress, self._using)
