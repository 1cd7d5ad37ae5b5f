"""What the dashboard's tests share with the admin's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_ojs.statistics import summary
from tests.admin.conftest import _no_queues_remembered, operator

__all__ = ["_no_queues_remembered", "operator"]


@pytest.fixture(autouse=True)
def _nothing_shared() -> Iterator[None]:
    """What all viewers share is of another test's database."""
    summary.forget()
    yield
    summary.forget()
