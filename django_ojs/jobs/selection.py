"""Which jobs a caller means: the one filter of query strings, JSON bodies, the admin's lists, commands and stored bulk
actions.

    JobFilter({"states": ["available"], "type": "mail.*", "older_than": "7d"}).jobs()

Each door gives the members names of its own (`worker_id` for `holder`, say) and passes them here, where they are read
and mean the same. A filter is a django-filter `FilterSet`, so a site adds a member to the lists over
HTTP in a subclass. docs/internals.md says where else a new member has to be named. django-filter's app
need not be in INSTALLED_APPS: that is for its HTML.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django.db.models.functions import Coalesce
from django_filters import Filter, FilterSet

from django_ojs import clock, jsontext, states
from django_ojs.conf import ojs_settings
from django_ojs.database import database
from django_ojs.errors import InvalidRequest
from django_ojs.jobs import search
from django_ojs.jobs.search import Look
from django_ojs.messages import phrase
from django_ojs.models import Job, WorkflowStep
from django_ojs.models.fields import any_of, named
from django_ojs.models.job import JobQuerySet, in_states
from django_ojs.rules import names, redaction
from django_ojs.rules.attributes import parse_priority
from django_ojs.rules.durations import format_instant, parse_moment
from django_ojs.states import LIVE, State
from django_ojs.statistics import counters

#: Characters of a text that is looked for: databases have a limit for patterns.
LONGEST = 1000
#: Whether a job that the database found is one in truth, from its row.
Check = Callable[[dict[str, Any]], bool]


class StatesField(forms.Field):
    """One state, several joined by commas, or a list of them."""

    def to_python(self, value: Any) -> list[State]:
        given = value.split(",") if isinstance(value, str) else value or []
        wanted = [item.strip() if isinstance(item, str) else item for item in given]
        if not all(item in set(State) for item in map(str, wanted)):
            raise ValidationError(f"must be some of {', '.join(State)}")
        return [State(item) for item in dict.fromkeys(wanted)]


class TextField(forms.Field):
    """A text that a database can look for."""

    def to_python(self, value: Any) -> str | None:
        if not value:
            return None
        if not isinstance(value, str) or len(value) > LONGEST or "\0" in value:
            raise ValidationError(f"must be a text of at most {LONGEST} characters")
        return value


class InstantField(forms.Field):
    """A time, or an age such as `24h`, which is so long ago."""

    def to_python(self, value: Any) -> dt.datetime | None:
        if not value or isinstance(value, dt.datetime):
            return value or None
        try:  # an unescaped + of a zone offset is a space in a query
            return parse_moment(value.replace(" ", "+") if isinstance(value, str) else value, clock.now())
        except ValueError as error:
            raise ValidationError(self.problem(error)) from error

    def problem(self, error: ValueError) -> str:
        return str(error)


class AgeField(InstantField):
    """The instant before which jobs are selected: an age such as `PT24H` or `7d`, or a time."""

    def problem(self, error: ValueError) -> str:
        return "must be a duration such as P7D, or a time"


class PriorityField(forms.Field):
    """A number, or one of the site's names for one."""

    def to_python(self, value: Any) -> int | None:
        if value is None:
            return None
        try:
            return parse_priority(value, ojs_settings.PRIORITY_LEVELS)
        except ValueError as error:
            raise ValidationError(str(error)) from error


class IdField(forms.Field):
    def to_python(self, value: Any) -> uuid.UUID | None:
        if not value or isinstance(value, uuid.UUID):
            return value or None
        try:
            return uuid.UUID(value)
        except ValueError as error:
            raise ValidationError("must be an id") from error


class ObjectField(forms.Field):
    def to_python(self, value: Any) -> dict[str, Any] | None:
        if value is not None and not isinstance(value, dict):
            raise ValidationError("must be an object")
        return value or None


class LimitField(forms.Field):
    """Names and patterns; None: no limit, and none of them: nothing."""

    def to_python(self, value: Any) -> tuple[str, ...] | None:
        return None if value is None else tuple(value)


class Member(Filter):  # type: ignore[misc]
    """A member of the filter.

    Args:
        field: reads the value that a caller gave.
        condition: makes the database's condition of the filter and the value that was read.
    """

    def __init__(self, field: type[forms.Field], condition: Callable[[JobFilter, Any], Q]) -> None:
        self.field_class, self.condition = field, condition
        super().__init__(label="")

    def filter(self, jobs: QuerySet[Job], value: Any) -> QuerySet[Job]:
        return jobs.filter(self.condition(self.parent, value)) if _is_given(value) else jobs


