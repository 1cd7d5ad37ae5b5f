"""What the models share: where they are read, columns with JSON in them, columns with names, conditions on names and
texts, and names to translate."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, TypeVar

from django.core.exceptions import ValidationError
from django.db import models, router
from django.db.models import Q
from django.db.models.lookups import Contains, Exact, IContains, StartsWith
from django.utils.translation import gettext_lazy as _

from django_ojs import jsontext
from django_ojs.rules.names import prefix

_Row = TypeVar("_Row", bound=models.Model)


class JSONTextField(models.TextField):  # type: ignore[type-arg]
    """JSON kept as the text that was sent: jsonb refuses `\\u0000` and rewrites numbers, text does neither.

    Instances and `values()` give Python values; `QuerySet.rows()` gives the stored text. An empty column
    stands for "nothing here" and reads as None. Fixtures (`dumpdata`) hold the JSON text, in every format.
    """

    def from_db_value(self, value: str | None, expression: object, connection: object) -> Any:
        return jsontext.loads(value) if value else None

    def to_python(self, value: Any) -> Any:
        """The value of what a fixture holds: JSON text, or JSON itself, as people write it by hand.

        Raises ValidationError for a text that is not JSON.
        """
        if not isinstance(value, str):
            return value
        try:
            return jsontext.loads(value) if value else None
        except jsontext.JSONTextError as error:
            raise ValidationError(f"The column {self.name} holds JSON text: {error}") from error

    def clean(self, value: Any, model_instance: models.Model | None) -> Any:
        # Of a form or of code, where a string is a string: `to_python` is for fixtures.
        self.validate(value, model_instance)
        self.run_validators(value)
        return value

    def get_prep_value(self, value: Any) -> str | None:
        if value is None:
            return None if self.null else ""
        return value.text if isinstance(value, RawJSON) else jsontext.dumps(value)

    def value_from_object(self, obj: models.Model) -> Any:
        value = super().value_from_object(obj)
        # Serializers would write the decimal that it is, instead of asking for its text.
        return RawJSON(value.literal) if isinstance(value, jsontext.ExactNumber) else value

    def value_to_string(self, obj: models.Model) -> str:
        """The JSON text in ASCII: XML and YAML know no control characters, and not all of Unicode."""
        value = self.value_from_object(obj)
        return value.text if isinstance(value, RawJSON) else jsontext.dumps_ascii(value)

    def formfield(self, **kwargs: Any) -> Any:
        from django import forms

        return super().formfield(**{"form_class": forms.JSONField, "required": False, **kwargs})


class _MomentField(models.DateTimeField):  # type: ignore[type-arg]
    """A time that fixtures keep to the microsecond: Django's JSON has milliseconds, and jobs are stamped a microsecond
    apart, so that a batch is delivered in its order."""

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.DateTimeField", args, kwargs

    def value_from_object(self, obj: models.Model) -> Any:
        value: Any = super().value_from_object(obj)
        return value if value is None else value.isoformat()

    def value_to_string(self, obj: models.Model) -> str:
        return str(self.value_from_object(obj) or "")


class _NameField(models.CharField):  # type: ignore[type-arg]
    """A name that a site, a client or an operator has given, by which rows are found. Names that differ in anything are
    different names on every database: a column of MariaDB gets a collation that compares their bytes. Its usual ones
    do not tell apart what differs in case, accents or final spaces.

    Names that cannot have capitals, as those of queues and job types, need no such column.
    """

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "django_ojs.models.fields.NameField", args, kwargs

    def db_parameters(self, connection: Any) -> Any:
        found = super().db_parameters(connection)
        if connection.vendor == "mysql":
            found["collation"] = "utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin"
        return found


if TYPE_CHECKING:  # the plugin knows which of Django's own may be None
    MomentField = models.DateTimeField
    NameField = models.CharField
else:
    MomentField = _MomentField
    NameField = _NameField


class Rows(models.QuerySet[_Row]):
    """A queryset that reads from the database of its writes, whatever a router says, unless `using()` names another.

    What decides whether a key is valid, which job is free or what a page shows must not come from a replica, which lags
    and may stand still. All querysets of our models are of this class, those of relations too.
    """

    @property
    def db(self) -> str:
        explicit: str | None = self._db  # type: ignore[attr-defined]
        return explicit or router.db_for_write(self.model, **self._hints)  # type: ignore[attr-defined]


class RowManager(models.Manager[_Row]):
    _queryset_class = Rows


class OJSModel(models.Model):
    """A model of ours: its rows are read where they are written (`Rows`)."""

    objects = RowManager()

    class Meta:
        abstract = True


#: By what relations and `refresh_from_db` read. Not in `Meta`: that of models without one would ask for a migration.
OJSModel._meta.base_manager_name = "objects"


class NaturalKeys(RowManager[_Row]):
    """The manager of a model whose rows fixtures may name by a column of theirs instead of by their numbers
    (`dumpdata --natural-primary`), so that they meet the rows of the same name in another database."""

    def __init__(self, column: str) -> None:
        super().__init__()
        self._column = column

    def get_by_natural_key(self, value: str) -> _Row:
        return self.get(**{self._column: value})


class RawJSON:
    """Marks a string that is JSON text already, on its way into a `JSONTextField`."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def split(entries: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names among these entries, and the prefixes that the patterns mean: `mail.*` is `mail.`."""
    begins = [prefix(entry) for entry in entries]
    exact = [entry for entry, begin in zip(entries, begins, strict=True) if begin is None]
    return exact, [begin for begin in begins if begin is not None]


