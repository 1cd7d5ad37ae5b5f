"""The worker mode: `drain()` runs what is due through the verbs of a real worker, in the test's own database."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import IntegrityError, connections, transaction

import django_ojs
from django_ojs import Discard, JobContext, Retry, Snooze, Workflow, batch, chain, clock, enqueue, job
from django_ojs.models import Event, Job
from django_ojs.queues.configuration import pause
from django_ojs.testing import JobFailed, WorkerJobs

pytestmark = pytest.mark.django_db


@pytest.fixture
def note() -> Any:
    @job("test.note", queue="notes")
    def note(name: str) -> str:
        Group.objects.create(name=name)
        return name.upper()

    return note


def names() -> list[str]:
    return sorted(Group.objects.values_list("name", flat=True))


def test_a_job_waits_for_the_drain(ojs_worker: WorkerJobs, note: Any) -> None:
    handle = note.enqueue("a")
    assert (names(), handle.refresh().state) == ([], "available")
    done = ojs_worker.drain()
    assert (names(), len(done), done.completed, done.failed, done.remaining) == (["a"], 1, 1, 0, 0)
    assert (handle.refresh().state, handle.result, handle.attempt) == ("completed", "A", 1)
    ojs_worker.assert_enqueued(note, times=1)
    assert ojs_worker.assert_completed(note, args=["a"]) == handle
    ojs_worker.assert_performed(note, times=1)
    ojs_worker.assert_state(handle, "completed")
    ojs_worker.assert_not_performed("test.other")
    types = list(Event.objects.order_by("id").values_list("type", flat=True))
    assert [name for name in types if name.startswith("job.")] == ["job.enqueued", "job.started", "job.completed"]


def test_a_drained_site_has_nothing_to_do(ojs_worker: WorkerJobs) -> None:
    done = ojs_worker.drain(with_scheduled=True)
    assert (len(done), bool(done)) == (0, True)
    with pytest.raises(AssertionError):
        ojs_worker.assert_performed("test.note")


def test_jobs_that_jobs_enqueue_run_too_and_in_order(ojs_worker: WorkerJobs) -> None:
    seen = []

    @job("test.count")
    def count(left: int) -> None:
        seen.append(left)
        if left:
            count.enqueue(left - 1)

    count.enqueue(3)
    count.options(priority=5).enqueue(10)
    ojs_worker.drain(max_jobs=2)
    assert seen == [10, 3]
    assert ojs_worker.drain(max_jobs=3).remaining == 2
    ojs_worker.drain()
    assert seen == [10, 3, 9, 2, 8, 1, 7, 0, 6, 5, 4, 3, 2, 1, 0]


def test_only_some_queues(ojs_worker: WorkerJobs, note: Any) -> None:
    note.enqueue("a")
    note.options(queue="other").enqueue("b")
    ojs_worker.drain(queues="other")
    assert names() == ["b"]
    ojs_worker.drain(queues=["x", "notes"])
    assert names() == ["a", "b"]


def test_a_paused_queue_stays_as_it_is(ojs_worker: WorkerJobs, note: Any) -> None:
    note.enqueue("a")
    pause("notes")
    done = ojs_worker.drain(with_scheduled=True)
    assert (len(done), done.remaining) == (0, 1)


def test_a_job_without_a_handler_stays(ojs_worker: WorkerJobs) -> None:
    enqueue("other.language")
    assert ojs_worker.drain().remaining == 1


def test_the_clock_jumps_for_delays_and_comes_back(ojs_worker: WorkerJobs, frozen_clock: Any) -> None:
    seen: list[dt.timedelta] = []
    start = frozen_clock.now

    @job("test.late")
    def late() -> None:
        seen.append(clock.now() - start)

    late.options(delay="1d").enqueue()
    late.options(delay="1h").enqueue()
    assert len(ojs_worker.drain()) == 0
    assert len(ojs_worker.drain(until="59m")) == 0
    assert len(ojs_worker.drain(until=start + dt.timedelta(hours=1))) == 1
    assert len(ojs_worker.drain(with_scheduled=True)) == 1
    assert seen == [dt.timedelta(hours=1), dt.timedelta(days=1)]
    assert clock.now() == start


@pytest.mark.parametrize("kind", ["rate", "throttle"])
def test_the_clock_jumps_for_jobs_that_a_rate_limit_holds_back(
    ojs_worker: WorkerJobs, note: Any, frozen_clock: Any, kind: str
) -> None:
    for name in "abc":
        note.options(rate_limit={"key": "partner", kind: {"limit": 1, "period": "1m"}}).enqueue(name)
    start = clock.now()
    assert len(ojs_worker.drain()) == 1
    assert len(ojs_worker.drain(until="59s")) == 0
    assert len(ojs_worker.drain(until="61s")) == 1
    assert clock.now() == start
    assert ojs_worker.drain(with_scheduled=True).completed == 1
    assert names() == ["a", "b", "c"]


def test_the_real_retry_policy_decides(ojs_worker: WorkerJobs, frozen_clock: Any) -> None:
    times: list[dt.datetime] = []

    @job("test.flaky", retry={"max_attempts": 3, "initial_interval": "10s", "backoff_coefficient": 3, "jitter": False})
    def flaky() -> None:
        times.append(clock.now())
        raise ConnectionError("away")

    handle = flaky.enqueue()
    first = ojs_worker.drain()
    assert (len(first), first.failed, first.discarded, first.remaining) == (1, 1, 0, 1)
    ojs_worker.assert_failed(flaky)
    ojs_worker.assert_state(handle, "retryable")
    rest = ojs_worker.drain(with_scheduled=True)
    assert (len(rest), rest.discarded, rest.remaining) == (2, 1, 0)
    assert [(at - times[0]).total_seconds() for at in times] == [0, 10, 40]
    ojs_worker.assert_state(handle, "discarded")
    assert [type(error) for error in rest.exceptions] == [ConnectionError, ConnectionError]
    with pytest.raises(ConnectionError, match="away"):
        rest.raise_first()
    with pytest.raises(AssertionError, match="away"):
        ojs_worker.assert_state(handle, "completed")
    with pytest.raises(AssertionError):
        ojs_worker.assert_completed(flaky)


def test_directives(ojs_worker: WorkerJobs, frozen_clock: Any) -> None:
    seen = []

    @job("test.directed", context=True)
    def directed(context: JobContext, what: str) -> str:
        seen.append((what, context.attempt))
        if what == "discard":
            raise Discard("no use")
        if len([one for one in seen if one[0] == what]) == 1:
            raise Snooze("1h") if what == "snooze" else Retry("later", after="2h")
        return "done"

    for what in ("discard", "snooze", "retry"):
        directed.enqueue(what)
    done = ojs_worker.drain(with_scheduled=True)
    assert seen == [("discard", 1), ("snooze", 1), ("retry", 1), ("snooze", 2), ("retry", 2)]
    assert (done.completed, done.discarded, done.remaining) == (2, 1, 0)


def test_a_database_error_of_a_handler_does_not_end_the_test(ojs_worker: WorkerJobs, note: Any) -> None:
    """Inside a TestCase's transaction PostgreSQL would refuse every later statement."""
    Group.objects.create(name="taken")
    handle = note.options(retry={"max_attempts": 1}).enqueue("taken")
    other = note.enqueue("free")
    done = ojs_worker.drain()
    assert (done.discarded, done.completed) == (1, 1)
    assert (handle.refresh().state, other.refresh().state) == ("discarded", "completed")
    assert isinstance(done.exceptions[0], IntegrityError)
    assert names() == ["free", "taken"]