def _of_column(lookup: str) -> Callable[[JobFilter, Any], Q]:
    return lambda wanted, value: Q(**{lookup: value})


def _along(lookup: str) -> Callable[[JobFilter, Any], Q]:
    """The time of the end where only ended states are selected, else of the creation, as the ids tell it."""

    def condition(wanted: JobFilter, instant: dt.datetime) -> Q:
        edge = instant if wanted.along == "finished_at" else search.id_at(instant)
        return Q(**{f"{wanted.along}__{lookup}": edge})

    return condition


def _older(wanted: JobFilter, instant: dt.datetime) -> Q:
    return Q(**{"finished_at__lt" if wanted.along == "finished_at" else "created_at__lt": instant})


def _from_edge(wanted: JobFilter, edge: str) -> Q:
    found: Any = dt.datetime.fromisoformat(edge) if wanted.along == "finished_at" else uuid.UUID(edge)
    return Q(**{f"{wanted.along}__gte": found})


def _of_workflow(wanted: JobFilter, workflow: uuid.UUID) -> Q:
    return Q(pk__in=WorkflowStep.objects.filter(workflow=workflow, job__isnull=False).values("job"))


def _nothing(wanted: JobFilter, value: Any) -> Q:
    """For what the database cannot decide, or only by reading each job (`rest`, `checks`)."""
    return Q()


