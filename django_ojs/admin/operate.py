"""Acting on what the admin shows: each verb is a button on the object's page and an action of the list.

A verb runs an operation of `django_ojs.jobs`, never touches a row itself, says what was refused and
why, and leaves an entry in Django's admin log for each object it changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.functional import lazy
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from django_ojs import audit
from django_ojs.admin import auditing
from django_ojs.admin.base import ViewAdmin
from django_ojs.admin.display import printable, shorten
from django_ojs.admin.refusals import local
from django_ojs.errors import OJSError
from django_ojs.statistics import shared

#: Rows that one operation gets at a time, and that one action takes at most.
CHUNK = 500
MAX_ROWS = 10_000
#: Refusals and objects that a page spells out.
SPELLED_OUT = 5
#: Characters of a reason.
MAX_REASON = 500


@dataclasses.dataclass(frozen=True)
class Verb:
    """One thing an operator can do. Its texts are given in English and translated when they are shown.

    Attributes:
        name: the word in the URL and the name of the action.
        label: what the button says.
        done: the participle for messages and the log.
        run: takes primary keys and who acts; returns an outcome for each, an `OJSError` where refused.
        fits: whether the button makes sense for this object.
        question: what is asked first, for what cannot be undone; empty: nothing.
        right: the permission on the model that it takes, `add`, `change` or `delete`.
        flag: what Django's admin log files it under.
        alone: it talks to others, so no transaction waits for it; its entry is written when it is done.
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
    alone: bool = False
    reason: bool = False

    def __post_init__(self) -> None:
        """`done` has a context, since in many languages it is another word than the state of that name."""
        object.__setattr__(self, "label", gettext_lazy(self.label))
        object.__setattr__(self, "done", pgettext_lazy("done", self.done))
        if self.question:
            object.__setattr__(self, "question", gettext_lazy(self.question))


def one_by_one(operation: Callable[..., Any]) -> Callable[..., list[Any]]:
    """An operation on a single object as a verb's `run`."""

    def attempt(pk: Any, *how: str) -> Any:
        try:
            return operation(pk, *how)
        except OJSError as error:
            return error

    return lambda pks, *how: [attempt(pk, *how) for pk in pks]


def _action_label(verb: Verb) -> str:
    return _("%(verb)s: the selected %%(verbose_name_plural)s") % {"verb": verb.label}


_selected = lazy(_action_label, str)


