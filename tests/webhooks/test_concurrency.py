"""Late commits, several schedulers at once, and a sender that is killed: nothing is lost, nothing overtakes."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import OperationalError, connection, connections
from django.utils import timezone

from django_ojs import enqueue
from django_ojs.database import retried
from django_ojs.events import order
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.models import Lease, WebhookDelivery
from django_ojs.scheduler.service import outage, persist
from django_ojs.scheduler.webhooks import Webhooks
from django_ojs.webhooks import deliveries as webhooksending
from django_ojs.webhooks import subscriptions
from django_ojs.webhooks.relay import relay
from tests.operations.test_event_order import OpenTransaction
from tests.processes.conftest import Site, site  # noqa: F401 - a fixture
from tests.waiting import eventually
from tests.webhooks.conftest import USING, Sender, deliver, deliveries, fresh, relayed, subscribe
from tests.webhooks.receiver import Receiver

pytestmark = pytest.mark.django_db(transaction=True)


def in_order(receiver: Receiver) -> None:
    """The events of each job arrived in the order of its life, repetitions aside."""
    by_subject: dict[str, list[str]] = defaultdict(list)
    for got in receiver.got:
        told = by_subject[got.event["subject"]]
        if not told or told[-1] != got.event["type"]:
            told.append(got.event["type"])
    for told in by_subject.values():
        assert told == ["job.enqueued", "job.started"]


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time: nothing to overtake")
def test_a_transaction_that_commits_late_is_not_skipped(receiver: Receiver, sender: Sender) -> None:
    subscribe(receiver.url())
    relayed()
    slow = OpenTransaction("a.slow")
    enqueue("a.quick")
    deliver(sender)
    slow.commit()
    deliver(sender)
    assert [got.event["data"]["job_type"] for got in receiver.got] == ["a.quick", "a.slow"]


def test_two_schedulers_at_once_send_everything_once_and_in_order(receiver: Receiver) -> None:
    """Without the lease, so that both are at it all the time."""
    subscribe(receiver.url())
    relayed()
    jobs = 25
    for _ in range(jobs):
        enqueue("a.b")
    fetch(Fetch(["default"], count=jobs, worker_id="w"))
    stop = threading.Event()

    def run(_: int) -> None:
        sender = Sender()
        try:
            while not stop.is_set():
                persist(lambda: order.advance(USING), USING, stop)
                persist(lambda: relay(using=USING), USING, stop)
                persist(lambda: sender.run_once(USING), USING, stop)
                stop.wait(0.002)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(run, number) for number in range(2)]
        try:
            eventually(lambda: len(receiver.got) >= 2 * jobs, "all deliveries")
            done = {"success"}
            eventually(lambda: {row.status for row in deliveries()} == done, "all written down")
        finally:
            stop.set()
        for one in runs:
            one.result(60)
    outage.forget()
    assert Counter(got.headers["X-OJS-Delivery-ID"] for got in receiver.got) == {
        row.public_id: 1 for row in deliveries()
    }
    assert len(deliveries()) == 2 * jobs
    in_order(receiver)


def test_what_came_of_an_attempt_that_counted_as_lost_changes_nothing(receiver: Receiver, frozen_clock: Any) -> None:
    subscribe(receiver.url(), timeout_seconds=5)
    enqueue("a.b")
    relayed()
    (first,) = webhooksending.claim(10, {})
    assert webhooksending.claim(10, {}) == [], "it is under way"
    frozen_clock.advance(seconds=65)
    (second,) = webhooksending.claim(10, {})
    assert second.delivery.public_id == first.delivery.public_id
    receiver.plan(500, 204)
    late, timely = webhooksending.attempt(first), webhooksending.attempt(second)
    webhooksending.record_replies([(second, timely)])
    webhooksending.record_replies([(first, late)])
    (row,) = deliveries()
    assert (row.status, row.attempt_count) == ("success", 1)


def test_an_answer_that_comes_after_the_deletion_is_dropped(receiver: Receiver) -> None:
    subscription = subscribe(receiver.url())
    enqueue("a.b")
    relayed()
    (sending,) = webhooksending.claim(10, {})
    subscriptions.delete(subscription.pk)
    webhooksending.record_replies([(sending, webhooksending.attempt(sending))])
    assert deliveries() == []


def test_a_relay_that_breaks_off_stores_neither_deliveries_nor_its_place(
    receiver: Receiver, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribe(receiver.url())
    relayed()
    enqueue("a.b")
    order.catch_up(USING)

    class PulledPlug(Exception):
        pass

    def after(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            real(*args, **kwargs)
            raise PulledPlug

        return call

    with monkeypatch.context() as patch:
        from django_ojs.webhooks import relay as webhookrelay

        patch.setattr(webhookrelay, "_insert", after(webhookrelay._insert))
        with pytest.raises(PulledPlug):
            relay()
    assert deliveries() == []
    deliver(sender)
    assert len(receiver.got) == 1


def test_what_a_pass_has_no_room_for_is_stored_by_the_next(
    receiver: Receiver, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_ojs.webhooks.relay.MAX_LOAD", 1)
    subscribe(receiver.url())
    relayed()
    for job_type in ("a.one", "a.two", "a.three"):
        enqueue(job_type)
    order.catch_up(USING)
    assert [relay() for _ in range(4)] == [1, 1, 1, 0]
    deliver(sender)
    assert sorted(got.event["data"]["job_type"] for got in receiver.got) == ["a.one", "a.three", "a.two"]


def test_who_subscribes_while_a_pass_runs_misses_nothing(
    receiver: Receiver, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_ojs.webhooks import relay as webhookrelay

    subscribe(receiver.url("/first"))
    relayed()
    enqueue("a.before")
    order.catch_up(USING)
    real, calls = webhookrelay._subscribers, iter(range(100))

    def meanwhile(using: str, *args: Any, **kwargs: Any) -> Any:
        found = real(using, *args, **kwargs)
        if next(calls) == 0:  # the pass has asked who is subscribed, and has not read the log yet
            subscribe(receiver.url("/second"))
            enqueue("a.after")
            order.catch_up(USING)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(webhookrelay, "_subscribers", meanwhile)
        relay()
    deliver(sender)
    got = sorted((one.path, one.event["data"]["job_type"]) for one in receiver.got)
    assert got == [("/first", "a.after"), ("/first", "a.before"), ("/second", "a.after")]


def test_fair_shares(receiver: Receiver) -> None:
    """Who waits for nothing gets its turn, whatever queues up before it."""
    hogs = [subscribe(receiver.url(f"/{n}")) for n in range(6)]
    for _ in range(10):
        enqueue("a.b")
    relayed()
    late = subscribe(receiver.url("/late"))
    enqueue("a.b")
    relayed()
    claimed = webhooksending.claim(32, {})
    per = Counter(sending.subscription.pk for sending in claimed)
    assert per[late.pk] == 1
    assert all(1 <= per[hog.pk] <= 4 for hog in hogs)
    again = webhooksending.claim(32 - len(claimed), per)
    assert all(per[sending.subscription.pk] < 4 for sending in again), "nobody gets more than four"


def test_a_duty_that_meets_a_fault_of_ours_goes_on(
    receiver: Receiver, sender: Sender, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    subscription = subscribe(receiver.url())
    enqueue("a.b")
    with monkeypatch.context() as patch:
        patch.setattr(webhooksending, "attempt", lambda sending: 1 / 0)
        deliver(sender)
    (row,) = deliveries()
    assert (row.status, row.error) == ("failed", "This server failed while it was sending.")
    assert "for a reason of ours" in caplog.text
    assert fresh(subscription).failure_count == 1


def test_results_outlive_a_database_that_is_away(
    receiver: Receiver, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribe(receiver.url())
    enqueue("a.b")
    relayed()
    real, failures = webhooksending.record_replies, iter([OperationalError("away"), OperationalError("away")])

    def settle(*args: Any, **kwargs: Any) -> Any:
        for failure in failures:
            raise failure
        return real(*args, **kwargs)

    monkeypatch.setattr(webhooksending, "record_replies", settle)
    for _ in range(2):
        with pytest.raises(OperationalError):
            sender.until(lambda: False)
    sender.until_idle()
    assert len(receiver.got) == 1
    assert deliveries()[0].status == "success"


@pytest.mark.slow
def test_killed_in_the_middle_it_is_sent_again_with_the_same_id(
    site: Site,  # noqa: F811
    receiver: Receiver,
) -> None:
    ojs = {"WEBHOOK_ALLOW_HTTP": True, "WEBHOOK_ALLOWED_HOSTS": ["127.0.0.1"]}
    subscription = subscribe(receiver.url(), timeout_seconds=60)
    let_go = threading.Event()
    receiver.plan(lambda handler: let_go.wait(120))
    enqueue("a.b")
    fetch(Fetch(["default"], worker_id="w"))
    first = site.start("ojs_scheduler", **ojs)
    eventually(lambda: receiver.got, "the first attempt")
    site.kill(first)
    let_go.set()
    (sent, held) = deliveries()
    assert (sent.status, sent.claim is None, held.held) == ("pending", False, True)
    Lease.objects.all().delete()
    # The time after which an attempt counts as lost goes by.
    WebhookDelivery.objects.filter(pk=sent.pk).update(next_attempt_at=timezone.now())
    second = site.worker("after", **ojs)  # a worker runs the scheduler, too
    eventually(lambda: {row.status for row in deliveries()} == {"success"}, "both deliveries")
    site.stop(second)
    ids = [got.headers["X-OJS-Delivery-ID"] for got in receiver.got]
    assert ids == [sent.public_id, sent.public_id, held.public_id]
    assert receiver.got[0].body == receiver.got[1].body
    assert fresh(subscription).success_count == 2
    in_order(receiver)


@pytest.mark.wide
def test_when_the_leader_dies_another_scheduler_goes_on(site: Site, receiver: Receiver) -> None:  # noqa: F811
    ojs = {"WEBHOOK_ALLOW_HTTP": True, "WEBHOOK_ALLOWED_HOSTS": ["127.0.0.1"]}
    subscribe(receiver.url())
    schedulers = [site.start("ojs_scheduler", **ojs) for _ in range(2)]
    jobs = 60
    for _ in range(jobs):
        enqueue("a.b")
    fetch(Fetch(["default"], count=jobs, worker_id="w"))
    eventually(lambda: len(receiver.got) > 10, "the first deliveries")
    holder = eventually(lambda: Lease.objects.values_list("holder", flat=True).first(), "a leader")
    leader = next((one for one in schedulers if str(one.pid) in holder), schedulers[0])
    site.kill(leader)

    @retried  # the scheduler writes the same rows
    def all_done() -> bool:
        stuck = WebhookDelivery.objects.filter(claim__isnull=False, next_attempt_at__gt=timezone.now())
        stuck.update(next_attempt_at=timezone.now())  # lost attempts need not be waited for
        return WebhookDelivery.objects.filter(status="success").count() == 2 * jobs

    eventually(all_done, "the rest")
    assert {got.headers["X-OJS-Delivery-ID"] for got in receiver.got} == {row.public_id for row in deliveries()}
    by_first_arrival = list(dict.fromkeys((got.event["subject"], got.event["type"]) for got in receiver.got))
    assert len(by_first_arrival) == 2 * jobs
    for subject in {subject for subject, _ in by_first_arrival}:
        assert [told for one, told in by_first_arrival if one == subject] == ["job.enqueued", "job.started"]


def test_a_scheduler_that_does_not_lead_leaves_a_connection_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stores the answers that still come: on a connection that was cut it would have tried for ever."""
    thread = Webhooks(USING, lambda: False)

    def cut(using: str) -> bool:
        raise OperationalError(2013, "Lost connection to server during query")

    monkeypatch.setattr(thread._sender, "record_replies", cut)
    connection.ensure_connection()
    assert thread._follow() > 0
    assert connection.connection is None
