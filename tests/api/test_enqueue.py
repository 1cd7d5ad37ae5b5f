"""Enqueueing from Python: in the caller's transaction, all or nothing, with handles that tell what happened."""

from __future__ import annotations

import contextlib
import datetime as dt
import enum
import pickle
import threading
import uuid
from traceback import format_exception
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext

from django_ojs import (
    JobCancelled,
    JobFailed,
    WorkflowCancelled,
    WorkflowFailed,
    aenqueue,
    aget_job,
    batch,
    chain,
    emit_event,
    enqueue,
    enqueue_after_commit,
    enqueue_bulk,
    enqueue_many,
    get_job,
    get_workflow,
    group,
    job,
)
from django_ojs.client.definition import PreparedJob
from django_ojs.client.handle import JobDropped
from django_ojs.client.workflow import PreparedWorkflow
from django_ojs.errors import Duplicate, InvalidStateTransition, InvalidWorkflow, NotFound
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack_one, fail_one
from django_ojs.models import Job, Workflow
from django_ojs.registry import Registry
from tests.middlewares import added

pytestmark = pytest.mark.django_db


@pytest.fixture
def send(handlers: Registry) -> Any:
    @job("email.send", queue="email", retry={"max_attempts": 5, "initial_interval": "2s"}, timeout=30, tags=["mail"])
    def send(to: str, template: str) -> None: ...

    return send


def test_enqueue_stores_the_job_with_the_options_of_its_handler(send: Any) -> None:
    handle = send.enqueue("a@b.c", "welcome")
    assert (handle.type, handle.queue, handle.state, handle.args) == (
        "email.send",
        "email",
        "available",
        ["a@b.c", "welcome"],
    )
    stored = Job.objects.get(pk=handle.id)
    assert (stored.max_attempts, stored.timeout_ms) == (5, 30_000)
    assert handle.envelope["tags"] == ["mail"]
    assert handle.created
    assert not handle.is_finished


def test_options_apply_to_one_job_only(send: Any, frozen_clock: Any) -> None:
    handle = send.options(priority="HIGH", delay="10m", meta={"tenant": "x"}, retry={"max_attempts": 1}).enqueue(
        "a", "b"
    )
    stored = Job.objects.get(pk=handle.id)
    assert (stored.state, stored.priority, stored.max_attempts) == ("scheduled", 3, 1)
    assert stored.due_at == frozen_clock.now + dt.timedelta(minutes=10)
    assert handle.meta == {"tenant": "x"}
    assert handle.envelope["retry"] == {"max_attempts": 1, "initial_interval": "2s"}
    assert send.enqueue("a", "b").state == "available"


def test_jobs_of_different_types_share_a_limit_by_its_key(handlers: Registry) -> None:
    @job("api.call", rate_limit={"key": "partner", "concurrency": 1})
    def call(number: int) -> None: ...

    first = call.enqueue(1)
    second = enqueue("api.fetch", 2, rate_limit={"key": "partner", "concurrency": 1})
    assert [row["id"] for row in fetch(Fetch(["default"], count=2))] == [first.id]
    ack_one(Ack(first.id))
    assert [row["id"] for row in fetch(Fetch(["default"], count=2))] == [second.id]


def test_pending_id_and_expiry(send: Any, frozen_clock: Any) -> None:
    wanted = "01941234-1234-7234-8234-123456789abc"
    expires_at = frozen_clock.now + dt.timedelta(hours=1)
    handle = send.options(pending=True, id=wanted, expires_at=expires_at).enqueue("a", "b")
    assert (handle.id, handle.state) == (uuid.UUID(wanted), "pending")
    assert Job.objects.get(pk=handle.id).expires_at == expires_at


def test_tuples_arrive_as_lists(handlers: Registry) -> None:
    assert enqueue("report.make", (1, (2, 3))).args == [[1, [2, 3]]]


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_transaction_takes_its_jobs_with_it(send: Any) -> None:
    with transaction.atomic():
        send.enqueue("a", "b")
        transaction.set_rollback(True)
    assert not Job.objects.exists()


