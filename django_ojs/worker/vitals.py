"""What a worker says of itself: who it is, and how much memory and processor it takes."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from pathlib import Path

from django_ojs.conf import ojs_settings


def default_name() -> str:
    """`host:pid:random`: unique, also where every container has the same process id."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(2)}"


def memory_mb(pid: int | None = None) -> float | None:
    """Resident memory in MiB of this process; where only its peak is known, the peak; None where neither is.

    With `pid` that of another process; None for one that is gone, and on a platform that does not tell.
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
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


def patience() -> float:
    """How long, in seconds, a process may show no sign of life: shorter than it takes the server to call it dead."""
    return float(max(ojs_settings.HEARTBEAT_TIMEOUT * 2 / 3, 10.0))


class Processor:
    """How busy this process was since it was last asked."""

    def __init__(self) -> None:
        self._wall, self._used = time.monotonic(), time.process_time()

    def percent(self) -> float:
        """Per cent of one processor; more than 100 when several were busy."""
        wall, used = time.monotonic(), time.process_time()
        elapsed, spent = wall - self._wall, used - self._used
        self._wall, self._used = wall, used
        return round(100 * spent / elapsed, 1) if elapsed > 0 else 0.0
