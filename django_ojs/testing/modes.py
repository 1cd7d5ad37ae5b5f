"""The three modes, each a context manager and a decorator of test functions, coroutines and TestCases.

with fake() as jobs:
    sign_up("a@b.c")
jobs.assert_enqueued("email.send", args=["a@b.c", "welcome"])
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Generic, TypeVar

from django.test.utils import TestContextDecorator

from django_ojs.testing.faking import FakeJobs
from django_ojs.testing.inlining import InlineJobs
from django_ojs.testing.jobs import Jobs
from django_ojs.testing.running import WorkerJobs

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
    """Jobs are taken down and go no further. Needs no database."""

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


#: The modes by the names that the mixin knows.
MODES: dict[str, Any] = {"fake": fake, "inline": inline, "worker": worker}
