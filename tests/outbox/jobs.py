from __future__ import annotations

from django.contrib.auth.models import Group

from django_ojs import chain, enqueue_after_commit, job


@job("order.hand_on", transactional="jobs", retry={"max_attempts": 1})
def hand_on(name: str) -> None:
    """Its writes, its completion and the jobs that it enqueues are one transaction."""
    ship.enqueue(name)
    chain(ship.s(f"{name} again")).enqueue()
    enqueue_after_commit("order.ship", f"{name} at last")
    if name == "bad":
        raise ValueError(name)


@job("order.ship", retry={"max_attempts": 1})
def ship(name: str) -> str:
    """Leaves a trace for every run: a second one would show."""
    Group.objects.create(name=f"shipped {name} {Group.objects.count()}")
    return name