class JobFilter(FilterSet):  # type: ignore[misc]
    """Everything given must fit.

    Members:
        states: one or more; none: all.
        dead_letters: only those of the dead letter queue.
        type, queue: exactly, or `mail.*` for all that begin so.
        worker: who has the job or had it last; `holder`: who has it now.
        error: a text in its errors, or a whole type of an error where the site hides anything; `error_type`: a type.
        tag: one of its tags.
        text: a text in its arguments or its meta.
        priority: a number or a name.
        meta: members of its meta; `bulk.matching` looks for them.
        workflow: the id of the workflow that it is a member of.
        since, until: when the job was made, to the millisecond; where only ended states are selected, when it ended.
        created_since, created_until: when it was made, whatever has become of it.
        enqueued_after, enqueued_before: when it became available last.
        older_than: `created_at` is before it, whatever time the id tells; where only ended states are selected, the
            end is.
        only_queues, only_types: the limits of the caller; None: none.
        edge: the last job that a search looked at: its id, or its end where only ended states are selected.

    Raises `InvalidRequest`, with the member in `details.field`, when one that cannot be read is used.
    """

    states = Member(StatesField, lambda wanted, value: in_states(value))
    dead_letters = Member(forms.BooleanField, lambda wanted, value: Q(dead_letter=True))
    type = Member(TextField, lambda wanted, value: named("type", value))
    queue = Member(TextField, lambda wanted, value: named("queue", value))
    worker = Member(TextField, _of_column("worker_id"))
    holder = Member(TextField, lambda wanted, value: Q(worker_id=value, state=State.ACTIVE))
    error = Member(TextField, lambda wanted, value: with_error(value) & ~Q(state=State.COMPLETED))
    error_type = Member(TextField, lambda wanted, value: with_error_type(value))
    tag = Member(TextField, _nothing)
    text = Member(TextField, _nothing)
    priority = Member(PriorityField, _of_column("priority"))
    meta = Member(ObjectField, _nothing)
    edge = Member(TextField, _from_edge)
    workflow = Member(IdField, _of_workflow)
    since = Member(InstantField, _along("gte"))
    until = Member(InstantField, _along("lt"))
    created_since = Member(InstantField, _of_column("created_at__gte"))
    created_until = Member(InstantField, _of_column("created_at__lt"))
    enqueued_after = Member(InstantField, _of_column("enqueued_at__gt"))
    enqueued_before = Member(InstantField, _of_column("enqueued_at__lt"))
    older_than = Member(AgeField, _older)
    only_queues = Member(LimitField, lambda wanted, value: allowed(value, None))
    only_types = Member(LimitField, lambda wanted, value: allowed(None, value))

    base_filters: dict[str, Any]  #: all members of the class; of an instance, those that it was given
    #: Members that there are not: passed over, one would widen the selection.
    unknown: Sequence[str] = ()

    class Meta:
        model = Job
        fields: Sequence[str] = ()

    def __init__(self, data: Mapping[str, Any] | None = None, queryset: Any = None, **options: Any) -> None:
        data = {} if data is None else data
        if type(data) is dict:  # ours, not a query string: only what is given has to be read
            self.base_filters = {name: member for name, member in self.base_filters.items() if name in data}
            self.unknown = sorted(data.keys() - self.base_filters)
        super().__init__(data, queryset, **options)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> JobFilter:
        """From what `to_json` made; KeyError without `states`, so that nothing is ever taken for all jobs."""
        if not fields["states"]:
            raise KeyError("states")
        return cls(fields)

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
        return {name: value for name, value in self.form.cleaned_data.items() if _is_given(value)}

    def fault(self) -> tuple[str, str] | None:
        """The first member that cannot be read, and what is wrong with it, without a full stop."""
        if self.unknown:
            return self.unknown[0], "is unknown here"
        for name, errors in self.form.errors.as_data().items():
            return name, " ".join(errors[0].messages).rstrip(".")
        return None

    def replace(self, **changes: Any) -> JobFilter:
        """The same filter with these members instead."""
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
    def along(self) -> str:
        """The column that its times and its search go along: ended jobs by their end, others by their id."""
        wanted = self.wanted_states
        return "finished_at" if wanted and states.TERMINAL.issuperset(wanted) else "id"

    @property
    def searches(self) -> bool:
        """Whether each job has to be looked at, so that only the newest are."""
        return bool(self.values.keys() & {"tag", "text"})

    def condition(self, *without: str) -> Q:
        """What the database decides, but for the text, the tag, `meta`, and the members in `without`."""
        given = ((self.filters[name], value) for name, value in self.values.items() if name not in without)
        return reduce(and_, (one.condition(self, value) for one, value in given if isinstance(one, Member)), Q())

    def jobs(self, using: str | None = None) -> JobQuerySet:
        """The jobs that may fit; `rest` and `checks` say which of them do."""
        found: JobQuerySet = self.narrow(Job.objects.using(database(using)))
        return found

    def narrow(self, jobs: Any) -> Any:
        """Those of `jobs` that may fit. A site's own members are any filters of django-filter."""
        found = jobs.filter(self.condition())
        for name, member in self.filters.items():
            if not isinstance(member, Member):
                found = member.filter(found, self.values.get(name))
        return found

    def filter_queryset(self, queryset: QuerySet[Job]) -> Any:
        """Django-filter's hook: all that the database decides."""
        return self.narrow(queryset).filter(self.rest())

    def rest(self) -> Q:
        """What the database decides by reading each job."""
        wanted = self.values
        found = with_tag(wanted["tag"]) if "tag" in wanted else Q()
        return found & with_text(wanted["text"]) if "text" in wanted else found

    def checks(self) -> tuple[list[Check], list[str]]:
        """What the database cannot decide, and the columns that this takes: tags are inside a JSON text, and a
        search must not tell what the site hides."""
        wanted = self.values
        found: list[Check] = []
        columns: list[str] = []
        if tag := wanted.get("tag"):
            found.append(lambda row: tag in tags(row["extra"]))
            columns += ["extra"]
        if (text := wanted.get("text")) and redaction.active() is not None:
            found.append(lambda row: _shows(text, row, "args", "meta"))
            columns += ["type", "meta", "args"]
        return found, columns

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

    job = Member(IdField, _of_column("pk"))
    error = Member(TextField, lambda wanted, value: with_error_text(value) & ~Q(state=State.COMPLETED))

    def checks(self) -> tuple[list[Check], list[str]]:
        found, columns = super().checks()
        if (error := self.values.get("error")) and redaction.active() is not None:
            found.append(lambda row: _shows(error, row, "errors"))
            columns += ["type", "meta", "errors"]
        return found, columns

    @property
    def order(self) -> tuple[str, ...]:
        return ("-finished_at", "-id") if self.along == "finished_at" else ("-id",)

    def unindexed(self) -> dict[str, Q]:
        """The conditions that no index finds, by the name of `OJS["INDEXED_FILTERS"]`."""
        wanted, state = self.values, self._state()
        found = {}
        if "queue" in wanted and (state not in LIVE or names.prefix(wanted["queue"]) is not None):
            found["queue"] = named("queue", wanted["queue"])
        if "worker" in wanted and state is not State.ACTIVE:
            found["worker"] = Q(worker_id=wanted["worker"])
        for name in ("type", "error"):
            if name in wanted:
                found[name] = self.filters[name].condition(self, wanted[name])
        found |= {"tag": with_tag(wanted["tag"])} if "tag" in wanted else {}
        return found | ({"text": with_text(wanted["text"])} if "text" in wanted else {})

    def listed(self, base: QuerySet[Job], enough: int) -> tuple[QuerySet[Job], Look | None]:
        """The jobs of `base` that fit, newest first; without `Look` where nothing had to be looked for.

        What an index finds (an id, a state, a time, a workflow, what a worker holds, a queue's jobs of a live state)
        is asked for as it is; for anything else the newest jobs are searched. `enough` is how many are wanted; there
        may be more.
        """
        rest = self.unindexed()
        few = self._is_narrow() or self._has_few(base.db)
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
        if few or not (checks or rest.keys().isdisjoint(ojs_settings.INDEXED_FILTERS)):
            return found.filter(condition), None
        ids, look = search.newest(found, self.along, self._fitting(condition), enough)
        return base.filter(pk__in=ids).order_by(*self.order), look

    def _state(self) -> State | None:
        """The state where one is asked for."""
        return self.wanted_states[0] if len(self.wanted_states) == 1 else None

    def _is_narrow(self) -> bool:
        """Whether what indexes find is few jobs by itself."""
        held = "worker" in self.values and self._state() is State.ACTIVE
        return held or bool(self.values.keys() & {"job", "workflow"})

    def _has_few(self, using: str) -> bool:
        """Whether the jobs of a live state, in the queue that is asked for, are few enough to be sorted."""
        state, queue = self._state(), self.values.get("queue", "")
        if state is None or state not in LIVE:
            return False
        counted = counters.count_all([queue] if queue and names.prefix(queue) is None else None, using=using)
        return sum(one.states[state] for one in counted.values()) <= search.FEW


