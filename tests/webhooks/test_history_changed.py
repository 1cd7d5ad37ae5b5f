"""Webhooks of a log that has lost its newest events: they go on with what it has now, once, and receivers are told."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from django_ojs import clock
from django_ojs.events import log
from django_ojs.models import Event, EventLog, WebhookDelivery, WebhookRelay, WebhookSubscription
from django_ojs.retention import prune
from django_ojs.rules.durations import format_instant
from django_ojs.webhooks import deliveries as webhookdeliveries
from django_ojs.webhooks import relay as relaying
from tests.events.changing import Copy, enqueue
from tests.webhooks.conftest import USING, Sender, deliver, deliveries, relayed, subscribe
from tests.webhooks.receiver import Receiver

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("frozen_clock")]

#: What goes back with the log: all of it, or nothing, where an older log was restored beside the webhooks of now.
TOGETHER, ALONE = (WebhookRelay, WebhookDelivery), ()


def written(*types: str) -> None:
    for name in types:
        clock.advance(seconds=1)
        enqueue(name)


def heard(receiver: Receiver) -> list[str]:
    """The types of the jobs that the receiver was told of."""
    return [got.event["data"]["job_type"] for got in receiver.got if got.event["type"] != "system.gap"]


def gaps(receiver: Receiver) -> list[dict[str, Any]]:
    return [got.event for got in receiver.got if got.event["type"] == "system.gap"]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "django_ojs.webhooks.relay"]


@pytest.mark.parametrize("beside", [TOGETHER, ALONE], ids=["together", "alone"])
@pytest.mark.parametrize("new", [[], ["a.new"], ["a.new", "a.b", "a.c"]], ids=["nothing new", "shorter", "longer"])
def test_they_go_on_with_what_comes_then(
    receiver: Receiver, sender: Sender, caplog: pytest.LogCaptureFixture, beside: Any, new: list[str]
) -> None:
    """Whether the log is shorter than before, or longer."""
    subscribe(receiver.url())
    written("a.first", "a.kept")
    deliver(sender)
    copy = Copy(*beside)
    written("a.lost", "a.gone")
    deliver(sender)
    copy.come_back(*new)
    deliver(sender)
    written("a.later")
    deliver(sender)
    assert sorted(heard(receiver)) == sorted(["a.first", "a.kept", "a.lost", "a.gone", *new, "a.later"])
    (line,), (gap,) = told(caplog), gaps(receiver)
    assert "at most 2" in line
    times = {got.event["data"].get("job_type"): got.event["time"] for got in receiver.got}
    assert gap["data"] == {
        "reason": "history_changed", "gap_start": times["a.kept"], "gap_end": times["a.gone"],
        "estimated_missed_count": 2, "timestamp": gap["time"],
    }  # fmt: skip
    assert [event["data"]["job_type"] for event in log.read(after=gap["id"]).events] == [*new, "a.later"]
    assert len({got.headers["X-OJS-Delivery-ID"] for got in receiver.got}) == len(receiver.got)


def test_receivers_are_told_what_was_pruned_before_it_was_sent(
    receiver: Receiver, sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    subscribe(receiver.url())
    written("a.first")
    deliver(sender)
    seen = Event.objects.latest("pk")
    written("a.missed")
    clock.advance(seconds=8 * 86_400)
    written("a.later")
    prune()
    deliver(sender)
    written("a.last")
    deliver(sender)
    assert sorted(heard(receiver)) == ["a.first", "a.last", "a.later"]
    (line,), (gap,) = told(caplog), gaps(receiver)
    assert "deleted 1 events" in line
    assert gap["data"] == {
        "reason": "pruned", "gap_start": format_instant(seen.time),
        "gap_end": format_instant(Event.objects.get(job_type="a.later").time), "estimated_missed_count": 1,
        "timestamp": gap["time"],
    }  # fmt: skip


def test_what_is_pruned_in_turns_is_told_once_though_nothing_is_left(receiver: Receiver, sender: Sender) -> None:
    subscribe(receiver.url())
    written("a.first")
    deliver(sender)
    written("a.missed", "a.gone")
    clock.advance(seconds=8 * 86_400)
    while prune(batch=2)["events"]:
        pass
    deliver(sender)
    deliver(sender)
    written("a.later")
    deliver(sender)
    (gap,) = gaps(receiver)
    assert gap["data"]["estimated_missed_count"] == 2
    assert sorted(heard(receiver)) == ["a.first", "a.later"]


def test_a_relay_that_was_up_to_date_tells_of_nothing_pruned(receiver: Receiver, sender: Sender) -> None:
    """Whatever ids the events had: one with a higher one may come before the last."""
    subscribe(receiver.url())
    written("a.first")
    deliver(sender)
    clock.advance(seconds=8 * 86_400)
    prune()
    EventLog.objects.update(pruned_to=Event.objects.order_by().count() + 1_000_000)
    written("a.later")
    deliver(sender)
    written("a.last")
    deliver(sender)
    assert (sorted(heard(receiver)), gaps(receiver)) == (["a.first", "a.last", "a.later"], [])


@pytest.fixture
def another_server() -> Any:
    """A standby takes over, which the log sees with the next event; and all that processes knew is gone with the host
    of the primary."""

    def take_over(*new: str) -> None:
        relaying.forget()
        EventLog.objects.update(run="another@1")
        written(*new)

    yield take_over
    relaying.forget()


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite is one file: nothing takes over")
class TestARelayThatBeginsAfterAFailover:
    """It has not seen what is lost."""

    def test_tells_every_receiver_once(
        self, receiver: Receiver, sender: Sender, caplog: pytest.LogCaptureFixture, another_server: Any
    ) -> None:
        subscribe(receiver.url())
        subscribe(receiver.url("/other"), events=["worker.*"])
        written("a.kept")
        deliver(sender)
        copy = Copy(*TOGETHER)
        written("a.lost")
        deliver(sender)
        copy.come_back()
        another_server("a.new")
        deliver(sender)
        written("a.later")
        deliver(sender)
        assert sorted(heard(receiver)) == sorted(["a.kept", "a.lost", "a.new", "a.later"])
        one, other = gaps(receiver)
        assert one == other
        kept = Event.objects.get(job_type="a.kept")
        assert one["data"] == {
            "reason": "history_changed", "gap_start": format_instant(kept.time), "timestamp": one["time"]
        }  # fmt: skip
        assert [event["data"]["job_type"] for event in log.read(after=one["id"]).events] == ["a.new", "a.later"]
        assert len(told(caplog)) == 1
        relaying.forget()  # the next process
        written("a.last")
        deliver(sender)
        assert len(gaps(receiver)) == 2

    def test_tells_nobody_where_it_sees_that_all_is_there(
        self, receiver: Receiver, sender: Sender, caplog: pytest.LogCaptureFixture, another_server: Any
    ) -> None:
        subscribe(receiver.url())
        written("a.kept")
        deliver(sender)
        EventLog.objects.update(run="another@1")
        written("a.new")
        deliver(sender)
        another_server("a.far")
        WebhookSubscription.objects.all().delete()
        relayed()
        subscribe(receiver.url())  # who comes later has missed nothing
        written("a.newest")
        deliver(sender)
        assert sorted(heard(receiver))[-2:] == ["a.new", "a.newest"]
        assert (gaps(receiver), told(caplog)) == ([], [])
        assert EventLog.objects.get().changes == WebhookRelay.objects.get().changes == 2

    def test_one_process_tells_what_another_has_told_no_more(
        self, receiver: Receiver, sender: Sender, another_server: Any
    ) -> None:
        subscribe(receiver.url())
        written("a.kept")
        deliver(sender)
        copy = Copy(*TOGETHER)
        written("a.lost", "a.gone")
        deliver(sender)
        ours = dict(relaying._reached)
        copy.come_back()
        another_server("a.new")
        deliver(sender)
        relaying._reached.update(ours)  # which leads again
        deliver(sender)
        written("a.later")
        deliver(sender)
        assert len(gaps(receiver)) == 1


def test_what_was_sent_and_not_recorded_any_more_is_sent_again_under_its_id(
    receiver: Receiver, sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    subscribe(receiver.url())
    written("a.kept")
    relayed()
    copy = Copy(WebhookRelay, WebhookDelivery)
    deliver(sender)
    copy.come_back()
    deliver(sender)
    first, again = receiver.got
    assert (first.body, first.headers["X-OJS-Delivery-ID"]) == (again.body, again.headers["X-OJS-Delivery-ID"])
    assert told(caplog) == []


def test_an_attempt_whose_delivery_is_lost_ends_no_other(receiver: Receiver) -> None:
    """The delivery that comes then has its number."""
    subscribe(receiver.url())
    relayed()
    copy = Copy(WebhookRelay, WebhookDelivery)
    written("a.lost")
    relayed()
    (sending,) = webhookdeliveries.claim(1, {})
    reply = webhookdeliveries.attempt(sending)
    copy.come_back("a.new")
    relayed()
    WebhookDelivery.objects.filter(event_type="system.gap").delete()
    WebhookDelivery.objects.update(id=sending.delivery.pk)
    webhookdeliveries.record_replies([(sending, reply)], using=USING)
    (delivery,) = deliveries()
    assert (delivery.status, delivery.attempt_count) == ("pending", 0)
