"""Workflows through the operations: what waits, what runs, what is passed on, and how it ends."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_ojs import clock, jsontext
from django_ojs.errors import Conflict, Duplicate, InvalidWorkflow, MiddlewareRejected, NotFound
from django_ojs.events import log
from django_ojs.jobs import schemas
from django_ojs.jobs.cancel import cancel, cancel_one
from django_ojs.jobs.delete import delete_one
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail, fail_one
from django_ojs.jobs.push import push
from django_ojs.jobs.read import info
from django_ojs.jobs.retry import retry_one
from django_ojs.jobs.timers import apply_due
from django_ojs.models import Job, Workflow, WorkflowStart, WorkflowStep
from django_ojs.models import workflow as flow_ids
from django_ojs.queues import configuration
from django_ojs.queues.deletion import remove
from django_ojs.retention import prune
from django_ojs.rules import envelope, workflowgraph
from django_ojs.workerregistry.dead import hand_back, rescue_dead_workers
from django_ojs.workerregistry.deaths import Death
from django_ojs.workflows import graphs
from django_ojs.workflows import workflow as operations
from tests import refusing
from tests.middlewares import added

pytestmark = pytest.mark.django_db

ONCE = {"max_attempts": 1}


def job(name: str, **more: Any) -> dict[str, Any]:
    return {"type": f"test.{name}", "args": [], **more}


def create(**document: Any) -> Workflow:
    return operations.create(document).workflow


def chain(*names: str, **more: Any) -> Workflow:
    return create(type="chain", name="c", steps=[job(name) for name in names], **more)


def claim(count: int = 1) -> list[dict[str, Any]]:
    rows = fetch(Fetch(["default"], count=count))
    assert len(rows) == count, [row["type"] for row in rows]
    return rows


def complete(result: str | None = None) -> dict[str, Any]:
    (row,) = claim()
    ack([Ack(row["id"], result)])
    return row


def complete_any() -> int:
    """Complete what is there; how many jobs that were."""
    rows = fetch(Fetch(["default"], count=100))
    ack([Ack(row["id"]) for row in rows])
    return len(rows)


def discard(message: str = "no") -> dict[str, Any]:
    (row,) = claim()
    fail_one(Failure(row["id"], {"message": message, "type": "Boom", "code": "boom", "retryable": False}))
    return row


def shown(flow: Workflow) -> dict[str, Any]:
    return workflowgraph.render(*operations.info(flow.pk))


def states(flow: Workflow) -> list[str]:
    return [step["state"] for step in shown(flow)["steps"]]


def types(flow: Workflow) -> list[str]:
    return [event["type"] for event in log.read(workflow_id=flow.pk, limit=1000).events]


class TestOrder:
    def test_a_chain_creates_a_job_when_the_one_before_has_completed(self) -> None:
        flow = chain("a", "b")
        assert [row["type"] for row in claim()] == ["test.a"]
        assert not fetch(Fetch(["default"], count=5))
        assert states(flow) == ["active", "waiting"]
        ack([Ack(Job.objects.get(type="test.a").pk, None)])
        assert states(flow) == ["completed", "pending"]
        complete()
        assert shown(flow)["state"] == "completed"

    def test_a_group_is_served_in_the_order_of_its_array(self) -> None:
        create(type="group", jobs=[job(name) for name in "dacb"])
        assert [row["type"][-1] for row in claim(4)] == list("dacb")

    def test_callbacks_are_enqueued_in_their_own_order_behind_the_members(self) -> None:
        callbacks = {key: job(key) for key in ("on_failure", "on_success", "on_complete")}
        create(type="batch", jobs=[job("a")], callbacks=callbacks)
        complete()
        assert [row["type"] for row in claim(2)] == ["test.on_complete", "test.on_success"]

    @pytest.mark.parametrize(
        "document, wanted",
        [
            ({"type": "chain", "steps": [job("a", priority=7), job("b"), job("c", priority=2), job("d")]},
             {"a": 7, "b": 7, "c": 2, "d": 7}),
            ({"type": "chain", "steps": [job("a", options={"priority": "HIGH"}), job("b", priority=None)]},
             {"a": 3, "b": 3}),
            ({"type": "chain", "steps": [job("a", priority=7), job("b")], "options": {"priority": 1}},
             {"a": 7, "b": 1}),
            ({"type": "chain", "steps": [job("a", priority=-5), job("b", options={"tags": ["t"]})]},
             {"a": -5, "b": -5}),
            ({"type": "group", "jobs": [job("a", priority=7), job("b")]}, {"a": 7, "b": 0}),
            ({"type": "batch", "jobs": [job("a", priority=4), job("b", priority=6)],
              "callbacks": {"on_complete": job("c"), "on_success": job("d", priority=1)}},
             {"a": 4, "b": 6, "c": 6, "d": 1}),
            ({"steps": [job("a", id="a", priority=7), job("b", id="b"), job("c", id="c", depends_on=["b"]),
                        job("d", id="d", depends_on=["c", "a"])]},
             {"a": 7, "b": 0, "c": 0, "d": 7}),
            ({"type": "chain", "steps": [
                {"type": "group", "jobs": [job("a"), {"type": "chain", "steps": [job("b", priority=5), job("c")]}]},
                {"type": "batch", "jobs": [job("d"), job("e", priority=9)], "callbacks": {"on_success": job("f")}},
                job("g")]},
             {"a": 0, "b": 5, "c": 5, "d": 5, "e": 9, "f": 5, "g": 5}),
        ],
    )  # fmt: skip
    def test_steps_inherit_the_priority_of_the_root_unless_one_is_set(
        self, document: dict[str, Any], wanted: dict[str, int]
    ) -> None:
        flow = create(**document)
        while complete_any():
            pass
        jobs = Job.objects.filter(workflow_id=flow.pk)
        assert {row.type.removeprefix("test."): row.priority for row in jobs} == wanted

    def test_the_events_tell_the_story_in_order(self) -> None:
        flow = chain("a", "b")
        complete()
        complete()
        assert types(flow) == [
            "job.enqueued", "workflow.started", "job.started", "job.completed", "workflow.step_completed",
            "job.enqueued", "job.started", "job.completed", "workflow.step_completed", "workflow.completed",
        ]  # fmt: skip
        events = log.read(workflow_id=flow.pk, types=["workflow.*"]).events
        assert {event["subject"] for event in events} == {str(flow.pk)}
        for event in events:
            data = event["data"]
            assert data["workflow_id"] == str(flow.pk)
            assert (data["workflow_name"], data["workflow_type"], data["total_steps"]) == ("c", "chain", 2)
        step = events[1]["data"]
        assert (step["step_id"], step["step_type"], step["step"], step["steps_remaining"]) == ("step-0", "test.a", 0, 1)
        assert step["job_id"] == str(Job.objects.get(type="test.a").pk)
        assert isinstance(step["duration_ms"], int)
        assert events[2]["data"]["steps_remaining"] == 0
        assert isinstance(events[3]["data"]["duration_ms"], int)

    def test_the_failure_of_the_last_attempt_comes_before_the_failure_of_the_workflow(self) -> None:
        flow = chain("a", "b")
        discard("broken")
        assert types(flow)[-3:] == ["job.failed", "job.discarded", "workflow.failed"]
        data = log.read(workflow_id=flow.pk, types=["workflow.failed"]).events[0]["data"]
        assert (data["failed_step_id"], data["failed_step_type"], data["step"]) == ("step-0", "test.a", 0)
        assert (data["error"]["code"], data["error"]["message"]) == ("boom", "broken")


class TestResults:
    def parents(self, row: dict[str, Any]) -> Any:
        lineage = envelope.render(info(row["id"]))
        assert lineage["parent_results"] == envelope.render(row)["parent_results"], "FETCH and INFO agree"
        return lineage["parent_results"]

    def test_a_chains_step_hears_all_steps_before_it(self) -> None:
        flow = chain("a", "b", "c")
        first = complete('{"n":1}')
        assert self.parents(first) == []
        assert self.parents(complete()) == [{"n": 1}]
        last = complete()
        assert self.parents(last) == [{"n": 1}, None]
        shown = envelope.render(last)
        assert (shown["workflow_id"], shown["workflow_step"]) == (str(flow.pk), 2)

    def test_what_a_chains_step_hears_is_what_was_stored_whatever_it_holds(self, settings: Any) -> None:
        settings.OJS = {"RESULTS_IN_EVENTS": False}
        texts = [f"{'[' * jsontext.MAX_DEPTH}{']' * jsontext.MAX_DEPTH}", '"a\\u001fb"', "null", "0.10", '"a,b"']
        chain("a", "b", "c", "d", "e", "f")
        for text in texts:
            complete(text)
        heard = self.parents(claim(1)[0])
        assert [jsontext.dumps(value) for value in heard] == [jsontext.dumps(jsontext.loads(text)) for text in texts]

    @pytest.mark.parametrize("callbacks", [{}, {"on_success": job("good")}])
    def test_a_step_of_a_chain_hears_no_part_of_a_nested_workflow(self, callbacks: dict[str, Any]) -> None:
        nested = {"type": "batch" if callbacks else "group", "jobs": [job("b"), job("c")]}
        create(type="chain", steps=[job("a"), nested | ({"callbacks": callbacks} if callbacks else {}), job("d")])
        complete("1")
        assert self.parents(complete("2")) == [1]
        assert self.parents(complete("3")) == [1], "what stands before it in the graph is beside it"
        if callbacks:
            complete("4")
        assert envelope.render(complete())["parent_results"] == [1, {"0": 2, "1": 3}]

    def test_a_graphs_step_hears_what_it_depends_on_in_the_order_it_says(self) -> None:
        steps = [job("a", id="a"), job("b", id="b"), job("c", id="c", depends_on=["b", "a"])]
        create(steps=steps)
        complete("1")
        complete("2")
        row = complete()
        assert self.parents(row) == [2, 1]
        assert envelope.render(row)["parent_results_by_step"] == {"b": 2, "a": 1}

    def test_a_callback_hears_every_member_and_the_errors_of_those_that_failed(self) -> None:
        create(type="batch", jobs=[job("a"), job("b")], callbacks={"on_complete": job("done")})
        complete("1")
        failed = discard("broken")
        row = complete()
        assert self.parents(row) == [1, None]
        assert envelope.render(row)["parent_errors"] == {
            "1": {"job_id": str(failed["id"]), "code": "boom", "type": "Boom", "message": "broken", "attempt": 1}
        }

    def test_a_callback_hears_which_step_of_a_nested_chain_failed(self) -> None:
        inner = {"type": "chain", "steps": [job("a"), job("b")]}
        create(type="batch", jobs=[inner, job("c")], callbacks={"on_failure": job("sorry")})
        failed = discard("broken")
        complete("1")
        row = complete()
        assert self.parents(row) == [None, 1]
        assert envelope.render(row)["parent_errors"]["0"]["job_id"] == str(failed["id"])

    def test_a_callback_hears_of_errors_however_few_dead_letters_are_kept(self, settings: Any) -> None:
        settings.OJS = {"DEAD_LETTER_MAX_COUNT": 0}
        create(type="batch", jobs=[job("a"), job("b")], callbacks={"on_complete": job("done")})
        failed = discard("broken")
        assert prune()["dead_letters"] == 0
        complete("2")
        row = complete()
        assert envelope.render(row)["parent_errors"]["0"]["job_id"] == str(failed["id"])
        assert prune()["dead_letters"] == 1

    def test_nested_workflows_have_results_and_hear_what_they_would_hear(self) -> None:
        inner = {"type": "group", "jobs": [job("x"), {"type": "chain", "steps": [job("y"), job("z")]}]}
        create(type="chain", steps=[job("a"), inner, job("b")])
        complete("0")
        rows = claim(2)
        assert [self.parents(row) for row in rows] == [[0], [0]]
        ack([Ack(row["id"], f'"{row["type"]}"') for row in rows])
        assert self.parents(complete('"last"')) == ["test.y"]
        assert self.parents(complete()) == [0, {"0": "test.x", "1": "last"}]

    def test_numbers_pass_unchanged(self) -> None:
        chain("a", "b")
        complete("[1e400,0.1234567890123456789]")
        (row,) = claim()
        assert envelope.render(row)["parent_results"][0][1].literal == "0.1234567890123456789"

    def test_a_handlers_context_reads_results_by_place_and_by_name(self) -> None:
        from django_ojs.client.context import JobContext

        create(steps=[job("a", id="extract"), job("b", id="load", depends_on=["extract"])])
        complete('{"n":1}')
        context = JobContext(claim()[0])
        assert context.parent_results["0"] == context.parent_results[0] == context.parent_results["extract"] == {"n": 1}
        assert dict(context.parent_results) == {"0": {"n": 1}}
        with pytest.raises(KeyError):
            context.parent_results["1"]
        assert context.workflow_id == str(Workflow.objects.get().pk)


class TestEveryWayToEnd:
    """Each verb that ends a job takes its workflow further."""

    def failed(self, flow: Workflow) -> dict[str, Any]:
        found = shown(flow)
        assert found["state"] == "failed"
        assert [step["state"] for step in found["steps"]] == ["failed", "cancelled"]
        assert found["steps"][1]["job_id"] is None
        assert (found["steps_total"], found["steps_completed"]) == (2, 0)
        return found

    def test_expiry(self, frozen_clock: Any) -> None:
        flow = create(type="chain", name="c", steps=[job("a", options={"expires_at": "+PT5S"}), job("b")])
        frozen_clock.advance(seconds=10)
        apply_due()
        assert self.failed(flow)["error"]["errors"][0]["type"] == "expired"

    def test_the_execution_timeout(self, frozen_clock: Any) -> None:
        flow = create(type="chain", name="c", steps=[job("a", timeout=1, retry=ONCE), job("b")])
        claim()
        frozen_clock.advance(seconds=2)
        apply_due()
        assert self.failed(flow)["error"]["errors"][0]["code"] == "timeout"

    def test_a_member_that_kills_its_workers(self, frozen_clock: Any, settings: Any) -> None:
        settings.OJS = {"POISON_LIMIT": 1}
        flow = chain("a", "b")
        fetch(Fetch(["default"], worker_id="w"))
        from django_ojs.workerregistry.registration import register

        register("w", {})
        frozen_clock.advance(seconds=100)
        rescue_dead_workers()
        self.failed(flow)

    def test_a_member_that_ends_its_worker_under_the_eyes_of_a_supervisor(self, settings: Any) -> None:
        settings.OJS = {"POISON_LIMIT": 1}
        flow = chain("a", "b")
        (row,) = fetch(Fetch(["default"], worker_id="w"))
        hand_back("w", death=Death("SIGKILL", running=frozenset({(row["id"], row["attempt"])})))
        self.failed(flow)

    def test_a_rate_limit_that_drops(self) -> None:
        limit = {"key": "k", "rate": {"limit": 1, "period": "PT1H"}, "on_limit": "drop"}
        push([job("first", rate_limit=limit)])
        claim()
        flow = create(type="chain", name="c", steps=[job("a", rate_limit=limit), job("b")])
        assert not fetch(Fetch(["default"]))
        assert self.failed(flow)["error"]["errors"][0]["type"] == "rate_limited"

    @pytest.mark.parametrize("active", [False, True])
    def test_the_removal_of_its_queue(self, active: bool) -> None:
        push([job("first", queue="doomed")])
        flow = create(type="chain", name="c", steps=[job("a", queue="doomed"), job("b")])
        if active:
            fetch(Fetch(["doomed"], count=2))
        remove("doomed", "discard")
        assert self.failed(flow)["error"]["errors"][0]["type"] == "queue_deleted"

    def test_a_step_of_a_graph_of_which_no_callback_is_told(self) -> None:
        callback = {**job("c"), "id": "on_failure", "depends_on": ["a"]}
        later = {**job("d"), "id": "d", "depends_on": ["on_failure"]}
        flow = create(name="g", steps=[{**job("a"), "id": "a"}, {**job("b"), "id": "b"}, callback, later])
        first, second = claim(2)
        for row in (first, second):
            fail_one(Failure(row["id"], {"message": "no", "retryable": False}))
        complete()
        third = discard()
        found = shown(flow)
        assert found["state"] == "failed"
        assert found["error"]["failed_job_ids"] == [str(second["id"]), str(third["id"])]

    def test_what_is_told_of_a_failure_is_all_of_one_step(self) -> None:
        """The first has lost its job, and with it what it said."""
        flow = create(name="g", type="group", jobs=[job("a"), job("b")])
        first = discard()
        Job.objects.filter(pk=first["id"]).delete()
        second = discard()
        (event,) = log.read(workflow_id=flow.pk, types=["workflow.failed"]).events
        told = event["data"]
        assert (told["failed_step_id"], told["failed_step_type"], told["step"]) == ("job-1", "test.b", 1)
        assert told["job_id"] == str(second["id"])
        assert shown(flow)["error"]["failed_job_ids"] == [str(first["id"]), str(second["id"])]

    def test_cancelling_a_member(self) -> None:
        flow = chain("a", "b")
        cancel_one(Job.objects.get().pk)
        found = shown(flow)
        assert found["state"] == "failed"
        assert [step["state"] for step in found["steps"]] == ["cancelled", "cancelled"]

    def test_a_retry_is_no_failure(self) -> None:
        flow = chain("a", "b")
        (row,) = claim()
        fail_one(Failure(row["id"], {"message": "again"}))
        assert shown(flow)["state"] == "running"
        assert states(flow) == ["pending", "waiting"]

    @pytest.mark.parametrize("error", [MiddlewareRejected("hunter2 is blocked"), LookupError("hunter2")], ids=type)
    def test_a_refused_step_repeats_nothing_that_is_hidden(self, error: Exception, settings: Any, caplog: Any) -> None:
        def refuse(document: dict[str, Any], proceed: Any) -> Any:
            raise error

        def told() -> str:
            caplog.clear()
            flow = chain("a", "b")
            with added(refuse):
                complete()
            events = log.read(workflow_id=flow.pk, types=["workflow.failed", "workflow.step_failed"]).events
            assert len(events) == 2
            return f"{shown(flow)} {events} {caplog.text}"

        settings.OJS = {"EXTENSION_EVENTS": True}
        assert "hunter2" in told()
        settings.OJS = {"EXTENSION_EVENTS": True, "REDACT": {"types": {"test.*": ["args"]}}}
        assert "hunter2" not in told()

    def test_a_refused_step_is_a_failed_step(self) -> None:
        flow = chain("a", "b", "c")

        def refuse(document: dict[str, Any], proceed: Any) -> Any:
            raise MiddlewareRejected("not today")

        with added(refuse):
            complete()
        found = shown(flow)
        assert [step["state"] for step in found["steps"]] == ["completed", "failed", "cancelled"]
        assert found["error"]["errors"][0]["code"] == "x_middleware_rejected"
        assert found["error"]["failed_step_id"] == "step-1"
        assert found["error"]["failed_job_ids"] == []
        assert "job_id" not in found["error"]["errors"][0]
        (event,) = log.read(workflow_id=flow.pk, types=["workflow.failed"]).events
        assert "job_id" not in event["data"]
        operations.retry(flow.pk)
        complete()
        complete()
        assert shown(flow)["state"] == "completed"

    def test_a_database_that_is_slow_once_fails_no_step(self) -> None:
        flow = chain("a", "b")

        def slow(document: dict[str, Any], proceed: Any) -> Any:
            with connection.wrap_database_errors:
                raise refusing.driver_error(connection, refusing.SLOW[connection.vendor])

        (first,) = claim()
        with added(slow), pytest.raises(DatabaseError):
            ack([Ack(first["id"])])
        ack([Ack(first["id"])])
        assert shown(flow)["state"] == "running"
        complete()
        assert shown(flow)["state"] == "completed"

    @pytest.mark.parametrize("by_database", [False, True])
    def test_a_middleware_that_fails_is_a_failed_step_and_holds_up_no_other_job(
        self, frozen_clock: Any, by_database: bool
    ) -> None:
        flow = chain("a", "b")
        end = frozen_clock.now + dt.timedelta(minutes=1)
        expiring = job("c", options={"expires_at": end.isoformat()})
        other = create(type="batch", jobs=[expiring], callbacks={"on_complete": job("d")})
        (scheduled,) = push([{"type": "e", "args": [], "scheduled_at": end.isoformat()}])
        taken = Job.objects.values("pk", "created_at").first()

        def fail(document: dict[str, Any], proceed: Any) -> Any:
            if by_database:
                Job(**taken, type="x").save(force_insert=True)
            raise KeyError(document["type"])

        with added(fail):
            complete()
            frozen_clock.advance(minutes=2)
            assert apply_due() == 2
        assert scheduled.row is not None
        assert Job.objects.get(pk=scheduled.row["id"]).state == "available"
        assert shown(flow)["error"]["errors"][0]["code"] == "internal_error"
        assert {shown(one)["state"] for one in (flow, other)} == {"failed"}


class TestCreation:
    def nothing_stored(self) -> bool:
        return not (Workflow.objects.exists() or WorkflowStep.objects.exists() or Job.objects.exists())

    def test_a_faulty_job_refuses_the_whole(self) -> None:
        with pytest.raises(InvalidWorkflow) as caught:
            create(type="group", jobs=[job("a"), {"type": "Not OK", "args": []}])
        assert caught.value.details["validation_errors"][0]["path"] == "$.jobs[1].type"
        assert caught.value.details["index"] == 1
        assert self.nothing_stored()

    def test_a_first_job_that_is_refused_refuses_the_whole(self) -> None:
        def refuse(document: dict[str, Any], proceed: Any) -> Any:
            if document["type"] == "test.b":
                raise MiddlewareRejected("no b")
            return proceed(document)

        with added(refuse), pytest.raises(MiddlewareRejected) as caught:
            create(type="group", jobs=[job("a"), job("b")])
        assert caught.value.details["step_id"] == "job-1"
        assert self.nothing_stored()

    def test_a_dropped_job_is_a_failed_step(self) -> None:
        with added(lambda document, proceed: None):
            flow = chain("a", "b")
        assert shown(flow)["state"] == "failed"
        assert types(flow) == ["workflow.failed"]

    @pytest.mark.parametrize("own", ["0199a1b2-0000-7000-8000-000000000001", "order:42"])
    def test_a_clients_id_is_used_once(self, own: str) -> None:
        flow = chain("a", id=own)
        assert shown(flow)["id"] == own
        assert operations.identify(own) == flow.pk
        assert envelope.render(claim()[0])["workflow_id"] == own
        events = log.read(types=["workflow.*"]).events
        assert [(event["subject"], event["data"]["workflow_id"]) for event in events] == [(own, own)]
        with pytest.raises(Duplicate):
            chain("b", id=own)
        assert Job.objects.count() == 1

    def test_what_a_failed_workflow_keeps_does_not_keep_what_is_younger(self, frozen_clock: Any) -> None:
        for _ in range(3):
            chain("a", "b")
            complete()
            discard()
        (young,) = push([job("c")])
        complete()
        frozen_clock.advance(days=8)  # completed jobs go after a week, dead letters stay longer
        assert prune(batch=2)["jobs"] == 1
        assert not Job.objects.filter(pk=young.row["id"]).exists()
        assert Job.objects.filter(state="completed").count() == 3

    def test_an_id_may_return_after_the_first_workflow_was_pruned(self, frozen_clock: Any) -> None:
        own = "0199a1b2-0000-7000-8000-000000000001"
        chain("a", id=own)
        complete()
        frozen_clock.advance(days=400)
        prune()
        flow = chain("a", "b", id=own)
        complete("1")
        assert envelope.render(claim()[0])["parent_results"] == [1]
        assert states(flow) == ["completed", "active"]

    def test_several_are_found_by_one_query(self) -> None:
        flows = [chain("a", id=own) for own in ("order:1", "order:2", "0199a1b2-0000-7000-8000-000000000001")]
        with CaptureQueriesContext(connection) as asked:
            found = operations.keys_of(["order:2", str(flows[2].pk), "order:1", "order:2"])
        assert (found, len(asked)) == (tuple(flows[n].pk for n in (1, 2, 0, 1)), 1)
        first, none = operations.keys_of(["order:1", "order:3"])
        assert first == flows[0].pk
        assert not operations.Workflow.objects.filter(pk=none).exists()

    def test_unknown_workflows_are_not_found(self) -> None:
        for name in ("nope", str(uuid.uuid4()), "\0"):
            with pytest.raises(NotFound):
                operations.info(operations.identify(name))


class TestCancellation:
    def test_what_waits_never_runs_and_what_runs_may_finish(self) -> None:
        flow = create(type="group", jobs=[job("a"), job("b"), job("c")])
        complete()
        (running,) = claim()
        done = operations.cancel(flow.pk, cancelled_by="me")
        assert (done.steps_cancelled, done.steps_already_completed) == (1, 1)
        assert states(flow) == ["completed", "active", "cancelled"]
        assert not fetch(Fetch(["default"], count=5))
        ack([Ack(running["id"], "1")])
        assert states(flow) == ["completed", "completed", "cancelled"]
        assert shown(flow)["state"] == "cancelled"
        with pytest.raises(Conflict):
            operations.cancel(flow.pk)

    def test_active_members_too_if_wanted(self) -> None:
        flow = create(type="batch", jobs=[job("a"), job("b")], callbacks={"on_complete": job("cb")})
        claim(2)
        operations.cancel(flow.pk, cancel_active=True)
        assert states(flow) == ["cancelled", "cancelled"]
        assert shown(flow)["callbacks"]["on_complete"]["state"] == "cancelled"
        assert not fetch(Fetch(["default"], count=5)), "no callback fires after a cancellation"
        assert "workflow.failed" not in types(flow)


class TestRetry:
    def test_a_failed_chain_goes_on_from_the_step_that_failed(self) -> None:
        flow = chain("a", "b", "c")
        complete("1")
        failed = discard()
        with pytest.raises(NotFound):
            operations.retry(uuid.uuid4())
        view = operations.retry(flow.pk)
        assert view.workflow.state == "running"
        (row,) = claim()
        assert (row["id"], row["attempt"]) == (failed["id"], 1)
        assert envelope.render(row)["parent_results"] == [1]
        ack([Ack(row["id"], "2")])
        assert envelope.render(complete())["parent_results"] == [1, 2]
        assert shown(flow)["state"] == "completed"
        assert shown(flow).get("error") is None
        with pytest.raises(Conflict):
            operations.retry(flow.pk)

    def test_all_that_failed_runs_again_where_no_callback_is_for_a_failure(self) -> None:
        callback = {**job("c"), "id": "on_success", "depends_on": ["a"]}
        flow = create(name="g", steps=[{**job("a"), "id": "a"}, {**job("b"), "id": "b"}, callback])
        first, second = claim(2)
        ack([Ack(first["id"])])
        fail_one(Failure(second["id"], {"message": "no", "code": "boom", "retryable": False}))
        failed = discard()
        assert shown(flow)["error"]["failed_job_ids"] == [str(failed["id"]), str(second["id"])]
        operations.retry(flow.pk)
        assert complete_any() == 2
        assert shown(flow)["state"] == "completed"

    @pytest.mark.parametrize("gone", ["deleted", "cancelled"])
    def test_a_job_that_cannot_be_revived_is_made_anew(self, gone: str) -> None:
        flow = chain("a", "b")
        old = Job.objects.get().pk
        if gone == "cancelled":
            cancel_one(old)
        else:
            discard()
            delete_one(old)
        operations.retry(flow.pk)
        assert complete()["id"] != old
        complete()
        assert shown(flow)["state"] == "completed"

    @pytest.mark.parametrize("when", ["waits", "runs", "has completed"])
    def test_a_member_that_was_retried_by_itself_runs_once(self, when: str) -> None:
        flow = create(type="chain", name="c", steps=[job("a"), job("b")])
        old = discard()["id"]
        retry_one(old)
        if when != "waits":
            claim()
        if when == "has completed":
            ack([Ack(old, "1")])
        operations.retry(flow.pk)
        assert Job.objects.filter(type="test.a").count() == 1
        if when == "waits":
            claim()
        if when != "has completed":
            ack([Ack(old, "1")])
        assert envelope.render(complete())["parent_results"] == [1]
        assert shown(flow)["state"] == "completed"
        done = log.read(workflow_id=flow.pk, types=["workflow.step_completed"]).events
        assert [event["data"]["steps_remaining"] for event in done] == [1, 0]

    def test_only_the_failed_callback_runs_again(self) -> None:
        callbacks = {"on_complete": job("all"), "on_failure": job("bad")}
        flow = create(type="batch", jobs=[job("a")], callbacks=callbacks)
        discard()
        complete()
        discard()
        assert shown(flow)["error"]["callback"] == "on_failure"
        operations.retry(flow.pk)
        assert complete()["type"] == "test.bad"
        assert not fetch(Fetch(["default"]))
        assert shown(flow)["state"] == "completed"

    def test_a_dead_letter_that_is_revived_counts_again(self) -> None:
        flow = create(type="batch", jobs=[job("a"), job("b")], callbacks={"on_success": job("good")})
        failed = discard()
        retry_one(failed["id"])
        complete()
        complete()
        assert complete()["type"] == "test.good"
        assert shown(flow)["state"] == "completed"

    def test_a_revived_dead_letter_does_not_reopen_a_workflow_that_ended(self) -> None:
        flow = chain("a", "b")
        retry_one(discard()["id"])
        complete()
        assert shown(flow)["state"] == "failed"
        assert not fetch(Fetch(["default"]))


@pytest.mark.usefixtures("long_memory")
class TestCosts:
    @pytest.fixture
    def after_a_while(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
        """Lets what this process knows of the ids of workflows grow old."""
        passed = [0.0]
        monkeypatch.setattr(flow_ids, "time", SimpleNamespace(monotonic=lambda: sum(passed)))
        return lambda: passed.append(flow_ids._BELIEVED)

    def statements(self, act: Any) -> int:
        configuration.forget()
        schemas.forget()  # or the registry is read again when a slow machine has taken five seconds
        with CaptureQueriesContext(connection) as captured:
            act()
        return len(captured)

    def test_a_settlement_batch_costs_the_same_for_ten_members_and_for_a_thousand(self, frozen_clock: Any) -> None:
        partial, last, claims = [], [], []
        for size in (2, 10, 1000):  # the first warms up what a process asks for once
            create(type="batch", jobs=[job("a")] * size, callbacks={"on_success": job("cb")})
            rows: list[Any] = []
            claims.append(self.statements(lambda: rows.extend(claim(size))))  # noqa: B023
            acks = [Ack(row["id"], "1") for row in rows]
            partial.append(self.statements(lambda: ack(acks[: size // 2])))  # noqa: B023
            last.append(self.statements(lambda: ack(acks[size // 2 :])))  # noqa: B023
            complete()
        assert partial[1] == partial[2] <= 13, partial
        assert last[1] == last[2] <= 23, last
        assert claims[1] == claims[2] <= 17, claims
        assert set(Workflow.objects.values_list("state", flat=True)) == {"completed"}

    @pytest.mark.parametrize("by", ["cancelled", "discarded"])
    def test_every_verb_and_every_answer_costs_the_same_for_three_steps_and_for_sixty(self, by: str) -> None:
        def group(size: int) -> Workflow:
            return create(type="group", jobs=[{**job("a"), "args": [i]} for i in range(size)])

        costs: dict[str, list[int]] = {}
        for size in (2, 3, 60):  # the first warms up what a process asks for once

            def measured(verb: str, act: Callable[[], Any]) -> None:
                costs.setdefault(verb, []).append(self.statements(act))

            ended = group(size)
            measured("read", lambda: workflowgraph.render(*operations.info(ended.pk)))  # noqa: B023
            measured("progress", lambda: workflowgraph.progress(*operations.info(ended.pk, brief=True), {}))  # noqa: B023
            if by == "cancelled":
                cancel(list(Job.objects.filter(workflow_id=ended.pk).values_list("pk", flat=True)))
            else:
                fail([Failure(row["id"], {"message": "no", "retryable": False}) for row in claim(size)])
            measured("retry", lambda: workflowgraph.render(*operations.retry(ended.pk)))  # noqa: B023
            assert len(claim(size)) == size
            flow = group(size)
            measured("create", lambda: group(size))  # noqa: B023
            measured("cancel", lambda: workflowgraph.render(*operations.cancel(flow.pk).view))  # noqa: B023
            claim(size)
        for verb, (_, few, many) in costs.items():
            assert few == many, (verb, costs[verb])

    @pytest.mark.skipif(connection.vendor == "mysql", reason="the reference takes a few more, through the ORM")
    def test_links_of_chains_cost_a_few_statements_more_than_jobs_however_many(self) -> None:
        """On PostgreSQL one: it stores the progress of their workflows and enqueues what is next. SQLite also locks and
        reads the workflows in one of its own, and reads the parents of a job that was claimed in another."""
        claims, links, plain, first = [], [], [], []
        for size in (2, 3, 60):  # the first warms up what a process asks for once
            push([job("a")] * size)
            rows: list[Any] = []
            first.append(self.statements(lambda: rows.extend(claim(size))))  # noqa: B023
            plain.append(self.savepoints_left_out(rows, in_workflow=False))
            for _ in range(size):
                chain("a", "b")
            links.append(self.savepoints_left_out(claim(size), in_workflow=True))
            claims.append(self.statements(lambda: claim(size)))  # noqa: B023
            Job.objects.all().delete()
        caches = 2  # the defaults of queues and the schemas, which are forgotten here
        # Elsewhere jobs, counts and events are statements of their own, and a claim asks whether a workflow has begun.
        more, parents = (1, 0) if connection.vendor == "postgresql" else (6, 2)
        assert links[1] == links[2] <= plain[2] + more + caches, (plain, links)
        assert claims[1] == claims[2] <= first[2] + parents, (first, claims)

    def test_a_process_that_knows_a_workflow_asks_for_its_id_no_more(self) -> None:
        flow = create(id="order-17", type="group", jobs=[job("a")])
        graphs.forget()
        assert flow_ids.known_id(flow.pk) == str(flow.pk)
        claim()
        assert flow_ids.known_id(flow.pk) == "order-17"
        assert self.statements(lambda: flow_ids.own_ids([flow.pk], "default")) == 0

    def test_after_a_while_all_processes_name_a_workflow_alike_that_was_pruned_or_restored(
        self, after_a_while: Callable[[], None]
    ) -> None:
        flow = create(id="order-17", type="group", jobs=[job("a")])
        Workflow.objects.filter(pk=flow.pk).delete()
        after_a_while()
        found: list[Any] = []

        def ask() -> None:
            found.append(flow_ids.own_ids([flow.pk], "default"))

        assert [self.statements(ask) for _ in range(2)] == [1, 0]
        assert flow_ids.known_id(flow.pk) == str(flow.pk)
        flow.save(force_insert=True)
        after_a_while()
        assert [self.statements(ask) for _ in range(2)] == [1, 0]
        assert found == [{}, {}, *[{flow.pk: "order-17"}] * 2]

    def test_what_another_thread_learns_of_a_workflow_meanwhile_is_kept(
        self, after_a_while: Callable[[], None]
    ) -> None:
        flow = create(id="order-17", type="group", jobs=[job("a")])
        Workflow.objects.filter(pk=flow.pk).delete()

        def ask(*, learns: bool) -> None:
            def learn(execute: Any, *args: Any) -> Any:
                found = execute(*args)
                if learns:
                    flow_ids.know(flow.pk, "order-17")
                return found

            after_a_while()
            with connection.execute_wrapper(learn):
                flow_ids.own_ids([flow.pk], "default")

        for learns, known in ((True, "order-17"), (False, str(flow.pk)), (True, "order-17")):
            ask(learns=learns)
            assert flow_ids.known_id(flow.pk) == known

    def test_a_process_that_works_on_a_workflow_asks_for_its_id_no_more(
        self, after_a_while: Callable[[], None]
    ) -> None:
        flow = create(id="order-17", type="chain", steps=[job("a")] * 4)

        def ask() -> None:
            flow_ids.own_ids([flow.pk], "default")

        (row,) = claim()
        for end in (lambda: ack([Ack(row["id"], "1")]), claim):
            after_a_while()
            end()
            assert self.statements(ask) == 0, end
        after_a_while()
        assert self.statements(ask) == 1

    def test_the_id_of_a_workflow_without_its_own_is_asked_for_once(self, after_a_while: Callable[[], None]) -> None:
        flow = create(type="group", jobs=[job("a")])
        after_a_while()
        assert self.statements(lambda: flow_ids.own_ids([flow.pk], "default")) == 0

    def test_a_link_needs_no_savepoint_beside_that_of_its_completion(self) -> None:
        chain("a", "b", "c")
        for _ in range(2):
            (row,) = claim()
            with CaptureQueriesContext(connection) as captured:
                ack([Ack(row["id"], "1", in_workflow=True)])
            assert sum(query["sql"].startswith("SAVEPOINT") for query in captured) <= 1

    def savepoints_left_out(self, rows: list[Any], *, in_workflow: bool) -> int:
        configuration.forget()
        schemas.forget()
        with CaptureQueriesContext(connection) as captured:
            ack([Ack(row["id"], "1", in_workflow=in_workflow) for row in rows])
        return sum("SAVEPOINT" not in query["sql"] for query in captured)

    def test_a_brief_view_says_the_same_of_the_progress(self) -> None:
        flow = create(type="batch", jobs=[job("a"), job("b")], callbacks={"on_success": job("good")})
        complete("[1]")
        whole, brief = operations.info(flow.pk), operations.info(flow.pk, brief=True)
        told = workflowgraph.progress(*brief, {})
        assert told == workflowgraph.progress(*whole, {})
        assert [(step["state"], step["progress"]) for step in told["steps"]] == [("completed", 1.0), ("pending", None)]
        assert told["updated_at"] == shown(flow)["steps"][0]["completed_at"]

    def test_jobs_without_a_workflow_pay_no_statement(self) -> None:
        def asked() -> str:
            push([job("a")] * 3)
            with CaptureQueriesContext(connection) as captured:
                rows = claim(3)
                ack([Ack(rows[0]["id"], "1")], columns=["id", "state"])
                fail_one(Failure(rows[1]["id"], {"message": "no", "retryable": False}))
                cancel_one(rows[2]["id"])
                retry_one(rows[1]["id"])
            # PostgreSQL's claim and completion of jobs ask for members in passing.
            mentions = [
                q["sql"] for q in captured if "workflow" in q["sql"] and "UPDATE django_ojs_job" not in q["sql"]
            ]
            own = ("django_ojs_workflowstep", "UPDATE `django_ojs_workflow`", 'UPDATE "django_ojs_workflow"')
            return " ".join(sql for sql in mentions if any(word in sql for word in own))

        assert asked() == ""

    def test_narrow_columns_advance_a_workflow_too(self) -> None:
        flow = chain("a")
        (row,) = fetch(Fetch(["default"], columns=["id", "args"]))
        ack([Ack(row["id"], "1")], columns=["id"])
        assert shown(flow)["state"] == "completed"


class TestPruning:
    def test_a_failed_workflow_keeps_what_its_retry_needs(self, frozen_clock: Any, monkeypatch: Any) -> None:
        flow = chain("a", "b", "c")
        complete('"kept"')
        failed = discard()
        push([job("alone")])
        alone = complete()
        done = Job.objects.filter(state="completed")
        frozen_clock.advance(days=8)
        with monkeypatch.context() as patched:  # listed while the workflow was not seen as failed yet
            patched.setattr("django_ojs.retention._unneeded", lambda jobs, using: jobs)
            prune()
        prune()
        assert not done.filter(pk=alone["id"]).exists()
        assert done.get().workflow_id == flow.pk
        operations.retry(flow.pk)
        (row,) = claim()
        assert (row["id"], envelope.render(row)["parent_results"]) == (failed["id"], ["kept"])
        fail_one(Failure(row["id"], {"message": "no", "code": "boom", "retryable": False}))
        frozen_clock.advance(days=181)
        for _ in range(2):
            prune()
        assert not Workflow.objects.exists()
        assert not Job.objects.exists()

    def test_results_outlive_their_age_while_the_workflow_runs(self, frozen_clock: Any) -> None:
        flow = chain("a", "b")
        complete('"kept"')
        frozen_clock.advance(days=400)
        prune()
        assert envelope.render(claim()[0])["parent_results"] == ["kept"]
        ack([Ack(Job.objects.get(state="active").pk, None)])
        frozen_clock.advance(days=8)
        assert prune()["workflows"] == 1
        for model in (Workflow, WorkflowStep, WorkflowStart, Job):
            assert not model.objects.exists()
        with pytest.raises(NotFound):
            operations.info(flow.pk)


def test_the_clock_of_the_tests_is_what_ends_are_measured_by(frozen_clock: Any) -> None:
    flow = chain("a")
    claim()
    frozen_clock.advance(seconds=3)
    ack([Ack(Job.objects.get().pk, None)])
    event = log.read(workflow_id=flow.pk, types=["workflow.completed"]).events[0]
    assert event["data"]["duration_ms"] == 3000
    assert shown(flow)["completed_at"] == shown(flow)["metadata"]["completed_at"]
    assert clock.now() == Workflow.objects.get().finished_at


@pytest.mark.django_db(transaction=True)
def test_what_is_created_is_answered_as_it_was_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may have changed it before the answer is written."""

    def later() -> None:
        Workflow.objects.update(name="later")

    def start(*args: Any) -> None:
        begin(*args)
        transaction.on_commit(later)

    begin = operations._start
    monkeypatch.setattr(operations, "_start", start)
    view = operations.create({"type": "group", "name": "first", "jobs": [{"type": "a", "args": []}]})
    assert view.workflow.name == "first"
    assert [row["state"] for row in view.jobs.values()] == ["available"]
    assert Workflow.objects.get().name == "later"


class TestUniqueJobs:
    UNIQUE = {"on_conflict": "ignore"}

    def test_a_workflow_does_not_begin_with_a_job_that_its_policy_ignores(self) -> None:
        (old,) = push([job("a", unique=self.UNIQUE)])
        with pytest.raises(Duplicate) as raised:
            create(type="group", jobs=[job("new"), job("a", unique=self.UNIQUE)])
        details = raised.value.details
        assert (details["existing_job_id"], details["step_id"], details["index"]) == (str(old.row["id"]), "job-1", 1)
        assert not Workflow.objects.exists()
        assert list(Job.objects.values_list("pk", flat=True)) == [old.row["id"]]

    def test_a_later_step_that_its_policy_ignores_has_failed_and_says_why(self) -> None:
        flow = create(type="chain", steps=[job("b"), job("a", unique=self.UNIQUE)])
        push([job("a", unique=self.UNIQUE)])
        assert claim()[0]["type"] == "test.b"
        ack([Ack(Job.objects.get(type="test.b").pk, None)])
        assert (shown(flow)["state"], states(flow)) == ("failed", ["completed", "failed"])
        assert shown(flow)["error"]["errors"][0]["code"] == "duplicate"
