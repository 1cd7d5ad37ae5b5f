"""PostgreSQL: leave room for the next version of a workflow's row beside it. No lock that stops a reader or a writer."""

from __future__ import annotations

from typing import Any

from django.db import migrations

from django_ojs.migrations._limited import LimitedMigration

#: How full a page is made, in percent. Each member that ends changes the progress of its workflow, and no index has that
#: column: a new version in the same page needs no index entries. In a full page there is no room, and an update
#: takes five times as long and writes ten times as much.
FULL = "50"


def settings_of(schema_editor: Any, table: str) -> dict[str, str]:
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("SELECT unnest(reloptions) FROM pg_class WHERE oid = %s::regclass", [table])
        return dict(row[0].split("=", 1) for row in cursor.fetchall())


def forwards(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor != "postgresql":
        return
    table = apps.get_model("django_ojs", "Workflow")._meta.db_table
    if "fillfactor" not in settings_of(schema_editor, table):  # the site's own stays
        schema_editor.execute(f"ALTER TABLE {table} SET (fillfactor = {FULL})")


def backwards(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor != "postgresql":
        return
    table = apps.get_model("django_ojs", "Workflow")._meta.db_table
    if settings_of(schema_editor, table).get("fillfactor") == FULL:
        schema_editor.execute(f"ALTER TABLE {table} RESET (fillfactor)")


class Migration(LimitedMigration):
    dependencies = [
        ("django_ojs", "0006_workers_over_time"),
    ]

    operations = [
        # The hint: only in the database that has the tables.
        migrations.RunPython(forwards, backwards, hints={"model_name": "workflow"}),
    ]
