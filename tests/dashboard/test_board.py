"""The overview and the dead letters: who sees what, what it costs, and that nothing a job carries is markup."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_ojs import clock
from django_ojs.admin import deadletters, overview
from django_ojs.cron import schedules
from django_ojs.events import order
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack
from django_ojs.jobs.selection import dead_letters
from django_ojs.models import AuditEntry, ErrorNote, Event, Job, Queue, Worker
from django_ojs.queues.configuration import pause
from django_ojs.statistics import eventcounts, summary
from django_ojs.workerregistry.heartbeat import Beat, beat
from django_ojs.workerregistry.registration import register
from django_ojs.workflows import workflow
from tests.admin.conftest import claimed, dead, one_in_each_state, pushed, said, url

NOW = dt.datetime(2026, 3, 1, 12, 0, tzinfo=dt.UTC)
pytestmark = pytest.mark.django_db
EVIL = "<script>alert('x')</script>\"onload=alert(1)"
OVERVIEW, LETTERS = "/admin/django_ojs/job/overview/", "/admin/django_ojs/job/dead-letters/"
RETRY_ALL, DELETE_ALL = f"{LETTERS}all/retry_dead_letters/", f"{LETTERS}all/delete_dead_letters/"
#: A workflow in every shape that is drawn differently.
FLOW = {"type": "chain", "name": EVIL, "steps": [{"type": "mail.send", "args": []},
        {"type": "group", "jobs": [{"type": "mail.send", "args": []}] * 20}]}  # fmt: skip


@pytest.fixture
def full(db: None) -> Any:
    one_in_each_state()
    dead(error={"type": EVIL[:200], "message": EVIL, "retryable": False, "backtrace": [EVIL]}, meta={"x": EVIL})
    pause("mail", by="ann")
    register("w-1", {"queues": [EVIL], "hostname": "box", "job_types": ["other.type"], "concurrency": 4})
    schedules.register({"name": "nightly", "cron": "30 2 * * *", "timezone": "Europe/Paris", "type": "a.b", "args": []})
    ack([Ack(job.pk) for job in claimed(3)])
    return workflow.create(FLOW).workflow


def pages(flow: Any) -> list[str]:
    job = Job.objects.filter(state="discarded").first()
    assert job is not None
    return [
        OVERVIEW, f"{OVERVIEW}live/", LETTERS, f"{LETTERS}live/", f"{LETTERS}?type=mail.*&error=Value", RETRY_ALL,
        f"{DELETE_ALL}?error=ValueError", url("job", "change", job.pk), url("workflow", "change", flow.pk),
        reverse("admin:django_ojs_workflow_live", args=[flow.pk]), url("cronschedule", "change", "nightly"),
        url("job"), url("queue"), url("worker", "change", "w-1"), reverse("admin:app_list", args=["django_ojs"]),
    ]  # fmt: skip


def found(client: Client) -> list[tuple[str, str]]:
    """What the overview says needs attention now, by kind and what it is about."""
    summary.forget()
    return [(one["id"], one["about"]) for one in client.get(OVERVIEW).context["attention"]]


# What is shown


def test_the_overview_has_the_exact_numbers(admin_client: Client, full: Any) -> None:
    context = admin_client.get(OVERVIEW).context
    there = dict(context["states"])
    for state, number in there.items():
        assert number == str(Job.objects.filter(state=state).count()), state
    assert context["dead"] == str(Job.objects.dead_letters().count())
    queues = {line["line"].name: line["line"] for line in context["queues"]}
    assert next(iter(queues)) == "mail"  # paused: it needs attention
    assert queues["mail"].status == "paused"
    assert [worker["id"] for worker in context["workers"]] == ["w-1"]
    assert [schedule["name"] for schedule in context["schedules"]] == ["nightly"]
    assert [(one.type, one.dead, one.retrying) for one, _kind, _message in context["failing"]] == [("mail.send", 2, 1)]
    assert context["latency"]["jobs"] == 4


def test_an_empty_installation_has_an_overview(admin_client: Client) -> None:
    for page in (OVERVIEW, LETTERS):
        assert admin_client.get(page).status_code == 200


def test_workers_that_are_left_out_are_told(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "WORKERS", 1)
    for number, told in ((1, False), (2, True)):
        register(f"w-{number}", {"queues": ["default"]})
        summary.forget()
        page = admin_client.get(OVERVIEW)
        assert (len(page.context["workers"]), "And more." in page.content.decode()) == (1, told)


def test_what_needs_attention_beyond_the_first_findings_is_folded(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "FINDINGS", 1)
    pushed()
    assert found(admin_client) == [("scheduler-missing", "")]
    told = admin_client.get(OVERVIEW).content.decode().partition('id="ojs-more-findings"')[2].partition("</details>")[0]
    assert "and 1 more" in told
    assert "No worker runs, and jobs wait: 1." in told
    assert "Start a worker: manage.py ojs_worker." in told


def test_how_many_findings_are_not_even_folded_is_told(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "FINDINGS", 1)
    monkeypatch.setattr(overview, "FOLDED", 1)
    for queue in ("mail", "reports", "video"):
        pushed(queue=queue)
    register("w-1", {"queues": ["default"]})
    assert found(admin_client) == [("scheduler-missing", "")]
    told = re.findall(r"and \d+ more", admin_client.get(OVERVIEW).content.decode())
    assert told == ["and 3 more", "and 2 more"], "in front of the folded one, and behind it"


def test_types_that_no_worker_serves_are_told_and_none_while_one_may_serve_any(admin_client: Client) -> None:
    pushed(3, type="mail.send")
    pushed(2, type="report.daily", queue="reports")
    assert found(admin_client) == [("scheduler-missing", ""), ("workers-missing", "")]
    register("w-1", {"job_types": ["mail.send"]})
    assert found(admin_client) == [("scheduler-missing", ""), ("type-unserved", "report.daily")]
    register("w-2", {})
    assert found(admin_client) == [("scheduler-missing", "")]


def test_a_slip_in_the_name_of_a_queue_shows_as_a_queue_that_no_worker_serves(admin_client: Client) -> None:
    pushed(3)
    pushed(1, queue="payments")
    register("w-1", {"queues": ["payments", "defualt"]})
    card = admin_client.get(OVERVIEW).content.decode().partition('id="ojs-attention"')[2].partition("</section>")[0]
    assert "No worker serves the queue default, and jobs wait in it: 3." in card
    assert "?state=available&amp;queue=default" in card
    assert "manage.py ojs_worker --queues default" in card
    register("w-1", {"queues": ["payments", "default"]})
    assert found(admin_client) == [("scheduler-missing", "")]


def test_the_oldest_wait_is_found_behind_jobs_of_higher_priority(admin_client: Client) -> None:
    clock.freeze(NOW)
    pushed(1)
    clock.advance(seconds=600)
    pushed(50, priority=5)
    pushed(1, queue="held", scheduled_at="2099-01-01T00:00:00Z")
    lines = {line["line"].name: line["oldest"] for line in admin_client.get(OVERVIEW).context["queues"]}
    assert lines == {"default": "10 min", "held": "–"}


def test_rates_charts_and_percentiles_come_from_what_was_done(admin_client: Client) -> None:
    clock.freeze(NOW)
    for _minute in range(6):
        pushed(10, queue="mail")
        clock.advance(seconds=2)
        jobs = [Job.objects.get(pk=row["id"]) for row in fetch(Fetch(["mail"], count=10, worker_id="w"))]
        clock.advance(seconds=3)
        ack([Ack(job.pk) for job in jobs])
        clock.advance(seconds=55)
    found = overview.current.get()
    assert [line.rate for line in found.queues] == [10.0]
    for name in overview.RANGES:
        points = overview.stretches[name].get().past.points
        assert sum(point.completed for point in points) == 60, name
        assert len(points) <= 75
    assert (found.latency.jobs, found.latency.run) == (60, [3000.0] * 3)
    assert found.latency.wait == pytest.approx([2000.0] * 3, abs=1)  # the jobs of a batch are a microsecond apart


# What it costs


def queries(client: Client, page: str) -> list[str]:
    ContentType.objects.clear_cache()
    summary.forget()
    with CaptureQueriesContext(connection) as captured:
        assert client.get(page).status_code == 200
    return [query["sql"] for query in captured]


def test_no_page_needs_more_queries_for_more_rows(admin_client: Client, full: Any) -> None:
    wanted = [page for page in pages(full) if "/all/" not in page]
    few = {page: len(queries(admin_client, page)) for page in wanted}
    dead(15)
    for number in range(15):
        pushed(2, queue=f"queue-{number}", priority=number, type=f"type.t{number}")
        register(f"more-{number}", {"queues": ["mail"], "job_types": ["other.type"]})
        schedules.register({"name": f"more-{number}", "cron": "@daily", "type": "a.b", "args": []})
    assert [page for page in wanted if len(queries(admin_client, page)) > few[page]] == []


def test_no_live_page_counts_jobs_but_those_that_workers_hold(admin_client: Client, full: Any) -> None:
    for page in (f"{OVERVIEW}live/", f"{LETTERS}live/", reverse("admin:django_ojs_workflow_live", args=[full.pk])):
        counting = [sql for sql in queries(admin_client, page) if "COUNT(" in sql.upper()]
        assert all('AS "held"' in sql or "AS `held`" in sql for sql in counting), page


@pytest.mark.parametrize("page", [f"{OVERVIEW}live/", f"{LETTERS}live/", f"{LETTERS}live/?error=ValueError"])
def test_ten_viewers_cost_what_one_does(admin_client: Client, full: Any, page: str) -> None:
    queries(admin_client, page)
    # As if it took no time, however busy the machine is.
    with pytest.MonkeyPatch.context() as patch, CaptureQueriesContext(connection) as captured:
        patch.setattr("django_ojs.statistics.summary.time.monotonic", lambda: 0.0)
        for _viewer in range(10):
            admin_client.get(page)
    about_users = ("auth_", "django_session")
    assert [q["sql"] for q in captured if not any(table in q["sql"] for table in about_users)] == []


def test_a_workflow_of_a_thousand_members_is_drawn_in_few_queries(admin_client: Client) -> None:
    jobs = [{"type": "mail.send", "args": []}] * 1000
    flow = workflow.create({"type": "group", "jobs": jobs}).workflow
    page = reverse("admin:django_ojs_workflow_live", args=[flow.pk])
    assert len(queries(admin_client, page)) <= 14
    response = admin_client.get(page)
    assert "989 more jobs" in response.content.decode()
    assert f"/job/?workflow={flow.pk}" in response.content.decode()
    assert 'href="?open=0#ojs-graph"' in response.context["graph"]
    assert len(response.context["graph"]) < 30_000
    assert 'data-ojs-age="5000"' in response.content.decode()  # so large a page is not asked for every second


# Who may


def test_who_may_not_see_jobs_sees_no_page(operator: Callable[..., Client], full: Any) -> None:
    client = operator("view_queue", "change_queue", "view_worker")
    for page in (OVERVIEW, f"{OVERVIEW}live/", LETTERS, f"{LETTERS}live/", RETRY_ALL):
        assert client.get(page).status_code == 403
    assert Client().get(OVERVIEW).status_code == 302  # to the login


def test_sections_and_buttons_need_their_own_rights(operator: Callable[..., Client], full: Any) -> None:
    client = operator("view_job")
    context = client.get(OVERVIEW).context
    assert (context["queues"], context["workers"], context["schedules"]) == (None, None, None)
    body = client.get(LETTERS).content.decode()
    assert "formaction" not in body
    assert "/all/" not in body


def test_a_look_at_queues_gives_no_switch(operator: Callable[..., Client], full: Any) -> None:
    client = operator("view_job", "view_queue")
    assert "formaction" not in client.get(OVERVIEW).content.decode()
    assert client.post(url("queue", "verb", "mail", "resume_queues")).status_code == 403
    assert Queue.objects.get(pk="mail").paused


@pytest.mark.parametrize("page, right", [(RETRY_ALL, "delete_job"), (DELETE_ALL, "change_job")])
def test_each_bulk_verb_needs_its_right(operator: Callable[..., Client], full: Any, page: str, right: str) -> None:
    client = operator("view_job", right)
    assert client.get(page).status_code == 403
    assert client.post(page).status_code == 403
    assert Job.objects.dead_letters().count() == 2


def test_every_change_needs_a_token(admin_client: Client, full: Any) -> None:
    client = Client(enforce_csrf_checks=True)
    client.cookies = admin_client.cookies
    (job,) = pushed()
    actions = [url("queue", "verb", "mail", "resume_queues"), RETRY_ALL, DELETE_ALL, url("job", "priority", job.pk)]
    for action in actions:
        assert client.post(action, {"priority": "5"}).status_code == 403
    assert Queue.objects.get(pk="mail").paused
    assert Job.objects.dead_letters().count() == 2


def test_only_bulk_verbs_are_bulk_verbs(admin_client: Client) -> None:
    assert admin_client.get(f"{LETTERS}all/cancel_jobs/").status_code == 404
    assert admin_client.get(f"{LETTERS}all/nothing/").status_code == 404


# Acting


def test_pausing_leads_back_to_the_overview_which_shows_it(admin_client: Client) -> None:
    pushed(queue="mail")
    action = url("queue", "verb", "mail", "pause_queues")
    response = admin_client.post(action, {"next": OVERVIEW}, follow=True)
    assert response.redirect_chain == [(OVERVIEW, 302)]
    assert said(response) == ["1 queue paused."]
    assert response.context["queues"][0]["line"].status == "paused"


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example", "javascript:alert(1)", ""])
def test_a_button_leads_nowhere_else(admin_client: Client, target: str) -> None:
    pushed(queue="mail")
    response = admin_client.post(url("queue", "verb", "mail", "pause_queues"), {"next": target})
    assert response.headers["Location"] == url("queue", "change", "mail")


def test_the_count_comes_first_and_nobody_who_came_later_is_meant(admin_client: Client) -> None:
    clock.freeze(NOW)
    old = [*dead(3), *dead(2, error={"type": "OSError", "message": "gone", "retryable": False})]
    clock.advance(seconds=1)
    question = admin_client.get(RETRY_ALL, {"error": "ValueError"})
    assert question.context["number"] == 3
    assert "<b>3</b> dead letters" in question.content.decode()
    assert Job.objects.dead_letters().count() == 5
    clock.advance(seconds=1)
    (late,) = dead()
    response = admin_client.post(RETRY_ALL, dict(question.context["fields"]), follow=True)
    assert said(response) == ["3 jobs made available again."]
    states = dict(Job.objects.values_list("pk", "state"))
    assert [states[job.pk] for job in old] == ["available"] * 3 + ["discarded"] * 2
    assert states[late.pk] == "discarded"


def test_nothing_is_done_to_all_without_the_question(admin_client: Client) -> None:
    dead(2)
    for until in ("", "yesterday"):
        response = admin_client.post(DELETE_ALL, {"type": "mail.send", "until": until})
        assert response.context["number"] == 2
    assert Job.objects.dead_letters().count() == 2


def test_deleting_all_that_fit_goes_in_batches(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_ojs.admin.operate.CHUNK", 4)
    dead(10, type="mail.send")
    (other,) = dead(1, type="report.daily")
    question = admin_client.get(DELETE_ALL, {"type": "mail.*"})
    response = admin_client.post(DELETE_ALL, dict(question.context["fields"]), follow=True)
    assert said(response) == ["10 jobs deleted."]
    assert [job.pk for job in Job.objects.dead_letters()] == [other.pk]


def test_dead_letters_are_grouped_without_what_differs(admin_client: Client) -> None:
    for number in range(3):
        dead(error={"type": "OSError", "message": f"host 10.0.0.{number} gone at 0x7f{number}a", "retryable": False})
    dead(2)
    groups = deadletters.groups(dead_letters()).get().groups
    assert [(group.count, group.error, group.message) for group in groups] == [
        (3, "OSError", "host #.#.#.# gone at #"),
        (2, "ValueError", "no such template"),
    ]
    listed = (
        admin_client.get(f"{url('job')}?state=dead_letter&{groups[0].query(dead_letters())}").context["cl"].result_list
    )
    assert len(listed) == 3


def test_the_smallest_groups_are_counted_where_there_are_too_many(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadletters, "GROUPS", 1)
    dead(2)
    dead(1, type="mail.fetch")
    dead(1, type="report.daily")
    page = admin_client.get(LETTERS)
    assert [group["type"] for group in page.context["groups"]] == ["mail.send"]
    assert "and 2 more" in page.content.decode()
    assert "4 of 4 dead letters" in page.content.decode()


def test_groups_and_their_links_stay_within_the_filter(admin_client: Client) -> None:
    gone = {"type": "OSError", "message": "host gone", "retryable": False}
    dead(2, error=gone, type="mail.send")
    dead(1, type="mail.fetch")
    dead(4, error=gone, type="report.daily")
    assert len(admin_client.get(LETTERS).context["groups"]) == 3
    page = admin_client.get(LETTERS, {"type": "mail.*", "error": "gone", "queue": "claims"})
    (group,) = page.context["groups"]
    assert (group["type"], group["error"], group["count"], page.context["sampled"]) == ("mail.send", "OSError", 2, 2)
    assert dict(parse_qsl(group["query"])) == {"type": "mail.send", "error": "gone", "queue": "claims"}
    question = admin_client.get(f"{DELETE_ALL}?{group['query']}")
    assert question.context["number"] == 2
    assert "The newest 2 dead letters that fit the filter." in page.content.decode()
    elsewhere = admin_client.get(LETTERS, {"queue": "elsewhere"})
    assert elsewhere.context["groups"] == []
    assert "By type and error" not in elsewhere.content.decode()


def test_one_dead_letter_is_not_called_letters(admin_client: Client) -> None:
    dead(1)
    body = admin_client.get(LETTERS).content.decode()
    assert "1 of 1 dead letter." in body


def test_priority_is_changed_and_refused_with_words(admin_client: Client) -> None:
    (job,) = pushed()
    action = url("job", "priority", job.pk)
    assert said(admin_client.post(action, {"priority": " 7 "}, follow=True)) == ["1 job given the priority 7."]
    job.refresh_from_db()
    assert job.priority == 7
    for nonsense in ("--5", "x" * 50, "1e9", "999999999999"):
        assert "not given the priority" in said(admin_client.post(action, {"priority": nonsense}, follow=True))[0]
    assert "a number such as" in said(admin_client.post(action, {"priority": ""}, follow=True))[0]
    assert admin_client.get(action).url == url("job", "change", job.pk), "after a login"
    admin_client.post(action, {"priority": "HIGH"})
    noted = LogEntry.objects.filter(object_id=str(job.pk)).values_list("change_message", flat=True)
    assert set(noted) == {"Given the priority 7.", "Given the priority HIGH."}


def test_run_now_and_a_copy(admin_client: Client) -> None:
    (job,) = pushed(scheduled_at="2099-01-01T00:00:00Z", meta={"tenant": "acme"}, x_own=1)
    assert said(admin_client.post(url("job", "verb", job.pk, "copy_jobs"), follow=True)) == ["1 job copied."]
    copy = Job.objects.exclude(pk=job.pk).get()
    assert (copy.state, copy.meta, copy.extra) == ("available", {"tenant": "acme"}, {"x_own": 1})
    admin_client.post(url("job", "verb", job.pk, "run_jobs_now"))
    job.refresh_from_db()
    assert (job.state, job.due_at) == ("available", None)
    assert [event.type for event in Event.objects.filter(job_id=job.pk).order_by("id")] == [
        "job.scheduled", "job.enqueued"
    ]  # fmt: skip


def test_a_copy_of_a_unique_job_says_why_it_is_refused(admin_client: Client) -> None:
    (job,) = pushed(unique={"keys": ["type", "args"]})
    assert "not copied" in said(admin_client.post(url("job", "verb", job.pk, "copy_jobs"), follow=True))[0]
    assert Job.objects.count() == 1


# Markup


class Markup(HTMLParser):
    """Collects what a strict Content-Security-Policy forbids, and what is the matter with labels."""

    def __init__(self, body: str) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.ids: list[str] = []
        self._script = False
        self.feed(body)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [given["id"]] if given.get("id") else []
        self.inline += [f"{tag} {name}" for name, _ in attrs if name == "style" or name.startswith("on")]
        self.inline += [f"{tag} {value}" for name, value in attrs if (value or "").strip().startswith("javascript:")]
        self._script = tag == "script" and "src" not in given and given.get("type") != "application/json"
        if tag == "style":
            self.inline.append("style element")
        if "//" in (given.get("src") or "") or (tag == "link" and "//" in (given.get("href") or "")):
            self.inline.append(f"{tag} from elsewhere")

    def handle_data(self, data: str) -> None:
        if self._script and data.strip():
            self.inline.append(f"script {data[:40]}")

    def handle_endtag(self, tag: str) -> None:
        self._script = False


def test_no_page_of_ours_has_inline_script_or_style_and_nothing_of_a_job_is_markup(
    admin_client: Client, full: Any
) -> None:
    Job.objects.filter(state="available").update(type=EVIL, queue=EVIL)
    Worker.objects.update(hostname=EVIL)
    for page in pages(full):
        response = admin_client.get(page)
        assert response.status_code == 200, page
        found = Markup(response.content.decode())
        assert found.inline == [], page
        assert len(found.ids) == len(set(found.ids)), page
        assert "<script>alert" not in response.content.decode(), page


def test_every_page_of_ours_leads_to_the_overview(admin_client: Client, full: Any) -> None:
    for page in pages(full):
        if not page.endswith("/live/"):
            assert f'href="{OVERVIEW}"' in admin_client.get(page).content.decode(), page


@pytest.mark.urls("tests.dashboard.urls")
def test_another_admin_site_has_its_own(admin_client: Client, full: Any) -> None:
    for name in ("overview", "dead_letters"):
        page = reverse(f"admin:django_ojs_{name}", current_app="backstage")
        assert page.startswith("/backstage/")
    page = reverse("admin:django_ojs_dead_letters", current_app="backstage")
    body = admin_client.get(page).content.decode()
    assert "Backstage" in body
    assert "/backstage/django_ojs/job/dead-letters/all/" in body
    assert 'href="/admin/django_ojs' not in body


# Pausing from the overview


def test_a_pause_from_the_overview_has_the_reason_that_was_given(operator: Callable[..., Client]) -> None:
    pushed(queue="mail")
    client = operator("view_job", "view_queue", "change_queue")
    field = client.get(OVERVIEW).content.decode().partition('id="ojs-reason"')[2].partition(">")[0]
    assert 'form="ojs-act"' in field  # the form of the buttons: no script is needed
    sent = {"next": OVERVIEW, "reason": " the printer is on fire "}
    assert client.post(url("queue", "verb", "mail", "pause_queues"), sent).url == OVERVIEW
    entry = AuditEntry.objects.get(action="queue.pause")
    assert (entry.actor, entry.detail["reason"]) == ("user:ann", "the printer is on fire")
    client.post(url("queue", "verb", "mail", "resume_queues"), {"next": OVERVIEW, "reason": ""})
    client.post(url("queue", "verb", "mail", "pause_queues"), {"next": OVERVIEW, "reason": ""})
    assert "reason" not in AuditEntry.objects.filter(action="queue.pause").latest("id").detail


def test_who_may_not_pause_is_asked_for_no_reason(operator: Callable[..., Client]) -> None:
    pushed()
    assert "ojs-reason" not in operator("view_job", "view_queue").get(OVERVIEW).content.decode()


# The audit log


def test_every_act_has_its_entry(admin_client: Client) -> None:
    (waiting,), (scheduled,) = pushed(), pushed(scheduled_at="2099-01-01T00:00:00Z")
    schedules.register({"name": "nightly", "cron": "30 2 * * *", "type": "a.b", "args": []})
    for name in ("pause_queues", "resume_queues"):
        admin_client.post(url("queue", "verb", "default", name), {"next": OVERVIEW})
    admin_client.post(reverse("admin:django_ojs_job_priority", args=[waiting.pk]), {"priority": "7"})
    admin_client.post(url("job", "verb", scheduled.pk, "run_jobs_now"))
    admin_client.post(url("job", "verb", scheduled.pk, "copy_jobs"))
    for name in ("run_schedules", "disable_schedules", "enable_schedules"):
        admin_client.post(url("cronschedule", "verb", "nightly", name))
    until = {"until": "2099-01-01T00:00:00Z"}
    (last,) = dead(type="other.type")
    admin_client.post(DELETE_ALL, {**until, "type": "other.type"})
    letters = dead(2)
    admin_client.post(RETRY_ALL, until)
    entries = list(AuditEntry.objects.order_by("id"))
    assert [(entry.action, entry.target) for entry in entries] == [
        ("queue.pause", "default"), ("queue.resume", "default"), ("job.prioritise", str(waiting.pk)),
        ("job.run", str(scheduled.pk)), ("job.copy", str(scheduled.pk)), ("cron.trigger", "nightly"),
        ("cron.disable", "nightly"), ("cron.enable", "nightly"), ("job.delete", str(last.pk)), ("job.retry", ""),
    ]  # fmt: skip
    assert set(entries[9].detail["targets"]) == {str(job.pk) for job in letters}
    assert {(entry.actor, entry.door) for entry in entries} == {("user:admin", "admin")}


# Notes about kinds of errors


def group_of(client: Client, number: int = 0) -> Any:
    summary.forget()
    return client.get(LETTERS).context["groups"][number]


def test_a_kind_of_error_can_be_noted_and_muted(admin_client: Client) -> None:
    for number in range(3):
        dead(error={"type": "OSError", "message": f"host 10.0.0.{number} gone", "retryable": False})
    dead(1)
    page = f"{LETTERS}group/?{group_of(admin_client)['own']}"
    assert "host #.#.#.# gone" in admin_client.get(page).content.decode()
    response = admin_client.post(page, {"note": f"The host is being moved. {EVIL}"}, follow=True)
    assert response.redirect_chain == [(LETTERS, 302)]
    assert said(response) == ["Noted."]
    assert group_of(admin_client)["note"].startswith("The host is being moved.")
    body = admin_client.get(LETTERS).content.decode()
    assert "The host is being moved." in body
    assert EVIL not in body
    admin_client.post(page, {"note": "later", "muted": "on"})
    summary.forget()
    context = admin_client.get(LETTERS).context
    assert [group["error"] for group in context["groups"]] == ["ValueError"]
    assert [(group["error"], group["note"], group["count"]) for group in context["muted"]] == [("OSError", "later", 3)]
    dead(error={"type": "OSError", "message": "host 10.0.0.77 gone", "retryable": False})
    summary.forget()
    assert admin_client.get(LETTERS).context["muted"][0]["count"] == 4, "the next of its kind is muted, too"
    admin_client.post(page, {"note": " "})
    assert not ErrorNote.objects.exists()
    entry = AuditEntry.objects.filter(action="dead_letter.note").order_by("pk")[1]
    assert (entry.actor, entry.target) == ("user:admin", "mail.send")
    assert entry.detail == {"error": "OSError", "note": "later", "muted": True}


@pytest.mark.parametrize(
    "one, other, shown",
    [
        ("no mailbox ann@example.org", "no mailbox bob.b+x@mail.example.com", "no mailbox #"),
        ("GET https://a.example/orders/7?x=y: 503", "GET http://b.example: 502", "GET #: #"),
        ("<Order at 0x7fa3bc12e4d0> is lost", "<Order at 0x7F01d00dfeed> is lost", "<Order at #> is lost"),
        ("no order 'A 17'", "no order 'B 4711/2'", "no order #"),
        ('no file "my report.pdf"', 'no file "other.png, old"', "no file #"),
        ("commit 9f1c2d3 is gone", "commit deadb33f00 is gone", "commit # is gone"),
        ("no cus_9s6XKzkNRiz8i3", "no cus_1AAbbCCddEEffGG", "no cus_#"),
        ("fe80::1:2 is down", "2001:db8:0:0:1::9 is down", "# is down"),
        ("ann@" + "a" * 300 + ".org is full", "ann@example.org is full", "# is full"),
    ],
)
def test_what_differs_from_job_to_job_makes_no_other_kind_of_error(
    admin_client: Client, one: str, other: str, shown: str
) -> None:
    for message in (one, other):
        dead(error={"type": "OSError", "message": message, "retryable": False})
    group = group_of(admin_client)
    assert (group["message"], group["count"]) == (shown, 2)


def test_names_in_code_tell_errors_apart(admin_client: Client) -> None:
    for message in ("'price'", "'order.name'", "can't read, isn't there"):
        dead(error={"type": "KeyError", "message": message, "retryable": False})
    found = {group["message"] for group in (group_of(admin_client, number) for number in range(3))}
    assert found == {"'price'", "'order.name'", "can't read, isn't there"}


def test_a_note_needs_the_right_to_change_jobs_and_a_type(
    operator: Callable[..., Client], admin_client: Client
) -> None:
    dead(1)
    page = f"{LETTERS}group/?{group_of(admin_client)['own']}"
    client = operator("view_job")
    assert client.get(page).status_code == client.post(page, {"note": "x"}).status_code == 403
    assert "group/?" not in client.get(LETTERS).content.decode()
    assert admin_client.get(f"{LETTERS}group/").status_code == 404
    assert admin_client.post(f"{LETTERS}group/?type=" + "x" * 5000, {"note": "y" * 9000}).status_code == 302
    assert len(ErrorNote.objects.get().note) == deadletters.MAX_NOTE


def test_the_trend_of_a_kind_of_error(admin_client: Client) -> None:
    clock.freeze(NOW)
    dead(2)
    clock.advance(minutes=60)
    dead(1, error={"type": "OSError", "message": "gone", "retryable": False})
    clock.advance(minutes=60)
    (old, new) = deadletters.groups(dead_letters()).get().groups
    assert (old.error, old.trend[0], sum(old.trend)) == ("ValueError", 2, 2)
    assert (new.error, new.trend[deadletters.TREND // 2], sum(new.trend)) == ("OSError", 1, 1)
    assert "at most 2, now 0" in admin_client.get(LETTERS).content.decode()


# A workflow with many steps, looked into


def test_a_step_is_found_by_its_name_and_shown_with_a_box_of_its_own(admin_client: Client) -> None:
    steps = [{"id": f"part-{number}", "type": "mail.send", "args": []} for number in range(300)]
    flow = workflow.create({"steps": steps}).workflow
    page = reverse("admin:django_ojs_workflow_change", args=[flow.pk])
    assert "part-217" not in str(admin_client.get(page).context["graph"])
    response = admin_client.get(page, {"find": "PART-217"})
    assert [name for name, _type, _address in response.context["fitting"]] == ["part-217"]
    graph = str(response.context["graph"])
    assert re.search(r'class="ojs-node ojs-found[^>]*><title>part-217', graph)
    assert "find=PART-217" in graph, "what is opened next still shows it"
    assert "?find=PART-217" in response.content.decode(), "and so does the live page"
    assert "No step has this text" in admin_client.get(page, {"find": "nothing"}).content.decode()
    hostile = admin_client.get(page, {"find": "<script>", "open": ["x", "9" * 30, "7"]})
    assert hostile.status_code == 200
    assert "<script>" not in str(hostile.context["graph"])


def test_a_box_for_many_is_opened_and_closed(admin_client: Client) -> None:
    flow = workflow.create({"type": "group", "jobs": [{"type": "mail.send", "args": []}] * 700}).workflow
    page = reverse("admin:django_ojs_workflow_live", args=[flow.pk])
    assert len(queries(admin_client, f"{page}?open=0")) <= 14
    graph = str(admin_client.get(page, {"open": "0"}).context["graph"])
    assert graph.count('class="ojs-node ') == 11 + 600 + 1
    assert "689 jobs: close" in graph
    assert 'href="?#ojs-graph"' in graph


# Releases, types, workers over time


def beat_of(worker: str, memory: float, active: int = 1, **info: Any) -> None:
    said = {"concurrency": 4, "memory_mb": memory, **info}
    beat(Beat(worker, active_count=active, info=said))


def test_the_page_of_a_worker_shows_what_it_did_and_which_release_came(admin_client: Client) -> None:
    clock.freeze(NOW)
    for minute in range(5):
        beat_of("w-1", 100.0 + minute, release="1.4.1" if minute < 3 else "1.4.2")
        clock.advance(seconds=60)
    charts = admin_client.get(reverse("admin:django_ojs_worker_change", args=["w-1"])).context["charts"]
    assert [card.title for card in charts] == ["Jobs and slots", "Memory"]
    assert "memory: at most 104 MB" in charts[1].drawing
    assert "slots: at most 4" in charts[0].drawing
    assert "release 1.4.2" in charts[0].drawing
    register("silent", {"concurrency": 2})
    assert admin_client.get(reverse("admin:django_ojs_worker_change", args=["silent"])).context["charts"] == []


def test_dead_letters_and_the_overview_show_when_a_release_came(admin_client: Client, settings: Any) -> None:
    clock.freeze(NOW)
    beat_of("w-1", 1.0, release="1.4.1")
    clock.advance(seconds=60)
    dead(2, error={"type": "Before", "message": "x", "retryable": False})
    clock.advance(seconds=60)
    beat_of("w-1", 1.0, release="<1.4.2>")
    clock.advance(seconds=60)
    dead(3, error={"type": "After", "message": "y", "retryable": False})
    clock.advance(seconds=60)
    summary.forget()
    response = admin_client.get(reverse("admin:django_ojs_dead_letters"))
    assert {group["error"]: group["release"] for group in response.context["groups"]} == {
        "Before": "1.4.1", "After": "<1.4.2>",
    }  # fmt: skip
    assert "release &lt;1.4.2&gt;" in response.content.decode()
    overview_page = admin_client.get(reverse("admin:django_ojs_overview")).content.decode()
    assert overview_page.count("release &lt;1.4.2&gt;</text>") == 5


def test_the_overview_has_the_types_with_most_attempts(admin_client: Client) -> None:
    clock.freeze(NOW)
    dead(2)
    job = claimed()[0]
    clock.advance(seconds=3)
    ack([Ack(job.pk)])
    order.catch_up("default")
    eventcounts.catch_up("default")
    summary.forget()

    for name in overview.RANGES:
        (line,) = admin_client.get(reverse("admin:django_ojs_overview"), {"range": name}).context["types"]
        assert (line["name"], line["completed"], line["failed"]) == ("mail.send", "1", "2")
        assert len(overview.stretches[name].get().types[0].trend) == overview.TREND
        assert sum(overview.stretches[name].get().types[0].trend) == 3
    assert (line["error_rate"], line["run"]) == ("66.7%", "3 s")


def test_the_page_of_a_queue_shows_a_stretch_of_time(admin_client: Client) -> None:
    clock.freeze(NOW)
    job = claimed()[0]
    clock.advance(seconds=120)
    ack([Ack(job.pk)])
    clock.advance(seconds=1)
    page = reverse("admin:django_ojs_queue_change", args=["claims"])
    charts = {card.title: card.drawing for card in admin_client.get(page, {"range": "15m"}).context["charts"]}
    assert "jobs: at most 2" in charts["Jobs that ran at the same time"]
    assert "completed: at most 1" in charts["Jobs ended"]
    assert admin_client.get(page, {"range": "for ever"}).context["range"].name == "1h"
