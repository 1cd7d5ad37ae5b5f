"""Do what time demands for the whole site, in every worker or alone (`manage.py ojs_scheduler`); one process leads.

`Scheduler` starts the threads, and `Leadership` decides whether they work. Each duty below does a small piece in
`run_once()`, and returns its pause in seconds.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from django.db import IntegrityError
from django.db.models import Q

from django_ojs import clock, outbox, parts
from django_ojs.client.sync import NotSynchronised, out_of_date, sync
from django_ojs.conf import ojs_settings
from django_ojs.cron import runs
from django_ojs.cron.runs import tick
from django_ojs.cron.schedules import aim_again
from django_ojs.cron.schedules import next_due as next_schedule
from django_ojs.database import atomic, database
from django_ojs.events import order
from django_ojs.faults import only_if_taken, suppress_passing
from django_ojs.guard import get_logger
from django_ojs.jobs import approvals, bulk, compensations, progress, replay
from django_ojs.jobs.setright import set_right
from django_ojs.jobs.timers import apply_due, next_due
from django_ojs.messages import count, jobs, jobs_wait
from django_ojs.models import Lease
from django_ojs.queues import bounds, configuration, maintenance
from django_ojs.queues.deletion import finish_removals
from django_ojs.retention import prune
from django_ojs.scheduler.alerts import MailApprovals, WatchAlerts
from django_ojs.scheduler.service import RESTART, DutyThread, GaveUp, Service, outage, persist
from django_ojs.scheduler.webhooks import Webhooks
from django_ojs.statistics import counters, eventcounts
from django_ojs.telemetry import export
from django_ojs.workerregistry.dead import rescue_dead_workers
from django_ojs.workerregistry.directory import unserved_queues, unserved_types
from django_ojs.workflows import children

logger = get_logger(__name__)

ROLE = "scheduler"
LEASE_SECONDS = 5.0
#: A lease that ends later than this was taken while the clock was ahead: it would last until the clock is there again.
LONGEST_SECONDS = 2 * LEASE_SECONDS
RENEW_SECONDS = 1.0
ANSWERED_SECONDS = 15.0  #: a scheduler that had no answer of the database for so long is not healthy


class Leadership(Service):
    """Decides whether this process leads: takes the lease, a row, when it is free, and renews it every second.

    Time is the database's (`clock.now(using)`), so hosts need not agree on it. Two leaders at once would do
    no harm, only work twice: every step of theirs is conditional.
    """

    name = "lease"

    def __init__(self, role: str, holder: str, using: str, ready: threading.Event | None = None) -> None:
        super().__init__(RESTART)
        self._ready = ready  #: it takes no lease before this is set
        self._role, self._holder, self._using = role, holder[:255], using
        self._until = float("-inf")
        self.terms = 0  #: how often this process has taken the lead
        self._answered = time.monotonic()

    @property
    def leads(self) -> bool:
        """Whether this process leads; False as soon as the lease may have passed to another."""
        return time.monotonic() < self._until

    def was_answered_lately(self) -> bool:
        """Whether the database has said within 15 s who leads."""
        return time.monotonic() - self._answered < ANSWERED_SECONDS

    def run(self) -> None:
        while self._ready is not None and not self._ready.wait(0.1):
            if self.stopping.is_set():
                return
        while not self.stopping.is_set():
            try:
                persist(self.run_once, self._using, self.stopping)
            except GaveUp:
                return
            self.stopping.wait(RENEW_SECONDS)
        self.resign()

    def run_once(self) -> bool:
        """Take or renew the lease; whether this process leads now."""
        asked_at, led_before = time.monotonic(), self.leads
        leads = self._renew() or self._create()
        self._answered = time.monotonic()
        if leads:
            self._until = asked_at + LEASE_SECONDS
            if not led_before:
                self.terms += 1
                logger.info("%s leads the %s.", self._holder, self._role)
        else:
            self._until = float("-inf")
        return self.leads

    def resign(self) -> None:
        """Give the lease back, so that the next process leads at once."""
        self._until = float("-inf")

        def notice(error: Exception) -> None:
            logger.info("The lease of the %s was not given back (%s): it ends by itself.", self._role, error)

        with suppress_passing(notice):
            Lease.objects.using(self._using).filter(name=self._role, holder=self._holder).delete()

    def _renew(self) -> bool:
        now = clock.now(self._using)
        beyond = now + dt.timedelta(seconds=LONGEST_SECONDS)
        mine_or_free = Q(holder=self._holder) | Q(expires_at__lte=now) | Q(expires_at__gt=beyond)
        leases = Lease.objects.using(self._using).filter(mine_or_free, name=self._role)
        return bool(leases.update(holder=self._holder, expires_at=now + dt.timedelta(seconds=LEASE_SECONDS)))

    def _create(self) -> bool:
        if Lease.objects.using(self._using).filter(name=self._role).exists():
            return False
        expires_at = clock.now(self._using) + dt.timedelta(seconds=LEASE_SECONDS)
        try:
            with atomic(using=self._using):
                Lease.objects.using(self._using).create(name=self._role, holder=self._holder, expires_at=expires_at)
        except IntegrityError as error:  # another process was first
            only_if_taken(error)
            return False
        return True


class Scheduler:
    """`start()` and `stop()` the threads; `run_once()` does one pass without threads or lease.

    What has to be on time and what may take a while run in threads of their own, so that neither pruning nor
    many schedules at midnight nor a slow receiver of webhooks or mail delay a job. It leads no sooner than `ready` is
    set.
    """

    name = "scheduler"

    def __init__(self, holder: str, using: str | None = None, ready: threading.Event | None = None) -> None:
        self.using = database(using)
        self._export: Any = None
        self._lease = Leadership(ROLE, holder, self.using, ready)

        def leads() -> bool:
            return self._lease.leads

        self._threads = (
            DutyThread(
                "scheduler", [ApplyDue(), OrderEvents(), Rescue(), Relieve(), EndMaintenance()], self.using, leads
            ),
            DutyThread("cron", [Synchronise(lambda: self._lease.terms), Cron()], self.using, leads),
            DutyThread(
                "bulk",
                [Bulk(), ReplayDeadLetters(), FollowChildren(), SetRight(lambda: self._lease.terms)],
                self.using,
                leads,
            ),
            DutyThread("outbox", [Relay()], self.using, leads),
            DutyThread(
                "housekeeping",
                [
                    TellProgress(), FoldCounts(), RestoreQueues(), CountEvents(), Remove(), TendApprovals(), Prune(),
                    Unserved(),
                ],
                self.using,
                leads,
            ),
            Webhooks(self.using, leads),
            DutyThread("alerts", [WatchAlerts()], self.using, leads),
            DutyThread("mails", [MailApprovals()], self.using, leads),
        )  # fmt: skip

    @property
    def leads(self) -> bool:
        return self._lease.leads

    def is_healthy(self) -> bool:
        """Whether every thread of this process does its work, and the database has answered within 15 s."""
        return not parts.troubles() and self._lease.was_answered_lately()

    def start(self) -> None:
        """Start all threads, the lease last: a process leads when it does everything. Where one cannot be started, none
        is left running."""
        try:
            self._export = export(lambda: self._lease.leads, self.using)
            for part in (*self._threads, self._lease):
                part.start()
        except BaseException:
            self.stop(0.0)
            raise

    def stop(self, timeout: float | None = None) -> bool:
        """End the threads side by side, then give the lease back; False if one has not ended in so many seconds."""
        for thread in self._threads:
            thread.ask_to_stop()
        ended = [part.stop(timeout) for part in (*self._threads, self._lease)]
        if self._export is not None:
            self._export.stop()
            self._export = None
        return all(ended)

    def run_once(self) -> float:
        """Every duty that is due, here and now; returns the seconds until the next is."""
        return min(thread.run_once() for thread in self._threads)


class ApplyDue:
    """Promotes, expires, times out and takes back what is due, at most 100 ms late.

    In between it sleeps until the next due instant, but looks again after 100 ms in any case: a job pushed
    meanwhile may be due earlier. The look is one read of an index. Right after an outage it leaves active jobs
    alone: their reservations ended because no worker could renew them, and their workers will now.
    """

    name = "timers"
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
        applied = apply_due(limit=self.BATCH, spare_active=outage.is_recent, using=using)
        if applied:
            return 0.0
        # Nothing was applied though something is due: another process has it locked, or it has to wait.
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
        count = rescue_dead_workers(spare=outage.is_recent, using=using)
        if count:
            logger.warning("Took %s back from workers that stopped beating.", jobs(count))
        return self.EVERY


class EndMaintenance:
    """Ends maintenance mode at its estimated end, where the operator asked for that."""

    name = "maintenance"
    EVERY = 1.0

    def run_once(self, using: str) -> float:
        if maintenance.end_if_over(using=using):
            logger.info("Maintenance mode has ended by itself, as was estimated.")
        return self.EVERY


class Relieve:
    """Writes an event when a bounded queue that was nearly full has emptied."""

    name = "relieve"
    EVERY = 1.0

    def run_once(self, using: str) -> float:
        bounds.relieve(using=using)
        return self.EVERY


class TellProgress:
    """Writes the events of progress reports that came too soon after another one."""

    name = "progress"
    EVERY = 0.5

    def run_once(self, using: str) -> float:
        progress.log_postponed(using=using)
        return self.EVERY


class FoldCounts:
    """Adds up the differences that statements leave behind, so that reading the counts stays cheap."""

    name = "fold"
    BUSY, IDLE = 0.05, 1.0

    def run_once(self, using: str) -> float:
        return self.BUSY if counters.fold(using=using) >= counters.FOLD_BATCH else self.IDLE


class CountEvents:
    """Counts the log for the metrics; a scrape is at most this much behind."""

    name = "count"
    BUSY, IDLE = 0.05, 1.0

    def run_once(self, using: str) -> float:
        if not ojs_settings.METRICS:
            return self.IDLE
        return self.BUSY if eventcounts.count(using=using) >= eventcounts.BATCH else self.IDLE


class Relay:
    """Takes jobs from the outbox, where there is one, to the database of the jobs."""

    name = "relay"
    IDLE, OFF = 0.2, 10.0

    def run_once(self, using: str) -> float:
        if ojs_settings.OUTBOX is None:
            return self.OFF
        return 0.0 if outbox.relay(using=using) else self.IDLE


class Remove:
    """Empties queues that are being deleted, and deletes them when their active jobs have finished."""

    name = "remove"
    BUSY, IDLE = 0.1, 2.0

    def run_once(self, using: str) -> float:
        return self.BUSY if finish_removals(using=using) else self.IDLE


class RestoreQueues:
    """Adds the rows of queues that have jobs and no row: workers of all queues would never look there."""

    name = "restore"
    EVERY = 2.0

    def run_once(self, using: str) -> float:
        for name in configuration.restore(using=using):
            logger.warning("The queue %s had jobs and no row, so workers of all queues passed it by: added.", name)
        return self.EVERY


class Bulk:
    """Continues the background actions of operators on many jobs, a batch at a time."""

    name = "bulk"
    BUSY, IDLE = 0.02, 1.0  #: workers get their turn between two batches

    def run_once(self, using: str) -> float:
        return self.BUSY if bulk.advance_action(using=using) else self.IDLE


class FollowChildren:
    """Tells jobs that the jobs which they run have ended, where that was not possible then, cancels jobs whose parents
    have ended, and enqueues what undoes jobs that have failed.

    The look reads the workflows that jobs wait for, and what they would undo. Where these are many, it comes seldom
    enough to cost little.
    """

    name = "children"
    BUSY, IDLE = 0.02, 0.5
    SHARE = 50  #: it pauses so many times as long as it took

    def run_once(self, using: str) -> float:
        began = time.monotonic()
        if children.follow_up(using=using) + compensations.follow_up(using=using):
            return self.BUSY
        return max(self.IDLE, self.SHARE * (time.monotonic() - began))


class ReplayDeadLetters:
    """Retries dead letters by the replay rules, a batch for each rule at a time."""

    name = "replay"
    BUSY, IDLE = 0.1, 10.0

    def run_once(self, using: str) -> float:
        return self.BUSY if replay.replay(using=using) else self.IDLE


class SetRight:
    """Sets jobs right whose times were noted while the clock was ahead.

    It looks when this process takes the lead, and when it finds that the clock has been set back. Each time it looks
    again later: other processes may go by the old clock for a minute.
    """

    name = "set-right"
    LOOK, AGAIN = 1.0, 120.0

    def __init__(self, term: Callable[[], int] = lambda: 1) -> None:
        self._term = term
        self._known = (0, 0)
        self._again_at = float("inf")

    def run_once(self, using: str) -> float:
        known, now = (self._term(), clock.times_set_back(using)), time.monotonic()
        if known != self._known or now >= self._again_at:
            self._again_at = now + self.AGAIN if known != self._known else float("inf")
            self._known = known
            if number := set_right(using=using):
                logger.warning("%s had times of a clock that was ahead, and go by the clock again.", jobs(number))
        return self.LOOK


class TendApprovals:
    """Ends the approvals that no user has decided in time, and asks more users where that is due.

    The look is one read of an index. Now and then it closes those whose jobs have ended by a statement that does not
    look for approvals.
    """

    name = "approvals"
    EVERY, SWEEP = 1.0, 10.0

    def __init__(self) -> None:
        self._sweep_at = float("-inf")

    def run_once(self, using: str) -> float:
        done = approvals.tend(using=using)
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + self.SWEEP
            approvals.sweep(using=using)
        return 0.0 if done == approvals.BATCH else self.EVERY


class Prune:
    """Deletes what is old, jobs, events and idempotency keys: every minute, in small batches while there are more."""

    name = "prune"
    EVERY, PAUSE = 60.0, 0.2
    BATCH, EVENT_BATCH = 1000, 4000

    def run_once(self, using: str) -> float:
        deleted = prune(batch=self.BATCH, event_batch=self.EVENT_BATCH, using=using)
        return self.PAUSE if max(deleted.values(), default=0) >= self.BATCH else self.EVERY


class Unserved:
    """Warns, once for each, about job types and queues that have jobs and no worker.

    A worker that finishes its last jobs counts until it ends: in a deploy another one follows. If none has by then, the
    scheduler warns of what is left.
    """

    name = "unserved"
    EVERY, FIRST = 60.0, 15.0  #: at a start, workers need a moment to make themselves known

    def __init__(self) -> None:
        self._started = False
        self._warned: set[str] = set()

    def run_once(self, using: str) -> float:
        if not self._started:
            self._started = True
            return self.FIRST
        types, queues = unserved_types(using, leaving=True), unserved_queues(leaving=True, using=using)
        found = {f" of type {name}": number for name, number in types.items()}
        found |= {f" in the queue {name}": number for name, number in queues.items()}
        for which in found.keys() - self._warned:
            logger.warning("%s, and no worker serves it.", jobs_wait(found[which], which))
        self._warned = set(found)
        return self.EVERY


class Cron:
    """Fires schedules that are due (orchestration 2.4), at most a second late.

    In between it sleeps until the next is due, but looks again after a second in any case: a schedule registered
    meanwhile may be due earlier. The look is one read of an index.
    """

    name = "cron"
    LOOK = 1.0
    AIM = 10.0  #: seconds between looks for schedules that fired while the clock was ahead

    def __init__(self) -> None:
        self._aim_at = float("-inf")

    def run_once(self, using: str) -> float:
        runs.let_next_go(using=using)
        if time.monotonic() >= self._aim_at:
            self._aim_at = time.monotonic() + self.AIM
            if number := aim_again(using=using):
                logger.warning(
                    "%s had fired while the clock was ahead, and fire by the clock again.", count(number, "schedule")
                )
        due = next_schedule(using=using)
        if due is None:
            return self.LOOK
        left = (due - clock.now(using)).total_seconds()
        if left > 0:
            return min(left, self.LOOK)
        # Nothing fired though something is due: another scheduler has it.
        return 0.0 if tick(using=using) else self.LOOK


class Synchronise:
    """Brings the schedules of the code into the database, once for each time that this process takes the lead.

    `term` is how often it has by now. Where the site synchronises by hand (`OJS["SYNC_SCHEDULES"]`), it only warns,
    once for each, about schedules that differ.
    """

    name = "synchronise"
    LOOK, EVERY = 1.0, 600.0  #: seconds until the next look at the term, which costs nothing, and at what differs

    def __init__(self, term: Callable[[], int] = lambda: 1) -> None:
        self._term, self._done, self._look_at = term, 0, float("-inf")
        self._warned: set[str] = set()

    def run_once(self, using: str) -> float:
        term = self._term()
        is_new, is_time = term != self._done, time.monotonic() >= self._look_at
        try:
            if is_new and ojs_settings.SYNC_SCHEDULES:
                result = sync(deletes=False, using=using)
                for word, names in result.changes.items():
                    logger.info("Schedules that the code declares, %s: %s.", word, ", ".join(names))
                for name in result.kept:
                    logger.info("The schedule %s is as operators changed it, and not as the code says.", name)
            elif is_new or is_time:
                self._warn(out_of_date(using))
        except NotSynchronised as error:
            self._warn([str(error)])
        if is_new or is_time:
            self._done, self._look_at = term, time.monotonic() + self.EVERY
        return self.LOOK

    def _warn(self, found: Sequence[str]) -> None:
        if new := sorted(set(found) - self._warned):
            logger.warning(
                "Schedules differ between code and database; run manage.py ojs_cron sync: %s", ", ".join(new)
            )
        self._warned = set(found)
