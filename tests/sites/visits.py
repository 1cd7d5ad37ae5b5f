"""What is done with a site of `tests.sites.play`: by programs, by Python, by somebody in a browser."""

from __future__ import annotations

import re
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.core import mail
from django.test import Client

from django_ojs import JobContext, approvals_for, approve, get_job, job, keys
from django_ojs.jobs import approvalmail
from django_ojs.models import Approval, Job, WebhookSubscription
from django_ojs.rules.approvals import parse_mail
from django_ojs.testing import worker
from django_ojs.webhooks.subscriptions import mail_to_owner


@job("sum.up")
def sum_up(*numbers: int) -> int:
    return sum(numbers)


@job("ask.them", durable=True)
def ask_them(context: JobContext, *assignees: str) -> bool:
    return context.wait_for_approval("may I", assignees=assignees).approved


def somebody() -> Any:
    """A user of the site's kind, with a password."""
    model: Any = get_user_model()
    found, is_new = model._default_manager.get_or_create(**{model.USERNAME_FIELD: "a@example.com"})
    if is_new:
        found.set_password("x")
        found.save()
    return found


def http() -> dict[str, Any]:
    """A client with a key: the manifest, a job, its events, and what nobody has."""
    _, key = keys.create("client", scopes=["push", "read", "admin"])
    client = Client(headers={"authorization": f"Bearer {key}"})
    manifest = client.get("/ojs/manifest").json()
    pushed = client.post("/ojs/v1/jobs", {"type": "a.b", "args": [1]}, content_type="application/json")
    events = client.get("/ojs/v1/events", {"job_id": pushed.json()["job"]["id"]})
    return {
        "anonymous": Client().get("/ojs/v1/queues").status_code,
        "pushed": pushed.status_code,
        "location": pushed["Location"],
        "endpoints": manifest["endpoints"],
        "transports": manifest["events"]["transports"],
        "events": [event["type"] for event in events.json()["events"]],
        "slash": client.get("/ojs/v1/queues/").status_code,
        "stats": client.get("/ojs/v1/admin/stats").status_code,
    }


def python() -> dict[str, Any]:
    with worker() as jobs:
        handle = sum_up.enqueue(1, 2, 3)
        jobs.drain()
        found = get_job(handle.id)
        return {"state": found.state, "result": found.result}


def asgi() -> bool:
    """Whether WebSockets are served."""
    from django_ojs.realtime.asgi import application

    http: Any = object()
    return application(http) is not http


def session() -> list[int]:
    """Somebody who is logged in, but whose kind knows neither staff nor permissions."""
    client = Client()
    client.force_login(somebody())
    return [client.get(f"/ojs/v1/{path}").status_code for path in ("queues", "admin/stats", "health")]


def asked() -> list[Any]:
    """How many approvals ask somebody, of one that asks by name and one that asks whoever may decide; and whether the
    decision by name counts."""
    user = somebody()
    with worker() as jobs:
        by_name, _ = ask_them.enqueue(f"user:{user.get_username()}"), ask_them.enqueue()
        jobs.drain()
        waiting = approvals_for(user).count()
        approve(Approval.objects.get(job_id=by_name.id), by=user)
        jobs.drain()
        return [waiting, by_name.refresh().result]


def mails() -> list[list[str]]:
    """Who gets a mail: of those who are asked, and as the owner of a webhook."""
    user, group = somebody(), Group.objects.create(name="finance")
    with worker() as jobs:
        for assignee in (f"user:{user.get_username()}", f"group:{group.name}", "perm:shop.refund"):
            ask_them.enqueue(assignee)
        jobs.drain()
    form = parse_mail(settings.OJS["APPROVAL_MAIL"])
    assert form is not None
    approvalmail.tell(form)
    assert not Approval.objects.filter(state="open", mail_due=True).exists()
    owned = mail_to_owner(WebhookSubscription(created_by=f"user:{user.get_username()}"))
    return [list(one.to) for one in [*mail.outbox, *filter(None, [owned])]]


def admin() -> dict[str, Any]:
    """The pages of the admin, and what on them leads out of the prefix."""
    from django.contrib import admin as site

    user, prefix = somebody(), (settings.FORCE_SCRIPT_NAME or "").rstrip("/")
    if hasattr(user, "is_superuser"):
        user.is_staff = user.is_superuser = True
        user.save()
    client = Client()
    client.force_login(user)
    pages = [f"{model._meta.model_name}/" for model in site.site._registry if model._meta.app_label == "django_ojs"]
    pages += [f"job/{Job.objects.filter(type='a.b').get().pk}/change/", "queue/default/change/"]
    pages += ["job/overview/", "job/dead-letters/"]
    pages += [f"approval/{one.pk}/decide/" for one in approvals_for(user)]
    pages.remove("outboxentry/")  # this site has none
    stray, codes = set(), set()
    for page in pages:
        answer = client.get(f"/back/office/django_ojs/{page}")
        codes.add(answer.status_code)
        links = re.findall(r"=[\"'](/[^\"']*)", answer.content.decode())
        assert f"{prefix}/back/office/" in links
        stray |= {link for link in links if not f"{link}/".startswith(f"{prefix}/")}
    return {"codes": sorted(codes), "stray": sorted(stray)}
