"""What docs/differences.md says of this server is so, row by row where HTTP shows it."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any

import pytest

from django_ojs.http import manifest
from django_ojs.jobs.timers import apply_due
from tests.http.conftest import Api, error_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "differences.md").read_text()


def test_the_page_is_named_beside_the_badge_and_each_row_says_what_and_why() -> None:
    for page in ("README.md", "docs/conformance.md"):
        assert "differences.md" in (ROOT / page).read_text().partition("\n## ")[0], page
    rows = [line.split(" | ") for line in PAGE.splitlines() if re.match(r"\| (?!the specification says)", line)]
    assert len(rows) > 30
    assert {len(row) for row in rows} == {3}


@pytest.mark.parametrize("dialect, hyphens", [("spec", 400), ("published", 201)])
def test_types_are_in_small_letters_in_both_dialects(api: Api, settings: Any, dialect: str, hyphens: int) -> None:
    settings.OJS = {**settings.OJS, "DIALECT": dialect}
    error_of(api.post("/jobs", {"type": "Email.Send", "args": []}), 400, "invalid_payload")
    assert api.post("/jobs", {"type": "a.b-c", "args": []}).status_code == hyphens


def test_the_names_of_priorities_are_above_a_job_that_names_none(api: Api) -> None:
    numbers = [api.push(priority=name)["priority"] for name in ("HIGH", "NORMAL", "LOW")]
    assert (numbers, api.push()["priority"]) == ([3, 2, 1], 0)
    error_of(api.post("/jobs", {"type": "a.b", "args": [], "priority": 101}), 400, "invalid_payload")


@pytest.mark.parametrize("given", ["1.0", "1.0.0", "1.0.0-rc.1"])
def test_three_spellings_of_the_version_are_one(api: Api, given: str) -> None:
    assert api.push(specversion=given)["specversion"] == "1.0.0-rc.1"


def test_attributes_within_options_win(api: Api) -> None:
    assert api.push(queue="top", options={"queue": "inner"})["queue"] == "inner"


def test_a_job_that_waits_for_its_time_has_no_enqueued_at(api: Api) -> None:
    assert "enqueued_at" not in api.push(scheduled_at="2098-01-01T00:00:00Z")
    assert "enqueued_at" in api.push()


def test_cancelling_a_cancelled_job_is_fine_and_a_completed_one_is_refused(api: Api, settings: Any) -> None:
    cancelled, completed = api.push()["id"], api.push(queue="b")["id"]
    api.delete(f"/jobs/{cancelled}")
    api.fetch("b")
    api.post("/workers/ack", {"job_id": completed})
    assert api.delete(f"/jobs/{cancelled}").status_code == 200
    error_of(api.delete(f"/jobs/{completed}"), 409, "conflict")
    error_of(api.post(f"/jobs/{completed}/ack"), 409, "invalid_state_transition")
    error_of(api.post(f"/admin/jobs/{completed}/cancel"), 409, "invalid_state_transition")
    settings.OJS = {**settings.OJS, "DIALECT": "published"}
    error_of(api.delete(f"/jobs/{cancelled}"), 409, "conflict")


def test_an_acknowledgement_without_a_name_is_believed_unless_the_site_demands_one(api: Api, settings: Any) -> None:
    first, second = api.push()["id"], api.push()["id"]
    api.fetch(worker_id="one")
    api.fetch(worker_id="one")
    error_of(api.post("/workers/ack", {"job_id": first, "worker_id": "two"}), 409, "conflict")
    assert api.post("/workers/ack", {"job_id": first}).status_code == 200
    settings.OJS = {**settings.OJS, "STRICT_OWNERSHIP": True}
    error_of(api.post("/workers/ack", {"job_id": second}), 400, "invalid_request")


def test_the_first_heartbeat_registers_and_unprintable_names_are_refused(api: Api) -> None:
    assert api.post("/workers/heartbeat", {"worker_id": "new"}).status_code == 200
    assert [worker["id"] for worker in api.get("/admin/workers").json()["items"]] == ["new"]
    error_of(api.post("/workers/heartbeat", {"worker_id": "a\nb"}), 400, "invalid_request")


@pytest.mark.parametrize("dialect, has_end", [("spec", True), ("published", False)])
def test_an_expired_job_is_told_of_once_and_has_an_end(
    api: Api, settings: Any, frozen_clock: Any, dialect: str, has_end: bool
) -> None:
    settings.OJS = {**settings.OJS, "DIALECT": dialect}
    job = api.push(expires_at=(frozen_clock.now + dt.timedelta(seconds=1)).isoformat())
    frozen_clock.advance(seconds=2)
    apply_due()
    shown = api.get(f"/jobs/{job['id']}").json()["job"]
    assert (shown["state"], "completed_at" in shown) == ("discarded", has_end)
    types = [event["type"] for event in api.get("/events").json()["events"]]
    assert types == ["job.enqueued", "job.expired"]


def test_a_client_may_keep_a_job_out_of_the_dead_letter_queue(api: Api) -> None:
    api.dead_letter(retry={"max_attempts": 1, "on_exhaustion": "discard"})
    kept = api.dead_letter()
    assert [job["id"] for job in api.get("/dead-letter").json()["jobs"]] == [kept["id"]]


def test_an_event_names_a_worker_even_where_the_claim_named_none(api: Api) -> None:
    api.push()
    api.fetch()
    (event,) = api.get("/events", {"types": "job.started"}).json()["events"]
    assert event["data"]["worker_id"] == ""
    assert {"job_id", "job_type", "type", "queue", "state", "attempt", "timestamp"} <= event["data"].keys()


def test_events_beyond_the_catalogue_come_to_who_names_them_only(api: Api) -> None:
    job = api.dead_letter()
    api.post(f"/dead-letter/{job['id']}/retry")
    assert api.get("/events", {"types": "dead_letter.*"}).json()["events"] == []
    assert "dead_letter.retried" not in [event["type"] for event in api.get("/events").json()["events"]]
    assert len(api.get("/events", {"types": "dead_letter.retried"}).json()["events"]) == 1


def test_the_manifest_names_our_suite_and_the_repository_of_the_package(api: Api, monkeypatch: Any) -> None:
    monkeypatch.setattr(manifest, "REPOSITORY", "")  # used from a checkout that is not installed
    shown = api.client.get("/ojs/manifest").json()
    assert re.fullmatch(r"django-ojs \D+ \d+\.\d+\.\d+", shown["test_suite_version"])
    assert "repository" not in shown["implementation"]
    assert "dead-letter" in [entry["name"] for entry in shown["extensions"]["official"]]
    monkeypatch.setattr(manifest, "REPOSITORY", "https://example.com/source")
    shown = api.client.get("/ojs/manifest").json()
    assert shown["implementation"]["repository"] == "https://example.com/source"


def test_ids_are_bare(api: Api) -> None:
    with_prefix = "job_019539a4-b68c-7def-8000-1a2b3c4d5e6f"
    error_of(api.post("/jobs", {"type": "a.b", "args": [], "id": with_prefix}), 400, "invalid_payload")
    job_id = api.push(id=with_prefix.removeprefix("job_"))["id"]
    assert [event["subject"] for event in api.get("/events").json()["events"]] == [job_id]


def test_what_the_server_writes_itself_is_ignored_and_other_attributes_are_kept(api: Api) -> None:
    forged = dict.fromkeys(("worker_id", "workflow_id", "checkpoint", "result_expires_at"), "mine")
    job = api.push(**forged, x_own={"a": None})
    assert job["x_own"] == {"a": None}
    assert not forged.keys() & job.keys()


def test_only_an_operator_lets_a_job_run_before_its_time(api: Api) -> None:
    later = api.push(scheduled_at="2098-01-01T00:00:00Z")["id"]
    assert api.post("/workers/fetch", {"queues": ["default"]}).json()["jobs"] == []
    assert api.post(f"/admin/jobs/{later}/run").status_code == 200
    assert api.fetch()["id"] == later


@pytest.mark.parametrize(
    "error, state",
    [("ValueError", "discarded"), *((name, "retryable") for name in ("shutdown", "ShutdownError", "ShutdownTimeout"))],
)
def test_a_worker_that_stops_ends_no_job(api: Api, error: str, state: str) -> None:
    job_id = api.push(retry={"non_retryable_errors": [error]})["id"]
    api.fetch()
    answer = api.post("/workers/nack", {"job_id": job_id, "error": {"type": error, "message": "x"}})
    assert answer.json()["state"] == state


def test_events_have_the_beginning_of_a_long_trace_id(api: Api) -> None:
    given = "".join(str(number % 10) for number in range(70))
    assert api.push(meta={"trace_id": given})["meta"] == {"trace_id": given}
    assert api.get("/events").json()["events"][0]["data"]["trace_id"] == given[:64]
