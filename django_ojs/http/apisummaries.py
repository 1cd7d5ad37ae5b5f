"""What each method does, in a few words, for the OpenAPI document and the reference made of it.

`{verb}` is the last part of the path, where a view stands for several. A test wants a summary for every method.
"""

from __future__ import annotations

SUMMARIES: dict[str, str] = {
    "JobViewSet.create": "Enqueue a job",
    "JobViewSet.list": "The jobs that fit a filter",
    "JobViewSet.retries": "The attempts of a job that failed",
    "UniqueJobViewSet.list": "The unique keys that are held",
    "JobViewSet.batch": "Enqueue jobs, all or none",
    "JobViewSet.retrieve": "A job",
    "JobViewSet.destroy": "Cancel a job",
    "JobViewSet.update": "Change the priority of a waiting job",
    "JobViewSet.cancel": "Cancel a job, with a reason",
    "JobViewSet.activate": "Release a pending job",
    "JobViewSet.result": "The result of a job; may wait for it",
    "JobViewSet.results": "The results of several jobs",
    "JobViewSet.ack": "Complete a job",
    "JobViewSet.nack": "Report that a job failed",
    "JobViewSet.admin.list": "The jobs that fit a filter",
    "JobViewSet.admin.retrieve": "A job",
    "JobViewSet.admin.update": "Change the priority of a waiting job",
    "JobViewSet.admin.cancel": "Cancel a job",
    "JobViewSet.run": "Let a waiting job run now",
    "JobViewSet.admin.activate": "Release a pending job",
    "JobViewSet.duplicate": "Enqueue a copy of a job",
    "JobViewSet.retry": "Run a failed job again",
    "JobViewSet.progress": "The progress of a job",
    "JobViewSet.report_progress": "Report the progress of a job",
}
