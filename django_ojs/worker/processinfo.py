"""Say which process a worker is, how much memory and CPU time it takes, and whether it is healthy."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from django_ojs.backoff import Backoff
from django_ojs.conf import ojs_settings
from django_ojs.guard import get_logger
from django_ojs.rules.ids import new_id
from django_ojs.scheduler.service import Service

logger = get_logger(__name__)


def default_name() -> str:
    """`host:pid:random`: unique, also where every container has the same process id."""
    return f"{socket.gethostname()}:{os.getpid()}:{new_id().hex[-4:]}"


def incarnation(token: str, pid: int | None = None) -> str:
    """Which process this is, or process `pid` of this machine: `machine:pid:token`, where `token` is random."""
    return f"{_machine()}:{pid or os.getpid()}:{token}"


def has_ended(incarnation: str) -> bool:
    """Whether that process is known to be gone: it was one of this machine, and none has its number."""
    machine, _, rest = incarnation.partition(":")
    pid = rest.partition(":")[0]
    if not machine or machine != _machine() or not pid.isdecimal() or int(pid) == os.getpid():
        return False
    try:
        os.kill(int(pid), 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except ProcessLookupError:
        return True
    except OSError:  # it is another user's, or there is no /proc
        return False


def _machine() -> str:
    """An id of this boot of this machine, and of the container on it; empty where the system has none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return ""
    return hashlib.sha256(f"{boot} {space}".encode()).hexdigest()[:16]


def memory_mb(pid: int | None = None) -> float | None:
    """Resident memory in MiB of this process; where only its peak is known, the peak; None where neither is.

    With `pid` that of another process; None for one that is gone, and on a platform that does not show it.
    """
    try:
        pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1])
        return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)
    except (OSError, ValueError, IndexError):
        return _peak_mb() if pid is None else None


def _peak_mb() -> float | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    return in_mb(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def in_mb(maxrss: int) -> float:
    """`ru_maxrss`, the most memory that a process had, in MiB."""
    return round(maxrss / (2**20 if sys.platform == "darwin" else 2**10), 1)


def longest_silence() -> float:
    """How long, in seconds, a process may show no sign of life: shorter than it takes the server to call it dead."""
    return float(max(ojs_settings.HEARTBEAT_TIMEOUT * 2 / 3, 10.0))


class CPU:
    """How much CPU time this process took since the last `percent()`."""

    def __init__(self) -> None:
        self._wall, self._used = time.monotonic(), time.process_time()

    def percent(self) -> float:
        """Per cent of one CPU; more than 100 when several were busy."""
        wall, used = time.monotonic(), time.process_time()
        elapsed, spent = wall - self._wall, used - self._used
        self._wall, self._used = wall, used
        return round(100 * spent / elapsed, 1) if elapsed > 0 else 0.0


class HealthFile:
    """A file whose age shows a liveness probe how long ago the worker was last known to be healthy."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._next = 0.0
        self._tries = Backoff("Touching the health file", 0.5, 60.0, logger=logger, brief=True, tries=False)

    def touch(self) -> None:
        """Touch it, at most twice a second. A path that cannot be written is logged, and the worker goes on."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + 0.5
        try:
            self._path.touch()
        except OSError:
            self._tries.failed()
        else:
            self._tries.worked()

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()


class HealthReporter(Service):
    """Calls `report(healthy)` twice a second, and each of `checks`."""

    name = "health reporter"
    EVERY = 0.5

    def __init__(
        self, is_healthy: Callable[[], bool], report: Callable[[bool], None], *checks: Callable[[], None],
        on_crash: Callable[[str], None],
    ) -> None:  # fmt: skip
        super().__init__(on_crash)
        self._is_healthy, self._report, self._checks = is_healthy, report, checks

    def run(self) -> None:
        while True:
            self._report(self._is_healthy())
            for check in self._checks:
                check()
            if self.stopping.wait(self.EVERY):
                break
        self._report(self._is_healthy())
