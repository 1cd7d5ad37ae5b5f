"""Two names are two names at each door and on each database, if only case, accents or final spaces differ."""

from __future__ import annotations

import io
from typing import Any
from urllib.parse import quote

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import connection, models
from django.test import Client
from django.urls import reverse

from django_ojs import clock, emit_event, keys
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.push import push
from django_ojs.models import (
    APIKey,
    Approval,
    ApprovalAssignee,
    BulkAction,
    CronSchedule,
    Event,
    Job,
    JobAttempt,
    Lease,
    Queue,
    Release,
    ReplayRule,
    Worker,
)
from django_ojs.models.fields import NameField
from django_ojs.scheduler.scheduler import Leadership
from django_ojs.states import State
from django_ojs.workerregistry.heartbeat import Beat, beat
from django_ojs.workerregistry.registration import deregister, register
from tests.http.conftest import Api, api

pytestmark = pytest.mark.django_db

__all__ = ["api"]

NAMES = ["Import", "import", "IMPORT", "ímport"]


@pytest.fixture(autouse=True)
def _open_site(settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out, stderr=out, no_color=True)
    return out.getvalue().strip()


def body_of(answer: Any) -> Any:
    assert answer.status_code < 300, answer.content
    return answer.json()


# Workers


@pytest.fixture
def workers() -> list[str]:
    """Each has a job, and has been heard twice in this minute."""
    named = [*NAMES, "import "]
    for number, name in enumerate(named):
        push([{"type": "a.b", "queue": f"q{number}", "args": []}])
        register(name, {"hostname": f"host-{number}", "pid": number + 1, "queues": [f"q{number}"]})
        assert len(fetch(Fetch([f"q{number}"], worker_id=name))) == 1
        beat(Beat(name, state="running"))
    return named


def test_workers_over_http(api: Any, workers: list[str]) -> None:
    assert sorted(one["id"] for one in body_of(api.get("/admin/workers"))["workers"]) == sorted(workers)
    body_of(api.delete("/workers/import"))
    left = set(workers) - {"import"}
    assert {one["id"] for one in body_of(api.get("/admin/workers"))["workers"]} == left
    assert set(Job.objects.filter(state=State.ACTIVE).values_list("worker_id", flat=True)) == left


def test_what_a_worker_holds_is_not_another_ones(workers: list[str], admin_client: Client) -> None:
    for number, name in enumerate(workers):
        shown = admin_client.get(reverse("admin:django_ojs_worker_change", args=[name]), follow=True)
        assert f"host-{number}" in shown.content.decode()
        assert Job.objects.filter(worker_id=name).count() == 1
        assert {event.worker_id for event in Event.objects.filter(worker_id=name)} == {name}


def test_workers_by_the_command(workers: list[str]) -> None:
    run("ojs_workers", "quiet", "Import")
    assert list(Worker.objects.exclude(directive="").values_list("pk", flat=True)) == ["Import"]


def test_who_leads() -> None:
    first, second = (
        Leadership("scheduler", "Host-A", connection.alias),
        Leadership("scheduler", "host-a", connection.alias),
    )
    assert (first.run_once(), second.run_once()) == (True, False)
    register("host-a", {"queues": ["default"]})
    deregister("host-a")
    assert Lease.objects.get(name="scheduler").holder == "Host-A"


def test_releases(settings: Any) -> None:
    for number, release in enumerate(("v1-A", "v1-a")):
        register(f"w{number}", {"release": release, "queues": ["default"]})
    assert set(Release.objects.values_list("pk", flat=True)) >= {"v1-A", "v1-a"}
    for number, release in enumerate(("v1-A", "v1-a")):
        assert Worker.objects.get(release=release).pk == f"w{number}"
    assert JobAttempt.objects.filter(release="V1-a").count() == 0


# What has names of its own


#: What is found by a name, how it is made, and where it is looked for. These names are in small letters.
LOOKUPS = {
    "schedule": ("/cron/{}", "/admin/cron/{}"),
    "rule": ("/admin/dead-letter/replay-rules/{}",),
    "queue": ("/queues/{}/stats", "/queues/{}/config", "/admin/queues/{}"),
    "schema": ("/schemas/{}", "/schemas/{}/versions/1", "/admin/schemas/{}"),
    "rate limit": ("/rate-limits/{}",),
}


