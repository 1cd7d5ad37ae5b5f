"""Create, update and remove schedules in the database, so that they are as the code says.

The scheduler does this when a process takes its lead (`OJS["SYNC_SCHEDULES"]`), and `manage.py ojs_cron sync` at a
deploy. Each row keeps what the code said of it last (`CronSchedule.declared`). What differs between that and the row
was changed by an operator, and stays; what differs between that and the code is changed in the row.

The process that leads may run older code than another one, or that of another project with the same database. So the
scheduler deletes no schedule. It disables one whose module is here and declares it no more, and enables it again when
the code does.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from django_ojs import jsontext
from django_ojs.client.definition import cron_spec
from django_ojs.conf import ojs_settings
from django_ojs.cron import schedules
from django_ojs.database import atomic, database, retried
from django_ojs.models import CronSchedule
from django_ojs.registry import registry, unwrapped
from django_ojs.rules.cron import CronSpec

#: Columns that the code decides, in groups of which an operator changes all or nothing. Whether a schedule is enabled,
#: and its description, are the operators' alone.
_TIMING, _OVERLAP, _JOB = ("expression", "timezone"), ("overlap_policy",), ("type", "queue", "template")
_GROUPS = (_TIMING, _OVERLAP, _JOB)


@dataclasses.dataclass(slots=True)
class SyncResult:
    """The names of the schedules that a sync created, updated, removed, and left as they were.

    `disabled` and `enabled` are those that the scheduler switched because they left the code or came back. `kept` are
    those in which an operator's change stands against the code, and `foreign` those that no module here can have
    declared. Names of `kept` and `foreign` may be among the others.
    """

    created: list[str] = dataclasses.field(default_factory=list)
    updated: list[str] = dataclasses.field(default_factory=list)
    removed: list[str] = dataclasses.field(default_factory=list)
    disabled: list[str] = dataclasses.field(default_factory=list)
    enabled: list[str] = dataclasses.field(default_factory=list)
    unchanged: list[str] = dataclasses.field(default_factory=list)
    kept: list[str] = dataclasses.field(default_factory=list)
    foreign: list[str] = dataclasses.field(default_factory=list)

    @property
    def changes(self) -> dict[str, list[str]]:
        """What changed, by the word for it."""
        words = ("created", "updated", "removed", "disabled", "enabled")
        return {word: names for word in words if (names := getattr(self, word))}


class NotSynchronised(Exception):
    """The schedules of the code cannot be stored; nothing was changed. The message says what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Declaration:
    """What the code says of a schedule, and where it does: the handler's module, in the service of this name."""

    spec: CronSpec
    module: str
    service: str

    def as_json(self, **more: Any) -> dict[str, Any]:
        definition = {name: getattr(self.spec, name) for group in _GROUPS for name in group}
        return {"service": self.service, "module": self.module, "definition": definition, **more}


def declared() -> list[CronSpec]:
    """The schedules of all handlers, by name. Raises NotSynchronised when two have the same name."""
    return [declaration.spec for declaration in declarations().values()]


def declarations() -> dict[str, Declaration]:
    """What the code says, by the names of the schedules, sorted.

    Raises NotSynchronised when two have the same name, and when a declaration is wrong: its schedule would seem to have
    left the code.
    """
    found: dict[str, Declaration] = {}
    if faults := registry.faults():
        raise NotSynchronised(f"Handlers are declared wrongly: {' '.join(map(str, faults))}")
    for definition in registry.definitions():
        if not definition.cron_options:
            continue
        spec = cron_spec(definition)
        if spec.name in found:
            types = f"{found[spec.name].spec.type} and {spec.type}"
            raise NotSynchronised(f"{types} both have the schedule '{spec.name}': give one of them cron_name=.")
        found[spec.name] = Declaration(spec, unwrapped(definition.handler).__module__, ojs_settings.SERVICE_NAME)
    return {name: found[name] for name in sorted(found)}


@retried
def sync(
    *, dry_run: bool = False, deletes: bool = True, overwrite: bool = False, using: str | None = None
) -> SyncResult:
    """Make the schedules of the code in the database as the code says; what is so already is left alone.

    Whether one is enabled is the operators' choice and kept.

    Args:
        dry_run: only say what would change.
        deletes: delete every schedule that no code here declares. Else those that this code once declared are disabled,
            as long as it does not declare them.
        overwrite: take back what operators changed, too.

    Raises:
        NotSynchronised: before anything is changed, when a name is taken by a schedule that was registered over HTTP.
    """
    using = database(using)
    wanted = declarations()
    with atomic(using=using):
        rows = CronSchedule.objects.using(using).order_by("name")
        known = {row.name: row for row in (rows if dry_run else rows.select_for_update())}
        _refuse_taken(wanted, known)
        result = SyncResult()
        for name, declaration in wanted.items():
            _sync_one(declaration, known.get(name), result, dry_run, overwrite, using)
        for name, row in known.items():
            if row.source == CronSchedule.Source.CODE and name not in wanted:
                _retire(row, result, dry_run, deletes, using)
    return result


