"""Declares the filters of jobs, by which a caller says which jobs it means.

Query strings, JSON bodies, the admin's lists, commands and stored bulk actions all have this one filter.

    JobFilter({"states": ["available"], "type": "mail.*", "older_than": "7d"}).jobs()

Each filter is declared here once, as a `DeclaredFilter` of `JobFilter`: its names, how its value is read, which jobs it
finds, whether an index helps, and its help text (`jobs.filterfields`). Whatever reads or shows filters reads the
declaration. `JobFilter` is a django-filter `FilterSet`, so a site adds a filter to the lists over HTTP in a subclass.
django-filter's app need not be in INSTALLED_APPS: that is for its HTML.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any

from django.db.models import Q, QuerySet
from django.db.models.functions import Coalesce
from django.utils.translation import gettext_lazy as _
from django_filters import FilterSet

from django_ojs import jsontext, states
from django_ojs.access import Limits
from django_ojs.conf import ojs_settings
from django_ojs.database import database
from django_ojs.errors import InvalidRequest
from django_ojs.jobs import search
from django_ojs.jobs.filterfields import (
    COMMAND,
    LIST,
    OPERATOR,
    PAGE,
    PRODUCER,
    AgeFilterField,
    Check,
    Columns,
    DeclaredFilter,
    FlagFilterField,
    IdFilterField,
    Index,
    InstantFilterField,
    LimitFilterField,
    NameFilterField,
    Notation,
    ObjectFilterField,
    PriorityFilterField,
    QueueFilterField,
    StatesFilterField,
    TextFilterField,
    WorkflowFilterField,
    is_given,
    of_column,
)
from django_ojs.jobs.search import Look
from django_ojs.messages import phrase
from django_ojs.models import Job, WorkflowStep
from django_ojs.models.fields import has_exactly, named, same_name, searched_for
from django_ojs.models.job import JobQuerySet, in_states
from django_ojs.rules import ids, names, redaction
from django_ojs.rules.durations import format_instant
from django_ojs.states import LIVE, State
from django_ojs.statistics import counters

# Conditions


def with_error(text: str) -> Q:
    """`with_error_text`, for acts on what fits. Where the site hides anything, the text has to be an error's type,
    which is never hidden: else one could find out the rest by asking what fits."""
    return with_error_text(text) if redaction.site_rules() is None else with_error_type(text)


def with_error_type(name: str) -> Q:
    """Jobs with an error of this type. Errors are stored with their type and code first (`rules.errorobjects`)."""
    return has_exactly("errors", f'{{"type":{jsontext.dumps(name)},"code":')


def with_error_text(text: str) -> Q:
    """Jobs in whose errors this text is, as they are stored."""
    return searched_for("errors", jsontext.dumps(text)[1:-1])


def with_tag(tag: str) -> Q:
    """Jobs in whose other attributes this tag may be: `tags` of a row tells whether it is."""
    return has_exactly("extra", jsontext.dumps(tag))


def with_text(text: str) -> Q:
    """Jobs in whose arguments or meta this text is, as they are stored."""
    needle = jsontext.dumps(text)[1:-1]
    return searched_for("args", needle) | searched_for("meta", needle)


def tags(extra: Any) -> Any:
    """The tags among the other attributes of a job."""
    found = extra.get("tags") if isinstance(extra, dict) else None
    return found if isinstance(found, list) else ()


def _is_shown_in_errors(text: str) -> tuple[Check, Columns] | None:
    """A list compares a text with what it shows of the errors."""
    if redaction.site_rules() is None:
        return None
    return lambda row: _shows(text, row, "errors"), ("type", "meta", "errors")


def _shows(text: str, row: Mapping[str, Any], *parts: str) -> bool:
    """Whether this text is in what operators see of these parts: as `searched_for` finds it in what is stored."""
    shown = (redaction.part(name, row[name], row["type"], row["meta"]) for name in parts)
    needle = jsontext.dumps(text)[1:-1].lower()
    return any(needle in jsontext.dumps(value).lower() for value in shown)


def _along(lookup: str) -> Callable[[JobFilter, Any], Q]:
    """The time of the end where only ended states are selected, else of the creation, as the ids tell it."""

    def condition(wanted: JobFilter, instant: dt.datetime) -> Q:
        edge = instant if wanted.along == "finished_at" else ids.first_at(instant)
        return Q(**{f"{wanted.along}__{lookup}": edge})

    return condition


def _older(wanted: JobFilter, instant: dt.datetime) -> Q:
    return Q(**{"finished_at__lt" if wanted.along == "finished_at" else "created_at__lt": instant})


def _from_edge(wanted: JobFilter, edge: str) -> Q:
    found: Any = dt.datetime.fromisoformat(edge) if wanted.along == "finished_at" else uuid.UUID(edge)
    return Q(**{f"{wanted.along}__gte": found})


def _of_workflow(wanted: JobFilter, workflow: uuid.UUID | str) -> Q:
    column = "workflow" if isinstance(workflow, uuid.UUID) else "workflow__own_id"
    return Q(pk__in=WorkflowStep.objects.filter(**{column: workflow}, job__isnull=False).values("job"))


def _nothing(wanted: JobFilter, value: Any) -> Q:
    """For what the database cannot decide, or only by reading each job (`rest`, `check`)."""
    return Q()


def _of_queue(wanted: JobFilter) -> Index:
    """The jobs of one queue have an index until they have ended."""
    exact = names.prefix(wanted.values.get("queue", "")) is None
    return Index.MANY if exact and LIVE.issuperset(wanted.wanted_states or State) else Index.NONE


def _of_last_worker(wanted: JobFilter) -> Index:
    """While they run, the worker that ran them last is their holder, which has an index."""
    return Index.FEW if list(wanted.wanted_states) == [State.ACTIVE] else Index.NONE


def _is_tagged(tag: str) -> tuple[Check, Columns]:
    """Tags are inside a JSON text."""
    return lambda row: tag in tags(row["extra"]), ("extra",)


def _is_shown_in(text: str) -> tuple[Check, Columns] | None:
    """A search must not tell what the site hides."""
    if redaction.site_rules() is None:
        return None
    return lambda row: _shows(text, row, "args", "meta"), ("type", "meta", "args")


#: What operators write by hand.
_BY_HAND = (PAGE, COMMAND)


class JobFilter(FilterSet):  # type: ignore[misc]
    """The filters of jobs. Everything given must fit.

    Values are read when they are first used. Raises `InvalidRequest` then for one that cannot be read, with its
    name in `details.field`.
    """

    states = DeclaredFilter(
        StatesFilterField, lambda wanted, value: in_states(value), index=Index.MANY,
        help="jobs in these states", title=_("state"),
        names={LIST: "state", OPERATOR: "state", PRODUCER: ("state", "states"), PAGE: "state", COMMAND: "state"},
    )  # fmt: skip
    queue = DeclaredFilter(
        QueueFilterField, lambda wanted, value: named("queue", value), index=_of_queue,
        help="jobs of this queue", title=_("queue"),
    )  # fmt: skip
    type = DeclaredFilter(
        NameFilterField, lambda wanted, value: named("type", value), metavar="TYPE",
        help="jobs of this type; `mail.*` for all that begin so", title=_("type"), example="mail.send, mail.*",
    )  # fmt: skip
    tag = DeclaredFilter(
        TextFilterField, _nothing, metavar="TAG", rest=with_tag, check=_is_tagged,
        help="jobs with this tag", title=_("tag"), example="nightly", names=dict.fromkeys(_BY_HAND, "tag"),
    )  # fmt: skip
    text = DeclaredFilter(
        TextFilterField, _nothing, rest=with_text, check=_is_shown_in,
        help="jobs with this text, in capitals or not, in their arguments or meta", title=_("text"),
        names={PAGE: "q", COMMAND: "search"},
    )  # fmt: skip
    #: Along the times, commands and the admin look for what is recent: ended jobs by their end.
    since = DeclaredFilter(
        InstantFilterField, _along("gte"), index=Index.MANY,
        help="jobs made then or later; if only ended states are selected, jobs that ended then or later",
        title=_("since"), names=dict.fromkeys(_BY_HAND, "since"),
    )  # fmt: skip
    until = DeclaredFilter(
        InstantFilterField, _along("lt"), index=Index.MANY,
        help="jobs made before then; if only ended states are selected, jobs that ended before then",
        title=_("until"), names=dict.fromkeys(_BY_HAND, "until"),
    )  # fmt: skip
    error = DeclaredFilter(
        TextFilterField, lambda wanted, value: with_error(value) & ~Q(state=State.COMPLETED),
        help="jobs that did not complete and in whose errors this text is, in capitals or not",
        title=_("error class or message"), example="ConnectionError", names=dict.fromkeys(_BY_HAND, "error"),
    )  # fmt: skip
    created_since = DeclaredFilter(
        InstantFilterField, of_column("created_at__gte"), index=Index.MANY,
        help="jobs made then or later", names={LIST: "since", OPERATOR: "since"},
    )  # fmt: skip
    created_until = DeclaredFilter(
        InstantFilterField, of_column("created_at__lt"), index=Index.MANY,
        help="jobs made before then", names={LIST: "until", OPERATOR: "until"},
    )  # fmt: skip
    worker_id = DeclaredFilter(
        NameFilterField, lambda wanted, value: same_name("worker_id", value) & Q(state=State.ACTIVE), index=Index.FEW,
        formerly="holder", help="running jobs that this worker has now", title=_("worker"), example=_("its id"),
    )  # fmt: skip
    last_worker = DeclaredFilter(
        NameFilterField, of_column("worker_id"), index=_of_last_worker, formerly="worker", setting="worker",
        help="jobs that this worker has, or had last", title=_("last worker"), example=_("its id"),
        names={
            LIST: "last_worker", OPERATOR: "last_worker", PRODUCER: "last_worker", PAGE: ("last_worker", "worker"),
            COMMAND: ("last_worker", "worker"),
        },
    )  # fmt: skip
    error_type = DeclaredFilter(
        NameFilterField, lambda wanted, value: with_error_type(value), setting="error",
        help="jobs with an error of this type", names={LIST: "error_type", OPERATOR: "error_type"},
    )  # fmt: skip
    older_than = DeclaredFilter(
        AgeFilterField, _older, index=Index.MANY,
        help="jobs made before this time or age; if only ended states are selected, jobs that ended before it",
        names={OPERATOR: "older_than", PRODUCER: "older_than"},
    )  # fmt: skip
    enqueued_before = DeclaredFilter(
        InstantFilterField, of_column("enqueued_at__lt"), index=Index.MANY,
        help="jobs enqueued before then", names={PRODUCER: "enqueued_before", COMMAND: "before"},
    )  # fmt: skip
    enqueued_after = DeclaredFilter(
        InstantFilterField, of_column("enqueued_at__gt"), index=Index.MANY,
        help="jobs enqueued after then", names={PRODUCER: "enqueued_after", COMMAND: "after"},
    )  # fmt: skip
    priority = DeclaredFilter(
        PriorityFilterField, of_column("priority"), index=Index.MANY,
        help="jobs of this priority, a number or a name", names={PRODUCER: "priority"},
    )  # fmt: skip
    #: `bulk.matching` looks for it.
    meta = DeclaredFilter(
        ObjectFilterField, _nothing, index=Index.MANY,
        help="jobs with these members in their meta", names={PRODUCER: "meta"},
    )  # fmt: skip
    workflow = DeclaredFilter(
        WorkflowFilterField, _of_workflow, index=Index.FEW,
        help="members of this workflow", title=_("workflow"), example=_("its id"),
        names={LIST: "workflow_id"} | dict.fromkeys(_BY_HAND, "workflow"),
    )  # fmt: skip

    # No caller gives the following; other code of ours does.

    #: Only those of the dead letter queue.
    dead_letters = DeclaredFilter(
        FlagFilterField, lambda wanted, value: Q(dead_letter=True), index=Index.MANY, names={}
    )
    #: The last job that a search looked at: its id, or its end where only ended states are selected.
    edge = DeclaredFilter(TextFilterField, _from_edge, index=Index.MANY, names={})
    #: The limits of the caller; None: none.
    only_queues = DeclaredFilter(
        LimitFilterField,
        lambda wanted, value: Limits(queues=value).condition(),
        index=_of_queue,
        setting="queue",
        names={},
    )
    only_types = DeclaredFilter(
        LimitFilterField, lambda wanted, value: Limits(types=value).condition(), setting="type", names={}
    )

    base_filters: dict[str, Any]  #: all filters of the class; of an instance, those that it was given
    #: Names of no filter that were given: passed over, one would widen the selection.
    unknown: Sequence[str] = ()

    class Meta:
        model = Job
        fields: Sequence[str] = ()

    def __init__(self, data: Mapping[str, Any] | None = None, queryset: Any = None, **options: Any) -> None:
        data = {} if data is None else data
        if type(data) is dict:  # ours, not a query string: only what is given has to be read
            self.base_filters = {name: declared for name, declared in self.base_filters.items() if name in data}
            self.unknown = sorted(data.keys() - self.base_filters)
        super().__init__(data, queryset, **options)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> JobFilter:
        """From what `to_json` made; KeyError without `states`, so that nothing is ever taken for all jobs."""
        if not fields["states"]:
            raise KeyError("states")
        return cls(renamed(fields))

    def to_json(self) -> dict[str, Any]:
        """What a stored bulk action keeps: values of JSON, without what was not asked for."""
        return {name: _as_json(value) for name, value in self.values.items()}

    @property
    def values(self) -> dict[str, Any]:
        """What was asked for, as it was read. Raises `InvalidRequest`."""
        if fault := self.fault():
            name, problem = fault
            raise InvalidRequest(
                phrase("%(field)s: %(problem)s.", field=name, problem=problem), details={"field": name}
            )
        return {name: value for name, value in self.form.cleaned_data.items() if is_given(value)}

    def fault(self) -> tuple[str, str] | None:
        """The first filter that cannot be read, and what is wrong with it, without a full stop."""
        if self.unknown:
            return self.unknown[0], "is unknown here"
        for name, errors in self.form.errors.as_data().items():
            return name, " ".join(errors[0].messages).rstrip(".")
        return None

    def replace(self, **changes: Any) -> JobFilter:
        """The same with these values instead."""
        return type(self)({**self.values, **changes})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobFilter) and type(self) is type(other) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(jsontext.dumps(self.to_json()))

    # What it means

    @property
    def wanted_states(self) -> Sequence[State]:
        """The states that are named."""
        return self.values.get("states") or ()

    @property
    def limits(self) -> Limits:
        """What its caller reaches."""
        return Limits(self.values.get("only_queues"), self.values.get("only_types"))

    @property
    def along(self) -> str:
        """The column that its times and its search go along: ended jobs by their end, others by their id."""
        wanted = self.wanted_states
        return "finished_at" if wanted and states.TERMINAL.issuperset(wanted) else "id"

    @property
    def searches(self) -> bool:
        """Whether each job has to be looked at, so that only the newest are."""
        return any(declared.rest is not None for declared, _ in self.given)

    @property
    def given(self) -> list[tuple[DeclaredFilter, Any]]:
        """The filters that were given, with their values, but for those that a site has made of django-filter's own."""
        found = ((self.filters[name], value) for name, value in self.values.items())
        return [(declared, value) for declared, value in found if isinstance(declared, DeclaredFilter)]

    def condition(self, *without: str) -> Q:
        """What the database decides, but for the text, the tag, `meta`, and the filters in `without`."""
        given = ((self.filters[name], value) for name, value in self.values.items() if name not in without)
        return reduce(
            and_, (one.condition(self, value) for one, value in given if isinstance(one, DeclaredFilter)), Q()
        )

    def jobs(self, using: str | None = None) -> JobQuerySet:
        """The jobs that may fit; `rest` and `checks` say which of them do."""
        found: JobQuerySet = self.narrow(Job.objects.using(database(using)))
        return found

    def narrow(self, jobs: Any) -> Any:
        """Those of `jobs` that may fit. A site's own are any filters of django-filter."""
        found = jobs.filter(self.condition())
        for name, declared in self.filters.items():
            if not isinstance(declared, DeclaredFilter):
                found = declared.filter(found, self.values.get(name))
        return found

    def filter_queryset(self, queryset: QuerySet[Job]) -> Any:
        """Django-filter's hook: all that the database decides."""
        return self.narrow(queryset).filter(self.rest())

    def rest(self) -> Q:
        """What the database decides by reading each job."""
        return reduce(and_, (declared.rest(value) for declared, value in self.given if declared.rest is not None), Q())

    def checks(self) -> tuple[list[Check], list[str]]:
        """What the database cannot decide, and the columns that this takes."""
        found = [
            check
            for declared, value in self.given
            if declared.check is not None and (check := declared.check(value)) is not None
        ]
        return [check for check, _ in found], [column for _, columns in found for column in columns]

    def unindexed(self) -> dict[str, Q]:
        """The conditions of the filters that no index of ours finds, by the names of the filters."""
        return {
            name: declared.condition(self, value) & (Q() if declared.rest is None else declared.rest(value))
            for name, value in self.values.items()
            if isinstance(declared := self.filters[name], DeclaredFilter) and declared.index(self) is Index.NONE
        }

    @property
    def is_narrow(self) -> bool:
        """Whether what an index finds is few jobs."""
        return any(declared.index(self) is Index.FEW for declared, _ in self.given)

    def is_served(self, unindexed: Collection[str]) -> bool:
        """Whether the site has an index of its own for one of these filters (`OJS["INDEXED_FILTERS"]`)."""
        settings = {self.filters[name].setting(name) for name in unindexed}
        return not settings.isdisjoint(ojs_settings.INDEXED_FILTERS)

    # Looking for them

    def searched(self, using: str, enough: int) -> tuple[list[uuid.UUID], Look]:
        """The ids of those that fit among the newest, in no order, and how far that was."""
        return search.newest(self.jobs(using), self.along, self._fitting(self.rest()), enough)

    def bounded(self, look: Look) -> JobFilter:
        """The same, and nothing that this search did not look at."""
        if look.edge is None:
            return self
        return self.replace(edge=_as_json(look.edge))

    def _fitting(self, rest: Q) -> Callable[[QuerySet[Job]], Iterable[uuid.UUID]]:
        """Finds the ids of the jobs of a part of the table that fit."""
        checks, columns = self.checks()

        def fitting(part: QuerySet[Job]) -> Iterable[uuid.UUID]:
            part = part.filter(rest)
            if not checks:
                return part.values_list("pk", flat=True)
            rows = part.values("pk", *dict.fromkeys(columns)).iterator(chunk_size=200)
            return [row["pk"] for row in rows if all(check(row) for check in checks)]

        return fitting


