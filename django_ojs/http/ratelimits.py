"""Rate limits: list, inspect, override (jobs 5.3), and the headers of an enqueue under one.

A key that is limited to queues or job types sees and sets the limits of those only, `queue:mail` and `type:mail.send`
say: any other holds for jobs beyond its own.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import router
from django.db.models import Q, QuerySet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock, spellings
from django_ojs.access import Limits
from django_ojs.http import fields, permissions
from django_ojs.http.base import OJSViewSet
from django_ojs.http.operation import operation
from django_ojs.http.pagination import SamePagination, SortKey, parse_name
from django_ojs.http.permissions import principal
from django_ojs.http.serializers import AnswerSerializer, BodySerializer, InstantField
from django_ojs.limits import ratelimits
from django_ojs.models import RateLimit
from django_ojs.models.fields import any_of
from django_ojs.models.job import JobRow
from django_ojs.rules import ratelimit
from django_ojs.rules.durations import parse_instant
from django_ojs.rules.faults import shorten


class UsedConcurrencySerializer(AnswerSerializer):
    """How many jobs may run at once, how many do, and how many more could."""

    limit = serializers.IntegerField()
    active = serializers.IntegerField()
    available = serializers.IntegerField()


class WindowSerializer(AnswerSerializer):
    """How many jobs may start in which time. A `rate` also says how many have started, a `throttle` when the next one
    may."""

    limit = serializers.IntegerField()
    period = serializers.CharField()
    current_count = serializers.IntegerField(required=False)
    window_resets_at = InstantField(required=False)
    next_allowed_at = InstantField(required=False)


class RateOverrideSerializer(AnswerSerializer):
    """What an operator has set instead of what jobs and queue say."""

    concurrency = serializers.IntegerField(required=False)
    rate = WindowSerializer(required=False)
    throttle = WindowSerializer(required=False)
    on_limit = serializers.CharField(required=False)
    expires_at = InstantField(required=False)


class RateLimitSerializer(AnswerSerializer):
    """A limit and how much of it is used (jobs 5.3), as `limits.ratelimits` describes it."""

    key = serializers.CharField()
    active = serializers.IntegerField()
    waiting = serializers.IntegerField()
    waiting_count = serializers.IntegerField()
    concurrency = UsedConcurrencySerializer(required=False)
    rate = WindowSerializer(required=False)
    throttle = WindowSerializer(required=False)
    limit = serializers.IntegerField(required=False)
    period = serializers.CharField(required=False)
    blocked_until = InstantField(required=False)
    override = RateOverrideSerializer(required=False)

    def prepare(self, instances: list[RateLimit | dict[str, Any]]) -> None:
        """Describe all of them: the number of queries does not depend on how many there are."""
        rows = [one for one in instances if isinstance(one, RateLimit)]
        described = ratelimits.describe(rows, router.db_for_write(RateLimit)) if rows else []
        self.described = {limit["key"]: limit for limit in described}

    def gather(self, instance: RateLimit | dict[str, Any]) -> dict[str, Any]:
        return self.described[instance.key] if isinstance(instance, RateLimit) else instance


class RateLimitOverrideSerializer(BodySerializer):
    """What stands in for a limit for a while; `limits.ratelimits.override` reads it. A misspelt end would be none."""

    def to_internal_value(self, data: Any) -> Any:
        return fields.only(data, *sorted(spellings.RATE_LIMIT_MEMBERS), "expires_at", "blocked_until")


class RateLimitViewSet(OJSViewSet):
    """The limits by key, and their overrides."""

    lookup_url_kwarg = "key"
    model_name = "ratelimit"
    serializer_class = operator_serializer_class = RateLimitSerializer
    pagination_class = SamePagination
    ordering = [SortKey("key", descending=False, parse=parse_name)]
    list_names = ("items", "rate_limits")

    def get_queryset(self) -> QuerySet[RateLimit]:
        return RateLimit.objects.using(router.db_for_write(RateLimit)).filter(_visible(self.request))

    @operation(scope="read")
    def list(self, request: Request) -> Response:
        """The rate limits."""
        return self.listed(self.get_queryset())

    @operation(scope="read")
    def retrieve(self, request: Request, key: str) -> Response:
        """A rate limit and how much of it is used."""
        _check(request, key)
        return Response(self.represent(ratelimits.inspect(key)))

    @operation(right="change_ratelimit", body=RateLimitOverrideSerializer, audit="rate_limit.override")
    def update(self, request: Request, key: str) -> Response:
        """Override a rate limit.

        `blocked_until: null`, alone or beside an override, lifts the block that a worker has reported.
        """
        return self._override(key)

    @operation(
        detail=True,
        methods=["put"],
        right="change_ratelimit",
        body=RateLimitOverrideSerializer,
        audit="rate_limit.override",
        missing_ok=True,
    )
    def override(self, request: Request, key: str) -> Response:
        """Override a rate limit.

        `blocked_until: null`, alone or beside an override, lifts the block that a worker has reported.
        """
        return self._override(key)

    @operation(
        at=override, methods=["delete"], right="change_ratelimit", statuses=(204,), audit="rate_limit.clear_override"
    )
    def clear_override(self, request: Request, key: str) -> Response:
        """Take an override back, and lift a block."""
        _check(request, key)
        self.act.action = ratelimits.clear_override(key, by=principal(request))
        return Response(status=204)

    def _override(self, key: str) -> Response:
        _check(self.request, key)
        given = self.validated(self.payload())
        self.act.action = ratelimits.act_of_override(given)
        answer = ratelimits.override(key, given, by=principal(self.request))
        self.act.detail |= {name: given[name] for name in sorted(_NOTED & given.keys())}
        return Response(self.represent(answer))


#: The members of an override, which the audit log keeps.
_NOTED = spellings.RATE_LIMIT_MEMBERS | {"expires_at", "blocked_until"}


def _check(request: Request, key: str) -> None:
    """Raise PermissionDenied for a limit that is not one of the caller's own queues or job types, each as a whole."""
    if not _covers(permissions.limits(request), key):
        message = "This rate limit reaches beyond the queues and job types of this API key."
        raise permissions.denied(request, message, rate_limit=shorten(key))


