"""Registers workers, gives them directives and forgets them (orchestration 3.3 to 3.9).

A worker that only ever fetched is known by name but never declared dead: its jobs come back when their
reservation ends.
"""

from __future__ import annotations

import datetime as dt
import signal
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from django.db.models import Q

from django_ojs import clock
from django_ojs.database import atomic, database, retried
from django_ojs.errors import Conflict, NotFound, PermissionDenied
from django_ojs.events import catalogue, log, order
from django_ojs.events.catalogue import Record
from django_ojs.lifecycle.reservations import release
from django_ojs.models import Worker
from django_ojs.states import State
from django_ojs.statistics import eventcounts
from django_ojs.store import store_of
from django_ojs.store.values import WorkerPresence
from django_ojs.workerregistry import ownership, releases
from django_ojs.workerregistry.ownership import Principal

#: What a worker may tell about itself.
FACTS = ("hostname", "pid", "queues", "job_types", "labels", "concurrency", "version", "release", "memory_mb",
         "cpu_percent", "jobs_completed", "active_jobs", "threads_replaced")  # fmt: skip
#: Those that may be long: a heartbeat that repeats one does not write it again.
LISTS = frozenset({"queues", "job_types", "labels"})
#: How fresh `last_seen_at` of a worker that only fetches is kept, in seconds: not a write at each FETCH.
SEEN_EVERY = 15
_STALE = dt.timedelta(seconds=SEEN_EVERY / 3)  # how old what is noted is that `seen` renews


class NameInUse(Conflict):
    """Another process has this worker's name.

    `incarnation` is that process, `state` what it reported last, `heard_at` when, and `silence` how many seconds ago.
    """

    hint = "Give every worker a name of its own, or none."

    def __init__(self, worker: Worker, now: dt.datetime) -> None:
        self.incarnation, self.state, self.heard_at = worker.incarnation, worker.state, worker.last_heartbeat_at
        self.silence = (now - worker.last_heartbeat_at).total_seconds() if worker.last_heartbeat_at else 0.0
        self.process = f"The process {worker.pid or 'without a number'} on {worker.hostname or 'an unknown host'}"
        super().__init__(
            f"{self.process} has the worker name {worker.pk!r}; it was heard of {self.silence:.0f} s ago.",
            details={"resource_type": "worker", "resource_id": worker.pk},
        )


@retried
def register(
    worker_id: str, info: Mapping[str, Any], *, who: Principal | None = None, using: str | None = None
) -> Worker:
    """Note a worker, or what it newly says of itself. It counts as a heartbeat.

    Raises PermissionDenied if the worker is another principal's than `who` (`ownership`).
    """
    using = database(using)
    with atomic(using=using):
        now = clock.now(using)
        worker, records = meet(worker_id, info, now, using, who=who)
        worker.last_heartbeat_at = now
        worker.state = "running"  # the answer tells it no order, so one to run is kept for its next heartbeat
        _has_restarted(worker)
        worker.save(using=using)
        log.append(records, using)
    return worker


@retried
def deregister(
    worker_id: str, *, reason: str = "shutdown", incarnation: str = "", who: Principal | None = None,
    using: str | None = None,
) -> int:  # fmt: skip
    """Forget a worker and hand back what it still holds; return how many jobs. Raises `NotFound`.

    With `incarnation` only if the worker is still that process: another may have come under its name. Raises
    PermissionDenied if the worker is another principal's than `who`.
    """
    using = database(using)
    if not incarnation and Worker.objects.using(using).filter(pk=worker_id, counts_itself=False).exists():
        order.catch_up(using)
        eventcounts.catch_up(using)  # which counts what it completed
    with atomic(using=using):
        worker = locked(worker_id, incarnation, using)
        if worker is None:
            raise NotFound.resource("worker", worker_id)
        ownership.check(worker, who, clock.now(using))
        held = store_of(using).lock_where(Q(worker_id=worker_id, state=State.ACTIVE))
        now = clock.now(using)
        release(held, now, using)
        quiets = incarnation and reason != "error" and effective_state(worker) == "running"
        ends = [turned_quiet(worker, now)] if quiets else []
        log.append([*ends, *terminated_events(worker, now, reason)], using)
        worker.delete(using=using)
    return len(held)


