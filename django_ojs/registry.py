"""Find the handler of a job type: `@job` registers handlers, and each app's `jobs.py` is imported to find them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules

from django_ojs.conf import ojs_settings


class InvalidHandler(ImproperlyConfigured):
    """A function that cannot be the handler of a job type; the message says what to change."""


class Definition(Protocol):
    """A registered handler with its defaults: `client.definition.JobDefinition`, which describes the attributes."""

    type: str
    queue: str
    handler: Callable[..., Any]
    takes_context: bool
    is_async: bool
    inline: bool
    transactional: str | None
    schedule: Mapping[str, Any]

    @property
    def after(self) -> Callable[[Sequence[Any]], None] | None: ...

    @property
    def options(self) -> Callable[..., Any]: ...

    def of(self, args: Sequence[Any]) -> Any: ...


class Registry:
    """Job types and their handlers. The handlers of all apps are imported when the first one is looked up."""

    def __init__(self) -> None:
        self._definitions: dict[str, Definition] = {}
        self._sources: list[Callable[[], None]] = []
        self._lock = threading.RLock()
        self._discovered = False

    def add_source(self, discover: Callable[[], None]) -> None:
        """Call `discover` with the discovery of handlers: it imports modules that the registry does not know of."""
        if discover not in self._sources:
            self._sources.append(discover)

    def register(self, definition: Definition) -> None:
        """Add a handler. Raises InvalidHandler when another function has the job type already."""
        with self._lock:
            taken = self._definitions.get(definition.type)
            if taken is not None and _place(taken) != _place(definition):  # the same place: a module was reloaded
                raise InvalidHandler(
                    f"The job type {definition.type!r} has two handlers, {_place(taken)} and {_place(definition)}: "
                    "give one of them another type."
                )
            self._definitions[definition.type] = definition

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
        discovered, self._discovered = self._discovered, True
        try:
            yield self
        finally:
            self._definitions, self._discovered = kept, discovered


def _place(definition: Definition) -> str:
    return f"{definition.handler.__module__}.{definition.handler.__qualname__}"


registry = Registry()
