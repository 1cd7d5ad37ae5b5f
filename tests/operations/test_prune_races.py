"""Nothing that was answered with success disappears: what is deleted is looked at again under its lock.

What comes in between is put there: `between` runs another transaction in a thread of its own, as soon as the list of
what is to go has been read and before anything is deleted.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import threading
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, connections
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from django_ojs import clock
from django_ojs.errors import OJSError
from django_ojs.events import log
from django_ojs.jobs.delete import delete
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Failure, ack_one, fail, fail_one
from django_ojs.jobs.push import push
from django_ojs.jobs.retry import retry, retry_one
from django_ojs.limits import ratelimits
from django_ojs.management.shell import Operator
from django_ojs.models import Job, RateLimit, WebhookDelivery, WebhookSubscription, Workflow, WorkflowStep
from django_ojs.retention import prune
from django_ojs.store.values import Ack
from django_ojs.webhooks import deliveries
from django_ojs.workflows.workflow import create as create_workflow
from django_ojs.workflows.workflow import retry as retry_workflow

pytestmark = pytest.mark.django_db(transaction=True)
FATAL = {"type": "ValueError", "message": "no", "retryable": False}
DAY = dt.timedelta(days=1)


def dead(count: int = 1, **attributes: Any) -> list[uuid.UUID]:
    """Dead letters, oldest first, each a second younger than the one before."""
    push([{"type": "mail.send", "args": [], **attributes}] * count)
    ids = [row["id"] for row in fetch(Fetch([attributes.get("queue", "default")], count=count, worker_id="w"))]
    for job_id in ids:
        clock.advance(seconds=1)
        fail_one(Failure(job_id, error=FATAL))
    return ids


def aside(act: Callable[[], Any]) -> None:
    """Run it in a thread, with a connection of its own, and wait until it is committed."""
    together(act)


def together(*acts: Callable[[], Any]) -> None:
    """Run these in threads, each with a connection of its own, and wait for all; raises the first of their errors."""
    failures: list[BaseException] = []

    def run(act: Callable[[], Any]) -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=[act]) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


@contextlib.contextmanager
def between(table: Any, act: Callable[[], Any]) -> Iterator[list[str]]:
    """`act`, committed, right after the first rows of `table` were read; gives the statement after which it ran.

    SQLite has one writer: a transaction that has begun there lets nothing come in between, so `act` comes before it.
    """
    done: list[str] = []
    name = f'"{table._meta.db_table}"' if connection.vendor != "mysql" else f"`{table._meta.db_table}`"

    def listen(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        free = connection.vendor != "sqlite" or not connection.in_atomic_block
        lists = sql.startswith("SELECT") and f"FROM {name}" in sql and "FOR UPDATE" not in sql
        if lists and free and not done:
            done.append(sql)
            aside(act)
        return result

    with connection.execute_wrapper(listen):
        yield done


@pytest.fixture(autouse=True)
def _keep_two(settings: Any, frozen_clock: Any) -> None:
    settings.OJS = {"DEAD_LETTER_MAX_COUNT": 2, "ALLOW_ANONYMOUS": True}


def states() -> dict[uuid.UUID, str]:
    return dict(Job.objects.values_list("pk", "state"))


class TestWhatIsPruned:
    def test_a_dead_letter_that_was_retried_meanwhile_is_not_deleted_as_surplus(self) -> None:
        ids = dead(5)
        with between(Job, lambda: retry_one(ids[0])) as came:
            pruned = prune()["dead_letters"]
        assert came
        assert states() == {ids[0]: "available", ids[3]: "discarded", ids[4]: "discarded"}
        assert pruned == 2
        (event,) = log.read(types=["dead_letter.pruned"]).events
        assert event["data"]["count"] == 2

    def test_one_that_was_retried_and_died_again_is_the_newest_and_stays(self) -> None:
        ids = dead(5)

        def again() -> None:
            clock.advance(seconds=1)
            retry_one(ids[0])
            fetch(Fetch(["default"], worker_id="w"))
            fail_one(Failure(ids[0], error=FATAL))

        with between(Job, again) as came:
            prune()
        assert came
        assert states()[ids[0]] == "discarded"

    def test_a_dead_letter_that_was_retried_meanwhile_is_not_deleted_for_its_age(self, frozen_clock: Any) -> None:
        (job_id,) = dead()
        frozen_clock.advance(days=400)
        with between(Job, lambda: retry_one(job_id)) as came:
            assert prune()["jobs"] == 0
        assert came
        assert states() == {job_id: "available"}

    @pytest.mark.parametrize("first_read", [Job, Workflow])
    def test_a_workflow_that_was_retried_meanwhile_keeps_its_row_and_its_members(
        self, frozen_clock: Any, first_read: Any
    ) -> None:
        steps = [{"type": "a.b", "args": [number]} for number in range(3)]
        flow = create_workflow({"type": "chain", "steps": steps}).workflow.pk
        (first,) = fetch(Fetch(["default"], worker_id="w"))
        ack_one(Ack(first["id"], '"kept"'))
        (second,) = fetch(Fetch(["default"], worker_id="w"))
        fail_one(Failure(second["id"], error=FATAL))
        assert Workflow.objects.get(pk=flow).state == "failed"
        frozen_clock.advance(days=400)
        with between(first_read, lambda: retry_workflow(flow)) as came:
            prune()
        assert came
        assert Workflow.objects.get(pk=flow).state == "running"
        assert WorkflowStep.objects.filter(workflow=flow).count() == 3
        assert [row["id"] for row in fetch(Fetch(["default"], worker_id="w"))] == [second["id"]]

    def test_the_results_that_a_retried_workflow_needs_are_kept(self, frozen_clock: Any) -> None:
        """A retry changes the workflow's row and its dead letter, and not the members that have completed."""
        steps = [{"type": "a.b", "args": [number]} for number in range(2)]
        flow = create_workflow({"type": "chain", "steps": steps}).workflow.pk
        (first,) = fetch(Fetch(["default"], worker_id="w"))
        ack_one(Ack(first["id"], '"kept"'))
        (second,) = fetch(Fetch(["default"], worker_id="w"))
        fail_one(Failure(second["id"], error=FATAL))
        frozen_clock.advance(days=8)  # completed jobs go after a week, dead letters stay longer
        with between(Job, lambda: retry_workflow(flow)) as came:
            prune()
        assert came
        assert states() == {first["id"]: "completed", second["id"]: "available"}

    def test_a_delivery_that_is_sent_again_meanwhile_is_not_deleted(self, frozen_clock: Any) -> None:
        now = clock.now()
        subscription = WebhookSubscription.objects.create(
            url="https://a.test/", events=[], created_at=now, updated_at=now, active_since=now
        )
        delivery = WebhookDelivery.objects.create(
            subscription=subscription, event_id="evt_1", event_type="job.completed", subject="s", body="{}",
            max_attempts=1, created_at=clock.now(), status="dead",
        )  # fmt: skip
        frozen_clock.advance(days=400)
        with between(WebhookDelivery, lambda: deliveries.replay(delivery.pk)) as came:
            assert deliveries.prune(clock.now(), 100, "default") == 0
        assert came
        assert WebhookDelivery.objects.get(pk=delivery.pk).is_open

    def test_an_override_that_replaces_one_that_ended_is_kept(self, frozen_clock: Any) -> None:
        soon = (clock.now() + DAY).isoformat()
        ratelimits.override("key", {"concurrency": 1, "expires_at": soon})
        frozen_clock.advance(days=2)
        with between(RateLimit, lambda: ratelimits.override("key", {"concurrency": 7})) as came:
            prune()
        assert came
        assert RateLimit.objects.get(pk="key").override["concurrency"] == 7

    def test_two_that_prune_at_once_delete_and_report_each_dead_letter_once(self) -> None:
        dead(6)
        pruned: list[int] = []
        with between(Job, lambda: pruned.append(prune()["dead_letters"])):
            pruned.append(prune()["dead_letters"])
        assert sum(pruned) == 4
        assert sum(event["data"]["count"] for event in log.read(types=["dead_letter.pruned"]).events) == 4


