"""Signals of Django that django-ojs sends."""

from __future__ import annotations

from django.dispatch import Signal

#: An exception left a handler, in the process of the worker and before the server knows. `sender` is the handler;
#: `context` is the `JobContext`, and `exception` what was raised. A receiver that fails is logged, and changes nothing.
#: Sent for `Fail`, too. Not sent for `Retry`, `Discard` and `Snooze`, for runs whose database went away, nor for jobs
#: whose errors `OJS["REDACT"]` hides.
job_failed = Signal()

#: A process of `ojs_worker` is about to claim its first job, or has ended its last one. Sent once each, in the main
#: thread of that process, which waits for the receivers: no handler runs there before those of `worker_started` have
#: returned, and none does when `worker_stopped` comes. `sender` is the class of the worker; `worker` is it, with
#: `id` (its name), `incarnation` (of this process), `types` (the job types that it has handlers for) and `options`
#: (`queues`, `concurrency`, ...). A receiver that fails is logged, and the worker goes on. A process that is killed
#: sends no `worker_stopped`.
worker_started = Signal()
worker_stopped = Signal()
