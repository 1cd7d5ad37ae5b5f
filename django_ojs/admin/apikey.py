"""API keys: made here, shown once, revoked. What a key may do is never changed: make another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.contrib.admin.widgets import AdminSplitDateTime
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.cache import add_never_cache_headers
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_ojs import audit, keys
from django_ojs.admin import auditing, columns, display
from django_ojs.admin.operate import OperatingAdmin, Verb, as_action
from django_ojs.errors import Conflict, NotFound
from django_ojs.messages import phrase
from django_ojs.models import APIKey


def _revoke(pks: Sequence[int], by: str) -> list[Any]:
    found = APIKey.objects.in_bulk(list(pks))
    return [_revoke_one(found[pk]) if pk in found else NotFound.resource("api_key", str(pk)) for pk in pks]


def _revoke_one(key: APIKey) -> Any:
    return key if keys.revoke(key) else Conflict(phrase("'%(name)s' was revoked before.", name=key.name))


VERBS = (
    Verb(
        "revoke_keys", "Revoke", "revoked", _revoke, lambda key: key.revoked_at is None,
        question="Calls with a revoked key are refused at once and for ever.",
    ),
)  # fmt: skip


class EntriesField(forms.CharField):
    """Names, one a line; empty means no limit."""

    widget = forms.Textarea(attrs={"rows": 3, "class": "vLargeTextField"})

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(required=False, **kwargs)

    def clean(self, value: Any) -> list[str] | None:
        return keys.distinct(super().clean(value).replace(",", "\n").splitlines()) or None


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
    queues = EntriesField(
        label=_("Queues"), help_text=_("One a line: the key is limited to these queues. Empty: all queues.")
    )
    job_types = EntriesField(
        label=_("Job types"), help_text=_("One a line, such as mail.send or mail.*: limits the key. Empty: all types.")
    )

    class Meta:
        model = APIKey
        fields = ("name", "scopes", "queues", "job_types", "expires_at")
        widgets = {"expires_at": MomentInput}
        help_texts = {"name": _("What the key is for; shown in lists and logs."), "expires_at": _("Empty: never.")}

    def clean(self) -> dict[str, Any]:
        super().clean()
        given = self.cleaned_data
        try:
            keys.validate(
                given.get("name", "x"), given.get("scopes", ["read"]), given.get("queues"), given.get("job_types"),
                given.get("expires_at"),
            )  # fmt: skip
        except ValidationError as error:
            self.add_error(None, error)
        return given


@admin.register(APIKey)
class APIKeyAdmin(OperatingAdmin):
    form = APIKeyForm
    list_display = ("name", "begins", "status", "its_scopes", "its_queues", "its_types", "expires", "used")
    search_fields = ("name", "prefix")
    ordering = ("name",)
    verbs: ClassVar[Sequence[Verb]] = VERBS
    actions = [as_action(verb) for verb in VERBS]
    shown = (
        "name", "begins", "status", "its_scopes", "its_queues", "its_types", "created", "expires", "used", "revoked",
    )  # fmt: skip

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self._has_right(request, "add")

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self._has_right(request, "delete")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.shown if obj else APIKeyForm.Meta.fields

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.shown if obj else ()

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        def issue() -> None:
            obj.text = keys.issue(obj)

        auditing.saved(request, form, obj, "apikey.create", issue)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        found = APIKey.objects.filter(pk=obj.pk)
        audit.perform(found.delete, auditing.entry(request, "apikey.delete", obj.name))

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        for key in queryset:
            self.delete_model(request, key)

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        only_save = {"show_save_and_add_another": False, "show_save_and_continue": False}
        return super().add_view(request, form_url, {**(extra_context or {}), **only_save})

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: str | None = None) -> HttpResponse:
        """The page with the key itself, not a redirect: nothing but this answer ever holds it."""
        context = {
            **self.admin_site.each_context(request),
            "title": gettext("API key made"),
            "opts": self.opts,
            "media": self.media,
            "key": obj,
            "back": self._url("changelist"),
        }
        response = TemplateResponse(request, "django_ojs/admin/key_made.html", context)
        add_never_cache_headers(response)
        return response

    begins = columns.code("prefix", "begins with")
    its_scopes = columns.codes("scopes", "scopes")
    created = columns.time("created_at", "created")
    expires = columns.time("expires_at", "expires")
    used = columns.time("last_used_at", "last used")
    revoked = columns.time("revoked_at", "revoked")

    @admin.display(description=_("status"))
    def status(self, key: APIKey) -> SafeString:
        status = keys.status(key)
        return display.label(status, "good" if status == "active" else "")

    @admin.display(description=_("queues"))
    def its_queues(self, key: APIKey) -> SafeString | str:
        return display.codes(key.queues, otherwise=gettext("all"))

    @admin.display(description=_("job types"))
    def its_types(self, key: APIKey) -> SafeString | str:
        return display.codes(key.job_types, otherwise=gettext("all"))
