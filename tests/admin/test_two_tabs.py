"""Two operators have the same form open: who saves last does not take back what the other has changed, untold."""

from __future__ import annotations

from html import escape
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from django_ojs.cron import schedules
from django_ojs.jobs import replay
from django_ojs.models import CronSchedule, ErrorNote, Queue, ReplayRule, WebhookSubscription
from django_ojs.queues.configuration import configure
from django_ojs.rules import replayrules
from django_ojs.webhooks import subscriptions
from tests.admin.conftest import said, url

pytestmark = pytest.mark.django_db

#: Of each model with a form: one field and its new value, and another field and its new value.
CHANGES = {
    "queue": (("concurrency", "0"), ("default_timeout", "60")),
    "cronschedule": (("description", "Ann's"), ("args", '["b"]')),
    "webhooksubscription": (("events", "job.failed\r\njob.completed"), ("timeout_seconds", "7")),
    "replayrule": (("delay", "PT2H"), ("max_replays", "5")),
}


@pytest.fixture
def pages() -> dict[str, str]:
    """The page of an object of each of them."""
    configure("mail", {"concurrency": 5, "allowed_job_types": ["a.*", "b.*"], "default_retry": {"max_attempts": 3}})
    schedules.register({"name": "nightly", "cron": "@daily", "type": "a.b", "args": [1.5], "description": "a\nb"})
    given = {"url": "https://93.184.216.34/x", "events": ["job.*", "cron.*"]}
    hook, _secret = subscriptions.create(subscriptions.read_definition(given), by="")
    replay.put(replayrules.parse({"name": "again", "delay": "PT1H", "filter": {"queue": "mail"}}))
    rule = ReplayRule.objects.get().pk
    keys = {"queue": "mail", "cronschedule": "nightly", "webhooksubscription": hook.pk, "replayrule": rule}
    return {model: url(model, "change", key) for model, key in keys.items()}


def form_of(response: Any) -> dict[str, str]:
    """What the form on a page would send."""
    form = response.context["adminform"].form
    assert f'<input type="hidden" name="ojs_shown" value="{escape(form.shown)}">' in response.content.decode()
    values = {name: form[name].value() for name in form.fields}
    shown = {name: str(value).replace("\n", "\r\n") for name, value in values.items() if value not in (None, False)}
    return {"ojs_shown": form.shown, **shown}


def value(model: str, page: str, name: str, client: Client) -> Any:
    return client.get(page).context["adminform"].form[name].value()


@pytest.mark.parametrize("model", CHANGES)
def test_who_saves_last_is_told_and_may_insist(admin_client: Client, pages: dict[str, str], model: str) -> None:
    page, ((first, hers), (second, his)) = pages[model], CHANGES[model]
    her, him = form_of(admin_client.get(page)), form_of(admin_client.get(page))
    assert admin_client.post(page, her | {first: hers}).status_code == 302
    changed = value(model, page, first, admin_client)
    answer = admin_client.post(page, him | {second: his})
    assert answer.status_code == 200
    errors = answer.context["adminform"].form.errors
    assert list(errors) == [first]
    label = answer.context["adminform"].form[first].label
    assert escape(f"Meanwhile user:admin has changed “{label}” to “") in str(errors)
    assert value(model, page, first, admin_client) == changed, "nothing is saved"
    assert admin_client.post(page, form_of(answer) | {first: hers}).status_code == 302, "with the value that is there"
    assert value(model, page, first, admin_client) == changed
    assert str(value(model, page, second, admin_client)).replace("\n", "") == his.replace("\n", "")
    assert admin_client.post(page, form_of(answer)).status_code == 302, "or with the other one"
    assert value(model, page, first, admin_client) != changed


def test_nobody_is_named_who_changed_something_else_or_before(admin_client: Client, pages: dict[str, str]) -> None:
    page = pages["queue"]
    admin_client.post(page, form_of(admin_client.get(page)) | {"concurrency": "7"})
    shown = form_of(admin_client.get(page))
    configure("mail", {"concurrency": 8})  # in code: nobody knows who
    admin_client.post(page, form_of(admin_client.get(page)) | {"default_timeout": "60"})
    answer = admin_client.post(page, shown | {"default_timeout": "60"})
    assert "Meanwhile somebody else has changed" in str(answer.context["adminform"].form.errors["concurrency"])


@pytest.mark.parametrize("model", CHANGES)
def test_what_the_server_itself_changes_stops_nobody(admin_client: Client, pages: dict[str, str], model: str) -> None:
    page, (_first, (second, his)) = pages[model], CHANGES[model]
    given = form_of(admin_client.get(page))
    for row in (Queue, CronSchedule, WebhookSubscription, ReplayRule):
        row.objects.update(updated_at="2099-01-01T00:00:00Z")
    CronSchedule.objects.update(run_count=7, next_run_at="2099-01-01T00:00:00Z")
    WebhookSubscription.objects.update(success_count=9)
    for shown in (given["ojs_shown"], "", "[" * 5000, "a\0b=&&%00", "@=nan&@=x"):
        assert admin_client.post(page, given | {second: his, "ojs_shown": shown}).status_code == 302


def test_a_note_about_dead_letters_is_not_lost_either(admin_client: Client) -> None:
    page = reverse("admin:django_ojs_dead_letters_group") + "?type=mail.send&error=OSError&message=gone"
    assert '<input type="hidden" name="seen" value="">' in admin_client.get(page).content.decode()
    admin_client.post(page, {"note": "ask Ann\r\nfirst", "seen": ""})
    answer = admin_client.post(page, {"note": "known", "seen": "", "muted": "on"})
    told = "Meanwhile user:admin has changed “Note about dead letters” to “ask Ann first”."
    assert said(answer)[-1].startswith(told)
    body = answer.content.decode()
    assert ">known</textarea>" in body
    assert 'name="muted" checked' in body
    assert '<input type="hidden" name="seen" value="ask Ann\r\nfirst">' in body
    assert ErrorNote.objects.get().note == "ask Ann\r\nfirst"
    assert admin_client.post(page, {"note": "known", "seen": "ask Ann\r\nfirst"}).status_code == 302
    assert ErrorNote.objects.get().note == "known"


@pytest.mark.parametrize("before", [False, True])
def test_a_mute_stays_as_another_has_set_it_unless_it_is_changed(admin_client: Client, before: bool) -> None:
    page = reverse("admin:django_ojs_dead_letters_group") + "?type=mail.send&error=OSError&message=gone"
    box: dict[bool, dict[str, str]] = {True: {"muted": "on"}, False: {}}
    seen = {"seen": "known", "seen_muted": "on" if before else ""}
    admin_client.post(page, {"note": "known", "seen": "", "seen_muted": "", **box[before]})
    assert f'name="seen_muted" value="{seen["seen_muted"]}"' in admin_client.get(page).content.decode()
    admin_client.post(page, {"note": "known", **seen, **box[not before]})
    assert ErrorNote.objects.get().muted is not before
    admin_client.post(page, {"note": "ask Ann", **seen, **box[before]})
    assert (ErrorNote.objects.get().note, ErrorNote.objects.get().muted) == ("ask Ann", not before)
