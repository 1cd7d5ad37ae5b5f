"""Call the middlewares around every PUSH, and around every run of a handler (core section 9).

An enqueue middleware is a function, or an object with `__call__`, of `(job, next)`: `job` is the envelope as
a dict, `next(job)` runs the rest of the chain and returns the job, or None if it was dropped. Return the
job, changed or not (its id must stay), or None to drop it silently, or raise an error such as
`errors.MiddlewareRejected`. It is synchronous: a push runs inside a database transaction.

An execution middleware is called with `(job, context, next)`; `next()` runs the rest of the chain and
returns the handler's result. A middleware that does not call it skips the handler, and its own return value is the
result.

The chain runs where its handler runs. Around a synchronous handler middlewares are called in its thread;
around an asynchronous one they are awaited on its loop, through their coroutine method `acall` if they have
one. A middleware of the other kind is adapted: a synchronous one has the thread of the handler's queries for as long
as the asynchronous handler runs, so give it an `acall` where that matters.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from django_ojs.conf import ojs_settings
from django_ojs.guard import for_future, get_logger, threaded
from django_ojs.registry import is_coroutine_function

logger = get_logger(__name__)

JobDict = dict[str, Any]


class MiddlewareEntry(NamedTuple):
    """One middleware and how it is called on each side.

    `configured`: it came from the settings. `needs_job`: it looks at the envelope, which has to be made for
    it; an execution middleware that says `needs_job = False` gets an empty one.
    """

    middleware: Callable[..., Any]
    sync: Callable[..., Any]
    asynchronous: Callable[..., Awaitable[Any]]
    configured: bool = False
    needs_job: bool = True


class Chain:
    """An ordered list of middlewares, outermost first: those of the settings, then those that code adds.

    A middleware is given as an instance, a function, a class (made without arguments) or the dotted path of
    one of these, and found again by the same: the object itself, its class, or its dotted path. One may be
    in a chain twice. A chain cannot be changed while a worker runs jobs with it: RuntimeError.
    """

    def __init__(self, setting: str, *, takes_async: bool) -> None:
        self._setting, self._takes_async = setting, takes_async
        self._loaded: tuple[MiddlewareEntry, ...] | None = None  #: None: not yet, or not since the settings changed
        self._added: tuple[MiddlewareEntry, ...] = ()
        self._lock = threading.RLock()
        self._users = 0
        setting_changed.connect(self._on_setting_changed)

    @property
    def entries(self) -> tuple[MiddlewareEntry, ...]:
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    def list(self) -> list[Callable[..., Any]]:
        """The middlewares, outermost first."""
        return [entry.middleware for entry in self.entries]

    def __len__(self) -> int:
        return len(self.entries if self._loaded is None else self._loaded)

    def add(self, middleware: Any) -> None:
        """Put `middleware` innermost, next to the handler or the database."""
        self._insert(len(self), middleware)

    def prepend(self, middleware: Any) -> None:
        """Put `middleware` outermost."""
        self._insert(0, middleware)

    def insert_before(self, existing: Any, middleware: Any) -> None:
        """Put `middleware` right outside `existing`. Raises LookupError if that is not in the chain."""
        self._insert(self._index(existing), middleware)

    def insert_after(self, existing: Any, middleware: Any) -> None:
        """Put `middleware` right inside `existing`. Raises LookupError if that is not in the chain."""
        self._insert(self._index(existing) + 1, middleware)

    def remove(self, existing: Any) -> None:
        """Take out every middleware that `existing` names; one that is not there is no error."""
        with self._changing():
            self._loaded = tuple(entry for entry in self.entries if not _is(entry.middleware, existing))

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """A block, such as the life of a worker, in which the chain cannot be changed."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1

    def _insert(self, index: int, middleware: Any) -> None:
        with self._changing():
            entries = list(self.entries)
            entries.insert(index, self._entry(middleware))
            self._loaded = tuple(entries)

    def _index(self, existing: Any) -> int:
        for index, entry in enumerate(self.entries):
            if _is(entry.middleware, existing):
                return index
        raise LookupError(f"{existing!r} is not in the chain, which has {[dotted_name(m) for m in self.list()]}.")

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            if self._users:
                raise RuntimeError(
                    "A middleware chain cannot be changed while a worker runs jobs: do it in AppConfig.ready()."
                )
            yield

    def _load(self) -> tuple[MiddlewareEntry, ...]:
        paths: tuple[str, ...] = getattr(ojs_settings, self._setting)
        return (*(self._entry(path)._replace(configured=True) for path in paths), *self._added)

    def _on_setting_changed(self, *, setting: str, **kwargs: Any) -> None:
        """Read the settings' part again when it is next needed; what code added stays, innermost."""
        if setting == "OJS" and self._loaded is not None:
            self._added = tuple(entry for entry in self._loaded if not entry.configured)
            self._loaded = None

    def _entry(self, given: Any) -> MiddlewareEntry:
        return self.inspect(given, takes_async=self._takes_async)

    @staticmethod
    def inspect(given: Any, *, takes_async: bool) -> MiddlewareEntry:
        """Import and make a middleware. Raises ImportError or ImproperlyConfigured when it cannot be one."""
        middleware = import_string(given) if isinstance(given, str) else given
        if inspect.isclass(middleware):
            middleware = middleware()
        if not callable(middleware):
            raise ImproperlyConfigured(f"{given!r} is no middleware: it cannot be called.")
        if is_coroutine_function(middleware) and not takes_async:
            raise ImproperlyConfigured(
                f"{dotted_name(middleware)} is asynchronous, but a push runs in a transaction: make it a function."
            )
        needs_job = getattr(middleware, "needs_job", True)
        return MiddlewareEntry(middleware, _sync_side(middleware), _async_side(middleware), needs_job=needs_job)


