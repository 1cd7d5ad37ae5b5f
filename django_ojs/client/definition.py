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

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    overload,
)

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS, connections

from django_ojs import clock
from django_ojs.client.context import JobContext
from django_ojs.client.handle import JobHandle
from django_ojs.client.options import (
    HANDLER_NAMES,
    NAMES,
    Options,
    ScheduledOptions,
    attributes,
    check_arguments,
    checked,
    decode_arguments,
    encode_arguments,
    merged,
    split_schedule,
)
from django_ojs.conf import ojs_settings
from django_ojs.database import database, or_migrate
from django_ojs.errors import OJSError
from django_ojs.registry import Definition, InvalidHandler, registry
from django_ojs.rules import cron, names
from django_ojs.rules.cron import CronSpec

if TYPE_CHECKING:
    from django_ojs.jobs.push import Pushed

P = ParamSpec("P")
A = ParamSpec("A")
R_co = TypeVar("R_co", covariant=True)


class PreparedJob:
    """A job that can be enqueued: `.s(...)` returns it, and `enqueue_many` takes it."""

    __slots__ = ("args", "options", "type")

    def __init__(self, type: str, args: tuple[Any, ...] | list[Any], options: Mapping[str, Any]) -> None:
        self.type, self.args, self.options = type, args, options

    def document(self) -> dict[str, Any]:
        """The envelope to push. Raises TypeError for arguments that are not JSON."""
        check_arguments(self.args)
        return {"type": self.type, "args": list(self.args), **attributes(self.options)}

    def __repr__(self) -> str:
        return f"<PreparedJob {self.type}>"


#: What `enqueue_many` takes: `send_email.s("a", "b")`, `("report.make", [1])`, `("report.make", [1], {"delay": "5m"})`.
Enqueueable: TypeAlias = PreparedJob | tuple[str, Sequence[Any]] | tuple[str, Sequence[Any], Mapping[str, Any]]


class Enqueuer(Generic[A]):
    """A job type with options, ready to be enqueued with the handler's own parameters."""

    type: str

    def __init__(self, definition: JobDefinition[..., A, Any], options: Mapping[str, Any]) -> None:
        self._definition, self._options, self.type = definition, options, definition.type

    def options(self, **options: Unpack[Options]) -> Enqueuer[A]:
        """Return the same job type with these options on top; see `django_ojs.client.options.Options`."""
        return Enqueuer(self._definition, merged(self._options, checked(options)))

    def s(self, *args: A.args, **kwargs: A.kwargs) -> PreparedJob:
        """Return the job without enqueueing it, for `enqueue_many` and workflows. Raises what `enqueue` raises."""
        return self.of(encode_arguments(args, kwargs))

    def of(self, args: Sequence[Any]) -> PreparedJob:
        """Do what `s` does, for arguments as a job has them: keyword arguments are in an object at the end."""
        self._definition.check_arguments(*decode_arguments(args))
        return PreparedJob(self.type, list(args), self._options)

    def enqueue(self, *args: A.args, **kwargs: A.kwargs) -> JobHandle:
        """Store the job, in the open transaction if there is one.

        Raises TypeError for arguments that the handler does not take or that are not JSON, and the `OJSError` that
        PUSH raises (core 7.1): InvalidPayload, Duplicate, MiddlewareRejected, ...
        """
        return push([self.s(*args, **kwargs)])[0]

    async def aenqueue(self, *args: A.args, **kwargs: A.kwargs) -> JobHandle:
        """`enqueue` from asynchronous code."""
        return await sync_to_async(self.enqueue)(*args, **kwargs)


