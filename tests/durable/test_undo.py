"""What a durable handler did is undone where its job is discarded or cancelled (CKP-17 to CKP-20)."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, transaction
from django.urls import reverse

from django_ojs import Discard, Fail, JobContext, StepError, chain, clock, get_job, job, retention, step
from django_ojs.errors import BackendUnavailable, Conflict, NotFound, OJSError
from django_ojs.jobs import bulk, cancel, checkpoints, compensations, delete, replay, retry, schemas, timers
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Failure, fail_one
from django_ojs.jobs.push import push
from django_ojs.models import Job, JobStep
from django_ojs.queues.configuration import configure, forget
from django_ojs.rules import replayrules
from django_ojs.rules.steps import COMPENSATES
from django_ojs.testing import job_context
from django_ojs.testing.storedjobs import WorkerJobs, inline
from tests.durable.conftest import NOW
from tests.middlewares import added

pytestmark = pytest.mark.django_db

ONCE = {"max_attempts": 1}
done: list[Any] = []
broken: set[str] = set()


@pytest.fixture(autouse=True)
def _nothing_undone() -> None:
    done.clear()
    broken.clear()


def undo(what: str, amount: dt.timedelta = dt.timedelta(0)) -> str:
    if what in broken:
        raise ConnectionError(f"no line for {what}")
    done.append(what if not amount else (what, amount))
    return what


async def undo_later(what: str) -> None:
    undo(what)


@step(retry={"max_attempts": 2, "initial_interval": "1ms"})
def undo_stubbornly(what: str) -> None:
    try:
        undo(what)
    finally:
        broken.discard(what)


def order(ending: Callable[[JobContext], Any] = lambda context: context.step("ship", fails), **options: Any) -> Any:
    """A handler that does two things, says how they are undone, and ends so."""

    @job("order.fulfil", durable=True, **{"retry": ONCE} | options)
    def handler(context: JobContext, number: int) -> Any:
        paid = context.step("charge", lambda: f"charge-{number}")
        context.on_failure(undo, paid)
        context.step("reserve", int)
        context.on_failure(undo, "reserve", amount=dt.timedelta(days=1), name="reservation")
        return ending(context)

    return handler


def fails() -> None:
    raise ValueError("no lorry")


def compensation(handle: Any) -> Job:
    return Job.objects.get(parent_id=handle.id)


def undoes_nothing(jobs: WorkerJobs, handler: Any, message: str) -> Job:
    """Run the handler: the job that undoes its steps is discarded with this message, and has undone none."""
    handle = handler.enqueue()
    jobs.drain(with_scheduled=True)
    found = compensation(handle)
    assert (found.state, done) == ("discarded", [])
    assert message in found.errors[-1]["message"]  # type: ignore[index]
    return found


def names(job_id: uuid.UUID) -> list[str]:
    return list(JobStep.objects.filter(job_id=job_id).order_by("pk").values_list("name", flat=True))


UNDONE = [("reserve", dt.timedelta(days=1)), "charge-7"]


def test_what_was_done_is_undone_in_reverse_order_by_a_job_of_its_own(jobs: WorkerJobs) -> None:
    handle = order().enqueue(7)
    jobs.drain()
    assert (handle.refresh().state, done) == ("discarded", UNDONE)
    found = compensation(handle)
    assert (found.type, found.queue, found.args, found.state) == ("order.fulfil", "default", [7], "completed")
    assert found.extra == {"parent_id": str(handle.id), "root_id": str(handle.id), "x_compensates": str(handle.id)}
    assert names(handle.id) == []
    assert names(found.pk) == [
        "charge", "$undo-1", "reserve", "reservation", "$undo:reservation", "$undo:undo-1",
    ]  # fmt: skip
    assert JobStep.objects.get(name="$undo:undo-1").result == "charge-7"
    assert JobStep.objects.exclude(event_name=None).count() == 0  # nothing is looked at again


def test_where_jobs_run_inline_it_is_undone_at_once() -> None:
    with inline(raise_errors=False) as jobs:
        handle = order().enqueue(7)
        assert (handle.state, done) == ("discarded", UNDONE)
        assert compensation(handle).state == "completed"
        assert [run.job.state for run in jobs.performed] == ["discarded", "completed"]
    done.clear()
    with inline(), pytest.raises(ValueError, match="no lorry"):
        order().enqueue(7)
    assert done == UNDONE


@pytest.mark.parametrize("how", ["job", "workflow", "many"])
def test_where_jobs_run_inline_what_is_cancelled_is_undone_at_once(how: str) -> None:
    handler = order(lambda context: context.wait_for_event("order.paid", key=7))
    with inline():
        if how == "workflow":
            flow = chain(handler.s(7)).enqueue()
            handle = flow.jobs[0]
        else:
            handle = handler.enqueue(7)
        assert (handle.refresh().state, done) == ("retryable", [])
        if how == "workflow":
            flow.cancel()
        elif how == "many":
            bulk.run(bulk.verb_of("cancel"), [handle.id], partial=True)
        else:
            handle.cancel()
        assert (handle.refresh().state, done) == ("cancelled", UNDONE)
        assert compensation(handle).state == "completed"


def test_a_name_that_looks_like_a_number_is_another_one(jobs: WorkerJobs) -> None:
    @job("undo.names", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext) -> None:
        context.on_failure(undo, "first")
        context.on_failure(undo, "second", name="undo-1")
        raise ValueError

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert (done, compensation(handle).state) == (["second", "first"], "completed")


def test_a_job_that_completes_undoes_nothing(jobs: WorkerJobs) -> None:
    handle = order(lambda context: "shipped").enqueue(7)
    jobs.drain()
    assert (handle.refresh().result, done, Job.objects.count()) == ("shipped", [], 1)
    assert names(handle.id) == ["charge", "reserve"]


def test_a_job_that_is_tried_again_undoes_nothing_before_its_last_attempt(jobs: WorkerJobs) -> None:
    handle = order(retry={"max_attempts": 2, "initial_interval": "1h", "jitter": False}).enqueue(7)
    jobs.drain()
    assert (handle.refresh().state, done) == ("retryable", [])
    jobs.drain(with_scheduled=True)
    assert (handle.refresh().state, done) == ("discarded", UNDONE)


@pytest.mark.parametrize("error", [Fail("no such order"), Discard("no longer wanted")])
def test_a_handler_that_ends_its_job_itself(jobs: WorkerJobs, error: Exception) -> None:
    def ending(context: JobContext) -> None:
        raise error

    order(ending).enqueue(7)
    jobs.drain()
    assert done == UNDONE


def asleep(jobs: WorkerJobs) -> Any:
    handle = order(lambda context: context.sleep("30d"), total_timeout="40d").enqueue(7)
    jobs.drain()
    assert (handle.refresh().state, done) == ("retryable", [])
    return handle


def _cancel(job_id: uuid.UUID) -> None:
    cancel.cancel([job_id])


def _by_sql(job_id: uuid.UUID) -> None:
    """As a site's own statement might, past every verb."""
    table = Job._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {table} SET state = 'cancelled', finished_at = enqueued_at, wake_at = NULL WHERE id = %s",
            [Job._meta.pk.get_db_prep_value(job_id, connection)],
        )