class Once:
    """The `next` that a middleware calls, once: a second call would store or run the job twice, and raises
    RuntimeError."""

    __slots__ = ("_called", "_proceed", "_user")

    def __init__(self, proceed: Callable[..., Any], user: Callable[..., Any]) -> None:
        self._proceed, self._user, self._called = proceed, user, False

    def __call__(self, *args: Any) -> Any:
        if self._called:
            raise RuntimeError(f"{dotted_name(self._user)} called next() twice.")
        self._called = True
        return self._proceed(*args)


enqueue_chain = Chain("ENQUEUE_MIDDLEWARE", takes_async=False)
execution_chain = Chain("EXECUTION_MIDDLEWARE", takes_async=True)


def run_enqueue_chain(document: JobDict) -> JobDict | None:
    """The envelope as the enqueue chain leaves it; None when a middleware dropped the job.

    Raises whatever a middleware raises, and RuntimeError when one changes the job's id, calls `next` twice
    or returns something that is no envelope.
    """
    entries = enqueue_chain.entries
    if not entries:
        return document
    job_id = document.get("id")
    changed = _enqueue(entries, document)
    if changed is not None and changed.get("id") != job_id:
        raise RuntimeError("An enqueue middleware changed the id of the job, which it must not (core section 9).")
    return changed


def _enqueue(entries: tuple[MiddlewareEntry, ...], job: JobDict) -> JobDict | None:
    if not entries:
        return job
    middleware = entries[0].middleware
    try:
        changed: JobDict | None = middleware(job, Once(lambda job: _enqueue(entries[1:], job), middleware))
    except StopIteration as error:  # no caller in asynchronous code could be told
        raise for_future(error) from error
    if changed is None:
        logger.info("%s dropped a job of type %s.", dotted_name(middleware), job.get("type"))
    elif not isinstance(changed, dict):
        raise RuntimeError(f"{dotted_name(middleware)} returned {changed!r:.80}: return the job, or None to drop it.")
    return changed


def run_execution_chain(context: Any, handler: Callable[[], Any]) -> Any:
    """The result of `handler`, called in this thread inside the execution chain."""
    return _execute(execution_chain.entries, context, handler)


async def arun_execution_chain(context: Any, handler: Callable[[], Awaitable[Any]]) -> Any:
    """The result of the asynchronous `handler`, awaited on this loop inside the execution chain."""
    return await _aexecute(execution_chain.entries, context, handler)


def _execute(entries: tuple[MiddlewareEntry, ...], context: Any, handler: Callable[[], Any]) -> Any:
    if not entries:
        return handler()
    rest = entries[1:]
    proceed = Once((lambda: _execute(rest, context, handler)) if rest else handler, entries[0].middleware)
    return entries[0].sync(_job(entries[0], context), context, proceed)


async def _aexecute(entries: tuple[MiddlewareEntry, ...], context: Any, handler: Callable[[], Awaitable[Any]]) -> Any:
    if not entries:
        return await handler()
    proceed = Once(lambda: _aexecute(entries[1:], context, handler), entries[0].middleware)
    return await entries[0].asynchronous(_job(entries[0], context), context, proceed)


def _job(entry: MiddlewareEntry, context: Any) -> JobDict:
    job: JobDict = context.job if entry.needs_job else {}
    return job


def _sync_side(middleware: Callable[..., Any]) -> Callable[..., Any]:
    if not is_coroutine_function(middleware):
        return middleware
    run = async_to_sync(middleware)

    def adapted(job: JobDict, context: Any, proceed: Callable[[], Any]) -> Any:
        return run(job, context, threaded(proceed))

    return adapted


def _async_side(middleware: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    if hasattr(middleware, "acall"):
        native: Callable[..., Awaitable[Any]] = middleware.acall
        return native
    if is_coroutine_function(middleware):
        return middleware
    run = threaded(middleware)  # in the thread of the handler's queries

    async def adapted(job: JobDict, context: Any, proceed: Callable[[], Awaitable[Any]]) -> Any:
        async def rest() -> Any:
            return await proceed()

        return await run(job, context, async_to_sync(rest))

    return adapted


def _is(middleware: Callable[..., Any], wanted: Any) -> bool:
    return middleware is wanted or type(middleware) is wanted or dotted_name(middleware) == wanted


def dotted_name(middleware: Callable[..., Any]) -> str:
    """`module.name` of a function, or of the class of an instance: what the settings would say."""
    named = middleware if hasattr(middleware, "__qualname__") else type(middleware)
    return f"{named.__module__}.{named.__qualname__}"
