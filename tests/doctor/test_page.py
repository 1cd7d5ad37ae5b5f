"""The page in the admin: the findings of the command, for who may see the overview, in the viewer's language."""

from __future__ import annotations

import datetime as dt
import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from django_ojs import clock, doctor
from django_ojs.admin.display import translated
from django_ojs.models import Worker
from django_ojs.statistics import summary
from django_ojs.workerregistry.registration import register
from tests.admin.conftest import operator, pushed  # noqa: F401  (a fixture)

pytestmark = pytest.mark.django_db
PAGE = reverse("admin:django_ojs_doctor")


def text(client: Client) -> str:
    response = client.get(PAGE)
    assert response.status_code == 200
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", response.content.decode())))


def test_it_shows_what_the_command_finds(admin_client: Client, settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    pushed(3)
    shown = text(admin_client)
    findings = doctor.examine()
    assert {"django_ojs.W001", "workers-missing"} <= {one.id for one in findings}
    for one in findings:
        for part in (one.id, str(one.title), one.says, one.mend):
            assert part in shown


def test_nothing_to_mend(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DIAGNOSES", ())
    assert "Nothing to mend was found." in text(admin_client)


def test_the_overview_leads_there(admin_client: Client) -> None:
    assert f'href="{PAGE}"' in admin_client.get(reverse("admin:django_ojs_overview")).content.decode()


def test_who_may_see_it(operator: Callable[..., Client], client: Client) -> None:  # noqa: F811
    assert client.get(PAGE).status_code == 302
    assert operator("view_queue").get(PAGE).status_code == 403


def test_workers_are_for_those_who_may_see_workers(
    operator: Callable[..., Client], admin_client: Client  # noqa: F811
) -> None:  # fmt: skip
    register("w-secret", {"queues": ["default"]})
    clock.freeze(clock.now() + dt.timedelta(hours=1))
    assert "w-secret" in text(admin_client)
    summary.forget()
    assert "w-secret" not in text(operator("view_job"))


def test_so_are_dead_threads_in_them(operator: Callable[..., Client], admin_client: Client) -> None:  # noqa: F811
    register("w-secret", {"queues": ["default"]})
    Worker.objects.update(threads_replaced=1)
    assert "threads that run handlers have died" in text(admin_client)
    summary.forget()
    assert "w-secret" not in text(operator("view_job"))


def test_it_speaks_french(admin_client: Client, settings: Any) -> None:
    settings.LANGUAGE_CODE = "fr"
    pushed(3)
    shown = text(admin_client)
    assert "Des tâches attendent et aucun worker ne tourne" in shown
    assert "Correction :" in shown
    for one in doctor.examine():
        if not one.id.startswith("django_ojs."):
            assert translated(one.title) != str(one.title) or one.id == "check"
