"""Choose what becomes of the jobs that a test enqueues: `fake`, `inline` or `worker`.

Each mode is a context manager and a decorator of test functions, coroutines and TestCases:

    with fake() as jobs:
        sign_up("a@b.c")
    jobs.assert_enqueued("email.send", args=["a@b.c", "welcome"])

The mixins for the TestCases of unittest and Django have `self.jobs` in every test:

    class SignUp(FakeJobsMixin, TestCase):
        def test_welcomes(self) -> None:
            self.client.post("/sign-up", {"email": "a@b.c"})
            self.jobs.assert_enqueued("email.send", times=1)
"""

from __future__ import annotations

import unittest
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from django.test.utils import TestContextDecorator

from django_ojs.testing.fakejobs import FakeJobs
from django_ojs.testing.jobs import Jobs
from django_ojs.testing.storedjobs import InlineJobs, WorkerJobs

if TYPE_CHECKING:
    _Base = unittest.TestCase
else:
    _Base = object

J = TypeVar("J", bound=Jobs)


class _Mode(TestContextDecorator, Generic[J]):
    """`kwarg_name` is the argument under which a decorated test gets the jobs, `attr_name` the attribute that a
    decorated TestCase has them under."""

    jobs: J

    def enable(self) -> J:
        self.jobs = self._new()
        return self.jobs.start()

    def disable(self) -> None:
        self.jobs.stop()

    def __enter__(self) -> J:  # type: ignore[override]  # the stubs know one decorator of Django's
        return self.enable()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disable()

    def _new(self) -> J:
        raise NotImplementedError


class fake(_Mode[FakeJobs]):  # noqa: N801 - reads as what it is used as
    """Jobs are recorded and not stored. Needs no database."""

    def __init__(self, *, kwarg_name: str | None = None, attr_name: str | None = "jobs") -> None:
        super().__init__(attr_name=attr_name, kwarg_name=kwarg_name)

    def _new(self) -> FakeJobs:
        return FakeJobs()


class inline(_Mode[InlineJobs]):  # noqa: N801
    """Jobs run before the call that enqueues them returns; see `InlineJobs` for what `raise_errors` does."""

    def __init__(
        self, *, raise_errors: bool = True, kwarg_name: str | None = None, attr_name: str | None = "jobs"
    ) -> None:
        super().__init__(attr_name=attr_name, kwarg_name=kwarg_name)
        self.raise_errors = raise_errors

    def _new(self) -> InlineJobs:
        return InlineJobs(raise_errors=self.raise_errors)


class worker(_Mode[WorkerJobs]):  # noqa: N801
    """Jobs are stored, and run by `jobs.drain()` through the verbs of a real worker."""

    def __init__(self, *, kwarg_name: str | None = None, attr_name: str | None = "jobs") -> None:
        super().__init__(attr_name=attr_name, kwarg_name=kwarg_name)

    def _new(self) -> WorkerJobs:
        return WorkerJobs()


class _JobsMixin(_Base):
    """Starts its mode before each test's `setUp` and stops it after the test's cleanups."""

    jobs: Jobs

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        self.jobs = self._jobs()
        self.jobs.start()
        try:
            return super().run(result)
        finally:
            self.jobs.stop()

    def _jobs(self) -> Jobs:
        raise NotImplementedError


class FakeJobsMixin(_JobsMixin):
    """Jobs are recorded and not stored."""

    jobs: FakeJobs

    def _jobs(self) -> FakeJobs:
        return FakeJobs()


class InlineJobsMixin(_JobsMixin):
    """Jobs run at once. `raise_job_errors = False`: a job that ends in the dead letter queue raises nothing."""

    jobs: InlineJobs
    raise_job_errors: ClassVar[bool] = True

    def _jobs(self) -> InlineJobs:
        return InlineJobs(raise_errors=self.raise_job_errors)


class WorkerJobsMixin(_JobsMixin):
    """Jobs wait for `self.jobs.drain()`."""

    jobs: WorkerJobs

    def _jobs(self) -> WorkerJobs:
        return WorkerJobs()