@pytest.mark.parametrize("kind", LOOKUPS)
def test_a_name_in_other_letters_finds_nothing(kind: str, api: Any) -> None:
    match kind:
        case "schedule":
            api.post("/cron", {"name": "import", "expression": "0 3 * * *", "type": "a.b", "args": []})
        case "rule":
            run("ojs_dead_letter", "set-rule", "import", "--queue", "q")
        case "queue" | "rate limit":
            push([{"type": "a.b", "args": [], "queue": "import", "rate_limit": {"key": "import", "concurrency": 1}}])
        case "schema":
            api.post("/schemas", {"type": "import", "version": "1", "schema": {}})
    for path in LOOKUPS[kind]:
        found = {name: api.get(path.format(quote(name))).status_code for name in ("import", "Import", "ímport")}
        assert found == {"import": 200, "Import": 404, "ímport": 404}, path


@pytest.mark.parametrize("page", ["queue", "cronschedule", "replayrule", "worker"])
def test_a_page_of_the_admin_in_other_letters_is_none(page: str, api: Any, admin_client: Client) -> None:
    api.post("/cron", {"name": "import", "expression": "0 3 * * *", "type": "a.b", "args": [], "queue": "import"})
    run("ojs_dead_letter", "set-rule", "import", "--queue", "q")
    register("import", {"queues": ["import"]})
    push([{"type": "a.b", "args": [], "queue": "import"}])
    key = ReplayRule.objects.get().pk if page == "replayrule" else "import"
    for name, status in ((str(key), 200), ("Import", 302), ("IMPORT", 302)):
        assert admin_client.get(reverse(f"admin:django_ojs_{page}_change", args=[name])).status_code == status


def test_commands_for_a_name_in_other_letters(api: Any) -> None:
    api.post("/cron", {"name": "import", "expression": "0 3 * * *", "type": "a.b", "args": [], "queue": "import"})
    run("ojs_dead_letter", "set-rule", "import", "--queue", "q")
    push([{"type": "a.b", "args": [], "queue": "import"}])
    for arguments in (
        ("ojs_cron", "disable", "Import"), ("ojs_dead_letter", "delete-rule", "Import"),
        ("ojs_dead_letter", "preview-rule", "Import"), ("ojs_queues", "pause", "Import"),
    ):  # fmt: skip
        with pytest.raises(CommandError):
            run(*arguments)
    assert (CronSchedule.objects.get().enabled, ReplayRule.objects.count()) == (True, 1)
    assert not Queue.objects.get(name="import").paused


def test_keys_by_the_command_and_in_the_admin(admin_client: Client) -> None:
    for number, name in enumerate(NAMES):
        run("ojs_apikey", "create", name, "--scope", ("push", "work", "read", "admin.read")[number])
    run("ojs_apikey", "revoke", "import", "--yes")
    assert {key.name: key.revoked_at is None for key in APIKey.objects.all()} == {
        "Import": True, "import": False, "IMPORT": True, "ímport": True,
    }  # fmt: skip
    listed = admin_client.get(reverse("admin:django_ojs_apikey_changelist"), {"q": "IMPORT"}).content.decode()
    assert all(name in listed for name in NAMES[:3]), "a search ignores the case of letters"
    assert NAMES[3] not in listed, "and nothing else"


