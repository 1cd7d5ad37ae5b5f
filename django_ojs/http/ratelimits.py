"""Rate limits: list, inspect, override (jobs 5.3), and the headers of an enqueue under one.

A key that is limited to queues or job types sees and sets the limits of those only, `queue:mail` and `type:mail.send`
say: any other holds for jobs beyond its own.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import router
from django.db.models import Q
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock
from django_ojs.errors import PermissionDenied
from django_ojs.http import permissions
from django_ojs.http.auditing import audited
from django_ojs.http.base import OJSViewSet
from django_ojs.http.openapi import documented
from django_ojs.http.pagination import Key, SamePagination, parse_name
from django_ojs.http.permissions import check_queue, check_type, principal, queue_limit, type_limit
from django_ojs.http.serializers import AnswerSerializer, BodySerializer, InstantField, rendered_by_show
from django_ojs.limits import ratelimits
from django_ojs.models import RateLimit
from django_ojs.models.fields import any_of
from django_ojs.models.job import JobRow
from django_ojs.rules import ratelimit
from django_ojs.rules.durations import parse_instant
from django_ojs.rules.faults import shorten


@rendered_by_show
class RateLimitSerializer(AnswerSerializer):
    """A limit and how much of it is used (jobs 5.3)."""

    key = serializers.CharField()
    active = serializers.IntegerField()
    waiting = serializers.IntegerField()
    waiting_count = serializers.IntegerField()
    concurrency = serializers.DictField(required=False)
    rate = serializers.DictField(required=False)
    throttle = serializers.DictField(required=False)
    limit = serializers.IntegerField(required=False)
    period = serializers.CharField(required=False)
    blocked_until = InstantField(required=False)
    override = serializers.DictField(required=False)

    def prepare(self, instances: list[RateLimit]) -> None:
        """Describe all of them: the number of queries does not depend on how many there are."""
        described = ratelimits.describe(instances, router.db_for_write(RateLimit))
        self.described = {limit["key"]: limit for limit in described}

    def show(self, instance: RateLimit) -> dict[str, Any]:
        return self.described[instance.key]


class RateLimitOverrideSerializer(BodySerializer):
    """What stands in for a limit for a while; `limits.override` reads it."""

    def to_internal_value(self, data: Any) -> Any:
        return data


class RateLimitViewSet(OJSViewSet):
    """The limits by key, and their overrides."""

    lookup_url_kwarg = "key"
    model_name = "ratelimit"
    action_scopes = {"list": "read", "retrieve": "read"}
    action_rights = dict.fromkeys(("update", "override", "clear_override"), "change_ratelimit")
    serializer_class = operator_serializer_class = RateLimitSerializer
    body_serializers = dict.fromkeys(("update", "override"), RateLimitOverrideSerializer)
    pagination_class = SamePagination
    ordering = [Key("key", descending=False, parse=parse_name)]
    list_names = ("items", "rate_limits")

    def list(self, request: Request) -> Response:
        """The rate limits."""
        return self.listed(RateLimit.objects.using(router.db_for_write(RateLimit)).filter(_visible(request)))

    def retrieve(self, request: Request, key: str) -> Response:
        """A rate limit and how much of it is used."""
        _check(request, key)
        return Response(ratelimits.inspect(key))

    @audited("rate_limit.override")
    def update(self, request: Request, key: str) -> Response:
        """Override a rate limit."""
        return self._override(key)

    @action(detail=True, methods=["put"])
    @audited("rate_limit.override")
    def override(self, request: Request, key: str) -> Response:
        """Override a rate limit."""
        return self._override(key)

    @documented(204)
    @override.mapping.delete
    @audited("rate_limit.clear_override")
    def clear_override(self, request: Request, key: str) -> Response:
        """Take an override back."""
        _check(request, key)
        ratelimits.clear_override(key)
        return Response(status=204)

    def _override(self, key: str) -> Response:
        _check(self.request, key)
        return Response(ratelimits.override(key, self.validated(self.payload())))


def _check(request: Request, key: str) -> None:
    """Raise PermissionDenied for a limit that is not one of the caller's own queues or job types."""
    kind, _, name = key.partition(":")
    if not permissions.is_limited(request):
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
    if not permissions.is_limited(request):
        return Q()
    own = [f"queue:{name}" for name in queue_limit(request) or ()]
    return any_of("key", [*own, *(f"type:{name}" for name in type_limit(request) or ())])


def headers(row: JobRow) -> dict[str, str]:
    """`X-RateLimit-*` of the limit that a new job is under; none for a job without one. Reset in Unix seconds.

    The job is stored by then: inside a transaction its key is not noted yet, and its own policy counts.
    """
    if not row["rate_key"]:
        return {}
    policy = ratelimit.from_json(row["rate_limit"])
    found = ratelimits.inspect_stored(row["rate_key"], policy)
    if not found:
        return {}
    now = clock.now(router.db_for_write(RateLimit))
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
