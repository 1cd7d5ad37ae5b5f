"""The recorded steps of durable jobs."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

from django_ojs.migrations._limited import LimitedMigration
from django_ojs.models.fields import JSONTextField, MomentField


def prepare_mariadb(apps: Any, schema_editor: Any) -> None:
    """MariaDB would take names that differ in their case for the same."""
    if schema_editor.connection.vendor == "mysql":
        table = apps.get_model("django_ojs", "JobStep")._meta.db_table
        column = "varchar(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"
        schema_editor.execute(f"ALTER TABLE {table} MODIFY name {column}")


class Migration(LimitedMigration):
    dependencies = [("django_ojs", "0013_checkpoints")]

    operations = [
        migrations.CreateModel(
            "JobStep",
            [
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("job_id", models.UUIDField()),
                ("name", models.CharField(max_length=200)),
                (
                    "kind",
                    models.CharField(
                        max_length=9,
                        default="call",
                        choices=[(kind, kind) for kind in ("call", "time", "random", "sleep", "arguments")],
                    ),
                ),
                ("result", JSONTextField(null=True, blank=True, help_text="What the step returned.")),
                ("error", JSONTextField(null=True, blank=True, help_text="Why the latest try failed.")),
                ("tries", models.PositiveIntegerField(default=1, help_text="How often the step was begun.")),
                (
                    "code",
                    models.CharField(
                        max_length=64, default="", blank=True, help_text="The mark of the handler's code."
                    ),
                ),
                ("attempt", models.PositiveIntegerField(help_text="The attempt of the job that recorded it.")),
                ("began_at", MomentField()),
                ("ended_at", MomentField(null=True, blank=True)),
                (
                    "due_at",
                    MomentField(null=True, blank=True, help_text="When a sleep ends, or a failed step is tried again."),
                ),
            ],
            options={"constraints": [models.UniqueConstraint(fields=["job_id", "name"], name="ojs_step_name")]},
        ),
        migrations.RunPython(prepare_mariadb, migrations.RunPython.noop, atomic=False, hints={"model_name": "jobstep"}),
    ]
