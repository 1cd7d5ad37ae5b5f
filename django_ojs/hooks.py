"""Let telemetry, and the doubles of sites' tests, take part in operations, which do not import them.

For telemetry each place is a list of subscribers, which subscribe when the app is ready. An operation checks whether
the list is empty, and if it is, goes straight on. A test double takes the calls of an operation that is marked with
`replaceable`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from django_ojs.events.catalogue import Record
    from django_ojs.rules.workflows import Plan


P = ParamSpec("P")
T = TypeVar("T")


class EventListener(Protocol):
    """Told about events in the transaction that writes them."""

    #: What a record must be made of that is made for this listener only.
    columns: Sequence[str]

    def wants(self, event: str) -> bool:
        """Whether the listener wants events of this type now. A verb asks once for a batch of events that the database
        writes by itself, and makes their records only then. Other records reach every listener."""

    def notify(self, records: Sequence[Record], using: str) -> None:
        """Receive these events; some may be of types that the listener does not want."""


#: Called with the outcomes of a PUSH.
Conclude = Callable[[Sequence[Any]], None]
#: Given the documents of a PUSH, makes a context manager around it, which gives the documents to push in their place,
#: and what to call with the outcomes, if they matter.
PushSubscriber = Callable[[Sequence[Any]], AbstractContextManager[tuple[Sequence[Any], Conclude | None]]]

#: Around a PUSH. A test's mode that captures jobs gets them as they come out of it.
around_push: list[PushSubscriber] = []
#: Around the work of a PUSH, which a test's mode may leave out.
around_work_of_push: list[PushSubscriber] = []
#: Makes a context manager around storing a workflow; it gives what to call with the workflow's id.
around_workflow: list[Callable[[Plan], AbstractContextManager[Callable[[str], None]]]] = []
#: Makes a context manager around pushing later steps of workflows, which no request is waiting for.
around_later_steps: list[Callable[[], AbstractContextManager[None]]] = []
event_listeners: list[EventListener] = []


def subscribe(place: list[T], subscriber: T) -> None:
    """Add `subscriber` to the end of `place`, unless it is there already."""
    if subscriber not in place:
        place.append(subscriber)


@dataclasses.dataclass(slots=True)
class PushUnderWay:
    """The documents of a push as its subscribers have left them."""

    documents: Sequence[Any]
    _concluding: list[Conclude] = dataclasses.field(default_factory=list)

    def conclude(self, outcomes: Sequence[Any]) -> None:
        """Tell the subscribers what became of each document."""
        for tell in reversed(self._concluding):
            tell(outcomes)


@contextlib.contextmanager
def pushing(documents: Sequence[Any], *subscribers: PushSubscriber) -> Iterator[PushUnderWay]:
    """A block that pushes `documents` inside the context managers of all subscribers; that of the last is the
    outermost. The block calls `conclude` with the outcomes."""
    under_way = PushUnderWay(documents)
    with contextlib.ExitStack() as stack:
        for subscriber in reversed(subscribers):
            under_way.documents, conclude = stack.enter_context(subscriber(under_way.documents))
            if conclude is not None:
                under_way._concluding.append(conclude)
        yield under_way


@contextlib.contextmanager
def inside(
    place: Iterable[Callable[P, AbstractContextManager[T]]], *args: P.args, **kwargs: P.kwargs
) -> Iterator[list[T]]:
    """A block inside the context managers of all subscribers; gives what they give."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(subscriber(*args, **kwargs)) for subscriber in place]


def notify(listeners: Iterable[EventListener], records: Sequence[Record], using: str) -> None:
    for listener in listeners:
        listener.notify(records, using)


# Test doubles. Without one, and outside of tests there is none, an operation reads one variable more. With one, its
# method for the operation (`on_push`, `on_create_workflow`, ...) gets the call, and the operation itself as its first
# argument, to pass it on or not. `django_ojs.testing` has the doubles.


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
