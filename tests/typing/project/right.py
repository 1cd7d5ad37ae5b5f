"""A user's jobs.py that mypy --strict accepts; `reveal_type` lines are compared with what follows them."""

from __future__ import annotations

import contextlib
import datetime as dt
import unittest
from decimal import Decimal
from typing import Any, reveal_type

from django_ojs import (
    ApprovalDecision,
    ApprovalTimeout,
    ChildFailed,
    Discard,
    EventTimeout,
    Fail,
    JobCancelled,
    JobContext,
    JobFailed,
    JobHandle,
    LockHeld,
    RateLimitOptions,
    ReplayMismatch,
    Retry,
    RetryOptions,
    Snooze,
    StepError,
    StepTimeout,
    Typed,
    UniqueOptions,
    Workflow,
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowHandle,
    aapprove,
    aemit_event,
    aenqueue,
    aenqueue_many,
    aget_job,
    aget_workflow,
    approvals_for,
    approve,
    batch,
    chain,
    delegate_approval,
    delete_schedule,
    emit_event,
    enqueue,
    enqueue_after_commit,
    enqueue_bulk,
    enqueue_many,
    get_job,
    get_workflow,
    group,
    job,
    lock,
    register_schedule,
    step,
    step_type,
    validate_cron,
)
from django_ojs.testing import (
    Drained,
    FakeJobs,
    FakeJobsMixin,
    InlineJobs,
    InlineJobsMixin,
    Jobs,
    Performed,
    WorkerJobs,
    WorkerJobsMixin,
    assert_survives_crashes,
    fake,
    inline,
    job_context,
    worker,
)
from django_ojs.testing import approve as decide_in_test


@job("email.send", queue="email", retry={"max_attempts": 5, "initial_interval": "2s"}, timeout=30)
def send_email(to: str, template: str = "plain") -> bool:
    return True


PATIENT: RetryOptions = {"max_attempts": 8, "max_interval": dt.timedelta(hours=1), "backoff_strategy": "linear"}
ONCE: UniqueOptions = {"keys": ["type", "args"], "states": ["available", "active"], "on_conflict": "ignore"}
PARTNER: RateLimitOptions = {"key": "partner", "rate": {"limit": 100, "period": "1m"}, "on_limit": "reschedule"}


@job("partner.sync", retry=PATIENT, unique=ONCE, rate_limit=PARTNER)
def sync(customer: int) -> None: ...


@job("order.due", args=Typed)
def due(day: dt.date, amount: Decimal) -> str:
    return f"{day:%A} {amount}"


due.enqueue(dt.date(2026, 1, 15), amount=Decimal("9.90"))


async def one_at_a_time() -> bool:
    try:
        with lock("import", timeout="10m", wait=0) as held:
            reveal_type(held.extend())  # bool
        async with lock("import", timeout=dt.timedelta(minutes=10)):
            return True
    except LockHeld as error:
        return bool(error.holder)


@job("report.make")
async def make_report(pages: list[int], options: dict[str, Any]) -> dict[str, Any]:
    return {"pages": pages, **options}


@job("file.hash")
def hash_file(context: JobContext, path: str) -> str:
    context.progress(50, "half", data={"path": path})
    context.log.info("hashing %s", path)
    if context.is_cancelled or not context.heartbeat():
        raise Discard("cancelled")
    if not path:
        raise Fail("no file") from FileNotFoundError(path)
    return path


@job("file.count", context=True, tags=["files"])
def count_words(run: JobContext, path: str) -> int:
    run.set_result({"words": run.attempt})
    raise Retry("later", after=dt.timedelta(minutes=5)) from ValueError(path)


@job("file.any", context=False)
def take_anything(payload: object) -> None:
    raise Snooze("1h")


def caller() -> None:
    reveal_type(send_email("a", template="b"))  # bool
    reveal_type(send_email.enqueue("a"))  # django_ojs.client.handle.JobHandle
    coroutine = make_report([1], {})
    _ = reveal_type(coroutine)  # typing.Coroutine[Any, Any, dict[str, Any]]
    hash_file.enqueue("/etc/hosts")
    hash_file.options(delay="10m", priority=5).enqueue("/etc/hosts")
    count_words.options(at=dt.datetime.now(dt.UTC), unique=True, meta={"a": 1}).enqueue("/etc/hosts")
    take_anything.enqueue({"any": ["thing"]})
    handles: list[JobHandle] = enqueue_many(
        [send_email.s("a"), hash_file.s("b"), ("other.job", [1]), ("other.job", [2], {"queue": "slow"})]
    )
    handle = enqueue("other.job", 1, "two", queue="slow", delay=dt.timedelta(seconds=1))
    handles += enqueue_bulk([send_email.s("a")])
    reveal_type(enqueue_after_commit("other.job", 1, queue="slow"))  # django_ojs.client.handle.JobHandle
    reveal_type(get_job(handle.id).wait(timeout=10).result)  # Any
    with contextlib.suppress(JobCancelled):
        handle.wait(timeout=1, raise_error=False)
    try:
        handle.wait()
    except JobFailed as failed:
        reveal_type(failed.handle)  # django_ojs.client.handle.JobHandle
        reveal_type(failed.error)  # dict[str, Any] | None
    reveal_type(handle.state)  # django_ojs.states.State
    handles[0].cancel("no reason").refresh()


