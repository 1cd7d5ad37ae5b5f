"""The live tail of events: who may follow, what fits the filter, nothing missed between two looks, text stays text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from django_ojs.events import order
from django_ojs.jobs.cancel import cancel
from django_ojs.models import Event
from django_ojs.queues.configuration import pause
from tests.admin.conftest import dead, pushed, url

pytestmark = pytest.mark.django_db
#: The log's order is that of commits.
committed = pytest.mark.django_db(transaction=True)
EVIL = "<script>alert('x')</script>\"onload=alert(1)"
EVIL_QUEUE = "<img src=x>"


def tail(client: Client, **query: Any) -> Any:
    response = client.get(reverse("admin:django_ojs_event_tail"), query)
    assert response.status_code == 200
    return response


def more(client: Client, after: str, **query: Any) -> dict[str, Any]:
    response = client.get(reverse("admin:django_ojs_event_tail_more"), {"after": after, **query})
    assert response.status_code == 200
    assert "no-store" in response["Cache-Control"]
    return dict(response.json())


def types(found: dict[str, Any]) -> list[str]:
    return [event["type"] for event in found["events"]]


@committed
def test_what_comes_after_the_page_is_had_once_and_in_order(admin_client: Client) -> None:
    (job,) = pushed()
    page = tail(admin_client)
    assert [event["type"] for event in page.context["events"]] == ["job.enqueued"]
    cursor = page.context["cursor"]
    assert types(more(admin_client, cursor)) == []
    cancel([job.pk], cancelled_by="ann")
    pushed()
    found = more(admin_client, cursor)
    assert types(found) == ["job.cancelled", "job.enqueued"]
    assert found["cursor"] == found["events"][-1]["id"]
    assert types(more(admin_client, found["cursor"])) == []


@committed
def test_an_empty_log_is_followed_from_its_beginning(admin_client: Client) -> None:
    page = tail(admin_client)
    assert page.context["cursor"] == ""
    pushed()
    assert types(more(admin_client, "")) == ["job.enqueued"]


@committed
def test_events_that_do_not_fit_move_the_cursor_too(admin_client: Client) -> None:
    pushed()
    before = tail(admin_client, types="queue.*").context["cursor"]
    pushed()
    found = more(admin_client, before, types="queue.*")
    assert found["events"] == []
    assert found["cursor"] != before, "else each look would begin where the first did"
    pause("mail")
    assert types(more(admin_client, found["cursor"], types="queue.*")) == ["queue.paused"]


@committed
def test_the_filters(admin_client: Client) -> None:
    (one,) = pushed(queue="mail")
    (other,) = pushed(type="report.make")
    cancel([other.pk])

    def shown(**query: Any) -> list[str]:
        return [event["type"] for event in tail(admin_client, order="bottom", **query).context["events"]]

    assert shown() == ["job.enqueued", "job.enqueued", "job.cancelled"]
    assert shown(types="job.can* queue.paused") == ["job.cancelled"]
    assert shown(queues="mail") == ["job.enqueued"]
    assert shown(job_types="report.make, x.y") == ["job.enqueued", "job.cancelled"]
    assert shown(job_id=str(one.pk).upper()) == ["job.enqueued"]
    page = tail(admin_client, types="job.*", job_id=str(one.pk), detail="full", rows="500")
    assert json.loads(page.context["filter"]) == {"types": ["job.*"], "job_ids": [str(one.pk)]}
    body = page.content.decode()
    assert "ojs-all" in body
    assert '<option value="500" selected>' in body


@committed
def test_a_change_of_state_comes_only_to_who_names_it(admin_client: Client) -> None:
    cursor = tail(admin_client).context["cursor"]
    pushed()
    assert types(more(admin_client, cursor)) == types(more(admin_client, cursor, types="job.*")) == ["job.enqueued"]
    assert types(more(admin_client, cursor, types="job.state_changed")) == ["job.state_changed"]
    page = tail(admin_client, types="job.state_changed", order="bottom")
    assert [event["type"] for event in page.context["events"]] == ["job.state_changed"]


@committed
def test_what_cannot_be_put_in_order_yet_comes_behind_the_cursor_and_nothing_is_missed(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursor = tail(admin_client).context["cursor"]
    pushed()
    with monkeypatch.context() as patch:
        patch.setattr(order, "PATIENCE", 0.0)
        patch.setattr(order, "_pass", lambda using, wait=None: None)
        answer = admin_client.get(reverse("admin:django_ojs_event_tail_more"), {"after": cursor})
        assert answer.status_code == 200
        tail(admin_client)
    first = answer.json()
    assert types(first) + types(more(admin_client, first["cursor"] or cursor)) == ["job.enqueued"]


def test_nonsense_is_told_and_finds_nothing(admin_client: Client) -> None:
    pushed()
    page = tail(admin_client, job_id=EVIL, rows="7", order="\0", types="\0\0")
    assert "is not the id of a job" in page.content.decode()
    assert page.context["events"] == []
    assert "data-ojs-tail" not in page.content.decode(), "else the script asks, is refused and says that it is offline"
    assert "data-ojs-tail" in tail(admin_client).content.decode()
    address = reverse("admin:django_ojs_event_tail_more")
    assert admin_client.get(address, {"job_id": "x"}).status_code == 400
    answer = admin_client.get(address, {"after": "evt_nonsense"})
    assert answer.status_code == 400
    assert "error" in answer.json()


@committed
def test_it_takes_the_right_to_look_at_events(operator: Callable[..., Client]) -> None:
    pushed()
    client = operator("view_job", "view_event")
    assert reverse("admin:django_ojs_event_tail") in client.get(url("event")).content.decode()
    (job,) = (event["job"] for event in tail(client).context["events"])
    assert url("job", "change", job) in tail(client).content.decode()


def test_who_may_not_look_gets_nothing(operator: Callable[..., Client], client: Client) -> None:
    stranger = operator("view_job")
    for page in ("django_ojs_event_tail", "django_ojs_event_tail_more"):
        assert stranger.get(reverse(f"admin:{page}")).status_code == 403
        assert client.get(reverse(f"admin:{page}")).status_code == 302


@committed
def test_who_sees_no_jobs_gets_no_links_to_them(operator: Callable[..., Client]) -> None:
    (job,) = pushed()
    page = tail(operator("view_event"))
    assert page.context["job_url"] == ""
    assert url("job", "change", job.pk) not in page.content.decode()


@committed
def test_what_is_hostile_stays_text_and_what_is_hidden_hidden(admin_client: Client, settings: Any) -> None:
    (job,) = dead(error={"type": "E", "message": EVIL, "retryable": False})
    Event.objects.filter(job_id=job.pk).update(queue=EVIL_QUEUE)
    body = tail(admin_client, detail="full").content.decode()
    assert "&lt;script&gt;" in body
    assert "<script>alert" not in body
    assert not re.findall(r"""<[^>]*\s(?:onload|style)=""", body)
    answer = admin_client.get(reverse("admin:django_ojs_event_tail_more"))
    assert answer["Content-Type"] == "application/json"
    assert answer["X-Content-Type-Options"] == "nosniff"
    settings.OJS = {"REDACT": {"types": {"*": ["errors"]}}}
    for found in (tail(admin_client, types="job.failed").context["events"], more(admin_client, "")["events"]):
        told = [event for event in found if event["type"] == "job.failed"]
        assert "alert" not in json.dumps([event["data"] for event in told]).replace(EVIL_QUEUE, "")
        assert "REDACTED" in json.dumps(told, default=str)


def test_the_socket_is_where_the_site_says(admin_client: Client, settings: Any) -> None:
    assert tail(admin_client).context["socket"] == "", "this client speaks WSGI"
    settings.OJS = {"REALTIME_URL": "wss://events.example/ws"}
    assert tail(admin_client).context["socket"] == "wss://events.example/ws"
    settings.OJS = {"REALTIME_URL": ""}
    assert tail(admin_client).context["socket"] == ""


@committed
def test_a_page_does_not_ask_for_each_event(admin_client: Client, django_assert_max_num_queries: Any) -> None:
    pushed(60)
    with django_assert_max_num_queries(40):
        assert len(tail(admin_client).context["events"]) == 50
