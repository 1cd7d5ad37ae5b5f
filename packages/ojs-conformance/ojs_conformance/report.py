"""Results, the table for people and the JSON report of the conformance spec's section 8.4, keyed by file.

`conformant_level` comes from the seed-format suite alone; published cases are counted beside it.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ojs_conformance.cases import Case
from ojs_conformance.values import timestamp

Binding = Literal["http", "grpc"]
BINDINGS: Final[tuple[Binding, ...]] = ("http", "grpc")
Outcome = Literal["passed", "failed", "skipped"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("passed", "failed", "skipped")
HIGHEST_LEVEL: Final = 4
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

SKIP: Final[dict[tuple[str, str], str]] = {
    ("L1-RTR-014", "retry-error-history-tracked"): (
        "expects the error types ConnectionTimeout, RateLimitExceeded and InternalServerError, which its requests "
        "never send: no honest server can pass it"
    ),
}
#: Published cases that hold over HTTP alone.
SKIP_OVER_GRPC: Final[dict[tuple[str, str], str]] = {
    ("L2-TTL-001", "expired-job-discarded"): (
        "expects a discarded job without completed_at; the field of a Job's message is the instant of every final state"
    ),
}


@dataclass(frozen=True)
class Result:
    """How one case ended, why if it did not pass, how long it took, and which steps another binding left to HTTP."""

    case: Case
    outcome: Outcome
    reason: str = ""
    duration_ms: int = 0
    target: str = ""
    over_http: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The result in one line, for a terminal."""
        return f"{self.outcome:8}{self.duration_ms / 1000:8.2f} s  {self.case.test_id}  {self.case.file}"


@dataclass(frozen=True)
class Report:
    """All results of a run, sorted by file."""

    results: Sequence[Result]
    target: str
    run_at: dt.datetime
    duration_ms: int
    requested_level: int = HIGHEST_LEVEL
    suite_version: str | None = None
    binding: Binding = "http"

    @property
    def counted(self) -> list[Result]:
        """The results that count: all but those of deprecated cases (9.4)."""
        return [result for result in self.results if not result.case.deprecated]

    @property
    def failed(self) -> bool:
        """Whether any case that counts failed, or none ran."""
        return not self.counted or any(result.outcome == "failed" for result in self.counted)

    @property
    def conformant_level(self) -> int | None:
        """The highest level up to which every seed-format case passed; None if not even level 0 was shown."""
        highest = None
        for level in range(HIGHEST_LEVEL + 1):
            here = [result for result in self._at(level) if result.case.format == "seed"]
            if not here or any(result.outcome != "passed" for result in here):
                break
            highest = level
        return highest

    def as_json(self) -> dict[str, object]:
        """The report of section 8.4, with `file` in every entry and all cases under `cases`."""
        level = self.conformant_level
        return {
            "test_suite_version": self.suite_version,
            "binding": self.binding,
            "target": self.target,
            "run_at": timestamp(self.run_at),
            "duration_ms": self.duration_ms,
            "requested_level": self.requested_level,
            "results": self._counts(),
            "conformant": not self.failed and level is not None and level >= self.requested_level,
            "conformant_level": level,
            "failures": [_entry(result) for result in self.counted if result.outcome == "failed"],
            "skipped": [_entry(result) for result in self.counted if result.outcome == "skipped"],
            "deprecated": [_deprecated(result) for result in self.results if result.case.deprecated],
            "cases": {result.case.file: _details(result) for result in self.results},
        }

    def _counts(self) -> dict[str, object]:
        counts: dict[str, object] = dict(count(self.counted))
        for level in self._levels():
            counts[f"level_{level}"] = count(self._at(level))
        return counts

    def _levels(self) -> list[int]:
        return sorted({result.case.level for result in self.counted if result.case.level is not None})

    def _at(self, level: int | None) -> list[Result]:
        return [result for result in self.counted if result.case.level == level]

    def as_text(self) -> str:
        """A table by level, then every case that did not pass with its reason."""
        lines = [f"{'':10}{'total':>7}{'passed':>8}{'failed':>8}{'skipped':>9}"]
        lines += [_row(f"level {level}", self._at(level)) for level in self._levels()]
        lines += [_row("no level", self._at(None))] if self._at(None) else []
        lines.append(_row("all", self.counted))
        lines += self._over_http()
        for outcome in ("failed", "skipped"):
            lines += [_line(result, outcome) for result in self.counted if result.outcome == outcome]
        for result in self.results:
            if result.case.deprecated:
                lines.append(_line(result, f"deprecated ({result.outcome})"))
        return "\n".join(lines)

    def _over_http(self) -> list[str]:
        """What a run of another binding left to HTTP, by reason, with the number of cases."""
        steps = Counter(step for result in self.counted for step in dict.fromkeys(map(_without_ids, result.over_http)))
        if not steps:
            return []
        whole = sum(bool(result.over_http) for result in self.counted)
        lines = [f"\nOver HTTP, as gRPC has no equal, in {whole} cases:"]
        return lines + [f"{number:>5}  {step}" for step, number in sorted(steps.items(), key=lambda each: -each[1])]


def _without_ids(step: str) -> str:
    return _UUID.sub("{id}", step)


def save(reports: Sequence[Report], file: Path) -> None:
    """Write the JSON report of a run; of several, one object with each under the name of its binding."""
    content = {report.binding: report.as_json() for report in reports} if len(reports) > 1 else reports[0].as_json()
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def count(results: Sequence[Result]) -> dict[str, int]:
    """How many results there are, in all and by outcome."""
    found = Counter(result.outcome for result in results)
    return {"total": len(results)} | {outcome: found[outcome] for outcome in OUTCOMES}


def skip_reason(case: Case, binding: Binding = "http") -> str | None:
    """Why a case is left out over a binding; None for all but the published cases that no honest server can pass."""
    if case.format != "published":
        return None
    known = SKIP | SKIP_OVER_GRPC if binding == "grpc" else SKIP
    return known.get((case.test_id, case.name))


def _entry(result: Result) -> dict[str, object]:
    case = result.case
    return {"test_id": case.test_id, "name": case.name, "file": case.file, "reason": result.reason}


def _details(result: Result) -> dict[str, object]:
    extra = {"level": result.case.level, "format": result.case.format, "outcome": result.outcome}
    left = {"over_http": list(result.over_http)} if result.over_http else {}
    return _entry(result) | extra | {"duration_ms": result.duration_ms, "target": result.target} | left


def _row(name: str, results: Sequence[Result]) -> str:
    counts = count(results)
    return f"{name:10}{counts['total']:>7}{counts['passed']:>8}{counts['failed']:>8}{counts['skipped']:>9}"


def _deprecated(result: Result) -> dict[str, object]:
    reason = {"outcome": result.outcome, "deprecated_reason": str(result.case.raw.get("deprecated_reason", ""))}
    return _entry(result) | reason


def _line(result: Result, word: str) -> str:
    case = result.case
    return f"\n{word.upper()} {case.test_id} {case.name} [{case.file}]\n  {result.reason}"