def test_what_a_key_has_asked_for_is_not_another_ones(api: Any, settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": False}
    seen = {}
    for name in ("Deploy", "deploy"):
        _, secret = keys.create(name, ["admin.read"], queues=["q"])
        BulkAction.objects.create(verb="cancel", actor=f"key:{name}", expected=1, created_at=clock.now())
        seen[name] = secret
    for name, secret in seen.items():
        listed = body_of(Api(Authorization=f"Bearer {secret}").get("/admin/bulk-actions"))["items"]
        assert [one["actor"] for one in listed] == [f"key:{name}"]


def test_workflows_by_ids_of_their_own(api: Any) -> None:
    for name in ("Order-1", "order-1"):
        steps = [{"id": "a", "type": "a.b", "args": [name]}]
        assert api.post("/workflows", {"id": name, "name": name, "steps": steps}).status_code == 201
    assert [body_of(api.get(f"/workflows/{name}"))["workflow"]["name"] for name in ("Order-1", "order-1")] == [
        "Order-1", "order-1",
    ]  # fmt: skip
    assert api.get("/workflows/ORDER-1").status_code == 404


def test_schemas_by_their_uris(api: Any) -> None:
    for number, uri in enumerate(("https://x.test/Mail", "https://x.test/mail")):
        made = api.post("/schemas", {"uri": uri, "type": f"a.b{number}", "version": "1.0.0-RC", "schema": {}})
        assert made.status_code == 201, made.content
        assert body_of(api.get(f"/schemas/{quote(uri, safe='')}"))["schema"]["type"] == f"a.b{number}"
    assert api.get(f"/schemas/{quote('https://x.test/MAIL', safe='')}").status_code == 404


def test_events_for_durable_jobs() -> None:
    emitted = [emit_event(name, key) for name in ("paid", "Paid") for key in ("k", "K", "ķ")]
    assert all(one.is_new for one in emitted)
    assert not emit_event("Paid", "K").is_new


def test_who_may_decide_an_approval() -> None:
    approval = Approval.objects.create(
        id="0190a4b6-0000-7000-8000-000000000001", job_id="0190a4b6-0000-7000-8000-000000000002",
        type="a.b", queue="q", name="n", title="t", requested_at="2026-01-01T00:00:00Z",
    )  # fmt: skip
    for key in ("Ann", "ann"):  # a site's users may have texts for primary keys
        ApprovalAssignee.objects.create(approval=approval, kind="user", key=key, name=key)
    assert approval.assignees.filter(key="ann").count() == 1
    assert not approval.assignees.filter(key="ANN").exists()


# The columns

#: Columns that are keys or are indexed, and cannot hold two names that differ so little: why.
ALIKE = {
    "digests and random texts of ours": {
        "APIKey.digest", "ErrorNote.key", "IdempotencyKey.digest", "Job.unique_key", "Lease.name", "Ticket.digest",
    },
    "names in small letters": {
        "CountDelta.queue", "CronRun.queue", "Event.queue", "Job.queue", "Job.type", "JobSchema.job_type",
        "MetricSeries.job_type", "MetricSeries.queue", "Queue.name", "QueueCount.queue", "QueueHour.queue",
        "QueueMinute.queue", "QueueTraffic.queue", "TypeMinute.job_type",
    },
    "words of ours": {
        "Approval.state", "ApprovalAssignee.kind", "Event.type", "Job.state", "MetricSeries.event",
        "MetricSeries.label", "WebhookCount.event_type", "WebhookCount.status", "WebhookDelivery.status",
        "Workflow.state",
    },
    "filters compare the very text (`same_name`)": {"AuditEntry.actor", "AuditEntry.target", "Job.trace_id"},
}  # fmt: skip


def indexed(model: type[models.Model]) -> set[str]:
    options = model._meta
    together = [index.fields for index in options.indexes]
    together += [one.fields for one in options.constraints if isinstance(one, models.UniqueConstraint)]
    return {name.removeprefix("-") for names in together for name in names}


def test_each_column_by_which_rows_are_found_tells_names_apart() -> None:
    found: set[str] = set()
    for model in apps.get_app_config("django_ojs").get_models():
        for field in model._meta.local_fields:
            if isinstance(field, models.CharField) and (
                field.primary_key or field.unique or field.db_index or field.name in indexed(model)
            ):
                found.add(f"{model.__name__}.{field.name}")
    names = {
        f"{model.__name__}.{field.name}"
        for model in apps.get_app_config("django_ojs").get_models()
        for field in model._meta.local_fields
        if isinstance(field, NameField)
    }
    assert found - names == found & set().union(*ALIKE.values()), "make it a NameField, or say why it need be none"
