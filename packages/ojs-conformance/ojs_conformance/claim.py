"""Says which conformance level passing runs of a whole suite show (conformance spec 4, 7.3).

A claim names the suite by the digest of its files, so that a changed suite needs a new run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ojs_conformance.cases import load_path
from ojs_conformance.report import BINDINGS, Report, count
from ojs_conformance.values import timestamp


class NoClaim(ValueError):
    """A run that shows nothing which could be claimed. The text says why."""


def digest(suite: Path) -> str:
    """SHA-256 over the names and contents of a suite's JSON files."""
    whole = hashlib.sha256()
    for file in sorted(suite.rglob("*.json")):
        name, content = file.relative_to(suite).as_posix().encode(), file.read_bytes()
        whole.update(b"%d %s %d " % (len(name), name, len(content)))
        whole.update(content)
    return whole.hexdigest()


def claim_of(reports: Sequence[Report], suite: Path) -> dict[str, Any]:
    """The claim that runs of a whole suite over each binding allow, as a JSON object.

    Its `bindings` say of each binding (`http`, `grpc`) how many cases there were and how they ended; `over_http` is the
    number of those with a step that this binding left to HTTP, because it has no equal.

    NoClaim if a binding was left out, or if in one of the runs a case was left out, did not pass or is published.
    """
    left_out = sorted(set(BINDINGS) - {report.binding for report in reports})
    if left_out:
        raise NoClaim(f"the suite was not run over {', '.join(left_out)}")
    for report in reports:
        _check(report, suite)
    about = json.loads((suite / "manifest.json").read_text(encoding="utf-8"))
    return {
        "level": min(report.conformant_level or 0 for report in reports),
        "suite": str(about["name"]),
        "test_suite_version": str(about["version"]),
        "digest": digest(suite),
        "passed_at": timestamp(max(report.run_at for report in reports)),
        "bindings": {report.binding: _counts(report) for report in reports},
    }


def _counts(report: Report) -> dict[str, int]:
    over_http = sum(bool(result.over_http) for result in report.counted)
    return count(report.counted) | ({} if report.binding == "http" else {"over_http": over_http})


def _check(report: Report, suite: Path) -> None:
    ran = {result.case.file for result in report.results if result.outcome == "passed"}
    missing = sorted({case.file for case in load_path(suite) if not case.deprecated} - ran)
    if report.failed or missing:
        raise NoClaim(
            f"not every case of {suite} has passed over {report.binding}: {', '.join(missing) or 'others failed'}"
        )
    if any(result.case.format != "seed" for result in report.results):
        raise NoClaim("only a suite in the seed's format can be claimed")
    if report.conformant_level is None:
        raise NoClaim("no level 0 case has passed")
