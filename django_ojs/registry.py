"""Which job types this site has handlers for: filled by `@job`, found in each app's `jobs.py`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules

from django_ojs.conf import ojs_settings

if TYPE_CHECKING:
    from django_ojs.client.definition import JobDefinition


class InvalidHandler(ImproperlyConfigured):
    """A function that cannot be the handler of a job type; the message says what to change."""


class Registry:
    """Job types and their handlers. The handlers of all apps are imported when the first one is asked for."""

    def __init__(self) -> None:
        self._definitions: dict[str, JobDefinition[..., ..., Any]] = {}
        self._lock = threading.RLock()
        self._discovered = False

    def register(self, definition: JobDefinition[..., ..., Any]) -> None:
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
        """Import the jobs module (setting JOBS_MODULE) of every installed app, once, and where tasks may be."""
        from django_ojs.tasks import discovery

        with self._lock:
            if self._discovered:
                return
            self._discovered = True  # before the import: a jobs.py may enqueue while it is loaded
            try:
                autodiscover_modules(ojs_settings.JOBS_MODULE)
                discovery.discover()
            except BaseException:
                self._discovered = False
                raise

    def known(self, type: str) -> JobDefinition[..., ..., Any] | None:
        """The handler of a type if it has been imported; `get` imports."""
        return self._definitions.get(type)

    def get(self, type: str) -> JobDefinition[..., ..., Any] | None:
        if type not in self._definitions:
            self.autodiscover()
        return self._definitions.get(type)

    def definitions(self) -> list[JobDefinition[..., ..., Any]]:
        """Every handler, in the order of the job types."""
        self.autodiscover()
        with self._lock:
            return [definition for _, definition in sorted(self._definitions.items())]

    def types(self) -> list[str]:
        """Every job type that has a handler here, sorted."""
        return [definition.type for definition in self.definitions()]

    def unserved_types(self, using: str | None = None) -> dict[str, int]:
        """Job types with unfinished jobs that no known worker serves, and how many jobs each has."""
        from django_ojs.worker.coverage import unserved_types

        return unserved_types(using)

    @contextlib.contextmanager
    def isolated(self) -> Iterator[Registry]:
        """A block that starts without handlers and forgets its own at the end. For tests."""
        kept, self._definitions = self._definitions, {}
        discovered, self._discovered = self._discovered, True
        try:
            yield self
        finally:
            self._definitions, self._discovered = kept, discovered


def _place(definition: JobDefinition[..., ..., Any]) -> str:
    return f"{definition.handler.__module__}.{definition.handler.__qualname__}"


registry = Registry()
