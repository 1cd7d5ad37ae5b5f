"""What is sent, what an answer leads to, and that no receiver stands in another's way."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs import enqueue
from django_ojs.events import log
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.models import WebhookDelivery, WebhookRelay
from django_ojs.scheduler.webhooks import DeliveryThreads
from django_ojs.statistics import webhookcounts
from django_ojs.webhooks import deliveries as webhookdeliveries
from django_ojs.webhooks import subscriptions
from django_ojs.webhooks.transport import LONGEST_WAIT
from django_ojs.workflows import workflow
from tests.webhooks.conftest import SECRET, USING, Sender, deliver, deliveries, fresh, is_uuid7, relayed, subscribe
from tests.webhooks.receiver import Handler, Receiver

pytestmark = pytest.mark.django_db(transaction=True)


def mac(content: bytes, secret: str = SECRET) -> str:
    return "sha256=" + hmac.new(secret.encode(), content, hashlib.sha256).hexdigest()


def test_the_receiver_gets_the_clean_envelope_signed_over_its_exact_bytes(receiver: Receiver, sender: Sender) -> None:
    subscription = subscribe(receiver.url("/in?x=1"), headers={"Authorization": "Bearer them"})
    handle = enqueue("mail.send", "ann@example.com", queue="mail")
    deliver(sender)
    (got,) = receiver.got
    (event,) = log.read().events
    assert got.event == event, "the envelope that every other reader of the log gets, without mirrors"
    assert event["subject"] == str(handle.id)
    assert got.path == "/in?x=1"
    (delivery,) = deliveries()
    headers = {name.lower(): value for name, value in got.headers.items()}
    timestamp = headers["x-ojs-timestamp"]
    expected = {
        "content-type": "application/json",
        "user-agent": "OJS-Webhook/1.0",
        "x-ojs-event-type": "job.enqueued",
        "x-ojs-delivery-id": delivery.public_id,
        "x-ojs-subscription-id": subscription.public_id,
        "x-ojs-signature": mac(got.body),
        "x-ojs-signature-timestamped": mac(timestamp.encode() + b"." + got.body),
        "authorization": "Bearer them",
        "host": f"127.0.0.1:{receiver.port}",
    }
    assert {name: headers[name] for name in expected} == expected
    assert is_uuid7(delivery.public_id, "del_")
    assert (delivery.status, delivery.attempt_count, delivery.response_status) == ("success", 1, 204)
    row = fresh(subscription)
    assert (row.success_count, row.failure_count, row.last_delivery_status) == (1, 0, 204)


def test_the_other_signature_format_swaps_the_two_headers(receiver: Receiver, sender: Sender) -> None:
    subscribe(receiver.url(), signature_format="timestamp.body")
    enqueue("a.b")
    deliver(sender)
    (got,) = receiver.got
    stamp = got.headers["X-OJS-Timestamp"].encode()
    assert got.headers["X-OJS-Signature"] == mac(stamp + b"." + got.body)
    assert got.headers["X-OJS-Signature-Timestamped"] == mac(got.body)


def test_after_a_rotation_both_secrets_sign_for_a_day(receiver: Receiver, sender: Sender, frozen_clock: Any) -> None:
    subscription = subscribe(receiver.url())
    _, new = subscriptions.rotate(subscription.pk)
    enqueue("a.b")
    deliver(sender)
    frozen_clock.advance(hours=24)
    enqueue("a.b")
    deliver(sender)
    during, after = receiver.got
    assert during.headers["X-OJS-Signature"] == f"{mac(during.body, new)},{mac(during.body)}"
    assert after.headers["X-OJS-Signature"] == mac(after.body, new)


def test_failures_are_tried_again_on_the_schedule_with_the_same_id_and_bytes_and_then_die(
    receiver: Receiver, sender: Sender, frozen_clock: Any, caplog: Any
) -> None:
    caplog.set_level("WARNING", logger="django_ojs")
    subscribe(receiver.url())
    receiver.otherwise = (503, {}, b"down for maintenance")
    enqueue("a.b")
    deliver(sender)
    for number, delay in enumerate((30, 120, 600, 3600, 14_400, 43_200, 86_400), 1):
        assert len(receiver.got) == number
        (delivery,) = deliveries()
        assert (delivery.status, delivery.attempt_count) == ("failed", number)
        frozen_clock.advance(seconds=delay - 1)
        sender.until_idle()
        assert len(receiver.got) == number, f"not before {delay} s are over"
        frozen_clock.advance(seconds=1)
        sender.until_idle()
    (delivery,) = deliveries()
    assert (delivery.status, delivery.attempt_count, delivery.next_attempt_at) == ("dead", 8, None)
    assert [entry["status"] for entry in delivery.attempts] == [503] * 8
    assert delivery.response_body == "down for maintenance"
    assert len({got.body for got in receiver.got}) == 1
    assert {got.headers["X-OJS-Delivery-ID"] for got in receiver.got} == {delivery.public_id}
    assert len({got.headers["X-OJS-Timestamp"] for got in receiver.got}) == 8, "signed anew for each attempt"
    assert [event["data"]["delivery_id"] for event in log.read(types=["webhook.dead"]).events] == [delivery.public_id]
    (line,) = [record for record in caplog.records if getattr(record, "event", "") == "webhook.dead"]
    assert (line.levelname, line.__dict__["delivery_id"]) == ("WARNING", delivery.public_id)


def test_what_was_noted_while_the_clock_was_ahead_comes_when_it_is_right(
    receiver: Receiver, sender: Sender, frozen_clock: Any
) -> None:
    sender.SET_RIGHT = 0.0
    start = frozen_clock.now
    frozen_clock.advance(days=365)
    subscription = subscribe(receiver.url())
    receiver.plan(503)
    enqueue("a.failed")
    deliver(sender)
    enqueue("a.lost")
    relayed()
    assert len(webhookdeliveries.claim(1, {})) == 1  # by a process that dies
    enqueue("a.waiting")
    relayed()
    frozen_clock.move_to(start)
    enqueue("a.later")
    deliver(sender)
    assert sorted(got.event["data"]["job_type"] for got in receiver.got) == [
        "a.failed", "a.failed", "a.later", "a.lost", "a.waiting"
    ]  # fmt: skip
    assert {row.status for row in deliveries()} == {"success"}
    assert fresh(subscription).last_delivery_at == start
    frozen_clock.advance(seconds=1)
    deliver(sender)
    assert len(receiver.got) == 5


@pytest.mark.parametrize(
    "status, verdict",
    [(200, "success"), (299, "success"), (304, "dead"), (400, "dead"), (404, "dead"), (410, "dead"), (429, "failed"),
     (500, "failed"), (599, "failed")],
)  # fmt: skip
def test_what_a_status_means(receiver: Receiver, sender: Sender, status: int, verdict: str) -> None:
    subscribe(receiver.url())
    receiver.plan(status)
    enqueue("a.b")
    deliver(sender)
    (delivery,) = deliveries()
    assert (delivery.status, delivery.response_status) == (verdict, status)


@pytest.mark.parametrize("status, verdict", [(204, "success"), (503, "failed")])
def test_what_comes_before_the_answer_is_not_the_answer(
    receiver: Receiver, sender: Sender, status: int, verdict: str
) -> None:
    def hint(handler: Handler) -> None:
        for interim in (b"100 Continue", b"102 Processing", b"103 Early Hints\r\nLink: </a.css>; rel=preload"):
            handler.wfile.write(b"HTTP/1.1 " + interim + b"\r\n\r\n")
        handler.wfile.write(b"HTTP/1.1 %d Fine\r\nContent-Length: 0\r\n\r\n" % status)

    subscribe(receiver.url())
    receiver.plan(hint)
    enqueue("a.b")
    deliver(sender)
    (delivery,) = deliveries()
    assert (delivery.status, delivery.response_status) == (verdict, status)


@pytest.mark.parametrize("asked, seconds", [("90", 90), ("5", 30), ("nonsense", 30), ("9" * 10, LONGEST_WAIT)])
def test_retry_after_lengthens_the_wait(
    receiver: Receiver, sender: Sender, frozen_clock: Any, asked: str, seconds: float
) -> None:
    subscribe(receiver.url())
    receiver.plan((429, {"Retry-After": asked}, b""))
    enqueue("a.b")
    deliver(sender)
    (delivery,) = deliveries()
    assert (delivery.next_attempt_at - frozen_clock.now).total_seconds() == seconds


def test_events_of_one_job_stay_in_order_while_the_first_is_tried_again(
    receiver: Receiver, sender: Sender, frozen_clock: Any
) -> None:
    subscribe(receiver.url())
    receiver.plan(500, 500)
    enqueue("a.b")
    fetch(Fetch(["default"], worker_id="w"))
    other = enqueue("c.d")
    deliver(sender)
    subjects = [got.event["subject"] for got in receiver.got]
    assert [got.event["type"] for got in receiver.got].count("job.started") == 0, "postponed behind job.enqueued"
    assert str(other.id) in subjects, "other jobs are not postponed"
    assert [row.held for row in deliveries()] == [False, True, False]
    for seconds in (30, 120, 0, 0):
        frozen_clock.advance(seconds=seconds)
        deliver(sender)
    arrived = [got.event["type"] for got in receiver.got if got.event["subject"] != str(other.id)]
    assert arrived[-1] == "job.started"
    assert set(arrived[:-1]) == {"job.enqueued"}
    assert {row.status for row in deliveries()} == {"success"}


def test_a_dead_delivery_lets_the_next_of_its_job_go(receiver: Receiver, sender: Sender) -> None:
    subscribe(receiver.url())
    receiver.plan(410)
    enqueue("a.b")
    fetch(Fetch(["default"], worker_id="w"))
    deliver(sender)
    assert [(row.event_type, row.status) for row in deliveries()] == [
        ("job.enqueued", "dead"),
        ("job.started", "success"),
    ]


def test_a_slow_receiver_delays_nobody_else(receiver: Receiver, sender: Sender) -> None:
    slow, quick = Receiver(), receiver
    let_go = threading.Event()
    slow.otherwise = lambda handler: let_go.wait(60) and handler.send_error(500)
    try:
        laggard = subscribe(slow.url())
        subscribe(quick.url())
        for _ in range(40):
            enqueue("a.b")
        relayed()
        sender.until(lambda: len(quick.got) == 40, "all deliveries to the quick one")
        sender.until(lambda: sender.in_flight == len(slow.got) == 4, "the end of the quick ones")
        sender.run_once(USING)
        assert sender.in_flight == len(slow.got) == 4, "four at a time, and no more"
        let_go.set()
        sender.until(lambda: not sender.in_flight or fresh(laggard).failing_since, "an end")
        sender.until(lambda: sender.in_flight <= 1, "one at a time while it fails")
    finally:
        let_go.set()
        slow.close()


def test_a_subscription_gets_only_what_it_asks_for(receiver: Receiver, sender: Sender) -> None:
    subscribe(receiver.url("/types"), ["job.started"])
    subscribe(receiver.url("/queue"), ["*"], filter={"queues": ["mail"]})
    subscribe(receiver.url("/type"), ["job.enqueued"], filter={"job_types": ["mail.*", "x.y"]})
    subscribe(receiver.url("/both"), ["job.*"], filter={"queues": ["mail"], "job_types": ["x.y"]})
    subscribe(receiver.url("/paused"), ["*"], active=False)
    enqueue("mail.send", queue="mail")
    enqueue("mailer.send", queue="other")
    enqueue("x.y", queue="other")
    fetch(Fetch(["other"], worker_id="w"))
    deliver(sender)
    got = sorted((one.path, one.event["type"], one.event["data"]["job_type"]) for one in receiver.got)
    assert got == [
        ("/queue", "job.enqueued", "mail.send"),
        ("/type", "job.enqueued", "mail.send"),
        ("/type", "job.enqueued", "x.y"),
        ("/types", "job.started", "mailer.send"),
    ]


def test_events_name_a_workflow_as_its_client_does(receiver: Receiver, sender: Sender) -> None:
    subscribe(receiver.url())
    workflow.create({"id": "order-17", "type": "group", "jobs": [{"type": "a.b", "args": []}]})
    deliver(sender)
    assert [got.event["data"]["workflow_id"] for got in receiver.got] == ["order-17"]


def test_a_change_of_state_goes_to_who_names_it_as_an_event_of_its_own(receiver: Receiver, sender: Sender) -> None:
    named = subscribe(receiver.url(), ["job.enqueued", "job.state_changed"])
    wide = subscribe(receiver.url(), ["job.*"])
    enqueue("a.b")
    deliver(sender)
    assert [row.event_type for row in deliveries(wide)] == ["job.enqueued"]
    changed, event = deliveries(named)
    assert (changed.event_type, event.event_type) == ("job.state_changed", "job.enqueued")
    assert changed.event_id != event.event_id
    body = json.loads(changed.body)
    assert (body["id"], body["type"], body["subject"]) == (changed.event_id, "job.state_changed", event.subject)
    assert (body["data"]["from"], body["data"]["to"]) == ("", "available")


def test_nobody_gets_what_happened_before_or_while_paused(receiver: Receiver, sender: Sender) -> None:
    enqueue("before.all")
    first = subscribe(receiver.url("/1"))
    enqueue("for.one")
    deliver(sender)
    subscribe(receiver.url("/2"))
    subscriptions.set_active(first.pk, False)
    enqueue("for.two")
    deliver(sender)
    subscriptions.set_active(first.pk, True)
    enqueue("for.both")
    deliver(sender)
    assert sorted((got.path, got.event["data"]["job_type"]) for got in receiver.got) == [
        ("/1", "for.both"), ("/1", "for.one"), ("/2", "for.both"), ("/2", "for.two")
    ]  # fmt: skip


def test_deliveries_wait_while_their_subscription_is_paused(receiver: Receiver, sender: Sender) -> None:
    subscription = subscribe(receiver.url())
    enqueue("a.b")
    relayed()
    subscriptions.set_active(subscription.pk, False)
    sender.until_idle()
    assert receiver.got == []
    subscriptions.set_active(subscription.pk, True)
    sender.until_idle()
    assert len(receiver.got) == 1


def test_a_deleted_subscription_cancels_what_was_coming_and_keeps_the_record(
    receiver: Receiver, sender: Sender
) -> None:
    subscription = subscribe(receiver.url())
    enqueue("a.b")
    deliver(sender)
    enqueue("c.d")
    relayed()
    subscriptions.delete(subscription.pk)
    deliver(sender)
    assert len(receiver.got) == 1
    assert [row.status for row in deliveries()] == ["success"]
    (event,) = log.read(types=["webhook.subscription.deleted"]).events
    assert event["data"]["cancelled_deliveries"] == 1


def test_persistent_failure_switches_it_off_and_tells_the_owner(
    receiver: Receiver, sender: Sender, frozen_clock: Any, mailoutbox: Any, django_user_model: Any, caplog: Any
) -> None:
    django_user_model.objects.create_user("ann", email="ann@example.com")
    subscription, _ = subscriptions.create(
        subscriptions.read_definition({"url": receiver.url(), "events": ["*"]}), by="user:ann"
    )
    receiver.otherwise = (500, {}, b"")
    for _ in range(3):
        enqueue("a.b")
        deliver(sender)
        assert fresh(subscription).active
        frozen_clock.advance(days=1)
    sender.until(lambda: not fresh(subscription).active, "switching off")
    assert fresh(subscription).disabled_reason.startswith("Every attempt since 2026-01-15T12:00:00.000Z failed")
    sender.until(lambda: mailoutbox, "the mail")
    assert mailoutbox[0].to == ["ann@example.com"]
    assert subscription.public_id in mailoutbox[0].body
    assert receiver.url() not in mailoutbox[0].body
    assert "was switched off" in caplog.text
    assert len(log.read(types=["webhook.subscription.disabled"]).events) == 1
    receiver.otherwise = (204, {}, b"")
    subscriptions.set_active(subscription.pk, True)
    row = fresh(subscription)
    assert (row.disabled_reason, row.failing_since) == ("", None)


def test_webhooks_about_webhooks_do_not_go_round(receiver: Receiver, sender: Sender, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "EXTENSION_EVENTS": True}
    subscribe(receiver.url(), ["*", "webhook.*", "webhook.delivered", "webhook.failed", "webhook.dead"])
    receiver.plan(410, 500)
    enqueue("a.b")
    enqueue("a.b")
    enqueue("a.b")
    for _ in range(3):
        deliver(sender)
    assert [got.event["type"] for got in receiver.got] == ["job.enqueued"] * 3
    found = log.read(types=["webhook.delivered", "webhook.failed", "webhook.dead"]).events
    assert sorted(event["type"] for event in found) == ["webhook.dead", "webhook.delivered", "webhook.failed"]


def test_extension_events_come_to_whoever_names_them(receiver: Receiver, sender: Sender) -> None:
    subscribe(receiver.url("/named"), ["webhook.subscription.created"])
    subscribe(receiver.url("/all"), ["*"])
    deliver(sender)
    assert {got.path for got in receiver.got} == {"/named"}


def test_a_replay_sends_the_same_id_and_bytes_in_turn(receiver: Receiver, sender: Sender) -> None:
    subscribe(receiver.url())
    receiver.plan(400, 500)
    enqueue("a.b")
    fetch(Fetch(["default"], worker_id="w"))
    deliver(sender)
    first, second = deliveries()
    assert (first.status, second.status) == ("dead", "failed")
    again = webhookdeliveries.replay(first.pk)
    assert (again.status, again.held) == ("pending", True), "the later one of this job is still open"
    WebhookDelivery.objects.filter(pk=second.pk).update(next_attempt_at=second.created_at)
    sender.until_idle()
    assert [row.status for row in deliveries()] == ["success", "success"]
    assert receiver.got[0].body == receiver.got[3].body
    assert receiver.got[0].headers["X-OJS-Delivery-ID"] == receiver.got[3].headers["X-OJS-Delivery-ID"]


def test_a_test_is_sent_at_once_and_kept_in_the_record(receiver: Receiver) -> None:
    subscription = subscribe(receiver.url(), active=False)
    receiver.plan((418, {}, b"short and stout"))
    delivery, reply = webhookdeliveries.send_test(subscription.pk)
    assert (reply.status, reply.body) == (418, "short and stout")
    (row,) = deliveries()
    assert (row.pk, row.status, row.event_type, row.is_open) == (delivery.pk, "dead", "webhook.test", False)
    assert receiver.got[0].event["type"] == "webhook.test"
    assert json.loads(row.body) == receiver.got[0].event


def test_old_deliveries_are_pruned_and_open_ones_are_not(receiver: Receiver, sender: Sender, frozen_clock: Any) -> None:
    subscribe(receiver.url())
    receiver.plan(204, 400, 500)
    for _ in range(3):
        enqueue("a.b")
        deliver(sender)
    for days, left in ((6, 3), (2, 2), (30, 1)):
        frozen_clock.advance(days=days)
        webhookdeliveries.prune(frozen_clock.now, 100, USING)
        assert len(deliveries()) == left
    assert deliveries()[0].status == "failed"


def test_without_subscriptions_a_pass_reads_twice_and_writes_nothing() -> None:
    relayed()
    enqueue("a.b")
    with CaptureQueriesContext(
        connection,
    ) as seen:
        assert relayed() == 0
    looks = [query["sql"] for query in seen if "webhook" in query["sql"].lower()]
    assert len(looks) == 2
    assert all(look.startswith("SELECT") for look in looks)


def test_a_pass_costs_the_same_for_one_event_and_for_many(receiver: Receiver, long_memory: None) -> None:
    subscribe(receiver.url())
    relayed()

    def cost(jobs: int) -> int:
        for _ in range(jobs):
            enqueue("a.b")
        with CaptureQueriesContext(connection) as seen:
            assert relayed() == jobs
        return len(seen)

    cost(1)
    assert cost(1) == cost(40)


def test_the_relay_survives_the_pruning_of_the_event_it_stands_at(receiver: Receiver, sender: Sender) -> None:
    from django_ojs.models import Event, EventLog

    subscribe(receiver.url())
    enqueue("a.b")
    deliver(sender)
    standing = WebhookRelay.objects.get().event
    enqueue("kept.one")
    EventLog.objects.update(pruned_to=standing)
    Event.objects.filter(pk__lte=standing).delete()
    deliver(sender)
    assert [got.event["data"]["job_type"] for got in receiver.got] == ["a.b", "kept.one"]


def test_a_handlers_raw_answer_is_cut_short(receiver: Receiver, sender: Sender) -> None:
    def endless(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            handler.wfile.write(b"x" * 65536)

    subscribe(receiver.url())
    receiver.plan(endless)
    enqueue("a.b")
    deliver(sender)
    (delivery,) = deliveries()
    assert (delivery.status, len(delivery.response_body)) == ("success", 4096)


def test_attempts_are_counted_for_the_metrics(receiver: Receiver, sender: Sender, frozen_clock: Any) -> None:
    subscribe(receiver.url(), ["job.enqueued"])
    receiver.plan(500, 204, 400)
    enqueue("a.b")
    deliver(sender)
    frozen_clock.advance(seconds=30)
    deliver(sender)
    enqueue("a.b")
    deliver(sender)
    counted = {(one.event_type, one.status): one for one in webhookcounts.read()}
    assert {key: one.attempts for key, one in counted.items()} == {
        ("job.enqueued", "failed"): 1, ("job.enqueued", "success"): 1, ("job.enqueued", "dead"): 1
    }  # fmt: skip
    success = counted["job.enqueued", "success"]
    assert (sum(success.durations), success.retries_total) == (1, 1)
    assert success.retries == (0, 1, 0, 0, 0, 0, 0)
    assert sum(counted["job.enqueued", "failed"].retries) == 0
    assert webhookcounts.subscriptions() == 1


def test_a_thread_outlives_whatever_it_was_to_do(caplog: pytest.LogCaptureFixture) -> None:
    done, others = threading.Event(), set(threading.enumerate())
    threads = DeliveryThreads(done.set)

    def fail() -> None:
        raise ValueError("a mail backend of the site's")

    for _ in range(3):
        threads.submit(fail)
    threads.submit(lambda: "sent")
    assert done.wait(30)
    assert threads.results() == ["sent"]
    threads.close()
    for thread in set(threading.enumerate()) - others:
        thread.join(30)
    assert threads._busy == 0
    assert caplog.text.count("a mail backend of the site's") >= 3
