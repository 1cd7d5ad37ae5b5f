"""Create, update and remove schedules in the database, so that they are as the code says.

This is done at deploy by `manage.py ojs_cron sync` and not by workers when they start: during a deploy old and
new workers run side by side, and an old one that restarts would take the new schedules away. Schedules that
were registered over HTTP are never touched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from django_ojs.client.definition import cron_spec
from django_ojs.cron import schedules
from django_ojs.database import atomic, database
from django_ojs.models import CronSchedule
from django_ojs.registry import registry
from django_ojs.rules.cron import CronSpec


@dataclasses.dataclass(slots=True)
class SyncResult:
    """The names of the schedules that a sync created, updated, removed and left as they were."""

    created: list[str] = dataclasses.field(default_factory=list)
    updated: list[str] = dataclasses.field(default_factory=list)
    removed: list[str] = dataclasses.field(default_factory=list)
    unchanged: list[str] = dataclasses.field(default_factory=list)


class NotSynchronised(Exception):
    """The schedules of the code cannot be stored; nothing was changed. The message says what to do."""


def declared() -> list[CronSpec]:
    """The schedules of all handlers, by name. Raises NotSynchronised when two have the same name."""
    found: dict[str, CronSpec] = {}
    for definition in registry.definitions():
        if not definition.schedule:
            continue
        spec = cron_spec(definition)
        if spec.name in found:
            types = f"{found[spec.name].type} and {spec.type}"
            raise NotSynchronised(f"{types} both have the schedule '{spec.name}': give one of them cron_name=.")
        found[spec.name] = spec
    return [found[name] for name in sorted(found)]


def sync(*, dry_run: bool = False, using: str | None = None) -> SyncResult:
    """Make the schedules of the code in the database as the code says; what is so already is left alone.

    Whether one is enabled is the operators' choice and kept. Raises NotSynchronised, before anything is
    changed, when a name is taken by a schedule that was registered over HTTP.
    """
    using = database(using)
    wanted = {spec.name: spec for spec in declared()}
    with atomic(using=using):
        rows = CronSchedule.objects.using(using).order_by("name")
        known = {row.name: row for row in (rows if dry_run else rows.select_for_update())}
        _refuse_taken(wanted, known)
        result = SyncResult()
        for name, spec in wanted.items():
            _settle(spec, known.get(name), result, dry_run, using)
        for name, row in known.items():
            if row.source == CronSchedule.Source.CODE and name not in wanted:
                result.removed.append(name)
                if not dry_run:
                    schedules.delete(name, using=using)
    return result


def out_of_date(using: str | None = None) -> list[str]:
    """The names of schedules that a sync would create, update or remove."""
    result = sync(dry_run=True, using=using)
    return sorted([*result.created, *result.updated, *result.removed])


def _settle(spec: CronSpec, row: CronSchedule | None, result: SyncResult, dry_run: bool, using: str) -> None:
    if row is not None:
        spec = dataclasses.replace(spec, enabled=row.enabled, description=row.description)
    if row is not None and not schedules.differs(row, spec):
        result.unchanged.append(spec.name)
        return
    (result.created if row is None else result.updated).append(spec.name)
    if not dry_run:
        schedules.register(spec, source=CronSchedule.Source.CODE, using=using)


def _refuse_taken(wanted: Iterable[str], known: Mapping[str, CronSchedule]) -> None:
    taken = [name for name in wanted if name in known and known[name].source != CronSchedule.Source.CODE]
    if taken:
        names = ", ".join(taken)
        raise NotSynchronised(
            f"These schedules of the code are registered over HTTP as well: {names}. Delete them there "
            "(DELETE /ojs/v1/cron/NAME) or give the handler another cron_name=."
        )
