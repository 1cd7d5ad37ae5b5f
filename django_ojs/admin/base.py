"""The base of all our admin pages: they show rows without editing them, and no list counts its table.

Also here: the filters that a user types into, and the links at the top of each page (`links`).
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.core.exceptions import ValidationError
from django.core.signals import request_finished
from django.db.models import Case, Model, Q, QuerySet, Value, When
from django.db.models.functions import Length
from django.db.models.lookups import LessThan
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.translation import gettext_lazy as _

from django_ojs.admin.display import ellipsized
from django_ojs.jobs import approvals
from django_ojs.models.fields import JSONTextField, named
from django_ojs.rules.names import is_storable
from django_ojs.statistics.summary import Shared

#: The last page of a list. An offset reads all rows before it: filters lead further.
MAX_PAGE = 10_000
#: How Django's own filters compare.
_COMPARISONS = frozenset({"", "exact", "isnull", "in", "gte", "lt"})


#: The request for which this thread makes a page; None between two requests.
_request: ContextVar[HttpRequest | None] = ContextVar("ojs_admin_request", default=None)


def _forget_request(**kwargs: Any) -> None:
    _request.set(None)


request_finished.connect(_forget_request, dispatch_uid="django_ojs.admin.base")


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
    """Rows that a user with the model's permissions may look at, and may change in the ways that `editing` names.

    Django shows every field as text to a user without the right to change, so no list of read-only fields is needed.
    """

    #: Which of Django's own pages there are: "add", "change", "delete". Each takes the model's permission of that name.
    editing: ClassVar[Sequence[str]] = ()
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    sortable_by: ClassVar[tuple[str, ...]] = ()
    empty_value_display = "–"

    class Media:
        css = {"all": ["django_ojs/admin.css"]}
        js = ["django_ojs/clicks.js"]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return EndlessChangeList

    def get_search_fields(self, request: HttpRequest) -> list[str]:
        """Texts are searched as everywhere: Django's own search counts the case of names on MariaDB."""
        return [f"{name}__ojs_searched" for name in super().get_search_fields(request)]

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Only what the list's filters ask for. Django would take any column in the address: a viewer of the list could
        find out hidden or secret values with `__startswith`, and have the table scanned. Nor a text that no
        database holds: PostgreSQL refuses to look for it."""
        filters = [one[0] if isinstance(one, tuple) else one for one in self.list_filter]
        column, _, comparison = lookup.partition("__")
        if column in [one for one in filters if isinstance(one, str)]:
            return comparison in _COMPARISONS and is_storable(value)
        if lookup in {getattr(one, "parameter_name", "") for one in filters}:
            return True
        fields = self.opts.get_fields()
        columns = {"pk", *(field.name for field in fields), *(getattr(field, "attname", "") for field in fields)}
        return not comparison and column not in columns

    def route(self, route: str, view: Callable[..., HttpResponse], name: str) -> URLPattern:
        """A page of this admin, for `get_urls`: only for users of the admin site, and named as Django names its own."""
        found: URLPattern = path(route, self.admin_site.admin_view(view), name=f"{self.opts.app_label}_{name}")
        return found

    def url(self, name: str, *args: Any) -> str:
        """The address of a page of ours in this admin site, such as `url("job_change", pk)`."""
        return reverse(f"admin:{self.opts.app_label}_{name}", args=args, current_app=self.admin_site.name)

    def own_url(self, page: str, *args: Any) -> str:
        """The address of a page of this model: its "changelist", a row's "change", …"""
        return self.url(f"{self.opts.model_name}_{page}", *args)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """The rows, for a page of this request: its links are for who asks (`may_see`)."""
        _request.set(request)
        found: QuerySet[Any] = super().get_queryset(request)
        return found

    def may_see(self, model: type[Model], request: HttpRequest | None = None) -> bool:
        """Whether this admin site has pages for a model, and the user who asks for this page may see them."""
        request = request or _request.get()
        if request is None or not self.admin_site.is_registered(model):
            return False
        return self.admin_site.get_model_admin(model).has_view_permission(request)

    def url_of(self, model: type[Model], pk: Any, request: HttpRequest | None = None) -> str:
        """The address of a row's page; '' where this admin site has no pages for its model, or the user may not see
        them. Columns know no request; it is that of the rows then (`get_queryset`)."""
        return self.url(f"{model._meta.model_name}_change", quote(pk)) if self.may_see(model, request) else ""

    def page(self, request: HttpRequest, template: str, title: str, **context: Any) -> TemplateResponse:
        """A page of ours that is no list and no form of a row."""
        shared = {**self.admin_site.each_context(request), "title": title, "opts": self.opts, "media": self.media}
        return TemplateResponse(request, f"django_ojs/admin/{template}.html", {**shared, **context})

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """The row in a path, None where there is none. No row has NUL in its key, and not every database takes it; nor
        does MariaDB tell `mail` from `Mail` in the name of a queue."""
        found: Any = None if "\0" in object_id else super().get_object(request, object_id, from_field or None)
        return None if isinstance(getattr(found, "pk", None), str) and found.pk != object_id else found

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

    def has_right(self, request: HttpRequest, right: str) -> bool:
        """Whether the user has the model's permission "add", "change" or "delete", which verbs take too."""
        return request.user.has_perm(f"{self.opts.app_label}.{right}_{self.opts.model_name}")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return "add" in self.editing and self.has_right(request, "add")

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return "change" in self.editing and self.has_right(request, "change")

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return "delete" in self.editing and self.has_right(request, "delete")