async def asynchronous() -> None:
    handle = await send_email.options(queue="slow").aenqueue("a", "b")
    reveal_type(await aget_job(str(handle.id)))  # django_ojs.client.handle.JobHandle
    reveal_type(await aenqueue("other.job", 1, queue="slow"))  # django_ojs.client.handle.JobHandle
    await (await handle.arefresh()).await_(timeout=1)
    await handle.acancel()
    both = await aenqueue_many([send_email.s("a"), ("other.job", [1])])
    reveal_type(both)  # list[django_ojs.client.handle.JobHandle]
    reveal_type(await make_report([1], {"a": 1}))  # dict[str, Any]


def flows() -> WorkflowHandle:
    mails = group(send_email.s("a"), send_email.s("b", template="c"))
    reveal_type(chain(hash_file.s("/etc/hosts"), mails))  # django_ojs.client.workflow.PreparedWorkflow
    batch(mails, send_email.s("c"), on_failure=take_anything.s(None)).enqueue(queue="slow", delay="10m", tags=["a"])
    steps = {"one": hash_file.s("a"), "two": count_words.s("b")}
    handle = Workflow.graph(steps, after={"two": "one"}, callback_type={"two": "on_complete"}).enqueue(
        name="both", id="2026-11"
    )
    reveal_type(handle.jobs)  # list[django_ojs.client.handle.JobHandle]
    try:
        reveal_type(get_workflow(handle.id).wait(timeout=1).state)  # str
    except WorkflowCancelled:
        get_workflow(handle.id).wait(raise_error=False)
    except WorkflowFailed as failed:
        reveal_type(failed.handle)  # django_ojs.client.workflow.WorkflowHandle
    return handle.refresh().cancel("no reason", cancel_active=True)


async def asynchronous_flows() -> None:
    handle = await chain(send_email.s("a")).aenqueue(name="one")
    reveal_type(await aget_workflow(handle.id))  # django_ojs.client.workflow.WorkflowHandle


def tests() -> None:
    reveal_type(job_context(send_email, attempt=2))  # django_ojs.client.context.JobContext
    with fake() as faked:
        send_email.enqueue("a")
    reveal_type(faked)  # django_ojs.testing.fakejobs.FakeJobs
    reveal_type(faked.assert_enqueued(send_email, args=["a"], delay="1h"))  # django_ojs.client.handle.JobHandle
    with worker() as jobs:
        reveal_type(jobs.drain(with_scheduled=True, until=dt.timedelta(days=1)).raise_first().completed)  # int
        reveal_type(jobs.assert_performed("email.send").exception)  # BaseException | None
    with inline(raise_errors=False) as ran:
        ran.fail_next(hash_file, OSError(), times=2)
        ran.assert_state(hash_file.enqueue("/etc/hosts"), "completed")


def helpers(jobs: Jobs, ran: InlineJobs, found: WorkerJobs, faked: FakeJobs) -> list[Performed]:
    """What a project's own test helpers are made of."""
    jobs.assert_enqueued_in("email", send_email, times=2, args=["a"])
    reveal_type(jobs.assert_workflow_enqueued("chain", name="one"))  # django_ojs.client.workflow.WorkflowHandle
    jobs.refute_enqueued(send_email, args=["b"])
    reveal_type(jobs.all_enqueued(queue="email", args=["a"]))  # list[django_ojs.client.handle.JobHandle]
    reveal_type(jobs.assert_enqueued(send_email, count=2))  # django_ojs.client.handle.JobHandle
    reveal_type(jobs.assert_job_state("2026", "available"))  # django_ojs.client.handle.JobHandle
    reveal_type(jobs.assert_workflow_created("chain", count=1))  # django_ojs.client.workflow.WorkflowHandle
    reveal_type(jobs.freeze_time())  # datetime.datetime
    reveal_type(jobs.advance_time("10m"))  # datetime.datetime
    found.refute_performed(hash_file)
    found.clear_all()
    drained: Drained = found.drain(queues=["email"], max_jobs=5)
    if any(isinstance(error, JobFailed) for error in drained.exceptions):
        faked.clear()
    return [*drained.runs, *ran.performed]


