"""The list of jobs: every filter finds what it says, none scans the table, and the page says how far it looked."""

from __future__ import annotations

import datetime as dt
import html
import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs import clock
from django_ojs.admin import jobfilters
from django_ojs.admin.jobfilters import spread
from django_ojs.events import order
from django_ojs.jobs import search
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.delete import delete
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.selection import JobListFilter
from django_ojs.models import Job
from django_ojs.queues.configuration import configure
from django_ojs.statistics import eventcounts, summary
from django_ojs.workflows import workflow
from tests.admin.conftest import claimed, dead, one_in_each_state, pushed, said, url

pytestmark = pytest.mark.django_db
EVIL = '"><script>alert(1)</script>'
PARAMETERS = ["q", "state", "queue", "type", "tag", "worker_id", "last_worker", "workflow", "error", "since", "until"]
STATES = ("available", "active", "retryable")
NOW = dt.datetime(2026, 3, 1, 12, 0, tzinfo=dt.UTC)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """Slices of two jobs, and no more than six in all."""
    monkeypatch.setattr(search, "FIRST", 2)
    settings.OJS = {"SEARCH_DEPTH": 6, "SEARCH_SECONDS": 60.0}


def listed(client: Client, **query: Any) -> list[Any]:
    response = client.get(url("job"), query)
    assert response.status_code == 200
    return [job.pk for job in response.context["cl"].result_list]


def keys(*jobs: Job) -> list[Any]:
    return [job.pk for job in jobs]


def job_at(instant: dt.datetime, **attributes: Any) -> Job:
    """A job made at this instant, as its id says."""
    number = int(instant.timestamp() * 1000) << 80 | 7 << 76 | 2 << 62 | Job.objects.count()
    return pushed(id=str(uuid.UUID(int=number)), **attributes)[0]


# What is found


def test_a_state_that_does_not_exist_finds_nothing_and_is_said_so(admin_client: Client) -> None:
    jobs = one_in_each_state()
    response = admin_client.get(url("job"), {"state": "bogus"})
    assert said(response) == ["“bogus” is no state of a job."]
    assert list(response.context["cl"].result_list) == []
    everything = {"action": "cancel_jobs", "select_across": "1", "_selected_action": [str(jobs["available"].pk)]}
    admin_client.post(f"{url('job')}?state=bogus", {**everything, "sure": "yes"})
    assert Job.objects.get(pk=jobs["available"].pk).state == "available"


def test_actions_of_the_list_are_whole_phrases(admin_client: Client) -> None:
    (job,) = pushed()
    actions = admin_client.get(url("job")).context["action_form"].fields["action"].choices
    assert dict(actions)["run_jobs_now"] == "Run now: the selected jobs"
    question = admin_client.get(url("job", "verb", job.pk, "copy_jobs")).content.decode()
    assert "Run a copy: 1 job?" in question


def test_a_text_that_is_no_json_is_refused_in_one_sentence(admin_client: Client) -> None:
    (job,) = dead()
    form = admin_client.post(url("job", "edit", job.pk), {"queue": "mail", "args": "[1,"}).context["form"]
    (told,) = form.errors["args"]
    assert told.startswith("This cannot be read as JSON: ")
    assert "Not valid JSON" not in told


def test_tags_are_found_exactly(admin_client: Client) -> None:
    first, second, _, _ = (
        pushed(tags=["nightly", "eu"])[0], pushed(tags=["eu"])[0], pushed(tags=["nightly-2"])[0],
        pushed(x_note="eu")[0],
    )  # fmt: skip
    assert listed(admin_client, tag="eu") == keys(second, first)
    assert listed(admin_client, tag="nightly") == keys(first)
    assert listed(admin_client, tag="night") == []


def test_a_text_is_found_in_arguments_and_meta(admin_client: Client) -> None:
    (args,) = pushed(args=[{"to": "zoë@example.com"}])
    (meta,) = pushed(meta={"tenant": 'a "quoted" one'})
    assert listed(admin_client, q="zoë@example") == keys(args)
    assert listed(admin_client, q='"quoted"') == keys(meta)
    assert listed(admin_client, q="100%_") == []
    assert listed(admin_client, q="quoted", state="available", type="mail.*") == keys(meta)
    assert listed(admin_client, q="quoted", state="completed") == []


