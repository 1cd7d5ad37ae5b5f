"""Dead letters by the thousand, in the background, and one with other arguments: asked, shown, stopped, on record."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape, unescape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_ojs import clock, jsontext
from django_ojs.admin import deadletters
from django_ojs.jobs import bulk
from django_ojs.jobs.selection import dead_letters
from django_ojs.models import AuditEntry, BulkAction, ErrorNote, Job, Lease
from django_ojs.statistics import summary
from django_ojs.statistics.summary import Shared
from tests.admin.conftest import dead, pushed, said, url

pytestmark = pytest.mark.django_db
EVIL = "<script>alert('x')</script>\"onload=alert(1)"
LETTERS = "/admin/django_ojs/job/dead-letters/"
RETRY_ALL, DELETE_ALL = f"{LETTERS}all/retry_dead_letters/", f"{LETTERS}all/delete_dead_letters/"


@pytest.fixture
def soon_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three dead letters are too many for a request."""
    monkeypatch.setattr(deadletters, "AT_ONCE", 2)


def confirmed(client: Client, page: str, **more: str) -> Any:
    """Answer yes to the question, with what its form holds."""
    question = client.get(page)
    assert question.status_code == 200
    fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', question.content.decode())
    return client.post(page, {**dict(fields), **more}, follow=True)


def edit(job: Job) -> str:
    return url("job", "edit", job.pk)


# In the background


def test_many_are_done_in_the_background_with_their_progress_shown(admin_client: Client, soon_many: None) -> None:
    jobs = dead(3)
    question = admin_client.get(f"{RETRY_ALL}?type=mail.*")
    assert "does it in the background" in question.content.decode()
    response = confirmed(admin_client, f"{RETRY_ALL}?type=mail.*")
    action = BulkAction.objects.get()
    assert response.redirect_chain == [(url("bulkaction", "change", action.pk), 302)]
    assert said(response) == ["3 dead letters are being worked on in the background."]
    body = response.content.decode()
    assert "0 of 3" in body
    assert "No scheduler is running" in body
    assert "0 of 3" in admin_client.get(f"{LETTERS}live/").content.decode()
    while bulk.advance_action():
        pass
    summary.forget()
    assert "3 of 3" in admin_client.get(url("bulkaction", "change", action.pk)).content.decode()
    assert "ojs-bulk-" not in admin_client.get(LETTERS).content.decode()
    assert set(Job.objects.values_list("state", flat=True)) == {"available"}
    assert len(jobs) == 3


