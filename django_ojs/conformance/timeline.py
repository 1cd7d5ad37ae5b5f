"""What happened to one job, attempt by attempt, from two witnesses: polls of the job and the event log.

The event log is exact and misses nothing; polling is what every server has. A duration is taken from one witness
alone, since two clocks may differ. A state that was over between two polls, and that no event names, is inferred only
where the transition table (L0-LC-002) leaves one way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from . import durations

TERMINAL: Final = frozenset({"completed", "cancelled", "discarded"})
STATE_AFTER: Final[Mapping[str, str]] = {
    "job.retrying": "retryable",
    "job.completed": "completed",
    "job.discarded": "discarded",
    "job.expired": "discarded",
    "job.cancelled": "cancelled",
    "job.stalled": "available",
}
EVENT_TYPES: Final = ("job.started", "job.failed", *STATE_AFTER)


@dataclass(frozen=True)
class Sample:
    """One poll of the job. `at` is in seconds of the runner's clock."""

    at: float
    state: str
    attempt: int


@dataclass(frozen=True)
class Event:
    """One event of the job. `at` is in seconds of the server's clock."""

    at: float
    type: str
    attempt: int


@dataclass
class Timeline:
    """The polls (changes only) and the events of one job, each in order."""

    samples: list[Sample] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def poll(self, at: float, state: str, attempt: int) -> None:
        """Add a poll; one that shows no change is dropped."""
        last = self.samples[-1] if self.samples else None
        if last is None or (last.state, last.attempt) != (state, attempt):
            self.samples.append(Sample(at, state, attempt))

    def ended(self, attempt: int) -> bool:
        """Whether polling has shown that an attempt is over."""
        return self._sample_end(attempt) is not None

    def event_end(self, attempt: int) -> Event | None:
        """The event that tells the state after an attempt."""
        return next((e for e in self.events if e.attempt == attempt and e.type in STATE_AFTER), None)

    def state_after(self, attempt: int) -> str | None:
        """The state that followed `active` in an attempt; None if neither witness can tell."""
        event = self.event_end(attempt)
        if event is not None:
            return STATE_AFTER[event.type]
        sample = self._sample_end(attempt)
        if sample is not None and sample.attempt == attempt:
            return sample.state
        failed = self._event_at("job.failed", attempt) is not None
        started_again = not self.events or self._event_at("job.started", attempt + 1) is not None
        if sample is not None and started_again and not failed:
            return "available"  # handed back without a failure: a reservation that expired (L1-VT-002)
        return None

    def active_for(self, attempt: int) -> float | None:
        """Seconds from the start of an attempt to its end."""
        start, end = self._event_at("job.started", attempt), self._event_ended_at(attempt)
        if start is None or end is None:
            start, end = self._sample_start(attempt), self._at(self._sample_end(attempt))
        return None if start is None or end is None else end - start

    def delay_after_failure(self, attempt: int) -> float | None:
        """Seconds from the failure of the attempt before to the start of this one."""
        failed, started = self._event_at("job.failed", attempt - 1), self._event_at("job.started", attempt)
        if failed is None or started is None:
            failed, started = self._at(self._sample_end(attempt - 1)), self._sample_start(attempt)
        return None if failed is None or started is None else started - failed

    def describe(self) -> str:
        """The course of the job in one line, for a reason."""
        polled = " → ".join(f"{s.state}({s.attempt})" for s in self.samples)
        seen = ", ".join(f"{e.type}({e.attempt})" for e in self.events)
        return f"polled {polled or 'nothing'}; events {seen or 'none'}"

    def _event_at(self, kind: str, attempt: int) -> float | None:
        return next((e.at for e in self.events if e.type == kind and e.attempt == attempt), None)

    def _event_ended_at(self, attempt: int) -> float | None:
        ends = [e.at for e in self.events if e.attempt == attempt and e.type != "job.started"]
        return min(ends, default=None)

    def _sample_start(self, attempt: int) -> float | None:
        return next((s.at for s in self.samples if s.attempt == attempt), None)

    def _sample_end(self, attempt: int) -> Sample | None:
        """The first poll that shows the attempt over: another state of it, or a later attempt."""
        over = (s for s in self.samples if s.attempt > attempt or (s.attempt == attempt and s.state != "active"))
        return next(over, None)

    @staticmethod
    def _at(sample: Sample | None) -> float | None:
        return None if sample is None else sample.at


def read_events(raw: Iterable[Mapping[str, object]], job_id: str) -> list[Event]:
    """The events of one job, in order. An event without `attempt` belongs to the attempt started last."""
    events: list[Event] = []
    current = 0
    for each in raw:
        data = each.get("data")
        if not isinstance(data, Mapping) or job_id not in (data.get("job_id"), each.get("subject")):
            continue
        kind, attempt = str(each.get("type")), data.get("attempt")
        current = attempt if isinstance(attempt, int) else current + (kind == "job.started")
        events.append(Event(durations.instant(str(each.get("time"))).timestamp(), kind, current))
    return events
