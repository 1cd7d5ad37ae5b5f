"""`ojs_jobs`, `ojs_dead_letter`, `ojs_queues` and `ojs_status`: what they change, what they ask, how they exit."""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings as site
from django.core.management import CommandError, call_command
from django.db import OperationalError, ProgrammingError, connections

from django_ojs import audit, clock, enqueue, get_job
from django_ojs.client.handle import JobHandle
from django_ojs.events import order
from django_ojs.jobs import bulk
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Failure, fail_one
from django_ojs.management import shell
from django_ojs.management.commands import ojs_status
from django_ojs.models import AuditEntry, BulkAction, Event, Job, Queue, Workflow
from django_ojs.queues import maintenance
from django_ojs.scheduler.scheduler import ROLE, Leadership
from django_ojs.workerregistry.registration import register
from django_ojs.workflows import workflow
from tests.conftest import FrozenClock

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out, stderr=out, no_color=True)
    return out.getvalue().strip()


def partly(*arguments: str) -> str:
    """Run what is refused in part."""
    out = io.StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command(*arguments, stdout=out, stderr=out, no_color=True)
    assert ended.value.code == shell.IN_PART
    return out.getvalue().strip()


def states(*handles: JobHandle) -> list[str]:
    return [str(handle.refresh().state) for handle in handles]


def discarded(type: str = "mail.send", **options: Any) -> JobHandle:
    """A dead letter."""
    handle = enqueue(type, retry={"max_attempts": 1}, priority=100, **options)  # claimed before all others
    (row,) = fetch(Fetch([handle.queue], types=[type]))
    fail_one(Failure(row["id"], {"type": "SMTPError", "message": "no\nroute"}, "", row["attempt"]))
    return handle.refresh()


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """What the operator says, and what was asked."""

    def give(text: str) -> list[str]:
        asked: list[str] = []

        def reply(question: str) -> str:
            asked.append(question)
            return text

        monkeypatch.setattr("builtins.input", reply)
        return asked

    return give


# ojs_jobs


def test_jobs_are_listed_newest_first_as_a_table_or_as_envelopes() -> None:
    first, second = enqueue("mail.send", "a"), discarded()
    heading, *lines = run("ojs_jobs", "list").splitlines()
    assert heading.split() == ["ID", "TYPE", "QUEUE", "STATE", "ATTEMPT", "ENQUEUED", "ERROR"]
    assert [line.split()[:5] for line in lines] == [
        [str(second.id), "mail.send", "default", "discarded", "1/1"],
        [str(first.id), "mail.send", "default", "available", "0/3"],
    ]
    assert lines[0].endswith("SMTPError: no route")
    assert [job["id"] for job in json.loads(run("ojs_jobs", "list", "--json", "--limit", "1"))] == [str(second.id)]
    assert run("ojs_jobs", "list", "--limit", "1").splitlines() == [
        "The newest 1; --limit shows more.",
        heading,
        lines[0],
    ]


def test_filters_narrow_the_list(frozen_clock: FrozenClock) -> None:
    old = enqueue("mail.send")
    frozen_clock.advance(hours=3)
    new, report = enqueue("mail.receipt", queue="mail"), enqueue("report.make")

    def ids(*arguments: str) -> set[str]:
        return {job["id"] for job in json.loads(run("ojs_jobs", "list", "--json", *arguments))}

    assert ids("--type", "mail.*") == {str(old.id), str(new.id)}
    assert ids("--type", "report.make") == {str(report.id)}
    assert ids("--queue", "mail") == {str(new.id)}
    assert ids("--state", "completed,active") == set()
    assert ids("--before", "2h") == {str(old.id)}
    assert ids("--after", "2026-01-15T14:00:00Z") == {str(new.id), str(report.id)}
    assert run("ojs_jobs", "list", "--queue", "nowhere") == "There are no such jobs."


def test_jobs_are_chosen_by_their_worker_and_their_workflow() -> None:
    step = {"type": "mail.send", "args": []}
    workflow.create({"type": "chain", "steps": [step, step]})
    flow = Workflow.objects.get()
    alone = enqueue("mail.send")
    fetch(Fetch(["default"], count=1, worker_id="w-1"))

    def ids(*arguments: str) -> set[str]:
        return {job["id"] for job in json.loads(run("ojs_jobs", "list", "--json", *arguments))}

    (member,) = Job.objects.filter(workflow_id=flow.id).values_list("pk", flat=True)
    assert ids("--workflow", str(flow.id)) == ids("--worker", "w-1") == {str(member)}
    assert ids("--worker", "w-2") == set()
    assert run("ojs_jobs", "cancel", "--worker", "w-1", "--state", "active", "--yes") == "1 job cancelled."
    assert states(alone) == ["available"]


