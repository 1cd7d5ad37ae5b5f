"""What operators do: through the operations only, with the rights it takes, asked first, and on record."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.test import Client
from django.utils.http import urlencode

from django_ojs import keys
from django_ojs.admin import operate
from django_ojs.admin.job import JobAdmin
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.models import APIKey, AuditEntry, Event, Job, Queue, Worker
from django_ojs.queues.configuration import pause
from django_ojs.workerregistry.registration import direct, register
from tests.admin.conftest import claimed, dead, one_in_each_state, pushed, said, url

pytestmark = pytest.mark.django_db
ASKED = {
    *("cancel_jobs", "delete_dead_letters", "pause_queues", "terminate_workers", "revoke_keys"),
    *("disable_schedules", "delete_schedules", "cancel_workflows", "discard_entries"),
    *("pause_webhooks", "delete_webhooks", "rotate_secret", "delete_rules", "lift_blocks"),
}


def act(client: Client, model: str, verb: str, rows: list[Any], *, sure: bool = True, **more: Any) -> Any:
    """The action of the list on these rows; `sure` says yes to the question as well."""
    data = {"action": verb, "_selected_action": [str(row.pk) for row in rows], **more}
    return client.post(url(model), {**data, "sure": "yes"} if sure else data, follow=True)


def press(client: Client, model: str, row: Any, verb: str) -> Any:
    """The button on the object's page."""
    return client.post(url(model, "verb", row.pk, verb), {"sure": "yes"}, follow=True)


def states(jobs: list[Job]) -> list[str]:
    return [Job.objects.get(pk=job.pk).state for job in jobs]


# Jobs


def test_cancel_from_the_list(admin_client: Client) -> None:
    jobs = [*pushed(2), *claimed()]
    response = act(admin_client, "job", "cancel_jobs", jobs)
    assert states(jobs) == ["cancelled"] * 3
    assert said(response) == ["3 jobs cancelled."]
    assert Event.objects.filter(type="job.cancelled", data__contains="user:admin").count() == 3


def test_what_cannot_be_cancelled_is_named_and_the_rest_is_done(admin_client: Client) -> None:
    jobs = one_in_each_state()
    response = act(admin_client, "job", "cancel_jobs", [jobs["available"], jobs["completed"], jobs["cancelled"]])
    done, refused = said(response)
    assert done == "1 job cancelled."
    assert refused.startswith("2 jobs not cancelled:")
    assert f"'{jobs['completed'].pk}': it is completed" in refused
    assert f"'{jobs['cancelled'].pk}' was cancelled before" in refused


def test_many_refusals_are_counted_not_listed(admin_client: Client) -> None:
    response = act(admin_client, "job", "activate_jobs", pushed(9))
    assert said(response)[0].endswith("And 4 more.")
    assert said(response)[0].count("Cannot activate") == operate.SPELLED_OUT


def test_activate_retry_and_delete(admin_client: Client) -> None:
    staged = pushed(2, pending=True)
    assert said(act(admin_client, "job", "activate_jobs", staged)) == ["2 jobs activated."]
    assert states(staged) == ["available"] * 2
    revived, doomed = dead(2)
    assert said(act(admin_client, "job", "retry_dead_letters", [revived])) == ["1 job made available again."]
    assert states([revived]) == ["available"]
    assert said(act(admin_client, "job", "delete_dead_letters", [doomed])) == ["1 job deleted."]
    assert not Job.objects.filter(pk=doomed.pk).exists()


def test_only_dead_letters_are_deleted(admin_client: Client) -> None:
    jobs = one_in_each_state()
    others = [job for state, job in jobs.items() if state != "discarded"]
    response = act(admin_client, "job", "delete_dead_letters", others)
    assert Job.objects.filter(pk__in=[job.pk for job in others]).count() == len(others)
    assert "7 jobs not deleted" in said(response)[0]


def test_each_page_has_the_buttons_that_fit_its_job(admin_client: Client) -> None:
    expected = {
        "available": ["Cancel"],
        "scheduled": ["Cancel", "Run now"],
        "pending": ["Cancel", "Activate"],
        "active": ["Cancel"],
        "retryable": ["Cancel", "Run now"],
        "completed": [],
        "cancelled": [],
        "discarded": ["Retry", "Delete"],
    }
    for state, job in one_in_each_state().items():
        response = admin_client.get(url("job", "change", job.pk))
        assert [button["verb"].label for button in response.context["buttons"]] == [*expected[state], "Run a copy"]


