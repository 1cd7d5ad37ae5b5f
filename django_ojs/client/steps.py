"""Let a durable handler do each step once, sleep for days, and go on where it was (extension durable-execution).

A durable handler runs again from its beginning after each failure, restart, deploy and sleep. A step that is recorded
is not done again: `context.step` returns what it returned. Steps are found by their names.

    @job("order.fulfil", durable=True)
    def fulfil(context, order_id):
        charge_id = context.step("charge", charge, order_id)
        context.sleep("2d")
        context.step("remind", remind, order_id, charge_id)
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import datetime as dt
import functools
import inspect
import secrets
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, NamedTuple, ParamSpec, Protocol, TypeVar, overload
from uuid import UUID, uuid4

from asgiref.sync import async_to_sync, sync_to_async
from django.db import Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.utils import DatabaseErrorWrapper
from django.utils.module_loading import import_string

from django_ojs import clock, jsontext, spellings
from django_ojs.client import approvals, children, durableevents, stepvalues
from django_ojs.client.branches import Branches, limited
from django_ojs.client.directives import Directive, Fail, StepBoundary, Suspended
from django_ojs.client.durableevents import EventKey
from django_ojs.client.options import Duration, RetryOptions, attributes, check_json, encode_arguments, milliseconds
from django_ojs.client.running import running
from django_ojs.conf import ojs_settings
from django_ojs.database import autocommits
from django_ojs.errors import InvalidRequest
from django_ojs.guard import Interrupted, may_fail, release_logging_locks, threaded, uncancelled
from django_ojs.messages import shown, with_article
from django_ojs.registry import Definition, is_coroutine_function, look_like, unwrapped
from django_ojs.rules import errorobjects, retrypolicy
from django_ojs.rules.approvals import EVENT as APPROVAL
from django_ojs.rules.approvals import ApprovalDecision, ApprovalRequest
from django_ojs.rules.durableevents import CHILDREN_ENDED, RESERVED
from django_ojs.rules.durableevents import check as check_event
from django_ojs.rules.durations import EARLIEST, LATEST
from django_ojs.rules.ids import new_id, new_job_id
from django_ojs.rules.rows import END_OF_TIME
from django_ojs.rules.steps import CLEARED, INSIDE, JOB_FAILED, MAX_STEP_NAME, UNDOING, Step, StepExists
from django_ojs.rules.steps import StepKind as Kind

if TYPE_CHECKING:
    from django_ojs.client.definition import PreparedJob

P = ParamSpec("P")
A = ParamSpec("A")
T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
R_co = TypeVar("R_co", covariant=True)

OnChange = Literal["restart", "resume", "wait"]

#: Seconds that a failed step may wait for its next try in the worker. For longer the job gives its slot back.
LONGEST_PAUSE = 5.0
#: Milliseconds after which a job asks again for an event, where a transaction that is open may have emitted it.
OPEN_EVENT_PAUSE = 1000
#: Milliseconds after which a job that runs under older code is looked at again by a worker with newer code.
OLD_CODE_PAUSE = 30_000
#: Bytes that `context.random` makes at once.
MAX_RANDOM = 65_536
ARGUMENTS = "$arguments"
#: What the names of the steps begin with that the code here does: it is that of a step, or of a handler.
_within: ContextVar[str] = ContextVar("ojs_step", default="")


class ReplayMismatch(Exception):
    """The handler does not do what its job's record says that it did. The job fails for good, and says what to do."""

    __module__ = "django_ojs"


class StepTimeout(TimeoutError):
    """A step took longer than the `timeout` it was given."""

    __module__ = "django_ojs"


class EventTimeout(TimeoutError):
    """The event did not come within the `timeout` of `context.wait_for_event`. Later runs of the job get it again."""

    __module__ = "django_ojs"


class ApprovalTimeout(TimeoutError):
    """No user has decided within the `timeout` of `context.wait_for_approval`, which has no default. Later runs of the
    job get it again."""

    __module__ = "django_ojs"


class StepError(RuntimeError):
    """A step that cannot be done as it is called: the message says what to change."""

    __module__ = "django_ojs"


#: What passes through a step whatever its retry policy says.
_NEVER_TRIED_AGAIN = (Directive, ReplayMismatch, StepError)


class Durable:
    """What `@job(durable=...)` says: the mark of the code, and what becomes of jobs that older code began.

    `on_change`: `restart` forgets what is recorded, `resume` goes on with it, `wait` leaves such jobs to workers that
    still run the older code.
    """

    __slots__ = ("code", "on_change")
    MAX_CODE = 64

    def __init__(self, code: str, on_change: OnChange) -> None:
        self.code, self.on_change = code, on_change


class StepStore(Protocol):
    """Where the steps of one run are recorded: in that database, or in memory (`using` None)."""

    @property
    def using(self) -> str | None: ...

    def load(self) -> list[Step]: ...

    def record(self, step: Step, *, locked: bool) -> bool: ...

    def replace(self, step: Step, *, locked: bool) -> bool: ...

    def delete_all(self) -> bool: ...

    def start_over(self, arguments: Step) -> bool: ...

    def event(self, name: str, key: str) -> str | None: ...

    def wait(self, step: Step) -> bool | None: ...

    def time_out(self, step: Step) -> bool | None: ...

    def begin(self, step: Step, document: dict[str, Any], *, limit: int, outlives: bool) -> bool: ...
    def ask(self, step: Step, request: ApprovalRequest, *, again: bool) -> bool: ...

    def time_out_approval(self, step: Step) -> bool: ...


