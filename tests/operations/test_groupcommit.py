"""Leader and followers: who executes, and what each caller gets, also where a batch or its leader fails."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Sequence
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError, connection, connections, transaction

from django_ojs import groupcommit
from django_ojs.errors import BackendUnavailable, Duplicate
from django_ojs.groupcommit import LEFT_OUT, CommitGroup
from tests.gathering import SECONDS, gathering

pytestmark = pytest.mark.django_db(transaction=True)


def doubled(items: Sequence[Any], *, using: str) -> list[Any]:
    """Twice the item; a fault of its own for each text, and for the whole batch where an item is None."""
    if None in items:
        raise ValueError("None was given")
    return [Duplicate(item) if isinstance(item, str) else item * 2 for item in items]


def test_a_caller_alone_executes_at_once_in_its_own_thread() -> None:
    threads = []

    def execute(items: Sequence[int], *, using: str) -> list[int]:
        threads.append(threading.current_thread())
        return [item * 2 for item in items]

    group = CommitGroup(execute)
    assert [group.call(n, "default") for n in range(3)] == [0, 2, 4]
    assert threads == [threading.current_thread()] * 3


def test_callers_that_wait_are_one_batch_and_each_gets_its_own_outcome() -> None:
    group = CommitGroup(doubled)
    with gathering(group) as meeting:
        done = meeting.together(*(lambda n=n: group.call(n, "default") for n in range(64)))
        assert [future.result() for future in done] == [n * 2 for n in range(64)]
        assert meeting.batches == [[0], list(range(1, 64))]


def test_a_leader_executes_one_batch_and_hands_the_lead_on() -> None:
    threads: list[tuple[int, threading.Thread]] = []

    def execute(items: Sequence[int], *, using: str) -> Sequence[int]:
        threads.append((items[0], threading.current_thread()))
        return items

    group = CommitGroup(execute, limit=3)
    with gathering(group) as meeting:
        meeting.together(*(lambda n=n: group.call(n, "default") for n in range(8)))
        assert meeting.batches == [[0], [1, 2, 3], [4, 5, 6], [7]]
    assert len({thread for _, thread in threads}) == 4


def test_each_meets_the_exception_that_is_its_own() -> None:
    group = CommitGroup(doubled)
    with gathering(group) as meeting:
        items = [0, "a", 1, "b"]
        _, a, one, b = meeting.together(*(lambda item=item: group.call(item, "default") for item in items))
    assert one.result() == 2
    for future, text in ((a, "a"), (b, "b")):
        with pytest.raises(Duplicate, match=text):
            future.result()


def test_a_batch_that_fails_is_executed_one_by_one_by_its_callers() -> None:
    """So the faulty one meets the fault, and the others their success."""
    group = CommitGroup(doubled)
    with gathering(group) as meeting:
        leader, one, faulty, two = meeting.together(
            *(lambda item=item: group.call(item, "default") for item in (0, 1, None, 2))
        )
        assert meeting.batches[:2] == [[0], [1, None, 2]]
        assert sorted(map(str, meeting.batches[2:])) == ["[1]", "[2]", "[None]"]
    assert (leader.result(), one.result(), two.result()) == (0, 2, 4)
    with pytest.raises(ValueError, match="None was given"):
        faulty.result()


def test_an_item_that_a_batch_leaves_out_is_executed_alone() -> None:
    """The second of two that cannot be in one statement."""
    group: CommitGroup[int, int] = CommitGroup(
        lambda items, *, using: [LEFT_OUT if item in items[:i] else item for i, item in enumerate(items)]
    )
    with gathering(group) as meeting:
        done = meeting.together(*(lambda item=item: group.call(item, "default") for item in (0, 1, 2, 1, 2)))
        assert meeting.batches[:2] == [[0], [1, 2, 1, 2]]
        assert sorted(meeting.batches[2:]) == [[1], [2]]
    assert [future.result() for future in done] == [0, 1, 2, 1, 2]


def test_a_lost_race_is_run_again_alone() -> None:
    tries: list[list[int]] = []

    def execute(items: Sequence[int], *, using: str) -> Sequence[int]:
        tries.append(list(items))
        if len(items) == 2 or (items == [1] and tries.count([1]) == 1):
            raise OperationalError("database is locked")
        return items

    group = CommitGroup(execute)
    with gathering(group) as meeting:
        done = meeting.together(*(lambda n=n: group.call(n, "default") for n in range(3)))
        assert [future.result() for future in done] == [0, 1, 2]
    assert tries[:2] == [[0], [1, 2]]
    assert sorted(tries[2:]) == [[1], [1], [2]]


@pytest.mark.parametrize("kind", [OperationalError, InterfaceError])
def test_where_the_connection_is_lost_each_caller_gets_the_error_as_its_own(kind: type[Exception]) -> None:
    """What was committed is not known, so no call is executed again."""

    def execute(items: Sequence[int], *, using: str) -> Sequence[int]:
        if len(items) > 1:
            connections[using].close()
            raise kind("server closed the connection") from RuntimeError("the driver's")
        return items

    group = CommitGroup(execute)
    with gathering(group) as meeting:
        done = meeting.together(*(lambda n=n: group.call(n, "default") for n in range(4)))
        assert len(meeting.batches) == 2
    errors = [future.exception() for future in done[1:]]
    assert [type(error) for error in errors] == [kind] * 3
    assert len(set(map(id, errors))) == 3
    assert {str(error.__cause__) for error in errors if error} == {"the driver's"}
    lengths = {len(traceback.extract_tb(error.__traceback__)) for error in errors if error}
    assert max(lengths) - min(lengths) <= 1


def test_an_exception_that_cannot_be_copied_is_shared() -> None:
    class Awkward(OperationalError):
        def __init__(self, one: str, two: str) -> None:
            super().__init__(one)

    def execute(items: Sequence[int], *, using: str) -> Sequence[int]:
        if len(items) > 1:
            connections[using].close()
            raise Awkward("a", "b")
        return items

    group = CommitGroup(execute)
    with gathering(group) as meeting:
        done = meeting.together(*(lambda n=n: group.call(n, "default") for n in range(3)))
    assert {type(future.exception()) for future in done[1:]} == {Awkward}


@pytest.mark.parametrize("death", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_leader_that_is_stopped_leaves_none_waiting(death: type[BaseException]) -> None:
    def execute(items: Sequence[int], *, using: str) -> Sequence[int]:
        if len(items) == 3:
            raise death
        return items

    group = CommitGroup(execute, limit=3)
    with gathering(group) as meeting:
        done = meeting.together(*(lambda n=n: group.call(n, "default") for n in range(6)))
        assert meeting.batches == [[0], [1, 2, 3], [4, 5]]
    assert [done[0].result(), done[4].result(), done[5].result()] == [0, 4, 5]
    with pytest.raises(death):
        done[1].result()
    for follower in done[2:4]:
        with pytest.raises(BackendUnavailable):
            follower.result()


def test_a_leader_alone_that_is_stopped_hands_the_lead_on() -> None:
    def execute(items: Sequence[int], *, using: str) -> Sequence[int]:
        if 0 in items:
            raise KeyboardInterrupt
        return items

    group = CommitGroup(execute)
    with gathering(group) as meeting:
        leader, follower = meeting.together(lambda: group.call(0, "default"), lambda: group.call(1, "default"))
    assert isinstance(leader.exception(), KeyboardInterrupt)
    assert follower.result() == 1


def test_an_operation_with_too_few_outcomes_leaves_none_waiting() -> None:
    group: CommitGroup[int, int] = CommitGroup(lambda items, *, using: items[:2])
    with gathering(group) as meeting:
        done = meeting.together(*(lambda n=n: group.call(n, "default") for n in range(5)))
        assert len(meeting.batches) == 2
    kinds = {type(future.exception()) for future in done[2:]}
    assert kinds <= {ValueError, BackendUnavailable, type(None)}
    assert isinstance(done[1].exception(), ValueError)
    assert isinstance(done[4].exception(), BackendUnavailable)


#: Seconds in which the callers of a test come together behind a leader, before one of them leads beside it.
ENOUGH_TO_MEET = 2.0


class Hanging:
    """An operation in which the batch with the item 0 hangs until `release`. `batches` has what was executed."""

    def __init__(self) -> None:
        self.hangs, self.release = threading.Event(), threading.Event()
        self.batches: list[list[int]] = []

    def __call__(self, items: Sequence[int], *, using: str) -> Sequence[int]:
        self.batches.append(list(items))
        if 0 in items:
            self.hangs.set()
            assert self.release.wait(SECONDS)
        return items


def test_a_caller_leads_beside_a_leader_that_hangs() -> None:
    """The leader waits for a lock that another transaction holds, say."""
    act = Hanging()
    group = CommitGroup(act, patience=0.01)
    leader = threading.Thread(target=lambda: [group.call(0, "default"), connections.close_all()])
    leader.start()
    assert act.hangs.wait(SECONDS)
    assert group.call(1, "default") == 1
    assert group.call(2, "default") == 2  # nobody leads now, so it does at once
    act.release.set()
    leader.join(SECONDS)
    assert group.call(3, "default") == 3
    assert act.batches == [[0], [1], [2], [3]]
    assert group._lanes["default"].leader is None


def test_it_leads_for_all_that_wait_and_hands_the_lead_on() -> None:
    act = Hanging()
    group: CommitGroup[int, int] = CommitGroup(act, limit=3)
    with gathering(group) as meeting:
        group._patience = ENOUGH_TO_MEET
        meeting.go.set()
        leader = meeting.lead(lambda: group.call(0, "default"))
        behind = [meeting.follow(lambda n=n: group.call(n, "default")) for n in range(1, 7)]
        assert [future.result(SECONDS) for future in behind] == list(range(1, 7))
        assert not leader.done()
        assert len(act.batches) == 3  # not one for each
        act.release.set()
        assert leader.result(SECONDS) == 0
    assert sorted(item for batch in act.batches for item in batch) == list(range(7))


def test_what_a_leader_has_taken_stays_its_own_while_it_hangs() -> None:
    """It may have been executed, so that nobody else may."""
    act = Hanging()
    group: CommitGroup[int, int] = CommitGroup(act, limit=3)
    with gathering(group) as meeting:
        group._patience = ENOUGH_TO_MEET
        first = meeting.lead(lambda: group.call(-1, "default"))
        behind = [meeting.follow(lambda n=n: group.call(n, "default")) for n in range(5)]
        meeting.go.set()
        assert [future.result(SECONDS) for future in (first, *behind[3:])] == [-1, 3, 4]
        assert not any(future.done() for future in behind[:3])
        act.release.set()
        assert [future.result(SECONDS) for future in behind[:3]] == [0, 1, 2]
    assert act.batches == [[-1], [0, 1, 2], [3, 4]]


def test_a_leader_that_hangs_and_fails_leaves_its_own_to_go_alone() -> None:
    act = Hanging()

    def execute(items: Sequence[int], *, using: str) -> Sequence[int]:
        found = act(items, using=using)
        if len(items) > 1 and 0 in items:
            raise OperationalError("database is locked")
        return found

    group: CommitGroup[int, int] = CommitGroup(execute, limit=2)
    with gathering(group) as meeting:
        group._patience = ENOUGH_TO_MEET
        first = meeting.lead(lambda: group.call(-1, "default"))
        behind = [meeting.follow(lambda n=n: group.call(n, "default")) for n in range(4)]
        meeting.go.set()
        assert [future.result(SECONDS) for future in (first, *behind[2:])] == [-1, 2, 3]
        act.release.set()
        assert [future.result(SECONDS) for future in behind[:2]] == [0, 1]
    assert sorted(act.batches) == [[-1], [0], [0, 1], [1], [2, 3]]


def test_inside_the_callers_transaction_a_call_is_executed_alone() -> None:
    group = CommitGroup(doubled)
    with gathering(group) as meeting, transaction.atomic():
        leader = meeting.lead(lambda: group.call(0, "default"))
        assert group.call(1, "default") == 2  # it neither waits nor leads
        with pytest.raises(Duplicate):
            group.call("a", "default")
        meeting.go.set()
        assert leader.result(SECONDS) == 0


def test_so_it_is_without_autocommit() -> None:
    group = CommitGroup(doubled)
    with gathering(group) as meeting:
        leader = meeting.lead(lambda: group.call(0, "default"))
        connection.ensure_connection()
        transaction.set_autocommit(False)
        try:
            assert group.call(1, "default") == 2
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)
        meeting.go.set()
        assert leader.result(SECONDS) == 0


@pytest.mark.django_db
def test_and_inside_a_testcase() -> None:
    group = CommitGroup(doubled)
    assert group.call(1, "default") == 2
    assert group._lanes == {}


def test_followers_open_no_connection() -> None:
    group = CommitGroup(doubled)
    opened = []

    def act(item: int) -> None:
        group.call(item, "default")
        opened.append(connection.connection is not None)

    with gathering(group) as meeting:
        meeting.together(*(lambda n=n: act(n) for n in range(5)))
    assert opened == [False] * 5


def test_each_database_has_its_own_leader() -> None:
    group = CommitGroup(doubled)
    with gathering(group) as meeting:
        leader = meeting.lead(lambda: group.call(0, "default"))
        group._lanes["other"] = groupcommit._Lane()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(groupcommit, "autocommits", lambda using: True)
            assert meeting.group._lanes["other"].join(groupcommit._PendingCall(1))
        meeting.go.set()
        assert leader.result(SECONDS) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_made_by_fork_has_no_leader_of_its_parents() -> None:
    group = CommitGroup(doubled)
    with gathering(group) as meeting:
        leader = meeting.lead(lambda: group.call(0, "default"))
        child = os.fork()
        if child == 0:
            os._exit(0 if group._lanes == {} and group.call(21, "default") == 42 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        meeting.go.set()
        assert leader.result(SECONDS) == 0


def test_many_callers_without_order_all_get_their_own() -> None:
    group = CommitGroup(doubled)
    found: list[tuple[int, int]] = []

    def calls(first: int) -> None:
        found.extend((n, group.call(n, "default")) for n in range(first, first + 200))

    threads = [threading.Thread(target=calls, args=(first,)) for first in range(0, 3200, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert sorted(found) == [(n, n * 2) for n in range(3200)]
    assert group._lanes["default"].leader is None
    assert not group._lanes["default"].waiting