def test_buttons_act_and_lead_back(admin_client: Client) -> None:
    (job,) = pushed()
    response = press(admin_client, "job", job, "cancel_jobs")
    assert response.redirect_chain == [(url("job", "change", job.pk), 302)]
    assert said(response) == ["1 job cancelled."]
    assert "not cancelled" in said(press(admin_client, "job", job, "cancel_jobs"))[0]
    (doomed,) = dead()
    assert press(admin_client, "job", doomed, "delete_dead_letters").redirect_chain == [(url("job"), 302)]


def test_select_all_reaches_the_other_pages_and_keeps_to_the_filter(admin_client: Client) -> None:
    jobs, others = dead(60), pushed(2)
    page = url("job") + "?state=dead_letter"
    data = {"action": "retry_dead_letters", "select_across": "1", "_selected_action": [str(jobs[0].pk)]}
    response = admin_client.post(page, data, follow=True)
    assert said(response) == ["60 jobs made available again."]
    assert Job.objects.filter(state="available").count() == 62
    assert states(others) == ["available"] * 2


def test_a_job_of_the_whole_list_that_fits_no_more_by_its_turn_is_left_alone(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker takes one of them before the batch that it is in. Jobs that are named are cancelled though they run."""
    perform = operate.OperatingAdmin.perform

    def later(*args: Any, **options: Any) -> Any:
        fetch(Fetch(["default"], count=1))
        return perform(*args, **options)

    jobs = pushed(2)
    monkeypatch.setattr(operate.OperatingAdmin, "perform", later)
    data = {"action": "cancel_jobs", "select_across": "1", "_selected_action": [str(jobs[0].pk)], "sure": "yes"}
    done, refused = said(admin_client.post(f"{url('job')}?state=available", data, follow=True))
    assert (done, states(jobs)) == ("1 job cancelled.", ["active", "cancelled"])
    assert "does not fit the filter any more" in refused
    assert AuditEntry.objects.get(action="job.cancel").detail["succeeded"] == 1
    act(admin_client, "job", "cancel_jobs", jobs[:1])
    assert states(jobs) == ["cancelled"] * 2


def test_one_action_takes_a_bounded_number_of_rows(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operate, "MAX_ROWS", 20)
    monkeypatch.setattr(operate, "CHUNK", 8)
    pushed(25)
    response = act(admin_client, "job", "cancel_jobs", [Job.objects.all()[0]], select_across="1")
    assert said(response) == ["20 jobs cancelled.", "These were the first 20. Repeat the action for the rest."]
    assert Job.objects.filter(state="available").count() == 5


# Asking


@pytest.mark.parametrize("verb", [verb for verbs in operate.OperatingAdmin.__subclasses__() for verb in verbs.verbs])
def test_what_cannot_be_undone_asks_first(verb: operate.AdminVerb) -> None:
    assert bool(verb.question) == (verb.name in ASKED)


def test_an_unconfirmed_action_changes_nothing_and_asks(admin_client: Client) -> None:
    jobs = pushed(7)
    response = act(admin_client, "job", "cancel_jobs", jobs, sure=False)
    page = response.content.decode()
    assert states(jobs) == ["available"] * 7
    assert "Cancel: 7 jobs?" in page
    assert page.count("mail.send") == operate.SPELLED_OUT
    fields = dict.fromkeys(("action", "sure"))
    for name, value in re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page):
        fields[name] = [*(fields.get(name) or []), value] if name == "_selected_action" else value
    assert len(fields["_selected_action"]) == 7  # type: ignore[arg-type]
    admin_client.post(url("job"), {name: value for name, value in fields.items() if value})
    assert states(jobs) == ["cancelled"] * 7


def test_a_button_that_asks_shows_a_page_first(admin_client: Client) -> None:
    (job,) = dead()
    response = admin_client.get(url("job", "verb", job.pk, "delete_dead_letters"))
    assert response.status_code == 200
    assert "gone for good" in response.content.decode()
    assert Job.objects.filter(pk=job.pk).exists()


def test_a_button_of_an_unknown_name_or_job_is_404(admin_client: Client) -> None:
    (job,) = pushed()
    assert admin_client.post(url("job", "verb", job.pk, "explode")).status_code == 404
    assert admin_client.post(url("job", "verb", "nonsense", "cancel_jobs")).status_code == 404


def test_a_button_needs_the_csrf_token(admin_user: Any) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    (job,) = pushed()
    assert client.post(url("job", "verb", job.pk, "cancel_jobs")).status_code == 403
    assert states([job]) == ["available"]


# Rights


def test_who_may_only_look_can_do_nothing(operator: Callable[..., Client]) -> None:
    client = operator("view_job", "view_queue", "view_worker", "view_apikey")
    (job,) = pushed()
    page = client.get(url("job", "change", job.pk))
    assert page.status_code == 200
    assert page.context["buttons"] == []
    act(client, "job", "cancel_jobs", [job])
    assert client.post(url("job", "verb", job.pk, "cancel_jobs")).status_code == 403
    assert states([job]) == ["available"]
    assert client.get(url("apikey", "add")).status_code == 403
    assert client.get(url("queue", "add")).status_code == 403


def test_changing_and_deleting_are_separate_rights(operator: Callable[..., Client]) -> None:
    client = operator("view_job", "change_job")
    job, doomed = dead(2)
    act(client, "job", "retry_dead_letters", [job])
    act(client, "job", "delete_dead_letters", [doomed])
    assert client.post(url("job", "verb", doomed.pk, "delete_dead_letters")).status_code == 403
    assert states([job, doomed]) == ["available", "discarded"]
    labels = [button["verb"].label for button in client.get(url("job", "change", doomed.pk)).context["buttons"]]
    assert labels == ["Retry"]


def test_what_was_done_is_on_record_and_what_was_refused_is_not(operator: Callable[..., Client]) -> None:
    client = operator("view_job", "change_job", "delete_job")
    jobs = one_in_each_state()
    act(client, "job", "cancel_jobs", [jobs["available"], jobs["completed"]])
    act(client, "job", "delete_dead_letters", [jobs["discarded"]])
    entries = {entry.object_id: entry for entry in LogEntry.objects.all()}
    assert set(entries) == {str(jobs["available"].pk), str(jobs["discarded"].pk)}
    cancelled, deleted = entries[str(jobs["available"].pk)], entries[str(jobs["discarded"].pk)]
    assert (cancelled.user.get_username(), cancelled.action_flag, cancelled.change_message) == (
        "ann",
        CHANGE,
        "Cancelled.",
    )
    assert deleted.action_flag == DELETION
    assert b"Cancelled." in client.get(url("job", "history", jobs["available"].pk)).content


# Queues, workers


def test_pause_and_resume_queues(admin_client: Client) -> None:
    pushed(queue="mail")
    queue = Queue.objects.get(pk="mail")
    assert said(act(admin_client, "queue", "pause_queues", [queue])) == ["1 queue paused."]
    queue.refresh_from_db()
    assert queue.paused
    assert said(press(admin_client, "queue", queue, "resume_queues")) == ["1 queue resumed."]
    queue.refresh_from_db()
    assert not queue.paused
    assert list(Event.objects.filter(subject="mail").order_by("id").values_list("type", flat=True)) == [
        "queue.paused",
        "queue.resumed",
    ]


def test_a_queues_defaults_are_edited_without_touching_its_pause(admin_client: Client) -> None:
    pause("mail")
    data = {"visibility_timeout": "60", "default_timeout": "", "default_retry": '{"max_attempts": 5}'}
    assert admin_client.post(url("queue", "change", "mail"), data).status_code == 302
    queue = Queue.objects.get(pk="mail")
    assert (queue.visibility_ms, queue.timeout_ms, queue.retry, queue.paused) == (
        60_000,
        None,
        {"max_attempts": 5},
        True,
    )
    (job,) = pushed(queue="mail")
    assert job.max_attempts == 5


@pytest.mark.parametrize(
    "field, value",
    [
        ("name", "Mail!"),
        ("visibility_timeout", "0"),
        ("default_timeout", "-5"),
        ("default_retry", "{"),
        ("default_retry", "[]"),
        ("default_retry", '{"max_attempts": -1}'),
        ("rate_limit", '{"limit": 0, "period": "PT1M"}'),
        ("warning_threshold", "2"),
        ("strategy", "pray"),
        ("keep_completed", "a while"),
        ("others", '{"dead_letter_queue": "Mail!"}'),
    ],
)
def test_a_queue_that_cannot_be_is_refused(admin_client: Client, field: str, value: str) -> None:
    data = {"name": "mail", field: value}
    response = admin_client.post(url("queue", "add"), data)
    assert list(response.context["adminform"].form.errors) == [field]
    assert not Queue.objects.exists()


def test_a_queue_is_added(admin_client: Client) -> None:
    data = {"name": "mail"}
    assert admin_client.post(url("queue", "add"), data).status_code == 302
    assert Queue.objects.get().retry is None


def test_workers_are_told_what_to_do(admin_client: Client) -> None:
    worker = register("host/1:a b", {"queues": ["mail"]})
    for verb, directive in (("quiet", "quiet"), ("resume", "running"), ("terminate", "terminate")):
        act(admin_client, "worker", f"{verb}_workers", [worker])
        assert Worker.objects.get().directive == directive


def test_worker_names_may_hold_anything(admin_client: Client) -> None:
    worker = register("host/1:a b_2F", {"queues": ["mail"]})
    direct(worker.pk, "quiet")
    page = admin_client.get(url("worker"))
    (link,) = re.findall(r'href="([^"]*/worker/[^"]*/change/)', page.content.decode())
    (button, *_) = admin_client.get(link).context["buttons"]
    assert button["verb"].label == "Resume"
    admin_client.post(button["url"])
    assert Worker.objects.get().directive == "running"


def test_a_worker_page_lists_what_it_holds(admin_client: Client) -> None:
    held, _ = claimed(2)
    page = admin_client.get(url("worker", "change", "w-1")).content.decode()
    assert str(held.pk) in page


def test_a_worker_that_fell_silent_is_marked(admin_client: Client, frozen_clock: Any) -> None:
    register("w-9", {"queues": ["mail"]})
    assert b"silent" not in admin_client.get(url("worker")).content
    frozen_clock.advance(minutes=5)
    assert b"silent" in admin_client.get(url("worker")).content


# API keys

NEW_KEY = {
    "name": "billing", "scopes": ["push", "work"], "queues": "mail\nsms, sms", "job_types": "mail.*",
    "expires_at_0": "2099-01-01", "expires_at_1": "00:00",
}  # fmt: skip


def test_a_key_is_shown_once(admin_client: Client) -> None:
    response = admin_client.post(url("apikey", "add"), NEW_KEY)
    (text,) = re.findall(r"ojs_[0-9a-f]{64}", response.content.decode())
    assert "no-store" in response["Cache-Control"]
    key = keys.find(text)
    assert key is not None
    assert (key.name, key.scopes, key.queues, key.job_types) == (
        "billing",
        ["push", "work"],
        ["mail", "sms"],
        ["mail.*"],
    )
    assert key.expires_at is not None
    for page in (
        url("apikey"),
        url("apikey", "change", key.pk),
        url("apikey", "history", key.pk),
        url("apikey", "add"),
    ):
        body = admin_client.get(page).content.decode()
        assert text not in body
        assert key.digest not in body
    assert not LogEntry.objects.filter(change_message__contains=text).exists()
    assert LogEntry.objects.count() == 1


@pytest.mark.parametrize(
    "kind, given",
    [
        ("apikey", NEW_KEY),
        (
            "webhooksubscription",
            {"url": "https://example.com/", "events": "*", "timeout_seconds": "5", "signature_format": "body"},
        ),
    ],
)
def test_who_may_only_add_is_not_led_to_what_is_forbidden(
    operator: Callable[..., Client], kind: str, given: dict[str, Any]
) -> None:
    client = operator(f"add_{kind}")
    response = client.post(url(kind, "add"), given)
    body = response.content.decode()
    assert "shown this once" in body
    links = {link for link in re.findall(r'href="(/[^"]*)"', body) if f"/{kind}/" in link}
    assert [link for link in links if client.get(link).status_code != 200] == []
    back = re.search(r'<a href="([^"]+)" class="button ojs-button">', body)
    assert back is not None
    assert client.get(back[1]).status_code == 200


@pytest.mark.parametrize(
    "field, value",
    [
        ("name", ""),
        ("name", "?"),
        ("name", "taken"),
        ("scopes", []),
        ("queues", "Mail"),
        ("queues", ","),
        ("job_types", "*"),
        ("job_types", " ,\n, "),
        ("expires_at", "2020-01-01"),
    ],
)
def test_a_key_that_cannot_be_is_refused(admin_client: Client, field: str, value: Any) -> None:
    keys.create("taken", ["read"])
    given = {"expires_at_0": value} if field == "expires_at" else {field: value}
    response = admin_client.post(url("apikey", "add"), {**NEW_KEY, **given})
    assert list(response.context["adminform"].form.errors) == [field]
    assert APIKey.objects.count() == 1


def test_what_a_key_may_do_is_never_changed(admin_client: Client) -> None:
    key, _ = keys.create("billing", ["push"])
    assert admin_client.post(url("apikey", "change", key.pk), {**NEW_KEY, "scopes": ["admin"]}).status_code == 403
    key.refresh_from_db()
    assert key.scopes == ["push"]


def test_revoking_keys(admin_client: Client) -> None:
    key, text = keys.create("billing", ["push"])
    assert said(act(admin_client, "apikey", "revoke_keys", [key])) == ["1 API key revoked."]
    found = keys.find(text)
    assert found is not None
    assert keys.status(found) == "revoked"
    assert "was revoked before" in said(press(admin_client, "apikey", key, "revoke_keys"))[0]
    assert LogEntry.objects.get().change_message == "Revoked."
    assert admin_client.get(url("apikey", "change", key.pk)).context["buttons"] == []


def test_a_verb_on_the_page_of_an_object_keeps_the_filters_of_the_list_that_led_there(admin_client: Client) -> None:
    (job,) = dead()
    kept = {"_changelist_filters": "state=dead_letter&p=1"}
    page = url("job", "change", job.pk)
    body = unescape(admin_client.get(page, kept).content.decode())
    again = f"?{urlencode(kept)}"
    assert f'action="{url("job", "verb", job.pk, "retry_dead_letters")}{again}"' in body
    assert '<input type="hidden" name="_changelist_filters" value="state=dead_letter&p=1">' in body, "a GET has its own"
    edit = url("job", "edit", job.pk)
    assert f'href="{edit}{again}"' in body
    assert f'href="{page}{again}"' in unescape(admin_client.get(f"{edit}{again}").content.decode())
    assert admin_client.post(f"{edit}{again}", {"queue": "other"})["Location"] == f"{page}{again}"
    (job,) = dead()
    page = url("job", "change", job.pk)
    delete = url("job", "verb", job.pk, "delete_dead_letters")
    assert f'href="{page}{again}"' in unescape(admin_client.get(delete, kept).content.decode())
    assert admin_client.post(f"{delete}{again}", {"sure": "yes"})["Location"] == f"{url('job')}?state=dead_letter&p=1"
    (job,) = pushed()
    page, priority = url("job", "change", job.pk), url("job", "priority", job.pk)
    assert f'action="{priority}{again}"' in unescape(admin_client.get(page, kept).content.decode())
    assert admin_client.post(f"{priority}{again}", {"priority": "5"})["Location"] == f"{page}{again}"


@pytest.mark.parametrize("page", ["priority", "edit", "restart", "give"])
def test_what_a_class_of_the_site_does_not_show_to_a_user_has_no_form(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    (job,) = dead()
    monkeypatch.setattr(JobAdmin, "get_queryset", lambda self, request: Job.objects.exclude(pk=job.pk))
    given = {"priority": "7", "payload": "1"}
    assert admin_client.post(f"{url('job', page, job.pk)}?step=charge", given).status_code == 404
    assert Job.objects.get().state == job.state
