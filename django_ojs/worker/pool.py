"""Keep the slots of a worker: which jobs run, which wait for a slot, how many more to claim, which take too long."""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from django_ojs.backoff import Backoff
from django_ojs.client.context import Link
from django_ojs.guard import described, get_logger, may_fail
from django_ojs.models import JobRow
from django_ojs.registry import Definition, registry
from django_ojs.scheduler.service import Service
from django_ojs.worker.board import Board
from django_ojs.worker.execution import InlineRunner, LoopRunner, Runner, ThreadRunner
from django_ojs.worker.joblogs import LogCollector
from django_ojs.worker.runs import Interruption, JobRun, NotRun, RunOutcome, of_fault

logger = get_logger(__name__)

#: Called with the outcomes of runs: the writer takes them.
Report = Callable[[Sequence[tuple[JobRun, RunOutcome]]], None]

INLINE_BATCH = 64  #: inline handlers that run one after the other before their outcomes are reported
SHORT_SECONDS = 0.02  #: what counts as a short job
AHEAD_SECONDS = 0.05  #: how much work the line may hold, measured in time
MOST_AHEAD = 500  #: batches larger than a few hundred gain nothing (docs/performance.md)
_WEIGHT = 0.2  #: of the newest batch in the moving average
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 30.0  #: seconds before another try to start a thread for handlers
TICK = 0.05  #: seconds between two looks for handlers whose time is over


