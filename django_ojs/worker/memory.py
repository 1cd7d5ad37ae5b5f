"""Let Python look for garbage in a process of the worker less often than it does by itself, and yet soon.

Python frees most objects at once. Objects that refer to each other in a circle are left to its garbage collector, which
looks at all young objects each time their number has grown by 700 (2,000 since Python 3.13). A worker has thousands of
them on the way: the jobs that were claimed and not yet reported. So it would look at the same jobs again and again, and
every few times at all that the site has imported. That took a fifth of the time of a drain.

A process of the worker puts what was there before its first job out of the collector's sight (`gc.freeze`), and lets
more young objects gather. What they hold may be large, and an idle worker makes few. So the worker also looks at them
each second, and at all objects each minute, unless that takes long.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

#: By how many the young objects may grow before Python looks at them.
THRESHOLD = 50_000
#: What Python begins with, up to 3.12 and since. A site that has set another number keeps it.
_PYTHONS = frozenset({700, 2000})

YOUNG_EVERY = 1.0  #: seconds between two looks at the young objects
ALL_EVERY = 60.0  #: seconds between two looks at all objects, at least
MOST = 0.005  #: the largest part of the time that the looks at all objects may take


def configure_gc() -> None:
    """Set the garbage collector of this process up for a worker. For a process that does nothing else.

    To be called when everything is imported; a second time after a fork. Where the site has turned the collector off
    it stays off.
    """
    first, *others = gc.get_threshold()
    if not gc.isenabled() or first not in {*_PYTHONS, THRESHOLD}:
        return
    gc.set_threshold(THRESHOLD, *others)
    gc.collect()  # what is garbage now would stay for ever
    gc.freeze()


class GarbageCollector:
    """Looks for garbage by the clock, in a process whose collector `configure_gc` has set up, and in no other."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._young_at, self._all_at = now() + YOUNG_EVERY, now() + ALL_EVERY

    def collect(self) -> None:
        """Look, if it is time for that. The worker's health reporter calls it."""
        began = self._now()
        if began < self._young_at or not gc.isenabled() or gc.get_threshold()[0] != THRESHOLD:
            return
        self._young_at = began + YOUNG_EVERY
        if began < self._all_at:
            gc.collect(1)
            return
        gc.collect()
        ended = self._now()
        self._all_at = ended + max(ALL_EVERY, (ended - began) / MOST)
