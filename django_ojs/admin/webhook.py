"""Webhooks: subscriptions are made and changed here, tried out, and given new secrets, which are shown once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.models import DELETION
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.cache import add_never_cache_headers
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_ojs.admin import auditing, columns, display
from django_ojs.admin.operate import OperatingAdmin, Verb, as_action, one_by_one
from django_ojs.admin.webhookform import WebhookForm
from django_ojs.errors import Conflict, OJSError
from django_ojs.messages import phrase
from django_ojs.models import WebhookDelivery, WebhookSubscription
from django_ojs.webhooks import deliveries, subscriptions
from django_ojs.webhooks.outcome import Verdict

#: Deliveries that a subscription's page shows.
SHOWN_DELIVERIES = 20


def _try_out(pk: Any, by: str) -> Any:
    """A test whose failure is told like a refusal, with what the receiver said."""
    _, reply = deliveries.send_test(pk)
    if reply.verdict is Verdict.SUCCESS:
        return reply
    said = display.shorten(reply.body, 200)
    return Conflict(phrase("%(problem)s It said: %(said)s", problem=reply.error, said=said) if said else reply.error)


VERBS = (
    Verb("test_webhooks", "Send a test", "tested", one_by_one(_try_out), alone=True),
    Verb(
        "pause_webhooks", "Pause", "paused", one_by_one(lambda pk, by: subscriptions.set_active(pk, False, by=by)),
        lambda subscription: subscription.active,
        question="What happens until it is resumed is not delivered to it later.",
    ),
    Verb(
        "resume_webhooks", "Resume", "resumed", one_by_one(lambda pk, by: subscriptions.set_active(pk, True, by=by)),
        lambda subscription: not subscription.active,
    ),
    Verb(
        "delete_webhooks", "Delete", "deleted", one_by_one(lambda pk, by: subscriptions.delete(pk, by=by)),
        question="What it still had coming is cancelled.", right="delete", flag=DELETION,
    ),
)  # fmt: skip
#: Not an action of the list: each answer holds one secret.
ROTATE = Verb(
    "rotate_secret", "New secret", "given a new secret", one_by_one(lambda pk, by: subscriptions.rotate(pk, by=by)),
    question="The old secret signs beside the new one for 24 hours, and then no more.",
)  # fmt: skip
REPLAY = Verb(
    "replay_deliveries", "Send again", "put in line", one_by_one(lambda pk, by: deliveries.replay(pk)),
    lambda delivery: not delivery.is_open and delivery.event_type != "webhook.test",
)  # fmt: skip


@admin.register(WebhookSubscription)
class WebhookSubscriptionAdmin(OperatingAdmin):
    form = WebhookForm
    list_display = ("short_id", "host", "status", "its_events", "delivered", "failures", "last", "created_by")
    list_filter = ("active",)
    search_fields = ("url",)
    ordering = ("-created_at",)
    verbs: ClassVar[Sequence[Verb]] = (*VERBS[:3], ROTATE, VERBS[3])
    actions = [as_action(verb) for verb in VERBS]
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

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self._has_right(request, "add")

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self._has_right(request, "change")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        fields: Sequence[str] = WebhookForm.Meta.fields
        if obj is not None and not self.has_change_permission(request, obj):
            fields = ["host", *(name for name in fields if name != "url")]
        return [(None, {"fields": fields}), *([(_("State"), {"fields": self.shown})] if obj else [])]

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        only_save = {"show_save_and_add_another": False, "show_save_and_continue": False}
        return super().add_view(request, form_url, {**(extra_context or {}), **only_save})

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        by = f"user:{request.user.get_username()}"
        if change:
            update = partial(subscriptions.update, obj.pk, form.definition, by=by)
            auditing.saved(request, form, obj, "webhook.update", update)
            return

        def create() -> None:
            made, obj.shown_secret = subscriptions.create(form.definition, by=by)
            obj.pk = made.pk

        auditing.saved(request, form, obj, "webhook.create", create)

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: str | None = None) -> HttpResponse:
        return self._show_secret(request, subscriptions.get(obj.pk), obj.shown_secret, gettext("Webhook made"))

    def verb_view(self, request: HttpRequest, object_id: str, name: str) -> HttpResponse:
        """The new secret is the answer itself, not a page to be redirected to: nothing else ever holds it."""
        if name != ROTATE.name or request.method != "POST":
            return super().verb_view(request, object_id, name)
        if (subscription := self.get_object(request, object_id)) is None:
            raise Http404
        if not self._has_right(request, ROTATE.right) or not self.has_view_permission(request, subscription):
            raise PermissionDenied
        outcomes = self._perform(request, ROTATE, [subscription])
        if isinstance(outcomes[0], OJSError):
            self._report(request, ROTATE, outcomes)
            return HttpResponseRedirect(self._url("change", subscription.pk))
        rotated, secret = outcomes[0]
        return self._show_secret(request, rotated, secret, gettext("New secret"))

    def change_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Deliveries are for those who may see them, on a site that has their pages."""
        response = super().change_view(request, *args, **kwargs)
        may = request.user.has_perm(f"{self.opts.app_label}.view_webhookdelivery")
        if isinstance(response, TemplateResponse) and response.context_data is not None and not may:
            response.context_data["deliveries"] = None
        return response

    def page_context(self, obj: Any) -> dict[str, Any]:
        if not self.admin_site.is_registered(WebhookDelivery):
            return {"deliveries": None}
        latest = WebhookDelivery.objects.filter(subscription_id=obj.pk).order_by("-id").defer("body", "response_body")
        return {
            "deliveries": [
                {
                    "url": reverse(
                        "admin:django_ojs_webhookdelivery_change", args=[row.pk], current_app=self.admin_site.name
                    ),
                    "type": row.event_type,
                    "status": _label(row),
                    "attempts": row.attempt_count,
                    "answer": row.response_status or display.NOTHING,
                    "time": display.when(row.created_at),
                }
                for row in latest[:SHOWN_DELIVERIES]
            ]
        }

    def _show_secret(
        self, request: HttpRequest, subscription: WebhookSubscription, secret: str, title: str
    ) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request), "title": title, "opts": self.opts, "media": self.media,
            "subscription": subscription, "secret": secret, "back": self._url("change", subscription.pk),
        }  # fmt: skip
        response = TemplateResponse(request, "django_ojs/admin/webhook_secret.html", context)
        add_never_cache_headers(response)
        return response

    short_id = columns.ends("public_id", "id")
    identity = columns.code("public_id", "id")
    its_events = columns.codes("events", "events")
    created = columns.time("created_at", "created")
    updated = columns.time("updated_at", "changed")
    last = columns.ago("last_delivery_at", "last attempt")

    @admin.display(description=_("host"))
    def host(self, subscription: WebhookSubscription) -> SafeString | str:
        """Without the path, which may be a receiver's only secret."""
        return display.code(_host(subscription.url))

    @admin.display(description=_("status"))
    def status(self, subscription: WebhookSubscription) -> SafeString:
        if subscription.active:
            return display.label(*(("failing", "retryable") if subscription.failing_since else ("active", "good")))
        return display.label("switched off", "discarded") if subscription.disabled_reason else display.label("paused")

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
    verbs: ClassVar[Sequence[Verb]] = (REPLAY,)
    actions = [as_action(REPLAY)]
    large_columns = ("body", "response_body", "attempts")
    fieldsets = (
        (None, {"fields": ("identity", "shown_type", "status_label", "subscribed", "event_id", "subject")}),
        (_("Attempts"), {"fields": ("attempts_made", "next", "made", "arrived", "its_error", "shown_attempts")}),
        (_("Last answer"), {"fields": ("response_status", "took", "answer")}),
        (_("Body"), {"fields": ("shown_body",)}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer(*self.large_columns)

    short_id = columns.ends("public_id", "id")
    identity = columns.code("public_id", "id")
    shown_type = columns.code("event_type", "event")
    shown_attempts = columns.json("attempts", "attempts")
    shown_body = columns.code("body", "as it is sent")
    made = columns.time("created_at", "created")
    made_ago = columns.ago("created_at", "created")
    arrived = columns.time("delivered_at", "delivered")
    next = columns.time("next_attempt_at", "next attempt")
    took = columns.duration("response_time_ms", "took")

    @admin.display(description=_("status"), ordering="status")
    def status_label(self, delivery: WebhookDelivery) -> SafeString:
        return _label(delivery)

    @admin.display(description=_("attempts"))
    def attempts_made(self, delivery: WebhookDelivery) -> str:
        return gettext("%(number)s of %(most)s") % {"number": delivery.attempt_count, "most": delivery.max_attempts}

    @admin.display(description=_("subscription"))
    def subscribed(self, delivery: WebhookDelivery) -> SafeString:
        name = display.ends(f"sub_{delivery.subscription_id}")
        if not self.admin_site.is_registered(WebhookSubscription):
            return name
        page, pk = "admin:django_ojs_webhooksubscription_change", delivery.subscription_id
        return format_html('<a href="{}">{}</a>', reverse(page, args=[pk], current_app=self.admin_site.name), name)

    @admin.display(description=_("error"))
    def its_error(self, delivery: WebhookDelivery) -> str:
        return display.shorten(delivery.error, 500) or display.NOTHING

    @admin.display(description=_("what it said"))
    def answer(self, delivery: WebhookDelivery) -> SafeString | str:
        text = display.printable(delivery.response_body)
        return format_html('<pre class="ojs-json" tabindex="0">{}</pre>', text) if text else display.NOTHING


def _host(url: str) -> str:
    return url.partition("://")[2].partition("/")[0].partition("?")[0]


def _label(delivery: WebhookDelivery) -> SafeString:
    if delivery.held and delivery.is_open:
        return display.label("held", "pending")
    colours = {"success": "good", "failed": "retryable", "dead": "discarded"}
    return display.label(delivery.status, colours.get(delivery.status, "pending"))
