"""Let calls that wait at the same moment share one operation on the database, and one commit: leader and followers.

The first caller executes its call at once, in its own thread and on its own connection: alone it waits for nothing.
Callers that come meanwhile wait. When the first is done, the one that has waited longest leads: it executes what has
gathered by then as one batch, gives each caller its own outcome, and hands the lead to the next that waits. So there is
no thread beside those of the callers, no caller works for others for longer than one batch, and followers need no
connection.

A batch that fails has changed nothing, and then each of its callers executes its own call alone: a faulty call
costs its neighbours time, and never their success. Where it cannot be known what was committed, because the
connection was lost, each caller gets the error.
"""

from __future__ import annotations

import copy
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

from django.db import connections

from django_ojs.database import autocommits, is_contention, is_disconnection, look_at_health, retried
from django_ojs.errors import BackendUnavailable

Item = TypeVar("Item")
Given_contra = TypeVar("Given_contra", contravariant=True)
Outcome = TypeVar("Outcome")
Made_co = TypeVar("Made_co", covariant=True)

#: Calls that one execution takes at most, so that none waits for long. On PostgreSQL a push costs a process 475 µs of
#: CPU alone, 186 with 8 in a batch, 125 with 20 and 124 with 40: more than that saves nothing.
LIMIT = 100
#: Seconds that a caller waits for a leader to take its call. Behind a leader that waits for a lock, or for a database
#: that does not answer, it then goes alone, as it would without a group.
PATIENCE = 1.0


class _Thread(threading.local):
    """What this thread does at the moment."""

    #: Whether it executes a batch that holds calls of others.
    serves_others = False


_thread = _Thread()


def serves_others() -> bool:
    """Whether this thread executes a batch that holds calls of others: a limit of its own call must not end that."""
    return _thread.serves_others


class _Alone(Exception):
    """An item that a batch could not take: its caller executes it alone."""


#: The outcome of an item that a batch has left alone, such as the second for one job: its caller executes it by itself.
ALONE = _Alone()


def passed_on(error: Exception) -> Exception:
    """What the items meet of which a batch could not take care any more, because of this error: a lost race is for
    each of their callers to run again."""
    return ALONE if is_contention(error) else error


class Operation(Protocol[Given_contra, Made_co]):
    """What a group executes: for each item its outcome, or the exception that its caller is to meet, or `ALONE`.

    It commits what it changes before it returns, and changes nothing where it raises, unless it loses the connection.
    Called in no transaction, or in that of a caller with the item of that caller.
    """

    def __call__(self, items: Sequence[Given_contra], /, *, using: str) -> Sequence[Made_co | Exception]: ...


class _Call(Generic[Item, Outcome]):
    """One caller's item, and what becomes of it. `alone`: the caller is to execute it itself."""

    __slots__ = ("alone", "gate", "item", "outcome", "settled")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.gate = threading.Lock()  # opened once: for the outcome, or for the lead
        self.gate.acquire()
        self.settled = self.alone = False
        self.outcome: Outcome | Exception | None = None

    def settle(self, outcome: Outcome | Exception | None = None, *, alone: bool = False) -> None:
        self.outcome, self.alone, self.settled = outcome, alone, True


