"""The list of jobs: its filters, and the rows that they find. The filters are those that
`jobs.selection` declares for the page."""

from __future__ import annotations

import datetime as dt
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.views.main import PAGE_VAR, SEARCH_VAR, ChangeList
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.http import urlencode
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_ojs import clock
from django_ojs.admin import display
from django_ojs.admin.base import MAX_PAGE, EndlessChangeList, TextFilter, text_filter, unless_large
from django_ojs.admin.operate import MAX_ROWS
from django_ojs.jobs.filterfields import LONGEST, PAGE, InstantFilterField
from django_ojs.jobs.search import Look, typed_instant
from django_ojs.jobs.selection import JobFilter, JobListFilter, names_in, shown_in
from django_ojs.models import Job, Queue
from django_ojs.models.queue import TEMPLATE as QUEUE_TEMPLATE
from django_ojs.states import State
from django_ojs.statistics import counters, jobtypes
from django_ojs.statistics.summary import Shared

#: The state that stands for the dead letter queue.
DEAD_LETTER = "dead_letter"
#: Columns that the list does not load.
LARGE = ("args", "meta", "extra", "result", "errors", "retry")

#: Queues that are links of their own, and names that a field suggests.
MOST_LINKS, SUGGESTED = 30, 1000
#: Rows that a page asks for anew, at most.
MAX_LIVE = 200


class _OfJobs(admin.ListFilter):
    """A filter whose parameters `JobChangeList` reads itself."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset


class StateFilter(_OfJobs, admin.SimpleListFilter):
    """The filter by state. It has no entry beside the list: the tabs above it (`JobChangeList.tabs`) are its links."""

    title, parameter_name = _("state"), "state"

    def has_output(self) -> bool:
        return False

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [*((state.value, state.value) for state in State), (DEAD_LETTER, _("dead letter queue"))]


class QueueFilter(_OfJobs, admin.SimpleListFilter):
    """The filter by queue: links while there are few, else a field to type into, with the first names to choose
    from."""

    title, parameter_name, placeholder = _("queue"), "queue", _("its name")

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = Queue.objects.exclude(pk=QUEUE_TEMPLATE).order_by("name").values_list("name", flat=True)
        self.names = list(names[: MOST_LINKS + 1])
        if len(self.names) > MOST_LINKS:
            self.names = list(names[:SUGGESTED])
            self.template = TextFilter.template
        return [(name, name) for name in self.names]

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        if len(self.names) <= MOST_LINKS:
            return super().choices(changelist)
        return TextFilter.entry(self, changelist, self.names)


class TimeFilter(_OfJobs):
    """The filter by two times, between which a job was created, or ended, for the list of ended jobs."""

    title, template = _("time"), "django_ojs/admin/time_filter.html"
    names = ("since", "until")
    parameter_name = "since"  #: by which themes ask what they know of a filter

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        for name in self.names:
            if name in params:
                self.used_parameters[name] = params.pop(name)[-1]

    def has_output(self) -> bool:
        return True

    def expected_parameters(self) -> list[str | None]:
        return list(self.names)

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        yield {
            "since": self.used_parameters.get("since", ""),
            "until": self.used_parameters.get("until", ""),
            "kept": [item for item in changelist.params.items() if item[0] not in self.names],
            "cleared": changelist.get_query_string(remove=list(self.names)),
        }


def job_filter(given: Mapping[str, str]) -> tuple[JobListFilter, list[str]]:
    """The filter that the parameters of a request make, and what could not be understood, for the operator."""
    found: dict[str, Any] = {}
    faults: list[str] = []
    for name, member in names_in(PAGE).items():
        text = clean(given.get(name, ""))
        if not text:
            continue
        try:
            found |= _READERS.get(member, _read)(member, text)
        except ValueError as error:
            faults.append(str(error))
    return JobListFilter(found), faults


def _read(member: str, text: str) -> dict[str, Any]:
    """A member of the filter, from its parameter. Raises ValueError with a sentence for the operator."""
    if issubclass(JobFilter.base_filters[member].field_class, InstantFilterField):
        try:
            return {member: typed_instant(text)}
        except ValueError:
            problem = gettext("“%(text)s” is no time: write 2h, 2026-01-31 12:00 or 2026-01-31T12:00:00Z.")
            raise ValueError(problem % {"text": text[:40]}) from None
    if fault := JobListFilter({member: text}).fault():
        raise ValueError(gettext("%(field)s: %(problem)s.") % {"field": member, "problem": fault[1]})
    return {member: text}


def _read_state(member: str, text: str) -> dict[str, Any]:
    if text == DEAD_LETTER:
        return {"states": [State.DISCARDED], "dead_letters": True}
    if text not in set(State):
        raise ValueError(gettext("“%(text)s” is no state of a job.") % {"text": text[:40]})
    return {"states": [text]}


def _read_workflow(member: str, text: str) -> dict[str, Any]:
    """By its id, or by that which its client gave it."""
    if JobListFilter({member: text}).fault():
        raise ValueError(gettext("“%(text)s” is not the id of a workflow.") % {"text": text[:40]})
    return {member: text}


def _read_search(member: str, text: str) -> dict[str, Any]:
    """The id of a job, or a text in it."""
    job = _as_uuid(text)
    return {"job": job} if job else {"text": text}


#: What the page reads in a way of its own.
_READERS = {"states": _read_state, "workflow": _read_workflow, "text": _read_search}


def spread(text: str) -> tuple[dict[str, str], str]:
    """The filters that a search names, as in `type:mail.* error:"timed out" ann`, and the rest of its text."""
    names = _typed()
    named = re.compile(rf"""(?<!\S)(?P<name>{"|".join(names)}):(?:"(?P<quoted>[^"]*)"|(?P<plain>\S+))""")
    found = {names[match["name"]]: match["quoted"] or match["plain"] or "" for match in named.finditer(text)}
    return found, " ".join(named.sub(" ", text).split()) if found else text


