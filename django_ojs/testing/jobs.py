"""Find and assert the jobs that a test enqueued: what every mode offers, and what starts and stops one."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import unittest
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypedDict, TypeVar, Unpack

from django.db import connections, transaction
from django.test.utils import TestContextDecorator

from django_ojs import clock, jsontext, outbox
from django_ojs.client.definition import Enqueuer
from django_ojs.client.durableevents import EventKey, text_of
from django_ojs.client.handle import JobHandle, get_job
from django_ojs.client.options import Duration, decode_arguments, milliseconds
from django_ojs.client.typed import on_wire
from django_ojs.client.workflow import WorkflowHandle
from django_ojs.conf import ojs_settings
from django_ojs.cron import runs
from django_ojs.database import database
from django_ojs.errors import NotFound
from django_ojs.hooks import doubles
from django_ojs.jobs import schemas
from django_ojs.jobs.candidates import Pushed, PushOutcome
from django_ojs.messages import shown
from django_ojs.queues import configuration
from django_ojs.rules.attributes import parse_priority
from django_ojs.rules.durableevents import Emitted
from django_ojs.rules.durations import format_instant
from django_ojs.states import State
from django_ojs.workflows.workflow import WorkflowView

J = TypeVar("J", bound="Jobs")

if TYPE_CHECKING:
    _TestCase = unittest.TestCase
else:
    _TestCase = object

#: A job type by its name, `"email.send"`, or by its handler, `send_email`.
JobType: TypeAlias = "str | Enqueuer[Any]"

_PLURAL = frozenset({"args", "kwargs", "tags"})
_CLOSE = dt.timedelta(milliseconds=1)  #: the wire has no finer time
_NEW = ("created", "outbox")


class Expected(TypedDict, total=False):
    """What a test may expect of a job besides its type; what is left out may be anything."""

    args: Sequence[Any]  #: all positional arguments, in order; or the whole `args` of the job
    kwargs: Mapping[str, Any]  #: all keyword arguments
    queue: str
    meta: Mapping[str, Any]  #: these members, whatever else there is
    priority: int | str
    tags: Iterable[str]  #: these tags, whatever others there are
    at: dt.datetime  #: not before this instant
    delay: Duration  #: so long after it was enqueued
    state: str


def how_often(times: int | None, count: int | None, done: str = "") -> int | None:
    """The exact number of `times=` or `count=`, which are one argument under two names; None: at least one.

    TypeError for both, and for 0 where `done` (`enqueued`) says of which assertion that is the negation.
    """
    if times is not None and count is not None:
        raise TypeError("times= and count= are the same: give one of them.")
    number = times if count is None else count
    if number == 0 and done:
        raise TypeError(f"{'times' if count is None else 'count'}=0: say assert_not_{done}() or refute_{done}().")
    return number


def name_of(type: JobType) -> str:
    if not isinstance(type, str | Enqueuer):
        raise TypeError(f"A job type is its name, such as 'email.send', or its handler, not {shown(type)}.")
    return type if isinstance(type, str) else type.type


@dataclasses.dataclass(frozen=True, slots=True)
class ExpectedJobs:
    """A job type (None: any) and what is expected of its jobs."""

    type: str | None
    expected: Expected

    @classmethod
    def of(cls, type: JobType | None, expected: Expected) -> ExpectedJobs:
        if unknown := sorted(set(expected) - Expected.__annotations__.keys()):
            raise TypeError(
                f"Nothing can be expected of {unknown[0]}=: there are {', '.join(Expected.__annotations__)}."
            )
        return cls(None if type is None else name_of(type), expected)

    def fits(self, job: JobHandle) -> bool:
        return not any(self.differences(job))

    def differences(self, job: JobHandle) -> Iterator[str]:
        """What is other than expected, in a few words each."""
        if self.type is not None and job.type != self.type:
            yield "another type"
            return
        for name, wanted in self.expected.items():
            if not _READERS[name](job, wanted):
                yield f"{name} {'differ' if name in _PLURAL else 'differs'}"

    def __str__(self) -> str:
        what = self.type or "any job"
        return what + "".join(f", {name}={_short_repr(value)}" for name, value in self.expected.items())


class Lasting:
    """Whether what was enqueued just now is still there: true until the transaction around it is rolled back."""

    def __init__(self) -> None:
        using = outbox.place() or database(None)
        self._connection = connections[using]
        self._committed = not self._connection.in_atomic_block
        self._hook: Callable[[], None] = self._commit
        if not self._committed:
            transaction.on_commit(self._hook, using=using)

    def __bool__(self) -> bool:
        return self._committed or any(entry[1] is self._hook for entry in self._connection.run_on_commit)

    def _commit(self) -> None:
        self._committed = True


class Jobs:
    """The jobs of one test, without those whose transaction was rolled back."""

    def __init__(self) -> None:
        self._entries: list[tuple[JobHandle, Lasting]] = []
        self._views: list[tuple[WorkflowView, Lasting]] = []
        self._events: list[tuple[Emitted, Lasting]] = []
        self._time = contextlib.ExitStack()

    def start(self) -> Self:
        """Begin the mode. The context managers, fixtures and mixins call it, and `stop()` at the end."""
        forget()
        doubles.enter(self)
        return self

    def stop(self) -> None:
        doubles.leave(self)
        self._time.close()
        forget()

    @property
    def enqueued(self) -> list[JobHandle]:
        """The jobs that were enqueued, oldest first. Of a workflow it has the jobs that could start."""
        return [job for job, lasts in self._entries if lasts]

    @property
    def workflows(self) -> list[WorkflowHandle]:
        """The workflows that were enqueued, oldest first."""
        return [WorkflowHandle(view) for view, lasts in self._views if lasts]

    @property
    def emitted(self) -> list[Emitted]:
        """The events for durable jobs that were emitted, oldest first; of each name and key the first, which counts."""
        return [event for event, lasts in self._events if lasts]

    def find(self, type: JobType | None = None, **expected: Unpack[Expected]) -> list[JobHandle]:
        """Return the enqueued jobs of this type (None: any) that match `expected`, oldest first."""
        wanted = ExpectedJobs.of(type, expected)
        return [job for job in self.enqueued if wanted.fits(job)]

    all_enqueued = find

    def clear(self) -> None:
        """Forget the jobs enqueued and the events emitted so far. What is stored stays stored."""
        self._entries.clear()
        self._views.clear()
        self._events.clear()

    def clear_all(self) -> None:
        """Call `clear()`, and forget the runs, and the failures that the test asked for. The clock stays as it is."""
        self.clear()

    def assert_enqueued(
        self, type: JobType, *, times: int | None = None, count: int | None = None, **expected: Unpack[Expected]
    ) -> JobHandle:
        """Fail unless such a job was enqueued (`times` times, if given). Return the newest of them.

        Here and below, `count` is another name of `times`.
        """
        __tracebackhide__ = True
        times = how_often(times, count, "enqueued")
        found = self.find(type, **expected)
        self._check(found, ExpectedJobs.of(type, expected), times, self.enqueued, "enqueued")
        return found[-1]

    def assert_enqueued_in(
        self, queue: str, type: JobType | None = None, *, times: int | None = None, count: int | None = None,
        args: Sequence[Any] | None = None,
    ) -> list[JobHandle]:  # fmt: skip
        """Fail unless a job (of this type, if given) was enqueued in this queue. Return all of them."""
        __tracebackhide__ = True
        times = how_often(times, count)
        expected: Expected = {"queue": queue} if args is None else {"queue": queue, "args": args}
        found = self.find(type, **expected)
        self._check(found, ExpectedJobs.of(type, expected), times, self.enqueued, "enqueued")
        return found

    def assert_not_enqueued(self, type: JobType | None = None, **expected: Unpack[Expected]) -> None:
        """Fail if such a job was enqueued."""
        __tracebackhide__ = True
        if found := self.find(type, **expected):
            raise AssertionError(
                _report(f"This was not to be enqueued: {ExpectedJobs.of(type, expected)}.", found, None)
            )

    refute_enqueued = assert_not_enqueued

    def assert_nothing_enqueued(self) -> None:
        """Fail if any job or workflow was enqueued."""
        __tracebackhide__ = True
        if found := self.enqueued:
            raise AssertionError(_report("Nothing was to be enqueued.", found, None))
        if flows := self.workflows:
            raise AssertionError(f"Nothing was to be enqueued, but there is {flows[0]!r}.")

    def assert_workflow_enqueued(
        self, type: str | None = None, *, name: str | None = None, times: int | None = None, count: int | None = None
    ) -> WorkflowHandle:
        """Fail unless such a workflow was enqueued. Return the newest.

        `type` is "chain", "group", "batch" or "dag"; None: any.
        """
        __tracebackhide__ = True
        times = how_often(times, count)
        found = [flow for flow in self.workflows if type in (None, flow.type) and name in (None, flow.name)]
        if not found or times not in (None, len(found)):
            shown = "".join(f"\n  {flow!r} {flow.name!r}" for flow in self.workflows) or "\n  nothing"
            number = "" if times is None else f" {times} times"
            what = f"type {type or 'any'} and name {name or 'any'}"
            raise AssertionError(f"No workflow of {what} was enqueued{number}. There is:{shown}")
        return found[-1]

    assert_workflow_created = assert_workflow_enqueued

    def assert_emitted(self, name: str, key: EventKey | None = None, payload: Any = ...) -> Emitted:
        """Fail unless this event for durable jobs was emitted; without `key` or `payload` with any. Return the newest
        that matches."""
        __tracebackhide__ = True
        if not (found := self._find_emitted(name, key, payload)):
            raise AssertionError(self._about_emitted("This was not emitted", name, key, payload))
        return found[-1]

    def assert_not_emitted(self, name: str, key: EventKey | None = None, payload: Any = ...) -> None:
        """Fail if this event for durable jobs was emitted; without `key` or `payload` with any."""
        __tracebackhide__ = True
        if self._find_emitted(name, key, payload):
            raise AssertionError(self._about_emitted("This was not to be emitted", name, key, payload))

    def _find_emitted(self, name: str, key: EventKey | None, payload: Any) -> list[Emitted]:
        found = [event for event in self.emitted if event.name == name]
        if key is not None:
            found = [event for event in found if event.key == text_of(key)]
        return found if payload is ... else [event for event in found if event.payload == _as_sent(payload)]

    def _about_emitted(self, message: str, *wanted: Any) -> str:
        events = [f"  {_event(one.name, one.key, one.payload)}" for one in self.emitted]
        heading = f"There {'are these events:' if events else 'are no events.'}"
        return "\n".join([f"{message}: {_event(*wanted)}.", heading, *events])

    def assert_state(self, job: JobHandle | uuid.UUID | str, state: State | str) -> JobHandle:
        """Fail unless the job, given as its handle or id, is in this state now."""
        __tracebackhide__ = True
        job_id = job.id if isinstance(job, JobHandle) else job
        try:
            handle = self._get(job_id)
        except NotFound:
            raise AssertionError(_report(f"There is no job {job_id}.", self.enqueued, None)) from None
        if handle.state != state:
            errors = "".join(f"\n  {error.get('type')}: {error.get('message')}" for error in handle.errors)
            raise AssertionError(f"{handle!r} is not {state}.{errors}")
        return handle

    assert_job_state = assert_state

    def trigger(self, schedule: str) -> JobHandle:
        """Enqueue a job of this schedule now, as the scheduler would. The schedule is one of the code, or a stored
        one.

        Raises NotFound, Conflict if the overlap policy forbids the job, and what PUSH raises.
        """
        _, row = runs.trigger(schedule)
        return next((job for job in reversed(self.enqueued) if job.id == row["id"]), JobHandle(row))

    def freeze(self, instant: dt.datetime | None = None) -> dt.datetime:
        """Stop the clock of django-ojs, now or at `instant`, until the mode ends. Python's own clock goes on."""
        at = instant or clock.now()
        self._time.enter_context(clock.frozen(at))
        return at

    freeze_time = freeze

    def advance(self, duration: Duration) -> dt.datetime:
        """Move the stopped clock of django-ojs forward, by `"10m"`, seconds or a timedelta; return the new time.

        Raises RuntimeError unless `freeze()` was called before.
        """
        if clock.override() is None:
            raise RuntimeError("The clock runs, and only a stopped one is moved: call jobs.freeze() first.")
        return clock.advance(milliseconds=milliseconds(duration, "duration"))

    advance_time = advance

    def _get(self, job_id: uuid.UUID | str) -> JobHandle:
        """The job as it is now. Raises NotFound."""
        return get_job(job_id)

    def _record_created(self, outcomes: Iterable[PushOutcome]) -> None:
        created = [JobHandle(done.row) for done in outcomes if isinstance(done, Pushed) and done.status in _NEW]
        if created:
            lasting = Lasting()
            self._entries += [(job, lasting) for job in created]

    def _record_emitted(self, event: Emitted) -> Emitted:
        if event.is_new:
            self._events.append((event, Lasting()))
        return event

    @staticmethod
    def _check(
        found: Sequence[Any], wanted: ExpectedJobs, times: int | None, all_jobs: Sequence[JobHandle], verb: str
    ) -> None:
        __tracebackhide__ = True
        if times is None and not found:
            raise AssertionError(_report(f"This was not {verb}: {wanted}.", all_jobs, wanted))
        if times is not None and len(found) != times:
            count = f"{len(found)} {'time' if len(found) == 1 else 'times'}, not {times}"
            raise AssertionError(_report(f"This was {verb} {count}: {wanted}.", all_jobs, wanted))


