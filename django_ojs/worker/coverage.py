"""Which waiting jobs nobody will fetch: types without a worker that has a handler for them."""

from __future__ import annotations

from django.db.models import Count

from django_ojs import states
from django_ojs.models import Job
from django_ojs.operations.common import database
from django_ojs.operations.roster import served_types
from django_ojs.states import State


def unserved_types(using: str | None = None) -> dict[str, int]:
    """Types of waiting jobs that no live worker serves, with the number of jobs; the largest number first.

    While a worker is alive that may serve any type, nothing is reported. Scans the waiting jobs: for people
    and once a minute, not for each job.
    """
    using = database(using)
    served = served_types(using)
    if served is None:
        return {}
    waiting = states.ordered(states.WAITING | {State.ACTIVE})
    counts = (
        Job.objects.using(using)
        .filter(state__in=waiting)
        .exclude(type__in=served)
        .values_list("type")
        .annotate(count=Count("pk"))
        .order_by("-count", "type")
    )
    return dict(counts)
