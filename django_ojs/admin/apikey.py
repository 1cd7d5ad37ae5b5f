"""API keys: operators make, revoke and delete them here. A key is shown once, and what it may do never changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.widgets import AdminSplitDateTime
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_ojs import audit, keys
from django_ojs.admin import display
from django_ojs.admin.forms import LinesField
from django_ojs.admin.operate import AdminVerb, OperatingAdmin
from django_ojs.errors import Conflict, NotFound
from django_ojs.messages import phrase, translated
from django_ojs.models import APIKey


def _revoke(pks: Sequence[int], by: str) -> list[Any]:
    found = APIKey.objects.in_bulk(list(pks))
    return [_revoke_one(found[pk]) if pk in found else NotFound.resource("api_key", str(pk)) for pk in pks]


def _revoke_one(key: APIKey) -> Any:
    return key if keys.revoke(key) else Conflict(phrase("'%(name)s' was revoked before.", name=key.name))


VERBS = (
    AdminVerb(
        "revoke_keys", "Revoke", "revoked", _revoke, lambda key: key.revoked_at is None,
        question="Calls with a revoked key are refused at once and for ever.",
    ),
)  # fmt: skip


class MomentInput(AdminSplitDateTime):
    """Django's two inputs for a date and a time, with a label each: the field's own is that of the pair."""

    def __init__(self, attrs: dict[str, Any] | None = None) -> None:
        super().__init__(attrs)
        for widget, label in zip(self.widgets, (_("Date:"), _("Time:")), strict=True):
            widget.attrs["aria-label"] = label


class APIKeyForm(forms.ModelForm):  # type: ignore[type-arg]
    scopes = forms.MultipleChoiceField(
        label=_("Scopes"), choices=APIKey.Scope.choices, widget=forms.CheckboxSelectMultiple
    )
    queues = LinesField(
        required=False,
        label=_("Queues"),
        help_text=_("One a line: the key is limited to these queues. Empty: all queues."),
    )
    job_types = LinesField(
        required=False,
        label=_("Job types"),
        help_text=_("One a line, such as mail.send or mail.*: limits the key. Empty: all types."),
    )

    class Meta:
        model = APIKey
        fields = ("name", "scopes", "queues", "job_types", "expires_at")
        widgets = {"expires_at": MomentInput}
        help_texts = {"name": _("What the key is for; shown in lists and logs."), "expires_at": _("Empty: never.")}

    def clean(self) -> dict[str, Any]:
        super().clean()
        given = self.cleaned_data
        given |= {name: given.get(name) or None for name in ("queues", "job_types")}  # None: no limit
        try:
            keys.validate(
                given.get("name", "x"), given.get("scopes", ["read"]), given.get("queues"), given.get("job_types"),
                given.get("expires_at"),
            )  # fmt: skip
        except ValidationError as error:
            told = {name: [translated(one.message) for one in faults] for name, faults in error.error_dict.items()}
            self.add_error(None, ValidationError(told))
        return given


@admin.register(APIKey)
class APIKeyAdmin(OperatingAdmin):
    editing = ("add", "delete")
    form = APIKeyForm
    shown_once = True
    list_display = ("name", "begins", "status", "its_scopes", "its_queues", "its_types", "expires", "used")
    search_fields = ("name", "prefix")
    ordering = ("name",)
    verbs = actions = VERBS
    shown = (
        "name", "begins", "status", "its_scopes", "its_queues", "its_types", "created", "expires", "used", "revoked",
    )  # fmt: skip

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.shown if obj else APIKeyForm.Meta.fields

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        def issue() -> None:
            obj.text = keys.issue(obj)

        self.save_audited(request, form, obj, "apikey.create", issue)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        found = APIKey.objects.filter(pk=obj.pk)
        audit.perform(found.delete, self.audit_entry(request, "apikey.delete", obj.name))

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        for key in queryset:
            self.delete_model(request, key)

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: str | None = None) -> HttpResponse:
        """The page with the key itself: nothing but this answer ever holds it."""
        return self.page_once(request, "key_made", gettext("API key made"), key=obj, back=self.own_url("changelist"))

    begins = display.column(display.code, "prefix", "begins with")
    its_scopes = display.column(display.codes, "scopes", "scopes")
    created = display.column(display.when, "created_at", "created")
    expires = display.column(display.when, "expires_at", "expires")
    used = display.column(display.when, "last_used_at", "last used")
    revoked = display.column(display.when, "revoked_at", "revoked")

    @admin.display(description=_("status"))
    def status(self, key: APIKey) -> SafeString:
        status = keys.status(key)
        return display.colour_label(status, "good" if status == "active" else "")

    @admin.display(description=_("queues"))
    def its_queues(self, key: APIKey) -> SafeString | str:
        return display.codes(key.queues, otherwise=gettext("all"))

    @admin.display(description=_("job types"))
    def its_types(self, key: APIKey) -> SafeString | str:
        return display.codes(key.job_types, otherwise=gettext("all"))