class Faked(FakeJobsMixin, unittest.TestCase):
    def test_it(self) -> None:
        reveal_type(self.jobs)  # django_ojs.testing.fakejobs.FakeJobs


class AtOnce(InlineJobsMixin, unittest.TestCase):
    raise_job_errors = False

    @fake()
    def test_it(self) -> None:
        reveal_type(self.jobs)  # django_ojs.testing.storedjobs.InlineJobs


class Mail(WorkerJobsMixin, unittest.TestCase):
    def test_it(self) -> None:
        reveal_type(self.jobs)  # django_ojs.testing.storedjobs.WorkerJobs


@step_type(name="orders.Paid", encode=lambda paid: paid.number, decode=lambda number: Paid(number))  # noqa: PLW0108
class Paid:
    def __init__(self, number: int) -> None:
        self.number = number


@step(retry={"max_attempts": 3}, timeout="30s")
def charge(order: int) -> Paid:
    return Paid(order)


@step
async def remind(order: int) -> str:
    return f"order {order}"


class Till:
    @step
    def pay(self, order: int) -> Paid:
        return Paid(order)


@job("orders.fulfil", durable="2", on_change="resume")
def fulfil(context: JobContext, order: int) -> str:
    reveal_type(charge(order))  # right.Paid
    reveal_type(Till().pay(order))  # right.Paid
    reveal_type(context.step("count", len, "abc", retry={"max_attempts": 2}))  # int
    reveal_type(context.step_transaction("book", str, order))  # str
    with context.step_transaction("ship") as block:
        if block.is_new:
            block.result = order
    context.sleep("2d")
    context.sleep_until(dt.datetime.now(dt.UTC))
    reveal_type(context.now())  # datetime.datetime
    reveal_type(context.uuid())  # uuid.UUID
    reveal_type(context.random())  # str
    with contextlib.suppress(StepTimeout, StepError, ReplayMismatch):
        charge.named("again")(order)
    return "done"


@job("orders.watch", durable=True)
async def watch(context: JobContext, order: int) -> None:
    reveal_type(await remind(order))  # str
    reveal_type(await context.astep("count", len, "abc"))  # int
    await context.asleep("1h")
    await context.acontinue_as_new(order)


def test_fulfil() -> None:
    assert_survives_crashes(fulfil.s(7), check=lambda handle: None)


@job("orders.wait", durable=True)
def wait(context: JobContext, order: int) -> None:
    with contextlib.suppress(EventTimeout):
        context.wait_for_event("order.paid", key=order, timeout="7d")
    reveal_type(emit_event("order.seen", order, {"by": "us"}).is_new)  # bool


@job("orders.all", durable=True)
def all_orders(context: JobContext, orders: list[int]) -> list[str]:
    try:
        context.run(fulfil.s(orders[0]), name="first", cancel_with_parent=False)
    except ChildFailed as error:
        reveal_type(error.job_id)  # str
    return [str(found) for found in context.run_all([fulfil.s(one) for one in orders], limit=50, raise_errors=False)]


@job("orders.aall", durable=True)
async def aall_orders(context: JobContext, order: int) -> None:
    await context.arun(fulfil.s(order))
    reveal_type(await context.arun_all([fulfil.s(order)]))  # list[Any]


async def tell(order: int) -> None:
    reveal_type((await aemit_event("order.paid", order)).is_new)  # bool


@job("orders.refund", durable=True)
def refund(context: JobContext, order: int) -> None:
    with contextlib.suppress(ApprovalTimeout):
        decision = context.wait_for_approval("refund", details={"order": order}, assignees=["group:x"], timeout="7d")
        reveal_type(decision.approved)  # bool
        keep: ApprovalDecision = decision
        context.step("keep", str, keep.by)


@job("orders.arefund", durable=True)
async def arefund(context: JobContext, order: int) -> bool:
    return (await context.await_for_approval("refund", default=False, timeout="7d")).approved


def decide(user: Any) -> None:
    for approval in approvals_for(user):
        delegate_approval(approval, ["user:ben"], by=user)
        reveal_type(approve(approval, by=user, approved=False))  # django_ojs.models.approval.Approval
    decide_in_test(refund.enqueue(7), by=user)


def plan(order: int) -> None:
    validate_cron("0 7 * * *")
    schedule = register_schedule(f"refund-{order}", refund.s(order), cron="@daily")
    reveal_type(schedule)  # django_ojs.models.cron.CronSchedule
    reveal_type(delete_schedule("refund-7"))  # bool


async def adecide(user: Any, approval: str) -> None:
    await aapprove(approval, by=user, data={"amount": 1})
