from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client

from django_ojs.queues import configuration
from django_ojs.registry import registry
from django_ojs.testing import WorkerJobs
from tests.howto.pages import Reader


@pytest.fixture
def reader(ojs_worker: WorkerJobs, client: Client, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """In a site that has nothing yet, and lets everybody in."""
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    configuration.forget()
    with registry.isolated():
        yield Reader(ojs_worker, client, monkeypatch, settings)