class JobDefinition(Enqueuer[A], Generic[P, A, R_co]):
    """A handler under the name of its job type. You can call it and enqueue it, and workers run it.

    Attributes: `type`, `handler` (the function), `takes_context`, `is_async`, `inline`, `queue` (its default),
    `schedule` (the options of its schedule, empty without one), `transactional` (the alias of the database in whose
    transaction it runs; None: it runs in none), `after` (the worker calls it with the contexts of runs whose outcomes
    are stored; None: it calls nothing).
    """

    after: Callable[[Sequence[JobContext]], None] | None = None

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
    ) -> None:
        self.handler = handler
        self.schedule = schedule
        self.takes_context = _wants_context(handler) if takes_context is None else takes_context
        self.is_async = inspect.iscoroutinefunction(handler)
        self.inline = inline
        if inline and self.is_async:
            raise InvalidHandler(
                f"The handler of {type} is asynchronous, which needs no thread: leave out inline=True."
            )
        self.transactional = _database_of(type, transactional, is_async=self.is_async)
        self.signature = _signature(type, handler, self.takes_context)
        self._counts = _counts(self.signature)
        self.type = type
        super().__init__(self, options)
        self.queue: str = options.get("queue", "default")
        functools.update_wrapper(self, handler)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        return self.handler(*args, **kwargs)

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
        return f"<job {self.type}: {self.handler.__module__}.{self.handler.__qualname__}>"


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
    **options: Unpack[ScheduledOptions],
) -> _Decorator: ...
def job(
    type: str, /, *, context: bool | None = None, inline: bool = False, transactional: bool | str = False,
    **options: Unpack[ScheduledOptions],
) -> Any:  # fmt: skip
    """Make a function the handler of the job type `type`, such as `"email.send"` (core 5.1).

    `context` says whether the first parameter is the `JobContext`. None: it is if its name is `context` or its
    annotation is `JobContext`. With `inline`, the worker runs the handler in a row with others of its kind instead of
    in a thread of its own; use it only for handlers of a few milliseconds.

    With `transactional`, the handler and the completion of its job are one transaction of the database `"default"`,
    or of the database that it names: what the handler wrote is stored if and only if the job is completed. That must
    be the database of the jobs, and the handler must be synchronous.

    `options` are the defaults of the handler's jobs, and the options of its schedule (`ScheduledOptions`).

    Raises InvalidHandler, with the correction, for a name that is no job type or is taken, for a generator function,
    and for an invalid schedule; TypeError or ValueError for an invalid option.
    """
    if not isinstance(type, str):
        raise InvalidHandler(f'@job needs the name of the job type: write @job("email.send"), not @job({type!r}).')
    plain, schedule = split_schedule(options)
    defaults = checked(plain, HANDLER_NAMES)
    attributes(defaults)
    _check_type(type)

    def decorate(handler: Callable[..., Any]) -> JobDefinition[..., ..., Any]:
        definition: JobDefinition[..., ..., Any] = JobDefinition(
            type, handler, context, defaults, schedule, inline=inline, transactional=transactional
        )
        _check_schedule(definition)
        registry.register(definition)
        return definition

    return decorate


def enqueue(type: str, /, *args: Any, **options: Unpack[Options]) -> JobHandle:
    """Store a job by the name of its type, in the open transaction if there is one.

    If this site has a handler of the type, its options and its signature apply. Otherwise, for example if the workers
    are written in another language, only `options` apply. Raises what `.enqueue()` of a handler raises.
    """
    return push([prepare(type, args, options)])[0]


def enqueue_many(jobs: Iterable[Enqueueable]) -> list[JobHandle]:
    """Store many jobs in order, all or none, with a constant number of statements.

    An entry is `handler.s(...)`, `(type, [args])` or `(type, [args], {options})`.
    """
    return push([entry if isinstance(entry, PreparedJob) else _from_tuple(entry) for entry in jobs])


enqueue_bulk = enqueue_many


def enqueue_after_commit(type: str, /, *args: Any, **options: Unpack[Options]) -> JobHandle:
    """Do what `enqueue` does, and check that the job belongs to the open transaction.

    No worker sees the job before the outermost commit, and a rollback removes it, also a rollback to a savepoint.
    `enqueue` does the same, because it writes the job (with `OJS["OUTBOX"]`, the entry that becomes the job) in the
    open transaction, so a commit cannot lose the job. This function also raises RuntimeError if a transaction is
    open, but not in the database that the job is written to.
    """
    alias = ojs_settings.OUTBOX or database(None)
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
    definition = registry.get(type)
    if definition is None:
        return PreparedJob(type, list(args), checked(options))
    prepared: PreparedJob = definition.options(**options).of(args)
    return prepared