class TestWhatAnOperatorDeletesByAFilter:
    """A job that has been retried since the list was made is not what the filter means, even if it has ended again."""

    @staticmethod
    def done_again(job_id: uuid.UUID) -> Callable[[], None]:
        def act() -> None:
            retry_one(job_id)
            fetch(Fetch(["default"], worker_id="w"))
            ack_one(Ack(job_id, '"paid"'))

        return act

    def test_over_http(self) -> None:
        ids = dead(2)
        with between(Job, self.done_again(ids[0])) as came:
            answer = Client().post(
                "/ojs/v1/admin/jobs/bulk/delete", {"filter": {"state": "discarded"}, "confirm": True},
                content_type="application/json",
            )  # fmt: skip
        assert came
        assert states() == {ids[0]: "completed"}
        assert (answer.json()["matched"], answer.json()["succeeded"]) == (2, 1)
        (refusal,) = answer.json()["errors"]
        assert refusal["job_id"] == str(ids[0])

    def test_a_purge_of_a_queue(self) -> None:
        ids = dead(2)
        with between(Job, self.done_again(ids[0])) as came:
            answer = Client().delete(
                "/ojs/v1/admin/queues/default/jobs", {"states": ["discarded"], "confirm": True},
                content_type="application/json",
            )  # fmt: skip
        assert came
        assert (answer.status_code, answer.json()["purged_count"]) == (200, 1)
        assert states() == {ids[0]: "completed"}

    def test_the_binding_s_bulk_delete(self) -> None:
        if connection.vendor == "sqlite":
            pytest.skip("one transaction reads and deletes, and SQLite lets nobody write meanwhile")
        ids = dead(2)
        with between(Job, self.done_again(ids[0])) as came:
            answer = Client().post(
                "/ojs/v1/jobs/bulk/delete", {"filter": {"state": "discarded"}}, content_type="application/json"
            )
        assert came
        assert answer.json()["deleted"] == 1
        assert states() == {ids[0]: "completed"}

    def test_a_command_that_asked_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ids = dead(2)
        monkeypatch.setattr(Operator, "confirm", lambda *args, **options: aside(self.done_again(ids[0])))
        out, err = StringIO(), StringIO()
        with pytest.raises(SystemExit):
            call_command("ojs_jobs", "purge", "--state", "discarded", stdout=out, stderr=err)
        assert "1 job deleted." in out.getvalue()
        assert str(ids[0]) in err.getvalue()
        assert states() == {ids[0]: "completed"}


