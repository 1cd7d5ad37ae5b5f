"""Lets calls that wait at the same moment share one operation on the database, and one commit: leader and followers.

The first caller executes its call at once, in its own thread and on its own connection, so a caller that comes by
itself waits for nothing. Callers that come meanwhile wait. When the first is done, the one that has waited longest
leads: it executes what has gathered by then as one batch, gives each caller its own outcome, and hands the lead to the
next that waits. So there is no thread beside those of the callers, no caller works for others for longer than one
batch, and followers need no connection.

A leader may hang: in a lock that another transaction holds, in a connection that is dead. Then one of those that it has
not taken leads beside it, for all of them. What it has taken is its own until its attempt is over, so that no call is
executed twice. A batch waits for locks for a moment only (`lockwaits.SHARED`), a call by itself for longer.

A batch that fails has changed nothing, and then each of its callers executes its own call by itself: a faulty call
costs its neighbours time, and never their success. Where it cannot be known what was committed, because the
connection was lost, each caller gets the error.
"""

from __future__ import annotations

import contextlib
import copy
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

from django.db import Error, connections

from django_ojs import lockwaits, tenants
from django_ojs.conf import ojs_settings
from django_ojs.database import autocommits, check_health, waits_to_try_again
from django_ojs.errors import BackendUnavailable
from django_ojs.faults import is_contention, may_be_done
from django_ojs.packets import MOST_CHARACTERS

Item = TypeVar("Item")
Given_contra = TypeVar("Given_contra", contravariant=True)
Result = TypeVar("Result")
Made_co = TypeVar("Made_co", covariant=True)

#: Calls that one execution takes at most, so that none waits for long. On PostgreSQL a push costs a process 475 µs of
#: CPU alone, 186 with 8 in a batch, 125 with 20 and 124 with 40: more than that saves nothing.
LIMIT = 100
#: Seconds for which a call leads before one of those that wait behind it may lead beside it.
PATIENCE = 0.05
#: The same on SQLite, which has one writer: a second leader could only wait for the first.
PATIENCE_OF_ONE_WRITER = 1.0
#: Calls by themselves that may each wait for locks for `lockwaits.OWN` in one process. They hold a thread and a
#: connection meanwhile, so what comes beside them waits for `lockwaits.SHARED`.
PATIENT = 8
#: Lanes that a commit group remembers. A site may have any number of tenants: where there are more, those without a
#: call are forgotten.
MOST_LANES = 1000


class _ThreadState(threading.local):
    """What this thread does at the moment."""

    #: Whether it executes a batch that holds calls of others.
    serves_others = False


_thread = _ThreadState()


def serves_others() -> bool:
    """Whether this thread executes a batch that holds calls of others: a limit of its own call must not end that."""
    return _thread.serves_others


class _LeftOut(Exception):
    """An item that a batch has left out: its caller executes it by itself."""


#: The outcome of an item that a batch has left out, such as the second for one job: its caller executes it by itself.
LEFT_OUT = _LeftOut()


def passed_on(error: Exception) -> Exception:
    """What the items meet of which a batch could not take care any more, because of this error: a lost race is for
    each of their callers to run again."""
    return LEFT_OUT if is_contention(error) else error


class Executor(Protocol[Given_contra, Made_co]):
    """What a commit group executes: for each item its outcome, the exception that its caller is to meet, or `LEFT_OUT`.

    It commits what it changes before it returns, and changes nothing where it raises, unless it loses the connection.
    Called in no transaction, or in that of a caller with the item of that caller.
    """

    def __call__(self, items: Sequence[Given_contra], /, *, using: str) -> Sequence[Made_co | Exception]: ...