def push(jobs: Sequence[PreparedJob]) -> list[JobHandle]:
    """The handles of the stored jobs, in order; one that a middleware dropped has `dropped` set."""
    if not jobs:
        return []
    pushed = _stored([prepared.document() for prepared in jobs])
    return [JobHandle(done.row, done.status) for done in pushed]


@or_migrate
def _stored(documents: Sequence[dict[str, Any]]) -> list[Pushed]:
    from django_ojs.jobs import outbox
    from django_ojs.jobs import push as jobs

    return jobs.push(documents) if ojs_settings.OUTBOX is None else outbox.put(documents)


def _from_tuple(entry: Any) -> PreparedJob:
    if not isinstance(entry, tuple) or not 2 <= len(entry) <= 3 or not isinstance(entry[1], list | tuple):
        raise TypeError(
            f"enqueue_many was given {entry!r:.80}: give handler.s(...), (type, [args]) or (type, [args], {{options}})."
        )
    return prepare(entry[0], entry[1], entry[2] if len(entry) == 3 else {})


def _check_schedule(definition: Definition) -> None:
    """Raise InvalidHandler, with what to change, unless the schedule of this handler can be kept."""
    if not definition.schedule:
        return
    try:
        cron_spec(definition)
    except OJSError as error:
        raise InvalidHandler(f"@job({definition.type!r}): its schedule cannot be kept. {error.message}") from None
    except TypeError as error:
        raise InvalidHandler(f"@job({definition.type!r}): cron_args do not fit. {error}") from None


def cron_spec(definition: Definition) -> CronSpec:
    """The schedule of a handler, ready to be registered."""
    given = definition.schedule
    document = definition.of(given.get("cron_args", ())).document()
    body = {
        "name": given.get("cron_name") or definition.type.replace("_", "-"),
        "cron": given["cron"],
        "timezone": given.get("timezone"),
        "overlap_policy": given.get("overlap"),
        "job_template": document,
    }
    return cron.parse(body, now=clock.now())


def _database_of(type: str, transactional: bool | str, *, is_async: bool) -> str | None:
    """The database in whose transaction the handler runs. Refuses what cannot be one transaction."""
    if not transactional:
        return None
    if is_async:
        raise InvalidHandler(
            f"The handler of {type} is asynchronous, and Django's transactions are not: make it a plain function, "
            "or leave out transactional=True."
        )
    using = transactional if isinstance(transactional, str) else DEFAULT_DB_ALIAS
    if using != (jobs := database(None)):
        raise InvalidHandler(
            f"The handler of {type} cannot be transactional. transactional=True needs one transaction for what the "
            f"handler writes, to the database {using!r}, and for the job, which is in {jobs!r}: leave it out and make "
            f"the handler idempotent, or, if it writes to {jobs!r}, say transactional={jobs!r}."
        )
    return using


def _check_type(type: str) -> None:
    try:
        names.check_type(type, hyphens=ojs_settings.DIALECT == "published")
    except ValueError as error:
        parts = type.lower().replace("-", "_").replace(" ", "_").replace("/", ".").replace(":", ".").split(".")
        guess = ".".join(part for part in parts if part)
        hint = ""
        with contextlib.suppress(ValueError):
            hint = f" Try {names.check_type(guess)!r}."
        raise InvalidHandler(f"@job({type!r}): a job type {error}.{hint}") from None


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
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise InvalidHandler(f"The handler of {type} is a generator: let it return a list, or nothing.")
    signature = inspect.signature(handler)
    parameters = list(signature.parameters.values())
    if takes_context:
        if not parameters:
            raise InvalidHandler(f"The handler of {type} has context=True and no parameter to take it: add `context`.")
        del parameters[0]
    return signature.replace(parameters=parameters)
