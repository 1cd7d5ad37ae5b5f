"""`override` in the body of a call that retries one dead letter (binding 2.6, jobs 7.3)."""

from __future__ import annotations

import difflib
from typing import Any

from rest_framework.request import Request

from django_ojs.http import fields
from django_ojs.http.permissions import check_queue
from django_ojs.jobs.verbs import OVERRIDABLE, check_override

_NAME = "override"
#: How alike a name is that was meant to be this one.
_ALIKE = 0.7


def read(request: Request, body: dict[str, Any]) -> dict[str, Any] | None:
    """What the caller wants to change; None where nothing.

    Raises `InvalidRequest` for members that may not be changed, and for names that stand where `override` should, or
    look like it: passed over, the job would run unchanged. `PermissionDenied` for a queue beyond the caller's limits.
    """
    for name in sorted(body.keys() - {_NAME}):
        if name in OVERRIDABLE:
            raise fields.fault(name, "belongs into override")
        if difflib.SequenceMatcher(None, name.lower()[:100], _NAME).ratio() >= _ALIKE:
            raise fields.fault(name[:100], "is unknown here: is override meant?")
    override = fields.member(body, _NAME)
    check_override(override)
    if override and isinstance(override.get("queue"), str):
        check_queue(request, override["queue"])
    return override
