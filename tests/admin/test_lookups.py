"""What may be asked of a list by its address: its filters, and nothing that tells what is hidden or sorts the table."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.sites import site
from django.contrib.admin.utils import quote
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_ojs import clock
from django_ojs.cron import schedules
from django_ojs.models import Alert, APIKey, AuditEntry, Job, WebhookSubscription
from django_ojs.statistics import summary
from django_ojs.webhooks import subscriptions
from django_ojs.workerregistry.registration import register
from django_ojs.workflows import workflow
from tests.admin.conftest import dead, one_in_each_state, pushed, url

pytestmark = pytest.mark.django_db

OURS = [model for model in site._registry if model._meta.app_label == "django_ojs"]


@pytest.mark.parametrize("model", OURS, ids=lambda model: model._meta.model_name)
def test_no_column_can_be_spelled_out(admin_client: Client, model: Any) -> None:
    listed = url(model._meta.model_name)
    for field in model._meta.concrete_fields:
        for lookup in ("__startswith", "__regex"):
            answer = admin_client.get(listed, {f"{field.name}{lookup}": "("})
            assert answer.status_code in (400, 403), (field.name, lookup)
    assert admin_client.get(listed, {"pk__startswith": "0"}).status_code in (400, 403)


def test_secrets_and_hidden_arguments_are_not_found(admin_client: Client) -> None:
    pushed(args=["4711"])
    subscriptions.create(
        subscriptions.read_definition({"url": "https://example.com/", "events": ["*"], "secret": "a-secret-for-tests"})
    )
    for model, lookup in ((Job, "args__contains"), (Job, "args"), (WebhookSubscription, "secret__startswith"),
                          (WebhookSubscription, "secret")):  # fmt: skip
        assert admin_client.get(url(model._meta.model_name), {lookup: "a-secret"}).status_code == 400


@pytest.mark.parametrize("model", OURS, ids=lambda model: model._meta.model_name)
def test_the_order_of_a_list_is_its_own(admin_client: Client, model: Any) -> None:
    def statements(**query: str) -> list[str]:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            assert admin_client.get(url(model._meta.model_name), query).status_code in (200, 403)
        return [one["sql"] for one in captured if "ORDER BY" in one["sql"] and model._meta.db_table in one["sql"]]

    plain = [sql.partition("ORDER BY")[2] for sql in statements()]
    assert [sql.partition("ORDER BY")[2] for sql in statements(o="4.2")] == plain


def test_a_key_that_is_deleted_leaves_its_trace(admin_client: Client) -> None:
    keys = [APIKey.objects.create(name=name, prefix=f"ojs_{name}", digest=name, scopes=["read"],
                                  created_at="2026-01-01T00:00:00Z") for name in ("one", "two")]  # fmt: skip
    admin_client.post(url("apikey", "delete", keys[0].pk), {"post": "yes"})
    chosen = {"action": "delete_selected", "_selected_action": [keys[1].pk], "post": "yes"}
    admin_client.post(url("apikey"), chosen)
    assert not APIKey.objects.exists()
    assert set(AuditEntry.objects.filter(action="apikey.delete").values_list("target", flat=True)) == {"one", "two"}


@pytest.mark.parametrize("priority", ["+-5", "--5", "5.5"])
def test_a_priority_that_is_none_is_told_at_its_field(admin_client: Client, priority: str) -> None:
    (job,) = dead()
    answer = admin_client.post(url("job", "edit", job.pk), {"priority": priority})
    assert answer.status_code == 200
    assert answer.context["form"].errors


def test_a_very_long_search_is_answered(admin_client: Client) -> None:
    assert admin_client.get(url("job"), {"q": "x" * 100_000}).status_code == 200
    assert admin_client.get(reverse("admin:django_ojs_dead_letters"), {"error": "x" * 100_000}).status_code == 200


def test_a_group_with_a_long_type_is_found_by_its_link(admin_client: Client) -> None:
    dead(error={"type": "E" * 200, "message": "no", "retryable": False})
    summary.forget()
    page = admin_client.get(reverse("admin:django_ojs_dead_letters"))
    (group,) = page.context["groups"]
    found = admin_client.get(reverse("admin:django_ojs_dead_letters") + "?" + group["query"])
    assert len(found.context["newest"]) == 1


@pytest.mark.urls("tests.admin.urls_without_jobs")
def test_pages_of_an_admin_without_jobs(admin_client: Client) -> None:
    jobs = one_in_each_state()
    workflow.create({"type": "chain", "steps": [{"type": "a.b", "args": []}]})
    schedules.register({"name": "tick", "cron": "@every 10s", "type": "a.b", "args": []})
    register("w-1", {"queues": ["claims"]})
    for kind in ("type-unserved", "maintenance-on"):  # whose places to look are pages of jobs
        Alert.objects.create(kind=kind, about="a.b", says="", raised_at=clock.now(), seen_at=clock.now())
    seen = 0
    for model in OURS:
        if model is Job:
            continue
        listed = f"/partial/django_ojs/{model._meta.model_name}/"
        assert admin_client.get(listed).status_code in (200, 403), listed
        for pk in model.objects.values_list("pk", flat=True)[:2]:
            answer = admin_client.get(f"{listed}{quote(pk)}/change/")
            assert answer.status_code in (200, 403), (listed, pk)
            seen += 1
    assert seen > 6
    assert jobs
