"""The scheduler: inside every worker, or alone (`manage.py ojs_scheduler`); one of them leads."""

from __future__ import annotations

from typing import Any

from django_ojs.operations.common import database
from django_ojs.scheduler.cron import Cron, Unsynchronised
from django_ojs.scheduler.lease import Leadership
from django_ojs.scheduler.looper import Looper
from django_ojs.scheduler.loops import (
    Bulk,
    CountEvents,
    EndMaintenance,
    FoldCounts,
    OrderEvents,
    Prune,
    Relay,
    Relieve,
    Remove,
    Rescue,
    Settle,
    TellProgress,
    Unserved,
)
from django_ojs.scheduler.webhooks import Webhooks
from django_ojs.telemetry import export

ROLE = "scheduler"


class Scheduler:
    """`start()`, `stop()`, and `run_once()` for those who want one pass without threads or lease.

    What has to be on time and what may take a while run in threads of their own, so that neither pruning nor
    many schedules at midnight nor a slow receiver of webhooks delay a job.
    """

    name = "scheduler"

    def __init__(self, holder: str, using: str | None = None) -> None:
        self.using = database(using)
        self._export: Any = None
        self._lease = Leadership(ROLE, holder, self.using)
        self._loopers = (
            Looper(
                "scheduler",
                [Settle(), OrderEvents(), Rescue(), Relieve(), EndMaintenance()],
                self.using,
                lambda: self._lease.leads,
            ),
            Looper("cron", [Cron()], self.using, lambda: self._lease.leads),
            Looper("bulk", [Bulk()], self.using, lambda: self._lease.leads),
            Looper("outbox", [Relay()], self.using, lambda: self._lease.leads),
            Looper(
                "housekeeping",
                [TellProgress(), FoldCounts(), CountEvents(), Remove(), Prune(), Unserved(), Unsynchronised()],
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
        for part in (self._lease, *self._loopers):
            part.start()

    def stop(self, timeout: float | None = None) -> bool:
        """End the threads, then give the lease back; False if one of them has not ended in so many seconds."""
        ended = [part.stop(timeout) for part in (*self._loopers, self._lease)]
        if self._export is not None:
            self._export.stop()
            self._export = None
        return all(ended)

    def run_once(self) -> float:
        """Every duty that is due, here and now; returns the seconds until the next is."""
        return min(looper.run_once() for looper in self._loopers)
