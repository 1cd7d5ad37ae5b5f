"""Every event type of both catalogues: written by the act that it tells of and not before, with all its fields."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_ojs import clock
from django_ojs.cron import schedules
from django_ojs.cron.runs import tick
from django_ojs.events import log
from django_ojs.events.catalogue import CATALOGUE
from django_ojs.jobs.cancel import cancel_one
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack_one, fail_one
from django_ojs.jobs.progress import ProgressReport, report
from django_ojs.jobs.promote import activate_one
from django_ojs.jobs.push import push
from django_ojs.jobs.retry import retry_one
from django_ojs.jobs.timers import apply_due
from django_ojs.queues.configuration import pause, resume
from django_ojs.workerregistry.heartbeat import Beat, beat
from django_ojs.workerregistry.registration import deregister, register
from django_ojs.workflows import workflow

pytestmark = pytest.mark.django_db

Check = Callable[[Any], bool]
#: Prepares, yields, and then does what the event tells of.
Story = Callable[[Any], Iterator[None]]
STORIES: dict[str, Story] = {}

BROKEN = {"type": "Boom", "code": "boom", "message": "it broke", "backtrace": ["a", "b"]}


def tells(*types: str) -> Callable[[Story], Story]:
    def note(story: Story) -> Story:
        STORIES.update(dict.fromkeys(types, story))
        return story

    return note


# What the fields are. Both catalogues together; a question mark ends the name of one that may be missing.


def text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def count(value: Any) -> bool:
    return type(value) is int and value >= 0


def number(value: Any) -> bool:
    return type(value) in (int, float)


def moment(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3,6}Z", value) is not None


def names(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(text, value))


def one_of(*words: str) -> Check:
    return lambda value: value in words


def identifier(value: Any) -> bool:
    return isinstance(value, str) and uuid.UUID(value).version == 7


def error(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(text(value.get(name)) for name in ("code", "message", "type"))
        and isinstance(value.get("retryable"), bool)
        and value.get("stack_trace", "a\nb") == "a\nb"
    )


def anything(value: Any) -> bool:
    return True


OF_JOBS: dict[str, Check] = {
    "job_id": identifier, "job_type": text, "type": text, "queue": text, "state": text, "attempt": count,
}  # fmt: skip
OF_WORKFLOWS: dict[str, Check] = {
    "workflow_id": text, "workflow_name": text, "workflow_type": one_of("chain", "group", "batch"),
}  # fmt: skip
OF_CRON: dict[str, Check] = {"cron_name": text, "cron_expr": text, "job_type": text, "next_at": moment}
FIELDS: dict[str, dict[str, Check]] = {
    "job.enqueued": {"priority": count, "unique_key?": text, "scheduled_at?": moment},
    "job.started": {"worker_id": text},
    "job.completed": {"duration_ms": count, "result": anything},
    "job.failed": {"error": error, "duration_ms": count},
    "job.discarded": {"total_attempts": count, "last_error": error, "error": error},
    "job.retrying": {
        "max_attempts": count, "next_retry_at": moment, "next_attempt_at": moment, "delay_ms": count, "error": error,
    },
    "job.cancelled": {"cancelled_by": text, "reason": text},
    "job.heartbeat": {"worker_id": text, "visible_until": moment},
    "job.scheduled": {"scheduled_at": moment},
    "job.expired": {"created_at": moment, "expired_at": moment, "ttl_ms": count},
    "job.progress": {"worker_id": text, "progress_percent": number, "progress_message": text},
    "queue.paused": {"queue": text, "paused_by": text},
    "queue.resumed": {"queue": text, "resumed_by": text},
    "worker.registered": {"worker_id": text, "hostname": text, "queues": names, "concurrency": count},
    "worker.started": {"worker_id": text, "queues": names, "concurrency": count},
    "worker.heartbeat": {
        "worker_id": text, "active_jobs": count, "queues": names, "state": one_of("running", "quiet", "terminate"),
        "memory_mb": number, "cpu_percent": number,
    },
    "worker.quiet": {"worker_id": text, "active_jobs": count},
    "worker.terminated": {"worker_id": text, "reason": text},
    "worker.stopped": {
        "worker_id": text, "reason": one_of("shutdown", "signal", "error"), "jobs_completed": count, "uptime_ms": count,
    },
    "workflow.started": {"total_steps": count},
    "workflow.step_completed": {
        "step_id": text, "step_type": text, "duration_ms": count, "steps_remaining": count, "step": count,
        "total_steps": count, "job_id": identifier,
    },
    "workflow.completed": {"total_steps": count, "duration_ms": count},
    "workflow.failed": {
        "failed_step_id": text, "failed_step_type": text, "step": count, "error": error, "job_id": identifier,
    },
    "cron.triggered": {"job_id": identifier, "scheduled_at": moment},
    "cron.skipped": {"reason": text, "existing_job_id": identifier},
}  # fmt: skip
SHARED = {"job": OF_JOBS, "workflow": OF_WORKFLOWS, "cron": OF_CRON, "queue": {}, "worker": {}}
#: The second part of the source, and the state of the job after the event.
SOURCES = {
    "job.enqueued": "api", "job.scheduled": "api", "job.cancelled": "api", "job.expired": "scheduler",
    "workflow.started": "api", "workflow.completed": "api", "workflow.failed": "api",
    "queue.paused": "api", "queue.resumed": "api", "cron.triggered": "cron", "cron.skipped": "cron",
}  # fmt: skip
STATES = {
    "job.enqueued": "available", "job.scheduled": "scheduled", "job.started": "active", "job.heartbeat": "active",
    "job.progress": "active", "job.completed": "completed", "job.failed": "retryable", "job.retrying": "retryable",
    "job.discarded": "discarded", "job.expired": "discarded", "job.cancelled": "cancelled",
}  # fmt: skip


# How each comes about


def made(**attributes: Any) -> Any:
    return push([{"type": "mail.send", "args": [], "queue": "mail", "meta": {"trace_id": "trace"}, **attributes}])[
        0
    ].row


def claimed(**attributes: Any) -> Any:
    made(**attributes)
    (row,) = fetch(Fetch(["mail"], worker_id="w1"))
    return row


def later(**delta: float) -> str:
    return (clock.now() + dt.timedelta(**delta)).isoformat()


@tells("job.enqueued")
def _enqueue(time: Any) -> Iterator[None]:
    yield
    made(unique={"keys": ["type"], "period": "PT1H"})


@tells("job.scheduled")
def _schedule(time: Any) -> Iterator[None]:
    yield
    made(scheduled_at=later(hours=1))


@tells("job.started")
def _start(time: Any) -> Iterator[None]:
    made()
    yield
    fetch(Fetch(["mail"], worker_id="w1"))


@tells("job.completed")
def _complete(time: Any) -> Iterator[None]:
    row = claimed()
    time.advance(seconds=2)
    yield
    ack_one(Ack(row["id"], '{"n":1}', "w1"))


@tells("job.failed", "job.retrying")
def _fail(time: Any) -> Iterator[None]:
    row = claimed(retry={"max_attempts": 2})
    yield
    fail_one(Failure(row["id"], BROKEN, "w1"))


@tells("job.discarded")
def _discard(time: Any) -> Iterator[None]:
    row = claimed(retry={"max_attempts": 1})
    yield
    fail_one(Failure(row["id"], BROKEN, "w1"))


@tells("job.cancelled")
def _cancel(time: Any) -> Iterator[None]:
    row = made()
    yield
    cancel_one(row["id"], cancelled_by="user:anna", reason="too late")
    cancel_one(row["id"], cancelled_by="user:anna")  # once more: nothing happens


@tells("job.heartbeat", "worker.heartbeat")
def _beat(time: Any) -> Iterator[None]:
    row = claimed()
    time.advance(seconds=5)
    yield
    beat(Beat("w1", [row["id"]], info={"memory_mb": 12.5, "cpu_percent": 3.0, "queues": ["mail"]}))


@tells("job.expired")
def _expire(time: Any) -> Iterator[None]:
    made(expires_at=later(minutes=5))
    time.advance(minutes=4)
    apply_due()
    yield
    time.advance(minutes=1)
    apply_due()


@tells("job.progress")
def _progress(time: Any) -> Iterator[None]:
    row = claimed()
    yield
    report([ProgressReport(row["id"], 42, "rows", worker_id="w1", attempt=1)])


@tells("queue.paused")
def _pause(time: Any) -> Iterator[None]:
    made()
    yield
    pause("mail", by="user:anna")
    pause("mail", by="user:bob")


@tells("queue.resumed")
def _resume(time: Any) -> Iterator[None]:
    made()
    pause("mail", by="user:anna")
    yield
    resume("mail", by="user:anna")
    resume("mail", by="user:bob")


WORKER = {"hostname": "host", "queues": ["mail"], "concurrency": 4}


@tells("worker.registered", "worker.started")
def _register(time: Any) -> Iterator[None]:
    yield
    register("w1", WORKER)
    register("w1", WORKER)


@tells("worker.quiet")
def _quiet(time: Any) -> Iterator[None]:
    register("w1", WORKER)
    yield
    beat(Beat("w1", active_count=3, state="quiet"))
    beat(Beat("w1", active_count=2, state="quiet"))


@tells("worker.terminated", "worker.stopped")
def _stop(time: Any) -> Iterator[None]:
    register("w1", WORKER)
    time.advance(seconds=9)
    yield
    deregister("w1", reason="signal")


STEPS = {
    "type": "chain", "name": "etl",
    "steps": [{"id": name, "type": f"data.{name}", "args": [], "queue": "mail"} for name in ("extract", "load")],
}  # fmt: skip


def _next(result: str | None = None) -> None:
    (row,) = fetch(Fetch(["mail"], worker_id="w1"))
    ack_one(Ack(row["id"], result, "w1"))


@tells("workflow.started")
def _begin_workflow(time: Any) -> Iterator[None]:
    workflow.create(STEPS)
    yield
    fetch(Fetch(["mail"], worker_id="w1"))


@tells("workflow.step_completed")
def _complete_step(time: Any) -> Iterator[None]:
    workflow.create(STEPS)
    yield
    _next()


@tells("workflow.completed")
def _complete_workflow(time: Any) -> Iterator[None]:
    workflow.create(STEPS)
    _next()
    yield
    _next()


@tells("workflow.failed")
def _fail_workflow(time: Any) -> Iterator[None]:
    workflow.create(STEPS)
    _next()
    (row,) = fetch(Fetch(["mail"], worker_id="w1"))
    yield
    fail_one(Failure(row["id"], BROKEN | {"retryable": False}, "w1"))


REPORT = {"name": "daily", "cron": "0 9 * * *", "type": "report.make"}


@tells("cron.triggered")
def _trigger(time: Any) -> Iterator[None]:
    schedules.register(REPORT)
    time.move_to(dt.datetime(2026, 1, 16, 8, 59, 59, tzinfo=dt.UTC))
    tick()
    yield
    time.advance(seconds=1)
    tick()


@tells("cron.skipped")
def _skip(time: Any) -> Iterator[None]:
    schedules.register(REPORT | {"overlap_policy": "skip"})
    time.move_to(dt.datetime(2026, 1, 16, 9, tzinfo=dt.UTC))
    tick()
    yield
    time.advance(days=1)
    tick()


# The tests


def found(type: str) -> list[dict[str, Any]]:
    return log.read(types=[type], limit=1000).events


def test_both_catalogues_are_covered() -> None:
    assert set(FIELDS) == set(STORIES) == set(CATALOGUE)


@pytest.mark.parametrize("type", CATALOGUE)
def test_it_is_told_when_it_happens_with_all_its_fields(type: str, frozen_clock: Any) -> None:
    story = STORIES[type](frozen_clock)
    next(story)
    assert found(type) == [], "nothing has happened yet"
    assert next(story, None) is None
    (event,) = found(type)
    check_envelope(event)
    category = type.partition(".")[0]
    for name, fits in (SHARED[category] | FIELDS[type] | {"timestamp": moment}).items():
        bare = name.removesuffix("?")
        assert bare in event["data"] or bare != name, f"{type} has no {bare}"
        assert bare not in event["data"] or fits(event["data"][bare]), (bare, event["data"][bare])
    assert event["source"].split("/")[3] == SOURCES.get(type, "workers")
    if category == "job":
        assert event["data"]["state"] == STATES[type]
        assert event["data"]["type"] == event["data"]["job_type"] == "mail.send"
        assert event["subject"] == event["data"]["job_id"]
        assert event["data"]["trace_id"] == "trace"
    else:
        subject = {"queue": "queue", "worker": "worker_id", "workflow": "workflow_id", "cron": "cron_name"}[category]
        assert event["subject"] == event["data"][subject]


def check_envelope(event: dict[str, Any]) -> None:
    assert set(event) == {"specversion", "id", "type", "source", "time", "subject", "datacontenttype", "data"}
    assert (event["specversion"], event["datacontenttype"]) == ("1.0", "application/json")
    assert re.fullmatch(r"evt_[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", event["id"])
    assert re.match(r"ojs://[^/]+/(api|scheduler|cron|workers(/[^/]+)?)$", event["source"])
    assert moment(event["time"])
    assert event["data"]["timestamp"] == event["time"]


def test_a_job_that_comes_too_late_had_no_time_at_all(frozen_clock: Any) -> None:
    made(expires_at=later(seconds=-5))
    apply_due()
    (event,) = found("job.expired")
    assert event["data"]["ttl_ms"] == 0


def test_ids_are_unique_and_sort_by_time(frozen_clock: Any) -> None:
    for kind in ("job.completed", "workflow.completed", "worker.stopped"):
        list(STORIES[kind](frozen_clock))
        frozen_clock.advance(seconds=1)
    ids = [event["id"] for event in log.read(limit=1000).events]
    assert len(set(ids)) == len(ids)
    assert [i[:17] for i in ids] == sorted(i[:17] for i in ids)


def test_a_job_that_no_worker_named_itself_for_still_says_who(frozen_clock: Any) -> None:
    """`worker_id` must be there; FETCH need not give one."""
    made()
    (row,) = fetch(Fetch(["mail"]))
    report([ProgressReport(row["id"], 5)])
    for kind in ("job.started", "job.progress"):
        assert found(kind)[0]["data"]["worker_id"] == ""


@pytest.mark.parametrize(
    "scenario, expected",
    [
        ("pending", ["job.enqueued", "job.started", "job.completed"]),
        ("delayed", ["job.scheduled", "job.enqueued", "job.started", "job.completed"]),
        ("requeued", ["job.enqueued", "job.started", "job.started", "job.completed"]),
        ("manual retry", ["job.enqueued", "job.started", "job.failed", "job.discarded", "job.enqueued", "job.started",
                          "job.completed"]),
        ("timed out", ["job.enqueued", "job.started", "job.failed", "job.discarded"]),
        ("cancelled while active", ["job.enqueued", "job.started", "job.cancelled"]),
    ],
)  # fmt: skip
def test_the_order_of_a_life(scenario: str, expected: list[str], frozen_clock: Any) -> None:
    match scenario:
        case "pending":
            row = made(options={"pending": True})
            activate_one(row["id"])
        case "delayed":
            row = made(scheduled_at=later(minutes=1))
            frozen_clock.advance(minutes=1)
            apply_due()
        case "requeued":
            row = claimed()
            fail_one(Failure(row["id"], requeue=True))
        case "manual retry":
            row = claimed(retry={"max_attempts": 1})
            fail_one(Failure(row["id"], BROKEN))
            retry_one(row["id"])
        case "timed out":
            row = claimed(timeout=2, retry={"max_attempts": 1})
            frozen_clock.advance(seconds=2)
            apply_due()
        case "cancelled while active":
            row = claimed()
            cancel_one(row["id"])
    if expected[-1] == "job.completed":
        fetch(Fetch(["mail"], worker_id="w1"))
        ack_one(Ack(row["id"]))
    assert [event["type"] for event in log.read(job_id=row["id"]).events] == expected
