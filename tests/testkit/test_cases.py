"""The mixins and decorators for TestCases: a mode around each test, its setUp and its cleanups, whatever happens."""

from __future__ import annotations

import unittest
from typing import Any

from django.contrib.auth.models import Group
from django.test import SimpleTestCase, TestCase, TransactionTestCase

from django_ojs import aenqueue, enqueue, job
from django_ojs.hooks import doubles
from django_ojs.models import Job
from django_ojs.testing import FakeJobs, FakeJobsMixin, InlineJobsMixin, WorkerJobsMixin, fake


def bad_handler() -> Any:
    @job("test.bad", retry={"max_attempts": 1})
    def bad() -> None:
        Group.objects.create(name="bad was here")
        raise ValueError("bad")

    return bad


class Fake(FakeJobsMixin, SimpleTestCase):
    def setUp(self) -> None:
        enqueue("in.setup")

    def test_setup_is_inside(self) -> None:
        self.jobs.assert_enqueued("in.setup", times=1)

    async def test_coroutines_are_inside(self) -> None:
        await aenqueue("in.coroutine")
        self.jobs.assert_enqueued("in.coroutine")


class Inline(InlineJobsMixin, TestCase):
    raise_job_errors = False

    def test_runs(self) -> None:
        assert bad_handler().enqueue().state == "discarded"
        assert Group.objects.count() == 1

    def test_nothing_is_left(self) -> None:
        assert not Group.objects.exists()
        assert not Job.objects.exists()

    async def test_the_connection_of_a_coroutine_is_that_of_the_test(self) -> None:
        @job("test.async")
        async def work() -> None:
            await Group.objects.acreate(name="async")

        await Group.objects.acreate(name="test")
        assert (await work.aenqueue()).state == "completed"
        assert await Group.objects.acount() == 2


class Drained(WorkerJobsMixin, TransactionTestCase):
    def test_runs(self) -> None:
        bad_handler().enqueue()
        assert self.jobs.drain().discarded == 1
        self.jobs.assert_failed("test.bad")

    def test_nothing_is_left(self) -> None:
        assert not Job.objects.exists()


@fake()
class Decorated(SimpleTestCase):
    jobs: FakeJobs

    def test_the_class_has_the_jobs(self) -> None:
        enqueue("a.b")
        self.jobs.assert_enqueued("a.b", times=1)

    def test_each_test_begins_anew(self) -> None:
        self.jobs.assert_nothing_enqueued()


def test_the_mode_ends_with_a_test_that_fails() -> None:
    class Failing(FakeJobsMixin, unittest.TestCase):
        def runTest(self) -> None:  # noqa: N802 - unittest's name
            enqueue("a.b")
            self.jobs.assert_nothing_enqueued()

    result = unittest.TestResult()
    Failing()(result)
    assert len(result.failures) == 1
    assert "a.b" in result.failures[0][1]
    assert doubles.current is None