def test_errors_are_found_in_every_state_but_completed(admin_client: Client) -> None:
    (gone,) = dead(error={"type": "billing.Refused", "message": "card 4711", "retryable": False})
    one_in_each_state()
    assert listed(admin_client, error="billing.Refused") == keys(gone)
    assert listed(admin_client, error="4711", state="dead_letter") == keys(gone)
    assert set(Job.objects.filter(pk__in=listed(admin_client, error="OSError")).values_list("state", flat=True)) == {
        "retryable"
    }


def test_the_jobs_of_a_worker_and_of_a_workflow(admin_client: Client) -> None:
    running = claimed(2)
    flow = workflow.create({"type": "group", "jobs": [{"type": "mail.send", "args": []}] * 3}).workflow
    assert set(listed(admin_client, last_worker="w-1", state="active")) == set(keys(*running))
    assert set(listed(admin_client, last_worker="w-1")) >= set(keys(*running))
    assert listed(admin_client, last_worker="w-2") == []
    assert len(listed(admin_client, workflow=flow.pk)) == 3
    assert listed(admin_client, workflow=flow.pk, type="other") == []
    for own in ("order-17", uuid.uuid4().hex):
        flow = workflow.create({"id": own, "type": "group", "jobs": [{"type": "mail.send", "args": []}]}).workflow
        assert len(listed(admin_client, workflow=own)) == 1
        assert listed(admin_client, workflow=own) == listed(admin_client, workflow=flow.pk)


def test_times_are_those_of_the_creation_and_of_the_end_where_jobs_ended(admin_client: Client) -> None:
    clock.freeze(NOW)
    old, new = job_at(NOW - dt.timedelta(hours=3)), job_at(NOW - dt.timedelta(minutes=5))
    assert listed(admin_client, since="1h") == keys(new)
    assert listed(admin_client, until="1h") == keys(old)
    assert listed(admin_client, since="2026-03-01T08:59:00Z", until="2026-03-01T09:01:00Z") == keys(old)
    site = [timezone.localtime(NOW - dt.timedelta(minutes=m)).strftime("%Y-%m-%d %H:%M") for m in (181, 179)]
    assert listed(admin_client, since=site[0], until=site[1]) == keys(old)
    assert listed(admin_client, since="2026-03-02") == []
    cancel([old.pk])
    assert listed(admin_client, state="cancelled", since="10m") == keys(old)
    assert listed(admin_client, state="cancelled", until="10m") == []


def test_ended_jobs_are_listed_by_their_end(admin_client: Client) -> None:
    clock.freeze(NOW)
    first, second = pushed(2)
    cancel([second.pk])
    clock.advance(seconds=5)
    cancel([first.pk])
    page = admin_client.get(url("job"), {"state": "cancelled"})
    assert [job.pk for job in page.context["cl"].result_list] == keys(first, second)
    assert "finished_ago" in page.context["cl"].list_display


def test_of_jobs_that_wait_for_their_time_it_is_told(admin_client: Client) -> None:
    pushed(scheduled_at="2099-01-01T00:00:00Z")
    assert "2098-12-31 19:00:00" in admin_client.get(url("job"), {"state": "scheduled"}).content.decode()
    assert "2098-12-31" not in admin_client.get(url("job")).content.decode()


@pytest.mark.parametrize("name, text", [("since", "yesterday"), ("until", "9999-99-99"), ("workflow", "no id")])
def test_what_cannot_be_understood_finds_nothing_and_is_told(admin_client: Client, name: str, text: str) -> None:
    pushed()
    response = admin_client.get(url("job"), {name: text})
    assert list(response.context["cl"].result_list) == []
    assert text in said(response)[0]


@pytest.mark.parametrize("text", [EVIL, "\0", "%", "9" * 300, "0001-01-01 00:00", "9999-12-31T23:59:59Z"])
def test_no_filter_is_hurt_by_what_is_typed(admin_client: Client, text: str) -> None:
    pushed()
    for name in PARAMETERS:
        response = admin_client.get(url("job"), {name: text}, follow=True)
        assert response.status_code == 200
        assert "<script>alert" not in response.content.decode()


def test_a_job_page_leads_to_its_workflow_and_to_the_jobs_with_its_tags(admin_client: Client) -> None:
    flow = workflow.create({"type": "group", "jobs": [{"type": "mail.send", "args": [], "tags": ["eu & co", EVIL]}]})
    job = Job.objects.get(workflow_id=flow.workflow.pk)
    body = admin_client.get(url("job", "change", job.pk)).content.decode()
    assert url("workflow", "change", flow.workflow.pk) in body
    assert "?tag=eu+%26+co" in body
    assert "<script>alert" not in body


