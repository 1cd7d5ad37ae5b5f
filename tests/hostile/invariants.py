"""What must hold in the database after anything. `violations(ledger)` says in words what does not.

Also a program, for the database of a server in another process: the ledger comes in as JSON, the violations
go out as JSON.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import django
from django.apps import apps
from django.db.models import CheckConstraint, Q


def violations(accepted: Iterable[str], deleted: Iterable[str], unheard: int = 0) -> list[str]:
    """`unheard`: how many answers never came, so that as many jobs more may have been accepted, or deleted."""
    return [*_books(set(accepted), set(deleted), unheard), *_rows(), *_histories(), *_constraints(), *_orphans()]


def _books(accepted: set[str], deleted: set[str], unheard: int) -> Iterator[str]:
    """Every accepted push is one row, and no other row exists."""
    from django_ojs.models import CronRun, Job

    stored = {str(pk) for pk in Job.objects.values_list("pk", flat=True)}
    if len(lost := accepted - deleted - stored) > unheard:
        yield f"accepted, but not stored: {sorted(lost)}"
    scheduled = {str(pk) for pk in CronRun.objects.values_list("job_id", flat=True)}
    if strange := scheduled - stored - deleted:
        yield f"runs of schedules, but no jobs: {sorted(strange)}"
    flows = {str(pk) for pk in Job.objects.exclude(workflow_id=None).values_list("pk", flat=True)}
    if len(unasked := stored - accepted - scheduled - flows) > unheard:
        yield f"stored, but never accepted: {sorted(unasked)}"
    if kept := deleted & stored:
        yield f"deleted, but still stored: {sorted(kept)}"


def _rows() -> Iterator[str]:
    """Every row can be read in both ways, and its derived columns agree with the others."""
    from django_ojs import clock, jsontext
    from django_ojs.lifecycle.transitions import wake_at
    from django_ojs.models import CronSchedule, Job
    from django_ojs.rules import cron, envelope, retrypolicy

    for row in Job.objects.rows():
        shown = jsontext.loads(jsontext.dumps(envelope.render(row)))
        if shown["id"] != str(row["id"]) or shown["state"] != row["state"]:
            yield f"{row['id']} is not shown as it is: {shown}"
        if row["wake_at"] != wake_at(row):
            yield f"{row['id']} ({row['state']}) would wake at {row['wake_at']}, not {wake_at(row)}"
        if {row["visible_until"] is None, row["timeout_at"] is None} != {row["state"] != "active"}:
            yield f"{row['id']} is {row['state']}, reserved until {row['visible_until']} and {row['timeout_at']}"
        if row["retry"] and retrypolicy.from_json(row["retry"]).max_attempts > row["max_attempts"]:
            yield f"{row['id']} has fewer attempts than its policy: {row['max_attempts']}"
    for schedule in CronSchedule.objects.all():
        if cron.render(schedule)["name"] != schedule.name:
            yield f"{schedule.name} is not shown as it is"
        cron.parse({}, now=clock.now(), base=schedule)
    for model in apps.get_app_config("django_ojs").get_models():
        for instance in model._default_manager.iterator():
            str(instance)  # the JSON columns have been read


def _histories() -> Iterator[str]:
    """State and attempt of each job agree with what its events tell."""
    from django_ojs.models import Event, Job

    told: dict[Any, list[Any]] = defaultdict(list)
    for job_id, *event in (
        Event.objects.exclude(job_id=None).order_by("id").values_list("job_id", "type", "state", "attempt")
    ):
        told[job_id].append(tuple(event))
    for pk, state, attempt in Job.objects.values_list("pk", "state", "attempt"):
        events = told.pop(pk, [])
        if any(name == "job.purged" for name, _, _ in events):  # a caller has erased its history
            continue
        revived = max(
            (i for i, (name, _, _) in enumerate(events) if name in ("dead_letter.retried", "dead_letter.replayed")),
            default=-1,
        )
        started = sum(name == "job.started" for name, _, _ in events[revived + 1 :])
        if started != attempt:
            yield f"{pk} is at attempt {attempt}, its events tell of {started}: {events}"
        if not _agrees(state, events[-1][1] if events else None):
            yield f"{pk} is {state}, its events tell otherwise: {events}"
    gone = {pk: events[-1][0] for pk, events in told.items() if events[-1][0] != "dead_letter.deleted"}
    if gone:
        yield f"events of jobs that do not exist: {gone}"


def _agrees(state: str, told: str | None) -> bool:
    """The end of a backoff and a hand-back have no event of their own, nor has the birth of a staged job."""
    if told is None:
        return state in ("pending", "cancelled")
    return state == told or (state == "available" and told in ("retryable", "active"))


def _constraints() -> Iterator[str]:
    """The CHECK constraints, asked once more: a database may have been told not to enforce them."""
    from django_ojs.models import Job

    for constraint in Job._meta.constraints:
        if isinstance(constraint, CheckConstraint):
            broken = Job.objects.filter(~Q(constraint.condition)).values_list("pk", flat=True)
            if found := [str(pk) for pk in broken]:
                yield f"{constraint.name} does not hold for {found}"


def _orphans() -> Iterator[str]:
    """No queue with work and without a row, no key without its answer, no answer without its job."""
    from django_ojs.models import Event, IdempotencyKey, Job, Queue

    named = set(Job.objects.live().order_by().values_list("queue", flat=True).distinct())
    if homeless := named - set(Queue.objects.values_list("name", flat=True)):
        yield f"queues without a row: {sorted(homeless)}"
    born = set(Event.objects.exclude(job_id=None).values_list("job_id", flat=True)) | set(
        Job.objects.values_list("pk", flat=True)
    )
    for key in IdempotencyKey.objects.all():
        if key.status is None:
            yield f"the idempotency key {key} has no answer"
            continue
        body = json.loads(key.body)
        for job in [body["job"]] if "job" in body else [] if "workflow" in body else body["jobs"]:
            if job["id"] not in {str(pk) for pk in born}:
                yield f"the idempotency key {key} remembers a job that was never there"


if __name__ == "__main__":
    django.setup()
    print(json.dumps(violations(**json.load(sys.stdin))))
