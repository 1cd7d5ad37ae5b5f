"""Show the supervisor which runs a worker's process has begun and not ended, also when it has been killed.

A board is memory that both processes share. The worker notes there what it runs, with a store of a few bytes for each
run; the supervisor reads it when the process is dead.
"""

from __future__ import annotations

import mmap
import struct
import uuid
from collections import deque

#: Whether a place is taken, and the id and the attempt of the job that has it.
_PLACE = struct.Struct("<?16sI")
_RUN = struct.Struct("<16sI")


class Board:
    """The list of runs in shared memory. The worker calls `enter()` and `leave()`, in any thread, the supervisor
    `running()`."""

    def __init__(self, places: int) -> None:
        self._memory = mmap.mmap(-1, places * _PLACE.size)
        self._free = deque(range(0, places * _PLACE.size, _PLACE.size))

    def enter(self, job_id: uuid.UUID, attempt: int) -> int | None:
        """Note that a run begins; returns its place. None: there is no place left, and it is not noted."""
        try:
            place = self._free.popleft()
        except IndexError:
            return None
        _RUN.pack_into(self._memory, place + 1, job_id.bytes, attempt)
        self._memory[place] = 1  # the last store: what is taken is whole
        return place

    def leave(self, place: int) -> None:
        self._memory[place] = 0
        self._free.append(place)

    def running(self) -> frozenset[tuple[uuid.UUID, int]]:
        places = _PLACE.iter_unpack(self._memory[:])
        return frozenset((uuid.UUID(bytes=job_id), attempt) for taken, job_id, attempt in places if taken)

    def close(self) -> None:
        self._memory.close()