class MemorySteps:
    """The steps of a context without a worker, for tests: kept as long as the context. `call` runs a job that the
    handler runs, and returns the outcome that its parent gets."""

    using: str | None = None

    def __init__(self, call: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._call = call
        self.steps: dict[str, Step] = {}
        self.events: dict[tuple[str, str], str] = {}
        self.decisions: dict[str, ApprovalDecision] = {}

    def load(self) -> list[Step]:
        return list(self.steps.values())

    def record(self, step: Step, *, locked: bool) -> bool:
        self.steps[step.name] = step
        return True

    replace = record

    def delete_all(self) -> bool:
        self.steps.clear()
        return True

    def start_over(self, arguments: Step) -> bool:
        self.steps = {arguments.name: arguments}
        return True

    def event(self, name: str, key: str) -> str | None:
        return self.events.get((name, key))

    def wait(self, step: Step) -> bool | None:
        raise StepError(
            f"The handler waits for the event {_event(step)}, and this test has not emitted it: call "
            f"context.emit({step.event_name!r}, {step.event_key!r}, payload) before the handler, or run the job with "
            "django_ojs.testing.worker() and emit the event there."
        )

    def time_out(self, step: Step) -> bool | None:
        return self.replace(step, locked=False)

    def begin(self, step: Step, document: dict[str, Any], *, limit: int, outlives: bool) -> bool:
        step.result = jsontext.dumps({"jobs": [self._call(job) for job in document["jobs"]]})
        step.ended_at = step.began_at
        return self.record(step, locked=False)

    def ask(self, step: Step, request: ApprovalRequest, *, again: bool) -> bool:
        decision = self.decisions.get(step.name)
        if decision is None:
            raise StepError(
                f"The handler waits for the approval {step.name!r}, and this test has not decided it: call "
                f"context.approve({step.name!r}) before the handler, or run the job with django_ojs.testing.worker() "
                "and call django_ojs.testing.approve(job) there."
            )
        step.result, step.ended_at = jsontext.dumps(decision.to_json()), step.began_at
        return self.record(step, locked=False)

    def time_out_approval(self, step: Step) -> bool:
        return False


class StepLog:
    """What is recorded of a job, and what its handler has asked for in this run."""

    def __init__(
        self, store: StepStore, durable: Durable, attempt: int, *, sequential: bool, undoes: bool = False
    ) -> None:
        self.store, self._durable, self._attempt = store, durable, attempt
        self.undoes = undoes  #: the steps are those of another job, which has failed: no handler asks for them
        self._known: dict[str, Step] = {}
        self._unasked: dict[str, Step] = {}  #: what earlier runs did and this one has not asked for yet
        self._asked: set[str] = set()
        self._failed: list[Step] = []  #: steps whose exceptions the handler has caught, perhaps
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()
        #: By the name of the entry: the function that undoes something, and its call.
        self.calls: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {}
        #: Where a handler does its steps one after the other: the thread in which it does. The order counts there.
        self._thread = self._handler = threading.get_ident() if sequential else None
        #: What is to end this run, since a step has raised it in the thread of the handler, which may have kept it.
        self.ended_by: BaseException | None = None
        self.endings: list[BaseException] = []  #: all that steps have raised to end this run, in whatever branch of it
        self.branches = Branches()  #: of an asynchronous handler
        self.is_replayed = False  #: what undoes the job is known, and is called
        self._loaded, self._begins_anew = False, False
        self._began, self._began_here = clock.now(), time.monotonic()

    def forget_order(self) -> None:
        """The handler is asynchronous, and may do several steps at once."""
        self._thread = self._handler = None

    def load(self) -> None:
        """Read what is recorded. Raises `Suspended` where workers with older code are to finish the job."""
        steps, self._began, self._began_here = self.store.load(), self.now(), time.monotonic()
        if self.undoes:
            self._known, self._thread, self._loaded = {step.name: step for step in steps}, None, True
            return
        cleared = next((step for step in steps if step.name == CLEARED), None)
        if cleared is not None:
            steps.remove(cleared)
            if cleared.has_ended:  # what comes after it is that of a run that went on
                self.must(self.store.delete_all())
                steps, cleared = [], None
        changed = any(step.code not in (self._durable.code, None) for step in steps)
        if changed and self._durable.on_change == "restart":
            self.must(self.store.delete_all())
            steps, changed = [], False
        elif changed and self._durable.on_change == "wait":
            raise Suspended(OLD_CODE_PAUSE)
        self._known = {step.name: step for step in steps}
        # A step that is recorded is not entered again, nor is what it did there asked for.
        self._unasked = {name: step for name, step in self._known.items() if name != ARGUMENTS and INSIDE not in name}
        # Where a step failed the handler may have gone another way, which it need not go again; nor need changed code.
        # Of steps that were deleted nothing is known.
        if changed or cleared or any(step.kind == Kind.CALL and not step.has_ended for step in steps):
            self._thread = None
        self._loaded = True

    @property
    def arguments(self) -> str | None:
        """The arguments, as JSON text, with which the job was continued as new."""
        found = self._known.get(ARGUMENTS)
        return found.result if found and found.kind == Kind.ARGUMENTS else None

    @property
    def undos(self) -> list[Step]:
        """The steps that say what undoes something, in the order in which it is undone: the latest first."""
        return [step for step in reversed(self._known.values()) if step.kind == Kind.UNDO]

    def now(self) -> dt.datetime:
        return clock.now(self.store.using)

    def ending(self, error: E) -> E:
        """The exception by which a step ends this run: the caller raises it. Later steps of the run raise it again."""
        if not self.undoes:
            self.endings.append(error)
            if self._handler == threading.get_ident():
                self.ended_by = error
        return error

    def numbered(self, kind: str) -> str:
        """The name of the next step of a kind whose steps have no names."""
        counted = _within.get() + kind
        with self._lock:
            self._counts[counted] = number = self._counts.get(counted, 0) + 1
        return _placed(f"{RESERVED}{kind}-{number}")

    def enter_again(self, name: str) -> None:
        """Another try of this step follows in this run: it asks again for what it did inside."""
        inside = name + INSIDE
        with self._lock:
            self._asked = {asked for asked in self._asked if not asked.startswith(inside)}
            self._failed = [step for step in self._failed if not step.name.startswith(inside)]
            self._counts = {kind: count for kind, count in self._counts.items() if not kind.startswith(inside)}

    def ask(self, name: str, kind: Kind) -> Step | None:
        """The recorded step of this name, once in a run. Raises `ReplayMismatch` where the record does not fit."""
        with self._lock:
            if not self._loaded:
                self.load()
            if name in self._asked:
                raise StepError(
                    f"The handler does the step {name!r} twice in one run. Each step needs a name of its own, such as "
                    f"{name + '-1'!r} and {name + '-2'!r} in a loop."
                )
            self._asked.add(name)
            found = self._known.get(name)
            if found is not None and found.kind != kind:
                said = _mismatch(f"the {_word(kind)} {name!r}", f"{with_article(_word(found.kind))} of that name")
                raise self.ending(ReplayMismatch(said))
            if self.undoes:
                return self._replayed(name, found)
            if found is None and self._unasked and self._thread == threading.get_ident() and INSIDE not in name:
                other = next(iter(self._unasked.values()))
                there = f"the {_word(other.kind)} {other.name!r}"
                raise self.ending(ReplayMismatch(_mismatch(f"the {_word(kind)} {name!r}", there)))
            self._unasked.pop(name, None)
            return found

    def _replayed(self, name: str, found: Step | None) -> Step | None:
        """What the handler gets again of the job that is undone; it ends where there is nothing."""
        if name.startswith(UNDOING):
            return found
        if self.is_replayed:  # what undoes has steps inside of its own, unless a thread does not know that
            raise StepError(
                f"The step {name!r} is done in a thread that does not know what it undoes: start that with "
                "contextvars.copy_context().run."
            )
        if found is not None and found.kind == Kind.CALL and not found.has_ended:
            raise _same_exception(found.error or {}, name)
        if found is None or not (found.has_ended or found.kind in (Kind.SLEEP, Kind.UNDO)):
            raise _ReplayEnds
        return found

    def add(self, step: Step, *, locked: bool = False) -> None:
        """Record a new step. Raises `StepBoundary` where the job is no longer this run's, and `StepExists`."""
        self._record_failed()
        self.must(self.store.record(step, locked=locked))
        self._known[step.name] = step

    def forget(self) -> None:
        """The record is that of the handler that begins anew: nothing that this run still does belongs to it."""
        self._begins_anew, self._known, self.branches.is_over = True, {}, True

    def _record_failed(self) -> None:
        self.must(not self._begins_anew)
        with self._lock:
            failed, self._failed = self._failed, []
        for one in failed:
            if one.name not in self._known:
                with contextlib.suppress(StepExists):  # its record was stored, and that was not heard of
                    self.must(self.store.record(one, locked=False))
                self._known[one.name] = one

    def wait(self, step: Step) -> Step:
        """Record a new step that waits for an event; the step as it is recorded, with the event if that has come.

        Raises `StepBoundary`, and `Suspended` where it cannot be told yet whether the event has come.
        """
        step.result = self.store.event(*step.event)
        try:
            if step.result is not None:
                step.ended_at = self.now()
                self.add(step)
                return step
            self._record_failed()
            recorded = self.store.wait(step)
        except StepExists:  # a run that had lost the job waits already
            found = self.reload(step.name)
            if found is None:
                raise
            return found
        if recorded is None:
            raise self.ending(Suspended(OPEN_EVENT_PAUSE))
        self.must(recorded)
        self._known[step.name] = step
        return step

    def begin(self, step: Step, document: dict[str, Any], *, limit: int, outlives: bool) -> Step:
        """Record a new step that runs jobs, and enqueue these; the step as it is recorded. Raises `StepBoundary`."""
        self._record_failed()
        with contextlib.suppress(StepExists):  # a run that had lost the job has enqueued them
            self.must(self.store.begin(step, document, limit=limit, outlives=outlives))
        return self.reload(step.name) or step

    def time_out(self, step: Step) -> Step:
        """Record that this step has waited in vain, unless the event has come; the step as it is recorded."""
        message = f"The event {_event(step)} did not come in time."
        over = dataclasses.replace(step, ended_at=self.now(), error={"type": "EventTimeout", "message": message})
        recorded = self.store.time_out(over)
        if recorded is None:
            raise self.ending(Suspended(OPEN_EVENT_PAUSE))
        if recorded:
            self._known[step.name] = over
            return over
        found = self.reload(step.name)
        if found is None or not found.has_ended:
            raise self.ending(StepBoundary())
        return found

    def ask_people(self, step: Step, request: ApprovalRequest, *, again: bool) -> Step:
        """Record a step that waits for a decision, with the approval; the step as it is recorded."""
        if not again:
            self._record_failed()
        try:
            self.must(self.store.ask(step, request, again=again))
        except StepExists:  # a run that had lost the job waits already
            found = self.reload(step.name)
            if found is None:
                raise
            return found
        self._known[step.name] = step
        return step

    def time_out_approval(self, step: Step) -> Step:
        """Record that no user has decided in time, unless one has; the step as it is recorded."""
        self.store.time_out_approval(step)
        found = self.reload(step.name)
        if found is None:
            raise self.ending(StepBoundary())
        if not found.has_ended:  # the job is another's, or the approval has been decided and the step not been told
            raise self.ending(Suspended(OPEN_EVENT_PAUSE))
        return found

    def finish(self, step: Step, *, locked: bool = False) -> None:
        """Record that a step has ended, whether an earlier try of it is recorded or not."""
        if step.name in self._known:
            self.must(self.store.replace(step, locked=locked))
            self._known[step.name] = step
        else:
            self.add(step, locked=locked)

    def postpone(self, step: Step) -> None:
        """Record that a step has failed and is tried again later, or that it rests until later."""
        if step.name in self._known:
            self.must(self.store.replace(step, locked=False))
            self._known[step.name] = step
        else:
            self.add(step)

    def begun(self, step: Step, until: Callable[[dt.datetime], dt.datetime] | None = None) -> Step:
        """A step that rests, as it is recorded: `until` a time, or as long as it was to when it began. One that was
        recorded while the clock was ahead begins now, or it would last until the clock is there again."""
        now = self.now()
        if step.has_ended or step.due_at is None or step.began_at <= now + clock.AHEAD:
            return step
        due_at = now + (step.due_at - step.began_at) if until is None else until(now)
        step = dataclasses.replace(step, began_at=now, due_at=due_at)
        if not self.store.replace(step, locked=False):  # it has ended meanwhile, or the job is lost
            found = self.reload(step.name)
            self.must(found is not None and found.has_ended)
            return found or step
        self._known[step.name] = step
        return step

    def wait_for_try(self, found: Step | None, now: dt.datetime) -> None:
        """Raise `Suspended` where the pause before the next try of a step goes on, and the job was woken for something
        else that the handler waits for meanwhile. One that began while the clock was ahead is over."""
        if self._handler is not None or found is None or found.due_at is None:
            return
        if all(step.has_ended or step is found for step in self._known.values()):
            return  # an operator lets it run now
        if found.due_at > now and found.began_at <= now + clock.AHEAD:
            raise self.ending(Suspended(_left(found.due_at, now)))

    def of_all_branches(self, end: Suspended) -> Suspended:
        """This end of a run with all else that is recorded as waiting, where the handler is asynchronous."""
        if self._handler is not None:
            return end
        delays, waits = [end.delay_ms], [*end.waits]
        now = clock.override()
        if now is None:  # here on the loop, which asks no database for its time
            now = self._began + dt.timedelta(seconds=time.monotonic() - self._began_here)
        delays += [other.delay_ms for other in self.endings if isinstance(other, Suspended)]
        for step in self._known.values():
            if step.has_ended or step.kind == Kind.UNDO:
                continue
            if step.due_at is not None and step.due_at > self._began:  # else this run has seen that the time is over
                delays.append(_left(step.due_at, now))
            if step.event_name is not None and step.name not in waits:
                waits.append(step.name)
        return Suspended(min(delays), tuple(waits))

    def note_failure(self, name: str, error: Exception, before: Step | None) -> None:
        """Remember a step whose exception the handler gets. It is recorded with what the handler does next, if that is
        another step. `before`: what is recorded of it already."""
        step = failed_step(self, name, error)
        with self._lock:
            if before is None:
                self._known.pop(name, None)  # a commit that has failed
            else:
                self._known[name] = before
            self._failed.append(step)

    def reload(self, name: str) -> Step | None:
        """The step as another run has recorded it meanwhile."""
        found = next((step for step in self.store.load() if step.name == name), None)
        if found is not None:
            self._known[name] = found
        return found

    def new(self, name: str, kind: Kind, **values: Any) -> Step:
        return Step(name, kind.value, self.now(), self._attempt, code=self._durable.code, **values)

    def must(self, held: bool) -> None:
        if not held:
            raise self.ending(StepBoundary())


def _word(kind: str) -> str:
    words = {
        Kind.CALL.value: "step",
        Kind.UNDO.value: "on_failure",
        Kind.EVENT.value: "wait",
        Kind.CHILDREN.value: "run of other jobs",
    }
    return words.get(kind, str(kind))


def _mismatch(asked: str, found: str) -> str:
    return (
        f"{_place()}: the handler comes to {asked}, and the record of this job has {found} here. The code has changed "
        "since this job began, or does not do the same each time. To start such jobs over, give the handler a new "
        'mark, such as @job(..., durable="2"); with on_change="resume" they go on with what is recorded, and with '
        'on_change="wait" workers with the older code finish them. Then retry this job.'
    )


def _event(step: Step) -> str:
    return f"{step.event_name!r}" + (f" of {step.event_key!r}" if step.event_key else "")


def _types(types: Sequence[str]) -> str:
    """Job types, each once, with the number of jobs."""
    return f"{len(types)} x {', '.join(dict.fromkeys(types))}"


def _place() -> str:
    """The file and the line of the site's code that asks for a step."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("django_ojs", "asgiref"):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "The handler"


class StepMethods:
    """The part of a `JobContext` that durable handlers use. Outside of them each of these raises `StepError`."""

    _step_log: StepLog | None = None
    _definition: Definition | None = None
    type: str
    _cancelled: bool

    @property
    def line(self) -> dict[str, str]:
        """Where jobs come from that this run enqueues."""
        raise NotImplementedError

    # Steps

    def step(
        self, name: str, function: Callable[..., T], /, *args: Any, retry: RetryOptions | None = None,
        timeout: Duration | None = None, **kwargs: Any,
    ) -> T:  # fmt: skip
        """Call the function once in the life of the job, and return what it returned.

        In later runs the recorded result is returned without a call. The result is kept as JSON (`stepvalues`), and
        returned as it is kept also the first time. An exception is not recorded: it passes through, and the step is
        done again by the next run.

        Args:
            name: unique within the job, up to 200 characters. Later runs find the step by it.
            retry: how often the step itself is tried, and after which pauses, such as `{"max_attempts": 3}`. Without it
                once. The job gives its slot back during a pause of more than 5 s.
            timeout: the longest time of one try, after which it has failed with `StepTimeout`.

        Raises StepError where it cannot be done here, ReplayMismatch where the record does not fit the code, and
        TypeError for a result that cannot be kept.
        """
        call = _Call(self, _step_name(name), function, retry, timeout)
        result: T = self._do(call, functools.partial(call.function, *args, **kwargs))
        return result

    def _do(self, call: _Call, function: Callable[[], Any]) -> Any:
        if call.has_ended:
            return call.value()
        while isinstance(value := call.once(function), _Pause):
            self._pause(value.seconds)
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise StepError(
                f"The function of the step {call.name!r} is asynchronous, and this handler is not. Make the handler "
                "asynchronous and do it with context.astep, or call asgiref's async_to_sync(function) here."
            )
        return value

    async def astep(
        self, name: str, function: Callable[..., Awaitable[T]] | Callable[..., T], /, *args: Any,
        retry: RetryOptions | None = None, timeout: Duration | None = None, **kwargs: Any,  # noqa: ASYNC109
    ) -> T:  # fmt: skip
        """`step` of an asynchronous handler. The function may be asynchronous or not; several steps may run at once,
        in `asyncio.gather` or a TaskGroup."""
        async with self._steps.branches.step():
            call = await sync_to_async(_Call)(self, _step_name(name), function, retry, timeout)
            result: T = await self._ado(call, functools.partial(call.function, *args, **kwargs))
        return result

    async def _ado(self, call: _Call, function: Callable[[], Any]) -> Any:
        if call.has_ended:
            return await sync_to_async(call.value)()
        # A thread goes on where its task is cancelled: there the step is recorded by the call that does it.
        once = call.aonce if is_coroutine_function(function) else threaded(call.once)
        while True:
            value = await once(function)
            if inspect.isawaitable(value):  # of a plain function, such as a lambda that calls another one
                value = await call.aonce(functools.partial(_same, value))
            if not isinstance(value, _Pause):
                return value
            await asyncio.sleep(value.seconds)
            self._ready()

    @overload
    def step_transaction(self, name: str, /) -> StepTransaction: ...
    @overload
    def step_transaction(self, name: str, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T: ...
    def step_transaction(self, name: str, function: Any = None, /, *args: Any, **kwargs: Any) -> Any:
        """Do a step whose writes to the database and whose record are one commit: they are stored exactly once.

        `context.step_transaction("book", book, rows)` returns what the function returned. As a block:

            with context.step_transaction("book") as step:
                if step.is_new:
                    step.result = book(rows)

        Python cannot skip a block. Without the `if` a later run does the block again, and its writes are undone.
        The writes go to the database of the jobs. Raises what `step` raises.
        """
        if function is not None:
            _callable(function, name)
        block = StepTransaction(self, name)
        if function is None:
            return block
        with block:
            if block.is_new:
                block.result = function(*args, **kwargs)
        return block.result

    async def astep_transaction(self, name: str, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """`step_transaction` of an asynchronous handler: the function, which is not asynchronous, runs in a thread."""
        do: Callable[..., Any] = self.step_transaction
        async with self._steps.branches.step():
            result: T = await threaded(do)(name, function, *args, **kwargs)
        return result

    async def _waiting(self, wait: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """What `wait` returns. It is recorded whichever other branch of the handler has ended that meanwhile: what it
        waits for wakes the job, too."""
        async with self._steps.branches.wait():
            return await uncancelled(functools.partial(wait, *args, **kwargs))

    @property
    def branches(self) -> Branches | None:
        """For the worker: those of an asynchronous handler; None where it is not durable."""
        return None if self._step_log is None else self._step_log.branches

    def may_do_steps_at_once(self) -> None:
        """For the worker, where a handler that looked synchronous has returned what is to be awaited."""
        if self._step_log is not None:
            self._step_log.forget_order()

    # What undoes it

    def on_failure(self, undo: Callable[..., Any], /, *args: Any, name: str = "", **kwargs: Any) -> None:
        """Let the server call this function with these arguments if the job is discarded or cancelled.

        Such calls are made in reverse order, by a job of their own that the server enqueues, each as a step of it: one
        that has been made is not made again, and one that fails is tried again. If the job completes, none is made.

        Args:
            undo: a function, also a coroutine function or a `@step`. One that a module defines is kept by its name,
                with arguments that `step` may return. To find any other, the handler is run over what is recorded.
            name: the name of the entry; without one, these calls are counted in their order.
        """
        log = self._ready()
        name = _step_name(name, UNDOING) if name else log.numbered("undo")
        _callable(undo, name)
        found = log.ask(name, Kind.UNDO)
        log.calls[name] = undo, functools.partial(_plain(undo), *args, **kwargs)
        if found is None:
            _refuse_inside_transaction(log, name)
            kept = _kept_call(undo, args, kwargs, name)
            if kept is None and INSIDE in name:  # a step that is recorded is not done again, so nothing would find it
                raise StepError(
                    f"{shown(undo)} cannot undo what is done inside of a step: give a function that a module defines, "
                    "with arguments that a step may return, or call on_failure outside of the step."
                )
            log.add(log.new(name, Kind.UNDO, event_name=JOB_FAILED, event_key="", result=kept))

    async def aon_failure(self, undo: Callable[..., Any], /, *args: Any, name: str = "", **kwargs: Any) -> None:
        """`on_failure` of an asynchronous handler."""
        await sync_to_async(self.on_failure)(undo, *args, name=name, **kwargs)

    def undo(self, handler: Callable[[], Any] | None = None) -> None:
        """Make the calls of `on_failure`: for tests of a handler with `job_context()`, and for the worker, which gives
        the handler as it is called."""
        if self._must_replay() and handler is not None:
            try:
                handler()
            except BaseException as error:  # noqa: BLE001 - it is the end of the job that is undone, or raised
                _check_end(error)
        for call, function in self._undoing():
            plain: Callable[[], Any] = async_to_sync(function) if is_coroutine_function(function) else function
            self._do(call, plain)

    async def aundo(self, handler: Callable[[], Awaitable[Any]] | None = None) -> None:
        """`undo` of an asynchronous handler."""
        if await sync_to_async(self._must_replay)() and handler is not None:
            try:
                await handler()
            except BaseException as error:  # noqa: BLE001 - as above
                _check_end(error)
        undoing = self._undoing()
        while (following := await sync_to_async(lambda: next(undoing, None))()) is not None:
            async with self._steps.branches.step():
                await self._ado(*following)

    def _must_replay(self) -> bool:
        """Whether there is something to undo by a function that cannot be found by its name."""
        log = self._ready()
        if not log.undoes and log.store.using is not None:
            raise StepError("context.undo is for tests with job_context(): the server undoes a job that has failed.")
        if log.undoes and not log.undos:
            raise Fail("Nothing says what this job undoes: its steps were deleted.")
        return any(step.result is None and step.name not in log.calls for step in log.undos)

    def _undoing(self) -> Iterator[tuple[_Call, Callable[[], Any]]]:
        log = self._steps
        entries = log.undos
        if lost := [step.name for step in entries if step.result is None and step.name not in log.calls]:
            raise ReplayMismatch(
                f"The handler does not come to what it has said is to be undone ({', '.join(lost)}), so nothing is "
                "undone: its code has changed, or does not do the same each time. Correct it and retry this job."
            )
        log.is_replayed = True
        named = {entry.name for entry in entries}
        for entry in entries:
            self._ready()
            if entry.name in log.calls:
                function, partial = log.calls[entry.name]
            else:
                kept = stepvalues.decode(entry.result or "null")
                function = import_string(kept["function"])
                partial = functools.partial(_plain(function), *kept["args"], **kept["kwargs"])
            short = entry.name.removeprefix(RESERVED)
            called = entry.name if short != entry.name and short in named else short  # one has the name by itself
            yield _Call(self, UNDOING + called, function, None, None), partial

    # What differs each time

    def now(self) -> dt.datetime:
        """The time, by the clock of the database (UTC): the same in all runs of the job."""
        value = self._once("time", Kind.TIME, self._steps.now)
        found: dt.datetime = dt.datetime.fromisoformat(value) if isinstance(value, str) else value
        return found

    def uuid(self) -> UUID:
        """A random UUID: the same in all runs of the job."""
        value = self._once("uuid", Kind.RANDOM, uuid4)
        return UUID(value) if isinstance(value, str) else value

    def random(self, size: int = 16) -> str:
        """So many random bytes, from 1 to 65,536, as hexadecimal text, fit for a secret: the same in all runs of the
        job. Raises ReplayMismatch where an earlier run has asked for another number of them."""
        given: Any = size
        if isinstance(given, bool) or not isinstance(given, int) or not 0 < given <= MAX_RANDOM:
            raise ValueError(f"size={shown(given)}: give a number of bytes from 1 to {MAX_RANDOM:,}.")
        found = self._recorded("random", Kind.RANDOM, functools.partial(secrets.token_hex, size))
        value: str = stepvalues.decode(found.result or "null")
        if found.code is not None and len(value) != 2 * size:  # what a client of another language has kept is its own
            said = _mismatch(f"a random value of {size} bytes", f"one of {len(value) // 2}")
            raise self._steps.ending(ReplayMismatch(said))
        return value

    async def anow(self) -> dt.datetime:
        """`now` of an asynchronous handler."""
        return await sync_to_async(self.now)()

    async def auuid(self) -> UUID:
        """`uuid` of an asynchronous handler."""
        return await sync_to_async(self.uuid)()

    async def arandom(self, size: int = 16) -> str:
        """`random` of an asynchronous handler."""
        return await sync_to_async(self.random)(size)

    # Time

    def sleep(self, length: Duration, *, name: str = "") -> None:
        """Go on after this time. The job gives its slot back, and the worker may stop; the time is kept.

        Until then the job is `retryable`, and it can be cancelled. Sleeps are counted in their order, unless they have
        names. The attempt does not count against `max_attempts`.
        """
        self._sleep(name, lambda now: now + dt.timedelta(milliseconds=milliseconds(length, "length")))

    def sleep_until(self, instant: dt.datetime, *, name: str = "") -> None:
        """`sleep` until an instant, which has a time zone. Nothing happens where that has passed. One at the end of the
        calendar, such as `datetime.max`, is as late as there can be."""
        if not isinstance(instant, dt.datetime):
            raise TypeError(f"instant={shown(instant)}: give a datetime with a time zone. sleep() takes a length.")
        if instant.utcoffset() is None:
            raise ValueError(f"instant={instant!r} has no time zone: use django.utils.timezone.make_aware(...).")
        within = max(EARLIEST, min(instant, LATEST))  # of what every database can store
        self._sleep(name, lambda now: within)

    async def asleep(self, length: Duration, *, name: str = "") -> None:
        """`sleep` of an asynchronous handler."""
        await self._waiting(self.sleep, length, name=name)

    async def asleep_until(self, instant: dt.datetime, *, name: str = "") -> None:
        """`sleep_until` of an asynchronous handler."""
        await self._waiting(self.sleep_until, instant, name=name)

    # Events

    def wait_for_event(
        self, event: str, /, *, key: EventKey = "", timeout: Duration | None = None, name: str = ""
    ) -> Any:
        """Go on when this event has been emitted (`django_ojs.emit_event`), and return its payload.

        It is returned at once if it was emitted before. Otherwise the job gives its slot back until the event comes;
        until then it is `retryable`, and it can be cancelled. The attempt does not count against `max_attempts`.

        Args:
            key: what the event is about, such as the id of an order.
            timeout: how long to wait; None: without end.
            name: the name of the step; without one, waits are counted in their order.

        Raises EventTimeout after that time, in this run and in all later ones.
        """
        log = self._ready()
        key = durableevents.text_of(key)
        name = _step_name(name) if name else log.numbered("event")
        found = log.ask(name, Kind.EVENT)
        if found is None:
            _refuse_inside_transaction(log, name)
            _check_event("name", event)
            _check_event("key", key)
            step = log.new(name, Kind.EVENT, event_name=event, event_key=key)
            if timeout is not None:
                step.due_at = step.began_at + dt.timedelta(milliseconds=milliseconds(timeout, "timeout"))
            found = log.wait(step)
        elif (found.event_name, found.event_key) != (event, key):
            asked = dataclasses.replace(found, event_name=event, event_key=key)
            said = _mismatch(f"the wait {name!r} for the event {_event(asked)}", f"one for the event {_event(found)}")
            raise log.ending(ReplayMismatch(said))
        else:
            found = log.begun(found)
        now = log.now()
        if not found.has_ended and found.due_at is not None and found.due_at <= now:
            found = log.time_out(found)
        if not found.has_ended:
            raise log.ending(_suspended(found, now))
        if found.error is not None:
            raise EventTimeout(found.error["message"])
        return jsontext.loads(found.result or "null")

    async def await_for_event(
        self, event: str, /, *, key: EventKey = "", timeout: Duration | None = None, name: str = "",  # noqa: ASYNC109
    ) -> Any:  # fmt: skip
        """`wait_for_event` of an asynchronous handler."""
        return await self._waiting(self.wait_for_event, event, key=key, timeout=timeout, name=name)

    def emit(self, event: str, key: EventKey = "", payload: Any = None) -> None:
        """For tests of a handler with `job_context()`: let `wait_for_event` find this event.

        In a worker it raises StepError: there `django_ojs.emit_event` emits events.
        """
        store = self._steps.store
        if not isinstance(store, MemorySteps):
            raise StepError(
                "context.emit is for tests with job_context(): use "
                'context.step_transaction("NAME", django_ojs.emit_event, "EVENT", "KEY", payload) here.'
            )
        key = durableevents.text_of(key)
        _check_event("name", event)
        _check_event("key", key)
        store.events.setdefault((event, key), durableevents.encode(payload))

    # Other jobs

    def run(self, job: PreparedJob, /, *, name: str = "", cancel_with_parent: bool = True) -> Any:
        """Enqueue this job once, and go on with its result when it has completed.

        The job of this handler gives its slot back until then; it is `retryable`, and it can be cancelled. The attempt
        does not count against `max_attempts`.

        Args:
            job: `handler.s(...)`, with any options.
            name: the name of the step; without one, these calls are counted in their order.
            cancel_with_parent: whether the job is cancelled where the job of this handler ends before it.

        Raises ChildFailed where it was discarded or cancelled, in this run and in all later ones, and what enqueueing
        it raises.
        """
        return self.run_all([job], name=name, cancel_with_parent=cancel_with_parent)[0]

    def run_all(
        self, jobs: Sequence[PreparedJob], /, *, limit: int | None = None, raise_errors: bool = True, name: str = "",
        cancel_with_parent: bool = True,
    ) -> list[Any]:  # fmt: skip
        """Enqueue these jobs once, and go on with their results, in their order, when all have ended.

        Args:
            limit: how many of them are enqueued at the same time; None: all.
            raise_errors: whether the first that has failed is raised as ChildFailed. Otherwise its exception is in
                the place of its result.
            name, cancel_with_parent: as of `run`.

        The results may have 8 MiB together. Raises what `run` raises, and InvalidWorkflow for more jobs than
        `OJS["MAX_BATCH_SIZE"]`.
        """
        log = self._ready()
        name = _step_name(name) if name else log.numbered("run")
        wanted = children.checked(jobs, limit)
        if not wanted:
            return []
        found = log.ask(name, Kind.CHILDREN)
        if found is None:
            _refuse_inside_transaction(log, name)
            key = str(new_id())
            step = log.new(name, Kind.CHILDREN, event_name=CHILDREN_ENDED, event_key=key)
            document = children.document_of(wanted, id=key, name=self.type, line=self.line)
            found = log.begin(step, document, limit=limit or 0, outlives=not cancel_with_parent)
        if not found.has_ended:
            raise log.ending(_suspended(found, log.now()))
        outcomes = jsontext.loads(found.result or "{}")
        if "jobs" not in outcomes:
            raise StepError(
                f"The results of the jobs of {name!r} have {outcomes.get('bytes')} bytes together, more than the 8 MiB "
                "that a handler can wait for. Let these jobs store what is large elsewhere and return a reference."
            )
        types = [outcome["type"] for outcome in outcomes["jobs"]]
        if types != (asked := [job.type for job in wanted]):
            said = _mismatch(f"the run {name!r} of {_types(asked)}", f"one of {_types(types)}")
            raise log.ending(ReplayMismatch(said))
        return children.values(outcomes["jobs"], raise_errors=raise_errors)

    async def arun(self, job: PreparedJob, /, *, name: str = "", cancel_with_parent: bool = True) -> Any:
        """`run` of an asynchronous handler."""
        return await self._waiting(self.run, job, name=name, cancel_with_parent=cancel_with_parent)

    async def arun_all(
        self, jobs: Sequence[PreparedJob], /, *, limit: int | None = None, raise_errors: bool = True, name: str = "",
        cancel_with_parent: bool = True,
    ) -> list[Any]:  # fmt: skip
        """`run_all` of an asynchronous handler."""
        return await self._waiting(
            self.run_all, jobs, limit=limit, raise_errors=raise_errors, name=name, cancel_with_parent=cancel_with_parent
        )

    # People

    def wait_for_approval(
        self, name: str, /, *, title: str = "", details: Any = None, assignees: Iterable[Any] = (), form: Any = None,
        timeout: Duration | None = None, default: bool | None = None, escalate_after: Duration | None = None,
        escalate_to: Iterable[Any] = (),
    ) -> ApprovalDecision:  # fmt: skip
        """Ask people, and go on with what they decide.

        The job gives its slot back until a user has decided; until then it is `retryable`, and it can be cancelled,
        which closes the approval. They are asked once, however often the handler runs.

        Args:
            name: the name of the step, such as `refund`.
            title: what is asked, in a line; without it the name.
            details: any JSON value that helps them to decide.
            assignees: who may decide: users, groups, and texts such as `user:anna`, `group:finance` and
                `perm:shop.refund`. Without any, every user with the permission `django_ojs.decide_approval`.
            form: what they fill in: a class of Django forms, or a JSON schema as a dict.
            timeout: how long to wait; None: without end.
            default: what counts after that time: true or false. None: it is an error.
            escalate_after, escalate_to: who is asked as well after how long.

        Raises ApprovalTimeout after the timeout without a default, in this run and in all later ones; InvalidRequest
        for assignees that do not exist.
        """
        log = self._ready()
        found = log.ask(name := _step_name(name), Kind.EVENT)
        if found is not None and found.event_name != APPROVAL:
            said = _mismatch(f"the approval {name!r}", f"the wait for the event {_event(found)}")
            raise log.ending(ReplayMismatch(said))
        if found is None or not found.has_ended:
            request = approvals.request(
                title or name, details, assignees, form, default, escalate_after, escalate_to, timeout
            )
            if found is None:
                _refuse_inside_transaction(log, name)
                step = log.new(name, Kind.EVENT, event_name=APPROVAL, event_key=str(new_job_id()))
                if timeout is not None:
                    step.due_at = step.began_at + dt.timedelta(milliseconds=milliseconds(timeout, "timeout"))
                found = log.ask_people(step, request, again=False)
            else:
                found = log.ask_people(found, request, again=True)
        now = log.now()
        if not found.has_ended and found.due_at is not None and found.due_at <= now:
            found = log.time_out_approval(found)
        if not found.has_ended:
            raise log.ending(_suspended(found, now))
        if found.error is not None:
            raise ApprovalTimeout(found.error["message"])
        return ApprovalDecision.of_json(jsontext.loads(found.result or "null"))

    async def await_for_approval(
        self, name: str, /, *, title: str = "", details: Any = None, assignees: Iterable[Any] = (), form: Any = None,
        timeout: Duration | None = None, default: bool | None = None,  # noqa: ASYNC109
        escalate_after: Duration | None = None, escalate_to: Iterable[Any] = (),
    ) -> ApprovalDecision:  # fmt: skip
        """`wait_for_approval` of an asynchronous handler."""
        return await self._waiting(
            self.wait_for_approval, name, title=title, details=details, assignees=assignees, form=form,
            timeout=timeout, default=default, escalate_after=escalate_after, escalate_to=escalate_to,
        )  # fmt: skip

    def approve(self, name: str, *, approved: bool = True, comment: str = "", data: Any = None, by: str = "") -> None:
        """For tests of a handler with `job_context()`: let `wait_for_approval` find this decision.

        In a worker it raises StepError: there people decide, or `django_ojs.approve`.
        """
        store = self._steps.store
        if not isinstance(store, MemorySteps):
            raise StepError("context.approve is for tests with job_context(): use django_ojs.approve here.")
        check_json(data, "data")
        at = self._steps.now()
        store.decisions.setdefault(_checked_name(name), ApprovalDecision(approved, by, at, comment, data))

    # Anew

    def continue_as_new(self, *args: Any, **kwargs: Any) -> None:
        """Forget what is recorded and run the handler anew, as the same job, with these arguments.

        For handlers that go on for ever, such as a loop with a sleep in it: the record of a job stays small. The
        envelope keeps the arguments that the job was enqueued with. It does not return.

        Raises TypeError, and forgets nothing, for arguments that the handler does not take or that cannot be kept, and
        StepError inside of a transaction.
        """
        log, given = self._ready(), encode_arguments(args, kwargs)
        if log.undoes:
            raise _ReplayEnds
        if self._definition is not None:
            given = self._definition.of(given).args
        text = stepvalues.encode(list(given), ARGUMENTS, "args")
        _refuse_inside_transaction(log, "continue_as_new")
        arguments = log.new(ARGUMENTS, Kind.ARGUMENTS, result=text)
        arguments.ended_at = log.now()
        log.must(log.store.start_over(arguments))
        if log.store.using is not None:
            log.forget()
        raise log.ending(Suspended(0))

    async def acontinue_as_new(self, *args: Any, **kwargs: Any) -> None:
        """`continue_as_new` of an asynchronous handler."""
        await sync_to_async(self.continue_as_new)(*args, **kwargs)

    # What a worker and tests use

    @property
    def has_steps(self) -> bool:
        """Whether the handler is durable."""
        return self._step_log is not None

    @property
    def ended_by(self) -> BaseException | None:
        """For the worker: what a step has raised to end this run. A handler that returns all the same has kept it."""
        return None if self._step_log is None else self._step_log.ended_by

    @property
    def endings(self) -> Sequence[BaseException]:
        """For the worker: all that steps have raised to end this run, also in branches that the handler gave up."""
        return () if self._step_log is None else self._step_log.endings

    def of_all_branches(self, end: Suspended) -> Suspended:
        """For the worker: what a run ends with that has raised this, where the handler may have several branches. What
        any of them waits for wakes the job, whichever has ended the run."""
        return end if self._step_log is None else self._step_log.of_all_branches(end)

    def record_steps(self, log: StepLog, definition: Definition | None = None) -> None:
        """For the worker and for tests: let the steps of this handler be recorded there."""
        self._step_log, self._definition = log, definition

    @property
    def step_arguments(self) -> list[Any] | None:
        """For the worker: the arguments that `continue_as_new` gave; None: those of the job."""
        text = self._steps.arguments
        found: list[Any] | None = None if text is None else stepvalues.decode(text)
        return found

    @property
    def _steps(self) -> StepLog:
        if self._step_log is None:
            raise StepError(
                f"The handler of {self.type} is not durable, so it has no steps: declare it with "
                f"@job({self.type!r}, durable=True)."
            )
        return self._step_log

    def _ready(self) -> StepLog:
        """The record, where a step may be done now."""
        log = self._steps
        if self._cancelled or log.branches.is_over:
            raise log.ending(StepBoundary())
        if log.ended_by is not None:
            raise log.ended_by
        return log

    def _once(self, counted: str, kind: Kind, make: Callable[[], Any]) -> Any:
        return stepvalues.decode(self._recorded(counted, kind, make).result or "null")

    def _recorded(self, counted: str, kind: Kind, make: Callable[[], Any]) -> Step:
        log = self._ready()
        name = log.numbered(counted)
        found = log.ask(name, kind)
        if found is None:
            _refuse_inside_transaction(log, name)
            found = log.new(name, kind, result=stepvalues.encode(make(), name))
            found.ended_at = found.began_at
            log.add(found)
        return found

    def _sleep(self, name: str, until: Callable[[dt.datetime], dt.datetime]) -> None:
        log = self._ready()
        name = _step_name(name) if name else log.numbered("sleep")
        found = log.ask(name, Kind.SLEEP)
        if found is None:
            _refuse_inside_transaction(log, name)
            found = log.new(name, Kind.SLEEP)
            found.due_at = until(found.began_at)
            log.add(found)
        else:
            found = log.begun(found, until)
        assert found.due_at is not None
        left = (found.due_at - log.now()).total_seconds()
        if left > 0 and log.store.using is not None:
            raise log.ending(Suspended(max(1, round(left * 1000))))

    def _pause(self, seconds: float) -> None:
        """Wait for the next try of a step, and look now and then whether the run has to end."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._ready()
            time.sleep(min(left, 0.2))


def _left(until: dt.datetime, now: dt.datetime) -> int:
    """Milliseconds, at least one."""
    return max(1, -(-(until - now) // dt.timedelta(milliseconds=1)))


class _Pause(NamedTuple):
    """What a step comes to that has failed and is tried again in this run."""

    seconds: float


class _Call:
    """One step that calls a function: what is recorded of it, and how often it has been tried."""

    def __init__(
        self, context: StepMethods, name: str, function: Callable[..., Any], retry: RetryOptions | None,
        timeout: Duration | None,
    ) -> None:  # fmt: skip
        self._context, self.name = context, name
        if isinstance(function, StepFunction):
            retry, timeout = retry or function.retry, function.timeout if timeout is None else timeout
            function = function.function
        self.function = _callable(function, name)
        self._policy = _policy(retry) if retry is not None else None
        self._seconds = None if timeout is None else milliseconds(timeout, "timeout") / 1000
        self._log = log = context._ready()
        self._found = log.ask(self.name, Kind.CALL)
        self.has_ended = self._found is not None and self._found.has_ended
        if not self.has_ended:
            _refuse_inside_transaction(log, self.name)
            self._step = log.new(self.name, Kind.CALL, tries=self._found.tries + 1 if self._found else 1)
            log.wait_for_try(self._found, self._step.began_at)

    def value(self) -> Any:
        """The result that is recorded."""
        assert self._found is not None
        return stepvalues.decode(self._found.result or "null")

    def succeeded(self, value: Any) -> Any:
        """Record the result, and return it as it is kept."""
        step = self._step
        try:
            step.result, step.error, step.due_at = stepvalues.encode(value, self.name), None, None
            step.ended_at = self._log.now()
            self._log.finish(step)
        except StepExists:  # a run that had lost the job recorded the step after this one had looked
            found = self._log.reload(self.name)
            if found is None or not found.has_ended:
                raise
            return stepvalues.decode(found.result or "null")
        except Exception as error:
            self._log.note_failure(self.name, error, self._found)
            raise
        return value if type(value) in stepvalues.SCALARS else stepvalues.decode(step.result)

    def failed(self, error: Exception) -> _Pause | None:
        """The pause before the next try; None: there is none. Raises `Suspended` where that is long."""
        step, policy, said = self._step, self._policy, errorobjects.from_exception(error)
        step.error = _brief(said)
        once = isinstance(error, _NEVER_TRIED_AGAIN)
        again = retrypolicy.FailureOutcome.RETRY
        if policy is None or once or retrypolicy.decide(policy, said, step.tries) != again:
            if self._found is None:
                self._log.note_failure(self.name, error, None)
            else:
                self._log.postpone(failed_step(self._log, self.name, error))
            return None
        delay = retrypolicy.backoff_ms(policy, step.tries)
        here = self._log.store.using is None or (delay <= LONGEST_PAUSE * 1000 and clock.override() is None)
        if not here:
            step.due_at = self._log.now() + dt.timedelta(milliseconds=delay)
            self._log.postpone(step)
            raise self._log.ending(Suspended(delay))
        step.tries += 1
        self._log.enter_again(self.name)
        return _Pause(0.0 if self._log.store.using is None else delay / 1000)

    def once(self, function: Callable[[], Any]) -> Any:
        """Call the function, and return its result as it is kept; a `_Pause` where it is to be called again. A result
        that is to be awaited is returned as it is, and not recorded."""
        try:
            with self._inside():
                value = self.limited(function)
        except Exception as error:
            if (pause := self.failed(error)) is None:
                raise
            return pause
        return value if inspect.isawaitable(value) else self.succeeded(value)

    async def aonce(self, function: Callable[[], Awaitable[Any]]) -> Any:
        """`once` for a coroutine function."""
        try:
            with self._inside():
                value = await self.alimited(function)
        except Exception as error:
            if (pause := await sync_to_async(self.failed)(error)) is None:
                raise
            return pause
        return await uncancelled(self.succeeded, value)

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        """A block whose steps are those of this step."""
        token = _within.set(self.name + INSIDE)
        try:
            yield
        finally:
            _within.reset(token)

    def limited(self, call: Callable[[], T]) -> T:
        """What the call returns. Raises `StepTimeout` where it takes too long."""
        if self._seconds is None:
            return call()
        alarm = _Alarm(self._seconds)
        token = _alarm.set(alarm)
        try:
            with alarm:
                return call()
        except _TimeIsUp as struck:
            if alarm.is_inside_one_that_rang:
                raise
            release_logging_locks()
            for connection in _struck(struck):
                if not connection.in_atomic_block:
                    may_fail("Closing a connection after the timeout of a step", connection.close)
            if self._context._cancelled:  # the worker's own interruption may have been lost to this one
                raise Interrupted from None
            raise self._late() from None
        finally:  # here, because an alarm may strike as this one begins, or in its own `__exit__`
            alarm.silence()
            _alarm.reset(token)

    async def alimited(self, call: Callable[[], Awaitable[T]]) -> T:
        """What the coroutine of the call returns. Raises `StepTimeout` where it takes too long."""
        if self._seconds is None:
            return await call()
        token = limited.set(True)
        try:
            async with asyncio.timeout(self._seconds) as limit:
                return await call()
        except TimeoutError:
            if limit.expired():
                raise self._late() from None
            raise
        finally:
            limited.reset(token)

    def _late(self) -> StepTimeout:
        return StepTimeout(f"The step {self.name!r} took longer than its timeout of {self._seconds:g} s.")


def failed_step(log: StepLog, name: str, error: Exception) -> Step:
    """What is recorded of a step whose exception the handler gets: the next run has all tries again."""
    return log.new(name, Kind.CALL, tries=0, error=_brief(errorobjects.from_exception(error)))


def _brief(error: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": error["type"], "message": error["message"], "class": error["details"]["error_class"]}


def _same_exception(said: Mapping[str, Any], name: str) -> Exception:
    """The exception that the step `name` had raised, as far as it is kept: its class, if that is found again, and its
    message. No constructor is called, because what that asks for is not known."""
    path, message = str(said.get("class")), str(said.get("message"))
    with contextlib.suppress(Exception):
        kind = import_string(path if "." in path else f"builtins.{path}")
        if issubclass(kind, Exception):
            error: Exception = kind.__new__(kind)
            error.args = (message,)
            return error
    return StepError(f"The step {name!r} has failed: {said.get('type')}: {message}")


def _same(value: T) -> T:
    return value


class _TimeIsUp(BaseException):
    """Ends a step in its thread."""


def _struck(error: BaseException) -> set[BaseDatabaseWrapper]:
    """The connections that were in the middle of something where this was raised."""
    found, place = set[BaseDatabaseWrapper](), error.__traceback__
    # The code of a driver, which a site may call by a cursor of its own, has the connection as the driver knows it.
    raw = {id(each.connection): each for each in connections.all(initialized_only=True)}
    while place is not None:
        for value in list(place.tb_frame.f_locals.values()):
            kind = type(value)  # `isinstance` asks a lazy object what it is, which may be a query
            if id(value) in raw and value is not None:
                found.add(raw[id(value)])
            elif issubclass(kind, BaseDatabaseWrapper):
                found.add(value)
            elif issubclass(kind, CursorWrapper | DatabaseErrorWrapper):
                found.add(value.db if issubclass(kind, CursorWrapper) else value.wrapper)
        place = place.tb_next
    return found


#: The innermost alarm around the code of a step.
_alarm: ContextVar[_Alarm | None] = ContextVar("ojs_step_alarm", default=None)


class _Alarm:
    """A block that is ended by `_TimeIsUp` after so many seconds, in whatever line of Python it is then.

    Blocks may be inside each other. Where two have rung it is the outer one that ends.
    """

    def __init__(self, seconds: float) -> None:
        self._around = _alarm.get()
        self._target = threading.get_ident()
        self._timer = threading.Timer(seconds, self._ring)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._inside, self._rang = False, False

    @property
    def is_inside_one_that_rang(self) -> bool:
        return self._around is not None and (self._around._rang or self._around.is_inside_one_that_rang)

    def __enter__(self) -> None:
        self._inside = True
        self._timer.start()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.silence()
        if self._rang:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._target), None)
            if kind is not _TimeIsUp and self.is_inside_one_that_rang:  # that may have been taken back with it
                raise _TimeIsUp

    def silence(self) -> None:
        """Let it not ring any more: it would end what its thread does by then."""
        with self._lock:
            self._inside = False
        self._timer.cancel()

    def _ring(self) -> None:
        with self._lock:
            if self._inside:
                self._rang = True
                exception = ctypes.py_object(_TimeIsUp)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._target), exception)


