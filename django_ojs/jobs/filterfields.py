"""Declares a filter of jobs: how its value is read, which jobs it finds, and its names.

    trace = DeclaredFilter(NameFilterField, of_column("trace_id"), help="jobs of this trace", title=_("trace"))

`jobs.selection.JobFilter` has the declarations. Lists over HTTP, bulk bodies, the admin's list, the commands, stored
bulk actions, the OpenAPI document and the documentation read them.
"""

from __future__ import annotations

import copy
import datetime as dt
import enum
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django_filters import Filter

from django_ojs import clock
from django_ojs.conf import ojs_settings
from django_ojs.models import Job
from django_ojs.models.fields import same_name
from django_ojs.rules import names, workflows
from django_ojs.rules.attributes import parse_priority
from django_ojs.rules.durations import parse_moment
from django_ojs.states import State

if TYPE_CHECKING:
    from django_ojs.jobs.selection import JobFilter

#: Characters of a text that is looked for: databases have a limit for patterns.
LONGEST = 1000
#: Whether a job that the database found is one in truth, from its row.
Check = Callable[[dict[str, Any]], bool]
#: Columns of the row that a check reads.
Columns = tuple[str, ...]


class Notation(enum.StrEnum):
    """How a caller writes which jobs it means. Each notation has names of its own for the filters."""

    LIST = "list"  #: the query string of a list over HTTP
    OPERATOR = "operator"  #: the `filter` in the body of an operator's call
    PRODUCER = "producer"  #: the `filter` in the body of a producer's bulk operation (binding 6)
    PAGE = "page"  #: the admin's list of jobs
    COMMAND = "command"  #: the options of `ojs_jobs` and `ojs_dead_letter`


LIST, OPERATOR, PRODUCER, PAGE, COMMAND = Notation


class Index(enum.Enum):
    """How lists, which never read a whole table, find the jobs of a filter."""

    NONE = enum.auto()  #: no index of ours does: the newest jobs are searched, unless the site has an index of its own
    MANY = enum.auto()  #: the database is asked for them
    FEW = enum.auto()  #: the database is asked for them, and they are few


def read_states(value: Any) -> list[State]:
    """The states of a text, joined by commas, or of a list of texts; none of what is empty. Raises ValueError."""
    given: Any = value.split(",") if isinstance(value, str) and value else value or []
    listed = isinstance(given, Collection) and not isinstance(given, Mapping)
    wanted = [str(item).strip() for item in given] if listed else [""]
    if not set(State).issuperset(wanted):
        raise ValueError(f"must be some of {', '.join(State)}")
    return [State(item) for item in dict.fromkeys(wanted)]


# The kinds of values


class FilterField(forms.Field):
    """Reads the value of a filter, in every notation.

    `to_python` returns None for what is not given: all else narrows down, false and 0 included. A ValidationError of it
    says what is wrong with the value.
    """

    #: What stands for a value in the help of a command.
    metavar: ClassVar[str] = "TEXT"
    #: The schema of a value in the OpenAPI document.
    schema: ClassVar[dict[str, Any]] = {"type": "string"}
    #: The types of JSON that a body may have here, for fields that do not look themselves; and what is said of others.
    json_types: ClassVar[tuple[type, ...]] = (str,)
    mistyped: ClassVar[str] = "must be a text"
    #: How a value is written, for the help of a command.
    form: ClassVar[str] = ""

    def strictly(self, value: Any) -> Any:
        """The value as programs must write it, over HTTP. Raises ValueError."""
        return value


class StatesFilterField(FilterField):
    """One state, several joined by commas, or a list of them."""

    metavar = "STATE[,STATE]"
    schema: ClassVar[dict[str, Any]] = {
        "oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string", "enum": [*map(str, State)]}}]
    }
    json_types = (str, list)

    def to_python(self, value: Any) -> list[State]:
        try:
            return read_states(value)
        except ValueError as error:
            raise ValidationError(str(error)) from error


class TextFilterField(FilterField):
    """A text that a database can look for."""

    def to_python(self, value: Any) -> str | None:
        if not value:
            return None
        if not isinstance(value, str) or len(value) > LONGEST or not names.is_storable(value):
            raise ValidationError(f"must be a text of at most {LONGEST} characters")
        return value


class NameFilterField(TextFilterField):
    """The name of something: of a job type, a worker, an error."""

    metavar = "NAME"

    def strictly(self, value: str) -> str:
        text = value.strip()
        if len(text) > 255 or not text.isprintable():
            raise ValueError("must be a printable text of at most 255 characters")
        return text


