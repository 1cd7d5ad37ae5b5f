"""The life of a job, as data: eight states, the verbs, and the closed transition table.

A *verb* is an operation of the spec (core section 7) or a timer of the server. A job's state changes
only by a verb, and only along a row of `TRANSITIONS`; everything that guards a state is made from
this table: the WHERE clause of every state-changing statement, the CHECK constraint on the column,
the diagram in docs/architecture.md and the property test that walks random verbs.

Nothing of ours is imported here, so this is the place to start reading.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    """The eight states of core section 6.1. The values are what the wire and the column hold."""

    SCHEDULED = "scheduled"  #: waits for its `scheduled_at`
    AVAILABLE = "available"  #: ready to be fetched
    PENDING = "pending"  #: staged until a caller activates it
    ACTIVE = "active"  #: claimed by a worker
    COMPLETED = "completed"  #: ended well; terminal
    RETRYABLE = "retryable"  #: failed, waits for its backoff
    CANCELLED = "cancelled"  #: stopped on purpose; terminal
    DISCARDED = "discarded"  #: failed for good; a dead letter, unless its policy says `discard`; terminal but for RETRY


class Verb(StrEnum):
    """What may change a state: the operations of core section 7 and the server's own timers."""

    PUSH = "push"
    FETCH = "fetch"
    ACK = "ack"
    FAIL = "fail"
    CANCEL = "cancel"
    ACTIVATE = "activate"
    PROMOTE = "promote"  #: `scheduled_at` arrived, or the backoff is over
    RESCUE = "rescue"  #: the reservation expired or its worker died
    REQUEUE = "requeue"  #: the worker handed the job back
    EXPIRE = "expire"  #: `expires_at` passed before the job started
    RETRY = "retry"  #: an operator, or a rule of one, runs a failed job again


class Transition(NamedTuple):
    verb: Verb
    source: State | None  #: None: the job does not exist yet
    target: State


_S, _V = State, Verb

#: Core 6.3, with EXPIRE from every waiting state, REQUEUE, and ACTIVATE of a job whose start is still ahead; closed:
#: nothing else is legal.
TRANSITIONS: tuple[Transition, ...] = (
    Transition(_V.PUSH, None, _S.SCHEDULED),
    Transition(_V.PUSH, None, _S.AVAILABLE),
    Transition(_V.PUSH, None, _S.PENDING),
    Transition(_V.PROMOTE, _S.SCHEDULED, _S.AVAILABLE),
    Transition(_V.PROMOTE, _S.RETRYABLE, _S.AVAILABLE),
    Transition(_V.ACTIVATE, _S.PENDING, _S.AVAILABLE),
    Transition(_V.ACTIVATE, _S.PENDING, _S.SCHEDULED),
    Transition(_V.FETCH, _S.AVAILABLE, _S.ACTIVE),
    Transition(_V.ACK, _S.ACTIVE, _S.COMPLETED),
    Transition(_V.FAIL, _S.ACTIVE, _S.RETRYABLE),
    Transition(_V.FAIL, _S.ACTIVE, _S.DISCARDED),
    Transition(_V.REQUEUE, _S.ACTIVE, _S.AVAILABLE),
    Transition(_V.RESCUE, _S.ACTIVE, _S.AVAILABLE),
    Transition(_V.RESCUE, _S.ACTIVE, _S.DISCARDED),
    Transition(_V.EXPIRE, _S.SCHEDULED, _S.DISCARDED),
    Transition(_V.EXPIRE, _S.AVAILABLE, _S.DISCARDED),
    Transition(_V.EXPIRE, _S.PENDING, _S.DISCARDED),
    Transition(_V.EXPIRE, _S.RETRYABLE, _S.DISCARDED),
    Transition(_V.CANCEL, _S.SCHEDULED, _S.CANCELLED),
    Transition(_V.CANCEL, _S.AVAILABLE, _S.CANCELLED),
    Transition(_V.CANCEL, _S.PENDING, _S.CANCELLED),
    Transition(_V.CANCEL, _S.RETRYABLE, _S.CANCELLED),
    Transition(_V.CANCEL, _S.ACTIVE, _S.CANCELLED),
    Transition(_V.RETRY, _S.DISCARDED, _S.AVAILABLE),
)

INITIAL: frozenset[State] = frozenset(t.target for t in TRANSITIONS if t.source is None)
TERMINAL: frozenset[State] = frozenset({State.COMPLETED, State.CANCELLED, State.DISCARDED})
WAITING: frozenset[State] = frozenset(t.source for t in TRANSITIONS if t.verb is Verb.EXPIRE and t.source)
LIVE: frozenset[State] = frozenset(State) - TERMINAL


def sources(verb: Verb) -> frozenset[State]:
    """The states `verb` may start from; what a statement's `state IN (...)` must say."""
    return frozenset(t.source for t in TRANSITIONS if t.verb is verb and t.source is not None)


def targets(verb: Verb, source: State | None = None) -> frozenset[State]:
    """The states `verb` may lead to from `source` (None: a job that does not exist yet)."""
    return frozenset(t.target for t in TRANSITIONS if t.verb is verb and t.source is source)


def is_legal(verb: Verb, source: State | None, target: State) -> bool:
    return Transition(verb, source, target) in TRANSITIONS


def diagram() -> str:
    """The table as a Mermaid state diagram, one edge per transition, for the docs."""
    names = {None: "[*]"} | {state: state.value for state in State}
    edges = [f"    {names[t.source]} --> {t.target}: {t.verb.upper()}" for t in TRANSITIONS]
    ends = [f"    {state} --> [*]" for state in ordered(TERMINAL)]
    return "\n".join(["stateDiagram-v2", *edges, *ends])


def ordered(states: Iterable[State]) -> list[State]:
    """`states` in the order in which the spec lists them, for stable SQL and stable text."""
    wanted = set(states)
    return [state for state in State if state in wanted]
