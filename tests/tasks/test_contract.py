"""What Django promises of a backend that supports everything; the same on Django 5.2 with the backport, 6.0 and 6.1."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import json
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.utils import timezone

from django_ojs import enqueue, get_job, job, outbox, testing
from django_ojs.models import Event, Job
from django_ojs.registry import Registry, registry
from django_ojs.retention import prune
from django_ojs.tasks import OJSBackend, OJSTask, OJSTaskResult, TaskFailed
from django_ojs.tasks.results import task_error
from django_ojs.tasks.task import policy, variant
from tests.conftest import FrozenClock
from tests.middlewares import added
from tests.tasks.api import (
    LOGGER,
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    default_task_backend,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from tests.tasks.app import tasks
from tests.waiting import eventually
from tests.worker.conftest import WorkerThread

Drain = Callable[..., WorkerThread]
Signals = Callable[[], list[tuple[str, Any, Any]]]
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("handlers")]


def test_the_backend_says_that_it_supports_everything() -> None:
    backend = task_backends["default"]
    assert isinstance(backend, OJSBackend)
    assert backend.supports_defer is True
    assert backend.supports_async_task is True
    assert backend.supports_get_result is True
    assert backend.supports_priority is True
    assert isinstance(tasks.add, OJSTask)


# Enqueueing


def test_a_new_result_says_what_was_enqueued() -> None:
    before = timezone.now()
    result = tasks.add.enqueue(1, b=2)
    assert isinstance(result, OJSTaskResult)
    assert (result.status, result.state, result.is_finished, result.attempts) == ("READY", "available", False, 0)
    assert (result.args, result.kwargs, result.backend) == ([1], {"b": 2}, "default")
    assert before - dt.timedelta(seconds=1) <= result.enqueued_at <= timezone.now() + dt.timedelta(seconds=1)
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
    assert (result.errors, result.worker_ids) == ([], [])
    assert result.task.func is tasks.add.func
    assert len(result.id) < 64
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value


def test_what_was_enqueued_is_found_again_and_equal() -> None:
    for task in (tasks.add, tasks.add.using(run_after=timezone.now() + dt.timedelta(hours=1), priority=-3)):
        result = task.enqueue(1, b=2)
        assert default_task_backend.get_result(result.id) == result
        assert task.get_result(result.id) == result


async def test_asynchronous_code_does_all_of_it_too(transactional_db: None) -> None:
    result = await tasks.aadd.aenqueue(1, b=2)
    assert await tasks.aadd.aget_result(result.id) == result
    assert await default_task_backend.aget_result(result.id) == result
    await result.arefresh()
    assert result.status == TaskResultStatus.READY
    with pytest.raises(TaskResultDoesNotExist):
        await default_task_backend.aget_result("nothing")
    with pytest.raises(TaskResultMismatch):
        await tasks.add.aget_result(result.id)
    await sync_to_async(connections.close_all)()


def test_a_task_is_an_ordinary_job() -> None:
    result = tasks.with_defaults.enqueue()
    handle = get_job(result.id)
    assert (handle.type, handle.queue, handle.row["priority"]) == ("tests.tasks.app.tasks.with_defaults", "mail", 7)
    assert (handle.args, handle.meta, handle.row["max_attempts"]) == ([], {}, 1)
    assert result.job == handle
    assert Event.objects.get(job_id=handle.id).type == "job.enqueued"


def test_options_of_one_call_reach_the_job() -> None:
    result = tasks.add.using(priority=-100, queue_name="queue-1").enqueue(1)
    row = get_job(result.id).row
    assert (row["priority"], row["queue"]) == (-100, "queue-1")
    assert (result.task.priority, result.task.queue_name) == (-100, "queue-1")


@pytest.mark.parametrize("priority", [-101, 101, 1.5])
def test_a_priority_that_cannot_be_is_refused(priority: Any) -> None:
    with pytest.raises(InvalidTask, match="whole number between -100 and 100"):
        tasks.add.using(priority=priority)


def test_a_queue_outside_the_setting_is_refused() -> None:
    with pytest.raises(InvalidTask, match="'elsewhere' is not valid"):
        tasks.add.using(queue_name="elsewhere")


def test_a_queue_that_ojs_does_not_allow_is_refused_with_the_rule(settings: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": "django_ojs.tasks.OJSBackend", "QUEUES": []}}
    with pytest.raises(InvalidTask, match=r"'high_priority'.*hyphens"):
        tasks.add.using(queue_name="high_priority")


def test_run_after_is_kept_and_waited_for(frozen_clock: FrozenClock, drain: Drain) -> None:
    at = frozen_clock.now + dt.timedelta(hours=1)
    result = tasks.add.using(run_after=at).enqueue(1)
    assert (result.state, result.status, result.task.run_after) == ("scheduled", "READY", at)
    drain()
    result.refresh()
    assert result.state == "scheduled"
    frozen_clock.advance(hours=1)
    drain()
    result.refresh()
    assert (result.status, result.return_value) == ("SUCCESSFUL", 1)


def test_a_timedelta_counts_from_enqueue(frozen_clock: FrozenClock) -> None:
    later = tasks.add.using(run_after=dt.timedelta(minutes=5))
    frozen_clock.advance(minutes=30)
    assert later.enqueue(1).task.run_after == frozen_clock.now + dt.timedelta(minutes=5)


def test_a_run_after_in_the_past_runs_at_once() -> None:
    assert tasks.add.using(run_after=timezone.now() - dt.timedelta(days=1)).enqueue(1).state == "available"
    assert tasks.add.using(run_after=dt.timedelta(seconds=-5)).enqueue(1).state == "available"


def test_a_naive_run_after_is_refused() -> None:
    with pytest.raises(InvalidTask, match="aware"):
        tasks.add.using(run_after=dt.datetime(2030, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize("value", [object(), {1, 2}, dt.date(2026, 1, 1), b"\xff", float("nan")])
def test_arguments_without_json_are_refused_and_nothing_is_stored(value: Any) -> None:
    for call in (lambda: tasks.echo.enqueue(value), lambda: tasks.echo.enqueue(key=[value])):
        with pytest.raises((TypeError, ValueError)):
            call()
    assert not Job.objects.exists()


def test_what_json_does_not_know_is_told_with_its_place_and_the_fix() -> None:
    with pytest.raises(TypeError, match=r"^Unsupported type: args\[0\] is a set, which is not JSON: pass sorted"):
        tasks.echo.enqueue({1})
    with pytest.raises(TypeError, match=r'"key"\]\["on"\] is a datetime\.date, which is not JSON: pass \.isoformat'):
        tasks.echo.enqueue(key={"on": dt.date(2026, 1, 1)})
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(TypeError, match="nests deeper than 200 levels, or contains itself"):
        tasks.echo.enqueue(circle)
    with pytest.raises(ValueError, match=r"it has more than 4,300 digits\.$"):
        tasks.echo.enqueue(10**5000)
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "option, odd",
    [
        ("priority", "high"), ("priority", None.__class__), ("priority", float("nan")),
        ("queue_name", 5), ("queue_name", ["mail"]), ("run_after", "tomorrow"), ("run_after", dt.date(2030, 1, 1)),
        ("backend", 5), ("max_attempts", "5"),
    ],
    ids=str,
)  # fmt: skip
def test_an_option_of_another_kind_is_refused_by_its_name(option: str, odd: Any) -> None:
    with pytest.raises(InvalidTask, match=f"{option}="):
        tasks.add.using(**{option: odd})


@pytest.mark.parametrize("odd", [None, 5, "max_attempts=5", ["max_attempts"]])
def test_options_that_are_no_dict_are_told(settings: Any, odd: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": "django_ojs.tasks.OJSBackend", "QUEUES": [], "OPTIONS": odd}}
    (found,) = task_backends["default"].check()
    assert (found.id, "and no dict" in found.msg) == ("django_ojs.E202", True)
    with pytest.raises(InvalidTask, match="and no dict"):
        tasks.add.enqueue(1)


def test_a_task_that_is_enqueued_in_a_transaction_shares_its_fate(
    transactional_db: None, seen: list[Any], drain: Drain
) -> None:
    with transaction.atomic():
        gone = tasks.add.enqueue(1)
        transaction.set_rollback(True)
    with transaction.atomic():
        kept = tasks.add.enqueue(2)
        assert default_task_backend.get_result(kept.id) == kept
    drain()
    assert seen == [(2, 0)]
    with pytest.raises(TaskResultDoesNotExist):
        gone.refresh()


def test_on_commit_enqueues_after_the_commit(transactional_db: None) -> None:
    with transaction.atomic():
        transaction.on_commit(lambda: tasks.add.enqueue(1))
        assert not Job.objects.exists()
    assert Job.objects.count() == 1


def test_results_and_tasks_can_be_copied_and_pickled() -> None:
    result = tasks.add.enqueue(1)
    assert copy.deepcopy(result) == result
    assert dataclasses.replace(tasks.add, priority=5).priority == 5
    assert hash(tasks.add) == hash(tasks.add.using(priority=0))
    state = pickle.loads(pickle.dumps(result.errors))
    assert state == []


# Running


def test_a_task_runs_in_a_worker(drain: Drain, seen: list[Any]) -> None:
    result = tasks.add.enqueue(1, b=2)
    worker = drain().worker
    result.refresh()
    assert (result.status, result.state, result.return_value, result.is_finished) == (
        "SUCCESSFUL",
        "completed",
        3,
        True,
    )
    assert (result.attempts, result.worker_ids, result.errors) == (1, [worker.id], [])
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
    assert seen == [(1, 2)]


def test_an_asynchronous_task_runs_too(drain: Drain) -> None:
    result, failing = tasks.aadd.enqueue(20, b=22), tasks.afail.enqueue()
    drain()
    result.refresh()
    failing.refresh()
    assert result.return_value == 42
    assert [error.exception_class for error in failing.errors] == [KeyError]


@pytest.mark.parametrize(
    "args,kwargs",
    [
        ((), {}),
        ((1, "two", None, [3.5, {"four": 4}]), {}),
        ((), {"key": "value"}),
        ((1,), {"key": [1, 2]}),
        (({"$kwargs": {"a": 1}},), {}),
        (({"$kwargs": {"a": 1}},), {"b": 2}),
        (({"$kwargs": 5},), {}),
    ],
)
def test_every_call_arrives_as_it_was_made(drain: Drain, args: Any, kwargs: Any) -> None:
    result = tasks.echo.enqueue(*args, **kwargs)
    assert (result.args, result.kwargs) == (list(args), kwargs)
    drain()
    result.refresh()
    assert result.return_value == [list(args), kwargs]
    assert (result.args, result.kwargs) == (list(args), kwargs)


@pytest.mark.parametrize(
    "kind,value",
    [
        ("tuple", [1, [2, 3]]),
        ("bytes", "text"),
        ("keys", {"1": {"2": 3}}),
        ("none", None),
        ("falsy", 0),
        ("coroutine", 3),
    ],
)
def test_what_json_has_almost_is_made_json(drain: Drain, kind: str, value: Any) -> None:
    result = tasks.give.enqueue(kind)
    drain()
    result.refresh()
    assert result.return_value == value


@pytest.mark.parametrize(
    "kind,error", [("object", TypeError), ("set", TypeError), ("nan", TypeError), ("raw bytes", ValueError)]
)
def test_a_result_without_json_fails_the_task(drain: Drain, kind: str, error: type[Exception]) -> None:
    result = tasks.give.enqueue(kind)
    drain()
    result.refresh()
    assert (result.status, result.errors[0].exception_class) == ("FAILED", error)


def test_a_task_sees_its_own_run_in_its_context(drain: Drain) -> None:
    result = tasks.look.enqueue(word="up")
    drain()
    result.refresh()
    assert result.return_value == {
        "word": "up", "attempt": 1, "status": "RUNNING", "workers": 1, "id": result.id,
        "job": "tests.tasks.app.tasks.look",
    }  # fmt: skip


def test_a_failure_is_final_and_keeps_class_and_traceback(drain: Drain) -> None:
    result = tasks.fail.enqueue(message="no such thing")
    drain()
    result.refresh()
    assert (result.status, result.state, result.attempts) == ("FAILED", "discarded", 1)
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value
    (error,) = result.errors
    assert (error.exception_class_path, error.exception_class) == ("builtins.ValueError", ValueError)
    lines = error.traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].startswith(f'  File "{tasks.__file__}", line ')
    assert lines[1].endswith(", in fail")
    assert lines[2] == "    raise ValueError(message)"
    assert lines[-1] == "ValueError: no such thing"


@pytest.mark.parametrize("name, args", [("fail_because", ["price"]), ("fail_without_frames", [])])
def test_a_traceback_reads_as_python_writes_it(
    drain: Drain, caplog: pytest.LogCaptureFixture, name: str, args: list[Any]
) -> None:
    result = getattr(tasks, name).enqueue(*args)
    drain()
    result.refresh()
    (record,) = [record for record in caplog.records if record.name == "django_ojs.jobs" and record.exc_info]
    assert result.errors[0].traceback == f"{record.exc_text}\n"
    assert "direct cause" in result.errors[0].traceback


def test_what_hides_backtraces_hides_source(drain: Drain, settings: Any) -> None:
    settings.OJS = {"STORE_BACKTRACES": False}
    result = tasks.fail_because.enqueue("price")
    drain()
    result.refresh()
    assert result.errors[0].traceback == "ValueError: no such thing\n"


def test_system_exit_in_a_task_is_a_failure_and_no_end_of_the_worker(drain: Drain) -> None:
    result, other = tasks.leave.enqueue(), tasks.add.enqueue(1)
    drain(concurrency=1)
    result.refresh()
    other.refresh()
    assert (result.status, other.status) == ("FAILED", "SUCCESSFUL")
    assert result.errors[0].exception_class is SystemExit


def test_a_wrong_call_fails_in_the_worker_as_with_any_backend(drain: Drain) -> None:
    result = tasks.add.enqueue(1, 2, 3)
    drain()
    result.refresh()
    assert (result.status, result.errors[0].exception_class) == ("FAILED", TypeError)


def test_a_failed_attempt_is_ready_again_until_the_last(
    frozen_clock: FrozenClock, drain: Drain, seen: list[Any]
) -> None:
    result = tasks.fail_first.enqueue(2)
    workers = [drain().worker.id]
    result.refresh()
    assert (result.status, result.state, result.attempts, result.is_finished) == ("READY", "retryable", 1, False)
    first = result.started_at
    for _ in range(2):
        frozen_clock.advance(seconds=1)
        workers.append(drain().worker.id)
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", "at last", 3)
    assert result.worker_ids == workers
    assert (result.started_at, result.last_attempted_at) == (first, frozen_clock.now)
    assert [error.traceback.splitlines()[-1].rpartition(": ")[2] for error in result.errors] == ["try 1", "try 2"]
    assert result.errors[0].exception_class is tasks.UnknownElsewhere


def test_an_asynchronous_task_knows_its_attempt(frozen_clock: FrozenClock, drain: Drain) -> None:
    result = tasks.afail_first.enqueue(1)
    drain()
    frozen_clock.advance(seconds=1)
    drain()
    result.refresh()
    assert (result.return_value, result.attempts, len(result.errors)) == (2, 2, 1)


def test_attempts_are_counted_though_their_events_are_gone(
    frozen_clock: FrozenClock, drain: Drain, seen: list[Any]
) -> None:
    result = tasks.fail_first.enqueue(2)
    for _ in range(3):
        last = drain().worker.id
        frozen_clock.advance(seconds=1)
    Event.objects.all().delete()
    result.refresh()
    assert (result.attempts, result.worker_ids) == (3, ["", "", last])


def test_an_exception_that_is_gone_keeps_its_name(
    drain: Drain, seen: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = tasks.fail_first.using(max_attempts=1).enqueue(1)
    drain()
    monkeypatch.delattr(tasks, "UnknownElsewhere")
    result.refresh()
    (error,) = result.errors
    assert error.exception_class_path == "tests.tasks.app.tasks.UnknownElsewhere"
    with pytest.raises(ImportError):
        _ = error.exception_class


def test_a_class_that_a_worker_names_is_not_imported() -> None:
    error = task_error({"type": "E", "message": "m", "details": {"error_class": "this.Zen"}})
    assert error.exception_class_path == "this.Zen"
    with pytest.raises(ImportError):
        _ = error.exception_class
    assert "this" not in sys.modules
    for named, refusal in (
        ("sys.exit", ValueError), ("tests.tasks.app.tasks.add", ValueError), ("django_ojs.nothing", ImportError),
    ):  # fmt: skip
        with pytest.raises(refusal):
            _ = task_error({"type": "E", "message": "m", "details": {"error_class": named}}).exception_class


def test_max_attempts_and_backoff_of_one_call(frozen_clock: FrozenClock, drain: Drain) -> None:
    quick = tasks.fail.using(max_attempts=2, backoff=dt.timedelta(seconds=5))
    result = quick.enqueue()
    drain()
    row = get_job(result.id).row
    assert (row["state"], row["max_attempts"]) == ("retryable", 2)
    assert 2_500 <= row["retry_delay_ms"] <= 7_500
    frozen_clock.advance(seconds=8)
    drain()
    result.refresh()
    assert (result.status, len(result.errors)) == ("FAILED", 2)


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0}, {"max_attempts": True}, {"max_attempts": "3"}, {"backoff": "5s"},
        {"max_attempts": 2, "backoff": "soon"}, {"max_attempts": 2, "backoff": {"max_attempts": 3}},
        {"max_attempts": 2, "backoff": {"backoff_coefficient": 0.5}},
    ],
)  # fmt: skip
def test_retries_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask):
        tasks.add.using(**options)


def test_a_fault_of_the_options_is_told_of_the_setting_and_not_of_the_task() -> None:
    with_backoff = variant(tasks.add, backoff="5s")
    with pytest.raises(InvalidTask, match=r"^TASKS\['default'\]: backoff='soon' must be a duration"):
        policy(tasks.add, {"backoff": "soon"})
    with pytest.raises(InvalidTask, match=r"^TASKS\['default'\]: backoff='soon' must be a duration"):
        policy(tasks.add.using(max_attempts=2), {"backoff": "soon"})
    with pytest.raises(InvalidTask, match=r"^TASKS\['default'\]: max_attempts=0"):
        policy(with_backoff, {"max_attempts": 0})
    with pytest.raises(InvalidTask, match=r"\.add: backoff='soon' must be a duration"):
        tasks.add.using(max_attempts=2, backoff="soon")


def test_a_directive_of_ours_works_in_a_task(drain: Drain) -> None:
    result = tasks.retry_later.using(max_attempts=2).enqueue()
    drain()
    result.refresh()
    assert (result.status, get_job(result.id).row["retry_delay_ms"]) == ("READY", 3_600_000)


def test_a_cancelled_task_has_failed_without_an_attempt() -> None:
    result = tasks.add.enqueue(1)
    result.job.cancel()
    result.refresh()
    assert (result.status, result.state, result.attempts, result.errors) == ("FAILED", "cancelled", 0, [])


def test_a_dead_letter_that_is_retried_is_ready_again(drain: Drain) -> None:
    result = tasks.fail.enqueue()
    drain()
    result.job.retry()
    result.refresh()
    assert (result.status, result.attempts) == ("READY", 0)
    drain()
    result.refresh()
    assert (result.status, result.attempts, len(result.worker_ids)) == ("FAILED", 1, 1)


def test_what_a_task_writes_is_there(drain: Drain) -> None:
    tasks.write.enqueue("by a task")
    drain()
    assert Group.objects.filter(name="by a task").exists()


# Results


@pytest.mark.parametrize("result_id", ["", "nothing", "01890a5d-ac96-774b-bcce-b302099a8057", "x" * 64, 5, None])
def test_an_unknown_id_is_said_to_be_one(result_id: Any) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(result_id)


def test_a_result_is_found_in_the_outbox(settings: Any) -> None:
    settings.OJS = {"OUTBOX": "default"}
    result = tasks.add.enqueue(1, 2)
    result.refresh()
    assert (result.status, tasks.add.get_result(result.id)) == (TaskResultStatus.READY, result)
    assert outbox.relay() == 1
    assert tasks.add.get_result(result.id).id == result.id


def test_a_job_that_is_no_task_has_no_task_result(handlers: Registry) -> None:
    @job("plain.job")
    def plain() -> None: ...

    for handle in (plain.enqueue(), enqueue("nobody.knows")):
        with pytest.raises(TaskResultDoesNotExist, match="no task here"):
            default_task_backend.get_result(str(handle.id))


def test_the_result_of_another_task_is_a_mismatch() -> None:
    result = tasks.add.enqueue(1)
    with pytest.raises(TaskResultMismatch):
        tasks.echo.get_result(result.id)


def test_a_pruned_task_has_no_result_any_more(frozen_clock: FrozenClock, drain: Drain) -> None:
    result = tasks.add.enqueue(1)
    drain()
    frozen_clock.advance(days=8)
    prune()
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_the_alias_that_enqueued_is_remembered(drain: Drain, signals: Signals) -> None:
    result = tasks.add.using(backend="patient").enqueue(1)
    assert (result.backend, result.task.backend) == ("patient", "patient")
    assert default_task_backend.get_result(result.id) == result
    assert get_job(result.id).row["max_attempts"] == 3
    drain()
    assert [found.backend for _, _, found in signals()] == ["patient"] * 3


def test_a_task_that_has_left_the_code_has_no_result(handlers: Registry) -> None:
    result = tasks.add.enqueue(1)
    with handlers.isolated(), pytest.raises(TaskResultDoesNotExist, match="no task here"):
        default_task_backend.get_result(result.id)


def test_the_settings_of_the_moment_decide_at_enqueue(settings: Any) -> None:
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["queue-1"]}}
    with pytest.raises(InvalidTask, match="'default' is not valid"):
        tasks.add.enqueue(1)
    with pytest.raises(ImproperlyConfigured, match="elsewhere"):
        tasks.add.using(backend="elsewhere")


async def test_a_task_can_still_be_called_here_and_now(transactional_db: None) -> None:
    assert (tasks.add.name, tasks.add.module_path) == ("add", "tests.tasks.app.tasks.add")
    assert await tasks.add.acall(1, b=2) == 3
    assert await tasks.aadd.acall(1, 2) == 3
    assert await Job.objects.acount() == 0
    await sync_to_async(connections.close_all)()


@pytest.mark.parametrize(
    "name,args,kwargs",
    [
        ("add", (1,), {"b": 2}),
        ("add", ("x",), {}),
        ("add", (1, 2, 3), {}),
        ("aadd", (1, 2), {}),
        ("echo", ((1, {2: b"3"}),), {"task": None, "args": [1], "kwargs": {"a": 1}}),
        ("give", ("tuple",), {}),
        ("give", ("object",), {}),
        ("give", ("no such kind",), {}),
        ("fail", (), {"message": "two\nlines"}),
        ("afail", (), {}),
        ("leave", (), {}),
    ],
)
def test_a_site_that_changes_its_backend_gets_the_same_results(drain: Drain, name: str, args: Any, kwargs: Any) -> None:
    """Against a backend of Django's own: nothing but ids, times and the frames of the machinery differs."""
    task = getattr(tasks, name)
    theirs = task.using(backend="immediate").enqueue(*args, **kwargs)
    ours = task.enqueue(*args, **kwargs)
    drain()
    ours.refresh()
    for attribute in ("status", "is_finished", "attempts", "_return_value", "kwargs"):
        wanted = json.loads(json.dumps(getattr(theirs, attribute)))  # one without a store keeps keys as they are
        assert getattr(ours, attribute) == wanted, attribute
    assert ours.args == json.loads(json.dumps(theirs.args))
    assert [error.exception_class for error in ours.errors] == [error.exception_class for error in theirs.errors]
    for mine, other in zip(ours.errors, theirs.errors, strict=True):
        assert mine.traceback.splitlines()[-1] == other.traceback.splitlines()[-1]