@retried
def requeue_unknown(
    known: Collection[uuid.UUID], worker_id: str, *, incarnation: str = "", using: str | None = None
) -> list[uuid.UUID]:
    """Hand back what this worker holds beside `known`: jobs of claims whose answer did not reach it.

    No handler ran them, so these attempts do not count against `max_attempts`. With `incarnation` nothing is handed
    back once another process has the worker's name.
    """
    using = database(using)
    with atomic(using=using):
        if incarnation and locked(worker_id, incarnation, using) is None:
            return []
        held = Q(worker_id=worker_id, state=State.ACTIVE) & ~Q(pk__in=list(known))
        rows = store_of(using).lock_where(held)
        ids = [row["id"] for row in rows]
        release(rows, clock.now(using), using, unrun=ids)
    return ids


@retried
def direct(worker_id: str, directive: str, *, using: str | None = None) -> Worker:
    """Tell a worker to go `quiet`, to `terminate`, to `restart` or to be `running` again. Raises `NotFound`.

    It learns it by its next heartbeat; until then FETCH gives it nothing. Sticky until replaced, and `running` until it
    runs (`take_report`). For a worker in another language `restart` means `terminate`: what started it may start it
    again.
    """
    using = database(using)
    with atomic(using=using):
        worker = Worker.objects.using(using).select_for_update().filter(pk=worker_id).first()
        if worker is None:
            raise NotFound.resource("worker", worker_id)
        was = effective_state(worker)
        worker.directive = Worker.Directive(directive)
        worker.save(using=using, update_fields=["directive"])
        if was == "running" != effective_state(worker):
            log.append([turned_quiet(worker, clock.now(using))], using)
    return worker


class Asking(NamedTuple):
    """A FETCH that names a worker ('' for none). `who` None: it is not asked whose the worker is."""

    worker_id: str
    who: Principal | None = None


class Admitted(NamedTuple):
    """Which FETCHes may have jobs: `refused` are workers that take none now, `denied` are the errors of calls, by their
    index, that name a worker of another principal."""

    refused: Collection[str]
    denied: Mapping[int, PermissionDenied]

    def has(self, index: int, worker_id: str) -> bool:
        """Whether this FETCH, of this worker, may have jobs."""
        return index not in self.denied and worker_id not in self.refused


#: Where no FETCH names a worker.
ALL = Admitted((), {})


def admit(
    asking: Sequence[Asking], known: Mapping[str, WorkerPresence], names: Sequence[str], now: dt.datetime, using: str
) -> Admitted:
    """Look at the workers of FETCHes; an unknown one is noted.

    `known` is what the database knows of them, `names` the queues that they ask for.
    """
    denied: dict[int, PermissionDenied] = {}
    owners: dict[str, str] = {}
    for index, (worker_id, who) in enumerate(asking):
        if not worker_id or who is None:
            continue
        owner = owners.get(worker_id) or (known[worker_id].owner if worker_id in known else who.id)
        if owner != who.id and not who.operator:
            try:
                owner = _claimed(worker_id, who, now, using)
            except PermissionDenied as error:
                denied[index] = error
                continue
        owners[worker_id] = owner
        ownership.remember_owner(worker_id, who, using)
    asked = {one.worker_id for index, one in enumerate(asking) if one.worker_id and index not in denied}
    for worker_id in sorted(asked - known.keys()):
        register_unheard(worker_id, names, now, using, owner=owners.get(worker_id, ""))
    for worker_id in sorted(asked & known.keys()):
        if known[worker_id].unseen:
            row = store_of(using).with_lock_timeout(Worker.objects.using(using).filter(pk=worker_id))
            row.update(last_seen_at=now, queues=list(names))
    return Admitted({name for name in asked & known.keys() if effective_state(known[name]) != "running"}, denied)


@retried
def record_fetch(worker_id: str, names: Sequence[str], who: Principal, *, using: str) -> None:
    """Note a worker that is about to fetch from these queues for a while.

    Raises PermissionDenied if it is another principal's.
    """
    row = Worker.objects.using(using).filter(pk=worker_id).values_list("state", "directive", "owner").first()
    known = {} if row is None else {worker_id: WorkerPresence(*row, unseen=False)}
    for error in admit([Asking(worker_id, who)], known, names, clock.now(using), using).denied.values():
        raise error


