"""The worked examples of the events specification (section 10), replayed over HTTP on the examples' own clock.

Each expectation is one event: its type, the end of its source, and the members of `data` with the values that the
example shows. Ids are ours; an instant or a duration of a whole workflow may differ by what the examples let pass
between two events that are one transaction here.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, NamedTuple

import pytest
from django.test import Client

from django_ojs.cron import schedules
from django_ojs.cron.runs import tick
from django_ojs.events import log
from django_ojs.jobs.timers import apply_due
from tests.http.conftest import Api

pytestmark = pytest.mark.django_db


class Told(NamedTuple):
    type: str
    source: str
    data: dict[str, Any]


class About:
    """A number or an instant, give or take some milliseconds."""

    def __init__(self, value: int | str, leeway: int = 250) -> None:
        self._value, self._leeway = value, leeway

    def __eq__(self, other: object) -> bool:
        if isinstance(self._value, int):
            return type(other) is int and abs(other - self._value) <= self._leeway
        apart = dt.datetime.fromisoformat(str(other)) - dt.datetime.fromisoformat(self._value)
        return abs(apart) <= dt.timedelta(milliseconds=self._leeway)

    def __repr__(self) -> str:
        return f"about {self._value}"


class Example:
    """A site with the example's service name, where the test says what time it is."""

    def __init__(self, service: str, time: Any, settings: Any) -> None:
        settings.OJS = {"ALLOW_ANONYMOUS": True, "SERVICE_NAME": service}
        self.api, self._time, self._service = Api(), time, service

    def at(self, moment: str) -> Example:
        self._time.move_to(dt.datetime.fromisoformat(f"2025-06-0{moment}+00:00"))
        return self

    def call(self, path: str, **body: Any) -> Any:
        answer = self.api.post(path, body)
        assert answer.status_code in (200, 201), answer.content
        return answer.json()

    def login(self, name: str, users: Any) -> None:
        client = Client()
        client.force_login(users.objects.create_user(name, is_staff=True))
        self.api.client = client

    def push(self, type: str, queue: str, **more: Any) -> str:
        return str(self.call("/jobs", type=type, args=[], queue=queue, **more)["job"]["id"])

    def fetch(self, queue: str, worker: str) -> str:
        return str(self.call("/workers/fetch", queues=[queue], worker_id=worker)["job"]["id"])

    def told(self, *types: str, **filters: Any) -> list[dict[str, Any]]:
        return log.read(types=types, limit=1000, **filters).events

    def check(self, events: list[dict[str, Any]], expected: list[Told], subject: str) -> None:
        """The same events in the same order, and nothing of an example is missing or different."""
        assert [event["type"] for event in events] == [told.type for told in expected]
        for event, told in zip(events, expected, strict=True):
            assert event["specversion"] == "1.0"
            assert event["source"] == f"ojs://{self._service}/{told.source}", event["type"]
            assert event["subject"] == subject
            assert {name: event["data"].get(name) for name in told.data} == told.data, event["type"]


@pytest.fixture
def example(frozen_clock: Any, settings: Any, db: None) -> Any:
    return lambda service: Example(service, frozen_clock, settings)


def test_10_1_a_job_that_succeeds(example: Any) -> None:
    site = example("billing-api")
    site.at("1T10:30:00.123")
    job_id = site.push("email.send", "email", priority=0)
    site.at("1T10:30:01.456").fetch("email", "worker-1")
    site.at("1T10:30:02.789").call("/workers/ack", job_id=job_id, worker_id="worker-1",
                                   result={"message_id": "msg_abc123"})  # fmt: skip
    what = {"job_type": "email.send", "queue": "email"}
    result = {"message_id": "msg_abc123"}
    events = site.told("job.*")
    site.check(
        events,
        [
            Told("job.enqueued", "api", {**what, "priority": 0}),
            Told("job.started", "workers/worker-1", {**what, "worker_id": "worker-1", "attempt": 1}),
            Told("job.completed", "workers/worker-1", {**what, "duration_ms": 1333, "attempt": 1, "result": result}),
        ],
        job_id,
    )
    assert [event["time"][11:] for event in events] == ["10:30:00.123Z", "10:30:01.456Z", "10:30:02.789Z"]