class Pool:
    """`concurrency` slots, and before them a line of jobs that were claimed ahead.

    A slot is free again when its handler has ended, not when it should have. A runner whose handler ends
    takes the next job of the line itself, so that no thread has to be woken between two short jobs. A run
    counts as `active`, and its reservation is renewed, until `forget()`: when its outcome is written.
    """

    def __init__(
        self, concurrency: int, report: Report, on_room: Callable[[], None], board: Board | None = None,
        logs: LogCollector | None = None,
    ) -> None:  # fmt: skip
        self.concurrency = concurrency
        self._board, self._logs = board, logs
        self.ahead_limit = ClaimAhead(concurrency)
        self._report, self._on_room = report, on_room
        self._changed = threading.Condition()
        self.alone = False  #: one job at a time and none ahead, for jobs that are to be run alone
        self.tells_when_idle = False  #: a worker that ends when no job is left looks again after the last outcome
        self._line: deque[JobRun] = deque()
        self._running: set[JobRun] = set()
        self._active: set[JobRun] = set()
        self._busy = 0
        self._low = 0  #: the line is short when it has fewer than this
        self._threads, self._inline = ThreadRunner(self._ended), InlineRunner(self._ended)
        self._loop = LoopRunner(self._ended, self._threads)
        self._runners: tuple[Runner, ...] = (self._threads, self._loop, self._inline)
        self._starts = Backoff("Starting a thread for handlers", FIRST_PAUSE, LONGEST_PAUSE, logger=logger)
        self._stalled_until: float | None = None  #: the line stands still because no thread can be started
        self.deaths = 0  #: threads of slots that have died, and were replaced

    def free(self) -> int:
        """How many more jobs could start at once."""
        if self.alone:  # not before the last outcome is written, or a job that ended well could lose its outcome
            return 0 if self._active else 1
        if self._stalled_until is not None:
            return 0
        return max(0, self.concurrency - self._busy - len(self._line))

    def ahead(self) -> int:
        """How many more jobs may be claimed to wait in the line, of the types that `ahead_limit` knows to be short."""
        wanted = 0 if self.alone or self._stalled_until is not None else self.ahead_limit.ahead()
        self._low = wanted // 2
        waiting = len(self._line)
        return wanted - waiting if waiting <= self._low else 0

    def not_to_claim(self) -> list[uuid.UUID]:
        """The jobs that have a run here, begun or in the line, and may be available again.

        Another worker may run them. This one waits until its own run has ended.
        """
        now = time.monotonic()
        with self._changed:
            lost = [run.id for run in self._running if run.doubtful_at <= now]
            if self._line:
                lost += [run.id for run in self._line if run.doubtful_at <= now]
        return lost

    def offer(self, rows: Iterable[JobRow], link: Link) -> None:
        """Take claimed jobs: into free slots, and the rest into the line.

        A job that still has a run here is given back, and that run is interrupted as lost.
        """
        claimed = time.monotonic()
        runs = [JobRun(row, _definition(row), claimed, link) for row in rows]
        for run in runs:
            run.board, run.logs = self._board, self._logs
        with self._changed:
            claimed_ids = {run.id for run in runs}
            met = {run.id: run for run in (*self._line, *self._running) if run.id in claimed_ids}
            self._active.update(runs)
            self._line.extend(run for run in runs if run.id not in met)
            given_up = [run for run in runs if run.id in met]
            self._report([(run, NotRun()) for run in given_up])
            started = list(iter(self._take, None))
        for run in given_up:
            earlier = met[run.id]
            self.interrupt([earlier], Interruption.LOST)
            logger.warning(
                "Claimed job %s (attempt %d) while its attempt %d still runs here: given back.",
                run.id, run.attempt, earlier.attempt,
            )  # fmt: skip
        for runner, batch in started:
            self._start(runner, batch)

    def active(self) -> list[JobRun]:
        """The runs whose outcome is not written yet."""
        with self._changed:
            return list(self._active)

    def running(self) -> list[JobRun]:
        """The runs whose handler has begun and not ended yet."""
        with self._changed:
            return list(self._running)

    def stale(self, age: float) -> list[JobRun]:
        """Take those out of the line that have waited for so many seconds: another worker may be free."""
        edge = time.monotonic() - age
        with self._changed:
            old = [run for run in self._line if run.claimed < edge]
            if old:
                self._take_out(old)
        return old

    def give_up(self, run: JobRun) -> bool:
        """Report a run as interrupted although its handler goes on, and count it no longer.

        Its slot stays taken. False if it has been given up before or has ended meanwhile.
        """
        with self._changed:
            if run.abandoned or run not in self._running or run.interruption is None:
                return False
            run.abandoned = True
            self._report([(run, run.interrupted(run.interruption))])
        return True

    def unblock(self, run: JobRun) -> None:
        """Interrupt a coroutine that keeps its loop from running, and with it from being cancelled."""
        self._loop.unblock(run)

    def interrupt(self, runs: Iterable[JobRun], reason: Interruption) -> None:
        """Stop these runs: coroutines are cancelled, threads only asked (`context.is_cancelled`)."""
        for run in runs:
            run.interrupt(reason, force=run.definition.is_async)

    def end_between_steps(self) -> None:
        """Ask durable handlers to end before their next step: the job goes on in another worker, and loses nothing."""
        for run in self.running():
            if run.definition.durable is not None:
                run.interrupt(Interruption.SHUTDOWN, force=False)

    def interrupt_all(self, reason: Interruption) -> None:
        for run in self.running():
            run.interrupt(reason, force=True)

    def forget(self, runs: Iterable[JobRun]) -> None:
        """The outcomes of these runs are written."""
        with self._changed:
            self._active.difference_update(runs)
            self._changed.notify_all()
            idle = not self._active
        if self.alone or (self.tells_when_idle and idle):
            self._on_room()

    def wait_until_idle(self, timeout: float, is_hurried: Callable[[], bool] = lambda: False) -> bool:
        """Wait until every outcome is written; False if that takes longer than `timeout` seconds."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while self._active:
                left = deadline - time.monotonic()
                if left <= 0 or is_hurried():
                    return False
                self._changed.wait(min(left, 0.1))
        return True

    def empty_line(self) -> list[JobRun]:
        """Take everything out of the line that has not started."""
        with self._changed:
            waiting = list(self._line)
            if waiting:
                self._take_out(waiting)
        return waiting

    def abandon(self) -> list[JobRun]:
        """Give up the runs whose handler has not ended: whatever they still do no longer counts."""
        waiting = self.empty_line()
        with self._changed:
            given_up = [run for run in self._running if not run.abandoned]
            for run in given_up:
                run.abandoned = True
            self._active.difference_update(given_up)
        return waiting + given_up

    def close(self) -> None:
        for runner in self._runners:
            runner.close()

    def is_whole(self) -> bool:
        """Whether no thread of a slot has died that was not replaced yet."""
        return all(runner.is_whole() for runner in self._runners)

    def replace_dead(self) -> None:
        """Let another thread take the place of each that has died, report what those had in hand, and tell of it."""
        for runner in self._runners:
            for batch, error in runner.replace_dead():
                self.deaths += 1
                cause = described(error) if error is not None else "unknown"
                with self._changed:
                    held = [run for run in batch if run in self._running]
                logger.error(
                    "A thread that runs handlers has died (%s), and another one takes its place. It held %s.",
                    cause, ", ".join(f"{run.definition.type} {run.id}" for run in held) or "no job",
                )  # fmt: skip
                if held:
                    done = [(run, run.outcome or of_fault(f"its thread died, {cause}")) for run in held]
                    if (following := self._ended(runner, done)) is not None:
                        self._start(runner, following)
        self._start_stalled()

    def _take_out(self, runs: Sequence[JobRun]) -> None:
        gone = set(runs)
        self._line = deque(run for run in self._line if run not in gone)
        self._active.difference_update(gone)
        self._changed.notify_all()

    def _take(self) -> tuple[Runner, list[JobRun]] | None:
        """What is to run next, and where: the first job of the line, or the inline ones at its head together."""
        if not self._line or self._busy >= self.concurrency:
            return None
        first = self._line.popleft()
        batch = [first]
        if first.definition.inline:
            while self._line and self._line[0].definition.inline and len(batch) < INLINE_BATCH:
                batch.append(self._line.popleft())
        self._busy += 1
        self._running.update(batch)
        if first.definition.inline:
            return self._inline, batch
        return self._loop if first.definition.is_async else self._threads, batch

    def _ended(self, runner: Runner, done: Sequence[tuple[JobRun, RunOutcome]]) -> list[JobRun] | None:
        """A runner's handlers ended: report them, and give it the next batch if that is of its kind."""
        now = time.monotonic()
        with self._changed:
            self._busy -= 1
            self._running.difference_update(run for run, _ in done)
            # Inside the lock, so that a drain that closes the writer comes before or after.
            self._report([(run, outcome) for run, outcome in done if not run.abandoned])
            following = self._take()
            wanted = len(self._line) <= self._low or (following is None and self._busy + 1 == self.concurrency)
            wanted = wanted or any(run.abandoned or run.doubtful_at <= now for run, _ in done)  # to be claimed again
        may_fail("Noting how long handlers took", self.ahead_limit.record_durations, done)  # what was taken must be run
        if wanted:
            may_fail("Waking the claimer", self._on_room)
        if following is None:
            return None
        if following[0] is runner:
            return following[1]
        self._start(*following)
        return None

    def _start(self, runner: Runner, batch: list[JobRun]) -> None:
        """Run a batch, which has its slot. Where no thread can be started for it, it goes back into the line, and the
        line is tried again after a pause."""
        try:
            runner.start(batch)
        except RuntimeError:
            pause = self._starts.failed()
            with self._changed:
                self._busy -= 1
                self._running.difference_update(batch)
                self._line.extendleft(reversed(batch))
                self._stalled_until = time.monotonic() + pause
        else:
            self._starts.worked()

    def _start_stalled(self) -> None:
        """Try again to start what waits in the line because no thread could be started, once its pause is over."""
        if self._stalled_until is None or time.monotonic() < self._stalled_until:
            return
        with self._changed:
            self._stalled_until = None
            started = list(iter(self._take, None))
        for runner, batch in started:
            self._start(runner, batch)
        may_fail("Waking the claimer", self._on_room)

    def __repr__(self) -> str:
        return f"<Pool {self._busy}/{self.concurrency}, {len(self._line)} waiting>"