class StepTransaction:
    """A block whose writes and whose record are one commit; see `step_transaction`.

    Attributes: `is_new` (no earlier run has done it), `result` (what the block sets, or an earlier run has set).
    """

    def __init__(self, context: StepMethods, name: str) -> None:
        if ojs_settings.OUTBOX:
            raise StepError(
                "step_transaction needs one database for the jobs and the site's data, and with "
                'OJS["OUTBOX"] they are two: use step, and make what it does idempotent.'
            )
        self._log, self.name = context._ready(), _step_name(name)
        self.result: Any = None
        self._found = self._log.ask(self.name, Kind.CALL)
        self.is_new = self._found is None or not self._found.has_ended
        if self._found is not None and self._found.has_ended:
            self.result = stepvalues.decode(self._found.result or "null")
        else:
            _refuse_inside_transaction(self._log, self.name)

    def __enter__(self) -> StepTransaction:
        self._began = self._log.now()
        self._block = transaction.atomic(using=self._log.store.using)
        self._block.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        using = self._log.store.using
        if not self.is_new:  # the block is done already; what it wrote this time is undone
            transaction.set_rollback(True, using=using)
            self._block.__exit__(None, None, None)
            return isinstance(error, Error)
        try:
            if error is None:
                self._end()
            else:
                self._block.__exit__(kind, error, trace)
        except Exception as failure:  # of the record, or of the commit
            self._log.note_failure(self.name, failure, self._found)
            raise
        if isinstance(error, Exception):
            self._log.note_failure(self.name, error, self._found)
        return False

    def _end(self) -> None:
        """Record the step, and commit."""
        try:
            step = self._log.new(self.name, Kind.CALL, result=stepvalues.encode(self.result, self.name))
            step.began_at, step.ended_at = self._began, self._log.now()
            self._log.finish(step, locked=True)
            self.result = stepvalues.decode(step.result or "null")
        except StepExists:
            transaction.set_rollback(True, using=self._log.store.using)
            self._block.__exit__(None, None, None)
            found = self._log.reload(self.name)
            if found is None or not found.has_ended:
                raise
            self.result, self.is_new = stepvalues.decode(found.result or "null"), False
        except BaseException:
            self._block.__exit__(*sys.exc_info())
            raise
        else:
            self._block.__exit__(None, None, None)