def test_10_2_a_job_that_fails_until_it_is_discarded(example: Any) -> None:
    site = example("order-service")
    site.at("1T11:00:00.000")
    retry = {"max_attempts": 3, "initial_interval": "PT2S", "backoff_coefficient": 2.0, "jitter": False}
    job_id = site.push("payment.charge", "payments", retry=retry)
    error = {"code": "handler_error", "message": "Payment gateway timeout: 10.0.1.50:443"}
    for started, worker, failed in (
        ("00.500", "worker-2", "01.200"), ("03.300", "worker-3", "04.100"), ("08.200", "worker-1", "09.000"),
    ):  # fmt: skip
        site.at(f"1T11:00:{started}").fetch("payments", worker)
        site.at(f"1T11:00:{failed}").call("/workers/nack", job_id=job_id, worker_id=worker, error=error)
    what = {"job_type": "payment.charge", "queue": "payments"}
    expected = [Told("job.enqueued", "api", what)]
    for attempt, worker, duration, due in (
        (1, "worker-2", 700, "03.210"), (2, "worker-3", 800, "08.110"), (3, "worker-1", 800, ""),
    ):  # fmt: skip
        source = f"workers/{worker}"
        expected += [
            Told("job.started", source, {**what, "worker_id": worker, "attempt": attempt}),
            Told("job.failed", source, {**what, "attempt": attempt, "duration_ms": duration}),
        ]
        if due:
            at = About(f"2025-06-01T11:00:{due}+00:00", 20)
            facts = {"attempt": attempt, "max_attempts": 3, "next_retry_at": at}
            expected.append(Told("job.retrying", source, {**what, **facts}))
    expected.append(Told("job.discarded", "workers/worker-1", {**what, "total_attempts": 3}))
    events = site.told("job.*")
    site.check(events, expected, job_id)
    for event in events:
        for name in ("error", "last_error"):
            if name in event["data"]:
                assert error.items() <= event["data"][name].items()
    assert [event["data"]["error"]["retryable"] for event in site.told("job.failed")] == [True] * 3


def test_10_3_a_scheduled_job_that_is_cancelled(example: Any, django_user_model: Any) -> None:
    site = example("marketing-api")
    site.login("marketing-lead@example.com", django_user_model)
    site.at("1T12:00:00.000")
    job_id = site.push("campaign.launch", "marketing", scheduled_at="2025-06-02T09:00:00.000Z")
    site.at("1T14:30:00.000").call(f"/jobs/{job_id}/cancel", reason="Campaign budget was not approved")
    what = {"job_type": "campaign.launch", "queue": "marketing"}
    by = {"cancelled_by": "user:marketing-lead@example.com", "reason": "Campaign budget was not approved"}
    site.check(
        site.told("job.*"),
        [
            Told("job.scheduled", "api", {**what, "scheduled_at": "2025-06-02T09:00:00.000Z"}),
            Told("job.cancelled", "api", {**what, **by}),
        ],
        job_id,
    )


def test_10_4_a_schedule_that_skips_a_run(example: Any) -> None:
    site = example("analytics-service")
    site.at("1T08:00:00")
    schedules.register(
        {"name": "daily-report", "cron": "0 9 * * *", "type": "report.generate", "overlap_policy": "skip"}
    )
    site.at("1T09:00:00.100")
    tick()
    job_id = site.fetch("default", "worker-1")
    for _ in range(24 * 2):  # its worker keeps it until the next morning
        site._time.advance(minutes=29)
        site.call("/workers/heartbeat", worker_id="worker-1", active_jobs=[job_id])
    site.at("2T09:00:00.100")
    tick()
    what = {"cron_name": "daily-report", "cron_expr": "0 9 * * *", "job_type": "report.generate"}
    site.check(
        site.told("cron.*"),
        [
            Told("cron.triggered", "cron", {**what, "job_id": job_id, "scheduled_at": "2025-06-01T09:00:00.000Z"}),
            Told("cron.skipped", "cron", {**what, "reason": "overlap_prevention", "existing_job_id": job_id}),
        ],
        "daily-report",
    )


def test_10_5_a_workflow(example: Any) -> None:
    site = example("data-platform")
    steps = [("extract", "data.fetch"), ("transform", "data.transform"), ("load", "data.load")]
    site.at("1T15:00:00.000")
    made = site.call(
        "/workflows", type="chain", name="etl-pipeline",
        steps=[{"id": name, "type": kind, "args": [], "queue": "etl"} for name, kind in steps],
    )  # fmt: skip
    for worker, started, ended in (("1", "00.200", "05.000"), ("2", "05.500", "12.000"), ("1", "12.200", "15.000")):
        job_id = site.at(f"1T15:00:{started}").fetch("etl", f"worker-{worker}")
        site.at(f"1T15:00:{ended}").call("/workers/ack", job_id=job_id, worker_id=f"worker-{worker}")
    flow = made.get("workflow", made)["id"]
    what = {"workflow_id": flow, "workflow_name": "etl-pipeline"}
    completed = [
        Told("workflow.step_completed", f"workers/worker-{worker}",
             {**what, "step_id": name, "step_type": kind, "duration_ms": duration, "steps_remaining": left})
        for (name, kind), worker, duration, left in zip(steps, "121", (4800, 6500, 2800), (2, 1, 0), strict=True)
    ]  # fmt: skip
    site.check(
        site.told("workflow.*"),
        [
            Told("workflow.started", "api", {**what, "total_steps": 3}),
            *completed,
            Told("workflow.completed", "api", {**what, "total_steps": 3, "duration_ms": About(15010)}),
        ],
        flow,
    )


