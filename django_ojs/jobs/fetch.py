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
from collections.abc import Sequence
from typing import NamedTuple

from django_ojs import clock, hooks
from django_ojs.conf import ojs_settings
from django_ojs.cron import runs
from django_ojs.database import atomic, database, retried
from django_ojs.events import catalogue
from django_ojs.groupcommit import Group, passed_on
from django_ojs.jobs import timers
from django_ojs.limits import claim as limited
from django_ojs.models.job import COLUMNS, JobRow
from django_ojs.queues import configuration
from django_ojs.store import store_of
from django_ojs.store.base import Claim, Taker
from django_ojs.workers import registration
from django_ojs.workflows import graphs


@dataclasses.dataclass(frozen=True, slots=True)
class Fetch:
    """What one FETCH asks for: up to `count` jobs of `queues`, left to right. `fetch` describes the members."""

    queues: Sequence[str]
    count: int = 1
    worker_id: str = ""
    visibility_ms: int | None = None
    types: Sequence[str] | None = None


def fetch(
    names: Sequence[str],
    *,
    count: int = 1,
    worker_id: str = "",
    visibility_ms: int | None = None,
    fallback_visibility_ms: int | None = None,
    types: Sequence[str] | None = None,
    ids: Sequence[uuid.UUID] | None = None,
    except_ids: Sequence[uuid.UUID] = (),
    gate: bool = True,
    columns: Sequence[str] = COLUMNS,
    raw: bool = False,
    hopeful: bool = False,
    urgent: bool = False,
    using: str | None = None,
) -> list[JobRow]:
    """Claim up to `count` jobs; return their rows as they are after the claim.

    Args:
        names: queues, left to right.
        visibility_ms: reservation length asked for by the request; beats that of the job.
        fallback_visibility_ms: length for jobs and queues without one of their own.
        types: claim only these job types, `mail.*` for all that begin with `mail.`; None: any.
        ids: claim only these jobs, whatever the limits say; None: any.
        except_ids: leave these jobs to other workers; a worker names those that its handlers still run.
        gate: give nothing to a worker that is quiet or terminating, and note an unknown one.
        columns, raw: what to return of each job, and whether times may come as ISO text; a worker needs less of both.
        hopeful: claim before asking whether there is anything to claim; for a caller that was told of a job. If there
            is one that saves a round trip, and otherwise it costs one.
        urgent: the caller was told of a job and has no other, so nothing may be done here that can be done later.
    """
    using = database(using)
    taker = Taker(worker_id, _capped(count), visibility_ms)
    wanted = Wanted(
        tuple(dict.fromkeys(names)),
        None if types is None else tuple(types),
        fallback_visibility_ms,
        ids,
        except_ids,
    )
    (rows,) = _claimed(
        wanted, [taker], gate=gate, hopeful=hopeful, urgent=urgent, columns=columns, raw=raw, using=using
    )
    _finish(rows, columns, using)
    return rows


def fetch_with_others(fetch_: Fetch, *, using: str | None = None) -> list[JobRow]:
    """The rows of one FETCH, which is served together with those that other threads make at this moment."""
    return _fetches.call(fetch_, database(using))


def fetch_each(fetches: Sequence[Fetch], *, using: str) -> list[list[JobRow] | Exception]:
    """FETCH for each of these, as if they had come in this order; for each its rows, or the error that it met.

    Those that ask for the same types of the same queues are one claim. Each claim is a transaction of its own, so an
    error meets only the callers that shared it. It is raised as long as no job is claimed.
    """
    groups: dict[Wanted, list[int]] = {}
    for index, one in enumerate(fetches):
        types = None if one.types is None else tuple(one.types)
        groups.setdefault(Wanted(tuple(dict.fromkeys(one.queues)), types), []).append(index)
    outcomes: dict[int, list[JobRow] | Exception] = {}
    for wanted, members in groups.items():
        asking = [fetches[index] for index in members]
        takers = [Taker(one.worker_id, _capped(one.count), one.visibility_ms) for one in asking]
        try:
            given = _of_group(wanted, takers, using)
        except Exception as error:
            if not any(outcomes.values()):
                raise
            given = [passed_on(error)] * len(members)
        outcomes |= zip(members, given, strict=True)
    return [outcomes[index] for index in range(len(fetches))]


_fetches: Group[Fetch, list[JobRow]] = Group(fetch_each)


def _of_group(wanted: Wanted, takers: Sequence[Taker], using: str) -> Sequence[list[JobRow] | Exception]:
    """The rows of each of these workers, or the error that it met after the claim."""
    outcomes: list[list[JobRow] | Exception] = []
    try:
        outcomes += _claimed(wanted, takers, using=using)
    except UnderLimit:
        for taker in takers:
            try:
                outcomes += _claimed(wanted, [taker], using=using)
            except Exception as error:
                if not any(outcomes):
                    raise
                outcomes.append(passed_on(error))
    try:
        _finish([row for rows in outcomes if isinstance(rows, list) for row in rows], COLUMNS, using)
    except Exception as error:  # noqa: BLE001 - the jobs are claimed; their callers raise it
        return [error if rows else rows for rows in outcomes]
    return outcomes


