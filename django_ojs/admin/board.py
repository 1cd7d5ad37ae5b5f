"""The pages that are about everything: the overview and the dead letters. They belong to the admin of jobs.

So they are on every admin site that has the jobs, whatever its class, under its own name and permissions.
Each page has an address for its live part alone, which the script asks for every few seconds.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.cache import add_never_cache_headers
from django.utils.translation import gettext as _

from django_ojs import clock
from django_ojs.admin import auditing, deadletters, display, live, maintenance, overview
from django_ojs.admin.bulkaction import label
from django_ojs.admin.operate import SPELLED_OUT, OperatingAdmin, Verb
from django_ojs.admin.refusals import local
from django_ojs.jobs import bulkactions
from django_ojs.jobs.selection import JobFilter
from django_ojs.jobs.verbs import retry
from django_ojs.models import BulkAction, CronSchedule, Queue, Worker
from django_ojs.rules import names
from django_ojs.rules.durations import format_instant
from django_ojs.statistics import shared

#: What may be done with all dead letters that fit a filter: names of the jobs' verbs.
BULK = {"retry_dead_letters": "retry", "delete_dead_letters": "delete"}
#: So many are done at once, more in the background; so many are counted for the question.
AT_ONCE, COUNTED = 1000, 100_000


class Board(OperatingAdmin):
    """Adds the pages to the admin of jobs."""

    def get_urls(self) -> list[URLPattern]:
        def page(route: str, view: Any, name: str) -> URLPattern:
            found: URLPattern = path(route, self.admin_site.admin_view(view), name=f"{self.opts.app_label}_{name}")
            return found

        return [
            page("overview/", self.overview_page, "overview"),
            page("overview/live/", self.overview_live, "overview_live"),
            page("dead-letters/", self.dead_letters_page, "dead_letters"),
            page("dead-letters/live/", self.dead_letters_live, "dead_letters_live"),
            page("dead-letters/all/<slug:name>/", self.dead_letters_all, "dead_letters_all"),
            *super().get_urls(),
        ]

    # Overview

    def overview_page(self, request: HttpRequest) -> HttpResponse:
        url = self._board_url("overview_live")
        context = overview.context(overview.current.get(), self._may(request))
        context["follow"] = live.follow(request, url, live.OVERVIEW, age=overview.FRESH)
        context["maintenance"] = maintenance.address(request)
        return self._page(request, "overview", _("Overview"), context)

    def overview_live(self, request: HttpRequest) -> HttpResponse:
        return self._live(request, "overview", overview.context(overview.current.get(), self._may(request)))

    def _may(self, request: HttpRequest) -> dict[str, bool]:
        """What of the page this user sees, and whether there are buttons; nothing that this site does not have."""
        rights = [("view", Queue), ("change", Queue), ("view", Worker), ("view", CronSchedule)]
        return {
            (right := f"{verb}_{model._meta.model_name}"): self.admin_site.is_registered(model)
            and request.user.has_perm(f"{self.opts.app_label}.{right}")
            for verb, model in rights
        }

    # Dead letters

    def dead_letters_page(self, request: HttpRequest) -> HttpResponse:
        context = self._dead_letters(request)
        url = self._board_url("dead_letters_live") + (f"?{context['query']}" if context["query"] else "")
        age = deadletters.SEARCHED if "error" in context["filter"] else deadletters.FRESH
        context["follow"] = live.follow(request, url, live.DEAD_LETTERS, age=age)
        return self._page(request, "dead_letters", _("Dead letters"), context)

    def dead_letters_live(self, request: HttpRequest) -> HttpResponse:
        return self._live(request, "dead_letters", self._dead_letters(request))

    def _dead_letters(self, request: HttpRequest) -> dict[str, Any]:
        wanted = deadletters.letter_filter(request.GET)
        given = deadletters.parameters(wanted)
        newest = [{**job, "ended": display.ago(job["finished_at"])} for job in deadletters.newest(wanted).get()]
        groups = [_shown(group, wanted) for group in deadletters.groups(wanted).get()]
        return {
            "total": deadletters.total.get(),
            "groups": groups,
            "sampled": sum(group["count"] for group in groups),
            "newest": newest,
            "filter": given,
            "query": request.GET.urlencode(),
            "filtered": bool(given),
            "may_retry": self._has_right(request, "change"),
            "may_delete": self._has_right(request, "delete"),
            "bulk_actions": [_progress(action) for action in deadletters.actions.get()],
        }

    def dead_letters_all(self, request: HttpRequest, name: str) -> HttpResponse:
        """GET: how many would it be? POST: do it, to none that came later than the question."""
        verb = next((verb for verb in self.verbs if verb.name == name and name in BULK), None)
        if verb is None:
            raise Http404
        if not self._has_right(request, verb.right) or not self.has_view_permission(request):
            raise PermissionDenied
        wanted = deadletters.letter_filter(request.POST)
        if request.method == "POST" and "until" in wanted.values:  # else the user has confirmed nothing yet
            return self._do_all(request, verb, wanted)
        given = {**request.GET.dict(), "until": format_instant(clock.now())}
        return self._ask_for_all(request, verb, deadletters.letter_filter(given))

    def _do_all(self, request: HttpRequest, verb: Verb, wanted: JobFilter) -> HttpResponse:
        """Few at once, many in the background, where they have a page of their own."""
        back = self._board_url("dead_letters")
        queue = request.POST.get("to_queue", "").strip() if BULK[verb.name] == "retry" else ""
        override = {"queue": queue} if queue else None
        try:
            names.check_queue(queue or "default")
        except ValueError as error:
            self.message_user(request, _("The queue %(problem)s.") % {"problem": local(error)}, messages.ERROR)
            return HttpResponseRedirect(back)
        if wanted.jobs().order_by()[: AT_ONCE + 1].count() <= AT_ONCE:
            if override:
                verb = dataclasses.replace(verb, run=lambda pks, by: retry(pks, override=override))
            self.act_on_all(request, verb, wanted.jobs().order_by("finished_at"))
            return HttpResponseRedirect(back)
        entry = auditing.entry(request, f"job.bulk_{BULK[verb.name]}")
        action = bulkactions.start(BULK[verb.name], wanted, entry, override=override)
        shared.forget()
        text = _("%(number)s dead letters are being worked on in the background.") % {"number": f"{action.expected:,}"}
        self.message_user(request, text, messages.SUCCESS)
        if not self.admin_site.is_registered(BulkAction):
            return HttpResponseRedirect(back)
        page = f"admin:{self.opts.app_label}_bulkaction_change"
        return HttpResponseRedirect(reverse(page, args=[action.pk], current_app=self.admin_site.name))

    def _ask_for_all(self, request: HttpRequest, verb: Verb, wanted: JobFilter) -> HttpResponse:
        jobs = wanted.jobs()
        number = jobs.order_by()[: COUNTED + 1].count()
        sample = jobs.defer(*self.large_columns).order_by("finished_at")[:SPELLED_OUT]
        context = {
            **self._context(request, _("%(verb)s: are you sure?") % {"verb": verb.label}),
            "here": "dead_letters",
            "verb": verb,
            "number": min(number, COUNTED),
            "too_many": number > COUNTED,
            "background": number > AT_ONCE,
            "may_move": BULK[verb.name] == "retry",
            "filter": deadletters.parameters(wanted),
            "sample": [display.printable(job) for job in sample],
            "more": number > SPELLED_OUT,
            "fields": deadletters.parameters(wanted).items(),
        }
        return TemplateResponse(request, "django_ojs/admin/confirm_all.html", context)

    # Both

    def _board_url(self, name: str) -> str:
        return reverse(f"admin:{self.opts.app_label}_{name}", current_app=self.admin_site.name)

    def _page(self, request: HttpRequest, name: str, title: str, context: dict[str, Any]) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = {**self._context(request, title), "here": name, **context}
        return TemplateResponse(request, f"django_ojs/admin/{name}.html", context)

    def _live(self, request: HttpRequest, name: str, context: dict[str, Any]) -> HttpResponse:
        """The part of the page that changes; never from a cache."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = {**context, "part": f"django_ojs/admin/{name}_live.html"}
        response = TemplateResponse(request, "django_ojs/admin/live.html", context)
        add_never_cache_headers(response)
        return response

    def _context(self, request: HttpRequest, title: str) -> dict[str, Any]:
        return {**self.admin_site.each_context(request), "title": title, "opts": self.opts, "media": self.media}


def _progress(action: BulkAction) -> dict[str, Any]:
    """A bulk action that runs, as the template shows it."""
    return {"pk": action.pk, "name": label(action), "done": action.matched, "of": max(action.expected, action.matched)}


def _shown(group: deadletters.Group, wanted: JobFilter) -> dict[str, Any]:
    """A group of what fits `wanted`, as the template shows it."""
    found = dataclasses.asdict(group)
    return found | {"query": group.query(wanted), "first": display.ago(group.first), "last": display.ago(group.last)}
