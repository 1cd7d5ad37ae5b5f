"""Make deliveries of new events for the subscribed webhooks, and send the deliveries that are due.

Only the duty's own thread touches the database. The threads of the pool do nothing but HTTP, so a receiver that
takes its time takes a slot of the pool and nothing else.
"""

from __future__ import annotations

import contextlib
import queue
import smtplib
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from django.core.mail import EmailMessage
from django.db import connections

from django_ojs import webhooks
from django_ojs.backoff import Backoff
from django_ojs.conf import ojs_settings
from django_ojs.faults import passes, suppress_passing
from django_ojs.guard import get_logger
from django_ojs.models import WebhookSubscription
from django_ojs.scheduler.service import AFTER_FAULT, FOLLOWER_LOOK, LONGEST_AFTER_FAULT, DutyThread
from django_ojs.webhooks import deliveries, relay
from django_ojs.webhooks.deliveries import Sending
from django_ojs.webhooks.subscriptions import mail_to_owner
from django_ojs.webhooks.transport import DeliveryOutcome, DeliveryReply

logger = get_logger(__name__)

GATHER = 0.01  #: seconds that the first result waits for others, to be written down with them
LINGER, END_LOOK = 2.0, 0.02  #: seconds that a stopping process waits for attempts under way, and between looks


class RelayEvents:
    """Turns new events into deliveries. Without subscriptions it costs two small reads a second."""

    name = "relay"
    BUSY, IDLE, UNSUBSCRIBED = 0.0, 0.2, 1.0

    def __init__(self, on_new: Callable[[], None] = lambda: None) -> None:
        self._on_new = on_new

    def run_once(self, using: str) -> float:
        found = relay.relay(using=using)
        if found:
            self._on_new()
        return self.UNSUBSCRIBED if found is None else self.BUSY if found else self.IDLE


class SendWebhooks:
    """Sends deliveries that are due, and stores their outcomes.

    It looks when something came back, when there are new deliveries, and once a second for those to be tried again.
    """

    name = "webhooks"
    LOOK, IDLE = 1.0, 0.2
    SET_RIGHT = 60.0  #: seconds between looks for what was noted while the clock was ahead

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self._set_right_at = float("-inf")
        self._threads = DeliveryThreads(wake)
        self._in_flight: Counter[uuid.UUID] = Counter()
        self._done: list[tuple[Sending, DeliveryReply]] = []
        self._next_look = float("-inf")

    @property
    def in_flight(self) -> int:
        return self._in_flight.total()

    def run_once(self, using: str) -> float:
        if not webhooks.missing() and (self.record_replies(using) or time.monotonic() >= self._next_look):
            self._next_look = time.monotonic() + self.LOOK
            if time.monotonic() >= self._set_right_at:
                self._set_right_at = time.monotonic() + self.SET_RIGHT
                deliveries.set_right(using=using)
            free = ojs_settings.WEBHOOK_CONCURRENCY - self.in_flight
            for sending in deliveries.claim(free, self._in_flight, using=using):
                self._threads.submit(partial(_attempt, sending))
                self._in_flight[sending.subscription.pk] += 1
        return self.IDLE

    def close(self) -> None:
        """Let the threads end, each after what it is at."""
        self._threads.close()

    def poll_now(self) -> None:
        """Look at once: there are new deliveries."""
        self._next_look = float("-inf")

    def record_replies(self, using: str) -> bool:
        """Store the replies that have come; whether there were any. Those that cannot be stored now are kept."""
        for sending, reply in self._threads.results():
            self._done.append((sending, reply))
            self._in_flight[sending.subscription.pk] -= 1
            self._in_flight += Counter()  # drops those without any
        if not self._done:
            return False
        done, self._done = self._done, []
        try:
            disabled = deliveries.record_replies(done, using=using)
        except Exception as error:
            if passes(error):  # any other fault would come again: those attempts count as lost
                self._done = done
            raise
        for subscription in disabled:
            self._report_disabled(subscription)
        return True

    def _report_disabled(self, subscription: WebhookSubscription) -> None:
        logger.warning("The webhook %s was switched off. %s", subscription, subscription.disabled_reason)
        if (message := mail_to_owner(subscription)) is not None:
            self._threads.submit(partial(_mail, message, subscription.public_id))


class Webhooks(DutyThread):
    """The thread of both duties. Attempts under way are stored also after another process has begun to lead."""

    def __init__(self, using: str, leads: Callable[[], bool]) -> None:
        self._woken = threading.Event()
        self._sender = SendWebhooks(self._woken.set)
        super().__init__("webhooks", [RelayEvents(self._sender.poll_now), self._sender], using, leads)

    def run(self) -> None:
        while not self.stopping.is_set():
            pause = self.run_once() if self._leads() else self._follow()
            if self._woken.wait(pause):
                self.stopping.wait(GATHER)
                self._woken.clear()
                self._due[SendWebhooks.name] = float("-inf")
        deadline = time.monotonic() + LINGER
        with suppress_passing():  # then those attempts count as lost, and are made again
            while self._sender.in_flight and time.monotonic() < deadline:
                self._sender.record_replies(self._using)
                time.sleep(END_LOOK)
        self._sender.close()

    def wake(self) -> None:
        self._woken.set()

    def _follow(self) -> float:
        with suppress_passing(lambda error: connections[self._using].close()):  # the next look gets another session
            self._sender.record_replies(self._using)
        return FOLLOWER_LOOK


class DeliveryThreads:
    """Daemon threads that are started when there is work. The process does not wait for them when it ends.

    `wake` is called, in one of them, when there is a result.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._work: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._busy = 0
        self._threads = 0
        self._short = Backoff("Making one more thread for webhooks", AFTER_FAULT, LONGEST_AFTER_FAULT, logger=logger)
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], Any]) -> None:
        """Run it soon; unless it returns None, the result is among `results()` afterwards. Raises RuntimeError where no
        thread can be made for it, and then nothing has happened."""
        with self._lock:
            if self._busy >= self._threads:
                self._make_thread()
            self._busy += 1
        self._work.put(work)

    def _make_thread(self) -> None:
        """One more thread. Where the system has none for this process, one that there is takes the work when it is
        free; raises RuntimeError where there is none at all."""
        name = f"ojs-webhook-{self._threads + 1}"
        try:
            threading.Thread(target=self._run, name=name, daemon=True).start()
        except RuntimeError:
            if not self._threads:
                raise
            self._short.failed()
        else:
            self._threads += 1
            self._short.worked()

    def results(self) -> list[Any]:
        """What has been done since the last call."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._results.get_nowait())
        return found

    def close(self) -> None:
        """Every thread ends when it has nothing left to do. There must be no `submit` after it."""
        for _ in range(self._threads):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            result = None
            try:
                result = work()
            except BaseException:  # a thread that ended would be counted on for ever
                logger.exception("A webhook's thread failed for a reason of ours.")
            finally:
                with self._lock:
                    self._busy -= 1
            if result is not None:
                self._results.put(result)
                self._wake()


def _attempt(sending: Sending) -> tuple[Sending, DeliveryReply]:
    """`attempt`, from which no fault of ours may escape: the slot would be lost for ever."""
    try:
        return sending, deliveries.attempt(sending)
    except BaseException:
        logger.exception("Sending %s failed for a reason of ours.", sending.delivery)
        return sending, DeliveryReply(DeliveryOutcome.RETRY, error="This server failed while it was sending.")


def _mail(message: EmailMessage, subscription: str) -> None:
    try:
        message.send()
    except (OSError, smtplib.SMTPException) as error:
        logger.warning("No mail could be sent to the owner of %s: %s", subscription, error)
