"""Maintenance mode in the admin: a banner on every page of ours, and a switch for those who may use it."""

from __future__ import annotations

import datetime as dt
import html
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import translation

from django_ojs.cron import schedules
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.models import AuditEntry, Job, Maintenance, Workflow
from django_ojs.queues import maintenance
from django_ojs.statistics import summary
from django_ojs.workerregistry.registration import register
from django_ojs.workflows import workflow
from tests.admin.conftest import one_in_each_state, pushed, said, url
from tests.admin.test_every_door import strict_client
from tests.conftest import FrozenClock

pytestmark = pytest.mark.django_db
SWITCH = reverse("admin:django_ojs_maintenance")
ON = "Maintenance mode is on."


@pytest.fixture(autouse=True)
def _nothing_shared() -> Iterator[None]:
    summary.forget()
    yield
    summary.forget()


def text_of(response: Any) -> str:
    assert response.status_code == 200
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", response.content.decode())))


def pages() -> dict[str, str]:
    """Every kind of page of ours."""
    jobs = one_in_each_state()
    register("w-1", {"queues": ["default"]})
    schedules.register({"name": "daily", "cron": "0 0 * * *", "type": "a.b"})
    workflow.create({"type": "chain", "name": "f", "steps": [{"type": "a.b", "args": []}]})
    lists = {name: url(name) for name in ("job", "queue", "worker", "workflow", "cronschedule", "event", "auditentry",
                                          "apikey", "webhooksubscription")}  # fmt: skip
    single = {
        "a job": url("job", "change", jobs["active"].pk),
        "a queue": url("queue", "change", "default"),
        "a worker": url("worker", "change", "w-1"),
        "a workflow": url("workflow", "change", Workflow.objects.get().pk),
        "a schedule": url("cronschedule", "change", "daily"),
        "a question": url("job", "verb", jobs["active"].pk, "cancel_jobs"),
        "a form": url("job", "edit", jobs["discarded"].pk),
        "the index": reverse("admin:app_list", args=["django_ojs"]),
    }
    names = ("overview", "overview_live", "dead_letters", "dead_letters_live", "event_tail", "maintenance")
    boards = {name: reverse(f"admin:django_ojs_{name}") for name in names}
    live = {"a job, live": url("job", "live", jobs["active"].pk),
            "a workflow, live": url("workflow", "live", Workflow.objects.get().pk)}  # fmt: skip
    return {**lists, **single, **boards, **live}


def test_every_page_says_it_and_none_while_it_is_off(admin_client: Client) -> None:
    found = pages()
    for name, address in found.items():
        answer = admin_client.get(address)
        assert 'data-ojs-part="maintenance"' in answer.content.decode(), name
        assert "ojs-maintenance" not in answer.content.decode(), name
    maintenance.start(reason="new <disks>", by="user:ann")
    summary.forget()  # live parts show what all viewers share for two seconds
    for name, address in found.items():
        answer = admin_client.get(address)
        said_there = text_of(answer)
        assert ON in said_there, name
        assert "new <disks>" in said_there, name
        assert "<disks>" not in answer.content.decode(), name
        assert answer.content.decode().count("ojs-maintenance-reason") == 1, name


def test_it_costs_a_page_one_statement(admin_client: Client) -> None:
    pushed()
    admin_client.get(url("job"))
    for switch in (maintenance.stop, maintenance.start):
        switch()
        with CaptureQueriesContext(connection) as captured:
            admin_client.get(url("job"))
        assert len([query for query in captured if Maintenance._meta.db_table in query["sql"]]) == 1


class TestWhatItSays:
    @pytest.fixture(autouse=True)
    def _frozen(self, frozen_clock: FrozenClock) -> None:
        """Noon, in the zone of the test site."""

    def banner(self, client: Client) -> str:
        answer = client.get(url("queue")).content.decode()
        (found,) = re.findall(r'<div class="ojs-maintenance">(.*?)</div>', answer, re.DOTALL)
        return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", found)))

    def test_since_when_and_by_whom(self, admin_client: Client) -> None:
        maintenance.start(by="user:ann")
        told = self.banner(admin_client)
        assert "by user:ann." in told
        assert "ends by itself" not in told
        assert "will take" not in told

    def test_until_when_about_and_when_that_is_over(self, admin_client: Client, frozen_clock: FrozenClock) -> None:
        maintenance.start(lasting=dt.timedelta(hours=1))
        assert "It will take until about" in self.banner(admin_client)
        frozen_clock.advance(hours=1)
        assert "It should have ended at" in self.banner(admin_client)

    def test_that_it_ends_by_itself(self, admin_client: Client) -> None:
        maintenance.start(lasting=dt.timedelta(hours=1), auto_end=True)
        assert "It ends by itself at" in self.banner(admin_client)

    def test_in_french(self, admin_client: Client) -> None:
        maintenance.start()
        with translation.override("fr"):
            told = admin_client.get(url("queue")).content.decode()
        assert "Le mode maintenance est activé." in html.unescape(told)


