"""Every path below `/ojs/v1/admin/`, so that a proxy can guard them all by their prefix (admin 1.1)."""

from __future__ import annotations

from typing import Any

from django.urls import path

from django_ojs.http import (
    adminbackground,
    adminbulk,
    adminjobs,
    adminletters,
    adminmaintenance,
    adminqueues,
    adminscheduling,
    adminsystem,
    adminworkers,
    cron,
    ratelimits,
    schemas,
    testhooks,
    workflows,
)
from django_ojs.http.base import OJSView

_SCOPES = {"GET": "admin.read", "DELETE": "admin.purge"}


def operated(view: type[OJSView], model: str, **given: Any) -> Any:
    """A view of the other door under this one: the same answers, for whoever may operate."""
    methods = [method.upper() for method in view.http_method_names if hasattr(view, method) and method != "options"]
    scopes = {method: _SCOPES.get(method, "admin.write") for method in methods}
    rights = {"GET": f"view_{model}", **view.rights}
    return view.as_view(scopes=scopes, rights=rights, **given)


urls = [
    path("admin/reset", testhooks.Reset.as_view()),
    path("admin/stats", adminsystem.AdminStats.as_view(), name="admin-stats"),
    path("admin/stats/history", adminsystem.AdminHistory.as_view(), name="admin-history"),
    path("admin/scheduling/stats", adminscheduling.AdminScheduling.as_view(), name="admin-scheduling"),
    path("admin/system/config", adminsystem.AdminConfig.as_view(), name="admin-config"),
    path("admin/config", adminsystem.AdminConfig.as_view()),
    path("admin/system/maintenance", adminmaintenance.AdminMaintenance.as_view(), name="admin-maintenance"),
    path("admin/maintenance", adminmaintenance.AdminMaintenance.as_view()),
    path("admin/audit", adminsystem.AdminAudit.as_view(), name="admin-audit"),
    path("admin/queues", adminqueues.AdminQueues.as_view(), name="admin-queues"),
    path("admin/queues/<str:name>", adminqueues.AdminQueueDetail.as_view(), name="admin-queue"),
    path("admin/queues/<str:name>/pause", adminqueues.AdminQueuePause.as_view(), name="admin-queue-pause"),
    path("admin/queues/<str:name>/resume", adminqueues.AdminQueueResume.as_view(), name="admin-queue-resume"),
    path("admin/queues/<str:name>/config", adminqueues.AdminQueueConfig.as_view(), name="admin-queue-config"),
    path("admin/queues/<str:name>/rate-limit", adminqueues.AdminQueueRateLimit.as_view()),
    path("admin/queues/<str:name>/jobs", adminbulk.QueuePurge.as_view(), name="admin-queue-jobs"),
    path("admin/jobs", adminjobs.AdminJobs.as_view(), name="admin-jobs"),
    path("admin/jobs/bulk/retry", adminbulk.AdminBulkRetry.as_view(), name="admin-bulk-retry"),
    path("admin/jobs/bulk/cancel", adminbulk.AdminBulkCancel.as_view(), name="admin-bulk-cancel"),
    path("admin/jobs/bulk/delete", adminbulk.AdminBulkDelete.as_view(), name="admin-bulk-delete"),
    path("admin/bulk-actions", adminbackground.BulkActions.as_view(), name="admin-bulk-actions"),
    path("admin/bulk-actions/<str:action_id>", adminbackground.BulkActionDetail.as_view(), name="admin-bulk-action"),
    path("admin/bulk-actions/<str:action_id>/cancel", adminbackground.BulkActionCancel.as_view()),
    path("admin/jobs/<str:job_id>", adminjobs.AdminJobDetail.as_view(), name="admin-job"),
    path("admin/jobs/<str:job_id>/cancel", adminjobs.AdminJobCancel.as_view(), name="admin-job-cancel"),
    path("admin/jobs/<str:job_id>/retry", adminjobs.AdminJobRetry.as_view(), name="admin-job-retry"),
    path("admin/jobs/<str:job_id>/run", adminjobs.AdminJobRun.as_view(), name="admin-job-run"),
    path("admin/jobs/<str:job_id>/activate", adminjobs.AdminJobActivate.as_view(), name="admin-job-activate"),
    path("admin/jobs/<str:job_id>/duplicate", adminjobs.AdminJobDuplicate.as_view(), name="admin-job-duplicate"),
    path("admin/dead-letter", adminletters.DeadLetterRoot.as_view(), name="admin-dead-letters"),
    path("admin/dead-letter/stats", adminletters.AdminDeadLetterStats.as_view(), name="admin-dead-letter-stats"),
    path("admin/dead-letter/retry", adminbulk.DeadLetterBulkRetry.as_view(), name="admin-dead-letter-retry-many"),
    path("admin/dead-letter/purge", adminbulk.DeadLetterPurge.as_view(http_method_names=["post", "options"])),
    path("admin/dead-letter/<str:job_id>", adminletters.AdminDeadLetterDetail.as_view(), name="admin-dead-letter"),
    path(
        "admin/dead-letter/<str:job_id>/retry",
        adminletters.AdminDeadLetterRetry.as_view(),
        name="admin-dead-letter-retry",
    ),
    path("admin/workers", adminworkers.Workers.as_view(), name="admin-workers"),
    path("admin/workers/directive", adminworkers.DirectiveForAll.as_view()),
    *(  # before the worker itself: its id may hold slashes, and one that ends so is only read in the list
        path(f"admin/workers/<path:worker_id>/{verb}", adminworkers.Directive.as_view(verb=verb))
        for verb in ("quiet", "resume", "terminate")
    ),
    path("admin/workers/<path:worker_id>", adminworkers.WorkerDetail.as_view(), name="admin-worker"),
    path("admin/schemas", operated(schemas.Schemas, "jobschema")),
    path("admin/workflows", operated(workflows.AdminWorkflows, "workflow"), name="admin-workflows"),
    path("admin/workflows/<str:workflow_id>", operated(workflows.WorkflowDetail, "workflow"), name="admin-workflow"),
    path("admin/workflows/<str:workflow_id>/cancel", operated(workflows.WorkflowCancel, "workflow")),
    path("admin/workflows/<str:workflow_id>/retry", operated(workflows.WorkflowRetry, "workflow")),
    path("admin/workflows/<str:workflow_id>/progress", operated(workflows.WorkflowProgress, "workflow")),
    path("admin/rate-limits", operated(ratelimits.RateLimits, "ratelimit")),
    path("admin/rate-limits/<str:key>", operated(ratelimits.RateLimitDetail, "ratelimit")),
    path("admin/rate-limits/<str:key>/override", operated(ratelimits.RateLimitOverride, "ratelimit")),
    path("admin/cron", operated(cron.Crons, "cronschedule"), name="admin-crons"),
    path("admin/cron/<str:name>", operated(cron.CronDetail, "cronschedule"), name="admin-cron"),
    path("admin/cron/<str:name>/trigger", operated(cron.CronTrigger, "cronschedule")),
    path("admin/cron/<str:name>/pause", operated(cron.CronSwitch, "cronschedule", enabled=False)),
    path("admin/cron/<str:name>/resume", operated(cron.CronSwitch, "cronschedule", enabled=True)),
    path("admin/cron/<str:name>/history", operated(cron.CronHistory, "cronschedule")),
]