def _suspended(step: Step, now: dt.datetime) -> Suspended:
    """What a handler ends with that waits for this step: until its time is over or, without a time, until it is given
    what it waits for."""
    return Suspended(_left(step.due_at or END_OF_TIME, now), (step.name,))


def _checked_name(name: str, prefix: str = "") -> str:
    if not isinstance(name, str):
        raise StepError(f'The name of a step is a text, not {shown(name)}: context.step("charge", charge, order_id).')
    printed = bool(name) and name == name.strip() and name.isprintable()
    longest = MAX_STEP_NAME - len(prefix)
    if not printed or len(name) > longest or name.startswith(RESERVED):
        raise StepError(
            f"{name[:MAX_STEP_NAME]!r} cannot be the name of a step: it has 1 to {longest} printable characters, "
            f"none of them a space at an end, and does not begin with {RESERVED!r}."
        )
    return name


def _step_name(name: str, prefix: str = "") -> str:
    """`_checked_name` of a step that is done here, which may be inside of another one."""
    if INSIDE in _checked_name(name, prefix):
        raise StepError(
            f"{name!r} cannot be the name of a step: {INSIDE!r} stands between the name of a step and that of another "
            "one that it does inside."
        )
    return _placed(name)


def _placed(name: str) -> str:
    """The name of a step as it is recorded, which is done here."""
    placed, longest = _within.get() + name, MAX_STEP_NAME - len(UNDOING)
    if placed != name and len(placed) > longest:
        raise StepError(
            f"The step {placed!r} is inside of others, and has a name of more than {longest} characters with theirs: "
            "give them shorter names."
        )
    return placed


