"""A database router for sites that keep their jobs in a database of their own (docs/second-database.md)."""

from __future__ import annotations

from typing import Any, ClassVar

from django_ojs.conf import ojs_settings

APP = "django_ojs"
OUTBOX = "outboxentry"


class JobsRouter:
    """Sends the tables of django-ojs to the database `database`, and the outbox to the database in `OJS["OUTBOX"]`.

    To change the alias, subclass it. Name it before other routers in `DATABASE_ROUTERS`.
    """

    database: ClassVar[str] = "jobs"

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        if model._meta.app_label != APP:
            return None
        return self._home(model._meta.model_name)

    db_for_write = db_for_read

    def allow_relation(self, obj1: Any, obj2: Any, **hints: Any) -> bool | None:
        labels = {obj1._meta.app_label, obj2._meta.app_label}
        return True if labels == {APP} else None

    def allow_migrate(self, db: str, app_label: str, model_name: str | None = None, **hints: Any) -> bool | None:
        """Allow each table of ours only in its database, and no table of other apps in that of the jobs."""
        if app_label == APP:
            return db == self._home(model_name)
        return False if db == self.database else None

    def _home(self, model_name: str | None) -> str:
        return ojs_settings.OUTBOX or self.database if model_name == OUTBOX else self.database