class TestTheSwitch:
    def test_on_change_and_off(self, admin_client: Client) -> None:
        pushed()
        assert "Switch it on" in admin_client.get(SWITCH).content.decode()
        on = admin_client.post(SWITCH, {"reason": "new disks", "lasting": "30m", "auto_end": "on"}, follow=True)
        assert said(on) == ["Maintenance mode is on."]
        mode = maintenance.current()
        assert mode is not None
        assert mode.estimated_end is not None
        assert (mode.reason, mode.auto_end, mode.enabled_by) == ("new disks", True, "user:admin")
        assert mode.estimated_end - mode.enabled_at == dt.timedelta(minutes=30)
        assert fetch(Fetch(["default"])) == []

        form = admin_client.get(SWITCH).content.decode()
        assert 'value="new disks"' in form
        changed = admin_client.post(SWITCH, {"reason": "more disks", "lasting": ""}, follow=True)
        assert said(changed) == ["Maintenance mode was changed."]
        later = maintenance.current()
        assert later is not None
        assert (later.reason, later.auto_end, later.estimated_end) == ("more disks", False, mode.estimated_end)

        off = admin_client.post(SWITCH, {"end": "yes"}, follow=True)
        assert said(off) == ["Maintenance mode has ended: jobs are delivered again."]
        assert not maintenance.is_on()
        assert len(fetch(Fetch(["default"]))) == 1

    @pytest.mark.parametrize(
        "given,problem",
        [
            ({"lasting": "soon"}, "This is not a duration"),
            ({"lasting": "PT0S"}, "a positive time"),
            ({"lasting": "9000d"}, "at most a year"),
            ({"auto_end": "on"}, "say about how long"),
            ({"reason": "x" * 501}, "at most 500 characters"),
        ],
    )
    def test_what_makes_no_sense_is_told_at_its_field(
        self, admin_client: Client, given: dict[str, str], problem: str
    ) -> None:
        answer = admin_client.post(SWITCH, given)
        assert problem in text_of(answer)
        assert len(re.findall(r'<ul class="errorlist', answer.content.decode())) == 1
        assert not maintenance.is_on()
        assert not AuditEntry.objects.exists()

    def test_looking_changes_nothing(self, admin_client: Client) -> None:
        admin_client.get(SWITCH, {"end": "yes", "reason": "x"})
        assert not maintenance.is_on()
        maintenance.start()
        admin_client.get(SWITCH, {"end": "yes"})
        assert maintenance.is_on()

    def test_no_post_without_the_token(self) -> None:
        client = strict_client()
        assert client.post(SWITCH, {"reason": "x"}).status_code == 403
        maintenance.start()
        assert client.post(SWITCH, {"end": "yes"}).status_code == 403
        assert maintenance.is_on()

    def test_the_audit_log_has_it(self, admin_client: Client) -> None:
        admin_client.post(SWITCH, {"reason": "disks", "lasting": "1h"})
        admin_client.post(SWITCH, {"end": "yes"})
        on, off = AuditEntry.objects.order_by("id")
        assert [(one.action, one.actor, one.door) for one in (on, off)] == [
            ("maintenance.start", "user:admin", "admin"), ("maintenance.stop", "user:admin", "admin")
        ]  # fmt: skip
        assert on.detail["reason"] == off.detail["reason"] == "disks"


class TestWhoMay:
    def test_only_those_with_the_right_see_the_switch_and_everybody_the_banner(
        self, operator: Callable[..., Client]
    ) -> None:
        client = operator("view_job", "change_job", "view_queue", "change_queue", "view_maintenance")
        overview = reverse("admin:django_ojs_overview")
        assert SWITCH not in client.get(overview).content.decode()
        assert client.get(SWITCH).status_code == 403
        assert client.post(SWITCH, {"reason": "x"}).status_code == 403
        assert not maintenance.is_on()
        maintenance.start()
        answer = client.get(overview)
        assert ON in text_of(answer)
        assert SWITCH not in answer.content.decode()
        assert client.post(SWITCH, {"end": "yes"}).status_code == 403
        assert maintenance.is_on()

    def test_the_right_alone_is_enough(self, operator: Callable[..., Client]) -> None:
        client = operator("change_maintenance", "view_job")
        assert SWITCH in client.get(reverse("admin:django_ojs_overview")).content.decode()
        assert client.post(SWITCH, {"reason": "x"}, follow=True).status_code == 200
        assert maintenance.is_on()
        assert Job.objects.count() == 0

    def test_strangers_are_asked_to_log_in(self, client: Client) -> None:
        assert client.post(SWITCH, {"reason": "x"}).status_code == 302
        assert not maintenance.is_on()


def test_who_has_the_page_open_takes_back_nothing_that_another_has_done(admin_client: Client) -> None:
    def shown(answer: Any) -> dict[str, str]:
        (first, *more) = re.findall(r'name="shown" value="(\w+)"', answer.content.decode())
        assert set(more) <= {first}
        return {"shown": first}

    off = shown(admin_client.get(SWITCH))
    maintenance.start(reason="new disks", by="user:ann")
    answer = admin_client.post(SWITCH, {**off, "reason": "a test"})
    assert said(answer)[-1].startswith("Meanwhile somebody else has switched maintenance mode on, changed it or ended")
    assert 'value="a test"' in answer.content.decode()
    assert Maintenance.objects.get().reason == "new disks"
    on = shown(answer)
    maintenance.stop()
    maintenance.start(reason="new cables", by="user:ann")
    assert said(admin_client.post(SWITCH, {**on, "end": "yes"}))[-1].startswith("Meanwhile somebody else")
    assert maintenance.is_on()
    answer = admin_client.post(SWITCH, {**on, "reason": "a test"})
    assert Maintenance.objects.get().reason == "new cables"
    assert admin_client.post(SWITCH, {**shown(answer), "reason": "a test"}).status_code == 302, "it was told"
    assert Maintenance.objects.get().reason == "a test"
    now = shown(admin_client.get(SWITCH))
    assert admin_client.post(SWITCH, {**now, "end": "yes"}).status_code == 302
    assert not maintenance.is_on()
