"""Keeps logging, tracing and reporting that raise from ending a handler or a thread of the worker.

`get_logger` gives a logger whose calls never raise: a site's filters and handlers are code that can fail. The worker
wraps everything else in `attempt` or `tolerated`. They log the type of an exception and its place. They never log its
text, which may contain what a filter of the site was to hide.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async

from django_ojs.output import say

P = ParamSpec("P")
T = TypeVar("T")


class Interrupted(BaseException):
    """Raised by the worker inside a handler that has to stop.

    Not an Exception, so that no `except Exception` in a handler keeps it.
    """


def for_future(error: BaseException) -> BaseException:
    """What a future is to have instead of this exception. Before Python 3.12 asyncio's take no StopIteration, and who
    waits for one waits for ever."""
    if not isinstance(error, StopIteration):
        return error
    instead = RuntimeError("StopIteration was raised, which cannot pass through asynchronous code.")
    instead.__cause__ = error
    return instead


def threaded(function: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """`sync_to_async` for a function that calls code of the site's, which may raise StopIteration (`for_future`)."""

    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except StopIteration as error:
            raise for_future(error) from error

    return sync_to_async(called)


async def uncancelled(function: Callable[..., T], *args: Any) -> T:
    """What the function returns, called in a thread. A cancellation of the task is raised when it has ended, also in
    place of what it raises, which is its cause."""
    doing, cancelled = asyncio.ensure_future(sync_to_async(function)(*args)), None
    while not doing.done():
        try:
            await asyncio.wait({doing})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from (None if doing.cancelled() else doing.exception())
    return doing.result()


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose calls raise `Interrupted` only. If a filter or a handler raises anything else, it writes to stderr
    that a line is lost."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        try:
            if self.logger.isEnabledFor(level):
                kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # the record names the caller of this method
                self.logger.log(level, msg, *args, **kwargs)
        except Interrupted:
            raise
        except BaseException as error:  # noqa: BLE001 - SystemExit in a filter must not end a worker
            _write(f"The logging of {self.logger.name} raised {described(error)}: a line is lost.")


def get_logger(name: str) -> SafeLogger:
    """The logger of that name, whose calls never raise."""
    return SafeLogger(logging.getLogger(name), {})


logger = get_logger(__name__)


def lacks_threads(error: BaseException) -> bool:
    """Whether the system has no more threads for this process, which may pass."""
    return isinstance(error, RuntimeError) and "can't start new thread" in str(error)


def may_fail(what: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """What the function returns; None where it raises, whatever it is, which is logged as `what` that failed."""
    try:
        return function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - what surrounds the work must not end it
        log_fault(what, error)
        return None


def may_fail_inside(what: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """`may_fail` inside a handler, which has to learn that it is to stop: `Interrupted` passes through."""
    try:
        return function(*args, **kwargs)
    except Interrupted:
        raise
    except BaseException as error:  # noqa: BLE001
        log_fault(what, error)
        return None


@contextlib.contextmanager
def tolerated(what: str, make: Callable[[], contextlib.AbstractContextManager[T]]) -> Iterator[T | None]:
    """A block inside the context manager that `make` returns, which may fail at both ends; None where it cannot begin.

    What the block itself raises passes through, and the context manager gets it, too.
    """
    inner: contextlib.AbstractContextManager[T] | None = None
    entered: T | None = None
    try:
        inner = make()
        entered = inner.__enter__()
    except BaseException as error:  # noqa: BLE001
        inner = None
        log_fault(what, error)
    try:
        yield entered
    except BaseException as error:
        if inner is not None:
            may_fail(what, inner.__exit__, type(error), error, error.__traceback__)
        raise
    if inner is not None:
        may_fail(what, inner.__exit__, None, None, None)


def release_logging_locks() -> None:
    """Release what this thread holds of the locks of `logging`, outside of every call of it.

    An exception that another thread raises here may strike right after a log handler's lock was taken. No code would
    release that any more, and every thread of the process that logs would wait for it without end.
    """
    handlers = [ref() for ref in list(logging._handlerList)]  # type: ignore[attr-defined]
    locks: list[Any] = [getattr(logging, "_lock", None), *(handler.lock for handler in handlers if handler is not None)]
    for lock in locks:
        while hasattr(lock, "_is_owned") and lock._is_owned():
            lock.release()


def log_fault(what: str, error: BaseException) -> None:
    """Log that `what` failed, and raise nothing at all."""
    try:
        logger.error("%s failed: %s.", what, described(error))
    except BaseException:  # noqa: BLE001 - `Interrupted`: the run has ended already, or is asked again
        _write(f"{what} failed.")


def described(error: BaseException) -> str:
    """The type of an exception, and where it was raised."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    place = f" at {frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}" if frame is not None else ""
    return f"{type(error).__name__}{place}"


def words_of(error: BaseException) -> str:
    """What an exception says, in one line; its type where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def _write(line: str) -> None:
    with contextlib.suppress(BaseException):  # there is nowhere else to say it
        say(sys.stderr, line)
