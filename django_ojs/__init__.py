"""django-ojs runs the background jobs of a Django site, and makes the site a complete Open Job Spec server.

A site imports from here what it needs to define and enqueue jobs. The names are loaded on first use, so Django can
import this package before its apps are ready.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from django_ojs.client.context import Discard, JobContext, Retry, Snooze
    from django_ojs.client.definition import (
        aenqueue,
        aenqueue_many,
        enqueue,
        enqueue_after_commit,
        enqueue_bulk,
        enqueue_many,
        job,
    )
    from django_ojs.client.handle import JobCancelled, JobFailed, JobHandle, aget_job, get_job
    from django_ojs.client.workflow import (
        Workflow,
        WorkflowCancelled,
        WorkflowFailed,
        WorkflowHandle,
        aget_workflow,
        batch,
        chain,
        get_workflow,
        group,
    )

#: The modules of `client`, and what each has of the names below.
_NAMES = {
    "context": "Discard JobContext Retry Snooze",
    "definition": "aenqueue aenqueue_many enqueue enqueue_after_commit enqueue_bulk enqueue_many job",
    "handle": "JobCancelled JobFailed JobHandle aget_job get_job",
    "workflow": "Workflow WorkflowCancelled WorkflowFailed WorkflowHandle aget_workflow batch chain get_workflow group",
}
_MODULES = {name: f"django_ojs.client.{module}" for module, names in _NAMES.items() for name in names.split()}

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