class IdSearchAdmin(ViewAdmin):
    """A `ViewAdmin` whose search finds a job or a workflow by its id: anything else would read all rows."""

    search_fields = ("id",)
    search_help_text = _("The id of a job.")
    id_column = "pk"
    #: What is said of a search for anything else.
    no_id: Any = _("“%(text)s” is not the id of a job. Use the filters to look for anything else.")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        if not search_term.strip():
            return queryset, False
        try:
            job_id = uuid.UUID(search_term.strip())
        except ValueError:
            self.message_user(request, self.no_id % {"text": ellipsized(search_term, 40)}, messages.WARNING)
            return queryset.none(), False
        return queryset.filter(**{self.id_column: job_id}), False


class TextFilter(admin.SimpleListFilter):
    """A filter that the user types into: `mail.*` finds what begins with `mail.`, any other text what equals it."""

    template = "django_ojs/admin/text_filter.html"
    field = ""
    placeholder: Any = ""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return []

    def has_output(self) -> bool:
        return True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if not self.field:
            return queryset
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


def text_filter(title: Any, parameter_name: str, placeholder: Any = "", *, field: str | None = None) -> Any:
    """A `TextFilter` as a class. Its column is named as the parameter, unless `field` says otherwise; '': the change
    list filters by the parameter itself."""
    field = parameter_name if field is None else field
    names = {"title": title, "parameter_name": parameter_name, "placeholder": placeholder, "field": field}
    return type(f"{parameter_name.title()}Filter", (TextFilter,), names)


JobTypeFilter = text_filter(_("job type"), "job_type", _("mail.send or mail.*"))


def unless_large(column: str, *conditions: Q, limit: int = 65_536) -> Case:
    """A JSON column for a list: None in rows where it is longer than `limit`, or that fail a condition."""
    wanted = Q(LessThan(Length(column), limit), *conditions)
    return Case(When(wanted, then=column), default=Value(""), output_field=JSONTextField())


#: All parts of live pages share one look every two seconds at whether anything is asked.
_asked = Shared(approvals.any_open, 2.0)


def _waiting(user: Any, live: bool) -> int:
    return approvals.waiting_for(user) if not live or _asked.get() else 0


@dataclasses.dataclass(frozen=True, slots=True)
class PageLink:
    """A link at the top of each page: to the list of `model`, or to its page `view`. `here` is what that page calls
    itself. `count` is how many things wait there for a user, on a `live` page or another; their list is the one with
    the parameters `waiting`."""

    model: str
    text: Any
    here: str
    view: str = ""
    count: Callable[[Any, bool], int] | None = None
    waiting: str = ""


#: The pages that operators open daily.
DAILY = (
    PageLink("Job", _("Overview"), "overview", "overview"),
    PageLink("Job", _("Jobs"), "job"),
    PageLink("Job", _("Dead letters"), "dead_letters", "dead_letters"),
    PageLink("Queue", _("Queues"), "queue"),
    PageLink("Worker", _("Workers"), "worker"),
    PageLink("Workflow", _("Workflows"), "workflow"),
    PageLink("CronSchedule", _("Schedules"), "cronschedule"),
    PageLink("Approval", _("Approvals"), "approval", count=_waiting, waiting="?asks=me&state=open"),
)
#: The rest, by what it is about.
MORE = (
    (_("History"), (
        PageLink("Event", _("Events"), "event"),
        PageLink("Event", _("Live events"), "event_tail", "event_tail"),
        PageLink("BulkAction", _("Bulk actions"), "bulkaction"),
        PageLink("Alert", _("Alerts"), "alert"),
        PageLink("AuditEntry", _("Audit log"), "auditentry"),
    )),
    (_("Integration"), (
        PageLink("RateLimit", _("Rate limits"), "ratelimit"),
        PageLink("ReplayRule", _("Replay rules"), "replayrule"),
        PageLink("JobSchema", _("Schemas"), "jobschema"),
        PageLink("WebhookSubscription", _("Webhooks"), "webhooksubscription"),
        PageLink("WebhookDelivery", _("Deliveries"), "webhookdelivery"),
        PageLink("OutboxEntry", _("Outbox"), "outboxentry"),
        PageLink("APIKey", _("API keys"), "apikey"),
    )),
)  # fmt: skip


def links(
    request: HttpRequest, apps: Iterable[Mapping[str, Any]], here: str, live: bool = False
) -> dict[str, Any]:  # fmt: skip
    """The links of a page that calls itself `here`, to what this admin site has and the user may see.

    Args:
        apps: the context's `available_apps`, which Django has made for this user.
        live: whether it is a part that is asked for again and again.
    """
    lists = {
        model["object_name"]: model["admin_url"]
        for app in apps
        if app["app_label"] == "django_ojs"
        for model in app["models"]
        if model["admin_url"] and (model["perms"]["view"] or model["perms"]["change"])
    }
    site = request.resolver_match.namespace if request.resolver_match else ""

    def link(page: PageLink) -> dict[str, Any] | None:
        address = lists.get(page.model, "")
        if address and page.view:
            try:
                address = reverse(f"admin:django_ojs_{page.view}", current_app=site)
            except NoReverseMatch:  # the site's own class for these rows
                return None
        if not address:
            return None
        count = page.count(request.user, live) if page.count else 0
        shown = f"{approvals.MANY}+" if count > approvals.MANY else str(count or "")
        whole = address + page.waiting if count else address
        part = f"nav-{page.here}" if page.count else ""  # a live page takes it anew
        return {"text": page.text, "address": whole, "here": page.here == here, "count": shown, "part": part}

    more = [(title, [found for page in pages if (found := link(page))]) for title, pages in MORE]
    more = [(title, found) for title, found in more if found]
    return {
        "daily": [found for page in DAILY if (found := link(page))],
        "more": more,
        "inside": next((one["text"] for _title, found in more for one in found if one["here"]), ""),
    }
