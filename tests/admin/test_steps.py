"""The steps of a durable job on its page: what each did, what the job waits for, and a new beginning at one of them."""

from __future__ import annotations

import datetime as dt
import html
import io
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils.http import urlencode

from django_ojs import JobContext, JobHandle, emit_event, get_job, job
from django_ojs.admin.history import Axis, log_ticks
from django_ojs.jobs import joblog
from django_ojs.models import AuditEntry, DurableEvent, JobLog, JobStep
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
    [entry] = AuditEntry.objects.filter(action="job.retry")
    assert (entry.target, entry.door, entry.detail["from_step"]) == (str(failed.id), "admin", "charge")
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


def give(client: Client, handle: JobHandle, payload: str, step: str = "$event-1") -> str:
    answer = client.post(url("job", "give", handle.id) + f"?step={step}", {"payload": payload}, follow=True)
    return html.unescape(answer.content.decode())


def test_a_waiting_job_gets_its_event_by_hand(admin_client: Client, waiting: JobHandle, ojs_worker: WorkerJobs) -> None:
    [address] = re.findall(r'href="([^"]+/give/[^"]+)"', page(admin_client, waiting))
    assert "parcel.arrived 7" in html.unescape(admin_client.get(address).content.decode())
    assert "cannot be read as JSON" in give(admin_client, waiting, '{"place": ')
    assert not DurableEvent.objects.exists()
    assert "1 job has got the event" in give(admin_client, waiting, '{"place": "shed", "weight": 1.50}')
    assert get_job(waiting.id).state == "available"
    [entry] = AuditEntry.objects.filter(action="durable_event.emit")
    assert (entry.target, entry.door, entry.actor) == ("parcel.arrived 7", "admin", "user:admin")
    assert entry.detail == {"is_new": True, "jobs": 1, "job_id": str(waiting.id), "step": "$event-1"}
    assert JobStep.objects.get(name="$event-1").result == {"place": "shed", "weight": 1.5}
    assert not emit_event("parcel.arrived", 7, "the real one").is_new
    ojs_worker.drain()
    assert "/give/" not in page(admin_client, waiting)


def test_who_gives_an_event_that_has_come_is_told_so(admin_client: Client, waiting: JobHandle) -> None:
    emit_event("parcel.arrived", 7, "the real one")
    assert "had come at" in give(admin_client, waiting, '"mine"')
    assert DurableEvent.objects.get().payload == JobStep.objects.get(name="$event-1").result == "the real one"


def test_no_event_is_given_to_who_does_not_wait(
    admin_client: Client, waiting: JobHandle, operator: Callable[..., Client]
) -> None:
    assert "waits for no event" in give(admin_client, waiting, "1", step="charge")
    looker = operator("view_job")
    assert looker.post(url("job", "give", waiting.id) + "?step=$event-1").status_code == 403
    assert "/give/" not in page(looker, waiting)
    waiting.cancel()
    assert "does not wait in its step" in give(admin_client, waiting, "1")
    form = admin_client.get(url("job", "give", waiting.id) + "?step=charge").content.decode()
    assert "waits for the event" not in form
    assert not DurableEvent.objects.exists()
    assert not AuditEntry.objects.exists()


def test_giving_an_event_keeps_the_filters_of_the_list_that_led_there(admin_client: Client, waiting: JobHandle) -> None:
    kept = {"_changelist_filters": "state=retryable&type=a.*"}
    own, again = url("job", "change", waiting.id), f"?{urlencode(kept)}"
    body = html.unescape(admin_client.get(own, kept).content.decode())
    (give,) = re.findall(r'href="([^"]*/give/[^"]*)"', body)
    assert f'href="{own}{again}"' in html.unescape(admin_client.get(give).content.decode())
    assert admin_client.post(give, {"payload": ""})["Location"] == f"{own}{again}"


@pytest.mark.parametrize("door", ["command", "python"])
def test_a_job_begins_again_at_a_step_from_other_doors(door: str, failed: JobHandle, ojs_worker: WorkerJobs) -> None:
    CALLED.clear()
    if door == "python":
        failed.retry(from_step="charge")
    else:
        call_command("ojs_jobs", "retry", str(failed.id), "--from-step", "charge", "--yes", stdout=io.StringIO())
        [entry] = AuditEntry.objects.filter(action="job.retry")
        assert (entry.target, entry.detail["from_step"]) == (str(failed.id), "charge")
        with pytest.raises(CommandError, match="takes the ids"):
            call_command("ojs_jobs", "retry", "--all", "--from-step", "charge", "--yes")
    ojs_worker.drain()
    assert CALLED == ["charge"]


def test_the_log_is_a_row_of_ticks_on_the_axis_of_the_attempts(admin_client: Client, ojs_worker: WorkerJobs) -> None:
    """However many lines there are: the database counts them."""
    handle = declared().enqueue(8)
    ojs_worker.drain()
    (attempt,) = handle.attempts()
    first, half, last = (attempt.started_at + dt.timedelta(seconds=seconds) for seconds in (0, 30, 60))
    lines = [(first, 20), *[(half, 10)] * 5000, (half, 40), (last, 30)]
    JobLog.objects.all().delete()
    JobLog.objects.bulk_create(
        JobLog(
            job_id=handle.id, attempt=1, started_at=attempt.started_at, sequence=number, time=time, level=level,
            message="m",
        )
        for number, (time, level) in enumerate(lines)
    )  # fmt: skip
    found = joblog.buckets(handle.id, first, last, 10)
    assert sum(one.lines for one in found) == 5003
    assert [one.level for one in found] == [20, 40, 30]
    assert (found[0].place, found[-1].place) == (0, 9)
    ticks = log_ticks(handle.id, Axis(first, last), "default")
    assert ticks is not None
    assert ticks["text"] == "5,003 lines, up to the level error"
    drawn = ticks["bar"]
    assert [drawn.count(f"ojs-fill-{colour}") for colour in ("run", "bad", "wait", "backoff")] == [1, 1, 1, 0]
    assert "ojs-fill-run" in admin_client.get(url("job", "change", handle.id)).context["log_ticks"]["bar"]
