"""Which jobs the list shows, and how far back it looks for them.

What an index finds (an id, a state, a time, a workflow, what a worker holds, a queue's jobs of a live state) is asked
for as it is. Anything else would be a scan of the table: it is looked for among the newest jobs only, in slices of
which each is twice as long as the one before, until there is enough for the page, or `OJS["SEARCH_DEPTH"]` jobs were
looked at, or `OJS["SEARCH_SECONDS"]` have passed. `Look` says how far that was.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from django.db.models import Q, QuerySet
from django.db.models.functions import Coalesce
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from django_ojs import clock, jsontext
from django_ojs.conf import ojs_settings
from django_ojs.models import Job, WorkflowStep
from django_ojs.models.job import STAGED, is_staged
from django_ojs.operations import counts
from django_ojs.operations.deadletters import LONGEST, mentions, named
from django_ojs.policies import redaction
from django_ojs.policies.durations import EARLIEST, LATEST, format_instant, parse_duration_ms, parse_instant
from django_ojs.states import LIVE, TERMINAL, State

DEAD_LETTER = "dead_letter"
#: Jobs of the first slice; jobs of a state that are few.
FIRST, FEW = 1000, 20_000
_TEXTS = ("q", "state", "queue", "type", "tag", "worker", "workflow", "error")
#: Whether a job that the database found is one in truth, from its row.
Check = Callable[[dict[str, Any]], bool]


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
            found["tag"] = Q(extra__contains=jsontext.dumps(self.tag))
        if self.error:
            found["error"] = mentions(self.error) & ~Q(state=State.COMPLETED)
        if self.q and as_uuid(self.q) is None:
            needle = jsontext.dumps(self.q)[1:-1]
            found["text"] = Q(args__contains=needle) | Q(meta__contains=needle)
        return found

    def checks(self) -> tuple[list[Check], list[str]]:
        """What the database cannot decide, and the columns it takes: tags are inside a JSON text, and nobody may find
        out by searching what the site hides."""
        found: list[Check] = []
        columns: list[str] = []
        hides = redaction.active() is not None
        if self.tag:
            found.append(lambda row: self.tag in tags(row["extra"]))
            columns += ["extra"]
        if hides and self.error:
            found.append(lambda row: _shows(self.error, row, "errors"))
            columns += ["type", "meta", "errors"]
        if hides and self.q and as_uuid(self.q) is None:
            found.append(lambda row: _shows(self.q, row, "args", "meta"))
            columns += ["type", "meta", "args"]
        return found, columns

    @property
    def narrow(self) -> bool:
        """Whether the indexed part is few jobs by itself."""
        few = as_uuid(self.q) or as_uuid(self.workflow) or (self.worker and self.state == State.ACTIVE)
        return bool(few)

    def _state(self) -> Q:
        if self.state == DEAD_LETTER:
            return Q(state=State.DISCARDED, dead_letter=True, finished_at__isnull=False)
        if self.state in TERMINAL:
            return Q(state=self.state, finished_at__isnull=False)
        if self.state in STAGED:
            return Q(state=self.state) & is_staged()
        return Q(state=self.state) if self.state in LIVE else Q()

    def _times(self) -> Q:
        found = Q()
        for lookup, instant in (("gte", self.since), ("lt", self.until)):
            if instant is not None:
                edge = instant if self.along == "finished_at" else _id_at(instant)
                found &= Q(**{f"{self.along}__{lookup}": edge})
        return found


@dataclasses.dataclass(slots=True)
class Look:
    """How far a search looked.

    Attributes:
        looked: jobs, the newest; None: all that there are.
        back_to: the time of the last of them.
        ended: by what it ended: `found`, `all`, `depth` or `time`.
        further: the parameter `until` of a search that goes on from there.
    """

    looked: int | None = None
    back_to: dt.datetime | None = None
    ended: str = "all"
    further: str = ""


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
    fitting = found.filter(*rest.values())
    if few and checks:
        return base.filter(pk__in=list(_fitting(fitting, checks, columns))).order_by(*search.order), None
    if few or not (checks or rest.keys().isdisjoint(ojs_settings.INDEXED_FILTERS)):
        return fitting, None
    ids, look = _walk(search, found, Q(*rest.values()), checks, columns, enough)
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


def _walk(
    search: Search, base: QuerySet[Job], rest: Q, checks: list[Check], columns: list[str], enough: int
) -> tuple[list[uuid.UUID], Look]:  # fmt: skip
    """The ids that fit among the newest jobs of `base`, slice by slice."""
    along, size, look = search.along, FIRST, Look(0)
    found: list[uuid.UUID] = []
    until = time.monotonic() + ojs_settings.SEARCH_SECONDS
    last: Any = None
    while True:
        size = min(size, ojs_settings.SEARCH_DEPTH - (look.looked or 0))
        part = base if last is None else base.filter(**{f"{along}__lt": last})
        edge = next(iter(part.order_by(f"-{along}").values_list(along, flat=True)[size - 1 : size]), None)
        if edge is not None:
            part = part.filter(**{f"{along}__gte": edge})
        found += _fitting(part.filter(rest), checks, columns)
        if edge is None:
            return found, Look()
        look.looked, last, size = (look.looked or 0) + size, edge, size * 2
        if len(found) >= enough:
            look.ended = "found"
        elif look.looked >= ojs_settings.SEARCH_DEPTH:
            look.ended = "depth"
        elif time.monotonic() >= until:
            look.ended = "time"
        else:
            continue
        look.back_to = edge if isinstance(edge, dt.datetime) else _time_of(edge)
        # The next search may see a job of the same instant again, and misses none.
        look.further = format_instant(look.back_to + dt.timedelta(milliseconds=1))
        return found, look


def _fitting(part: QuerySet[Job], checks: list[Check], columns: list[str]) -> Iterable[uuid.UUID]:
    if not checks:
        return part.values_list("pk", flat=True)
    rows = part.values("pk", *dict.fromkeys(columns)).iterator(chunk_size=200)
    return [row["pk"] for row in rows if all(check(row) for check in checks)]


def moment(text: str) -> dt.datetime | None:
    """`2h` ago, an instant with its zone, or a time in the site's own; ValueError for anything else."""
    text = text.strip()
    if not text:
        return None
    try:
        return clock.now() - dt.timedelta(milliseconds=parse_duration_ms(text))
    except (ValueError, OverflowError):
        pass
    try:
        return parse_instant(text.replace(" ", "+") if text.count(":") > 2 else text)
    except ValueError:
        naive = parse_datetime(text if ":" in text else f"{text} 00:00")
    if naive is None or not EARLIEST.year < naive.year < LATEST.year:
        raise ValueError(text)
    return naive if timezone.is_aware(naive) else timezone.make_aware(naive)


def as_uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def _id_at(instant: dt.datetime) -> uuid.UUID:
    """The lowest id of this millisecond: ids are UUIDv7."""
    milliseconds = (instant - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
    return uuid.UUID(int=min(max(milliseconds, 0), 2**48 - 1) << 80)


def _time_of(job_id: uuid.UUID) -> dt.datetime:
    try:
        return dt.datetime.fromtimestamp((job_id.int >> 80) / 1000, dt.UTC)
    except (OverflowError, ValueError):  # not a UUIDv7
        return dt.datetime.max.replace(tzinfo=dt.UTC) - dt.timedelta(days=1)


def tags(extra: Any) -> Any:
    """The tags among the other attributes of a job."""
    found = extra.get("tags") if isinstance(extra, dict) else None
    return found if isinstance(found, list) else ()


def _shows(text: str, row: Mapping[str, Any], *parts: str) -> bool:
    """Whether this text is in what operators see of these parts. Databases differ about case: none counts here."""
    shown = (redaction.part(name, row[name], row["type"], row["meta"]) for name in parts)
    needle = jsontext.dumps(text)[1:-1].casefold()
    return any(needle in jsontext.dumps(value).casefold() for value in shown)
