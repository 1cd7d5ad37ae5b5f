"""Something on every page of ours in the admin, and the addresses of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib.admin.sites import AdminSite
from django.contrib.admin.utils import quote
from django.urls import reverse

from django_ojs import audit, keys
from django_ojs.cron import schedules
from django_ojs.models import Alert, Approval, WebhookSubscription
from django_ojs.queues.configuration import configure, pause
from django_ojs.rules.ids import new_job_id
from django_ojs.workerregistry.registration import register
from django_ojs.workflows import workflow
from tests.admin.conftest import dead, one_in_each_state, url


def fill() -> None:
    """Make something of each kind."""
    one_in_each_state()
    dead()
    pause("mail", by="ann")
    configure("sms", {"concurrency": 5})
    register("w-1", {"queues": ["mail"], "hostname": "box", "job_types": ["a.b"], "concurrency": 4})
    schedules.register({"name": "nightly", "cron": "30 2 * * *", "timezone": "Europe/Paris", "type": "a.b", "args": []})
    schedules.register({"name": "coded", "cron": "@every 5m", "type": "a.b", "args": []}, source="code")
    workflow.create({"type": "chain", "name": "x", "steps": [{"type": "a.b", "args": []}]})
    audit.append([audit.Act("user:a", "queue.pause", "q")], "default")
    keys.create("k", ["read"])
    now = schedules.get("nightly").created_at
    for key, over in (("queue-paused mail", None), (None, now)):
        Alert.objects.create(
            key=key, kind="queue-paused", about="mail", says="It is paused.", mend="Resume it.", raised_at=now,
            seen_at=now, cleared_at=over,
        )  # fmt: skip
    about = {"job_id": new_job_id(), "type": "a.b", "queue": "mail", "name": "refund", "title": "Refund?"}
    Approval.objects.create(id=new_job_id(), requested_at=now, details={"order": 7}, **about)
    made = {"events": ["job.*"], "secret": "", "created_by": "x", "active": False, "created_at": now, "updated_at": now}
    WebhookSubscription.objects.create(url="https://example.com/x", **made)


def pages(site: AdminSite) -> list[str]:
    """The pages of this site that are about what is ours."""
    ours = {model: admin for model, admin in site._registry.items() if model._meta.app_label == "django_ojs"}
    assert len(ours) > 10
    index = reverse("admin:app_list", args=["django_ojs"])
    return [index, *(page for model, admin in ours.items() for page in _pages(model, admin))]


def _pages(model: Any, admin: Any) -> Iterator[str]:
    """The list of a model, its form, two of its objects with their history, and a question for each verb."""
    kind = str(model._meta.model_name)
    yield url(kind)
    for obj in model._default_manager.order_by("pk")[:2]:
        yield from (url(kind, page, quote(obj.pk)) for page in ("change", "history"))
        yield from (url(kind, "verb", quote(obj.pk), verb.name) for verb in getattr(admin, "verbs", ()))
    if kind in ("queue", "cronschedule", "apikey", "webhooksubscription"):
        yield url(kind, "add")
    if kind == "apikey":
        yield url(kind, "delete", quote(model._default_manager.latest("pk").pk))
    if kind == "event":
        yield reverse("admin:django_ojs_event_tail")
    if kind == "job":
        yield from (
            reverse(f"admin:django_ojs_{name}") for name in ("overview", "dead_letters", "maintenance", "doctor")
        )
        yield reverse("admin:django_ojs_dead_letters_all", args=["retry_dead_letters"])
        yield reverse("admin:django_ojs_dead_letters_group") + "?type=mail.send&error=OSError&message=gone"
        yield url(kind, "edit", model._default_manager.dead_letters().latest("pk").pk)
