"""The outbox, in one database for want of two: written with the caller's data, relayed once, faults set aside."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import json
import logging
import uuid
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from django.core.management import call_command
from django.db import InterfaceError, OperationalError, ProgrammingError, connection, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext

from django_ojs import chain, clock, doctor, enqueue, enqueue_many, get_job, get_workflow, group, hooks, job, outbox
from django_ojs.checks import check_outbox, check_second_database
from django_ojs.errors import Conflict, Duplicate, InvalidPayload, MiddlewareRejected, NotFound, QueueFull
from django_ojs.jobs import push
from django_ojs.models import Job, OutboxEntry, Queue, Workflow
from django_ojs.registry import Registry, registry
from django_ojs.routers import JobsRouter
from django_ojs.scheduler.scheduler import Relay
from django_ojs.testing import FakeJobs, InlineJobs, WorkerJobs
from tests.middlewares import added

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def handlers() -> Any:
    with registry.isolated() as isolated:
        yield isolated


@pytest.fixture(autouse=True)
def _outbox(settings: Any) -> None:
    settings.OJS = {"OUTBOX": "default"}


@pytest.fixture
def ship() -> Any:
    @job("order.ship")
    def ship(name: str) -> str:
        return name

    return ship


def entries() -> list[Any]:
    return list(OutboxEntry.objects.order_by("id"))


def jobs() -> list[Any]:
    return list(Job.objects.order_by("enqueued_at"))


def test_enqueue_writes_the_job_with_its_final_id_into_the_outbox(ship: Any) -> None:
    handle = ship.options(priority=3).enqueue("a")
    (entry,) = entries()
    assert (entry.target_id, entry.type, entry.document["args"], jobs()) == (handle.id, "order.ship", ["a"], [])
    assert (handle.in_outbox, handle.created, handle.state) == (True, True, "available")
    assert "in the outbox" in repr(handle)
    assert outbox.relay() == 1
    assert (entries(), [stored.pk for stored in jobs()]) == ([], [handle.id])
    assert handle.refresh().in_outbox is False
    assert (handle.row["priority"], handle.state) == (3, "available")
    assert outbox.relay() == 0


def test_it_is_one_statement_and_in_the_callers_transaction(ship: Any, long_memory: None) -> None:
    clock.now(connection.alias)  # once a minute a process asks a server database for the time
    with CaptureQueriesContext(connection) as queries:
        enqueue_many([ship.s("a"), ship.s("b"), ship.s("c")])
    written = [query["sql"] for query in queries if "SAVEPOINT" not in query["sql"]]
    assert len(written) == 1
    with transaction.atomic():
        ship.enqueue("lost")
        transaction.set_rollback(True)
    assert [entry.document["args"] for entry in entries()] == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize(
    "data, of_jobs, stored", [(False, True, True), (True, True, False), (True, False, False), (False, False, False)]
)
def test_in_a_transaction_of_the_database_of_the_jobs_alone_jobs_are_part_of_that(
    ship: Any, settings: Any, monkeypatch: pytest.MonkeyPatch, data: bool, of_jobs: bool, stored: bool
) -> None:
    settings.OJS = {"OUTBOX": "data"}
    opened = {"data": mock.Mock(in_atomic_block=data), "default": mock.Mock(in_atomic_block=of_jobs)}
    with monkeypatch.context() as patched:
        patched.setattr(outbox, "connections", opened)
        assert outbox.place() == (None if stored else "data")
        if stored:
            assert ship.enqueue("a").in_outbox is False
            assert chain(ship.s("b")).enqueue().in_outbox is False
    assert [stored.args for stored in jobs()] == ([["a"], ["b"]] if stored else [])
    assert entries() == []


def test_the_order_is_kept(ship: Any) -> None:
    for name in "abc":
        ship.enqueue(name)
    enqueue_many([ship.s("d"), ship.s("e")])
    chain(ship.s("f")).enqueue()
    ship.enqueue("g")
    assert outbox.relay(limit=4) == 4
    assert outbox.relay() == 3
    assert [stored.args[0] for stored in jobs()] == list("abcdefg")


def test_faults_that_can_be_seen_are_refused_at_once(ship: Any) -> None:
    with pytest.raises(InvalidPayload):
        enqueue("No Type")
    with pytest.raises(TypeError):
        ship.enqueue(object())
    handle = ship.enqueue("a")
    with pytest.raises(Duplicate):
        ship.options(id=handle.id).enqueue("a")
    assert len(entries()) == 1


def test_delays_count_from_the_enqueue_and_the_middleware_runs_once(ship: Any, frozen_clock: Any) -> None:
    seen = []

    def stamp(document: dict[str, Any], proceed: Any) -> Any:
        seen.append(document["id"])
        return None if document["args"] == ["drop"] else proceed({**document, "meta": {"by": "middleware"}})

    with added(stamp):
        due = frozen_clock.now + dt.timedelta(minutes=10)
        handle = ship.options(delay="10m").enqueue("a")
        assert ship.enqueue("drop").dropped
        frozen_clock.advance(minutes=5)
        outbox.relay()
    (stored,) = jobs()
    assert (stored.due_at, stored.state, stored.meta) == (due, "scheduled", {"by": "middleware"})
    assert (handle.row["due_at"], len(seen)) == (due, 2)


def test_several_jobs_are_refused_where_a_middleware_drops_one_with_an_outbox_or_without(
    ship: Any, settings: Any
) -> None:
    def drop(document: dict[str, Any], proceed: Any) -> Any:
        return None if document["args"] == ["drop"] else proceed(document)

    with added(drop):
        for home in ("default", None):
            settings.OJS = {"OUTBOX": home}
            with pytest.raises(MiddlewareRejected) as caught:
                enqueue_many([ship.s("a"), ship.s("drop")])
            assert caught.value.details["index"] == 1
            assert (entries(), jobs()) == ([], [])
            assert ship.enqueue("drop").dropped


def test_a_crash_between_push_and_delete_makes_no_second_job(ship: Any) -> None:
    ship.enqueue("a")
    chain(ship.s("b"), ship.s("c")).enqueue()
    with mock.patch.object(outbox, "_delete"):
        outbox.relay()
    assert (len(entries()), len(jobs()), Workflow.objects.count()) == (2, 2, 1)
    outbox.relay()
    assert (len(entries()), len(jobs()), Workflow.objects.count()) == (0, 2, 1)


def test_an_id_that_another_job_has_is_not_taken_for_our_own(ship: Any) -> None:
    (other,) = push.push([{"type": "order.ship", "args": ["other"]}])
    assert other.row is not None
    handle = ship.options(id=other.row["id"]).enqueue("mine")
    outbox.relay()
    (entry,) = entries()
    assert (entry.aside, handle.id) == (True, other.row["id"])
    assert "duplicate" in entry.error


def test_an_id_that_another_workflow_has_is_not_taken_for_our_own(ship: Any) -> None:
    own = uuid.uuid4()
    chain(ship.s("a"), ship.s("b")).enqueue(id=own)
    assert outbox.relay() == 1
    for other in (chain(ship.s("a"), ship.s("c")), group(ship.s("a"), ship.s("b"))):
        other.enqueue(id=own)
        outbox.relay()
        (entry,) = entries()
        assert entry.aside
        assert "duplicate" in entry.error
        entry.delete()


def test_a_workflow_whose_relay_died_is_known_again_though_each_try_has_a_trace_of_its_own(
    ship: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def traced(plan: Any) -> Iterator[Any]:
        for step in plan.steps:
            step.document = {**step.document, "meta": {"traceparent": str(uuid.uuid4())}}
        yield lambda word: None

    monkeypatch.setattr(hooks, "around_workflow", [traced])
    flow = chain(ship.s("a"), ship.s("b")).enqueue(id=uuid.uuid4())
    with mock.patch.object(outbox, "_delete"):
        outbox.relay()
    assert len(entries()) == 1
    outbox.relay()
    assert entries() == []
    assert get_workflow(flow.id).state == "running"


def test_a_bad_entry_is_set_aside_and_blocks_nobody(ship: Any, caplog: Any) -> None:
    first, bad, last = enqueue_many([ship.s("a"), ship.s("b"), ship.s("c")])
    OutboxEntry.objects.filter(target_id=bad.id).update(document={"type": "No Type", "args": []})
    with caplog.at_level(logging.ERROR):
        assert outbox.relay() == 3
    assert [stored.pk for stored in jobs()] == [first.id, last.id]
    (entry,) = entries()
    assert (entry.aside, entry.attempts) == (True, 1)
    assert "invalid_payload" in entry.error
    assert str(bad.id) in caplog.text
    assert outbox.relay() == 0


def test_what_breaks_the_statement_is_found_among_the_others(ship: Any, caplog: Any) -> None:
    enqueue_many([ship.s("a"), ship.s("poison"), ship.s("c")])
    real = outbox.push_read

    def breaking(candidates: Any, *rest: Any) -> Any:
        if any(candidate.valid_spec.args == ["poison"] for candidate in candidates):
            raise ValueError("poison")
        return real(candidates, *rest)

    with mock.patch.object(outbox, "push_read", breaking):
        assert outbox.relay() == 3
    assert [stored.args for stored in jobs()] == [["a"], ["c"]]
    (entry,) = entries()
    assert (entry.aside, entry.error) == (True, "ValueError: poison")


def test_the_log_repeats_no_hidden_argument_of_what_is_set_aside(ship: Any, settings: Any, caplog: Any) -> None:
    settings.OJS = {**settings.OJS, "REDACT": {"types": {"order.*": ["args"]}}}
    ship.enqueue("hunter2")
    with mock.patch.object(outbox, "push_read", return_value=[Conflict("There is no order hunter2.")]):
        outbox.relay()
    (entry,) = entries()
    assert "hunter2" in entry.error
    assert "is set aside: conflict" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("error", [Conflict("There is no order hunter2."), LookupError("hunter2")], ids=type)
@pytest.mark.parametrize("of_workflow", [False, True], ids=["job", "workflow"])
def test_no_hidden_argument_is_in_the_log_of_what_is_refused(
    ship: Any, settings: Any, caplog: Any, error: Exception, of_workflow: bool
) -> None:
    """A workflow has a type of its own, and jobs of those that are hidden."""
    patched = (outbox.workflow, "create") if of_workflow else (outbox, "push_read")

    def told() -> str:
        caplog.clear()
        chain(ship.s("hunter2")).enqueue() if of_workflow else ship.enqueue("hunter2")
        with mock.patch.object(*patched, side_effect=error):
            outbox.relay()
        assert "is set aside" in caplog.text
        return str(caplog.text)

    assert "hunter2" in told()
    settings.OJS = {**settings.OJS, "REDACT": {"types": {"order.*": ["args"]}}}
    assert "hunter2" not in told()
    assert entries()[-1].error.endswith("hunter2" if isinstance(error, LookupError) else "hunter2.")


def test_what_is_not_taken_now_is_tried_again_later(ship: Any, frozen_clock: Any) -> None:
    Queue.objects.create(
        name="small", config={"backpressure": {"max_depth": 1, "strategy": "reject"}},
        created_at=frozen_clock.now, updated_at=frozen_clock.now,
    )  # fmt: skip
    first, second = enqueue_many([ship.options(queue="small").s("a"), ship.options(queue="small").s("b")])
    assert outbox.relay() == 2
    (entry,) = entries()
    assert (entry.target_id, entry.aside, entry.attempts) == (second.id, False, 1)
    assert second.refresh().in_outbox
    assert second.outbox_error == ""
    assert "QUEUE_FULL" in entry.error
    assert outbox.relay() == 0
    first.refresh().cancel()
    frozen_clock.advance(seconds=3)
    assert outbox.relay() == 1
    assert second.refresh().in_outbox is False


def test_what_was_refused_while_the_clock_was_ahead_is_tried_when_it_is_right(ship: Any, frozen_clock: Any) -> None:
    start = frozen_clock.now
    frozen_clock.advance(days=1)
    ship.enqueue("a")
    with mock.patch.object(outbox, "_push", side_effect=lambda entries, target: [QueueFull("full")] * len(entries)):
        assert outbox.relay() == 1
    assert outbox.relay() == 0
    frozen_clock.move_to(start)
    assert outbox.relay() == 1
    assert entries() == []


def test_a_database_that_is_away_leaves_everything_as_it_is(ship: Any) -> None:
    ship.enqueue("a")
    for error in (OperationalError("away"), ProgrammingError(1146, "not migrated"), InterfaceError("closed")):
        with mock.patch.object(outbox, "push_read", side_effect=error), pytest.raises(type(error)):
            outbox.relay()
    (entry,) = entries()
    assert (entry.aside, entry.attempts) == (False, 0)
    assert outbox.relay() == 1


def test_handles_speak_of_the_outbox(ship: Any) -> None:
    handle = ship.enqueue("a")
    found = get_job(handle.id)
    assert (found.in_outbox, found.state, found.args) == (True, "available", ["a"])
    with pytest.raises(Conflict, match="outbox"):
        handle.cancel()
    with pytest.raises(Conflict, match="outbox"):
        handle.retry()
    with pytest.raises(TransactionManagementError):
        handle.wait(0.1)
    OutboxEntry.objects.update(aside=True, error="duplicate: no")
    assert handle.refresh().outbox_error == "duplicate: no"
    with pytest.raises(RuntimeError, match="duplicate: no"):
        handle.wait(0.1)
    OutboxEntry.objects.all().delete()
    with pytest.raises(NotFound):
        handle.refresh()


def test_workflows_wait_in_the_outbox_too(ship: Any) -> None:
    flow = chain(ship.s("a"), ship.s("b")).enqueue(name="etl")
    named = chain(ship.s("c")).enqueue(id="my-own")
    assert (flow.in_outbox, flow.state, flow.jobs, Workflow.objects.count()) == (True, "running", [], 0)
    assert flow.refresh().in_outbox
    with pytest.raises(Conflict, match="outbox"):
        flow.cancel()
    assert outbox.relay() == 2
    assert (flow.refresh().in_outbox, [member.args for member in flow.jobs]) == (False, [["a"]])
    assert get_workflow("my-own") == named.refresh()
    chain(ship.s("d")).enqueue(id="my-own")
    outbox.relay()
    assert [stored.args[0] for stored in jobs()] == ["a", "c"]
    assert [entry.aside for entry in entries()] == [True]


def test_the_scheduler_relays(ship: Any, settings: Any) -> None:
    loop = Relay()
    ship.enqueue("a")
    assert loop.run_once("default") == 0
    assert loop.run_once("default") == Relay.IDLE
    assert len(jobs()) == 1
    settings.OJS = {}
    assert loop.run_once("default") == Relay.OFF


def test_the_modes_of_tests_know_the_outbox(ship: Any, handlers: Registry) -> None:
    from django_ojs.testing import fake, inline, worker

    def run(mode: Any) -> Any:
        with mode as found:
            handle = ship.enqueue("a")
            flow = chain(ship.s("x"), ship.s("y")).enqueue()
            found.assert_enqueued(ship, args=["a"])
            if isinstance(found, WorkerJobs):
                found.drain().raise_first()
            found.assert_workflow_enqueued("chain", times=1)
            found.assert_enqueued(ship, args=["a"], times=1)
        return found, handle, flow

    faked, handle, _ = run(fake())
    assert isinstance(faked, FakeJobs)
    assert (entries(), jobs(), handle.in_outbox) == ([], [], False)
    ran, handle, flow = run(inline())
    assert isinstance(ran, InlineJobs)
    assert (handle.state, handle.in_outbox, flow.state) == ("completed", False, "completed")
    _, handle, flow = run(worker())
    assert (handle.refresh().state, flow.refresh().state, entries()) == ("completed", "completed", [])


def test_a_job_for_which_another_stands_is_that_one(ship: Any) -> None:
    unique = ship.options(unique={"on_conflict": "ignore"})
    first, again = unique.enqueue("a"), unique.enqueue("a")
    other = unique.enqueue("b")
    asked = again.id
    assert outbox.relay() == 3
    assert (again.refresh().id, again.deduplicated, again.created, again.in_outbox) == (first.id, True, False, False)
    found = get_job(asked)
    assert (found.id, found.deduplicated) == (first.id, True)
    assert not other.refresh().deduplicated
    assert not get_job(first.id).deduplicated
    Job.objects.all().delete()
    for job_id in (asked, first.id):
        with pytest.raises(NotFound):
            get_job(job_id)


def test_the_status_counts_what_has_not_come_to_the_jobs(ship: Any, settings: Any) -> None:
    def status(*arguments: str) -> str:
        out = io.StringIO()
        call_command("ojs_status", *arguments, stdout=out, no_color=True)
        return out.getvalue()

    assert json.loads(status("--json"))["outbox"] == {"waiting": 0, "aside": 0}
    assert "outbox" not in status()
    enqueue_many([ship.s("a"), ship.s("b"), ship.s("c")])
    OutboxEntry.objects.filter(pk=entries()[0].pk).update(aside=True)
    assert json.loads(status("--json"))["outbox"] == {"waiting": 2, "aside": 1}
    assert "The outbox has 2 that wait and 1 set aside." in status()
    settings.OJS = {}
    assert json.loads(status("--json"))["outbox"] is None


def test_checks(settings: Any) -> None:
    def found(**ojs: Any) -> list[str | None]:
        settings.OJS = ojs
        return [message.id for message in check_second_database()]

    assert found() == []
    assert found(OUTBOX="nowhere") == ["django_ojs.E010"]
    assert found(OUTBOX="default") == ["django_ojs.W011"]
    settings.DATABASE_ROUTERS = ["tests.outbox.test_outbox.Elsewhere"]
    assert found() == ["django_ojs.W010"]
    (warning,) = check_second_database()
    assert (warning.id, "'default'" in warning.msg, "OUTBOX" in (warning.hint or "")) == ("django_ojs.W010", True, True)
    assert found(OUTBOX="default") == []


def test_w110_a_missing_table(settings: Any) -> None:
    assert check_outbox(databases=["default"]) == []
    with mock.patch.object(OutboxEntry._meta, "db_table", "nobody_made_it"):
        (warning,) = check_outbox(databases=["default"])
    assert (warning.id, "zero --fake" in (warning.hint or "")) == ("django_ojs.W110", True)
    assert check_outbox(databases=["other"]) == []
    assert check_outbox() == []


def test_w110_leaves_what_migrate_is_about_to_make(settings: Any) -> None:
    MigrationRecorder(connection).migration_qs.filter(app="django_ojs").delete()
    with mock.patch.object(OutboxEntry._meta, "db_table", "nobody_made_it"):
        assert check_outbox(databases=["default"]) == []
        settings.DATABASE_ROUTERS = ["tests.outbox.test_outbox.Nowhere"]
        (warning,) = check_outbox(databases=["default"])
    assert (warning.id, "zero --fake" in (warning.hint or "")) == ("django_ojs.W110", False)


class Elsewhere(JobsRouter):
    database = "elsewhere"


class Nowhere:
    def allow_migrate(self, *args: Any, **hints: Any) -> bool:
        return False


def test_the_router() -> None:
    router = Elsewhere()
    assert (router.db_for_read(Job), router.db_for_write(Job)) == ("elsewhere", "elsewhere")
    assert (router.db_for_write(OutboxEntry), router.db_for_write(dict_model())) == ("default", None)
    assert router.allow_migrate("default", "django_ojs", "job") is False
    assert router.allow_migrate("default", "django_ojs", "outboxentry") is True
    assert router.allow_migrate("elsewhere", "django_ojs", "outboxentry") is False
    assert router.allow_migrate("elsewhere", "django_ojs", "job") is True
    assert router.allow_migrate("default", "django_ojs") is False
    assert router.allow_migrate("elsewhere", "auth", "group") is False
    assert router.allow_migrate("default", "auth", "group") is None
    assert router.allow_relation(Job(), Workflow()) is True
    assert router.allow_relation(Job(), dict_model()()) is None


def dict_model() -> Any:
    from django.contrib.auth.models import Group

    return Group


def test_entries_that_nobody_tries_again_are_a_finding(ship: Any, settings: Any) -> None:
    def aside() -> list[Any]:
        return [one.figures for one in doctor.attention(doctor.Site("default")) if one.id == "outbox-aside"]

    ship.enqueue("a")
    assert aside() == [], "the relay has it"
    OutboxEntry.objects.update(aside=True)
    assert aside() == [{"entries": 1}]
    assert "outbox-aside" in {one.id for one in doctor.examine()}
    settings.OJS = {}
    assert aside() == []
    settings.OJS = {"OUTBOX": "default"}
    outbox.try_again(OutboxEntry.objects.get().pk)
    assert aside() == []


def test_what_needs_attention_is_told_where_the_outbox_cannot_be_asked(
    ship: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*args: Any, **kwargs: Any) -> Any:
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(OutboxEntry.objects, "using", away)
    (one,) = [one for one in doctor.attention(doctor.Site("default")) if one.id == "not-examined"]
    assert one.about == "entries_aside"