# Filters that a search names


def test_filters_in_a_search_become_parameters_of_the_address(admin_client: Client) -> None:
    (wanted,) = dead(error={"type": "E", "message": "it timed out", "retryable": False})
    dead(type="sms.send", error={"type": "E", "message": "it timed out", "retryable": False})
    pushed()
    asked = {"q": 'type:mail.*  a@example.com error:"timed out" state:dead_letter', "queue": wanted.queue, "p": "2"}
    response = admin_client.get(url("job"), asked)
    address = f"?q=a%40example.com&queue={wanted.queue}&type=mail.%2A&error=timed+out&state=dead_letter"
    assert (response.status_code, response.headers["Location"]) == (302, address)
    followed = admin_client.get(url("job") + address)
    assert [job.pk for job in followed.context["cl"].result_list] == [wanted.pk]
    assert [chip["value"] for chip in followed.context["cl"].chips] == [
        "a@example.com", "dead_letter", wanted.queue, "mail.*", "timed out"
    ]  # fmt: skip


def test_a_filter_in_a_search_takes_the_place_of_one_in_the_address(admin_client: Client) -> None:
    response = admin_client.get(url("job"), {"q": "state:active", "state": "completed"})
    assert response.headers["Location"] == "?state=active"
    assert said(admin_client.get(url("job"), {"q": "state:gone"}, follow=True)) == ["“gone” is no state of a job."]


def test_what_is_no_filter_is_searched_for_and_said(admin_client: Client) -> None:
    (job,) = pushed(args=["tpye:mail"])
    response = admin_client.get(url("job"), {"q": "tpye:mail"})
    assert [one.pk for one in response.context["cl"].result_list] == [job.pk]
    (hint,) = said(response)
    assert hint.startswith("“tpye:” is no filter")
    assert "type" in hint


@pytest.mark.parametrize(
    "text", ["https://example.com/a", '{"type":"a"}', '"state:active"', "12:30", "a type: b", ":x"]
)
def test_other_texts_with_colons_are_texts(admin_client: Client, text: str) -> None:
    assert jobfilters.spread(text) == ({}, text)
    response = admin_client.get(url("job"), {"q": text})
    assert said(response) == []
    assert response.status_code == 200


# What is hidden


def test_nobody_finds_by_searching_what_the_site_hides(admin_client: Client, settings: Any) -> None:
    settings.OJS = {"REDACT": {"keys": ["*card*"], "types": {"secret.*": ["args", "errors"]}}}
    (job,) = pushed(args=[{"card": "4711", "name": "ann"}])
    pushed(type="secret.send", args=["4711 ann"])
    dead(type="secret.send", error={"type": "E", "message": "ann failed", "retryable": False})
    assert listed(admin_client, q="4711") == []
    assert listed(admin_client, q="ann") == keys(job)
    assert listed(admin_client, error="ann failed") == []


# How far


def test_the_page_says_how_far_it_looked_and_leads_further_back(admin_client: Client, small: None) -> None:
    jobs = [job_at(NOW + dt.timedelta(minutes=i), type="rare.one" if i == 0 else "mail.send") for i in range(10)]
    response = admin_client.get(url("job"), {"type": "rare.one"})
    look = response.context["cl"].look
    assert list(response.context["cl"].result_list) == []
    assert (look.looked, look.ended, look.back_to) == (6, "depth", NOW + dt.timedelta(minutes=4))
    body = response.content.decode()
    assert "The newest 6 jobs were searched" in body
    assert "Search further back" in body
    further = admin_client.get(url("job") + response.context["cl"].looked["further"])
    assert [job.pk for job in further.context["cl"].result_list] == keys(jobs[0])
    assert further.context["cl"].look.looked is None
    assert "All jobs that could fit were searched" in further.content.decode()


def test_ended_jobs_are_walked_along_their_end(admin_client: Client, small: None) -> None:
    clock.freeze(NOW)
    jobs = pushed(9)
    Job.objects.filter(pk=jobs[0].pk).update(type="rare.one")
    for job in jobs:
        clock.advance(seconds=1)
        cancel([job.pk])
    response = admin_client.get(url("job"), {"type": "rare.one", "state": "cancelled"})
    assert (response.context["cl"].look.looked, list(response.context["cl"].result_list)) == (6, [])
    further = admin_client.get(url("job") + response.context["cl"].looked["further"])
    assert [job.pk for job in further.context["cl"].result_list] == keys(jobs[0])


