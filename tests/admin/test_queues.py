"""A queue's configuration in the admin, and pausing with a reason: the operations' rules, the operator's rights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_ojs import audit
from django_ojs.events import order
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack
from django_ojs.jobs.push import push
from django_ojs.models import AuditEntry, Event, Queue
from django_ojs.queues.configuration import configure, document, pause, resume, why_paused
from django_ojs.rules import queueconfig
from django_ojs.statistics import eventcounts
from django_ojs.workerregistry.registration import register
from tests.admin.conftest import pushed, said, url
from tests.conftest import FrozenClock

pytestmark = pytest.mark.django_db
EVIL = "<script>alert('x')</script>"

FULL: dict[str, Any] = {
    "concurrency": 5,
    "rate_limit": {"limit": 100, "period": "PT1M"},
    "backpressure": {"max_depth": 1000, "strategy": "reject", "warning_threshold": 0.8},
    "allowed_job_types": ["email.*", "sms.send"],
    "visibility_timeout": 120,
    "default_timeout": 60,
    "default_retry": {"max_attempts": 5},
    "retention": {"completed": "P1D", "cancelled": 3600, "discarded": "P7D"},
    "dead_letter": {"retention": {"max_age": "P30D", "max_count": 500}},
    "x_site": {"a": [1]},
}
FIELDS = {
    "concurrency": "5",
    "rate_limit": '{"limit": 100, "period": "PT1M"}',
    "max_depth": "1000",
    "strategy": "reject",
    "warning_threshold": "0.8",
    "allowed_job_types": "email.*\nsms.send",
    "visibility_timeout": "120",
    "default_timeout": "60",
    "default_retry": '{"max_attempts": 5}',
    "keep_completed": "P1D",
    "keep_cancelled": "3600",
    "keep_discarded": "P7D",
    "keep_dead": "P30D",
    "most_dead": "500",
    "others": '{"x_site": {"a": [1]}}',
}


def save(client: Client, name: str = "mail", **fields: str) -> Any:
    return client.post(url("queue", "change", name), fields)


def config(name: str = "mail") -> dict[str, Any]:
    return document(Queue.objects.get(pk=name))


def test_every_member_has_a_field(admin_client: Client) -> None:
    configure("mail", {})
    assert save(admin_client, **FIELDS).status_code == 302
    assert config() == FULL
    page = admin_client.get(url("queue", "change", "mail"))
    form = page.context["adminform"].form
    assert not [name for name in FIELDS if form[name].value() in (None, "")]
    assert save(admin_client, **FIELDS).status_code == 302
    assert config() == FULL, "saving what is there changes nothing"


def test_an_empty_field_takes_its_member_back(admin_client: Client) -> None:
    configure("mail", {**FULL, "draining": True})
    less = {name: text for name, text in FIELDS.items() if name not in ("concurrency", "keep_dead", "most_dead")}
    assert save(admin_client, **less).status_code == 302
    assert config() == {name: value for name, value in FULL.items() if name not in ("concurrency", "dead_letter")}


def test_a_number_of_a_limit_can_be_changed(admin_client: Client) -> None:
    configure("mail", {"rate_limit": {"limit": 100, "period": "PT1M"}})
    assert save(admin_client, rate_limit='{"limit": 200, "period": "PT1M"}').status_code == 302
    assert config() == {"rate_limit": {"limit": 200, "period": "PT1M"}}


def test_what_stands_in_no_field_is_kept(admin_client: Client) -> None:
    configure("mail", {"allowed_job_types": [], "backpressure": {"max_depth": 5, "x": 1}, "retention": {"y": 2}})
    page = admin_client.get(url("queue", "change", "mail"))
    others = page.context["adminform"].form["others"].value()
    assert save(admin_client, max_depth="6", others=others).status_code == 302
    assert config() == {"allowed_job_types": [], "backpressure": {"max_depth": 6, "x": 1}, "retention": {"y": 2}}


def test_a_change_is_an_operation_with_event_and_entry(operator: Callable[..., Client]) -> None:
    configure("mail", {"concurrency": 1})
    Event.objects.all().delete()
    save(operator("view_queue", "change_queue"), concurrency="2")
    event = Event.objects.get(type="queue.config_updated")
    assert (event.data["config"], event.data["updated_by"]) == ({"concurrency": 2}, "user:ann")
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.target, entry.actor) == ("queue.configure", "mail", "user:ann")
    assert entry.detail == {"fields": ["concurrency"]}
    assert Queue.objects.get().limited, "a claim has to know at once"


@pytest.mark.parametrize(
    "field, value",
    [
        ("concurrency", "-1"),
        ("rate_limit", "x"),
        ("rate_limit", '{"limit": 5}'),
        ("max_depth", "1.5"),
        ("warning_threshold", "nan"),
        ("keep_dead", "P"),
        ("default_retry", '{"backoff_coefficient": "x"}'),
        ("others", "[1]"),
        ("others", '{"producers": 5}'),
    ],
)
def test_what_cannot_be_meant_is_refused_beside_its_field(admin_client: Client, field: str, value: str) -> None:
    configure("mail", {"concurrency": 3})
    response = save(admin_client, **{"concurrency": "3", field: value})
    assert response.status_code == 200
    assert list(response.context["adminform"].form.errors) == [field]
    assert config() == {"concurrency": 3}


def test_a_name_that_is_taken_is_refused(admin_client: Client) -> None:
    configure("mail", {"concurrency": 3})
    response = admin_client.post(url("queue", "add"), {"name": "mail"})
    assert list(response.context["adminform"].form.errors) == ["name"]
    assert config() == {"concurrency": 3}


def test_what_holds_for_all_queues_has_a_page(admin_client: Client) -> None:
    page = url("queue", "change", "_default")
    assert page in admin_client.get(url("queue")).content.decode()
    assert admin_client.get(page).status_code == 200
    assert not Queue.objects.filter(pk="_default").exists(), "looking changes nothing"
    assert save(admin_client, "_default", concurrency="7").status_code == 302
    assert config("_default") == {"concurrency": 7}
    configure("mail", {})
    shown = admin_client.get(url("queue", "change", "mail")).content.decode()
    assert "{&quot;concurrency&quot;: 7}" in shown, "under what holds"
    assert "_default" not in [queue.name for queue in admin_client.get(url("queue")).context["cl"].result_list]


def test_the_template_is_not_paused(admin_client: Client) -> None:
    configure("_default", {})
    for verb in ("pause_queues", "resume_queues"):
        admin_client.post(url("queue", "verb", "_default", verb), {"sure": "yes"})
    assert not Queue.objects.get(pk="_default").paused


def test_who_may_only_look_reads_the_configuration(operator: Callable[..., Client]) -> None:
    configure("mail", {"concurrency": 31337})
    client = operator("view_queue")
    body = client.get(url("queue", "change", "mail")).content.decode()
    assert "31337" in body
    assert 'name="concurrency"' not in body
    assert save(client, concurrency="1").status_code == 403
    assert client.get(url("queue", "change", "_default")).status_code == 200
    assert config() == {"concurrency": 31337}


def test_the_difference_leads_from_one_to_the_other() -> None:
    cases: list[dict[str, Any]] = [{}, FULL, {"concurrency": True}, {"concurrency": 1}, {"retention": {"completed": 5}},
                                   {"retention": 5}, {"a": {"b": {"c": 1}}}, {"a": {"b": {"d": 1}}}]  # fmt: skip
    for before in cases:
        for after in cases:
            change = queueconfig.difference(before, after)
            found = queueconfig.merge(before, change)
            assert found == after or before.keys() & {"a", "retention"}, (before, after)
            assert repr(queueconfig.difference(after, after)) == "{}"
    merged = queueconfig.merge(cases[-2], queueconfig.difference(cases[-2], cases[-1]))
    assert merged == cases[-1]


class TestPause:
    def test_the_reason_is_asked_for_shown_and_kept(self, operator: Callable[..., Client]) -> None:
        pushed(queue="mail")
        client = operator("view_queue", "change_queue")
        address = url("queue", "verb", "mail", "pause_queues")
        assert 'name="reason"' in client.get(address).content.decode()
        assert said(client.post(address, {"sure": "yes", "reason": f" moving\0 {EVIL} "}, follow=True)) == [
            "1 queue paused."
        ]
        event = Event.objects.get(type="queue.paused")
        assert event.data == {"paused_by": "user:ann", "reason": f"moving {EVIL}"}
        entry = AuditEntry.objects.get()
        assert (entry.action, entry.target, entry.detail["reason"]) == ("queue.pause", "mail", f"moving {EVIL}")
        body = client.get(url("queue", "change", "mail")).content.decode()
        assert "moving &lt;script&gt;" in body
        assert "user:ann" in body
        assert "<script>alert" not in body
        client.post(url("queue", "verb", "mail", "resume_queues"))
        assert "moving" not in client.get(url("queue", "change", "mail")).content.decode()

    def test_several_are_paused_for_one_reason(self, admin_client: Client) -> None:
        for name in ("a", "b"):
            configure(name, {})
        data = {"action": "pause_queues", "_selected_action": ["a", "b"]}
        assert 'name="reason"' in admin_client.post(url("queue"), data).content.decode()
        admin_client.post(url("queue"), {**data, "sure": "yes", "reason": "both"})
        for queue in Queue.objects.all():
            assert why_paused(queue) == ("user:admin", "both")

    def test_the_first_to_pause_is_the_one_who_did(self, frozen_clock: Any) -> None:
        for who, reason in (("user:a", "first"), ("user:b", "again")):
            entry = audit.Act(who, "queue.pause", "mail", {"reason": reason})
            queue = audit.perform(lambda: pause("mail", by="x"), entry)
            frozen_clock.advance(seconds=5)
        assert why_paused(queue) == ("user:a", "first")
        resume("mail")
        frozen_clock.advance(seconds=5)
        assert why_paused(pause("mail")) == ("", ""), "nobody said why this time"

    def test_over_http(self, client: Client, settings: Any) -> None:
        settings.OJS = {"ALLOW_ANONYMOUS": True}
        for path in ("/ojs/v1/queues/mail/pause", "/ojs/v1/admin/queues/sms/pause"):
            answer = client.post(path, {"reason": "a new server"}, "application/json")
            assert answer.status_code == 200
            refused = client.post(path, {"reason": 5}, "application/json")
            assert refused.status_code == 400
            assert refused.json()["error"]["details"]["field"] == "reason"
        for queue in Queue.objects.filter(paused=True):
            assert why_paused(queue).reason == "a new server"
        assert {event.data["reason"] for event in Event.objects.filter(type="queue.paused")} == {"a new server"}


def test_the_page_of_a_queue_says_how_it_fills_and_how_many_slots_it_needs(
    admin_client: Client, frozen_clock: FrozenClock
) -> None:
    register("w-1", {"queues": ["mail"], "concurrency": 4})
    register("w-2", {"queues": ["other"], "concurrency": 8})
    push([{"type": "mail.send", "queue": "mail", "args": []}] * 100)
    ids = [row["id"] for row in fetch(Fetch(["mail"], count=10, worker_id="w-1"))]
    frozen_clock.advance(seconds=30)
    ack([Ack(job_id) for job_id in ids])
    order.catch_up("default")
    eventcounts.catch_up("default")
    fetch(Fetch(["mail"], worker_id="w-1"))
    page = admin_client.get(url("queue", "change", "mail"))
    assert [(job["type"], job["worker_id"]) for job in page.context["running"]["rows"]] == [("mail.send", "w-1")]
    body = page.content.decode()
    assert "Running now" in body
    assert "jobs a minute came in" in body
    assert "empty in: grows" in body
    assert "4 slots serve this queue" in body
    assert "would empty it within an hour" in body
    assert "oldest wait" in body.lower()
