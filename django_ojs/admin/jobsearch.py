"""Which jobs the list shows, and how far back it looks for them.

What an index finds (an id, a state, a time, a workflow, what a worker holds, a queue's jobs of a live state) is asked
for as it is. Anything else would be a scan of the table: it is looked for among the newest jobs only, in slices of
which each is twice as long as the one before, until there is enough for the page, or `OJS["SEARCH_DEPTH"]` jobs were
looked at, or `OJS["SEARCH_SECONDS"]` have passed. `Look` says how far that was.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Mapping

from django.db.models import Q, QuerySet
from django.db.models.functions import Coalesce
from django.utils.translation import gettext as _

from django_ojs.conf import ojs_settings
from django_ojs.models import Job, WorkflowStep
from django_ojs.operations import counts, slices
from django_ojs.operations.deadletters import LONGEST, mentions, named
from django_ojs.operations.selection import in_states
from django_ojs.operations.slices import Check, Look, fitting, moment, tags
from django_ojs.operations.walking import FEW, FIRST, id_at
from django_ojs.states import LIVE, TERMINAL, State

__all__ = ["DEAD_LETTER", "FEW", "FIRST", "Look", "Search", "jobs", "moment", "tags"]

DEAD_LETTER = "dead_letter"
_TEXTS = ("q", "state", "queue", "type", "tag", "worker", "workflow", "error")


@dataclasses.dataclass(frozen=True)
class Search:
    """What is asked for; everything given must fit. `faults` are what could not be understood."""

    q: str = ""
    state: str = ""
    queue: str = ""
    type: str = ""
    tag: str = ""
    worker: str = ""
    workflow: str = ""
    error: str = ""
    since: dt.datetime | None = None
    until: dt.datetime | None = None
    faults: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Search:
        """From the parameters of a request."""
        texts = {name: given.get(name, "").replace("\0", "").strip()[:LONGEST] for name in _TEXTS}
        times: dict[str, dt.datetime | None] = {}
        faults: list[str] = []
        for name in ("since", "until"):
            try:
                times[name] = moment(given.get(name, ""))
            except ValueError:
                faults.append(_("“%(text)s” is no time: write 2h, 2026-01-31 12:00 or 2026-01-31T12:00:00Z.")
                              % {"text": given[name][:40]})  # fmt: skip
        if texts["workflow"] and as_uuid(texts["workflow"]) is None:
            faults.append(_("“%(text)s” is not the id of a workflow.") % {"text": texts["workflow"][:40]})
        return cls(**texts, since=times.get("since"), until=times.get("until"), faults=tuple(faults))

    @property
    def along(self) -> str:
        """The column that the list goes along: ended jobs by their end, others by their id, which begins with time."""
        return "finished_at" if self.state == DEAD_LETTER or self.state in TERMINAL else "id"

    @property
    def order(self) -> tuple[str, ...]:
        return ("-finished_at", "-id") if self.along == "finished_at" else ("-id",)

    def indexed(self) -> Q:
        """The part that indexes find."""
        found = self._state() & self._times()
        if (job_id := as_uuid(self.q)) is not None:
            found &= Q(pk=job_id)
        if (flow := as_uuid(self.workflow)) is not None:
            found &= Q(pk__in=WorkflowStep.objects.filter(workflow=flow, job__isnull=False).values("job"))
        if self.worker and self.state == State.ACTIVE:
            found &= Q(worker_id=self.worker)
        if self.queue and self.state in LIVE:
            found &= Q(queue=self.queue)
        return found

    def rest(self) -> dict[str, Q]:
        """The part that no index finds, by the parameter that asks for it."""
        found = {}
        if self.queue and self.state not in LIVE:
            found["queue"] = Q(queue=self.queue)
        if self.worker and self.state != State.ACTIVE:
            found["worker"] = Q(worker_id=self.worker)
        if self.type:
            found["type"] = named("type", self.type)
        if self.tag:
            found["tag"] = slices.tagged(self.tag)
        if self.error:
            found["error"] = mentions(self.error) & ~Q(state=State.COMPLETED)
        if self.q and as_uuid(self.q) is None:
            found["text"] = slices.holding(self.q)
        return found

    def checks(self) -> tuple[list[Check], list[str]]:
        """What the database cannot decide, and the columns it takes."""
        return slices.checks(self.tag, self.q if as_uuid(self.q) is None else "", self.error)

    @property
    def narrow(self) -> bool:
        """Whether the indexed part is few jobs by itself."""
        few = as_uuid(self.q) or as_uuid(self.workflow) or (self.worker and self.state == State.ACTIVE)
        return bool(few)

    def _state(self) -> Q:
        if self.state == DEAD_LETTER:
            return in_states((State.DISCARDED,)) & Q(dead_letter=True)
        return in_states((State(self.state),)) if self.state in LIVE | TERMINAL else Q()

    def _times(self) -> Q:
        found = Q()
        for lookup, instant in (("gte", self.since), ("lt", self.until)):
            if instant is not None:
                edge = instant if self.along == "finished_at" else id_at(instant)
                found &= Q(**{f"{self.along}__{lookup}": edge})
        return found


def jobs(search: Search, base: QuerySet[Job], enough: int) -> tuple[QuerySet[Job], Look | None]:
    """The jobs of `base` that are asked for, in the list's order; without `Look` where nothing had to be looked for.

    `enough` is how many are wanted; there may be more.
    """
    if search.faults:
        return base.none(), None
    few = search.narrow or _few(search, base.db)
    order = (Coalesce("id", "id").desc(),) if few and search.along == "id" else search.order
    found = base.filter(search.indexed()).order_by(*order)
    rest, (checks, columns) = search.rest(), search.checks()
    if not rest:
        return found, None
    all_fitting = found.filter(*rest.values())
    if few and checks:
        return base.filter(pk__in=list(fitting(all_fitting, checks, columns))).order_by(*search.order), None
    if few or not (checks or rest.keys().isdisjoint(ojs_settings.INDEXED_FILTERS)):
        return all_fitting, None
    ids, look = slices.search(found, search.along, Q(*rest.values()), checks, columns, enough, FIRST)
    return base.filter(pk__in=ids).order_by(*search.order), look


def _few(search: Search, using: str) -> bool:
    """Whether the jobs of a live state, in the queue that is asked for, are few enough to be sorted.

    Their index has no such order, and databases that guess (SQLite does) would go along all ids instead; the
    expression they are ordered by then forbids it.
    """
    if search.state not in LIVE:
        return False
    counted = counts.count_all([search.queue] if search.queue else None, using=using)
    return sum(one.states[State(search.state)] for one in counted.values()) <= FEW


def as_uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
