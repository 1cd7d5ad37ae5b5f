"""The URLs of the server: `path("", include("django_ojs.urls"))`.

Everything lies below `/ojs`. Whatever is not found there is answered by us, so that neither APPEND_SLASH
nor the site's 404 page gets to see a client of this API. The aliases at the root of a site, such as
`/health` and `/metrics`, are in `django_ojs.http.probes`.
"""

from __future__ import annotations

from django.urls import include, path, re_path

from django_ojs.http import (
    adminbulk,
    adminletters,
    adminurls,
    bulk,
    cron,
    deadletter,
    events,
    jobs,
    metrics,
    priority,
    progress,
    queues,
    ratelimits,
    results,
    schemas,
    system,
    tickets,
    webhooks,
    workers,
    workflows,
)
from django_ojs.http.base import NotFoundView
from django_ojs.realtime.sse import views as streams

app_name = "ojs"

nothing = NotFoundView.as_view()

v1 = [
    path("openapi.json", system.OpenAPI.as_view(), name="openapi"),
    path("health", system.Health.as_view(), name="health"),
    path("metrics", metrics.Metrics.as_view(), name="metrics"),
    path("jobs", jobs.Jobs.as_view(), name="jobs"),
    path("jobs/batch", jobs.JobBatch.as_view(), name="job-batch"),
    path("jobs/fetch", workers.Fetch.as_view()),
    path("jobs/bulk", bulk.BulkEnqueue.as_view(), name="job-bulk"),
    path("jobs/bulk/cancel", bulk.BulkCancel.as_view(), name="job-bulk-cancel"),
    path("jobs/bulk/retry", bulk.BulkRetry.as_view(), name="job-bulk-retry"),
    path("jobs/bulk/delete", bulk.BulkDelete.as_view(), name="job-bulk-delete"),
    path("jobs/results", results.Results.as_view(), name="job-results"),
    path("jobs/<str:job_id>", jobs.JobDetail.as_view(), name="job"),
    path("jobs/<str:job_id>/result", results.Result.as_view(), name="job-result"),
    path("jobs/<str:job_id>/cancel", jobs.JobCancel.as_view(), name="job-cancel"),
    path("jobs/<str:job_id>/activate", jobs.JobActivate.as_view(), name="job-activate"),
    path("jobs/<str:job_id>/ack", workers.JobAck.as_view(), name="job-ack"),
    path("jobs/<str:job_id>/nack", workers.JobNack.as_view(), name="job-nack"),
    path("jobs/<str:job_id>/fail", workers.JobNack.as_view()),
    path("jobs/<str:job_id>/progress", progress.JobProgress.as_view(), name="job-progress"),
    path("workers/progress", progress.WorkerProgress.as_view(), name="worker-progress"),
    path("workers", workers.Register.as_view(), name="workers"),
    path("workers/register", workers.Register.as_view()),
    path("workers/deregister", workers.Deregister.as_view()),
    path("workers/fetch", workers.Fetch.as_view(), name="fetch"),
    path("workers/ack", workers.WorkerAck.as_view(), name="ack"),
    path("workers/nack", workers.WorkerNack.as_view(), name="nack"),
    path("workers/fail", workers.WorkerNack.as_view()),
    path("workers/heartbeat", workers.Heartbeat.as_view(), name="heartbeat"),
    path("workers/beat", workers.Heartbeat.as_view()),
    path("workers/<str:worker_id>", workers.WorkerDetail.as_view(), name="worker"),
    path("workers/<str:worker_id>/health", workers.WorkerHealth.as_view(), name="worker-health"),
    path("queues", queues.Queues.as_view(), name="queues"),
    path("queues/<str:name>", queues.QueueDetail.as_view(), name="queue"),
    path("queues/<str:name>/priority-stats", priority.PriorityStats.as_view(), name="queue-priority-stats"),
    path("queues/<str:name>/pause", queues.QueuePause.as_view(), name="queue-pause"),
    path("queues/<str:name>/resume", queues.QueueResume.as_view(), name="queue-resume"),
    path("workflows", workflows.Workflows.as_view(), name="workflows"),
    path("workflows/<str:workflow_id>", workflows.WorkflowDetail.as_view(), name="workflow"),
    path("workflows/<str:workflow_id>/cancel", workflows.WorkflowCancel.as_view(), name="workflow-cancel"),
    path("workflows/<str:workflow_id>/retry", workflows.WorkflowRetry.as_view(), name="workflow-retry"),
    path("workflows/<str:workflow_id>/progress", workflows.WorkflowProgress.as_view(), name="workflow-progress"),
    path("queues/<str:name>/stats", queues.QueueStats.as_view(), name="queue-stats"),
    path("queues/<str:name>/config", queues.QueueConfig.as_view(), name="queue-config"),
    path("rate-limits", ratelimits.RateLimits.as_view(), name="rate-limits"),
    path("rate-limits/<str:key>", ratelimits.RateLimitDetail.as_view(), name="rate-limit"),
    path("rate-limits/<str:key>/override", ratelimits.RateLimitOverride.as_view()),
    path("dead-letter", deadletter.DeadLetters.as_view(), name="dead-letters"),
    path("dead-letter/stats", adminletters.AdminDeadLetterStats.as_view()),
    path("dead-letter/retry", adminbulk.DeadLetterBulkRetry.as_view()),
    path("dead-letter/<str:job_id>", deadletter.DeadLetterDetail.as_view(), name="dead-letter"),
    path("dead-letter/<str:job_id>/retry", deadletter.DeadLetterRetry.as_view(), name="dead-letter-retry"),
    *(
        path(f"{base}{suffix}", view)
        for base in ("cron", "crons")
        for suffix, view in (
            ("", cron.Crons.as_view()),
            ("/<str:name>", cron.CronDetail.as_view()),
            ("/<str:name>/trigger", cron.CronTrigger.as_view()),
            ("/<str:name>/pause", cron.CronSwitch.as_view(enabled=False)),
            ("/<str:name>/disable", cron.CronSwitch.as_view(enabled=False)),
            ("/<str:name>/resume", cron.CronSwitch.as_view(enabled=True)),
            ("/<str:name>/enable", cron.CronSwitch.as_view(enabled=True)),
            ("/<str:name>/history", cron.CronHistory.as_view()),
        )
    ),
    path("events", streams.Events.as_view(), name="events"),
    path("events/stream", streams.AllEvents.as_view(), name="event-stream"),
    path("events/<str:job_id>/history", events.JobHistory.as_view()),
    path("jobs/<str:job_id>/history", events.JobHistory.as_view(), name="job-history"),
    path("jobs/<str:job_id>/events", streams.JobEvents.as_view(), name="job-events"),
    path("jobs/<str:job_id>/progress/stream", streams.JobProgress.as_view(), name="job-progress-stream"),
    path("jobs/<str:job_id>/result/stream", streams.JobResult.as_view(), name="job-result-stream"),
    path("queues/<str:name>/events", streams.QueueEvents.as_view(), name="queue-events"),
    path("admin/stats/stream", streams.Statistics.as_view(), name="stats-stream"),
    path("events/ticket", tickets.EventsTicket.as_view(), name="events-ticket"),
    *schemas.urls,
    *webhooks.urls,
    *adminurls.urls,
]

urlpatterns = [
    path("ojs/manifest", system.Manifest.as_view(), name="manifest"),
    path("ojs/v1/", include(v1)),
    re_path(r"^ojs(?:/[\s\S]*)?\Z", nothing),
]
