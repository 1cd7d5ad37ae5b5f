"""FETCH (core 7.2): a worker claims jobs, or several workers that ask at the same moment do so together.

Queues are served in the order given, each until it is empty or the worker has enough; inside a queue
priority descending, then first in, first out. Due jobs of these queues are promoted first, in the same
transaction, so that a job is never late because the scheduler is. In maintenance mode nothing is claimed or promoted;
FETCH learns of it from the statement with which it begins.

Workers that ask for the same types of the same queues share one claim. It serves them in the order of their calls, so
each has what it would have if they had come one after the other.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Callable, Mapping, Sequence

from django_ojs import clock, hooks
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database, retried
from django_ojs.errors import PermissionDenied
from django_ojs.events import catalogue
from django_ojs.groupcommit import CommitGroup, passed_on
from django_ojs.jobs import checkpoints, timers
from django_ojs.lifecycle.ended import jobs_read, queues_claimed
from django_ojs.limits import claim as limited_claim
from django_ojs.models.job import COLUMNS, JobRow
from django_ojs.queues import configuration
from django_ojs.store import store_of
from django_ojs.store.values import Choice, Claim, Claimant, QueueStatus
from django_ojs.workerregistry import registration
from django_ojs.workerregistry.ownership import Principal

#: Of more queues only those are asked for in which there may be something to do: each costs some databases a statement.
MANY = 500
#: And of these no more than the parameters of a statement allow; a worker of all queues begins with another one each
#: time.
MOST = 5000


@dataclasses.dataclass(frozen=True, slots=True)
class Fetch:
    """What one FETCH asks for: up to `count` jobs of `queues`, which are served from left to right."""

    queues: Sequence[str]
    count: int = 1  #: of jobs, at most
    worker_id: str = ""  #: of the worker that is to hold the jobs
    visibility_ms: int | None = None  #: the length of the reservation that the request asks for; beats that of the job
    types: Sequence[str] | None = None  #: only these job types, `mail.*` for all that begin with `mail.`; None: any
    who: Principal | None = None  #: the caller, who is refused if the worker is another's
    fallback_visibility_ms: int | None = None  #: the length for jobs and queues without one of their own
    ids: Sequence[uuid.UUID] | None = None  #: only these jobs, whatever the limits say; None: any
    only: Sequence[uuid.UUID] | None = None  #: only these jobs, as far as the limits let them start; None: any
    except_ids: Sequence[uuid.UUID] = ()  #: not these jobs; a worker names those that its handlers still run
    unsuspected: bool = False  #: no jobs that are to be run alone (`workerregistry.deaths`)
    #: Give nothing to a worker that is quiet or terminating, and register an unknown one.
    check_worker: bool = True
    #: What to return of each job, and whether times may come as ISO text; a worker needs less of both.
    columns: Sequence[str] = COLUMNS
    raw: bool = False
    #: Claim before asking whether there is anything to claim, for a caller that was told of a job. If there is one that
    #: saves a round trip; otherwise it costs one.
    optimistic: bool = False
    #: The caller was told of a job and has no other, so nothing may be done here that can be done later.
    urgent: bool = False
    #: Is called in the thread of the caller, with the seconds until a limit opens that held jobs back, if it opens by
    #: time.
    opens_in: Callable[[float], None] | None = None

    @property
    def choice(self) -> Choice:
        """Which jobs may be taken. FETCHes that others can join (`fetch_each`) share a claim if they agree in it."""
        types = None if self.types is None else tuple(self.types)
        names = tuple(dict.fromkeys(self.queues))
        return Choice(names, types, self.ids, self.only, self.except_ids, self.unsuspected)

    @property
    def claimant(self) -> Claimant:
        """The worker, with the most jobs that it is given."""
        most = min(max(self.count, 0), ojs_settings.MAX_FETCH_COUNT)
        return Claimant(self.worker_id, most, self.visibility_ms)


def fetch(wanted: Fetch, *, using: str | None = None) -> list[JobRow]:
    """Claim jobs; return their rows as they are after the claim.

    Raises `PermissionDenied` where the worker is another caller's.
    """
    using = database(using)
    (rows,) = _claimed(wanted, [wanted], using)
    if isinstance(rows, PermissionDenied):
        raise rows
    _notify_claimed(rows, wanted.columns, using)
    return rows


def fetch_with_others(wanted: Fetch, *, using: str | None = None) -> list[JobRow]:
    """The rows of one FETCH, which is served together with those that other threads make at this moment."""
    return _fetches.call(wanted, database(using))


def fetch_each(fetches: Sequence[Fetch], *, using: str) -> list[list[JobRow] | Exception]:
    """FETCH for each of these, as if they had come in this order; for each its rows, or the error that it met.

    Of each count the queues and types, the worker and its caller. Those that ask for the same types of the same queues
    are one claim. Each claim is a transaction of its own, so an error meets only the callers that shared it. It is
    raised as long as no job is claimed.
    """
    groups: dict[Choice, list[int]] = {}
    for index, one in enumerate(fetches):
        groups.setdefault(one.choice, []).append(index)
    outcomes: dict[int, list[JobRow] | Exception] = {}
    for members in groups.values():
        try:
            given = _of_group([fetches[index] for index in members], using)
        except Exception as error:
            if not any(outcomes.values()):
                raise
            given = [passed_on(error)] * len(members)
        outcomes |= zip(members, given, strict=True)
    return [outcomes[index] for index in range(len(fetches))]


_fetches: CommitGroup[Fetch, list[JobRow]] = CommitGroup(fetch_each)


def _of_group(fetches: Sequence[Fetch], using: str) -> Sequence[list[JobRow] | Exception]:
    """The rows of each of these workers, or the error that it met."""
    outcomes: list[list[JobRow] | Exception] = []
    try:
        outcomes += _claimed(fetches[0], fetches, using)
    except UnderLimit:
        for one in fetches:
            try:
                outcomes += _claimed(one, [one], using)
            except Exception as error:
                if not any(outcomes):
                    raise
                outcomes.append(passed_on(error))
    try:
        _notify_claimed([row for rows in outcomes if isinstance(rows, list) for row in rows], COLUMNS, using)
    except Exception as error:  # noqa: BLE001 - the jobs are claimed; their callers raise it
        return [error if rows and isinstance(rows, list) else rows for rows in outcomes]
    return outcomes


class UnderLimit(Exception):
    """Raised where FETCHes that are executed together meet a rate limit. Each has to ask it in a transaction of its
    own, which holds the limit's keys."""