def as_action(verb: Verb) -> Callable[..., HttpResponse | None]:
    """`verb` as an action of the list."""

    @admin.action(description=_selected(verb), permissions=[f"verb_{verb.right}"])
    def action(model_admin: OperatingAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return model_admin.act_on_list(request, verb, queryset)

    action.__name__ = verb.name
    return action


class OperatingAdmin(ViewAdmin):
    """A `ViewAdmin` with verbs. A subclass lists them, and `actions = [as_action(verb) for verb in verbs]`."""

    verbs: ClassVar[Sequence[Verb]] = ()
    change_form_template = "django_ojs/admin/change_form.html"
    #: What a list of objects need not load.
    large_columns: ClassVar[Sequence[str]] = ()

    def has_verb_change_permission(self, request: HttpRequest) -> bool:
        return self._has_right(request, "change")

    def has_verb_add_permission(self, request: HttpRequest) -> bool:
        return self._has_right(request, "add")

    def has_verb_delete_permission(self, request: HttpRequest) -> bool:
        return self._has_right(request, "delete")

    def _has_right(self, request: HttpRequest, right: str) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.{right}_{self.opts.model_name}")

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_verb"
        view = self.admin_site.admin_view(self.verb_view)
        return [path("<path:object_id>/do/<slug:name>/", view, name=name), *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The object's page, with a button for each verb that fits it and that the user may use."""
        if (obj := self.get_object(request, unquote(object_id))) is not None:
            extra_context = {**(extra_context or {}), "buttons": self._buttons(request, obj), **self.page_context(obj)}
        return super().change_view(request, object_id, form_url, extra_context)

    def page_context(self, obj: Any) -> dict[str, Any]:
        """What a subclass's page shows besides the fields."""
        return {}

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """What an operation refuses although the form was good (somebody else was first, say) is told, not raised."""
        try:
            return super().changeform_view(request, object_id, form_url, extra_context)
        except OJSError as error:
            self.message_user(request, shorten(local(error), 300), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())

    def _buttons(self, request: HttpRequest, obj: Any) -> list[dict[str, Any]]:
        verbs = [verb for verb in self.verbs if verb.fits(obj) and self._has_right(request, verb.right)]
        return [{"verb": verb, "url": self._url("verb", quote(obj.pk), verb.name)} for verb in verbs]

    def _url(self, page: str, *args: Any) -> str:
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{page}"
        return reverse(name, args=args, current_app=self.admin_site.name)

    def verb_view(self, request: HttpRequest, object_id: str, name: str) -> HttpResponse:
        """POST: do it. GET: ask first."""
        verb = next((verb for verb in self.verbs if verb.name == name), None)
        obj = self.get_object(request, unquote(object_id))
        if verb is None or obj is None:
            raise Http404
        if not self._has_right(request, verb.right) or not self.has_view_permission(request, obj):
            raise PermissionDenied
        back = self._url("change", quote(obj.pk))
        if request.method != "POST":
            return self._ask(request, verb, [obj], {}, back)
        self._report(request, verb, self._perform(request, verb, [obj]))
        gone = not self.model._default_manager.filter(pk=obj.pk).exists()
        return HttpResponseRedirect(self._asked_back(request) or (self._url("changelist") if gone else back))

    def _asked_back(self, request: HttpRequest) -> str:
        """The page of ours that the button was on, if it said so (`next`)."""
        back = request.POST.get("next", "")
        return back if url_has_allowed_host_and_scheme(back, None) else ""

    def act_on_list(self, request: HttpRequest, verb: Verb, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Run `verb` on the selected rows; first ask, if it is one that asks."""
        if verb.question and "sure" not in request.POST:
            kept = {name: request.POST.getlist(name) for name in (ACTION_CHECKBOX_NAME, "select_across")}
            sample = list(queryset[: SPELLED_OUT + 1])
            return self._ask(request, verb, sample, {**kept, "action": [verb.name]}, request.get_full_path())
        self.act_on_all(request, verb, queryset)
        return None

    def act_on_all(self, request: HttpRequest, verb: Verb, queryset: QuerySet[Any]) -> None:
        """Run `verb` on the rows, in batches, and say what came of it."""
        pks = list(queryset.values_list("pk", flat=True)[: MAX_ROWS + 1])
        more = len(pks) > MAX_ROWS
        del pks[MAX_ROWS:]
        outcomes: list[Any] = []
        for start in range(0, len(pks), CHUNK):
            chunk = self.model._default_manager.filter(pk__in=pks[start : start + CHUNK]).defer(*self.large_columns)
            outcomes += self._perform(request, verb, list(chunk))
        self._report(request, verb, outcomes)
        if more:
            text = _("These were the first %(number)s: repeat it for the rest.") % {"number": f"{MAX_ROWS:,}"}
            self.message_user(request, text, messages.WARNING)

    def _perform(self, request: HttpRequest, verb: Verb, objects: list[Any]) -> Sequence[Any]:
        """The operation on these objects, and what it changed in the audit log and in the admin's own."""
        entry = auditing.entry(request, auditing.action(self.model, verb.name))
        pks = [obj.pk for obj in objects]
        reason = request.POST.get("reason", "").replace("\0", "").strip()[:MAX_REASON] if verb.reason else ""
        how = (entry.actor, reason) if verb.reason else (entry.actor,)

        def act() -> Sequence[Any]:
            outcomes = verb.run(pks, *how)
            done = [obj for obj, out in zip(objects, outcomes, strict=True) if not isinstance(out, OJSError)]
            audit.name_targets(entry, [auditing.name(obj) for obj in done], len(pks))
            if reason:
                entry.detail["reason"] = reason
            return outcomes

        if verb.alone:
            outcomes = act()
            entry.target = entry.target or ", ".join(map(auditing.name, objects))
            audit.perform(lambda: None, entry)
        else:
            outcomes = audit.perform(act, entry)
        shared.forget()
        changed = [obj for obj, out in zip(objects, outcomes, strict=True) if not isinstance(out, OJSError)]
        user, message = request.user.pk, f"{str(verb.done).capitalize()}."
        LogEntry.objects.log_actions(user, changed, verb.flag, message)  # type: ignore[arg-type]
        return outcomes

    def _report(self, request: HttpRequest, verb: Verb, outcomes: Sequence[Any]) -> None:
        refusals = [shorten(local(outcome), 300) for outcome in outcomes if isinstance(outcome, OJSError)]
        if done := len(outcomes) - len(refusals):
            told = _("%(objects)s %(done)s.") % {"objects": self._counted(done), "done": verb.done}
            self.message_user(request, told, messages.SUCCESS)
        if refusals:
            left = len(refusals) - SPELLED_OUT
            more = [_("And %(number)s more.") % {"number": left}] if left > 0 else []
            head = _("%(objects)s not %(done)s:") % {"objects": self._counted(len(refusals)), "done": verb.done}
            text = " ".join([head, *refusals[:SPELLED_OUT], *more])
            self.message_user(request, text, messages.WARNING if done else messages.ERROR)

    def _counted(self, number: int) -> str:
        return f"{number:,} {self.opts.verbose_name if number == 1 else self.opts.verbose_name_plural}"

    def _ask(
        self, request: HttpRequest, verb: Verb, sample: list[Any], fields: dict[str, list[str]], url: str
    ) -> HttpResponse:
        """The page that asks whether the operator is sure; its form posts the same request with `sure`."""
        across = "1" in fields.get("select_across", ())
        number = max(len(fields.get(ACTION_CHECKBOX_NAME, ())), len(sample))
        everything = _("all %(objects)s in the list") % {"objects": self.opts.verbose_name_plural}
        context = {
            **self.admin_site.each_context(request),
            "title": _("%(verb)s: are you sure?") % {"verb": verb.label},
            "opts": self.opts,
            "media": self.media,
            "verb": verb,
            "subject": everything if across else self._counted(number),
            "max_reason": MAX_REASON,
            "sample": [printable(obj) for obj in sample[:SPELLED_OUT]],
            "more": across or number > SPELLED_OUT,
            "fields": [(name, value) for name, values in fields.items() for value in values],
            "back": url,
        }
        return TemplateResponse(request, "django_ojs/admin/confirm.html", context)


class EditingAdmin(OperatingAdmin):
    """An `OperatingAdmin` whose objects an operator with the model's permissions may add and change in forms."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self._has_right(request, "add")

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self._has_right(request, "change")