# Signals


def test_each_signal_is_sent_once_with_the_class_as_sender(drain: Drain, signals: Signals) -> None:
    result = tasks.add.enqueue(1)
    assert [(name, sender) for name, sender, _ in signals()] == [("task_enqueued", OJSBackend)]
    assert signals()[0][2] == result
    drain()
    assert [(name, sender) for name, sender, _ in signals()[1:]] == [
        ("task_started", OJSBackend),
        ("task_finished", OJSBackend),
    ]
    started, finished = (found for _, _, found in signals()[1:])
    assert (started.status, started.attempts) == ("RUNNING", 1)
    assert (finished.status, finished.return_value) == ("SUCCESSFUL", 1)
    assert finished == default_task_backend.get_result(result.id)


def test_attempts_that_are_not_the_last_do_not_finish(
    frozen_clock: FrozenClock, drain: Drain, signals: Signals, seen: list[Any]
) -> None:
    tasks.fail_first.enqueue(2)
    for _ in range(3):
        drain()
        frozen_clock.advance(seconds=1)
    names = [name for name, _, _ in signals()]
    assert names == ["task_enqueued", "task_started", "task_started", "task_started", "task_finished"]
    assert [found.attempts for _, _, found in signals()] == [0, 1, 2, 3, 3]


@pytest.mark.parametrize("mode", [testing.worker, lambda: testing.inline(raise_errors=False)], ids=["worker", "inline"])
@pytest.mark.usefixtures("seen")
def test_a_site_under_test_gets_them_too(signals: Signals, mode: Callable[[], Any]) -> None:
    with mode() as jobs:
        tasks.fail_first.using(max_attempts=2).enqueue(1)
        tasks.fail.enqueue()
        if isinstance(jobs, testing.WorkerJobs):
            jobs.drain(with_scheduled=True)
    if isinstance(jobs, testing.InlineJobs):
        assert [(name, found.status) for name, _, found in signals()][:3] == [
            ("task_enqueued", "READY"), ("task_started", "RUNNING"), ("task_started", "RUNNING")
        ]  # fmt: skip
    ended = [(found.task.name, found.status, found.attempts) for name, _, found in signals() if name == "task_finished"]
    assert sorted(ended) == [("fail", "FAILED", 1), ("fail_first", "SUCCESSFUL", 2)]