def test_after_commit_is_the_same_promise(send: Any) -> None:
    """To the outermost commit, and back with a savepoint."""
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        enqueue_after_commit("email.send", "a", "b")
        raise ZeroDivisionError
    assert not Job.objects.exists()
    with transaction.atomic():
        kept = enqueue_after_commit("email.send", "a", "b")
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            enqueue_after_commit("email.send", "c", "d")
            raise ZeroDivisionError
    assert [job.pk for job in Job.objects.all()] == [kept.id]
    assert enqueue_bulk is enqueue_many


@pytest.mark.django_db(transaction=True)
def test_after_commit_is_refused_where_the_transaction_is_another_databases(send: Any, monkeypatch: Any) -> None:
    class Other:
        alias, in_atomic_block = "shop", True

    # For this thread alone: others, of calls that have just been answered, close their connections.
    here, everywhere = threading.get_ident(), connections.all
    monkeypatch.setattr(
        connections, "all",
        lambda **how: [connection, Other] if threading.get_ident() == here else everywhere(**how),
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="A transaction is open in 'shop', but the job would be stored in 'default'"):
        enqueue_after_commit("email.send", "a", "b")
    assert not Job.objects.exists()
    with transaction.atomic():
        enqueue_after_commit("email.send", "a", "b")
    monkeypatch.undo()
    enqueue_after_commit("email.send", "without", "any")
    assert Job.objects.count() == 2


def test_a_refused_argument_leaves_the_callers_transaction_usable(send: Any) -> None:
    with transaction.atomic():
        with pytest.raises(TypeError, match=r"args\[0\] is a set"):
            send.enqueue({1}, "b")
        send.enqueue("a", "b")
    assert Job.objects.count() == 1


def test_a_type_without_a_handler_here_takes_any_arguments(handlers: Registry) -> None:
    handle = enqueue("report.make", 1, {"a": None}, queue="reports", timeout="90s")
    assert (handle.queue, handle.args) == ("reports", [1, {"a": None}])


def test_a_type_with_a_handler_here_keeps_its_options_and_signature(send: Any) -> None:
    assert enqueue("email.send", "a", "b", priority=1).queue == "email"
    with pytest.raises(TypeError, match="missing a required argument"):
        enqueue("email.send", "a")
    with pytest.raises(TypeError, match=r"no option to=.*There are .*Arguments of a job go to \.enqueue\(\)"):
        enqueue("report.make", to="a")  # type: ignore[call-arg]


def test_many_jobs_are_stored_in_order_in_a_constant_number_of_statements(send: Any) -> None:
    send.enqueue("warm", "up")  # makes the queue

    def statements(count: int) -> int:
        with CaptureQueriesContext(connection) as queries:
            handles = enqueue_many([send.s(str(n), "x") for n in range(count)])
        assert [handle.args[0] for handle in handles] == [str(n) for n in range(count)]
        return len(queries)

    assert statements(50) == statements(2)


def test_many_takes_handlers_and_names(send: Any) -> None:
    handles = enqueue_many([send.s("a", "b"), ("report.make", [1]), ("report.make", (2,), {"queue": "reports"})])
    assert [(handle.type, handle.queue) for handle in handles] == [
        ("email.send", "email"), ("report.make", "default"), ("report.make", "reports"),
    ]  # fmt: skip
    assert enqueue_many([]) == []
    with pytest.raises(TypeError, match=r"handler\.s"):
        enqueue_many(["report.make"])  # type: ignore[list-item]


@pytest.mark.parametrize("odd", [None, 5, ["a"], {}, b"a.b", object()])
def test_what_is_no_job_type_is_refused_with_what_to_write(odd: Any) -> None:
    for call in (lambda: enqueue(odd, 1), lambda: enqueue_many([(odd, [1])])):
        with pytest.raises(TypeError, match=r'^A job type is a text, such as "email\.send", not '):
            call()


