"""What was set aside in the outbox: seen, tried again and discarded by whoever may, and by nobody else."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from django_ojs import enqueue_many, outbox
from django_ojs.jobs import schemas
from django_ojs.models import AuditEntry, Job, OutboxEntry
from tests.admin.conftest import said, url

pytestmark = pytest.mark.django_db
EVIL = "<script>alert('x')</script>"


@pytest.fixture(autouse=True)
def entries(settings: Any) -> list[OutboxEntry]:
    settings.OJS = {"OUTBOX": "default"}
    enqueue_many([("mail.send", ["aside"]), ("mail.send", ["waiting"])])
    aside, waiting = OutboxEntry.objects.order_by("id")
    aside.aside, aside.error = True, EVIL
    aside.save()
    return [aside, waiting]


def do(client: Client, name: str, entry: OutboxEntry) -> Any:
    return client.post(url("outboxentry", "verb", entry.pk, name), follow=True)


def test_the_list_and_the_pages_show_errors_as_text(admin_client: Client, entries: list[OutboxEntry]) -> None:
    for page in (url("outboxentry"), *(url("outboxentry", "change", entry.pk) for entry in entries)):
        response = admin_client.get(page)
        assert response.status_code == 200
        assert EVIL not in response.content.decode()
    assert b"Try again" not in admin_client.get(url("outboxentry", "change", entries[1].pk)).content


def test_try_again(admin_client: Client, entries: list[OutboxEntry]) -> None:
    outbox.relay()
    assert said(do(admin_client, "retry_entries", entries[0])) == ["1 outbox entry given to the relay."]
    outbox.relay()
    assert sorted(str(pk) for pk in Job.objects.values_list("pk", flat=True)) == sorted(
        str(entry.target_id) for entry in entries
    )


def test_discard_asks_first_and_takes_only_what_was_set_aside(admin_client: Client, entries: list[OutboxEntry]) -> None:
    assert b"never will be" in admin_client.get(url("outboxentry", "verb", entries[0].pk, "discard_entries")).content
    do(admin_client, "discard_entries", entries[0])
    (message,) = said(do(admin_client, "discard_entries", entries[1]))
    assert "is not set aside" in message
    assert list(OutboxEntry.objects.values_list("pk", flat=True)) == [entries[1].pk]


def test_rights(operator: Any, entries: list[OutboxEntry]) -> None:
    client = operator("view_outboxentry")
    assert client.get(url("outboxentry")).status_code == 200
    assert do(client, "retry_entries", entries[0]).status_code == 403
    assert do(client, "discard_entries", entries[0]).status_code == 403


def test_a_site_without_an_outbox_does_not_see_it(admin_client: Client, settings: Any) -> None:
    settings.OJS = {}
    assert b"outboxentry" not in admin_client.get("/admin/").content.lower()
    assert admin_client.get(url("outboxentry")).status_code == 403


def test_every_act_has_its_entry(admin_client: Client, entries: list[OutboxEntry]) -> None:
    do(admin_client, "retry_entries", entries[0])
    OutboxEntry.objects.filter(pk=entries[0].pk).update(aside=True)
    do(admin_client, "discard_entries", entries[0])
    found = AuditEntry.objects.order_by("id").values_list("action", "target", "actor")
    assert list(found) == [(f"outbox.{word}", str(entries[0].pk), "user:admin") for word in ("retry", "discard")]


def test_why_a_job_was_refused_repeats_no_hidden_argument(
    admin_client: Client, entries: list[OutboxEntry], settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    secret, schema = "hunter2", {"type": "array", "items": {"type": "integer"}}
    found = schemas.register("pay.charge", "1.0.0", schema)
    OutboxEntry.objects.all().delete()
    document = {"type": "pay.charge", "args": [secret], "schema": found.uri}
    (pushed,) = outbox.put([document])
    outbox.relay()
    entry = OutboxEntry.objects.get()
    assert pushed.row is not None
    assert secret in entry.error
    pages = [url("outboxentry"), url("outboxentry", "change", entry.pk)]
    assert all(secret in admin_client.get(page).content.decode() for page in pages)
    settings.OJS = {**settings.OJS, "REDACT": {"types": {"pay.*": ["args"]}}}
    assert all(secret not in admin_client.get(page).content.decode() for page in pages)
    caplog.clear()
    OutboxEntry.objects.update(aside=False, retry_at=None)
    outbox.relay()
    assert "is set aside" in caplog.text
    assert secret not in caplog.text