def _too_late(job_id: uuid.UUID) -> None:
    clock.freeze(NOW + dt.timedelta(days=41))


ENDS = [_cancel, _by_sql, _too_late]


@pytest.mark.parametrize("end", ENDS)
def test_however_a_job_ends_that_waits(jobs: WorkerJobs, end: Callable[[uuid.UUID], None]) -> None:
    handle = asleep(jobs)
    end(handle.id)
    jobs.drain()
    assert done == UNDONE
    assert handle.refresh().state in ("cancelled", "discarded")
    assert compensation(handle).state == "completed"


def test_a_job_that_runs_while_it_is_cancelled_may_first_notice(jobs: WorkerJobs) -> None:
    def ending(context: JobContext) -> None:
        cancel.cancel([context.id])

    handle = order(ending).enqueue(7)
    jobs.drain()
    found = compensation(handle)
    lease = Job.objects.get(pk=handle.id).lease_ms
    assert lease
    assert (found.state, found.due_at, done) == ("scheduled", NOW + dt.timedelta(milliseconds=lease), [])
    jobs.drain(with_scheduled=True)
    assert done == UNDONE


@pytest.mark.parametrize("kept", [True, False], ids=["attempts are kept", "attempts are not kept"])
def test_a_job_that_runs_while_its_time_ends_may_first_notice(jobs: WorkerJobs, settings: Any, kept: bool) -> None:
    settings.OJS = {"EXECUTION_HISTORY": kept}
    late = NOW + dt.timedelta(hours=2)

    def ending(context: JobContext) -> None:
        clock.freeze(late)
        timers.apply_due()

    handle = order(ending, total_timeout="1h").enqueue(7)
    jobs.drain()
    assert handle.refresh().state == "discarded"
    found, lease = compensation(handle), Job.objects.get(pk=handle.id).lease_ms
    assert lease
    assert (found.state, found.due_at, done) == ("scheduled", late + dt.timedelta(milliseconds=lease), [])
    jobs.drain(with_scheduled=True)
    assert done == UNDONE


