"""What the site hides is hidden behind every door that shows jobs, and reaches the worker that runs them."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.checks import run_checks
from django.test import Client

from django_ojs.models import Event, Job
from django_ojs.rules.redaction import MASK
from tests.http.conftest import Api

pytestmark = pytest.mark.django_db
SECRET = "hunter2"
TYPE = "payments.charge"


@pytest.fixture
def hidden(api: Api, settings: Any) -> Api:
    settings.OJS = {**settings.OJS, "REDACT": {"keys": ["*password*"], "types": {"payments.*": ["*"]}}}
    return api


@pytest.fixture
def jobs(hidden: Api) -> dict[str, str]:
    """A job of the hidden type in each state that shows something, and one hidden by a key."""
    api, given = hidden, {"args": [SECRET], "meta": {"k": SECRET}}
    found = {"available": api.push(TYPE, **given)["id"]}
    found["completed"] = api.push(TYPE, queue="c", **given)["id"]
    api.fetch("c")
    api.post("/workers/ack", {"job_id": found["completed"], "result": {"card": SECRET}})
    found["discarded"] = api.push(TYPE, queue="d", retry={"max_attempts": 1}, **given)["id"]
    api.fetch("d")
    error = {"message": SECRET, "code": "x", "backtrace": [SECRET], "details": {"a": SECRET}}
    api.post("/workers/nack", {"job_id": found["discarded"], "error": error})
    found["keyed"] = api.push("mail.send", [{"Password": SECRET}], meta={"password_hint": SECRET}, queue="k")["id"]
    api.post("/cron", {"name": "nightly", "cron": "@daily", "type": TYPE, "args": [SECRET], "meta": {"k": SECRET}})
    api.post("/workflows", {"type": "chain", "name": "flow", "steps": [{"type": TYPE, "args": [SECRET], "queue": "f"}]})
    return found


def test_the_one_who_runs_it_gets_all_of_it(hidden: Api) -> None:
    hidden.push(TYPE, [SECRET], meta={"k": SECRET})
    job = hidden.fetch()
    assert (job["args"], job["meta"]) == ([SECRET], {"k": SECRET})


def test_no_read_endpoint_shows_it(hidden: Api, jobs: dict[str, str]) -> None:
    flow = hidden.get("/workflows").json()["items"][0]["id"]
    paths = ["/dead-letter", "/admin/jobs", "/admin/dead-letter", "/admin/dead-letter/stats", "/cron", "/admin/cron",
             "/cron/nightly", f"/workflows/{flow}", f"/admin/workflows/{flow}", "/workflows", "/events", "/admin/audit",
             f"/dead-letter/{jobs['discarded']}", f"/admin/dead-letter/{jobs['discarded']}"]  # fmt: skip
    paths += [f"{prefix}/jobs/{job}" for job in jobs.values() for prefix in ("", "/admin")]
    paths += [f"/jobs/{jobs[state]}/result" for state in ("completed", "discarded")]
    for path in paths:
        response = hidden.get(path)
        assert response.status_code == 200, path
        assert SECRET not in response.content.decode(), path
    shown = hidden.get(f"/jobs/{jobs['completed']}").json()["job"]
    assert (shown["args"], shown["meta"], shown["result"]) == ([MASK], {"k": MASK}, MASK)
    keyed = hidden.get(f"/jobs/{jobs['keyed']}").json()["job"]
    assert (keyed["args"], keyed["meta"]) == ([{"Password": MASK}], {"password_hint": MASK})
    results = hidden.post("/jobs/results", {"ids": list(jobs.values())})
    assert SECRET not in results.content.decode()
    assert SECRET in Job.objects.get(pk=jobs["completed"]).args, "it is stored all the same"


def test_no_act_answers_with_it(hidden: Api, jobs: dict[str, str]) -> None:
    for path in (f"/admin/dead-letter/{jobs['discarded']}/retry", f"/jobs/{jobs['available']}/cancel",
                 f"/admin/jobs/{jobs['keyed']}/cancel", "/cron/nightly/trigger"):  # fmt: skip
        response = hidden.post(path)
        assert response.status_code == 200, response.content
        assert SECRET not in response.content.decode(), path


def test_a_duplicate_shows_nothing_of_the_job_that_is_there(hidden: Api) -> None:
    first = {"type": TYPE, "args": [SECRET], "unique": {"keys": ["type"], "on_conflict": "ignore"}}
    hidden.post("/jobs", first)
    probe = {**first, "args": ["probe"]}
    for path, body in (("/jobs", probe), ("/jobs/batch", {"jobs": [probe]}), ("/jobs/bulk", {"jobs": [probe]})):
        answer = hidden.post(path, body)
        assert answer.status_code in (200, 201), answer.content
        assert SECRET not in answer.content.decode(), path


def test_events_are_stored_whole_and_shown_without_it(hidden: Api, jobs: dict[str, str]) -> None:
    assert any(SECRET in str(data) for data in Event.objects.values_list("data", flat=True))
    events = hidden.get("/events", {"limit": 1000}).json()["events"]
    (done,) = [event for event in events if event["type"] == "job.completed"]
    (failed,) = [event for event in events if event["type"] == "job.failed"]
    assert done["data"]["result"] == MASK
    assert failed["data"]["error"]["message"] == MASK
    assert SECRET not in str(events)


def test_no_page_of_the_admin_shows_it(hidden: Api, jobs: dict[str, str]) -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    base = "/admin/django_ojs"
    pages = [f"{base}/job/", f"{base}/event/", f"{base}/cronschedule/nightly/change/"]
    pages += [f"{base}/job/{job}/change/" for job in jobs.values()]
    pages += [f"{base}/event/{pk}/change/" for pk in Event.objects.values_list("pk", flat=True)]
    for page in pages:
        response = client.get(page)
        assert response.status_code == 200, page
        assert SECRET not in response.content.decode(), page


def test_the_workers_log_says_the_kind_of_an_error_but_not_what_is_in_it(settings: Any) -> None:
    from types import SimpleNamespace

    from django_ojs.worker import execution

    context: Any = SimpleNamespace(type=TYPE, meta={})
    error = ValueError(SECRET)
    settings.OJS = {}
    assert execution._loggable(context, error) == ("ValueError", error)
    settings.OJS = {"REDACT": {"types": {"payments.*": ["errors"]}}}
    assert execution._loggable(context, error) == ("ValueError", None)
    settings.OJS = {"REDACT": {"types": {"payments.*": ["backtraces"]}}}
    assert execution._loggable(context, error) == (f"ValueError: {SECRET}", None)


def test_a_wrong_rule_is_an_error_of_the_system_check(settings: Any) -> None:
    settings.OJS = {"REDACT": {"types": {"a.b": ["argz"]}}}
    (found,) = [message for message in run_checks() if message.id == "django_ojs.E002"]
    assert "REDACT" in found.msg
