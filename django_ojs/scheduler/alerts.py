"""The scheduler's duties that send mail: about what needs attention (`django_ojs.alerts`), and to those whom durable
jobs ask (`jobs/approvalmail.py`)."""

from __future__ import annotations

import smtplib
import time

from django_ojs import alerts
from django_ojs.backoff import Backoff
from django_ojs.conf import ojs_settings
from django_ojs.guard import get_logger
from django_ojs.jobs import approvalmail
from django_ojs.rules.alertrules import AlertRules
from django_ojs.rules.approvals import parse_mail

logger = get_logger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 30.0, 600.0  #: seconds until a mail that could not be sent is tried again, at least


class WatchAlerts:
    """Raises and clears alerts, as often as `OJS["ALERTS"]` says; does nothing where the site has no such setting."""

    name = "alerts"
    #: Seconds from the start to the first look: workers register meanwhile, and the scheduler does what is overdue.
    FIRST = 15.0
    OFF = 10.0

    def __init__(self) -> None:
        self._started = False
        self._missed: alerts.Missed = set()
        self._mails = Backoff("Sending a mail about alerts", FIRST_PAUSE, LONGEST_PAUSE, logger=logger, brief=True)
        self._next_mail = float("-inf")

    def run_once(self, using: str) -> float:
        if (wanted := alerts.rules()) is None:
            return self.OFF
        if not self._started:
            self._started = True
            return self.FIRST
        changes = alerts.check(wanted, using, self._missed)
        for alert in changes.raised:
            logger.warning("Alert: %s", alert.says)
        for alert in changes.cleared:
            logger.info("The alert about %s is over.", alert)
        if wanted.mail_to and self._next_mail <= time.monotonic():
            self._mail(wanted, using)
        return wanted.every.total_seconds()

    def _mail(self, wanted: AlertRules, using: str) -> None:
        """Send the mail that is due. One that cannot be sent keeps nothing else from being done."""
        try:
            sent = alerts.tell(wanted, using)
        except (OSError, smtplib.SMTPException):
            self._next_mail = time.monotonic() + self._mails.failed()
        else:
            if sent:
                self._mails.worked()


class MailApprovals:
    """Sends the mails to those whom durable jobs ask, where the site has `OJS["APPROVAL_MAIL"]`.

    The look is one read of the open approvals. It has a thread of its own: a mail server that does not answer would
    hold other duties for as long as Django's EMAIL_TIMEOUT says, which by default is for ever.
    """

    name = "approval mails"
    EVERY = 2.0

    def __init__(self) -> None:
        self._sent = approvalmail.SentMails()
        self._mails = Backoff("Sending mails about approvals", FIRST_PAUSE, LONGEST_PAUSE, logger=logger, brief=True)

    def run_once(self, using: str) -> float:
        mail = parse_mail(ojs_settings.APPROVAL_MAIL)
        if mail is None:
            return WatchAlerts.OFF
        try:
            sent = approvalmail.tell(mail, self._sent, using=using)
        except (OSError, smtplib.SMTPException):
            return self._mails.failed()
        if sent:
            self._mails.worked()
        return self.EVERY
