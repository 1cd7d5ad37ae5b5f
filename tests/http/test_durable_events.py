"""Events that durable jobs wait for, over HTTP and by the command."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from django_ojs import JobContext, clock, job
from django_ojs.models import AuditEntry, DurableEvent
from django_ojs.registry import registry
from django_ojs.testing.storedjobs import worker

pytestmark = pytest.mark.django_db
PATH = "/ojs/v1/durable-events"


def post(client: Client, body: Any) -> Any:
    return client.post(PATH, json.dumps(body), content_type="application/json")


def test_a_job_goes_on_with_what_is_posted(client: Client) -> None:
    with registry.isolated(), worker() as jobs:

        @job("order.http", durable=True)
        def handler(context: JobContext) -> Any:
            return context.wait_for_event("order.paid", key="7")

        handle = handler.enqueue()
        jobs.drain()
        first = post(client, {"name": "order.paid", "key": "7", "payload": {"amount": 12.5}})
        assert first.status_code == 201
        body = dict(first.json())
        assert body.pop("created_at").endswith("Z")
        assert body == {
            "name": "order.paid", "key": "7", "payload": {"amount": 12.5}, "is_new": True, "jobs_woken": 1
        }  # fmt: skip
        jobs.drain().raise_first()
        assert handle.refresh().result == {"amount": 12.5}
        second = post(client, {"name": "order.paid", "key": "7", "payload": "other"})
        assert second.status_code == 200
        assert second.json() == {**first.json(), "is_new": False, "jobs_woken": 0}


def test_the_list_is_by_name_and_key_newest_first(client: Client) -> None:
    with clock.frozen(clock.now()):
        for name, key in (("a", "1"), ("a", "2"), ("b", "1"), ("b", "")):
            assert post(client, {"name": name, "key": key}).status_code == 201
            clock.advance(seconds=1)

    def listed(query: str = "") -> list[tuple[str, str]]:
        answer = client.get(f"{PATH}{query}")
        assert answer.status_code == 200, answer.content
        return [(one["name"], one["key"]) for one in answer.json()["items"]]

    assert listed() == [("b", ""), ("b", "1"), ("a", "2"), ("a", "1")]
    assert listed("?name=a") == [("a", "2"), ("a", "1")]
    assert listed("?name=b&key=1") == [("b", "1")]
    assert listed("?key=1") == [("b", "1"), ("a", "1")]
    page = client.get(f"{PATH}?limit=3").json()
    rest = client.get(f"{PATH}?limit=3&cursor={page['pagination']['next_cursor']}").json()
    assert [(one["name"], one["key"]) for one in page["items"] + rest["items"]] == listed()


@pytest.mark.parametrize(
    "body", [{}, {"name": ""}, {"name": 5}, {"name": "a", "key": 5}, {"name": "a", "key": None}, {"name": "a" * 201}],
    ids=repr,
)  # fmt: skip
def test_what_is_refused(client: Client, body: Any) -> None:
    answer = post(client, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["details"]["field"] in ("name", "key")
    assert not DurableEvent.objects.exists()


def test_a_payload_that_is_too_large(client: Client, settings: Any) -> None:
    settings.OJS = {**getattr(settings, "OJS", {}), "MAX_DURABLE_EVENT_BYTES": 100}
    assert post(client, {"name": "a", "payload": "x" * 98}).status_code == 201
    answer = post(client, {"name": "b", "payload": "x" * 99})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")


def test_members_that_the_site_hides_are_masked(client: Client, settings: Any) -> None:
    settings.OJS = {**getattr(settings, "OJS", {}), "REDACT": {"keys": ["card"]}}
    post(client, {"name": "a", "payload": {"card": "4111", "amount": 1}})
    (shown,) = client.get(PATH).json()["items"]
    assert shown["payload"]["card"] != "4111"
    assert shown["payload"]["amount"] == 1


def emit(*arguments: str) -> str:
    out = StringIO()
    call_command("ojs_emit", *arguments, stdout=out)
    return out.getvalue().strip()


def test_the_command() -> None:
    assert emit("order.paid", "7", "--payload", '{"amount": 1.50}') == "Emitted: 0 jobs waited for it."
    assert "already: nothing has changed." in emit("order.paid", "7")
    shown = json.loads(emit("order.paid", "7", "--json"))
    assert (shown["is_new"], shown["payload"], shown["jobs_woken"]) == (False, {"amount": 1.5}, 0)
    assert list(AuditEntry.objects.values_list("action", "target").distinct()) == [
        ("durable_event.emit", "order.paid 7")
    ]
    with pytest.raises(CommandError, match="--payload is not JSON"):
        emit("a", "--payload", "{")
    with pytest.raises(CommandError, match="name of an event"):
        emit(" ")
    assert DurableEvent.objects.count() == 1
