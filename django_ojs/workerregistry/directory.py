"""Tells the state of each worker (orchestration 3.8), and which workers serve a job type or a queue."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from django.db.models import Count, IntegerField, OuterRef, Q, QuerySet, Subquery, TextField, Value
from django.db.models.functions import Cast, Coalesce

from django_ojs import clock, jsontext
from django_ojs.conf import ojs_settings
from django_ojs.database import database
from django_ojs.models import Job, Maintenance, Queue, Worker
from django_ojs.models.queue import TEMPLATE
from django_ojs.states import State
from django_ojs.statistics.counters import Counts, count_all
from django_ojs.workerregistry.registration import effective_state


def with_held(workers: QuerySet[Worker], counted: Q = Q()) -> QuerySet[Worker]:  # noqa: B008 - it is never changed
    """These workers, each with the number of jobs that it holds in `held`, by the index of what workers hold; of jobs
    that are `counted`."""
    held = Job.objects.filter(counted, state=State.ACTIVE, worker_id=OuterRef("pk"))
    own = held.order_by().values("worker_id")
    count = Subquery(own.annotate(count=Count("pk")).values("count"), output_field=IntegerField())
    found: QuerySet[Worker] = workers.annotate(held=Coalesce(count, 0))  # type: ignore[no-redef]
    return found


def silent(using: str) -> list[Worker]:
    """The workers that sent heartbeats and have stopped, without deregistering. One that only ever fetched has
    promised none, and counts as gone."""
    now = clock.now(using)
    beating = Worker.objects.using(using).exclude(last_heartbeat_at=None)
    return [worker for worker in beating.only("hostname", "pid", "last_heartbeat_at") if worker.is_stale(now)]


def state_of(worker: Worker, now: dt.datetime) -> str:
    """`running`, `quiet` or `terminate`, as it last reported, or `stale`."""
    return "stale" if worker.is_stale(now) else worker.state


def served_types(using: str, *, leaving: bool = False) -> set[str] | None:
    """The job types for which a serving worker has a handler; None while one serves that may have any.

    A worker that does not say which types it has, as most clients of other languages, may serve any. With `leaving`,
    workers that finish their last jobs count, too.
    """
    served: set[str] = set()
    for worker in serving(using, leaving=leaving):
        if worker.job_types is None:
            return None
        served.update(worker.job_types)
    return served


def unserved_among(types: Mapping[str, int], using: str) -> dict[str, int]:
    """Those of these job types, with their numbers of jobs, that no live worker serves; the largest number first. As
    with `unserved_types`, nothing is reported while a worker is alive that may serve any type."""
    served = served_types(using) if types else None
    if served is None:
        return {}
    found = {name: number for name, number in types.items() if name not in served}
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def unserved_types(using: str | None = None, *, leaving: bool = False) -> dict[str, int]:
    """Types of waiting and active jobs that no live worker serves, with the number of jobs; the largest number first.

    While a worker is alive that may serve any type, nothing is reported. With `leaving`, workers that finish their last
    jobs count as serving. Scans the waiting jobs, so it is for people and for the scheduler once a minute, not for each
    job.
    """
    using = database(using)
    served = served_types(using, leaving=leaving)
    if served is None:
        return {}
    jobs = Job.objects.using(using).live().exclude(type__in=served)
    return dict(jobs.values_list("type").annotate(count=Count("pk")).order_by("-count", "type"))


def unserved_queues(
    counted: Mapping[str, Counts] | None = None, *, leaving: bool = False, using: str | None = None
) -> dict[str, int]:
    """Queues with available jobs that no live worker takes jobs from: the number of those jobs by queue, the largest
    number first.

    Workers of every kind count, also those over HTTP; one that is silent, quiet or (without `leaving`) terminating does
    not. While a worker serves that names no queue, nothing is reported, as it may take from any. A worker of all queues
    names a new queue with its next heartbeat, so a worker that was last heard before the queue's row was made counts as
    serving it.

    `counted` are the counts of all queues, where the caller has them; nothing here reads jobs.
    """
    using = database(using)
    if counted is None:
        counted = count_all(using=using)
    if not _waiting(counted):
        return {}

    def younger(names: Collection[str], than: dt.datetime) -> Iterable[str]:
        found = Queue.objects.using(using).filter(name__in=names, created_at__gt=than)
        return found.values_list("name", flat=True)

    return _unserved(counted, serving(using, leaving=leaving), younger)


def _unserved(
    counted: Mapping[str, Counts],
    serving: Iterable[Worker],
    younger: Callable[[Collection[str], dt.datetime], Iterable[str]],
) -> dict[str, int]:
    """`unserved_queues` of these workers; `younger` finds which of some queues were made after an instant."""
    waiting = _waiting(counted)
    heard: list[dt.datetime] = []
    for worker in serving:
        if not worker.queues:
            return {}
        for name in worker.queues:
            waiting.pop(name, None)
        heard.append(worker.last_seen_at)
    if waiting and heard:
        for name in younger(list(waiting), min(heard)):
            del waiting[name]
    return dict(sorted(waiting.items(), key=lambda item: (-item[1], item[0])))


def _waiting(counted: Mapping[str, Counts]) -> dict[str, int]:
    """The number of available jobs of each queue that has any."""
    numbers = {name: counts.states[State.AVAILABLE] for name, counts in counted.items()}
    return {name: number for name, number in numbers.items() if number > 0}


@dataclasses.dataclass(frozen=True, slots=True)
class PresenceCounts:
    """Who is there, for those who look often: numbers of queues and workers, and the queues that no worker serves."""

    maintenance: bool
    queues: int
    paused: int
    workers: int
    #: Workers that were heard within the heartbeat timeout.
    connected: int
    unserved: dict[str, int]


def presence(counted: Mapping[str, Counts], *, using: str | None = None) -> PresenceCounts:
    """All of it in one statement; `counted` are the counts of all queues."""
    using = database(using)
    nothing, edge = Value("", TextField()), _edge(using)
    named = Queue.objects.using(using).exclude(name=TEMPLATE).order_by()
    found = named.values_list(Value("queue"), "name", "paused", "created_at", nothing, nothing, nothing).union(
        Worker.objects.using(using)
        .order_by()
        .values_list(  # the name as text: MariaDB makes no union of columns of two binary collations
            *(Value("worker"), Cast("pk", TextField()), Value(False), "last_seen_at"),
            *(Cast("queues", TextField()), "state", "directive"),
        ),
        Maintenance.objects.using(using).values_list(
            Value("maintenance"), nothing, Value(True), "enabled_at", nothing, nothing, nothing
        ),
        all=True,
    )
    rows: dict[str, list[Any]] = {"queue": [], "worker": [], "maintenance": []}
    for kind, *facts in found:
        rows[kind].append(facts)
    made = {name: at for name, _, at, *_ in rows["queue"]}
    heard = [
        Worker(pk=pk, last_seen_at=at, queues=_names(queues), state=state, directive=directive)
        for pk, _, at, queues, state, directive in rows["worker"]
        if at >= edge
    ]
    return PresenceCounts(
        maintenance=bool(rows["maintenance"]),
        queues=len(made),
        paused=sum(bool(paused) for _, paused, *_ in rows["queue"]),
        workers=len(rows["worker"]),
        connected=len(heard),
        unserved=_unserved(
            counted,
            (worker for worker in heard if effective_state(worker) == "running"),
            lambda names, than: [name for name in names if name in made and made[name] > than],
        ),
    )


def _names(text: str) -> Any:
    return jsontext.loads(text) if text else None


def connected(using: str) -> QuerySet[Worker]:
    """The workers, of any language, that were heard within the heartbeat timeout."""
    return Worker.objects.using(using).filter(last_seen_at__gte=_edge(using))


def _edge(using: str) -> dt.datetime:
    """Since when a worker must have been heard to count as there."""
    return clock.now(using) - dt.timedelta(seconds=ojs_settings.HEARTBEAT_TIMEOUT)


def slots(queue: str, using: str | None = None) -> int:
    """How many jobs of this queue the serving workers can run at the same time: those that name it, or no queue."""
    found = serving(database(using))
    return sum(worker.concurrency for worker in found if not worker.queues or queue in worker.queues)


def serving(using: str, *, leaving: bool = False) -> list[Worker]:
    """The workers that were heard lately and take jobs; with `leaving`, also those that finish their last jobs."""
    facts = connected(using).only("state", "directive", "queues", "job_types", "concurrency", "last_seen_at")
    return [
        worker
        for worker in facts
        if effective_state(worker) == "running" or (leaving and effective_state(worker) == "terminate")
    ]
