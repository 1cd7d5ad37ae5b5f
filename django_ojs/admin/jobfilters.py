"""The list of jobs: its filters, and the rows that they find. The filters are the members of a
`jobs.selection.JobListFilter` under the names of the page's parameters."""

from __future__ import annotations

import datetime as dt
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.views.main import PAGE_VAR, ChangeList
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
from django_ojs.jobs.search import Look, moment
from django_ojs.jobs.selection import LONGEST, JobListFilter
from django_ojs.models import Job, Queue
from django_ojs.models.queue import TEMPLATE as QUEUE_TEMPLATE
from django_ojs.states import State
from django_ojs.statistics import counters, jobtypes
from django_ojs.statistics.summary import Shared

#: The state that stands for the dead letter queue.
DEAD_LETTER = "dead_letter"
#: Parameters that are members of the filter by the same name.
_TEXTS = ("queue", "type", "tag", "worker", "error")
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
    """No entry beside the list: the tabs above it (`JobChangeList.tabs`) are its links."""

    title, parameter_name = _("state"), "state"

    def has_output(self) -> bool:
        return False

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [*((state.value, state.value) for state in State), (DEAD_LETTER, _("dead letter queue"))]


class QueueFilter(_OfJobs, admin.SimpleListFilter):
    """Links while there are few queues, else a field to type into, with the first names to choose from."""

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
    """Two times between which a job was created, or ended, for the list of ended jobs."""

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
    texts = {name: clean(given.get(name, "")) for name in (*_TEXTS, "q", "state", "workflow")}
    found: dict[str, Any] = {name: texts[name] for name in _TEXTS}
    faults: list[str] = []
    for name in ("since", "until"):
        try:
            found[name] = moment(given.get(name, ""))
        except ValueError:
            faults.append(gettext("“%(text)s” is no time: write 2h, 2026-01-31 12:00 or 2026-01-31T12:00:00Z.")
                          % {"text": given[name][:40]})  # fmt: skip
    state, workflow = texts["state"], texts["workflow"]
    if state == DEAD_LETTER:
        found |= {"states": [State.DISCARDED], "dead_letters": True}
    elif state in set(State):
        found["states"] = [state]
    elif state:
        faults.append(gettext("“%(text)s” is no state of a job.") % {"text": state[:40]})
    if workflow and (found.setdefault("workflow", _as_uuid(workflow))) is None:
        faults.append(gettext("“%(text)s” is not the id of a workflow.") % {"text": workflow[:40]})
    job = _as_uuid(texts["q"])
    return JobListFilter({**found, **({"job": job} if job else {"text": texts["q"]})}), faults


def spread(text: str) -> tuple[dict[str, str], str]:
    """The filters that a search names, as in `type:mail.* error:"timed out" ann`, and the rest of its text."""
    found = {match["name"]: match["quoted"] or match["plain"] or "" for match in _NAMED.finditer(text)}
    return found, " ".join(_NAMED.sub(" ", text).split()) if found else text


def strange_names(text: str) -> list[str]:
    """What looks like the name of a filter in a search, and is none."""
    return sorted({name for name in _LIKE_A_NAME.findall(text) if name not in CHIPS})


def clean(text: str) -> str:
    """A text as databases can look for it."""
    return text.replace("\0", "").strip()[:LONGEST]


def _as_uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


FILTERS = (
    StateFilter,
    QueueFilter,
    text_filter(_("type"), "type", "mail.send, mail.*", field=""),
    text_filter(_("tag"), "tag", "nightly", field=""),
    TimeFilter,
    text_filter(_("error class or message"), "error", "ConnectionError", field=""),
    text_filter(_("worker"), "worker", _("its id"), field=""),
    text_filter(_("workflow"), "workflow", _("its id"), field=""),
)


#: The parameters that a chip above the rows can show, with their names, in the order of the filters.
CHIPS: dict[str, Any] = {
    "q": _("text"),
    **{one.parameter_name: one.title for one in FILTERS if one is not TimeFilter},
    "since": _("since"),
    "until": _("until"),
}

_NAMED = re.compile(
    rf"""(?<!\S)(?P<name>{"|".join(name for name in CHIPS if name != "q")}):(?:"(?P<quoted>[^"]*)"|(?P<plain>\S+))"""
)
_LIKE_A_NAME = re.compile(r"(?<!\S)([a-z]+):(?!//)\S")


def address(given: Mapping[str, str], **changed: str) -> str:
    """The first page of the list with these parameters, some of them changed; '' takes one away. (`get_query_string`
    of Django would take `queue` away with `q`.)"""
    wanted = {name: value for name, value in {**given, **changed}.items() if value and name != PAGE_VAR}
    return f"?{urlencode(wanted)}"


def _hints(text: str) -> list[str]:
    """What to say of a search that may be meant otherwise."""
    said = gettext("“%(name)s:” is no filter, so the list was searched for it as a text. Filters are %(names)s.")
    names = ", ".join(name for name in CHIPS if name != "q")
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
    """Loads no arguments and no results, and no errors of a completed job: it has none to show (core 5.3)."""

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
        given = {name for name in CHIPS if self.params.get(name)} - {"state"}
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
            *(f"{name}:" for name in CHIPS if name not in ("q", "state", "since")),
        ]

    @property
    def chips(self) -> list[dict[str, Any]]:
        """What the list is filtered by, each with the address of the list without it."""
        return [
            {
                "name": name, "value": display.shorten(self.params[parameter], 60),
                "without": address(self.params, **{parameter: ""}),
            }
            for parameter, name in CHIPS.items()
            if self.params.get(parameter)
        ]  # fmt: skip

    @property
    def looked(self) -> dict[str, Any] | None:
        """What the page says about how far the search looked; None where nothing had to be looked for."""
        if self.look is None:
            return None
        further = self.get_query_string({"until": self.look.further}, remove=["p"]) if self.look.further else ""
        return {"look": self.look, "back_to": display.when(self.look.back_to), "further": further}
