"""What a job's page leads with: its state, its latest error, its retry policy in words, and what it belongs to."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone, translation
from django.utils.html import strip_tags

from django_ojs import clock
from django_ojs.admin import jobpage
from django_ojs.admin.jobpage import in_words
from django_ojs.cron import schedules
from django_ojs.cron.runs import trigger
from django_ojs.jobs import checkpoints, joblog, timers
from django_ojs.jobs.checkpoints import NewCheckpoint
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail
from django_ojs.models import AuditEntry, Job, JobLog, Worker
from django_ojs.rules import retrypolicy
from django_ojs.workerregistry.registration import register
from django_ojs.workflows import workflow
from tests.admin.conftest import claimed, dead, one_in_each_state, pushed, url

NOW = dt.datetime(2026, 3, 1, 12, 0, tzinfo=dt.UTC)
FAILURE = {"type": "OSError", "message": "gone", "backtrace": ["at send (jobs.py:12)"]}
pytestmark = pytest.mark.django_db


def body(client: Client, job: Job) -> str:
    return client.get(url("job", "change", job.pk)).content.decode()


def facts(client: Client, job: Job) -> dict[str, str]:
    """The names and values that the page shows, as text."""
    pairs = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", body(client, job), re.DOTALL)
    return {name: " ".join(strip_tags(value).split()) for name, value in pairs}


# The state


def test_a_job_that_waits_for_its_retry_says_since_when_and_until_when(admin_client: Client) -> None:
    clock.freeze(NOW)
    (job,) = pushed(retry={"max_attempts": 5, "initial_interval": "10m", "max_interval": "1h", "jitter": False})
    fetch(Fetch(["default"], worker_id="w-1"))
    clock.advance(seconds=5)
    fail([Failure(job.pk, error=FAILURE)])
    clock.advance(seconds=60)
    shown = facts(admin_client, job)
    assert shown["State"] == "retryable"
    assert shown["Since"].startswith("1 min ago 2026-03-01")
    assert shown["Attempt"] == "1 of 5"
    assert shown["Next attempt"].startswith("in 9 min 2026-03-01")
    assert shown["Worker"] == "w-1"
    assert shown["Retry policy"] == "5 attempts, 10 min doubling to 1 h"
    assert shown["Latest backoff"] == "10 min"


def test_each_state_says_since_when(db: None) -> None:
    clock.freeze(NOW)
    jobs = one_in_each_state()
    assert {state: jobpage.since(job) for state, job in jobs.items()} == {
        state: pytest.approx(NOW, abs=dt.timedelta(milliseconds=1)) for state in jobs
    }


def test_what_comes_next_is_said_where_something_does(admin_client: Client) -> None:
    jobs = one_in_each_state()
    told = {state: facts(admin_client, job).keys() for state, job in jobs.items()}
    assert "Starts" in told["scheduled"]
    assert "Next attempt" in told["retryable"]
    assert "Reserved until" in told["active"]
    for state in ("available", "pending", "completed", "cancelled", "discarded"):
        assert not told[state] & {"Starts", "Next attempt", "Reserved until", "Times out"}, state


def test_an_empty_field_is_not_shown(admin_client: Client) -> None:
    (job,) = pushed(args=[])
    shown = facts(admin_client, job)
    assert shown.keys() == {
        "State",
        "Since",
        "Attempt",
        "Queue",
        "Retry policy",
        "Execution timeout",
        "Created",
        "Enqueued",
    }
    page = body(admin_client, job)
    for text in ("Arguments", "Result", "Meta<", "Relations", "ojs-failure", "<dd>–</dd>", "earlier error"):
        assert text not in page


def test_a_worker_is_a_link_while_it_has_a_page(admin_client: Client) -> None:
    (job,) = claimed()
    Worker.objects.all().delete()
    assert facts(admin_client, job)["Worker"] == "w-1"
    assert url("worker", "change", "w-1") not in body(admin_client, job)
    register("w-1", {})
    assert f'href="{url("worker", "change", "w-1")}"' in body(admin_client, job)
    assert f'href="{url("queue", "change", "claims")}"' in body(admin_client, job)


# Errors


def test_the_latest_error_comes_first_with_its_backtrace_folded(admin_client: Client) -> None:
    (job,) = pushed(retry={"max_attempts": 3, "initial_interval": "1s", "jitter": False})
    clock.freeze(NOW)
    for message in ("first", "second"):
        fetch(Fetch(["default"], worker_id="w-1"))
        fail([Failure(job.pk, error={**FAILURE, "message": message})])
        clock.advance(seconds=10)
        timers.apply_due()
    page = body(admin_client, job)
    assert page.index("ojs-strip") < page.index('class="ojs-failure"') < page.index("ojs-attempts")
    latest = page.partition('class="ojs-failure"')[2].partition("</section>")[0]
    assert "second" in latest
    assert "first" not in latest
    assert "<details><summary>Backtrace</summary>" in latest
    assert "1 earlier error" in page
    assert "Please correct" not in page


def test_a_job_that_succeeded_after_all_has_no_latest_error(admin_client: Client) -> None:
    clock.freeze(NOW)
    (job,) = pushed(retry={"initial_interval": "1s", "jitter": False})
    fetch(Fetch(["default"], worker_id="w-1"))
    fail([Failure(job.pk, error=FAILURE)])
    clock.advance(seconds=10)
    timers.apply_due()
    fetch(Fetch(["default"], worker_id="w-1"))
    ack([Ack(job.pk)])
    page = body(admin_client, job)
    assert 'class="ojs-failure"' not in page
    assert "1 earlier error" in page


def test_what_is_hidden_stays_hidden_everywhere_on_the_page(admin_client: Client, settings: Any) -> None:
    settings.OJS = {"REDACT": {"types": {"mail.*": ["args", "meta", "errors", "result", "progress"]}}}
    (job,) = dead(meta={"tenant": "a-secret"}, error={**FAILURE, "message": "a-secret", "retryable": False},
                  args=["a-secret"])  # fmt: skip
    page = body(admin_client, job)
    assert "a-secret" not in page
    assert "jobs.py:12" not in page
    assert "[REDACTED]" in page


# Policies


@pytest.mark.parametrize(
    "given, words",
    [
        ({"max_attempts": 5, "initial_interval": "2s", "max_interval": "1h"}, "5 attempts, 2 s doubling to 1 h, ±25 %"),
        ({"max_attempts": 1}, "1 attempt"),
        ({"max_attempts": 0, "on_exhaustion": "discard"}, "1 attempt, then no dead letter"),
        ({"backoff_strategy": "constant", "jitter": False}, "3 attempts, 1 s apart"),
        ({"backoff_coefficient": 1, "jitter": False}, "3 attempts, 1 s apart"),
        ({"initial_interval": "9s", "max_interval": "9s", "jitter": False}, "3 attempts, 9 s apart"),
        ({"backoff_coefficient": 1.5, "jitter": False}, "3 attempts, 1 s, × 1.5 each time, to 5 min"),
        ({"backoff_strategy": "linear", "jitter": False}, "3 attempts, 1 s more each time, to 5 min"),
        ({"backoff_strategy": "polynomial", "backoff_coefficient": 3, "jitter": False},
         "3 attempts, 1 s × attempt to the power of 3, to 5 min"),
        ({"jitter": False, "non_retryable_errors": ["ValueError", "auth.*"]},
         "3 attempts, 1 s doubling to 5 min, no retry after ValueError, auth.*"),
        ({"jitter": False, "retryable_errors": ["Busy", "OSError"], "non_retryable_errors": ["auth.*"]},
         "3 attempts, 1 s doubling to 5 min, a retry only after Busy, OSError, no retry after auth.*"),
    ],
)  # fmt: skip
def test_a_policy_in_words(given: dict[str, Any], words: str) -> None:
    policy = retrypolicy.merge(retrypolicy.parse(given))
    assert in_words(policy, policy.max_attempts) == words


def test_each_strategy_has_words_of_its_own() -> None:
    told = {
        word: in_words(retrypolicy.merge(retrypolicy.parse({"backoff_strategy": word})), 3)
        for word in retrypolicy.STRATEGIES
    }
    assert len(set(told.values())) == len(told), told


def test_a_policy_in_french() -> None:
    policy = retrypolicy.merge(retrypolicy.parse({"max_attempts": 4, "initial_interval": "2s", "jitter": False}))
    with translation.override("fr"):
        assert in_words(policy, 4) == "4 essais, 2 s puis le double à chaque fois, au plus 5 min"


# Relations


def test_a_step_leads_to_its_workflow(admin_client: Client) -> None:
    steps = [{"id": "collect", "type": "mail.send", "args": []}]
    flow = workflow.create({"name": "nightly", "steps": steps}).workflow
    shown = facts(admin_client, Job.objects.get())
    assert shown["Workflow"] == "nightly step collect"
    assert url("workflow", "change", flow.pk) in body(admin_client, Job.objects.get())


def test_a_run_leads_to_its_schedule(admin_client: Client) -> None:
    schedules.register({"name": "tidy-up", "cron": "@daily", "type": "tidy.up", "args": []})
    trigger("tidy-up")
    job = Job.objects.get()
    assert facts(admin_client, job)["Schedule"].startswith("tidy-up ")
    assert url("cronschedule", "change", "tidy-up") in body(admin_client, job)


def test_keys_and_limits_are_told(admin_client: Client) -> None:
    (job,) = pushed(unique={"keys": ["type"]}, rate_limit={"key": "smtp", "concurrency": 2})
    shown = facts(admin_client, job)
    assert shown["Unique key"] == job.unique_key
    assert shown["Rate limit"] == "smtp {&quot;concurrency&quot;: 2}"


def test_a_page_costs_the_same_for_one_attempt_as_for_twenty(admin_client: Client) -> None:
    clock.freeze(NOW)
    once, often = pushed(2, retry={"max_attempts": 30, "initial_interval": "1s", "jitter": False})
    fetch(Fetch(["default"], worker_id="w-1", count=2))
    fail([Failure(once.pk, error={**FAILURE, "retryable": False}), Failure(often.pk, error=FAILURE)])
    for _ in range(20):
        clock.advance(seconds=400)
        timers.apply_due()
        fetch(Fetch(["default"], worker_id="w-1"))
        fail([Failure(often.pk, error=FAILURE)])
    counts = []
    for job in (once, often):
        ContentType.objects.clear_cache()
        with CaptureQueriesContext(connection) as captured:
            page = body(admin_client, job)
        counts.append(len(captured))
    assert counts[0] == counts[1]
    assert page.count("ojs-bar") == 21


def test_the_checkpoint_of_a_job_is_shown_and_can_be_cleared(admin_client: Client, settings: Any) -> None:
    (job,) = pushed()
    assert "Checkpoint" not in body(admin_client, job)
    assert "Clear checkpoint" not in body(admin_client, job)
    checkpoints.save(NewCheckpoint(job.pk, {"page": 3, "token": "s3cret"}))
    page = body(admin_client, job)
    assert "s3cret" in page
    assert "save number 1, 27\xa0bytes" in page
    settings.OJS = {"REDACT": {"keys": ["token"]}}
    page = body(admin_client, job)
    assert "s3cret" not in page
    assert "27\xa0bytes" not in page
    question = admin_client.get(url("job", "verb", job.pk, "clear_checkpoints")).content.decode()
    assert "its next attempt starts over" in question
    admin_client.post(url("job", "verb", job.pk, "clear_checkpoints"))
    assert checkpoints.read(job.pk) is None
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.target) == ("job.clear_checkpoint", str(job.pk))
    answer = admin_client.post(url("job", "verb", job.pk, "clear_checkpoints"), follow=True)
    assert "has no checkpoint" in answer.content.decode()


def test_lines_of_the_log_have_the_time_of_the_site_as_all_of_the_page(admin_client: Client) -> None:
    (job,) = claimed()
    joblog.append(job.pk, [joblog.SentLine("hello")])
    here = timezone.localtime(JobLog.objects.get().time)
    assert f">{here:%H:%M:%S}.{here.microsecond // 1000:03}</time>" in body(admin_client, job)