class _Lane(Generic[Item, Outcome]):
    """The calls to one database: the one that leads with those that it has taken, and those that wait."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.leader: _Call[Item, Outcome] | None = None
        self.followers: list[_Call[Item, Outcome]] = []
        self.waiting: deque[_Call[Item, Outcome]] = deque()

    def join(self, call: _Call[Item, Outcome]) -> bool:
        """Whether the call leads at once; else it waits from now on."""
        with self.lock:
            if self.leader is None:
                self.leader = call
                return True
            self.waiting.append(call)
            return False

    def take(self, limit: int) -> list[_Call[Item, Outcome]]:
        """The calls that wait, in the order in which they came, for the leader to execute with its own."""
        with self.lock:
            self.followers = [self.waiting.popleft() for _ in range(min(limit, len(self.waiting)))]
        return self.followers

    def withdraw(self, call: _Call[Item, Outcome]) -> bool:
        """Take a call back that no leader has taken; whether it could be."""
        with self.lock:
            if call not in self.waiting:
                return False
            self.waiting.remove(call)
            return True

    def leave(self, call: _Call[Item, Outcome]) -> None:
        """Let a call go, whatever became of it. One that leads hands the lead to the call that has waited longest, and
        lets its followers go."""
        if call is not self.leader:
            if not call.settled:
                self.withdraw(call)
            return
        with self.lock:
            followers, self.followers = self.followers, []
            self.leader = self.waiting.popleft() if self.waiting else None
            if self.leader is not None:
                self.leader.gate.release()
        for follower in followers:
            if not follower.settled:  # the leader's thread is being stopped
                follower.settle(BackendUnavailable("The server stopped before it knew what became of this call."))
            follower.gate.release()


class Group(Generic[Item, Outcome]):
    """Calls of one operation, by database. Make one for each operation, when the module is loaded."""

    def __init__(self, execute: Operation[Item, Outcome], *, limit: int = LIMIT, patience: float = PATIENCE) -> None:
        self._execute = execute
        self._limit, self._patience = limit, patience
        self._lanes: dict[str, _Lane[Item, Outcome]] = {}
        _groups.add(self)

    def call(self, item: Item, using: str) -> Outcome:
        """The outcome of the operation for this item. Raises the exception that it has for the item.

        Inside a transaction of the caller's, which alone can commit it, the item is executed alone.
        """
        if not autocommits(using):
            return self._alone(item, using=using)
        lane = self._lanes.get(using) or self._lanes.setdefault(using, _Lane())
        call: _Call[Item, Outcome] = _Call(item)
        try:
            if lane.join(call) or self._leads(call, lane):
                self._lead(call, lane, using)
        finally:
            lane.leave(call)
        if call.alone:
            return self._alone(item, using=using)
        outcome, call.outcome = call.outcome, None
        return _given(outcome)

    def _leads(self, call: _Call[Item, Outcome], lane: _Lane[Item, Outcome]) -> bool:
        """Wait for the outcome or the lead; whether it is the lead."""
        if not call.gate.acquire(timeout=self._patience):
            if lane.withdraw(call):
                call.settle(alone=True)
                return False
            call.gate.acquire()  # a leader has taken it just now
        return not call.settled

    def _lead(self, call: _Call[Item, Outcome], lane: _Lane[Item, Outcome], using: str) -> None:
        followers = lane.take(self._limit - 1)
        if not followers:
            call.settle(self._alone(call.item, using=using))
            return
        batch = [call, *followers]
        look_at_health(using)
        try:
            _thread.serves_others = True
            outcomes = self._execute([one.item for one in batch], using=using)
        except Exception as error:  # noqa: BLE001 - it reaches every caller, or comes again where it belongs
            lost = is_disconnection(error) and not _answers(using)
            for one in batch:
                one.settle(_own(error) if lost else None, alone=not lost)
            return
        finally:
            _thread.serves_others = False
        for one, outcome in zip(batch, outcomes, strict=True):
            one.settle(outcome, alone=outcome is ALONE)

    @retried
    def _alone(self, item: Item, *, using: str) -> Outcome:
        look_at_health(using)
        return _given(self._execute([item], using=using)[0])


def _given(outcome: Outcome | Exception | None) -> Outcome:
    """The outcome, or its exception raised; without a circle of the exception and the frame that raises it."""
    try:
        if isinstance(outcome, Exception):
            raise outcome
        return cast("Outcome", outcome)
    finally:
        del outcome


def _answers(using: str) -> bool:
    """Whether the database still answers on this connection: then it has undone what failed."""
    connection = connections[using]
    return connection.connection is not None and connection.is_usable()


def _own(error: Exception) -> Exception:
    """A copy for one caller: where threads raise the same object, each adds its frames to one traceback."""
    try:
        own = copy.copy(error)
    except Exception:  # noqa: BLE001 - an exception with an __init__ of its own may not be copied
        return error
    own.__cause__, own.__context__ = error.__cause__, error.__context__
    own.__suppress_context__, own.__traceback__ = error.__suppress_context__, error.__traceback__
    return own


# A fork copies the state of threads that are not there in the child.

_groups: weakref.WeakSet[Group[Any, Any]] = weakref.WeakSet()


def _forget() -> None:
    for group in list(_groups):
        group._lanes = {}


if hasattr(os, "register_at_fork"):  # a system that forks
    os.register_at_fork(after_in_child=_forget)
