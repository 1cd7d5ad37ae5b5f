"""A site of django-tenants with two tenants: `python -m tests.sites.tenancy.play URL` says as JSON how they fare."""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import django
from django.conf import settings

from django_ojs.database import parse_url

SHARED = ["django_tenants", "tests.sites.tenancy", "django.contrib.contenttypes", "django.contrib.auth"]
OURS = ["rest_framework", "channels", "django_ojs"]
TENANTS = ["one", "two"]
PUSHES, THREADS = 1200, 12


def configure(url: str) -> None:
    database = parse_url(url, Path.cwd()) | {"ENGINE": "django_tenants.postgresql_backend"}
    settings.configure(
        SECRET_KEY="tenants",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF="tests.sites.urls",
        DATABASES={"default": database},
        DATABASE_ROUTERS=["django_tenants.routers.TenantSyncRouter"],
        MIDDLEWARE=["django_tenants.middleware.main.TenantMainMiddleware"],
        SHARED_APPS=[*SHARED, *OURS],  # there are tables in the schema of all, too: a push may go wrong unnoticed
        TENANT_APPS=["django.contrib.contenttypes", "django.contrib.auth", *OURS],
        INSTALLED_APPS=[*SHARED, *OURS],
        TENANT_MODEL="tenancy.Tenant",
        TENANT_DOMAIN_MODEL="tenancy.Domain",
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        USE_TZ=True,
        OJS={
            "ALLOW_ANONYMOUS": True,
            "AUTHENTICATION_CLASSES": ["django_ojs.http.authentication.APIKeyAuthentication"],
        },
    )
    django.setup()


def make() -> None:
    from django.core.management import call_command
    from django.db import connection

    from tests.sites.tenancy.models import Domain, Tenant

    call_command("migrate_schemas", shared=True, verbosity=0)
    with connection.schema_editor() as editor:
        editor.create_model(Tenant)
        editor.create_model(Domain)
    for name in TENANTS:
        tenant = Tenant.objects.create(schema_name=name, name=name)
        Domain.objects.create(domain=f"{name}.test", tenant=tenant, is_primary=True)


def send(name: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    from django.test import Client

    answer = Client(headers=headers).generic(
        method, f"/ojs/v1{path}", "" if body is None else json.dumps(body), "application/json", HTTP_HOST=f"{name}.test"
    )
    content = b"".join(answer.streaming_content) if answer.streaming else answer.content  # type: ignore[attr-defined]
    return answer.status_code, json.loads(content) if content else None


def push_from_many_threads() -> list[str]:
    """Each thread serves one tenant after the other, as the threads of a server do."""
    wrong: list[str] = []
    gate = threading.Barrier(THREADS)

    def work(number: int) -> None:
        from django.db import connection

        gate.wait()
        for turn in range(PUSHES // THREADS):
            name = TENANTS[(number + turn) % 2]
            status, answer = send(name, "POST", "/jobs", {"type": f"of.{name}", "args": [turn], "queue": f"q.{name}"})
            if status != 201:
                wrong.append(f"{status}: {answer}")
        connection.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def rows(model: Any) -> dict[str, dict[str, int]]:
    """How many rows of which type each schema has."""
    from django_tenants.utils import schema_context  # type: ignore[import-untyped]

    found = {}
    for schema in ("public", *TENANTS):
        with schema_context(schema):
            column = "type" if model.__name__ == "Job" else "job_type" if model.__name__ == "Event" else "name"
            found[schema] = dict(Counter(model.objects.values_list(column, flat=True)))
    return found


def main(url: str) -> dict[str, Any]:
    configure(url)
    make()
    from django.core import checks
    from django_tenants.utils import schema_context

    from django_ojs import enqueue, keys
    from django_ojs.database import atomic
    from django_ojs.events import ids
    from django_ojs.models import Event, Job, Queue

    found: dict[str, Any] = {"checks": sorted(str(message.id) for message in checks.run_checks())}
    found["wrong"] = push_from_many_threads()
    found |= {"jobs": rows(Job), "events": rows(Event), "queues": rows(Queue)}
    with schema_context("one"):
        _, text = keys.create("one", scopes=["push", "read"])
    bearer = {"authorization": f"Bearer {text}"}
    found["key"] = [send(name, "GET", "/jobs", **bearer)[0] for name in ("one", "two", "one", "two")]
    config = send("one", "PUT", "/queues/shared/config", {"allowed_job_types": ["only.this"]})[0]
    body = {"type": "other.one", "args": [], "queue": "shared"}
    found["config"] = [config, *(send(name, "POST", "/jobs", body)[0] for name in ("two", "one", "two", "one"))]
    salts = {}
    for name in TENANTS:
        with schema_context(name):
            salts[name] = ids.salt_of("default")
    found["salts"] = len(set(salts.values()))
    found["polled"] = {
        name: sorted({event["data"]["job_type"] for event in send(name, "GET", "/events?limit=1000")[1]["events"]})
        for name in TENANTS
    }
    wish = {"queues": ["q.one", "q.two"], "count": 2}
    fetched = [send(name, "POST", "/workers/fetch", wish)[1]["jobs"] for name in ("one", "two", "one")]
    found["fetched"] = [[job["type"] for job in jobs] for jobs in fetched]
    found["stream"] = send("one", "GET", "/queues/q.one/events")
    with atomic(), schema_context("two"):  # committed after the caller has gone on
        enqueue("late.two", queue="late")
    found["late"] = rows(Queue)["two"].get("late"), rows(Queue)["public"].get("late")
    return found


if __name__ == "__main__":
    sys.stdout.write(f"\n{json.dumps(main(*sys.argv[1:]))}")  # behind what the migrations say