@dataclasses.dataclass(slots=True)
class _Claiming:
    """One claim for workers that ask for the same. `how` is the first of their FETCHes: its members say the rest."""

    how: Fetch
    choice: Choice
    claimants: Sequence[Claimant]
    now: dt.datetime
    using: str

    def take(self, *, optimistic: bool = False) -> list[list[JobRow]]:
        """Claim jobs that are under no limit; return those of each worker."""
        return self._take(self.choice, self.claimants, optimistic=optimistic, urgent=optimistic and self.how.urgent)

    def take_some(self, queue: str, ids: list[uuid.UUID] | None, limit: int, now: dt.datetime) -> list[JobRow]:
        """Claim for the first worker jobs of one queue whose limits have been looked at: `limits.claim.Take`."""
        self.now = now
        claimants = [self.claimants[0]._replace(limit=limit)]
        return self._take(self.choice._replace(queues=(queue,), ids=ids), claimants, roomy=ids is None)[0]

    def _take(self, choice: Choice, claimants: Sequence[Claimant], **more: bool) -> list[list[JobRow]]:
        site = self.how.fallback_visibility_ms or ojs_settings.VISIBILITY_TIMEOUT * 1000
        own = configuration.defaults(choice.queues, self.using)
        claim = Claim(
            queues={name: own[name].visibility_ms or site for name in choice.queues}, claimants=claimants,
            now=self.now, base_timeout_ms=ojs_settings.DEFAULT_TIMEOUT * 1000, types=choice.types,
            ids=choice.only if choice.ids is None else choice.ids, except_ids=choice.except_ids,
            unsuspected=choice.unsuspected, **more,
        )  # fmt: skip
        return store_of(self.using).claim(claim, self.how.columns, raw=self.how.raw)