class _PendingCall(Generic[Item, Result]):
    """One caller's item, and what becomes of it. `left_out`: the caller is to execute it itself. `taken`: the calls of
    others that it executes while it leads."""

    __slots__ = ("item", "latch", "left_out", "outcome", "resolved", "taken")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.latch = threading.Lock()  # opened once: for the outcome, or for the lead
        self.latch.acquire()
        self.resolved = self.left_out = False
        self.outcome: Result | Exception | None = None
        self.taken: Sequence[_PendingCall[Item, Result]] = ()

    def resolve(self, outcome: Result | Exception | None = None, *, left_out: bool = False) -> None:
        self.outcome, self.left_out, self.resolved = outcome, left_out, True


class _Lane(Generic[Item, Result]):
    """The calls to one database: the one that leads, and those that wait.

    A call is in one place at a time: it waits, or a leader has taken it, or it leads. Only under the lock does it go
    from one to the other, and never back.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.leader: _PendingCall[Item, Result] | None = None
        self.since = 0.0  #: when the leader began to lead
        self.waiting: deque[_PendingCall[Item, Result]] = deque()

    def join(self, call: _PendingCall[Item, Result]) -> bool:
        """Whether the call leads at once; else it waits from now on."""
        with self.lock:
            if self.leader is None:
                self.leader, self.since = call, time.monotonic()
                return True
            self.waiting.append(call)
            return False

    def take(
        self, leader: _PendingCall[Item, Result], limit: int, size: Callable[[Item], int]
    ) -> Sequence[_PendingCall[Item, Result]]:  # fmt: skip
        """The calls that wait, in the order in which they came, for the leader to execute with its own: at most
        `limit`, and no more than the database takes at once."""
        taken: list[_PendingCall[Item, Result]] = []
        if not self.waiting:  # one that comes now waits for the next leader
            return taken
        room = MOST_CHARACTERS - size(leader.item)
        with self.lock:
            while self.waiting and len(taken) < limit and (room := room - size(self.waiting[0].item)) >= 0:
                taken.append(self.waiting.popleft())
            leader.taken = taken
        return taken

    def overtake(self, call: _PendingCall[Item, Result], patience: float) -> float | None:
        """Let the call that has waited longest lead beside the leader, if that has led for `patience`. The seconds for
        which `call` waits before it asks again; None if it waits no more, because it was taken or leads."""
        with self.lock:
            if call not in self.waiting:
                return None
            left = self.since + patience - time.monotonic()
            if left > 0:
                return left
            self._hand_on()
            return None if self.leader is call else patience

    def leave(self, call: _PendingCall[Item, Result]) -> None:
        """Let a call go, whatever became of it. One that leads hands the lead to the call that has waited longest; one
        that has led lets those go that it has taken."""
        if call.resolved and not call.taken and call is not self.leader:
            return
        with self.lock:
            taken, call.taken = call.taken, ()
            if call is self.leader:
                self._hand_on()
            elif call in self.waiting:  # its thread is being stopped
                self.waiting.remove(call)
        for follower in taken:
            if not follower.resolved:  # the leader's thread is being stopped
                follower.resolve(BackendUnavailable("The server stopped before it knew what became of this call."))
            follower.latch.release()

    def _hand_on(self) -> None:
        self.leader, self.since = self.waiting.popleft() if self.waiting else None, time.monotonic()
        if self.leader is not None:
            self.leader.latch.release()


class CommitGroup(Generic[Item, Result]):
    """Calls of one operation, by database and by whose data its connection shows (`tenants.scope`). Make one for each
    operation, when the module is loaded."""

    def __init__(
        self, execute: Executor[Item, Result], *, limit: int = LIMIT, patience: float | None = None,
        size: Callable[[Item], int] = lambda item: 0,
    ) -> None:  # fmt: skip
        """Make the commit group of one operation.

        Args:
            execute: the operation.
            limit: how many calls one execution takes at most.
            patience: seconds for which a call leads before another may lead beside it; None: what suits the database.
            size: about how many characters of the caller's an item brings to the database.
        """
        self._execute, self._size = execute, size
        self._limit, self._patience = limit, patience
        self._lanes: dict[Hashable, _Lane[Item, Result]] = {}
        _groups.add(self)

    def call(self, item: Item, using: str) -> Result:
        """The outcome of the operation for this item. Raises the exception that it has for the item.

        Inside a transaction of the caller's, who alone can commit it, the item is executed by itself.
        """
        if not autocommits(using) or not ojs_settings.GROUP_CALLS:
            return self._by_itself(item, using=using)
        lane = self._lane(tenants.scope(using))
        call: _PendingCall[Item, Result] = _PendingCall(item)
        try:
            if lane.join(call) or self._leads(call, lane, using):
                followers = lane.take(call, self._limit - 1, self._size)
                if not followers:
                    return self._by_itself(item, using=using)
                self._lead([call, *followers], using)
        finally:
            lane.leave(call)
        if call.left_out:
            return self._by_itself(item, using=using)
        outcome, call.outcome = call.outcome, None
        return _given(outcome)

    def _lane(self, scope: Hashable) -> _Lane[Item, Result]:
        lane = self._lanes.get(scope)
        if lane is None:
            if len(self._lanes) >= MOST_LANES:
                self._lanes = {known: one for known, one in list(self._lanes.items()) if one.leader is not None}
            lane = self._lanes.setdefault(scope, _Lane())
        return lane

    def _leads(self, call: _PendingCall[Item, Result], lane: _Lane[Item, Result], using: str) -> bool:
        """Wait for the outcome or the lead; whether it is the lead."""
        patience = self._patience
        if patience is None:
            patience = PATIENCE_OF_ONE_WRITER if connections[using].vendor == "sqlite" else PATIENCE
        left = patience
        while not call.latch.acquire(timeout=left):
            found = lane.overtake(call, patience)
            if found is None:
                call.latch.acquire()
                break
            left = found
        return not call.resolved

    def _lead(self, batch: Sequence[_PendingCall[Item, Result]], using: str) -> None:
        """Execute these calls together, and say of each what became of it."""
        check_health(using)
        try:
            _thread.serves_others = True
            with lockwaits.LockTimeout(lockwaits.SHARED, using):
                outcomes = self._execute([one.item for one in batch], using=using)
        except Exception as error:  # noqa: BLE001 - it reaches every caller, or comes again where it belongs
            lost = may_be_done(error) and not _answers(using)
            for one in batch:
                one.resolve(_own(error) if lost else None, left_out=not lost)
            return
        finally:
            _thread.serves_others = False
        for one, outcome in zip(batch, outcomes, strict=True):
            one.resolve(outcome, left_out=outcome is LEFT_OUT)

    def _by_itself(self, item: Item, *, using: str) -> Result:
        """Execute one call by itself, and again where it loses a race."""
        number = 0
        while True:
            number += 1
            check_health(using)
            try:
                with _own_lock_timeout(using):
                    return _given(self._execute([item], using=using)[0])
            except Error as error:
                if not waits_to_try_again(error, number, using):
                    raise


#: The places of calls by themselves that wait for long. A call that finds none waits for a moment only.
_places = list(range(PATIENT))


@contextlib.contextmanager
def _own_lock_timeout(using: str) -> Iterator[None]:
    """A block that executes one call by itself. In a transaction of the caller's it has no limit, which would last as
    long as that."""
    if not autocommits(using):
        yield
        return
    try:
        place = _places.pop()
    except IndexError:
        place = None
    try:
        with lockwaits.LockTimeout(lockwaits.SHARED if place is None else lockwaits.OWN, using):
            yield
    finally:
        if place is not None:
            _places.append(place)


def _given(outcome: Result | Exception | None) -> Result:
    """The outcome, or its exception raised; without a circle of the exception and the frame that raises it."""
    try:
        if isinstance(outcome, Exception):
            raise outcome
        return cast("Result", outcome)
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

_groups: weakref.WeakSet[CommitGroup[Any, Any]] = weakref.WeakSet()


def _forget() -> None:
    _places[:] = range(PATIENT)
    for group in list(_groups):
        group._lanes = {}


if hasattr(os, "register_at_fork"):  # a system that forks
    os.register_at_fork(after_in_child=_forget)
