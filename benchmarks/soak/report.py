"""What a soak found, as text and as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

from benchmarks.soak.gauges import thirds
from benchmarks.soak.ledger import Ledger
from django_ojs.states import TERMINAL, ordered

SHOWN = 20  #: faults in the text; the first ones say most
_STATES = [state.value for state in ordered(TERMINAL)]


@dataclasses.dataclass(slots=True)
class Report:
    """`faults` empty: everything adds up."""

    ledger: Ledger
    series: dict[str, list[float]]
    seconds: float
    held_back: int  #: rounds
    notes: list[str]  #: what to know when reading the numbers

    @property
    def faults(self) -> list[str]:
        return self.ledger.faults

    @property
    def thirds(self) -> dict[str, tuple[float, float]]:
        """The median of the first third of each series, and of the last."""
        return {name: thirds(values) for name, values in self.series.items()}

    def as_dict(self) -> dict[str, Any]:
        return {
            "seconds": round(self.seconds, 1),
            "rounds_held_back": self.held_back,
            "gauges": {name: {"first": first, "last": last} for name, (first, last) in self.thirds.items()},
            "samples": {name: [round(value, 3) for value in values] for name, values in self.series.items()},
            "jobs": {name: self._sum(name) for name in self.ledger.kinds},
            "workflows": self.ledger.flows,
            "notes": self.notes,
            "faults": self.faults,
        }

    def text(self) -> str:
        parts = [_table(self._gauge_rows()), *self.notes, _table(self._sum_rows()), self._verdict()]
        return "\n\n".join(parts)

    def _sum(self, type: str) -> dict[str, int]:
        ledger = self.ledger
        states = {state: ledger.ended[type][state] for state in _STATES}
        facts = {"started": ledger.starts[type], "attempts": ledger.attempts[type]}
        return {"pushed": ledger.pushed[type], **states, **facts, "handed_back": ledger.handed_back(type)}

    def _gauge_rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [("", "first third", "last third", "change")]
        for name, (first, last) in self.thirds.items():
            rows.append((name, f"{first:,.1f}", f"{last:,.1f}", f"{last - first:+,.1f}"))
        return rows

    def _sum_rows(self) -> list[tuple[str, ...]]:
        sums = {name: self._sum(name) for name in self.ledger.kinds}
        names = list(next(iter(sums.values())))
        rows: list[tuple[str, ...]] = [("jobs", *(name.replace("_", " ") for name in names))]
        rows += [(kind, *(f"{found[name]:,}" for name in names)) for kind, found in sums.items()]
        rows.append(("all", *(f"{sum(found[name] for found in sums.values()):,}" for name in names)))
        return rows

    def _verdict(self) -> str:
        jobs = self.ledger.pushed.total()
        about = f"{jobs:,} jobs and {self.ledger.flows:,} workflows in {self.seconds:,.0f} s"
        if self.held_back:
            about += f", {self.held_back} rounds held back because the worker did not keep up"
        if not self.faults:
            return f"{about}: everything adds up."
        more = [f"... and {len(self.faults) - SHOWN} more."] if len(self.faults) > SHOWN else []
        return "\n".join([f"{about}: {len(self.faults)} faults.", *self.faults[:SHOWN], *more])


def _table(rows: list[tuple[str, ...]]) -> str:
    """Aligned: names to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