def test_what_a_failed_handler_wrote_stays_as_in_a_worker(ojs_worker: WorkerJobs) -> None:
    @job("test.half", retry={"max_attempts": 1})
    def half() -> None:
        Group.objects.create(name="half")
        raise ValueError("in the middle")

    @job("test.whole", transactional=True, retry={"max_attempts": 1})
    def whole(fails: bool) -> None:
        Group.objects.create(name=f"whole {fails}")
        if fails:
            raise ValueError("in the middle")

    half.enqueue()
    whole.enqueue(True)
    with transaction.atomic():
        whole.enqueue(False)
        ojs_worker.drain()
    assert names() == ["half", "whole False"]


def test_asynchronous_handlers_share_the_transaction_of_the_test(ojs_worker: WorkerJobs) -> None:
    @job("test.async")
    async def work(name: str) -> str:
        await Group.objects.acreate(name=name)
        return await sync_to_async(lambda: Group.objects.get(name=name).name)()

    Group.objects.create(name="before")
    handle = work.enqueue("inside")
    ojs_worker.drain().raise_first()
    assert (handle.refresh().result, names()) == ("inside", ["before", "inside"])


@pytest.mark.parametrize("decorated", [False, True])
def test_transactional_asynchronous_handlers_and_what_plain_ones_return_to_be_awaited(
    ojs_worker: WorkerJobs, decorated: bool
) -> None:
    async def whole(fails: bool) -> str:
        await Group.objects.acreate(name=f"whole {fails}")
        if fails:
            raise ValueError("in the middle")
        return "whole"

    def plain(fails: bool) -> Any:
        return whole(fails)

    handler: Any = job("test.awhole", transactional=True, retry={"max_attempts": 1})(plain if decorated else whole)
    handler.enqueue(True)
    handle = handler.enqueue(False)
    ojs_worker.drain()
    assert (names(), handle.refresh().result) == (["whole False"], "whole")


