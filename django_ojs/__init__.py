"""django-ojs: a Django site as a complete Open Job Spec server that runs its own jobs.

What a `jobs.py` needs is imported from here. The names are loaded on first use, so that this package can
be imported before Django's apps are ready.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from django_ojs.client.context import Discard as Discard
    from django_ojs.client.context import JobContext as JobContext
    from django_ojs.client.context import Retry as Retry
    from django_ojs.client.context import Snooze as Snooze
    from django_ojs.client.definition import aenqueue as aenqueue
    from django_ojs.client.definition import aenqueue_many as aenqueue_many
    from django_ojs.client.definition import enqueue as enqueue
    from django_ojs.client.definition import enqueue_after_commit as enqueue_after_commit
    from django_ojs.client.definition import enqueue_bulk as enqueue_bulk
    from django_ojs.client.definition import enqueue_many as enqueue_many
    from django_ojs.client.definition import job as job
    from django_ojs.client.handle import JobCancelled as JobCancelled
    from django_ojs.client.handle import JobFailed as JobFailed
    from django_ojs.client.handle import JobHandle as JobHandle
    from django_ojs.client.handle import aget_job as aget_job
    from django_ojs.client.handle import get_job as get_job
    from django_ojs.client.workflow import Workflow as Workflow
    from django_ojs.client.workflow import WorkflowCancelled as WorkflowCancelled
    from django_ojs.client.workflow import WorkflowFailed as WorkflowFailed
    from django_ojs.client.workflow import WorkflowHandle as WorkflowHandle
    from django_ojs.client.workflow import aget_workflow as aget_workflow
    from django_ojs.client.workflow import batch as batch
    from django_ojs.client.workflow import chain as chain
    from django_ojs.client.workflow import get_workflow as get_workflow
    from django_ojs.client.workflow import group as group

_MODULES = {
    "job": "django_ojs.client.definition",
    "enqueue": "django_ojs.client.definition",
    "enqueue_after_commit": "django_ojs.client.definition",
    "enqueue_bulk": "django_ojs.client.definition",
    "enqueue_many": "django_ojs.client.definition",
    "aenqueue": "django_ojs.client.definition",
    "aenqueue_many": "django_ojs.client.definition",
    "get_job": "django_ojs.client.handle",
    "aget_job": "django_ojs.client.handle",
    "JobCancelled": "django_ojs.client.handle",
    "JobFailed": "django_ojs.client.handle",
    "JobHandle": "django_ojs.client.handle",
    "Workflow": "django_ojs.client.workflow",
    "WorkflowCancelled": "django_ojs.client.workflow",
    "WorkflowFailed": "django_ojs.client.workflow",
    "WorkflowHandle": "django_ojs.client.workflow",
    "chain": "django_ojs.client.workflow",
    "group": "django_ojs.client.workflow",
    "batch": "django_ojs.client.workflow",
    "get_workflow": "django_ojs.client.workflow",
    "aget_workflow": "django_ojs.client.workflow",
    "JobContext": "django_ojs.client.context",
    "Retry": "django_ojs.client.context",
    "Discard": "django_ojs.client.context",
    "Snooze": "django_ojs.client.context",
}

__all__ = [
    "Discard",
    "JobCancelled",
    "JobContext",
    "JobFailed",
    "JobHandle",
    "Retry",
    "Snooze",
    "Workflow",
    "WorkflowCancelled",
    "WorkflowFailed",
    "WorkflowHandle",
    "aenqueue",
    "aenqueue_many",
    "aget_job",
    "aget_workflow",
    "batch",
    "chain",
    "enqueue",
    "enqueue_after_commit",
    "enqueue_bulk",
    "enqueue_many",
    "get_job",
    "get_workflow",
    "group",
    "job",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'django_ojs' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
