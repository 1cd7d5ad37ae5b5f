"""Tell code that a handler calls which run it belongs to, without handing it the context."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_ojs.client.context import JobContext

#: The run whose handler is called in this thread or task; None outside of one.
running: ContextVar[JobContext | None] = ContextVar("django_ojs_run", default=None)
