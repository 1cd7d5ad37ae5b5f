from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings

from tests.http.conftest import api
from tests.worker.conftest import drain, handlers, start_worker

__all__ = ["api", "drain", "handlers", "start_worker"]  # fixtures

if not settings.TASKS:  # Django 5.2 without the backport
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def seen() -> Iterator[list[Any]]:
    """What the tasks of the app noted during this test."""
    from tests.tasks.app import tasks

    tasks.SEEN.clear()
    yield tasks.SEEN
    tasks.SEEN.clear()


@pytest.fixture
def signals() -> Iterator[Callable[[], list[tuple[str, Any, Any]]]]:
    """What was sent since: (name of the signal, sender, result)."""
    from tests.tasks import api

    found: list[tuple[str, Any, Any]] = []
    receivers = []
    for name in ("task_enqueued", "task_started", "task_finished"):

        def receive(sender: Any, task_result: Any, name: str = name, **kwargs: Any) -> None:
            found.append((name, sender, task_result))

        getattr(api, name).connect(receive)
        receivers.append((getattr(api, name), receive))
    yield lambda: list(found)
    for signal, receive in receivers:
        signal.disconnect(receive)