class JobListFilter(JobFilter):
    """The filter of a list that pages through all jobs. It changes nothing, so a text in errors is compared with what
    the list shows of them."""

    job = DeclaredFilter(IdFilterField, of_column("pk"), index=Index.FEW, names={})
    error = JobFilter.base_filters["error"].replaced(
        condition=lambda wanted, value: with_error_text(value) & ~Q(state=State.COMPLETED),
        check=_is_shown_in_errors,
    )

    @property
    def order(self) -> tuple[str, ...]:
        return ("-finished_at", "-id") if self.along == "finished_at" else ("-id",)

    def listed(self, base: QuerySet[Job], enough: int) -> tuple[QuerySet[Job], Look | None]:
        """The jobs of `base` that fit, newest first; without `Look` where nothing had to be looked for.

        What an index finds (an id, a state, a time, a workflow, what a worker holds, a queue's jobs of a live state)
        is asked for as it is; for anything else the newest jobs are searched. `enough` is how many are wanted; there
        may be more.
        """
        rest = self.unindexed()
        few = self.is_narrow or self._has_few(base.db)
        # Indexes of live states have no such order, and databases that guess (SQLite does) would go along all ids
        # instead; the expression forbids it.
        order = (Coalesce("id", "id").desc(),) if few and self.along == "id" else self.order
        found = base.filter(self.condition(*rest)).order_by(*order)
        if not rest:
            return found, None
        checks, _ = self.checks()
        condition = reduce(and_, rest.values())
        if few and checks:
            return base.filter(pk__in=list(self._fitting(condition)(found))).order_by(*self.order), None
        if few or (not checks and self.is_served(rest)):
            return found.filter(condition), None
        newest, look = search.newest(found, self.along, self._fitting(condition), enough)
        return base.filter(pk__in=newest).order_by(*self.order), look

    def _has_few(self, using: str) -> bool:
        """Whether the jobs of the live states, in the queue that is asked for, are few enough to be sorted."""
        wanted, queue = self.wanted_states, self.values.get("queue", "")
        if not wanted or not LIVE.issuperset(wanted):
            return False
        counted = counters.count_all([queue] if queue and names.prefix(queue) is None else None, using=using)
        return sum(one.states[state] for one in counted.values() for state in wanted) <= search.FEW


