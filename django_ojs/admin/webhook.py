"""Webhooks: operators make, change and test subscriptions here, and get new secrets, which are shown once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.models import DELETION
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_ojs.admin import display
from django_ojs.admin.forms import LinesField, OperationForm, blame
from django_ojs.admin.operate import AdminVerb, OperatingAdmin, actor, one_by_one
from django_ojs.errors import Conflict, OJSError
from django_ojs.messages import phrase
from django_ojs.models import WebhookDelivery, WebhookSubscription
from django_ojs.webhooks import deliveries, subscriptions
from django_ojs.webhooks.transport import DeliveryOutcome

#: Deliveries that a subscription's page shows.
SHOWN_DELIVERIES = 20


def _try_out(pk: Any, by: str) -> Any:
    """Send a test event. Its failure is an outcome like a refusal, with what the receiver answered."""
    _, reply = deliveries.send_test(pk)
    if reply.verdict is DeliveryOutcome.SUCCESS:
        return reply
    said = display.ellipsized(reply.body, 200)
    return Conflict(phrase("%(problem)s It said: %(said)s", problem=reply.error, said=said) if said else reply.error)


VERBS = (
    AdminVerb("test_webhooks", "Send a test", "tested", one_by_one(_try_out), outside_transaction=True),
    AdminVerb(
        "pause_webhooks", "Pause", "paused", one_by_one(lambda pk, by: subscriptions.set_active(pk, False, by=by)),
        lambda subscription: subscription.active,
        question="Events that happen while it is paused are not delivered later.",
    ),
    AdminVerb(
        "resume_webhooks", "Resume", "resumed", one_by_one(lambda pk, by: subscriptions.set_active(pk, True, by=by)),
        lambda subscription: not subscription.active,
    ),
    AdminVerb(
        "delete_webhooks", "Delete", "deleted", one_by_one(lambda pk, by: subscriptions.delete(pk, by=by)),
        question="Its open deliveries are cancelled.", right="delete", flag=DELETION,
    ),
)  # fmt: skip
#: Not an action of the list: each answer holds one secret.
ROTATE = AdminVerb(
    "rotate_secret", "New secret", "given a new secret", one_by_one(lambda pk, by: subscriptions.rotate(pk, by=by)),
    question="For 24 hours both secrets sign each delivery, then only the new one.",
)  # fmt: skip
REPLAY = AdminVerb(
    "replay_deliveries", "Send again", "put in line", one_by_one(lambda pk, by: deliveries.replay(pk)),
    lambda delivery: not delivery.is_open and delivery.event_type != deliveries.TEST,
)  # fmt: skip


class WebhookForm(OperationForm):
    """A subscription as `webhooks.subscriptions` reads it over HTTP."""

    url = forms.CharField(label=_("URL"), max_length=2048, widget=forms.TextInput(attrs={"class": "vLargeTextField"}))
    events = LinesField(label=_("Events"), help_text=_("One a line: job.completed, job.* or *."))
    queues = LinesField(required=False, label=_("Queues"), help_text=_("One a line. Empty: all queues."))
    job_types = LinesField(
        required=False, label=_("Job types"), help_text=_("One a line, such as mail.send or mail.*. Empty: all types.")
    )

    class Meta:
        model = WebhookSubscription
        fields = ("url", "events", "queues", "job_types", "timeout_seconds", "signature_format")
        help_texts = {
            "signature_format": _("What X-OJS-Signature signs. X-OJS-Signature-Timestamped signs the other."),
        }

    def clean(self) -> dict[str, Any]:
        super().clean()
        given = dict(self.cleaned_data)
        if self.errors:
            return given
        filters = {name: given.pop(name) or None for name in ("queues", "job_types")}
        try:
            self.definition = subscriptions.read_definition(
                {**given, "filter": filters}, partial=bool(self.instance.created_at)
            )
            if self.instance.created_at:
                subscriptions.check_kept_headers(subscriptions.get(self.instance.pk), self.definition)
        except OJSError as error:
            blame(self, error, {"filter.queues": "queues", "filter.job_types": "job_types", "headers": "url"})
        return self.cleaned_data


@admin.register(WebhookSubscription)
class WebhookSubscriptionAdmin(OperatingAdmin):
    editing = ("add", "change")
    form = WebhookForm
    list_display = ("short_id", "host", "status", "its_events", "delivered", "failures", "last", "created_by")
    list_filter = ("active",)
    search_fields = ("url",)
    ordering = ("-created_at",)
    verbs, actions = (*VERBS[:3], ROTATE, VERBS[3]), VERBS
    shown_once = True
    change_form_template = "django_ojs/admin/webhook.html"
    shown = (
        "identity",
        "status",
        "disabled_reason",
        "delivered",
        "failures",
        "last",
        "created_by",
        "created",
        "updated",
    )
    readonly_fields = shown

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Only in what the viewer is shown: without the right to change it, of the address just the host."""
        if self.has_change_permission(request):
            return super().get_search_results(request, queryset, search_term)
        words = search_term.replace("\0", "").casefold().split()
        if not words:
            return queryset, False
        urls = queryset.order_by().values_list("pk", "url")
        found = [pk for pk, url in urls if all(word in _host(url).casefold() for word in words)]
        return queryset.filter(pk__in=found), False

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        fields: Sequence[str] = WebhookForm.Meta.fields
        if obj is not None and not self.has_change_permission(request, obj):
            fields = ["host", *(name for name in fields if name != "url")]
        return [(None, {"fields": fields}), *([(_("State"), {"fields": self.shown})] if obj else [])]

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        by = actor(request)

        def create() -> None:
            made, obj.shown_secret = subscriptions.create(form.definition, by=by)
            obj.pk = made.pk

        if change:
            update = partial(subscriptions.update, obj.pk, form.definition, by=by)
            self.save_audited(request, form, obj, "webhook.update", update)
        else:
            self.save_audited(request, form, obj, "webhook.create", create)

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: str | None = None) -> HttpResponse:
        return self._show_secret(request, subscriptions.get(obj.pk), obj.shown_secret, gettext("Webhook made"))

    def respond(self, request: HttpRequest, verb: AdminVerb, obj: Any, outcome: Any) -> HttpResponse:
        """The page with a new secret is the answer itself: nothing else ever holds it."""
        if verb is not ROTATE or isinstance(outcome, OJSError):
            return super().respond(request, verb, obj, outcome)
        rotated, secret = outcome
        return self._show_secret(request, rotated, secret, gettext("New secret"))

    def change_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """The page, with the latest deliveries only for users who may see deliveries."""
        response = super().change_view(request, *args, **kwargs)
        may = request.user.has_perm(f"{self.opts.app_label}.view_webhookdelivery")
        if isinstance(response, TemplateResponse) and response.context_data is not None and not may:
            response.context_data["deliveries"] = None
        return response

    def page_context(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        if not self.may_see(WebhookDelivery, request):
            return {"deliveries": None}
        latest = WebhookDelivery.objects.filter(subscription_id=obj.pk).order_by("-id").defer("body", "response_body")
        return {
            "deliveries": [
                {
                    "url": self.url_of(WebhookDelivery, row.pk),
                    "type": row.event_type,
                    "status": _label(row),
                    "attempts": row.attempt_count,
                    "answer": row.response_status or display.NOTHING,
                    "time": display.when(row.created_at),
                }
                for row in latest[:SHOWN_DELIVERIES]
            ]
        }

    def _show_secret(self, request: HttpRequest, made: WebhookSubscription, secret: str, title: str) -> HttpResponse:
        shown = {"subscription": made, "secret": secret, "back": self.own_url("change", made.pk)}
        return self.page_once(request, "webhook_secret", title, **shown)

    short_id = display.column(display.ends, "public_id", "id")
    identity = display.column(display.code, "public_id", "id")
    its_events = display.column(display.codes, "events", "events")
    created = display.column(display.when, "created_at", "created")
    updated = display.column(display.when, "updated_at", "changed")
    last = display.column(display.ago, "last_delivery_at", "last attempt")

    @admin.display(description=_("host"))
    def host(self, subscription: WebhookSubscription) -> SafeString | str:
        """Without the path, which may be a receiver's only secret."""
        return display.code(_host(subscription.url))

    @admin.display(description=_("status"))
    def status(self, subscription: WebhookSubscription) -> SafeString:
        if not subscription.active:
            shown = (
                (gettext("switched off"), "discarded")
                if subscription.disabled_reason
                else (gettext("paused"), "paused")
            )
        else:
            shown = (gettext("failing"), "retryable") if subscription.failing_since else (gettext("active"), "good")
        return display.colour_label(*shown)

    @admin.display(description=_("delivered"))
    def delivered(self, subscription: WebhookSubscription) -> str:
        return f"{subscription.success_count:,}"

    @admin.display(description=_("failed attempts"))
    def failures(self, subscription: WebhookSubscription) -> str:
        return f"{subscription.failure_count:,}"


@admin.register(WebhookDelivery)
class WebhookDeliveryAdmin(OperatingAdmin):
    list_display = (
        "short_id", "shown_type", "status_label", "attempts_made", "response_status", "subscribed", "made_ago",
    )  # fmt: skip
    list_filter = ("status",)
    ordering = ("-id",)
    verbs = actions = (REPLAY,)
    large_columns = ("body", "response_body", "attempts")
    fieldsets = (
        (None, {"fields": ("identity", "shown_type", "status_label", "subscribed", "event_id", "subject")}),
        (_("Attempts"), {"fields": ("attempts_made", "next", "made", "arrived", "its_error", "shown_attempts")}),
        (_("Last answer"), {"fields": ("response_status", "took", "answer")}),
        (_("Body"), {"fields": ("shown_body",)}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer(*self.large_columns)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """What a receiver said only for who may have it sent again, as over HTTP."""
        if self.has_right(request, "change"):
            return self.fieldsets
        return [
            (title, {"fields": [name for name in given["fields"] if name != "answer"]})
            for title, given in self.fieldsets
        ]

    short_id = display.column(display.ends, "public_id", "id")
    identity = display.column(display.code, "public_id", "id")
    shown_type = display.column(display.code, "event_type", "event")
    shown_attempts = display.column(display.json, "attempts", "attempts")
    shown_body = display.column(display.code, "body", "as it is sent")
    made = display.column(display.when, "created_at", "created")
    made_ago = display.column(display.ago, "created_at", "created")
    arrived = display.column(display.when, "delivered_at", "delivered")
    next = display.column(display.when, "next_attempt_at", "next attempt")
    took = display.column(display.duration, "response_time_ms", "took")

    @admin.display(description=_("status"), ordering="status")
    def status_label(self, delivery: WebhookDelivery) -> SafeString:
        return _label(delivery)

    @admin.display(description=_("attempts"))
    def attempts_made(self, delivery: WebhookDelivery) -> str:
        made, most = f"{delivery.attempt_count:,}", f"{delivery.max_attempts:,}"
        return gettext("%(number)s of %(most)s") % {"number": made, "most": most}

    @admin.display(description=_("subscription"))
    def subscribed(self, delivery: WebhookDelivery) -> SafeString:
        name = display.ends(f"sub_{delivery.subscription_id}")
        address = self.url_of(WebhookSubscription, delivery.subscription_id)
        return format_html('<a href="{}">{}</a>', address, name) if address else name

    @admin.display(description=_("error"))
    def its_error(self, delivery: WebhookDelivery) -> str:
        return display.ellipsized(delivery.error, 500) or display.NOTHING

    @admin.display(description=_("response"))
    def answer(self, delivery: WebhookDelivery) -> SafeString | str:
        text = display.printable(delivery.response_body)
        return format_html('<pre class="ojs-json" tabindex="0">{}</pre>', text) if text else display.NOTHING


def _host(url: str) -> str:
    return url.partition("://")[2].partition("/")[0].partition("?")[0]


def _label(delivery: WebhookDelivery) -> SafeString:
    if delivery.held and delivery.is_open:
        return display.colour_label(gettext("postponed"), "pending")
    colours = {"success": "good", "failed": "retryable", "dead": "discarded"}
    return display.colour_label(delivery.status, colours.get(delivery.status, "pending"))
