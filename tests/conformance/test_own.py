"""Our own cases against test servers side by side: every requirement that can be seen over HTTP."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ojs_conformance import lint
from ojs_conformance.cases import load_path
from ojs_conformance.djangoapp import servers
from tests.conformance.trying import divided, run

SUITE = Path(__file__).parent / "cases"
SIDE_BY_SIDE = 3

#: The numbers that the specification prints for tests of its own suite, by level: 1 to so many.
PRINTED = {0: 16, 1: 11, 2: 3, 3: 3, 4: 5}


#: It waits for a minute.
SLOW = {"L2-110"}


@pytest.mark.slow
@pytest.mark.sqlite_too  # whose locks differ, and so the gate runs it
@pytest.mark.database
def test_every_case_passes() -> None:
    with servers.farm(SIDE_BY_SIDE, database=os.environ.get("OJS_TEST_DATABASE_URL", "")) as targets:
        report = run(divided(load_path(SUITE), SLOW)[0], targets)
    assert not report.failed, report.as_text()
    assert report.conformant_level == 4


@pytest.mark.wide
@pytest.mark.database
def test_the_slow_cases_pass() -> None:
    with servers.farm(1, database=os.environ.get("OJS_TEST_DATABASE_URL", "")) as targets:
        report = run(divided(load_path(SUITE), SLOW)[1], targets)
    assert not report.failed, report.as_text()


def test_no_case_has_the_number_of_another_test_that_the_specification_prints() -> None:
    for case in load_path(SUITE):
        assert case.level is not None
        assert int(case.test_id.partition("-")[2]) > PRINTED[case.level], case.file


def test_cases_are_well_formed_and_named_after_themselves() -> None:
    cases = load_path(SUITE)
    assert len({case.test_id for case in cases}) == len(cases) > 50
    for case in cases:
        words = case.name.replace("_", "-")
        assert case.file == f"level-{case.level}/{case.test_id}-{words}.json"
        assert case.test_id.startswith(f"L{case.level}-")
        assert (case.format, lint.problems(case)) == ("seed", []), case.file
        assert case.raw["description"], case.file
