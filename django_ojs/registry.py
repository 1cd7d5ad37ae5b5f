"""Find the handler of a job type: `@job` registers handlers, and each app's `jobs.py` is imported to find them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules

from django_ojs.conf import ojs_settings
from django_ojs.guard import may_fail


def unwrapped(function: Any) -> Any:
    """The function of a partial; any other as it is."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def is_coroutine_function(function: object) -> bool:
    """Whether a call returns a coroutine: of an `async def`, of an object whose `__call__` is one, or of a partial of
    either."""
    function = unwrapped(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def look_like(one: Any, function: Any) -> None:
    """Let an object take over what a function is called, and what that has been given which is called as nothing of the
    object."""
    functools.update_wrapper(one, function, updated=())
    for name, value in getattr(function, "__dict__", {}).items():
        if not hasattr(one, name):
            setattr(one, name, value)


class InvalidHandler(ImproperlyConfigured):
    """A function that cannot be the handler of a job type; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a declaration: the job type that it has or wants, where it is (`shop/jobs.py:12`, or the name
    of a setting), and what to change."""

    type: str
    place: str
    message: str

    def __str__(self) -> str:
        declared = f"@job({self.type!r}): " if self.type else ""
        return f"{self.place}: {declared}{self.message}"


class Definition(Protocol):
    """A registered handler with its defaults: `client.definition.JobDefinition`, which describes the attributes."""

    type: str
    queue: str
    handler: Callable[..., Any]
    takes_context: bool
    is_async: bool
    inline: bool
    transactional: str | None
    durable: Any
    retry_if: Callable[[BaseException], bool] | None
    cron_options: Mapping[str, Any]
    job_retry: Mapping[str, Any] | None
    typed: Any

    @property
    def after(self) -> Callable[[Sequence[Any]], None] | None: ...

    @property
    def options(self) -> Callable[..., Any]: ...

    def of(self, args: Sequence[Any]) -> Any: ...


class Registry:
    """Job types and their handlers. The handlers of all apps are imported when the first one is looked up.

    A wrong declaration does not raise where it is imported, which would end every command with a traceback: its faults
    are recorded here. System checks show them (E004), a worker does not start with them, and `refuse_faulty` raises
    them where such a job is enqueued.
    """

    def __init__(self) -> None:
        self._definitions: dict[str, Definition] = {}
        #: By the job type and the handler.
        self._faults: dict[tuple[str, str], tuple[Fault, ...]] = {}
        self._sources: list[Callable[[], None]] = []
        self._lock = threading.RLock()
        self._discovered = False

    def add_source(self, discover: Callable[[], None]) -> None:
        """Call `discover` with the discovery of handlers: it imports modules that the registry does not know of."""
        if discover not in self._sources:
            self._sources.append(discover)

    def register(self, definition: Definition) -> None:
        """Add a handler. Raises InvalidHandler when another function has the job type already."""
        name = place_of(definition.handler)
        with self._lock:
            taken = self._definitions.get(definition.type)
            if taken is not None and place_of(taken.handler) != name:
                raise InvalidHandler(
                    f"The job type {definition.type!r} has two handlers, {place_of(taken.handler)} and {name}: "
                    "give one of them another type."
                )
            if taken is not None and may_fail("Comparing two handlers", _differ, taken.handler, definition.handler):
                raise InvalidHandler(
                    f"The job type {definition.type!r} has two handlers, both of {name}, with other arguments or of "
                    "another object: give one of them another type."
                )
            self._definitions[definition.type] = definition
            self._faults.pop((definition.type, name), None)

    def record(self, faults: Iterable[Fault], type: str, handler: object = None) -> None:
        """Keep what is wrong with a declaration, in the place of what was wrong with it before."""
        with self._lock:
            self._faults[type, place_of(handler)] = tuple(faults)

    def faults(self) -> list[Fault]:
        """What is wrong with the declarations of this site."""
        self.autodiscover()
        with self._lock:
            return [fault for faults in self._faults.values() for fault in faults]

    def refuse_faulty(self, type: str | None = None) -> None:
        """Raise InvalidHandler, with all that is wrong, where a declaration of the type is; None: where any is."""
        if type is None:
            found = self.faults()
        elif self._faults:
            found = [fault for faults in list(self._faults.values()) for fault in faults if fault.type == type]
        else:
            return
        if found:
            raise InvalidHandler("\n".join(map(str, found)))

    def autodiscover(self) -> None:
        """Import the jobs module (setting JOBS_MODULE) of every installed app, and call the other sources; once."""
        with self._lock:
            if self._discovered:
                return
            self._discovered = True  # before the import: a jobs.py may enqueue while it is loaded
            try:
                autodiscover_modules(ojs_settings.JOBS_MODULE)
                for discover in self._sources:
                    discover()
            except BaseException:
                self._discovered = False
                raise

    def known(self, type: str) -> Definition | None:
        """The handler of a type if it has been imported; `get` imports."""
        return self._definitions.get(type)

    def get(self, type: str) -> Definition | None:
        """The handler of a type; None if no app has one."""
        if type not in self._definitions:
            self.autodiscover()
        return self._definitions.get(type)

    def retry_of(self, type: str) -> Mapping[str, Any] | None:
        """The retry policy of all jobs of the type, whoever pushes them; None: only the site, the queue and the job
        have one. Modules that cannot be imported are logged, and keep no other job from being pushed."""
        definition = may_fail("Looking for the handler of a job", self.get, type)
        return None if definition is None else definition.job_retry

    def definitions(self) -> list[Definition]:
        """Every handler, in the order of the job types."""
        self.autodiscover()
        with self._lock:
            return [definition for _, definition in sorted(self._definitions.items())]

    def types(self) -> list[str]:
        """Every job type that has a handler here, sorted."""
        return [definition.type for definition in self.definitions()]

    @contextlib.contextmanager
    def isolated(self) -> Iterator[Registry]:
        """A block that starts without handlers and forgets its own at the end. For tests."""
        kept, self._definitions = self._definitions, {}
        faults, self._faults = self._faults, {}
        discovered, self._discovered = self._discovered, True
        try:
            yield self
        finally:
            self._definitions, self._faults, self._discovered = kept, faults, discovered


def place_of(handler: object) -> str:
    """Where a function is from, or that of a partial; '' for None. What is decorated by mistake may be anything."""
    if handler is None:
        return ""
    function = unwrapped(handler)
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    if name.endswith("<lambda>") and (code := getattr(function, "__code__", None)) is not None:
        return f"{name} of line {code.co_firstlineno}"  # it has no name of its own
    return name


def _differ(one: Any, other: Any) -> bool:
    """Whether handlers of the same place are two: partials with other arguments, methods of other objects, or objects
    that can be called. Otherwise it is the same one again, as where a module is reloaded."""
    if isinstance(one, functools.partial) and isinstance(other, functools.partial):
        states = [dict(enumerate(each.args)) | each.keywords for each in (one, other)]
        return not _alike(*states) or _differ(one.func, other.func)
    if isinstance(one, functools.partial) or isinstance(other, functools.partial):
        return True
    first, second = (getattr(each, "__self__", None) if inspect.isroutine(each) else each for each in (one, other))
    if inspect.isclass(first) or type(first) is not type(second):  # or the class was loaded again
        return place_of(first) != place_of(second)
    return not _alike(getattr(first, "__dict__", {}), getattr(second, "__dict__", {}))


def _alike(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:
    """Whether these hold the same; functions and classes may have been loaded again."""
    return one.keys() == other.keys() and all(
        value == other[name] or (callable(value) and place_of(value) == place_of(other[name]))
        for name, value in one.items()
    )


registry = Registry()