def test_what_was_made_to_be_enqueued_is_no_job_type(send: Any) -> None:
    for odd in (send, send.options(queue="q"), send.s("a", "b"), chain(send.s("a", "b"))):
        with pytest.raises(TypeError, match=r"by its own enqueue\(\), and what \.s\(\) has made by enqueue_many"):
            enqueue(odd, "a", "b")
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "odd", [None, 5, "a.b", {"a.b": [1]}, ["a.b"], [None], [("a.b", 5)], [("a.b", "ab")], [("a.b", [], None)],
            [("a.b", [], {5: 1})], [("a.b", [], [("queue", "q")])], [["a.b", []]]],
)  # fmt: skip
def test_many_takes_nothing_but_jobs(send: Any, odd: Any) -> None:
    for jobs in (odd, [send.s("a", "b"), *odd] if isinstance(odd, list) else send.s("a", "b")):
        with pytest.raises(TypeError, match=r"^enqueue_many takes a list of jobs, each handler\.s"):
            enqueue_many(jobs)
    assert not Job.objects.exists()


def test_many_is_all_or_nothing(send: Any) -> None:
    with pytest.raises(TypeError):
        enqueue_many([send.s("a", "b"), ("report.make", [object()])])
    with pytest.raises(Exception, match="type"):
        enqueue_many([send.s("a", "b"), PreparedJob("No Type", [], {})])
    assert not Job.objects.exists()


def test_a_dropped_job_says_so(send: Any) -> None:
    def drop(job: Any, next: Any) -> None:
        return None

    with added(drop):
        handle = send.enqueue("a", "b")
    assert handle.dropped
    assert repr(handle) == "<job dropped>"
    with pytest.raises(JobDropped, match=r"handle\.dropped"):
        assert handle.id
    assert not Job.objects.exists()


def test_a_handle_follows_its_job(send: Any) -> None:
    handle = send.enqueue("a", "b")
    fetch(Fetch(["email"], worker_id="w"))
    assert handle.state == "available"
    assert handle.refresh().state == "active"
    ack_one(Ack(handle.id, '{"sent":1.10}', "w"))
    handle.refresh()
    assert (handle.state, handle.result, handle.is_finished, handle.error) == ("completed", {"sent": 1.10}, True, None)
    assert handle.wait(timeout=0) is handle


def test_cancel_and_retry(send: Any) -> None:
    handle = send.enqueue("a", "b")
    assert handle.cancel("no longer needed").state == "cancelled"
    with pytest.raises(InvalidStateTransition):
        handle.retry()
    dead = send.options(retry={"max_attempts": 1}).enqueue("a", "b")
    fetch(Fetch(["email"], worker_id="w"))
    fail_one(Failure(dead.id, {"message": "broken"}))
    assert dead.refresh().error is not None
    assert dead.errors[0]["message"] == "broken"
    assert dead.retry().state == "available"
    assert dead.attempt == 0


def test_retry_revives_what_was_kept_out_of_the_dead_letters(send: Any) -> None:
    handle = send.options(retry={"max_attempts": 1, "on_exhaustion": "discard"}).enqueue("a", "b")
    fetch(Fetch(["email"], worker_id="w"))
    fail_one(Failure(handle.id, {"message": "broken"}))
    assert not handle.refresh().row["dead_letter"]
    assert handle.retry().state == "available"


@pytest.mark.parametrize("odd", [5, b"late", ["late"], False])
def test_a_reason_is_a_text(send: Any, odd: Any) -> None:
    handle, flow = send.enqueue("a", "b"), chain(send.s("a", "b")).enqueue()
    for one in (handle, flow):
        with pytest.raises(TypeError, match="reason="):
            one.cancel(odd)
    assert (handle.refresh().state, flow.refresh().state) == ("available", "running")
    assert handle.cancel(None).state == "cancelled"  # type: ignore[arg-type]


class _Word(str, enum.Enum):  # noqa: UP042 - sites have both kinds
    QUEUE = "mail"
    TYPE = "email.other"


