"""The URLs of the server: `path("", include("django_ojs.urls"))`.

Everything lies below `/ojs`. Whatever is not found there is answered by us, so that neither APPEND_SLASH
nor the site's 404 page gets to see a client of this API. The aliases at the root of a site, such as
`/health` and `/metrics`, are in `django_ojs.http.probes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.urls import URLPattern, URLResolver, include, path, re_path

from django_ojs.http import probes, schemas, server, testhooks
from django_ojs.http.approvals import ApprovalViewSet
from django_ojs.http.base import NotFoundView, OJSView, OJSViewSet
from django_ojs.http.bulk import AdminBulkViewSet, BulkActionViewSet, BulkViewSet
from django_ojs.http.checkpoints import CheckpointViewSet
from django_ojs.http.cron import CronViewSet
from django_ojs.http.deadletter import DeadLetterViewSet, ReplayRuleViewSet
from django_ojs.http.durableevents import DurableEventViewSet
from django_ojs.http.history import HistoryViewSet, WholeHistoryViewSet
from django_ojs.http.jobs import JobViewSet
from django_ojs.http.queues import QueueViewSet
from django_ojs.http.ratelimits import RateLimitViewSet
from django_ojs.http.router import OJSRouter
from django_ojs.http.server import AuditViewSet, ServerViewSet
from django_ojs.http.uniquejobs import UniqueJobViewSet
from django_ojs.http.webhooks import DeliveryViewSet, WebhookViewSet
from django_ojs.http.workers import WorkerViewSet
from django_ojs.http.workflows import WorkflowViewSet
from django_ojs.realtime import views as streams

app_name = "ojs"

nothing = NotFoundView.as_view()

router = OJSRouter()
router.register("jobs", JobViewSet, "job")
router.register("jobs/bulk", BulkViewSet, "job-bulk", plural="job-bulk")
router.register("checkpoints", CheckpointViewSet, "checkpoint")
router.register("workers", WorkerViewSet, "worker", names={
    "worker-fetch": "fetch", "worker-ack": "ack", "worker-nack": "nack", "worker-heartbeat": "heartbeat",
})  # fmt: skip
router.register("queues", QueueViewSet, "queue")
router.register("durable-events", DurableEventViewSet, "durable-event")
router.register("approvals", ApprovalViewSet, "approval")
router.register("unique-jobs", UniqueJobViewSet, "unique-job")
router.register("dead-letter", DeadLetterViewSet, "dead-letter")
router.register("workflows", WorkflowViewSet, "workflow")
router.register("cron", CronViewSet, "cron")
router.register("crons", CronViewSet, "cron-alias", plural="cron-aliases")
router.register("rate-limits", RateLimitViewSet, "rate-limit")
router.register("webhooks/subscriptions", WebhookViewSet, "webhook")
router.register("webhooks/deliveries", DeliveryViewSet, "webhook-delivery", plural="webhook-deliveries")
# The operators' door: a proxy can guard all of it by its prefix (admin 1.1).
router.register("admin", ServerViewSet, "admin", operator=True, conflict_code="invalid_state_transition")
router.register("admin/audit", AuditViewSet, "admin-audit", plural="admin-audit", operator=True)
router.register("admin/jobs", JobViewSet, "admin-job", operator=True, conflict_code="invalid_state_transition")
router.register("admin/jobs/bulk", AdminBulkViewSet, "admin-bulk", operator=True)
router.register("admin/bulk-actions", BulkActionViewSet, "admin-bulk-action", operator=True)
router.register("admin/workers", WorkerViewSet, "admin-worker", operator=True)
router.register("admin/queues", QueueViewSet, "admin-queue", operator=True, conflict_code="invalid_state_transition")
router.register("admin/dead-letter/replay-rules", ReplayRuleViewSet, "admin-replay-rule", operator=True)
router.register(
    "admin/dead-letter", DeadLetterViewSet, "admin-dead-letter", operator=True, conflict_code="invalid_state_transition"
)
router.register("admin/workflows", WorkflowViewSet, "admin-workflow", operator=True)
router.register("admin/cron", CronViewSet, "admin-cron", operator=True)
router.register("admin/rate-limits", RateLimitViewSet, "admin-rate-limit", operator=True)

v1 = [
    *router.urls,
    # Other names of paths above.
    path("workers/register", WorkerViewSet.as_view({"post": "create"})),
    # A POST to one resource. Two of the published clients write the prefix twice.
    path(
        "checkpoints/<str:job_id>", CheckpointViewSet.as_view({"post": "save", "delete": "remove"}), name="checkpoint"
    ),
    path("ojs/v1/checkpoints/<str:job_id>", CheckpointViewSet.as_view({"post": "save", "delete": "remove"})),
    # Single documents of the server, which are no resources.
    path("openapi.json", server.OpenAPI.as_view(), name="openapi"),
    path("health", probes.Health.as_view(), name="health"),
    path("metrics", probes.Metrics.as_view(), name="metrics"),
    path("middleware", server.MiddlewareChains.as_view(), name="middleware"),
    path("admin/reset", testhooks.Reset.as_view()),
    # Events: under ASGI a page may turn into a stream.
    path("events", streams.StreamingEventViewSet.as_view({"get": "list"}), name="events"),
    path("events/ticket", streams.StreamingEventViewSet.as_view({"post": "ticket"}), name="events-ticket"),
    path("events/<str:job_id>/history", streams.StreamingEventViewSet.as_view({"get": "history"})),
    # The execution history, which a site may switch off.
    path(
        "jobs/<str:job_id>/history", HistoryViewSet.as_view({"get": "history", "delete": "erase"}), name="job-history"
    ),
    path("jobs/<str:job_id>/lineage", HistoryViewSet.as_view({"get": "lineage"}), name="job-lineage"),
    path("jobs/<str:job_id>/attempts", HistoryViewSet.as_view({"get": "attempts"}), name="job-attempts"),
    path("history", WholeHistoryViewSet.as_view({"get": "list", "delete": "clear"}), name="history"),
    path("history/stats", WholeHistoryViewSet.as_view({"get": "stats"}), name="history-stats"),
    # Streams: each is a view of its own in `realtime`, and no action of a resource.
    path("events/stream", streams.AllEventsView.as_view(), name="event-stream"),
    path("jobs/<str:job_id>/events", streams.JobEventsView.as_view(), name="job-events"),
    path("jobs/<str:job_id>/progress/stream", streams.JobProgressView.as_view(), name="job-progress-stream"),
    path("jobs/<str:job_id>/logs/stream", streams.JobLogsView.as_view(), name="job-logs-stream"),
    path("jobs/<str:job_id>/result/stream", streams.JobResultView.as_view(), name="job-result-stream"),
    path("queues/<str:name>/events", streams.QueueEventsView.as_view(), name="queue-events"),
    path("admin/stats/stream", streams.StatisticsView.as_view(), name="stats-stream"),
    # A schema's name may be a URI with slashes in it.
    *schemas.urls,
]
# Paths without parameters come first: no id is looked up that is the name of such a path.
v1.sort(key=lambda one: "<" in str(one.pattern))


def served_by(*viewsets: type[OJSViewSet]) -> tuple[list[URLPattern | URLResolver], str]:
    """The URLs of the server, with these ViewSets of the site in the place of those that they subclass.

    For `include()`: `path("", include(served_by(ShopJobViewSet)))`. They stand behind both doors, under our URL names.
    """
    return _replaced(urlpatterns, viewsets), app_name


def _replaced(patterns: Iterable[Any], viewsets: Sequence[type[OJSViewSet]]) -> list[URLPattern | URLResolver]:
    found: list[URLPattern | URLResolver] = []
    for one in patterns:
        if isinstance(one, URLResolver):
            below = _replaced(one.url_patterns, viewsets)
            found.append(URLResolver(one.pattern, below, one.default_kwargs, one.app_name, one.namespace))
            continue
        view: Any = one.callback
        served = getattr(view, "cls", OJSView)
        if issubclass(served, OJSViewSet) and (own := next((v for v in viewsets if issubclass(v, served)), None)):
            view = own.as_view(view.actions, **view.given)
        found.append(URLPattern(one.pattern, view, one.default_args, one.name))
    return found


urlpatterns = [
    path("ojs/manifest", server.Manifest.as_view(), name="manifest"),
    path("ojs/v1/", include(v1)),
    re_path(r"^ojs(?:/[\s\S]*)?\Z", nothing),
]