def with_shown_names(given: Mapping[str, str]) -> dict[str, str]:
    """The parameters by the names that the page shows: links that others have kept may have older ones."""
    names = {name: shown for name, shown in _typed().items() if name != shown and given.get(name)}
    return {shown: given[name] for name, shown in names.items()} | dict.fromkeys(names, "")


def _typed() -> dict[str, str]:
    """Every name by which a filter can be typed into the search, and the one that the page shows."""
    members = names_in(PAGE)
    shown = {members[name]: name for name in shown_in(PAGE)}
    return {name: shown[member] for name, member in members.items() if name != SEARCH_VAR}


def strange_names(text: str) -> list[str]:
    """What looks like the name of a filter in a search, and is none."""
    return sorted({name for name in _LIKE_A_NAME.findall(text) if name not in _typed()})


def clean(text: str) -> str:
    """A text as databases can look for it."""
    return text.replace("\0", "").strip()[:LONGEST]


def _as_uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


#: The filters beside the list that are more than a field to type into; None: no filter of its own.
_OWN: dict[str, Any] = {"states": StateFilter, "queue": QueueFilter, "since": TimeFilter, "until": None, "text": None}


def list_filters() -> list[Any]:
    """The filters beside the list, in the order of their declarations."""
    names = names_in(PAGE)
    found = (
        _OWN[names[name]] if names[name] in _OWN else text_filter(title(name), name, declared.example, field="")
        for name, declared in shown_in(PAGE).items()
    )
    return [one for one in found if one is not None]


def title(name: str) -> Any:
    """What the page calls a filter."""
    return shown_in(PAGE)[name].title or name.replace("_", " ")


_LIKE_A_NAME = re.compile(r"(?<!\S)([a-z_]+):(?!//)\S")


def address(given: Mapping[str, str], **changed: str) -> str:
    """The first page of the list with these parameters, some of them changed; '' takes one away. (`get_query_string`
    of Django would take `queue` away with `q`.)"""
    wanted = {name: value for name, value in {**given, **changed}.items() if value and name != PAGE_VAR}
    return f"?{urlencode(wanted)}"


def _hints(text: str) -> list[str]:
    """What to say of a search that may be meant otherwise."""
    said = gettext("“%(name)s:” is no filter, so the list was searched for it as a text. Filters are %(names)s.")
    names = ", ".join(name for name in shown_in(PAGE) if name != SEARCH_VAR)
    return [said % {"name": name[:40], "names": names} for name in strange_names(text)]


