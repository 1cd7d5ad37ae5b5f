"""A search for a text ignores the case of letters, and nothing else, at each door and on each database."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from django_ojs.jobs.bulk import matching
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Failure, fail
from django_ojs.jobs.push import push
from django_ojs.jobs.selection import JobFilter, with_error_type, with_tag
from django_ojs.models import Job
from django_ojs.workerregistry.registration import register

pytestmark = pytest.mark.django_db

#: What is searched for, and whether `Zoë Ångström` is found by it.
SEARCHES = {
    "Zoë Ångström": True, "zoë ångström": True, "ZOË ÅNGSTRÖM": True, "zo": True, "ZOË": True, "ë å": True,
    "Zoe": False, "angstrom": False, "Zoë  Ångström": False, "Zoë_Ångström": False, "Zo%": False, "Zoë.": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _open_site(settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}


@pytest.fixture
def job() -> Job:
    """One with this text in its arguments, and in its error."""
    push([{"type": "a.b", "args": ["Zoë Ångström"], "retry": {"max_attempts": 1}, "tags": ["Zoë"]}])
    (row,) = fetch(Fetch(["default"]))
    fail([Failure(row["id"], error={"type": "NameError", "message": "Zoë Ångström"})])
    push([{"type": "a.b", "args": ["other"]}])
    return Job.objects.get(pk=row["id"])


@pytest.mark.parametrize("hides", [False, True])
@pytest.mark.parametrize("text", SEARCHES)
@pytest.mark.parametrize("option, parameter", [("--search", "q"), ("--error", "error")])
def test_jobs_by_a_text(
    option: str, parameter: str, text: str, hides: bool, job: Job, admin_client: Client, settings: Any
) -> None:
    """In their arguments, and in their errors; where the site hides something, what it shows is compared."""
    if hides:
        settings.OJS = {**settings.OJS, "REDACT": {"types": {"other.*": ["args"]}}}
    expected = [str(job.pk)] if SEARCHES[text] else []
    out = io.StringIO()
    call_command("ojs_jobs", "list", option, text, "--json", stdout=out)
    assert [one["id"] for one in json.loads(out.getvalue())] == expected
    page = admin_client.get(reverse("admin:django_ojs_job_changelist"), {parameter: text})
    assert [str(one.pk) for one in page.context["cl"].result_list] == expected


@pytest.mark.parametrize("text", SEARCHES)
def test_an_act_on_all_jobs_with_a_text_in_their_errors(text: str, job: Job) -> None:
    assert matching(JobFilter({"error": text}), 10) == [job.pk] * SEARCHES[text]


@pytest.mark.parametrize("text", SEARCHES)
def test_rows_by_their_names_in_the_admin(text: str, admin_client: Client) -> None:
    register("Zoë Ångström", {"queues": ["default"]})
    register("other", {"queues": ["default"]})
    page = admin_client.get(reverse("admin:django_ojs_worker_changelist"), {"q": f'"{text}"'})
    expected = ["Zoë Ångström"] if SEARCHES[text] else []
    assert [row.pk for row in page.context["cl"].result_list] == expected


def test_half_a_character_hides_nothing_beside_it() -> None:
    """JSON may hold half of a surrogate pair, which no database does."""
    half = "\ud800"
    push([{"type": "a.b", "args": ["Zoë", half], "tags": ["Zoë", half], "retry": {"max_attempts": 1}}])
    (row,) = fetch(Fetch(["default"]))
    fail([Failure(row["id"], error={"type": "Zoë", "message": f"Zoë {half}", "details": {half: half}})])
    assert "\\ud800" in Job.objects.rows()[0]["errors"]
    for wanted in ({"tag": "Zoë"}, {"text": "zoË"}, {"error": "zoË"}, {"error_type": "Zoë"}):
        assert JobFilter(wanted).searched("default", 10)[0] == [row["id"]], wanted


def test_names_are_no_texts(job: Job) -> None:
    found = {name: Job.objects.filter(with_error_type(name)).count() for name in ("NameError", "nameerror", "Name")}
    assert found == {"NameError": 1, "nameerror": 0, "Name": 0}
    assert [Job.objects.filter(with_tag(tag)).count() for tag in ("Zoë", "zoë", "ZOË")] == [1, 0, 0]
