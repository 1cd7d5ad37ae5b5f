"""django-ojs runs the background jobs of a Django site, and makes the site a complete Open Job Spec server.

A site imports from here what it needs to define and enqueue jobs. The names are loaded on first use, so Django can
import this package before its apps are ready.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from django_ojs.client.approvals import (
        ApprovalDecision,
        aapprove,
        approvals_for,
        approve,
        delegate_approval,
    )
    from django_ojs.client.children import ChildFailed
    from django_ojs.client.context import JobContext
    from django_ojs.client.definition import (
        aenqueue,
        aenqueue_many,
        enqueue,
        enqueue_after_commit,
        enqueue_bulk,
        enqueue_many,
        job,
    )
    from django_ojs.client.directives import Discard, Fail, Retry, Snooze
    from django_ojs.client.durableevents import aemit_event, emit_event
    from django_ojs.client.handle import JobCancelled, JobFailed, JobHandle, aget_job, get_job
    from django_ojs.client.locks import LockHeld, lock
    from django_ojs.client.options import RateLimitOptions, RetryOptions, UniqueOptions
    from django_ojs.client.schedules import delete_schedule, register_schedule, validate_cron
    from django_ojs.client.steps import ApprovalTimeout, EventTimeout, ReplayMismatch, StepError, StepTimeout, step
    from django_ojs.client.stepvalues import step_type
    from django_ojs.client.typed import Typed
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
    "children": "ChildFailed",
    "approvals": "ApprovalDecision aapprove approvals_for approve delegate_approval",
    "context": "JobContext",
    "directives": "Discard Fail Retry Snooze",
    "definition": "aenqueue aenqueue_many enqueue enqueue_after_commit enqueue_bulk enqueue_many job",
    "durableevents": "aemit_event emit_event",
    "handle": "JobCancelled JobFailed JobHandle aget_job get_job",
    "locks": "LockHeld lock",
    "options": "RateLimitOptions RetryOptions UniqueOptions",
    "schedules": "delete_schedule register_schedule validate_cron",
    "steps": "ApprovalTimeout EventTimeout ReplayMismatch StepError StepTimeout step",
    "stepvalues": "step_type",
    "typed": "Typed",
    "workflow": "Workflow WorkflowCancelled WorkflowFailed WorkflowHandle aget_workflow batch chain get_workflow group",
}
_MODULES = {name: f"django_ojs.client.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "ApprovalDecision",
    "ApprovalTimeout",
    "ChildFailed",
    "Discard",
    "EventTimeout",
    "Fail",
    "JobCancelled",
    "JobContext",
    "JobFailed",
    "JobHandle",
    "LockHeld",
    "RateLimitOptions",
    "ReplayMismatch",
    "Retry",
    "RetryOptions",
    "Snooze",
    "StepError",
    "StepTimeout",
    "Typed",
    "UniqueOptions",
    "Workflow",
    "WorkflowCancelled",
    "WorkflowFailed",
    "WorkflowHandle",
    "aapprove",
    "aemit_event",
    "aenqueue",
    "aenqueue_many",
    "aget_job",
    "aget_workflow",
    "approvals_for",
    "approve",
    "batch",
    "chain",
    "delegate_approval",
    "delete_schedule",
    "emit_event",
    "enqueue",
    "enqueue_after_commit",
    "enqueue_bulk",
    "enqueue_many",
    "get_job",
    "get_workflow",
    "group",
    "job",
    "lock",
    "register_schedule",
    "step",
    "step_type",
    "validate_cron",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise _unknown(name)
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def _unknown(name: str) -> Exception:
    """What to raise for a name that is not here. One of another queue is answered with ours, also where it is imported:
    `from django_ojs import chord` asks with `hasattr` first, which makes a plain no of an AttributeError."""
    if said := import_module("django_ojs.client.otherwords").of_module(name):
        importing = sys._getframe(2).f_code.co_name == "_handle_fromlist"
        return ImportError(said, name=__name__) if importing else AttributeError(said, name=name)
    return AttributeError(f"module 'django_ojs' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
