"""Schedules that code makes while the site runs: one for each customer, for each integration that a user adds, ..."""

from __future__ import annotations

from django.core.exceptions import ValidationError

from django_ojs.client.definition import PreparedJob
from django_ojs.cron import schedules
from django_ojs.errors import NotFound
from django_ojs.messages import reason, shown, translated
from django_ojs.models import CronSchedule
from django_ojs.rules import cron as rules


def register_schedule(
    name: str,
    job: PreparedJob,
    *,
    cron: str,
    timezone: str = "UTC",
    overlap: str = "skip",
    enabled: bool = True,
    description: str = "",
) -> CronSchedule:
    """Create a schedule that enqueues `job`, or make the one of this name so, in the open transaction if there is one.

    What happened so far (`last_run_at`, `run_count`) is kept. The schedule is the operators' as one that was registered
    over HTTP is: no synchronisation touches it.

    Args:
        name: lowercase letters, digits, `-` and `.`, such as `"sync-17"`.
        job: `handler.s(...)`, or `handler.options(...).s(...)`.
        cron: `"0 9 * * 1-5"`, `"@daily"`, `"@every 90m"`.
        timezone: UTC, or such as `"Europe/Paris"`.
        overlap: `"skip"`, `"allow"`, `"enqueue"` or `"cancel_previous"`.
        enabled: whether it fires.
        description: for the operators.

    Raises:
        InvalidRequest: for a name, an expression, a zone or options that a schedule cannot have.
        TypeError: for what is no prepared job, and for arguments that are not JSON.
    """
    if not isinstance(job, PreparedJob):
        raise TypeError(f"A schedule enqueues a prepared job: pass handler.s(...), not {shown(job)}.")
    body = {
        "name": name,
        "cron": cron,
        "timezone": timezone,
        "overlap_policy": overlap,
        "enabled": enabled,
        "description": description,
        "job_template": job.document(),
    }
    return schedules.register(body)[0]


def delete_schedule(name: str) -> bool:
    """Delete a schedule, whether code, an operator or a client made it; its jobs stay. Return whether there was one."""
    if not isinstance(name, str):
        raise TypeError(f"The name of a schedule is a text, not {shown(name)}.")
    try:
        schedules.delete(name)
    except NotFound:
        return False
    return True


def validate_cron(value: object) -> None:
    """Refuse what is no cron expression: a validator for the fields of forms, models and serializers.

    Raises ValidationError, with what is wrong and what to write instead.
    """
    try:
        rules.parse_expression(value)
    except rules.InvalidExpression as error:
        raise ValidationError(f"{value} {translated(reason(error))}.", code="invalid_cron") from error
