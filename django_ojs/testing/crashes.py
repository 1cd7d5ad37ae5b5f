"""Let the worker crash at each step of a durable handler, and see that the job ends as it does without crashes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from django.db import transaction

from django_ojs.client.definition import PreparedJob, push_prepared
from django_ojs.client.handle import JobHandle
from django_ojs.client.steps import StepStore
from django_ojs.database import database
from django_ojs.models import JobStep
from django_ojs.rules.approvals import ApprovalRequest
from django_ojs.rules.steps import Step
from django_ojs.testing.storedjobs import worker

T = TypeVar("T")
Moment = Literal["before", "after"]


class WorkerCrash(BaseException):
    """Stands for the end of a worker's process: what the handler does from here on reaches no database."""


class CrashingSteps:
    """Records the steps of a run until the worker crashes: before or after the record of that number."""

    def __init__(self, at: int = 0, moment: Moment = "before") -> None:
        self._at, self._moment = at, moment
        self.recorded, self.crashed = 0, False
        self._store: StepStore | None = None

    def around(self, store: StepStore) -> CrashingSteps:
        """The same for the next run, which records its steps in `store`."""
        self._store = store
        return self

    @property
    def using(self) -> str | None:
        return self._stored.using

    def load(self) -> list[Step]:
        return self._stored.load()

    def record(self, step: Step, *, locked: bool) -> bool:
        return self._write(lambda: self._stored.record(step, locked=locked))

    def replace(self, step: Step, *, locked: bool) -> bool:
        return self._write(lambda: self._stored.replace(step, locked=locked))

    def delete_all(self) -> bool:
        return self._write(self._stored.delete_all)

    def start_over(self, arguments: Step) -> bool:
        return self._write(lambda: self._stored.start_over(arguments))

    def event(self, name: str, key: str) -> str | None:
        return self._stored.event(name, key)

    def wait(self, step: Step) -> bool | None:
        return self._write(lambda: self._stored.wait(step))

    def time_out(self, step: Step) -> bool | None:
        return self._write(lambda: self._stored.time_out(step))

    def begin(self, step: Step, document: dict[str, Any], *, limit: int, outlives: bool) -> bool:
        return self._write(lambda: self._stored.begin(step, document, limit=limit, outlives=outlives))

    def ask(self, step: Step, request: ApprovalRequest, *, again: bool) -> bool:
        return self._write(lambda: self._stored.ask(step, request, again=again))

    def time_out_approval(self, step: Step) -> bool:
        return self._write(lambda: self._stored.time_out_approval(step))

    @property
    def _stored(self) -> StepStore:
        assert self._store is not None
        return self._store

    def _write(self, write: Callable[[], T]) -> T:
        if self.crashed:
            raise WorkerCrash
        self.recorded += 1
        self.crashed = self.recorded == self._at
        if self.crashed and self._moment == "before":
            raise WorkerCrash
        written = write()
        if self.crashed:
            raise WorkerCrash
        return written


def assert_survives_crashes(job: PreparedJob, *, check: Callable[[JobHandle], None] | None = None) -> None:
    """Fail unless the job ends in the same state, with the same steps, wherever its worker crashes.

    The job is run once without a crash, and then once for each record of a step, with a crash before it and with one
    after it. A crash is followed by another run, as in a real worker. Each time begins with the database as it was.

    Args:
        job: what to enqueue, such as `fulfil.s(7)`. Its handler is durable.
        check: called with the job after each end, to look at what happened: at rows, or at the calls of a fake service.
    """
    __tracebackhide__ = True
    wanted, records = _run(job, CrashingSteps(), check)
    if not records:
        raise AssertionError(f"{job!r} records no step: there is nothing between which its worker could crash.")
    for number in range(1, records + 1):
        for moment in ("before", "after"):
            found, _ = _run(job, CrashingSteps(number, moment), check)
            if found != wanted:
                where = f"with a crash {moment} record {number} of {records}"
                raise AssertionError(f"{job!r} ends otherwise {where}:\n  {found}\nthan without:\n  {wanted}")


def _run(
    job: PreparedJob, crashes: CrashingSteps, check: Callable[[JobHandle], None] | None
) -> tuple[tuple[str, list[Any]], int]:
    """How the job ends: its state and its steps; and the number of records."""
    using = database(None)
    with transaction.atomic(using=using), worker() as jobs:
        (handle,) = push_prepared([job])
        jobs.crash(crashes)
        jobs.drain(with_scheduled=True)
        handle.refresh()
        steps = JobStep.objects.using(using).filter(job_id=handle.id).order_by("pk").values_list("name", "kind")
        end = (str(handle.state), list(steps))
        if check is not None:
            check(handle)
        transaction.set_rollback(True, using=using)
    return end, crashes.recorded
