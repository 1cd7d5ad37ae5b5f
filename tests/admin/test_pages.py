"""Every page renders, empty and full, as text only, and a list costs the same however many rows there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_ojs import keys, models
from django_ojs.models import APIKey, CronSchedule, Event, Job, Queue, Worker
from django_ojs.queues.configuration import pause
from django_ojs.statistics import summary
from django_ojs.workerregistry.registration import direct, register
from django_ojs.workflows import workflow
from tests.admin.conftest import dead, one_in_each_state, pushed, url

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("long_memory")]
MODELS = ["job", "queue", "worker", "event", "apikey", "workflow"]
EVIL = "<script>alert('x')</script>"
IMAGE = '"><img src=x onerror=alert(1)>'


@pytest.fixture
def full(db: None) -> None:
    one_in_each_state()
    pause("mail", by="ann")
    info = {"queues": ["claims"], "hostname": "box", "labels": {"zone": "eu"}, "job_types": ["mail.send"]}
    register("w-1", info)
    direct("w-1", "quiet")
    keys.create("limited", ["push"], queues=["mail"], job_types=["mail.*"])
    key, _ = keys.create("old", ["admin"])
    keys.revoke(key)
    workflow.create({"type": "group", "name": EVIL, "jobs": [{"type": "mail.send", "args": [], "queue": "mail"}]})


def test_the_engines_own_tables_are_not_shown() -> None:
    shown = {model for model in admin.site._registry if model._meta.app_label == "django_ojs"}
    more = {
        models.WebhookSubscription,
        models.WebhookDelivery,
        models.OutboxEntry,
        models.AuditEntry,
        models.BulkAction,
        models.JobSchema,
        models.Alert,
        models.Approval,
        models.ReplayRule,
        models.RateLimit,
    }
    assert shown == {Job, Queue, Worker, Event, APIKey, CronSchedule, models.Workflow} | more
    assert models.Lease not in shown


@pytest.mark.parametrize("model", MODELS)
def test_an_empty_list_renders(admin_client: Client, model: str) -> None:
    assert admin_client.get(url(model)).status_code == 200


@pytest.mark.parametrize("model", MODELS)
def test_a_full_list_and_every_page_of_it_render(admin_client: Client, full: None, model: str) -> None:
    response = admin_client.get(url(model))
    assert response.status_code == 200
    rows = response.context["cl"].result_list
    assert rows
    for row in rows:
        assert admin_client.get(url(model, "change", row.pk)).status_code == 200
        assert admin_client.get(url(model, "history", row.pk)).status_code == 200


def test_the_admins_front_page_lists_the_models(admin_client: Client) -> None:
    page = admin_client.get("/admin/").content.decode()
    assert "Open Job Spec" in page
    assert "API keys" in page


def test_nothing_can_be_added_or_edited_by_form(admin_client: Client, full: None) -> None:
    for model in ("job", "worker", "event"):
        assert admin_client.get(url(model, "add")).status_code == 403
    job = Job.objects.get(state="available", workflow_id=None)
    assert admin_client.post(url("job", "change", job.pk), {"state": "completed"}).status_code == 403
    job.refresh_from_db()
    assert job.state == "available"


def test_a_job_page_shows_its_data_errors_and_events(admin_client: Client) -> None:
    (job,) = dead(meta={"tenant": "acme"}, x_unknown=[1, 2])
    page = admin_client.get(url("job", "change", job.pk)).content.decode()
    for text in ("a@example.com", "acme", "x_unknown", "no such template", "at send (jobs.py:12)", "job.discarded"):
        assert text in page


def test_numbers_are_shown_as_they_were_sent(admin_client: Client) -> None:
    (job,) = pushed(args=[12345678901234567890123])
    assert "12345678901234567890123" in admin_client.get(url("job", "change", job.pk)).content.decode()


# Hostile data


@pytest.mark.parametrize("text", [EVIL, IMAGE, "{{ 7|add:7 }}{% now 'Y' %}", "\u0000 and \ud800"])
def test_what_a_job_carries_is_text_on_every_page(admin_client: Client, text: str) -> None:
    error = {"type": text[:200], "message": text, "retryable": False, "backtrace": [text], "details": {"x": text}}
    (job,) = dead(error=error, args=[text, {text: text}], meta={"note": text}, tags=[text])
    register("w-2", {"hostname": text if text.isprintable() else "", "labels": {"l": text}})
    pages = [url("job"), url("job", "change", job.pk), url("worker"), url("worker", "change", "w-2"), url("event")]
    pages += [url("event", "change", event.pk) for event in Event.objects.all()]
    pages.append(url("job", "verb", job.pk, "delete_dead_letters"))
    pages += [reverse(f"admin:django_ojs_{name}") for name in ("overview", "dead_letters")]
    for page in pages:
        response = admin_client.get(page)
        body = response.content.decode()
        assert response.status_code == 200
        assert "<script>alert" not in body
        assert "<img src=x" not in body


def test_job_types_that_came_in_around_the_parser_are_escaped(admin_client: Client) -> None:
    """Nothing but a lowercase type passes PUSH; rows restored from elsewhere may hold anything."""
    (job,) = pushed()
    Job.objects.filter(pk=job.pk).update(type=EVIL, queue=EVIL, worker_id=EVIL, trace_id=EVIL)
    Event.objects.update(job_type=EVIL, queue=EVIL, worker_id=EVIL, state="<b>", type=EVIL, subject=EVIL)
    event = Event.objects.first()
    assert event is not None
    for page in (url("job"), url("job", "change", job.pk), url("event"), url("event", "change", event.pk)):
        body = admin_client.get(page).content.decode()
        assert EVIL not in body
        assert "<b>" not in body.replace("<b>ValueError</b>", "")


def test_a_filter_repeats_its_input_as_text(admin_client: Client) -> None:
    body = admin_client.get(url("job"), {"type": '"><script>alert(1)</script>', "queue": EVIL}).content.decode()
    assert "<script>alert" not in body


def test_a_huge_value_is_cut(admin_client: Client) -> None:
    (job,) = pushed(args=["x" * 500_000])
    page = admin_client.get(url("job", "change", job.pk))
    assert len(page.content) < 200_000
    assert b"more characters" in page.content


# Finding


def test_filters_by_state_queue_and_type(admin_client: Client) -> None:
    jobs = one_in_each_state()
    (report,) = pushed(type="report.daily", queue="reports")
    for state, job in jobs.items():
        found = _listed(admin_client, state=state)
        assert job.pk in found
        assert set(Job.objects.filter(pk__in=found).values_list("state", flat=True)) == {state}
    assert _listed(admin_client, state="dead_letter") == [jobs["discarded"].pk]
    assert _listed(admin_client, queue="reports") == [report.pk]
    assert _listed(admin_client, type="report.daily") == [report.pk]
    assert _listed(admin_client, type="report.*") == [report.pk]
    assert _listed(admin_client, type="report") == []
    assert _listed(admin_client, type="mail.*", state="pending") == [jobs["pending"].pk]
    assert _listed(admin_client, type="\0") == _listed(admin_client)


def test_an_id_is_searched_for_exactly(admin_client: Client) -> None:
    jobs = pushed(3)
    assert _listed(admin_client, q=f" {jobs[1].pk} ") == [jobs[1].pk]
    assert _listed(admin_client, q=jobs[1].pk.hex.upper()) == [jobs[1].pk]
    assert _listed(admin_client, q="no such text") == []


def test_events_are_found_by_type_and_job_newest_first(admin_client: Client) -> None:
    jobs = pushed(3)
    register("w-1", {})
    everything = [event.pk for event in _events(admin_client)]
    assert everything == sorted(everything, reverse=True)
    assert [event.job_id for event in _events(admin_client, q=jobs[0].pk)] == [jobs[0].pk]
    assert {event.type for event in _events(admin_client, type="worker.*")} == {"worker.registered", "worker.started"}
    assert {event.type for event in _events(admin_client, job_type="mail.*")} == {"job.enqueued"}


@pytest.mark.parametrize("page", ["0", "-1", "10001", "9" * 40, "x"])
def test_a_nonsense_page_number_is_no_error(admin_client: Client, page: str) -> None:
    pushed(2)
    assert admin_client.get(url("job"), {"p": page}, follow=True).status_code == 200


def test_pages_are_walked_without_counting(admin_client: Client) -> None:
    pushed(60)
    first = admin_client.get(url("job"))
    assert len(first.context["cl"].result_list) == 50
    assert first.context["cl"].next_page == "?p=2"
    assert not first.context["cl"].previous_page
    second = admin_client.get(url("job"), {"p": 2})
    assert len(second.context["cl"].result_list) == 10
    assert second.context["cl"].previous_page == "?p=1"
    assert not second.context["cl"].next_page


# Costs


@pytest.mark.parametrize("model", MODELS)
def test_a_list_takes_as_many_queries_for_many_rows_as_for_few(admin_client: Client, full: None, model: str) -> None:
    few = _queries(admin_client, url(model))
    dead(20)
    pushed(20)
    for number in range(20):
        register(f"more-{number}", {"queues": ["mail"]})
        keys.create(f"more-{number}", ["read"])
        pause(f"queue-{number}")
    many = _queries(admin_client, url(model))
    assert len(many) == len(few)


@pytest.mark.parametrize("model", MODELS)
def test_no_list_counts_its_table(admin_client: Client, full: None, model: str) -> None:
    assert not [sql for sql in _queries(admin_client, url(model)) if sql.upper().startswith("SELECT COUNT(")]


def test_the_job_list_loads_no_arguments_results_or_policies(admin_client: Client, full: None) -> None:
    (listing,) = (sql for sql in _queries(admin_client, url("job")) if 'ojs_job"."priority' in sql.replace("`", '"'))
    selected = listing.replace("`", '"').split(" FROM ")[0]
    for column in ("args", "meta", "extra", "result", "retry"):
        assert f'"{column}"' not in selected


def test_large_errors_and_event_data_stay_out_of_the_lists(admin_client: Client) -> None:
    dead(error={"type": "E", "message": "y" * 300_000, "retryable": False})
    for model in ("job", "event"):
        assert len(admin_client.get(url(model)).content) < 100_000


def test_a_job_page_takes_as_many_queries_for_a_long_history(admin_client: Client) -> None:
    fresh, old = dead(2)
    event = Event.objects.filter(job_id=old.pk).values().first()
    assert event is not None
    del event["id"]
    Event.objects.bulk_create(Event(**event) for _ in range(300))
    few = _queries(admin_client, url("job", "change", fresh.pk))
    many = _queries(admin_client, url("job", "change", old.pk))
    assert len(many) == len(few)
    assert b"The latest 200 events" in admin_client.get(url("job", "change", old.pk)).content


def _listed(client: Client, **query: Any) -> list[Any]:
    response = client.get(url("job"), query)
    assert response.status_code == 200
    return [job.pk for job in response.context["cl"].result_list]


def _events(client: Client, **query: Any) -> list[Event]:
    found: list[Event] = client.get(url("event"), query).context["cl"].result_list
    return found


def _queries(client: Client, page: str) -> list[str]:
    ContentType.objects.clear_cache()  # what an earlier page looked up must not count, whichever test that was
    summary.forget()
    with CaptureQueriesContext(connection) as captured:
        assert client.get(page).status_code == 200
    return [query["sql"] for query in captured]


def test_who_may_not_look_sees_nothing(operator: Callable[..., Client], full: None) -> None:
    client = operator("view_queue")
    assert client.get(url("queue")).status_code == 200
    for model in ("job", "worker", "event", "apikey"):
        assert client.get(url(model)).status_code == 403