def _callable(function: Any, name: str) -> Any:
    """The function of a step. Raises StepError for what cannot be called, such as what a call has returned."""
    if not callable(function):
        raise StepError(
            f"The step {name!r} takes a function and its arguments, not {shown(function)}: write "
            'context.step("charge", charge, order_id), not context.step("charge", charge(order_id)).'
        )
    return function


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return function.function if isinstance(function, StepFunction) else function


def _kept_call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> str | None:
    """The call as another process can make it; None where that needs the handler."""
    path = f"{getattr(function, '__module__', None)}.{getattr(function, '__qualname__', '')}"
    try:
        if path.startswith("__main__.") or import_string(path) is not function:
            return None
        return stepvalues.encode({"function": path, "args": list(args), "kwargs": dict(kwargs)}, name)
    except (ImportError, TypeError):
        return None


class _ReplayEnds(Suspended):
    """Ends a handler that is run only for what it says of undoing: it comes to what its job has not done."""

    def __init__(self) -> None:
        super().__init__(0)


def _check_end(error: BaseException) -> None:
    """Raise this again, unless the handler ended with it as its job did, or because its job went no further."""
    for leaf in errorobjects.leaves(error):
        if not isinstance(leaf, Exception | _ReplayEnds) or isinstance(leaf, ReplayMismatch):
            raise error


