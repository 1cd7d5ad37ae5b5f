"""Start the scheduler's threads, in every worker or alone (`manage.py ojs_scheduler`); one process at a time leads."""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q

from django_ojs import clock
from django_ojs.database import database
from django_ojs.models import Lease
from django_ojs.scheduler.duties import (
    Bulk,
    CountEvents,
    Cron,
    EndMaintenance,
    FoldCounts,
    OrderEvents,
    Prune,
    Relay,
    Relieve,
    Remove,
    ReplayDeadLetters,
    Rescue,
    RestoreQueues,
    Settle,
    TellProgress,
    Unserved,
    Unsynchronised,
)
from django_ojs.scheduler.outage import ERRORS, persist
from django_ojs.scheduler.service import DutyThread, Service
from django_ojs.scheduler.webhooks import Webhooks
from django_ojs.telemetry import export

logger = logging.getLogger(__name__)

ROLE = "scheduler"
LEASE_SECONDS = 5.0
#: A lease that ends later than this was taken while the clock was ahead: it would last until the clock is there again.
LONGEST_SECONDS = 2 * LEASE_SECONDS
RENEW_SECONDS = 1.0


class Leadership(Service):
    """Decides whether this process leads: takes the lease, a row, when it is free, and renews it every second.

    Time is the database's (`clock.now(using)`), so hosts need not agree on it. Two leaders at once would do
    no harm, only work twice: every step of theirs is conditional.
    """

    name = "lease"

    def __init__(self, role: str, holder: str, using: str, ready: threading.Event | None = None) -> None:
        super().__init__()
        self._ready = ready  #: it takes no lease before this is set
        self._role, self._holder, self._using = role, holder[:255], using
        self._until = float("-inf")

    @property
    def leads(self) -> bool:
        """Whether this process leads; False as soon as the lease may have passed to another."""
        return time.monotonic() < self._until

    def run(self) -> None:
        while self._ready is not None and not self._ready.wait(0.1):
            if self.stopping.is_set():
                return
        while not self.stopping.is_set():
            try:
                persist(self.run_once, self._using, self.stopping)
            except ERRORS:
                return
            self.stopping.wait(RENEW_SECONDS)
        self.release()

    def run_once(self) -> bool:
        """Take or renew the lease; whether this process leads now."""
        asked_at, led_before = time.monotonic(), self.leads
        if self._renew() or self._create():
            self._until = asked_at + LEASE_SECONDS
            if not led_before:
                logger.info("%s leads the %s.", self._holder, self._role)
        else:
            self._until = float("-inf")
        return self.leads

    def release(self) -> None:
        """Give the lease back, so that the next process leads at once."""
        self._until = float("-inf")
        try:
            Lease.objects.using(self._using).filter(name=self._role, holder=self._holder).delete()
        except ERRORS as error:
            logger.info("The lease of the %s was not given back (%s): it ends by itself.", self._role, error)

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
            with transaction.atomic(using=self._using):
                Lease.objects.using(self._using).create(name=self._role, holder=self._holder, expires_at=expires_at)
        except IntegrityError:  # another process was first
            return False
        return True


class Scheduler:
    """`start()` and `stop()` the threads; `run_once()` does one pass without threads or lease.

    What has to be on time and what may take a while run in threads of their own, so that neither pruning nor
    many schedules at midnight nor a slow receiver of webhooks delay a job. It leads no sooner than `ready` is set.
    """

    name = "scheduler"

    def __init__(self, holder: str, using: str | None = None, ready: threading.Event | None = None) -> None:
        self.using = database(using)
        self._export: Any = None
        self._lease = Leadership(ROLE, holder, self.using, ready)
        self._threads = (
            DutyThread(
                "scheduler",
                [Settle(), OrderEvents(), Rescue(), Relieve(), EndMaintenance()],
                self.using,
                lambda: self._lease.leads,
            ),
            DutyThread("cron", [Cron()], self.using, lambda: self._lease.leads),
            DutyThread("bulk", [Bulk(), ReplayDeadLetters()], self.using, lambda: self._lease.leads),
            DutyThread("outbox", [Relay()], self.using, lambda: self._lease.leads),
            DutyThread(
                "housekeeping",
                [
                    TellProgress(),
                    FoldCounts(),
                    RestoreQueues(),
                    CountEvents(),
                    Remove(),
                    Prune(),
                    Unserved(),
                    Unsynchronised(),
                ],
                self.using,
                lambda: self._lease.leads,
            ),
            Webhooks(self.using, lambda: self._lease.leads),
        )

    @property
    def leads(self) -> bool:
        return self._lease.leads

    def start(self) -> None:
        self._export = export(lambda: self._lease.leads, self.using)
        for part in (self._lease, *self._threads):
            part.start()

    def stop(self, timeout: float | None = None) -> bool:
        """End the threads, then give the lease back; False if one of them has not ended in so many seconds."""
        ended = [part.stop(timeout) for part in (*self._threads, self._lease)]
        if self._export is not None:
            self._export.stop()
            self._export = None
        return all(ended)

    def run_once(self) -> float:
        """Every duty that is due, here and now; returns the seconds until the next is."""
        return min(thread.run_once() for thread in self._threads)
