"""Claims jobs for all job streams of this process: one loop, whatever their number (grpc SJ-3 to SJ-11).

    streams = JobStreams(using)
    streams.start()
    stream = JobStream(("mail",), "worker-1", places=5, deliver=..., close=...)
    streams.open(stream)

A `JobStream` is what a client that waits for jobs wants, and what it has: its places. `JobStreams` claims jobs for the
streams that have room, hands them to `deliver`, and learns when a claim has ended, so that its place is free again.
Nothing here knows the network: `jobstream` writes what is delivered.

Claims of streams that ask for the same types of the same queues are one statement. The streams take turns: one that was
served waits behind the others. While there is nothing to claim, all of them cost one look a second together, and while
none has room, or there is none, they cost no statement.

How a place becomes free: what this process ends tells of it at once, by its events. What others end, and what makes no
event, is found by asking for the claims of streams that are full, four times a second.

An open stream keeps the reservations of a worker that never sends a heartbeat.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from django.db import Error, connections, transaction
from django.db.models import Exists, OuterRef

from django_ojs import clock, hooks, lockwaits
from django_ojs.backoff import Backoff
from django_ojs.errors import PermissionDenied
from django_ojs.events.catalogue import Record
from django_ojs.faults import HeldByAnother, is_contention, passes, suppress_passing
from django_ojs.groupcommit import LEFT_OUT
from django_ojs.guard import get_logger
from django_ojs.jobs.fetch import Fetch, fetch_each
from django_ojs.jobs.finish import requeue
from django_ojs.lifecycle.waking import woken_here
from django_ojs.models import Job, Queue, Worker
from django_ojs.models.job import JobRow
from django_ojs.scheduler.service import RESTART, Service, persist
from django_ojs.states import State
from django_ojs.store import store_of
from django_ojs.worker.wakers import waker_for
from django_ojs.workerregistry import registration
from django_ojs.workerregistry.heartbeat import extend_silent
from django_ojs.workerregistry.ownership import Principal

logger = get_logger(__name__)

#: Turns of one claim: at first, and at most while all of them are served.
FEW, MANY = 16, 128
#: Seconds within which every stream that has room is looked at, however much there is to do for some.
AROUND = 0.1
#: Seconds between two looks at the claims of full streams.
ASK_EVERY = 0.25
#: These looks take at most one part in so many of the time.
SHARE = 20
#: Claims that one statement asks for.
ASK_MANY = 2000
#: Seconds between two notes in the rows of the workers that they are there.
SEEN_EVERY = registration.SEEN_EVERY * 2 / 3
#: Seconds between two looks at workers that take no jobs.
REST = 0.5
#: The states of a job of which time may make one that can be claimed.
_WAITING = (State.SCHEDULED, State.RETRYABLE, State.AVAILABLE)
#: Seconds between two tries of what failed, at first and at most.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
#: Seconds that the end of the loop waits for the thread that listens.
END_OF_WAKER = 1.0
#: Seconds for which it tries to hand back what other transactions have locked, and the longest pause between two tries.
HAND_BACK, BETWEEN_HAND_BACKS = 2.0, 0.25
#: Of how many workers the rows say that they sleep, for all of them: one would do, but a worker may be forgotten.
SLEEPERS = 3


class Wish(NamedTuple):
    """What a stream waits for; streams that agree in it can share a claim."""

    queues: tuple[str, ...]
    types: tuple[str, ...] | None


class JobStream:
    """One stream: what its client wants, and the claims that the client has not ended.

    Args:
        queues: left to right.
        worker_id: who holds what is claimed.
        places: the most claims that the stream may have at a time (SJ-4).
        deliver: is given the rows of jobs that were claimed, in a thread of ours. Each is then to be `taken`, and the
            last of them `written`, before the stream claims again (SJ-8).
        close: is called in any thread when no more jobs will come, because the server stops, or the worker is another
            caller's by now.
        visibility_ms: the length of the reservation that the client asks for.
        types: the job types that the client's key is limited to; None: any.
    """

    def __init__(
        self, queues: Sequence[str], worker_id: str, *, places: int, deliver: Callable[[Sequence[JobRow]], None],
        close: Callable[[], None], visibility_ms: int | None = None, types: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        self.wish = Wish(tuple(dict.fromkeys(queues)), None if types is None else tuple(types))
        self.worker_id, self.places, self.visibility_ms = worker_id, max(places, 1), visibility_ms
        self.deliver, self.close = deliver, close
        self.who: Principal | None = None  #: who names the worker; None: it is not asked whose the worker is
        self.held: dict[uuid.UUID, _Held] = {}  #: claims that have not ended
        self.unsent: dict[uuid.UUID, int] = {}  #: of these the jobs that have not been sent yet, with their attempts
        self.writing = False  #: whether something that was delivered is still being written
        self.rests = False  #: whether its worker was found to take no jobs now
        self.is_open = False

    @property
    def is_full(self) -> bool:
        return len(self.held) >= self.places

    @property
    def room(self) -> int:
        """How many jobs may be claimed for the stream now."""
        return 0 if self.writing or self.rests or not self.is_open else self.places - len(self.held)


@dataclasses.dataclass(slots=True, eq=False)
class _Held:
    """A claim that has not ended, as far as is known."""

    job_id: uuid.UUID
    attempt: int
    stream: JobStream
    since: float
    lease: float  #: the length of the reservation in seconds
    renew_at: float  #: when the stream is to renew it, if its worker sends no heartbeats


@dataclasses.dataclass(slots=True, eq=False)
class _StreamGroup:
    """The streams with one wish that have room, the one that has waited longest first."""

    wish: Wish
    ready: dict[JobStream, None] = dataclasses.field(default_factory=dict)
    turns: int = FEW
    asks: bool = True  #: whether there is a reason to claim without asking whether a job waits


class JobStreams:
    """All streams of this process upon one database. Every method may be called from any thread."""

    def __init__(self, using: str) -> None:
        self.using = using
        self._lock = threading.Lock()
        self._streams: dict[JobStream, None] = {}
        self._workers: Counter[str] = Counter()
        self._new: dict[str, Sequence[str]] = {}
        self._groups: dict[Wish, _StreamGroup] = {}
        self._held: dict[uuid.UUID, _Held] = {}
        self._returned: dict[uuid.UUID, int] = {}
        self._claimer = _Claimer(self)
        self._asker = _Asker(self)
        self._ear = _Ear(self)
        self._stopping = False

    def start(self) -> None:
        """Start both threads; where one cannot be started, none is left running."""
        hooks.subscribe(hooks.event_listeners, self._ear)
        try:
            self._claimer.start()
            self._asker.start()
        except BaseException:
            self.stop(0.0)
            raise

    def ask_to_stop(self) -> None:
        """Claim no more, hand back the jobs that no client was sent, and end every stream; do not wait (SJ-13)."""
        with self._lock:
            self._stopping = True
            streams = list(self._streams)
        for stream in streams:
            self.close(stream)
            stream.close()
        self._asker.ask_to_stop()
        self._claimer.ask_to_stop()

    def stop(self, timeout: float | None = None) -> bool:
        """`ask_to_stop`, and wait so many seconds; False if the threads have not ended by then."""
        self.ask_to_stop()
        if self._ear in hooks.event_listeners:
            hooks.event_listeners.remove(self._ear)
        stopped = [self._claimer.stop(timeout), self._asker.stop(timeout)]
        return all(stopped)

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, stream: JobStream) -> bool:
        """Claim for this stream from now on; False if the server stops, and then nothing will come."""
        with self._lock:
            if self._stopping:
                return False
            stream.is_open = True
            self._streams[stream] = None
            self._workers[stream.worker_id] += 1
            self._new[stream.worker_id] = stream.wish.queues
            self._place(stream, asks=True)
        self._claimer.wake()
        return True

    def close(self, stream: JobStream) -> None:
        """Claim no more for this stream. Jobs that its client was not sent go back to their queues, without an error
        (SJ-8); those that it was sent stay with the worker until their reservations end (SJ-7)."""
        with self._lock:
            if not stream.is_open:
                return
            stream.is_open = False
            del self._streams[stream]
            self._workers -= Counter([stream.worker_id])
            self._place(stream)
            self._returned |= stream.unsent
            stream.unsent.clear()
            for held in list(stream.held.values()):
                self._forget(held)
        self._claimer.wake()

    def limit(self, stream: JobStream, types: Sequence[str] | None) -> None:
        """Have the stream claim these types only from now on; None: any. The rights of its key have changed."""
        with self._lock:
            if (wish := stream.wish._replace(types=None if types is None else tuple(types))) != stream.wish:
                self._unplace(stream)
                stream.wish = wish
                self._place(stream, asks=True)
        self._claimer.wake()

    def take(self, stream: JobStream, job_id: uuid.UUID) -> bool:
        """Whether the job is still to be sent: then it will not be given back any more.

        It is not where the claim has ended since (the job was cancelled), or the stream is closed.
        """
        with self._lock:
            return stream.unsent.pop(job_id, None) is not None

    def written(self, stream: JobStream) -> None:
        """All that was delivered has been handed to the transport: the stream may claim again."""
        with self._lock:
            stream.writing = False
            self._place(stream, asks=True)
        self._claimer.wake()

    def ended(self, job_id: uuid.UUID, attempt: int) -> None:
        """The claim of this attempt has ended, or a later one has begun: its place is free (SJ-5)."""
        with self._lock:
            held = self._held.get(job_id)
            if held is None or held.attempt > attempt:
                return
            self._forget(held)
            held.stream.unsent.pop(job_id, None)
            self._place(held.stream, asks=True)
        self._claimer.wake()

    # What the threads ask

    @property
    def holds(self) -> bool:
        """Whether there are claims that have not ended."""
        return bool(self._held)

    def is_held(self, job_id: uuid.UUID | None) -> bool:
        return job_id in self._held

    def has_room(self) -> bool:
        return bool(self._groups)

    def names(self, most: int) -> list[str]:
        """So many of the workers behind the streams."""
        with self._lock:
            return list(islice(self._workers, most))

    def workers(self) -> dict[str, Sequence[str]]:
        """The workers behind the streams, with queues that they serve."""
        with self._lock:
            return {stream.worker_id: stream.wish.queues for stream in self._streams}

    def newcomers(self) -> dict[str, Sequence[str]]:
        """Those of `workers` that have come since the last call."""
        with self._lock:
            new, self._new = self._new, {}
            return new

    def knows(self, workers: Collection[str]) -> bool:
        """Whether all of these have streams."""
        return all(name in self._workers for name in workers)

    def groups(self) -> list[_StreamGroup]:
        with self._lock:
            return list(self._groups.values())

    def overdue(self, since: float) -> list[_Held]:
        """The claims of full streams that were made before `since`: one that has ended keeps a job waiting."""
        with self._lock:
            return [held for held in self._held.values() if held.stream.is_full and held.since <= since]

    def unrenewed(self, until: float) -> list[_Held]:
        """The claims whose reservations their streams are to renew by then."""
        with self._lock:
            return [held for held in self._held.values() if held.renew_at <= until]

    def turns(self, group: _StreamGroup) -> list[tuple[JobStream, int]]:
        """Who is served by the next claim, in this order, with how many jobs each at most.

        A stream alone takes all that it has room for. Several take one job each first, then two more, then four, and so
        on: where there are few jobs, no stream has them all.
        """
        with self._lock:
            members = list(islice(group.ready, group.turns))
            left = {stream: stream.room for stream in members}
        if len(members) == 1:
            return [(stream, room) for stream, room in left.items() if room > 0]
        turns: list[tuple[JobStream, int]] = []
        share, planned = 1, 0
        while left and (not turns or len(turns) + len(left) <= group.turns) and planned < MANY:
            for stream, room in list(left.items()):
                if room > 0:
                    turns.append((stream, min(room, share)))
                    planned += min(room, share)
                left[stream] = room - share
                if left[stream] <= 0:
                    del left[stream]
            share *= 2
        return turns

    def give(self, given: dict[JobStream, list[JobRow]]) -> None:
        """Note what was claimed for these streams, and deliver it; what was claimed for one that is closed by now goes
        back."""
        delivered = []
        with self._lock:
            now = time.monotonic()
            for stream, rows in given.items():
                attempts = {row["id"]: row["attempt"] for row in rows}
                if not stream.is_open:
                    self._returned |= attempts
                    continue
                for row in rows:
                    job_id, lease = row["id"], row["lease_ms"] / 1000
                    if (before := self._held.get(job_id)) is not None:  # lost, and claimed again
                        self._forget(before)
                        before.stream.unsent.pop(job_id, None)
                        self._place(before.stream)
                    held = _Held(job_id, row["attempt"], stream, now, lease, now + lease / 3)
                    self._held[job_id] = stream.held[job_id] = held
                stream.unsent |= attempts
                stream.writing = True
                self._place(stream)
                delivered.append((stream, rows))
        for stream, rows in delivered:
            try:
                stream.deliver(rows)
            except Exception as error:  # its event loop is closed; or a fault that must not meet the other streams
                if not isinstance(error, RuntimeError):
                    logger.exception("Jobs could not be delivered to a stream of the worker %r.", stream.worker_id)
                self.close(stream)
                stream.close()
        self._asker.wake()

    def rest(self, streams: Collection[JobStream]) -> bool:
        """Ask no more for these, whose workers take no jobs now, until `rouse`; whether there is one."""
        with self._lock:
            for stream in streams:
                stream.rests = True
                self._place(stream)
        return bool(streams)

    def resting(self) -> list[JobStream]:
        with self._lock:
            return [stream for stream in self._streams if stream.rests]

    def rouse(self, streams: Collection[JobStream]) -> None:
        with self._lock:
            for stream in streams:
                stream.rests = False
                self._place(stream, asks=True)

    @property
    def has_returns(self) -> bool:
        return bool(self._returned)

    def returns(self) -> dict[uuid.UUID, int]:
        """What is to be given back, by job and attempt; it is the caller's business from now on."""
        with self._lock:
            found, self._returned = self._returned, {}
        return found

    def give_back(self, attempts: Mapping[uuid.UUID, int]) -> None:
        """Note that these, by job and attempt, are still to be given back."""
        with self._lock:
            self._returned |= attempts

    # Under the lock

    def _place(self, stream: JobStream, *, asks: bool = False) -> None:
        """Put the stream behind those that wait, if it has room and is not among them; take it out if it has none."""
        if stream.room <= 0:
            self._unplace(stream)
            return
        group = self._groups.setdefault(stream.wish, _StreamGroup(stream.wish))
        group.ready.setdefault(stream)
        group.asks = group.asks or asks

    def _unplace(self, stream: JobStream) -> None:
        group = self._groups.get(stream.wish)
        if group is not None and stream in group.ready:
            del group.ready[stream]
            if not group.ready:
                del self._groups[stream.wish]

    def _forget(self, held: _Held) -> None:
        held.stream.held.pop(held.job_id, None)
        if self._held.get(held.job_id) is held:
            del self._held[held.job_id]


