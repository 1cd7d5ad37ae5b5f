"""Signals of Django that django-ojs sends."""

from __future__ import annotations

from django.dispatch import Signal

#: An exception left a handler, in the process of the worker and before the server knows. `sender` is the handler;
#: `context` is the `JobContext`, and `exception` what was raised. A receiver that fails is logged, and changes nothing.
#: Not sent for `Retry`, `Discard` and `Snooze`, for runs whose database went away, nor for jobs whose errors
#: `OJS["REDACT"]` hides.
job_failed = Signal()
