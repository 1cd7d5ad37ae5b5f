"""Every way in which a handler can end that the tests know, and what becomes of its job: the table of test_every_end.

`manage.py ojs_worker` calls them through the handlers `end.*` of `jobs.py`, one for each kind of runner.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import gc
import logging
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from django.contrib.auth.models import Group
from django.db import DatabaseError, connection, transaction
from django.utils import translation

from django_ojs import Discard, Retry

#: The kinds of handlers: in a thread, on the event loop, in a row with others, in a transaction.
KINDS = ("sync", "async", "inline", "transactional")
IN_THREADS = ("sync", "inline", "transactional")


@dataclasses.dataclass(frozen=True, slots=True)
class End:
    """A way to end.

    Attributes:
        act: what the handler does. What it returns the handler returns; a coroutine is awaited.
        state: the job's state then. It has one attempt.
        error: the type of the job's error; '' for none.
        code: its code, where that is not the type.
        says: what its message contains.
        kinds: the kinds of handlers that can end like that.
    """

    act: Callable[[], Any]
    state: str = "discarded"
    error: str = ""
    code: str = ""
    says: str = ""
    kinds: tuple[str, ...] = KINDS


def raising(error: Callable[[], BaseException]) -> Callable[[], NoReturn]:
    def act() -> NoReturn:
        raise error()

    return act


def completed(act: Callable[[], Any], kinds: tuple[str, ...] = KINDS) -> End:
    return End(act, state="completed", kinds=kinds)


def failed(error: Callable[[], BaseException], name: str = "", says: str = "", kinds: tuple[str, ...] = KINDS) -> End:
    return End(raising(error), error=name or error().__class__.__name__, says=says, kinds=kinds)


def refused(value: Callable[[], Any], says: str = "") -> End:
    """The handler returns what cannot be stored."""
    return End(value, error="ResultNotSerializable", code="result_not_serializable", says=says)


class Stop(BaseException):
    """A BaseException of the site's own."""


def hostile(end: type[BaseException], *members: str) -> Exception:
    """An exception that raises this when one of these of its members is read."""

    def fail(self: object, *args: object) -> Any:
        raise end("while it is read")

    names: dict[str, Any] = {name: property(fail) if name == "__notes__" else fail for name in members}
    return type("Hostile", (Exception,), names)("text")  # type: ignore[no-any-return]


def circle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


def causing_itself() -> Exception:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    return one


def long_chain() -> Exception:
    error = ValueError("the last")
    one = error
    for number in range(300):
        one.__context__ = ValueError(f"before {number}")
        one = one.__context__
    return error


def deep_group() -> BaseException:
    error: Exception = ValueError("inmost")
    for number in range(300):
        error = ExceptionGroup(f"level {number}", [error])
    return error


def group(*errors: BaseException) -> BaseException:
    return BaseExceptionGroup("several failed", list(errors))


def generator() -> Any:
    yield 1


def recurse() -> NoReturn:
    recurse()


def out_of_stack_while_told() -> NoReturn:
    """With no stack left for whoever catches it."""

    class Deep(Exception):
        def __str__(self) -> str:
            return str(self)

    raise Deep


def no_such_memory() -> bytes:
    return bytes(2**62)


async def asleep() -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError


def spin() -> NoReturn:
    while True:
        time.sleep(0.01)


def spin_with_the_locks_of_logging() -> NoReturn:
    """As if the interruption struck right behind the taking of a lock."""
    for name in ("", "django_ojs"):
        for handler in logging.getLogger(name).handlers:
            handler.acquire()
    spin()


async def spin_on_the_loop_with_the_locks_of_logging() -> NoReturn:
    spin_with_the_locks_of_logging()


def stubborn() -> NoReturn:
    """Takes an interruption for an error that may be caught once, and then obeys."""
    for _ in range(2):
        with contextlib.suppress(Exception):
            spin()
    raise AssertionError


async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)


async def stops_the_loop() -> str:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)
    return "stopped"


async def closes_the_loop() -> None:
    asyncio.get_running_loop().close()


async def leaves_tasks() -> str:
    loop = asyncio.get_running_loop()
    left.append(loop.create_task(asleep()))
    loop.call_soon(raising(lambda: SystemExit(7)))
    loop.call_soon(raising(lambda: Stop("left behind")))
    return "left"


left: list[Any] = []


async def task_group() -> None:
    async def fail() -> None:
        raise LookupError("in a task")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fail())
        tasks.create_task(asleep())


async def never_awaits() -> Any:
    return asyncio.sleep(0)  # a coroutine, which nobody awaits