def test_a_receiver_under_test_that_breaks_leaves_the_tests_transaction_usable() -> None:
    def receive(**kwargs: Any) -> None:
        Group.objects.create(name="one")
        Group.objects.create(name="one")

    task_finished.connect(receive)
    try:
        with testing.worker() as jobs:
            tasks.add.enqueue(1)
            assert jobs.drain().completed == 1
    finally:
        task_finished.disconnect(receive)
    assert not Group.objects.filter(name="two").exists()  # PostgreSQL answers nothing in a broken transaction


def test_two_workers_finish_each_task_once(start_worker: Callable[..., WorkerThread], signals: Signals) -> None:
    results = [tasks.add.enqueue(n) for n in range(60)]
    for worker in [start_worker(until_empty=True, concurrency=3) for _ in range(2)]:
        worker.wait()
    finished = [found for name, _, found in signals() if name == "task_finished"]
    assert sorted(found.id for found in finished) == sorted(result.id for result in results)
    assert {str(found.status) for found in finished} == {"SUCCESSFUL"}


def test_a_running_task_that_is_cancelled_has_failed(
    start_worker: Callable[..., WorkerThread], signals: Signals, settings: Any
) -> None:
    settings.OJS = {"HEARTBEAT_INTERVAL": 0.05}
    result = tasks.wait_for_ever.enqueue()
    worker = start_worker()
    eventually(lambda: result.refresh() or result.status == "RUNNING")
    result.job.cancel()
    eventually(lambda: [name for name, _, _ in signals()][-1] == "task_finished")
    worker.stop()
    (finished,) = [found for name, _, found in signals() if name == "task_finished"]
    assert (finished.status, finished.state, finished.attempts) == ("FAILED", "cancelled", 1)


