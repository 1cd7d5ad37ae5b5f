"""What operators do in the admin: each verb is a button on an object's page and an action of its list.

A verb runs an operation and never changes a row itself. It says what was refused and why, and leaves one entry in the
audit log, and one in Django's admin log for each object that it changed. Forms save through operations too
(`OperatingAdmin.save_audited`).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, reverse
from django.utils.cache import add_never_cache_headers
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from django_ojs import audit
from django_ojs.admin.base import ViewAdmin
from django_ojs.admin.display import ellipsized, explain, printable
from django_ojs.errors import OJSError
from django_ojs.jobs import bulk
from django_ojs.lifecycle.transitions import done_where_fitting
from django_ojs.models import AuditEntry, Job
from django_ojs.queues.configuration import MAX_REASON
from django_ojs.statistics import summary

#: Rows that one operation gets at a time, and that one action takes at most.
CHUNK = 500
MAX_ROWS = 10_000
#: Refusals and objects that a page spells out.
SPELLED_OUT = 5

#: What the audit log calls models, and acts, that the admin calls otherwise; these with what the name does not say.
_KINDS = {"cronschedule": "cron", "webhooksubscription": "webhook", "webhookdelivery": "webhook",
          "outboxentry": "outbox", "ratelimit": "rate_limit"}  # fmt: skip
_ACTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "cron.run": ("cron.trigger", {}), "job.clear": ("job.clear_checkpoint", {}), "job.restart": ("job.retry", {}),
    "replayrule.enable": ("replayrule.set", {"enabled": True}),
    "replayrule.disable": ("replayrule.set", {"enabled": False}),
    "webhook.pause": ("webhook.update", {"active": False}), "webhook.resume": ("webhook.update", {"active": True}),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class AdminVerb:
    """One thing that an operator can do. `verbs = actions = VERBS` makes it a button and an action of the list.

    Its texts are given in English and translated when they are shown.

    Attributes:
        name: the word in the URL and the name of the action. The audit log has its first word behind the kind of the
            object: `retry_dead_letters` of jobs is `job.retry` there.
        label: what the button says.
        done: the participle for messages and the log.
        run: takes primary keys and the actor; returns an outcome for each, an `OJSError` where refused.
        fits: whether the button makes sense for this object.
        question: what is asked first, for what cannot be undone; empty: nothing.
        right: the permission on the model that it takes, `add`, `change` or `delete`.
        flag: what Django's admin log files it under.
        outside_transaction: it calls other servers, so it runs outside of a transaction; its entry in the audit log is
            written when it is done.
        reason: the question has a field for a reason, which `run` takes as its third argument.
    """

    name: str
    label: Any
    done: Any
    run: Callable[..., Sequence[Any]]
    fits: Callable[[Any], bool] = lambda _: True
    question: Any = ""
    right: str = "change"
    flag: int = CHANGE
    outside_transaction: bool = False
    reason: bool = False

    def __post_init__(self) -> None:
        """`done` has a context, since in many languages it is another word than the state of that name."""
        object.__setattr__(self, "label", gettext_lazy(self.label))
        object.__setattr__(self, "done", pgettext_lazy("done", self.done))
        if self.question:
            object.__setattr__(self, "question", gettext_lazy(self.question))

    # What Django asks of an action of a list

    do_not_call_in_templates: ClassVar[bool] = True

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def short_description(self) -> str:
        return _("%(verb)s: the selected %%(verbose_name_plural)s") % {"verb": self.label}

    @property
    def allowed_permissions(self) -> list[str]:
        return [f"verb_{self.right}"]

    def __call__(self, model_admin: OperatingAdmin, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
        return model_admin.act_on_list(request, self, rows)


def one_by_one(operation: Callable[..., Any]) -> Callable[..., list[Any]]:
    """An operation on a single object as a verb's `run`."""

    def attempt(pk: Any, *how: str) -> Any:
        try:
            return operation(pk, *how)
        except OJSError as error:
            return error

    return lambda pks, *how: [attempt(pk, *how) for pk in pks]


def actor(request: HttpRequest) -> str:
    """The user of a request, as audit entries and events name users."""
    return f"user:{request.user.get_username()}"