class Ledger:
    """What a caller was told of each job, and what a pass of pruning may take of that."""

    def __init__(self) -> None:
        self.known: dict[uuid.UUID, str] = {}
        self.ended: dict[uuid.UUID, dt.datetime] = {}

    def act(self, name: str, number: int) -> None:
        ids = sorted(self.known)
        if name == "push":
            self.known[push([{"type": "a.b", "args": []}])[0].row["id"]] = "available"
        elif name in ("die", "complete"):
            self.finish(died=name == "die")
        elif name == "wait":
            clock.advance(days=1 + number * 12)
        elif name == "prune":
            prune()
            self.check()
        elif ids:
            chosen = ids[number % len(ids)]
            (outcome,) = retry([chosen]) if name == "retry" else delete([chosen])
            if not isinstance(outcome, OJSError):
                self.known[chosen] = "available"
                if name == "delete":
                    del self.known[chosen]

    def finish(self, *, died: bool) -> None:
        for row in fetch(Fetch(["default"], worker_id="w")):
            if died:
                fail_one(Failure(row["id"], error=FATAL))
            else:
                ack_one(Ack(row["id"]))
            self.known[row["id"]], self.ended[row["id"]] = "discarded" if died else "completed", clock.now()

    def check(self) -> None:
        """A live job stays, an ended one for its time, and the newest dead letters stay too."""
        there = states()
        letters = sorted((self.ended[i], i) for i, state in self.known.items() if state == "discarded")
        newest = {job_id for _, job_id in letters[-2:]}
        for job_id in self.known.keys() - there.keys():
            state, age = self.known.pop(job_id), clock.now() - self.ended[job_id]
            assert age >= 7 * DAY if state == "completed" else state == "discarded"
            assert state == "completed" or age >= 90 * DAY or job_id not in newest
        assert there == self.known


_ACTS = ["push", "die", "retry", "complete", "delete", "wait", "prune"]


@given(acts=st.lists(st.tuples(st.sampled_from(_ACTS), st.integers(0, 9)), max_size=30))
def test_nothing_that_was_answered_with_success_disappears(acts: list[tuple[str, int]]) -> None:
    Job.objects.all().delete()
    clock.freeze(dt.datetime(2026, 1, 15, 12, tzinfo=dt.UTC))
    ledger = Ledger()
    for name, number in acts:
        clock.advance(seconds=1)
        ledger.act(name, number)
    assert states() == ledger.known


@pytest.mark.slow
def test_threads_that_retry_while_others_prune_lose_nothing(settings: Any) -> None:
    """Dead letters over the bound, retried by the verb and over HTTP, and pruning without a pause."""
    settings.OJS = {"DEAD_LETTER_MAX_COUNT": 5, "ALLOW_ANONYMOUS": True}
    clock.freeze(None)
    push([{"type": "a.b", "args": []} for _ in range(1200)])
    ids: list[uuid.UUID] = []
    while rows := fetch(Fetch(["default"], count=200, worker_id="w")):
        fail([Failure(row["id"], error=FATAL) for row in rows])
        ids += [row["id"] for row in rows]
    answered: list[uuid.UUID] = []
    turn, lock, left = iter(ids), threading.Lock(), [len(ids)]

    def retrying(through: Callable[[list[uuid.UUID]], list[uuid.UUID]]) -> None:
        while True:
            with lock:
                part = list(itertools.islice(turn, 20))
            if not part:
                return
            try:
                answered.extend(through(part))
            finally:
                left[0] -= len(part)

    def by_verb(part: list[uuid.UUID]) -> list[uuid.UUID]:
        return [row["id"] for row in retry(part) if not isinstance(row, OJSError)]

    def by_http(part: list[uuid.UUID]) -> list[uuid.UUID]:
        client, json = Client(), "application/json"
        answers = {job_id: client.post(f"/ojs/v1/dead-letter/{job_id}/retry", {}, json).status_code for job_id in part}
        assert set(answers.values()) <= {200, 404}
        return [job_id for job_id, status in answers.items() if status == 200]

    def pruning() -> None:
        while left[0] > 0:
            prune(batch=20)

    together(pruning, *(partial(retrying, way) for way in (by_verb, by_http, by_verb)))
    found = states()
    assert [job_id for job_id in answered if found.get(job_id) != "available"] == []
    assert answered
