"""Adding and editing schedules: read as over HTTP, audited, and nothing hidden shown or lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone, translation

from django_ojs import jsontext
from django_ojs.admin.cron import in_words
from django_ojs.cron import schedules
from django_ojs.errors import Conflict
from django_ojs.models import AuditEntry, CronSchedule
from tests.admin.conftest import said, url

pytestmark = pytest.mark.django_db
EVIL = "<script>alert('x')</script>"
FIELDS = {
    "name": "nightly", "expression": "0 9 * * 1-5", "timezone": "Europe/Paris", "overlap_policy": "allow",
    "enabled": "on", "description": "what it is for\r\nand why", "type": "report.make", "queue": "reports",
    "args": '["daily", 1.10]', "others": '{"priority": 5, "options": {"retry": {"max_attempts": 3}}}',
}  # fmt: skip


def make(**members: Any) -> CronSchedule:
    body = {"name": "nightly", "cron": "0 3 * * *", "type": "report.make", "args": ["full"], "queue": "reports"}
    return schedules.register({**body, **members})[0]


def edit(client: Client, **changes: str) -> Any:
    """The page as it is, with these fields changed."""
    form = client.get(url("cronschedule", "change", "nightly")).context["adminform"].form
    shown = {name: form[name].value() for name in form.fields}
    given = {name: "" if value is None else value for name, value in shown.items()}
    return client.post(url("cronschedule", "change", "nightly"), {**given, **changes})


def errors(response: Any) -> list[str]:
    assert response.status_code == 200
    return list(response.context["adminform"].form.errors)


def test_a_schedule_is_added(operator: Callable[..., Client]) -> None:
    client = operator("view_cronschedule", "add_cronschedule")
    assert client.post(url("cronschedule", "add"), FIELDS).status_code == 302
    made = schedules.get("nightly")
    assert (made.expression, made.timezone, made.overlap_policy, made.enabled) == (
        "0 9 * * 1-5", "Europe/Paris", "allow", True,
    )  # fmt: skip
    assert (made.type, made.queue, made.source) == ("report.make", "reports", "api")
    assert made.description == "what it is for\nand why"
    assert made.document["priority"] == 5
    assert str(made.document["args"]) == "['daily', 1.1]" or made.document["args"][0] == "daily"
    assert made.next_run_at is not None
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.target, entry.actor) == ("cron.register", "nightly", "user:ann")


def test_one_that_is_added_disabled_makes_no_jobs(admin_client: Client) -> None:
    given = {name: text for name, text in FIELDS.items() if name != "enabled"}
    assert admin_client.post(url("cronschedule", "add"), given).status_code == 302
    assert schedules.get("nightly").next_run_at is None


@pytest.mark.parametrize(
    "field, value",
    [
        ("name", "Nightly!"),
        ("name", ""),
        ("expression", "61 * * * *"),
        ("expression", "0 0 30 2 *"),
        ("timezone", "EST"),
        ("overlap_policy", "pray"),
        ("type", "Mail!"),
        ("queue", "No Queue"),
        ("args", "{}"),
        ("args", "[1"),
        ("others", "[]"),
        ("others", '{"options": {"retry": {"max_attempts": -1}}}'),
        ("others", '{"type": "x.y"}'),
        ("others", '{"id": "x"}'),
        ("description", "x" * 2001),
    ],
)
def test_what_cannot_be_meant_is_refused_beside_its_field(admin_client: Client, field: str, value: str) -> None:
    assert errors(admin_client.post(url("cronschedule", "add"), {**FIELDS, field: value})) == [field]
    assert not CronSchedule.objects.exists()


def test_adding_replaces_nothing(admin_client: Client) -> None:
    make()
    assert errors(admin_client.post(url("cronschedule", "add"), FIELDS)) == ["name"]
    assert schedules.get("nightly").expression == "0 3 * * *"


def test_who_loses_a_race_is_told(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(spec: Any) -> CronSchedule:
        raise Conflict("The schedule 'nightly' exists already.")

    monkeypatch.setattr(schedules, "create", lost)
    response = admin_client.post(url("cronschedule", "add"), FIELDS, follow=True)
    assert said(response) == ["The schedule 'nightly' exists already."]


def test_creating_is_not_registering() -> None:
    make()
    from django_ojs import clock
    from django_ojs.rules import cron

    spec = cron.parse({"name": "nightly", "cron": "@daily", "job_template": {"type": "a.b"}}, now=clock.now())
    with pytest.raises(Conflict):
        schedules.create(spec)
    assert schedules.get("nightly").expression == "0 3 * * *"


def test_editing_changes_what_was_changed(operator: Callable[..., Client], frozen_clock: Any) -> None:
    before = make(enabled=False, options={"queue": "slow", "tags": ["x"]}, meta={"team": "a"}, queue=None)
    client = operator("view_cronschedule", "change_cronschedule")
    assert edit(client).status_code == 302
    assert not schedules.differs(schedules.get("nightly"), _spec(before)), "saving what is there changes nothing"
    assert edit(client, expression="30 4 * * *", args='["more"]').status_code == 302
    after = schedules.get("nightly")
    assert (after.expression, after.document["args"], after.queue) == ("30 4 * * *", ["more"], "slow")
    assert after.document["meta"] == {"team": "a"}
    assert not after.enabled
    assert edit(client, queue="fast").status_code == 302
    assert schedules.get("nightly").queue == "fast"
    assert schedules.get("nightly").document["options"] == {"tags": ["x"]}
    entries = AuditEntry.objects.order_by("id")
    assert [(entry.action, entry.target) for entry in entries] == [("cron.update", "nightly")] * 3
    assert entries[1].detail == {"fields": ["args", "expression"]}


def _spec(schedule: CronSchedule) -> Any:
    from django_ojs import clock
    from django_ojs.rules import cron

    return cron.parse({}, now=clock.now(), base=schedule)


def test_true_in_place_of_1_is_a_change(admin_client: Client) -> None:
    make(args=[1, 2.0])
    assert edit(admin_client, args="[true, 2]").status_code == 302
    assert jsontext.dumps(schedules.get("nightly").document["args"]) == "[true,2]"


def test_an_edit_does_not_enable_what_was_disabled_meanwhile(admin_client: Client) -> None:
    make()
    form = admin_client.get(url("cronschedule", "change", "nightly")).context["adminform"].form
    given = {name: form[name].value() or "" for name in form.fields}
    schedules.set_enabled("nightly", False)
    assert admin_client.post(url("cronschedule", "change", "nightly"), {**given, "enabled": "on"}).status_code == 302
    assert not schedules.get("nightly").enabled


def test_one_of_the_code_stays_so_and_says_what_an_edit_means(admin_client: Client) -> None:
    spec = {"name": "nightly", "cron": "0 3 * * *", "type": "report.make", "args": []}
    schedules.register(spec, source=CronSchedule.Source.CODE)
    page = admin_client.get(url("cronschedule", "change", "nightly")).content.decode()
    assert "This schedule comes from the code" in page
    assert edit(admin_client, expression="@daily").status_code == 302
    after = schedules.get("nightly")
    assert (after.expression, after.source) == ("@daily", "code")
    schedules.register({**spec, "name": "other"})
    assert "comes from the code" not in admin_client.get(url("cronschedule", "change", "other")).content.decode()


def test_what_is_hidden_is_neither_shown_nor_lost(admin_client: Client, settings: Any) -> None:
    settings.OJS = {"REDACT": {"types": {"report.*": ["args"]}, "keys": ["*password*"]}}
    make(args=["sesame"], meta={"password": "sesame", "team": "a"})
    page = admin_client.get(url("cronschedule", "change", "nightly")).content.decode()
    assert "sesame" not in page
    assert edit(admin_client, expression="@daily").status_code == 302
    kept = schedules.get("nightly").document
    assert (kept["args"], kept["meta"]) == (["sesame"], {"password": "sesame", "team": "a"})
    others = '{"meta": {"password": "[REDACTED]", "team": "b"}}'
    assert errors(edit(admin_client, others=others)) == ["others"]
    assert edit(admin_client, others='{"meta": {"password": "new"}}').status_code == 302
    assert schedules.get("nightly").document["meta"] == {"password": "new"}


def test_looking_does_not_give_the_right_to_edit_or_add(operator: Callable[..., Client]) -> None:
    make()
    client = operator("view_cronschedule")
    page = client.get(url("cronschedule", "change", "nightly")).content.decode()
    assert 'name="expression"' not in page
    assert "0 3 * * *" in page
    assert client.post(url("cronschedule", "change", "nightly"), FIELDS).status_code == 403
    assert client.post(url("cronschedule", "add"), FIELDS).status_code == 403
    assert schedules.get("nightly").expression == "0 3 * * *"


def test_forms_need_the_csrf_token(admin_user: Any) -> None:
    make()
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    for page in (url("cronschedule", "change", "nightly"), url("cronschedule", "add")):
        assert client.post(page, FIELDS).status_code == 403
    assert schedules.get("nightly").expression == "0 3 * * *"


def test_what_is_hostile_in_a_form_stays_text(admin_client: Client) -> None:
    make(args=[EVIL], description=EVIL)
    page = admin_client.get(url("cronschedule", "change", "nightly")).content.decode()
    refused = edit(admin_client, type=EVIL, expression=EVIL, others=f'{{"{EVIL}": "{EVIL}"}}').content.decode()
    for body in (page, refused):
        assert "&lt;script&gt;" in body
        assert "<script>alert" not in body


def test_the_next_runs_are_told_by_two_clocks(admin_client: Client, frozen_clock: Any) -> None:
    make(cron="0 9 * * *", timezone="Asia/Tokyo")
    with timezone.override("Europe/Paris"):
        upcoming = admin_client.get(url("cronschedule", "change", "nightly")).context["upcoming"]
    assert len(upcoming) == 5
    assert upcoming[0]["exact"] == "2026-01-16T00:00:00+00:00"
    assert upcoming[0]["there"] == "Fri 2026-01-16 09:00:00 JST"
    assert upcoming[0]["here"] == "2026-01-16 01:00:00 CET"


def test_in_words_in_the_viewers_language() -> None:
    pytest.importorskip("cron_descriptor")
    assert "Monday through Friday" in in_words("0 9 * * 1-5")
    assert in_words("@every 90m") == "Every 90m"
    with translation.override("fr"):
        assert "lundi" in in_words("0 9 * * 1-5")
    with translation.override("tlh"):
        assert "Monday" in in_words("0 9 * * 1-5")
