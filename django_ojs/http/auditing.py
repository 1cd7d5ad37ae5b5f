"""Write operators' calls into the audit log, where their `@operation` has a name for it.

The entry is written in the transaction of the change. A call that is refused for lack of rights has an entry of its
own, if its caller is known: strangers could fill the log. Of one caller there are not more than `audit.MOST_NOTES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import Error
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import audit
from django_ojs.errors import PermissionDenied
from django_ojs.guard import get_logger
from django_ojs.http import fields
from django_ojs.http.permissions import principal

logger = get_logger("django_ojs.http")
#: Members of a body that an entry repeats; all others may hold secrets or data of persons.
NOTED = ("reason", "strategy", "target_queue", "states", "older_than", "priority", "directive", "config", "concurrency",
         "rate_limit", "retention", "backpressure", "max_depth", "limit", "period", "enabled", "expression", "cron",
         "timezone", "version", "active")  # fmt: skip
MAX_AUDIT_REASON = 1000  #: characters
#: Characters of a text about a refused call, which may have a path of any length.
MAX_FACT = 512
_SAFE = ("GET", "HEAD", "OPTIONS")


def performed(view: Any, act: Callable[[], Response]) -> Response:
    """Carry out an operator's call and write its entry, `view.act`, in one transaction."""

    def noted() -> Response:
        view.act.detail = {}
        response = act()
        fields.text(view.body, "reason", maximum=MAX_AUDIT_REASON)
        view.act.detail |= {name: view.body[name] for name in NOTED if name in view.body}
        return response

    return audit.perform(noted, view.act)


def entry(request: Request, request_id: str, action: str, target: str = "", **detail: Any) -> audit.Act:
    """What an entry says of an HTTP call."""
    return audit.Act(
        principal(request), action, str(target), detail, "http", request.META.get("REMOTE_ADDR", ""), request_id
    )


def note_denial(request: Request, request_id: str, error: Exception, action: str, target: str) -> None:
    """Note that a known caller was not allowed to do this. A log that cannot be written changes no answer."""
    if not isinstance(error, PermissionDenied) or request.method in _SAFE or principal(request) == "anonymous":
        return
    facts = {name: fact[:MAX_FACT] if isinstance(fact, str) else fact for name, fact in error.details.items()}
    act = entry(request, request_id, action, target, **facts)
    act.outcome = "denied"
    try:
        audit.note(act)
    except Error as failure:
        logger.error("A refused call could not be written to the audit log: %s", failure)
