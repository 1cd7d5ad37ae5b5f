"""Our own cases against test servers side by side: every requirement that can be seen over HTTP."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from django_ojs.conformance import lint, servers
from django_ojs.conformance.cases import load_path
from django_ojs.conformance.suite import run_report

SUITE = Path(__file__).parent / "cases"
SIDE_BY_SIDE = 3


@pytest.mark.timeout(300)
def test_every_case_passes() -> None:
    cases = load_path(SUITE)
    with servers.farm(SIDE_BY_SIDE, database=os.environ.get("OJS_TEST_DATABASE_URL", "")) as targets:
        report = run_report(cases, targets)
    assert not report.failed, report.as_text()
    assert report.conformant_level == 4


def test_cases_are_well_formed_and_named_after_themselves() -> None:
    cases = load_path(SUITE)
    assert len({case.test_id for case in cases}) == len(cases) > 50
    for case in cases:
        words = case.name.replace("_", "-")
        assert case.file == f"level-{case.level}/{case.test_id}-{words}.json"
        assert case.test_id.startswith(f"L{case.level}-")
        assert (case.format, lint.problems(case)) == ("seed", []), case.file
        assert case.raw["description"], case.file
