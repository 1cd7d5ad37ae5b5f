"""What the tests of queues share: the counts, compared with the jobs themselves."""

from __future__ import annotations

from collections import Counter

from django_ojs.models import Job
from django_ojs.states import State
from django_ojs.statistics import counters


def assert_exact() -> None:
    """The counts say what a scan of the jobs says."""
    scanned: dict[str, Counter[str]] = {}
    for queue, state, dead in Job.objects.values_list("queue", "state", "dead_letter"):
        scanned.setdefault(queue, Counter()).update([state, *(["dead"] if dead else [])])
    counted = counters.count_all()
    for queue in scanned.keys() | counted.keys():
        found = counted.get(queue)
        told = {**found.states, "dead": found.dead} if found else {}
        expected = scanned.get(queue, Counter())
        assert {name: n for name, n in told.items() if n} == {n: c for n, c in expected.items() if c}, queue
        assert set(told) <= {*map(str, State), "dead"}