@retried
def _claimed(how: Fetch, fetches: Sequence[Fetch], using: str) -> Sequence[list[JobRow] | PermissionDenied]:
    """The jobs that each of these workers claims, or why its caller may not name it. Raises `UnderLimit` for several of
    them.

    Where one statement does all the writing it runs by itself: BEGIN and COMMIT would be two round trips more.
    """
    now, store, choice = clock.now(using), store_of(using), how.choice
    named = choice.queues
    if not named:  # a worker that serves all queues, of which there is none yet
        return [[] for _ in fetches]
    if len(named) > MANY:
        occupied = store.occupied_queues(now)
        choice = choice._replace(queues=tuple(name for name in named if name in occupied)[:MOST] or named[:1])
    claiming = _Claiming(how, choice, [one.claimant for one in fetches], now, using)
    optimistic = how.optimistic and not how.check_worker and store.claims_optimistically
    if optimistic and not _limited(choice.queues, using) and any(rows := claiming.take(optimistic=True)):
        return rows
    workers = {one.worker_id for one in fetches if one.worker_id} if how.check_worker else set()
    status = store.queue_status(choice.queues, workers, now, unseen=registration.SEEN_EVERY)
    denied: Mapping[int, PermissionDenied] = {}
    if workers:
        asking = [registration.Asking(one.worker_id, one.who) for one in fetches]
        admitted = registration.admit(asking, status.workers, named, now, using)
        denied = admitted.denied
        claiming.claimants = [
            one if admitted.has(index, one.worker_id) else one._replace(limit=0)
            for index, one in enumerate(claiming.claimants)
        ]
    rows = _taken(claiming, status)
    return [denied.get(index, own) for index, own in enumerate(rows)] if denied else rows


def _taken(claiming: _Claiming, status: QueueStatus) -> list[list[JobRow]]:
    """The jobs that each of these workers claims, after their queues and the workers themselves have been looked at."""
    using, choice, claimants = claiming.using, claiming.choice, claiming.claimants
    store = store_of(using)
    if status.closed or not any(one.limit for one in claimants):
        return [[] for _ in claimants]
    if not (status.waiting or status.due or status.postponed):
        return [[] for _ in claimants]
    if store.single_statements and not (status.due or status.postponed or status.limited):
        return claiming.take()
    with atomic(using=using):
        if status.due:
            timers.apply_due_waiting(choice.queues, using)
            claiming.now = clock.now(using)  # what was promoted just now waits since a moment ago
            status = store.queue_status(choice.queues, (), claiming.now, unseen=0)
        if status.postponed:
            queues_claimed(choice.queues, using)
        if choice.ids is not None or not status.limited:
            return claiming.take()
        if len(claimants) > 1:
            raise UnderLimit
        limit, now = claimants[0].limit, claiming.now
        opens_in, keyed = claiming.how.opens_in, status.keyed
        return [limited_claim.claim(choice, limit, claiming.take_some, now, using, keyed=keyed, opens_in=opens_in)]


def _limited(names: Sequence[str], using: str) -> bool:
    """Whether one of these queues was under a limit some seconds ago, so that a plain claim would bring nothing."""
    return any(known.limited for known in configuration.defaults(names, using).values())


def _notify_claimed(rows: Sequence[JobRow], columns: Sequence[str], using: str) -> None:
    """Tell listeners of the claim, and give the jobs their checkpoints, and members of workflows what they learn of the
    jobs before them.

    After the claim and not part of it: a claim that is repeated because of these would lose the rows of the first.
    """
    listening = [one for one in hooks.event_listeners if one.wants("job.started")]
    if listening := [one for one in listening if set(columns).issuperset(one.columns)]:
        records = [catalogue.of_job("job.started", row, row["started_at"], "workers") for row in rows]
        hooks.notify(listening, records, using)
    jobs_read(rows, using)
    checkpoints.attach(rows, using)
