"""Make a function the handler of a job type (`@job`), and enqueue jobs (`enqueue`, `enqueue_many`).

    @job("email.send", queue="email", retry={"max_attempts": 5}, timeout=30)
    def send_email(to: str, template: str) -> None: ...

    send_email("x", "y")                                # runs here and now
    send_email.enqueue("x", "y")                        # runs in a worker, after the caller's commit
    send_email.options(delay="10m").enqueue("x", "y")

A handler whose first parameter is called `context`, or is annotated with `JobContext`, gets the context of its run;
callers of `.enqueue()` do not pass it.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    Unpack,
    get_args,
    overload,
)

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS, connections

from django_ojs import clock, spellings
from django_ojs.client.context import JobContext
from django_ojs.client.handle import JobHandle
from django_ojs.client.options import (
    HANDLER_NAMES,
    NAMES,
    SCHEDULE_NAMES,
    JobOptions,
    ScheduledOptions,
    attributes,
    check_arguments,
    checked_options,
    decode_arguments,
    encode_arguments,
    merged,
    split_schedule,
)
from django_ojs.client.otherwords import OF_HANDLER, OF_PREPARED, OtherWords
from django_ojs.client.running import running
from django_ojs.client.steps import Durable, OnChange
from django_ojs.client.typed import Typed, TypedArguments
from django_ojs.conf import ojs_settings
from django_ojs.database import database
from django_ojs.errors import OJSError
from django_ojs.faults import or_migrate
from django_ojs.messages import shown
from django_ojs.registry import (
    Definition,
    Fault,
    InvalidHandler,
    is_coroutine_function,
    look_like,
    place_of,
    registry,
)
from django_ojs.rules import names
from django_ojs.rules.cron import CronSpec

if TYPE_CHECKING:
    from django_ojs.jobs.candidates import Pushed

P = ParamSpec("P")
A = ParamSpec("A")
#: What `@job(retry_if=...)` takes.
RetryIf: TypeAlias = Callable[[BaseException], bool]
R_co = TypeVar("R_co", covariant=True)


class PreparedJob(OtherWords):
    """A job that can be enqueued: `.s(...)` returns it, and `enqueue_many` takes it."""

    __slots__ = ("args", "options", "type")
    _other_words = OF_PREPARED

    def __init__(self, type: str, args: tuple[Any, ...] | list[Any], options: Mapping[str, Any]) -> None:
        self.type, self.args, self.options = type, args, options

    def document(self) -> dict[str, Any]:
        """The envelope to push. Raises TypeError for arguments that are not JSON."""
        check_arguments(self.args)
        return {"type": self.type, "args": list(self.args), **attributes(self.options)}

    def member(self) -> dict[str, Any]:
        """The envelope of a job of a workflow, which makes its id. Raises TypeError for one that has an id."""
        if "id" in self.options:
            raise TypeError(f"id={str(self.options['id'])!r}: a workflow makes the ids of its jobs. Leave it out.")
        return self.document()

    def __repr__(self) -> str:
        return f"<PreparedJob {self.type}>"


#: What `enqueue_many` takes: `send_email.s("a", "b")`, `("report.make", [1])`, `("report.make", [1], {"delay": "5m"})`.
Enqueueable: TypeAlias = PreparedJob | tuple[str, Sequence[Any]] | tuple[str, Sequence[Any], Mapping[str, Any]]


class Enqueuer(OtherWords, Generic[A]):
    """A job type with options, ready to be enqueued with the handler's own parameters."""

    _other_words = OF_HANDLER
    type: str

    def __init__(self, definition: JobDefinition[..., A, Any], options: Mapping[str, Any]) -> None:
        self._definition, self._options, self.type = definition, options, definition.type

    def options(self, **options: Unpack[JobOptions]) -> Enqueuer[A]:
        """Return the same job type with these options on top; see `django_ojs.client.options.JobOptions`."""
        return Enqueuer(self._definition, merged(self._options, checked_options(options)))

    def s(self, *args: A.args, **kwargs: A.kwargs) -> PreparedJob:
        """Return the job without enqueueing it, for `enqueue_many` and workflows. Raises what `enqueue` raises."""
        return self.of(encode_arguments(args, kwargs))

    def of(self, args: Sequence[Any]) -> PreparedJob:
        """Do what `s` does, for arguments as a job has them: keyword arguments are in an object at the end."""
        registry.refuse_faulty(self.type)
        if self._definition.typed is not None:
            args = self._definition.typed.encode(args)
        self._definition.check_arguments(*decode_arguments(args))
        return PreparedJob(self.type, list(args), self._options)

    def enqueue(self, *args: A.args, **kwargs: A.kwargs) -> JobHandle:
        """Store the job, in the open transaction if there is one.

        Raises TypeError for arguments that the handler does not take or that are not JSON, InvalidHandler for a handler
        that is declared wrongly, and the `OJSError` that PUSH raises (core 7.1): InvalidPayload, Duplicate,
        MiddlewareRejected, ...
        """
        return push_prepared([self.s(*args, **kwargs)])[0]

    async def aenqueue(self, *args: A.args, **kwargs: A.kwargs) -> JobHandle:
        """`enqueue` from asynchronous code."""
        return await sync_to_async(self.enqueue)(*args, **kwargs)


