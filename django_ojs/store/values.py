"""Defines the values that callers and the store exchange: what a claim asks for, workers report and queues hold."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django_ojs.events.catalogue import Record
from django_ojs.models import (
    Workflow,
)


class Claimant(NamedTuple):
    """A worker that takes part in a claim, with the most jobs that it takes.

    `visibility_ms` is the reservation length that it asks for; that beats the job's own.
    """

    worker_id: str
    limit: int
    visibility_ms: int | None = None

    def lease_ms(self, own: int | None, base: int) -> int:
        """How long the reservation of a job is, which may have a length of its own; `base` is that of its queue."""
        return self.visibility_ms or own or base


class Choice(NamedTuple):
    """Which jobs a claim may take: those of these queues, which are served from left to right."""

    queues: tuple[str, ...]
    types: tuple[str, ...] | None = None  #: job types, and `mail.*` for all that begin with `mail.`; None: any
    ids: Sequence[uuid.UUID] | None = None  #: only these jobs, whatever the limits say; None: any
    only: Sequence[uuid.UUID] | None = None  #: only these jobs, as far as the limits let them start; None: any
    except_ids: Sequence[uuid.UUID] = ()  #: not these jobs
    unsuspected: bool = False  #: no jobs that are to be run alone (`workerregistry.deaths`)


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """What a FETCH asks of its queues, or several FETCHes together. Lengths in milliseconds."""

    #: In the order in which they are served; with the length of a reservation of jobs without one of their own.
    queues: Mapping[str, int]
    claimants: Sequence[Claimant]  #: in the order of their calls: each is served before the next
    now: dt.datetime
    base_timeout_ms: int  #: the execution timeout of jobs without one of their own
    types: Sequence[str] | None = None  #: job types, and `mail.*` for all that begin with `mail.`; None: any
    #: Only these jobs, whose limits have been looked at; None: any that is under no limit.
    ids: Sequence[uuid.UUID] | None = None
    except_ids: Sequence[uuid.UUID] = ()  #: jobs that are not to be claimed
    unsuspected: bool = False  #: leave jobs that are to be run alone
    roomy: bool = False  #: without ids: the limits of the queues have been looked at, and leave room for all
    #: The caller asks for no `QueueStatus`: take nothing where it would show more than jobs that wait. For stores
    #: that can do that (`claims_optimistically`).
    optimistic: bool = False
    urgent: bool = False  #: a job is known to wait: what serves only later claims can be done by a later one

    @property
    def limit(self) -> int:
        return sum(claimant.limit for claimant in self.claimants)

    def places(self) -> list[int]:
        """For each job that is claimed, in the order of delivery, the index of its claimant."""
        return [index for index, claimant in enumerate(self.claimants) for _ in range(claimant.limit)]


class WorkerPresence(NamedTuple):
    """What a FETCH has to know of its worker. `unseen`: its row does not say yet that it has called lately."""

    state: str
    directive: str
    owner: str
    unseen: bool


class StoredKey(NamedTuple):
    """What is stored of an idempotency key; without a `status` it has no answer."""

    digest: str
    request: str
    status: int | None
    body: str
    headers: str
    created_at: dt.datetime


class QueueStatus(NamedTuple):
    """What a FETCH has to know first, of its queues and of its workers."""

    waiting: bool  #: a job is there, whether or not it may be claimed
    due: bool  #: time has something to do with a job that waits
    keyed: bool  #: a job there is under a limit of its own
    queue_limited: bool  #: a queue there is under a limit, or a job type
    closed: bool  #: maintenance closes all queues
    postponed: bool  #: a run of a schedule waits there for the run before it
    workers: dict[str, WorkerPresence]  #: those of the workers asked about that are known

    @property
    def limited(self) -> bool:
        """Whether a plain claim is not enough, because a limit counts the starts of some of the jobs."""
        return self.keyed or self.queue_limited


@dataclasses.dataclass(slots=True)
class Ack:
    """One job's success, as a worker reports it.

    `result` is JSON text, None when there is no result. A non-empty `worker_id` must be that of the
    holder, an `attempt` that of the claim; both fence off a worker that lost the job. `in_workflow`: the worker knows
    that the job is a member of a workflow, which spares the attempt to complete it without one.
    """

    job_id: uuid.UUID
    result: str | None = None
    worker_id: str = ""
    attempt: int | None = None
    in_workflow: bool = False


@dataclasses.dataclass(slots=True)
class Running:
    """What changes of a workflow that runs, as `Workflow` has it. Read under its lock."""

    pk: uuid.UUID
    created_at: dt.datetime
    progress: str
    state: str = Workflow.State.RUNNING
    finished_at: dt.datetime | None = None
    error: Any = None


class EndedAttempt(NamedTuple):
    """An attempt that has ended without completing its job; the fields are columns of `models.JobAttempt`.

    `error` is JSON text, "" where there is none.
    """

    job_id: uuid.UUID
    round: int
    attempt: int
    worker_id: str
    started_at: dt.datetime
    ended_at: dt.datetime
    outcome: str
    error: str


#: Where a transition puts the `EndedAttempt` of a row, which `update_jobs` writes.
ENDED_ATTEMPT = "ended_attempt"


@dataclasses.dataclass(slots=True)
class FlowChange:
    """`columns` of locked workflows, to be stored with the events of what led to them."""

    flows: Sequence[Workflow | Running]
    columns: Sequence[str]
    records: Sequence[Record]
    stored: bool = False


class EndedMembers(NamedTuple):
    """Workflows that run, locked, and what ended in them.

    Attributes:
        flows: each with the time of its first start.
        ended: of each job that ended `MEMBER` and its errors as text, by workflow, in the order in which they ended.
        following: `NEXT` of steps that may be next, as far as they come at no cost.
    """

    flows: list[tuple[Running, dt.datetime | None]]
    ended: list[Sequence[Any]]
    following: list[Sequence[Any]]


class Heard(NamedTuple):
    """A step as those after it know it: `result` is that of its job as JSON text, None where it has not completed."""

    step_id: str
    result: str | None


class Membership(NamedTuple):
    """Where a job is in its workflow, which was created then.

    `before` are the results of all steps before it as JSON texts, in their order. None: they take another statement.
    """

    job_id: uuid.UUID
    workflow_id: uuid.UUID
    position: int
    created_at: dt.datetime
    before: Sequence[str] | None


#: Where `claim` puts the `Membership` of a row, if that comes at no cost.
MEMBERSHIP = "membership"
