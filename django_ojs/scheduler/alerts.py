"""The scheduler's duty to look for what needs attention (`django_ojs.alerts`)."""

from __future__ import annotations

from django_ojs import alerts
from django_ojs.guard import get_logger

logger = get_logger(__name__)


class WatchAlerts:
    """Raises and clears alerts, as often as `OJS["ALERTS"]` says; does nothing where the site has no such setting."""

    name = "alerts"
    #: Seconds from the start to the first look: workers register meanwhile, and the scheduler does what is overdue.
    FIRST = 15.0
    OFF = 10.0

    def __init__(self) -> None:
        self._started = False

    def run_once(self, using: str) -> float:
        if (wanted := alerts.rules()) is None:
            return self.OFF
        if not self._started:
            self._started = True
            return self.FIRST
        changes = alerts.check(wanted, using)
        for alert in changes.raised:
            logger.warning("Alert: %s", alert.says)
        for alert in changes.cleared:
            logger.info("The alert about %s is over.", alert)
        return wanted.every.total_seconds()