def came_from(request: HttpRequest) -> str:
    """The page of this site that leads here and names itself as `next`; '' where none does."""
    asked = request.POST.get("next") or request.GET.get("next", "")
    return asked if url_has_allowed_host_and_scheme(asked, None) else ""


def audit_act(request: HttpRequest, who: str, action: str, target: object, door: str, **detail: Any) -> audit.Act:
    """The entry of an act that came with this request, by whoever it was and by whatever door."""
    return audit.Act(who, action, str(target), detail, door, request.META.get("REMOTE_ADDR", ""))


class OperatingAdmin(ViewAdmin):
    """A `ViewAdmin` with verbs: `verbs` are the buttons on an object's page, `actions` those that lists have."""

    verbs: ClassVar[Sequence[AdminVerb]] = ()
    change_form_template = "django_ojs/admin/change_form.html"
    #: What a list of objects need not load.
    large_columns: ClassVar[Sequence[str]] = ()
    #: The answer to adding an object shows what no other page shows, so the form has one button to save.
    shown_once: ClassVar[bool] = False

    def has_verb_add_permission(self, request: HttpRequest) -> bool:
        return self.has_right(request, "add")

    def has_verb_change_permission(self, request: HttpRequest) -> bool:
        return self.has_right(request, "change")

    def has_verb_delete_permission(self, request: HttpRequest) -> bool:
        return self.has_right(request, "delete")

    def get_urls(self) -> list[URLPattern]:
        page = self.route("<path:object_id>/do/<slug:name>/", self.verb_view, f"{self.opts.model_name}_verb")
        return [page, *super().get_urls()]

    # Pages

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The object's page, with a button for each verb that fits it and that the user may use."""
        if (obj := self.get_object(request, unquote(object_id))) is not None:
            verbs = [verb for verb in self.verbs if verb.fits(obj) and self.has_right(request, verb.right)]
            urls = [self.kept_url(request, "verb", quote(obj.pk), verb.name) for verb in verbs]
            own = {
                "buttons": [{"verb": verb, "url": address} for verb, address in zip(verbs, urls, strict=True)],
                "kept_filters": request.GET.get("_changelist_filters"),
            }
            extra_context = {**(extra_context or {}), **own, **self.page_context(request, obj)}
        return super().change_view(request, object_id, form_url, extra_context)

    def kept_url(self, request: HttpRequest, page: str, *args: Any) -> str:
        """As `own_url`, with the filters of the list that led to this page, as Django's own forms keep them."""
        context: Any = {"preserved_filters": self.get_preserved_filters(request), "opts": self.opts}
        return str(add_preserved_filters(context, self.own_url(page, *args)))

    def page_context(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        """What a subclass's page shows besides the fields."""
        return {}

    def page_once(self, request: HttpRequest, template: str, title: str, **context: Any) -> HttpResponse:
        """A page with a secret that no other page shows: no cache keeps it, and no redirect leads to it. It leads
        `back`, and who may only add to the index."""
        may_look = self.has_view_permission(request)
        index = {} if may_look else {"back": reverse("admin:index", current_app=self.admin_site.name)}
        response = self.page(request, template, title, may_look=may_look, **{**context, **index})
        add_never_cache_headers(response)
        return response

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Django's form. If the operation refuses what the form let pass (a name that another user has just taken,
        say), a message says so."""
        if self.shown_once and object_id is None:
            only_save = {"show_save_and_add_another": False, "show_save_and_continue": False}
            extra_context = {**(extra_context or {}), **only_save}
        try:
            return super().changeform_view(request, object_id, form_url, extra_context)
        except OJSError as error:
            self.message_user(request, ellipsized(explain(error), 300), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())

    def verb_view(self, request: HttpRequest, object_id: str, name: str) -> HttpResponse:
        """POST: do it. GET: ask first."""
        verb = next((verb for verb in self.verbs if verb.name == name), None)
        obj = self.get_object(request, unquote(object_id))
        if verb is None or obj is None:
            raise Http404
        if not self.has_right(request, verb.right) or not self.has_view_permission(request, obj):
            raise PermissionDenied
        if request.method != "POST":
            return self._ask(request, verb, [obj], {}, self.kept_url(request, "change", quote(obj.pk)))
        return self.respond(request, verb, obj, self.perform(request, verb, [obj])[0])

    def respond(self, request: HttpRequest, verb: AdminVerb, obj: Any, outcome: Any) -> HttpResponse:
        """What follows a verb: a message, on the page of ours whose button it was (`next`), or on the object's."""
        self.report(request, verb, [outcome])
        if asked := came_from(request):
            return HttpResponseRedirect(asked)
        is_gone = not self.model._default_manager.filter(pk=obj.pk).exists()
        page = ("changelist",) if is_gone else ("change", quote(obj.pk))
        return HttpResponseRedirect(self.kept_url(request, *page))

    def _ask(
        self, request: HttpRequest, verb: AdminVerb, sample: list[Any], fields: dict[str, list[str]], url: str
    ) -> HttpResponse:
        """The page that asks whether the operator is sure; its form posts the same request with `sure`."""
        across = "1" in fields.get("select_across", ())
        number = max(len(fields.get(ACTION_CHECKBOX_NAME, ())), len(sample))
        everything = _("all %(objects)s in the list") % {"objects": self.opts.verbose_name_plural}
        return self.page(
            request, "confirm", _("%(verb)s: are you sure?") % {"verb": verb.label},
            verb=verb, subject=everything if across else self._counted(number), max_reason=MAX_REASON,
            sample=[printable(obj) for obj in sample[:SPELLED_OUT]], more=across or number > SPELLED_OUT,
            fields=[(name, value) for name, values in fields.items() for value in values], back=url,
        )  # fmt: skip

    # Acting

    def act_on_list(self, request: HttpRequest, verb: AdminVerb, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Run `verb` on the selected rows; first ask, if it is one that asks."""
        if verb.question and "sure" not in request.POST:
            kept = {name: request.POST.getlist(name) for name in (ACTION_CHECKBOX_NAME, "select_across")}
            sample = list(queryset[: SPELLED_OUT + 1])
            return self._ask(request, verb, sample, {**kept, "action": [verb.name]}, request.get_full_path())
        across = "1" in request.POST.getlist("select_across")
        noted, meant = (bulk.noted(request.GET.dict()), self.meant_by_list(request)) if across else ({}, None)
        self.act_on_all(request, verb, queryset, noted, meant)
        return None

    def meant_by_list(self, request: HttpRequest) -> QuerySet[Job] | None:
        """Of a list of jobs: those that its filters mean. A job that is none of them by its turn is left alone."""
        return None

    def act_on_all(
        self, request: HttpRequest, verb: AdminVerb, queryset: QuerySet[Any], noted: Mapping[str, Any],
        meant: QuerySet[Job] | None,
    ) -> None:  # fmt: skip
        """Run `verb` on the rows, in batches, and say what came of it; `noted` goes into each audit entry. A job
        that is not one of `meant` any more is refused."""
        pks = list(queryset.values_list("pk", flat=True)[: MAX_ROWS + 1])
        more = len(pks) > MAX_ROWS
        del pks[MAX_ROWS:]
        outcomes: list[Any] = []
        for start in range(0, len(pks), CHUNK):
            chunk = self.model._default_manager.filter(pk__in=pks[start : start + CHUNK]).defer(*self.large_columns)
            outcomes += self.perform(request, verb, list(chunk), noted, meant)
        self.report(request, verb, outcomes)
        if more:
            text = _("These were the first %(number)s. Repeat the action for the rest.") % {"number": f"{MAX_ROWS:,}"}
            self.message_user(request, text, messages.WARNING)

    def perform(
        self, request: HttpRequest, verb: AdminVerb, objects: list[Any], noted: Mapping[str, Any] | None = None,
        meant: QuerySet[Job] | None = None,
    ) -> Sequence[Any]:  # fmt: skip
        """The operation on these objects, with entries in the audit log and in the admin's own; its outcomes."""
        action, told = _action(self.model, verb)
        entry = self.audit_entry(request, action)
        pks = [obj.pk for obj in objects]
        reason = request.POST.get("reason", "").replace("\0", "").strip()[:MAX_REASON] if verb.reason else ""
        how = (entry.actor, reason) if verb.reason else (entry.actor,)
        changed: list[Any] = []

        def act() -> Sequence[Any]:
            if meant is None:
                outcomes = verb.run(pks, *how)
            else:
                outcomes = done_where_fitting(lambda kept: verb.run(kept, *how), meant, pks, meant.db)
            changed[:] = [obj for obj, out in zip(objects, outcomes, strict=True) if not isinstance(out, OJSError)]
            audit.name_targets(entry, [_target(obj) for obj in changed], len(pks))
            entry.detail |= told | dict(noted or {})
            if reason:
                entry.detail["reason"] = reason
            return outcomes

        if verb.outside_transaction:
            outcomes = act()
            entry.target = entry.target or ", ".join(map(_target, objects))
            audit.perform(lambda: None, entry)
        else:
            outcomes = audit.perform(act, entry)
        summary.forget()
        user, message = request.user.pk, f"{capfirst(str(verb.done))}."
        LogEntry.objects.log_actions(user, changed, verb.flag, message)  # type: ignore[arg-type]
        return outcomes

    def report(self, request: HttpRequest, verb: AdminVerb, outcomes: Sequence[Any]) -> None:
        """A message with the number of objects changed, and one with the first refusals."""
        refusals = [ellipsized(explain(outcome), 300) for outcome in outcomes if isinstance(outcome, OJSError)]
        if done := len(outcomes) - len(refusals):
            text = _("%(objects)s %(done)s.") % {"objects": self._counted(done), "done": verb.done}
            self.message_user(request, text, messages.SUCCESS)
        if refusals:
            left = len(refusals) - SPELLED_OUT
            more = [_("And %(number)s more.") % {"number": f"{left:,}"}] if left > 0 else []
            head = _("%(objects)s not %(done)s:") % {"objects": self._counted(len(refusals)), "done": verb.done}
            text = " ".join([head, *refusals[:SPELLED_OUT], *more])
            self.message_user(request, text, messages.WARNING if done else messages.ERROR)

    def _counted(self, number: int) -> str:
        return f"{number:,} {self.opts.verbose_name if number == 1 else self.opts.verbose_name_plural}"

    # The audit log

    def audit_entry(self, request: HttpRequest, action: str, target: object = "", **detail: Any) -> audit.Act:
        """The entry of an act in the admin, for `audit.perform`."""
        return audit_act(request, actor(request), action, target, "admin", **detail)

    def save_audited(self, request: HttpRequest, form: Any, obj: Any, action: str, save: Callable[[], object]) -> None:
        """Save what a form changed, with an entry that names the fields, but not their values."""
        entry = self.audit_entry(request, action)

        def act() -> None:
            save()
            entry.target, entry.detail = _target(obj), {"fields": sorted(form.changed_data)}

        audit.perform(act, entry)


def _action(model: type[Model], verb: AdminVerb) -> tuple[str, dict[str, Any]]:
    """`cancel_jobs` of jobs is `job.cancel`, as the API and the commands call it; with what else the entry says."""
    kind, word = str(model._meta.model_name), verb.name.partition("_")[0]
    found = f"{_KINDS.get(kind, kind)}.{word}"
    return _ACTIONS.get(found, (found, {}))


def last_to_change(obj: Any, field: str, since: float) -> str:
    """Who has saved this field of an object since then (seconds since the epoch), as the audit log names them; '' where
    it does not know."""
    kind = _KINDS.get(kind := str(obj._meta.model_name), kind)
    known = AuditEntry.objects.using(obj._state.db).filter(
        target=_target(obj), outcome=AuditEntry.Outcome.SUCCESS,
        action__in=[f"{kind}.{word}" for word in ("configure", "update", "register", "set")],
        time__gt=dt.datetime.fromtimestamp(since, dt.UTC),
    )  # fmt: skip
    for actor, detail in known.order_by("-id").values_list("actor", "detail")[:20]:
        facts: Any = detail or {}
        if field in facts.get("fields", [field]):  # other doors do not say which fields
            return str(actor)
    return ""


def _target(obj: Any) -> str:
    """What the API and the commands call an object."""
    return str(getattr(obj, "public_id", obj.pk))