class QueueFilterField(NameFilterField):
    """The name of a queue; a pattern only where people write it."""

    def strictly(self, value: str) -> str:
        return names.check_queue(value)


class InstantFilterField(FilterField):
    """A time, or an age such as `24h`, which is so long ago."""

    metavar = "WHEN"
    form = "an instant such as 2026-01-31T12:00:00Z or 2026-01-31, or an age: 90m, 2h, 7d"

    def to_python(self, value: Any) -> dt.datetime | None:
        if not value or isinstance(value, dt.datetime):
            return value or None
        try:  # an unescaped + of a zone offset is a space in a query
            return parse_moment(value.replace(" ", "+") if isinstance(value, str) else value, clock.now())
        except ValueError as error:
            raise ValidationError(self.problem(error)) from error

    def problem(self, error: ValueError) -> str:
        return str(error)


class AgeFilterField(InstantFilterField):
    """The instant before which jobs are selected: an age such as `PT24H` or `7d`, or a time."""

    mistyped = "must be a duration such as P7D, or a time"

    def problem(self, error: ValueError) -> str:
        return self.mistyped


class PriorityFilterField(FilterField):
    """A number, or one of the site's names for one."""

    metavar = "PRIORITY"
    schema: ClassVar[dict[str, Any]] = {"oneOf": [{"type": "integer"}, {"type": "string"}]}
    json_types = ()

    def to_python(self, value: Any) -> int | None:
        if value is None:
            return None
        try:
            return parse_priority(value, ojs_settings.PRIORITY_LEVELS)
        except ValueError as error:
            raise ValidationError(str(error)) from error


class IdFilterField(FilterField):
    """The id of a job."""

    metavar = "ID"
    schema: ClassVar[dict[str, Any]] = {"type": "string", "format": "uuid"}

    def to_python(self, value: Any) -> uuid.UUID | None:
        if not value or isinstance(value, uuid.UUID):
            return value or None
        try:
            return uuid.UUID(value)
        except ValueError as error:
            raise ValidationError("must be an id") from error


class WorkflowFilterField(FilterField):
    """A workflow, by its id or by that which its client gave it."""

    metavar = "ID"

    def to_python(self, value: Any) -> uuid.UUID | str | None:
        if not value or isinstance(value, uuid.UUID):
            return value or None
        if not workflows.CLIENT_ID.fullmatch(value):
            raise ValidationError("must be an id")
        try:
            return uuid.UUID(value) if len(value) == 36 else str(value)
        except ValueError:
            return str(value)


class ObjectFilterField(FilterField):
    """Members of a JSON object."""

    schema: ClassVar[dict[str, Any]] = {"type": "object", "additionalProperties": {}}
    json_types = ()

    def to_python(self, value: Any) -> dict[str, Any] | None:
        if value is not None and not isinstance(value, dict):
            raise ValidationError("must be an object")
        return value or None


class FlagFilterField(FilterField):
    """A condition that is asked for (True) or not."""

    def to_python(self, value: Any) -> bool | None:
        return True if value is True else None


class LimitFilterField(FilterField):
    """The names and patterns that a caller is limited to. None is no limit; an empty list selects no job."""

    def to_python(self, value: Any) -> tuple[str, ...] | None:
        return None if value is None else tuple(value)


# A filter


