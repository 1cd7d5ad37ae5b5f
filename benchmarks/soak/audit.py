"""At the end: whether rows and counters say what the event log said."""

from __future__ import annotations

import uuid
from collections import Counter

from django.db.models import Count, Sum

from benchmarks.soak.ledger import ENDS, Ledger
from django_ojs.models import Event, Job, QueueMinute
from django_ojs.states import State
from django_ojs.statistics import counters

CHUNK = 500


def audit(ledger: Ledger) -> None:
    """Add to the ledger's faults what the database has otherwise."""
    live = Job.objects.live().count()
    if live:
        ledger.faults.append(f"{live} rows of jobs are not in a terminal state.")
    while counters.fold():
        pass
    _compare_rows(ledger)
    _compare_work(ledger)
    _compare_counts(ledger)


def _compare_rows(ledger: Ledger) -> None:
    """Each row that has not been pruned yet, with its last event."""
    rows = {pk: (state, attempt) for pk, state, attempt in Job.objects.values_list("pk", "state", "attempt")}
    ids = list(rows)
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        ends = Event.objects.filter(job_id__in=chunk, type__in=ENDS)
        logged: dict[uuid.UUID | None, list[tuple[str, int]]] = {}
        for job_id, state, attempt in ends.values_list("job_id", "state", "attempt"):
            logged.setdefault(job_id, []).append((state, attempt))
        for pk in chunk:
            if logged.get(pk) != [rows[pk]]:
                ledger.faults.append(f"The row of {pk} says {rows[pk]}, its events say {logged.get(pk)}.")


def _compare_work(ledger: Ledger) -> None:
    """What the queues' minutes say was done, pruned jobs included, with what the log said."""
    sums = QueueMinute.objects.values_list("queue").annotate(Sum("started"), Sum("completed"), Sum("failed"))
    found = {queue: Counter(started=s, completed=c, failed=f) for queue, s, c, f in sums}
    for queue in sorted(found.keys() | ledger.by_queue.keys()):
        counted, heard = found.get(queue, Counter()), ledger.by_queue.get(queue, Counter())
        if counted != heard:
            ledger.faults.append(f"Queue {queue}: counters say {dict(counted)}, the log says {dict(heard)}.")


def _compare_counts(ledger: Ledger) -> None:
    """The exact counts of jobs, which pruning has changed too, with the rows themselves."""
    rows = {(queue, state): n for queue, state, n in Job.objects.values_list("queue", "state").annotate(Count("pk"))}
    for queue, count in counters.count_all().items():
        there = {state.value: rows.get((queue, state.value), 0) for state in State}
        if count.states != there:
            ledger.faults.append(f"Queue {queue}: counted as {count.states}, there are {there}.")
