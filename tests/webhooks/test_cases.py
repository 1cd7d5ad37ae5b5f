"""The webhook extension in the published format of cases, as `manage.py ojs_conformance` runs them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ojs_conformance.cases import load_path
from ojs_conformance.djangoapp import servers
from ojs_conformance.suite import run_report

SUITE = Path(__file__).parent / "cases"


@pytest.mark.database
def test_every_case_passes() -> None:
    cases = load_path(SUITE)
    assert len(cases) == 6
    with servers.farm(1, dialect="published", database=os.environ.get("OJS_TEST_DATABASE_URL", "")) as targets:
        report = run_report(cases, targets)
    assert not report.failed, report.as_text()
    assert "passed" in report.as_text()
