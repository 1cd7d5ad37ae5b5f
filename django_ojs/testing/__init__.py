"""Test a site that enqueues jobs (docs/testing.md), or a client of OJS against a test server.

    from django_ojs.testing import fake

    with fake() as jobs:
        sign_up("a@b.c")
    jobs.assert_enqueued("email.send", args=["a@b.c", "welcome"])

A mode, `fake`, `inline` or `worker`, chooses what becomes of the jobs that a test enqueues. It is a context manager and
a decorator of test functions, coroutines and TestCases. The mixins for TestCases have `self.jobs` in every test:

    class SignUp(FakeJobsMixin, TestCase):
        def test_welcomes(self) -> None:
            self.client.post("/sign-up", {"email": "a@b.c"})
            self.jobs.assert_enqueued("email.send", times=1)

`assert_survives_crashes(job)` lets the worker crash at each step of a durable handler.

`approve(job)` decides what a durable handler asks people, whoever is asked.

`job_context()` is the context for a test that calls a handler as a function.

The names are loaded on first use: pytest imports this package before Django is set up.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_ojs.client.handle import JobFailed as JobFailed
    from django_ojs.testing.approvals import approve as approve
    from django_ojs.testing.contexts import job_context as job_context
    from django_ojs.testing.crashes import assert_survives_crashes as assert_survives_crashes
    from django_ojs.testing.fakejobs import FakeJobs as FakeJobs
    from django_ojs.testing.fakejobs import FakeJobsMixin as FakeJobsMixin
    from django_ojs.testing.fakejobs import fake as fake
    from django_ojs.testing.jobs import Jobs as Jobs
    from django_ojs.testing.storedjobs import Drained as Drained
    from django_ojs.testing.storedjobs import InlineJobs as InlineJobs
    from django_ojs.testing.storedjobs import InlineJobsMixin as InlineJobsMixin
    from django_ojs.testing.storedjobs import Performed as Performed
    from django_ojs.testing.storedjobs import WorkerJobs as WorkerJobs
    from django_ojs.testing.storedjobs import WorkerJobsMixin as WorkerJobsMixin
    from django_ojs.testing.storedjobs import inline as inline
    from django_ojs.testing.storedjobs import worker as worker

_MODULES = {
    "approve": "approvals",
    "job_context": "contexts",
    "assert_survives_crashes": "crashes",
    "FakeJobs": "fakejobs",
    "FakeJobsMixin": "fakejobs",
    "fake": "fakejobs",
    "Jobs": "jobs",
    "Drained": "storedjobs",
    "InlineJobs": "storedjobs",
    "InlineJobsMixin": "storedjobs",
    "JobFailed": "storedjobs",
    "Performed": "storedjobs",
    "WorkerJobs": "storedjobs",
    "WorkerJobsMixin": "storedjobs",
    "inline": "storedjobs",
    "worker": "storedjobs",
}

__all__ = [
    "Drained",
    "FakeJobs",
    "FakeJobsMixin",
    "InlineJobs",
    "InlineJobsMixin",
    "JobFailed",
    "Jobs",
    "Performed",
    "WorkerJobs",
    "WorkerJobsMixin",
    "approve",
    "assert_survives_crashes",
    "fake",
    "inline",
    "job_context",
    "worker",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'django_ojs.testing' has no attribute {name!r}")
    return getattr(import_module(f"django_ojs.testing.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
