"""The documentation has an entry for each finding, and none for others."""

from __future__ import annotations

import re

import pytest
from django.conf import settings

from django_ojs import doctor
from django_ojs.doctor import engines, findings, health, postgresql

pytestmark = pytest.mark.sqlite  # no database is asked
PAGE = (settings.BASE_DIR / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def test_each_finding_has_an_entry() -> None:
    assert re.findall(r"^### (\S+): (.+)$", PAGE, re.MULTILINE) == [
        (name, str(title)) for name, title in doctor.TITLES.items()
    ]


def test_the_figures_are_those_of_the_code() -> None:
    told = " ".join(PAGE.split())
    assert (health.CLOCKS, "By more than two seconds" in told) == (2.0, True)
    assert (health.LATE, told.count("more than 30 seconds")) == (30.0, 2)
    assert (health.LAGGING, "more than two minutes" in told) == (120.0, True)
    assert (postgresql.LOCK_WAIT, "more than five seconds" in told) == (5.0, True)
    assert (postgresql.LONG_TRANSACTION, "more than five minutes" in told) == (300.0, True)
    assert f"{postgresql.CONNECTIONS:.0%}".replace("%", " %") in told
    assert f"more than {postgresql.BLOATED_BYTES >> 20} MB" in told
    assert f"more than {engines.LARGE_WAL >> 20} MB" in told
    assert f"more than {engines.FREE_BYTES >> 20} MB" in told
    assert f"at least {postgresql.FEW_ROWS:,}" in told
    assert (findings.PATIENCE, findings.LONGEST) == (2, 10)
    assert "longer than two seconds for a lock or runs longer than ten" in told