#: What jobs have as arguments, and no one as a context.
_ARGUMENTS = (str, int, float, list, tuple, dict)


class JobDefinition(Enqueuer[A], Generic[P, A, R_co]):
    """A handler under the name of its job type. You can call it and enqueue it, and workers run it.

    Attributes: `type`, `handler` (the function), `takes_context`, `is_async`, `inline`, `queue` (its default),
    `cron_options` (the options of its schedule, empty without one), `transactional` (the alias of the database in whose
    transaction it runs; None: it runs in none), `durable` (how its steps are recorded; None: it has none), `after` (the
    worker calls it with the contexts of runs whose outcomes are stored; None: it calls nothing), `retry_if` (whether an
    attempt that ended with this exception may be repeated; None: the retry policy decides alone), `job_retry` (the
    policy of all jobs of the type, also of those that a schedule or a client over HTTP pushes; None: the options of the
    handler have it, for jobs that Python enqueues), `typed` (how its arguments become JSON, by its annotations; None:
    they are JSON).
    """

    after: Callable[[Sequence[JobContext]], None] | None = None
    job_retry: Mapping[str, Any] | None = None
    typed: TypedArguments | None = None

    def __init__(
        self,
        type: str,
        handler: Callable[P, R_co],
        takes_context: bool | None,
        options: Mapping[str, Any],
        schedule: Mapping[str, Any],
        *,
        inline: bool = False,
        transactional: bool | str = False,
        durable: bool | str = False,
        on_change: OnChange = "restart",
        retry_if: RetryIf | None = None,
        typed: bool = False,
    ) -> None:
        given: Any = handler
        if not callable(given) or inspect.isclass(given) or isinstance(given, JobDefinition):
            raise InvalidHandler(f"it stands above a function, not {shown(given)}.")
        self.handler = handler
        self.cron_options = schedule
        self.takes_context = _wants_context(handler) if takes_context is None else takes_context
        self.is_async = is_coroutine_function(handler)
        self.inline = inline
        if inline and self.is_async:
            raise InvalidHandler(
                f"The handler of {type} is asynchronous, which needs no thread: leave out inline=True."
            )
        self.transactional = _database_of(type, transactional)
        self.durable = _durable(type, durable, on_change, inline=inline, transactional=transactional)
        self.retry_if = retry_if
        self.signature = _signature(type, handler, self.takes_context)
        self._counts = _counts(self.signature)
        self.typed = TypedArguments(handler, self.signature) if typed else None
        self.type = type
        super().__init__(self, options)
        self.queue: str = options.get("queue", "default")
        look_like(self, handler)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the handler here and now. One that takes a context gets it from its caller."""
        if self.takes_context:
            self._check_context(args, kwargs)
        return self.handler(*args, **kwargs)

    def _check_context(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise TypeError, which says how to get a context, for a call with none. A stand-in for one is fine."""
        name = next(iter(inspect.signature(self.handler).parameters))
        given = args[0] if args else kwargs.get(name, ())
        if not isinstance(given, _ARGUMENTS):
            return
        function = getattr(self.handler, "__name__", "handler")
        raise TypeError(
            f"{self.type}: the first argument, {name}, is the JobContext that a worker gives the handler. A test makes "
            f"one with django_ojs.testing.job_context: {function}(job_context(), ...). To let a worker run it, leave "
            f"the context out: {function}.enqueue(...)."
        )

    def check_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise TypeError, which shows the signature, unless the handler takes these arguments."""
        if not kwargs and len(args) in self._counts:
            return
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            options = sorted(NAMES & kwargs.keys() - self.signature.parameters.keys())
            hint = f" Options go into .options({options[0]}=...)." if options else ""
            raise TypeError(f"{self.type}{self.signature} cannot take these arguments: {error}.{hint}") from None

    def __repr__(self) -> str:
        return f"<job {self.type}: {place_of(self.handler)}>"


class _FaultyDefinition(JobDefinition[..., ..., Any]):
    """The handler of a wrong declaration: it can be called, and not enqueued. The registry has its faults."""

    def __init__(self, type: str, handler: Callable[..., Any], faults: Sequence[Fault]) -> None:
        self.handler, self.type, self.queue, self.cron_options = handler, type, "default", {}
        self.takes_context = self.inline = False
        self.retry_if = None
        self.is_async, self.transactional, self.durable = is_coroutine_function(handler), None, None
        self._faults = faults
        Enqueuer.__init__(self, self, {})
        look_like(self, handler)

    def check_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        raise InvalidHandler("\n".join(map(str, self._faults)))


class _Decorator(Protocol):
    @overload
    def __call__(
        self, handler: Callable[Concatenate[JobContext, A], R_co], /
    ) -> JobDefinition[Concatenate[JobContext, A], A, R_co]: ...
    @overload
    def __call__(self, handler: Callable[A, R_co], /) -> JobDefinition[A, A, R_co]: ...


class _ContextDecorator(Protocol):
    def __call__(
        self, handler: Callable[Concatenate[JobContext, A], R_co], /
    ) -> JobDefinition[Concatenate[JobContext, A], A, R_co]: ...


class _PlainDecorator(Protocol):
    def __call__(self, handler: Callable[A, R_co], /) -> JobDefinition[A, A, R_co]: ...


@overload
def job(
    type: str,
    /,
    *,
    context: Literal[True],
    inline: bool = False,
    transactional: bool | str = False,
    durable: bool | str = False,
    on_change: OnChange = "restart",
    retry_if: RetryIf | None = None,
    args: builtins.type[Typed] | None = None,
    **options: Unpack[ScheduledOptions],
) -> _ContextDecorator: ...
@overload
def job(
    type: str,
    /,
    *,
    context: Literal[False],
    inline: bool = False,
    transactional: bool | str = False,
    durable: bool | str = False,
    on_change: OnChange = "restart",
    retry_if: RetryIf | None = None,
    args: builtins.type[Typed] | None = None,
    **options: Unpack[ScheduledOptions],
) -> _PlainDecorator: ...
@overload
def job(
    type: str,
    /,
    *,
    context: None = None,
    inline: bool = False,
    transactional: bool | str = False,
    durable: bool | str = False,
    on_change: OnChange = "restart",
    retry_if: RetryIf | None = None,
    args: builtins.type[Typed] | None = None,
    **options: Unpack[ScheduledOptions],
) -> _Decorator: ...
def job(
    type: str, /, *, context: bool | None = None, inline: bool = False, transactional: bool | str = False,
    durable: bool | str = False, on_change: OnChange = "restart", retry_if: RetryIf | None = None,
    args: builtins.type[Typed] | None = None, **options: Unpack[ScheduledOptions],
) -> Any:  # fmt: skip
    """Make a function the handler of the job type `type`, such as `"email.send"` (core 5.1).

    `context` says whether the first parameter is the `JobContext`. None: it is if its name is `context` or its
    annotation is `JobContext`. With `inline`, the worker runs the handler in a row with others of its kind instead of
    in a thread of its own; use it only for handlers of a few milliseconds.

    With `transactional`, the handler and the completion of its job are one transaction of the database `"default"`,
    or of the database that it names: what the handler wrote is stored if and only if the job is completed. That must
    be the database of the jobs. The queries of an asynchronous handler are in the transaction, too.

    With `durable`, what the handler does by `context.step` is done once, and it may sleep. A text is the mark of its
    code: give it a new one when the steps change. `on_change` says what becomes of jobs that were begun under another
    mark: `"restart"` forgets what they have done, `"resume"` goes on with it, and `"wait"` leaves them to workers that
    still run the older code.

    With `retry_if`, a function that gets the exception of a failed attempt, the attempt is repeated only if it returns
    true, and the retry policy allows it, too. It is not asked about `Retry`, nor about what is no exception of the
    handler's, such as a timeout. If it raises, the policy decides alone.

    With `args=Typed` arguments are what the annotations of the handler say: UUIDs, dates, decimals, enums and model
    instances, which are plain JSON on the wire (docs/handlers.md).

    `options` are the defaults of the handler's jobs, and the options of its schedule.

    Args:
        queue: where its jobs wait; `default` without it.
        priority: a number, or a name from `OJS["PRIORITY_LEVELS"]`; the higher is fetched first. The default is 0.
        retry: the policy, such as `{"max_attempts": 5, "initial_interval": "2s"}`.
        timeout: the longest time of one attempt. This and all times below are durations: seconds, `"5m"`, `"PT5M"` or a
            timedelta.
        total_timeout: the longest time from the creation of the job, waits and retries included.
        enqueue_ttl: the longest time from the creation to the first start.
        heartbeat_timeout: the longest time between two calls of `heartbeat()` or `progress()` in the handler.
        grace_period: the time to clean up after `timeout`.
        visibility_timeout: the length of a reservation; without it the worker renews reservations by itself.
        unique: True for one job with this type and these arguments at a time, or a policy, such as
            `{"keys": ["type", "args"], "period": "1h", "on_conflict": "ignore"}`.
        tags: labels for searching.
        meta: a mapping that travels with each job.
        rate_limit: a limit that jobs share, such as `{"key": "partner", "concurrency": 1}`.
        result_ttl: how long the server keeps the result; 0: not at all, -1: for ever.
        cron: when the schedule enqueues such a job: `"0 9 * * 1-5"`, `"@daily"`, `"@every 90m"`.
        timezone: of `cron`, such as `"Europe/Paris"`; UTC without it.
        overlap: `"skip"` (default), `"allow"`, `"enqueue"` or `"cancel_previous"`: what the schedule does if its last
            job has not ended.
        cron_args: the arguments of the jobs of the schedule.
        cron_name: the name of the schedule; by default the job type, with hyphens for underscores.

    A wrong declaration does not raise: `manage.py check` shows what is wrong and where (E004), no worker starts, and to
    enqueue such a job raises InvalidHandler. The function itself can be called.
    """
    place = _caller()
    if not isinstance(type, str):
        bare = callable(type) and not options
        written = "@job" if bare else f"@job({shown(type)})"
        wrong = f'@job needs the name of the job type: write @job("email.send"), not {written}.'
        decorate = functools.partial(_declare, "", place, [wrong], {})
        return decorate(type) if bare else decorate
    wrong, defaults, schedule = _read(type, options)
    wrong += _wrong_flags(
        context=context, inline=inline, transactional=transactional, durable=durable, on_change=on_change,
        retry_if=retry_if, args=args,
    )  # fmt: skip
    own = {
        "takes_context": context, "inline": inline, "transactional": transactional, "durable": durable,
        "on_change": on_change, "retry_if": retry_if, "typed": args is Typed,
    }  # fmt: skip
    return functools.partial(_declare, type, place, wrong, {"options": defaults, "schedule": schedule, **own})


def _caller() -> str:
    """The file, below the current directory if it is there, and the line of the `@job` that is being read."""
    frame = sys._getframe(2)
    path = Path(frame.f_code.co_filename)
    with contextlib.suppress(ValueError, OSError):  # it is elsewhere; the current directory is gone
        path = path.relative_to(Path.cwd())
    return f"{path}:{frame.f_lineno}"


def _declare(
    type: str, place: str, wrong: Sequence[str], parts: Mapping[str, Any], handler: Callable[..., Any], /
) -> JobDefinition[..., ..., Any]:
    """Register a handler, or record what is wrong with its declaration."""
    definition: JobDefinition[..., ..., Any]
    if not wrong:
        try:
            definition = JobDefinition(type, handler, **parts)
            check_schedule(definition)
            registry.register(definition)
        except (InvalidHandler, TypeError, ValueError) as error:  # the last two: no signature can be read of it
            wrong = [str(error)]
        else:
            return definition
    faults = [Fault(type, place, message) for message in wrong]
    registry.record(faults, type, handler)
    return _FaultyDefinition(type, handler, faults)


def _read(type: str, options: Mapping[str, Any]) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    """All that is wrong with the type and the options of a declaration; the defaults of its jobs; its schedule."""
    wrong: list[str] = []
    document: dict[str, Any] = {"type": type, "args": []}
    try:
        _check_type(type)
    except InvalidHandler as error:
        wrong.append(str(error))
        document["type"] = "some.type"  # so that the options are looked at
    defaults: dict[str, Any] = {}
    schedule: dict[str, Any] = {}
    try:
        plain, schedule = split_schedule(options)
    except TypeError as error:
        wrong.append(str(error))
        plain = {name: value for name, value in options.items() if name not in SCHEDULE_NAMES}
    for name, value in plain.items():
        try:
            defaults |= (one := checked_options({name: value}, HANDLER_NAMES))
            document |= attributes(one)
        except (TypeError, ValueError, OJSError) as error:
            wrong.append(str(error))
    found = spellings.validate(document, arguments=False)
    wrong += [f"{problem.path}: {problem.message}" for problem in found]
    return wrong, defaults, schedule


def _wrong_flags(
    *, context: object, inline: object, transactional: object, durable: object, on_change: object, retry_if: object,
    args: object,
) -> Iterator[str]:  # fmt: skip
    if not (context is None or isinstance(context, bool)):
        yield f"context={shown(context)}: give True or False, or leave it out."
    if not isinstance(inline, bool):
        yield f"inline={shown(inline)}: give True or False."
    if not isinstance(transactional, bool | str):
        yield f"transactional={shown(transactional)}: give True, False or the alias of a database."
    if not isinstance(durable, bool) and not (
        isinstance(durable, str) and 0 < len(durable) <= Durable.MAX_CODE and durable.isprintable()
    ):
        yield (
            f"durable={shown(durable)}: give True, False, or a printable mark of the code of 1 to {Durable.MAX_CODE} "
            "characters."
        )
    if on_change not in get_args(OnChange):
        yield f"on_change={shown(on_change)}: give {', '.join(map(repr, get_args(OnChange)))}."
    if retry_if is not None and (not callable(retry_if) or is_coroutine_function(retry_if)):
        yield f"retry_if={shown(retry_if)}: give a plain function that gets the exception and returns True or False."
    if args is not None and args is not Typed:
        yield f"args={shown(args)}: give django_ojs.Typed, or leave it out. The arguments of a schedule are cron_args."


def enqueue(type: str, /, *args: Any, **options: Unpack[JobOptions]) -> JobHandle:
    """Store a job by the name of its type, in the open transaction if there is one.

    If this site has a handler of the type, its options and its signature apply. Otherwise, for example if the workers
    are written in another language, only `options` apply. Raises what `.enqueue()` of a handler raises; also where the
    handler is declared wrongly.
    """
    return push_prepared([prepare(type, args, options)])[0]


def enqueue_many(jobs: Iterable[Enqueueable]) -> list[JobHandle]:
    """Store many jobs in order, all or none, with a constant number of statements.

    An entry is `handler.s(...)`, `(type, [args])` or `(type, [args], {options})`. `enqueue_bulk` is this function, too:
    OJS asks adapters of web frameworks for that name.
    """
    given: Any = jobs
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
        raise TypeError(f"enqueue_many takes a list of jobs, {_ENTRIES}, not {shown(given)}.")
    return push_prepared([entry if isinstance(entry, PreparedJob) else _from_tuple(entry) for entry in jobs])


enqueue_bulk = enqueue_many  # the name that OJS gives it in web frameworks


def enqueue_after_commit(type: str, /, *args: Any, **options: Unpack[JobOptions]) -> JobHandle:
    """Do what `enqueue` does, and check that the job belongs to the open transaction.

    No worker sees the job before the outermost commit, and a rollback removes it, also a rollback to a savepoint.
    `enqueue` does the same, because it writes the job (with `OJS["OUTBOX"]`, the entry that becomes the job) in the
    open transaction, so a commit cannot lose the job. This function also raises RuntimeError if a transaction is
    open, but not in the database that the job is written to.
    """
    from django_ojs import outbox

    alias = outbox.place() or database(None)
    if not connections[alias].in_atomic_block:
        others = sorted(c.alias for c in connections.all(initialized_only=True) if c.in_atomic_block)
        if others:
            raise RuntimeError(
                f"A transaction is open in {', '.join(map(repr, others))}, but the job would be stored in {alias!r} at "
                f"once. Open one there, or set OJS['OUTBOX'] = {others[0]!r}."
            )
    return enqueue(type, *args, **options)


aenqueue = sync_to_async(enqueue)
aenqueue_many = sync_to_async(enqueue_many)


def prepare(type: str, args: Sequence[Any], options: Mapping[str, Any]) -> PreparedJob:
    if not isinstance(type, str):
        raise TypeError(
            f'A job type is a text, such as "email.send", not {shown(type)}. What @job has made is enqueued by its own '
            "enqueue(), and what .s() has made by enqueue_many([...])."
        )
    definition = registry.get(type)
    if definition is None:
        registry.refuse_faulty(type)
        return PreparedJob(type, list(args), checked_options(options))
    prepared: PreparedJob = definition.options(**options).of(args)
    return prepared


def push_prepared(jobs: Sequence[PreparedJob]) -> list[JobHandle]:
    """The handles of the stored jobs, in order; one that a middleware dropped has `dropped` set."""
    if not jobs:
        return []
    documents = [prepared.document() for prepared in jobs]
    if (run := running.get()) is not None and ojs_settings.EXECUTION_HISTORY:
        documents = [document if "parent_id" in document else document | run.line for document in documents]
    try:
        pushed = _stored(documents)
    except OJSError as error:
        if error.hint != error.message:
            error.add_note(error.hint)  # a traceback shows it, as the other bindings do in their answers
        raise
    return [JobHandle(done.row, done.status) for done in pushed]


@or_migrate
def _stored(documents: Sequence[dict[str, Any]]) -> list[Pushed]:
    from django_ojs import outbox
    from django_ojs.jobs.push import push

    return push(documents) if outbox.place() is None else outbox.put(documents)


#: What the entries of `enqueue_many` look like.
_ENTRIES = "each handler.s(...), (type, [args]) or (type, [args], {options})"


def _from_tuple(entry: Any) -> PreparedJob:
    if (
        not isinstance(entry, tuple)
        or not 2 <= len(entry) <= 3
        or not isinstance(entry[1], list | tuple)
        or not (len(entry) == 2 or (isinstance(entry[2], Mapping) and all(isinstance(name, str) for name in entry[2])))
    ):
        raise TypeError(f"enqueue_many takes a list of jobs, {_ENTRIES}; this is none: {shown(entry)}.")
    return prepare(entry[0], entry[1], entry[2] if len(entry) == 3 else {})


def check_schedule(definition: Definition) -> None:
    """Raise InvalidHandler, with what to change, unless the schedule of this handler can be kept."""
    if not definition.cron_options:
        return
    try:
        cron_spec(definition)
    except OJSError as error:
        raise InvalidHandler(f"its schedule cannot be kept. {error.message}") from None
    except TypeError as error:
        raise InvalidHandler(f"cron_args do not fit. {error}") from None


def cron_spec(definition: Definition) -> CronSpec:
    """The schedule of a handler, ready to be registered."""
    given = definition.cron_options
    args = given.get("cron_args", ())
    if not isinstance(args, Sequence) or isinstance(args, str | bytes | bytearray):
        raise TypeError(f"Give a list of arguments, such as [7], not {shown(args)}.")
    document = definition.of(args).document()
    body = {
        "name": given.get("cron_name", definition.type.replace("_", "-")),
        "cron": given["cron"],
        "timezone": given.get("timezone"),
        "overlap_policy": given.get("overlap"),
        "job_template": document,
    }
    return spellings.read_schedule(body, now=clock.now())


def _database_of(type: str, transactional: bool | str) -> str | None:
    """The database in whose transaction the handler runs. Refuses what cannot be one transaction."""
    if not transactional:
        return None
    using = transactional if isinstance(transactional, str) else DEFAULT_DB_ALIAS
    if using != (jobs := database(None)):
        raise InvalidHandler(
            f"The handler of {type} cannot be transactional. transactional=True needs one transaction for what the "
            f"handler writes, to the database {using!r}, and for the job, which is in {jobs!r}: leave it out and make "
            f"the handler idempotent, or, if it writes to {jobs!r}, say transactional={jobs!r}."
        )
    return using


def _durable(
    type: str, durable: bool | str, on_change: OnChange, *, inline: bool, transactional: bool | str
) -> Durable | None:
    """By which mark the steps of the handler are recorded; None: it has none. Refuses what does not go together."""
    if durable is False:
        return None
    if transactional:
        raise InvalidHandler(
            f"The handler of {type} is one transaction, which would undo the record of its steps when it fails: leave "
            "out transactional=True, and do what belongs together with context.step_transaction."
        )
    if inline:
        raise InvalidHandler(f"The handler of {type} has steps, and inline=True is for those of a few milliseconds.")
    return Durable("" if durable is True else durable, on_change)


def _check_type(type: str) -> None:
    try:
        names.check_type(type, hyphens=ojs_settings.DIALECT == "published")
    except ValueError as error:
        parts = type.lower().replace("-", "_").replace(" ", "_").replace("/", ".").replace(":", ".").split(".")
        guess = ".".join(part for part in parts if part)
        hint = ""
        with contextlib.suppress(ValueError):
            hint = f" Try {names.check_type(guess)!r}."
        raise InvalidHandler(f"a job type {error}.{hint}") from None


def _wants_context(handler: Callable[..., Any]) -> bool:
    first = next(iter(inspect.signature(handler).parameters.values()), None)
    if first is None or first.kind in (first.VAR_POSITIONAL, first.VAR_KEYWORD, first.KEYWORD_ONLY):
        return False
    annotation = first.annotation if isinstance(first.annotation, str) else getattr(first.annotation, "__name__", "")
    return first.name == "context" or annotation.rpartition(".")[2] == "JobContext"


def _counts(signature: inspect.Signature) -> range:
    """How many positional arguments without any by keyword `signature.bind` surely takes: for most calls that is the
    whole question, and `bind` takes as long as the row of the job."""
    parameters = list(signature.parameters.values())
    places = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if any(one.kind is one.KEYWORD_ONLY and one.default is one.empty for one in parameters):
        return range(0)
    return range(sum(one.default is one.empty for one in places), len(places) + 1)


def _signature(type: str, handler: Callable[..., Any], takes_context: bool) -> inspect.Signature:
    """What callers of `.enqueue()` may pass. Refuses what no call can run to its end."""
    for function in (handler, builtins.type(handler).__call__):
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidHandler(f"The handler of {type} is a generator: let it return a list, or nothing.")
    signature = inspect.signature(handler)
    parameters = list(signature.parameters.values())
    if takes_context:
        if not parameters:
            raise InvalidHandler(f"The handler of {type} has context=True and no parameter to take it: add `context`.")
        del parameters[0]
    return signature.replace(parameters=parameters)