def test_asynchronous_tasks_send_the_same(drain: Drain, signals: Signals) -> None:
    tasks.aadd.enqueue(1, 2)
    drain()
    assert [name for name, _, _ in signals()] == ["task_enqueued", "task_started", "task_finished"]


def test_the_stored_state_is_what_a_receiver_of_finished_reads(drain: Drain) -> None:
    from tests.tasks.api import task_finished

    found: list[tuple[Any, Any, Any]] = []

    def receive(task_result: Any, **kwargs: Any) -> None:
        stored = default_task_backend.get_result(task_result.id)
        found.append((task_result.status, stored.status, sys.exc_info()[0]))

    task_finished.connect(receive)
    try:
        tasks.fail.enqueue()
        drain()
    finally:
        task_finished.disconnect(receive)
    assert found == [("FAILED", "FAILED", ValueError)]


def test_a_failed_task_is_logged_with_its_exception(drain: Drain, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger=LOGGER):
        result = tasks.fail.enqueue()
        drain()
    (record,) = [record for record in caplog.records if record.name == LOGGER and record.levelname == "ERROR"]
    assert result.id in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is ValueError


@pytest.mark.parametrize("part", ["errors", "backtraces"])
def test_what_the_site_hides_of_a_failed_task_is_in_no_log(
    drain: Drain, caplog: pytest.LogCaptureFixture, settings: Any, part: str
) -> None:
    settings.OJS = {"REDACT": {"types": {"tests.tasks.*": [part]}}}
    with caplog.at_level("INFO"):
        result = tasks.fail.enqueue("4111 1111")
        drain()
    (record,) = [record for record in caplog.records if record.name == LOGGER and record.levelname == "ERROR"]
    assert result.id in record.getMessage()
    assert not [record for record in caplog.records if record.exc_info and record.exc_info[0]]
    if part == "errors":
        assert "4111 1111" not in caplog.text


