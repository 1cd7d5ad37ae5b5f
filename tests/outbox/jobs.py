from __future__ import annotations

from django.contrib.auth.models import Group

from django_ojs import job


@job("order.ship", retry={"max_attempts": 1})
def ship(name: str) -> str:
    """Leaves a trace for every run: a second one would show."""
    Group.objects.create(name=f"shipped {name} {Group.objects.count()}")
    return name
