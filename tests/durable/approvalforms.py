"""Forms that the tests of approvals fill in."""

from __future__ import annotations

from django import forms


class RefundForm(forms.Form):
    amount = forms.DecimalField(max_digits=8, decimal_places=2, max_value=500)
    on = forms.DateField(required=False)


class JSONForm(forms.Form):
    extra = forms.JSONField()