def _check_event(field: str, text: str) -> None:
    try:
        check_event(field, text)
    except InvalidRequest as error:
        raise StepError(f"{error.message} This is none: {shown(text)}.") from None


def _policy(retry: RetryOptions) -> retrypolicy.RetryPolicy:
    given = attributes({"retry": retry})["retry"]
    return retrypolicy.merge(spellings.read_retry(given))


def _refuse_inside_transaction(log: StepLog, name: str) -> None:
    """Raise `StepError` inside a transaction of the handler's: what is recorded there could be undone."""
    if log.store.using is None:
        return
    connection = connections[log.store.using]
    if not connection.in_atomic_block and not autocommits(log.store.using):
        raise StepError(
            f"The step {name!r} is done while autocommit is off, so a rollback could undo its record after it was "
            "done. Switch it on again before (transaction.set_autocommit)."
        )
    if connection.in_atomic_block and not getattr(connection.atomic_blocks[-1], "_from_testcase", False):
        raise StepError(
            f"The step {name!r} is inside transaction.atomic, which could undo its record after it was done. Do it "
            "outside, or do the whole block with context.step_transaction."
        )


class StepFunction(Generic[P, R_co]):
    """A function that is a step where a durable handler calls it, and a plain function elsewhere; see `step`."""

    def __init__(
        self, function: Callable[P, R_co], name: str, retry: RetryOptions | None, timeout: Duration | None
    ) -> None:
        self.function, self.name, self.retry, self.timeout = function, _checked_name(name), retry, timeout
        if retry is not None:
            _policy(retry)
        if timeout is not None:
            milliseconds(timeout, "timeout")
        look_like(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        context: Any = running.get()
        if context is None or not context.has_steps:
            return self.function(*args, **kwargs)
        do = context.astep if is_coroutine_function(self.function) else context.step
        call = functools.partial(self.function, *args, **kwargs)  # its arguments may be called as those of a step
        result: R_co = do(self.name, call, retry=self.retry, timeout=self.timeout)
        return result

    @overload
    def __get__(self, instance: None, owner: type | None = None, /) -> StepFunction[P, R_co]: ...
    @overload
    def __get__(
        self: StepFunction[Concatenate[Any, A], R_co], instance: object, owner: type | None = None, /
    ) -> StepFunction[A, R_co]: ...
    def __get__(self, instance: Any, owner: type | None = None, /) -> Any:
        """The method of this instance, where it stands above one."""
        bind = getattr(self.function, "__get__", None)
        if instance is None or bind is None:
            return self
        return StepFunction(bind(instance, owner), self.name, self.retry, self.timeout)

    def named(self, name: str) -> StepFunction[P, R_co]:
        """The same step under another name, for a handler that does it more than once."""
        return StepFunction(self.function, name, self.retry, self.timeout)


@overload
def step(function: Callable[P, R_co], /) -> StepFunction[P, R_co]: ...
@overload
def step(
    *, name: str = "", retry: RetryOptions | None = None, timeout: Duration | None = None
) -> Callable[[Callable[P, R_co]], StepFunction[P, R_co]]: ...
def step(
    function: Any = None, /, *, name: str = "", retry: RetryOptions | None = None, timeout: Duration | None = None
) -> Any:
    """Make a function a step: a durable handler that calls it, directly or not, does it once::

        @step(retry={"max_attempts": 3}, timeout="30s")
        def charge(order_id): ...

        @job("order.fulfil", durable=True)
        def fulfil(context, order_id):
            charge_id = charge(order_id)
            for page in pages:
                send.named(f"send-{page}")(page)

    Its name is that of the function, unless `name` gives another. Elsewhere it is the function that it was, also in a
    thread that the handler starts without its context (`contextvars.copy_context`).
    """

    def decorate(function: Callable[P, R_co]) -> StepFunction[P, R_co]:
        if not callable(function):
            raise StepError(f"@step stands above a function, not {shown(function)}.")
        called = name or getattr(unwrapped(function), "__name__", "")
        return StepFunction(function, called, retry, timeout)

    return decorate if function is None else decorate(function)
