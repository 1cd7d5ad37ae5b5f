"""System checks for jobs in another database than the site's data (docs/second-database.md).

E010 OUTBOX names no database   W010 enqueue is not transactional    W110 the outbox's table is missing
                                W011 the outbox is a needless detour
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.checks import Warning as Caution
from django.db import connections, router

_CheckResult = list[CheckMessage]


@register(Tags.compatibility)
def check_second_database(**kwargs: Any) -> _CheckResult:
    """E010, W010, W011: where the jobs are in another database than the site's data, an outbox joins them."""
    from django_ojs.database import database

    outbox, jobs = (getattr(settings, "OJS", None) or {}).get("OUTBOX"), database(None)
    if outbox is not None and outbox not in list(settings.DATABASES):
        hint = f"DATABASES has {', '.join(sorted(settings.DATABASES))}."
        return [Error(f"OJS['OUTBOX'] is {outbox!r}, which is no database.", hint=hint, id="django_ojs.E010")]
    if outbox == jobs:
        hint = "Set OJS['OUTBOX'] to None: enqueue() is in the caller's transaction as it is."
        return [Caution(f"The outbox is in {jobs!r}, where the jobs are.", hint=hint, id="django_ojs.W011")]
    callers = _callers()
    if jobs in callers:
        return []  # they share it with the site's data; other databases are beside it on purpose
    return [
        Caution(
            f"enqueue() does not join the transactions of {', '.join(names[:3])}{' and others' * (len(names) > 3)}, "
            f"whose data is in {alias!r} while the jobs are in {jobs!r}: a rollback leaves the job, and a worker may "
            "run it before the data is committed.",
            hint=f"Set OJS['OUTBOX'] = {alias!r} and migrate it (docs/second-database.md), or route both to one "
            "database. Silence django_ojs.W010 where nobody enqueues inside these transactions.",
            id="django_ojs.W010",
        )
        for alias, names in sorted(callers.items())
        if alias != outbox
    ]


def _callers() -> dict[str, list[str]]:
    """The databases that the site's own models are written to, and the apps that do, those of Django last."""
    found: dict[str, list[str]] = {}
    for config in sorted(apps.get_app_configs(), key=lambda config: config.name.startswith("django.")):
        if config.name == "django_ojs":
            continue
        for model in config.get_models(include_auto_created=True):
            names = found.setdefault(router.db_for_write(model), [])
            if model._meta.managed and config.label not in names:
                names.append(config.label)
    return {alias: names for alias, names in found.items() if names}


@register(Tags.database)
def check_outbox(databases: Sequence[str] | None = None, **kwargs: Any) -> _CheckResult:
    """W110: the table of the outbox is where the setting says. A warning, or `migrate` would refuse to make it."""
    from django_ojs.models import OutboxEntry

    alias = (getattr(settings, "OJS", None) or {}).get("OUTBOX")
    if alias is None or alias not in (databases or ()) or alias not in list(settings.DATABASES):
        return []
    table = OutboxEntry._meta.db_table
    if table in connections[alias].introspection.table_names():
        return []
    hint = f"Run manage.py migrate django_ojs --database {alias}; a router must let it (django_ojs.routers.JobsRouter)."
    message = f"The database {alias!r} has no table {table}: every enqueue() fails."
    return [Caution(message, hint=hint, id="django_ojs.W110")]
