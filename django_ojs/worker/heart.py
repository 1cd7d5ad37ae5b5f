"""The thread that beats: it keeps the worker known and its jobs reserved, and hears what the server wants."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from django_ojs.conf import ojs_settings
from django_ojs.operations.beat import Beat, BeatAnswer, beat, extend
from django_ojs.scheduler.outage import ERRORS, persist
from django_ojs.scheduler.service import Service
from django_ojs.worker.context import JobContext, News
from django_ojs.worker.lifecycle import Lifecycle, Order
from django_ojs.worker.outcomes import Interruption
from django_ojs.worker.pool import Pool, ids_of
from django_ojs.worker.reporting import reported

#: A run that wishes something: a heartbeat, or only that its progress report is written.
Wish = tuple[JobContext, bool]

PROGRESS_INTERVAL = 1.0  #: seconds between two progress reports of one run that are written
PAUSE = 0.05  #: seconds to collect wishes, so that a handler in a tight loop does not flood the database


class Heart(Service):
    """Beats every HEARTBEAT_INTERVAL seconds, and in between does what handlers ask for (`context.Link`).

    Its first beat registers the worker. A beat renews only jobs without a reservation length of their own;
    those are renewed by their handler alone (decision 4), and through this thread, because the handler may be
    inside a transaction that nobody sees until it is over.
    """

    name = "heart"

    def __init__(
        self, worker_id: str, info: Callable[[], dict[str, Any]], pool: Pool, lifecycle: Lifecycle, using: str
    ) -> None:
        super().__init__(lambda name: lifecycle.give(Order.CRASH, f"the {name} crashed"))
        self._worker_id, self._info, self._pool = worker_id, info, pool
        self._lifecycle, self._using = lifecycle, using
        self._wishes: queue.SimpleQueue[Wish | None] = queue.SimpleQueue()
        self._later: dict[JobContext, float] = {}  #: when the next progress report of a run may be written
        self.known = threading.Event()  #: the server knows this worker
        self._answered = time.monotonic()

    def was_answered_lately(self) -> bool:
        """Whether the database answered a heartbeat within three intervals, 15 s at least."""
        return time.monotonic() - self._answered < max(3 * ojs_settings.HEARTBEAT_INTERVAL, 15.0)

    def heartbeat(self, context: JobContext) -> None:
        self._wishes.put((context, True))

    def progress(self, context: JobContext) -> None:
        self._wishes.put((context, False))  # the report itself is taken when it can be written

    def beat_now(self) -> None:
        """Let the next beat come at once: the stage has changed."""
        self._wishes.put(None)

    def wake(self) -> None:
        self.beat_now()

    def run(self) -> None:
        while not self.stopping.is_set():
            self.beat_once()
            next_beat = time.monotonic() + ojs_settings.HEARTBEAT_INTERVAL
            while (left := next_beat - time.monotonic()) > 0:
                if not self._grant(left):
                    break

    def beat_once(self) -> BeatAnswer | None:
        """One heartbeat, repeated while the database is away; None if the worker stops meanwhile."""
        try:
            answer = persist(self._beat, self._using, self.stopping)
        except ERRORS:
            return None
        self._answered = time.monotonic()
        self.known.set()
        self._pool.interrupt(answer.cancelled, Interruption.CANCELLED)
        self._pool.interrupt(answer.lost, Interruption.LOST)
        self._lifecycle.hear(answer.state)
        return answer

    def _beat(self) -> BeatAnswer:
        ids = ids_of(self._pool.active())
        stage = self._lifecycle.stage.value
        return beat(Beat(self._worker_id, ids, state=stage, info=self._info(), renew_own=False), using=self._using)

    def _grant(self, timeout: float) -> bool:
        """Wait for wishes and fulfil them. False when it is time for a beat."""
        end = time.monotonic() + timeout
        try:
            first = self._wishes.get(timeout=max(0.0, min(end, *self._later.values(), end) - time.monotonic()))
        except queue.Empty:
            now = time.monotonic()
            for context in [context for context, at in self._later.items() if at <= now]:
                self._fulfil(context, beat=False)
            return now < end
        if first is None:
            return False
        self.stopping.wait(PAUSE)
        wishes, time_to_beat = self._waiting(first)
        for context, asked in wishes:
            self._fulfil(context, beat=asked)
        return not time_to_beat

    def _waiting(self, first: Wish) -> tuple[list[Wish], bool]:
        """All runs that wish something, each once, and whether a beat of the worker is wanted."""
        found = dict([first])
        beat_wanted = False
        while True:
            try:
                wish = self._wishes.get_nowait()
            except queue.Empty:
                return list(found.items()), beat_wanted
            if wish is None:
                beat_wanted = True
            else:
                found[wish[0]] = found.get(wish[0], False) or wish[1]

    def _fulfil(self, context: JobContext, *, beat: bool) -> None:
        """Write the newest report of a run, unless one was just written; else renew its reservation if it asked."""
        now = time.monotonic()
        news = None
        if self._later.get(context, now) <= now:
            self._later.pop(context, None)
            news = context.take_news()
        if news is None and not beat:
            return
        try:
            ours = persist(lambda: self._extend(context, news), self._using, self.stopping)
        except ERRORS:
            return
        active = any(run.context is context for run in self._pool.active())
        if news is not None and active:
            self._later[context] = now + PROGRESS_INTERVAL
        if not ours and active:
            self.beat_now()  # the answer says whether it was cancelled or lost

    def _extend(self, context: JobContext, news: News | None) -> bool:
        if news is None:
            return extend(context.id, self._worker_id, using=self._using)
        return reported(context, news, self._using)
