"""Show the approvals that durable jobs wait for, in a list and a page for each, and let users decide them.

Who may view approvals sees all of them; who may only decide sees what asks that user. A link in a mail leads to a page
that needs no login, where the site allows it (`jobs/approvalmail.py`).
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.contrib.auth import get_user_model
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import Group
from django.core.exceptions import PermissionDenied
from django.db import DEFAULT_DB_ALIAS
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import NoReverseMatch, URLPattern, path
from django.utils.cache import add_never_cache_headers
from django.utils.decorators import method_decorator
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from django.views.decorators.clickjacking import xframe_options_deny
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from django_ojs import audit, errors
from django_ojs.admin import display, live, logs, steps
from django_ojs.admin.base import text_filter
from django_ojs.admin.live import LivePage
from django_ojs.admin.operate import audit_act
from django_ojs.audit import Act
from django_ojs.errors import OJSError
from django_ojs.jobs import approvalmail, approvals
from django_ojs.jobs.approvals import Decider
from django_ojs.models import Approval, AuditEntry, Job
from django_ojs.rules import redaction
from django_ojs.rules.approvals import MAX_COMMENT, ApprovalState

_COLOURS = {"open": "active", "approved": "good", "rejected": "discarded", "timed_out": "retryable"}
#: The field of a form that has the token of a link.
FIELD = "ojs_token"
#: The door of the uses of a link in the audit log, and what one is that decides.
_MAIL, _DECIDE = "mail", "approval.decide"
_LIVE = (*live.APPROVALS, "job.state_changed")  #: the second since a job closes its approvals


ApprovalTypeFilter = text_filter(_("job type"), "job_type", _("mail.send or mail.*"), field="type")


class AskedUserFilter(admin.SimpleListFilter):
    """Finds the approvals that ask the user (by name, by a group or by a permission), or only those that ask its
    groups."""

    title, parameter_name = _("asks"), "asks"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("me", _("me")), ("groups", _("my groups"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Approval]) -> QuerySet[Approval]:
        if self.value() == "me":
            return queryset.filter(approvals.asks(request.user, queryset.db))
        if self.value() == "groups":
            return queryset.filter(approvals.asks_groups_of(request.user, queryset.db))
        return queryset


class ApprovalStateFilter(admin.SimpleListFilter):
    title, parameter_name = _("state"), "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(state.value, state.value) for state in ApprovalState]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Approval]) -> QuerySet[Approval]:
        return queryset.filter(state=self.value()) if self.value() in dict(self.lookup_choices) else queryset


class NamesInput(forms.TextInput):
    """A line for each of several names: names may have spaces and commas."""

    LINES = 3

    def value_from_datadict(self, data: Any, files: Any, name: str) -> list[str]:
        return [text.strip() for text in data.getlist(name) if text.strip()]

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        given = [*(value or ()), *[""] * self.LINES][: max(self.LINES, len(value or ()) + 1)]
        first = {**(attrs or {}), "size": 40, "list": "ojs-people", "autocomplete": "off"}
        others = {**first, "aria-label": gettext("and to")}
        others.pop("id", None)
        lines = [super(NamesInput, self).render(name, one, others if index else first, renderer)
                 for index, one in enumerate(given)]  # fmt: skip
        return format_html('<div class="ojs-lines">{}</div>', format_html_join("", "{}", ((line,) for line in lines)))


class NamesField(forms.Field):
    widget = NamesInput


class DecisionForm(forms.Form):
    """What is sent beside the form of the site."""

    ojs_data = forms.JSONField(
        label=_("data"), required=False, widget=forms.Textarea(attrs={"rows": 6, "cols": 60, "spellcheck": "false"})
    )
    ojs_comment = forms.CharField(
        label=_("comment"), required=False, max_length=MAX_COMMENT,
        widget=forms.Textarea(attrs={"rows": 2, "cols": 60}),
    )  # fmt: skip
    ojs_to = NamesField(
        label=_("delegate to"), required=False,
        help_text=_("Instead of a decision: who is asked from now on, such as user:anna or group:finance."),
    )  # fmt: skip

    def __init__(self, approval: Approval, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if approval.schema is None:
            del self.fields["ojs_data"]
        else:
            self.fields["ojs_data"].help_text = display.pretty(approval.schema)

    def clean_ojs_to(self) -> list[str]:
        """Whom it is delegated to. No decision passes over a name that is filled in."""
        given: list[str] = self.cleaned_data["ojs_to"]
        if given and "delegate" not in self.data:
            raise forms.ValidationError(gettext("Press Delegate, or empty this field to decide."))
        return given


class LinkForm(DecisionForm):
    """The form of a decision without the field to delegate, which a link does not allow."""

    def __init__(self, approval: Approval, *args: Any, **kwargs: Any) -> None:
        super().__init__(approval, *args, **kwargs)
        del self.fields["ojs_to"]


#: So many users, and so many groups, are suggested as those to delegate to.
SUGGESTED = 200


def people(approval: Approval, by: Any) -> list[str]:
    """Whom a decider may choose by name: groups that the decider is in or that are asked, and users who may decide
    approvals. Who may view groups, or users, is told of all."""
    model: Any = get_user_model()
    users = approvals.active(model._default_manager.all())
    if not by.has_perm(f"{model._meta.app_label}.view_{model._meta.model_name}"):
        users = users.filter(approvals.holders(approvals.DECIDE))
    groups = Group.objects.order_by("name")
    if not by.has_perm("auth.view_group"):
        own = by.groups.values_list("pk", flat=True) if hasattr(by, "groups") else ()
        asked = [one.key for one in approval.assignees.all() if one.kind == approvals.Kind.GROUP]
        groups = groups.filter(pk__in=[*own, *asked])
    names = users.order_by(model.USERNAME_FIELD).values_list(model.USERNAME_FIELD, flat=True)[:SUGGESTED]
    shown = groups.values_list("name", flat=True)[:SUGGESTED]
    return [*(f"group:{name}" for name in shown), *(f"user:{name}" for name in names)]


@admin.register(Approval)
class ApprovalAdmin(LivePage):
    list_display = ("shown_title", "state_label", "type", "queue", "asked", "requested_ago", "due")
    list_filter = (AskedUserFilter, ApprovalStateFilter, ApprovalTypeFilter)
    ordering = ("-id",)
    change_form_template = "django_ojs/admin/approval.html"
    live_types = _LIVE
    fieldsets = (
        (None, {"fields": ("shown_title", "state_label", "asked", "shown_details", "its_job", "requested", "due")}),
        (_("Decision"), {"fields": ("by", "decided", "shown_comment", "shown_data")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Approval]:
        found: QuerySet[Approval] = super().get_queryset(request).prefetch_related("assignees")
        if self._sees_all(request) or not self.has_view_permission(request):  # whom each page refuses
            return found
        return found.filter(approvals.asks(request.user, found.db))

    def get_urls(self) -> list[URLPattern]:
        page = self.route("<path:object_id>/decide/", self.decide_view, "approval_decide")
        link = path("approve/", self.link_view, name=f"{self.opts.app_label}_approval_link")
        inbox = self.route("live/", self.inbox_view, "approval_inbox")
        return [page, link, inbox, *super().get_urls()]

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self._sees_all(request) or request.user.has_perm(approvals.DECIDE)

    def _sees_all(self, request: HttpRequest) -> bool:
        return request.user.has_perm(approvals.VIEW)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list, which follows what is asked and decided."""
        url = f"{self.url('approval_inbox')}?{request.GET.urlencode()}"
        follow = live.follow(request, url, _LIVE, age=live.POLLING, every=live.PAGE_POLLING)
        return super().changelist_view(request, {"follow": follow, "live_list": True, **(extra_context or {})})

    def inbox_view(self, request: HttpRequest) -> HttpResponse:
        """The list again, without the messages: those belong to the page that follows an act."""
        response = self.changelist_view(request, {"messages": ()})
        add_never_cache_headers(response)
        return response

    def get_preserved_filters(self, request: HttpRequest) -> str:
        """What a row's page leads back to: the list as it is filtered, also where a row came later."""
        if request.resolver_match and request.resolver_match.url_name == f"{self.opts.app_label}_approval_inbox":
            return urlencode({"_changelist_filters": request.GET.urlencode()}) if request.GET else ""
        return str(super().get_preserved_filters(request))

    def live_age(self, obj: Approval) -> float:
        """Its events are those of all approvals and jobs."""
        return live.POLLING

    def page_context(self, request: HttpRequest, obj: Approval) -> dict[str, Any]:
        may = obj.state == ApprovalState.OPEN and _may_decide(request, obj)
        job = Job.objects.using(obj._state.db).filter(pk=obj.job_id).first()
        return {
            "title": display.ellipsized(obj.title),
            "subtitle": display.printable(obj.name),
            "decide": self.own_url("decide", quote(obj.pk)) if may else "",
            "steps": {} if job is None else steps.section(self, job, steps.read(job)),
            "logs": self._logs(request, job),
        }

    def _logs(self, request: HttpRequest, job: Job | None) -> dict[str, Any]:
        """What the job has logged, for who may see it on the page of the job, which sends the lines that follow."""
        if job is None or not request.user.has_perm("django_ojs.view_job"):
            return {}
        try:
            lines = self.url("job_logs", job.pk)
        except NoReverseMatch:  # this admin site has no pages of ours for jobs
            return {}
        return logs.section(job, lines, job._state.db or DEFAULT_DB_ALIAS)

    def decide_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """GET: the form. POST: approve, reject or delegate."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        approval = self.get_object(request, unquote(object_id))
        if approval is None:
            raise Http404
        if not _may_decide(request, approval):
            raise PermissionDenied
        back = self.kept_url(request, "change", quote(approval.pk))
        posted = request.POST if request.method == "POST" else None
        own = DecisionForm(approval, posted)
        try:
            site = approvals.form_class(approval.form)(posted) if approval.form else None
        except OJSError as error:  # the form is not in the site's code any more
            self.message_user(request, display.explain(error), messages.ERROR)
            return HttpResponseRedirect(back)
        if posted is not None and own.is_valid():
            verb = "delegate" if "delegate" in posted else "decide"
            entry = self.audit_entry(request, f"approval.{verb}", approval.pk)
            if self._decide(request, approval, own, site, Decider.of(request.user), entry):
                return HttpResponseRedirect(back)
        return self.page(
            request, "approval_decide", gettext("Decide"), own=own, site=site, back=back, here="approval",
            heading=display.printable(approval.title), details=self.shown_details(approval),
            people=people(approval, request.user),
        )  # fmt: skip

    @method_decorator([
        login_not_required, require_http_methods(["GET", "HEAD", "POST"]), never_cache, xframe_options_deny,
        sensitive_post_parameters(FIELD), csrf_protect,
    ])  # fmt: skip
    def link_view(self, request: HttpRequest) -> HttpResponse:
        """The page behind the link of a mail, for whoever has the link. No login is needed.

        GET shows the same page to everybody: the token is behind the `#` of the address, which browsers do not send.
        The script of that page posts the token. The answer shows what is asked, with buttons that post the decision.
        Each token that is one of ours leaves an entry in the audit log.
        """
        try:
            if request.method != "POST":
                approvalmail.lasting()
                return self._link_page(request)
            token = request.POST.get(FIELD, "").strip().rpartition("#")[2]  # the whole link, too
            link = approvalmail.read(token)
        except OJSError as error:
            if "principal" in error.details:  # the token is one of ours
                _note(_link_act(request, error.details["principal"], error.details["approval_id"]), error.message)
            return self._link_page(request, refused=display.explain(error), status=error.status)
        approval, who = link.approval, link.decider
        entry = _link_act(request, who.name, approval.pk)
        if approval.state != ApprovalState.OPEN:
            late = approvals.decided(approval)
            _note(entry, late.message)
            return self._link_page(request, approval, refused=display.explain(late), status=409)
        posted = request.POST if entry.action == _DECIDE else None
        own = LinkForm(approval, posted)
        try:
            site = approvals.form_class(approval.form)(posted) if approval.form else None
        except OJSError as error:
            _note(entry, error.message)
            return self._link_page(request, approval, refused=display.explain(error), status=error.status)
        if posted is None:
            _note(entry)
        elif not own.is_valid():
            _note(entry, f"The form is wrong: {', '.join(own.errors)}")
        elif self._decide(request, approval, own, site, who, entry):
            return self._link_page(request, approval)
        return self._link_page(
            request, approval, own=own, site=site, token=token, who=who.name.partition(":")[2]
        )  # fmt: skip

    def _link_page(
        self, request: HttpRequest, approval: Approval | None = None, *, status: int = 200, **context: Any
    ) -> HttpResponse:
        """The page of `link_view`. Without an approval and without a refusal, it asks for the token."""
        if approval is not None:
            context |= {"heading": display.printable(approval.title), "details": self.shown_details(approval)}
        response = self.page(request, "approval_link", gettext("Decide"), field=FIELD, **context)
        response.status_code = status
        response["Referrer-Policy"] = "same-origin"  # a stricter one would break Django's check of a POST over HTTPS
        response["X-Robots-Tag"] = "noindex"
        return response

    def _decide(
        self, request: HttpRequest, approval: Approval, own: DecisionForm, site: Any, who: Decider, entry: Act
    ) -> bool:  # fmt: skip
        """Do what was chosen; False, with the reason in the forms, where that is refused."""
        given = own.cleaned_data
        approved = "approve" in request.POST
        delegates = "delegate" in request.POST
        using = approval._state.db
        try:
            if delegates:
                approvals.delegate(approval.pk, given["ojs_to"], who, act=entry, using=using)
            elif not approved and "reject" not in request.POST:
                return False
            else:
                data = given.get("ojs_data") if site is None else request.POST
                data = data if approved else None
                approvals.decide(
                    approval.pk, approved, who, comment=given["ojs_comment"].replace("\r\n", "\n"), data=data,
                    act=entry, using=using,
                )  # fmt: skip
        except OJSError as error:
            if entry.door == _MAIL:  # of other acts only those of who lacks the right
                _note(entry, error.message)
            if isinstance(error, errors.Conflict):
                self.message_user(request, display.explain(error), messages.WARNING)
                return True
            if site is None or site.is_valid() or delegates:
                own.add_error("ojs_to" if delegates else None, display.explain(error))
            return False
        text = gettext("Delegated.") if delegates else gettext("Approved.") if approved else gettext("Rejected.")
        self.message_user(request, text, messages.SUCCESS)
        return True

    requested_ago = live.cell(display.column(display.ago, "requested_at", "created"))
    requested = display.column(display.when, "requested_at", "created")
    due = live.cell(display.column(display.when, "due_at", "due"))
    decided = display.column(display.when, "decided_at", "ended")
    by = display.column(display.code, "decided_by", "by")
    shown_title = display.column(display.ellipsized, "title", "title")
    shown_comment = display.column(lambda text: display.printable(text) or display.NOTHING, "comment", "comment")

    @live.cell
    @admin.display(description=_("state"))
    def state_label(self, approval: Approval) -> SafeString:
        return display.colour_label(approval.state, _COLOURS.get(approval.state, "other"))

    @admin.display(description=_("asks"))
    def asked(self, approval: Approval) -> SafeString | str:
        return display.codes(approvals.names(approval))

    @admin.display(description=_("details"))
    def shown_details(self, approval: Approval) -> SafeString | str:
        return display.json(redaction.part("payload", approval.details, approval.type, {}))

    @admin.display(description=_("data"))
    def shown_data(self, approval: Approval) -> SafeString | str:
        return display.json(redaction.part("payload", approval.data, approval.type, {}))

    @admin.display(description=_("job"))
    def its_job(self, approval: Approval) -> SafeString:
        address = self.url_of(Job, approval.job_id)
        text = '<a class="ojs-id" href="{}">{}</a> {}' if address else '{}<span class="ojs-id">{}</span> {}'
        return format_html(text, address, approval.job_id, approval.type)


def _link_act(request: HttpRequest, who: str, target: object) -> Act:
    """The entry of a use of a link: to decide, or to read what is asked."""
    decides = ("approve" in request.POST or "reject" in request.POST) and "delegate" not in request.POST
    return audit_act(request, who, _DECIDE if decides else "approval.read", target, _MAIL, by="link")


def _note(entry: Act, refused: str = "") -> None:
    """Write the entry of a use of a link that decides nothing."""
    if refused:
        entry.outcome, entry.detail["error"] = AuditEntry.Outcome.DENIED.value, refused
    audit.note(entry)


def _may_decide(request: HttpRequest, approval: Approval) -> bool:
    """Whether it asks this user, or the user is a superuser."""
    try:
        Decider.of(request.user).check(approval, approval._state.db or "default")
    except OJSError:
        return False
    return True
