"""Mixins for the TestCases of unittest and Django: `self.jobs` in every test.

class SignUp(FakeJobsMixin, TestCase):
    def test_welcomes(self) -> None:
        self.client.post("/sign-up", {"email": "a@b.c"})
        self.jobs.assert_enqueued("email.send", times=1)
"""

from __future__ import annotations

import unittest
from typing import TYPE_CHECKING, ClassVar

from django_ojs.testing.faking import FakeJobs
from django_ojs.testing.inlining import InlineJobs
from django_ojs.testing.jobs import Jobs
from django_ojs.testing.running import WorkerJobs

if TYPE_CHECKING:
    _Base = unittest.TestCase
else:
    _Base = object


class _JobsMixin(_Base):
    """Begins its mode in front of each test's `setUp` and ends it after the test's cleanups."""

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
    """Jobs are taken down and go no further."""

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