def test_a_broken_receiver_in_the_worker_changes_no_task(drain: Drain, signals: Signals) -> None:
    def broken(**kwargs: Any) -> None:
        raise RuntimeError("a receiver")

    task_started.connect(broken)
    try:
        result = tasks.add.enqueue(1)
        drain()
    finally:
        task_started.disconnect(broken)
    result.refresh()
    assert result.status == "SUCCESSFUL"
    assert [name for name, _, _ in signals()][-1] == "task_finished"


def test_a_broken_receiver_of_enqueued_is_the_callers_and_takes_its_job_back(transactional_db: None) -> None:
    def broken(**kwargs: Any) -> None:
        raise RuntimeError("a receiver")

    task_enqueued.connect(broken)
    try:
        with pytest.raises(RuntimeError, match="a receiver"), transaction.atomic():
            tasks.add.enqueue(1)
    finally:
        task_enqueued.disconnect(broken)
    assert not Job.objects.exists()


# What others do with the jobs


def test_a_worker_in_another_language_runs_tasks(handlers: Registry) -> None:
    from django_ojs.jobs.fetch import Fetch, fetch
    from django_ojs.jobs.finish import Ack, Failure, ack_one, fail_one

    good, bad = tasks.add.enqueue(1, b=2), tasks.add.enqueue(3)
    for row in fetch(Fetch(["default"], count=2, worker_id="go-1")):
        if str(row["id"]) == good.id:
            assert get_job(row["id"]).args == [1, {"$kwargs": {"b": 2}}]
            ack_one(Ack(row["id"], "3", "go-1", row["attempt"]))
        else:
            error = {"type": "panic", "message": "index out of range", "backtrace": ["main.add(main.go:5)"]}
            fail_one(Failure(row["id"], error, "go-1", row["attempt"]))
    good.refresh()
    bad.refresh()
    assert (good.return_value, good.worker_ids) == (3, ["go-1"])
    (error,) = bad.errors
    assert error.exception_class is TaskFailed
    assert error.traceback.splitlines()[1:] == ["  main.add(main.go:5)", "panic: index out of range"]


