"""The load: what is pushed in every round, and what each kind of job promises to end as."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from benchmarks.soak.ledger import Kind, Ledger
from django_ojs.client.definition import PreparedJob
from django_ojs.client.workflow import PreparedWorkflow, batch, chain
from django_ojs.cron import schedules
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.push import push
from django_ojs.models import CronSchedule
from django_ojs.states import State

ROUND = 0.5  #: seconds between two rounds
#: Jobs of a round are held back while so many have not ended: a slow machine is loaded steadily too.
FULL = 2_000

_ONCE = {"max_attempts": 1}
_SOON = {"initial_interval_ms": 100, "backoff_coefficient": 1.0}


@dataclasses.dataclass(frozen=True, slots=True)
class Portion:
    """So many jobs of one kind in every round; `document` is what the envelope says beside type and arguments."""

    kind: Kind
    count: int
    document: dict[str, Any] = dataclasses.field(default_factory=dict)


NEVER = "soak.never"
PORTIONS = (
    Portion(Kind("soak.sync"), 10),
    Portion(Kind("soak.async"), 10),
    Portion(Kind("soak.inline"), 10),
    Portion(Kind("soak.later"), 3, {"options": {"scheduled_at": "+PT2S"}}),
    Portion(Kind("soak.flaky", attempts=3), 2, {"retry": {"max_attempts": 3, **_SOON}, "queue": "failing"}),
    Portion(
        Kind("soak.hopeless", State.DISCARDED, attempts=2), 1,
        {"retry": {"max_attempts": 2, **_SOON}, "queue": "failing"},
    ),
    Portion(Kind("soak.discarded", State.DISCARDED), 1, {"queue": "failing"}),
    Portion(Kind("soak.stuck", State.DISCARDED), 1, {"timeout_ms": 500, "retry": _ONCE, "queue": "failing"}),
    Portion(Kind("soak.astuck", State.DISCARDED), 1, {"timeout_ms": 500, "retry": _ONCE, "queue": "failing"}),
    Portion(Kind(NEVER, State.CANCELLED, attempts=0), 1, {"options": {"scheduled_at": "+PT1H"}}),
)  # fmt: skip
#: Jobs that workflows and a schedule make.
MEMBER, CRON = Kind("soak.member", made_by="workflow"), Kind("soak.cron", made_by="schedule")
KINDS = (*(portion.kind for portion in PORTIONS), MEMBER, CRON)
SCHEDULE, EVERY = "soak", "@every 5s"


class Producer:
    """Pushes round after round, and notes in the ledger what it was promised."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._numbers = itertools.count()
        self._rounds = 0
        self.held_back = 0  #: rounds that were left out, because too much waited

    def start_schedule(self) -> None:
        body = {"name": SCHEDULE, "cron": EVERY, "type": CRON.type, "args": [], "overlap_policy": "allow"}
        schedules.register(body)

    def stop_schedule(self) -> None:
        schedules.set_enabled(SCHEDULE, False)

    def runs_of_schedule(self) -> int:
        return CronSchedule.objects.get(pk=SCHEDULE).run_count

    @property
    def pushed(self) -> int:
        return self._ledger.pushed.total()

    def round(self) -> None:
        if self._ledger.unended >= FULL:
            self.held_back += 1
            return
        documents = [
            {"type": portion.kind.type, "args": [next(self._numbers)], **portion.document}
            for portion in PORTIONS
            for _ in range(portion.count)
        ]
        rows = [pushed.row for pushed in push(documents) if pushed.row is not None]
        for row in rows:
            self._ledger.promise(row["type"], str(row["id"]))
        cancel([row["id"] for row in rows if row["type"] == NEVER])
        self._rounds += 1
        if self._rounds % 2 == 0:
            self._push_flow(chain(self._member(), self._member(), self._member()), 3)
        if self._rounds % 4 == 0:
            self._push_flow(batch(self._member(), self._member(), on_success=self._member()), 3)

    def _push_flow(self, flow: PreparedWorkflow, members: int) -> None:
        self._ledger.promise_flow(flow.enqueue(queue="flows").id, MEMBER.type, members)

    def _member(self) -> PreparedJob:
        return PreparedJob(MEMBER.type, [next(self._numbers)], {})
