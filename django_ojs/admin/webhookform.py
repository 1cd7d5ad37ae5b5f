"""The form of a webhook: it makes what a client would send, and has it read by the code that reads it over HTTP."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from django_ojs.admin.forms import LinesField
from django_ojs.admin.refusals import local
from django_ojs.errors import OJSError
from django_ojs.models import WebhookSubscription
from django_ojs.webhooks import definition


class WebhookForm(forms.ModelForm):  # type: ignore[type-arg]
    url = forms.CharField(max_length=2048, widget=forms.TextInput(attrs={"class": "vLargeTextField"}))
    events = LinesField(label=_("Events"), help_text=_("One a line: job.completed, job.* or *."))
    queues = LinesField(required=False, label=_("Queues"), help_text=_("One a line. Empty: all queues."))
    job_types = LinesField(
        required=False, label=_("Job types"), help_text=_("One a line, such as mail.send or mail.*. Empty: all types.")
    )

    class Meta:
        model = WebhookSubscription
        fields = ("url", "events", "queues", "job_types", "timeout_seconds", "signature_format")

    def clean(self) -> dict[str, Any]:
        super().clean()
        given = dict(self.cleaned_data)
        if self.errors:
            return given
        filters = {name: given.pop(name) or None for name in ("queues", "job_types")}
        try:
            self.definition = definition.parse({**given, "filter": filters}, partial=bool(self.instance.created_at))
        except OJSError as error:
            field = str(error.details.get("field", "")).removeprefix("filter.")
            self.add_error(field if field in self.fields else None, ValidationError(local(error)))
        return self.cleaned_data

    def _post_clean(self) -> None:
        """The operations check and write; the row itself is not touched here."""