def test_an_undo_that_fails_is_tried_again_and_those_before_it_are_not(jobs: WorkerJobs) -> None:
    broken.add("charge-7")
    handle = order().enqueue(7)
    jobs.drain()
    assert done == UNDONE[:1]
    found = compensation(handle)
    assert (found.state, found.errors[0]["message"]) == ("retryable", "no line for charge-7")  # type: ignore[index]
    broken.clear()
    jobs.drain(with_scheduled=True)
    assert (done, compensation(handle).state) == (UNDONE, "completed")


def test_a_compensation_that_has_failed_is_a_dead_letter_and_goes_on_when_it_is_retried(jobs: WorkerJobs) -> None:
    broken.add("charge-7")
    handle = order().enqueue(7)
    jobs.drain(with_scheduled=True)
    found = compensation(handle)
    assert (found.state, found.dead_letter, Job.objects.count()) == ("discarded", True, 2)
    broken.clear()
    retry.retry([found.pk])
    jobs.drain()
    assert (done, compensation(handle).state) == (UNDONE, "completed")


def _from_its_first_call(job_id: uuid.UUID) -> Any:
    return retry.restart_from(job_id, "$undo:reservation")


def _clear_and_retry(job_id: uuid.UUID) -> Any:
    checkpoints.clear(job_id, with_steps=True)
    retry.retry([job_id])


@pytest.mark.parametrize("act", ["clear", "begin anew", "from its first call", "from a step of the other job"])
def test_a_compensation_that_starts_over_knows_what_it_is_to_undo(jobs: WorkerJobs, act: str) -> None:
    broken.add("charge-7")
    handle = order().enqueue(7)
    jobs.drain(with_scheduled=True)
    broken.clear()
    pk = compensation(handle).pk
    if act == "from a step of the other job":
        with pytest.raises(NotFound):
            retry.restart_from(pk, "charge")
        retry.retry([pk])
    else:
        {"clear": _clear_and_retry, "begin anew": _begin_anew, "from its first call": _from_its_first_call}[act](pk)
    jobs.drain()
    again = [] if act == "from a step of the other job" else UNDONE[:1]
    assert (compensation(handle).state, done) == ("completed", UNDONE[:1] + again + UNDONE[1:])


def test_a_compensation_without_its_record_never_runs_the_handler(jobs: WorkerJobs) -> None:
    broken.add("charge-7")
    handle = order().enqueue(7)
    jobs.drain(with_scheduled=True)
    JobStep.objects.all().delete()
    retry.retry([compensation(handle).pk])
    jobs.drain(with_scheduled=True)
    found = compensation(handle)
    assert (found.state, found.attempt, done) == ("discarded", 1, UNDONE[:1])
    assert "steps were deleted" in found.errors[-1]["message"]  # type: ignore[index]


def test_a_dead_letter_that_is_retried_starts_over(jobs: WorkerJobs) -> None:
    calls: list[int] = []

    @job("order.again", durable=True, retry=ONCE)
    def handler(context: JobContext) -> None:
        context.step("charge", calls.append, 1)
        context.on_failure(undo, len(calls))
        context.step("ship", fails)

    handle = handler.enqueue()
    for number in (1, 2):
        jobs.drain()
        assert (calls, done) == ([1] * number, list(range(1, number + 1)))
        retry.retry([handle.id])
    assert Job.objects.filter(parent_id=handle.id).count() == 2


def test_a_queue_that_does_not_take_it_only_delays_it(jobs: WorkerJobs, caplog: pytest.LogCaptureFixture) -> None:
    handle = asleep(jobs)
    configure("default", {"allowed_job_types": ["other.*"]})
    forget()
    cancel.cancel([handle.id])
    assert compensations.follow_up() == 0
    assert "cannot be enqueued" in caplog.text
    assert len(names(handle.id)) == 5
    assert compensations.follow_up() == 0  # not before its time
    assert caplog.text.count("cannot be enqueued") == 1
    configure("default", {"allowed_job_types": None})
    forget()
    clock.freeze(NOW + dt.timedelta(minutes=1))
    assert compensations.follow_up() == 1


