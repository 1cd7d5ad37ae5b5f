"""The clients of the HTTP tests, and stamps that begin anew: these tests hold the clock and measure times."""

import datetime as dt
from typing import Any

import pytest

from django_ojs import clock
from tests.http.conftest import _open_site, api, with_key  # noqa: F401


@pytest.fixture(autouse=True)
def _fresh_stamps(monkeypatch: Any) -> None:
    monkeypatch.setattr(clock, "_last_stamp", dt.datetime.min.replace(tzinfo=dt.UTC))
