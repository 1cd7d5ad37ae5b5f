"""What is hostile in a job stays text on every page, frames and foreign forms are refused, and nothing leads away."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.sites import site
from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import reverse
from django.utils.http import urlencode

from django_ojs import audit, clock
from django_ojs import retention as prune
from django_ojs.admin import base
from django_ojs.cron.schedules import register as register_cron
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.finish import Ack, ack
from django_ojs.models import (
    AuditEntry,
    CronSchedule,
    Event,
    Job,
    OutboxEntry,
    Queue,
    WebhookSubscription,
    Worker,
    Workflow,
)
from django_ojs.models.operation import AppendOnlyError
from django_ojs.workerregistry.registration import register
from tests.admin.conftest import claimed, dead, pushed, url

pytestmark = pytest.mark.django_db
SCRIPT = "<script>alert(1)</script>"
BREAKOUT = "\"'><img src=x onerror=alert(2)>"
EVIL = SCRIPT + BREAKOUT
OURS = [model for model in site._registry if model._meta.app_label == "django_ojs"]


@pytest.fixture
def hostile(client: Client, admin_user: Any, settings: Any) -> Client:
    """Evil in every attribute that can hold it, past the validation of PUSH where that would refuse it."""
    error = {"type": EVIL, "message": EVIL, "retryable": False, "backtrace": [EVIL], "details": {EVIL: EVIL}}
    (job,) = dead(1, error=error, args=[EVIL, {EVIL: EVIL}], meta={EVIL: EVIL}, tags=[EVIL])
    (held,) = claimed(1, args=[EVIL])
    (done,) = claimed(1)
    ack([Ack(done.pk, result='{"x": "<script>alert(1)</script>"}')])
    (gone,) = pushed()
    cancel([gone.pk], cancelled_by=EVIL, reason=EVIL)
    Job.objects.all().update(type=EVIL[:255], queue=EVIL[:128], worker_id=EVIL[:255])
    Event.objects.all().update(job_type=EVIL[:255], queue=EVIL[:128], worker_id=EVIL[:255], subject=EVIL[:255])
    register(
        "w", {"hostname": EVIL, "queues": [EVIL], "version": EVIL[:64], "labels": {EVIL: EVIL}, "job_types": [EVIL]}
    )
    Worker.objects.create(id=EVIL, hostname=EVIL, started_at=clock.now(), last_seen_at=clock.now())
    now = clock.now()
    Queue.objects.create(name=EVIL, created_at=now, updated_at=now)
    from django_ojs.rules import cron

    register_cron(cron.parse({"name": "n", "cron": "@daily", "job_template": {"type": "a.b", "args": [EVIL]},
                              "description": EVIL}, now=now))  # fmt: skip
    CronSchedule.objects.update(name=EVIL[:100], type=EVIL[:255], queue=EVIL[:128])
    from django_ojs.rules import workflows
    from django_ojs.workflows import workflow

    plan = workflows.parse({"type": "chain", "name": EVIL, "steps": [{"type": "a.b", "args": [EVIL]}]}, now=now)
    workflow.create(plan)
    audit.append([audit.Act(EVIL, EVIL, EVIL, {EVIL: EVIL}, "http", EVIL, EVIL)], "default")
    OutboxEntry.objects.create(
        target_id=job.pk, type=EVIL, document={"type": EVIL, "args": [EVIL]}, created_at=now, aside=True, error=EVIL
    )
    hook = {
        "url": f"https://example.com/{EVIL}",
        "events": [EVIL],
        "metadata": {EVIL: EVIL},
        "disabled_reason": EVIL,
        "active": False,
    }
    WebhookSubscription.objects.create(**hook, secret="", created_by=EVIL, created_at=now, updated_at=now)
    settings.OJS = {"OUTBOX": "default"}  # its page is there only where there is one
    assert job.pk != held.pk
    client.force_login(admin_user)
    return client


def pages() -> list[str]:
    board = [reverse(f"admin:django_ojs_{name}") for name in ("overview", "overview_live")]
    letters = [reverse(f"admin:django_ojs_{name}") for name in ("dead_letters", "dead_letters_live")]
    letters.append(reverse("admin:django_ojs_dead_letters_all", args=["retry_dead_letters"]))
    query = urlencode({"type": EVIL, "queue": EVIL, "error": EVIL})
    found = [*board, *letters, *(f"{page}?{query}" for page in letters)]
    found += [reverse("admin:django_ojs_workflow_live", args=[flow.pk]) for flow in Workflow.objects.all()]
    found += [url("cronschedule", "verb", quote(EVIL[:100]), "disable_schedules"), url("queue", "history", quote(EVIL))]
    for model in OURS:
        name = model._meta.model_name
        found.append(url(str(name)))
        found += [url(str(name), "change", quote(obj.pk)) for obj in model._default_manager.all()[:20]]
    return found


def test_what_is_hostile_in_a_job_stays_text_on_every_page(hostile: Client) -> None:
    assert len(OURS) >= 8
    seen = 0
    for page in pages():
        response = hostile.get(page)
        assert response.status_code == 200, page
        text = response.content.decode()
        assert "<script>alert" not in text, page
        assert "<img src=x" not in text, page
        seen += "&lt;script&gt;alert" in text or "\\u003Cscript" in text
    assert seen > 10, "the pages must show it, or this proves nothing"


def test_the_search_and_the_filters_echo_it_as_text(hostile: Client) -> None:
    for name, query in (("job", "q"), ("job", "type"), ("event", "job_type"), ("auditentry", "actor"), ("worker", "q")):
        text = hostile.get(url(name), {query: EVIL}, follow=True).content.decode()
        assert "<script>alert" not in text
        assert "<img src=x" not in text


def test_questions_and_messages_show_it_as_text(hostile: Client) -> None:
    page = hostile.get(url("worker", "verb", quote(EVIL), "terminate_workers")).content.decode()
    assert "&lt;script&gt;alert" in page
    assert "<script>alert" not in page
    jobs = [str(pk) for pk in Job.objects.values_list("pk", flat=True)]
    data = {"action": "cancel_jobs", "_selected_action": jobs}
    asked = hostile.post(url("job"), data).content.decode()
    told = hostile.post(url("job"), {**data, "sure": "1"}, follow=True).content.decode()
    for text in (asked, told):
        assert "<script>alert" not in text


def test_no_later_request_of_the_thread_is_taken_for_that_of_a_page(admin_client: Client) -> None:
    """Columns go by the request of their page: another page must not show links that its user may not follow."""
    pushed()
    assert admin_client.get(url("event")).status_code == 200
    assert base._request.get() is None
    assert not site.get_model_admin(Event).may_see(Job)  # type: ignore[attr-defined]


def test_no_page_can_be_framed_or_sniffed(hostile: Client) -> None:
    for page in pages():
        response = hostile.get(page)
        assert response["X-Frame-Options"] == "DENY", page
        assert response["X-Content-Type-Options"] == "nosniff", page


def test_every_act_needs_the_csrf_token(admin_user: Any) -> None:
    (job,) = pushed()
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    assert client.post(url("job", "verb", job.pk, "cancel_jobs")).status_code == 403
    assert (
        client.post(url("job"), {"action": "cancel_jobs", "_selected_action": [str(job.pk)], "sure": "1"}).status_code
        == 403
    )
    assert client.post(url("queue", "add"), {"name": "q"}).status_code == 403
    assert Job.objects.get(pk=job.pk).state == "available"


@pytest.mark.parametrize("name", ["next", "back", "url", "redirect", "_to_field", "_popup"])
def test_nothing_leads_away_from_the_site(admin_client: Client, name: str) -> None:
    (job,) = pushed()
    away = "https://evil.example/"
    response = admin_client.post(f"{url('job', 'verb', job.pk, 'cancel_jobs')}?{name}={away}", {name: away})
    assert response.status_code == 302
    assert response["Location"].startswith("/admin/")


def test_a_get_changes_nothing(admin_client: Client) -> None:
    (job,) = pushed()
    assert admin_client.get(url("job", "verb", job.pk, "cancel_jobs")).status_code == 200
    assert Job.objects.get(pk=job.pk).state == "available"
    assert not AuditEntry.objects.exists()


class TestAudit:
    def test_acts_of_the_admin_are_entered_with_who_and_what(self, operator: Any) -> None:
        (one,) = pushed()
        many = pushed(3)
        client = operator("view_job", "change_job", "view_queue", "change_queue", "add_queue")
        client.post(url("job", "verb", one.pk, "cancel_jobs"))
        data = {"action": "cancel_jobs", "_selected_action": [str(job.pk) for job in many], "sure": "1"}
        client.post(url("job"), data)
        client.post(url("queue", "verb", "default", "pause_queues"))
        first, second, third = AuditEntry.objects.order_by("id")
        assert (first.action, first.target, first.actor, first.door) == ("job.cancel", str(one.pk), "user:ann", "admin")
        assert set(second.detail["targets"]) == {str(job.pk) for job in many}
        assert (third.action, third.target) == ("queue.pause", "default")
        paused = Event.objects.get(type="queue.paused")
        assert paused.data["paused_by"] == "user:ann"

    def test_it_is_shown_and_changed_by_nobody(self, admin_client: Client, operator: Any) -> None:
        audit.append([audit.Act("user:a", "queue.pause", "q")], "default")
        entry = AuditEntry.objects.get()
        assert "queue.pause" in admin_client.get(url("auditentry")).content.decode()
        page = admin_client.get(url("auditentry", "change", entry.pk)).content.decode()
        assert 'name="_save"' not in page
        assert admin_client.get(url("auditentry", "add")).status_code == 403
        assert admin_client.post(url("auditentry", "delete", entry.pk), {"post": "yes"}).status_code == 403
        assert admin_client.post(url("auditentry", "change", entry.pk), {"actor": "x"}).status_code == 403
        assert operator("view_job").get(url("auditentry")).status_code == 403

    def test_the_model_only_ever_appends(self) -> None:
        audit.append([audit.Act("user:a", "queue.pause", "q")], "default")
        entry = AuditEntry.objects.get()
        for change in (entry.save, entry.delete, AuditEntry.objects.all().delete,
                       lambda: AuditEntry.objects.update(actor="x"),
                       lambda: AuditEntry.objects.bulk_update([entry], ["actor"])):  # fmt: skip
            with pytest.raises(AppendOnlyError):
                change()
        assert AuditEntry.objects.get().actor == "user:a"

    def test_it_is_pruned_by_age_only_where_the_site_says_so(self, frozen_clock: Any, settings: Any) -> None:
        audit.append([audit.Act("user:a", "queue.pause", "old")], "default")
        frozen_clock.advance(days=400)
        audit.append([audit.Act("user:a", "queue.pause", "new")], "default")
        settings.OJS = {"AUDIT_RETENTION": None}
        assert prune.prune()["audit"] == 0
        settings.OJS = {}
        assert prune.prune()["audit"] == 1
        assert AuditEntry.objects.get().target == "new"


def test_every_door_of_the_admin_is_registered() -> None:
    assert {Workflow, Worker, AuditEntry} <= set(OURS)
    assert reverse("admin:django_ojs_auditentry_changelist")
