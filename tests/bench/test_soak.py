"""`ojs_bench --soak`: its sum finds what is lost, done twice or told wrongly, and a short soak adds up."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from benchmarks.management.commands import ojs_bench
from benchmarks.soak.audit import audit
from benchmarks.soak.gauges import thirds
from benchmarks.soak.ledger import TYPES, Kind, Ledger
from benchmarks.soak.load import KINDS, PORTIONS
from benchmarks.soak.report import Report
from django_ojs.events import log
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import ack_one
from django_ojs.jobs.push import push
from django_ojs.models import Job
from django_ojs.registry import registry
from django_ojs.states import State
from django_ojs.store.values import Ack
from django_ojs.worker import processinfo

PLAIN, TWICE = Kind("plain"), Kind("twice", State.DISCARDED, attempts=2)
MEMBER, CRON = Kind("member", made_by="workflow"), Kind("cron", made_by="schedule")


@pytest.fixture
def ledger() -> Ledger:
    return Ledger([PLAIN, TWICE, MEMBER, CRON])


def tell(ledger: Ledger, job: str, *events: tuple[str, str, int]) -> None:
    """Events of one job, whose type is the part of its name before the dash: (event, state, attempt)."""
    for event, state, attempt in events:
        data = {"job_id": job, "job_type": job.partition("-")[0], "queue": "q", "state": state, "attempt": attempt}
        if job.startswith("member"):
            data["workflow_id"] = "flow"
        ledger.hear({"type": event, "subject": job, "data": data})


BORN = ("job.enqueued", "available", 0)
DONE = ("job.completed", "completed", 1)


def start(attempt: int = 1) -> tuple[str, str, int]:
    return ("job.started", "active", attempt)


def flow(ledger: Ledger, event: str) -> None:
    ledger.hear({"type": event, "subject": "flow", "data": {}})


def trigger(ledger: Ledger, job: str) -> None:
    ledger.hear({"type": "cron.triggered", "subject": "schedule", "data": {"job_id": job}})


# The ledger


def test_what_went_well_adds_up(ledger: Ledger) -> None:
    ledger.promise("plain", "plain-1")
    tell(ledger, "plain-1", ("job.scheduled", "scheduled", 0), BORN, start(), DONE)
    ledger.promise("twice", "twice-1")
    tell(ledger, "twice-1", BORN, start(), ("job.failed", "retryable", 1), ("job.retrying", "retryable", 1))
    assert ledger.unended == 1
    tell(ledger, "twice-1", start(2), start(3), ("job.discarded", "discarded", 3))
    ledger.promise_flow("flow", "member", 1)
    tell(ledger, "member-1", BORN, start(), DONE)
    flow(ledger, "workflow.completed")
    tell(ledger, "cron-1", BORN)
    trigger(ledger, "cron-1")
    tell(ledger, "cron-1", start(), DONE)
    ledger.expect("cron", 1)
    ledger.settle()
    assert ledger.faults == []
    assert ledger.handed_back("twice") == 1
    assert ledger.by_queue == {"q": {"started": 6, "completed": 3, "failed": 1}}


def lost(ledger: Ledger) -> None:
    ledger.promise("plain", "plain-1")


def unended(ledger: Ledger) -> None:
    lost(ledger)
    tell(ledger, "plain-1", BORN, start())


def ended_twice(ledger: Ledger) -> None:
    unended(ledger)
    tell(ledger, "plain-1", DONE, DONE)


def started_after_its_end(ledger: Ledger) -> None:
    unended(ledger)
    tell(ledger, "plain-1", DONE, start(2))


def begun_again(ledger: Ledger) -> None:
    unended(ledger)
    tell(ledger, "plain-1", DONE, BORN)


def ended_otherwise(ledger: Ledger) -> None:
    unended(ledger)
    tell(ledger, "plain-1", ("job.discarded", "discarded", 1))


def miscounted(ledger: Ledger) -> None:
    unended(ledger)
    tell(ledger, "plain-1", ("job.completed", "completed", 2))


def too_few_attempts(ledger: Ledger) -> None:
    ledger.promise("twice", "twice-1")
    tell(ledger, "twice-1", BORN, start(), ("job.discarded", "discarded", 1))


def unasked(ledger: Ledger) -> None:
    tell(ledger, "plain-1", BORN, start(), DONE)


def member_missing(ledger: Ledger) -> None:
    ledger.promise_flow("flow", "member", 1)
    flow(ledger, "workflow.completed")


def member_twice(ledger: Ledger) -> None:
    ledger.promise_flow("flow", "member", 1)
    tell(ledger, "member-1", BORN, start(), DONE, BORN)


def member_after_its_flow(ledger: Ledger) -> None:
    flow_twice(ledger)
    tell(ledger, "member-1", BORN)


def flow_failed(ledger: Ledger) -> None:
    ledger.promise_flow("flow", "member", 0)
    flow(ledger, "workflow.failed")


def flow_unended(ledger: Ledger) -> None:
    ledger.promise_flow("flow", "member", 0)


def flow_twice(ledger: Ledger) -> None:
    flow_unended(ledger)
    flow(ledger, "workflow.completed")
    flow(ledger, "workflow.completed")


def run_missing(ledger: Ledger) -> None:
    ledger.expect("cron", 1)


def run_without_job(ledger: Ledger) -> None:
    trigger(ledger, "cron-1")


def job_without_run(ledger: Ledger) -> None:
    tell(ledger, "cron-1", BORN, start(), DONE)


@pytest.mark.parametrize(
    "happen,said",
    [
        (lost, "1 jobs that were pushed are not in the log, such as plain-1."),
        (unended, "1 jobs have not ended, such as plain-1."),
        (ended_twice, "plain plain-1 ended (completed) unasked, or a second time."),
        (started_after_its_end, "plain plain-1 was started before it began, or after its end."),
        (begun_again, "plain plain-1 began unasked, or a second time."),
        (ended_otherwise, "plain plain-1 ended discarded at attempt 1 after 1 starts."),
        (miscounted, "plain: 2 attempts, 1 started."),
        (too_few_attempts, "twice twice-1 ended discarded at attempt 1 after 1 starts."),
        (unasked, "plain plain-1 began unasked, or a second time."),
        (member_missing, "member: 1 pushed, 0 begun, 0 ended."),
        (member_missing, "workflow.completed of flow: unasked, a second time, too early, or not what was promised."),
        (member_twice, "member member-1 began unasked, or a second time."),
        (member_after_its_flow, "member member-1 began unasked, or a second time."),
        (flow_failed, "workflow.failed of flow: unasked, a second time, too early, or not what was promised."),
        (flow_unended, "1 workflows have not ended, such as flow."),
        (flow_twice, "workflow.completed of flow: unasked, a second time, too early, or not what was promised."),
        (run_missing, "The schedule counts 1 runs, the log says 0."),
        (run_without_job, "The schedule made cron-1, which did not begin, or was named before."),
        (job_without_run, "1 jobs of the schedule had no `cron.triggered`, such as cron-1."),
    ],
)
def test_what_went_wrong_is_a_fault(ledger: Ledger, happen: Callable[[Ledger], None], said: str) -> None:
    happen(ledger)
    ledger.settle()
    assert said in ledger.faults


# The audit


@pytest.fixture
def heard(transactional_db: None) -> Ledger:
    """Three jobs that were completed, and a ledger that heard of it."""
    ledger = Ledger([PLAIN])
    for pushed in push([{"type": "plain", "args": []}] * 3):
        assert pushed.row is not None
        ledger.promise("plain", str(pushed.row["id"]))
    for row in fetch(Fetch(["default"], count=3, worker_id="w")):
        ack_one(Ack(row["id"], None, "w"))
    for event in log.read(types=TYPES).events:
        ledger.hear(event)
    ledger.settle()
    return ledger


def test_rows_and_counters_that_agree(heard: Ledger) -> None:
    audit(heard)
    assert heard.faults == []


def attempts_changed() -> None:
    Job.objects.filter(pk=Job.objects.first().pk).update(attempt=7)  # type: ignore[union-attr]


def row_deleted() -> None:
    """By somebody who did not count it."""
    Job.objects.filter(pk=Job.objects.first().pk)._raw_delete("default")  # type: ignore[union-attr]


def one_more_live() -> None:
    push([{"type": "plain", "args": []}])


def one_more_start() -> None:
    push([{"type": "plain", "args": []}])
    fetch(Fetch(["default"], worker_id="w"))


@pytest.mark.parametrize(
    "change,said",
    [
        (attempts_changed, "says ('completed', 7), its events say [('completed', 1)]."),
        (row_deleted, "Queue default: counted as "),
        (one_more_live, "1 rows of jobs are not in a terminal state."),
        (one_more_start, "Queue default: counters say "),
    ],
)
def test_rows_and_counters_that_do_not_agree(heard: Ledger, change: Callable[[], None], said: str) -> None:
    change()
    audit(heard)
    assert any(said in fault for fault in heard.faults), heard.faults


# What it tells


def test_thirds_are_medians() -> None:
    assert thirds([1, 9, 2, 5, 5, 5, 7, 8, 80]) == (2, 8)
    assert thirds([3]) == (3, 3)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_the_memory_of_another_process() -> None:
    assert processinfo.memory_mb(os.getpid()) == pytest.approx(psutil.Process().memory_info().rss / 2**20, rel=0.2)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert processinfo.memory_mb(gone.pid) is None


@pytest.fixture
def soaked(monkeypatch: pytest.MonkeyPatch, ledger: Ledger, db: None) -> Ledger:
    """`ojs_bench --soak` with a report that the test makes up."""
    report = Report(ledger, {"connections": [1.0, 2.0, 4.0]}, 60.0, 0, ["autovacuum is off."])
    monkeypatch.setattr(ojs_bench, "soak", lambda minutes, database, tell: report)
    monkeypatch.setattr(ojs_bench, "throwaway_database", lambda url, durable: contextlib.nullcontext(url))
    return ledger


def test_a_sum_that_is_right_is_told(soaked: Ledger) -> None:
    unended(soaked)
    tell(soaked, "plain-1", DONE)
    out = io.StringIO()
    call_command("ojs_bench", "--soak", "1", stdout=out)
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert "\n\nautovacuum is off.\n\n" in out.getvalue()
    assert ["connections", "1.0", "4.0", "+3.0"] in lines
    assert ["plain", "1", "1", "0", "0", "1", "1", "0"] in lines
    assert "1 jobs and 0 workflows in 60 s: everything adds up." in out.getvalue()


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_sum_that_is_wrong_is_an_error(soaked: Ledger, form: list[str]) -> None:
    ended_twice(soaked)
    out = io.StringIO()
    with pytest.raises(CommandError, match="not right"):
        call_command("ojs_bench", "--soak", "1", *form, stdout=out)
    assert "plain plain-1 ended (completed) unasked, or a second time." in out.getvalue()


# The whole


def test_every_kind_has_a_handler() -> None:
    with registry.isolated():
        sys.modules.pop("benchmarks.soak.jobs", None)
        import benchmarks.soak.jobs  # noqa: F401

        assert set(registry.types()) == {kind.type for kind in KINDS}


@pytest.mark.wide
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_short_soak_adds_up(child_environment: dict[str, str]) -> None:
    command = [sys.executable, str(Path(settings.BASE_DIR) / "manage.py"), "ojs_bench", "--soak", "0.1", "--json"]
    done = subprocess.run(command, env=child_environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["faults"] == []
    assert told["workflows"] > 0
    for portion in PORTIONS:
        found = told["jobs"][portion.kind.type]
        assert found["pushed"] == found[portion.kind.end] > 0
    assert told["gauges"]["rows of django_ojs_worker"]["last"] == 2
    assert told["gauges"]["rows of django_ojs_job"]["last"] > 0
