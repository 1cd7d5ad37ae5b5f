"""What was promised, and what became of it: one side is written by the producer, the other by the event log.

Only jobs that have not ended are remembered, so the length of a soak costs no memory; that nothing is counted
twice follows, because a job that ends again, or begins again, is one that the ledger does not know.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from django_ojs.states import State

#: The first event of a job; later ones of these types are its promotion.
INSERTS = frozenset({"job.enqueued", "job.scheduled"})
ENDS = frozenset({"job.completed", "job.discarded", "job.cancelled", "job.expired"})
#: What the ledger has to hear of.
TYPES = ("job.*", "workflow.completed", "workflow.failed", "workflow.cancelled", "cron.triggered")


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """A kind of job: the state in which it must end, and how often it is started at least until then."""

    type: str
    end: State = State.COMPLETED
    attempts: int = 1
    made_by: Literal["producer", "workflow", "schedule"] = "producer"


class Ledger:
    """`promise()`, `hear()`, and at the end `settle()`; what does not add up is in `faults`."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self.kinds = {kind.type: kind for kind in kinds}
        self.pushed: Counter[str] = Counter()
        self.inserted: Counter[str] = Counter()
        self.ended: dict[str, Counter[str]] = {name: Counter() for name in self.kinds}  #: type -> states
        self.attempts: Counter[str] = Counter()  #: the sums of `attempt` as the last events show it
        self.starts: Counter[str] = Counter()  #: `job.started` events
        self.by_queue: dict[str, Counter[str]] = {}  #: queue -> started, completed, failed
        self.flows = 0
        self.triggered = 0
        self.faults: list[str] = []
        self._promised: dict[str, str] = {}
        self._open: dict[str, int] = {}
        self._flows: dict[str, int] = {}  #: how many of its members have not begun
        self._made: set[str] = set()  #: jobs of schedules that `cron.triggered` has not named yet

    @property
    def unended(self) -> int:
        """How many jobs have not ended, as far as is known."""
        return len(self._promised) + len(self._open)

    def promise(self, type: str, job_id: str) -> None:
        """A job was pushed."""
        self.pushed[type] += 1
        self._promised[job_id] = type

    def promise_flow(self, flow_id: str, type: str, members: int) -> None:
        """A workflow was pushed, all of whose members will run."""
        self.pushed[type] += members
        self.flows += 1
        self._flows[flow_id] = members

    def expect(self, type: str, triggered: int) -> None:
        """The schedule says that it made so many jobs of this type."""
        self.pushed[type] += triggered
        if self.triggered != triggered:
            self.faults.append(f"The schedule counts {triggered} runs, the log says {self.triggered}.")

    def hear(self, event: Mapping[str, Any]) -> None:
        """Take one event of the log, in its order."""
        what, data = event["type"], event["data"]
        if what in INSERTS:
            self._begin(data)
        elif what == "job.started":
            self._start(data)
        elif what in ENDS:
            self._end(what, data)
        elif what == "cron.triggered":
            self._trigger(data["job_id"])
        elif what.startswith("workflow."):
            self._end_flow(what, event["subject"])

    def settle(self) -> None:
        """Nothing more will be heard: what is still open is a fault."""
        for what, left in (
            ("jobs that were pushed are not in the log", list(self._promised)),
            ("jobs have not ended", list(self._open)),
            ("workflows have not ended", list(self._flows)),
            ("jobs of the schedule had no `cron.triggered`", list(self._made)),
        ):
            if left:
                self.faults.append(f"{len(left)} {what}, such as {left[0]}.")
        for name in self.kinds:
            ended = self.ended[name].total()
            if not self.pushed[name] == self.inserted[name] == ended:
                self.faults.append(f"{name}: {self.pushed[name]} pushed, {self.inserted[name]} begun, {ended} ended.")
            if self.attempts[name] != self.starts[name]:
                self.faults.append(f"{name}: {self.attempts[name]} attempts, {self.starts[name]} started.")

    def handed_back(self, type: str) -> int:
        """How many attempts were more than the kind needs: claimed, and given back before they ran."""
        return self.attempts[type] - self.kinds[type].attempts * self.ended[type].total()

    def _begin(self, data: Mapping[str, Any]) -> None:
        job_id, name = data["job_id"], data["job_type"]
        if job_id in self._open:
            return
        if not self._is_asked(name, data):
            self.faults.append(f"{name} {job_id} began unasked, or a second time.")
            return
        self.inserted[name] += 1
        self._open[job_id] = 0

    def _is_asked(self, name: str, data: Mapping[str, Any]) -> bool:
        """Whether this job was promised to a producer or a schedule, and only once; takes note of it."""
        kind, flow_id = self.kinds.get(name), data.get("workflow_id") or ""
        if kind is None:
            return False
        if kind.made_by == "producer":
            return self._promised.pop(data["job_id"], None) == name
        if kind.made_by == "schedule":
            self._made.add(data["job_id"])
            return True
        if self._flows.get(flow_id, 0) == 0:
            return False
        self._flows[flow_id] -= 1
        return True

    def _trigger(self, job_id: str) -> None:
        self.triggered += 1
        if job_id not in self._made:
            self.faults.append(f"The schedule made {job_id}, which did not begin, or was named before.")
        self._made.discard(job_id)

    def _start(self, data: Mapping[str, Any]) -> None:
        if data["job_id"] not in self._open:
            self.faults.append(f"{data['job_type']} {data['job_id']} was started before it began, or after its end.")
            return
        self._open[data["job_id"]] += 1
        self.starts[data["job_type"]] += 1
        self._count(data["queue"], "started")

    def _end(self, event: str, data: Mapping[str, Any]) -> None:
        name, state, attempt = data["job_type"], data["state"], data["attempt"]
        starts = self._open.pop(data["job_id"], None)
        if starts is None:
            self.faults.append(f"{name} {data['job_id']} ended ({state}) unasked, or a second time.")
            return
        self.ended[name][state] += 1
        self.attempts[name] += attempt
        if event != "job.cancelled":
            self._count(data["queue"], "completed" if event == "job.completed" else "failed")
        kind = self.kinds[name]
        if state != kind.end or attempt != starts or attempt < kind.attempts:
            self.faults.append(f"{name} {data['job_id']} ended {state} at attempt {attempt} after {starts} starts.")

    def _end_flow(self, event: str, flow_id: str) -> None:
        if self._flows.pop(flow_id, None) != 0 or event != "workflow.completed":
            self.faults.append(f"{event} of {flow_id}: unasked, a second time, too early, or not what was promised.")

    def _count(self, queue: str, what: str) -> None:
        self.by_queue.setdefault(queue, Counter())[what] += 1
