"""Workflows that the handler of a durable job runs."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models
from django.db.models import Q

from django_ojs.migrations._limited import LimitedMigration


def index_mariadb(apps: Any, schema_editor: Any) -> None:
    """MariaDB has no partial indexes."""
    if schema_editor.connection.vendor != "mysql":
        return
    table = apps.get_model("django_ojs", "Workflow")._meta.db_table
    schema_editor.execute(f"CREATE INDEX ojs_workflow_parent_mariadb ON {table} (parent_id, state)")
    schema_editor.execute(f"CREATE INDEX ojs_workflow_untold_mariadb ON {table} (awaited, finished_at)")


class Migration(LimitedMigration):
    dependencies = [("django_ojs", "0018_durable_events")]

    operations = [
        migrations.AddField(
            "Workflow",
            "parent_id",
            models.UUIDField(null=True, blank=True, help_text="The job whose handler runs it."),
        ),
        migrations.AddField(
            "Workflow",
            "awaited",
            models.BooleanField(
                null=True,
                blank=True,
                editable=False,
                help_text="Whether its parent is still to be told of its end. Null: no.",
            ),
        ),
        migrations.AddField(
            "Workflow",
            "outlives_parent",
            models.BooleanField(
                null=True,
                blank=True,
                editable=False,
                help_text="Whether it goes on when its parent has ended. Null: no.",
            ),
        ),
        migrations.AddIndex(
            "Workflow",
            models.Index(fields=["parent_id"], name="ojs_workflow_parent", condition=Q(parent_id__isnull=False)),
        ),
        migrations.AddIndex(
            "Workflow",
            models.Index(
                fields=["parent_id"],
                name="ojs_workflow_follow",
                condition=Q(parent_id__isnull=False, state="running"),
            ),
        ),
        migrations.AddIndex(
            "Workflow",
            models.Index(
                fields=["finished_at"],
                name="ojs_workflow_untold",
                condition=Q(awaited=True, finished_at__isnull=False),
            ),
        ),
        migrations.AlterField(
            "JobStep",
            "kind",
            models.CharField(
                max_length=9,
                default="call",
                choices=[
                    (kind, kind) for kind in ("call", "time", "random", "sleep", "arguments", "event", "children")
                ],
            ),
        ),
        migrations.RunPython(index_mariadb, migrations.RunPython.noop, atomic=False, hints={"model_name": "workflow"}),
    ]
