"""Keep what handlers have logged, and the database does not have yet, where it outlives their process.

A ring is memory that a worker's process and its supervisor share. The process copies each line into it, and frees the
lines when they are stored. When it has died, another process reads what is left.
"""

from __future__ import annotations

import marshal
import mmap
import struct
from collections.abc import Iterator
from typing import Any

SIZE = 4 * 1024 * 1024
_HEAD = struct.Struct("<QQ")  #: how many bytes were written, and how many of them were freed, since the beginning
_LENGTH = struct.Struct("<I")


class LogRing:
    """The kept lines. The worker calls `put()` and `free()`, one at a time. When it has died, another process calls
    `left()`."""

    def __init__(self, size: int = SIZE) -> None:
        self._size = size
        self._memory = mmap.mmap(-1, _HEAD.size + size)  # pages that are never written take no memory
        self._written = self._freed = 0

    def put(self, entry: tuple[Any, ...]) -> bool:
        """Keep an entry: plain values. False: there is no room for it."""
        data = marshal.dumps(entry)
        length = _LENGTH.size + len(data)
        if self._written + length - self._freed > self._size:
            return False
        self._copy(self._written, _LENGTH.pack(len(data)) + data)
        self._written += length
        self._note()  # the last store: what counts as written is whole
        return True

    @property
    def place(self) -> int:
        """Up to where it is written: `free` frees what was put before."""
        return self._written

    @property
    def is_half_full(self) -> bool:
        return (self._written - self._freed) * 2 > self._size

    def free(self, place: int) -> None:
        self._freed = place
        self._note()

    def left(self) -> Iterator[tuple[Any, ...]]:
        """What was put and not freed, the oldest first."""
        written, at = _HEAD.unpack(self._memory[: _HEAD.size])
        while at < written:
            (length,) = _LENGTH.unpack(self._read(at, _LENGTH.size))
            yield marshal.loads(self._read(at + _LENGTH.size, length))  # noqa: S302 - our own process wrote it
            at += _LENGTH.size + length

    def close(self) -> None:
        self._memory.close()

    def _note(self) -> None:
        self._memory[: _HEAD.size] = _HEAD.pack(self._written, self._freed)

    def _copy(self, at: int, data: bytes) -> None:
        begin = at % self._size
        first = data[: self._size - begin]
        self._memory[_HEAD.size + begin : _HEAD.size + begin + len(first)] = first
        if rest := data[len(first) :]:
            self._memory[_HEAD.size : _HEAD.size + len(rest)] = rest

    def _read(self, at: int, length: int) -> bytes:
        begin = at % self._size
        first = self._memory[_HEAD.size + begin : _HEAD.size + min(begin + length, self._size)]
        return first + self._memory[_HEAD.size : _HEAD.size + length - len(first)]
