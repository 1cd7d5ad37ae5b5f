"""Rate limits: list, inspect, override (jobs 5.3), and the headers of an enqueue under one.

A key that is limited to queues or job types sees and sets the limits of those only, `queue:mail` and `type:mail.send`
say: any other holds for jobs beyond its own.
"""

from __future__ import annotations

from datetime import timedelta

from django.db import router
from django.db.models import Q
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock
from django_ojs.errors import PermissionDenied
from django_ojs.http import access
from django_ojs.http.auditing import audited
from django_ojs.http.base import OJSView
from django_ojs.http.pagination import Key, paginate, parse_name
from django_ojs.http.permissions import check_queue, check_type, principal, queue_limit, type_limit
from django_ojs.models import RateLimit
from django_ojs.models.job import JobRow
from django_ojs.operations import limits, limitview
from django_ojs.policies import ratelimit
from django_ojs.policies.durations import parse_instant
from django_ojs.policies.faults import shorten

_ORDER = [Key("key", descending=False, parse=parse_name)]


class RateLimits(OJSView):
    """`GET /rate-limits`, by key."""

    scopes = {"GET": "read"}

    def get(self, request: Request) -> Response:
        using = router.db_for_write(RateLimit)
        page = paginate(RateLimit.objects.using(using).filter(_visible(request)), request, _ORDER)
        shown = limitview.describe(page.rows, using)
        return Response({"items": shown, "rate_limits": shown, "pagination": page.pagination})


class RateLimitDetail(OJSView):
    """`GET /rate-limits/{key}`; `PUT` sets an override."""

    scopes = {"GET": "read", "PUT": "admin"}
    rights = {"PUT": "change_ratelimit"}

    def get(self, request: Request, key: str) -> Response:
        _check(request, key)
        return Response(limits.inspect(key))

    @audited("rate_limit.override")
    def put(self, request: Request, key: str) -> Response:
        _check(request, key)
        return Response(limits.override(key, self.payload()))


class RateLimitOverride(OJSView):
    """`DELETE /rate-limits/{key}/override`; `PUT` as above, for the command line."""

    scopes = {"PUT": "admin", "DELETE": "admin"}
    rights = {"PUT": "change_ratelimit", "DELETE": "change_ratelimit"}

    @audited("rate_limit.override")
    def put(self, request: Request, key: str) -> Response:
        _check(request, key)
        return Response(limits.override(key, self.payload()))

    @audited("rate_limit.clear_override")
    def delete(self, request: Request, key: str) -> Response:
        _check(request, key)
        limits.clear_override(key)
        return Response(status=204)


def _check(request: Request, key: str) -> None:
    """Raise PermissionDenied for a limit that is not one of the caller's own queues or job types."""
    kind, _, name = key.partition(":")
    if not access.is_limited(request):
        return
    if kind == "queue" and queue_limit(request) is not None:
        check_queue(request, name)
    elif kind == "type" and type_limit(request) is not None:
        check_type(request, name)
    else:
        raise PermissionDenied(
            "This rate limit reaches beyond the queues and job types of this API key.",
            details={"principal": principal(request), "operation": f"{request.method} {request.path}",
                     "rate_limit": shorten(key)},
        )  # fmt: skip


def _visible(request: Request) -> Q:
    """The limits that a list may show to the caller."""
    if not access.is_limited(request):
        return Q()
    types = type_limit(request) or ()
    own = {f"queue:{name}" for name in queue_limit(request) or ()}
    found = Q(key__in=own | {f"type:{name}" for name in types if not name.endswith(".*")})
    for name in types:
        if name.endswith(".*"):
            found |= Q(key__startswith=f"type:{name[:-1]}")
    return found


def headers(row: JobRow) -> dict[str, str]:
    """`X-RateLimit-*` of the limit that a new job is under; none for a job without one. Reset in Unix seconds.

    The job is stored by then: inside a transaction its key is not noted yet, and its own policy counts.
    """
    if not row["rate_key"]:
        return {}
    policy = ratelimit.from_json(row["rate_limit"])
    found = limits.inspect_stored(row["rate_key"], policy)
    if not found:
        return {}
    now = clock.now()
    window = policy.rate or policy.throttle
    period = timedelta(milliseconds=window.period_ms) if window else timedelta(seconds=1)
    limit = window.limit if window else policy.concurrency or 0
    if policy.rate:
        left = policy.rate.limit - found.get("rate", {}).get("current_count", 0)
    else:
        left = limit - found["active"]
    resets = found.get("rate", {}).get("window_resets_at")
    reset = parse_instant(resets) if resets else now + period
    return {
        "X-RateLimit-Limit": str(limit),
        "X-RateLimit-Remaining": str(max(left, 0)),
        "X-RateLimit-Reset": str(int(reset.timestamp()) + 1),
    }
