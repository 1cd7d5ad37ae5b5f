"""Checks the queues and the OPTIONS of one backend in the setting `TASKS`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as Caution

from django_ojs.errors import OJSError
from django_ojs.messages import shown
from django_ojs.rules import names, suggest

if TYPE_CHECKING:
    from django_ojs.tasks.backend import OJSBackend

KNOWN = ("max_attempts", "backoff", "modules")


def check_backend(backend: OJSBackend) -> Iterator[CheckMessage]:
    """E201, E202, W201: queue names and options of one backend."""
    where = f"TASKS[{backend.alias!r}]"
    for queue in sorted(backend.queues, key=str):
        try:
            names.check_queue(queue)
        except ValueError as error:
            hint = "Rename it here and in @task(queue_name=...): OJS allows hyphens where you may have underscores."
            yield Error(f"{where}: the queue {queue!r} {error}.", hint=hint, id="django_ojs.E201")
    if not isinstance(backend.options, dict):
        hint = 'For instance OPTIONS = {"max_attempts": 5, "backoff": "2s"}.'
        yield Error(f"{where}: OPTIONS is {shown(backend.options)}, and no dict.", hint=hint, id="django_ojs.E202")
        return
    for name in backend.options:
        if name not in KNOWN:
            near = suggest.nearest(str(name), KNOWN)
            hint = f"Did you mean {near!r}?" if near else f"There are {', '.join(KNOWN)}."
            yield Caution(
                f"{where}: OJSBackend has no option {name!r}, and ignores it.", hint=hint, id="django_ojs.W201"
            )
    yield from _check_options(where, backend.options)


def _check_options(where: str, options: dict[str, Any]) -> Iterator[CheckMessage]:
    from django_ojs.tasks.task import retries

    try:
        retries(options.get("max_attempts", 1), options.get("backoff"))
    except (TypeError, ValueError, OJSError) as error:
        hint = 'For instance OPTIONS = {"max_attempts": 5, "backoff": "2s"}.'
        yield Error(f"{where}: {error}", hint=hint, id="django_ojs.E202")
