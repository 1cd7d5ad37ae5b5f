"""Which jobs an operator means, as values: the same for a command that acts at once and for the scheduler later on."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Q

from django_ojs import states
from django_ojs.models import Job, WorkflowStep
from django_ojs.models.job import STAGED, JobQuerySet, is_staged
from django_ojs.operations import slices, walking
from django_ojs.operations.deadletters import named, telling, typed
from django_ojs.operations.slices import Check, Look
from django_ojs.policies.durations import format_instant
from django_ojs.states import State

_TEXTS = ("type", "queue", "worker", "holder", "error", "error_type", "tag", "text")
_TIMES = ("since", "until", "created_since", "created_until", "enqueued_after", "enqueued_before")


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """Everything given must fit.

    Attributes:
        states: one or more.
        dead_letters: only those of the dead letter queue.
        type, queue: `mail.*` means all that begin so.
        worker: who has the job or had it last; `holder`: who has it now.
        workflow: the workflow that it is a member of.
        error: a text in its errors, or a whole type of an error where the site hides anything; `error_type`: a type.
        tag: one of its tags.
        text: a text in its arguments or its meta.
        since, until: when the job was made, to the millisecond; where only ended states are meant, when it ended.
        created_since, created_until: when it was made, whatever has become of it.
        enqueued_after, enqueued_before: when it became available last.
        only_queues, only_types: the limits of whoever asks; None: none.
        edge: the last job that a search looked at: its id, or its end where only ended states are meant.
    """

    states: Sequence[State]
    dead_letters: bool = False
    type: str = ""
    queue: str = ""
    worker: str = ""
    holder: str = ""
    workflow: uuid.UUID | None = None
    error: str = ""
    error_type: str = ""
    tag: str = ""
    text: str = ""
    since: dt.datetime | None = None
    until: dt.datetime | None = None
    created_since: dt.datetime | None = None
    created_until: dt.datetime | None = None
    enqueued_after: dt.datetime | None = None
    enqueued_before: dt.datetime | None = None
    only_queues: Sequence[str] | None = None
    only_types: Sequence[str] | None = None
    edge: str = ""

    @property
    def along(self) -> str:
        """The column that its times and its search go along: ended jobs by their end, others by their id."""
        return "finished_at" if states.TERMINAL.issuperset(self.states) else "id"

    @property
    def searches(self) -> bool:
        """Whether it takes a look at each job, so that only the newest are looked at."""
        return bool(self.tag or self.text)

    def fields(self) -> dict[str, Any]:
        """What `of` reads it from: values of JSON, without what was not asked for."""
        found: dict[str, Any] = {"states": [state.value for state in self.states]}
        found |= {"dead_letters": True} if self.dead_letters else {}
        found |= {name: value for name in (*_TEXTS, "edge") if (value := getattr(self, name))}
        found |= {"workflow": str(self.workflow)} if self.workflow else {}
        found |= {name: _precise(value) for name in _TIMES if (value := getattr(self, name)) is not None}
        limits = {name: getattr(self, name) for name in ("only_queues", "only_types")}
        return found | {name: list(limit) for name, limit in limits.items() if limit is not None}

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Selection:
        """From what `fields` made; KeyError without `states`, so that nothing is ever taken for all jobs."""
        known: dict[str, Any] = dict(fields) | {"states": tuple(State(name) for name in fields["states"])}
        known |= {name: dt.datetime.fromisoformat(known[name]) for name in _TIMES if name in known}
        known |= {"workflow": uuid.UUID(known["workflow"])} if "workflow" in known else {}
        return cls(**known)

    def condition(self) -> Q:
        """What the database decides, but for the text and the tag."""
        found = in_states(self.states) & named("type", self.type) & named("queue", self.queue)
        found &= Q(dead_letter=True) if self.dead_letters else Q()
        found &= Q(worker_id=self.worker) if self.worker else Q()
        found &= Q(worker_id=self.holder, state=State.ACTIVE) if self.holder else Q()
        found &= telling(self.error) & ~Q(state=State.COMPLETED) if self.error else Q()
        found &= typed(self.error_type) if self.error_type else Q()
        if self.workflow is not None:
            found &= Q(pk__in=WorkflowStep.objects.filter(workflow=self.workflow, job__isnull=False).values("job"))
        return found & self._times() & allowed(self.only_queues, self.only_types)

    def jobs(self, using: str) -> JobQuerySet:
        """The jobs that may be meant; `rest` and `checks` say which of them are."""
        found = Job.objects.using(using).filter(self.condition())
        if self.edge:
            edge: Any = dt.datetime.fromisoformat(self.edge) if self.along == "finished_at" else uuid.UUID(self.edge)
            found = found.filter(**{f"{self.along}__gte": edge})
        return found

    def rest(self) -> Q:
        """What the database decides by reading each job."""
        found = slices.tagged(self.tag) if self.tag else Q()
        return found & slices.holding(self.text) if self.text else found

    def checks(self) -> tuple[list[Check], list[str]]:
        """What it cannot decide, and the columns that this takes."""
        return slices.checks(self.tag, self.text)

    def searched(self, using: str, enough: int) -> tuple[list[uuid.UUID], Look]:
        """The ids of those that fit among the newest, in no order, and how far that was."""
        return slices.search(self.jobs(using), self.along, self.rest(), *self.checks(), enough)

    def bounded(self, look: Look) -> Selection:
        """The same, and nothing that this search did not look at."""
        if look.edge is None:
            return self
        edge = _precise(look.edge) if isinstance(look.edge, dt.datetime) else str(look.edge)
        return dataclasses.replace(self, edge=edge)

    def _times(self) -> Q:
        found = Q()
        for lookup, instant in (("gte", self.since), ("lt", self.until)):
            if instant is not None:
                edge = instant if self.along == "finished_at" else walking.id_at(instant)
                found &= Q(**{f"{self.along}__{lookup}": edge})
        given = {
            "created_at__gte": self.created_since, "created_at__lt": self.created_until,
            "enqueued_at__gt": self.enqueued_after, "enqueued_at__lt": self.enqueued_before,
        }  # fmt: skip
        return found & Q(**{name: instant for name, instant in given.items() if instant is not None})


def in_states(wanted: Sequence[State]) -> Q:
    """Jobs in these states; what follows from that is said too, because the partial indexes are found by it."""
    found = Q(state=wanted[0]) if len(wanted) == 1 else Q(state__in=list(wanted))
    if states.TERMINAL.issuperset(wanted):
        found &= Q(finished_at__isnull=False)
    return found & is_staged() if set(STAGED).issuperset(wanted) else found


def allowed(queues: Sequence[str] | None, types: Sequence[str] | None) -> Q:
    """Jobs within the limits of a caller: these queues, and these types, of which `mail.*` means all that begin so."""
    condition = Q() if queues is None else Q(queue__in=list(queues))
    if types is None:
        return condition
    within = Q(type__in=[entry for entry in types if not entry.endswith(".*")])
    for entry in types:
        if entry.endswith(".*"):
            within |= Q(type__startswith=entry[:-1])
    return condition & within


def _precise(instant: dt.datetime) -> str:
    """To the microsecond, as columns have it."""
    return instant.astimezone(dt.UTC).isoformat()


def readable(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a selection as answers show them: times as everywhere else, and no inner bounds."""
    shown = {name: value for name, value in fields.items() if name != "edge"}
    return shown | {n: format_instant(dt.datetime.fromisoformat(shown[n])) for n in _TIMES if n in shown}
