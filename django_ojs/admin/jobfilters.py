"""The filters beside the list of jobs, and the list itself. What they mean is `jobsearch`'s business."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_ojs.admin import display, jobsearch
from django_ojs.admin.base import MAX_PAGE, EndlessChangeList, TextFilter, unless_large
from django_ojs.admin.jobsearch import DEAD_LETTER, Look, Search
from django_ojs.admin.operate import MAX_ROWS
from django_ojs.models import Job, Queue
from django_ojs.models.queue import TEMPLATE as QUEUE_TEMPLATE
from django_ojs.states import State

#: Columns that the list does not load.
LARGE = ("args", "meta", "extra", "result", "errors", "retry")

#: Queues that are links of their own, and names that a field suggests.
MOST_LINKS, SUGGESTED = 30, 1000


class StateFilter(admin.SimpleListFilter):
    title, parameter_name = _("state"), "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [*((state.value, state.value) for state in State), (DEAD_LETTER, _("dead letter queue"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        return queryset


class _TextFilter(TextFilter):
    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset


class QueueFilter(admin.SimpleListFilter):
    """Links while there are few queues, else a field to type into, with the first names to choose from."""

    title, parameter_name, placeholder = _("queue"), "queue", _("its name")

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = Queue.objects.exclude(pk=QUEUE_TEMPLATE).order_by("name").values_list("name", flat=True)
        self.names = list(names[: MOST_LINKS + 1])
        if len(self.names) > MOST_LINKS:
            self.names = list(names[:SUGGESTED])
            self.template = TextFilter.template
        return [(name, name) for name in self.names]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        return queryset

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        if len(self.names) <= MOST_LINKS:
            return super().choices(changelist)
        return TextFilter.entry(self, changelist, self.names)


class TypeFilter(_TextFilter):
    title, parameter_name, placeholder = _("type"), "type", "mail.send, mail.*"


class TagFilter(_TextFilter):
    title, parameter_name, placeholder = _("tag"), "tag", "nightly"


class WorkerFilter(_TextFilter):
    title, parameter_name, placeholder = _("worker"), "worker", _("its id")


class WorkflowFilter(_TextFilter):
    title, parameter_name, placeholder = _("workflow"), "workflow", _("its id")


class ErrorFilter(_TextFilter):
    title, parameter_name, placeholder = _("error class or message"), "error", "ConnectionError"


class TimeFilter(admin.ListFilter):
    """From when until when the jobs are: by their creation, ended ones by their end."""

    title, template = _("time"), "django_ojs/admin/time_filter.html"
    names = ("since", "until")

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        for name in self.names:
            if name in params:
                self.used_parameters[name] = params.pop(name)[-1]

    def has_output(self) -> bool:
        return True

    def expected_parameters(self) -> list[str | None]:
        return list(self.names)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        yield {
            "since": self.used_parameters.get("since", ""),
            "until": self.used_parameters.get("until", ""),
            "kept": [item for item in changelist.params.items() if item[0] not in self.names],
            "cleared": changelist.get_query_string(remove=list(self.names)),
        }


FILTERS = (
    StateFilter, QueueFilter, TypeFilter, TagFilter, TimeFilter, ErrorFilter, WorkerFilter, WorkflowFilter,
)  # fmt: skip


class JobChangeList(EndlessChangeList):
    """Loads no arguments and no results, and no errors of a completed job: it has none to show (core 5.3)."""

    look: Look | None = None

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Job]:
        jobs: QuerySet[Job] = super().get_queryset(request, exclude_parameters)
        selected = request.method == "POST" and request.POST.get("select_across") != "1"
        if not selected:  # else the ids are named, and a new search might not find them any more
            search = Search.of(request.GET)
            for fault in search.faults if request.method == "GET" else ():
                self.model_admin.message_user(request, fault, messages.WARNING)
            page = max(1, min(self.page_num, MAX_PAGE)) * self.list_per_page
            jobs, self.look = jobsearch.jobs(search, jobs, MAX_ROWS if request.method == "POST" else page + 1)
        return jobs.defer(*LARGE).annotate(history=unless_large("errors", ~Q(state=State.COMPLETED), limit=262_144))

    @property
    def looked(self) -> dict[str, Any] | None:
        """What the page says about how far the search looked; None where nothing had to be looked for."""
        if self.look is None:
            return None
        further = self.get_query_string({"until": self.look.further}, remove=["p"]) if self.look.further else ""
        return {"look": self.look, "back_to": display.when(self.look.back_to), "further": further}