def test_members_of_an_enum_of_texts_are_their_values() -> None:
    handle = enqueue(_Word.TYPE, _Word.QUEUE, queue=_Word.QUEUE, tags=[_Word.QUEUE])
    assert (handle.type, handle.queue, handle.args) == ("email.other", "mail", ["mail"])
    assert {type(handle.row["type"]), type(handle.row["queue"])} == {str}
    assert (handle.refresh().type, handle.queue, handle.envelope["tags"]) == ("email.other", "mail", ["mail"])


def test_get_job(send: Any) -> None:
    handle = send.enqueue("a", "b")
    assert get_job(handle.id) == get_job(str(handle.id)) == handle
    assert len({get_job(handle.id), handle}) == 1
    unknown: Any  # a view that passes on what it got may have anything
    for unknown in ("nonsense", "\udcff", "", None, 7, uuid.uuid4()):
        with pytest.raises(NotFound):
            get_job(unknown)


def test_the_error_of_a_second_unique_job_names_what_can_be_done(handlers: Registry) -> None:
    unique = job("unique.one", unique=True)(lambda: None)
    first = unique.enqueue()
    with pytest.raises(Duplicate, match=str(first.id)) as caught:
        unique.enqueue()
    traceback = "".join(format_exception(caught.value))
    for strategy in ("reject", "ignore", "replace", "replace_except_schedule"):
        assert f"'{strategy}'" in caught.value.hint
        assert f"'{strategy}'" in traceback


def test_waiting_inside_a_transaction_is_refused_instead_of_hanging(send: Any) -> None:
    handle = send.enqueue("a", "b")
    with transaction.atomic(), pytest.raises(TransactionManagementError, match=r"drain\(\) of its worker\(\), run"):
        handle.wait()


@pytest.mark.django_db(transaction=True)
def test_waiting_gives_up_in_time(send: Any) -> None:
    handle = send.enqueue("a", "b")
    with pytest.raises(TimeoutError, match=r"is still available after 0\.05 seconds") as caught:
        handle.wait(timeout=0.05)
    assert caught.value.__notes__[0].startswith("No worker has it now: manage.py ojs_status ")
    for over in (-1, float("-inf"), -(10**5000)):  # the deadline has passed: one look
        with pytest.raises(TimeoutError, match="is still available"):
            handle.wait(timeout=over)


@pytest.mark.parametrize(
    "call",
    [
        lambda send: send.enqueue("a", "b"), lambda send: get_job(uuid.uuid4()), lambda send: get_workflow("w"),
        lambda send: chain(send.s("a", "b")).enqueue(), lambda send: emit_event("order.paid", "7"),
    ],
)  # fmt: skip
async def test_in_asynchronous_code_the_error_names_the_form_for_it(call: Any, send: Any) -> None:
    with pytest.raises(SynchronousOnlyOperation) as caught:
        call(send)
    assert "handler.aenqueue()" in caught.value.__notes__[0]


@pytest.mark.django_db(transaction=True)
async def test_waiting_for_ever_is_waiting(send: Any) -> None:
    handle = await send.aenqueue("a", "b")
    await handle.acancel()
    for length in (10**5000, float("inf"), 1e300):
        for wait in (sync_to_async(handle.wait), handle.await_):
            assert (await wait(length, raise_error=False)).state == "cancelled"


def test_waiting_for_what_is_no_time_is_refused(send: Any) -> None:
    """A deadline of NaN would never pass."""
    with pytest.raises(ValueError, match=r"^timeout=nan: give seconds"):
        send.enqueue("a", "b").wait(float("nan"))


