"""The state of each worker (orchestration 3.8), and which job types and queues they serve."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from django.db.models import Count, IntegerField, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce

from django_ojs import clock, states
from django_ojs.conf import ojs_settings
from django_ojs.database import database
from django_ojs.models import Job, Queue, Worker
from django_ojs.states import State
from django_ojs.statistics.counters import Counts, count_all
from django_ojs.workers.registration import mood


def with_held(workers: QuerySet[Worker]) -> QuerySet[Worker]:
    """These workers, each with the number of jobs that it holds in `held`, by the index of what workers hold."""
    own = Job.objects.filter(state=State.ACTIVE, worker_id=OuterRef("pk")).order_by().values("worker_id")
    count = Subquery(own.annotate(count=Count("pk")).values("count"), output_field=IntegerField())
    found: QuerySet[Worker] = workers.annotate(held=Coalesce(count, 0))  # type: ignore[no-redef]
    return found


def is_stale(worker: Worker, now: dt.datetime) -> bool:
    """Whether it has been silent for so long that it counts as dead, or, if it never beat, as gone."""
    return now - worker.heard_at > dt.timedelta(seconds=ojs_settings.HEARTBEAT_TIMEOUT)


def state_of(worker: Worker, now: dt.datetime) -> str:
    """`running`, `quiet` or `terminate`, as it last reported, or `stale`."""
    return "stale" if is_stale(worker, now) else worker.state


def served_types(using: str) -> set[str] | None:
    """The job types for which a serving worker has a handler; None while one serves that may have any.

    A worker that does not say which types it has, as most clients of other languages, may serve any.
    """
    served: set[str] = set()
    for worker in _serving(using):
        if worker.job_types is None:
            return None
        served.update(worker.job_types)
    return served


def unserved_types(using: str | None = None) -> dict[str, int]:
    """Types of waiting and active jobs that no live worker serves, with the number of jobs; the largest number first.

    While a worker is alive that may serve any type, nothing is reported. Scans the waiting jobs, so it is for people
    and for the scheduler once a minute, not for each job.
    """
    using = database(using)
    served = served_types(using)
    if served is None:
        return {}
    waiting = states.ordered(states.WAITING | {State.ACTIVE})
    jobs = Job.objects.using(using).filter(state__in=waiting).exclude(type__in=served)
    return dict(jobs.values_list("type").annotate(count=Count("pk")).order_by("-count", "type"))


def unserved_queues(counted: Mapping[str, Counts] | None = None, *, using: str | None = None) -> dict[str, int]:
    """Queues with available jobs that no live worker takes jobs from: the number of those jobs by queue, the largest
    number first.

    Workers of every kind count, also those over HTTP; one that is silent, quiet or terminating does not. While a
    worker serves that names no queue, nothing is reported, as it may take from any. A worker of all queues names a new
    queue with its next heartbeat, so a worker that was last heard before the queue's row was made counts as serving it.

    `counted` are the counts of all queues, where the caller has them; nothing here reads jobs.
    """
    using = database(using)
    if counted is None:
        counted = count_all(using=using)
    waiting = {name: counts.states[State.AVAILABLE] for name, counts in counted.items()}
    waiting = {name: number for name, number in waiting.items() if number > 0}
    heard: list[dt.datetime] = []
    for worker in _serving(using) if waiting else ():
        if not worker.queues:
            return {}
        for name in worker.queues:
            waiting.pop(name, None)
        heard.append(worker.last_seen_at)
    if waiting and heard:
        young = Queue.objects.using(using).filter(name__in=list(waiting), created_at__gt=min(heard))
        for name in young.values_list("name", flat=True):
            del waiting[name]
    return dict(sorted(waiting.items(), key=lambda item: (-item[1], item[0])))


def _serving(using: str) -> list[Worker]:
    """The workers that were heard lately and take jobs."""
    edge = clock.now(using) - dt.timedelta(seconds=ojs_settings.HEARTBEAT_TIMEOUT)
    alive = Worker.objects.using(using).filter(last_seen_at__gt=edge)
    facts = alive.only("state", "directive", "queues", "job_types", "last_seen_at")
    return [worker for worker in facts if mood(worker) == "running"]