def test_10_6_the_life_of_a_worker(example: Any) -> None:
    site = example("billing-api")
    queues = ["default", "email", "reports"]
    me = {"worker_id": "worker-1", "hostname": "host", "pid": 7, "queues": queues, "concurrency": 10}
    site.at("1T08:00:00").call("/workers/register", **me)
    beat = {"worker_id": "worker-1", "jobs_completed": 12847}
    site.at("1T08:00:30").call("/workers/heartbeat", **beat, active_jobs=7, memory_mb=256.4, cpu_percent=12.3)
    site.at("1T18:00:00").call("/workers/heartbeat", **beat, active_jobs=3, state="quiet")
    site.at("1T18:00:05").call("/workers/deregister", worker_id="worker-1", reason="signal")
    what = {"worker_id": "worker-1"}
    events = site.told("worker.started", "worker.heartbeat", "worker.quiet", "worker.stopped")
    del events[2]  # the heartbeat by which it said that it is quiet
    source = "workers/worker-1"
    measured = {"active_jobs": 7, "queues": queues, "memory_mb": 256.4, "cpu_percent": 12.3}
    site.check(
        events,
        [
            Told("worker.started", source, {**what, "queues": queues, "concurrency": 10}),
            Told("worker.heartbeat", source, {**what, **measured}),
            Told("worker.quiet", source, {**what, "active_jobs": 3}),
            Told("worker.stopped", source, {**what, "reason": "signal", "jobs_completed": 12847,
                                            "uptime_ms": 36005000}),
        ],
        "worker-1",
    )  # fmt: skip


def test_10_7_a_queue_that_is_paused_and_resumed(example: Any, django_user_model: Any) -> None:
    site = example("billing-api")
    site.login("oncall@example.com", django_user_model)
    site.at("1T15:00:00").push("email.send", "email")
    site.at("1T16:00:00").call("/queues/email/pause")
    site.at("1T16:45:00").call("/queues/email/resume")
    site.check(
        site.told("queue.*"),
        [
            Told("queue.paused", "api", {"queue": "email", "paused_by": "user:oncall@example.com"}),
            Told("queue.resumed", "api", {"queue": "email", "resumed_by": "user:oncall@example.com"}),
        ],
        "email",
    )


@pytest.mark.parametrize("carrier", ["trace_id", "traceparent"])
def test_10_8_a_job_with_a_trace(example: Any, carrier: str) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    meta = {"trace_id": trace} if carrier == "trace_id" else {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    site = example("checkout-service")
    site.at("1T20:00:00.000")
    job_id = site.push("order.process", "orders", meta=meta)
    site.at("1T20:00:00.200").fetch("orders", "worker-5")
    result = {"order_id": "ord_12345", "status": "confirmed"}
    site.at("1T20:00:02.500").call("/workers/ack", job_id=job_id, worker_id="worker-5", result=result)
    what = {"job_type": "order.process", "queue": "orders", "trace_id": trace}
    done = {"duration_ms": 2300, "attempt": 1, "result": result}
    site.check(
        site.told("job.*"),
        [
            Told("job.enqueued", "api", what),
            Told("job.started", "workers/worker-5", what),
            Told("job.completed", "workers/worker-5", {**what, **done}),
        ],
        job_id,
    )


def test_10_9_a_job_that_expires(example: Any) -> None:
    site = example("notification-service")
    site.at("1T10:00:00.000")
    job_id = site.push("notification.push", "notifications", expires_at="2025-06-01T10:05:00.000Z")
    site.at("1T10:05:00.123")
    apply_due()
    what = {"job_type": "notification.push", "queue": "notifications"}
    times = {"created_at": "2025-06-01T10:00:00.000Z", "expired_at": "2025-06-01T10:05:00.123Z", "ttl_ms": 300000}
    site.check(
        site.told("job.*"),
        [Told("job.enqueued", "api", what), Told("job.expired", "scheduler", {**what, **times})],
        job_id,
    )


def test_10_10_a_job_that_tells_how_far_it_is(example: Any) -> None:
    site = example("data-service")
    site.at("1T14:00:00.000")
    job_id = site.push("data.import", "etl")
    site.fetch("etl", "worker-4")
    for minute, percent, message in ((1, 25.0, "2,500"), (3, 75.0, "7,500")):
        site.at(f"1T14:0{minute}:00.000").call(
            "/workers/progress", job_id=job_id, worker_id="worker-4", percentage=percent,
            message=f"Processed {message} of 10,000 records",
        )  # fmt: skip
    result = {"records_imported": 10000, "errors": 0}
    site.at("1T14:04:00.000").call("/workers/ack", job_id=job_id, worker_id="worker-4", result=result)
    what = {"job_type": "data.import", "queue": "etl", "attempt": 1}
    by = {**what, "worker_id": "worker-4"}
    told = [{"progress_percent": n, "progress_message": f"Processed {m} of 10,000 records"}
            for n, m in ((25.0, "2,500"), (75.0, "7,500"))]  # fmt: skip
    source = "workers/worker-4"
    site.check(
        site.told("job.*")[1:],  # the example begins with the start
        [
            Told("job.started", source, by),
            *(Told("job.progress", source, {**by, **each}) for each in told),
            Told("job.completed", source, {**what, "duration_ms": 240000, "result": result}),
        ],
        job_id,
    )
