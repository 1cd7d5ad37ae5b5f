"""The name of the permission `ojs_work` in plain words, also where Django has stored it before."""

from __future__ import annotations

from typing import Any

from django.apps import apps as installed
from django.db import connections, migrations, router

from django_ojs.migrations._limited import LimitedMigration

OLD, NEW = "Can fetch and settle jobs over HTTP", "Can fetch jobs and report on them over HTTP"


def forwards(apps: Any, schema_editor: Any) -> None:
    rename(schema_editor, OLD, NEW)


def backwards(apps: Any, schema_editor: Any) -> None:
    rename(schema_editor, NEW, OLD)


def rename(schema_editor: Any, old: str, new: str) -> None:
    """Rename the stored permission: `migrate` makes those that are missing, and leaves the names of the others alone.

    A name that the site has given it stays. Users need not be installed where only Python enqueues, and their tables
    may be in another database than the jobs.
    """
    if not installed.is_installed("django.contrib.auth"):
        return
    permission: Any = installed.get_model("auth", "Permission")
    alias = schema_editor.connection.alias
    if not router.allow_migrate_model(alias, permission):
        alias = router.db_for_write(permission)
    if permission._meta.db_table in connections[alias].introspection.table_names():
        ours = permission.objects.using(alias).filter(content_type__app_label="django_ojs", content_type__model="job")
        ours.filter(codename="ojs_work", name=old).update(name=new)


class Migration(LimitedMigration):
    dependencies = [("django_ojs", "0015_attempts")]

    operations = [
        migrations.AlterModelOptions(
            name="job",
            options={
                "permissions": [
                    ("ojs_push", "Can enqueue jobs over HTTP"),
                    ("ojs_work", NEW),
                    ("ojs_read", "Can read jobs, queues and events over HTTP"),
                    ("ojs_admin", "Can manage jobs, queues and workers over HTTP"),
                ]
            },
        ),
        migrations.RunPython(forwards, backwards),
    ]
