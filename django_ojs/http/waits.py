"""Wait for the end of a job, without a connection to the database: results with `?wait=true`.

One thread of the process looks for all requests that wait, with one query (`Ends`), and ends when none is left. A
request that waits holds no connection: under WSGI and on Django's own ASGI handler its thread sleeps, under ours
(`realtime.handler`) a task of the event loop waits, and the request is carried out before the wait and behind it. On a
site that tells only the connection of a request whose data to show, the thread of the request looks by itself.

Requests that wait are counted for each client as its event streams are (`realtime.slots`).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Hashable, Iterator

from django.db import connections
from rest_framework.request import Request

from django_ojs import states, tenants
from django_ojs.backoff import Backoff
from django_ojs.database import Looks, give_back, leave_old_server
from django_ojs.faults import passes
from django_ojs.guard import get_logger
from django_ojs.models import Job
from django_ojs.realtime.slots import Slot, client_of

logger = get_logger(__name__)

BUSY, IDLE = 0.02, 0.25  #: seconds between two looks: at first, and after a while in which no job has ended
AFTER_FAULT, LONGEST_AFTER_FAULT = 1.0, 5.0
LINGER = 10.0  #: seconds for which the thread stays when no request waits
#: Under this name a scope of ASGI has the `WaitingRequest` of a request that is to wait on the event loop.
SCOPE_KEY = "django_ojs.wait"


@dataclasses.dataclass(slots=True)
class WaitingRequest:
    """A request that waits for a job: the server calls its view before the wait and after it. `over`: the wait has
    ended.

    The first time the view says in `wait` who looks for it, for which job, for how many seconds, and by which slot.
    """

    over: bool = False
    wait: tuple[Ends, uuid.UUID, float, Slot] | None = None


def wait_for_end(request: Request, job_id: uuid.UUID, seconds: float, using: str) -> bool:
    """Return when the job has ended, or after so many seconds; False where the event loop waits instead, and the
    request comes again. Raises RateLimited for a client with too many requests that wait."""
    waiting: WaitingRequest | None = getattr(request._request, "scope", {}).get(SCOPE_KEY)
    if seconds <= 0 or (waiting is not None and waiting.over):
        return True
    ends = ends_in(using)
    slot = Slot("waits", client_of(request, request.META.get("REMOTE_ADDR", "")))
    if waiting is not None and ends is not None:
        waiting.wait = ends, job_id, seconds, slot
        return False
    try:
        if ends is None:
            _poll_alone(job_id, seconds, using)
        else:
            give_back(using)
            ended = threading.Event()
            with ends.watching(job_id, ended.set):
                ended.wait(seconds)
    finally:
        slot.free()
    return True


def _poll_alone(job_id: uuid.UUID, seconds: float, using: str) -> None:
    """Look for the end of a job on this thread's own connection, which shows what no other one does."""
    looks = Looks("Waiting for the end of a job", seconds, using, longest=IDLE)
    for pause in looks:
        with looks.outlasting():
            if not _going_on([job_id], using):
                return
        time.sleep(pause)


def _going_on(job_ids: Collection[uuid.UUID], using: str) -> set[uuid.UUID]:
    """Those of these jobs that have not ended."""
    live = Job.objects.using(using).filter(pk__in=job_ids, state__in=list(states.LIVE))
    return set(live.values_list("pk", flat=True))


@contextlib.contextmanager
def counted(request: Request) -> Iterator[None]:
    """A block in which a request may wait, so that it is counted. Raises RateLimited as `wait_for_end` does."""
    slot = Slot("waits", client_of(request, request.META.get("REMOTE_ADDR", "")))
    try:
        yield
    finally:
        slot.free()


async def wait_on_loop(waiting: WaitingRequest) -> None:
    """The same on the event loop, for what the view has asked for."""
    assert waiting.wait is not None
    ends, job_id, seconds, slot = waiting.wait
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(ended.set)

    try:
        with ends.watching(job_id, wake), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await ended.wait()
    finally:
        waiting.over, waiting.wait = True, None
        slot.free()


class Ends:
    """Tells requests that wait that a job has ended. Every method may be called from any thread.

    `show` lets the connection of its thread show what that of the requests shows (`tenants`).
    """

    def __init__(self, using: str, show: Callable[[], None]) -> None:
        self._using, self._show = using, show
        self._lock = threading.Lock()
        self._watching: dict[uuid.UUID, list[Callable[[], None]]] = {}
        self._thread: threading.Thread | None = None
        self._come = threading.Event()
        self._faults = Backoff("Looking for the ends of jobs", AFTER_FAULT, LONGEST_AFTER_FAULT, logger=logger)

    @contextlib.contextmanager
    def watching(self, job_id: uuid.UUID, wake: Callable[[], None]) -> Iterator[None]:
        """A block in which `wake` is called, in another thread and at least once, after the job has ended."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="ojs-ends", daemon=True)
                thread.start()
                self._thread = thread
            self._watching.setdefault(job_id, []).append(wake)
        self._come.set()
        try:
            yield
        finally:
            with self._lock:
                found = self._watching[job_id]
                found.remove(wake)
                if not found:
                    del self._watching[job_id]

    def _run(self) -> None:
        try:
            while self._goes_on():
                self._poll()
        except BaseException:
            with self._lock:
                self._thread = None  # the next request that waits has another one
            raise
        finally:
            connections.close_all()

    def _goes_on(self) -> bool:
        """Sleep until a request waits; False where none comes, and then this is no longer the thread."""
        if self._watching or self._come.wait(LINGER):
            return True
        with self._lock:
            if self._watching:
                return True
            self._thread = None
            return False

    def _poll(self) -> None:
        """Look again and again until no request waits any more."""
        pause = BUSY
        while self._watching:
            if self._come.is_set():
                self._come.clear()
                pause = BUSY
            try:
                leave_old_server(self._using)
                found = self._check_ended()
            except Exception as error:  # noqa: BLE001 - it is logged there
                if passes(error):
                    connections[self._using].close()
                found, pause = False, self._faults.failed()
            else:
                self._faults.worked()
            pause = BUSY if found else pause
            self._come.wait(pause)
            pause = min(pause * 1.5, IDLE)
        self._come.clear()
        connections[self._using].close()

    def _check_ended(self) -> bool:
        """Whether a job that a request waits for has ended, or has been deleted; the request is told."""
        with self._lock:
            ids = set(self._watching)
        self._show()
        over = ids - _going_on(ids, self._using)
        with self._lock:
            woken = [wake for job_id in over for wake in self._watching.get(job_id, ())]
        for wake in woken:
            wake()
        return bool(woken)


#: By `tenants.scope`.
_ends: dict[Hashable, Ends] = {}


def ends_in(using: str) -> Ends | None:
    """What looks for the requests of this process that see the same jobs as this one; None where nothing else can."""
    show = tenants.shows_elsewhere(using)
    if show is None:
        return None
    scope = tenants.scope(using)
    return _ends.get(scope) or _ends.setdefault(scope, Ends(using, show))


def _forget() -> None:
    _ends.clear()


if hasattr(os, "register_at_fork"):  # a system that forks
    os.register_at_fork(after_in_child=_forget)