def test_progress_from_a_thread_of_the_handler_is_shown_with_its_data(
    ojs_worker: WorkerJobs, client: Any, settings: Any
) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}

    @job("test.progress")
    def work(context: JobContext) -> None:
        thread = threading.Thread(target=context.progress, args=(50, "half"), kwargs={"data": {"rows": 17}})
        thread.start()
        thread.join()

    handle = work.enqueue()
    ojs_worker.drain()
    job_ = client.get(f"/ojs/v1/jobs/{handle.id}").json()["job"]
    assert (job_["progress_message"], job_["progress_data"]) == ("half", {"rows": 17})
    assert client.get(f"/ojs/v1/jobs/{handle.id}/progress").json()["data"] == {"rows": 17}
    event = Event.objects.get(type="job.progress", job_id=handle.id)
    assert event.data["progress_data"] == {"rows": 17}


def test_progress_and_results_are_those_of_a_worker(ojs_worker: WorkerJobs) -> None:
    @job("test.progress", context=True)
    async def work(context: JobContext) -> object:
        context.progress(50, "half")
        return object()

    handle = work.options(retry={"max_attempts": 1}).enqueue()
    done = ojs_worker.drain()
    assert Event.objects.filter(type="job.progress", job_id=handle.id).count() == 1
    (failed,) = done.exceptions
    assert isinstance(failed, JobFailed)
    assert (failed.handle, failed.error and failed.error["code"]) == (handle, "result_not_serializable")
    with pytest.raises(django_ojs.JobFailed, match="not JSON"):  # the same class: one name for one idea
        handle.wait()
    assert handle.refresh().error["code"] == "result_not_serializable"  # type: ignore[index]


def test_workflows_advance(ojs_worker: WorkerJobs) -> None:
    @job("test.add", context=True)
    def add(context: JobContext, number: int) -> int:
        return sum(value for value in context.parent_results.values() if value) + number

    flow = chain(add.s(1), add.s(10), add.s(100)).enqueue(name="sum")
    ojs_worker.drain().raise_first()
    assert (flow.refresh().state, [member.result for member in flow.jobs]) == ("completed", [1, 11, 112])
    ojs_worker.assert_workflow_enqueued("chain")
    ojs_worker.assert_completed(add, times=3)


def test_a_step_of_a_graph_runs_although_the_one_before_failed(ojs_worker: WorkerJobs, note: Any) -> None:
    heard: list[Any] = []

    @job("test.clean", context=True)
    def clean(context: JobContext) -> str:
        heard.append((list(context.parent_results.values()), sorted(context.parent_errors)))
        return "clean"

    @job("test.broken", retry={"max_attempts": 1})
    def broken() -> None:
        raise ValueError("no")

    flow = Workflow.graph(
        {"load": broken.s(), "use": note.s("use"), "tidy": clean.s(), "after": note.s("after"), "yes": note.s("yes")},
        after={"use": "load", "tidy": ["load"], "after": "tidy", "yes": "load"},
        callback_type={"tidy": "on_complete", "yes": "on_success"},
    ).enqueue()
    ojs_worker.drain()
    assert heard == [([None], ["0"])]
    assert [(one.type, one.state) for one in flow.refresh().jobs] == [
        ("test.broken", "discarded"), ("test.clean", "completed"), ("test.note", "completed"),
    ]  # fmt: skip
    assert {one["id"]: one["state"] for one in flow.document["steps"]} == {
        "load": "failed",
        "use": "cancelled",
        "tidy": "completed",
        "after": "completed",
        "yes": "cancelled",
    }
    assert flow.state == "completed"