def _listed(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """These jobs with what the list shows of them."""
    return jobs.defer(*LARGE).annotate(history=unless_large("errors", ~Q(state=State.COMPLETED), limit=262_144))


def _read_types(using: str) -> list[str]:
    """The job types that did anything in the last hour, so many at most; from the figures of the metrics."""
    return sorted(jobtypes.since(clock.now(using) - dt.timedelta(hours=1), using=using))[:SUGGESTED]


#: Those types, for all viewers.
recent_types = Shared(_read_types, 60.0)


#: The parameter by which the script of the list names the rows on the page.
ROWS = "rows"


def pack(pks: Iterable[UUID]) -> str:
    """The ids of the rows on a page, short enough for an address."""
    return urlsafe_b64encode(b"".join(pk.bytes for pk in pks)).decode()


def unpack(text: str) -> list[UUID]:
    """The ids that `pack` wrote; none where it wrote no such text. No more than a page has."""
    try:
        data = urlsafe_b64decode(text.encode())
    except ValueError:
        return []
    size = 16
    return [UUID(bytes=data[at : at + size]) for at in range(0, len(data) - size + 1, size)][:MAX_LIVE]


class JobChangeList(EndlessChangeList):
    """The list of jobs. It loads no arguments and no results, and no errors of a completed job, which shows none
    (core 5.3)."""

    look: Look | None = None
    #: Jobs that are on this page by now, and not on that of a viewer who has had it for a while.
    newer = 0

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Job]:
        jobs: QuerySet[Job] = super().get_queryset(request, exclude_parameters)
        selected = request.method == "POST" and request.POST.get("select_across") != "1"
        if not selected:  # else the ids are named, and a new search might not find them any more
            wanted, faults = job_filter(request.GET)
            asked = request.method == "GET" and not hasattr(request, "live_rows")
            for fault in [*faults, *_hints(self.query)] if asked else ():
                self.model_admin.message_user(request, fault, messages.WARNING)
            page = max(1, min(self.page_num, MAX_PAGE)) * self.list_per_page
            if faults:
                jobs = jobs.none()
            else:
                jobs, self.look = wanted.listed(jobs, MAX_ROWS if request.method == "POST" else page + 1)
        return _listed(jobs)

    def get_results(self, request: HttpRequest) -> None:
        """The rows of the page; for a page that is open already, the rows that it has, in their order."""
        super().get_results(request)
        rows: list[UUID] | None = getattr(request, "live_rows", None)
        if rows is not None:
            self.newer = len({job.pk for job in self.result_list} - set(rows))
            found = {job.pk: job for job in _listed(self.root_queryset.filter(pk__in=rows).order_by())}
            self.result_list = [found[pk] for pk in rows if pk in found]

    @cached_property
    def tabs(self) -> list[dict[str, Any]]:
        """A link for each state that some job is in, with the number of its jobs where that is known without a search:
        there are counters of all jobs and of those of a queue. Beside other filters every state has a link."""
        given = {name for name in shown_in(PAGE) if self.params.get(name)} - {"state"}
        queue, chosen = clean(self.params.get("queue", "")), clean(self.params.get("state", ""))
        counts: dict[str, int] = {}
        if given <= {"queue"} and "*" not in queue:
            found = list(counters.count_all([queue] if queue else None, using=self.queryset.db).values())
            counts = {"": sum(one.total for one in found), **counters.totals(found)}
            counts[DEAD_LETTER] = sum(one.dead for one in found)
        words = {
            "": gettext("All"),
            **{state.value: state.value for state in State},
            DEAD_LETTER: gettext("dead letters"),
        }
        return [
            {
                "text": word, "here": state == chosen, "address": address(self.params, state=state),
                "count": f"{counts[state]:,}" if counts else "",
            }
            for state, word in words.items()
            if not counts or counts[state] or state in ("", chosen)
        ]  # fmt: skip

    @property
    def suggestions(self) -> list[str]:
        """Filters by which a search may be completed: each state, the first queues, and the types that ran lately."""
        queues = next((one.names for one in self.filter_specs if isinstance(one, QueueFilter)), [])
        return [
            *(f"state:{state}" for state in (*(state.value for state in State), DEAD_LETTER)),
            *(f"type:{name}" for name in recent_types.get(self.queryset.db)),
            *(f"queue:{name}" for name in queues),
            *(f"since:{time}" for time in ("15m", "1h", "24h", "7d")),
            *(f"{name}:" for name in shown_in(PAGE) if name not in (SEARCH_VAR, "state", "since")),
        ]

    @property
    def chips(self) -> list[dict[str, Any]]:
        """What the list is filtered by, each with the address of the list without it."""
        return [
            {
                "name": title(name), "value": display.ellipsized(self.params[name], 60),
                "without": address(self.params, **{name: ""}),
            }
            for name in sorted(shown_in(PAGE), key=lambda name: name != SEARCH_VAR)
            if self.params.get(name)
        ]  # fmt: skip

    @property
    def looked(self) -> dict[str, Any] | None:
        """What the page says about how far the search looked; None where nothing had to be looked for."""
        if self.look is None:
            return None
        further = self.get_query_string({"until": self.look.further}, remove=["p"]) if self.look.further else ""
        return {"look": self.look, "back_to": display.when(self.look.back_to), "further": further}