class ClaimAhead:
    """How far ahead it pays to claim, by how long the handlers of each job type take.

    A job that waits in this worker's line cannot be run by another one. So only types that were measured to be short
    are claimed ahead, and of them no more than are done in a moment. The pool reports every batch that ended.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._seconds: dict[str, float] = {}
        self.short_types: list[str] = []  #: the types whose jobs may be claimed ahead
        self._mean = SHORT_SECONDS
        self._lock = threading.Lock()

    def record_durations(self, done: Sequence[tuple[JobRun, RunOutcome]]) -> None:
        """Take the durations of runs that ended into account."""
        with self._lock:
            for run, _ in done:
                name, seconds = run.definition.type, run.seconds
                before = self._seconds.get(name, SHORT_SECONDS)
                mean = before + _WEIGHT * (seconds - before) if name in self._seconds else seconds
                self._seconds[name] = mean
                self._mean += _WEIGHT * (seconds - self._mean)
                if (before < SHORT_SECONDS) != (mean < SHORT_SECONDS):
                    self.short_types = sorted(known for known, each in self._seconds.items() if each < SHORT_SECONDS)

    def slow_down(self) -> None:
        """Claim nothing ahead until jobs have been measured anew, because the line did not move."""
        with self._lock:
            self._mean = SHORT_SECONDS
            self._seconds.clear()
            self.short_types = []

    def ahead(self) -> int:
        """How many jobs the line may hold; 0 as long as nothing short was seen."""
        if not self.short_types or self._mean >= SHORT_SECONDS:
            return 0
        return min(MOST_AHEAD, int(self._concurrency * AHEAD_SECONDS / max(self._mean, 1e-4)))


class Deadlines(Service):
    """Interrupts runs whose execution timeout is over: a coroutine is cancelled, a thread gets `Interrupted`.

    The server fails a job at its deadline by itself (jobs 1.8). This thread ends the handler as well, so that its slot
    becomes free and no handler goes on working for a job that another worker has.

    A coroutine that goes on is blocking the loop: after `UNBLOCK` seconds it gets `Interrupted` too. A handler that
    goes on for `STUCK` seconds cannot be ended, such as one in a blocked C call: `on_stuck` is called. Both count from
    the end of the job's grace period.

    It also looks for threads of slots that have died (`Pool.replace_dead`).
    """

    name = "deadlines"
    UNBLOCK, STUCK = 1.0, 5.0

    def __init__(
        self,
        pool: Pool,
        on_crash: Callable[[str], object],
        on_stuck: Callable[[JobRun], None] | None = None,
    ) -> None:
        super().__init__(on_crash)
        self._pool, self._on_stuck = pool, on_stuck

    def run(self) -> None:
        while not self.stopping.wait(TICK):
            self._pool.replace_dead()
            self.run_once(time.monotonic())

    def run_once(self, now: float) -> None:
        for run in self._pool.running():
            if run.deadline <= now:
                run.interrupt(Interruption.TIMEOUT, force=True)
                self._insist(run, now - (run.forced_at or now) - run.grace)

    def _insist(self, run: JobRun, seconds: float) -> None:
        if not run.is_inside:  # it waits in a row for others, and ends as soon as it is its turn
            return
        if seconds >= self.UNBLOCK and run.definition.is_async:
            self._pool.unblock(run)
        if seconds >= self.STUCK and self._on_stuck is not None and self._pool.give_up(run):
            self._on_stuck(run)


def _definition(row: JobRow) -> Definition:
    definition = registry.get(row["type"])
    assert definition is not None, f"claimed a {row['type']} without a handler"
    return definition


def present_runs(runs: Iterable[JobRun]) -> dict[uuid.UUID, JobRun]:
    """The runs that are still ours to renew, by job: not those that the server took away, and of two the later one."""
    gone = (Interruption.CANCELLED, Interruption.LOST)
    return {run.id: run for run in sorted(runs, key=lambda run: run.attempt) if run.interruption not in gone}