def dead_letters(**wanted: Any) -> JobFilter:
    """The filter of the dead letter queue."""
    return JobFilter({"states": [State.DISCARDED], "dead_letters": True, **wanted})


def readable(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A stored filter as answers show it: times as everywhere else, and no inner bounds."""
    times = {name for name, member in JobFilter.base_filters.items() if issubclass(member.field_class, InstantField)}
    shown = {name: value for name, value in fields.items() if name != "edge"}
    return shown | {n: format_instant(dt.datetime.fromisoformat(shown[n])) for n in times & shown.keys()}


# Conditions


def allowed(queues: Sequence[str] | None, types: Sequence[str] | None) -> Q:
    """Jobs within the limits of a caller: these queues, and these types, of which `mail.*` means all that begin so."""
    condition = Q() if queues is None else Q(queue__in=list(queues))
    return condition if types is None else condition & any_of("type", types)


def with_error(text: str) -> Q:
    """`with_error_text`, for acts on what fits. Where the site hides anything, the text has to be an error's type,
    which is never hidden: else one could find out the rest by asking what fits."""
    return with_error_text(text) if redaction.active() is None else with_error_type(text)


def with_error_type(name: str) -> Q:
    """Jobs with an error of this type. Errors are stored with their type and code first (`rules.errorobjects`)."""
    return Q(errors__contains=f'{{"type":{jsontext.dumps(name)},"code":')


def with_error_text(text: str) -> Q:
    """Jobs in whose errors this text is, as they are stored."""
    return Q(errors__contains=jsontext.dumps(text)[1:-1])


def with_tag(tag: str) -> Q:
    """Jobs in whose other attributes this tag may be: `tags` of a row tells whether it is."""
    return Q(extra__contains=jsontext.dumps(tag))


def with_text(text: str) -> Q:
    """Jobs in whose arguments or meta this text is, as they are stored."""
    needle = jsontext.dumps(text)[1:-1]
    return Q(args__contains=needle) | Q(meta__contains=needle)


def tags(extra: Any) -> Any:
    """The tags among the other attributes of a job."""
    found = extra.get("tags") if isinstance(extra, dict) else None
    return found if isinstance(found, list) else ()


def _shows(text: str, row: Mapping[str, Any], *parts: str) -> bool:
    """Whether this text is in what operators see of these parts. Databases differ about case: none counts here."""
    shown = (redaction.part(name, row[name], row["type"], row["meta"]) for name in parts)
    needle = jsontext.dumps(text)[1:-1].casefold()
    return any(needle in jsontext.dumps(value).casefold() for value in shown)


# Values


def _is_given(value: Any) -> bool:
    """Whether a value narrows down; limits of no queue and no type do."""
    return value is not False and value not in (None, "", [])


def _as_json(value: Any) -> Any:
    """A value as a stored bulk action keeps it; times to the microsecond, as columns have them."""
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat()
    if isinstance(value, uuid.UUID):
        return str(value)
    return [str(item) for item in value] if isinstance(value, list | tuple) else value
