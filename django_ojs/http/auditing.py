"""Operators' calls in the audit log: `@audited("queue.pause")` on the method that does it.

The entry is written in the transaction of the change. A call that is refused for lack of rights has an entry of its
own, if its caller is known: strangers could fill the log.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from django.db import DatabaseError
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import audit
from django_ojs.database import atomic, database
from django_ojs.errors import PermissionDenied
from django_ojs.http import fields
from django_ojs.http.permissions import principal

logger = logging.getLogger("django_ojs.http")
Method = TypeVar("Method", bound=Callable[..., Response])
#: Members of a body that an entry repeats; all others may hold secrets or data of persons.
NOTED = ("reason", "strategy", "target_queue", "states", "older_than", "priority", "directive", "config", "concurrency",
         "rate_limit", "retention", "backpressure", "max_depth", "limit", "period", "enabled", "expression", "cron",
         "timezone", "version", "active")  # fmt: skip
MAX_REASON = 1000  #: characters
_SAFE = ("GET", "HEAD", "OPTIONS")


def audited(action: str, *, together: bool = True, operator_only: bool = False) -> Callable[[Method], Method]:
    """Let a view's method run in one transaction with its entry. The target is the first value of the path.

    Args:
        together: whether they are one transaction; else the method sees to the entry itself.
        operator_only: whether an action that two doors have is noted at that of operators alone (see `viewsets`).
    """

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def wrapper(view: Any, request: Request, **path: Any) -> Response:
            if operator_only and not view.operator:
                return method(view, request, **path)
            view.act = entry(request, view.request_id, action, next(iter(path.values()), ""))
            if not together:
                return method(view, request, **path)

            def act() -> Response:
                view.act.detail = {}
                response = method(view, request, **path)
                fields.text(view.body, "reason", maximum=MAX_REASON)
                view.act.detail |= {name: view.body[name] for name in NOTED if name in view.body}
                return response

            return audit.perform(act, view.act)

        wrapper.audited = action  # type: ignore[attr-defined]
        wrapper.operator_only = operator_only  # type: ignore[attr-defined]
        return wrapper  # type: ignore[return-value]

    return decorate


def name_of(view: Any, request: Request) -> str:
    """What the audit log calls this request; '' where it has no entries."""
    handler = getattr(view, (request.method or "").lower(), None)
    if getattr(handler, "operator_only", False) and not view.operator:
        return ""
    return getattr(handler, "audited", "")


def entry(request: Request, request_id: str, action: str, target: str = "", **detail: Any) -> audit.Act:
    """What an entry says of an HTTP call."""
    return audit.Act(
        principal(request), action, str(target), detail, "http", request.META.get("REMOTE_ADDR", ""), request_id
    )


def refused(request: Request, request_id: str, error: Exception, action: str, target: str) -> None:
    """Note that a known caller was not allowed to do this. A log that cannot be written changes no answer."""
    actor = principal(request)
    if not isinstance(error, PermissionDenied) or request.method in _SAFE or actor == "anonymous":
        return
    act = entry(request, request_id, action, target, **error.details)
    act.outcome = "denied"
    using = database(None)
    try:
        with atomic(using=using):
            audit.append([act], using)
    except DatabaseError as failure:
        logger.error("A refused call could not be written to the audit log: %s", failure)
