"""Every requirement of the conformance specification has a proof, and every proof that is named exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from django_ojs.http import claim as recorded
from ojs_conformance import claim
from ojs_conformance.cases import Case, load_path

ROOT = Path(__file__).resolve().parents[2]
SUITE = ROOT / "tests" / "conformance" / "cases"
PAGE = ROOT / "docs" / "conformance.md"

#: Sections 2.1 to 2.5: area, and how many requirements it has.
AREAS = {
    "L0": {"ENV": 6, "OPS": 4, "LC": 3, "EVT": 2, "Q": 1, "WF": 1, "MW": 2},
    "L1": {"RET": 3, "DLQ": 2, "HB": 2, "VT": 2, "CAN": 2, "INFO": 1, "EVT": 2},
    "L2": {"DEL": 3, "CRON": 3, "TTL": 2, "TZ": 1},
    "L3": {"CHAIN": 3, "GROUP": 2, "BATCH": 2, "DATA": 1, "WF-EVT": 1},
    "L4": {"PRI": 3, "UNIQ": 3, "BULK": 2, "PAUSE": 2, "STATS": 1, "RATE": 1},
}
REQUIREMENTS = [
    f"{level}-{area}-{number:03}"
    for level, areas in AREAS.items()
    for area, count in areas.items()
    for number in range(1, count + 1)
]
#: They are about code that runs inside a producer or a worker.
NOT_OVER_HTTP = {"L0-MW-001", "L0-MW-002"}

_ROW = re.compile(r"^\| (L\d-[A-Z-]+-\d{3}) \| [^|]+ \| (.+) \|$", re.MULTILINE)
_CASE = re.compile(r"\[(L\d-\d{3})\]\(\.\./([^)]+)\)")
_TEST = re.compile(r"`([^`]+)`")


@pytest.fixture(scope="module")
def rows() -> dict[str, str]:
    found = _ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert len(found) == len(dict(found)), "a requirement has two rows"
    return dict(found)


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return load_path(SUITE)


def test_every_requirement_has_a_row_and_nothing_else_has(rows: dict[str, str]) -> None:
    assert list(rows) == REQUIREMENTS


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_its_proofs_exist(requirement: str, rows: dict[str, str], cases: list[Case]) -> None:
    proofs = rows[requirement]
    named = {ROOT / path for _, path in _CASE.findall(proofs)}
    assert named == {SUITE / case.file for case in cases if requirement in case.tags}
    tests = _TEST.findall(proofs)
    assert named or tests
    if requirement not in NOT_OVER_HTTP:
        assert named, "what can be seen over HTTP has a case"
    for test in tests:
        file, _, function = test.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not function or re.search(rf"^ *(async )?def {function}\(", text, re.MULTILINE), test


def test_cases_are_about_known_requirements_of_their_level_or_below(cases: list[Case]) -> None:
    for case in cases:
        assert case.tags, f"{case.file} proves nothing"
        for tag in case.tags:
            assert tag in REQUIREMENTS, case.file
            assert case.level is not None
            assert int(tag[1]) <= case.level, case.file


def test_the_claim_is_about_the_suite_as_it_is_now(cases: list[Case]) -> None:
    known = recorded.read()
    assert known is not None
    assert known.digest == claim.digest(SUITE), "record again: manage.py ojs_conformance --suites … --record"
    whole = {"total": len(cases), "passed": len(cases), "failed": 0, "skipped": 0}
    assert known.bindings["http"] == whole
    over_http = known.bindings["grpc"]["over_http"]
    assert known.bindings["grpc"] == whole | {"over_http": over_http}
    assert 0 < over_http < len(cases) / 2
    assert known.level == 4


def test_the_badge_says_what_the_claim_says() -> None:
    known = recorded.read()
    assert known is not None
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    badges = re.findall(r"\[!\[OJS Conformant Level (\d) \((\w+)\)\]\((\S+)\)\]", text)
    assert [badge[:2] for badge in badges] == [(str(known.level), "Runtime")]
    assert f"OJS-Level%20{known.level}%20Runtime" in badges[0][2]
    assert f"suite {known.test_suite_version}" in text
