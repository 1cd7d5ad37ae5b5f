"""A filter of jobs that is declared once and missing at one of the doors, or that means something else there."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django import forms
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.db.models import Q
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django_filters import BooleanFilter

from django_ojs import clock
from django_ojs.http import openapi
from django_ojs.jobs import bulk
from django_ojs.jobs.filterfields import (
    COMMAND,
    LIST,
    OPERATOR,
    PAGE,
    PRODUCER,
    DeclaredFilter,
    NameFilterField,
    Notation,
    of_column,
)
from django_ojs.jobs.selection import JobFilter, names_in, shown_in
from django_ojs.models import BulkAction, Job
from django_ojs.rules import ids
from django_ojs.states import TERMINAL, State
from tests import docs  # noqa: F401 - where `ojsdocs` can be imported
from tests.http.conftest import Api, error_of

from ojsdocs import commands, filters  # isort: skip

pytestmark = pytest.mark.django_db
LISTS = ("/admin/jobs", "/admin/dead-letter", "/dead-letter")


def kinds(of: type[JobFilter] = JobFilter) -> Iterator[type[JobFilter]]:
    yield of
    for kind in of.__subclasses__():
        yield from kinds(kind)


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> DeclaredFilter:
    """The filter `trace`, as a line in `JobFilter` would declare it."""
    declared = DeclaredFilter(
        NameFilterField, of_column("trace_id"), help="jobs of this trace", title="mark", example="4bf9"
    )
    for kind in kinds():
        monkeypatch.setitem(kind.base_filters, "trace", declared)
    return declared


@pytest.fixture
def marked(api: Api) -> str:
    """One of three jobs has the trace t-1; the other two come before and after it."""
    api.push()
    job = api.push("mail.send")["id"]
    api.push()
    Job.objects.filter(pk=job).update(trace_id="t-1")
    return str(job)


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out, stderr=io.StringIO(), no_color=True)
    return out.getvalue().strip()


@pytest.mark.usefixtures("trace")
class TestANewFilter:
    def test_lists_over_http(self, api: Api, marked: str) -> None:
        page = api.get("/admin/jobs", {"trace": "t-1"}).json()
        assert [job["id"] for job in page["items"]] == [marked]
        assert page["pagination"]["total"] == 1
        letter = api.dead_letter(queue="letters")["id"]
        Job.objects.filter(pk=letter).update(trace_id="t-2")
        api.dead_letter(queue="letters")
        for path in LISTS:
            body = api.get(path, {"trace": "t-2"}).json()
            assert [job["id"] for job in body.get("items", body.get("jobs"))] == [letter], path
        error = error_of(api.get("/admin/jobs", {"trace": "x" * 256}), 400, "invalid_request")
        assert error["details"]["field"] == "trace"

    def test_lists_over_http_search_for_what_no_index_finds(
        self, api: Api, marked: str, monkeypatch: pytest.MonkeyPatch, settings: Any
    ) -> None:
        monkeypatch.setattr("django_ojs.http.joblists.FEW", 0)
        monkeypatch.setattr("django_ojs.http.joblists.DEEPER", 1)
        monkeypatch.setattr("django_ojs.jobs.search.FIRST", 1)
        settings.OJS = {**settings.OJS, "SEARCH_DEPTH": 1}
        page = api.get("/admin/jobs", {"trace": "t-1"}).json()
        assert (page["items"], page["pagination"]["searched"]["jobs"]) == ([], 1)
        settings.OJS = {**settings.OJS, "INDEXED_FILTERS": ["trace"]}
        page = api.get("/admin/jobs", {"trace": "t-1"}).json()
        assert [job["id"] for job in page["items"]] == [marked]

    def test_bodies(self, api: Api, marked: str) -> None:
        rehearsed = api.post("/admin/jobs/bulk/cancel", {"filter": {"trace": "t-1"}, "dry_run": True}).json()
        assert rehearsed["matched"] == 1
        for wrong in (5, "", "  ", ["t-1"]):
            error = error_of(
                api.post("/admin/jobs/bulk/cancel", {"filter": {"trace": wrong}, "dry_run": True}),
                400, "invalid_request",
            )  # fmt: skip
            assert error["details"]["field"] == "filter.trace"
        done = api.post("/jobs/bulk/cancel", {"filter": {"trace": "t-1"}})
        assert (done.status_code, [item["job_id"] for item in done.json()["items"]]) == (200, [marked])
        assert Job.objects.filter(state=State.CANCELLED).count() == 1

    def test_the_query_of_a_delete(self, api: Api) -> None:
        letter, other = api.dead_letter()["id"], api.dead_letter()["id"]
        Job.objects.filter(pk=letter).update(trace_id="t-1")
        assert api.delete("/admin/dead-letter?trace=t-1&confirm=true").json()["purged_count"] == 1
        assert list(Job.objects.values_list("pk", flat=True).filter(pk__in=[letter, other])) == [
            Job.objects.get(pk=other).pk
        ]

    def test_bulk_actions_in_the_background(self, api: Api, marked: str) -> None:
        body = {"filter": {"trace": "t-1"}, "confirm": True, "background": True}
        begun = api.post("/admin/jobs/bulk/cancel", body).json()
        assert (begun["expected"], begun["filter"]["trace"]) == (1, "t-1")
        while bulk.advance_action():
            pass
        assert [str(pk) for pk in Job.objects.filter(state=State.CANCELLED).values_list("pk", flat=True)] == [marked]
        assert BulkAction.objects.get().succeeded == 1

    def test_the_admins_list(self, api: Api, marked: str, admin_client: Client) -> None:
        address = reverse("admin:django_ojs_job_changelist")
        page = admin_client.get(address, {"trace": "t-1"})
        assert [str(job.pk) for job in page.context["cl"].result_list] == [marked]
        assert [chip["name"] for chip in page.context["cl"].chips] == ["mark"]
        text = page.content.decode()
        assert 'name="trace"' in text
        assert 'placeholder="4bf9"' in text
        assert "trace:" in page.context["cl"].suggestions
        typed = admin_client.get(address, {"q": "trace:t-1 state:available"})
        assert typed.headers["Location"] == "?trace=t-1&state=available"
        wrong = admin_client.get(address, {"trace": "no\0thing"})
        assert list(wrong.context["cl"].result_list) == []

    def test_commands(self, api: Api, marked: str) -> None:
        assert [job["id"] for job in json.loads(run("ojs_jobs", "list", "--json", "--trace", "t-1"))] == [marked]
        with pytest.raises(CommandError, match="a text of 1 to"):
            run("ojs_jobs", "list", "--trace", " ")
        assert run("ojs_jobs", "cancel", "--trace", "t-1", "--yes") == "1 job cancelled."
        assert "--trace NAME" in commands.subparsers(commands.parser("ojs_jobs"))["list"].format_help()
        run("ojs_jobs", "retry", "--trace", "t-1", "--background", "--dry-run")

    def test_the_documentation(self) -> None:
        pytest.importorskip("drf_spectacular")
        document = openapi.document("1", "")
        (shown,) = [
            one for one in document["paths"]["/ojs/v1/admin/jobs"]["get"]["parameters"] if one["name"] == "trace"
        ]
        assert (shown["schema"], shown["description"]) == ({"type": "string"}, "Only jobs of this trace.")
        for name in ("OperatorFilter", "ProducerFilter"):
            member = document["components"]["schemas"][name]["properties"]["trace"]
            assert member == {"type": "string", "description": "Only jobs of this trace."}
        assert (
            "| only jobs of this trace | `trace` | `trace` | `trace` | `trace` | `--trace` | `trace` |"
            in filters.render()
        )
        assert "| `--trace NAME` | only jobs of this trace |" in commands.render()


class TestAFilterThatMayBeFalse:
    """What narrows down to false, or to 0, must never be taken for what is not given."""

    def test_a_declared_one(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        ended = DeclaredFilter(
            forms.NullBooleanField, lambda wanted, value: Q(finished_at__isnull=not value), help="ended jobs"
        )
        for kind in kinds():
            monkeypatch.setitem(kind.base_filters, "ended", ended)
        waits, done = api.push()["id"], api.push()["id"]
        assert api.delete(f"/jobs/{done}").status_code == 200
        for value, job in (("false", waits), ("true", done)):
            assert [one["id"] for one in api.get("/admin/jobs", {"ended": value}).json()["items"]] == [job]
        assert len(api.get("/admin/jobs").json()["items"]) == 2
        body = {"filter": {"state": "cancelled", "ended": False}, "dry_run": True}
        assert api.post("/admin/jobs/bulk/delete", body).json()["matched"] == 0
        given = JobFilter({"states": list(State), "ended": False})
        assert given.to_json()["ended"] is False
        assert JobFilter.from_json(given.to_json()) == given
        assert [str(job.pk) for job in given.jobs()] == [waits]

    def test_what_cannot_tell_false_from_nothing_is_refused(self) -> None:
        with pytest.raises(TypeError, match="take NullBooleanField"):
            DeclaredFilter(forms.BooleanField, of_column("dead_letter"))

    def test_one_of_a_site(self, api: Api) -> None:
        class Ours(JobFilter):
            ended = BooleanFilter(field_name="finished_at", lookup_expr="isnull", exclude=True)

        waits, done = api.push()["id"], api.push()["id"]
        assert api.delete(f"/jobs/{done}").status_code == 200
        assert [str(job.pk) for job in Ours({"ended": True}).jobs()] == [done]
        assert [str(job.pk) for job in Ours({"ended": False}).jobs()] == [waits]
        assert Ours({}).jobs().count() == 2


# Each filter at each door

#: The value of each filter that a caller may give, as JSON has it, and the jobs of the fixture `known` that it finds.
THEN = "30m"  # so long ago: behind the first job and before the others
LATER = {"plain", "text", "had", "has", "dead", "member"}
VALUES: dict[str, tuple[Any, set[str]]] = {
    "states": ("discarded", {"dead"}), "queue": ("mail", {"early"}), "type": ("mail.*", {"early"}),
    "tag": ("nightly", {"early"}), "text": ("needle", {"text"}), "since": (THEN, LATER), "until": (THEN, {"early"}),
    "error": ("kaput", {"dead"}), "created_since": (THEN, LATER), "created_until": (THEN, {"early"}),
    "worker_id": ("w-1", {"has"}), "last_worker": ("w-1", {"has", "had"}), "error_type": ("Boom", {"dead"}),
    "older_than": (THEN, {"early"}), "enqueued_before": (THEN, {"early"}), "enqueued_after": (THEN, LATER),
    "priority": (7, {"early"}), "meta": ({"of": 1}, {"early"}), "workflow": ("", {"member"}),
}  # fmt: skip


@pytest.fixture
def known(api: Api) -> dict[str, str]:
    """The ids of jobs that each of the filters tells apart, and that of a workflow."""
    options = {"tags": ["nightly"], "priority": 7, "meta": {"of": 1}}
    found = {"early": api.push("mail.send", queue="mail", options=options)["id"]}
    hour_ago = clock.now() - dt.timedelta(hours=1)
    Job.objects.update(id=ids.first_at(hour_ago), created_at=hour_ago, enqueued_at=hour_ago)
    found["early"] = str(Job.objects.get().pk)
    found["had"] = api.push()["id"]
    api.fetch(worker_id="w-1")
    assert api.post("/workers/ack", {"job_id": found["had"], "worker_id": "w-1"}).status_code == 200
    found["dead"] = api.push(retry={"max_attempts": 1})["id"]
    api.fetch(worker_id="w-2")
    assert api.post("/workers/nack", {"job_id": found["dead"], "error": {"type": "Boom", "message": "kaput"}}).json()
    found["has"] = api.push()["id"]
    api.fetch(worker_id="w-1")
    found["plain"], found["text"] = api.push()["id"], api.push(args=["needle"])["id"]
    flow = api.post("/workflows", {"type": "chain", "steps": [{"type": "report.make", "args": []}]}).json()
    found["member"] = str(Job.objects.get(type="report.make").pk)
    assert Job.objects.count() == len(found) == len(LATER | {"early"})
    return {**found, "flow": flow["workflow"]["id"]}


def listed(api: Api, admin: Client, name: str, value: Any) -> Iterator[set[str]]:
    for path in ("/jobs", "/admin/jobs"):
        answer = api.get(path, {name: written(value)})
        assert answer.status_code == 200, answer.content
        yield {job["id"] for job in answer.json()["items"]}


def written(value: Any) -> str:
    """A value of JSON as a query string and a command have it."""
    return value if isinstance(value, str) else json.dumps(value)


def changed_by_operators(api: Api, admin: Client, name: str, value: Any) -> Iterator[set[str]]:
    yield changed(api, "/admin/jobs/bulk", {name: value}, confirm=True)
    yield changed(api, "/admin/jobs/bulk", {name: value}, confirm=True, background=True)


def changed_by_producers(api: Api, admin: Client, name: str, value: Any) -> Iterator[set[str]]:
    yield changed(api, "/jobs/bulk", {name: value})


def changed(api: Api, path: str, wanted: dict[str, Any], **more: Any) -> set[str]:
    """The jobs that bulk operations cancel or delete, whatever their states are."""
    found = set()
    for state in [wanted.get("state"), wanted.get("states")] if wanted.keys() & {"state", "states"} else State:
        if state is None:
            continue
        verb = "delete" if State(state) in TERMINAL else "cancel"
        body = {"filter": {"state": state, **wanted}, **more}
        before = dict(Job.objects.values_list("pk", "state"))
        with transaction.atomic():
            answer = api.post(f"{path}/{verb}", body)
            assert answer.status_code in (200, 202, 207, 422), answer.content
            while bulk.advance_action():
                pass
            after = dict(Job.objects.values_list("pk", "state"))
            transaction.set_rollback(True)
        found |= {str(pk) for pk, was in before.items() if after.get(pk) != was}
    return found


def on_the_page(api: Api, admin: Client, name: str, value: Any) -> Iterator[set[str]]:
    page = admin.get(reverse("admin:django_ojs_job_changelist"), {name: written(value)}, follow=True)
    yield {str(job.pk) for job in page.context["cl"].result_list}


def by_commands(api: Api, admin: Client, name: str, value: Any) -> Iterator[set[str]]:
    yield {
        job["id"]
        for job in json.loads(run("ojs_jobs", "list", "--json", f"--{name.replace('_', '-')}", written(value)))
    }


DOORS: dict[Notation, Callable[[Api, Client, str, Any], Iterator[set[str]]]] = {
    LIST: listed, OPERATOR: changed_by_operators, PRODUCER: changed_by_producers, PAGE: on_the_page,
    COMMAND: by_commands,
}  # fmt: skip


def test_each_filter_that_a_caller_may_give_is_tried() -> None:
    assert VALUES.keys() == filters.declared().keys()
    assert DOORS.keys() == set(Notation)


@pytest.mark.slow
@pytest.mark.parametrize("filter", VALUES)
def test_a_filter_finds_the_same_jobs_at_every_door(
    api: Api, admin_client: Client, known: dict[str, str], filter: str
) -> None:
    value, wanted = VALUES[filter]
    value = known["flow"] if value == "" else value
    for notation, door in DOORS.items():
        for name in JobFilter.base_filters[filter].names_in(notation, filter):
            for found in door(api, admin_client, name, value):
                names = {label for label, job in known.items() if job in found}
                running = {"has"} if notation is PRODUCER else set()  # which a filter of theirs leaves alone
                assert names == wanted - running, (notation, name)


@pytest.mark.parametrize("filter", VALUES)
def test_a_filter_survives_being_stored(filter: str) -> None:
    """As bulk actions in the background keep it."""
    given = JobFilter({"states": list(State), filter: VALUES[filter][0] or "order-17"})
    assert JobFilter.from_json(json.loads(json.dumps(given.to_json()))) == given
    assert filter in given.to_json()


def test_every_filter_is_described() -> None:
    for name, declared in filters.declared().items():
        assert declared.help, name
    for name, declared in shown_in(PAGE).items():
        assert declared.title, name
    shown = filters.render()
    for notation in Notation:
        for name in names_in(notation):
            assert (f"`--{name.replace('_', '-')}`" if notation is COMMAND else f"`{name}`") in shown


def test_no_two_filters_of_a_notation_share_a_name() -> None:
    for notation in Notation:
        called = [one for name, declared in JobFilter.base_filters.items() for one in declared.names_in(notation, name)]
        assert len(called) == len(set(called)), notation


def test_what_reads_each_job_has_no_name_over_http() -> None:
    with pytest.raises(TypeError, match="PAGE and COMMAND only"):
        DeclaredFilter(NameFilterField, of_column("type"), rest=lambda text: Q())


# Which worker is meant


@pytest.fixture
def ran(api: Api) -> dict[str, str]:
    """Jobs that the worker w-1 has, and had last, and one that it never had."""
    had = api.push("mail.send")["id"]
    api.fetch(worker_id="w-1")
    api.post("/workers/ack", {"job_id": had, "worker_id": "w-1"})
    has = api.push("mail.send")["id"]
    api.fetch(worker_id="w-1")
    other = api.push("mail.send")["id"]
    api.fetch(worker_id="w-2")
    return {"had": had, "has": has, "other": other}


@pytest.mark.parametrize("name,meant", [("worker_id", {"has"}), ("last_worker", {"has", "had"})])
def test_a_worker_means_the_same_everywhere(
    api: Api, admin_client: Client, ran: dict[str, str], name: str, meant: set[str]
) -> None:
    wanted = {ran[one] for one in meant}
    assert name in names_in(LIST).keys() & names_in(OPERATOR).keys() & names_in(PRODUCER).keys()
    assert {job["id"] for job in api.get("/admin/jobs", {name: "w-1"}).json()["items"]} == wanted
    matched = 0
    for state, verb in (("active", "cancel"), ("completed", "delete")):
        body = {"filter": {name: "w-1", "state": state}, "dry_run": True}
        matched += api.post(f"/admin/jobs/bulk/{verb}", body).json()["matched"]
    assert matched == len(wanted)
    page = admin_client.get(reverse("admin:django_ojs_job_changelist"), {name: "w-1"})
    assert {str(job.pk) for job in page.context["cl"].result_list} == wanted
    option = f"--{name.replace('_', '-')}"
    assert {job["id"] for job in json.loads(run("ojs_jobs", "list", "--json", option, "w-1"))} == wanted
    states: dict[str, Any] = {"states": list(State)}
    for older in ({}, {"holder": "w-1"} if name == "worker_id" else {"worker": "w-1"}):
        stored = JobFilter.from_json({**states, **(older or {name: "w-1"})})
        assert {str(pk) for pk in stored.jobs().values_list("pk", flat=True)} == wanted
        assert name in stored.to_json()


def test_a_producers_filter_by_worker(api: Api, ran: dict[str, str]) -> None:
    done = api.post("/jobs/bulk/delete", {"filter": {"last_worker": "w-1"}}).json()
    assert [item["job_id"] for item in done["items"]] == [ran["had"]]


def test_links_and_scripts_with_the_older_name_find_the_last_worker(admin_client: Client, ran: dict[str, str]) -> None:
    address = reverse("admin:django_ojs_job_changelist")
    moved = admin_client.get(address, {"worker": "w-1", "state": "active"})
    assert (moved.status_code, moved.headers["Location"]) == (302, "?state=active&last_worker=w-1")
    assert admin_client.get(address, {"q": "worker:w-1"}).headers["Location"] == "?last_worker=w-1"
    assert len(json.loads(run("ojs_jobs", "list", "--json", "--worker", "w-1"))) == 2


def test_bulk_actions_that_an_older_release_stored_show_the_names_of_now(api: Api) -> None:
    action = BulkAction(verb="cancel", created_at=clock.now(), actor="a", expected=1)
    action.filter = {"states": ["active"], "holder": "w-1"}
    action.save()
    shown = api.get(f"/admin/bulk-actions/{action.pk}").json()["filter"]
    assert shown == {"states": ["active"], "worker_id": "w-1"}


def test_the_running_jobs_of_a_worker_are_found_by_their_index(api: Api, ran: dict[str, str], settings: Any) -> None:
    settings.OJS = {**settings.OJS, "SEARCH_DEPTH": 1}
    for query in ({"worker_id": "w-1"}, {"last_worker": "w-1", "state": "active"}):
        with CaptureQueriesContext(connection) as queries:
            page = api.get("/admin/jobs", query).json()
        assert [job["id"] for job in page["items"]] == [ran["has"]]
        assert "searched" not in page["pagination"], queries.captured_queries