def _claimed(worker_id: str, who: Principal, now: dt.datetime, using: str) -> str:
    """The owner of a worker that was another's, or had none; it is stored where that is `who` now."""
    with atomic(using=using):
        worker = locked(worker_id, "", using)
        if worker is None:  # noted by an earlier call of this batch, or forgotten meanwhile
            raise ownership.refusal(worker_id, who)
        before = worker.owner
        ownership.take_name(worker, who, now)
        if worker.owner != before:
            worker.save(using=using, update_fields=["owner"])
    return worker.owner


@retried
def seen(workers: Mapping[str, Sequence[str]], *, using: str | None = None) -> None:
    """Note that these workers, given with the queues from which they wait for jobs, are there."""
    using = database(using)
    now = clock.now(using)
    found = Worker.objects.using(using).filter(pk__in=list(workers))
    known = dict(found.values_list("pk", "last_seen_at"))
    late = [worker_id for worker_id, at in known.items() if at < now - _STALE]
    for worker_id in sorted(workers.keys() - known.keys()):
        register_unheard(worker_id, workers[worker_id], now, using)
    if late:
        with atomic(using=using):  # locked by id, as everywhere; one that reports just now need not be noted
            rows = found.filter(pk__in=late).order_by("pk")
            free = rows.select_for_update(skip_locked=store_of(using).skip_locked).values_list("pk", flat=True)
            Worker.objects.using(using).filter(pk__in=list(free)).update(last_seen_at=now)


def register_unheard(worker_id: str, names: Sequence[str], now: dt.datetime, using: str, *, owner: str = "") -> None:
    """Note a worker of which only a FETCH is known."""
    with atomic(using=using):
        who = Principal(owner) if owner else None
        worker, records = meet(worker_id, {"queues": list(names)}, now, using, who=who)
        worker.save(using=using)
        log.append(records, using)


def locked(worker_id: str, incarnation: str, using: str) -> Worker | None:
    """The worker's row, locked; None if there is none, or if another process than `incarnation` has the name."""
    found = store_of(using).with_lock_timeout(Worker.objects.using(using).filter(pk=worker_id)).select_for_update()
    return (found.filter(incarnation=incarnation) if incarnation else found).first()


def meet(
    worker_id: str, info: Mapping[str, Any], now: dt.datetime, using: str, incarnation: str = "",
    who: Principal | None = None,
) -> tuple[Worker, list[Record]]:  # fmt: skip
    """The worker's row, locked and not yet saved, with what it says of itself; events if it is new.

    Our own workers say by `incarnation` which process they are. Raises `NameInUse` if another process has the name and
    has beaten. Workers in other languages name none; of them it raises PermissionDenied if the name is another
    principal's.
    """
    worker, created = (
        store_of(using)
        .with_lock_timeout(Worker.objects.using(using))
        .select_for_update()
        .get_or_create(pk=worker_id, defaults={"started_at": now, "last_seen_at": now})
    )
    if _comes_new(worker, info):
        releases.record_releases({worker_id: info["release"]}, now, using)
    return _introduced(worker, info, now, incarnation, who, created=created)


class Introduction(NamedTuple):
    """What a worker says of itself, which process it is, and who says so."""

    info: Mapping[str, Any]
    incarnation: str
    who: Principal | None


def register_many(
    given: Mapping[str, Introduction], now: dt.datetime, using: str
) -> dict[str, tuple[Worker, list[Record]] | NameInUse | PermissionDenied]:
    """`meet` for several workers.

    Their rows are locked in the order of their ids, by one statement where all are known.
    """
    rows = store_of(using).with_lock_timeout(Worker.objects.using(using).filter(pk__in=list(given)).order_by("pk"))
    rows = rows.select_for_update()
    known = {worker.pk: worker for worker in rows}
    new = {pk: given[pk].info["release"] for pk, worker in known.items() if _comes_new(worker, given[pk].info)}
    releases.record_releases(new, now, using)
    met: dict[str, tuple[Worker, list[Record]] | NameInUse | PermissionDenied] = {}
    for worker_id, (info, incarnation, who) in sorted(given.items(), key=lambda item: item[0]):
        try:
            if worker_id in known:
                met[worker_id] = _introduced(known[worker_id], info, now, incarnation, who, created=False)
            else:
                met[worker_id] = meet(worker_id, info, now, using, incarnation, who)
        except (NameInUse, PermissionDenied) as error:
            met[worker_id] = error
        else:
            ownership.remember_owner(worker_id, who, using)
    return met