def test_thousands_are_shown_in_groups_of_digits(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    action = bulk.start_action(
        "retry", dead_letters(), AuditEntry(time=clock.now(), actor="user:ann", action="x", detail={})
    )
    BulkAction.objects.update(expected=12345, matched=4321, succeeded=3210, problem="The database was away.")
    dead(2)
    monkeypatch.setattr("django_ojs.admin.deadletters.total", Shared(lambda using: 54321, 1.0))
    letters = admin_client.get(LETTERS).content.decode()
    assert "4,321 of 12,345" in letters
    assert "2 of 54,321 dead letters, the newest." in letters
    page = admin_client.get(url("bulkaction", "change", action.pk)).content.decode()
    listed = admin_client.get(url("bulkaction")).content.decode()
    for body in (page, listed):
        assert "4,321 of 12,345" in body
        assert {">3,210<", ">1,111<"} <= set(re.findall(r">[\d,]+<", body))
    assert "The database was away." in page
    assert "Why that was." not in page


def test_few_are_done_at_once(admin_client: Client, soon_many: None) -> None:
    dead(2)
    assert said(confirmed(admin_client, RETRY_ALL)) == ["2 jobs made available again."]
    assert not BulkAction.objects.exists()


def test_few_are_left_to_the_scheduler_where_they_are_to_keep_to_a_rate(admin_client: Client) -> None:
    dead(2)
    response = confirmed(admin_client, RETRY_ALL, per_minute="50")
    assert said(response) == ["2 dead letters are being worked on in the background."]
    assert BulkAction.objects.get().per_minute == 50
    assert "<label>In a minute at most:</label>" in " ".join(response.content.decode().split())
    told = said(confirmed(admin_client, RETRY_ALL, per_minute="many"))
    assert told == ["In a minute at most: must be an integer from 1 to 100000."]
    assert BulkAction.objects.count() == 1


@pytest.mark.parametrize("number", [2, 3])
def test_all_that_fit_may_go_to_another_queue(admin_client: Client, soon_many: None, number: int) -> None:
    dead(number)
    confirmed(admin_client, RETRY_ALL, to_queue="later")
    while bulk.advance_action():
        pass
    assert set(Job.objects.values_list("queue", "state")) == {("later", "available")}


def test_a_queue_that_cannot_be_changes_nothing(admin_client: Client) -> None:
    dead(1)
    assert "The queue" in said(confirmed(admin_client, RETRY_ALL, to_queue="No Queue!"))[0]
    assert Job.objects.get().state == "discarded"


@pytest.mark.parametrize("name", ["retry_dead_letters", "delete_dead_letters"])
@pytest.mark.parametrize("mistaken", [{}, {"per_minute": "x"}])
def test_who_acts_on_a_group_comes_back_to_the_page_as_it_was(
    admin_client: Client, name: str, mistaken: dict[str, str]
) -> None:
    dead(2)
    dead(type="report.daily")
    here = f"{LETTERS}?type=mail.*&queue=claims"
    for page in (here, here.replace("dead-letters/", "dead-letters/live/")):
        body = admin_client.get(page).content.decode()
        links = [unescape(link) for link in re.findall(rf'href="([^"]*{name}/[^"]*)"', body)]
        assert len(links) == 2, "of the group, and of all that fit"
        for link in links:
            assert f'href="{escape(here)}"' in admin_client.get(link).content.decode().replace("%2A", "*")
    response = confirmed(admin_client, links[0], to_queue="slow", **mistaken)
    if mistaken:
        assert response.redirect_chain == []
        assert said(response) == ["In a minute at most: must be an integer from 1 to 100000."]
        assert 'name="to_queue" value="slow"' in response.content.decode() or name == "delete_dead_letters"
        response = confirmed(admin_client, links[0])
    assert [to.replace("%2A", "*") for to, _ in response.redirect_chain] == [here]
    assert Job.objects.dead_letters().count() == 1


def test_a_note_leads_back_to_the_page_as_it_was(admin_client: Client) -> None:
    dead()
    here = f"{LETTERS}?type=mail.send"
    (link,) = re.findall(r'href="([^"]*dead-letters/group/[^"]*)"', admin_client.get(here).content.decode())
    assert f'href="{here}"' in admin_client.get(unescape(link)).content.decode()
    assert admin_client.post(unescape(link), {"note": "known"})["Location"] == here
    assert ErrorNote.objects.get().note == "known"


def test_a_bulk_action_is_stopped_with_a_button(admin_client: Client, soon_many: None) -> None:
    dead(3)
    confirmed(admin_client, DELETE_ALL)
    action = BulkAction.objects.get()
    page = admin_client.get(url("bulkaction", "change", action.pk))
    (button,) = page.context["buttons"]
    response = admin_client.post(button["url"], {"sure": "yes"}, follow=True)
    assert said(response) == ["1 bulk action stopped."]
    assert not bulk.advance_action()
    assert Job.objects.count() == 3
    assert admin_client.get(url("bulkaction", "change", action.pk)).context["buttons"] == []
    assert list(AuditEntry.objects.order_by("pk").values_list("action", "actor")) == [
        ("job.bulk_delete", "user:admin"), ("bulkaction.cancel", "user:admin")
    ]  # fmt: skip


def test_why_one_failed_is_on_its_page(admin_client: Client, soon_many: None) -> None:
    dead(3)
    confirmed(admin_client, DELETE_ALL)
    BulkAction.objects.update(state="failed", problem="ValueError: <b>")
    page = admin_client.get(url("bulkaction", "change", BulkAction.objects.get().pk)).content.decode()
    assert "ValueError: &lt;b&gt;" in page
    assert "<b>" not in page.replace("<b>3</b>", "")


def test_a_scheduler_that_runs_is_not_missed(admin_client: Client, soon_many: None) -> None:
    dead(3)
    Lease.objects.create(name="scheduler", holder="x", expires_at=clock.now() + clock.dt.timedelta(minutes=1))
    assert "No scheduler is running" not in confirmed(admin_client, RETRY_ALL).content.decode()


def test_rights_are_those_of_jobs(operator: Callable[..., Client], soon_many: None) -> None:
    dead(3)
    client = operator("view_job")
    assert client.get(RETRY_ALL).status_code == 403
    assert client.post(RETRY_ALL, {"until": "2099-01-01T00:00:00Z"}).status_code == 403
    assert not BulkAction.objects.exists()
    action = BulkAction.objects.create(verb="retry", actor="user:bob", created_at=clock.now(), expected=3)
    page = url("bulkaction", "change", action.pk)
    assert client.get(page).context["buttons"] == []
    assert client.post(url("bulkaction", "verb", action.pk, "cancel_bulkactions"), {"sure": "yes"}).status_code == 403
    action.refresh_from_db()
    assert action.state == "running"
    assert client.post(page, {"state": "cancelled"}).status_code == 403


def test_who_may_not_see_jobs_sees_no_bulk_actions(operator: Callable[..., Client]) -> None:
    assert operator("view_queue").get(url("bulkaction")).status_code == 403


def test_nothing_in_a_bulk_action_is_markup_and_lists_cost_the_same(admin_client: Client) -> None:
    def make(count: int) -> None:
        for _ in range(count):
            action = BulkAction(verb=EVIL[:32], actor=EVIL, created_at=clock.now(), expected=3)
            action.filter, action.override = {"type": EVIL}, {"queue": EVIL}  # type: ignore[assignment]
            action.errors = [{"job_id": EVIL, "error": EVIL}]  # type: ignore[assignment]
            action.save()

    make(1)
    few = queries(admin_client, url("bulkaction"))
    make(10)
    assert queries(admin_client, url("bulkaction")) == few
    last = BulkAction.objects.latest("pk")
    for page in (url("bulkaction"), url("bulkaction", "change", last.pk), LETTERS, f"{LETTERS}live/"):
        assert "<script>alert" not in admin_client.get(page).content.decode()


def queries(client: Client, page: str) -> int:
    ContentType.objects.clear_cache()
    with CaptureQueriesContext(connection) as captured:
        assert client.get(page).status_code == 200
    return len(captured)


# With changes


def test_a_dead_letter_is_retried_with_other_arguments_and_queue(admin_client: Client) -> None:
    (job,) = dead(meta={"tenant": "acme"})
    page = admin_client.get(url("job", "change", job.pk)).content.decode()
    assert edit(job) in page
    assert "a@example.com" in admin_client.get(edit(job)).content.decode()
    given = {"queue": "later", "priority": "5", "args": '["b@example.com", 12345678901234567890123]', "meta": ""}
    response = admin_client.post(edit(job), given, follow=True)
    assert response.redirect_chain == [(url("job", "change", job.pk), 302)]
    job.refresh_from_db()
    assert (job.state, job.queue, job.priority, job.meta) == ("available", "later", 5, {"tenant": "acme"})
    assert job.args == ["b@example.com", 12345678901234567890123]
    entry = AuditEntry.objects.get(action="job.retry")
    assert (entry.actor, entry.target, entry.detail) == (
        "user:admin", str(job.pk), {"override": ["args", "priority", "queue"]}
    )  # fmt: skip
    assert "other args, priority, queue" in LogEntry.objects.get().change_message


def test_true_in_place_of_1_is_a_change(admin_client: Client) -> None:
    (job,) = dead(args=[1])
    admin_client.post(edit(job), {"args": "[true]"})
    job.refresh_from_db()
    assert (job.state, jsontext.dumps(job.args)) == ("available", "[true]")


@pytest.mark.parametrize(
    "given",
    [{"args": "["}, {"args": '{"a": 1}'}, {"meta": "[]"}, {"queue": "No Queue!"}, {"priority": "a lot"}],
)
def test_what_a_push_would_refuse_is_refused_at_its_field(admin_client: Client, given: dict[str, str]) -> None:
    (job,) = dead()
    response = admin_client.post(edit(job), given)
    assert list(response.context["form"].errors) == list(given)
    job.refresh_from_db()
    assert job.state == "discarded"
    assert not AuditEntry.objects.filter(action="job.retry").exists()


def test_what_is_hidden_is_not_in_the_form_and_stays_as_it_is(admin_client: Client, settings: Any) -> None:
    settings.OJS = {"REDACT": {"keys": ["*card*"]}}
    (job,) = dead(args=[{"card": "4711"}])
    body = admin_client.get(edit(job)).content.decode()
    assert "4711" not in body
    assert "[REDACTED]" not in body
    admin_client.post(edit(job), {"queue": "later", "args": "", "meta": "", "priority": ""})
    job.refresh_from_db()
    assert (job.state, job.queue, job.args) == ("available", "later", [{"card": "4711"}])


def test_only_dead_letters_and_only_operators(operator: Callable[..., Client], admin_client: Client) -> None:
    (job,), (live,) = dead(), pushed()
    assert edit(live) not in admin_client.get(url("job", "change", live.pk)).content.decode()
    refused = admin_client.post(edit(live), {"queue": "later"})
    assert refused.context["form"].non_field_errors()
    assert admin_client.get(reverse("admin:django_ojs_job_edit", args=["01990000-0000-7000-8000-000000000000"])).status_code == 404  # fmt: skip  # noqa: E501
    client = operator("view_job")
    assert client.get(edit(job)).status_code == 403
    assert client.post(edit(job), {"queue": "later"}).status_code == 403
    assert edit(job) not in client.get(url("job", "change", job.pk)).content.decode()


def test_what_a_job_carries_is_text_in_the_form(admin_client: Client) -> None:
    (job,) = dead(args=["</textarea>" + EVIL])
    body = admin_client.get(edit(job)).content.decode()
    assert "<script>alert" not in body
    assert body.count("</textarea>") == 2


def test_a_filter_does_not_tell_what_is_hidden(admin_client: Client, settings: Any) -> None:
    (job,) = dead(error={"type": "CardRefused", "message": "number 4711", "retryable": False})

    def found(text: str) -> bool:
        summary.forget()
        return (
            str(job.pk)[-12:]
            in admin_client.get(reverse("admin:django_ojs_dead_letters"), {"error": text}).content.decode()
        )

    assert found("4711")
    settings.OJS = {"REDACT": {"types": {"*": ["errors"]}}}
    assert not found("4711")
    assert found("CardRefused")


@pytest.mark.parametrize("number", [2, 3])
def test_all_that_fit_may_get_another_priority(admin_client: Client, soon_many: None, number: int) -> None:
    dead(number)
    confirmed(admin_client, RETRY_ALL, to_priority="7", to_queue="later")
    while bulk.advance_action():
        pass
    assert set(Job.objects.values_list("queue", "priority", "state")) == {("later", 7, "available")}


@pytest.mark.parametrize("priority", ["high noon", "1e5", "99999999999", "101"])
def test_a_priority_that_cannot_be_changes_nothing(admin_client: Client, priority: str) -> None:
    dead(1)
    assert "The priority must be an integer" in said(confirmed(admin_client, RETRY_ALL, to_priority=priority))[0]
    assert Job.objects.get().state == "discarded"


# What the audit log says of it


@pytest.mark.parametrize("number", [2, 3], ids=["at once", "in the background"])
def test_the_entry_of_a_retry_of_all_names_the_filter_and_what_was_changed(
    admin_client: Client, soon_many: None, number: int
) -> None:
    dead(number)
    confirmed(admin_client, f"{RETRY_ALL}?type=mail.*", to_queue="later", to_priority="7")
    while bulk.advance_action():
        pass
    entries = AuditEntry.objects.filter(door="admin")
    assert entries
    for entry in entries:
        assert entry.detail["override"] == ["priority", "queue"], entry.detail
        assert entry.detail["filter"]["type"] == "mail.*", entry.detail


def test_a_command_and_a_clients_call_note_their_filter_too(settings: Any, client: Client) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    dead(2)
    call_command("ojs_dead_letter", "retry", "--type", "mail.*", "--yes")
    entry = AuditEntry.objects.get(door="command")
    assert entry.detail["filter"]["type"] == "mail.*"
    body = {"filter": {"type": "mail.*", "meta": {"token": "s3cret"}}}
    response = client.post("/ojs/v1/jobs/bulk/cancel", body, content_type="application/json")
    assert response.status_code in (200, 422), response.content
    entry = AuditEntry.objects.filter(door="http").latest("pk")
    assert entry.detail["filter"] == {"type": "mail.*", "meta": ["token"]}


def test_an_action_on_all_of_a_list_notes_what_the_list_was_narrowed_to(admin_client: Client) -> None:
    jobs = pushed(2)
    data = {"action": "cancel_jobs", "select_across": "1", "sure": "yes", "_selected_action": [str(jobs[0].pk)]}
    admin_client.post(f"{url('job', 'changelist')}?state=available", data)
    entry = AuditEntry.objects.get(action="job.cancel")
    assert entry.detail["filter"] == {"state": "available"}
    assert entry.detail["succeeded"] == 2
