"""The navigation of our pages: what the user may see, in groups, and where one is."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any
from urllib.parse import urljoin

import pytest
from django.contrib.admin.sites import site
from django.test import Client
from django.urls import reverse

from django_ojs.cron import runs
from django_ojs.models import Job
from django_ojs.queues import maintenance
from django_ojs.queues.configuration import pause
from django_ojs.statistics import summary
from tests.admin.conftest import dead, url
from tests.dashboard.everything import fill, pages

pytestmark = pytest.mark.django_db
OVERVIEW = "/admin/django_ojs/job/overview/"
DAILY = ["Overview", "Jobs", "Dead letters", "Queues", "Workers", "Workflows", "Schedules", "Approvals"]
REST = [
    *(
        "Events",
        "Live events",
        "Bulk actions",
        "Alerts",
        "Audit log",
        "Rate limits",
        "Replay rules",
        "Schemas",
        "Webhooks",
    ),
    *("Deliveries", "API keys"),
]


def nav(client: Client, page: str) -> str:
    body = client.get(page).content.decode()
    return body.partition('<nav class="ojs-nav"')[2].partition("</nav>")[0]


def links(client: Client, page: str) -> dict[str, str]:
    """Where each link leads, by its text."""
    return {text: address for address, text in re.findall(r'<a href="([^"]*)"[^>]*>([^<]*)</a>', nav(client, page))}


def here(client: Client, page: str) -> list[str]:
    return re.findall(r'aria-current="page">([^<]*)<', nav(client, page))


def test_everything_is_one_click_away(admin_client: Client, settings: Any) -> None:
    found = links(admin_client, OVERVIEW)
    assert list(found) == [*DAILY, *REST]
    for address in found.values():
        assert admin_client.get(address).status_code == 200, address
    settings.OJS = {"OUTBOX": "default"}
    found = links(admin_client, OVERVIEW)
    assert found["Outbox"] == url("outboxentry")


def test_only_what_the_user_may_see(operator: Callable[..., Client]) -> None:
    client = operator("view_job", "view_auditentry")
    assert list(links(client, OVERVIEW)) == ["Overview", "Jobs", "Dead letters", "Bulk actions", "Audit log"]


def test_without_the_rest_there_is_nothing_to_fold_out(operator: Callable[..., Client]) -> None:
    client = operator("view_queue")
    assert list(links(client, url("queue"))) == ["Queues"]
    assert "<details" not in nav(client, url("queue"))


def test_each_page_says_where_it_is_and_the_rest_is_open_there(admin_client: Client) -> None:
    dead()
    pause("mail")
    pages = {
        OVERVIEW: "Overview", url("job"): "Jobs", url("job", "change", Job.objects.get().pk): "Jobs",
        reverse("admin:django_ojs_dead_letters"): "Dead letters", url("queue", "history", "mail"): "Queues",
        reverse("admin:django_ojs_dead_letters_all", args=["retry_dead_letters"]): "Dead letters",
    }  # fmt: skip
    for page, name in pages.items():
        assert here(admin_client, page) == [name], page
        assert "<details>" in nav(admin_client, page)
    for page, name in {url("event", "tail"): "Live events", url("apikey"): "API keys", url("event"): "Events"}.items():
        assert here(admin_client, page) == [name], page
        assert "<details open>" in nav(admin_client, page)
    assert here(admin_client, reverse("admin:app_list", args=["django_ojs"])) == []


@pytest.mark.urls("tests.dashboard.urls")
def test_another_admin_site_leads_to_its_own_pages(admin_client: Client) -> None:
    page = reverse("admin:django_ojs_overview", current_app="backstage")
    found = links(admin_client, page)
    assert list(found) == ["Overview", "Jobs", "Dead letters", "Queues"]
    assert all(address.startswith("/backstage/") for address in found.values())


@pytest.mark.parametrize(
    "right",
    [
        *("view_job", "view_event", "view_workflow", "view_queue", "view_worker", "view_cronschedule", "view_alert"),
        *("view_webhooksubscription", "view_webhookdelivery", "view_approval", "decide_approval"),
    ],
)
def test_no_link_leads_to_what_the_user_may_not_see(operator: Callable[..., Client], settings: Any, right: str) -> None:
    settings.OJS = {"OUTBOX": "default"}
    fill()
    runs.trigger("nightly")
    maintenance.start()
    summary.forget()
    client = operator(right)
    found: dict[str, str] = {}
    seen = 0
    for page in pages(site):
        answer = client.get(page)
        if answer.status_code == 200:
            seen += 1
            links = re.findall(r'href="((?:/admin/django_ojs/|\?)[^"]*)"', answer.content.decode())
            found |= {urljoin(page, unescape(link)): page for link in links}
    assert seen > 1
    assert [(link, page) for link, page in found.items() if client.get(link).status_code == 403] == []
