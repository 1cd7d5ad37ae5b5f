"""Where tests step in: a test double may take the calls of an operation that is marked with `replaceable`.

Without one, and outside of tests there is none, an operation costs one look at a variable more. With one, its method
for the operation (`on_push`, `on_create_workflow`, ...) gets the call, and the operation itself as its first argument,
to pass it on or not. `django_ojs.testing` has the doubles.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Doubles:
    """The test doubles of this process, the innermost last: that one gets the calls."""

    def __init__(self) -> None:
        self._doubles: list[Any] = []
        self.current: Any = None

    def enter(self, double: Any) -> None:
        self._doubles.append(double)
        self.current = double

    def leave(self, double: Any) -> None:
        """Take this double off, whether or not another was put on top of it."""
        self._doubles = [one for one in self._doubles if one is not double]
        self.current = self._doubles[-1] if self._doubles else None


doubles = Doubles()


def replaceable(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a test double that has a method `on_<name>` have the calls of this operation."""
    method = f"on_{name}"

    def decorate(operation: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(operation)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            if doubles.current is None or (part := getattr(doubles.current, method, None)) is None:
                return operation(*args, **kwargs)
            result: T = part(operation, *args, **kwargs)
            return result

        return wrapper

    return decorate


@replaceable("together")
def together(act: Callable[[], T]) -> T:
    """`act()`. A double that runs jobs as soon as they are enqueued does so after all of it."""
    return act()
