"""NUL in an address or a selection: no row has it in its key, and PostgreSQL refuses to look for it."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.sites import site
from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import reverse

from django_ojs.models import ErrorNote, Job, Queue
from django_ojs.queues.configuration import configure
from django_ojs.workerregistry.registration import register
from tests.admin.conftest import dead, pushed, url

pytestmark = pytest.mark.django_db

OURS = [model for model in site._registry if model._meta.app_label == "django_ojs"]


@pytest.mark.parametrize("model", OURS, ids=lambda model: model._meta.model_name)
@pytest.mark.parametrize("page", ["change/", "history/", "delete/", "do/pause/"])
@pytest.mark.parametrize("key", ["nope%00", "%00", "a_00b"])
def test_a_page_of_no_row_is_not_found(admin_client: Client, model: Any, page: str, key: str) -> None:
    answer = admin_client.get(f"{url(model._meta.model_name)}{key}/{page}")
    assert answer.status_code in (302, 403, 404)  # Django leads back from a row that is not there


@pytest.mark.parametrize("model", OURS, ids=lambda model: model._meta.model_name)
@pytest.mark.parametrize("key", ["\0", "nope\0", "nonsense"])
def test_what_can_be_no_key_is_not_selected(admin_client: Client, model: Any, key: str) -> None:
    configure("mail", {})
    (job,) = pushed()
    admin = site._registry[model]
    for action in (getattr(one, "__name__", one) for one in admin.actions or ()):
        given = {"action": action, ACTION_CHECKBOX_NAME: [key], "index": "0", "sure": "1"}
        assert admin_client.post(url(model._meta.model_name), given).status_code in (200, 302, 403)
    assert Job.objects.get().state == job.state
    assert not Queue.objects.get(pk="mail").paused


def test_the_rest_of_a_selection_is_done(admin_client: Client) -> None:
    (job,) = pushed()
    given = {"action": "cancel_jobs", ACTION_CHECKBOX_NAME: ["\0", "nonsense", str(job.pk)], "index": "0", "sure": "1"}
    assert admin_client.post(url("job"), given).status_code == 302
    assert Job.objects.get().state == "cancelled"


def test_an_underscore_in_a_name_is_no_nul(admin_client: Client) -> None:
    register("a_00b", {})
    assert admin_client.get(url("worker", "change", quote("a_00b"))).status_code == 200


@pytest.mark.parametrize("page", ["give", "restart"])
def test_no_step_is_named_by_what_no_database_holds(admin_client: Client, page: str) -> None:
    (job,) = dead(1)
    address = f"{url('job', page, job.pk)}?step=%00"
    for method in (admin_client.get, admin_client.post):
        assert method(address, {"payload": "1"} if method == admin_client.post else {}).status_code in (200, 302)
    assert Job.objects.get().state == job.state


@pytest.mark.parametrize("model", OURS, ids=lambda model: model._meta.model_name)
def test_a_list_is_not_filtered_by_what_no_column_has(admin_client: Client, model: Any) -> None:
    for one in site._registry[model].list_filter:
        names = [f"{one}__exact", f"{one}__in", f"{one}__gte"] if isinstance(one, str) else [one.parameter_name]
        for name in names:
            answer = admin_client.get(url(model._meta.model_name), {name: "a\0"})
            assert answer.status_code in ((400, 403) if isinstance(one, str) else (200,)), name


def test_a_note_about_dead_letters_is_kept_without_it(admin_client: Client) -> None:
    group = reverse("admin:django_ojs_dead_letters_group") + "?type=mail.send&error=OSError&message=gone"
    assert admin_client.post(group, {"note": "a\0b"}).status_code == 302
    assert ErrorNote.objects.get().note == "ab"
