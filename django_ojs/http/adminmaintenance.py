"""Maintenance mode as an operator switches it: `/admin/system/maintenance`, and `/admin/maintenance` (admin 1.8).

The names of the members come from three clients; each fact is told under all of its names.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs.errors import PermissionDenied
from django_ojs.http import access, fields
from django_ojs.http.adminjobs import AdminView, using
from django_ojs.http.auditing import audited
from django_ojs.http.permissions import principal
from django_ojs.models import Maintenance
from django_ojs.operations import maintenance
from django_ojs.policies import durations
from django_ojs.policies.durations import format_instant

#: The names under which a request may say how long it will take.
_DURATIONS = ("estimated_duration", "duration")


class AdminMaintenance(AdminView):
    """`GET`; `POST` `{"enabled": true, "reason": …, "estimated_duration": "PT30M", "auto_end": false}`."""

    scopes = {"GET": "admin.read", "POST": "admin.write"}
    rights = {"GET": "view_maintenance", "POST": "change_maintenance"}

    def get(self, request: Request) -> Response:
        return Response(rendered(maintenance.current(using=using())))

    @audited("maintenance.switch")
    def post(self, request: Request) -> Response:
        body = self.payload()
        if access.is_limited(request):
            raise PermissionDenied(
                "A key that is limited to queues or types cannot stop all of them.",
                details={"principal": principal(request), "operation": maintenance.STARTED},
            )
        enabled = body.get("enabled")
        if not isinstance(enabled, bool):
            raise fields.fault("enabled", "must be true or false", enabled)
        reason = fields.text(body, "reason", maximum=maintenance.MAX_REASON)
        lasting = _lasting(body)
        auto_end = fields.flag(body, "auto_end") if body.get("auto_end") is not None else None
        self.act.action = maintenance.STARTED if enabled else maintenance.STOPPED
        if not enabled:
            ended = maintenance.stop(using=using())
            self.act.detail |= maintenance.told(ended) if ended else {}
            return Response(rendered(None))
        mode = maintenance.start(
            reason=reason, lasting=lasting, auto_end=auto_end, by=principal(request), using=using()
        )  # fmt: skip
        self.act.detail |= maintenance.told(mode)
        return Response(rendered(mode))


def rendered(mode: Maintenance | None) -> dict[str, Any]:
    """The answer. While the mode is off, all but the switch is null."""
    began = format_instant(mode.enabled_at) if mode else None
    end = format_instant(mode.estimated_end) if mode and mode.estimated_end else None
    return {
        "maintenance": mode is not None,
        "enabled": mode is not None,
        "reason": mode.reason or None if mode else None,
        "enabled_at": began,
        "started_at": began,
        "enabled_by": mode.enabled_by or None if mode else None,
        "estimated_end": end,
        "ends_at": end,
        "auto_end": mode.auto_end if mode else None,
    }


def _lasting(body: Mapping[str, Any]) -> dt.timedelta | None:
    """How long it will take, under either name; None where nothing is said."""
    given = [(name, body[name]) for name in _DURATIONS if body.get(name) is not None]
    found = []
    for name, value in given:
        try:
            found.append(durations.parse_duration_ms(value))
        except ValueError as error:
            raise fields.fault(name, str(error), value) from error
    if len(set(found)) > 1:
        raise fields.fault("duration", "must say the same as estimated_duration, or be left out", body["duration"])
    return dt.timedelta(milliseconds=found[0]) if found else None