def _capped(count: int) -> int:
    return min(max(count, 0), ojs_settings.MAX_FETCH_COUNT)


class Wanted(NamedTuple):
    """What a claim may take; FETCHes that agree in it can share one. `fetch` describes the members."""

    queues: tuple[str, ...]
    types: tuple[str, ...] | None = None
    fallback_visibility_ms: int | None = None
    ids: Sequence[uuid.UUID] | None = None
    except_ids: Sequence[uuid.UUID] = ()

    def claim(
        self, queues: Sequence[str], takers: Sequence[Taker], now: dt.datetime, using: str, *, unasked: bool = False,
        roomy: bool = False, urgent: bool = False,
    ) -> Claim:  # fmt: skip
        """The claim of some of the queues."""
        site = self.fallback_visibility_ms or ojs_settings.VISIBILITY_TIMEOUT * 1000
        own = configuration.defaults(queues, using)
        return Claim(
            queues={name: own[name].visibility_ms or site for name in queues}, takers=takers,
            now=now, base_timeout_ms=ojs_settings.DEFAULT_TIMEOUT * 1000, types=self.types, ids=self.ids,
            except_ids=self.except_ids, unasked=unasked, roomy=roomy, urgent=urgent,
        )  # fmt: skip


class UnderLimit(Exception):
    """Several FETCHes met a limit. Each has to ask it in a transaction of its own, which holds the limit's keys."""


@retried
def _claimed(
    wanted: Wanted, takers: Sequence[Taker], *, gate: bool = True, hopeful: bool = False, urgent: bool = False,
    columns: Sequence[str] = COLUMNS, raw: bool = False, using: str,
) -> list[list[JobRow]]:  # fmt: skip
    """The jobs that each of these workers claims. Raises `UnderLimit` for several of them.

    Where one statement does all the writing it runs by itself: BEGIN and COMMIT would be two round trips more.
    """
    now, store = clock.now(using), store_of(using)
    if hopeful and not gate and store.claims_unasked and not _limited(wanted.queues, using):
        claim = wanted.claim(wanted.queues, takers, now, using, unasked=True, urgent=urgent)
        if any(given := store.claim(claim, columns, raw=raw)):
            return given
    asked = {taker.worker_id for taker in takers if taker.worker_id} if gate else set()
    outlook = store.outlook(wanted.queues, asked, now, unseen=registration.SEEN_EVERY)
    refused = registration.refused(asked, outlook.workers, wanted.queues, now, using) if asked else set()
    served = [taker._replace(limit=0) if taker.worker_id in refused else taker for taker in takers]
    nothing: list[list[JobRow]] = [[] for _ in takers]
    if outlook.closed or not any(taker.limit for taker in served):
        return nothing
    if not (outlook.waiting or outlook.due or outlook.held):
        return nothing
    if store.single_statements and not (outlook.due or outlook.held or outlook.limited):
        return store.claim(wanted.claim(wanted.queues, served, now, using), columns, raw=raw)
    with atomic(using=using):
        if outlook.due:
            timers.settle_waiting(wanted.queues, using)
            now = clock.now(using)  # what was promoted just now waits since a moment ago
            outlook = store.outlook(wanted.queues, (), now, unseen=0)
        if outlook.held:
            runs.release(wanted.queues, using=using)
        if wanted.ids is not None or not outlook.limited:
            return store.claim(wanted.claim(wanted.queues, served, now, using), columns, raw=raw)
        if len(takers) > 1:
            raise UnderLimit

        def take(name: str, ids: list[uuid.UUID] | None, limit: int, at: dt.datetime) -> list[JobRow]:
            taker = served[0]._replace(limit=limit)
            chosen = wanted._replace(ids=ids).claim([name], [taker], at, using, roomy=ids is None)
            return store.claim(chosen, columns, raw=raw)[0]

        rows = limited.claim(
            wanted.queues, served[0].limit, wanted.types, take, now, using, keyed=outlook.keyed,
            except_ids=wanted.except_ids,
        )  # fmt: skip
        return [rows]


def _limited(names: Sequence[str], using: str) -> bool:
    """Whether one of these queues was under a limit some seconds ago, so that a plain claim would bring nothing."""
    return any(known.limited for known in configuration.defaults(names, using).values())


def _finish(rows: Sequence[JobRow], columns: Sequence[str], using: str) -> None:
    """Tell listeners of the claim, and give members of workflows what they learn of the jobs before them.

    After the claim and not part of it: a claim that is repeated because of these would lose the rows of the first.
    """
    listening = [one for one in hooks.event_listeners if one.wants("job.started")]
    if listening := [one for one in listening if set(columns).issuperset(one.columns)]:
        records = [catalogue.of_job("job.started", row, row["started_at"], "workers") for row in rows]
        hooks.tell(listening, records, using)
    graphs.attach_parent_results(rows, using)
