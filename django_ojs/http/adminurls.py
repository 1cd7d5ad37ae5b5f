"""Every path below `/ojs/v1/admin/`, so that a proxy can guard them all by their prefix (admin 1.1)."""

from __future__ import annotations

from django.urls import path

from django_ojs.http import (
    adminbackground,
    adminbulk,
    adminletters,
    testhooks,
)

urls = [
    path("admin/reset", testhooks.Reset.as_view()),
    path("admin/queues/<str:name>/jobs", adminbulk.QueuePurge.as_view(), name="admin-queue-jobs"),
    path("admin/jobs/bulk/retry", adminbulk.AdminBulkRetry.as_view(), name="admin-bulk-retry"),
    path("admin/jobs/bulk/cancel", adminbulk.AdminBulkCancel.as_view(), name="admin-bulk-cancel"),
    path("admin/jobs/bulk/delete", adminbulk.AdminBulkDelete.as_view(), name="admin-bulk-delete"),
    path("admin/bulk-actions", adminbackground.BulkActions.as_view(), name="admin-bulk-actions"),
    path("admin/bulk-actions/<str:action_id>", adminbackground.BulkActionDetail.as_view(), name="admin-bulk-action"),
    path("admin/bulk-actions/<str:action_id>/cancel", adminbackground.BulkActionCancel.as_view()),
    path("admin/dead-letter", adminletters.DeadLetterRoot.as_view(), name="admin-dead-letters"),
    path("admin/dead-letter/stats", adminletters.AdminDeadLetterStats.as_view(), name="admin-dead-letter-stats"),
    path("admin/dead-letter/retry", adminbulk.DeadLetterBulkRetry.as_view(), name="admin-dead-letter-retry-many"),
    path("admin/dead-letter/purge", adminbulk.DeadLetterPurge.as_view(http_method_names=["post", "options"])),
    path("admin/dead-letter/replay-rules", adminletters.ReplayRules.as_view(), name="admin-replay-rules"),
    path(
        "admin/dead-letter/replay-rules/<str:name>", adminletters.ReplayRuleDetail.as_view(), name="admin-replay-rule"
    ),
    path("admin/dead-letter/replay-rules/<str:name>/preview", adminletters.ReplayRulePreview.as_view()),
    path("admin/dead-letter/<str:job_id>", adminletters.AdminDeadLetterDetail.as_view(), name="admin-dead-letter"),
    path(
        "admin/dead-letter/<str:job_id>/retry",
        adminletters.AdminDeadLetterRetry.as_view(),
        name="admin-dead-letter-retry",
    ),
]
