"""The garbage collector of a worker's process: what it is told at the start, and when it is called."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from unittest.mock import Mock

import pytest

from django_ojs import enqueue
from django_ojs.worker import memory
from django_ojs.worker.memory import ALL_EVERY, MOST, THRESHOLD, GarbageCollector, configure_gc
from tests.worker.conftest import WorkerCommand

PYTHONS = 700, 10, 10


@pytest.fixture(autouse=True)
def threshold() -> Iterator[None]:
    """As Python begins, and as it was before."""
    before = gc.get_threshold()
    gc.set_threshold(*PYTHONS)
    yield
    gc.set_threshold(*before)  # what is frozen stays so: each look at it would take the tests to come a second


class Node:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


def garbage() -> weakref.ref[Node]:
    return weakref.ref(Node())


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def looks() -> Iterator[list[int]]:
    """The generations that were collected."""
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            found.append(info["generation"])

    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)


def test_what_is_there_at_the_start_is_not_looked_at_again() -> None:
    gone = garbage()
    configure_gc()
    assert gone() is None, "what is garbage by then is freed before"
    assert gc.get_freeze_count() > 10_000
    assert gc.get_threshold() == (THRESHOLD, *PYTHONS[1:])
    configure_gc()
    assert gc.get_threshold() == (THRESHOLD, *PYTHONS[1:]), "after a fork, for what came meanwhile"


@pytest.mark.parametrize("first, enabled", [(5000, True), (700, False)], ids=["its own threshold", "turned off"])
def test_a_site_that_has_set_its_collector_keeps_it_as_it_is(
    monkeypatch: pytest.MonkeyPatch, first: int, enabled: bool
) -> None:
    collector = Mock(spec=gc)
    collector.get_threshold.return_value, collector.isenabled.return_value = (first, 10, 10), enabled
    monkeypatch.setattr(memory, "gc", collector)
    configure_gc()
    assert not collector.set_threshold.called
    assert not collector.freeze.called


def test_young_garbage_is_freed_within_a_second() -> None:
    configure_gc()
    collector = GarbageCollector(clock := Clock())
    gone = garbage()
    clock.now = 0.9
    collector.collect()
    assert gone() is not None
    clock.now = 1.0
    collector.collect()
    assert gone() is None


def test_old_garbage_is_freed_within_a_minute() -> None:
    configure_gc()
    collector = GarbageCollector(clock := Clock())
    node = Node()
    gone = weakref.ref(node)
    gc.collect()  # it has survived, so it is old
    del node
    clock.now = ALL_EVERY
    collector.collect()
    assert gone() is None


def test_a_look_at_all_objects_that_takes_long_is_rare(looks: list[int]) -> None:
    configure_gc()
    collector = GarbageCollector(clock := Clock())
    looks.clear()
    took = 2.0

    def slowly(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            clock.now += took

    gc.callbacks.append(slowly)
    try:
        clock.now = ALL_EVERY
        collector.collect()
        after = clock.now + took / MOST
        clock.now = after - 1
        collector.collect()
        clock.now = after
        collector.collect()
    finally:
        gc.callbacks.remove(slowly)
    assert looks == [2, 1, 2]


def test_a_process_that_does_other_things_too_is_left_alone(looks: list[int]) -> None:
    """As that of a test which runs a worker: nobody has called `configure_gc` there."""
    collector = GarbageCollector(clock := Clock())
    looks.clear()
    clock.now = ALL_EVERY
    collector.collect()
    assert looks == []


@pytest.mark.wide
def test_the_processes_of_a_worker_have_set_theirs_up(start_process: Callable[..., WorkerCommand]) -> None:
    handle = enqueue("site.collector")
    process = start_process("ojs_worker", "--until-empty")
    assert process.wait() == 0, process.output
    threshold, frozen = handle.refresh().result
    assert threshold == THRESHOLD
    assert frozen > 10_000