def test_a_job_that_others_push_reaches_the_task_by_its_type_only(drain: Drain, handlers: Registry) -> None:
    default_task_backend.validate_task(tasks.add)  # registered, as at import
    positional = enqueue("tests.tasks.app.tasks.add", 1, 2)
    named = enqueue("tests.tasks.app.tasks.add", 1, {"$kwargs": {"b": 5}})
    path = enqueue("os.system", "true")
    unregistered = enqueue("tests.tasks.app.tasks.write", "x")
    drain()
    assert [handle.refresh().result for handle in (positional, named)] == [3, 6]
    assert [str(handle.refresh().state) for handle in (path, unregistered)] == ["available", "available"]
    assert default_task_backend.get_result(str(positional.id)).return_value == 3
    with pytest.raises(TypeError, match="cannot take these arguments"):
        enqueue("tests.tasks.app.tasks.add", 1, 2, 3)


def test_numbers_that_no_float_can_hold_are_no_obstacle(drain: Drain, api: Any, settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    default_task_backend.validate_task(tasks.count)
    pushed = api.raw("/jobs", b'{"type": "tests.tasks.app.tasks.count", "args": [1e400, 0.1000000000000000000001]}')
    assert pushed.status_code == 201
    result = default_task_backend.get_result(pushed.json()["job"]["id"])
    assert result.args == [float("inf"), 0.1]
    drain()
    result.refresh()
    assert (result.status, result.return_value) == ("SUCCESSFUL", 2)


def test_meta_from_the_wire_chooses_among_our_backends_only(drain: Drain) -> None:
    default_task_backend.validate_task(tasks.add)
    for alias in ("immediate", "no such", 5, "os.path"):
        handle = enqueue("tests.tasks.app.tasks.add", 1, meta={"task_backend": alias})
        assert default_task_backend.get_result(str(handle.id)).backend == "default"
    drain()
    assert {str(row) for row in Job.objects.values_list("state", flat=True)} == {"completed"}


def test_a_dropped_task_is_no_task(settings: Any) -> None:
    from django_ojs.client.handle import JobDropped

    def drop(document: Any, next: Any) -> None:
        return None

    with added(drop), pytest.raises(JobDropped):
        tasks.add.enqueue(1)


def test_the_same_function_is_one_definition(handlers: Registry) -> None:
    tasks.add.enqueue(1)
    tasks.add.using(priority=5).enqueue(1)
    assert registry.types() == ["tests.tasks.app.tasks.add"]
