"""The things to do, each small enough to be done in one go: `run_once()` returns the seconds until the next."""

from __future__ import annotations

import logging
from typing import Protocol

from django_ojs import clock
from django_ojs.conf import ojs_settings
from django_ojs.events import order
from django_ojs.operations import backpressure, bulkactions, counts, maintenance, metrics, outbox, progress
from django_ojs.operations.due import next_due, settle
from django_ojs.operations.prune import prune
from django_ojs.operations.remove import finish_removals
from django_ojs.operations.rescue import rescue_dead_workers
from django_ojs.scheduler.outage import outage

logger = logging.getLogger(__name__)


class Loop(Protocol):
    """One duty of the leader."""

    name: str

    def run_once(self, using: str) -> float:
        """Do what there is to do; return how many seconds this duty can wait."""


class Settle:
    """Promotes, expires, times out and takes back what is due, at most 100 ms late (decision 14).

    In between it sleeps until the next due instant, but looks again after 100 ms in any case: a job pushed
    meanwhile may be due earlier. The look is one read of an index. Right after an outage it leaves active jobs
    alone: their reservations ended because nobody could renew them, and their workers will now.
    """

    name = "settle"
    LOOK = 0.1
    SUSPENDED = 1.0  #: in maintenance mode all that was to be promoted stays due, and each look passes it by
    BATCH = 500

    def run_once(self, using: str) -> float:
        due = next_due(using=using)
        if due is None:
            return self.LOOK
        left = (due - clock.now(using)).total_seconds()
        if left > 0:
            return min(left, self.LOOK)
        settled = settle(limit=self.BATCH, spare_active=outage.is_felt, using=using)
        if settled:
            return 0.0
        # Nothing settled though something is due: another process has it locked, or it has to wait.
        return self.SUSPENDED if maintenance.is_on(using=using) else self.LOOK


class OrderEvents:
    """Puts new events in order, so that readers see them soon after their commit."""

    name = "order"
    BUSY, IDLE = 0.05, 0.2

    def run_once(self, using: str) -> float:
        return self.BUSY if order.advance(using) else self.IDLE


class Rescue:
    """Takes the jobs of dead workers back."""

    name = "rescue"
    EVERY = 2.0

    def run_once(self, using: str) -> float:
        count = rescue_dead_workers(spare=outage.is_felt, using=using)
        if count:
            logger.warning("Took %d jobs back from workers that stopped beating.", count)
        return self.EVERY


class EndMaintenance:
    """Ends maintenance mode at its estimated end, where that was wanted."""

    name = "maintenance"
    EVERY = 1.0

    def run_once(self, using: str) -> float:
        if maintenance.end_if_over(using=using):
            logger.info("Maintenance mode has ended by itself, as was estimated.")
        return self.EVERY


class Relieve:
    """Tells the log when a bounded queue that was nearly full has emptied."""

    name = "relieve"
    EVERY = 1.0

    def run_once(self, using: str) -> float:
        backpressure.relieve(using=using)
        return self.EVERY


class TellProgress:
    """Writes the events of progress reports that came too soon after another one."""

    name = "progress"
    EVERY = 0.5

    def run_once(self, using: str) -> float:
        progress.tell_held(using=using)
        return self.EVERY


class FoldCounts:
    """Folds the differences that statements leave behind, so that reading the counts stays cheap."""

    name = "fold"
    BUSY, IDLE = 0.05, 1.0

    def run_once(self, using: str) -> float:
        return self.BUSY if counts.fold(using=using) >= counts.FOLD_BATCH else self.IDLE


class CountEvents:
    """Counts the log for the metrics; a scrape is at most this much behind."""

    name = "count"
    BUSY, IDLE = 0.05, 1.0

    def run_once(self, using: str) -> float:
        if not ojs_settings.METRICS:
            return self.IDLE
        return self.BUSY if metrics.count(using=using) >= metrics.BATCH else self.IDLE


class Relay:
    """Takes jobs from the outbox, where there is one, to the database of the jobs."""

    name = "relay"
    IDLE, OFF = 0.2, 10.0

    def run_once(self, using: str) -> float:
        if ojs_settings.OUTBOX is None:
            return self.OFF
        return 0.0 if outbox.relay(using=using) else self.IDLE


class Remove:
    """Empties queues that are to go, and ends them when their active jobs have finished."""

    name = "remove"
    BUSY, IDLE = 0.1, 2.0

    def run_once(self, using: str) -> float:
        return self.BUSY if finish_removals(using=using) else self.IDLE


class Bulk:
    """Goes on with operators' acts on many jobs, a batch at a time."""

    name = "bulk"
    BUSY, IDLE = 0.02, 1.0  #: between two batches workers get a word in

    def run_once(self, using: str) -> float:
        return self.BUSY if bulkactions.advance(using=using) else self.IDLE


class Prune:
    """Deletes what is old, jobs, events and idempotency keys: every minute, in small batches while there are more."""

    name = "prune"
    EVERY, PAUSE = 60.0, 0.2
    BATCH, EVENT_BATCH = 1000, 4000

    def run_once(self, using: str) -> float:
        deleted = prune(batch=self.BATCH, event_batch=self.EVENT_BATCH, using=using)
        return self.PAUSE if max(deleted.values(), default=0) >= self.BATCH else self.EVERY


class Unserved:
    """Warns, once for each, about job types that have jobs and no worker."""

    name = "unserved"
    EVERY, FIRST = 60.0, 15.0  #: at a start, workers need a moment to make themselves known

    def __init__(self) -> None:
        self._started = False
        self._told: set[str] = set()

    def run_once(self, using: str) -> float:
        from django_ojs.worker.coverage import unserved_types

        if not self._started:
            self._started = True
            return self.FIRST
        found = unserved_types(using)
        self._told &= found.keys()
        for job_type in found.keys() - self._told:
            logger.warning("%d jobs of type %s wait, and no worker serves it.", found[job_type], job_type)
        self._told |= found.keys()
        return self.EVERY
