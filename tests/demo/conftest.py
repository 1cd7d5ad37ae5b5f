"""The example project's jobs, without their becoming handlers of the site that the tests run in."""

from __future__ import annotations

from pathlib import Path

import pytest

from django_ojs import clock
from django_ojs.client.context import JobContext
from django_ojs.models.job import blank_row
from django_ojs.registry import registry
from example_project import paths

with registry.isolated():
    import example_project.jobs  # noqa: F401


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory of the test's own."""
    monkeypatch.setattr(paths, "DATA_DIR", tmp_path)
    return tmp_path


@pytest.fixture
def context() -> JobContext:
    """What a handler gets that no worker runs."""
    return JobContext(blank_row(clock.now(), type="demo.test", attempt=1))
