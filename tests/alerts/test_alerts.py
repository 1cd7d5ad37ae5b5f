"""Alerts: each is told once when it begins and once when it is over, by event and by mail, whatever fails meanwhile."""

from __future__ import annotations

import dataclasses
import logging
import smtplib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote

import pytest
from django.contrib.admin import site as admin_site
from django.contrib.auth.models import Permission, User
from django.core import mail
from django.db import DatabaseError, connections
from django.test import Client, RequestFactory
from django.utils import translation

from django_ojs import alerts, doctor
from django_ojs.admin import attention
from django_ojs.events import catalogue, order
from django_ojs.jobs.push import push
from django_ojs.models import Alert, Event
from django_ojs.queues import configuration
from django_ojs.retention import ALERTS_KEPT, prune
from django_ojs.scheduler.alerts import WatchAlerts
from django_ojs.scheduler.scheduler import ROLE, Leadership
from django_ojs.statistics import eventcounts
from django_ojs.workerregistry.registration import register
from tests.conftest import FrozenClock

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def site(settings: Any, frozen_clock: FrozenClock) -> FrozenClock:
    """Jobs wait in a paused queue, which is all that is wrong."""
    settings.OJS = {"SERVICE_NAME": "shop", "ALERTS": {"mail_to": ["ops@example.com"]}}
    push([{"type": "mail.send", "queue": "mail", "args": []}])
    configuration.pause("mail")
    return frozen_clock


@pytest.fixture(autouse=True)
def missed() -> Iterator[alerts.Missed]:
    """What the checks of a test did not find, as the scheduler remembers it."""
    yield MISSED
    MISSED.clear()


MISSED: alerts.Missed = set()


def lead() -> None:
    """Be the leading scheduler, beside a worker."""
    assert Leadership(ROLE, "the-leader", "default").run_once()
    register("w-1", {"concurrency": 4})
    order.catch_up("default")
    eventcounts.catch_up("default")


def check() -> alerts.Changes:
    lead()
    rules = alerts.rules()
    assert rules is not None
    changes = alerts.check(rules, "default", MISSED)
    if rules.mail_to:
        alerts.tell(rules, "default")
    return changes


def told() -> list[str]:
    return list(Event.objects.filter(type__startswith="alert.").order_by("id").values_list("type", flat=True))


def test_what_begins_and_what_is_over_is_told_once(site: FrozenClock) -> None:
    changes = check()
    assert [(one.kind, one.about) for one in changes.raised] == [("queue-paused", "mail")]
    assert (check(), told()) == (alerts.Changes([], []), ["alert.raised"])
    (begun,) = mail.outbox
    assert begun.to == ["ops@example.com"]
    assert begun.subject == "[shop] Jobs wait in a paused queue: mail"
    assert "The queue mail is paused. Jobs that wait in it: 1." in begun.body
    assert "manage.py ojs_queues resume mail" in begun.body
    configuration.resume("mail")
    site.advance(seconds=30)
    assert check().cleared == [], "once is not over"
    site.advance(seconds=30)
    (over,) = check().cleared
    assert over.cleared_at == site.now
    assert told() == ["alert.raised", "alert.cleared"]
    assert mail.outbox[1].subject == "[shop] Over: Jobs wait in a paused queue: mail"
    assert (check(), len(mail.outbox)) == (alerts.Changes([], []), 2)


def test_what_comes_and_goes_is_one_alert_and_what_comes_again_another(site: FrozenClock) -> None:
    check()
    configuration.resume("mail")
    site.advance(seconds=30)
    check()
    configuration.pause("mail")
    site.advance(seconds=30)
    check()
    assert told() == ["alert.raised"]
    configuration.resume("mail")
    check()
    check()
    configuration.pause("mail")
    check()
    assert told() == ["alert.raised", "alert.cleared", "alert.raised"]
    assert Alert.objects.filter(key=None).count() == 1


def test_what_was_seen_while_the_clock_was_ahead_is_over_when_it_is(site: FrozenClock) -> None:
    check()
    configuration.resume("mail")
    site.advance(days=-1)
    check()
    assert [alert.about for alert in check().cleared] == ["mail"]


def test_a_scheduler_that_looks_again_after_long_ends_nothing_by_one_look(
    site: FrozenClock, missed: alerts.Missed
) -> None:
    check()
    configuration.resume("mail")
    site.advance(hours=3)
    assert check().cleared == [], "once is not over"
    missed.clear()  # another process leads
    assert check().cleared == []
    configuration.pause("mail")
    check()  # it is found again
    configuration.resume("mail")
    assert check().cleared == []
    assert [alert.about for alert in check().cleared] == ["mail"]


