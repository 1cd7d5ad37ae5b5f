"""The duty of firing schedules (orchestration 2.4)."""

from __future__ import annotations

import logging

from django_ojs import clock
from django_ojs.operations import cronruns
from django_ojs.operations.cron import next_due
from django_ojs.operations.crontick import tick

logger = logging.getLogger(__name__)


class Cron:
    """Fires what is due, sleeps until the next is, and looks after a second in any case.

    The look is one read of an index; a schedule registered meanwhile may be due earlier.
    """

    name = "cron"
    LOOK = 1.0

    def run_once(self, using: str) -> float:
        cronruns.release(using=using)
        due = next_due(using=using)
        if due is None:
            return self.LOOK
        left = (due - clock.now(using)).total_seconds()
        if left > 0:
            return min(left, self.LOOK)
        # Nothing fired though something is due: another scheduler has it.
        return 0.0 if tick(using=using) else self.LOOK


class Unsynchronised:
    """Warns, once for each, about schedules of the code that the database does not have so."""

    name = "unsynchronised"
    EVERY = 600.0

    def __init__(self) -> None:
        self._told: set[str] = set()

    def run_once(self, using: str) -> float:
        from django_ojs.client.sync import NotSynchronised, out_of_date

        try:
            found = set(out_of_date(using))
        except NotSynchronised as error:
            found = {str(error)}
        if new := sorted(found - self._told):
            logger.warning(
                "Schedules differ between code and database; run manage.py ojs_cron sync: %s", ", ".join(new)
            )
        self._told = found
        return self.EVERY
