"""A user's jobs.py that mypy --strict accepts; `reveal_type` lines are compared with what follows them."""

from __future__ import annotations

import contextlib
import datetime as dt
import unittest
from typing import Any, reveal_type

from django_ojs import (
    Discard,
    JobCancelled,
    JobContext,
    JobFailed,
    JobHandle,
    Retry,
    Snooze,
    Workflow,
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowHandle,
    aenqueue,
    aenqueue_many,
    aget_job,
    aget_workflow,
    batch,
    chain,
    enqueue,
    enqueue_after_commit,
    enqueue_bulk,
    enqueue_many,
    get_job,
    get_workflow,
    group,
    job,
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
    fake,
    inline,
    worker,
)


@job("email.send", queue="email", retry={"max_attempts": 5, "initial_interval": "2s"}, timeout=30)
def send_email(to: str, template: str = "plain") -> bool:
    return True


@job("report.make")
async def make_report(pages: list[int], options: dict[str, Any]) -> dict[str, Any]:
    return {"pages": pages, **options}


@job("file.hash")
def hash_file(context: JobContext, path: str) -> str:
    context.progress(50, "half")
    context.log.info("hashing %s", path)
    if context.is_cancelled or not context.heartbeat():
        raise Discard("cancelled")
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
    reveal_type(chain(hash_file.s("/etc/hosts"), mails))  # django_ojs.client.workflow.Workflow
    batch(mails, send_email.s("c"), on_failure=take_anything.s(None)).enqueue(queue="slow", delay="10m", tags=["a"])
    steps = {"one": hash_file.s("a"), "two": count_words.s("b")}
    handle = Workflow.graph(steps, after={"two": "one"}).enqueue(name="both", id="2026-11")
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