class _Claimer(Service):
    """The thread that claims, and gives back."""

    name = "stream-claimer"

    def __init__(self, streams: JobStreams) -> None:
        super().__init__(RESTART)
        self._streams, self._using = streams, streams.using
        self._sleepers: list[str] = []
        self._waker = waker_for(self._using, self._named)
        self._faults = Backoff("Claiming for job streams", FIRST_PAUSE, LONGEST_PAUSE, logger=logger)
        self._around = self._seen = self._asked_quiet = float("-inf")
        self._woken = threading.Event()

    def wake(self) -> None:
        self._woken.set()
        self._waker.wake()

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self._claim_on()
            except BaseException:  # noqa: BLE001 - told and tried again; away, where the server stops
                if not self.stopping.is_set():
                    self.stopping.wait(self._faults.failed())
        self._leave()  # whatever happened before

    def _claim_on(self) -> None:
        """Claim until the server stops, and say then that no worker sleeps here any more; or until something fails."""
        self._waker = waker_for(self._using, self._named)
        try:
            self._waker.start()
            with woken_here(self._using, self._waker.wake):
                while not self.stopping.is_set():
                    self._poll()
                    self._faults.worked()
        finally:
            try:
                with suppress_passing():
                    self._waker.awake()
            finally:
                self._waker.close()
                self._waker.stop(END_OF_WAKER)

    def _leave(self) -> None:
        """Give back what is left, as far as that can be done, and tell of the rest."""
        tries = Backoff("Handing back jobs that were not sent", 0.01, BETWEEN_HAND_BACKS, logger=logger)
        while True:
            try:
                self._give_back()
                if not self._streams.has_returns:
                    return
                raise HeldByAnother("Other transactions have locked them.")
            except BaseException as error:
                pause = tries.failed(quiet=math.inf)
                if tries.lasts >= HAND_BACK or not is_contention(error):
                    logger.warning(
                        "Jobs that were not sent come back when their reservations end: %s",
                        str(error).strip() or type(error).__name__,
                        exc_info=not passes(error),
                    )
                    return
            time.sleep(pause)

    def _poll(self) -> None:
        """Claim for all that have room; then sleep, unless there may be more."""
        self._give_back()
        if not self._streams:
            done = self._waker.awake() and not self._streams.has_returns
            # Nothing to do until a stream comes, but for what another transaction was in the way of.
            with self.resting():
                self._woken.wait(None if done else REST)
            self._woken.clear()
            return
        self._record_seen()
        self._wake_up()
        found, more = persist(self._claim, self._using, self.stopping)
        self._waker.looked(found=found)
        if more:
            return
        if not self._streams.knows(self._sleepers):
            self._waker.awake()  # and say so of others
        if self._streams.has_room():
            self._waker.wait(found=found)
            self._around = float("-inf")
        else:
            self._waker.wait_for_slot()

    def _claim(self) -> tuple[bool, bool]:
        """Whether something was claimed, and whether there may be more."""
        groups, found, more = self._streams.groups(), False, False
        if time.monotonic() - self._around >= AROUND:
            self._around = time.monotonic()
            wanted = {id(group) for group in self._waiting([group for group in groups if not group.asks])}
        else:
            wanted = set()
        for group in groups:
            if (group.asks or id(group) in wanted) and not self.stopping.is_set():
                claimed, full = self._claim_for(group)
                found, more = found or claimed > 0, more or full
        return found, more

    def _waiting(self, groups: Sequence[_StreamGroup]) -> list[_StreamGroup]:
        """Those of the groups in whose queues something waits: one look for all, and more only where there is."""
        if len(groups) <= 1:  # a claim asks by itself
            return list(groups)
        queues = list(dict.fromkeys(name for group in groups for name in group.wish.queues))
        now = clock.now(self._using)
        queue_status = store_of(self._using).queue_status(queues, (), now, unseen=0)
        if queue_status.closed:
            return []
        if queue_status.postponed:  # a run of a schedule, of which a FETCH knows what to do
            return list(groups)
        busy = self._available(queues) if queue_status.waiting else set()
        if queue_status.due:
            due = Job.objects.using(self._using).filter(wake_at__lte=now, queue__in=queues, state__in=_WAITING)
            busy |= set(due.order_by("wake_at").values_list("queue", flat=True)[:ASK_MANY])
        return [group for group in groups if not busy.isdisjoint(group.wish.queues)]

    def _available(self, queues: Sequence[str]) -> set[str]:
        """Those of the queues that have an available job. One that has no row yet has few jobs."""
        jobs = Job.objects.using(self._using).filter(state=State.AVAILABLE)
        rows = Queue.objects.using(self._using).filter(name__in=queues)
        known = dict(rows.values_list("name", Exists(jobs.filter(queue=OuterRef("name")))))
        found = {name for name, is_there in known.items() if is_there}
        if unknown := [name for name in queues if name not in known]:
            found |= set(jobs.filter(queue__in=unknown).order_by().values_list("queue", flat=True).distinct())
        return found

    def _claim_for(self, group: _StreamGroup) -> tuple[int, bool]:
        """One claim for streams of this group: how many jobs it brought, and whether there may be more of them."""
        turns = self._streams.turns(group)
        if not turns:
            return 0, False
        group.asks = False
        opens_in = self._waker.wake_in
        asked = [
            Fetch(wish.queues, count, stream.worker_id, stream.visibility_ms, wish.types, stream.who, opens_in=opens_in)
            for stream, count in turns
            for wish in [stream.wish]
        ]
        try:
            with lockwaits.LockTimeout(lockwaits.SHARED, self._using):
                outcomes = fetch_each(asked, using=self._using)
        except Exception as error:
            group.asks = True
            if not is_contention(error) or connections[self._using].vendor == "sqlite":
                raise
            outcomes = [self._one_by_one(stream, one) for (stream, _), one in zip(turns, asked, strict=True)]
        given: dict[JobStream, list[JobRow]] = {}
        lost = False
        for (stream, _), rows in zip(turns, outcomes, strict=True):
            if isinstance(rows, list):
                if rows:
                    given.setdefault(stream, []).extend(rows)
            elif rows is LEFT_OUT:
                lost = True
            elif isinstance(rows, PermissionDenied):  # another caller has the worker's name by now
                self._streams.close(stream)
                stream.close()
            else:
                logger.error("A claim for the worker %r failed.", stream.worker_id, exc_info=rows)
        self._streams.give(given)
        found = sum(map(len, given.values()))
        full = found >= sum(count for _, count in turns)
        group.turns = min(2 * group.turns, MANY) if full else FEW
        if not full and not lost and len(group.ready) > len(asking := {stream for stream, _ in turns} - given.keys()):
            lost = self._streams.rest(self._quiet(asking))  # others wait behind them
        if full or lost:
            group.asks = True
        return found, full or lost

    def _one_by_one(self, stream: JobStream, asked: Fetch) -> list[JobRow] | Exception:
        """The claim of one stream, where another transaction holds what one of several needs, such as the row of its
        worker. That one rests for a while."""
        try:
            with lockwaits.LockTimeout(lockwaits.SHARED, self._using):
                (rows,) = fetch_each([asked], using=self._using)
        except Exception as error:  # noqa: BLE001 - the others have been given jobs
            if not is_contention(error):
                return error
            self._streams.rest([stream])
            return []
        return rows

    def _quiet(self, streams: Collection[JobStream]) -> list[JobStream]:
        """Those of the streams whose workers take no jobs now."""
        rows = Worker.objects.using(self._using).filter(pk__in={stream.worker_id for stream in streams})
        quiet = {row.pk for row in rows.only("state", "directive") if registration.effective_state(row) != "running"}
        return [stream for stream in streams if stream.worker_id in quiet]

    def _wake_up(self) -> None:
        """Look now and then whether workers that take no jobs do again."""
        if time.monotonic() - self._asked_quiet < REST or not (resting := self._streams.resting()):
            return
        self._asked_quiet = time.monotonic()
        quiet = persist(lambda: self._quiet(resting), self._using, self.stopping)
        self._streams.rouse(set(resting) - set(quiet))

    def _give_back(self) -> None:
        """Hand back what was claimed and never sent: no error, and the attempt does not count (SJ-8)."""
        attempts = self._streams.returns()
        if not attempts:
            return
        give = partial(requeue, attempts, attempts=attempts, unrun=attempts, skip_locked=True, using=self._using)
        try:
            given = persist(give, self._using, self.stopping)
            left = persist(lambda: self._still_held(attempts.keys() - set(given)), self._using, self.stopping)
        except BaseException:  # a middleware of the site may call sys.exit()
            self._streams.give_back(attempts)
            raise
        if left := {job_id: attempt for job_id, attempt in left.items() if attempts[job_id] == attempt}:
            self._streams.give_back(left)  # another transaction has locked them

    def _still_held(self, job_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, int]:
        """The attempts of those of the jobs that are active."""
        if not job_ids:
            return {}
        active = Job.objects.using(self._using).filter(pk__in=job_ids, state=State.ACTIVE)
        return dict(active.values_list("pk", "attempt"))

    def _record_seen(self) -> None:
        """Note which workers are there, as their FETCHes would: those that have come at once, others now and then."""
        workers = self._streams.newcomers()
        if time.monotonic() - self._seen >= SEEN_EVERY:
            self._seen = time.monotonic()
            workers = self._streams.workers()
        if workers:
            persist(lambda: self._seen_now(workers), self._using, self.stopping)

    def _seen_now(self, workers: Mapping[str, Sequence[str]]) -> None:
        """Note them, unless another transaction holds the row of one: the next look notes them then."""
        with lockwaits.LockTimeout(lockwaits.SHARED, self._using):
            try:
                registration.seen(workers, using=self._using)
            except Error as error:
                if not is_contention(error):
                    raise

    def _named(self) -> list[str]:
        """The workers whose rows say whether the loop sleeps. Of those that have gone the rows no longer say so."""
        self._sleepers = self._streams.names(SLEEPERS)
        return self._sleepers


