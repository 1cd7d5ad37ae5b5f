"""What a measurement is, and how it is printed."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(slots=True)
class Result:
    """Some runs of one measurement. `reference` is what plain SQL, or plain jobs, reached in the same session."""

    name: str
    values: list[float]
    unit: str = "jobs/s"
    reference: float | None = None
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    #: Milliseconds of one call in each run.
    p50: Sequence[float] = ()
    p99: Sequence[float] = ()

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def ratio(self) -> float | None:
        """Ours by the reference: for a rate more is better, for a time less."""
        return self.median / self.reference if self.reference else None

    def latencies(self) -> dict[str, float]:
        return {"p50_ms": statistics.median(self.p50), "p99_ms": statistics.median(self.p99)}

    def as_dict(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"name": self.name, **self.facts, "median": round(self.median, 3)}
        shown |= {"min": round(min(self.values), 3), "max": round(max(self.values), 3), "unit": self.unit}
        if self.reference:
            shown |= {"reference": round(self.reference, 3), "ratio": round(self.ratio or 0.0, 3)}
        if self.p50:
            shown |= {name: round(found, 3) for name, found in self.latencies().items()}
        return shown


def table(results: Sequence[Result]) -> str:
    """The results as lines of aligned text."""
    head = ("measure", "median", "min..max", "unit", "reference", "ratio", "p50, p99 of a call")
    rows = [head, *map(_row, results)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def _row(result: Result) -> tuple[str, ...]:
    facts = ", ".join(f"{key} {value}" for key, value in result.facts.items())
    reference = _number(result.reference) if result.reference else ""
    ratio = f"{result.ratio:.0%}" if result.ratio and result.unit.endswith("/s") else ""
    spread = f"{_number(min(result.values))}..{_number(max(result.values))}"
    name = f"{result.name} ({facts})" if facts else result.name
    taken = ", ".join(_number(found) for found in result.latencies().values()) + " ms" if result.p50 else ""
    return name, _number(result.median), spread, result.unit, reference, ratio, taken


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