def test_waiting_for_a_job_that_failed_does_not_pass_for_success(send: Any) -> None:
    dead = send.options(retry={"max_attempts": 1}).enqueue("a", "b")
    fetch(Fetch(["email"], worker_id="w"))
    fail_one(Failure(dead.id, {"type": "SMTPError", "message": "no such mailbox"}))
    with pytest.raises(JobFailed, match="is discarded: SMTPError: no such mailbox") as caught:
        dead.wait()
    assert (caught.value.handle is dead, caught.value.error) == (True, dead.error)
    assert not isinstance(caught.value, JobCancelled)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (str(copied), copied.handle, copied.error) == (str(caught.value), dead, dead.error)
    assert dead.wait(raise_error=False) is dead

    unwanted = send.enqueue("a", "b").cancel()
    with pytest.raises(JobCancelled, match=r"is cancelled\.$") as cancelled:
        unwanted.wait(timeout=0)
    assert (cancelled.value.handle, cancelled.value.error) == (unwanted, None)
    assert unwanted.wait(raise_error=False).state == "cancelled"


def test_waiting_for_a_workflow_that_failed_does_not_pass_for_success(send: Any) -> None:
    flow = chain(send.options(retry={"max_attempts": 1}).s("a", "b"), send.s("c", "d")).enqueue()
    fetch(Fetch(["email"], worker_id="w"))
    fail_one(Failure(flow.jobs[0].id, {"message": "broken"}))
    with pytest.raises(WorkflowFailed, match="is failed") as caught:
        flow.wait()
    assert (caught.value.handle, caught.value.error) == (flow, flow.error)
    assert not isinstance(caught.value, WorkflowCancelled)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert flow.wait(raise_error=False) is flow

    unwanted = group(send.s("a", "b")).enqueue().cancel()
    with pytest.raises(WorkflowCancelled, match=r"is cancelled\.$"):
        unwanted.wait(timeout=0)
    assert unwanted.wait(raise_error=False).state == "cancelled"


@pytest.mark.parametrize("own", ["order 17", "", "ü", "x" * 129])
def test_an_id_that_no_workflow_can_have_is_refused_and_not_replaced(send: Any, own: str) -> None:
    with pytest.raises(InvalidWorkflow, match="128 letters"):
        chain(send.s("a", "b")).enqueue(id=own)
    assert not Workflow.objects.exists()


def test_a_workflow_of_a_list_is_told_to_unpack_it(send: Any) -> None:
    for jobs in ([send.s("a", "b")], (send.s("a", "b") for _ in "ab")):
        with pytest.raises(TypeError, match=r"Unpack it: group\(\*jobs\)\.$"):
            group(jobs)  # type: ignore[arg-type]


def test_a_job_of_a_workflow_cannot_have_an_id_of_the_callers(send: Any) -> None:
    named = send.options(id=uuid.UUID("01990000-0000-7000-8000-000000000001")).s("a", "b")
    for make in (
        lambda: chain(named),
        lambda: batch(send.s("a", "b"), on_success=named),
        lambda: PreparedWorkflow.graph({"a": named}, after={}),
    ):
        with pytest.raises(TypeError, match="makes the ids of its jobs"):
            make()


@pytest.mark.django_db(transaction=True)
async def test_waiting_from_asynchronous_code_raises_alike(send: Any) -> None:
    unwanted = await send.aenqueue("a", "b")
    await unwanted.acancel()
    with pytest.raises(JobCancelled):
        await unwanted.await_()
    assert await unwanted.await_(raise_error=False) is unwanted
    flow = await sync_to_async(group(send.s("a", "b")).enqueue)()
    await flow.acancel()
    with pytest.raises(WorkflowCancelled):
        await flow.await_()
    assert await flow.await_(raise_error=False) is flow
    await sync_to_async(connections.close_all)()


@pytest.mark.django_db(transaction=True)
async def test_everything_has_an_asynchronous_form(send: Any) -> None:
    handle = await send.aenqueue("a", "b")
    assert (await aget_job(handle.id)).state == "available"
    with pytest.raises(TimeoutError):
        await handle.await_(timeout=0.01)
    await sync_to_async(fetch)(Fetch(["email"], worker_id="w"))
    await sync_to_async(ack_one)(Ack(handle.id, None, "w"))
    assert (await handle.await_(timeout=60)).state == "completed"
    other = await aenqueue("report.make", 1)
    assert (await other.acancel()).state == "cancelled"
    assert (await other.arefresh()).state == "cancelled"
    await sync_to_async(connections.close_all)()
