"""`ojs_bench --flows`: kill the workers of durable jobs, the scheduler and connections of the database again and again,
and then see whether each flow has ended and what its steps did.

A flow has ten steps: four write into the database with their record, two write into a file, two call a counter over
HTTP, one sleeps, and one waits for an event, which comes twice, before the wait or after it. The sum is exact:

- every flow is completed, and has ten steps;
- every write into the database is there once;
- everything outside was called, and nothing that was recorded was called again: a step that is called looks for its own
  record. What is called twice was not recorded the first time, at most one in each slot of what was killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from django.contrib.auth.models import Group
from django.db import connection
from django.db.models import Count

from benchmarks import processes
from benchmarks.handlers import flow
from benchmarks.measures import BULK
from django_ojs import emit_event
from django_ojs.jobs.push import push
from django_ojs.models import Job, JobStep, Lease, Worker
from django_ojs.states import State

PROCESSES, SLOTS = 2, 4
#: Seconds between two kills: at least, and at most.
PEACE = (0.5, 2.0)
#: Seconds in which one flow has to end at least: else somebody waits for ever.
PATIENCE = 180.0
SHOWN = 20
#: Kills at least: one flow in `LATE` gets its events behind them, so that some are left however fast flows end.
KILLS, LATE = 6, 5


@dataclasses.dataclass(slots=True)
class Sum:
    """What was killed, and what was wrong afterwards."""

    flows: int = 0
    seconds: float = 0.0
    kills: Counter[str] = dataclasses.field(default_factory=Counter)
    again: int = 0  #: calls of steps that had been called and were not recorded
    faults: list[str] = dataclasses.field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"kills": dict(self.kills)}

    def text(self) -> str:
        killed = ", ".join(f"{number} of {what}" for what, number in sorted(self.kills.items())) or "none"
        verdict = "\n".join(self.faults[:SHOWN]) or "everything adds up."
        return (
            f"{self.flows:,} flows of ten steps in {self.seconds:.0f} s, kills: {killed}; {self.again} calls again of "
            f"steps that were not recorded: {verdict}"
        )


class Storm:
    """The processes that run flows, and what kills them."""

    def __init__(self, flows: int, database: str, said: Callable[[str], object]) -> None:
        self.database, self.said, self.sum = database, said, Sum(flows)
        self._scheduler: subprocess.Popen[str] | None = None
        self._killed = set[int]()
        self._chance = random.Random(1)  # noqa: S311
        late, events = range(0, flows, LATE), [number for number in range(flows) if number % LATE] * 2
        self._chance.shuffle(events)
        self._held, self._events = 2 * len(late), [*late, *late, *events]

    def rage(self) -> None:
        """Let workers run all flows, and kill until the last has ended."""
        numbers = range(self.sum.flows)
        for start in range(0, len(numbers), BULK):
            push([flow.document(number) for number in numbers[start : start + BULK]])
        command = processes.worker(
            "--no-scheduler", "--queues", "default", "--processes", str(PROCESSES), "--concurrency", str(SLOTS)
        )
        began = moved = time.monotonic()
        left, strike = self.sum.flows, began + 1.0
        with processes.running(command, self.database), self._scheduled():
            while left:
                self._emit()
                if time.monotonic() > strike:
                    self._kill()
                    strike = time.monotonic() + self._chance.uniform(*PEACE)
                    now_left = Job.objects.exclude(state=State.COMPLETED).count()
                    moved, left = (time.monotonic() if now_left < left else moved), now_left
                    self.said(f"{left} flows left, {self.sum.kills.total()} kills")
                if time.monotonic() - moved > PATIENCE:
                    self.sum.faults.append(f"No flow has ended for {PATIENCE:g} s; left are {_states()}.")
                    break
                time.sleep(0.1)
        self.sum.seconds = time.monotonic() - began

    def _emit(self) -> None:
        """Some events, from the end of the list, and those at its beginning when enough was killed."""
        held = self._held if self.sum.kills.total() < KILLS else 0
        for _ in range(min(len(self._events) - held, max(1, self.sum.flows // 200))):
            number = self._events.pop()
            emit_event(flow.EVENT, number, {"flow": number})

    def _kill(self) -> None:
        able = [self._kill_worker, self._kill_scheduler] + [self._kill_connection] * (connection.vendor != "sqlite")
        if what := self._chance.choice(able)():
            self.sum.kills[what] += 1

    def _kill_worker(self) -> str:
        """One that was not killed yet: its number may belong to a stranger by now."""
        living = [pid for pid in Worker.objects.values_list("pid", flat=True) if pid and pid not in self._killed]
        with contextlib.suppress(ProcessLookupError, IndexError):
            self._killed.add(pid := self._chance.choice(living))
            os.kill(pid, signal.SIGKILL)
            return "workers"
        return ""

    def _kill_scheduler(self) -> str:
        """Where it leads: the next one waits until the lease of the one before has run out."""
        scheduler = self._scheduler
        assert scheduler is not None
        if (ended := scheduler.poll()) is not None:
            self.sum.faults.append(f"The scheduler has ended by itself, with {ended}.")
        elif not Lease.objects.filter(holder__contains=f":{scheduler.pid}:").exists():
            return ""
        scheduler.kill()
        scheduler.wait()
        self._start_scheduler()
        return "the scheduler"

    def _kill_connection(self) -> str:
        """One of the workers or of the scheduler."""
        finds, kills = _CONNECTIONS[connection.vendor]
        with connection.cursor() as cursor:
            cursor.execute(finds)
            found = [row[0] for row in cursor.fetchall()]
            if not found:
                return ""
            with contextlib.suppress(Exception):  # it may have ended by itself
                cursor.execute(kills, [self._chance.choice(found)])
                return "connections"
        return ""

    @contextlib.contextmanager
    def _scheduled(self) -> Iterator[None]:
        self._start_scheduler()
        try:
            yield
        finally:
            assert self._scheduler is not None
            self._scheduler.kill()
            self._scheduler.wait()

    def _start_scheduler(self) -> None:
        self._scheduler = subprocess.Popen(
            [sys.executable, *processes.scheduler()], env=processes.environment(self.database), text=True
        )


_CONNECTIONS = {
    "postgresql": (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
        "SELECT pg_terminate_backend(%s)",
    ),
    "mysql": (
        "SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()", "KILL %s",
    ),
}  # fmt: skip


def storm(flows: int, database: str, said: Callable[[str], object]) -> Sum:
    """So many flows on this database, under kills."""
    with tempfile.TemporaryDirectory(prefix="ojs-flows-") as folder, _counter() as (address, called):
        os.environ |= {"OJS_BENCH_FLOWS": folder, "OJS_BENCH_COUNTER": address}
        storm = Storm(flows, database, said)
        storm.rage()
        for name in ("calls", "faults"):  # where nothing was said
            (Path(folder) / name).touch()
        called.update((Path(folder) / "calls").read_text().split())
        storm.sum.faults += (Path(folder) / "faults").read_text().splitlines()
    compare(storm.sum, called)
    return storm.sum


def compare(sum: Sum, called: Counter[str]) -> None:
    """Note what is wrong: `called` has how often each step outside of the database was called."""
    numbers, say = range(sum.flows), sum.faults.append
    if (states := _states()) != {State.COMPLETED.value: sum.flows}:
        say(f"The flows are {states}.")
    booked = Counter(name.rpartition(":")[0] for name in Group.objects.values_list("name", flat=True))
    wanted = {f"{number}:{name}" for number in numbers for name in flow.BOOKS}
    for name in sorted(wanted ^ booked.keys()):
        say(f"The write {name} is {'missing' if name in wanted else 'of no flow'}.")
    for name, times in booked.items():
        if times > 1:
            say(f"The write {name} is there {times} times.")
    outside = {f"{number}:{name}" for number in numbers for name in (*flow.FILES, *flow.CALLS)}
    for name in sorted(outside ^ called.keys()):
        say(f"The call {name} {'was never made' if name in outside else 'is of no flow'}.")
    for job in JobStep.objects.values("job_id").annotate(number=Count("pk")).exclude(number=10)[:SHOWN]:
        say(f"Job {job['job_id']} has recorded {job['number']} steps.")
    sum.again = called.total() - len(called)
    most = SLOTS * (sum.kills["workers"] + sum.kills["connections"])
    if sum.again > most:
        say(f"{sum.again} calls were made again; what was killed explains {most}.")


def _states() -> dict[str, int]:
    return dict(Counter(Job.objects.values_list("state", flat=True)))


@contextlib.contextmanager
def _counter() -> Iterator[tuple[str, Counter[str]]]:
    """A server that counts the paths of its calls; its address, and what it has counted."""
    called: Counter[str] = Counter()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            called[self.path.strip("/")] += 1
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", called
        finally:
            server.shutdown()