def names_in(notation: Notation, kind: type[JobFilter] = JobFilter) -> dict[str, str]:
    """The filters by the names that a notation has for them.

    A site's own filters of django-filter have the names of theirs in the lists over HTTP.
    """
    found: dict[str, str] = {}
    for name, declared in kind.base_filters.items():
        own = (name,) if notation is LIST else ()
        found |= dict.fromkeys(declared.names_in(notation, name) if isinstance(declared, DeclaredFilter) else own, name)
    return found


def shown_in(notation: Notation) -> dict[str, DeclaredFilter]:
    """The declarations of all filters of a notation, by the names that it shows."""
    filters: Mapping[str, DeclaredFilter] = JobFilter.base_filters
    called = ((declared.names_in(notation, name), declared) for name, declared in filters.items())
    return {names[0]: declared for names, declared in called if names}


def renamed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A stored filter with the names that filters have now, whatever release stored it."""
    known = ((name, one) for name, one in JobFilter.base_filters.items() if isinstance(one, DeclaredFilter))
    now = {declared.formerly: name for name, declared in known if declared.formerly}
    return {now.get(name, name): value for name, value in fields.items()}


def dead_letters(**wanted: Any) -> JobFilter:
    """The filter of the dead letter queue."""
    return JobFilter({"states": [State.DISCARDED], "dead_letters": True, **wanted})


def readable(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A stored filter as answers show it: times as everywhere else, and no inner bounds."""
    times = {
        name
        for name, declared in JobFilter.base_filters.items()
        if issubclass(declared.field_class, InstantFilterField)
    }
    shown = {name: value for name, value in renamed(fields).items() if name != "edge"}
    return shown | {n: format_instant(dt.datetime.fromisoformat(shown[n])) for n in times & shown.keys()}


# Values


def _as_json(value: Any) -> Any:
    """A value as a stored bulk action keeps it; times to the microsecond, as columns have them."""
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat()
    if isinstance(value, uuid.UUID):
        return str(value)
    return [str(item) for item in value] if isinstance(value, list | tuple) else value
