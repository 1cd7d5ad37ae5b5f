"""Who leads: a row in the database that one process at a time holds, for a few seconds at a time."""

from __future__ import annotations

import datetime as dt
import logging
import time

from django.db import IntegrityError, transaction
from django.db.models import Q

from django_ojs import clock
from django_ojs.models import Lease
from django_ojs.scheduler.outage import ERRORS, persist
from django_ojs.scheduler.service import Service

logger = logging.getLogger(__name__)

LEASE_SECONDS = 5.0
RENEW_SECONDS = 1.0


class Leadership(Service):
    """Takes the lease when it is free, renews it every second, and gives it back at the end.

    Time is the database's (`clock.now(using)`), so hosts need not agree on it. Two leaders at once would do
    no harm, only work twice: every step of theirs is conditional.
    """

    name = "lease"

    def __init__(self, role: str, holder: str, using: str) -> None:
        super().__init__()
        self._role, self._holder, self._using = role, holder[:255], using
        self._until = float("-inf")

    @property
    def leads(self) -> bool:
        """Whether this process leads; False as soon as the lease may have passed to another."""
        return time.monotonic() < self._until

    def run(self) -> None:
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
        mine_or_free = Q(holder=self._holder) | Q(expires_at__lte=now)
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