class DeclaredFilter(Filter):  # type: ignore[misc]
    """A filter of jobs.

    Args:
        field: reads the value that a caller gave: a `FilterField`, or a form field of Django that has None for what is
            not given, so `NullBooleanField` and not `BooleanField`.
        condition: makes the database's condition of the `JobFilter` and the value that was read.
        help: the jobs that it finds, as in "only jobs with this tag": for `--help`, the OpenAPI document and the
            documentation.
        title: what the admin calls it, in the viewer's language; its name if there is none.
        example: what the admin's field shows while it is empty.
        metavar: what stands for the value in the help of a command; that of the field if there is none.
        names: its name in each notation that has it. Where a notation knows several, it shows the first. None: its own
            name in every notation.
        formerly: its name in bulk actions that older releases have stored.
        index: how lists find its jobs, or a function that says so for a `JobFilter`.
        setting: what `OJS["INDEXED_FILTERS"]` calls it; its own name if there is none.
        rest: makes a condition that the database decides by reading each job. The admin and the commands then mean the
            newest jobs, those that a search looks at; there is no such filter over HTTP.
        check: makes what only Python decides, from the columns that it names; None where the database suffices.

    Raises TypeError for a filter with `rest` that has a name over HTTP, and for a `BooleanField`.
    """

    def __init__(
        self,
        field: type[forms.Field],
        condition: Callable[[JobFilter, Any], Q],
        *,
        help: str = "",
        title: Any = "",
        example: Any = "",
        metavar: str = "",
        names: Mapping[Notation, str | tuple[str, ...]] | None = None,
        formerly: str = "",
        index: Index | Callable[[JobFilter], Index] = Index.NONE,
        setting: str = "",
        rest: Callable[[Any], Q] | None = None,
        check: Callable[[Any], tuple[Check, Columns] | None] | None = None,
    ) -> None:
        self.field_class, self.condition = field, condition
        self.help, self.title, self.example = help, title, example
        self.metavar, self.formerly = metavar or getattr(field, "metavar", "VALUE"), formerly
        self.rest, self.check = rest, check
        self._names, self._index, self._setting = names, index, setting
        if rest is not None and any(self.names_in(notation, "it") for notation in (LIST, OPERATOR, PRODUCER)):
            raise TypeError("A filter with `rest` has names in the notations PAGE and COMMAND only.")
        if issubclass(field, forms.BooleanField) and not issubclass(field, forms.NullBooleanField):
            raise TypeError("A BooleanField has False for what is not given: take NullBooleanField.")
        super().__init__(label="")

    def __deepcopy__(self, memo: object) -> Self:
        """A copy for one `JobFilter`, which django-filter makes for each: declarations do not change."""
        return copy.copy(self)

    def replaced(self, **changes: Any) -> Self:
        """The same filter with another `condition`, `rest` or `check`, for a subclass of `JobFilter`."""
        found = copy.copy(self)
        found.__dict__.update(changes)
        return found

    def names_in(self, notation: Notation, name: str) -> tuple[str, ...]:
        """The names of the filter `name` in a notation, the one that is shown first; none where it has none."""
        found = name if self._names is None else self._names.get(notation, ())
        return (found,) if isinstance(found, str) else found

    def setting(self, name: str) -> str:
        """What `OJS["INDEXED_FILTERS"]` calls the filter `name`."""
        return self._setting or name

    def index(self, wanted: JobFilter) -> Index:
        """How lists find its jobs in this selection."""
        return self._index(wanted) if callable(self._index) else self._index

    @property
    def sentence(self) -> str:
        """Its help as a sentence, with an example of how a value is written."""
        form = getattr(self.field_class, "form", "")
        return f"Only {self.help}{f': {form}' if form else ''}."

    def wrong_type(self, value: Any) -> str:
        """What is wrong with a value of JSON of this type; '' where the field itself looks."""
        kind = self.field_class
        if not issubclass(kind, FilterField) or not kind.json_types or isinstance(value, kind.json_types):
            return ""
        return kind.mistyped

    def strictly(self, value: Any) -> Any:
        """The value as programs must write it, over HTTP. Raises ValueError."""
        return self.field_class().strictly(value) if issubclass(self.field_class, FilterField) else value

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of its value in the OpenAPI document."""
        kinds = (kind for kind in _SCHEMAS if issubclass(self.field_class, kind))
        found: dict[str, Any] = getattr(self.field_class, "schema", None) or _SCHEMAS[next(kinds)]
        return found

    def filter(self, jobs: QuerySet[Job], value: Any) -> QuerySet[Job]:
        """django-filter's hook: those of `jobs` that fit."""
        return jobs.filter(self.condition(self.parent, value)) if is_given(value) else jobs


#: The schemas of Django's own form fields.
_SCHEMAS: dict[type[forms.Field], dict[str, Any]] = {
    forms.FloatField: {"type": "number"},
    forms.IntegerField: {"type": "integer"},
    forms.NullBooleanField: {"type": "boolean"},
    forms.Field: {"type": "string"},
}


def is_given(value: Any) -> bool:
    """Whether a value narrows down; limits of no queue and no type do."""
    return value not in (None, "", [])


def of_column(lookup: str) -> Callable[[JobFilter, Any], Q]:
    """The condition that a column has the value; `lookup` is one of Django's, or a column: a text is the very text."""
    return lambda wanted, value: same_name(lookup, value) if isinstance(value, str) else Q(**{lookup: value})
