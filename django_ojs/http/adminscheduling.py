"""How the work is spread over the queues: `/admin/scheduling/stats` (admin 1.9, jobs 9.1)."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs.http.adminjobs import AdminView, using
from django_ojs.http.compat import whole
from django_ojs.http.pagination import Key, paginate, parse_name
from django_ojs.http.permissions import queue_limit
from django_ojs.models import Queue
from django_ojs.models.queue import TEMPLATE
from django_ojs.operations import dispatching
from django_ojs.operations.dispatching import Share
from django_ojs.policies.durations import format_instant

_ORDER = [Key("name", descending=False, parse=parse_name)]
#: Queues in one answer: a sum over all of them is what it is for, so pages are large.
MAX_QUEUES = 1000


class AdminScheduling(AdminView):
    """`GET /admin/scheduling/stats`: what each queue got in the last whole minute, and which of them starve."""

    scopes = {"GET": "admin.read"}
    rights = {"GET": "view_queue"}

    def get(self, request: Request) -> Response:
        limit = queue_limit(request)
        named = Queue.objects.using(using()).exclude(name=TEMPLATE)
        if limit is not None:
            named = named.filter(name__in=limit)
        page = paginate(named, request, _ORDER, maximum=MAX_QUEUES, default=MAX_QUEUES)
        paused = {queue.name for queue in page.rows if queue.paused}
        found = dispatching.spread([queue.name for queue in page.rows], paused, using=using())
        lines = [_line(share, share.queue in paused) for share in found.shares]
        totals = {
            "strategy": dispatching.STRATEGY,
            "dispatched": found.dispatched,
            "active_jobs": sum(share.active for share in found.shares),
            "starved_queues": sum(share.starved for share in found.shares),
        }
        return Response({
            "strategy": dispatching.STRATEGY,
            "window": "PT1M",
            "window_start": format_instant(found.begin),
            "window_end": format_instant(found.end),
            "stats": {**totals, "queues": lines},
            "queues": lines,
            "pagination": page.pagination,
        })  # fmt: skip


def _line(share: Share, paused: bool) -> dict[str, Any]:
    return {
        "name": share.queue,
        "paused": paused,
        "dispatched": share.dispatched,
        "dispatch_count_1m": share.dispatched,
        "dispatch_ratio_1m": whole(round(share.ratio, 4)),
        "avg_wait_ms": None if share.mean_wait_ms is None else whole(round(share.mean_wait_ms, 3)),
        "active_jobs": share.active,
        "available_jobs": share.available,
        "waiting_since": format_instant(share.oldest) if share.starved and share.oldest else None,
        "starved": share.starved,
    }