class Mode(TestContextDecorator, Generic[J]):
    """A mode as a context manager and decorator. `kwarg_name` is the argument under which a decorated test gets the
    jobs, `attr_name` the attribute that a decorated TestCase has them under."""

    jobs: J

    def __init__(self, *, kwarg_name: str | None = None, attr_name: str | None = "jobs") -> None:
        super().__init__(attr_name=attr_name, kwarg_name=kwarg_name)

    def enable(self) -> J:
        self.jobs = self._new()
        return self.jobs.start()

    def disable(self) -> None:
        self.jobs.stop()

    def __enter__(self) -> J:  # type: ignore[override]  # the stubs know one decorator of Django's
        return self.enable()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disable()

    def _new(self) -> J:
        raise NotImplementedError


class JobsMixin(_TestCase):
    """Starts its mode before each test's `setUp` and stops it after the test's cleanups."""

    jobs: Jobs

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        self.jobs = self._jobs()
        self.jobs.start()
        try:
            return super().run(result)
        finally:
            self.jobs.stop()

    def _jobs(self) -> Jobs:
        raise NotImplementedError


def forget() -> None:
    """Drop what this process remembers of the database: another test has another one."""
    configuration.forget()
    schemas.forget()


def _report(message: str, jobs: Sequence[JobHandle], wanted: ExpectedJobs | None) -> str:
    """`message`, and below it the jobs, each with what is other than wanted."""
    lines = [message, f"There {'is' if len(jobs) == 1 else 'are'} {len(jobs) or 'no'} job{'s'[len(jobs) == 1 :]}:"]
    for number, job in enumerate(jobs, 1):
        why = ", ".join(wanted.differences(job)) if wanted else ""
        lines.append(f"  {number}. {_described(job)}" + (f"   <- {why}" if why else ""))
    return "\n".join(lines if jobs else [lines[0], "There are no jobs."])