class _Asker(Service):
    """The thread that asks whether claims of full streams have ended, and keeps reservations."""

    name = "stream-places"

    def __init__(self, streams: JobStreams) -> None:
        super().__init__(RESTART)
        self._streams, self._using = streams, streams.using
        self._faults = Backoff("Asking for the claims of job streams", FIRST_PAUSE, LONGEST_PAUSE, logger=logger)
        self._woken = threading.Event()

    def wake(self) -> None:
        self._woken.set()

    def run(self) -> None:
        with woken_here(self._using, self.wake):  # a job that is handed back wakes workers, and makes no event
            while not self.stopping.is_set():
                began = time.monotonic()
                try:
                    asked = persist(self.ask, self._using, self.stopping) or self._streams.holds
                    persist(self.keep, self._using, self.stopping)
                except BaseException:  # noqa: BLE001 - told and tried again; away, where the server stops
                    asked = True
                    if not self.stopping.is_set():
                        self.stopping.wait(self._faults.failed())
                else:
                    self._faults.worked()
                took = time.monotonic() - began
                self.stopping.wait(took * SHARE)
                with self.resting():
                    self._woken.wait(ASK_EVERY if asked else None)
                self._woken.clear()

    def keep(self) -> None:
        """Renew the reservations of which a third is over, where workers send no heartbeats: their streams are open."""
        now = time.monotonic()
        claims = self._streams.unrenewed(now)
        for start in range(0, len(claims), ASK_MANY):
            some = claims[start : start + ASK_MANY]
            extend_silent({held.job_id: (held.stream.worker_id, held.attempt) for held in some}, using=self._using)
            for held in some:
                held.renew_at = now + held.lease / 3

    def ask(self) -> bool:
        """Free the places of claims that have ended; whether there were any to ask for."""
        claims = self._streams.overdue(time.monotonic())
        for start in range(0, len(claims), ASK_MANY):
            some = claims[start : start + ASK_MANY]
            active = Job.objects.using(self._using).filter(pk__in=[held.job_id for held in some], state=State.ACTIVE)
            still = set(active.values_list("pk", "attempt"))
            for held in some:
                if (held.job_id, held.attempt) not in still:
                    self._streams.ended(held.job_id, held.attempt)
        return bool(claims)


class _Ear:
    """Hears of what this process ends, and frees the places once it is committed."""

    #: What `catalogue.completed` needs of a row.
    columns: Sequence[str] = (
        "id", "type", "queue", "state", "attempt", "worker_id", "trace_id", "workflow_id", "started_at"
    )  # fmt: skip

    def __init__(self, streams: JobStreams) -> None:
        self._streams = streams

    def wants(self, event: str) -> bool:
        return event == "job.completed" and self._streams.holds

    def notify(self, records: Sequence[Record], using: str) -> None:
        if using != self._streams.using or not self._streams.holds:
            return
        over = [
            (record.job_id, record.attempt)
            for record in records
            if record.job_id is not None and record.state != State.ACTIVE and self._streams.is_held(record.job_id)
        ]
        if over:
            transaction.on_commit(lambda: self._free(over), using=using)

    def _free(self, over: Sequence[tuple[uuid.UUID, int]]) -> None:
        for job_id, attempt in over:
            self._streams.ended(job_id, attempt)