def with_bad_logging(kind: type[BaseException], result: Callable[[], Any]) -> Callable[[], Any]:
    """Let a filter of the worker's own logger raise this in this thread, for a moment, when the handler has ended."""

    def act() -> Any:
        class Raising(logging.Filter):
            def filter(self, record: logging.LogRecord) -> bool:
                if threading.get_ident() == mine and time.monotonic() < until:
                    raise kind("in a filter")
                return True

        mine, until = threading.get_ident(), time.monotonic() + 0.2
        logging.getLogger("django_ojs.jobs").addFilter(Raising())
        return result()

    return act


def swallow_broken_transaction() -> str:
    """Goes on after an error in the middle of a transaction, and leaves it open."""
    transaction.atomic().__enter__()
    with contextlib.suppress(DatabaseError), connection.cursor() as cursor:
        cursor.execute("SELECT * FROM there_is_no_such_table")
    return "broken"


def leave_transaction() -> str:
    transaction.atomic().__enter__()
    Group.objects.create(name="left open")
    return "open"


def raise_in_transaction() -> NoReturn:
    with transaction.atomic():
        Group.objects.create(name="undone")
        raise LookupError("in a transaction")


def no_autocommit() -> str:
    transaction.set_autocommit(False)
    Group.objects.create(name="not committed")
    return "off"


def close_raw() -> str:
    connection.ensure_connection()
    connection.connection.close()
    return "closed"


def close_connection() -> str:
    connection.close()
    return "closed"


def leave_threads() -> str:
    """One that sleeps for long, one that raises, one that ends itself: none of them is the worker's."""
    for target in (lambda: time.sleep(600), raising(lambda: ValueError("in a thread left behind")), sys.exit):
        threading.Thread(target=target, daemon=False).start()
    return "left"


def with_bad_unraisable() -> str:
    class Bad:
        def __del__(self) -> None:
            raise SystemExit("in __del__")

    Bad()
    gc.collect()
    return "collected"


def strict_warnings() -> NoReturn:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.warn("now an error", UserWarning, stacklevel=1)
    raise AssertionError


def chdir_away() -> str:
    """Its working directory is gone; put back for the others, as it belongs to the process."""
    before = Path.cwd()
    folder = Path(os.environ["OJS_TEST_TRACES"]) / f"gone-{threading.get_ident()}-{time.monotonic_ns()}"
    folder.mkdir()
    os.chdir(folder)
    folder.rmdir()
    try:
        traceback.format_stack()
    finally:
        os.chdir(before)
    return "back"


def activate_nonsense() -> str:
    translation.activate("tlh")
    return "activated"