def _described(job: JobHandle) -> str:
    """One line about a job: what it is, where it is, when it may start."""
    args, kwargs = decode_arguments(job.args)
    call = ", ".join([*map(_short_repr, args), *(f"{name}={_short_repr(value)}" for name, value in kwargs.items())])
    facts = [f"queue={job.queue!r}", str(job.state)]
    if (due := job.row["due_at"]) is not None:
        facts.append(f"not before {format_instant(due)}")
    if job.row["priority"]:
        facts.append(f"priority={job.row['priority']}")
    if job.meta:
        facts.append(f"meta={_short_repr(job.meta)}")
    return f"{job.type}({call}) {', '.join(facts)}"


def _event(name: str, key: object, payload: object) -> str:
    said = f"{name}, key={_short_repr(key)}" if key is not None else name
    return said if payload is ... else f"{said}, payload={_short_repr(payload)}"


def _short_repr(value: Any) -> str:
    text = value.isoformat() if isinstance(value, dt.datetime) else repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


def _as_sent(value: Any) -> Any:
    """The value as it comes back from JSON; as it is where it is no JSON, such as `mock.ANY`."""
    try:
        value = on_wire(value)
        return jsontext.loads(jsontext.dumps(value))
    except (TypeError, ValueError):
        return value


def _has_args(job: JobHandle, wanted: Sequence[Any]) -> bool:
    sent = [_as_sent(value) for value in wanted]
    return bool(sent == job.args or sent == decode_arguments(job.args)[0])


