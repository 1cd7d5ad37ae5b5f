"""Rules that retry dead letters, and what they have retried."""

from django.db import migrations, models

import django_ojs.models.fields
from django_ojs.migrations._limited import LimitedMigration


class Migration(LimitedMigration):
    dependencies = [
        ("django_ojs", "0002_workers"),
    ]

    operations = [
        migrations.CreateModel(
            name="ReplayRule",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=128, unique=True)),
                (
                    "filter",
                    django_ojs.models.fields.JSONTextField(
                        default=dict, help_text="Which dead letters it is for: queue, type, error type, times."
                    ),
                ),
                ("delay_ms", models.BigIntegerField(help_text="How long after its end a job is retried.")),
                ("max_replays", models.PositiveIntegerField(help_text="How often it retries one job.")),
                ("per_minute", models.PositiveIntegerField(help_text="How many jobs it retries in a minute at most.")),
                ("enabled", models.BooleanField(default=True)),
                ("created_at", models.DateTimeField()),
                ("updated_at", models.DateTimeField()),
            ],
            options={
                "verbose_name": "replay rule",
                "ordering": ["id"],
            },
        ),
        migrations.CreateModel(
            name="JobReplay",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("job_id", models.UUIDField()),
                ("rule", models.CharField(max_length=128)),
                ("replayed_at", models.DateTimeField()),
            ],
            options={
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["job_id", "rule"], name="ojs_replay_job"),
                    models.Index(fields=["rule", "replayed_at"], name="ojs_replay_rule"),
                ],
            },
        ),
    ]