def test_jobs_are_found_by_their_error_as_in_the_admin() -> None:
    dead = discarded()
    waiting = enqueue("mail.send")
    (row,) = fetch(Fetch(["default"]))
    fail_one(Failure(row["id"], {"type": "SMTPError", "message": "no\nroute"}, "", row["attempt"]))
    for command in ("ojs_jobs", "ojs_dead_letter"):
        found = {job["id"] for job in json.loads(run(command, "list", "--json", "--error", "SMTPErr"))}
        assert found == {str(dead.id)} | ({str(waiting.id)} if command == "ojs_jobs" else set())
        assert json.loads(run(command, "list", "--json", "--error", "Timeout")) == []
    assert run("ojs_dead_letter", "retry", "--error", "no\nroute", "--yes") == "1 job retried."
    assert states(dead, waiting) == ["available", "retryable"]
    assert run("ojs_jobs", "retry", "--error", "SMTPError", "--yes") == "1 job retried."  # the first has none any more


@pytest.mark.parametrize(
    "arguments,part",
    [
        (("list", "--state", "broken"), "is not made of"),
        (("list", "--before", "tomorrow"), r"neither so long ago \(2h\) nor an instant"),
        (("list", "--limit", "0"), "not a number above zero"),
        (("cancel", "5"), "is no id such as"),
        (("cancel",), "Say which jobs"),
        (("cancel", "--all", "--queue", "mail"), "Say which jobs"),
        (("show", "5"), "Job '5' not found"),
    ],
)
def test_a_mistake_in_the_arguments_changes_nothing(arguments: tuple[str, ...], part: str) -> None:
    handle = enqueue("mail.send")
    with pytest.raises(CommandError, match=part):
        run("ojs_jobs", *arguments)
    assert states(handle) == ["available"]


def test_one_job_is_shown_as_the_wire_has_it() -> None:
    handle = enqueue("mail.send", "a", {"b": [1]})
    assert json.loads(run("ojs_jobs", "show", str(handle.id))) == handle.envelope


def test_cancelling_by_filter_asks_with_the_number_and_obeys(answer: Callable[[str], list[str]]) -> None:
    mail, other = [enqueue("mail.send", queue="mail", delay="1h"), enqueue("mail.send", queue="mail")], enqueue("x.y")
    asked = answer("n")
    with pytest.raises(CommandError, match="Nothing was changed"):
        run("ojs_jobs", "cancel", "--queue", "mail")
    assert asked == ["Cancel 2 jobs? [y/N] "]
    assert states(*mail, other) == ["scheduled", "available", "available"]
    answer("yes")
    assert run("ojs_jobs", "cancel", "--queue", "mail") == "2 jobs cancelled."
    assert states(*mail, other) == ["cancelled", "cancelled", "available"]
    assert {e.data["cancelled_by"] for e in Event.objects.filter(type="job.cancelled")} == {audit.by_command()}


