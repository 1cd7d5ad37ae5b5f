"""Schedules in the admin: shown in full, operated through the operations, with the rights it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from django_ojs.cron import schedules
from django_ojs.cron.runs import trigger
from django_ojs.models import CronSchedule, Job
from tests.admin.conftest import said, url

pytestmark = pytest.mark.django_db


def make(name: str = "nightly", **members: Any) -> CronSchedule:
    body = {"name": name, "cron": "0 9 * * 1-5", "timezone": "Europe/Paris", "type": "report.make", "args": ["<b>"]}
    return schedules.register({**body, **members})[0]


def press(client: Client, schedule: CronSchedule, verb: str) -> Any:
    return client.post(url("cronschedule", "verb", schedule.pk, verb), {"sure": "yes"}, follow=True)


def act(client: Client, verb: str, *names: str) -> Any:
    data = {"action": verb, "_selected_action": list(names), "sure": "yes"}
    return client.post(url("cronschedule"), data, follow=True)


def test_the_list_shows_when_each_runs(admin_client: Client, frozen_clock: Any) -> None:
    make()
    make("off", enabled=False)
    page = admin_client.get(url("cronschedule")).content.decode()
    assert "0 9 * * 1-5" in page
    assert "Europe/Paris" in page
    assert "(in 20 h)" in page, "2026-01-16 08:00 UTC, from 12:00 the day before"
    assert ">paused</span>" in page


def test_the_page_shows_the_schedule_its_jobs_and_its_runs(admin_client: Client) -> None:
    schedule = make()
    _, row = trigger("nightly")
    page = admin_client.get(url("cronschedule", "change", schedule.pk)).content.decode()
    assert "Monday through Friday" in page
    assert url("job", "change", row["id"]) in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page.replace('<b class="', "")
    Job.objects.all().delete()
    assert ">deleted</span>" in admin_client.get(url("cronschedule", "change", schedule.pk)).content.decode()


@pytest.mark.parametrize("expression", ["@every 5m", "@daily", "*/10 * * * * *", "0 0 15W * *", "0 0 ? * FRIL"])
def test_every_kind_of_expression_has_a_page(admin_client: Client, expression: str) -> None:
    schedule = make(cron=expression)
    assert admin_client.get(url("cronschedule", "change", schedule.pk)).status_code == 200


def test_run_now_disable_and_enable(admin_client: Client) -> None:
    schedule = make()
    assert said(press(admin_client, schedule, "run_schedules")) == ["1 schedule run."]
    assert Job.objects.get().meta["cron_name"] == "nightly"
    (refused,) = said(press(admin_client, schedule, "run_schedules"))
    assert "has a run that has not ended" in refused
    press(admin_client, schedule, "disable_schedules")
    assert not schedules.get("nightly").enabled
    press(admin_client, schedule, "enable_schedules")
    assert schedules.get("nightly").enabled
    assert [entry.change_message for entry in LogEntry.objects.order_by("pk")] == ["Run.", "Disabled.", "Enabled."]


def test_actions_of_the_list(admin_client: Client) -> None:
    make("a")
    make("b")
    assert said(act(admin_client, "disable_schedules", "a", "b")) == ["2 schedules disabled."]
    assert said(act(admin_client, "run_schedules", "a", "b")) == ["2 schedules run."]
    assert said(act(admin_client, "delete_schedules", "a")) == ["1 schedule deleted."]
    assert list(CronSchedule.objects.values_list("name", flat=True)) == ["b"]
    assert Job.objects.count() == 2


def test_looking_does_not_give_the_right_to_act(operator: Callable[..., Client]) -> None:
    schedule = make()
    client = operator("view_cronschedule")
    assert "Run now" not in client.get(url("cronschedule", "change", schedule.pk)).content.decode()
    for verb in ("run_schedules", "disable_schedules", "delete_schedules"):
        assert press(client, schedule, verb).status_code == 403
    assert not Job.objects.exists()
    assert schedules.get("nightly").enabled


def test_changing_does_not_give_the_right_to_delete(operator: Callable[..., Client]) -> None:
    schedule = make()
    client = operator("view_cronschedule", "change_cronschedule")
    assert press(client, schedule, "disable_schedules").status_code == 200
    assert press(client, schedule, "delete_schedules").status_code == 403
    assert CronSchedule.objects.exists()
