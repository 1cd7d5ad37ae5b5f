"""`transactional=True`: what a handler wrote is there if and only if its job is completed."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction

from django_ojs import Discard, enqueue, enqueue_many, job
from django_ojs.jobs.finish import Ack, ack
from django_ojs.models import Event, Job
from django_ojs.registry import Registry
from tests.waiting import eventually
from tests.worker.conftest import WorkerCommand, WorkerThread

Drain = Callable[..., WorkerThread]
ONCE = {"max_attempts": 1}


def names() -> set[str]:
    return set(Group.objects.values_list("name", flat=True))


def test_effects_and_completion_come_together(drain: Drain) -> None:
    @job("tx.write", transactional=True)
    def write(name: str) -> str:
        Group.objects.create(name=name)
        return name

    handles = enqueue_many([write.s(f"group-{n}") for n in range(10)])
    worker = drain()
    assert names() == {f"group-{n}" for n in range(10)}
    assert [(handle.refresh().state, handle.result) for handle in handles] == [
        ("completed", f"group-{n}") for n in range(10)
    ]
    assert "10 jobs completed" in worker.lines[1]
    assert Event.objects.filter(type="job.completed").count() == 10


@pytest.mark.parametrize("inline", [False, True])
def test_a_failure_of_any_kind_leaves_nothing_behind(drain: Drain, inline: bool) -> None:
    def raising(error: BaseException) -> Callable[[], None]:
        def handler() -> None:
            Group.objects.create(name="written")
            raise error

        return handler

    def unserializable() -> Any:
        Group.objects.create(name="written")
        return object()

    for number, error in enumerate([ValueError("x"), Discard("no"), SystemExit(1)]):
        job(f"tx.t{number}", transactional=True, inline=inline, retry=ONCE)(raising(error))
        enqueue(f"tx.t{number}")
    job("tx.result", transactional=True, inline=inline, retry=ONCE)(unserializable)
    enqueue("tx.result")
    drain(concurrency=1)  # the name is unique: MariaDB calls it a deadlock when several insert it at once
    assert names() == set()
    assert set(Job.objects.values_list("state", flat=True)) == {"discarded"}
    assert [error["type"] for error in Job.objects.get(type="tx.t0").errors] == ["ValueError"]
    assert [error["type"] for error in Job.objects.get(type="tx.result").errors] == ["ResultNotSerializable"]


def test_a_job_that_was_lost_meanwhile_leaves_nothing_behind(drain: Drain, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ACK comes from an attempt that is no longer the current one."""

    @job("tx.lost", transactional=True)
    def lose() -> None:
        Group.objects.create(name="written")

    def late_ack(acks: list[Ack], **options: Any) -> Any:
        return ack([dataclasses.replace(acks[0], attempt=7)], **options)

    monkeypatch.setattr("django_ojs.worker.execution.ack", late_ack)
    handle = lose.enqueue()
    drain(max_jobs=1)
    assert names() == set()
    assert (handle.refresh().state, handle.errors) == ("available", []), "its worker gave it back when it left"
    assert not Event.objects.filter(type__in=["job.completed", "job.failed"]).exists()


def test_the_jobs_row_is_not_locked_while_the_handler_runs(start_worker: Callable[..., WorkerThread]) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite knows no locks of rows")
    found: list[bool] = []

    @job("tx.look", transactional=True)
    def look() -> None:
        Group.objects.create(name="written")
        from threading import Thread

        def lock_it() -> None:
            with transaction.atomic():
                found.append(Job.objects.select_for_update(nowait=True).filter(type="tx.look").exists())
            connection.close()

        thread = Thread(target=lock_it)
        thread.start()
        thread.join()

    handle = look.enqueue()
    start_worker()
    assert handle.wait(timeout=90).state == "completed"
    assert found == [True]


def test_a_handler_may_catch_what_a_savepoint_of_its_own_undid(drain: Drain) -> None:
    @job("tx.nested", transactional=True)
    def nested() -> None:
        Group.objects.create(name="kept")
        try:
            with transaction.atomic():
                Group.objects.create(name="undone")
                raise ValueError
        except ValueError:
            return

    handle = nested.enqueue()
    drain()
    assert (handle.refresh().state, names()) == ("completed", {"kept"})


@pytest.mark.parametrize("how", ["open", "broken", "closed"])
@pytest.mark.parametrize("inline", [False, True])
def test_a_transaction_that_another_handler_left_open_is_not_in_its_way(drain: Drain, how: str, inline: bool) -> None:
    """Django refuses a durable block inside another one, also one that it only remembers."""

    @job("tx.leave", inline=inline)
    def leave() -> None:
        transaction.atomic().__enter__()
        Group.objects.create(name="left open")
        if how == "broken":
            transaction.set_rollback(True)
        if how == "closed":
            connection.close()

    @job("tx.write", transactional=True, inline=inline, retry=ONCE)
    def write() -> None:
        Group.objects.create(name="written")

    left, handle = leave.enqueue(), write.enqueue()
    drain(concurrency=1)
    assert (left.refresh().state, handle.refresh().state, handle.errors) == ("completed", "completed", [])
    assert names() == {"written"}


def test_a_long_one_is_warned_about_on_sqlite(
    drain: Drain, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("django_ojs.worker.execution.LONG", 0.0)
    job("tx.long", transactional=True)(lambda: None)
    enqueue("tx.long")
    with caplog.at_level(logging.WARNING, "django_ojs.jobs"):
        drain()
    assert ("only write lock" in caplog.text) == (connection.vendor == "sqlite")


def test_a_handler_of_another_database_is_refused(handlers: Registry, settings: Any) -> None:
    settings.DATABASE_ROUTERS = ["tests.worker.test_transactional.JobsElsewhere"]
    job("tx.elsewhere", transactional=True)(lambda: None)
    assert ["'default', and for the job, which is in 'jobs'" in fault.message for fault in handlers.faults()] == [True]
    assert job("tx.there", transactional="jobs")(lambda: None).transactional == "jobs"


class JobsElsewhere:
    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "jobs" if model is Job else None


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_killed_before_the_commit_leaves_nothing_and_the_next_one_does_it_once(
    start_process: Callable[..., WorkerCommand],
) -> None:
    """The first attempts die after the handler's last line, and between the ACK and the commit."""
    handles = enqueue_many([("site.transfer", [f"transfer-{n}"]) for n in range(2)])
    process = start_process("ojs_worker", "--concurrency", "2")
    for handle in handles:
        assert handle.wait(timeout=60).state == "completed"
        assert {error["code"] for error in handle.errors} <= {"worker_death"}, "where it was alone when it died"
    assert sorted(Group.objects.values_list("name", flat=True)) == [f"transfer-{n}" for n in range(2)]
    runs = {name: process.traces.joinpath(name).read_text().split() for name in names()}
    assert all(len(attempts) >= 2 for attempts in runs.values()), runs
    for handle in handles:
        started = Event.objects.filter(type="job.started", job_id=handle.id).count()
        assert Event.objects.filter(type="job.completed", job_id=handle.id).count() == 1
        assert handle.attempt == started
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    eventually(lambda: not Job.objects.filter(state="active").exists())
