"""The nine standard handlers as plain functions `(context, *args)`; `context.attempt` counts from 1.

Nothing is registered here: `HANDLERS` maps job types to functions, for the process that starts a worker. The sleeping
ones sleep in short slices, so that a timeout, a cancellation or a shutdown can interrupt them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

SLICE_SECONDS: Final = 0.05
TIMEOUT_SECONDS: Final = 60.0
SLOW_SECONDS: Final = 1.0


class Context(Protocol):
    """What a handler needs of its worker's context."""

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""


class DeliberateFailure(Exception):
    """The retryable error that the failing handlers raise."""


class HandlerPanic(BaseException):
    """What `test.panic` raises: no `Exception`, so that it passes every handler-level rescue."""


def echo(context: Context, *args: object) -> list[object]:
    """Return the arguments."""
    return list(args)


def fail_once(context: Context, *args: object) -> None:
    """Fail on the first attempt."""
    _fail_until(context, 2)


def fail_twice(context: Context, *args: object) -> None:
    """Fail on the first two attempts."""
    _fail_until(context, 3)


def fail_always(context: Context, *args: object) -> None:
    """Fail on every attempt."""
    raise DeliberateFailure(f"attempt {context.attempt} fails, as every attempt does")


def slow(context: Context, *args: object) -> None:
    """Sleep for `args[0]` seconds, or `{"duration_ms": n}`, by default one second."""
    first = args[0] if args else SLOW_SECONDS
    if isinstance(first, dict):
        first = float(first["duration_ms"]) / 1000 if "duration_ms" in first else first.get("duration", SLOW_SECONDS)
    sleep_in_slices(float(str(first)))


def timeout(context: Context, *args: object) -> None:
    """Sleep longer than any timeout in a case: a minute."""
    sleep_in_slices(TIMEOUT_SECONDS)


def panic(context: Context, *args: object) -> None:
    """Crash."""
    raise HandlerPanic(f"attempt {context.attempt} crashes")


def produce(context: Context, *args: object) -> object:
    """Return the first argument."""
    return args[0] if args else None


def noop(context: Context, *args: object) -> None:
    """Do nothing."""


def sleep_in_slices(seconds: float) -> None:
    """Sleep in slices short enough for an asynchronous exception to land between two of them."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, SLICE_SECONDS))


def _fail_until(context: Context, attempt: int) -> None:
    if context.attempt < attempt:
        raise DeliberateFailure(f"attempt {context.attempt} fails; attempt {attempt} will not")


HANDLERS: Final[dict[str, Callable[..., object]]] = {
    "test.echo": echo,
    "test.fail_once": fail_once,
    "test.fail_twice": fail_twice,
    "test.fail_always": fail_always,
    "test.slow": slow,
    "test.timeout": timeout,
    "test.panic": panic,
    "test.produce": produce,
    "test.noop": noop,
}
