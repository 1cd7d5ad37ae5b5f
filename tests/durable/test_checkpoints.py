"""Checkpoints of handlers: in real workers, in the test modes, and in a context without a worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction

from django_ojs import JobContext, job
from django_ojs.errors import PayloadTooLarge
from django_ojs.jobs import checkpoints
from django_ojs.models import Job, JobCheckpoint
from django_ojs.testing import fake, inline, job_context
from django_ojs.testing import worker as worker_mode
from tests.waiting import eventually
from tests.worker.conftest import WorkerThread, _forget_queues, drain, handlers, start_worker

__all__ = ["_forget_queues", "drain", "handlers", "start_worker"]  # fixtures
pytestmark = pytest.mark.django_db(transaction=True)

Start = Callable[..., WorkerThread]


class Boom(Exception):
    pass


def test_ckp_10_the_next_attempt_goes_on_in_a_real_worker(start_worker: Start) -> None:
    seen: list[Any] = []

    @job("kept.count", retry={"max_attempts": 3, "initial_interval_ms": 1, "jitter": False})
    def handler(context: JobContext) -> list[Any]:
        state = context.last_checkpoint or {"page": 0}
        seen.append((context.attempt, context.has_checkpoint, state["page"], context.checkpoint_sequence))
        for page in range(state["page"], 5):
            if page == 2 * context.attempt:
                raise Boom
            assert context.checkpoint({"page": page + 1}) == page + 1
        return context.last_checkpoint["page"]  # type: ignore[no-any-return]

    handle = handler.enqueue()
    start_worker(until_empty=True).wait()
    eventually(lambda: handle.refresh().is_finished or not start_worker(until_empty=True).wait())
    assert seen == [(1, False, 0, 0), (2, True, 2, 2), (3, True, 4, 4)]
    assert handle.refresh().result == 5
    found = handle.checkpoint()
    assert found is not None
    assert (found.state, found.sequence) == ({"page": 5}, 5)


def test_ckp_20_a_run_that_has_lost_its_job_ends_at_its_next_save(start_worker: Start) -> None:
    inside, on, after = threading.Event(), threading.Event(), []

    @job("kept.taken")
    def handler(context: JobContext) -> None:
        context.checkpoint("mine")
        inside.set()
        on.wait(60)
        try:
            context.checkpoint("too late")
            after.append("went on")
        except Exception:  # noqa: BLE001 - it must not meet this
            after.append("was kept")
        finally:
            after.append("ended")

    handle = handler.enqueue()
    first = start_worker(scheduler=False)
    assert inside.wait(60)
    Job.objects.filter(pk=handle.id).update(attempt=2, worker_id="other")
    on.set()
    first.stop()
    assert after == ["ended"]
    found = handle.checkpoint()
    assert found is not None
    assert found.state == "mine"
    row = Job.objects.get(pk=handle.id)
    assert (row.state, row.worker_id, row.errors) == ("active", "other", None)


def test_ckp_10_a_drained_worker_leaves_it_to_the_next(start_worker: Start, settings: Any) -> None:
    settings.OJS = {"SHUTDOWN_GRACE_PERIOD": 0.2}
    inside, on = threading.Event(), threading.Event()

    @job("kept.drained")
    def handler(context: JobContext) -> str:
        if context.has_checkpoint:
            return f"after {context.last_checkpoint}"
        context.checkpoint("half")
        inside.set()
        on.wait(60)
        context.checkpoint("more")
        return "at once"

    handle = handler.enqueue()
    first = start_worker(scheduler=False)
    assert inside.wait(60)
    first.worker.stop()
    eventually(lambda: Job.objects.get(pk=handle.id).state == "available")
    on.set()
    first.wait()
    start_worker(until_empty=True, scheduler=False).wait()
    assert handle.refresh().result == "after half"


def test_an_asynchronous_handler(start_worker: Start) -> None:
    @job("kept.async")
    async def handler(context: JobContext) -> list[Any]:
        await asyncio.gather(*(context.acheckpoint(n) for n in range(3)))
        with pytest.raises(SynchronousOnlyOperation):
            context.checkpoint(4)
        return [context.checkpoint_sequence, await context.aclear_checkpoint(), context.has_checkpoint]

    handle = handler.enqueue()
    start_worker(until_empty=True, scheduler=False).wait()
    assert handle.refresh().result == [3, True, False]
    assert handle.checkpoint() is None


def test_a_transactional_handler_saves_with_its_effects(start_worker: Start) -> None:
    @job("kept.whole", transactional=True, retry={"max_attempts": 1})
    def handler(context: JobContext) -> None:
        context.checkpoint("never seen")
        raise Boom

    handle = handler.enqueue()
    start_worker(until_empty=True, scheduler=False).wait()
    assert handle.refresh().state == "discarded"
    assert handle.checkpoint() is None


def test_what_is_no_checkpoint_raises_in_the_handler() -> None:
    @job("kept.wrong", retry={"max_attempts": 1})
    def handler(context: JobContext) -> None:
        with pytest.raises(TypeError, match="which is not JSON"):
            context.checkpoint({"at": object()})
        with pytest.raises(PayloadTooLarge):
            context.checkpoint("x" * 1_048_576)
        assert not context.has_checkpoint

    with inline():
        assert handler.enqueue().state == "completed"


def test_the_test_modes_store_it() -> None:
    @job("kept.mode", retry={"max_attempts": 2})
    def handler(context: JobContext) -> Any:
        if context.attempt == 1:
            context.checkpoint([1, 2])
            raise Boom
        return context.last_checkpoint

    with inline():
        assert handler.enqueue().result == [1, 2]
    with worker_mode() as jobs:
        handle = handler.enqueue()
        jobs.drain(with_scheduled=True)
        assert handle.refresh().result == [1, 2]
    assert JobCheckpoint.objects.count() == 2
    with fake():
        assert handler.enqueue().checkpoint() is None


def test_a_context_without_a_worker_keeps_it_itself() -> None:
    context = job_context(checkpoint={"page": 3})
    assert (context.has_checkpoint, context.last_checkpoint) == (True, {"page": 3})
    assert context.checkpoint(("a", 1)) == 2
    assert context.last_checkpoint == ["a", 1]
    assert context.clear_checkpoint() is True
    assert (context.has_checkpoint, context.last_checkpoint, context.clear_checkpoint()) == (False, None, False)
    assert context.checkpoint(None) == 1
    assert context.has_checkpoint
    assert context.last_checkpoint is None
    assert not JobCheckpoint.objects.exists()


def test_a_save_in_a_transaction_of_the_handler_goes_with_it() -> None:
    @job("kept.inside", retry={"max_attempts": 1})
    def handler(context: JobContext) -> None:
        context.checkpoint("before")
        with transaction.atomic():
            context.checkpoint("undone")
            transaction.set_rollback(True)

    with inline():
        handle = handler.enqueue()
    found = handle.checkpoint()
    assert found is not None
    assert (found.state, found.sequence) == ("before", 1)
    assert checkpoints.clear(handle.id) is True
