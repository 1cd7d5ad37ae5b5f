"""Where tests step in. A rehearsal stands between those who call some of the verbs and the verbs themselves.

Without one, and there is none outside of tests, a verb costs one look at a variable more. With one, the method of
the rehearsal for that verb (`on_push`, `on_create_workflow`, ...) gets the call, and the verb itself as its first
argument, to pass it on or not. `django_ojs.testing` has the rehearsals.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Stage:
    """The rehearsals of this process, the innermost last: that one gets the calls."""

    def __init__(self) -> None:
        self._rehearsals: list[Any] = []
        self.current: Any = None

    def enter(self, rehearsal: Any) -> None:
        self._rehearsals.append(rehearsal)
        self.current = rehearsal

    def leave(self, rehearsal: Any) -> None:
        """Take this rehearsal off, whether or not another was put on top of it."""
        self._rehearsals = [one for one in self._rehearsals if one is not rehearsal]
        self.current = self._rehearsals[-1] if self._rehearsals else None


stage = Stage()


def rehearsed(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a rehearsal that has a method `on_<name>` have the calls of this verb."""
    method = f"on_{name}"

    def decorate(verb: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(verb)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            if stage.current is None or (part := getattr(stage.current, method, None)) is None:
                return verb(*args, **kwargs)
            result: T = part(verb, *args, **kwargs)
            return result

        return wrapper

    return decorate


@rehearsed("together")
def together(act: Callable[[], T]) -> T:
    """`act()`. A rehearsal that runs jobs as soon as they are enqueued does so after all of it."""
    return act()
