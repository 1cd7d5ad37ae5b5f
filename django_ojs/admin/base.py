"""What our admin pages share: they show and do not edit, and no list ever counts its table."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.core.exceptions import ValidationError
from django.db.models import Case, Model, Q, QuerySet, Value, When
from django.db.models.functions import Length
from django.db.models.lookups import LessThan
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_ojs.admin.display import shorten
from django_ojs.models import Job
from django_ojs.models.fields import JSONTextField, named

#: An offset reads all rows before it: who needs to go further has filters.
MAX_PAGE = 10_000


#: How Django's own filters compare.
_COMPARISONS = frozenset({"", "exact", "isnull", "in", "gte", "lt"})


class EndlessChangeList(ChangeList):
    """A list that asks for one row more than it shows, to know whether there is a next page, and never for a count."""

    def get_results(self, request: HttpRequest) -> None:
        first = (self.page_num - 1) * self.list_per_page
        if not 1 <= self.page_num <= MAX_PAGE:
            raise IncorrectLookupParameters
        rows = list(self.queryset[first : first + self.list_per_page + 1])
        self.result_list = rows[: self.list_per_page]
        self.result_count = first + len(rows)  # so many there are at least
        self.full_result_count = self.result_count  # equal: the search form then shows no number
        self.show_full_result_count = False
        self.show_admin_actions = True
        self.can_show_all = False
        self.multi_page = self.result_count > self.list_per_page
        self.paginator = self.model_admin.get_paginator(request, self.queryset, self.list_per_page)
        self.paginator.count = self.result_count

    @property
    def previous_page(self) -> str:
        return self.get_query_string({"p": self.page_num - 1}) if self.page_num > 1 else ""

    @property
    def next_page(self) -> str:
        more = self.result_count > self.page_num * self.list_per_page
        return self.get_query_string({"p": self.page_num + 1}) if more else ""

    @property
    def typed(self) -> list[tuple[str, list[tuple[str, Any]]]]:
        """Filters to type into: their names, and the parameters that a new value keeps, but for the page."""
        ours: list[Any] = [one for one in self.filter_specs if str(one.template).startswith("django_ojs/")]
        return [(one.parameter_name, next(iter(one.choices(self)))["kept"]) for one in ours]

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """The list's own order, whatever the address says: any other would have to sort the table."""
        self.params.pop(ORDER_VAR, None)
        return super().get_ordering(request, queryset)


class ViewAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Rows that may be looked at. Who may act on them needs the model's change or delete permission."""

    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    sortable_by: ClassVar[tuple[str, ...]] = ()
    empty_value_display = "–"

    class Media:
        css = {"all": ["django_ojs/admin.css"]}

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return EndlessChangeList

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """What the list's filters ask for. Django would take any column in the address: whoever may see the list could
        spell out what is hidden or secret with `__startswith`, and have the table scanned."""
        filters = [one[0] if isinstance(one, tuple) else one for one in self.list_filter]
        column, _, comparison = lookup.partition("__")
        if column in [one for one in filters if isinstance(one, str)]:
            return comparison in _COMPARISONS
        if lookup in {getattr(one, "parameter_name", "") for one in filters}:
            return True
        fields = self.opts.get_fields()
        columns = {"pk", *(field.name for field in fields), *(getattr(field, "attname", "") for field in fields)}
        return not comparison and column not in columns

    def job_url(self, job_id: object) -> str:
        """The page of a job, '' where this site has none."""
        if not self.admin_site.is_registered(Job):
            return ""
        return reverse("admin:django_ojs_job_change", args=[job_id], current_app=self.admin_site.name)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """The row in a path, None where there is none. No row has NUL in its key, and not every database hears it."""
        return None if "\0" in object_id else super().get_object(request, object_id, from_field)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list; what is selected and can be no row's key is not selected."""
        if chosen := request.POST.getlist(ACTION_CHECKBOX_NAME):
            given = request.POST.copy()
            given.setlist(ACTION_CHECKBOX_NAME, [key for key in chosen if self._may_be_key(key)])
            request.POST = given  # type: ignore[assignment]
        response: HttpResponse = super().changelist_view(request, extra_context)
        return response

    def _may_be_key(self, text: str) -> bool:
        try:
            self.opts.pk.to_python(text)
        except ValidationError:
            return False
        return "\0" not in text

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class IdSearchAdmin(ViewAdmin):
    """A `ViewAdmin` whose search is for one job's id: nothing else could be found without reading all rows."""

    search_fields = ("id",)
    search_help_text = _("The id of a job.")
    id_column = "pk"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        if not search_term.strip():
            return queryset, False
        try:
            job_id = uuid.UUID(search_term.strip())
        except ValueError:
            text = gettext("“%(text)s” is not the id of a job. Use the filters to look for anything else.")
            self.message_user(request, text % {"text": shorten(search_term, 40)}, messages.WARNING)
            return queryset.none(), False
        return queryset.filter(**{self.id_column: job_id}), False


class TextFilter(admin.SimpleListFilter):
    """A filter to type into. `mail.*` finds what begins with `mail.`; anything else is meant exactly."""

    template = "django_ojs/admin/text_filter.html"
    field = ""
    placeholder: Any = ""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return []

    def has_output(self) -> bool:
        return True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(named(self.field, (self.value() or "").replace("\0", "").strip()))

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        return self.entry(self, changelist)

    @staticmethod
    def entry(one: admin.SimpleListFilter, changelist: ChangeList, names: Sequence[str] = ()) -> Iterator[Any]:
        """One entry: what the form shows and suggests, and the other parameters it has to keep."""
        yield {
            "value": one.value() or "",
            "names": names,
            "kept": [item for item in changelist.params.items() if item[0] != one.parameter_name],
            "cleared": changelist.get_query_string(remove=[str(one.parameter_name)]),
        }


def unless_large(column: str, *conditions: Q, limit: int = 65_536) -> Case:
    """A JSON column for a list: None in rows where it is longer than `limit`, or that fail a condition."""
    wanted = Q(LessThan(Length(column), limit), *conditions)
    return Case(When(wanted, then=column), default=Value(""), output_field=JSONTextField())