def test_jobs_that_ended_together_are_not_stepped_over(small: None) -> None:
    clock.freeze(NOW)
    jobs = pushed(5)
    cancel([job.pk for job in jobs])
    found, look = JobListFilter({"states": "cancelled", "type": "mail.send"}).listed(Job.objects.all(), 100)
    assert set(found.values_list("pk", flat=True)) == set(keys(*jobs))
    assert look is not None
    assert look.ended == "all"


def test_a_queue_may_be_a_pattern_as_a_type_may(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [*pushed(queue="mail-a"), *pushed(queue="mail-b", type="mail.drop")]
    pushed(queue="sms")
    for few in (20_000, 1):
        monkeypatch.setattr(search, "FEW", few)
        assert listed(admin_client, queue="mail-*") == keys(*found[::-1])
        assert listed(admin_client, queue="mail-*", state="available") == keys(*found[::-1])
        assert listed(admin_client, queue="mail-*", type="mail.s*") == keys(found[0])
    assert listed(admin_client, queue="mail-*", state="completed") == []


def test_the_time_limit_ends_a_search(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "FIRST", 2)
    settings.OJS = {"SEARCH_SECONDS": 0.0}
    jobs = pushed(5)
    found, look = JobListFilter({"text": "a@example.com"}).listed(Job.objects.all(), 100)
    assert set(found.values_list("pk", flat=True)) == set(keys(*jobs[3:]))
    assert look is not None
    assert (look.ended, look.looked) == ("time", 2)


def test_a_page_that_is_full_is_enough(small: None) -> None:
    pushed(5)
    found, look = JobListFilter({"type": "mail.send"}).listed(Job.objects.all(), 1)
    assert look is not None
    assert (look.ended, look.looked, found.count()) == ("found", 2, 2)


def test_a_filter_with_an_index_of_the_sites_own_is_not_bounded(admin_client: Client, settings: Any) -> None:
    settings.OJS = {"INDEXED_FILTERS": ["type"], "SEARCH_DEPTH": 1}
    jobs = pushed(4)
    response = admin_client.get(url("job"), {"type": "mail.send"})
    assert [job.pk for job in response.context["cl"].result_list] == keys(*jobs[::-1])
    assert response.context["cl"].look is None
    assert admin_client.get(url("job"), {"q": "a@example.com"}).context["cl"].look.looked == 1


def test_pages_of_a_search_follow_each_other(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "FIRST", 10)
    jobs = pushed(120, type="a.b")
    seen = [pk for page in (1, 2, 3) for pk in listed(admin_client, type="a.b", p=page)]
    assert seen == keys(*jobs[::-1])


def test_an_act_on_chosen_jobs_does_not_search_again(admin_client: Client, small: None) -> None:
    (job,) = pushed(type="rare.one")
    pushed(20)
    data = {"action": "activate_jobs", "_selected_action": [str(job.pk)]}
    response = admin_client.post(url("job") + "?type=rare.one", data, follow=True)
    assert "1 job not activated" in said(response)[0]


# Costs


FILTERS = [
    "", *(f"state={state}" for state in ("available", "active", "cancelled", "dead_letter")), "queue=default",
    "type=mail.send", "tag=eu", "q=a@example.com", "error=OSError", "worker_id=w-1", "last_worker=w-1", "since=1h",
    "type=none.such",
]  # fmt: skip


def test_each_filter_takes_as_many_queries_for_many_jobs_as_for_few(admin_client: Client) -> None:
    one_in_each_state()
    pushed(tags=["eu"])
    few = {query: queries(admin_client, query) for query in FILTERS}
    dead(20)
    pushed(40, tags=["eu"])
    many = {query: len(queries(admin_client, query)) for query in FILTERS}
    assert many == {query: len(made) for query, made in few.items()}
    assert [sql for made in few.values() for sql in made if "COUNT(" in sql.upper()] == []


#: A process asks for the database's time now and then, whatever it does.
CLOCK = "clock_timestamp"


def queries(client: Client, query: str) -> list[str]:
    client.get(url("job"))  # content types, the session
    with CaptureQueriesContext(connection) as captured:
        assert client.get(f"{url('job')}?{query}").status_code == 200
    return [one["sql"] for one in captured if CLOCK not in one["sql"]]


def test_few_queues_are_links_and_many_are_a_field_that_suggests_them(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        pushed(queue=f"queue-{number}", type=f"type.n{number}")
    configure("_default", {"concurrency": 5})
    assert 'href="?queue=queue-3"' in admin_client.get(url("job")).content.decode()
    monkeypatch.setattr(jobfilters, "MOST_LINKS", 3)
    monkeypatch.setattr(jobfilters, "SUGGESTED", 4)
    response = admin_client.get(url("job"), {"queue": "queue-2", "state": "available"})
    body = response.content.decode()
    assert 'name="queue" value="queue-2"' in body
    names = body.partition('<datalist id="ojs-names-queue">')[2].partition("</datalist>")[0]
    assert re.findall(r'<option value="([^"]*)"></option>', names) == [f"queue-{number}" for number in range(4)]
    assert 'href="?queue=queue-1' not in body
    assert '<input type="hidden" name="state" value="available">' in body
    assert [job.queue for job in response.context["cl"].result_list] == ["queue-2"]


def test_who_may_not_look_finds_nothing(operator: Callable[..., Client]) -> None:
    assert operator("view_queue").get(url("job"), {"q": "ann"}).status_code == 403


def test_jobs_of_a_live_state_are_sorted_where_they_are_few(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pushed(2, pending=True)
    for few in (20_000, 1):
        monkeypatch.setattr(search, "FEW", few)
        assert listed(admin_client, state="pending") == keys(second, first)
        assert listed(admin_client, state="pending", type="mail.send", tag="eu") == []
        assert listed(admin_client, state="pending", type="mail.send") == keys(second, first)
    found, _ = JobListFilter({"states": "pending"}).listed(Job.objects.all(), 1)
    assert "COALESCE" not in str(found.query)


# Tabs, chips and columns


def tabs(client: Client, **query: Any) -> dict[str, tuple[str, bool]]:
    found = client.get(url("job"), query).context["cl"].tabs
    return {tab["text"]: (tab["count"], tab["here"]) for tab in found}


def test_tabs_count_the_jobs_of_each_state(admin_client: Client) -> None:
    one_in_each_state()
    pushed(2, queue="reports")
    shown = tabs(admin_client)
    assert shown == {
        "All": ("10", True), "scheduled": ("1", False), "available": ("3", False), "pending": ("1", False),
        "active": ("1", False), "completed": ("1", False), "retryable": ("1", False), "cancelled": ("1", False),
        "discarded": ("1", False), "dead letters": ("1", False),
    }  # fmt: skip
    assert tabs(admin_client, queue="reports", state="pending") == {
        "All": ("2", False), "available": ("2", False), "pending": ("0", True)
    }  # fmt: skip


def test_tabs_have_no_numbers_where_only_a_search_would_know_them(admin_client: Client) -> None:
    one_in_each_state()
    for query in ({"type": "mail.*"}, {"q": "x"}, {"queue": "cl*"}, {"since": "1h"}):
        shown = tabs(admin_client, **query)
        assert len(shown) == 10
        assert {count for count, _here in shown.values()} == {""}


def test_a_tab_keeps_the_other_filters_and_begins_at_the_first_page(admin_client: Client) -> None:
    one_in_each_state()
    body = admin_client.get(url("job"), {"type": "mail.*", "state": "active", "p": "1"}).content.decode()
    assert 'href="?type=mail.%2A&amp;state=completed"' in body
    assert 'href="?type=mail.%2A" ' in body or 'href="?type=mail.%2A">All' in body


def test_each_filter_is_a_chip_that_leads_to_the_list_without_it(admin_client: Client) -> None:
    pushed()
    response = admin_client.get(url("job"), {"q": "a", "queue": "mail", "type": EVIL, "state": "bogus"})
    chips = {str(chip["name"]): chip["without"] for chip in response.context["cl"].chips}
    assert set(chips) == {"text", "queue", "type", "state"}
    assert "queue=mail" in chips["text"]
    assert "q=a" not in chips["text"]
    assert "q=a" in chips["queue"]
    assert "<script>alert" not in response.content.decode()
    assert not admin_client.get(url("job")).context["cl"].chips


def test_the_list_says_how_long_a_job_ran_and_when_it_ended(admin_client: Client) -> None:
    clock.freeze(NOW)
    (job,) = claimed()
    clock.advance(seconds=4)
    columns = {state: admin_client.get(url("job"), {"state": state}).context["cl"].list_display for state in STATES}
    assert "started_ago" in columns["active"]
    assert "due" in columns["retryable"]
    assert {"priority", "enqueued_ago"} <= set(columns["available"])
    assert ">4 s</span>" in admin_client.get(url("job"), {"state": "active"}).content.decode()
    cancel([job.pk])
    clock.advance(seconds=60)
    body = admin_client.get(url("job")).content.decode()
    assert ">4 s</span>" in body
    assert re.search(r'field-finished_ago[^>]*">.*1 min ago', body)


def test_a_search_is_completed_by_states_queues_and_the_types_that_ran_lately(admin_client: Client) -> None:
    pushed(1, type="mail.send", queue="letters")
    dead(1, type="report.daily")
    order.catch_up("default")
    eventcounts.catch_up("default")
    summary.forget()
    page = admin_client.get(url("job"))
    words = page.context["cl"].suggestions
    wanted = {"state:retryable", "state:dead_letter", "queue:letters", "type:report.daily", "since:1h", "error:"}
    assert wanted <= set(words)
    assert '<option value="type:report.daily">' in page.content.decode()
    for word in words:
        (name, value) = word.split(":", 1)
        assert spread(word) == (({name: value}, "") if value else ({}, word)), "each is understood"
    assert "ojs-words" not in admin_client.get(url("workflow")).content.decode()


# The rows of a page that is open


def follow_up(client: Client, **filters: str) -> str:
    """The address at which the page asks for its rows anew."""
    body = client.get(url("job"), filters).content.decode()
    (address,) = re.findall(r'data-ojs-live="([^"]+)"', body)
    return html.unescape(address)


def test_rows_stay_where_they_are_and_say_what_is_true_now(admin_client: Client) -> None:
    jobs = pushed(3)
    address = follow_up(admin_client, state="available")
    (row,) = fetch(Fetch(["default"], worker_id="w"))
    newer = pushed(2)
    response = admin_client.get(address)
    assert [job.pk for job in response.context["cl"].result_list] == [job.pk for job in reversed(jobs)]
    body = response.content.decode()
    assert re.search(rf'data-ojs-part="{row["id"]}-state"[^>]*><span[^>]*>active<', body)
    assert "Show 2 other jobs that are in this list by now" in body
    assert not any(str(job.pk) in body for job in newer)
    assert "no-store" in response["Cache-Control"]


def test_a_row_that_was_deleted_is_left_out_and_nothing_fails(admin_client: Client) -> None:
    jobs = dead(2)
    address = follow_up(admin_client)
    delete([jobs[0].pk])
    assert [job.pk for job in admin_client.get(address).context["cl"].result_list] == [jobs[1].pk]


def test_the_open_page_of_many_jobs_costs_what_that_of_few_does(admin_client: Client) -> None:
    def queries(address: str) -> int:
        summary.forget()
        with CaptureQueriesContext(connection) as captured:
            assert admin_client.get(address).status_code == 200
        return len(captured)

    pushed(2)
    few = queries(follow_up(admin_client))
    pushed(60)
    address = follow_up(admin_client)
    assert queries(address) == few
    assert len(address) < 1500, "addresses of more than 4,094 characters are refused by some servers"


@pytest.mark.parametrize("rows", ["", "x", "AAAA", "%%%", "ü", "A" * 5000])
def test_rows_that_no_page_has_are_none(admin_client: Client, rows: str) -> None:
    pushed()
    response = admin_client.get(url("job", "rows"), {"rows": rows})
    assert (response.status_code, response.context["cl"].result_list) == (200, [])


def test_the_rows_are_for_those_who_may_see_the_list(operator: Callable[..., Client]) -> None:
    pushed()
    client = operator("view_job")
    address = follow_up(client)
    assert client.post(address).status_code == 405
    assert Client().get(address).status_code == 302


def test_who_may_not_see_jobs_gets_no_rows(operator: Callable[..., Client]) -> None:
    assert operator("view_queue").get(url("job", "rows")).status_code == 403


def test_what_is_wrong_with_a_filter_is_said_once(admin_client: Client) -> None:
    address = follow_up(admin_client, state="bogus")
    admin_client.get(address)
    assert said(admin_client.get(url("job"))) == []


def test_a_search_that_looks_through_jobs_is_not_repeated(admin_client: Client) -> None:
    pushed(args=["needle"])
    assert "data-ojs-live" not in admin_client.get(url("job"), {"q": "needle"}).content.decode()
