"""The events that durable jobs wait for, and which step waits for which."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models
from django.db.models import Q

from django_ojs.migrations._limited import LimitedMigration
from django_ojs.models.fields import JSONTextField, MomentField


def prepare_mariadb(apps: Any, schema_editor: Any) -> None:
    """MariaDB has no partial indexes, and would take names and keys that differ in their case for the same."""
    if schema_editor.connection.vendor != "mysql":
        return
    step, event = (apps.get_model("django_ojs", name)._meta.db_table for name in ("JobStep", "DurableEvent"))
    exact = "varchar(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    schema_editor.execute(f"ALTER TABLE {step} MODIFY event_name {exact} NULL, MODIFY event_key {exact} NULL")
    schema_editor.execute(f"ALTER TABLE {event} MODIFY name {exact} NOT NULL, MODIFY `key` {exact} NOT NULL")
    schema_editor.execute(f"CREATE INDEX ojs_step_waits_mariadb ON {step} (event_name, event_key, ended_at)")


class Migration(LimitedMigration):
    dependencies = [("django_ojs", "0017_job_logs")]

    operations = [
        migrations.CreateModel(
            "DurableEvent",
            [
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=200)),
                (
                    "key",
                    models.CharField(
                        max_length=200, default="", blank=True, help_text="What it is about, such as an order's id."
                    ),
                ),
                (
                    "payload",
                    JSONTextField(null=True, blank=True, help_text="What handlers that wait for it get, as JSON."),
                ),
                ("created_at", MomentField(db_index=True)),
            ],
            options={"constraints": [models.UniqueConstraint(fields=["name", "key"], name="ojs_durable_event")]},
        ),
        migrations.AlterField(
            "JobStep",
            "kind",
            models.CharField(
                max_length=9,
                default="call",
                choices=[(kind, kind) for kind in ("call", "time", "random", "sleep", "arguments", "event")],
            ),
        ),
        migrations.AddField(
            "JobStep",
            "event_name",
            models.CharField(max_length=200, null=True, blank=True, help_text="The event that it waits for."),
        ),
        migrations.AddField("JobStep", "event_key", models.CharField(max_length=200, null=True, blank=True)),
        migrations.AddIndex(
            "JobStep",
            models.Index(
                fields=["event_name", "event_key"],
                name="ojs_step_waits",
                condition=Q(event_name__isnull=False, ended_at__isnull=True),
            ),
        ),
        migrations.RunPython(prepare_mariadb, migrations.RunPython.noop, atomic=False, hints={"model_name": "jobstep"}),
    ]
