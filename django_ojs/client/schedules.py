"""Schedules that handlers bring along: `@job("report.make", cron="0 9 * * 1-5", timezone="Europe/Paris")`.

They take effect when `manage.py ojs_cron sync` copies them into the database (`client.sync`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django_ojs import clock, cronspec
from django_ojs.client.options import HandlerOptions
from django_ojs.cronspec import CronSpec
from django_ojs.errors import OJSError
from django_ojs.registry import InvalidHandler

if TYPE_CHECKING:
    from django_ojs.client.definition import JobDefinition


class ScheduledOptions(HandlerOptions, total=False):
    """What `@job` takes: the defaults of a handler's jobs, and when it runs by itself."""

    cron: str  #: `"0 9 * * 1-5"`, `"@daily"`, `"@every 90m"`
    timezone: str  #: `"Europe/Paris"`; the default is UTC
    overlap: str  #: `"skip"` (default), `"allow"`, `"enqueue"` or `"cancel_previous"`
    cron_args: Sequence[Any]  #: the arguments of the jobs that the schedule makes
    cron_name: str  #: of the schedule; the default is the job type, with hyphens for underscores


_NAMES = ScheduledOptions.__annotations__.keys() - HandlerOptions.__annotations__.keys()


def split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of `@job` that are of its jobs, and those of its schedule. TypeError for one without `cron`."""
    schedule = {name: value for name, value in options.items() if name in _NAMES and value is not None}
    if schedule and "cron" not in schedule:
        raise TypeError(f"{', '.join(sorted(schedule))} of @job says how a schedule runs: give cron= as well.")
    return {name: value for name, value in options.items() if name not in _NAMES}, schedule


def check(definition: JobDefinition[..., ..., Any]) -> None:
    """Raise InvalidHandler, with what to change, unless the schedule of this handler can be kept."""
    if not definition.schedule:
        return
    try:
        spec_of(definition)
    except OJSError as error:
        raise InvalidHandler(f"@job({definition.type!r}): its schedule cannot be kept. {error.message}") from None
    except TypeError as error:
        raise InvalidHandler(f"@job({definition.type!r}): cron_args do not fit. {error}") from None


def spec_of(definition: JobDefinition[..., ..., Any]) -> CronSpec:
    """The schedule of a handler, ready to be registered."""
    given = definition.schedule
    document = definition.s(*given.get("cron_args", ())).document()
    body = {
        "name": given.get("cron_name") or definition.type.replace("_", "-"),
        "cron": given["cron"],
        "timezone": given.get("timezone"),
        "overlap_policy": given.get("overlap"),
        "job_template": document,
    }
    return cronspec.parse(body, now=clock.now())