def test_nobody_to_answer_is_a_no(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = enqueue("mail.send")

    def gone(question: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", gone)
    with pytest.raises(CommandError, match="say --yes"):
        run("ojs_jobs", "cancel", "--all")
    assert states(handle) == ["available"]


def test_running_jobs_are_cancelled_only_when_they_are_named() -> None:
    handle = enqueue("mail.send")
    fetch(Fetch(["default"]))
    assert run("ojs_jobs", "cancel", "--all", "--yes") == "0 jobs cancelled."
    assert run("ojs_jobs", "cancel", "--state", "active", "--yes") == "1 job cancelled."
    assert states(handle) == ["cancelled"]


def test_a_dry_run_counts_and_changes_nothing() -> None:
    handles = [enqueue("mail.send") for _ in range(3)]
    assert run("ojs_jobs", "cancel", "--type", "mail.send", "--dry-run") == "3 jobs would be cancelled."
    assert states(*handles) == ["available"] * 3


def test_a_dry_run_of_named_jobs_counts_those_that_would_be_done_and_tells_the_others() -> None:
    dead, waits, unknown = discarded(), enqueue("mail.send"), "01990000-0000-7000-8000-000000000000"
    assert run("ojs_jobs", "cancel", str(waits.id), "--dry-run") == "1 job would be cancelled."
    assert partly("ojs_jobs", "cancel", unknown, "--dry-run").splitlines() == [
        "0 jobs would be cancelled.", f"Job '{unknown}' not found.",
    ]  # fmt: skip
    for verb, done, left in (("retry", "retried", waits), ("purge", "deleted", waits), ("cancel", "cancelled", dead)):
        named = (str(dead.id), str(waits.id), unknown)
        counted, *told = partly("ojs_jobs", verb, *named, "--dry-run").splitlines()
        assert counted == f"1 job would be {done}."
        assert len(told) == 2
        assert str(left.id) in told[0]
        assert unknown in told[1]
    assert run("ojs_dead_letter", "delete", str(dead.id), "--dry-run") == "1 job would be deleted."
    assert str(waits.id) in partly("ojs_dead_letter", "delete", str(waits.id), "--dry-run")
    assert states(dead, waits) == ["discarded", "available"]
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize("more", [("--dry-run",), ("--yes",), ("--background", "--yes"), ("--background", "--dry-run")])
@pytest.mark.parametrize(
    "verb,state",
    [("purge", "available"), ("retry", "available"), ("run", "pending"), ("cancel", "completed")],
)
def test_a_state_that_the_verb_cannot_take_is_a_mistake(verb: str, state: str, more: tuple[str, ...]) -> None:
    handle, dead = enqueue("mail.send"), discarded()
    with pytest.raises(CommandError, match=f"^--state {state}: only jobs that are "):
        run("ojs_jobs", verb, "--state", f"discarded,{state}" if verb == "retry" else state, *more)
    assert states(handle, dead) == ["available", "discarded"]
    assert not AuditEntry.objects.exists()


def test_each_refusal_says_which_job_it_is_of() -> None:
    letters = [discarded() for _ in range(2)]
    told = partly("ojs_dead_letter", "retry", "--all", "--set", "priority=1000", "--yes").splitlines()
    assert [line.partition(": ")[0] for line in told[1:3]] == sorted(str(letter.id) for letter in letters)
    unknown = "01990000-0000-7000-8000-000000000000"
    assert partly("ojs_jobs", "run", unknown, "--yes").count(unknown) == 1


def test_what_is_refused_is_told_and_the_rest_is_done() -> None:
    dead, fresh = discarded(), enqueue("mail.send")
    unknown = "01990000-0000-7000-8000-000000000000"
    told = partly("ojs_jobs", "retry", str(dead.id), str(fresh.id), unknown, "--yes")
    assert told.splitlines()[0] == "1 job retried."
    assert told.splitlines()[-1] == "2 jobs were left as they are."
    assert unknown in told
    assert states(dead, fresh) == ["available", "available"]


def test_retry_takes_what_waits_for_its_next_attempt_too(frozen_clock: FrozenClock) -> None:
    waiting, dead = enqueue("mail.send"), discarded("other.type")
    (row,) = fetch(Fetch(["default"]))
    fail_one(Failure(row["id"], {"message": "x"}, "", row["attempt"]))
    assert states(waiting, dead) == ["retryable", "discarded"]
    assert run("ojs_jobs", "retry", "--all", "--yes") == "2 jobs retried."
    assert states(waiting, dead) == ["available", "available"]


def test_purge_deletes_what_has_ended_and_nothing_else() -> None:
    dead, cancelled, alive = discarded(), enqueue("a.b").cancel(), enqueue("c.d")
    assert run("ojs_jobs", "purge", "--state", "cancelled", "--yes") == "1 job deleted."
    assert run("ojs_jobs", "purge", "--all", "--yes") == "1 job deleted."
    assert set(Job.objects.values_list("pk", flat=True)) == {alive.id}
    assert "1 job was left as it is." in partly("ojs_jobs", "purge", str(alive.id), "--yes")
    assert not Job.objects.filter(pk__in=[dead.id, cancelled.id]).exists()


def test_many_jobs_go_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BATCH", 2)
    for _ in range(5):
        enqueue("mail.send")
    assert run("ojs_jobs", "cancel", "--all", "--yes") == "5 jobs cancelled."
    assert [event.data["total"] for event in Event.objects.filter(type="bulk.cancel.completed")] == [2, 2, 1]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_run_shows_on_a_terminal_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BATCH", 2)
    for _ in range(5):
        enqueue("mail.send")
    terminal, log = Terminal(), io.StringIO()
    call_command("ojs_jobs", "cancel", "--all", "--yes", stdout=log, stderr=terminal)
    *shown, cleared = terminal.getvalue().split("\r")[1:]
    assert shown == [
        "[############..................] 2 of 5", "[########################......] 4 of 5",
        "[##############################] 5 of 5",
    ]  # fmt: skip
    assert cleared == "\x1b[K"
    assert log.getvalue() == "5 jobs cancelled.\n"


def test_no_progress_goes_into_a_log_or_beside_a_short_run(monkeypatch: pytest.MonkeyPatch) -> None:
    enqueue("mail.send")
    terminal = Terminal()
    call_command("ojs_jobs", "cancel", "--all", "--yes", stdout=io.StringIO(), stderr=terminal)
    assert terminal.getvalue() == ""
    monkeypatch.setattr(bulk, "BATCH", 1)
    enqueue("mail.send"), enqueue("mail.send")
    assert run("ojs_jobs", "cancel", "--all", "--yes") == "2 jobs cancelled."


def test_an_interrupted_run_tells_what_it_has_done(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = [enqueue("mail.send") for _ in range(3)]
    monkeypatch.setattr(bulk, "BATCH", 2)
    run_batch = bulk.run_batch

    def until_the_second(verb: Any, ids: Any, *how: Any, **options: Any) -> Any:
        if len(ids) < 2:
            raise KeyboardInterrupt
        return run_batch(verb, ids, *how, **options)

    monkeypatch.setattr(bulk, "run_batch", until_the_second)
    told = partly("ojs_jobs", "cancel", "--all", "--yes")
    assert told.splitlines() == ["2 jobs cancelled.", "Interrupted before the last 1."]
    assert states(*handles) == ["cancelled", "cancelled", "available"]


def test_ctrl_c_at_the_question_is_a_no(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = enqueue("mail.send")

    def interrupt(question: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupt)
    with pytest.raises(CommandError, match="Nothing was changed"):
        run("ojs_jobs", "cancel", "--all")
    assert states(handle) == ["available"]


# ojs_dead_letter


def test_dead_letters_are_listed_retried_and_deleted() -> None:
    first, second, kept = discarded(), discarded("report.make"), discarded("other.type", queue="mail")
    outside = enqueue("mail.send", retry={"max_attempts": 1, "on_exhaustion": "discard"})
    (row,) = fetch(Fetch(["default"]))
    fail_one(Failure(row["id"], {"message": "x"}, "", row["attempt"]))
    heading, *lines = run("ojs_dead_letter", "list").splitlines()
    assert heading.split() == ["ID", "TYPE", "QUEUE", "ATTEMPTS", "DISCARDED", "ERROR"]
    assert [line.split()[0] for line in lines] == [str(kept.id), str(second.id), str(first.id)]
    assert len(json.loads(run("ojs_dead_letter", "list", "--json", "--type", "report.*"))) == 1
    assert run("ojs_dead_letter", "retry", "--type", "mail.*", "--yes") == "1 job retried."
    assert run("ojs_dead_letter", "delete", "--queue", "default", "--dry-run") == "1 job would be deleted."
    assert run("ojs_dead_letter", "delete", "--queue", "default", "--yes") == "1 job deleted."
    assert states(first, kept, outside) == ["available", "discarded", "discarded"]
    assert not Job.objects.filter(pk=second.id).exists()
    assert "left as it is" in partly("ojs_dead_letter", "retry", str(outside.id), "--yes")
    assert run("ojs_dead_letter", "list", "--queue", "empty") == "There are no such dead letters."


def test_dead_letters_are_retried_with_changes() -> None:
    dead, other = discarded(), discarded("report.make")
    done = run("ojs_dead_letter", "retry", str(dead.id), "--set", 'queue="later"', "--set", 'args=["b"]', "--yes")
    assert done == "1 job retried."
    job = Job.objects.get(pk=dead.id)
    assert (job.queue, job.args, job.state) == ("later", ["b"], "available")
    assert AuditEntry.objects.get(action="job.retry").detail["override"] == ["args", "queue"]
    assert "args" in partly("ojs_dead_letter", "retry", str(other.id), "--set", "args=5", "--yes")
    with pytest.raises(CommandError, match="may hold"):
        run("ojs_dead_letter", "retry", str(other.id), "--set", 'state="x"', "--yes")
    with pytest.raises(CommandError, match="is not JSON"):
        run("ojs_dead_letter", "retry", str(other.id), "--set", "queue=later", "--yes")
    assert states(other) == ["discarded"]


def test_jobs_that_wait_for_time_are_run_now() -> None:
    later, waiting = enqueue("mail.send", delay=3600), enqueue("mail.send")
    assert run("ojs_jobs", "run", "--all", "--yes") == "1 job made available."
    assert states(later, waiting) == ["available", "available"]
    assert AuditEntry.objects.get().action == "job.run"
    assert "1 job was left as it is" in partly("ojs_jobs", "run", str(waiting.id), "--yes")


def test_deleting_dead_letters_asks(answer: Callable[[str], list[str]]) -> None:
    dead = discarded()
    asked = answer("")
    with pytest.raises(CommandError):
        run("ojs_dead_letter", "delete", str(dead.id))
    assert asked == ["Delete 1 job? [y/N] "]
    assert states(dead) == ["discarded"]


# ojs_queues


def test_queues_are_listed_with_their_jobs(transactional_db: None) -> None:
    assert run("ojs_queues", "list") == "There are no queues: they appear with their first job."
    enqueue("a.b"), enqueue("a.b"), enqueue("a.b", queue="mail", delay="1h"), discarded("c.d", queue="mail")
    heading, *lines = run("ojs_queues", "list").splitlines()
    assert heading.split() == ["NAME", "STATUS", "AVAILABLE", "ACTIVE", "SCHEDULED", "RETRYABLE", "PENDING", "DEAD"]
    assert [line.split() for line in lines] == [
        ["default", "active", "2", "0", "0", "0", "0", "0"],
        ["mail", "active", "0", "0", "1", "0", "0", "1"],
    ]
    assert {queue["name"]: queue["discarded"] for queue in json.loads(run("ojs_queues", "list", "--json"))} == {
        "default": 0, "mail": 1,
    }  # fmt: skip


def test_pausing_stops_delivery_and_resuming_starts_it(transactional_db: None) -> None:
    enqueue("a.b")
    assert run("ojs_queues", "pause", "default") == "default: paused"
    assert fetch(Fetch(["default"])) == []
    assert Event.objects.get(type="queue.paused").data == {"paused_by": audit.by_command()}
    assert run("ojs_queues", "resume", "default") == "default: active"
    assert len(fetch(Fetch(["default"]))) == 1
    run("ojs_queues", "pause", "default", "--reason", "a new server")
    assert Event.objects.filter(type="queue.paused").latest("id").data["reason"] == "a new server"
    assert AuditEntry.objects.latest("id").detail == {"reason": "a new server"}


def test_a_mistyped_queue_is_not_made(transactional_db: None) -> None:
    enqueue("a.b")
    for arguments in (("pause", "default", "defautl"), ("config", "defautl"), ("config", "defautl", "--set", "x=1")):
        with pytest.raises(CommandError, match="no queue 'defautl'"):
            run("ojs_queues", *arguments)
    assert list(Queue.objects.values_list("name", "paused")) == [("default", False)]


def test_a_queue_is_configured_and_shown(transactional_db: None) -> None:
    enqueue("a.b")
    assert json.loads(run("ojs_queues", "config", "default")) == {}
    run("ojs_queues", "config", "_default", "--set", "default_timeout=60")
    changed = run(
        "ojs_queues", "config", "default", "--set", "concurrency=5", "--set", 'default_retry={"max_attempts":7}'
    )
    assert json.loads(changed) == {"default_timeout": 60, "concurrency": 5, "default_retry": {"max_attempts": 7}}
    taken_back = run("ojs_queues", "config", "default", "--set", "concurrency=null")
    assert "concurrency" not in json.loads(taken_back)
    with pytest.raises(CommandError, match=r"no setting 'concurency'. There are .*concurrency"):
        run("ojs_queues", "config", "default", "--set", "concurency=5")
    for wrong in ("concurrency=-1", "concurrency=many", "concurrency", "=5"):
        with pytest.raises(CommandError, match=r"concurrency|KEY=JSON"):
            run("ojs_queues", "config", "default", "--set", wrong)


# ojs_status


def test_the_status_has_queues_workers_and_what_needs_attention(transactional_db: None) -> None:
    quiet = json.loads(run("ojs_status", "--json", "--check"))
    assert (quiet["queues"], quiet["workers"], quiet["attention"]) == ([], [], [])
    enqueue("mail.send"), enqueue("mail.send", queue="held")
    run("ojs_queues", "pause", "held")
    told = partly("ojs_status", "--check")
    assert "! No worker runs, and jobs wait: 2." in told
    assert "! The queue held is paused. Jobs that wait in it: 1." in told
    assert "! No process leads the scheduler" in told
    register("w-1", {"hostname": "h", "pid": 7, "queues": ["default"], "concurrency": 4, "job_types": ["other.type"]})
    facts = json.loads(partly("ojs_status", "--json", "--check"))
    assert facts["jobs"]["available"] == 2
    assert facts["workers"] == [{"id": "w-1", "state": "running", "active_jobs": 0, "concurrency": 4}]
    assert facts["attention"] == [finding["says"] for finding in facts["findings"]]
    kinds = {finding["id"]: finding["about"] for finding in facts["findings"]}
    assert kinds == {
        "scheduler-missing": "", "queue-unserved": "held", "type-unserved": "mail.send", "queue-paused": "held",
    }  # fmt: skip
    assert "2 available" in run("ojs_status")


def test_a_slip_in_the_name_of_a_queue_is_attention_and_so_are_too_many_or_too_old_jobs(transactional_db: None) -> None:
    clock.freeze(clock.now())
    register("w-1", {"queues": ["payments", "warehous"], "concurrency": 4})
    clock.advance(seconds=5)
    for queue in ("payments", "warehouse", "warehouse"):
        enqueue("mail.send", queue=queue)
    clock.advance(seconds=5)
    register("w-1", {"queues": ["payments", "warehous"], "concurrency": 4})
    lease = Leadership(ROLE, "the-leader", "default")
    assert lease.run_once()
    facts = json.loads(partly("ojs_status", "--json", "--check"))
    assert facts["unserved_queues"] == {"warehouse": 2}
    assert facts["attention"] == ["No worker serves the queue warehouse, and jobs wait in it: 2."]
    register("w-1", {"queues": ["payments", "warehouse"], "concurrency": 4})
    within = json.loads(run("ojs_status", "--json", "--check", "--max-backlog", "2", "--max-age", "1m"))
    assert within["attention"] == []
    clock.advance(seconds=56)
    assert lease.run_once()
    order.catch_up("default")  # the scheduler does, or its events would need attention, too
    register("w-1", {"queues": ["payments", "warehouse"], "concurrency": 4})
    beyond = json.loads(partly("ojs_status", "--json", "--check", "--max-backlog", "1", "--max-age", "1m"))["findings"]
    assert {(one["id"], one["about"]) for one in beyond} == {
        ("backlog-large", "warehouse"), ("wait-long", "payments"), ("wait-long", "warehouse"),
    }  # fmt: skip


def test_a_silent_worker_is_told(transactional_db: None) -> None:
    register("w-1", {"hostname": "h", "queues": ["default"]})
    fetch(Fetch(["default"], worker_id="by-hand"))
    clock.freeze(clock.now() + dt.timedelta(hours=1))
    told = run("ojs_status")
    assert "! The worker w-1 (process ? on h) has sent no heartbeat for 3,600 s." in told
    assert "by-hand" in told
    assert "The worker by-hand" not in told  # it fetched once and never promised to stay


def test_watching_shows_it_again_until_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        enqueue("mail.send")
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(ojs_status.time, "sleep", pause)
    lines = run("ojs_status", "--watch", "5", "--json").splitlines()
    assert [json.loads(line)["jobs"]["available"] for line in lines] == [0, 1, 2]
    assert pauses == [5, 5, 5]


def test_watching_outlives_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([OperationalError("no route to host\n"), ojs_status.status()])

    def look(limits: Any) -> dict[str, Any]:
        facts = next(looks, None)
        if isinstance(facts, dict):
            return facts
        raise facts or KeyboardInterrupt

    monkeypatch.setattr(ojs_status, "status", look)
    monkeypatch.setattr(ojs_status.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(ojs_status, "connections", {"default": SimpleNamespace(close=lambda: None)})
    first, second = run("ojs_status", "--watch", "--json").splitlines()
    assert first.startswith("Looking failed (no route to host); the next try is in ")
    assert json.loads(second)["queues"] == []


def test_on_a_terminal_each_page_takes_the_place_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ojs_status.time, "sleep", interrupt)
    terminal = Terminal()
    call_command("ojs_status", "--watch", stdout=terminal)
    assert terminal.getvalue().startswith("\x1b[H\x1b[2J2")
    assert "\x1b" not in run("ojs_status", "--watch")


@pytest.mark.wide
def test_a_reader_who_leaves_ends_a_list_without_a_word(child_environment: dict[str, str]) -> None:
    enqueue("mail.send")
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as nobody:
        done = subprocess.run(
            [sys.executable, "manage.py", "ojs_jobs", "list"], check=False, env=child_environment, cwd=site.BASE_DIR,
            stdout=nobody, stderr=subprocess.PIPE, timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.wide
def test_scripts_see_the_exit_codes(child_environment: dict[str, str]) -> None:
    handle = enqueue("mail.send")

    def code(*arguments: str) -> int:
        command = [sys.executable, "manage.py", *arguments]
        done = subprocess.run(
            command, check=False, env=child_environment, cwd=site.BASE_DIR, stdin=subprocess.DEVNULL, timeout=60
        )
        return done.returncode

    assert code("ojs_status", "--check") == 3
    assert code("ojs_jobs", "cancel", "--all") == 1
    assert code("ojs_jobs", "cancel", "--everything") == 2
    assert states(handle) == ["available"]
    assert code("ojs_jobs", "cancel", "--all", "--yes") == 0
    assert code("ojs_jobs", "retry", str(handle.id), "--yes") == 3
    assert get_job(handle.id).state == "cancelled"


# The audit log


def test_every_act_of_a_command_has_its_entry(transactional_db: None) -> None:
    dead, other, waits = discarded(), discarded("a.b"), enqueue("a.b")
    run("ojs_dead_letter", "retry", str(dead.id), "--yes")
    run("ojs_dead_letter", "delete", str(other.id), "--yes")
    run("ojs_jobs", "cancel", str(waits.id), str(dead.id), "--yes")
    run("ojs_jobs", "purge", "--all", "--yes")
    run("ojs_jobs", "retry", str(discarded().id), "--yes")
    run("ojs_queues", "pause", "default")
    run("ojs_queues", "resume", "default")
    run("ojs_queues", "config", "default", "--set", "concurrency=5")
    entries = list(AuditEntry.objects.order_by("id"))
    assert [entry.action for entry in entries] == [
        "job.retry", "job.delete", "job.cancel", "job.purge", "job.retry", "queue.pause", "queue.resume",
        "queue.configure",
    ]  # fmt: skip
    assert {(entry.door, entry.actor) for entry in entries} == {("command", audit.by_command())}
    assert [entries[0].target, entries[5].target] == [str(dead.id), "default"]
    assert entries[2].detail["targets"] == [str(waits.id), str(dead.id)]
    assert entries[7].detail == {"concurrency": 5}


def test_a_dry_run_and_a_refused_question_leave_none(answer: Callable[[str], list[str]]) -> None:
    enqueue("a.b")
    run("ojs_jobs", "cancel", "--all", "--dry-run")
    answer("n")
    with pytest.raises(CommandError):
        run("ojs_jobs", "cancel", "--all")
    assert not AuditEntry.objects.exists()


def test_a_batch_and_its_entry_are_there_together_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = enqueue("a.b")

    def broken(*args: Any) -> None:
        raise RuntimeError("disk full")

    monkeypatch.setattr(audit, "append", broken)
    with pytest.raises(RuntimeError):
        run("ojs_jobs", "cancel", "--all", "--yes")
    assert states(handle) == ["available"]


# The shell


@pytest.mark.wide
def test_what_a_terminal_cannot_show_leaves_json_json(child_environment: dict[str, str]) -> None:
    enqueue("mail.send", "Grüße 東京 🎉")
    done = subprocess.run(
        [sys.executable, "manage.py", "ojs_jobs", "list", "--json"], check=True, cwd=site.BASE_DIR, timeout=60,
        env=child_environment | {"PYTHONIOENCODING": "ascii"}, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert json.loads(done.stdout.decode("ascii"))[0]["args"] == ["Grüße 東京 🎉"]


#: Sets the title of a terminal, clears it (with one character of two), deletes, and turns the text around.
HOSTILE = "\x1b]0;owned\x07 \x9b2J \x7f \u202e"


@pytest.mark.parametrize("command", [
    "ojs_jobs list", "ojs_jobs list --json", "ojs_jobs show ID", "ojs_jobs attempts ID", "ojs_jobs attempts ID --json",
    "ojs_dead_letter list", "ojs_dead_letter list --json", "ojs_events", "ojs_events --json", "ojs_bulk show BULK",
    "ojs_bulk show BULK --json", "ojs_maintenance status", "ojs_maintenance status --json",
])  # fmt: skip
def test_what_a_job_says_steers_no_terminal(command: str) -> None:
    handle = enqueue("mail.send", [HOSTILE], retry={"max_attempts": 1})
    (row,) = fetch(Fetch(["default"]))
    fail_one(Failure(row["id"], {"type": "SMTPError", "message": HOSTILE}, "", row["attempt"]))
    acted = BulkAction.objects.create(
        verb="cancel", state=BulkAction.State.COMPLETED, actor=HOSTILE, created_at=clock.now(), expected=0,
        errors=[{"job_id": str(handle.id), "error": HOSTILE}], problem=HOSTILE,
    )  # fmt: skip
    maintenance.start(reason=HOSTILE, by="user:ann")
    shown = run(*command.replace("ID", str(handle.id)).replace("BULK", str(acted.pk)).split())
    assert ("\\u001b]0;owned" if "json" in command or "show ID" in command else "]0;owned") in shown
    assert not [line for line in shown.split("\n") if not line.isprintable()]


def test_no_color_is_obeyed_unless_colour_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def heading(**given: bool) -> str:
        return str(shell.ShellCommand(**given).style.ERROR("x"))

    monkeypatch.setenv("NO_COLOR", "1")
    assert heading() == "x"
    assert heading(force_color=True) != "x"
    monkeypatch.delenv("NO_COLOR")
    assert heading(no_color=True) == "x"


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[BaseException, str]]:
    """Runs a command that raises this as the shell does; how it ended, and what it said."""

    def call(error: BaseException, *arguments: str) -> tuple[BaseException, str]:
        def handle(*args: Any, **options: Any) -> None:
            raise error

        beside = io.TextIOWrapper(io.BytesIO())
        with monkeypatch.context() as patched:
            patched.setattr(ojs_status.Command, "handle", handle)
            patched.setattr(type(connections), "close_all", lambda self: None)  # else the test's transaction is gone
            patched.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
            patched.setattr(sys, "stderr", beside)
            with pytest.raises(BaseException) as ended:  # noqa: PT011 - which one is the question
                ojs_status.Command().run_from_argv(["manage.py", "ojs_status", *arguments])
        beside.seek(0)
        return ended.value, beside.read()

    return call


Broken = Callable[..., tuple[BaseException, str]]


def test_a_database_without_tables_is_one_line(broken: Broken) -> None:
    error = OperationalError("no such table: django_ojs_job")
    ended, said = broken(error)
    assert (type(ended), ended.args) == (SystemExit, (1,))
    assert said == "The database 'default' lacks tables of this site: run manage.py migrate.\n"
    assert broken(error, "--traceback")[0] is error


def test_a_database_that_is_away_is_one_line(broken: Broken) -> None:
    ended, said = broken(OperationalError("no route\n\tto host"))
    assert (ended.args, said) == ((1,), "The database does not answer: no route to host\n")


def test_an_error_that_is_ours_keeps_its_traceback_and_ctrl_c_exits_with_130(broken: Broken) -> None:
    ours = ProgrammingError("syntax")
    assert broken(ours)[0] is ours
    assert broken(KeyboardInterrupt())[0].args == (shell.INTERRUPTED,)