@pytest.mark.parametrize(
    "kinds, match",
    [({"b": "on_complet"}, "give on_complete"), ({"a": "on_complete"}, "lets wait"), ({"c": "on_complete"}, "none of")],
)
def test_a_callback_of_a_graph_that_cannot_be_one_is_refused(note: Any, kinds: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Workflow.graph({"a": note.s("a"), "b": note.s("b")}, after={"b": "a"}, callback_type=kinds)


def test_failures_can_be_injected(ojs_worker: WorkerJobs, note: Any) -> None:
    handle = note.enqueue("a")
    ojs_worker.fail_next(note, TimeoutError("injected"))
    assert ojs_worker.drain(with_scheduled=True).failed == 1
    assert (handle.refresh().state, handle.attempt, handle.errors[0]["message"]) == ("completed", 2, "injected")
    ojs_worker.fail_all("test.note", TimeoutError("always"))
    flow = batch(note.s("b"), on_failure=note.s("c")).enqueue()
    ojs_worker.drain(with_scheduled=True)
    assert [member.state for member in flow.refresh().jobs] == ["discarded", "discarded"]
    ojs_worker.fail_all(note, None)
    note.enqueue("d")
    assert ojs_worker.drain().completed == 1


def test_a_job_that_never_ends_is_found(ojs_worker: WorkerJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_ojs.testing.storedjobs.ENDLESS", 20)

    @job("test.snoozing")
    def snoozing() -> None:
        raise Snooze("1h")

    snoozing.enqueue()
    before = clock.now()
    with pytest.raises(RuntimeError, match="20 runs"):
        ojs_worker.drain(with_scheduled=True)
    assert abs(clock.now() - before) < dt.timedelta(minutes=1)


def test_an_expired_job_does_not_run(ojs_worker: WorkerJobs, note: Any) -> None:
    ojs_worker.freeze()
    note.options(expires_at=clock.now() + dt.timedelta(minutes=1)).enqueue("a")
    ojs_worker.advance("2m")
    assert len(ojs_worker.drain()) == 0
    assert (Job.objects.get().state, names()) == ("discarded", [])


def test_the_time_of_the_test_ends_with_it(note: Any) -> None:
    from django_ojs.testing import worker

    with worker() as jobs:
        jobs.freeze(dt.datetime(2030, 1, 1, tzinfo=dt.UTC))
        assert clock.now().year == 2030
    assert clock.override() is None


def test_a_schedule_is_triggered_and_its_overlap_policy_holds(ojs_worker: WorkerJobs) -> None:
    @job("report.make", cron="@daily", cron_args=["x"])
    def make(kind: str) -> None: ...

    handle = ojs_worker.trigger("report.make")
    ojs_worker.drain()
    assert ojs_worker.assert_completed(make, args=["x"]) == handle


@pytest.mark.django_db(transaction=True)
def test_without_a_test_case(ojs_worker: WorkerJobs, note: Any) -> None:
    with transaction.atomic():
        note.enqueue("a")
    ojs_worker.drain().raise_first()
    assert names() == ["a"]


@pytest.mark.django_db(transaction=True)
async def test_asynchronous_tests(ojs_worker: WorkerJobs, note: Any) -> None:
    @job("test.async")
    async def work() -> str:
        return "async"

    handle = await work.aenqueue()
    await note.aenqueue("a")
    done = await ojs_worker.adrain()
    assert done.completed == 2
    assert (await handle.arefresh()).result == "async"


@pytest.mark.parametrize("turn", [1, 2])
def test_nothing_is_left_for_the_next_test(ojs_worker: WorkerJobs, note: Any, turn: int) -> None:
    assert not Job.objects.exists()
    assert not ojs_worker.enqueued
    note.enqueue("left")


def test_the_fixture_for_the_drain_alone(ojs_drain: Any, note: Any) -> None:
    note.enqueue("a")
    assert ojs_drain().completed == 1


@pytest.mark.django_db(transaction=True)
async def test_an_asynchronous_test_opens_a_connection_in_another_thread(ojs_worker: WorkerJobs, note: Any) -> None:
    await note.aenqueue("a")
    ASYNC_CONNECTION.append(await sync_to_async(lambda: connections["default"])())
    assert ASYNC_CONNECTION[-1].connection is not None


@pytest.fixture(autouse=True)
def _no_connection_is_left() -> Iterator[None]:
    yield
    while ASYNC_CONNECTION:
        assert ASYNC_CONNECTION.pop().connection is None


ASYNC_CONNECTION: list[Any] = []


def test_the_names_of_the_specification_say_the_same_of_runs(ojs_worker: WorkerJobs) -> None:
    @job("some.work")
    def work() -> None: ...

    handle = work.enqueue()
    ojs_worker.refute_performed(work)
    ojs_worker.assert_job_state(handle.id, "available")
    ojs_worker.drain()
    ojs_worker.assert_performed(work, count=1)
    ojs_worker.assert_completed(work, count=1)
    ojs_worker.assert_job_state(handle, "completed")
    with pytest.raises(AssertionError, match="not to be run"):
        ojs_worker.refute_performed(work)
    with pytest.raises(TypeError, match=r"times=0: say assert_not_performed\(\) or refute_performed\(\)"):
        ojs_worker.assert_performed(work, times=0)
    with pytest.raises(AssertionError, match="There is no job 0196"):
        ojs_worker.assert_job_state("01960000-0000-7000-8000-000000000000", "completed")
    ojs_worker.fail_all(work, OSError())
    ojs_worker.clear_all()
    ojs_worker.refute_performed()
    ojs_worker.refute_enqueued()
    work.enqueue()
    assert ojs_worker.drain().completed == 1