def _has_restarted(worker: Worker) -> None:
    """Take back an order to restart, from a worker that registers or has another process: else it would never end."""
    if worker.directive == Worker.Directive.RESTART:
        worker.directive = ""


def _comes_new(worker: Worker, info: Mapping[str, Any]) -> bool:
    """Whether a worker says that it runs a release other than the one it ran so far."""
    return bool(info.get("release")) and worker.release != info["release"]


def _introduced(
    worker: Worker, info: Mapping[str, Any], now: dt.datetime, incarnation: str, who: Principal | None, *,
    created: bool,
) -> tuple[Worker, list[Record]]:  # fmt: skip
    """The worker with what it says of itself, not yet saved; events if it is new. Raises what `meet` raises."""
    ownership.take_name(worker, who, now)
    if incarnation and worker.incarnation != incarnation:
        if worker.last_heartbeat_at is not None:
            raise NameInUse(worker, now)
        worker.incarnation = incarnation
    worker.last_seen_at = now
    if info.get("pid") not in (None, worker.pid):
        _has_restarted(worker)
    for name in FACTS:
        if info.get(name) is not None:
            if name in LISTS and not created and getattr(worker, name) == info[name]:
                worker.unchanged.add(name)
            setattr(worker, name, info[name])
    worker.counts_itself = worker.counts_itself or info.get("jobs_completed") is not None
    if info.get("started_at") is not None:
        worker.started_at = info["started_at"]
    if not created:
        return worker, []
    facts = {"hostname": worker.hostname or "unknown", "queues": worker.queues, "concurrency": worker.concurrency}
    return worker, [
        catalogue.of_worker("worker.registered", worker.pk, now, **facts),
        catalogue.of_worker("worker.started", worker.pk, now, **facts),
    ]


def take_report(worker: Worker, state: str) -> None:
    """Note the state that a worker reports.

    An operator's order to run holds until the worker reports that it runs. A worker that gets SIGTSTP after that is
    quiet by its own signal, which no operator has taken back.
    """
    worker.state = state
    if state == worker.directive == Worker.Directive.RUNNING:
        worker.directive = ""


def turned_quiet(worker: Worker, now: dt.datetime) -> Record:
    """The event of a worker that claims nothing more: an operator made it quiet, or it is about to end."""
    return catalogue.of_worker("worker.quiet", worker.pk, now, active_jobs=worker.active_jobs)


def terminated_events(worker: Worker, now: dt.datetime, reason: str, **more: Any) -> list[Record]:
    """The events of a worker's end; `reason` of the second is one of the catalogue's three words. `more` is known of
    it, for the first."""
    uptime = round((now - worker.started_at).total_seconds() * 1000)
    facts = {"jobs_completed": worker.jobs_completed, "uptime_ms": uptime}
    return [
        catalogue.of_worker("worker.terminated", worker.pk, now, reason=reason, **more),
        catalogue.of_worker("worker.stopped", worker.pk, now, reason=_why_stopped(reason), **facts),
    ]


def _why_stopped(reason: str) -> str:
    """The word of the catalogue for a worker's reason: a worker may name the signal, as in `SIGTERM`."""
    if reason in ("shutdown", "signal", "error"):
        return reason
    return "signal" if reason.upper() in signal.Signals.__members__ else "error"


def ordered_state(directive: str) -> str:
    """The state that a directive orders; '' for none. A worker that is to restart has to terminate."""
    return "terminate" if directive == Worker.Directive.RESTART else directive


_SEVERITY = {"running": 0, "quiet": 1, "terminate": 2}


def effective_state(worker: Worker | WorkerPresence) -> str:
    """`running`, `quiet` or `terminate`: the more severe of what the worker reports and what an operator ordered.

    An operator's `running` overrides a reported `quiet` until the worker has run again, never a `terminate`
    (orchestration 3.7).
    """
    ordered = ordered_state(worker.directive)
    if ordered == "running" and worker.state == "quiet":
        return "running"
    return max((worker.state, ordered or "running"), key=_SEVERITY.__getitem__)