def test_a_diagnosis_that_fails_ends_nothing_of_its_own_kinds(
    site: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead()
    (paused,) = doctor.attention(doctor.Site("default"))
    silent = doctor.Finding("worker-silent", "The worker w-9 has sent no heartbeat.", "", "w-9")
    refused = doctor.Finding("not-examined", "The diagnosis queues failed.", "", "queues")

    def over(*found: doctor.Finding) -> list[str]:
        monkeypatch.setattr(doctor, "attention", lambda site: list(found))
        return [alert.kind for alert in check().cleared]

    assert over(paused, silent) == []
    assert over(silent) == []
    assert over(refused) == []
    assert over(refused) == ["worker-silent"], "of another diagnosis"
    assert over() == ["queue-paused"], "the second look that could see"
    assert over() == ["not-examined"]


def test_many_alerts_that_last_keep_none_open(site: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    lead()
    (paused,) = doctor.attention(doctor.Site("default"))
    silent = doctor.Finding("worker-silent", "The worker w-9 has sent no heartbeat.", "", "w-9")
    monkeypatch.setattr(alerts, "MOST", 3)
    queues = [dataclasses.replace(paused, about=f"q{number}") for number in range(5)]
    monkeypatch.setattr(doctor, "attention", lambda site: [*queues, silent])
    assert [alert.about for alert in check().raised] == ["q0", "q1", "q2", "w-9"], "so many of a kind"
    del queues[1]
    assert check().cleared == []
    assert [alert.about for alert in check().cleared] == ["q1"]
    assert [alert.about for alert in check().raised] == ["q3"], "there is room for one more"
    assert check() == alerts.Changes([], [])


def test_the_figures_of_an_open_alert_stay_true(site: FrozenClock) -> None:
    check()
    push([{"type": "mail.send", "queue": "mail", "args": []}])
    check()
    alert = Alert.objects.get()
    assert (alert.figures, alert.says) == ({"jobs": 2}, "The queue mail is paused. Jobs that wait in it: 2.")


def test_events_are_for_those_who_name_them(site: FrozenClock) -> None:
    check()
    order.catch_up("default")
    (event,) = Event.objects.filter(type="alert.raised")
    assert event.data["kind"] == "queue-paused"
    assert event.data["alert_id"] == str(Alert.objects.get().pk)
    assert {"alert.raised", "alert.cleared"} <= set(catalogue.EXTENSIONS)


def test_a_mail_that_cannot_be_sent_is_sent_later_and_logged_once(
    site: FrozenClock, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    asked: list[int] = []

    def refuse(*args: Any, **kwargs: Any) -> int:
        asked.append(1)
        raise smtplib.SMTPServerDisconnected("gone")

    lead()
    duty = WatchAlerts()
    duty.run_once("default")
    with monkeypatch.context() as patch:
        patch.setattr("django.core.mail.EmailMessage.send", refuse)
        for _ in range(3):
            duty.run_once("default")
        assert len(asked) == 1, "not before its time"
        duty._next_mail = 0.0
        duty.run_once("default")
        assert len(asked) == 2
        duty._next_mail = 0.0
    assert caplog.text.count("Sending a mail about alerts failed (gone)") == 1
    assert (mail.outbox, told()) == ([], ["alert.raised"])
    duty.run_once("default")
    assert len(mail.outbox) == 1
    duty.run_once("default")
    assert len(mail.outbox) == 1


def test_what_is_over_before_its_mail_could_be_sent_makes_one_mail(
    site: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(alerts, "tell", lambda wanted, using: False)
        check()
        configuration.resume("mail")
        check()
        check()
    check()
    (only,) = mail.outbox
    assert only.subject.startswith("[shop] Over: ")


def test_many_are_told_by_one_mail(site: FrozenClock) -> None:
    for number in range(60):
        push([{"type": "mail.send", "queue": f"q{number}", "args": []}])
        configuration.pause(f"q{number}")
    check()
    (only,) = mail.outbox
    assert "(and 60 more)" in only.subject
    assert "see the alerts in the admin" in only.body


def test_without_recipients_there_is_no_mail_and_without_the_setting_no_look(site: FrozenClock, settings: Any) -> None:
    settings.OJS = {"ALERTS": {}}
    check()
    assert (mail.outbox, told(), Alert.objects.get().untold) == ([], ["alert.raised"], "")
    settings.OJS = {"ALERTS": None}
    assert WatchAlerts().run_once("default") == WatchAlerts.OFF
    assert alerts.rules() is None


def test_the_scheduler_looks_as_often_as_the_site_says_and_logs(site: FrozenClock, settings: Any, caplog: Any) -> None:
    settings.OJS = {"ALERTS": {"every": "1m"}}
    duty = WatchAlerts()
    assert duty.run_once("default") == WatchAlerts.FIRST
    assert not Alert.objects.exists()
    caplog.set_level(logging.INFO)
    assert duty.run_once("default") == 60.0
    assert "Alert: The queue mail is paused." in caplog.text


def test_an_alert_whose_event_cannot_be_written_is_none(site: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("django_ojs.alerts.log.append", lambda *args: (_ for _ in ()).throw(DatabaseError("full")))
        with pytest.raises(DatabaseError):
            check()
    assert not Alert.objects.exists()
    assert check().raised


def test_two_that_look_at_once_raise_one_alert(site: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """As while the lease passes from one process to another."""
    check()
    (finding,) = doctor.attention(doctor.Site("default"))
    Alert.objects.all().delete()
    Event.objects.filter(type__startswith="alert.").delete()
    together = threading.Barrier(2, timeout=60)

    def attention(site: doctor.Site) -> list[doctor.Finding]:
        together.wait()
        return [finding]

    monkeypatch.setattr(doctor, "attention", attention)
    rules = alerts.rules()
    assert rules is not None

    def act(number: int) -> int:
        try:
            return len(alerts.check(rules, "default", set()).raised)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(act, range(2))) == [0, 1]
    assert (Alert.objects.count(), told()) == (1, ["alert.raised"])


def test_old_alerts_are_pruned_and_open_ones_stay(site: FrozenClock) -> None:
    check()
    configuration.resume("mail")
    check()
    check()
    configuration.pause("mail")
    check()
    site.advance(seconds=ALERTS_KEPT.total_seconds() + 60)
    assert prune()["alerts"] == 1
    assert Alert.objects.get().key is not None


def test_the_admin_lists_them(site: FrozenClock, admin_client: Client) -> None:
    check()
    body = admin_client.get("/admin/django_ojs/alert/").content.decode()
    assert "The queue mail is paused." in body
    page = admin_client.get(f"/admin/django_ojs/alert/{Alert.objects.get().pk}/change/")
    assert "manage.py ojs_queues resume mail" in page.content.decode()
    assert "/admin/django_ojs/queue/mail/change/" in page.content.decode(), "where to look"
    for state, number in (("open", 1), ("over", 0), ("none", 0)):
        assert admin_client.get(f"/admin/django_ojs/alert/?state={state}").context["cl"].result_count == number


def test_alerts_that_name_workers_are_for_who_may_see_workers(site: FrozenClock, client: Client) -> None:
    check()
    values = {"about": "w-1", "says": "It is silent.", "raised_at": site.now, "seen_at": site.now}
    silent = Alert.objects.create(key="worker-silent w-1", kind="worker-silent", **values)
    user = User.objects.create_user("ann", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_alert"))
    client.force_login(user)
    place = f"/admin/django_ojs/alert/{silent.pk}/"
    assert [one.about for one in client.get("/admin/django_ojs/alert/").context["cl"].result_list] == ["mail"]
    assert [client.get(f"{place}{page}/").status_code for page in ("change", "history")] == [302, 302]
    user.user_permissions.add(Permission.objects.get(codename="view_worker"))
    assert b"It is silent." in client.get(f"{place}change/").content


@pytest.mark.parametrize("kind, about, figures, page", [
    ("queue-unserved", "mail", {}, "job/?state=available&queue=mail"),
    ("type-unserved", "a.b", {}, "job/?state=available&type=a.b"),
    ("type-failing", "a.b", {"discarded": 2}, "job/dead-letters/?type=a.b"),
    ("type-failing", "a.b", {"discarded": 0}, "job/?state=retryable&type=a.b"),
    ("queue-dead-letters", "mail", {}, "job/dead-letters/?queue=mail"),
    ("wait-long", "a b&c", {}, "queue/a b_26c/change/"), ("worker-silent", "w_25", {}, "worker/w_5F25/change/"),
    ("worker-threads-died", "w-1", {}, "worker/w-1/change/"), ("worker-versions", "w-1", {}, "worker/w-1/change/"),
    ("scheduler-missing", "", {}, "job/doctor/"), ("maintenance-on", "", {}, "job/maintenance/"),
    ("outbox-aside", "", {}, "outboxentry/?aside__exact=1"),
])  # fmt: skip
def test_each_kind_leads_to_where_one_looks(
    rf: RequestFactory, admin_user: Any, kind: str, about: str, figures: Any, page: str, settings: Any
) -> None:
    settings.OJS = {"OUTBOX": "default"}  # its page is there only where there is one
    request = rf.get("/")
    request.user = admin_user
    found = attention.address(kind, about, figures, admin_site._registry[Alert], request)  # type: ignore[arg-type]
    assert unquote(found) == f"/admin/django_ojs/{page}"


def test_a_mail_is_in_the_language_of_the_site_and_the_list_in_that_of_the_viewer(
    site: FrozenClock, settings: Any, admin_client: Client
) -> None:
    settings.LANGUAGE_CODE = "de"
    check()
    (begun,) = mail.outbox
    assert begun.subject == "[shop] Jobs warten in einer angehaltenen Warteschlange: mail"
    assert "Die Warteschlange mail ist angehalten." in begun.body
    assert "Gefunden: " in begun.body
    alert = Alert.objects.get()
    assert alert.says.startswith("The queue mail is paused."), "events and scripts have the English text"
    page = admin_client.get(f"/admin/django_ojs/alert/{alert.pk}/change/").content.decode()
    assert "Die Warteschlange mail ist angehalten." in page
    with translation.override("fr"):
        assert alerts.texts(alert)[0].startswith("La file mail est en pause")


def test_an_alert_of_an_earlier_version_is_shown_as_it_was_written(site: FrozenClock, admin_client: Client) -> None:
    check()
    alert = Alert.objects.get()
    Alert.objects.update(phrases={})
    alert.refresh_from_db()
    assert alerts.texts(alert) == (alert.says, alert.mend)
