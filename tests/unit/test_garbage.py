"""A pause of the garbage collector ends, whatever happens in it and however many there are."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from django_ojs.garbage import WORTHWHILE, collection_paused


@pytest.fixture(autouse=True)
def collector_on() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_a_large_batch_pauses_it_and_a_small_one_does_not() -> None:
    with collection_paused(WORTHWHILE):
        assert not gc.isenabled()
    with collection_paused(WORTHWHILE - 1):
        assert gc.isenabled()


def test_an_error_ends_the_pause() -> None:
    with pytest.raises(ZeroDivisionError), collection_paused(WORTHWHILE):
        raise ZeroDivisionError
    assert gc.isenabled()


def test_pauses_within_and_beside_each_other_end_with_the_last() -> None:
    begun, end = threading.Event(), threading.Event()

    def other() -> None:
        with collection_paused(WORTHWHILE):
            begun.set()
            assert end.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    assert begun.wait(60)
    with collection_paused(WORTHWHILE), collection_paused(WORTHWHILE):
        pass
    assert not gc.isenabled()
    end.set()
    thread.join()
    assert gc.isenabled()


def test_a_site_that_has_turned_it_off_finds_it_off() -> None:
    gc.disable()
    with collection_paused(WORTHWHILE):
        pass
    assert not gc.isenabled()
