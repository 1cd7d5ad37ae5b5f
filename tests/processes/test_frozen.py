"""A process that is stopped while it holds a lock of the server's own keeps it from nobody."""

from __future__ import annotations

import datetime as dt
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from django.conf import settings as site_settings
from django.db import OperationalError, connection, transaction
from django.test import Client
from django.utils import timezone

from django_ojs import enqueue
from django_ojs.cron import schedules
from django_ojs.errors import Conflict
from django_ojs.events import log, order
from django_ojs.faults import HeldByAnother, is_contention
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack_one
from django_ojs.jobs.push import push
from django_ojs.lockwaits import LockTimeout
from django_ojs.models import CronSchedule, Job, Queue, QueueMinute, Worker
from django_ojs.queues import configuration
from django_ojs.webhooks import subscriptions
from django_ojs.webhooks.relay import relay
from django_ojs.workerregistry.heartbeat import Beat, beat
from django_ojs.workflows.workflow import create as create_workflow
from tests.processes.frozen import TOGETHER
from tests.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        connection.vendor == "sqlite", reason="a process that is stopped on SQLite holds a lock of a file"
    ),
]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def freeze(child_environment: dict[str, str]) -> Iterator[Start]:
    """Starts a process, and returns when it stands still."""
    started: list[subprocess.Popen[str]] = []

    def start(*deeds: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.processes.frozen", *deeds], env=child_environment, cwd=site_settings.BASE_DIR,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "frozen\n"
        # Of a child that has stopped, and not of one that is about to.
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        return process

    yield start
    for process in started:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


def go_on(process: subprocess.Popen[str], say: str = "") -> str:
    process.send_signal(signal.SIGCONT)
    said, _ = process.communicate(say, timeout=60)
    return said


def types(page: Any) -> list[str]:
    return [event["data"]["job_type"] for event in page.events]


@pytest.mark.parametrize(
    "deed",
    [
        "order",
        pytest.param("reader", marks=pytest.mark.wide),
        pytest.param("order", marks=pytest.mark.mariadb, id="mariadb"),
    ],
)
def test_readers_of_the_log_get_everything_though_a_process_stands_still_in_the_pass(
    freeze: Start, deed: str, settings: Any
) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    enqueue("a.first")
    frozen = freeze(deed)
    enqueue("a.second")
    answer = Client().get("/ojs/v1/events")
    assert answer.status_code == 200, answer.content
    assert [event["data"]["job_type"] for event in answer.json()["events"]] == ["a.first", "a.second"]
    assert order.advance("default") == 0, "the lock is free: nothing is left to do"
    said = go_on(frozen)
    assert "done" in said, "the database has ended its transaction, and it has begun anew"
    assert "because it stood still for more than 2 s" in said
    enqueue("a.third")
    assert types(log.read()) == ["a.first", "a.second", "a.third"]


@pytest.mark.parametrize("deed", ["duty", pytest.param("duty", marks=pytest.mark.mariadb, id="mariadb")])
def test_what_a_duty_holds_is_free_though_its_process_stands_still(freeze: Start, deed: str) -> None:
    """Each duty of schedulers and each service of workers runs in such a thread, with connections of its own."""
    now = timezone.now()
    Queue.objects.create(name="held", created_at=now, updated_at=now)
    frozen = freeze(deed)

    def is_free() -> bool:
        with transaction.atomic():
            return Queue.objects.select_for_update(skip_locked=True).filter(name="held").exists()

    assert not is_free()
    eventually(is_free, "the database lets go of what it holds")
    frozen.send_signal(signal.SIGCONT)
    eventually(lambda: Queue.objects.get(name="held").draining, "the duty is done again")
    said = go_on(frozen, "\n")
    assert "done" in said
    assert "because it stood still for more than 10 s" in said
    assert "cannot be used" not in said


def prepare() -> None:
    """What the deeds of `frozen.TOGETHER` are about."""
    now = timezone.now()
    long_ago = now - dt.timedelta(days=20)
    push([
        {"type": "f.unique", "args": [], "unique": {"keys": ["type", "args"], "on_conflict": "replace"}},
        {"type": "f.failure", "args": [], "queue": "failing"},
        {"type": "f.cancel", "args": []},
        {"type": "f.due", "args": [], "scheduled_at": (now + dt.timedelta(hours=1)).isoformat()},
        {"type": "f.limited", "args": [], "queue": "limited", "rate_limit": {"key": "k", "concurrency": 1}},
        {"type": "f.of.the.dead", "args": [], "queue": "dead"},
        {"type": "f.old", "args": [], "queue": "old"},
    ])  # fmt: skip
    configuration.create("bounded", {"max_size": 5})
    for name in "paused", "batch", "empty":
        configuration.create(name, {})
    create_workflow({
        "type": "chain",
        "steps": [{"type": name, "args": [], "options": {"queue": "members"}} for name in ("f.member", "f.next")],
    })  # fmt: skip
    for name, worker in ("members", "w"), ("failing", "w"), ("dead", "gone"), ("old", "counted"):
        beat(Beat(worker))
        assert fetch(Fetch([name], worker_id=worker))
    ack_one(Ack(Job.objects.get(type="f.old").pk))
    Job.objects.filter(type="f.old").update(finished_at=long_ago)
    Job.objects.filter(type="f.due").update(wake_at=now)
    Worker.objects.filter(pk="gone").update(last_heartbeat_at=long_ago)
    for name in "daily", "weekly":
        schedules.register({"name": name, "cron": "0 3 * * *", "job_template": {"type": "f.cron", "args": []}})
    CronSchedule.objects.filter(pk="daily").update(wake_at=now, next_run_at=now)
    QueueMinute.objects.create(queue="default", minute=long_ago.replace(second=0, microsecond=0))
    hook = {"url": "https://example.com/", "events": ["*"], "secret": "a-secret-for-tests"}
    subscriptions.create(subscriptions.read_definition(hook))
    for _ in range(2):  # the first round makes deliveries
        order.catch_up("default")
        relay()
        push([{"type": "f.event", "args": []}])
    order.catch_up("default")


@pytest.mark.parametrize("some", [0, *(pytest.param(some, marks=pytest.mark.wide) for some in range(1, len(TOGETHER)))])
@pytest.mark.parametrize("vendor", ["postgresql", pytest.param("mysql", marks=pytest.mark.mariadb, id="mariadb")])
def test_no_lock_of_the_servers_own_outlasts_the_limit_of_a_transaction_that_stands_still(
    freeze: Start, vendor: str, some: int
) -> None:
    """Each in a transaction right before its commit, at the same time."""
    prepare()
    deeds = {deed.__name__: deed for deed in TOGETHER[some]}
    frozen = freeze(*deeds)
    held = open_transactions()
    assert held >= len(deeds), f"each of them holds what it has locked: {go_on(frozen)}"
    for name, deed in deeds.items():
        eventually(partial(done, deed), name)
    said = go_on(frozen)
    for name in deeds:
        assert re.search(rf"^{name}: (done|answered by|StoodStill|OperationalError)", said, re.MULTILINE), said
    if connection.vendor == "postgresql":
        assert "because it stood still for more than 10 s" in said


def open_transactions() -> int:
    """How many transactions of others are open."""
    asks = {
        "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' "
        "AND datname = current_database()",
        "mysql": "SELECT count(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p "
        "ON t.trx_mysql_thread_id = p.id WHERE p.db = database() AND p.command = 'Sleep'",
    }
    with connection.cursor() as cursor:
        cursor.execute(asks[connection.vendor])
        return int(cursor.fetchone()[0])


def done(deed: Callable[[], Any]) -> bool:
    """Whether the deed could be done now. Where another holds what it needs, that is what the error says."""
    try:
        return bool(deed())
    except (OperationalError, HeldByAnother, Conflict) as error:
        if not isinstance(error, Conflict) and not is_contention(error):
            raise
    return False


@pytest.mark.wide
@pytest.mark.postgres
def test_a_migration_that_stands_still_lets_go_of_its_tables(freeze: Start) -> None:
    frozen = freeze("migration")

    def is_free() -> bool:
        with LockTimeout(1.0, "default"):
            return done(lambda: push([{"type": "a.b", "args": []}]))

    eventually(is_free, "the migration lets go of the table of jobs")
    assert "ended: terminating connection due to idle-in-transaction timeout" in go_on(frozen)
