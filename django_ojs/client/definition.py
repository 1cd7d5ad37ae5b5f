"""`@job`: a function becomes a job type, and stays a function.

    @job("email.send", queue="email", retry={"max_attempts": 5}, timeout=30)
    def send_email(to: str, template: str) -> None: ...

    send_email("x", "y")                                # runs here and now
    send_email.enqueue("x", "y")                        # runs in a worker, after the caller's commit
    send_email.options(delay="10m").enqueue("x", "y")

A handler whose first parameter is called `context`, or is annotated with `JobContext`, gets the context of
its run; callers of `.enqueue()` do not pass it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, Unpack, overload

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS

from django_ojs.client import arguments, schedules
from django_ojs.client.options import HANDLER_NAMES, Options, attributes, checked, merged
from django_ojs.client.schedules import ScheduledOptions
from django_ojs.conf import ojs_settings
from django_ojs.policies import names
from django_ojs.registry import InvalidHandler, registry

if TYPE_CHECKING:
    from django_ojs.client.handle import JobHandle
    from django_ojs.worker.context import JobContext

P = ParamSpec("P")
A = ParamSpec("A")
R_co = TypeVar("R_co", covariant=True)


class PreparedJob:
    """A job that could be enqueued: what `.s(...)` returns and `enqueue_many` takes."""

    __slots__ = ("args", "options", "type")

    def __init__(self, type: str, args: tuple[Any, ...] | list[Any], options: Mapping[str, Any]) -> None:
        self.type, self.args, self.options = type, args, options

    def document(self) -> dict[str, Any]:
        """The envelope to push. Raises TypeError for arguments that are not JSON."""
        for index, value in enumerate(self.args):
            arguments.check(value, f"args[{index}]")
        return {"type": self.type, "args": list(self.args), **attributes(self.options)}

    def __repr__(self) -> str:
        return f"<PreparedJob {self.type}>"


class Enqueuer(Generic[A]):
    """A job type with options, ready to be enqueued with the handler's own parameters."""

    type: str

    def __init__(self, definition: JobDefinition[..., A, Any], options: Mapping[str, Any]) -> None:
        self._definition, self._options, self.type = definition, options, definition.type

    def options(self, **options: Unpack[Options]) -> Enqueuer[A]:
        """The same job type with these options on top; see `django_ojs.client.options.Options`."""
        return Enqueuer(self._definition, merged(self._options, checked(options)))

    def s(self, *args: A.args, **kwargs: A.kwargs) -> PreparedJob:
        """The job without enqueueing it, for `enqueue_many`. Raises TypeError as `enqueue` does."""
        self._definition.check_arguments(args, kwargs)
        return PreparedJob(self.type, args, self._options)

    def enqueue(self, *args: A.args, **kwargs: A.kwargs) -> JobHandle:
        """Store the job, in the transaction that is open, if there is one.

        Raises TypeError for arguments that the handler does not take or that are not JSON, and the
        `OJSError` that PUSH raises (core 7.1): InvalidPayload, Duplicate, MiddlewareRejected, ...
        """
        from django_ojs.client.enqueueing import push

        return push([self.s(*args, **kwargs)])[0]

    async def aenqueue(self, *args: A.args, **kwargs: A.kwargs) -> JobHandle:
        """`enqueue` from asynchronous code."""
        return await sync_to_async(self.enqueue)(*args, **kwargs)


class JobDefinition(Enqueuer[A], Generic[P, A, R_co]):
    """A handler under the name of its job type: callable, enqueueable, and found by the worker.

    Attributes: `type`, `handler` (the function), `takes_context`, `is_async`, `inline`, `queue` (its default),
    `schedule` (what `@job` said about it, empty without one), `transactional` (the alias of the database in
    whose transaction it runs; None: in none of ours), `after` (`worker.aftermath`; None: nothing follows).
    """

    after: Callable[[Sequence[Any]], None] | None = None

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
        self.type = type
        super().__init__(self, options)
        self.queue: str = options.get("queue", "default")
        functools.update_wrapper(self, handler)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        return self.handler(*args, **kwargs)

    def check_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise TypeError, showing the signature, unless the handler can be called with these."""
        if kwargs:
            raise TypeError(
                f"{self.type} was given {', '.join(f'{name}=' for name in kwargs)}, but arguments of a job are "
                f"positional on the wire: pass them in the order of {self.type}{self.signature}. "
                "Options such as queue= or delay= go into .options(...)."
            )
        try:
            self.signature.bind(*args)
        except TypeError as error:
            raise TypeError(f"{self.type}{self.signature} cannot take these arguments: {error}.") from None

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

    `context` says whether the first parameter is the `JobContext`; None: if it is called or annotated so.
    `inline` runs a trivial handler, of a few milliseconds at most, in a row with others of its kind instead
    of in a thread of its own.
    `transactional` runs the handler and its job's completion in one transaction of the database `"default"`, or
    of the one it names: what the handler wrote is there if and only if the job is completed. It must be the
    database of the jobs, and the handler synchronous.
    `options` are the defaults of its jobs, and when it runs by itself (`ScheduledOptions`). Raises InvalidHandler,
    with the fix, for a name that is no job type, one that is taken, a function that positional arguments cannot
    call and a schedule that cannot be kept; TypeError or ValueError for a mistaken option.
    """
    if not isinstance(type, str):
        raise InvalidHandler(f'@job needs the name of the job type: write @job("email.send"), not @job({type!r}).')
    plain, schedule = schedules.split(options)
    defaults = checked(plain, HANDLER_NAMES)
    attributes(defaults)
    _check_type(type)

    def decorate(handler: Callable[..., Any]) -> JobDefinition[..., ..., Any]:
        definition: JobDefinition[..., ..., Any] = JobDefinition(
            type, handler, context, defaults, schedule, inline=inline, transactional=transactional
        )
        schedules.check(definition)
        registry.register(definition)
        return definition

    return decorate


def _database_of(type: str, transactional: bool | str, *, is_async: bool) -> str | None:
    """The database in whose transaction the handler runs. Refuses what cannot be one transaction."""
    if not transactional:
        return None
    if is_async:
        raise InvalidHandler(
            f"The handler of {type} is asynchronous, and Django's transactions are not: make it a plain function, "
            "or leave out transactional=True."
        )
    from django_ojs.worker.transactional import refusal

    using = transactional if isinstance(transactional, str) else DEFAULT_DB_ALIAS
    if problem := refusal(using):
        raise InvalidHandler(f"The handler of {type} cannot be transactional. {problem}")
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


def _signature(type: str, handler: Callable[..., Any], takes_context: bool) -> inspect.Signature:
    """What callers of `.enqueue()` may pass. Refuses what no positional call can start."""
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise InvalidHandler(f"The handler of {type} is a generator: let it return a list, or nothing.")
    signature = inspect.signature(handler)
    parameters = list(signature.parameters.values())
    if takes_context:
        if not parameters:
            raise InvalidHandler(f"The handler of {type} has context=True and no parameter to take it: add `context`.")
        del parameters[0]
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise InvalidHandler(
                f"The handler of {type} demands {parameter.name}= by keyword, but arguments of a job are positional: "
                "move it before the `*`, or give it a default."
            )
    return signature.replace(parameters=parameters)
