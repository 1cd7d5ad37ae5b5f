"""Report that the files of an SQLite database change: by inotify on Linux, by kqueue on BSD and macOS.

The report comes when a file is written, which is before the commit can be seen, and it may be about nothing that
matters: the caller then asks the database. `watch` gives None where this is not possible.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from django_ojs.guard import get_logger

logger = get_logger(__name__)

_MODIFY, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x40, 0x80, 0x100, 0x200
_OF_FOLDER = 0x400 | 0x800 | 0x2000 | 0x8000  #: deleted, moved, its file system unmounted, the watch removed
_OVERFLOW = 0x4000
_EVENT = struct.Struct("iIII")
_BUFFER = 65_536
#: What SQLite adds to the name of the database. `-shm` is changed through memory, which no system reports.
_ENDINGS = ("", "-wal", "-journal")


class Gone(Exception):
    """What was watched is no longer where it was, so that no change will be reported."""


class FileWatch(Protocol):
    """A watch of one thread, which waits for `fileno()` to be readable and then calls `changed()`."""

    def fileno(self) -> int: ...

    def changed(self) -> bool:
        """Whether a change was reported since the last call. Does not wait. Raises `Gone`."""

    def close(self) -> None: ...


def watch(database: str) -> FileWatch | None:
    """A watch of the database in this file; None, with a warning, where the system cannot or will not.

    An empty name is a database in memory.
    """
    if not database:
        return None
    try:
        if _inotify() is not None:
            return Inotify(database)
        return Kqueue(database) if hasattr(select, "kqueue") else None
    except OSError as error:
        # EMFILE, ENOSPC: fs.inotify.max_user_instances or max_user_watches is reached.
        logger.warning("The files of the database cannot be watched (%s): asking for changes instead.", error)
        return None


class Inotify:
    """Watches the folder, so that a journal that is deleted, made anew or replaced is seen as well."""

    def __init__(self, database: str) -> None:
        libc = _inotify()
        assert libc is not None
        path = Path(database).resolve()
        self._names = frozenset(os.fsencode(path.name + ending) for ending in _ENDINGS)
        self._descriptor: int = _checked(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        mask = _MODIFY | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | 0x400 | 0x800
        try:
            _checked(libc.inotify_add_watch(self._descriptor, os.fsencode(path.parent), mask))
        except OSError:
            self.close()
            raise

    def fileno(self) -> int:
        return self._descriptor

    def changed(self) -> bool:
        found = False
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._descriptor, _BUFFER):
                found = self._concerns(data) or found
        return found

    def _concerns(self, data: bytes) -> bool:
        """Whether one of these events is about the database."""
        found, place = False, 0
        while place < len(data):
            _, mask, _, length = _EVENT.unpack_from(data, place)
            name = data[place + _EVENT.size : place + _EVENT.size + length].rstrip(b"\0")
            place += _EVENT.size + length
            if mask & _OF_FOLDER:
                raise Gone("The folder of the database was moved or deleted.")
            found = found or bool(mask & _OVERFLOW) or name in self._names
        return found

    def close(self) -> None:
        os.close(self._descriptor)


class Kqueue:
    """Watches the write-ahead log.

    The database itself must not be opened here: when a process closes any descriptor of that file, it loses the locks
    that SQLite holds on it. So without a write-ahead log there is nothing to watch.
    """

    def __init__(self, database: str) -> None:
        self._log = f"{Path(database).resolve()}-wal"
        self._queue: Any = select.kqueue()  # type: ignore[attr-defined, unused-ignore]
        self._file = -1
        try:
            self._open()
        except OSError:
            self.close()
            raise

    def fileno(self) -> int:
        descriptor: int = self._queue.fileno()
        return descriptor

    def changed(self) -> bool:
        kqueue: Any = select
        lost = kqueue.KQ_NOTE_DELETE | kqueue.KQ_NOTE_RENAME | kqueue.KQ_NOTE_REVOKE
        events = self._queue.control(None, 8, 0)
        if any(event.fflags & lost for event in events):
            try:
                self._open()
            except OSError as error:
                raise Gone(f"The write-ahead log cannot be watched any longer: {error}.") from error
        return bool(events)

    def _open(self) -> None:
        kqueue: Any = select
        file = os.open(self._log, getattr(os, "O_EVTONLY", os.O_RDONLY) | os.O_CLOEXEC)
        if self._file >= 0:
            os.close(self._file)
        self._file = file
        notes = (kqueue.KQ_NOTE_WRITE | kqueue.KQ_NOTE_EXTEND | kqueue.KQ_NOTE_DELETE | kqueue.KQ_NOTE_RENAME
                 | kqueue.KQ_NOTE_REVOKE)  # fmt: skip
        flags = kqueue.KQ_EV_ADD | kqueue.KQ_EV_CLEAR
        self._queue.control([kqueue.kevent(file, kqueue.KQ_FILTER_VNODE, flags, notes)], 0)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._queue.close()


@lru_cache(maxsize=1)
def _inotify() -> Any:
    """The C library, if it has inotify."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.inotify_init1.argtypes = [ctypes.c_int]
        libc.inotify_add_watch.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32]
    except (OSError, AttributeError, TypeError):
        return None
    return libc


def _checked(result: int) -> int:
    """What a call of the C library returned. Raises OSError if it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