HUGE = 5_000_000
ENDS: dict[str, End] = {
    # It returns
    "returns": completed(lambda: {"done": True}),
    "returns-nothing": completed(lambda: None),
    "returns-object": refused(object, "result is a"),
    "returns-bytes": refused(lambda: b"bytes"),
    "returns-nan": refused(lambda: float("nan")),
    "returns-set-inside": refused(lambda: {"rows": [{1}]}, 'result["rows"][0] is a set'),
    "returns-circle": refused(circle),
    "returns-too-deep": refused(lambda: deep(100_000)),
    "returns-number-as-key": refused(lambda: {1: 2}),
    "returns-class": refused(lambda: ValueError),
    "returns-exception": refused(lambda: ValueError("returned")),
    "returns-generator": refused(generator),
    "returns-coroutine": End(
        never_awaits, error="ResultNotSerializable", code="result_not_serializable", kinds=("async",)
    ),
    "returns-half-a-character": completed(lambda: "\ud800"),
    "returns-zero-byte": completed(lambda: "a\0b"),
    "returns-too-much": End(lambda: "x" * 2_000_000, error="ResultTooLarge", code="RESULT_TOO_LARGE"),
    # It raises
    "raises": failed(lambda: ValueError("its own"), says="its own"),
    "raises-nothing-said": failed(ValueError, says="ValueError"),
    "raises-no-exception": End(lambda: (_ for _ in ()).throw("text"), error="TypeError"),  # type: ignore[call-overload]
    "raises-own-base": failed(lambda: Stop("stop")),
    "raises-system-exit": failed(lambda: SystemExit(0)),
    "raises-system-exit-text": failed(lambda: SystemExit("leave"), says="leave"),
    "raises-keyboard-interrupt": failed(KeyboardInterrupt),
    "raises-generator-exit": failed(GeneratorExit),
    "raises-cancelled": failed(asyncio.CancelledError, says="cancelled"),
    "raises-stop-iteration": failed(lambda: StopIteration(3), kinds=IN_THREADS),
    "raises-stop-iteration-async": failed(lambda: StopIteration(3), "RuntimeError", "StopIteration", ("async",)),
    "raises-stop-async-iteration": failed(StopAsyncIteration, kinds=IN_THREADS),
    "raises-memory-error": failed(MemoryError),
    "out-of-memory": End(no_such_memory, error="MemoryError"),
    "out-of-stack": End(recurse, error="RecursionError"),
    "out-of-stack-while-told": End(out_of_stack_while_told, error="Deep"),
    "raises-group": failed(lambda: group(ValueError("one"), LookupError("two")), "ExceptionGroup", "LookupError: two"),
    "raises-group-with-exit": failed(lambda: group(ValueError("one"), SystemExit(3)), "BaseExceptionGroup"),
    "raises-group-of-exits": failed(lambda: group(KeyboardInterrupt()), "BaseExceptionGroup"),
    "raises-deep-group": failed(deep_group, "ExceptionGroup", "inmost"),
    "raises-huge-text": failed(lambda: ValueError("x" * HUGE), says=f"[cut: {HUGE} characters]"),
    "raises-odd-text": failed(lambda: ValueError("a\0b\ud800c")),
    "raises-circle-of-causes": failed(causing_itself),
    "raises-long-chain": failed(long_chain, says="the last"),
    **{
        f"hostile-{member}-{end.__name__}": failed(partial(hostile, end, member), "Hostile")
        for member in ("__str__", "__repr__", "__notes__")
        for end in (ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError)
    },
    "discards": End(raising(lambda: Discard("no")), error="Discard", code="DISCARD", says="no"),
    "retries": End(raising(lambda: Retry("later", after="1h")), error="Retry", code="RETRY", says="later"),
    "warns-strictly": End(strict_warnings, error="UserWarning"),
    # Logging, and what is told nobody
    **{
        f"logging-{kind.__name__}-{name}": End(with_bad_logging(kind, act), state, error)
        for kind in (ValueError, SystemExit, KeyboardInterrupt)
        for name, act, state, error in (
            ("returns", lambda: None, "completed", ""),
            ("raises", raising(lambda: KeyError("x")), "discarded", "KeyError"),
        )
    },
    "unraisable": completed(with_bad_unraisable),
    # Its connection to the database
    "closes-connection": completed(close_connection, ("sync", "inline")),
    "closes-raw-connection": completed(close_raw, ("sync", "inline")),
    "leaves-transaction": completed(leave_transaction, ("sync", "inline")),
    "leaves-broken-transaction": completed(swallow_broken_transaction, ("sync", "inline")),
    "leaves-autocommit-off": completed(no_autocommit, ("sync", "inline")),
    "raises-in-transaction": End(raise_in_transaction, error="LookupError", kinds=IN_THREADS),
    # The event loop
    "cancels-itself": End(cancels_itself, error="CancelledError", kinds=("async",)),
    "stops-the-loop": completed(stops_the_loop, ("async",)),
    "closes-the-loop": End(closes_the_loop, error="RuntimeError", says="running event loop", kinds=("async",)),
    "leaves-tasks": completed(leaves_tasks, ("async",)),
    "task-group": End(task_group, error="ExceptionGroup", says="in a task", kinds=("async",)),
    # What it leaves behind
    "leaves-threads": completed(leave_threads),
    "activates-nonsense": completed(activate_nonsense),
    "leaves-a-deleted-folder": completed(chdir_away),
    # Time
    "times-out": End(spin, error="timeout", code="timeout", kinds=IN_THREADS),
    "times-out-logging": End(spin_with_the_locks_of_logging, error="timeout", code="timeout", kinds=IN_THREADS),
    "times-out-logging-on-the-loop": End(
        spin_on_the_loop_with_the_locks_of_logging, error="timeout", code="timeout", kinds=("async",)
    ),
    "times-out-stubbornly": End(stubborn, error="timeout", code="timeout", kinds=IN_THREADS),
    "times-out-asleep": End(asleep, error="timeout", code="timeout", kinds=("async",)),
    "times-out-blocking": End(spin, error="timeout", code="timeout", kinds=("async",)),
}


def crash() -> None:
    ctypes.string_at(0)


def kill(number: int) -> Callable[[], None]:
    """The signal's own meaning, whatever Python made of it."""

    def act() -> None:
        os.kill(os.getpid(), number)
        time.sleep(30)

    return act


#: The ways to end the whole process, and what the error of the job says of it.
DEATHS: dict[str, tuple[Callable[[], Any], str]] = {
    "exits-0": (lambda: os._exit(0), "ended with code 0"),
    "exits-3": (lambda: os._exit(3), "ended with code 3"),
    "aborts": (os.abort, "was killed by SIGABRT"),
    "crashes": (crash, "was killed by SIGSEGV"),
    **{
        name: (kill(getattr(signal, name)), f"was killed by {name}")
        for name in ("SIGKILL", "SIGSEGV", "SIGUSR1", "SIGALRM")
        if hasattr(signal, name)
    },
}
