"""What is done with a site of `tests.sites.play`: by programs, by Python, by somebody in a browser."""

from __future__ import annotations

import re
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.test import Client

from django_ojs import get_job, job, keys
from django_ojs.models import Job
from django_ojs.testing import worker


@job("sum.up")
def sum_up(*numbers: int) -> int:
    return sum(numbers)


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
    client.force_login(get_user_model()._default_manager.create(email="a@example.com"))
    return [client.get(f"/ojs/v1/{path}").status_code for path in ("queues", "admin/stats", "health")]


def admin() -> dict[str, Any]:
    """The pages of the admin, and what on them leads out of the prefix."""
    from django.contrib import admin as site
    from django.contrib.auth.models import User

    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    pages = [f"{model._meta.model_name}/" for model in site.site._registry if model._meta.app_label == "django_ojs"]
    pages += [f"job/{Job.objects.filter(type='a.b').get().pk}/change/", "queue/default/change/"]
    pages += ["job/overview/", "job/dead-letters/"]
    pages.remove("outboxentry/")  # this site has none
    stray, codes = set(), set()
    for page in pages:
        answer = client.get(f"/back/office/django_ojs/{page}")
        codes.add(answer.status_code)
        links = re.findall(r"=[\"'](/[^\"']*)", answer.content.decode())
        assert f"{settings.FORCE_SCRIPT_NAME}/back/office/" in links
        stray |= {link for link in links if not f"{link}/".startswith(f"{settings.FORCE_SCRIPT_NAME}/")}
    return {"codes": sorted(codes), "stray": sorted(stray)}
