"""Whatever address of ours a browser can be made to post to: none acts without the token, and none leads away."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin.sites import site
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from django_ojs.models import AuditEntry, Job, Queue
from django_ojs.queues.configuration import pause
from tests.admin.conftest import dead, pushed, url

pytestmark = pytest.mark.django_db
OURS = [model for model in site._registry if model._meta.app_label == "django_ojs"]
SAFE = {"get", "head", "options", "trace"}
AWAY = [
    "https://evil.example/", "//evil.example/", "///evil.example/", "/\\evil.example/", "\\\\evil.example/",
    "https:evil.example", "http:///evil.example", "javascript:alert(1)", "data:text/html,x", "\t//evil.example",
    " //evil.example", "/\t/evil.example", "https://testserver@evil.example/",
]  # fmt: skip


def admin_addresses(pk: Any) -> Iterator[str]:
    """Every address that the admin has for our models, those of pages added to it tomorrow included."""
    words = {
        "slug": ["cancel_jobs", "retry_dead_letters", "pause_queues"],
        "path": [str(pk)],
        "uuid": [str(pk)],
        "str": ["x:y:z"],
    }
    for model in OURS:
        base = url(str(model._meta.model_name))
        for pattern in site._registry[model].get_urls():
            routes = [str(pattern.pattern)]
            while any("<" in route for route in routes):
                routes = [
                    route.replace(found[0], word, 1)
                    for route in routes
                    if (found := re.search(r"<(\w+):\w+>", route))
                    for word in words[found[1]]
                ]
            yield from (base + route for route in routes)


def api_addresses() -> Iterator[tuple[str, str, str]]:
    """(path, method, name of the view) for every method of the API that changes something."""

    def walk(patterns: Any, before: str) -> Iterator[tuple[str, Any]]:
        for item in patterns:
            if isinstance(item, URLResolver):
                yield from walk(item.url_patterns, before + str(item.pattern))
            elif isinstance(item, URLPattern):
                yield before + str(item.pattern), item.callback

    for route, callback in walk(get_resolver("django_ojs.urls").url_patterns, "/"):
        view, given = callback.cls, callback.initkwargs
        for method in given.get("http_method_names", view.http_method_names):
            if method not in SAFE and (hasattr(view, method) or method in getattr(callback, "actions", ())):
                yield re.sub(r"<\w+:\w+>", "01a201b1-544f-74cc-976e-afeb0e131d9f", route), method, view.__name__


def strict_client() -> Client:
    client = Client(enforce_csrf_checks=True)
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


def test_no_address_of_the_admin_takes_a_post_without_the_token() -> None:
    (job,) = pushed()
    dead(2)
    client = strict_client()
    addresses = list(admin_addresses(job.pk))
    assert len(addresses) > 60
    for address in addresses:
        response = client.post(address, {"sure": "yes", "post": "yes", "priority": "9", "_save": "1"})
        assert response.status_code == 403, address
        assert b"CSRF verification failed" in response.content, address
    assert (Job.objects.get(pk=job.pk).state, Job.objects.dead_letters().count()) == ("available", 2)
    assert not AuditEntry.objects.exists()


def test_no_address_of_the_api_takes_a_session_without_the_token(settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": False}
    client = strict_client()
    asked = [one for one in api_addresses() if one[2] not in ("NotFoundView", "Reset")]  # these have no session
    assert len(asked) > 60
    for path, method, _view in asked:
        response = client.generic(method.upper(), path, "{}", content_type="application/json")
        assert response.status_code == 403, (method, path)
        assert response.json()["error"]["details"]["reason"] == "csrf", (method, path)
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize("away", AWAY)
def test_an_act_leads_back_to_nowhere_but_this_site(admin_client: Client, away: str) -> None:
    (job,) = pushed(queue="mail")
    pause("mail")
    for action in (url("queue", "verb", "mail", "resume_queues"), url("job", "verb", job.pk, "cancel_jobs"),
                   url("job", "priority", job.pk)):  # fmt: skip
        response = admin_client.post(f"{action}?next={away}", {"next": away, "priority": "3"})
        assert response.status_code == 302
        assert response["Location"].startswith("/admin/django_ojs/"), action
    assert not Queue.objects.get(pk="mail").paused


def test_an_act_leads_back_to_the_page_of_ours_that_it_was_on(admin_client: Client) -> None:
    """So that what the test above sees is not that `next` is dead."""
    pause("mail")
    back = "/admin/django_ojs/job/overview/?x=1"
    assert admin_client.post(url("queue", "verb", "mail", "resume_queues"), {"next": back})["Location"] == back
