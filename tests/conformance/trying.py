"""Runs cases as the runner does, and what failed once more: a case waits for a while that it names, then looks once."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from ojs_conformance.cases import Case
from ojs_conformance.report import Report
from ojs_conformance.suite import Target, run_case, run_report

#: If more failed, no machine was busy: something is wrong.
CHANCES = 5


def run(cases: Sequence[Case], targets: Sequence[Target]) -> Report:
    """The report of all cases. The few that failed run once more, alone, after the others, and so does what was skipped
    because of them."""
    report = run_report(cases, targets)
    failed = [result for result in report.results if result.outcome == "failed"]
    if len(failed) > CHANCES:
        return report
    for result in failed:
        print(f"once more: {result.line} {result.reason}")
    results = []
    for result in report.results:
        again = result.outcome == "failed" or (failed and result.outcome == "skipped" and result.case.requires)
        results.append(run_case(result.case, targets[0]) if again else result)
    return dataclasses.replace(report, results=results)


def divided(cases: Sequence[Case], slow: Collection[str]) -> tuple[list[Case], list[Case]]:
    """The cases that a change waits for, and those that wait for a minute or two, of the numbers in `slow`."""
    return [case for case in cases if case.test_id not in slow], [case for case in cases if case.test_id in slow]