_Lookup = TypeVar("_Lookup", bound="type[models.Lookup[Any]]")


def _lookup(name: str) -> Callable[[_Lookup], _Lookup]:
    """Register a lookup of texts. Its own name stays that of Django's, whose operators it has."""

    def register(lookup: _Lookup) -> _Lookup:
        models.CharField.register_lookup(lookup, name)
        models.TextField.register_lookup(lookup, name)
        return lookup

    return register


@_lookup("ojs_same")
class _Same(Exact):
    """The very text. Where a column of MariaDB has one of its usual collations, it finds candidates by the index, and
    compares their bytes."""

    def as_mysql(self, compiler: Any, connection: Any) -> tuple[str, Sequence[Any]]:
        sql, params = self.as_sql(compiler, connection)
        return f"({sql} AND BINARY {sql})", (*params, *params)


@_lookup("ojs_begins")
class _Begins(StartsWith):
    """What begins with the very text. SQLite's LIKE does not tell `a` from `A`."""

    def as_sqlite(self, compiler: Any, connection: Any) -> tuple[str, Sequence[Any]]:
        sql, params = self.process_lhs(compiler, connection)
        return f"substr({sql}, 1, %s) = %s", (*params, len(self.rhs), self.rhs)


@_lookup("ojs_has")
class _Has(Contains):
    """What has the very text in it."""

    def as_sqlite(self, compiler: Any, connection: Any) -> tuple[str, Sequence[Any]]:
        sql, params = self.process_lhs(compiler, connection)
        return f"instr({sql}, %s) > 0", (*params, self.rhs)


@_lookup("ojs_searched")
class _Searched(IContains):
    """What has the text in it as a person searches for one: the case of letters does not count, and all else does.

    PostgreSQL's ILIKE can use an index of trigrams, which Django's `UPPER` cannot.
    """

    def as_postgresql(self, compiler: Any, connection: Any) -> tuple[str, Sequence[Any]]:
        return self._like("{} ILIKE %s", compiler, connection)

    def as_mysql(self, compiler: Any, connection: Any) -> tuple[str, Sequence[Any]]:
        return self._like("LOWER({}) LIKE BINARY LOWER(%s)", compiler, connection)

    def as_sqlite(self, compiler: Any, connection: Any) -> tuple[str, Sequence[Any]]:
        if str(self.rhs).isascii():
            return self.as_sql(compiler, connection)
        sql, params = self.process_lhs(compiler, connection)  # LIKE knows the case of ASCII letters only
        return f"{sql} REGEXP %s", (*params, f"(?i){re.escape(str(self.rhs))}")

    def _like(self, form: str, compiler: Any, connection: Any) -> tuple[str, Sequence[Any]]:
        sql, params = compiler.compile(self.lhs)
        _, pattern = self.process_rhs(compiler, connection)
        return form.format(sql), (*params, *pattern)


def same_name(field: str, text: str) -> Q:
    """Rows in which `field` is this very text, on every database."""
    return Q(**{f"{field}__ojs_same": text})


def has_exactly(field: str, text: str) -> Q:
    """Rows in which this very text is in `field`, on every database."""
    return Q(**{f"{field}__ojs_has": text})


def searched_for(field: str, text: str) -> Q:
    """Rows in whose `field` a search finds `text`: the case of letters does not count."""
    return Q(**{f"{field}__ojs_searched": text})


