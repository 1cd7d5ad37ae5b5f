"""Workflows with real workers: many processes that finish members together, and one that is killed."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections

from django_ojs import batch, chain, group
from django_ojs.client.definition import PreparedJob
from django_ojs.client.workflow import PreparedWorkflow, get_workflow
from django_ojs.events import log
from django_ojs.jobs.cancel import cancel_one
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack
from django_ojs.jobs.timers import apply_due
from django_ojs.models import Job, Workflow
from django_ojs.registry import Registry
from django_ojs.workflows import workflow as operations
from tests.waiting import eventually
from tests.worker.conftest import WorkerCommand

Start = Callable[..., WorkerCommand]


def s(job_type: str, *args: Any, **options: Any) -> PreparedJob:
    return PreparedJob(job_type, list(args), options)


def workflow_events(flow: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    after = None
    while True:
        page = log.read(workflow_id=flow.key, types=["workflow.*"], after=after, limit=1000)
        found.update(event["type"] for event in page.events)
        if not page.has_more:
            return found
        after = page.cursor


@pytest.mark.slow
def test_members_that_finish_together_in_many_processes_fire_one_callback(start_process: Start) -> None:
    flows = [
        batch(*(s("site.add", i, i) for i in range(4)), on_success=s("site.sum"), on_complete=s("site.asum")).enqueue()
        for _ in range(40)
    ]
    processes = [start_process("ojs_worker", "--until-empty", "--concurrency", "4") for _ in range(4)]
    for process in processes:
        assert process.wait(90) == 0, process.output
    for flow in flows:
        flow.wait(timeout=90)
        assert flow.state == "completed", flow.document
        assert Counter(job.type for job in flow.jobs) == {"site.add": 4, "site.sum": 1, "site.asum": 1}
        assert [job.result for job in flow.jobs if job.type != "site.add"] == [12, 12]
        assert workflow_events(flow) == {"workflow.started": 1, "workflow.step_completed": 4, "workflow.completed": 1}
    assert Job.objects.count() == 40 * 6


@pytest.mark.wide
def test_a_group_of_a_thousand_members_drains(start_process: Start) -> None:
    flow = chain(group(*(s("site.add", i, 0) for i in range(1000))), s("site.count_keys")).enqueue(name="big")
    process = start_process("ojs_worker", "--until-empty", "--concurrency", "10")
    assert process.wait(90) == 0, process.output
    (last,) = [job for job in flow.refresh().jobs if job.type == "site.count_keys"]
    assert (flow.state, last.result) == ("completed", 1000)
    assert workflow_events(flow)["workflow.step_completed"] == 1001


@pytest.mark.wide
def test_a_worker_that_is_killed_in_a_fan_in_leaves_a_workflow_that_heals(start_process: Start) -> None:
    """One member is done, the other is running when its worker dies: its reservation ends, and all goes on."""
    flow = batch(
        s("site.add", 1, 2), s("site.hold", "fan", visibility_timeout=1), on_complete=s("site.echo_parents")
    ).enqueue()  # fmt: skip
    doomed = start_process("ojs_worker", "--concurrency", "2")
    eventually(lambda: doomed.trace("fan.started") and Job.objects.filter(state="completed").count() == 1)
    doomed.signal(signal.SIGKILL)
    doomed.wait()
    assert get_workflow(flow.id).state == "running"
    Job.objects.update(visibility_ms=None)  # on a busy machine the heir would lose it again
    doomed.let_go("fan")
    heir = start_process("ojs_worker", "--concurrency", "2")
    flow.wait(timeout=60)
    heir.signal(signal.SIGTERM)
    assert heir.wait() == 0, heir.output
    assert flow.state == "completed"
    assert [job.result for job in flow.jobs if job.type == "site.echo_parents"] == [[3, "fan"]]
    assert workflow_events(flow) == {"workflow.started": 1, "workflow.step_completed": 2, "workflow.completed": 1}


def at_once(*acts: Callable[[], Any]) -> list[BaseException]:
    """Run these in threads that start together; returns what they raised."""
    barrier = threading.Barrier(len(acts))
    errors: list[BaseException] = []

    def run(act: Callable[[], Any]) -> None:
        try:
            barrier.wait(60)
            act()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return errors


@pytest.mark.django_db(transaction=True)
class TestAtTheSameInstant:
    def make(self, size: int = 2) -> tuple[Any, list[Any]]:
        flow = batch(*(s("test.a") for _ in range(size)), on_complete=s("test.cb")).enqueue()
        return flow, [row["id"] for row in fetch(Fetch(["default"], count=size))]

    @pytest.mark.parametrize("attempt", range(5))
    def test_two_last_members_fire_one_callback(self, attempt: int) -> None:
        flow, ids = self.make(8)
        errors = at_once(*(lambda job=job: ack([Ack(job, "1")]) for job in ids))  # type: ignore[misc]
        assert errors == []
        assert len(fetch(Fetch(["default"], count=10))) == 1
        assert workflow_events(flow) == {"workflow.started": 1, "workflow.step_completed": 8}

    @pytest.mark.parametrize("attempt", range(5))
    def test_a_cancellation_among_acknowledgements(self, attempt: int) -> None:
        """Whoever wins, the workflow is whole: nothing runs after a cancellation, and nobody waits for ever."""
        flow = chain(group(*(s("test.a") for _ in range(4))), group(*(s("test.b") for _ in range(4)))).enqueue()
        ids = [row["id"] for row in fetch(Fetch(["default"], count=3))]
        errors = at_once(
            lambda: operations.cancel(flow.key),
            *(lambda job=job: ack([Ack(job, "1")]) for job in ids),  # type: ignore[misc]
            lambda: fetch(Fetch(["default"], count=1)),
            apply_due,
        )
        assert errors == []
        assert flow.refresh().state == "cancelled"
        assert not fetch(Fetch(["default"], count=10))

    @pytest.mark.parametrize("attempt", range(5))
    def test_overlapping_batches_of_two_workflows(self, attempt: int) -> None:
        """Reports that touch both workflows, in either order, and cancellations of members: no deadlock."""
        one, first = self.make(4)
        two, second = self.make(4)
        errors = at_once(
            lambda: ack([Ack(first[0], None), Ack(second[0], None)]),
            lambda: ack([Ack(second[1], None), Ack(first[1], None)]),
            lambda: ack([Ack(first[2], None), Ack(second[2], None)]),
            lambda: (cancel_one(second[3]), cancel_one(first[3])),
        )
        assert errors == []
        assert len(fetch(Fetch(["default"], count=10))) == 2
        assert {flow.refresh().state for flow in (one, two)} == {"running"}

    def test_claims_of_several_members_start_the_workflow_once(self) -> None:
        flow = group(*(s("test.a") for _ in range(8))).enqueue()
        assert at_once(*(lambda: fetch(Fetch(["default"], count=1)) for _ in range(8))) == []
        assert workflow_events(flow) == {"workflow.started": 1}
        assert Job.objects.filter(state="active").count() == 8

    def test_a_retry_happens_once(self) -> None:
        flow = chain(s("test.a"), s("test.b")).enqueue()
        ids = [row["id"] for row in fetch(Fetch(["default"]))]
        cancel_one(ids[0])
        errors = at_once(*(lambda: operations.retry(flow.key) for _ in range(4)))
        assert len(errors) == 3
        assert {type(error).__name__ for error in errors} == {"Conflict"}
        assert len(fetch(Fetch(["default"], count=10))) == 1


def test_the_python_api_from_code_to_result(handlers: Registry, drain: Any) -> None:
    from django_ojs import JobContext, job

    @job("etl.extract")
    def extract(n: int) -> int:
        return n

    @job("etl.load")
    def load(context: JobContext, label: str) -> str:
        return f"{label}={context.parent_results['a'] + context.parent_results['b']}"

    @job("etl.done")
    async def done(context: JobContext) -> Any:
        return context.parent_results[-1]

    graph = PreparedWorkflow.graph(
        {"load": load.s("sum"), "b": extract.s(2), "a": extract.s(1), "done": done.s()},
        after={"load": ["a", "b"], "done": "load"},
    )
    flow = graph.enqueue(name="etl", queue="slow")
    assert (flow.name, flow.type, flow.state, flow.is_finished) == ("etl", "dag", "running", False)
    assert {found.queue for found in flow.jobs} == {"slow"}
    drain()
    assert flow.refresh().state == "completed"
    assert {found.type: found.result for found in flow.jobs}["etl.done"] == "sum=3"
    assert get_workflow(flow.id) == flow
    assert Workflow.objects.count() == 1
