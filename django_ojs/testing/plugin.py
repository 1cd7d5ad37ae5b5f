"""Provide the pytest fixtures `ojs_fake`, `ojs_inline`, `ojs_worker` and `ojs_drain`.

pytest finds the plugin by its entry point. It imports nothing of Django before a test uses a fixture.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from django_ojs.testing import Drained, FakeJobs, InlineJobs, WorkerJobs


@pytest.fixture
def ojs_fake() -> Iterator[FakeJobs]:
    """Jobs that the test enqueues are recorded and not stored. Needs no database."""
    _demand_django()
    from django_ojs.testing import fake

    with fake() as jobs:
        yield jobs


@pytest.fixture
def ojs_inline(db: None, _ojs_connections: None) -> Iterator[InlineJobs]:
    """Jobs that the test enqueues run at once, in its thread and its transaction."""
    _demand_django()
    from django_ojs.testing import inline

    with inline() as jobs:
        yield jobs


@pytest.fixture
def ojs_worker(db: None, _ojs_connections: None) -> Iterator[WorkerJobs]:
    """Jobs that the test enqueues are stored and wait for `ojs_worker.drain()`."""
    _demand_django()
    from django_ojs.testing import worker

    with worker() as jobs:
        yield jobs


@pytest.fixture
def ojs_drain(ojs_worker: WorkerJobs) -> Callable[..., Drained]:
    """`ojs_worker.drain`, for tests that want nothing else of it."""
    return ojs_worker.drain


@pytest.fixture
def _ojs_connections(db: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """An asynchronous test has its connections in a thread of asgiref's, which nothing else would close: a server then
    refuses to drop the test database."""
    yield
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        from asgiref.sync import SyncToAsync
        from django.db import connections

        SyncToAsync.single_thread_executor.submit(connections.close_all).result()


def _demand_django() -> None:
    from django.apps import apps
    from django.conf import settings

    if not settings.configured and not apps.ready:
        pytest.fail("The fixtures of django-ojs need Django: install pytest-django and set DJANGO_SETTINGS_MODULE.")
    if not apps.is_installed("django_ojs"):
        pytest.fail("The fixtures of django-ojs need it installed: add 'django_ojs' to INSTALLED_APPS.")
