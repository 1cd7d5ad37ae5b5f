"""Keep Python's garbage collector out of work that makes thousands of objects and no garbage."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator

#: Jobs in a batch from which pausing pays.
WORTHWHILE = 50

_lock = threading.Lock()
_pauses = 0
_was_on = False


@contextlib.contextmanager
def collection_paused(size: int) -> Iterator[None]:
    """A block in which no collection begins, for a batch of so many jobs; nothing for a small one.

    Reference counts free what the block makes. A collection in the middle would find it alive, and take it among the
    old objects, which are looked at as a whole when enough have come: a fifth of the time of a bulk push. Several
    threads may pause at once. A site that has turned the collector off finds it off.
    """
    global _pauses, _was_on
    if size < WORTHWHILE:
        yield
        return
    with _lock:
        _pauses += 1
        if _pauses == 1:
            _was_on = gc.isenabled()
            gc.disable()
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if _pauses == 0 and _was_on:
                gc.enable()


def _after_fork() -> None:
    """A child has none of the threads that paused in its parent."""
    global _lock, _pauses
    _lock = threading.Lock()
    if _pauses and _was_on:
        gc.enable()
    _pauses = 0


if hasattr(os, "register_at_fork"):  # a system that forks
    os.register_at_fork(after_in_child=_after_fork)