def _has_kwargs(job: JobHandle, wanted: Mapping[str, Any]) -> bool:
    return bool({name: _as_sent(value) for name, value in wanted.items()} == decode_arguments(job.args)[1])


def _has_meta(job: JobHandle, wanted: Mapping[str, Any]) -> bool:
    return all(name in job.meta and _as_sent(value) == job.meta[name] for name, value in wanted.items())


def _has_tags(job: JobHandle, wanted: Iterable[str]) -> bool:
    return set(wanted) <= set(job.envelope.get("tags") or ())


def _has_priority(job: JobHandle, wanted: int | str) -> bool:
    return bool(job.row["priority"] == parse_priority(wanted, ojs_settings.PRIORITY_LEVELS))


def _starts_at(job: JobHandle, wanted: dt.datetime) -> bool:
    due = job.row["due_at"]
    return bool(due is not None and abs(due - wanted) <= _CLOSE)


def _is_delayed(job: JobHandle, wanted: Duration) -> bool:
    due, delay = job.row["due_at"], dt.timedelta(milliseconds=milliseconds(wanted, "delay"))
    return bool(abs((due or job.row["created_at"]) - job.row["created_at"] - delay) <= _CLOSE)


_READERS: Mapping[str, Any] = {
    "args": _has_args, "kwargs": _has_kwargs, "queue": lambda job, wanted: job.queue == wanted,
    "meta": _has_meta, "tags": _has_tags, "priority": _has_priority, "at": _starts_at, "delay": _is_delayed,
    "state": lambda job, wanted: job.state == wanted,
}  # fmt: skip