def out_of_date(using: str | None = None) -> list[str]:
    """The names of schedules that the scheduler would create, update, disable or enable."""
    changes = sync(dry_run=True, deletes=False, using=using).changes
    return sorted(name for names in changes.values() for name in names)


def _sync_one(
    declaration: Declaration, row: CronSchedule | None, result: SyncResult, dry_run: bool, overwrite: bool, using: str
) -> None:
    name, told = declaration.spec.name, _plain(declaration.as_json())
    if row is None:
        result.created.append(name)
        if not dry_run:
            schedules.register(declaration.spec, source=CronSchedule.Source.CODE, declared=told, using=using)
        return
    foreign_source = row.source != CronSchedule.Source.CODE
    before = row.declared or {}
    spec, is_kept = _merged(declaration.spec, row, before.get("definition"), overwrite, foreign_source)
    if is_kept:
        result.kept.append(name)
    if foreign_source and not overwrite:  # registered anew over HTTP: the operators' altogether
        result.unchanged.append(name)
        return
    comes_back = bool(before.get("retired")) and not row.enabled
    spec = dataclasses.replace(spec, enabled=row.enabled or comes_back, description=row.description)
    if comes_back:
        result.enabled.append(name)
    elif schedules.differs(row, spec) or foreign_source:
        result.updated.append(name)
    else:
        result.unchanged.append(name)
        if told != before and not dry_run:
            CronSchedule.objects.using(using).filter(pk=name).update(declared=told)
        return
    if not dry_run:
        schedules.register(spec, source=CronSchedule.Source.CODE, declared=told, using=using)
        if row.limits is not None and spec.template == row.template:  # its job is that of a caller with limits
            CronSchedule.objects.using(using).filter(pk=name).update(limits=row.limits)


def _merged(
    spec: CronSpec, row: CronSchedule, before: Mapping[str, Any] | None, overwrite: bool, foreign: bool
) -> tuple[CronSpec, bool]:
    """What the code says now, with what operators changed since it said `before`; whether that differs.

    A row of which is not known what the code said is taken for unchanged, as each row was before that was kept.
    """
    if overwrite or (before is None and not foreign):
        return spec, False
    theirs = {
        name: getattr(row, name)
        for group in _GROUPS
        if foreign or any(getattr(row, name) != before[name] for name in group)  # type: ignore[index]
        for name in group
    }
    is_kept = any(_plain(getattr(spec, name)) != value for name, value in theirs.items())
    return dataclasses.replace(spec, **theirs), is_kept


def _retire(row: CronSchedule, result: SyncResult, dry_run: bool, deletes: bool, using: str) -> None:
    """What becomes of a schedule of the code that no code here declares."""
    if is_foreign := not _was_here(row.declared):
        result.foreign.append(row.name)
    if deletes:
        result.removed.append(row.name)
        if not dry_run:
            schedules.delete(row.name, using=using)
    elif not is_foreign and row.enabled and not (row.declared or {}).get("retired"):
        result.disabled.append(row.name)
        if not dry_run:
            schedules.set_enabled(row.name, False, using=using)
            retired = {**row.declared, "retired": True}
            CronSchedule.objects.using(using).filter(pk=row.name).update(declared=retired)


def _was_here(told: Mapping[str, Any] | None) -> bool:
    """Whether the module that declared a schedule is a module of this process."""
    return told is not None and told["service"] == ojs_settings.SERVICE_NAME and told["module"] in sys.modules


def _plain(value: Any) -> Any:
    """As the database gives it back: tuples are lists there."""
    return jsontext.loads(jsontext.dumps(value))


def _refuse_taken(wanted: Iterable[str], known: Mapping[str, CronSchedule]) -> None:
    taken = [
        name
        for name in wanted
        if name in known and known[name].source != CronSchedule.Source.CODE and known[name].declared is None
    ]
    if taken:
        names = ", ".join(taken)
        raise NotSynchronised(
            f"These schedules of the code are registered over HTTP as well: {names}. Delete them there "
            "(DELETE /ojs/v1/cron/NAME) or give the handler another cron_name=."
        )
