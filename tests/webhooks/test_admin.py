"""Webhooks in the admin: made, changed, tried, rotated, replayed; secrets once, foreign text as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client

from django_ojs import enqueue
from django_ojs.models import AuditEntry, WebhookDelivery, WebhookSubscription
from django_ojs.webhooks import deliveries as webhookdeliveries
from django_ojs.webhooks import subscriptions
from tests.admin.conftest import said, url
from tests.http.conftest import Api
from tests.webhooks.conftest import SECRET, Sender, deliver, deliveries, fresh, subscribe
from tests.webhooks.receiver import Receiver

pytestmark = pytest.mark.django_db(transaction=True)
EVIL = b"<script>alert('x')</script>"
FORM = {
    "url": "https://example.com/hooks/token", "events": "job.completed\njob.failed", "queues": "mail",
    "job_types": "mail.*", "timeout_seconds": "10", "signature_format": "body",
}  # fmt: skip


@pytest.fixture
def operator() -> Callable[..., Client]:
    def log_in(*codenames: str) -> Client:
        user = get_user_model().objects.create_user("ann", password="x", is_staff=True)
        user.user_permissions.set(
            Permission.objects.filter(codename__in=codenames, content_type__app_label="django_ojs")
        )
        client = Client()
        client.force_login(user)
        return client

    return log_in


def do(client: Client, model: str, pk: Any, verb: str) -> Any:
    return client.post(url(model, "verb", pk, verb), follow=True)


def test_a_subscription_is_made_and_its_secret_shown_once(admin_client: Client) -> None:
    page = admin_client.post(url("webhooksubscription", "add"), FORM)
    row = WebhookSubscription.objects.get()
    secret = subscriptions.unseal(row.secret)
    assert secret in page.content.decode()
    assert "no-store" in page["Cache-Control"]
    assert (row.events, row.queues, row.job_types) == (["job.completed", "job.failed"], ["mail"], ["mail.*"])
    assert (row.timeout_seconds, row.created_by, row.active) == (10, "user:admin", True)
    for place in (url("webhooksubscription"), url("webhooksubscription", "change", row.pk)):
        seen = admin_client.get(place).content.decode()
        assert secret not in seen
        assert row.secret not in seen
    assert "hooks/token" not in admin_client.get(url("webhooksubscription")).content.decode()


@pytest.mark.parametrize(
    "change, field",
    [({"url": "https://10.0.0.1/"}, "url"), ({"url": "x"}, "url"), ({"url": ""}, "url"), ({"events": ""}, "events"),
     ({"events": "Nope!"}, "events"), ({"queues": "No Queue"}, "queues"), ({"job_types": "*"}, "job_types"),
     ({"timeout_seconds": "3"}, "timeout_seconds"), ({"signature_format": "x"}, "signature_format")],
)  # fmt: skip
def test_the_form_refuses_what_the_api_refuses(admin_client: Client, change: dict[str, str], field: str) -> None:
    response = admin_client.post(url("webhooksubscription", "add"), {**FORM, **change})
    assert response.status_code == 200
    assert field in response.context["adminform"].form.errors
    assert not WebhookSubscription.objects.exists()


def test_a_subscription_is_changed_without_touching_the_rest(admin_client: Client) -> None:
    row = subscribe("https://example.com/a", metadata={"kept": True}, headers={"X-Kept": "yes"})
    form = {**FORM, "queues": "", "job_types": "", "timeout_seconds": ""}
    response = admin_client.post(url("webhooksubscription", "change", row.pk), form)
    assert response.status_code == 302
    changed = fresh(row)
    assert (changed.url, changed.queues, changed.timeout_seconds) == (FORM["url"], None, None)
    assert (changed.metadata, changed.secret, changed.headers) == (row.metadata, row.secret, row.headers)
    assert changed.active


def test_pause_resume_delete(admin_client: Client) -> None:
    row = subscribe("https://example.com/a")
    assert said(do(admin_client, "webhooksubscription", row.pk, "pause_webhooks")) == ["1 webhook subscription paused."]
    assert not fresh(row).active
    do(admin_client, "webhooksubscription", row.pk, "resume_webhooks")
    assert fresh(row).active
    do(admin_client, "webhooksubscription", row.pk, "delete_webhooks")
    assert not WebhookSubscription.objects.exists()


def test_a_test_tells_what_the_receiver_said_as_text(admin_client: Client, receiver: Receiver) -> None:
    row = subscribe(receiver.url())
    assert said(do(admin_client, "webhooksubscription", row.pk, "test_webhooks")) == ["1 webhook subscription tested."]
    receiver.plan((400, {}, EVIL))
    page = do(admin_client, "webhooksubscription", row.pk, "test_webhooks")
    assert "The receiver answered 400." in said(page)[0]
    assert EVIL not in page.content


def test_no_transaction_waits_for_a_receiver(admin_client: Client, receiver: Receiver, monkeypatch: Any) -> None:
    open_ones: list[bool] = []
    attempt = webhookdeliveries.attempt

    def look(sending: Any) -> Any:
        open_ones.append(connection.in_atomic_block)
        return attempt(sending)

    monkeypatch.setattr(webhookdeliveries, "attempt", look)
    do(admin_client, "webhooksubscription", subscribe(receiver.url()).pk, "test_webhooks")
    assert open_ones == [False]


def test_what_is_done_here_is_in_the_audit_log_by_the_names_of_the_api(
    admin_client: Client, receiver: Receiver
) -> None:
    form = {**FORM, "url": receiver.url("/token"), "queues": "", "job_types": ""}
    admin_client.post(url("webhooksubscription", "add"), form)
    row = WebhookSubscription.objects.get()
    admin_client.post(url("webhooksubscription", "change", row.pk), {**form, "timeout_seconds": "20"})
    for verb in ("test_webhooks", "pause_webhooks", "rotate_secret", "delete_webhooks"):
        do(admin_client, "webhooksubscription", row.pk, verb)
    entries = AuditEntry.objects.order_by("id")
    verbs = ("create", "update", "test", "update", "rotate", "delete")
    assert [(entry.action, entry.target) for entry in entries] == [(f"webhook.{verb}", row.public_id) for verb in verbs]
    assert "/token" not in str(list(entries.values()))


def test_rotation_shows_the_new_secret_once_and_asks_first(admin_client: Client) -> None:
    row = subscribe("https://example.com/a")
    place = url("webhooksubscription", "verb", row.pk, "rotate_secret")
    assert b"are you sure" in admin_client.get(place).content.lower()
    page = admin_client.post(place)
    secret = subscriptions.unseal(fresh(row).secret)
    assert secret != SECRET
    assert secret in page.content.decode()
    assert subscriptions.unseal(fresh(row).previous_secret) == SECRET


def test_deliveries_are_shown_as_text_and_sent_again(admin_client: Client, receiver: Receiver, sender: Sender) -> None:
    row = subscribe(receiver.url())
    receiver.plan((400, {}, EVIL))
    enqueue("a.b", meta={"x": EVIL.decode()})
    deliver(sender)
    (delivery,) = deliveries()
    for place in (
        url("webhookdelivery"), url("webhookdelivery", "change", delivery.pk),
        url("webhooksubscription", "change", row.pk), url("webhooksubscription"),
    ):  # fmt: skip
        page = admin_client.get(place)
        assert page.status_code == 200
        assert EVIL not in page.content
    assert b"&lt;script&gt;" in admin_client.get(url("webhookdelivery", "change", delivery.pk)).content
    assert said(do(admin_client, "webhookdelivery", delivery.pk, "replay_deliveries")) == [
        "1 webhook delivery put in line."
    ]
    assert "not ended yet" in said(do(admin_client, "webhookdelivery", delivery.pk, "replay_deliveries"))[0]
    sender.until_idle()
    assert [one.status for one in deliveries()] == ["success"]


def test_what_a_receiver_said_is_for_who_may_send_again(operator: Callable[..., Client], admin_client: Client) -> None:
    row = subscribe("https://example.com/a")
    delivery = WebhookDelivery.objects.create(
        subscription=row, event_id="evt_1", event_type="a.b", subject="s", body="{}", max_attempts=8,
        created_at=row.created_at, response_body="internal",
    )  # fmt: skip
    place = url("webhookdelivery", "change", delivery.pk)
    assert b"internal" in admin_client.get(place).content
    page = operator("view_webhookdelivery").get(place)
    assert page.status_code == 200
    assert b"internal" not in page.content


def test_a_list_of_deliveries_costs_the_same_however_long(
    admin_client: Client, django_assert_max_num_queries: Any
) -> None:
    row = subscribe("https://example.com/a")
    admin_client.get(url("webhookdelivery"))
    for number in range(30):
        WebhookDelivery.objects.create(
            subscription=row, event_id=f"evt_{number}", event_type="a.b", subject=str(number), body="{}",
            max_attempts=8, created_at=row.created_at,
        )  # fmt: skip
    with django_assert_max_num_queries(8):
        assert admin_client.get(url("webhookdelivery")).status_code == 200


def test_how_a_webhook_does_is_said_in_the_viewers_language(admin_client: Client, settings: Any) -> None:
    settings.LANGUAGE_CODE = "fr"
    row = subscribe("https://example.com/a")
    for changed, word in (
        ({}, "good\">actif"), ({"failing_since": row.created_at}, "retryable\">en échec"),
        ({"active": False}, "paused\">en pause"), ({"disabled_reason": "x"}, "discarded\">désactivé"),
    ):  # fmt: skip
        WebhookSubscription.objects.update(**changed)
        assert f"ojs-label ojs-{word}<" in admin_client.get(url("webhooksubscription")).content.decode()


def test_who_may_only_look_changes_nothing(operator: Callable[..., Client]) -> None:
    client = operator("view_webhooksubscription", "view_webhookdelivery")
    row = subscribe("https://example.com/a")
    assert client.get(url("webhooksubscription", "change", row.pk)).status_code == 200
    assert client.post(url("webhooksubscription", "change", row.pk), FORM).status_code == 403
    assert client.get(url("webhooksubscription", "add")).status_code == 403
    for verb in ("pause_webhooks", "rotate_secret", "test_webhooks", "delete_webhooks"):
        assert client.post(url("webhooksubscription", "verb", row.pk, verb)).status_code == 403
    assert fresh(row).secret == row.secret
    assert subscriptions.get(row.pk).active


def test_a_search_finds_nothing_by_what_the_viewer_is_not_shown(operator: Callable[..., Client]) -> None:
    client = operator("view_webhooksubscription")
    row = subscribe("https://hooks.example.com/T0K3N-path?key=s3cr3t")
    page = client.get(url("webhooksubscription", "change", row.pk)).content.decode()
    assert "hooks.example.com" in page
    assert "T0K3N" not in page
    assert "s3cr3t" not in page

    def finds(words: str) -> bool:
        return str(row.public_id)[-6:] in client.get(url("webhooksubscription"), {"q": words}).content.decode()

    assert finds("hooks EXAMPLE")
    assert not any(finds(words) for words in ("T0K3N", "t", "/", "s3cr3t", "hooks T0K3N", "https"))
    user = get_user_model().objects.get(username="ann")
    user.user_permissions.add(Permission.objects.get(codename="change_webhooksubscription"))
    assert finds("t0k3n")
    assert not finds("nowhere")


def test_every_act_has_its_entry(admin_client: Client, receiver: Receiver, sender: Sender) -> None:
    admin_client.post(url("webhooksubscription", "add"), FORM)
    row = WebhookSubscription.objects.get()
    admin_client.post(url("webhooksubscription", "change", row.pk), {**FORM, "queues": "", "url": receiver.url()})
    for verb in ("pause_webhooks", "resume_webhooks", "rotate_secret", "test_webhooks"):
        do(admin_client, "webhooksubscription", row.pk, verb)
    receiver.plan((400, {}, EVIL), (400, {}, EVIL))
    do(admin_client, "webhooksubscription", row.pk, "test_webhooks")
    WebhookSubscription.objects.update(events=["job.*"], job_types=None)
    enqueue("a.b")
    deliver(sender)
    delivery = WebhookDelivery.objects.exclude(event_type="webhook.test").get()
    do(admin_client, "webhookdelivery", delivery.pk, "replay_deliveries")
    do(admin_client, "webhooksubscription", row.pk, "delete_webhooks")
    words = ("create", "update", "update", "update", "rotate", "test", "test", "replay", "delete")
    entries = list(AuditEntry.objects.order_by("id"))
    assert [entry.action for entry in entries] == [f"webhook.{word}" for word in words]
    assert {(entry.actor, entry.door) for entry in entries} == {("user:admin", "admin")}
    assert {entry.target for entry in entries} == {row.public_id, delivery.public_id}
    assert (entries[5].detail["succeeded"], entries[6].detail["succeeded"]) == (1, 0)
    assert entries[1].detail == {"fields": ["queues", "url"]}
    assert [entry.detail["active"] for entry in entries[2:4]] == [False, True]


def test_a_test_is_sent_outside_of_any_transaction(
    admin_client: Client, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every other writer would wait for the receiver."""
    seen: list[bool] = []
    attempt = webhookdeliveries.attempt

    def watched(sending: Any) -> Any:
        seen.append(connection.in_atomic_block)
        return attempt(sending)

    monkeypatch.setattr(webhookdeliveries, "attempt", watched)
    row = subscribe(receiver.url())
    do(admin_client, "webhooksubscription", row.pk, "test_webhooks")
    assert Api().post(f"/webhooks/subscriptions/{row.public_id}/test").status_code == 200
    assert seen == [False, False]
