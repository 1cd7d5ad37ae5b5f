"""The steps of a durable job on its page: what each did, what the job waits for, and a new beginning at one of them."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client

from django_ojs import JobContext, JobHandle, emit_event, get_job, job
from django_ojs.models import AuditEntry, JobStep
from django_ojs.registry import registry
from django_ojs.testing import WorkerJobs
from tests.admin.conftest import pushed, url

pytestmark = pytest.mark.django_db

CALLED: list[str] = []


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    CALLED.clear()
    with registry.isolated():
        yield


def do(name: str, result: Any = None) -> Any:
    CALLED.append(name)
    return result


def fails() -> None:
    raise ValueError("the card is refused")


def declared() -> Any:
    @job("order.carry", durable=True, retry={"max_attempts": 1})
    def carry(context: JobContext, order: int) -> str:
        context.step("reserve", do, "reserve", {"reservation": order})
        context.step("charge", do, "charge", {"receipt": "x" * 100})
        context.wait_for_event("parcel.arrived", key=order)
        context.step("tell", fails)
        return "never"

    return carry


@pytest.fixture
def waiting(ojs_worker: WorkerJobs) -> JobHandle:
    handle: JobHandle = declared().enqueue(7)
    ojs_worker.drain()
    return handle


@pytest.fixture
def failed(waiting: JobHandle, ojs_worker: WorkerJobs) -> JobHandle:
    emit_event("parcel.arrived", 7, {"place": "door"})
    ojs_worker.drain()
    return waiting


def page(client: Client, handle: JobHandle) -> str:
    response = client.get(url("job", "change", handle.id))
    assert response.status_code == 200
    return html.unescape(response.content.decode())


def steps(client: Client, handle: JobHandle) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.get(url("job", "change", handle.id)).context["steps"]["rows"]
    return rows


def test_steps_are_shown_with_their_results_in_their_order(admin_client: Client, waiting: JobHandle) -> None:
    rows = steps(admin_client, waiting)
    assert [(row["name"], row["kind"]) for row in rows] == [
        ("reserve", "step"), ("charge", "step"), ("$event-1", "event"),
    ]  # fmt: skip
    assert ["done" in row["state"] for row in rows] == [True, True, False]
    assert "waits" in rows[2]["state"]
    assert rows[2]["about"] == "parcel.arrived 7"
    assert rows[0]["result"] == {"short": '{"reservation":7}', "whole": ""}
    assert rows[1]["result"]["short"].endswith("…")
    assert "x" * 100 in rows[1]["result"]["whole"]
    shown = page(admin_client, waiting)
    assert shown.index(">reserve<") < shown.index(">charge<") < shown.index("<small>parcel.arrived 7</small>")


def test_a_failed_step_says_why(admin_client: Client, failed: JobHandle) -> None:
    assert get_job(failed.id).state == "discarded"
    assert '{"place":"door"}' in page(admin_client, failed)


def test_a_job_without_steps_has_no_such_part(admin_client: Client) -> None:
    (plain,) = pushed()
    assert "ojs-steps" not in page(admin_client, get_job(plain.pk))


def test_results_are_hidden_where_the_site_hides_checkpoints(
    admin_client: Client, waiting: JobHandle, settings: Any
) -> None:
    settings.OJS = {**getattr(settings, "OJS", {}), "REDACT": {"types": {"order.*": ["checkpoint"]}}}
    shown = page(admin_client, waiting)
    assert "x" * 100 not in shown
    assert '{"reservation":7}' not in shown
    assert [row["name"] for row in steps(admin_client, waiting)][:2] == ["reserve", "charge"]


def test_a_job_begins_again_at_a_step(admin_client: Client, failed: JobHandle, ojs_worker: WorkerJobs) -> None:
    [again] = re.findall(r'href="([^"]+\?step=charge)"', page(admin_client, failed))
    question = admin_client.get(again)
    assert question.status_code == 200
    assert "charge" in question.content.decode()
    assert get_job(failed.id).state == "discarded"
    assert admin_client.post(again).status_code == 302
    assert get_job(failed.id).state == "available"
    assert list(JobStep.objects.order_by("pk").values_list("name", flat=True)) == ["reserve"]
    [entry] = AuditEntry.objects.filter(action="job.restart")
    assert (entry.target, entry.door) == (str(failed.id), "admin")
    CALLED.clear()
    ojs_worker.drain()
    assert CALLED == ["charge"]


def test_a_job_that_waits_begins_again_at_a_step(
    admin_client: Client, waiting: JobHandle, ojs_worker: WorkerJobs
) -> None:
    CALLED.clear()
    admin_client.post(url("job", "restart", waiting.id) + "?step=reserve")
    ojs_worker.drain()
    assert CALLED == ["reserve", "charge"]
    assert steps(admin_client, waiting)[2]["about"] == "parcel.arrived 7"


@pytest.mark.parametrize("step", ["nothing", "", "$event-9", "x" * 300])
def test_a_step_that_is_not_recorded_changes_nothing(admin_client: Client, failed: JobHandle, step: str) -> None:
    answer = admin_client.post(url("job", "restart", failed.id) + f"?step={step}", follow=True)
    assert "has recorded no step" in html.unescape(answer.content.decode())
    assert get_job(failed.id).state == "discarded"
    assert JobStep.objects.count() == 3


def test_a_job_that_has_completed_begins_no_more(admin_client: Client, ojs_worker: WorkerJobs) -> None:
    @job("order.short", durable=True)
    def short(context: JobContext) -> None:
        context.step("only", do, "only")

    handle = short.enqueue()
    ojs_worker.drain()
    assert "Begin again" not in page(admin_client, handle)
    answer = admin_client.post(url("job", "restart", handle.id) + "?step=only", follow=True)
    assert get_job(handle.id).state == "completed"
    assert "completed" in answer.content.decode()
    assert JobStep.objects.filter(name="only").exists()


def test_who_may_only_look_is_offered_nothing_and_changes_nothing(
    failed: JobHandle, operator: Callable[..., Client]
) -> None:
    client = operator("view_job")
    assert "Begin again" not in page(client, failed)
    assert client.post(url("job", "restart", failed.id) + "?step=charge").status_code == 403
    assert get_job(failed.id).state == "discarded"


def test_what_a_job_waits_for_stands_where_its_next_attempt_would(admin_client: Client, waiting: JobHandle) -> None:
    facts = {
        str(fact.name): str(fact.value) for fact in admin_client.get(url("job", "change", waiting.id)).context["strip"]
    }
    assert facts["waits for"] == "the event parcel.arrived 7"
    assert "next attempt" not in facts
    assert "9999" not in page(admin_client, waiting)
    assert "latest backoff" not in page(admin_client, waiting).lower()
    listed = admin_client.get(url("job") + "?state=retryable").content.decode()
    assert "when an event comes" in listed
    assert "9999" not in listed