def test_a_middleware_of_the_site_that_fails_only_delays_it(jobs: WorkerJobs, caplog: pytest.LogCaptureFixture) -> None:
    handles = [asleep(jobs), asleep(jobs)]
    for handle in handles:
        cancel.cancel([handle.id])
    failing = {str(handles[0].id)}

    def fail_for_one(document: dict[str, Any], following: Any) -> Any:
        if document.get("parent_id") in failing:
            raise RuntimeError("The middleware is broken.")
        return following(document)

    with added(fail_for_one):
        assert compensations.follow_up() == 1
    assert "The middleware is broken." in caplog.text
    clock.freeze(NOW + dt.timedelta(minutes=1))
    assert compensations.follow_up() == 1


def test_neither_the_log_nor_a_caller_is_told_a_hidden_argument_of_what_cannot_be_enqueued(
    unseen: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    settings.OJS = {"REDACT": {"types": {"order.*": ["args"]}}}

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise Conflict("There is no order hunter2.")

    monkeypatch.setattr(compensations, "push", refuse)
    assert compensations.follow_up() == 0
    (outcome,) = delete.delete([unseen.id])
    assert isinstance(outcome, Conflict)
    assert outcome.details["reason"] == "conflict"
    assert caplog.text.count("cannot be enqueued") == caplog.text.count(": conflict") == 1
    assert "hunter2" not in caplog.text


ENQUEUEING = [lambda job_id: compensations.follow_up(), lambda job_id: delete.delete([job_id])]


@pytest.mark.django_db(transaction=True)
def test_the_reason_is_logged_when_no_row_is_locked_any_more(unseen: Any) -> None:
    """What a site does with lines, such as sending mail, takes time; and what is tried again is logged once."""
    logged: list[tuple[str, bool]] = []

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append((record.getMessage(), connection.in_atomic_block))

    configure("default", {"allowed_job_types": ["other.*"]})
    forget()
    logger, watch = logging.getLogger("django_ojs.jobs.compensations"), Watch()
    logger.addHandler(watch)
    try:
        compensations.follow_up()
    finally:
        logger.removeHandler(watch)
    ((message, locked),) = logged
    assert ("cannot be enqueued" in message, locked) == (True, False)


def test_a_caller_is_told_the_reason(unseen: Any) -> None:
    configure("default", {"allowed_job_types": ["other.*"]})
    forget()
    with pytest.raises(Conflict) as caught:
        delete.delete_one(unseen.id)
    assert "takes no jobs of type 'order.fulfil'" in caught.value.details["reason"]


@pytest.mark.parametrize("act", ENQUEUEING, ids=["scheduler", "caller"])
def test_an_outage_refuses_no_job(unseen: Any, act: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It concerns all that is enqueued, so the scheduler waits with all of it; with this job longest, since it may be
    alone."""

    def away(document: dict[str, Any], following: Any) -> Any:
        raise BackendUnavailable("The store is away.")

    with added(away), pytest.raises(BackendUnavailable):
        act(unseen.id)
    assert "cannot be enqueued" not in caplog.text
    clock.freeze(NOW + dt.timedelta(minutes=1))
    assert compensations.follow_up() == 1


def test_a_job_whose_own_store_is_away_does_not_hold_up_the_others(jobs: WorkerJobs, unseen: Any) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(compensations, "follow_up", lambda **options: 0)
        order().enqueue(8)
        jobs.drain()

    def away(document: dict[str, Any], following: Any) -> Any:
        if document["args"] == [7]:
            raise BackendUnavailable("The store is away.")
        return following(document)

    with added(away):
        with pytest.raises(BackendUnavailable):
            compensations.follow_up()
        assert compensations.follow_up() == 1


@pytest.fixture
def unseen(jobs: WorkerJobs, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A dead letter at which the scheduler has not looked yet."""
    with monkeypatch.context() as patched:
        patched.setattr(compensations, "follow_up", lambda **options: 0)
        handle = order().enqueue(7)
        jobs.drain()
    assert (handle.refresh().state, done, Job.objects.count()) == ("discarded", [], 1)
    return handle


def test_a_rule_passes_over_a_dead_letter_that_is_not_undone_yet(jobs: WorkerJobs, unseen: Any) -> None:
    """A retry of it is refused; where the rule has room for one job, it takes not the place of the next one."""
    assert compensations.follow_up() == 1
    clock.freeze(NOW + dt.timedelta(seconds=1))
    plain = push([{"type": "a.plain", "args": [], "queue": "plain", "retry": ONCE}])[0].row
    assert plain is not None
    fetch(Fetch(["plain"], worker_id="w-1"))
    fail_one(Failure(plain["id"], error={"message": "broken"}))
    every = {"since": "2000-01-01T00:00:00Z"}
    rule = replayrules.parse({"name": "again", "filter": every, "delay": "PT0S", "per_minute": 1})
    replay.put(rule)
    assert (replay.preview(rule).due, replay.replay()) == (1, 1)
    assert (get_job(plain["id"]).state, unseen.refresh().state) == ("available", "discarded")
    jobs.drain()
    clock.freeze(NOW + dt.timedelta(minutes=2))
    assert (done, replay.replay(), unseen.refresh().state) == (UNDONE, 1, "available")


@pytest.mark.parametrize("act", [delete.delete, delete.delete_ended])
def test_a_dead_letter_that_is_deleted_at_once_is_undone(jobs: WorkerJobs, unseen: Any, act: Any) -> None:
    assert act([unseen.id]) == [unseen.id]
    assert not Job.objects.filter(pk=unseen.id).exists()
    jobs.drain()
    assert (done, compensation(unseen).state) == (UNDONE, "completed")
    assert names(unseen.id) == []
    (absent,) = act([unseen.id])
    assert isinstance(absent, NotFound)


def test_a_cancelled_job_that_is_deleted_at_once_is_undone(jobs: WorkerJobs) -> None:
    handle = asleep(jobs)
    cancel.cancel([handle.id])
    assert delete.delete_ended([handle.id]) == [handle.id]
    jobs.drain()
    assert (done, Job.objects.count()) == (UNDONE, 1)


def test_a_completed_job_that_is_deleted_at_once_undoes_nothing(
    jobs: WorkerJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(compensations, "follow_up", lambda **options: 0)
        handle = order(lambda context: "shipped").enqueue(7)
        jobs.drain()
    delete.delete_ended([handle.id])
    assert (compensations.follow_up(), Job.objects.count(), JobStep.objects.count()) == (0, 0, 0)


def test_a_job_that_cannot_be_undone_yet_is_not_deleted(jobs: WorkerJobs, unseen: Any) -> None:
    plain = push([{"type": "a.plain", "args": [], "retry": ONCE}])[0].row
    assert plain is not None
    fetch(Fetch(["default"], worker_id="w-1"))
    fail_one(Failure(plain["id"], error={"message": "broken"}))
    configure("default", {"allowed_job_types": ["other.*"]})
    forget()
    refused, deleted = delete.delete([unseen.id, plain["id"]])
    assert isinstance(refused, Conflict)
    assert refused.details["resource_id"] == str(unseen.id)
    assert (deleted, len(names(unseen.id))) == (plain["id"], 4)
    configure("default", {"allowed_job_types": None})
    forget()
    assert delete.delete([unseen.id]) == [unseen.id]
    jobs.drain()
    assert done == UNDONE


def test_what_was_refused_while_the_clock_was_ahead_is_tried_again(jobs: WorkerJobs, unseen: Any) -> None:
    configure("default", {"allowed_job_types": ["other.*"]})
    forget()
    clock.freeze(NOW + dt.timedelta(days=1))
    assert compensations.follow_up() == 0
    configure("default", {"allowed_job_types": None})
    forget()
    clock.freeze(NOW)
    assert compensations.follow_up() == 1


def _clear(job_id: uuid.UUID) -> Any:
    return checkpoints.clear(job_id, with_steps=True)


def _begin_anew(job_id: uuid.UUID) -> Any:
    return retry.retry_one(job_id, clear_checkpoint=True)


def _retry_without_record(job_id: uuid.UUID) -> Any:
    with transaction.atomic():
        (outcome,) = retry.retry_failed([job_id], "default", clear_checkpoint=True)
    if isinstance(outcome, OJSError):
        raise outcome
    return outcome


def _retry_from_step(job_id: uuid.UUID) -> Any:
    return retry.restart_from(job_id, "charge")


FORGETTING = [_clear, _begin_anew, _retry_without_record, _retry_from_step]


@pytest.mark.parametrize("act", FORGETTING)
def test_the_record_of_a_job_that_cannot_be_undone_yet_is_kept(jobs: WorkerJobs, unseen: Any, act: Any) -> None:
    configure("default", {"allowed_job_types": ["other.*"]})
    forget()
    with pytest.raises(Conflict) as refused:
        act(unseen.id)
    assert refused.value.details["resource_id"] == str(unseen.id)
    assert (unseen.refresh().state, len(names(unseen.id))) == ("discarded", 4)
    configure("default", {"allowed_job_types": None})
    forget()
    assert compensations.follow_up() == 1
    jobs.drain()
    assert done == UNDONE


@pytest.mark.parametrize("act", FORGETTING)
def test_what_a_job_did_is_undone_before_its_record_goes(jobs: WorkerJobs, unseen: Any, act: Any) -> None:
    if act is _clear:
        act(unseen.id)
    else:
        with pytest.raises(Conflict) as refused:
            act(unseen.id)
        assert refused.value.details["resource_id"] == str(compensation(unseen).pk)
    jobs.drain()
    assert (done, names(unseen.id), compensation(unseen).state) == (UNDONE, [], "completed")


def test_retention_leaves_a_job_until_what_undoes_it_is_enqueued(jobs: WorkerJobs, unseen: Any) -> None:
    clock.freeze(NOW + dt.timedelta(days=1000))
    assert retention.prune()["jobs"] == 0
    assert compensations.follow_up() == 1
    assert retention.prune()["jobs"] == 1
    jobs.drain()
    assert done == UNDONE


def test_an_asynchronous_handler(jobs: WorkerJobs) -> None:
    @job("order.async", durable=True, retry=ONCE)
    async def handler(context: JobContext) -> None:
        await context.aon_failure(undo, "first")
        await context.aon_failure(undo_later, "second")
        await context.astep("ship", fails)

    handler.enqueue()
    jobs.drain()
    assert done == ["second", "first"]


def test_functions_of_other_kinds(jobs: WorkerJobs) -> None:
    broken.add("first")

    @job("order.kinds", durable=True, retry=ONCE)
    def handler(context: JobContext) -> None:
        context.on_failure(undo_stubbornly, "first")
        context.on_failure(undo_later, "second")
        context.step("ship", fails)

    handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert done == ["second", "first"]
    assert JobStep.objects.get(name="$undo:undo-1").tries == 2


@step
def tell(what: str) -> str:
    undo(what)
    return what


def undo_by_a_step(what: str) -> None:
    tell(f"no {what}")
    if what not in broken:
        broken.add(what)
        raise ConnectionError("no line")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("known", [True, False], ids=["the handler has done that step", "it has not"])
def test_what_undoes_may_do_steps_and_takes_none_of_the_handler_for_them(jobs: WorkerJobs, known: bool) -> None:
    """It ran again and again, at once, or was told that it had done what the handler had done by that step."""

    @job("order.told", durable=True, retry=ONCE)
    def handler(context: JobContext) -> None:
        if known:
            tell("order")
        context.on_failure(undo_by_a_step, "order")
        context.step("ship", fails)

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert (compensation(handle).state, done) == ("completed", ["order", "no order"][not known :])


@pytest.mark.timeout(60)
@pytest.mark.django_db(transaction=True)
def test_a_thread_of_what_undoes_that_does_not_know_so_is_told(jobs: WorkerJobs) -> None:
    """It ran again and again, at once."""

    @job("order.thread", durable=True, retry=ONCE)
    def handler(context: JobContext) -> None:
        def undo_here() -> None:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(context.step, "tell", undo, "told").result()

        context.on_failure(undo_here)
        context.step("ship", fails)

    undoes_nothing(jobs, handler, "contextvars.copy_context")


def test_functions_that_cannot_be_found_by_their_names(jobs: WorkerJobs) -> None:
    """The handler is run over what is recorded, to get them again: no step is done anew, and nothing behind the end."""
    runs: list[str] = []

    @job("order.closures", durable=True, retry=ONCE)
    def handler(context: JobContext) -> None:
        def undo_here(step: str) -> None:
            done.append((step, when, paid))

        runs.append("run")
        when, paid = context.now(), context.step("charge", lambda: runs.append("charge") or len(runs))
        context.on_failure(undo_here, "charge")
        context.on_failure(lambda: done.append("lambda"))
        context.on_failure(undo, "module")
        context.on_failure(undo_here, step=object(), name="object")  # type: ignore[arg-type]
        context.sleep("1h")
        try:
            context.step("ship", fails)
        except ValueError:  # also in the run that collects
            context.step("by-air", runs.append, "by-air")
        context.on_failure(done.append, "by-air")
        context.step("pack", fails)
        runs.append("never")

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert (handle.refresh().state, compensation(handle).state) == ("discarded", "completed")
    assert runs == ["run", "charge", "run", "by-air", "run"]
    assert [one if isinstance(one, str) else one[1:] for one in done] == [
        "by-air", (NOW, 2), "module", "lambda", (NOW, 2),
    ]  # fmt: skip
    assert done[-1][0] == "charge"


class NoLorry(ConnectionError):
    def __init__(self, town: str, *, day: int) -> None:
        super().__init__(f"no lorry to {town}")
        self.day = day


@pytest.mark.parametrize("known", [True, False])
def test_an_exception_that_the_handler_caught_comes_again_as_what_it_was(jobs: WorkerJobs, known: bool) -> None:
    class Local(NoLorry):
        pass

    kind = NoLorry if known else Local  # nobody finds a class inside of a function again

    def no_lorry() -> None:
        raise kind("Ulm", day=3)

    @job("order.caught", durable=True, retry=ONCE)
    def handler(context: JobContext) -> None:
        try:
            context.step("ship", no_lorry)
        except (NoLorry, StepError) as error:
            context.on_failure(lambda said=str(error): done.append(said))
        context.step("pack", fails)

    handle = handler.enqueue()
    jobs.drain(with_scheduled=True)
    assert compensation(handle).state == "completed"
    assert done == ["no lorry to Ulm" if known else "The step 'ship' has failed: Local: no lorry to Ulm"]


def test_what_undoes_a_job_is_checked_by_the_schema_of_that_job(jobs: WorkerJobs, settings: Any) -> None:
    settings.OJS = {"SCHEMA_VALIDATION": "strict"}
    order(lambda context: context.sleep("30d"))
    schemas.register("order.fulfil", "1.0", {"items": {"type": "integer"}})
    (pushed,) = push([{"type": "order.fulfil", "args": [7], "version": "1.0"}])
    assert pushed.row is not None
    jobs.drain()
    schemas.register("order.fulfil", "2.0", {"items": {"type": "string"}})
    cancel.cancel([pushed.row["id"]])
    jobs.drain()
    assert done == UNDONE


def test_a_schema_that_came_after_a_job_without_a_version_does_not_keep_its_undo_out(
    jobs: WorkerJobs, settings: Any
) -> None:
    settings.OJS = {"SCHEMA_VALIDATION": "strict"}
    handle = asleep(jobs)
    schemas.register("order.fulfil", "1.0", {"items": {"type": "string"}})
    cancel.cancel([handle.id])
    jobs.drain()
    assert done == UNDONE


def test_an_asynchronous_handler_with_functions_of_its_own(jobs: WorkerJobs) -> None:
    @job("order.inner", durable=True, retry=ONCE)
    async def handler(context: JobContext) -> None:
        async def undo_here(step: str) -> None:
            done.append(step)

        async def reserve(number: int) -> None:
            await context.astep(f"reserve-{number}", int)
            await context.aon_failure(undo_here, f"reserve-{number}", name=f"undo-{number}")

        async with asyncio.TaskGroup() as group:
            for number in range(2):
                group.create_task(reserve(number))
        async with asyncio.TaskGroup() as group:
            group.create_task(context.astep("ship", fails))

    handler.enqueue()
    jobs.drain()
    assert sorted(done) == ["reserve-0", "reserve-1"]


def test_code_that_has_changed_undoes_nothing_and_says_so(jobs: WorkerJobs) -> None:
    skip: list[int] = []

    @job("order.changed", durable=True, retry=ONCE)
    def handler(context: JobContext) -> None:
        if not skip:
            context.on_failure(lambda: done.append("first"), name="first")
        context.on_failure(lambda: done.append("second"), name="second")
        skip.append(1)
        context.step("ship", fails)

    found = undoes_nothing(jobs, handler, "does not come to what it has said is to be undone (first)")
    skip.clear()
    retry.retry([found.pk])
    jobs.drain()
    assert done == ["second", "first"]


def test_a_handler_without_a_worker() -> None:
    handler = order()
    context = job_context()
    with pytest.raises(ValueError, match="no lorry"):
        handler(context, 7)
    assert done == []
    context.undo()
    assert done == UNDONE


def test_only_the_server_undoes_in_a_worker(jobs: WorkerJobs) -> None:
    handle = order(lambda context: context.undo()).enqueue(7)
    jobs.drain()
    assert "is for tests" in handle.refresh().errors[0]["message"]
    assert done == UNDONE  # once, after that


def test_it_is_recorded_once(jobs: WorkerJobs) -> None:
    handle = order(lambda context: fails() if context.attempt == 1 else "shipped", retry={"max_attempts": 2}).enqueue(7)
    jobs.drain(with_scheduled=True)
    assert (handle.refresh().result, done) == ("shipped", [])


def test_the_pages_of_both_jobs_lead_to_each_other(jobs: WorkerJobs, admin_client: Any) -> None:
    handle = order().enqueue(7)
    jobs.drain()
    pages = {pk: admin_client.get(reverse("admin:django_ojs_job_change", args=[pk])).content.decode().lower()
             for pk in (handle.id, compensation(handle).pk)}  # fmt: skip
    assert "undone by" in pages[handle.id]
    assert str(compensation(handle).pk) in pages[handle.id]
    assert "undoes job" in pages[compensation(handle).pk]
    assert str(handle.id) in pages[compensation(handle).pk]
    assert "$undo:undo-1" in pages[compensation(handle).pk]


def test_a_compensation_may_begin_again_at_its_own_steps_only(jobs: WorkerJobs, admin_client: Any) -> None:
    broken.add("charge-7")
    handle = order().enqueue(7)
    jobs.drain(with_scheduled=True)
    page = admin_client.get(reverse("admin:django_ojs_job_change", args=[compensation(handle).pk])).content.decode()
    assert "?step=%24undo%3Areservation" in page
    assert "?step=charge" not in page


def test_no_client_says_that_a_job_was_undone(jobs: WorkerJobs, admin_client: Any) -> None:
    handle = order().enqueue(7)
    push([{"type": "other.type", "args": [], "parent_id": str(handle.id), COMPENSATES: str(handle.id)}])
    page = admin_client.get(reverse("admin:django_ojs_job_change", args=[handle.id])).content.decode().lower()
    assert "undone by" not in page


def test_a_dead_letter_is_not_retried_while_what_it_did_is_not_undone(jobs: WorkerJobs) -> None:
    """Not while the other job waits, nor while it has failed: the new run would meet calls of the old one."""
    broken.add("charge-7")
    handle = order().enqueue(7)
    jobs.drain()
    (refused,) = retry.retry([handle.id])
    assert isinstance(refused, Conflict)
    assert refused.details["resource_id"] == str(compensation(handle).pk)
    jobs.drain(with_scheduled=True)
    assert compensation(handle).state == "discarded"
    assert isinstance(retry.retry([handle.id])[0], Conflict)
    broken.clear()
    retry.retry([compensation(handle).pk])
    jobs.drain()
    (revived,) = retry.retry([handle.id])
    assert not isinstance(revived, OJSError)
    assert revived["state"] == "available"


def test_a_client_cannot_keep_others_from_a_retry(jobs: WorkerJobs) -> None:
    """By a job that says that it undoes another one, as who may push can."""
    plain = push([{"type": "a.plain", "args": [], "retry": ONCE}])[0].row
    assert plain is not None
    fetch(Fetch(["default"], worker_id="w-1"))
    fail_one(Failure(plain["id"], error={"message": "broken"}))
    push([{"type": "a.forged", "args": [], "parent_id": str(plain["id"]), "x_compensates": str(plain["id"])}])
    (revived,) = retry.retry([plain["id"]])
    assert not isinstance(revived, OJSError)


@pytest.mark.parametrize("undoing", [lambda: None, [undo, object()]], ids=["a lambda", "what cannot be kept"])
def test_what_undoes_a_step_from_inside_of_it_can_be_found_again_or_is_refused(jobs: WorkerJobs, undoing: Any) -> None:
    """The step is not done again, so the handler would not come to it: that was told when the job had failed."""

    @job("order.pay", durable=True, retry=ONCE)
    def pay(context: JobContext) -> None:
        def charge() -> None:
            context.on_failure(*(undoing if isinstance(undoing, list) else [undoing]))

        context.step("charge", charge)

    handle = pay.enqueue()
    jobs.drain()
    error = handle.refresh().error
    assert error is not None
    assert (error["type"], JobStep.objects.filter(kind="undo").count()) == ("StepError", 0)
    assert "give a function that a module defines" in error["message"]