def any_of(field: str, entries: Sequence[str]) -> Q:
    """Rows in which `field` is one of these names or falls under one of these patterns; of none: no row.

    `mail.send` fits itself only, `mail.*` all that begins with `mail.`. Every limit and claim makes its condition here,
    with plain comparisons: an entry that no name of a type can be fits nothing.
    """
    exact, prefixes = split([entry for entry in entries if entry.isascii() and entry == entry.strip().lower()])
    return reduce(or_, (Q(**{f"{field}__startswith": begin}) for begin in prefixes), Q(**{f"{field}__in": exact}))


def named(field: str, entry: str) -> Q:
    """Rows in which `field` is this name or falls under this pattern; '' means all rows. Every filter makes its
    condition here or with `same_name`."""
    begin = prefix(entry)
    if begin is not None:
        return Q(**{f"{field}__ojs_begins": begin})
    return same_name(field, entry) if entry else Q()


#: One and several, by the name of the model. Not in the models, where each new word would ask for a migration.
_MODELS: dict[str, tuple[Any, Any]] = {
    "APIKey": (_("API key"), _("API keys")),
    "Alert": (_("alert"), _("alerts")),
    "Approval": (_("approval"), _("approvals")),
    "AuditEntry": (_("audit entry"), _("audit log")),
    "BulkAction": (_("bulk action"), _("bulk actions")),
    "CronSchedule": (_("schedule"), _("schedules")),
    "Event": (_("event"), _("events")),
    "Job": (_("job"), _("jobs")),
    "JobSchema": (_("schema of a job type"), _("schemas of job types")),
    "Maintenance": (_("maintenance mode"), _("maintenance mode")),
    "OutboxEntry": (_("outbox entry"), _("outbox entries")),
    "RateLimit": (_("rate limit"), _("rate limits")),
    "ReplayRule": (_("replay rule"), _("replay rules")),
    "Queue": (_("queue"), _("queues")),
    "WebhookDelivery": (_("webhook delivery"), _("webhook deliveries")),
    "WebhookSubscription": (_("webhook subscription"), _("webhook subscriptions")),
    "Worker": (_("worker"), _("workers")),
    "Workflow": (_("workflow"), _("workflows")),
}
#: Names of columns that pages show as they are.
_COLUMNS: dict[str, Any] = {
    "active": _("active"), "active jobs": _("active jobs"), "actor": _("actor"), "aside": _("aside"),
    "mend": _("mend"),
    "attempt": _("attempt"),
    "attempts": _("attempts"), "component": _("component"), "concurrency": _("concurrency"),
    "cpu percent": _("CPU, percent"), "created by": _("created by"), "description": _("description"),
    "directive": _("directive"), "disabled reason": _("disabled because"), "door": _("door"),
    "enabled": _("enabled"), "event id": _("event id"), "expires at": _("expires"), "hostname": _("host name"),
    "job type": _("job type"), "jobs completed": _("jobs completed"), "kind": _("kind"), "losses": _("losses"),
    "max attempts": _("attempts at most"), "memory mb": _("memory, MB"), "name": _("name"),
    "outcome": _("outcome"), "overlap policy": _("overlap policy"), "own id": _("own id"), "pid": _("process id"),
    "priority": _("priority"), "problem": _("broke off because"), "queue": _("queue"), "request id": _("request id"),
    "response status": _("answer"), "run count": _("runs so far"), "scopes": _("scopes"),
    "signature format": _("form of the signature"), "source": _("source"), "source ip": _("source address"),
    "state": _("state"), "status": _("status"), "subject": _("subject"), "succeeded": _("succeeded"),
    "target id": _("id of the job"),
    "timeout seconds": _("timeout, seconds"), "timezone": _("time zone"), "trace id": _("trace id"),
    "type": _("type"), "uncounted": _("attempts that do not count"), "unique key": _("unique key"), "url": _("URL"),
    "version": _("version"), "worker id": _("worker id"),
    "workflow id": _("workflow id"), "paused": _("paused"),
}  # fmt: skip


def translate_names(found: Iterable[type[models.Model]]) -> None:
    """Give models and columns their names in the viewer's language, once when the app is ready. English ones stay."""
    for model in found:
        if model.__name__ in _MODELS:
            model._meta.verbose_name, model._meta.verbose_name_plural = _MODELS[model.__name__]
        for field in model._meta.local_fields:
            if (word := _COLUMNS.get(str(field.verbose_name))) is not None:
                field.verbose_name = word
