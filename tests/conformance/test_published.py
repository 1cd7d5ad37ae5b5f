"""The published cases, and the seed's examples, against real servers (levels that the manifest claims)."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from django_ojs.http.manifest import CONFORMANCE_LEVEL
from ojs_conformance.cases import Case, load_path, select
from ojs_conformance.djangoapp import servers
from ojs_conformance.suite import Target
from tests.conformance.trying import divided, run

pytestmark = [pytest.mark.conformance]

SIDE_BY_SIDE = 4

#: They wait for one minute, and for two.
SLOW = {"L2-CRON-004", "L2-CRON-005"}


def directory() -> Path:
    return Path(os.environ["OJS_CONFORMANCE_DIR"])


def farm(dialect: str) -> AbstractContextManager[list[Target]]:
    """Several servers; cases wait more than they work."""
    return servers.farm(SIDE_BY_SIDE, dialect, os.environ.get("OJS_TEST_DATABASE_URL", ""))


def published() -> tuple[list[Case], list[Case]]:
    return divided(select(load_path(directory()), level=CONFORMANCE_LEVEL, test_id=None), SLOW)


def test_the_published_cases_pass() -> None:
    cases, _ = published()
    assert cases
    with farm("published") as targets:
        report = run(cases, targets)
    assert not report.failed, report.as_text()
    assert {result.case.test_id for result in report.results if result.outcome == "skipped"} <= {"L1-RTR-014"}


@pytest.mark.wide
def test_the_slow_published_cases_pass() -> None:
    with farm("published") as targets:
        report = run(published()[1], targets)
    assert not report.failed, report.as_text()


def test_the_examples_of_the_seed_pass() -> None:
    document = directory().parent / "seeds" / "conformance-spec.md"
    if not document.exists():
        pytest.skip("the conformance specification is not beside the published cases")
    cases = select(load_path(document), level=CONFORMANCE_LEVEL, test_id=None)
    assert cases
    with farm("spec") as targets:
        report = run(cases, targets)
    assert not report.failed, report.as_text()
    assert report.conformant_level == CONFORMANCE_LEVEL