def _covers(reach: Limits, key: str) -> bool:
    """Whether all jobs under this key are within the limits of the caller."""
    kind, _, name = key.partition(":")
    covers = {"queue": reach.covers_queue, "type": reach.covers_type_in_all_queues}.get(kind)
    return reach.unlimited or (covers is not None and covers(name))


def _visible(request: Request) -> Q:
    """The limits that a list may show to the caller."""
    reach = permissions.limits(request)
    if reach.unlimited:
        return Q()
    if reach.queues is not None and reach.types is not None:  # neither a queue nor a type is all its own
        return Q(pk__in=[])
    own = [f"queue:{name}" for name in reach.queues or ()]
    return any_of("key", [*own, *(f"type:{name}" for name in reach.types or ())])


def headers(row: JobRow, request: Request) -> dict[str, str]:
    """`X-RateLimit-*` of the limit that a new job is under, an override before its own; none where neither has numbers.
    Reset in Unix seconds.

    A caller with limits sees what is left of a limit, and an override, only where all jobs under it are its own. The
    job is stored by then: inside a transaction its key is not noted yet, and its own policy counts.
    """
    if not row["rate_key"]:
        return {}
    policy = ratelimit.from_json(row["rate_limit"])
    covered = _covers(permissions.limits(request), row["rate_key"])
    found = ratelimits.inspect_stored(row["rate_key"], policy) if covered else {}
    if "override" in found:
        policy = ratelimit.parse(found["override"])
    if not policy.limits or (covered and not found):
        return {}
    window = policy.rate or policy.throttle
    limit = window.limit if window else policy.concurrency or 0
    if not covered:
        return {"X-RateLimit-Limit": str(limit)}
    now = clock.now(router.db_for_write(RateLimit))
    period = timedelta(milliseconds=window.period_ms) if window else timedelta(seconds=1)
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
